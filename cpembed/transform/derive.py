"""Derive a program from an embedding: loops, axis map, and the layout of every operand.

The definitions are in docs/embedding.md, "Rewrites" and "Program and proof"; the layouts are those
of :mod:`cpembed.transform.layout`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from cpembed.embedding.commute import Pairing
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.flatten import flatten
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction, StrideRule
from cpembed.ir.computation import Axis, AxisKind, Computation
from cpembed.ir.dtypes import is_integer
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.polyhedral import box, relation
from cpembed.transform.layout import InPlaceLayout, OperandLayout
from cpembed.transform.program import DerivedProgram, Loop, Overlap, PackedOperand, Rewrite
from cpembed.transform.rewrites import StencilUnroll

LayoutCache = dict[
    tuple[str, str, tuple[tuple[int, tuple[Digit, ...]], ...]],
    tuple[PackedOperand, list[Rewrite]],
]
"""Layouts by instruction operand, its role, and the extents and digits of its instruction axes."""


def derive(
    workload: Computation,
    instruction: Instruction,
    embedding: Embedding,
    cache: LayoutCache | None = None,
    in_place: Collection[str] = (),
) -> DerivedProgram:
    """Derive the program that executes the instruction over all translations of the embedded box.

    Parameters
    ----------
    workload, instruction : Computation, Instruction
        The workload and the instruction that is embedded in it.
    embedding : Embedding
        The embedding, at the origin.
    cache : LayoutCache, optional
        Layouts to share between the embeddings of one workload and instruction.
    in_place : collection of str
        Workload operands that keep their layouts, but for a margin of zeros where the workload
        reads outside of them. Axes that would be padded overlap instead where that is possible
        (:class:`~cpembed.transform.program.Overlap`). Other layouts are those of least footprint.

    Raises
    ------
    TransformError
        If an operand needs a rewrite that is not available, or the instruction cannot read an
        operand in place.
    """
    # A key has all that a layout depends on within one workload and instruction, but for overlaps,
    # which programs in place have.
    layouts: LayoutCache = {} if cache is None or in_place else cache
    if any(embedding.origin.values()):
        raise TransformError(
            "the embedding is a translation of the one at the origin: derive that one instead"
        )
    # Almost all are in port form already, so that the graphs need not be matched again.
    single = workload.has_single_accesses and instruction.computation.has_single_accesses
    if not (single and workload.access_maps.keys() >= set(embedding.operands.values())):
        problem = Pairing(workload, instruction).with_roles(embedding.operands)
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
    for name in (operand.name for operand in instruction.computation.operands):
        names, role = instruction.computation.access(name).iterators, embedding.operands[name]
        key = (name, role, tuple((embedding.extents[n], embedding.digits[n]) for n in names))
        if key not in layouts:
            kind = InPlaceLayout if role in in_place else OperandLayout
            # Of the original workload: fused axes are made of dimensions that it names.
            layout = kind(
                workload=original,
                access=original.access(role),
                memory=instruction.memory[name],
                instruction_axes=names,
                embedding=embedding,
                axis_map=axis_map,
                extents=extents,
                overlaps=overlaps,
            )
            layouts[key] = (layout.derive(), layout.applied)
        packed, applied = layouts[key]
        # A stencil unroll copies elements. Of an output, the copies would have to be added up.
        copied = any(isinstance(rewrite, StencilUnroll) for rewrite in applied)
        if role in outputs and (copied or _overlaps_when_fused(original, embedding, packed)):
            raise TransformError(
                f"several points write an element of {role}, which would then lie in several places"
            )
        operands.append(packed)
        rewrites += applied
    return DerivedProgram(
        workload=workload,
        instruction=instruction,
        embedding=embedding,
        loops=loops,
        instruction_axes=axes,
        axis_map=axis_map,
        operands=tuple(operands),
        roles=dict(embedding.operands),
        rewrites=tuple(rewrites),
        original=original if embedding.flattened else None,
        overlaps=tuple(overlaps.values()),
        in_place=tuple(in_place),
    )


def _overlaps_when_fused(
    workload: Computation, embedding: Embedding, packed: PackedOperand
) -> bool:
    """Return True if a fused axis puts an element of an output into several packed elements.

    Tiles of a fused axis have no dimension for each of its members, so that members that share an
    index of the output, as in ``C[3*i + j]``, may reach one element from two tiles.
    """
    role = packed.name
    store = workload.access(role)
    fused = {member for members in embedding.flattened.values() for member in members}
    shared = [e for e in store.index if len(e.terms) > 1]
    if not any(term.iterator in fused for index in shared for term in index.terms):
        return False
    source = relation(packed.source, {d.name: d.extent for d in packed.dimensions})
    return not source.intersect_range(box(packed.original_shape)).is_injective()


def overlapping(
    workload: Computation,
    instruction: Instruction,
    embedding: Embedding,
    in_place: Collection[str],
) -> dict[str, Overlap]:
    """Find the axes whose last block moves back to end with the axis, instead of being padded.

    Parameters
    ----------
    workload, instruction, embedding
        As of :func:`derive`.
    in_place : collection of str
        Workload operands that keep their layouts.

    Returns
    -------
    dict of str to Overlap
        The overlaps by workload axis.
    """
    exact = all(is_integer(operand.dtype) for operand in workload.operands)
    roles = {role: name for name, role in embedding.operands.items()}
    overlaps: dict[str, Overlap] = {}
    for instruction_axis, digits in embedding.digits.items():
        for digit in digits:
            axis = next(a for a in workload.axes if a.name == digit.axis)
            count = -(-axis.extent // digit.count)
            names = (operand.name for operand in workload.operands)
            users = {name for name in names if axis.name in workload.access(name).iterators}
            packed = users - set(in_place)
            if axis.kind is AxisKind.REDUCTION:
                # A packed operand holds zeros for what would be added twice. Only of integers is a
                # product with zero always zero: a float could be an infinity.
                fits = bool(packed) and packed != users and exact
            else:
                # Elements of the output in place are written twice, with the same result. Another
                # operand is in place too, or its layout lets blocks begin anywhere, or it is packed
                # block by block, for which no other axis may share the index.
                separable = all(
                    instruction.memory[roles[name]].stride_rule(instruction_axis) is StrideRule.ANY
                    or _has_own_index(workload, name, axis.name)
                    for name in packed
                )
                fits = not packed or (
                    workload.output.name not in packed and len(digits) == 1 and separable
                )
            if digit.stride == 1 and count > 1 and axis.extent % digit.count and fits:
                overlaps[axis.name] = Overlap(
                    axis=axis.name,
                    loop=f"{axis.name}.o",
                    block=digit.count,
                    count=count,
                    extent=axis.extent,
                    kind=axis.kind,
                )
    return overlaps


def _has_own_index(workload: Computation, operand: str, axis: str) -> bool:
    """True if an axis shares no index of an operand with another axis."""
    indices = workload.access(operand).index
    return all(i.single_iterator == axis for i in indices if axis in i.iterators)


def _iteration(
    workload: Computation, embedding: Embedding, overlaps: Mapping[str, Overlap]
) -> tuple[tuple[Loop, ...], dict[str, IndexExpr]]:
    """Return the outer loops over the translations, and the coordinate of each workload axis."""
    feeds: dict[str, list[Feed]] = {}
    for axis, digits in embedding.digits.items():
        weight = 1
        for digit in digits:
            outermost = weight * digit.count == embedding.extents[axis]
            feeds.setdefault(digit.axis, []).append((axis, weight, digit, outermost))
            weight *= digit.count
    nests = {axis: _axis_nest(axis, tuple(feeds.get(axis.name, ()))) for axis in workload.axes}
    # Spatial loops outside, so that all steps of a sum follow one another.
    loops = [
        loop
        for kind in (AxisKind.SPATIAL, AxisKind.REDUCTION)
        for axis, (axis_loops, _) in nests.items()
        if axis.kind is kind
        for loop in axis_loops
    ]
    coordinates = {axis.name: index for axis, (_, index) in nests.items()}
    for name, overlap in overlaps.items():
        position = [t for t in coordinates[name].terms if t.iterator != overlap.loop]
        coordinates[name] = IndexExpr.sum([*overlap.start().terms, *position])
    return tuple(loops), coordinates


Feed = tuple[str, int, Digit, bool]
"""An instruction axis, the weight of one of its digits, the digit, and True for the outermost."""


# An enumeration asks for few different nests, each of them very often.
@lru_cache(1 << 12)
def _axis_nest(axis: Axis, feeds: tuple[Feed, ...]) -> tuple[tuple[Loop, ...], IndexExpr]:
    """Return the outer loops of an axis and its coordinate over these and instruction axes."""
    if len(feeds) > 1:
        raise TransformError(f"axis {axis.name} feeds several digits: not derivable yet")
    # A digit of count c and stride s covers blocks of c*s points: c steps in each of s interleaved
    # phases. `axis.o` walks the blocks, `axis.p` the phases.
    count, stride = (feeds[0][2].count, feeds[0][2].stride) if feeds else (1, 1)
    block = count * stride
    loops = [Loop(f"{axis.name}.o", -(-axis.extent // block), axis.kind)]
    terms = [IndexTerm(f"{axis.name}.o", block)]
    if stride > 1:
        loops.append(Loop(f"{axis.name}.p", stride, axis.kind))
        terms.append(IndexTerm(f"{axis.name}.p"))
    for instruction_axis, weight, digit, outermost in feeds:
        # The outermost digit ends with its axis, where a modulus would change nothing.
        modulus = None if outermost else digit.count
        terms.append(IndexTerm(instruction_axis, digit.stride, weight, modulus))
    return tuple(loops), IndexExpr.sum(terms)
