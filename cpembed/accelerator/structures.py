"""Structures of embeddings: which axes of a statement may feed which axes of an instruction.

With digits of stride 1, whether axes may feed an instruction axis depends on the accesses alone and
not on the extents, so that the search runs once for all sizes, on computations of four points along
each axis: two digits of two, or one of four. The sizes follow by counting
(:mod:`cpembed.accelerator.matching`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from cpembed.embedding.commute import Pairing, same_operations
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.digit_model import AxisMaps
from cpembed.embedding.problem import LabelMismatch
from cpembed.embedding.result import EmbeddingSpace
from cpembed.embedding.search import search
from cpembed.errors import CpembedError, WorkloadError
from cpembed.hw.instruction import (
    Instruction,
    InstructionAxis,
    OperandMemory,
    StrideRule,
    TileDimension,
)
from cpembed.ir.computation import Computation, Operand, changed_accesses
from cpembed.ir.expression import Access

_POINTS = 4
"""Number of points along each axis: enough for two digits."""

_SECONDS = 2.0
"""Time limit of a search, in seconds; a search takes milliseconds."""

_CONSTRAINTS = "cut_boxes"
"""Constraint set: any axes in digits of stride 1, up to two for each instruction axis."""


@dataclass(frozen=True)
class Structure:
    """Axes of a statement that may feed the axes of an instruction together.

    Attributes
    ----------
    axes : tuple of (str, tuple of str)
        Axes that feed each instruction axis, innermost digit first.
    accesses : tuple of (str, Access)
        Access of the statement that each operand of the instruction is.
    """

    axes: tuple[tuple[str, tuple[str, ...]], ...]
    accesses: tuple[tuple[str, Access], ...]


@dataclass(frozen=True)
class Structures:
    """All structures of a statement and an instruction, or the reason why there are none.

    ``complete`` says that the search came to its end.
    """

    structures: tuple[Structure, ...]
    reason: str = ""
    complete: bool = True


def structures(
    statement: Computation,
    pattern: Computation,
    optional: frozenset[str],
    scalars: Mapping[str, frozenset[str]],
) -> Structures:
    """Find all structures by the embedding search.

    Parameters
    ----------
    statement, pattern : Computation
        The statement and what the instruction computes.
    optional : frozenset of str
        Axes of the instruction that may stay at one step.
    scalars : mapping of str to frozenset of str
        Element types that each operand of the instruction takes besides its own.
    """
    if not same_operations(statement, pattern):
        return Structures((), f"it computes {pattern.statement.value}")
    canonical, axes, operands = canonical_names(statement)
    extra = tuple(sorted((name, tuple(sorted(types))) for name, types in scalars.items()))
    result = _search(_resized(canonical), _resized(pattern), optional, extra)
    renamed = tuple(
        Structure(
            tuple((axis, tuple(map(axes.__getitem__, members))) for axis, members in s.axes),
            tuple((name, renamed_access(access, axes, operands)) for name, access in s.accesses),
        )
        for s in result.structures
    )
    reason = result.reason
    for short, name in {**operands, **axes}.items():
        reason = reason.replace(short, name)
    return replace(result, structures=renamed, reason=reason)


def canonical_names(
    computation: Computation,
) -> tuple[Computation, dict[str, str], dict[str, str]]:
    """Return a computation with names that equal computations share.

    Returns
    -------
    Computation
        The computation with other names.
    dict of str to str
        Original name of each axis.
    dict of str to str
        Original name of each operand.
    """
    axes = {axis.name: f"_x{number}_" for number, axis in enumerate(computation.axes)}
    operands = {operand.name: f"_t{n}_" for n, operand in enumerate(computation.operands)}
    plain = replace(
        computation,
        name="statement",
        axes=tuple(replace(axis, name=axes[axis.name]) for axis in computation.axes),
        inputs=tuple(_plain(o, operands[o.name]) for o in computation.inputs),
        outputs=tuple(_plain(o, operands[o.name]) for o in computation.outputs),
        statements=changed_accesses(
            computation.statements, lambda access: renamed_access(access, axes, operands)
        ),
    )
    inverse = {short: name for name, short in axes.items()}
    return plain, inverse, {short: name for name, short in operands.items()}


def renamed_access(access: Access, axes: Mapping[str, str], operands: Mapping[str, str]) -> Access:
    """Return an access with other names of its axes and its operand.

    Parameters
    ----------
    access : Access
    axes, operands : mapping of str to str
        New name of each axis and operand.
    """
    index = tuple(i.rename(axes.__getitem__) for i in access.index)
    return Access(operands[access.operand], index)


def _plain(operand: Operand, name: str) -> Operand:
    return replace(operand, name=name, port_of=None, varies=False, spread=())


def _resized(computation: Computation) -> Computation:
    """Return a computation of four points along each axis that has more than one."""
    axes = tuple(
        replace(axis, extent=_POINTS if axis.extent > 1 else 1) for axis in computation.axes
    )
    extents = {axis.name: axis.extent for axis in axes}

    def resized(operand: Operand) -> Operand:
        accesses = computation.access_maps[operand.name]
        reach = [
            max(access.index[d].bounds(extents)[1] for access in accesses)
            for d in range(len(operand.shape))
        ]
        low = min((i.bounds(extents)[0] for access in accesses for i in access.index), default=0)
        # Where indices begin below 0, elements outside are zeros whatever the extents.
        return replace(
            operand,
            shape=tuple(max(1, r + 1) for r in reach),
            zero_outside=operand.zero_outside or low < 0,
        )

    return replace(
        computation,
        axes=axes,
        inputs=tuple(map(resized, computation.inputs)),
        outputs=tuple(map(resized, computation.outputs)),
    )


@cache
def _constraints() -> ConstraintSet:
    return load_constraint_set(_CONSTRAINTS)


@lru_cache(maxsize=4096)
def _search(
    statement: Computation,
    pattern: Computation,
    optional: frozenset[str],
    extra: tuple[tuple[str, tuple[str, ...]], ...],
) -> Structures:
    instruction = search_instruction(pattern, optional, dict(extra))
    try:
        problems = Pairing(statement, instruction).problems(factors=True)
    except WorkloadError as error:
        return Structures((), str(error).split(":")[0])
    except CpembedError as error:
        return Structures((), str(error))
    if isinstance(problems, LabelMismatch):
        return Structures((), problems.reason)
    collected: dict[Structure, None] = {}
    complete = True
    for problem in problems:
        result = search(problem, _constraints(), SearchLimits(seconds=_SECONDS))
        complete = complete and result.complete
        space = result.embeddings
        parts = (
            [_largest(component.maps) for component in space.components]
            if isinstance(space, EmbeddingSpace)
            else []
        )
        accesses = tuple(
            dict.fromkeys(
                (
                    pair.instruction.operand,
                    replace(
                        pair.workload,
                        operand=problem.workload.operand(pair.workload.operand).tensor,
                    ),
                )
                for pair in problem.pairs
            )
        )
        for maps in itertools.product(*parts) if parts else ():
            digits = {a: tuple(d.axis for d in m.digits[a]) for m in maps for a in m.digits}
            axes = tuple((axis.name, digits[axis.name]) for axis in pattern.axes)
            collected.setdefault(Structure(axes, accesses))
    if collected:
        return Structures(tuple(collected), complete=complete)
    fixed = [axis.name for axis in pattern.axes if axis.name not in optional]
    reason = f"no axis of the statement can feed {' or '.join(fixed) or 'its axes'}"
    return Structures((), reason, complete)


def search_instruction(
    pattern: Computation, optional: frozenset[str], extra: Mapping[str, Sequence[str]]
) -> Instruction:
    """Return an instruction for the embedding search, all of whose strides are free.

    Parameters
    ----------
    pattern : Computation
        What it computes, at its largest extents.
    optional : frozenset of str
        Axes that may stay at one step.
    extra : mapping of str to sequence of str
        Element types that operands take besides their own.
    """
    axes = tuple(_search_axis(a.name, a.extent, a.name in optional) for a in pattern.axes)
    memory: dict[str, OperandMemory] = {}
    for operand in pattern.operands:
        iterators = (
            pattern.access(operand.name).iterators
            if _accessed_once(pattern, operand.name)
            else tuple(a.name for a in pattern.axes)
        )
        tile = tuple(TileDimension(axis) for axis in iterators)
        memory[operand.name] = OperandMemory("any", tile, dict.fromkeys(iterators, StrideRule.ANY))
    dtypes = {
        o.name: tuple(dict.fromkeys((o.dtype, *extra.get(o.name, ())))) for o in pattern.operands
    }
    return Instruction("it", axes, pattern, dtypes, memory)


def _accessed_once(computation: Computation, operand: str) -> bool:
    return len(computation.access_maps[operand]) == 1


def _search_axis(name: str, extent: int, optional: bool) -> InstructionAxis:
    minimum = 1 if optional else extent
    return InstructionAxis(name, minimum, extent, max(1, extent - minimum))


def _largest(maps: Sequence[AxisMaps]) -> list[AxisMaps]:
    """Return the maps that are no restriction of another one to fewer axes."""
    axes = [
        {
            (name, place, d.axis)
            for name, digits in m.digits.items()
            for place, d in enumerate(digits)
        }
        for m in maps
    ]
    return [
        m for m, mine in zip(maps, axes, strict=True) if not any(mine < larger for larger in axes)
    ]
