"""Variants of the candidates of a ranking that a CPU may execute faster.

On operands where they are: a derived program has the layouts of least footprint. Where the
instruction can walk an operand as it comes, leaving it there may take more memory (rows that a
stride skips) and yet moves nothing; and an axis that no tile divides need not be padded, which
copies all of an operand for a margin, if the last tile moves back over the one before.

Over the rows of an image, or over whole windows, as one axis: :mod:`~cpembed.targets.cpu.rows`,
:mod:`~cpembed.targets.cpu.windows`. With the factors exchanged:
:mod:`~cpembed.targets.cpu.exchanged`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from cpembed.codegen.packing import packed_before
from cpembed.cost.candidate import Candidate, derive_candidate, overheads
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.checks import check_embedding
from cpembed.embedding.commute import problem_of
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.flatten import candidate_groups, free_name, fused_extent
from cpembed.errors import InvariantError, TransformError
from cpembed.hw.instruction import HardwareSpec, Instruction
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.joining import JoinedRows
from cpembed.runtime.tuning.records import WIDEST
from cpembed.targets.cpu.space import moved
from cpembed.transform.program import DerivedProgram
from cpembed.transform.proof import require

OVER_ROWS, OVER_WINDOWS, EXCHANGED = "over rows", "over windows", "factors exchanged"
"""What a variant's embedding has that the one of its rank has not."""


def with_variants(
    candidates: Iterable[RankedCandidate], spec: HardwareSpec, *, fuses: bool = True
) -> tuple[RankedCandidate, ...]:
    """The candidates, before each one the same embedding on operands in place, where that moves
    less. With ``fuses``, those over rows and over windows too, where that takes fewer executions
    and the constraints of the widest set hold. All keep the rank and the score of the embedding,
    and are not proven yet."""
    found: dict[str, RankedCandidate] = {}
    admitted: dict[str, bool] = {}
    for ranked in candidates:
        fused: list[RankedCandidate] = []
        if fuses:
            fused += [*in_rows(ranked, spec), *in_windows(ranked, spec), *in_lanes(ranked, spec)]
        for item in (*fused, *in_place(ranked, spec), ranked):
            if item.candidate.identifier in found:
                continue
            name = item.candidate.embedding.identifier()
            if item.candidate.variant and name not in admitted:
                admitted[name] = _admitted(item.candidate, spec)
            if admitted.get(name, True):
                found[item.candidate.identifier] = item
    return tuple(found.values())


def _admitted(candidate: Candidate, spec: HardwareSpec) -> bool:
    """Whether the constraints allow the embedding; what a search would not list is not proposed."""
    embedding = candidate.embedding
    problem = problem_of(candidate.program.unfused, spec.instruction, embedding.operands)
    try:
        check_embedding(problem, load_constraint_set(WIDEST), embedding)
    except InvariantError:
        return False
    return True


def in_place(ranked: RankedCandidate, spec: HardwareSpec) -> list[RankedCandidate]:
    """The same embedding on operands in place, and on the output alone, where less is moved and the
    instruction can take them from there."""
    program = ranked.candidate.program
    if program.in_place or not moved(program):
        return []
    output = program.unfused.output.name
    found = _in_places(ranked, spec, ranked.candidate.embedding, [_moving(program), (output,)])
    most = _moved_bytes(program)
    return [twin for twin in found if _moved_bytes(twin.candidate.program) < most]


def in_rows(ranked: RankedCandidate, spec: HardwareSpec) -> list[RankedCandidate]:
    """The embedding over the rows of an image as one axis, in place and not; none where there are
    no rows, or it takes no fewer executions of the instruction."""
    program = ranked.candidate.program
    embedding = ranked.candidate.embedding
    if program.in_place or not _has_single_accesses(program.workload):
        return []
    rows = over_rows(program.unfused, spec.instruction, embedding)
    if rows is None:
        return []
    return _in_places(ranked, spec, rows, [_moving(program), ()], OVER_ROWS)


def in_windows(ranked: RankedCandidate, spec: HardwareSpec) -> list[RankedCandidate]:
    """The embedding over whole windows as one axis, with the output in place and not; none where
    there are no windows, or it takes no fewer executions of the instruction."""
    program = ranked.candidate.program
    if program.in_place or not _has_single_accesses(program.workload):
        return []
    windows = over_windows(program.unfused, spec.instruction, ranked.candidate.embedding)
    if windows is None:
        return []
    output = program.unfused.output.name
    return _in_places(ranked, spec, windows, [(), (output,)], OVER_WINDOWS)


