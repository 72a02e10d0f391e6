"""The tile-level view of a derived program: what VTA sees of it.

An instruction execution takes one tile (element) of INP, WGT and ACC. So the program is
``acc[dst(l)] += inp[src(l)] * wgt[w(l)]`` over its loops ``l``, on *tile tensors*: the packed
operands without their tile dimensions, indexed by the loops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.errors import LoweringError
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.machine import SCOPES
from cpembed.transform.program import DerivedProgram, Loop, PackedDimension, PackedOperand

MAX_PAD = 15
"""Zero rows or columns at most on each side of a LOAD: its pad fields have four bits."""
MAX_STRIDE = 0xFFFF
"""DRAM elements at most between two rows of a transfer."""

_MEMORIES = {scope: memory for memory, scope in SCOPES.items()}
"""Memory by the scope that a hardware specification names."""


@dataclass(frozen=True)
class TileTensor:
    """An operand as VTA addresses it: a row-major array of tiles.

    ``packed`` is what main memory holds: the derived layout without the rows and columns that are
    only zeros; an access outside of it reads zero. ``rank`` counts the dimensions before the
    tile's. Where zeros were left out, ``padded_x`` is the dimension that is x of every LOAD.
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
        """Position along each dimension, over the loops."""
        return self.packed.access[: self.rank]

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """Loops that an access depends on."""
        return tuple(dict.fromkeys(name for index in self.access for name in index.iterators))

    @cached_property
    def digit_loops(self) -> tuple[str, ...]:
        """Loops of which an access takes digits: tiles of equal sizes may differ in what they
        touch."""
        terms = [term for index in self.access for term in index.terms]
        names = [name for term in terms if not term.is_affine for name in term.iterators]
        return tuple(dict.fromkeys(names))

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """DRAM distance, in tiles, between neighbours along each dimension."""
        return tuple(math.prod(self.shape[k + 1 :]) for k in range(self.rank))

    @property
    def tiles(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class TileNest:
    """``for loops: acc[dst] += inp[src] * wgt[w]`` over tile tensors; ``bias`` is added once."""

    config: VtaConfig
    loops: tuple[Loop, ...]
    inp: TileTensor
    wgt: TileTensor
    acc: TileTensor
    bias: TileTensor | None = None

    @property
    def inputs(self) -> tuple[TileTensor, ...]:
        """What main memory holds before the program runs."""
        return self.factors if self.bias is None else (*self.factors, self.bias)

    @property
    def factors(self) -> tuple[TileTensor, TileTensor]:
        """What is loaded before a GEMM."""
        return self.inp, self.wgt

    @cached_property
    def extents(self) -> dict[str, int]:
        return {loop.name: loop.extent for loop in self.loops}


def tile_nest(program: DerivedProgram, config: VtaConfig) -> TileNest:
    """The program on tiles of a configuration.

    Raises :class:`LoweringError` where the program's tiles are not the configuration's, or an
    operand's memory is none of VTA's.
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
    inp = _cropped_input(_thinned(tensors[Memory.INP], extents))
    acc = _cropped_output(tensors[Memory.ACC])
    return TileNest(config, program.loops, inp, tensors[Memory.WGT], acc)


def _tensor(
    packed: PackedOperand, memory: Memory, loops: set[str], config: VtaConfig
) -> TileTensor:
    """Checks that the trailing dimensions are the memory's tile."""
    tile = tuple(size for size in config.tile_shape(memory) if size > 1)
    rank = len(packed.dimensions) - len(tile)
    inside, outside = packed.access[rank:], packed.access[:rank]
    if (
        packed.shape[rank:] != tile
        or any(name in loops for index in inside for name in index.iterators)
        or any(name not in loops for index in outside for name in index.iterators)
    ):
        raise LoweringError(
            f"operand {packed.name} has the layout {packed.shape}, whose last dimensions are no "
            f"{memory.name} tile {tile} of the configuration"
        )
    return TileTensor(memory, packed, rank)


def _thinned(tensor: TileTensor, extents: Mapping[str, int]) -> TileTensor:
    """Without the positions between those that the program reads: rows that a stride skips."""
    packed = tensor.packed
    dimensions, access = list(packed.dimensions), list(packed.access)
    moved: dict[str, IndexExpr] = {}
    still = {name: IndexExpr() for name, extent in extents.items() if extent == 1}
    for k in range(tensor.rank):
        index = access[k] = access[k].substitute(still)
        step = math.gcd(*(term.coefficient for term in index.terms))
        if step <= 1 or not index.is_affine:
            continue
        low, high = index.bounds(extents)
        name = dimensions[k].name
        dimensions[k] = replace(dimensions[k], extent=(high - low) // step + 1)
        scaled = (replace(term, coefficient=term.coefficient // step) for term in index.terms)
        access[k] = IndexExpr(tuple(scaled), (index.constant - low) // step)
        moved[name] = IndexExpr((IndexTerm(name, step),), low)
    source = tuple(index.substitute(moved) for index in packed.source)
    packed = replace(packed, dimensions=tuple(dimensions), access=tuple(access), source=source)
    return replace(tensor, packed=packed)


def _cropped_input(tensor: TileTensor) -> TileTensor:
    """Without zero rows and columns that a LOAD can add.

    A LOAD pads its two dimensions only, and those are the two innermost of the tensor.
    """
    cuts: dict[int, tuple[int, int]] = {}
    inner = [k for k, extent in enumerate(tensor.shape) if extent > 1][-2:]
    for k in inner:
        if tensor.strides[k] <= MAX_STRIDE:
            low, high = _zero_margins(tensor.packed, k)
            cuts[k] = min(low, MAX_PAD), min(high, MAX_PAD)
    if not any(before or after for before, after in cuts.values()):
        return tensor
    return replace(_cropped(tensor, cuts), padded_x=inner[-1])


def _cropped_output(tensor: TileTensor) -> TileTensor:
    """Without rows and columns that are dropped when the output is unpacked."""
    return _cropped(tensor, {k: _zero_margins(tensor.packed, k) for k in range(tensor.rank)})


def _zero_margins(packed: PackedOperand, k: int) -> tuple[int, int]:
    """Leading and trailing positions of a dimension with nothing of the original operand."""
    positions = range(packed.dimensions[k].extent)
    inside = (at for at in positions if not _is_outside(packed, k, at))
    first = next(inside, None)
    if first is None:
        return 0, 0
    last = next(at for at in reversed(positions) if at == first or not _is_outside(packed, k, at))
    return first, positions[-1] - last


def _is_outside(packed: PackedOperand, k: int, position: int) -> bool:
    name = packed.dimensions[k].name
    # A dimension at one position is one of extent 1 behind an offset.
    extents = {d.name: d.extent for d in packed.dimensions} | {name: 1}
    for index, size in zip(packed.source, packed.original_shape, strict=True):
        low, high = _at(index, name, position).bounds(extents)
        if high < 0 or low >= size:
            return True
    return False


def _at(index: IndexExpr, name: str, position: int) -> IndexExpr:
    """The index with a dimension fixed; digits of sums that it is part of keep their range."""
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
    packed = tensor.packed
    dimensions, access = list(packed.dimensions), list(packed.access)
    moved: dict[str, IndexExpr] = {}
    for k, (before, after) in cuts.items():
        name, extent = dimensions[k].name, dimensions[k].extent
        dimensions[k] = PackedDimension(name, extent - before - after, dimensions[k].walked_by)
        access[k] += -before
        moved[name] = IndexExpr((IndexTerm(name),), before)
    source = tuple(index.substitute(moved) for index in packed.source)
    packed = replace(packed, dimensions=tuple(dimensions), access=tuple(access), source=source)
    return replace(tensor, packed=packed)
