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
from collections.abc import Collection, Iterable
from dataclasses import replace

from cpembed.codegen.packing import packed_before
from cpembed.cost.candidate import Candidate, derive_candidate, overheads
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.checks import check_embedding
from cpembed.embedding.commute import problem_of
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.embedding import Embedding
from cpembed.errors import InvariantError, TransformError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.runtime.tuning.records import WIDEST
from cpembed.targets.cpu.choice import moved
from cpembed.targets.cpu.exchanged import over_output
from cpembed.targets.cpu.rows import over_rows
from cpembed.targets.cpu.windows import over_windows
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