def in_lanes(ranked: RankedCandidate, spec: HardwareSpec) -> list[RankedCandidate]:
    """The embedding with its factors exchanged, on operands in place; none where that moves no less
    or the instruction cannot take them from there."""
    program = ranked.candidate.program
    if program.in_place or not moved(program) or not _has_single_accesses(program.workload):
        return []
    embedding, most = ranked.candidate.embedding, _moved_bytes(program)
    output = program.unfused.output.name
    found = [
        twin
        for other in over_output(program.unfused, spec.instruction, embedding)
        for twin in _in_places(ranked, spec, other, [_moving(program), (output,)], EXCHANGED)
    ]
    return [twin for twin in found if _moved_bytes(twin.candidate.program) < most]


def _has_single_accesses(workload: Computation) -> bool:
    return all(len(accesses) == 1 for accesses in workload.access_maps.values())


def _moving(program: DerivedProgram) -> tuple[str, ...]:
    """Operands that are not packed ahead."""
    ahead = packed_before(program.unfused)
    return tuple(o.name for o in program.unfused.operands if o.name not in ahead)


def _in_places(
    ranked: RankedCandidate,
    spec: HardwareSpec,
    embedding: Embedding,
    choices: Iterable[Collection[str]],
    variant: str = "",
) -> list[RankedCandidate]:
    """The candidate with an embedding on each choice of operands in place that the instruction can
    take so; one where choices move as much, first what moves least."""
    found: dict[int, RankedCandidate] = {}
    for kept in choices:
        item = _derived(ranked, spec, embedding, kept, variant)
        if item is not None:
            found.setdefault(_moved_bytes(item.candidate.program), item)
    return [found[size] for size in sorted(found)]


def _derived(
    ranked: RankedCandidate,
    spec: HardwareSpec,
    embedding: Embedding,
    kept: Collection[str],
    variant: str = "",
) -> RankedCandidate | None:
    """The candidate with the program of an embedding that leaves operands where they are; None
    where the instruction cannot take them from there."""
    workload = ranked.candidate.program.unfused
    try:
        candidate = derive_candidate(workload, spec.instruction, embedding, in_place=kept)
    except TransformError:
        return None
    return replace(
        ranked,
        candidate=replace(candidate, variant=variant),
        overheads=overheads(candidate.program),
        constraints=", ".join(filter(None, (ranked.constraints, variant))),
    )


def require_variant(candidate: Candidate) -> None:
    """Prove a program that no search has proven.

    Raises :class:`InvariantError` where that fails.
    """
    if candidate.program.in_place or candidate.variant:
        require(candidate.program)


def _moved_bytes(program: DerivedProgram) -> int:
    """Read and written whenever the kernel runs."""
    return sum(
        (o.elements + math.prod(o.original_shape)) * size_bytes(o.dtype) for o in moved(program)
    )


def over_output(
    workload: Computation, instruction: Instruction, embedding: Embedding
) -> list[Embedding]:
    """The embedding with its factors exchanged and lanes along the innermost axis of the output, or
    along all of its innermost axes that are one in memory; none where the factor that would be in
    lanes does not have that axis, or the instruction minds.

    ``embedding`` has no fused axes; the workload is in port form.
    """
    factors, output = instruction.computation.inputs, workload.output
    types = [set(instruction.dtypes[factor.name]) for factor in factors]
    single = len(instruction.axes) == 1 and len(factors) == 2 and not factors[0].shape
    if not single or types[0] != types[1] or embedding.flattened or not output.shape:
        return []
    first, second = (factor.name for factor in factors)
    operands = dict(embedding.operands)
    operands[first], operands[second] = operands[second], operands[first]
    innermost = [index.single_iterator for index in workload.access(output.name).index][::-1]
    last = innermost[0]
    in_lanes, shared = (
        {name for index in workload.access(operands[factor]).index for name in index.iterators}
        for factor in (second, first)
    )
    if last is None or last not in in_lanes or last in shared:
        return []
    lane = instruction.axes[0]
    plain = replace(
        embedding,
        operands=operands,
        extents={lane.name: lane.maximum},
        digits={lane.name: (Digit(last, lane.maximum),)},
    )
    found = [plain] if workload.extents[last] >= lane.maximum else []
    for name, members in candidate_groups(workload, 3, smallest_extent=2).items():
        if list(members[::-1]) == innermost[: len(members)]:
            digits = {lane.name: (Digit(name, lane.maximum),)}
            found.append(replace(plain, digits=digits, flattened={name: members}))
    return found


