"""Matches: the ways in which instructions of a machine compute a statement.

Each form of each instruction (:mod:`~cpembed.accelerator.instruction_forms`) is embedded in the
statement by the constraint search (:mod:`~cpembed.accelerator.structures`); the sizes of one
execution follow by counting. Where nothing matches, the result says what comes nearest, and why it
is no match.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from cpembed.accelerator.instruction_forms import (
    InstructionForm,
    LiftedStatement,
    Operations,
    constant_count,
    instruction_forms,
    lifted_statements,
)
from cpembed.accelerator.match_sizes import digit_choices, sum_conditions
from cpembed.accelerator.normal_form import Clamps, normal_computation
from cpembed.accelerator.rejections import UNLIKE, Rejection, other_operations
from cpembed.accelerator.specification import Statement
from cpembed.accelerator.structures import (
    Structure,
    canonical_names,
    renamed_access,
    structures,
)
from cpembed.embedding.embedding import Digit
from cpembed.hw.isa import InstructionSet, IsaInstruction
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.expression import Access

_MOST_MATCHES = 64
"""Maximum number of matches of a statement."""


@dataclass(frozen=True)
class Match:
    """One way in which an instruction computes a statement.

    Attributes
    ----------
    instruction : IsaInstruction
    statement : Statement
        The statement with its axes and operands as they were passed.
    axes : mapping of str to tuple of Digit
        For each axis of the instruction, the digits of its largest execution, innermost first; an
        axis without digits has one step.
    accesses : mapping of str to Access
        Access of the statement that an operand of the instruction is.
    values : mapping of str to number
        Contents of registers and immediates that hold a constant.
    in_place : frozenset of str
        Operands of the instruction that may lie where its output lies.
    executions : int
        Number of executions, with padded ones.
    conditions : tuple of str
        What has to hold besides, one line each. A match promises none of it: the proof of the
        program decides it with the values of constants, and refuses the program where it fails.
    notes : tuple of str
        Remarks for readers: fixed arguments and padding.
    """

    instruction: IsaInstruction
    statement: Statement
    axes: Mapping[str, tuple[Digit, ...]]
    accesses: Mapping[str, Access]
    values: Mapping[str, int | float] = field(default_factory=dict[str, int | float])
    in_place: frozenset[str] = frozenset()
    executions: int = 1
    conditions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def operands(self) -> dict[str, str]:
        """Operand of the statement that each operand of the instruction is."""
        return {name: access.operand for name, access in self.accesses.items()}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of each axis of the instruction in the largest execution."""
        return {
            axis: math.prod(digit.count for digit in digits) for axis, digits in self.axes.items()
        }

    def tile(self, axis: str) -> int:
        """Return the number of points of an axis of the statement in one execution."""
        digits = itertools.chain.from_iterable(self.axes.values())
        return math.prod(digit.count for digit in digits if digit.axis == axis)

    @property
    def cycles(self) -> float:
        """Cycles that all executions occupy the unit, each of the largest size."""
        return self.executions * self.instruction.occupied_cycles(self.sizes)

    @property
    def utilization(self) -> float:
        """Fraction of the points of all executions that are points of the statement."""
        return self.statement.computation.macs / (self.executions * math.prod(self.sizes.values()))

    def __str__(self) -> str:
        axes = ", ".join(
            f"{axis} <- {' '.join(map(str, digits)) or '1'}" for axis, digits in self.axes.items()
        )
        return f"{self.instruction.name}: {axes}; {self.executions} executions"


