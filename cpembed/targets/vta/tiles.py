"""Tile nests: derived programs as VTA executes them.

An instruction execution takes one tile (element) of INP, WGT and ACC. So the program is
``acc[dst(l)] += inp[src(l)] * wgt[w(l)]`` over its loops ``l``, on *tile tensors*: the packed
operands without their tile dimensions, indexed by the loops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import LoweringError
from cpembed.ir.index import IndexExpr, IndexTerm, row_major_strides
from cpembed.targets.vta.isa import Memory, VtaConfig
from cpembed.targets.vta.specification import SCOPES
from cpembed.transform.program import DerivedProgram, Loop, PackedDimension, PackedOperand

MAX_PAD = 15  # pad fields have four bits
"""Maximum number of zero rows or columns on each side of a LOAD."""

MAX_STRIDE = 0xFFFF  # the field has 16 bits
"""Maximum number of DRAM elements between two rows of a transfer."""

_MEMORIES = {scope: memory for memory, scope in SCOPES.items()}
"""Memory by the scope that a hardware specification names."""


@dataclass(frozen=True)
class TileTensor:
    """Operand as VTA addresses it: a row-major array of tiles.

    ``packed`` is the layout in main memory: the derived layout without the rows and columns that
    are only zeros; an access outside of it reads zero. ``rank`` counts the dimensions before the
    tile's. If zeros were left out, ``padded_x`` is the dimension that is x of every LOAD.
    """

    memory: Memory
    packed: PackedOperand
    rank: int
    padded_x: int | None = None

    @property
    def name(self) -> str:
        return self.packed.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Tiles along each dimension."""
        return self.packed.shape[: self.rank]

    @property
    def access(self) -> tuple[IndexExpr, ...]:
        """Position along each dimension, as a function of the loops."""
        return self.packed.access[: self.rank]

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """Loops that an access depends on."""
        return tuple(dict.fromkeys(name for index in self.access for name in index.iterators))

    @cached_property
    def digit_loops(self) -> tuple[str, ...]:
        """Loops of which an access takes a quotient or a remainder.

        Equal tiles of them may have unequal regions.
        """
        terms = [term for index in self.access for term in index.terms]
        names = [name for term in terms if not term.is_affine for name in term.iterators]
        return tuple(dict.fromkeys(names))

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """DRAM distance, in tiles, between neighbours along each dimension."""
        return row_major_strides(self.shape)

    @property
    def tiles(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class TileNest:
    """Loop nest ``acc[dst] += inp[src] * wgt[w]`` over tile tensors; ``bias`` is added once."""

    config: VtaConfig
    loops: tuple[Loop, ...]
    inp: TileTensor
    wgt: TileTensor
    acc: TileTensor
    bias: TileTensor | None = None

    @property
    def inputs(self) -> tuple[TileTensor, ...]:
        """Tensors that main memory holds before the program runs."""
        return self.factors if self.bias is None else (*self.factors, self.bias)

    @property
    def factors(self) -> tuple[TileTensor, TileTensor]:
        """Tensors that are loaded before a GEMM."""
        return self.inp, self.wgt

    @cached_property
    def extents(self) -> dict[str, int]:
        return {loop.name: loop.extent for loop in self.loops}


def tile_nest(program: DerivedProgram, config: VtaConfig) -> TileNest:
    """Return a derived program as a nest over the tiles of a configuration.

    Raises :class:`LoweringError` if the program's tiles are not the configuration's, or the memory
    of an operand is none of VTA's.
    """
    loops = {loop.name for loop in program.loops}
    tensors: dict[Memory, TileTensor] = {}
    for operand in program.instruction.computation.operands:
        scope = program.instruction.memory[operand.name].scope
        if scope not in _MEMORIES:
            raise LoweringError(
                f"operand {operand.name} of {program.instruction.name} is in {scope}: "
                f"VTA has {', '.join(_MEMORIES)}"
            )
        memory = _MEMORIES[scope]
        tensors[memory] = _tensor(program.role(operand.name), memory, loops, config)
    extents = {loop.name: loop.extent for loop in program.loops}
    # Thinned first: a stride decides which zero rows are read at all.
    inp = _cropped_input(_thinned(tensors[Memory.INP], extents))
    acc = _cropped_output(tensors[Memory.ACC])
    return TileNest(config, program.loops, inp=inp, wgt=tensors[Memory.WGT], acc=acc)


def _tensor(
    packed: PackedOperand, memory: Memory, loops: set[str], config: VtaConfig
) -> TileTensor:
    """Return an operand as a tile tensor, after checking that its last dimensions are the tile."""
    # A derived program leaves out dimensions of extent 1, such as the batch of a GEMM core.
    tile = tuple(size for size in config.tile_shape(memory) if size > 1)
    rank = len(packed.dimensions) - len(tile)
    tile_access, outer_access = packed.access[rank:], packed.access[:rank]
    if (
        packed.shape[rank:] != tile
        or any(name in loops for index in tile_access for name in index.iterators)
        or any(name not in loops for index in outer_access for name in index.iterators)
    ):
        raise LoweringError(
            f"operand {packed.name} has the layout {packed.shape}, whose last dimensions are no "
            f"{memory.name} tile {tile} of the configuration"
        )
    return TileTensor(memory, packed, rank)


def _thinned(tensor: TileTensor, extents: Mapping[str, int]) -> TileTensor:
    """Drop the positions between those that the program reads: rows that a stride skips."""
    packed = tensor.packed
    dimensions, access = list(packed.dimensions), list(packed.access)
    positions: dict[str, IndexExpr] = {}
    # Loops of one value may have any coefficient: they are always 0.
    zero = {name: IndexExpr() for name, extent in extents.items() if extent == 1}
    for k in range(tensor.rank):
        index = access[k] = access[k].substitute(zero)
        step = math.gcd(*(term.coefficient for term in index.terms))
        # A strided 1x1 filter, for instance: its image is stored without what it never reads.
        if step <= 1 or not index.is_affine:
            continue
        low, high = index.bounds(extents)
        name = dimensions[k].name
        dimensions[k] = replace(dimensions[k], extent=(high - low) // step + 1)
        scaled = (replace(term, coefficient=term.coefficient // step) for term in index.terms)
        access[k] = IndexExpr(tuple(scaled), (index.constant - low) // step)
        positions[name] = IndexExpr((IndexTerm(name, step),), low)
    return _resized(tensor, dimensions, access, positions)


def _cropped_input(tensor: TileTensor) -> TileTensor:
    """Drop zero rows and columns that a LOAD can add."""
    # Only of the two innermost dimensions, which are the two of a LOAD.
    cuts: dict[int, tuple[int, int]] = {}
    inner = [k for k, extent in enumerate(tensor.shape) if extent > 1][-2:]
    for k in inner:
        # Farther rows are transfers of their own, and then the dimension is none of a LOAD.
        if tensor.strides[k] <= MAX_STRIDE:
            low, high = _zero_margins(tensor.packed, k)
            cuts[k] = min(low, MAX_PAD), min(high, MAX_PAD)
    if not any(before or after for before, after in cuts.values()):
        return tensor
    return replace(_cropped(tensor, cuts), padded_x=inner[-1])


def _cropped_output(tensor: TileTensor) -> TileTensor:
    """Drop rows and columns that unpacking the output would discard."""
    return _cropped(tensor, {k: _zero_margins(tensor.packed, k) for k in range(tensor.rank)})


def _zero_margins(packed: PackedOperand, k: int) -> tuple[int, int]:
    """Return how many leading and trailing positions of dimension ``k`` lie outside the operand."""
    positions = range(packed.dimensions[k].extent)
    first = next((at for at in positions if not _is_outside(packed, k, at)), None)
    if first is None:
        return 0, 0
    last = next(at for at in reversed(positions) if at == first or not _is_outside(packed, k, at))
    return first, positions[-1] - last


def _is_outside(packed: PackedOperand, k: int, position: int) -> bool:
    """True if all elements at a position of dimension ``k`` lie outside the original operand."""
    name = packed.dimensions[k].name
    # A dimension at one position is one of extent 1 behind an offset.
    extents = {d.name: d.extent for d in packed.dimensions} | {name: 1}
    for index, size in zip(packed.source, packed.original_shape, strict=True):
        low, high = _at(index, name, position).bounds(extents)
        if high < 0 or low >= size:
            return True
    return False


def _at(index: IndexExpr, name: str, position: int) -> IndexExpr:
    """Return the index with a dimension fixed at a position."""
    constant, terms = index.constant, list[IndexTerm]()
    for term in index.terms:
        if term.inner is None and term.iterator == name:
            constant += term.evaluate({name: position})
        elif term.inner is not None and name in term.iterators:
            terms.append(replace(term, inner=_at(term.inner, name, position)))
        else:
            terms.append(term)
    return IndexExpr(tuple(terms), constant)


def _cropped(tensor: TileTensor, cuts: dict[int, tuple[int, int]]) -> TileTensor:
    """Drop leading and trailing positions, of which ``cuts`` has the numbers by dimension."""
    packed = tensor.packed
    dimensions, access = list(packed.dimensions), list(packed.access)
    positions: dict[str, IndexExpr] = {}
    for k, (before, after) in cuts.items():
        name, extent = dimensions[k].name, dimensions[k].extent
        dimensions[k] = PackedDimension(name, extent - before - after, dimensions[k].lane)
        access[k] += -before
        positions[name] = IndexExpr((IndexTerm(name),), before)
    return _resized(tensor, dimensions, access, positions)


def _resized(
    tensor: TileTensor,
    dimensions: list[PackedDimension],
    access: list[IndexExpr],
    positions: dict[str, IndexExpr],
) -> TileTensor:
    """Return a tensor with other dimensions, whose old ``positions`` depend on the new ones."""
    packed = tensor.packed
    source = tuple(index.substitute(positions) for index in packed.source)
    packed = replace(packed, dimensions=tuple(dimensions), access=tuple(access), source=source)
    return replace(tensor, packed=packed)


def with_bias(nest: TileNest, axes: tuple[int, ...]) -> TileNest:
    """Return the nest with a bias over dimensions ``axes`` of the original output, if any.

    As tiles, the bias is a tensor of accumulators over the packed dimensions of the output that the
    ``axes`` depend on. It is loaded with the output tile, and the ALU adds it. Raises
    :class:`LoweringError` for a dimension that the output lacks.
    """
    if not axes:
        return nest
    packed = nest.acc.packed
    rank = len(packed.original_shape)
    if list(axes) != sorted(set(axes)) or not all(0 <= axis < rank for axis in axes):
        raise LoweringError(
            f"bias: {axes} are no dimensions of {packed.name}, in order; it has {rank}"
        )
    # The bias lies as the output does, in its tiles: the ALU adds accumulators element by element.
    source = tuple(packed.source[axis] for axis in axes)
    used = {name for index in source for name in index.iterators}
    dimensions = [
        k
        for k, dimension in enumerate(packed.dimensions)
        if k >= nest.acc.rank or dimension.name in used
    ]
    bias = PackedOperand(
        name=f"{packed.name}.bias",
        dtype="int32",
        original_shape=tuple(packed.original_shape[axis] for axis in axes),
        dimensions=tuple(packed.dimensions[k] for k in dimensions),
        source=source,
        access=tuple(packed.access[k] for k in dimensions),
    )
    tensor = TileTensor(nest.acc.memory, bias, sum(k < nest.acc.rank for k in dimensions))
    return replace(nest, bias=tensor)


@dataclass(frozen=True, eq=False)
class ExistenceMask:
    """Values of some loops, an axis for each, at which an access lies in main memory."""

    names: tuple[str, ...]
    holds: NDArray[np.bool_]

    def over(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return where the mask can hold, as an array that broadcasts over a grid of ``names``."""
        absent = tuple(k for k, name in enumerate(self.names) if name not in names)
        axis = {n: k for k, n in enumerate(n for n in self.names if n in names)}
        holds = np.transpose(self.holds.any(axis=absent), [axis[n] for n in names if n in axis])
        return np.expand_dims(holds, tuple(k for k, n in enumerate(names) if n not in axis))


def executions(nest: TileNest) -> int:
    """Return the number of products whose input and output tiles lie in main memory."""
    # The others multiply zeros, or their result is discarded. Masks share no loops, so the
    # fractions of the loops' values at which they hold multiply.
    total = math.prod(nest.extents.values())
    for mask in existence_masks(nest):
        total = total * int(mask.holds.sum()) // mask.holds.size
    return total


def existence_masks(nest: TileNest) -> list[ExistenceMask]:
    """Return where the input and output tiles of a product lie in main memory.

    There is a mask for each set of dimensions that share loops, none for those that always lie
    there.
    """
    dimensions = [
        (index, size)
        for tensor in (nest.inp, nest.acc)
        for index, size in zip(tensor.access, tensor.shape, strict=True)
        for low, high in (index.bounds(nest.extents),)
        if low < 0 or high >= size
    ]
    masks: list[ExistenceMask] = []
    for names in _sharing([set(index.iterators) for index, _ in dimensions]):
        inside = np.ones([nest.extents[name] for name in names], bool)
        for index, size in dimensions:
            if set(index.iterators) <= set(names):
                position = _positions(nest, index, names)
                inside &= (position >= 0) & (position < size)
        masks.append(ExistenceMask(names, inside))
    return masks


def accessed_tiles(nest: TileNest, tensor: TileTensor, masks: Sequence[ExistenceMask]) -> int:
    """Return the number of a tensor's tiles in main memory that products access.

    Strides, and steps that are not their multiples, leave tiles out.

    Parameters
    ----------
    nest
        Nest of the products.
    tensor
        Operand of the nest.
    masks
        Masks that must hold at a product for it to count; none counts all products.
    """
    masks = [mask for mask in masks if set(mask.names) & set(tensor.loops)]
    pairs = list(zip(tensor.access, tensor.shape, strict=True))
    tied = [set(mask.names) & set(tensor.loops) for mask in masks]
    # Dimensions that share no loops are independent: the product of their counts is the count.
    total = 1
    for names in _sharing([*(set(index.iterators) for index, _ in pairs), *tied]):
        holds = np.ones([nest.extents[name] for name in names], bool)
        place = np.zeros(holds.shape, np.int64)
        for mask, loops in zip(masks, tied, strict=True):
            if loops <= set(names):
                holds &= mask.over(names)
        for index, size in pairs:
            if index.iterators and set(index.iterators) <= set(names):
                position = _positions(nest, index, names)
                holds &= (position >= 0) & (position < size)
                # Row-major within the dimensions of the group, so that tiles have unique numbers.
                place = place * size + position
        total *= len(np.unique(place[holds]))
    return total


def _positions(nest: TileNest, index: IndexExpr, names: Sequence[str]) -> NDArray[np.int64]:
    """Return an index at every point of some loops, to be broadcast over loops that it lacks."""
    grids = np.ix_(*(np.arange(nest.extents[name]) for name in names))
    return np.asarray(index.evaluate(dict(zip(names, grids, strict=True))))


def _sharing(sets: Sequence[set[str]]) -> list[tuple[str, ...]]:
    """Return the unions of sets that overlap, directly or through another set, each sorted."""
    unions: list[set[str]] = []
    for names in filter(None, sets):
        overlapping = [union for union in unions if union & names]
        unions = [*(union for union in unions if not union & names), names.union(*overlapping)]
    return [tuple(sorted(names)) for names in unions]
