"""Transfers of boxes of tensors between memories, by the machine's copy instructions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from cpembed.accelerator.addressing import (
    Binding,
    InMain,
    InRows,
    Place,
    Scalar,
    bind,
    bind_scalar,
)
from cpembed.accelerator.boxes import Box, guards
from cpembed.accelerator.problem import AddressingError
from cpembed.accelerator.program import Issue, Loop, Node, Size
from cpembed.hw.isa import IMMEDIATE, InstructionSet, IsaInstruction, MemoryKind
from cpembed.ir.expression import Access, Constant, Expression, copied_read
from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class CopyInstruction:
    """An instruction that copies elements from one memory to another, unchanged.

    One that fills a memory with zeros has no source, or an immediate: its memory is empty.
    """

    instruction: IsaInstruction
    source: str
    destination: str
    memories: tuple[str, str]
    dtype: str


@lru_cache(maxsize=64)
def copy_instructions(machine: InstructionSet) -> tuple[CopyInstruction, ...]:
    """List the instructions that copy."""
    copies: list[CopyInstruction] = []
    for instruction in machine.instructions.values():
        statements = instruction.computation.statements
        if len(statements) != 1 or statements[0].reduction is not None or not instruction.axes:
            continue
        places, destination = instruction.places, statements[0].store.operand
        filled = _filled(instruction, statements[0].value)
        if filled is not None:
            place = places[destination]
            copies.append(
                CopyInstruction(instruction, filled, destination, ("", place.memory), place.dtype)
            )
            continue
        read = copied_read(statements[0].value)
        if read is None or len(instruction.inputs) != 1:
            continue
        source = read.operand
        pair = places[source].memory, places[destination].memory
        if places[source].dtype == places[destination].dtype and _are_addressed(machine, pair):
            copies.append(
                CopyInstruction(instruction, source, destination, pair, places[source].dtype)
            )
    return tuple(copies)


def _filled(instruction: IsaInstruction, value: Expression) -> str | None:
    """Return the immediate that an instruction fills with, empty for 0; None if it does not."""
    if value == Constant(0):
        return ""
    if isinstance(value, Access) and instruction.places[value.operand].memory == IMMEDIATE:
        return value.operand
    return None


def _are_addressed(machine: InstructionSet, names: Sequence[str]) -> bool:
    kinds = (MemoryKind.MAIN, MemoryKind.ROWS)
    return all(n in machine.memories and machine.memories[n].kind in kinds for n in names)


@dataclass
class Names:
    """Names of loops that are not in use yet."""

    count: dict[str, int] = field(default_factory=dict[str, int])

    def new(self, stem: str) -> str:
        """Return a name that begins with a stem."""
        number = self.count.get(stem, 0)
        self.count[stem] = number + 1
        return f"{stem}{number}"


@dataclass(frozen=True)
class BoundIssue(Issue):
    """An instruction, and the values that registers need when it is executed."""

    registers: tuple[tuple[str, Scalar | None], ...] = ()


@dataclass(frozen=True)
class _Walk:
    """Dimension of the box that an axis of the copy walks, in chunks of elements a step apart."""

    axis: str
    dimension: int
    chunk: int
    step: int
    is_fixed: bool = False


@dataclass(frozen=True)
class Transfer:
    """A box of a tensor that is copied from one place to another."""

    tensor: str
    box: Box
    source: Place | None
    destination: Place
    note: str = ""
    value: int | float = 0


@dataclass(frozen=True)
class CopyPlan:
    """A copy instruction for a transfer, and which dimension each of its axes walks."""

    copy: CopyInstruction
    transfer: Transfer
    walks: tuple[_Walk, ...]
    loops: Mapping[str, int]
    bindings: Mapping[str, Binding]

    @property
    def rounding(self) -> dict[int, int]:
        """Dimensions that are copied in whole chunks, beyond the box if need be."""
        return {w.dimension: w.chunk * w.step for w in self.walks if w.is_fixed}

    @property
    def cycles(self) -> float:
        """Cycles of all copies of the largest box."""
        return _cost(self.copy, self.transfer.box, self.walks)

    def nodes(self, names: Names) -> tuple[Node, ...]:
        """Return the loops and instructions that copy the box."""
        return tuple(_nodes(self, names))


def plan_copy(
    machine: InstructionSet,
    transfer: Transfer,
    memories: tuple[str, str],
    dtype: str,
    loops: Mapping[str, int],
) -> CopyPlan:
    """Return the copy of a box with the fewest cycles.

    Parameters
    ----------
    machine : InstructionSet
    transfer : Transfer
    memories : (str, str)
        Names of the memories of the source and the destination.
    dtype : str
        Element type of the tensor.
    loops : mapping of str to int
        Extents of the loops around the transfer.

    Raises
    ------
    PlanningError
        If no copy instruction can move the box.
    """
    options = sorted(
        (
            (_cost(copy, transfer.box, walks), number, copy, walks)
            for number, copy in enumerate(copy_instructions(machine))
            if copy.memories == memories and copy.dtype == dtype
            for walks in _walks(copy, transfer)
        ),
        key=lambda option: option[:2],
    )
    for _, _, copy, walks in options:
        bindings = _bindings(copy, transfer, walks, loops)
        if bindings is not None:
            return CopyPlan(copy, transfer, walks, loops, bindings)
    if not memories[0]:
        raise AddressingError(
            f"rejected: no instruction of {machine.name} begins {transfer.tensor} in "
            f"{memories[1]} with {transfer.value}: describe one that fills it (D[r,e] = "
            f"{transfer.value}), or one that begins its sums anew (accumulate = false)",
            transfer.tensor,
        )
    raise AddressingError(
        f"rejected: no instruction of {machine.name} copies {transfer.tensor} in boxes of "
        f"{'x'.join(map(str, transfer.box.largest))} from {memories[0]} to "
        f"{memories[1]}: describe a copy whose strides are arguments, or another layout",
        transfer.tensor,
    )


def _walks(copy: CopyInstruction, transfer: Transfer) -> Iterator[tuple[_Walk, ...]]:
    """Yield the assignments of a copy's axes to dimensions of the box."""
    box = transfer.box
    options: list[list[_Walk | None]] = []
    for axis in copy.instruction.axes:
        choices: list[_Walk | None] = []
        for dimension, size in enumerate(box.largest):
            for step, chunk in _chunks(transfer, dimension, size, axis.maximum):
                if axis.takes_any_size:
                    choices.append(_Walk(axis.name, dimension, chunk, step))
                    continue
                least = axis.rounded(chunk)
                if not (isinstance(transfer.destination, InMain) and size % least):
                    # Whole chunks of a store would overwrite what lies behind the box.
                    choices.append(_Walk(axis.name, dimension, least, step, is_fixed=True))
        if axis.minimum == 1:
            choices.append(None)
        options.append(list(dict.fromkeys(choices)))
    for combination in itertools.product(*options):
        walks = tuple(w for w in combination if w is not None)
        if len({w.dimension for w in walks}) == len(walks):
            yield walks