@dataclass(frozen=True)
class Matching:
    """Matches of a statement, and what is not among them.

    Attributes
    ----------
    matches : tuple of Match
        Those first whose operands' rows hold neighbours along the last dimension of each tensor,
        and of these the ones with the fewest cycles.
    rejections : tuple of Rejection
        Instructions without a match, the nearest first.
    left_out : int
        Number of matches beyond the limit, the last ones in the same order.
    complete : bool
        True if every search came to its end.
    """

    statement: Statement
    matches: tuple[Match, ...]
    rejections: tuple[Rejection, ...]
    left_out: int = 0
    complete: bool = True

    @property
    def reason(self) -> str:
        """One line about a statement without matches; empty if there are some."""
        if self.matches:
            return ""
        text = f"rejected: no instruction computes {self.statement.computation}"
        remedy = "describe an instruction with this expression, or the host computes it"
        if not self.rejections or self.rejections[0].distance >= UNLIKE:
            return f"{text}, and none has an operation of it: {remedy}"
        nearest = self.rejections[0]
        reason = f"the nearest is {nearest.instruction}, but {nearest.reason}"
        return f"{text}; {reason}: {remedy}"


def matches(statement: Statement, machine: InstructionSet) -> tuple[Match, ...]:
    """Return the matches of :func:`match_statement`, in its order."""
    return match_statement(statement, machine).matches


def match_statement(statement: Statement, machine: InstructionSet) -> Matching:
    """Find every way in which an instruction of a machine computes a statement.

    Of several choices of sizes for the same axes, that with the fewest executions is returned.

    Returns
    -------
    Matching
        The matches, and a reason for each instruction without one.
    """
    canonical, axes, operands = canonical_names(statement.computation)
    matching = _matched(Statement(canonical, statement.accumulates), machine)
    return _with_names(matching, statement, axes, operands)


@lru_cache(maxsize=8192)
def _matched(statement: Statement, machine: InstructionSet) -> Matching:
    """Match a statement with every form of every instruction."""
    every: list[Match] = []
    rejections: list[Rejection] = []
    complete = True
    for name in machine.instructions:
        attempts = [_match_form(statement, form) for form in instruction_forms(machine, name)]
        complete = complete and all(attempt.complete for attempt in attempts)
        merged = _distinct(m for attempt in attempts for m in attempt.matches)
        every += merged
        # What sets a register computes no tensor.
        if not merged and attempts and not machine.instructions[name].is_configuration:
            rejections.append(_nearest(attempts))
    every.sort(key=lambda m: (lane_mismatches(m), m.cycles, m.executions, _digits(m)))
    rejections.sort(key=lambda rejection: rejection.distance)
    best = tuple(every[:_MOST_MATCHES])
    return Matching(statement, best, tuple(rejections), len(every) - len(best), complete)


def _with_names(
    matching: Matching, statement: Statement, axes: Mapping[str, str], operands: Mapping[str, str]
) -> Matching:
    """Return a matching in the names of another statement."""

    def text(line: str) -> str:
        for short, name in (*axes.items(), *operands.items()):
            line = line.replace(short, name)
        return line

    def renamed(match: Match) -> Match:
        return replace(
            match,
            statement=statement,
            axes={
                axis: tuple(replace(digit, axis=axes[digit.axis]) for digit in digits)
                for axis, digits in match.axes.items()
            },
            accesses={
                name: renamed_access(access, axes, operands)
                for name, access in match.accesses.items()
            },
            conditions=tuple(map(text, match.conditions)),
            notes=tuple(map(text, match.notes)),
        )

    return replace(
        matching,
        statement=statement,
        matches=tuple(map(renamed, matching.matches)),
        rejections=tuple(replace(r, reason=text(r.reason)) for r in matching.rejections),
    )


def _digits(match: Match) -> int:
    return sum(map(len, match.axes.values()))


def lane_mismatches(match: Match) -> int:
    """Count the operands whose neighbouring elements are none of the tensor's last dimension.

    Such operands need a layout, or a movement, of their own.
    """
    return sum(_has_other_lanes(match, name, access) for name, access in match.accesses.items())


def _has_other_lanes(match: Match, name: str, access: Access) -> bool:
    place = match.instruction.places[name]
    contiguous = place.lanes[-1].axis if place.lanes else (place.dimensions or ("",))[-1]
    index = match.instruction.computation.access(name).index
    if contiguous not in place.dimensions or not access.index:
        return False
    axes = index[place.dimensions.index(contiguous)].iterators
    fed = [match.axes[axis][0].axis for axis in axes if match.axes.get(axis)]
    return any(axis not in access.index[-1].iterators for axis in fed)


