"""From an embedding to a program: loops, axis map, and every operand's layout (embedding.md, 7).

The instruction's tile of each operand is described by its memory side. A lane (an instruction
axis) whose elements may lie at any distance stays where its workload axis is; a lane that must be
dense moves innermost, in the tile's order. A lane that walks a dimension with several iterators
(an image row) is read in place. All other dimensions keep the order of the original operand, so a
channels-last operand yields a channels-last layout.
"""

from __future__ import annotations

from cpembed.embedding.commute import problem_of
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.flatten import flatten
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.layout import OperandLayout, digits_on
from cpembed.transform.program import DerivedProgram, Loop, PackedOperand
from cpembed.transform.rewrites import Rewrite

LayoutCache = dict[
    tuple[str, str, tuple[tuple[int, tuple[Digit, ...]], ...]],
    tuple[PackedOperand, list[Rewrite]],
]
"""Layouts by the operand, its role, and the extents and digits of its lanes: all they depend on."""


def derive(
    workload: Computation,
    instruction: Instruction,
    embedding: Embedding,
    cache: LayoutCache | None = None,
) -> DerivedProgram:
    """The program that executes the instruction over all translations of the embedded box.

    ``cache`` keeps layouts between embeddings of one workload and instruction; many share them.

    Raises :class:`TransformError` where the operands need a rewrite that is not available.
    """
    layouts: LayoutCache = {} if cache is None else cache
    if any(embedding.origin.values()):
        raise TransformError(
            "the embedding is a translation of the one at the origin: derive that one instead"
        )
    if not _has_single_accesses(workload, instruction):
        problem = problem_of(workload, instruction, embedding.operands)
        workload, instruction = problem.workload, problem.instruction
    original = workload
    workload = flatten(workload, embedding.flattened)
    loops, axis_map = _iteration(workload, embedding)
    lanes = tuple(
        Loop(axis.name, embedding.extents[axis.name], instruction.loop_axis(axis.name).kind)
        for axis in instruction.axes
    )
    extents = {loop.name: loop.extent for loop in (*loops, *lanes)}
    operands: list[PackedOperand] = []
    rewrites: list[Rewrite] = []
    for ours in instruction.computation.operands:
        names = tuple(
            name
            for index in instruction.computation.access(ours.name).index
            for name in index.iterators
        )
        role = embedding.operands[ours.name]
        key = (ours.name, role, tuple((embedding.extents[n], embedding.digits[n]) for n in names))
        if key not in layouts:
            layout = OperandLayout(
                original,
                original.access(role),
                instruction.memory[ours.name],
                names,
                embedding,
                axis_map,
                extents,
            )
            layouts[key] = (layout.derive(), layout.applied)
        packed, applied = layouts[key]
        operands.append(packed)
        rewrites += applied
    return DerivedProgram(
        workload,
        instruction,
        embedding,
        loops,
        lanes,
        axis_map,
        tuple(operands),
        dict(embedding.operands),
        tuple(rewrites),
        original if embedding.flattened else None,
    )


def _has_single_accesses(workload: Computation, instruction: Instruction) -> bool:
    """Whether both are in port form as they are, which almost every computation is."""
    ours, theirs = instruction.computation.access_maps, workload.access_maps
    return all(len(found) == 1 for maps in (ours, theirs) for found in maps.values())


def _iteration(
    workload: Computation, embedding: Embedding
) -> tuple[tuple[Loop, ...], dict[str, IndexExpr]]:
    """Outer loops over the translations, and each workload axis over loops and lanes.

    A digit of count c and stride s covers blocks of c*s; the loop ``axis.o`` walks blocks and,
    where s > 1, ``axis.p`` the s interleaved phases.
    """
    loops: list[Loop] = []
    axis_map: dict[str, IndexExpr] = {}
    for kind in (AxisKind.SPATIAL, AxisKind.REDUCTION):
        for axis in workload.axes:
            if axis.kind is not kind:
                continue
            digits = digits_on(embedding, axis.name)
            if len(digits) > 1:
                raise TransformError(f"axis {axis.name} feeds several digits: not derivable yet")
            count, stride = (digits[0].count, digits[0].stride) if digits else (1, 1)
            block = count * stride
            loops.append(Loop(f"{axis.name}.o", -(-axis.extent // block), kind))
            terms = [IndexTerm(f"{axis.name}.o", block)]
            if stride > 1:
                loops.append(Loop(f"{axis.name}.p", stride, kind))
                terms.append(IndexTerm(f"{axis.name}.p"))
            axis_map[axis.name] = IndexExpr.of([*terms, *embedding.offset(axis.name).terms])
    return tuple(loops), {axis.name: axis_map[axis.name] for axis in workload.axes}
