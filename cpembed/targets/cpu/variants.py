"""Variants of ranked candidates that a CPU may execute faster.

- Operands in place. A derived program has the layouts of least footprint. If the instruction can
  walk an operand in its original layout, leaving it there may take more memory (rows that a stride
  skips) but copies nothing. An axis that no tile divides need not be padded, which would copy the
  whole operand for a margin, if the last tile moves back over the one before.
- The rows of an image as one axis (docs/embedding.md, "Fused axes"). A tile of 16 rows holds only 7
  of an image of 7 columns, whose rows of windows begin a row of the image apart. Walked in place as
  one axis over the whole image they fill the tile; what begins in the last columns, where a window
  would cross the end of its row, is executed in vain.
- Whole windows as one axis (im2col), which fill what few channels do not: a depth of 64 holds 9
  steps of a row of a 3x3 window over 3 channels, or all 27 steps of the window. The image is
  packed, each window in a row of its own; neighbours move together if the axes are in the image's
  order.
- Commuted factors, so that pixels are lanes and one weight feeds them all. An image with its
  channels first then needs no packing. Only an instruction whose first factor is a single value
  takes any axis in lanes as it lies, and either factor in either role.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from cpembed.codegen.packing import packed_before
from cpembed.cost.ranking import Candidate, RankedCandidate, derive_candidate, overheads
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.digit_search import check_embedding
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.flatten import candidate_groups, free_name, fused_extent
from cpembed.errors import InvariantError, TransformError
from cpembed.hw.instruction import HardwareSpec, Instruction
from cpembed.ir.accesses import JoinedRows
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.runtime.tuning.records import WIDEST
from cpembed.targets.cpu.space import copied_operands
from cpembed.transform.program import DerivedProgram
from cpembed.transform.proof import require

OVER_ROWS, OVER_WINDOWS, COMMUTED = "over rows", "over windows", "factors exchanged"
"""Names of the variants of an embedding, in identifiers and reports."""


def with_variants(
    candidates: Iterable[RankedCandidate], spec: HardwareSpec, *, fuses: bool = True
) -> tuple[RankedCandidate, ...]:
    """Return the candidates, each preceded by its variants.

    All variants keep the rank and the score of the embedding, and are not proven yet.

    Parameters
    ----------
    candidates : iterable of RankedCandidate
        Candidates of a search.
    spec : HardwareSpec
        Target.
    fuses : bool
        True to include variants over rows, over windows and with commuted factors, if they take
        fewer executions and the widest constraint set admits them; False for operands in place
        only.
    """
    by_identifier: dict[str, RankedCandidate] = {}
    admitted: dict[str, bool] = {}
    for ranked in candidates:
        fused: list[RankedCandidate] = []
        if fuses:
            fused += [*in_rows(ranked, spec), *in_windows(ranked, spec), *in_lanes(ranked, spec)]
        for item in (*fused, *in_place(ranked, spec), ranked):
            if item.candidate.identifier in by_identifier:
                continue
            name = item.candidate.embedding.identifier()
            # Programs that differ in operands in place alone share the embedding.
            if item.candidate.variant and name not in admitted:
                admitted[name] = _admitted(item.candidate, spec)
            if admitted.get(name, True):
                by_identifier[item.candidate.identifier] = item
    return tuple(by_identifier.values())


def _admitted(candidate: Candidate, spec: HardwareSpec) -> bool:
    """True if the widest constraint set allows the embedding."""
    # A search would not list what the widest set rejects, so it is not proposed either.
    embedding = candidate.embedding
    pairing = Pairing(candidate.program.unfused, spec.instruction)
    problem = pairing.with_roles(embedding.operands)
    try:
        check_embedding(problem, load_constraint_set(WIDEST), embedding)
    except InvariantError:
        return False
    return True


def in_place(ranked: RankedCandidate, spec: HardwareSpec) -> list[RankedCandidate]:
    """Return the embedding with operands in place, and with the output alone in place.

    Each only if that copies less and the instruction can access the operands there.
    """
    program = ranked.candidate.program
    if program.in_place or not copied_operands(program):
        return []
    choices = [_not_packed_ahead(program), (program.unfused.output.name,)]
    return _copying_less(_in_places(ranked, spec, ranked.candidate.embedding, choices), program)


def in_rows(ranked: RankedCandidate, spec: HardwareSpec) -> list[RankedCandidate]:
    """Return the embedding over the rows of an image as one axis, in place and packed.

    Empty if there are no rows, or it takes no fewer executions.
    """
    program = ranked.candidate.program
    if not _may_fuse(program):
        return []
    rows = _over_rows(program.unfused, spec.instruction, ranked.candidate.embedding)
    choices = [_not_packed_ahead(program), ()]
    return [] if rows is None else _in_places(ranked, spec, rows, choices, OVER_ROWS)


def in_windows(ranked: RankedCandidate, spec: HardwareSpec) -> list[RankedCandidate]:
    """Return the embedding over whole windows as one axis, with the output in place and packed.

    Empty if there are no windows, or it takes no fewer executions.
    """
    program = ranked.candidate.program
    if not _may_fuse(program):
        return []
    windows = _over_windows(program.unfused, spec.instruction, ranked.candidate.embedding)
    choices = [(), (program.unfused.output.name,)]
    return [] if windows is None else _in_places(ranked, spec, windows, choices, OVER_WINDOWS)


def in_lanes(ranked: RankedCandidate, spec: HardwareSpec) -> list[RankedCandidate]:
    """Return the embedding with commuted factors on operands in place.

    Empty if that copies no less, or the instruction cannot access them there.
    """
    program = ranked.candidate.program
    if not (_may_fuse(program) and copied_operands(program)):
        return []
    choices = [_not_packed_ahead(program), (program.unfused.output.name,)]
    variants = [
        variant
        for commuted in _over_output(program.unfused, spec.instruction, ranked.candidate.embedding)
        for variant in _in_places(ranked, spec, commuted, choices, COMMUTED)
    ]
    return _copying_less(variants, program)


def _copying_less(
    variants: Iterable[RankedCandidate], program: DerivedProgram
) -> list[RankedCandidate]:
    copied_bytes = _copied_bytes(program)
    return [item for item in variants if _copied_bytes(item.candidate.program) < copied_bytes]


def _may_fuse(program: DerivedProgram) -> bool:
    # A program that leaves operands in place is a variant already, and an operand that is accessed
    # twice would need a fused axis that suits both accesses.
    accesses = program.workload.access_maps.values()
    return not program.in_place and all(len(maps) == 1 for maps in accesses)


def _not_packed_ahead(program: DerivedProgram) -> tuple[str, ...]:
    ahead = packed_before(program.unfused)
    return tuple(o.name for o in program.unfused.operands if o.name not in ahead)


def _in_places(
    ranked: RankedCandidate,
    spec: HardwareSpec,
    embedding: Embedding,
    choices: Iterable[Collection[str]],
    variant: str = "",
) -> list[RankedCandidate]:
    """Return the candidate with an embedding for each choice of operands in place.

    Those that copy least come first.
    """
    # Of choices that copy as much, the first.
    by_copied_bytes: dict[int, RankedCandidate] = {}
    for names in choices:
        item = _derived(ranked, spec, embedding, names, variant)
        if item is not None:
            by_copied_bytes.setdefault(_copied_bytes(item.candidate.program), item)
    return [by_copied_bytes[size] for size in sorted(by_copied_bytes)]


def _derived(
    ranked: RankedCandidate,
    spec: HardwareSpec,
    embedding: Embedding,
    names: Collection[str],
    variant: str = "",
) -> RankedCandidate | None:
    """Return the candidate with the program of an embedding that leaves operands in place.

    None if the instruction cannot access them there.
    """
    workload = ranked.candidate.program.unfused
    try:
        candidate = derive_candidate(workload, spec.instruction, embedding, in_place=names)
    except TransformError:
        return None
    return replace(
        ranked,
        candidate=replace(candidate, variant=variant),
        overheads=overheads(candidate.program),
        constraints=", ".join(filter(None, (ranked.constraints, variant))),
    )


def require_variant(candidate: Candidate) -> None:
    """Prove a program that no search has proven. Raises :class:`InvariantError` if that fails."""
    if candidate.program.in_place or candidate.variant:
        require(candidate.program)


def _copied_bytes(program: DerivedProgram) -> int:
    """Return the number of bytes that are read and written whenever the kernel runs."""
    return sum(
        (o.elements + math.prod(o.original_shape)) * size_bytes(o.dtype)
        for o in copied_operands(program)
    )


def _over_output(
    workload: Computation, instruction: Instruction, embedding: Embedding
) -> list[Embedding]:
    """Return the embedding with commuted factors and lanes along the output's innermost axis.

    Further ones have lanes along several innermost axes that are contiguous. Empty if the factor
    that would be in lanes does not have that axis, or the instruction does not commute.
    """
    # Only an instruction whose first factor is a single value takes any axis in lanes as it lies,
    # and either factor in either role.
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
    # The other factor is a single value, so it must not move along the lanes.
    if last is None or last not in in_lanes or last in shared:
        return []
    lane = instruction.axes[0]
    plain = replace(
        embedding,
        operands=operands,
        extents={lane.name: lane.maximum},
        digits={lane.name: (Digit(last, lane.maximum),)},
    )
    variants = [plain] if workload.extents[last] >= lane.maximum else []
    for name, members in candidate_groups(workload, 3, smallest_extent=2).items():
        if list(members[::-1]) == innermost[: len(members)]:
            digits = {lane.name: (Digit(name, lane.maximum),)}
            variants.append(replace(plain, digits=digits, flattened={name: members}))
    return variants


def _over_rows(
    workload: Computation, instruction: Instruction, embedding: Embedding
) -> Embedding | None:
    """Return the embedding with a digit along the rows of an image, instead of one along a row.

    None if there are no rows, or it takes no fewer executions.
    """
    if embedding.flattened:
        return None
    for lane, digits in embedding.digits.items():
        if len(digits) != 1 or digits[0].stride != 1:
            continue
        (digit,) = digits
        other_axes = _other_axes(embedding, lane)
        for name, members, pitch in _rows(workload):
            extent = fused_extent(workload, members, {members[-1]: pitch})
            if digit.axis not in members or other_axes & set(members):
                continue
            # A configurable axis: the largest extent that the rows can fill.
            fitting = [e for e in instruction.axis(lane).allowed if e <= extent]
            if not fitting:
                continue
            count = max(fitting)
            sizes = [workload.extents[member] for member in members]
            position = members.index(digit.axis)
            # Executions along both axes: the digit walks one of them, the other is a loop.
            executions = -(-sizes[position] // digit.count) * sizes[1 - position]
            if -(-extent // count) >= executions:
                continue
            rows = _with_digit(embedding, lane, Digit(name, count))
            return replace(rows, flattened={name: members}, pitches={members[-1]: pitch})
    return None


def _rows(workload: Computation) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Yield each pair of spatial axes that can be fused along the rows of a padded input.

    Each item is the name of the fused axis, its two members, outermost first, and the pitch: the
    points of the inner axis from one row to the next, more than the inner axis's extent.
    """
    kinds = {axis.name: axis.kind for axis in workload.axes}
    for name, members in candidate_groups(workload, 2, smallest_extent=2).items():
        if kinds[members[0]] is not AxisKind.SPATIAL:
            continue
        for operand in workload.inputs:
            index = workload.access(operand.name).index
            joined = JoinedRows.find(index, operand.shape, workload.extents, members)
            if joined is not None and joined.pitch > workload.extents[members[-1]]:
                yield name, members, joined.pitch