def _distinct(candidates: Iterable[Match]) -> list[Match]:
    """Keep, of the matches of an instruction, those that no larger_match one extends to more axes.

    Forms with fewer fixed arguments come first and stay.
    """
    best: dict[tuple[_Roles, _Family], Match] = {}
    for match in candidates:
        roles = tuple(sorted((name, str(access)) for name, access in match.accesses.items()))
        family = frozenset(
            (axis, digit.axis) for axis, digits in match.axes.items() for digit in digits
        )
        key = roles, family
        if key not in best or match.executions < best[key].executions:
            best[key] = match
    return [
        match
        for (roles, family), match in best.items()
        if not any(
            roles == partner and family < larger and larger_match.executions <= match.executions
            for (partner, larger), larger_match in best.items()
        )
    ]


_Roles = tuple[tuple[str, str], ...]
_Family = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class _Attempt:
    """Matches of one form, or why there are none."""

    matches: tuple[Match, ...]
    rejection: Callable[[], Rejection]
    complete: bool = True


@lru_cache(maxsize=4096)
def written_forms(computation: Computation) -> tuple[Computation, ...]:
    """Return the normal forms of a statement that instructions may be written in."""
    forms = (normal_computation(computation, clamps) for clamps in Clamps)
    return tuple(dict.fromkeys((*forms, computation)))


_Lifted = Mapping[tuple[Operations, int], Sequence[LiftedStatement]]
"""Written forms of a statement, by their operations and the number of their constants."""


@lru_cache(maxsize=1024)
def _lifted_forms(computation: Computation) -> _Lifted:
    """Return all written forms of a statement, with its constants lifted in every way."""
    forms: dict[tuple[Operations, int], list[LiftedStatement]] = {}
    for written in written_forms(computation):
        for constants in range(constant_count(written) + 1):
            for lifted in lifted_statements(written, constants):
                forms.setdefault((lifted.operations, constants), []).append(lifted)
    return forms


def _match_form(statement: Statement, form: InstructionForm) -> _Attempt:
    instruction = form.instruction
    reduces = form.computation.statement.reduction is not None
    if statement.accumulates and reduces and not instruction.accumulates:
        reason = "it begins sums anew and the statement goes on from earlier ones"
        return _Attempt((), lambda: Rejection(instruction.name, reason, 1))
    forms = _lifted_forms(statement.computation)
    attempts = [
        _match_lifted(statement, form, lifted)
        for lifted in forms.get((form.operations, form.constants), ())
    ]
    if not attempts:
        return _Attempt((), lambda: other_operations(statement, form))
    candidates = _distinct(m for attempt in attempts for m in attempt.matches)
    complete = all(attempt.complete for attempt in attempts)
    return _Attempt(tuple(candidates), lambda: _nearest(attempts), complete)


def _nearest(attempts: Iterable[_Attempt]) -> Rejection:
    return min((attempt.rejection() for attempt in attempts), key=lambda r: r.distance)


def _match_lifted(statement: Statement, form: InstructionForm, lifted: LiftedStatement) -> _Attempt:
    instruction, pattern = form.instruction, form.computation
    optional = frozenset(axis.name for axis in instruction.axes if axis.minimum == 1)
    constants = frozenset(o.dtype for o in lifted.computation.inputs if o.name in lifted.values)
    scalars = {name: constants for name in form.scalars if lifted.values}
    result = structures(lifted.computation, pattern, optional, scalars)

    def rejected(reason: str, distance: int) -> _Attempt:
        rejection = Rejection(instruction.name, reason, distance)
        return _Attempt((), lambda: rejection, result.complete)

    if not result.structures:
        return rejected(result.reason, 2)
    candidates: list[Match] = []
    reasons: list[str] = []
    for full_structure in result.structures:
        structure = _with_single_numbers(form, lifted, full_structure)
        problem = _operand_problem(form, lifted, structure)
        if problem:
            reasons.append(problem)
            continue
        for choice in digit_choices(statement.computation, instruction, structure):
            match = _sized(statement, form, lifted, structure, choice)
            if isinstance(match, str):
                reasons.append(match)
            else:
                candidates.append(match)
        if not candidates and not reasons:
            reasons.append("its fixed sizes do not divide the extents, and padding changes results")
    if candidates:
        matched = Rejection(instruction.name, "", 0)
        return _Attempt(tuple(candidates), lambda: matched, result.complete)
    return rejected(reasons[0], 1)


