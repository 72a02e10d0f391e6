"""The hand-written strategy that TVM shipped for conv2d on VTA, and the space it was tuned over.

After TVM 0.15, ``vta/python/vta/top/vta_conv2d.py``: batch, filters and channels are split by the
sizes of the GEMM core, the rest of a core is zeros. Output tiles are walked over the batch, rows,
filters, then columns; for each, the reduction over blocks of channels is the innermost of the outer
loops, and loads its image and its weights every time. One virtual thread, or two over rows or over
filters, each with buffers of its own. Tiles divide what they cut, and the threads the tiles.

Where the template was narrower it gets the benefit: tiles that take several transfers are legal,
and micro-ops and SRAM are laid out as for every other program of this back end.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.errors import LoweringError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.targets.vta.estimate import (
    FETCH_CYCLES,
    LOAD_OVERHEAD,
    Counts,
    beats_of,
    region_tiles,
    store_cycles,
    transfers,
)
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tail import Tail
from cpembed.targets.vta.tiles import TileNest
from cpembed.targets.vta.timing import PIPELINE, MemorySystem
from cpembed.transform.derive import derive
from cpembed.transform.program import DerivedProgram

_AXES = ("n", "k", "p", "q", "c", "r", "s")


@dataclass(frozen=True)
class Knobs:
    """A point of the space: tiles in rows, columns, blocks of channels and blocks of filters."""

    tile_h: int
    tile_w: int
    tile_ci: int
    tile_co: int
    oc_nthread: int = 1
    h_nthread: int = 1

    @property
    def threads(self) -> int:
        return self.oc_nthread * self.h_nthread


def reference_program(workload: Computation, instruction: Instruction) -> DerivedProgram:
    """Return the mapping of the strategy: batch, filters and channels on the axes of the GEMM core.

    Raises :class:`LoweringError` for anything but a convolution with one group.
    """
    if set(workload.extents) != set(_AXES):
        raise LoweringError(f"the reference strategy takes conv2d, not {workload}")
    extents = {axis.name: axis.maximum for axis in instruction.axes}
    axes = dict(zip(extents, ("n", "k", "c"), strict=True))
    embedding = Embedding(
        dict(zip(("A", "B", "C"), (operand.name for operand in workload.operands), strict=True)),
        extents,
        {name: (Digit(axes[name], n),) if n > 1 else () for name, n in extents.items()},
        dict.fromkeys(workload.extents, 0),
    )
    return derive(workload, instruction, embedding)


def reference_schedule(nest: TileNest, knobs: Knobs) -> Schedule:
    """Return the strategy's loops at some knobs."""
    loops = _loops(nest)
    tiles = dict(nest.extents) | {
        loops["n"]: 1,
        loops["p"]: knobs.tile_h,
        loops["q"]: knobs.tile_w,
        loops["c"]: knobs.tile_ci,
        loops["k"]: knobs.tile_co,
    }
    over = {"k": knobs.oc_nthread, "p": knobs.h_nthread}
    thread_loop = next((loops[axis] for axis, count in over.items() if count > 1), None)
    order = tuple(loops[axis] for axis in ("n", "p", "k", "q", "c", "r", "s"))
    slots = (knobs.threads, knobs.threads)
    return Schedule(tiles, order, knobs.threads, thread_loop, slots, reuse=False, trim=False)


def _loops(nest: TileNest) -> dict[str, str]:
    """Return the loop along each axis."""
    return {loop.name.split(".")[0]: loop.name for loop in nest.loops}


@dataclass(frozen=True, eq=False)
class _Space:
    """All knobs whose tiles of all threads fit, as arrays; ``sizes`` by loop."""

    knobs: list[Knobs]
    sizes: dict[str, Counts]


def reference_knobs(nest: TileNest) -> list[Knobs]:
    """Return the space of knobs, in no particular order."""
    return _space(nest).knobs


def _space(nest: TileNest) -> _Space:
    loops = _loops(nest)
    rows, columns, channels, filters = (nest.extents[loops[axis]] for axis in "pqck")
    tiles = itertools.product(*map(_divisors, (rows, columns, channels, filters)))
    candidates = [
        Knobs(h, w, ci, co, oc_nthread, h_nthread)
        for h, w, ci, co in tiles
        for oc_nthread, h_nthread in ((1, 1), (2, 1), (1, 2))
        if filters // co % oc_nthread == 0 and rows // h % h_nthread == 0
    ]
    sizes = _sizes(nest, candidates)
    threads = np.array([knobs.threads for knobs in candidates])
    fits = np.ones(len(candidates), bool)
    for tensor in (*nest.factors, nest.acc):
        fits &= threads * region_tiles(tensor, sizes) <= nest.config.elements(tensor.memory)
    fitting = np.flatnonzero(fits)
    return _Space([candidates[k] for k in fitting], {name: s[fitting] for name, s in sizes.items()})


def _sizes(nest: TileNest, knobs: list[Knobs]) -> dict[str, Counts]:
    """Return the tiles of each loop, at each of the knobs."""
    loops = _loops(nest)
    columns = {"p": "tile_h", "q": "tile_w", "c": "tile_ci", "k": "tile_co"}
    sizes = {name: np.full(len(knobs), extent) for name, extent in nest.extents.items()}
    sizes[loops["n"]] = np.ones(len(knobs), np.int64)
    for axis, column in columns.items():
        sizes[loops[axis]] = np.array([getattr(k, column) for k in knobs], np.int64)
    return sizes


def _divisors(extent: int) -> list[int]:
    return [size for size in range(1, extent + 1) if extent % size == 0]


def ranked_knobs(
    nest: TileNest, tail: Tail, limit: int, memory: MemorySystem
) -> list[tuple[float, Knobs]]:
    """Return the knobs of smallest estimates, in cycles, best first.

    Raises :class:`LoweringError` if none fit.
    """
    space = _space(nest)
    if not space.knobs:
        raise LoweringError("reference strategy: single tiles exceed the buffers")
    cycles = _estimate(nest, space, tail, memory)
    best = np.argsort(cycles, kind="stable")[:limit]
    return [(float(cycles[at]), space.knobs[at]) for at in best]


def _estimate(
    nest: TileNest, space: _Space, tail: Tail, memory: MemorySystem
) -> NDArray[np.float64]:
    """Estimate cycles of all points.

    A thread alone loads, multiplies and stores in turn; of two, one multiplies while the other
    loads or stores.
    """
    sizes, config, loops = space.sizes, nest.config, _loops(nest)
    trips = {name: -(-nest.extents[name] // size) for name, size in sizes.items()}
    reduced = trips[loops["c"]]
    outputs = math.prod(trips[loops[axis]] for axis in "npkq")
    acc = region_tiles(nest.acc, sizes)
    load = sum(
        beats_of(region_tiles(tensor, sizes), tensor.memory, config, memory)
        + (memory.dram_delay_cycles + LOAD_OVERHEAD) * transfers(tensor, sizes)
        for tensor in nest.factors
    )
    product = PIPELINE + math.prod(sizes.values())
    ending = (1 + sum(map(len, tail.phases))) * (PIPELINE + acc)
    store = len(tail.phases) * store_cycles(acc, config, memory)
    steps = outputs * reduced
    single_thread = steps * (load + product) + outputs * (ending + store)
    busiest = np.maximum(steps * np.maximum(load, product) + outputs * ending, outputs * store)
    two_threads = np.array([knobs.threads for knobs in space.knobs]) > 1
    cycles = np.where(two_threads, busiest + load + ending, single_thread)
    return (cycles + FETCH_CYCLES * steps).astype(np.float64)