def _chunks(transfer: Transfer, dimension: int, size: int, largest: int) -> list[tuple[int, int]]:
    """List steps and chunk sizes with which an axis may walk a dimension."""
    pairs = [(1, min(largest, size))]
    for place in (transfer.source, transfer.destination):
        if not isinstance(place, InRows):
            continue
        for d in place.layout.lanes:
            if d.dimension == dimension and d.modulus is not None:
                pairs += [(1, min(largest, size, d.modulus))]
        steps = [d.modulus for d in place.layout.rows if d.dimension == dimension and d.modulus]
        pairs += [(step, min(largest, -(-size // step))) for step in steps]
        is_split = [d.divisor for d in place.layout.rows if d.dimension == dimension]
        lanes = any(d.dimension == dimension for d in place.layout.lanes)
        if not lanes:
            pairs += [(s, min(largest, -(-size // s))) for s in is_split if s > 1]
    return pairs


def _cost(copy: CopyInstruction, box: Box, walks: Sequence[_Walk]) -> float:
    by_dimension = {w.dimension: w for w in walks}
    count = 1
    sizes = {axis.name: 1 for axis in copy.instruction.axes if not axis.is_fixed}
    for dimension, size in enumerate(box.largest):
        walk = by_dimension.get(dimension)
        if walk is None:
            count *= size
            continue
        count *= sum(
            -(-len(range(offset, size, walk.step)) // walk.chunk)
            for offset in range(min(walk.step, size))
        )
        sizes[walk.axis] = walk.chunk
    return count * (copy.instruction.occupied_cycles(sizes) + 1e-6 * math.prod(sizes.values()))


@dataclass(frozen=True)
class _CopyLoop:
    name: str
    extent: int
    dimension: int


def _index(
    transfer: Transfer, walks: Sequence[_Walk], offsets: Mapping[int, int]
) -> tuple[list[IndexExpr], list[_CopyLoop]]:
    """Return the index of the copied element, and the loops of the copy, with provisional names."""
    by_dimension = {w.dimension: w for w in walks}
    index: list[IndexExpr] = []
    loops: list[_CopyLoop] = []
    for dimension, start in enumerate(transfer.box.starts):
        walk = by_dimension.get(dimension)
        size = transfer.box.largest[dimension]
        terms: list[IndexTerm] = []
        offset = offsets.get(dimension, 0)
        stride = 1 if walk is None else walk.step * walk.chunk
        steps = -(-(size - offset) // stride)
        if steps > 1:
            loops.append(_CopyLoop(f"?{dimension}", steps, dimension))
            terms.append(IndexTerm(f"?{dimension}", stride))
        # One element a chunk leaves the axis at 0, and the operand may not have the axis at all.
        if walk is not None and walk.chunk > 1:
            terms.append(IndexTerm(walk.axis, walk.step))
        index.append(start + IndexExpr.sum(terms, offset))
    return index, loops


def _bindings(
    copy: CopyInstruction,
    transfer: Transfer,
    walks: Sequence[_Walk],
    loops: Mapping[str, int],
    offsets: Mapping[int, int] | None = None,
) -> dict[str, Binding] | None:
    index, copy_loops = _index(transfer, walks, offsets or {})
    extents = {**loops, **{loop.name: loop.extent for loop in copy_loops}}
    sizes = {a.name: a.maximum if a.is_fixed else 1 for a in copy.instruction.axes}
    sizes |= {w.axis: w.chunk for w in walks}
    shrinking = frozenset(w.axis for w in walks if not w.is_fixed and _shrinks(transfer.box, w))
    bound: dict[str, Binding] = {}
    for operand, place in (
        (copy.source, transfer.source),
        (copy.destination, transfer.destination),
    ):
        if place is None:
            # A fill has its value in itself, where that is 0, or in an immediate.
            if operand:
                place_of = copy.instruction.places[operand]
                bound[operand] = bind_scalar(place_of, "", transfer.value)
            elif transfer.value:
                return None
            continue
        binding = bind(
            copy.instruction, operand, index, place, transfer.tensor, sizes, extents, shrinking
        )
        if binding is None:
            return None
        bound[operand] = binding
    return bound


def _shrinks(box: Box, walk: _Walk) -> bool:
    """True if some chunks of a walk are smaller than others."""
    size = box.largest[walk.dimension]
    return len(box.sizes[walk.dimension]) > 1 or bool(size % (walk.chunk * walk.step))


def _nodes(plan: CopyPlan, names: Names) -> Iterator[Node]:
    """Yield one loop nest for each combination of offsets of dimensions walked in steps."""
    copy, transfer, walks, loops = plan.copy, plan.transfer, plan.walks, plan.loops
    ranges = [
        range(min(w.step, transfer.box.largest[w.dimension])) if w.step > 1 else range(1)
        for w in walks
    ]
    for combination in itertools.product(*ranges):
        offsets = {w.dimension: o for w, o in zip(walks, combination, strict=True)}
        bindings: Mapping[str, Binding] | None = plan.bindings
        if any(combination):
            bindings = _bindings(copy, transfer, walks, loops, offsets)
        if bindings is None:
            raise AddressingError(
                f"rejected: {transfer.tensor} cannot be copied in steps", transfer.tensor
            )
        yield _nest(copy, transfer, walks, bindings, offsets, loops, names)


def _nest(
    copy: CopyInstruction,
    transfer: Transfer,
    walks: Sequence[_Walk],
    bindings: Mapping[str, Binding],
    offsets: Mapping[int, int],
    outer: Mapping[str, int],
    names: Names,
) -> Node:
    _, copy_loops = _index(transfer, walks, offsets)
    extents = {**outer, **{loop.name: loop.extent for loop in copy_loops}}
    by_dimension = {w.dimension: w for w in walks}
    sizes: dict[str, Size] = {}
    conditions: list[IndexExpr] = []
    run_time = {a.name for a in copy.instruction.size_arguments}
    for dimension, box_bounds in enumerate(transfer.box.sizes):
        walk = by_dimension.get(dimension)
        loop = next((x for x in copy_loops if x.dimension == dimension), None)
        offset, step = offsets.get(dimension, 0), 1 if walk is None else walk.step
        chunk = 1 if walk is None else walk.chunk
        bounds = tuple(_steps(b + -offset, step) for b in box_bounds)
        before = IndexExpr()
        if loop is not None:
            before = IndexExpr((IndexTerm(loop.name, -chunk),))
        smallest = [b for b in (b + before for b in bounds) if b.bounds(extents)[0] < chunk]
        conditions += guards(tuple(smallest), extents)
        if walk is not None and walk.axis in run_time:
            sizes[walk.axis] = (IndexExpr((), chunk), *(() if walk.is_fixed else smallest))
    for axis in copy.instruction.size_arguments:
        sizes.setdefault(axis.name, (IndexExpr((), 1),))
    node: Node = BoundIssue(
        copy.instruction.name,
        {name: b.address for name, b in bindings.items()},
        sizes,
        tuple(dict.fromkeys(conditions)),
        contents={n: b.content for n, b in bindings.items() if b.content is not None},
        note=transfer.note,
        registers=tuple(r for b in bindings.values() for r in b.registers),
    )
    for loop in reversed(copy_loops):
        node = Loop(loop.name, loop.extent, (node,))
    return renamed(node, {loop.name: names.new("t") for loop in copy_loops})


def _steps(size: IndexExpr, step: int) -> IndexExpr:
    """Return the number of steps in a range of a size."""
    if step == 1:
        return size
    if not size.terms:
        return IndexExpr((), -(-size.constant // step))
    return IndexExpr.sum([IndexTerm.digit(size + (step - 1), divisor=step)])


def renamed(node: Node, new: Mapping[str, str]) -> Node:
    """Rename loops of a nest and every use of them."""
    if not new:
        return node
    if isinstance(node, Loop):
        body = tuple(renamed(n, new) for n in node.body)
        return Loop(new.get(node.name, node.name), node.extent, body)

    return node.mapped(lambda e: e.rename(lambda name: new.get(name, name)))
