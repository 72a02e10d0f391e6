"""The planner's problem for one operator: statements, their instructions, homes of tensors."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from cpembed.accelerator.addressing import InRows
from cpembed.accelerator.matching import Match
from cpembed.accelerator.program import MainTensor
from cpembed.accelerator.specification import Specification, Statement
from cpembed.embedding.embedding import Digit
from cpembed.errors import CpembedError
from cpembed.hw.isa import IsaInstruction, StrideSource
from cpembed.ir.computation import AxisKind
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr

Objective = Literal["cycles", "bytes"]

_VARIANTS = 12
"""Maximum number of variants of a problem that are tried."""


class PlanningError(CpembedError):
    """An operator that the planner rejects, with the reason and the remedy in one line."""


class CapacityError(PlanningError):
    """An operator whose buffers do not fit in the rows of a memory."""


class AddressingError(PlanningError):
    """A tiling in which instructions cannot address a tensor."""

    def __init__(self, message: str, tensor: str) -> None:
        super().__init__(message)
        self.tensor = tensor


@dataclass(frozen=True)
class OperatorProblem:
    """Statements of one operator, their instructions, and the homes of its tensors.

    Attributes
    ----------
    matches : tuple of Match
        Instruction for each statement of the specification, in their order.
    homes : mapping of str to InRows
        Tensors that are in rows before (inputs) or stay there afterwards (outputs).
    layouts : mapping of str to MainTensor
        Tensors whose layout in main memory is decided already.
    keeps_order : bool
        True if all other tensors but constants have their dimensions in their own order there, as
        other operators find them; False if any order may be chosen.
    reuses_rows : bool
        True if buffers may have the rows of others whose contents nothing needs any more; units
        then wait for each other more often.
    objective : str
        What the plan is to have the least of: ``cycles``, or ``bytes`` to and from main memory.
    """

    specification: Specification
    matches: tuple[Match, ...]
    homes: Mapping[str, InRows] = field(default_factory=dict[str, InRows])
    layouts: Mapping[str, MainTensor] = field(default_factory=dict[str, MainTensor])
    keeps_order: bool = False
    reuses_rows: bool = False
    objective: Objective = "cycles"

    @property
    def instruction_lines(self) -> tuple[str, ...]:
        """Instruction of each statement with the digits of its axes, a line each.

        The lines have no executions: tiles may take smaller ones than the largest of a match.
        """
        return tuple(
            f"{match.instruction.name}: "
            + ", ".join(f"{a} <- {' '.join(map(str, d)) or '1'}" for a, d in match.axes.items())
            for match in self.matches
        )


def problem_variants(
    problem: OperatorProblem, is_possible: Callable[[Statement, Match], bool]
) -> Iterator[OperatorProblem]:
    """Yield the problem, and variants whose instructions walk fewer axes at once.

    Fewer executions are no gain where no layout has all axes in neighbouring rows.

    Parameters
    ----------
    problem : OperatorProblem
    is_possible : callable
        Test of a match by itself, for variants that no plan can have.

    Yields
    ------
    OperatorProblem
        Those with the fewest executions first.
    """
    problem = _with_common_lanes(problem)
    yield problem
    statements = problem.specification.statements
    # Statements after each other find a tensor in the same rows, so they change together first.
    singles = [tuple(_single_axis(m, position) for m in problem.matches) for position in (-1, 0)]
    # Parts of a tensor are not dense in its rows, except along the innermost digit.
    inner = [tuple(map(_innermost_rows, choice)) for choice in (problem.matches, *singles)]
    offered = [problem.matches]
    for alike in (*singles, *inner, tuple(map(_one_lane, problem.matches))):
        if alike not in offered and all(map(is_possible, statements, alike)):
            offered.append(alike)
            yield replace(problem, matches=alike)
    choices = [
        [(m.executions, m) for m in _single_axes(match) if is_possible(statement, m)]
        for statement, match in zip(statements, problem.matches, strict=True)
    ]
    for matches in itertools.islice(_fewest_executions(choices), _VARIANTS):
        if matches not in offered:
            yield replace(problem, matches=matches)


def _fewest_executions(
    choices: Sequence[Sequence[tuple[int, Match]]],
) -> Iterator[tuple[Match, ...]]:
    """Yield one match of each choice, those with the fewest executions in all first."""
    ordered = [sorted(options, key=lambda option: option[0]) for options in choices]
    if not all(ordered):
        return

    def entry(positions: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        pairs = zip(ordered, positions, strict=True)
        return sum(options[n][0] for options, n in pairs), positions

    # All positions follow from the first ones by steps along one choice.
    queue = [entry((0,) * len(ordered))]
    reached = {queue[0][1]}
    while queue:
        _, positions = heapq.heappop(queue)
        yield tuple(options[n][1] for options, n in zip(ordered, positions, strict=True))
        for place, options in enumerate(ordered):
            if positions[place] + 1 < len(options):
                following = (*positions[:place], positions[place] + 1, *positions[place + 1 :])
                if following not in reached:
                    reached.add(following)
                    heapq.heappush(queue, entry(following))


def _with_common_lanes(problem: OperatorProblem) -> OperatorProblem:
    """Return the problem with equal parts of a row where no row suits unequal ones.

    Groups of 12 channels do not lie in rows of 16 without one of them in two rows, so that all
    statements take 12 of the 16 lanes.
    """
    written = {s.output.tensor for s in problem.specification.statements}
    counts: dict[tuple[str, int], set[int]] = {}
    for match in problem.matches:
        for axis, dimension in _lane_axes(match):
            if dimension[0] in written:
                counts.setdefault(dimension, set()).add(match.axes[axis][0].count)
    smallest = {
        dimension: min(parts)
        for dimension, parts in counts.items()
        if any(part % min(parts) for part in parts)
    }
    if not smallest:
        return problem
    matches: list[Match] = []
    for match in problem.matches:
        axes = dict(match.axes)
        for axis, dimension in _lane_axes(match):
            (digit,) = match.axes[axis]
            count = smallest.get(dimension, digit.count)
            size = next(a for a in match.instruction.axes if a.name == axis)
            if count < digit.count and not size.is_fixed and not count % size.step:
                axes[axis] = (Digit(digit.axis, max(count, size.minimum), digit.stride),)
        matches.append(_with_axes(match, axes))
    return replace(problem, matches=tuple(matches))


def _lane_axes(match: Match) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the axes of one digit that walk lanes, with the tensor's dimension that they walk."""
    computation = match.statement.computation
    for operand, access in match.accesses.items():
        place = match.instruction.places[operand]
        index = match.instruction.computation.access(operand).index
        for lane in place.lanes:
            axis = index[place.dimensions.index(lane.axis)].single_iterator
            digits = match.axes.get(axis, ()) if axis is not None else ()
            if axis is None or len(digits) != 1:
                continue
            tensor = computation.operand(access.operand).tensor
            for dimension, expression in enumerate(access.index):
                if expression.coefficient(digits[0].axis) == 1:
                    yield axis, (tensor, dimension)


