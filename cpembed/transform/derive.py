"""From an embedding to a program: loops, axis map, and every operand's layout.

Definitions: docs/embedding.md, "Rewrites" and docs/embedding.md, "Program and proof".

The instruction's tile of each operand is described by its memory side. An instruction axis
whose elements may lie at any distance stays where its workload axis is; one that must be dense
moves innermost, in the tile's order. One that walks a dimension with several iterators
(an image row) is read in place. All other dimensions keep the order of the original operand, so a
channels-last operand yields a channels-last layout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from cpembed.embedding.commute import problem_of
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.flatten import flatten
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction, StrideRule
from cpembed.ir.computation import Axis, AxisKind, Computation
from cpembed.ir.dtypes import is_integer
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.layout import InPlaceLayout, OperandLayout
from cpembed.transform.program import DerivedProgram, Loop, Overlap, PackedOperand, Rewrite
from cpembed.transform.rewrites import StencilUnroll

LayoutCache = dict[
    tuple[str, str, tuple[tuple[int, tuple[Digit, ...]], ...]],
    tuple[PackedOperand, list[Rewrite]],
]
"""Layouts by the operand, its role, and the extents and digits of its instruction axes, which is
all they depend on."""


def derive(
    workload: Computation,
    instruction: Instruction,
    embedding: Embedding,
    cache: LayoutCache | None = None,
    in_place: Collection[str] = (),
) -> DerivedProgram:
    """The program that executes the instruction over all translations of the embedded box.

    ``cache`` keeps layouts between embeddings of one workload and instruction; many share them.
    Operands that ``in_place`` names are left in their layouts but for a margin of zeros where the
    workload reads outside of them; axes that would be padded overlap instead where that is possible
    (:class:`~cpembed.transform.program.Overlap`). Without it the layouts are those of least
    footprint.

    Raises :class:`TransformError` where the operands need a rewrite that is not available, or the
    instruction cannot take an operand in place.
    """
    layouts: LayoutCache = {} if cache is None or in_place else cache
    if any(embedding.origin.values()):
        raise TransformError(
            "the embedding is a translation of the one at the origin: derive that one instead"
        )
    if not _has_single_accesses(workload, instruction, embedding):
        problem = problem_of(workload, instruction, embedding.operands)
        workload, instruction = problem.workload, problem.instruction
    original = workload
    workload = flatten(workload, embedding.flattened, embedding.pitches)
    overlaps = overlapping(workload, instruction, embedding, in_place) if in_place else {}
    loops, axis_map = _iteration(workload, embedding, overlaps)
    axes = tuple(
        Loop(axis.name, embedding.extents[axis.name], instruction.loop_axis(axis.name).kind)
        for axis in instruction.axes
    )
    extents = {loop.name: loop.extent for loop in (*loops, *axes)}
    operands: list[PackedOperand] = []
    rewrites: list[Rewrite] = []
    outputs = {output.name for output in workload.outputs}
    for ours in instruction.computation.operands:
        names = tuple(
            name
            for index in instruction.computation.access(ours.name).index
            for name in index.iterators
        )
        role = embedding.operands[ours.name]
        key = (ours.name, role, tuple((embedding.extents[n], embedding.digits[n]) for n in names))
        if key not in layouts:
            kind = InPlaceLayout if role in in_place else OperandLayout
            layout = kind(
                original,
                original.access(role),
                instruction.memory[ours.name],
                names,
                embedding,
                axis_map,
                extents,
                overlaps,
            )
            layouts[key] = (layout.derive(), layout.applied)
        packed, applied = layouts[key]
        if any(isinstance(rewrite, StencilUnroll) for rewrite in applied) and role in outputs:
            raise TransformError(
                f"several points write an element of {role}, which would then lie in several places"
            )
        operands.append(packed)
        rewrites += applied
    return DerivedProgram(
        workload,
        instruction,
        embedding,
        loops,
        axes,
        axis_map,
        tuple(operands),
        dict(embedding.operands),
        tuple(rewrites),
        original if embedding.flattened else None,
        tuple(overlaps.values()),
        tuple(in_place),
    )


def overlapping(
    workload: Computation,
    instruction: Instruction,
    embedding: Embedding,
    in_place: Collection[str],
) -> dict[str, Overlap]:
    """Axes whose last block moves back to end where the axis ends, instead of being padded.

    A spatial axis may, where the output is in place, whose elements are then written with the same
    result twice, and every other operand that has the axis is in place too, or is packed: in a
    layout in which blocks may begin anywhere, or, where no other axis shares the index, block by
    block. A reduction axis of integers may where one operand is in place and another is not, which
    holds zeros for what would be added twice. (A zero times an infinity is no zero.)
    """
    exact = all(is_integer(operand.dtype) for operand in workload.operands)
    roles = {role: name for name, role in embedding.operands.items()}
    found: dict[str, Overlap] = {}
    for ours, digits in embedding.digits.items():
        for digit in digits:
            axis = next(a for a in workload.axes if a.name == digit.axis)
            count = -(-axis.extent // digit.count)
            walked = {
                operand.name
                for operand in workload.operands
                if any(axis.name in i.iterators for i in workload.access(operand.name).index)
            }
            packed = walked - set(in_place)
            if axis.kind is AxisKind.REDUCTION:
                fits = bool(packed) and packed != walked and exact
            else:
                placed = all(
                    instruction.memory[roles[name]].stride_rule(ours) is StrideRule.ANY
                    or _is_alone(workload, name, axis.name)
                    for name in packed
                )
                fits = not packed or (
                    workload.output.name not in packed and len(digits) == 1 and placed
                )
            if digit.stride == 1 and count > 1 and axis.extent % digit.count and fits:
                loop = f"{axis.name}.o"
                found[axis.name] = Overlap(
                    axis.name, loop, digit.count, count, axis.extent, axis.kind
                )
    return found


def _is_alone(workload: Computation, operand: str, axis: str) -> bool:
    """Whether an axis shares no index of an operand with another."""
    indices = workload.access(operand).index
    return all(i.single_iterator == axis for i in indices if axis in i.iterators)


def _has_single_accesses(
    workload: Computation, instruction: Instruction, embedding: Embedding
) -> bool:
    """Whether both are in port form as they are, which almost every computation is: each operand
    has one access, which one operand of the instruction takes."""
    ours, theirs = instruction.computation.access_maps, workload.access_maps
    single = all(len(found) == 1 for maps in (ours, theirs) for found in maps.values())
    return single and theirs.keys() >= set(embedding.operands.values())


def _iteration(
    workload: Computation, embedding: Embedding, overlaps: Mapping[str, Overlap]
) -> tuple[tuple[Loop, ...], dict[str, IndexExpr]]:
    """Outer loops over the translations, and each workload axis over loops and instruction axes.

    A digit of count c and stride s covers blocks of c*s; the loop ``axis.o`` walks blocks and,
    where s > 1, ``axis.p`` the s interleaved phases.
    """
    mapped: dict[str, list[Fed]] = {}
    for ours, digits in embedding.digits.items():
        weight = 1
        for digit in digits:
            outermost = weight * digit.count == embedding.extents[ours]
            mapped.setdefault(digit.axis, []).append((ours, weight, digit, outermost))
            weight *= digit.count
    walked = {axis: _walked(axis, tuple(mapped.get(axis.name, ()))) for axis in workload.axes}
    loops = [
        loop
        for kind in (AxisKind.SPATIAL, AxisKind.REDUCTION)
        for axis, (found, _) in walked.items()
        if axis.kind is kind
        for loop in found
    ]
    coordinates = {axis.name: index for axis, (_, index) in walked.items()}
    for name, overlap in overlaps.items():
        position = [t for t in coordinates[name].terms if t.iterator != overlap.loop]
        coordinates[name] = IndexExpr.of([*overlap.start().terms, *position])
    return tuple(loops), coordinates


Fed = tuple[str, int, Digit, bool]
"""An instruction axis, the weight of one of its digits, the digit, and whether it is its last."""


@lru_cache(1 << 12)
def _walked(axis: Axis, fed: tuple[Fed, ...]) -> tuple[tuple[Loop, ...], IndexExpr]:
    """The outer loops of an axis, and its coordinate; enumerations ask for the same ones often."""
    if len(fed) > 1:
        raise TransformError(f"axis {axis.name} feeds several digits: not derivable yet")
    count, stride = (fed[0][2].count, fed[0][2].stride) if fed else (1, 1)
    block = count * stride
    loops = [Loop(f"{axis.name}.o", -(-axis.extent // block), axis.kind)]
    terms = [IndexTerm(f"{axis.name}.o", block)]
    if stride > 1:
        loops.append(Loop(f"{axis.name}.p", stride, axis.kind))
        terms.append(IndexTerm(f"{axis.name}.p"))
    for ours, weight, digit, outermost in fed:
        terms.append(IndexTerm(ours, digit.stride, weight, None if outermost else digit.count))
    return tuple(loops), IndexExpr.of(terms)