def over_rows(
    workload: Computation, instruction: Instruction, embedding: Embedding
) -> Embedding | None:
    """The embedding with a digit along the rows of an image where it has one along a row or a
    column, if that takes fewer executions; None where there are no rows, or it does not.

    ``embedding`` has no fused axes; the workload is in port form.
    """
    if embedding.flattened:
        return None
    for lane, digits in embedding.digits.items():
        if len(digits) != 1 or digits[0].stride != 1:
            continue
        (digit,) = digits
        others = [d.axis for name, found in embedding.digits.items() if name != lane for d in found]
        for name, members, pitch in _rows(workload):
            extent = fused_extent(workload, members, {members[-1]: pitch})
            if digit.axis not in members or set(members) & set(others):
                continue
            fitting = [e for e in instruction.axis(lane).allowed if e <= extent]
            if not fitting:
                continue
            count = max(fitting)
            sizes = [workload.extents[member] for member in members]
            own = members.index(digit.axis)
            now = -(-sizes[own] // digit.count) * sizes[1 - own]
            if -(-extent // count) >= now:
                continue
            return replace(
                embedding,
                extents={**embedding.extents, lane: count},
                digits={**embedding.digits, lane: (Digit(name, count),)},
                flattened={name: members},
                pitches={members[-1]: pitch},
            )
    return None


def _rows(workload: Computation) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Fused axes of two spatial ones that an input holds with a gap: their names, members and
    pitches."""
    kinds = {axis.name: axis.kind for axis in workload.axes}
    for name, members in candidate_groups(workload, 2, smallest_extent=2).items():
        if kinds[members[0]] is not AxisKind.SPATIAL:
            continue
        for operand in workload.inputs:
            index = workload.access(operand.name).index
            found = JoinedRows.find(index, operand.shape, workload.extents, members)
            if found is not None and found.pitch > workload.extents[members[-1]]:
                yield name, members, found.pitch


def over_windows(
    workload: Computation, instruction: Instruction, embedding: Embedding
) -> Embedding | None:
    """The embedding with a digit along whole windows where it has one along some of their axes, if
    that takes fewer executions; None where there are no windows, or it does not.

    The workload is in port form.
    """
    window = _window(workload)
    extent = math.prod(workload.extents[axis] for axis in window)
    for lane, digits in embedding.digits.items():
        mine = _axes(embedding, digits)
        others = [ds for other, ds in embedding.digits.items() if other != lane]
        theirs = _axes(embedding, [digit for found in others for digit in found])
        if len(window) < 2 or not mine or not mine < set(window) or theirs & set(window):
            continue
        inside = math.prod(workload.extents[axis] for axis in mine)
        steps = -(-inside // embedding.extents[lane]) * (extent // inside)
        allowed = instruction.axis(lane).allowed
        count = next((e for e in allowed if e >= extent), allowed[-1])
        if any(digit.stride != 1 for digit in digits) or -(-extent // count) >= steps:
            continue
        name = free_name(window, workload.extents)
        kept = {n: members for n, members in embedding.flattened.items() if not mine & set(members)}
        return replace(
            embedding,
            extents={**embedding.extents, lane: count},
            digits={**embedding.digits, lane: (Digit(name, count),)},
            flattened={**kept, name: window},
        )
    return None


def _axes(embedding: Embedding, digits: Iterable[Digit]) -> set[str]:
    """Workload axes that digits walk."""
    return {m for d in digits for m in embedding.flattened.get(d.axis, (d.axis,))}


def _window(workload: Computation) -> tuple[str, ...]:
    """The reduction axes of an input that is read by windows, in the order in which it has them;
    none where none is, or where another input lacks some of them, so that they are no one axis."""
    kinds = {axis.name: axis.kind for axis in workload.axes}
    for operand in workload.inputs:
        index = workload.access(operand.name).index
        if any({kinds[name] for name in i.iterators} == set(AxisKind) for i in index):
            walked = dict.fromkeys(name for i in index for name in i.iterators)
            window = tuple(
                name
                for name in walked
                if kinds[name] is AxisKind.REDUCTION and workload.extents[name] > 1
            )
            if len({_readers(workload, name) for name in window}) == 1:
                return window
    return ()


def _readers(workload: Computation, axis: str) -> frozenset[str]:
    """The operands that an axis moves along."""
    return frozenset(
        operand
        for operand, accesses in workload.access_maps.items()
        if any(axis in index.iterators for access in accesses for index in access.index)
    )