def _over_windows(
    workload: Computation, instruction: Instruction, embedding: Embedding
) -> Embedding | None:
    """Return the embedding with a digit along whole windows, instead of one along some axes.

    None if there are no windows, or it takes no fewer executions.
    """
    window = _window(workload)
    extent = math.prod(workload.extents[axis] for axis in window)
    for lane, digits in embedding.digits.items():
        axes = _axes(embedding, digits)
        other_axes = _other_axes(embedding, lane)
        if len(window) < 2 or not axes or not axes < set(window) or other_axes & set(window):
            continue
        inside = math.prod(workload.extents[axis] for axis in axes)
        steps = -(-inside // embedding.extents[lane]) * (extent // inside)
        allowed = instruction.axis(lane).allowed
        count = next((e for e in allowed if e >= extent), allowed[-1])
        if any(digit.stride != 1 for digit in digits) or -(-extent // count) >= steps:
            continue
        name = free_name(window, workload.extents)
        flattened = {
            n: members for n, members in embedding.flattened.items() if not axes & set(members)
        }
        windows = _with_digit(embedding, lane, Digit(name, count))
        return replace(windows, flattened={**flattened, name: window})
    return None


def _with_digit(embedding: Embedding, lane: str, digit: Digit) -> Embedding:
    """Return the embedding with one digit on an instruction axis, which has its extent."""
    return replace(
        embedding,
        extents={**embedding.extents, lane: digit.count},
        digits={**embedding.digits, lane: (digit,)},
    )


def _axes(embedding: Embedding, digits: Iterable[Digit]) -> set[str]:
    """Return the workload axes that digits walk."""
    return {m for d in digits for m in embedding.flattened.get(d.axis, (d.axis,))}


def _other_axes(embedding: Embedding, lane: str) -> set[str]:
    """Return the workload axes that the digits of all instruction axes but one walk."""
    digits = embedding.digits.items()
    return _axes(embedding, [digit for name, ds in digits if name != lane for digit in ds])


def _window(workload: Computation) -> tuple[str, ...]:
    """Return the reduction axes of an input that is read by windows, in its order, if any."""
    kinds = {axis.name: axis.kind for axis in workload.axes}
    for operand in workload.inputs:
        index = workload.access(operand.name).index
        # Both kinds of axes in one index: a pixel plus a tap.
        if any({kinds[name] for name in i.iterators} == set(AxisKind) for i in index):
            axes = dict.fromkeys(name for i in index for name in i.iterators)
            window = tuple(
                name
                for name in axes
                if kinds[name] is AxisKind.REDUCTION and workload.extents[name] > 1
            )
            # Another input that lacks some of the axes would need them apart.
            if len({_readers(workload, name) for name in window}) == 1:
                return window
    return ()


def _readers(workload: Computation, axis: str) -> frozenset[str]:
    """Return the operands that an axis moves along."""
    return frozenset(
        operand
        for operand, accesses in workload.access_maps.items()
        if any(axis in index.iterators for access in accesses for index in access.index)
    )