def _with_axes(match: Match, axes: Mapping[str, tuple[Digit, ...]]) -> Match:
    """Return a match with other digits, and with the executions that these need."""
    if axes == match.axes:
        return match
    variant = replace(match, axes=axes)
    return replace(variant, executions=_executions(variant))


def _executions(match: Match) -> int:
    """Return the number of executions of a match, with whole granules."""
    extents = match.statement.computation.extents
    return math.prod(-(-extent // match.tile(axis)) for axis, extent in extents.items())


def _single_axis(match: Match, position: int) -> Match:
    """Return a match whose axes walk only the digit at one position of those that they walk."""
    axes = {axis.name: axis for axis in match.instruction.axes}
    extents = match.statement.computation.extents
    digits = {name: (d[position],) if d else () for name, d in match.axes.items()}
    sizes = {
        name: tuple(Digit(d.axis, axes[name].rounded(extents[d.axis])) for d in single)
        if len(match.axes[name]) > 1
        else single
        for name, single in digits.items()
    }
    return _with_axes(match, sizes)


def _one_lane(match: Match) -> Match:
    """Return a match of one lane, if a register has another number for each execution.

    Its elements may then come from tensors whose neighbours belong to several executions.
    """
    extents = match.statement.computation.extents
    has_table = any(
        extents[axis] > 1
        for operand, access in match.accesses.items()
        if not match.instruction.places[operand].dimensions
        for axis in access.iterators
    )
    if not has_table:
        return match
    sizes = {axis.name: axis.minimum for axis in match.instruction.axes}
    empty = {axis: () for axis, _ in _lane_axes(match) if sizes[axis] == 1}
    return _with_axes(match, {**match.axes, **empty})


def _innermost_rows(match: Match) -> Match:
    """Return a match that walks the rows of its output along the innermost digit alone."""
    sizes = {axis.name: axis.minimum for axis in match.instruction.axes}
    axes = dict(match.axes)
    for operand in match.instruction.outputs:
        place = match.instruction.places[operand]
        index = match.instruction.computation.access(operand).index
        for d in place.rows[:-1]:
            axis = index[place.dimensions.index(d.axis)].single_iterator
            is_dense = place.strides.get(str(d), StrideSource.DENSE) == StrideSource.DENSE
            if axis is not None and is_dense and sizes[axis] == 1:
                axes[axis] = ()
    return _with_axes(match, axes)


def _single_axes(match: Match) -> Iterator[Match]:
    options: list[list[tuple[Digit, ...]]] = []
    extents = match.statement.computation.extents
    axes = {axis.name: axis for axis in match.instruction.axes}
    for name, digits in match.axes.items():
        variants = [digits]
        if len(digits) > 1:
            variants += [(Digit(d.axis, axes[name].rounded(extents[d.axis])),) for d in digits]
        options.append(variants)
    for choice in itertools.product(*options):
        yield _with_axes(match, dict(zip(match.axes, choice, strict=True)))


@dataclass(frozen=True)
class Step:
    """A statement with its instruction, over axes that all statements of the problem share.

    Attributes
    ----------
    axes : mapping of str to str
        Shared axis for each axis of the statement.
    """

    number: int
    statement: Statement
    match: Match
    instruction: IsaInstruction
    axes: Mapping[str, str]

    @staticmethod
    def of_match(statement: Statement, match: Match) -> Step:
        """Return the only statement of a problem, whose axes keep their names."""
        axes = {axis.name: axis.name for axis in statement.computation.axes}
        return Step(0, statement, match, match.instruction, axes)

    def access(self, operand: str) -> Access:
        """Return the statement's access that an operand of the instruction stands for."""
        return self.match.accesses[operand]

    def tensor(self, operand: str) -> str:
        """Return the tensor of the specification that an operand holds; empty for a number."""
        access = self.match.accesses.get(operand)
        if access is None:
            return ""
        return self.statement.computation.operand(access.operand).tensor

    def digits(self, axis: str) -> tuple[Digit, ...]:
        """Return the digits that an axis of the instruction walks, outermost first."""
        return tuple(reversed(self.match.axes.get(axis, ())))

    @cached_property
    def granules(self) -> dict[str, int]:
        """Number of values of each shared axis that one execution covers."""
        sizes = dict.fromkeys(self.axes.values(), 1)
        for digits in self.match.axes.values():
            for d in digits:
                axis = self.axes[d.axis]
                sizes[axis] = max(sizes[axis], d.count * d.stride)
        return sizes

    @cached_property
    def padded(self) -> frozenset[str]:
        """Shared axes that executions cover in whole granules, beyond the end if need be."""
        padded = set[str]()
        for axis in self.instruction.axes:
            digits = self.digits(axis.name)
            if not axis.takes_any_size or len(digits) > 1:
                padded.update(self.axes[d.axis] for d in digits)
        return frozenset(padded)

    @property
    def reductions(self) -> frozenset[str]:
        """Shared axes over which the statement reduces."""
        return frozenset(
            self.axes[a.name]
            for a in self.statement.computation.axes
            if a.kind is AxisKind.REDUCTION
        )


def steps(problem: OperatorProblem) -> tuple[Step, ...]:
    """Return the statements of a problem over shared axes.

    Axes that index the same dimension of a tensor that statements write are one axis.
    """
    statements = problem.specification.statements
    if len(problem.matches) != len(statements):
        raise PlanningError(
            f"{problem.specification.name} has {len(statements)} statements and "
            f"{len(problem.matches)} matches: give one match for each statement"
        )
    shared = _shared_axes(statements)
    return tuple(
        Step(
            number,
            statement,
            match,
            match.instruction,
            {a.name: shared[number, a.name] for a in statement.computation.axes},
        )
        for number, (statement, match) in enumerate(zip(statements, problem.matches, strict=True))
    )


_AxisKey = tuple[int, str]


def _shared_axes(statements: tuple[Statement, ...]) -> dict[_AxisKey, str]:
    """Name the shared axis of each axis of each statement."""
    group: dict[_AxisKey, set[_AxisKey]] = {}
    extents: dict[_AxisKey, int] = {}
    for number, statement in enumerate(statements):
        for axis in statement.computation.axes:
            group[number, axis.name] = {(number, axis.name)}
            extents[number, axis.name] = axis.extent
    for first, second in _tied(statements):
        left, right = group[first], group[second]
        # Two axes of one statement stay apart: a tile of one is not a tile of the other.
        is_disjoint = {n for n, _ in left}.isdisjoint(n for n, _ in right)
        if left is not right and is_disjoint and extents[first] == extents[second]:
            left |= right
            for key in right:
                group[key] = left
    names: dict[_AxisKey, str] = {}
    used_names = set[str]()
    for key, members in group.items():
        if key in names:
            continue
        name = key[1] if key[1] not in used_names else f"{key[1]}{key[0]}"
        used_names.add(name)
        names |= dict.fromkeys(members, name)
    return names


def _tied(statements: tuple[Statement, ...]) -> Iterator[tuple[_AxisKey, _AxisKey]]:
    """Yield pairs of axes that index the same dimension of a tensor written by a statement."""
    written: dict[str, tuple[int, tuple[IndexExpr, ...]]] = {}
    for number, statement in enumerate(statements):
        store = statement.computation.statement.store
        for access in (*statement.computation.reads, store):
            tensor = statement.computation.operand(access.operand).tensor
            if tensor not in written:
                continue
            writer, index = written[tensor]
            for writer_index, reader_index in zip(index, access.index, strict=True):
                if writer_index.single_iterator and reader_index.single_iterator:
                    yield (
                        (writer, writer_index.single_iterator),
                        (number, reader_index.single_iterator),
                    )
        written.setdefault(statement.output.tensor, (number, store.index))