def _operand_problem(form: InstructionForm, lifted: LiftedStatement, structure: Structure) -> str:
    """Return why an operand cannot hold what the structure assigns to it; empty if all can."""
    for name, access in structure.accesses:
        dtype = form.computation.operand(name).dtype
        if access.operand in lifted.values:
            value = lifted.values[access.operand]
            if name not in form.scalars:
                return f"its operand {name} is no register and no immediate, for {value}"
            if not lifted.takes(access.operand, dtype):
                return f"its operand {name}, {dtype}, cannot hold {value}"
        elif (actual := lifted.computation.operand(access.operand).dtype) != dtype:
            return f"its operand {name} is {dtype} and {access.operand} is {actual}"
    return ""


def _with_single_numbers(
    form: InstructionForm, lifted: LiftedStatement, structure: Structure
) -> Structure:
    """Return a structure in which each execution has one number of a register or immediate.

    Axes along which its operand has several numbers feed no axis of the instruction.
    """
    varied = {
        axis
        for name, access in structure.accesses
        if name in form.scalars and access.operand not in lifted.values
        for axis in access.iterators
        if lifted.computation.extents[axis] > 1
    }
    axes = tuple((a, tuple(m for m in members if m not in varied)) for a, members in structure.axes)
    return replace(structure, axes=axes)


def _sized(
    statement: Statement,
    form: InstructionForm,
    lifted: LiftedStatement,
    structure: Structure,
    axes: Mapping[str, tuple[Digit, ...]],
) -> Match | str:
    """Return the match with these digits, or the reason why there is none."""
    instruction, computation = form.instruction, statement.computation
    tiles = {digit.axis: digit.count for digits in axes.values() for digit in digits}
    steps = {axis.name: -(-axis.extent // tiles.get(axis.name, 1)) for axis in computation.axes}
    reduction = computation.statement.reduction
    outer = [
        axis.name
        for axis in computation.axes
        if axis.kind is AxisKind.REDUCTION and steps[axis.name] > 1
    ]
    if reduction is not None and outer and not instruction.accumulates:
        return f"it begins each sum anew, and {outer[0]} does not fit in one execution"
    values = dict(form.values)
    accesses: dict[str, Access] = {}
    for name, access in structure.accesses:
        if access.operand in lifted.values:
            values[name] = lifted.values[access.operand]
        else:
            accesses[name] = access
    store = computation.statement.store
    in_place = frozenset(
        name
        for name in instruction.in_place
        if name in accesses and accesses[name].index == store.index
    )
    padded = [
        f"{name} is padded from {computation.extents[name]} to {steps[name] * tile}"
        for name, tile in tiles.items()
        if steps[name] * tile > computation.extents[name]
        and not _ends_short(instruction, axes, name)
    ]
    return Match(
        instruction,
        statement,
        axes,
        accesses,
        values,
        in_place,
        math.prod(steps.values()),
        sum_conditions(statement, instruction),
        (*form.notes, *padded),
    )


def _ends_short(
    instruction: IsaInstruction, axes: Mapping[str, tuple[Digit, ...]], name: str
) -> bool:
    """True if the last execution along an axis has its own size."""
    for axis in instruction.axes:
        digits = axes.get(axis.name, ())
        if digits and digits[-1].axis == name:
            return not axis.is_fixed
    return False
