"""Translate the kernels of a schedule to :class:`KernelWork`, by AMOS's scheduler and TVM's rules.

A block of the product kernel goes through its tiles in sequence; for each it refills shared memory
``refills`` times, between two barriers, with the packed image and filters, loads fragments
``loads`` times from each refill, and multiplies. Nothing is fetched ahead. Loops of up to
``unroll`` statements are written out. How the copies and the loads of fragments are compiled was
read from machine code that nvcc makes of such loops for sm_80; no figure is from measured times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cpembed.targets.cuda.model import Gpu, KernelWork, Phase, product_cycles
from experiments.amos2022.a100_schedules.addresses import ELEMENT, LANES, LINE, Access, access
from experiments.amos2022.a100_schedules.auxiliary_kernels import auxiliary_works, usual_works
from experiments.amos2022.a100_schedules.copies import (
    Copy,
    packed_copy,
    packing_copy,
    refill,
)
from experiments.amos2022.a100_schedules.schedules import COLUMNS, DEPTH, ROWS, Schedule

FRAGMENTS = (2, 8, 4)
"""Registers of a thread: of the image's fragment, of the filters', and of float16 sums."""

OTHER_REGISTERS = 40
"""Registers of a thread for addresses: what ptxas gives such kernels beside fragments, about."""

STORE_INSTRUCTIONS = 8
"""Instructions of a warp to put a tile of sums in place: moves between lanes, and stores."""


@dataclass(frozen=True)
class Tiles:
    """Tiles of a schedule: fragments and sums in a warp; warps of a block."""

    image: int
    filters: int
    image_warps: int
    filter_warps: int
    loads: int
    products: int

    @staticmethod
    def from_schedule(row: Schedule) -> Tiles:
        columns = row.spatial_axes["j"]
        registers = math.prod(axis.registers for axis in row.spatial)
        warps = math.prod(axis.warps for axis in row.spatial)
        return Tiles(
            registers // columns.registers,
            columns.registers,
            warps // columns.warps,
            columns.warps,
            math.prod(axis.loads for axis in row.reduce),
            math.prod(axis.products for axis in row.reduce),
        )

    @property
    def sums(self) -> int:
        return self.image * self.filters

    @property
    def warps(self) -> int:
        return self.image_warps * self.filter_warps

    @property
    def elements(self) -> tuple[int, int]:
        """Elements of the image and of the filters in shared memory."""
        step = self.loads * self.products
        image = self.image * self.image_warps * step * ROWS * DEPTH
        return image, self.filters * self.filter_warps * step * DEPTH * COLUMNS


def work_of(row: Schedule, gpu: Gpu) -> KernelWork:
    """Return all kernels of a row: the product, results put in place, and two that pack.

    Inlined factors need no kernels that pack. If the table does not say how the others are divided,
    they are divided as the median of all divisions that AMOS tries.
    """
    product = product_work(row, gpu)
    if row.auxiliary is None:
        return replace(product, auxiliary=usual_works(row.layer, row.mapping, row.inline, gpu))
    return replace(product, auxiliary=auxiliary_works(row, row.auxiliary, gpu))


def product_work(row: Schedule, gpu: Gpu) -> KernelWork:
    """Return the work of the product kernel."""
    tiles = Tiles.from_schedule(row)
    image, filters = tiles.elements
    shared_bytes = ELEMENT * (image + filters)
    first, second, sums = FRAGMENTS
    registers = OTHER_REGISTERS + tiles.image * first + tiles.filters * second
    # The compiler knows the block's threads, and gives each what there is for all of them.
    # Each scheduler has a part of the registers for its warps.
    warps = -(-tiles.warps // gpu.unit.schedulers) * gpu.unit.schedulers
    most_registers = gpu.unit.registers // (warps * gpu.unit.register_unit)
    most_registers = min(
        most_registers * gpu.unit.register_unit // LANES, gpu.unit.registers_per_thread
    )
    registers = min(registers + tiles.sums * sums, most_registers)
    blocks = math.prod(axis.blocks for axis in row.spatial)
    sequence = math.prod(axis.sequence for axis in row.spatial)
    refills = math.prod(axis.refills for axis in row.reduce)
    resident = gpu.resident(tiles.warps, shared_bytes, registers) or 1
    concurrent = min(resident, math.ceil(blocks / gpu.multiprocessors))
    free_bytes = gpu.unit.unified_bytes - concurrent * (
        shared_bytes + gpu.unit.shared_reserved_bytes
    )
    return KernelWork(
        "product",
        blocks,
        tiles.warps,
        shared_bytes,
        registers,
        steps=sequence * refills,
        fetch=_fetch(row, tiles, gpu, refills, concurrent, free_bytes),
        compute=_compute(row, tiles, gpu),
        result=_result(tiles, gpu),
        results=sequence,
    )


def _fetch(
    row: Schedule, tiles: Tiles, gpu: Gpu, refills: int, concurrent: int, free_bytes: float
) -> Phase:
    """Return a refill of both factors.

    ``free_bytes`` of L1 are for what ``concurrent`` blocks read.
    """
    elements = dict(zip("ab", tiles.elements, strict=True))
    accesses: dict[str, Access] = {}
    step = float(ELEMENT * sum(elements.values()))
    if row.inline:
        accesses = {factor: access(row, factor, row.vectorize) for factor in "ab"}
        step = sum(each.footprint for each in accesses.values())
    shares_read_again = _read_again(row, concurrent * refills * step, free_bytes)
    copies: list[Copy] = []
    for factor, count in elements.items():
        if row.inline:
            stays_in_l1 = concurrent * step <= free_bytes
            copies.append(
                packing_copy(row, factor, count, tiles.warps, accesses[factor], stays_in_l1)
            )
        else:
            copies.append(packed_copy(row, factor, elements, tiles.warps))
    total = refill(copies, [shares_read_again[factor] for factor in elements], gpu)
    # The barrier after it: what was stored last has arrived.
    return total + Phase(gpu.unit.shared_store_cycles)


def _read_again(row: Schedule, tile_bytes: float, free_bytes: float) -> dict[str, float]:
    """Return the share of each factor's reads that no earlier tile in sequence left in L1.

    Outer pixels have the filters in common, columns of tiles the image.
    """
    axes = row.spatial_axes
    columns = axes["j"].sequence
    outer = math.prod(axis.sequence for name, axis in axes.items() if name not in "ij")
    image = 1 / columns if tile_bytes * outer <= free_bytes else 1.0
    return {"a": image, "b": 1 / outer if tile_bytes <= free_bytes else 1.0}


def matrix_wavefronts(pitch: int) -> int:
    """Return the wavefronts of eight rows of 16 bytes that ``ldmatrix`` reads as a matrix.

    The rows are ``pitch`` bytes apart.

    >>> matrix_wavefronts(16), matrix_wavefronts(32), matrix_wavefronts(64)
    (1, 2, 4)
    """
    places = [row * pitch // 16 % 8 for row in range(8)]
    return max(places.count(place) for place in places)


IMAGE_WAVEFRONTS = DEPTH // 8 * matrix_wavefronts(DEPTH * ELEMENT)
FILTER_WAVEFRONTS = DEPTH // 8 * COLUMNS // 8 * matrix_wavefronts(COLUMNS * ELEMENT)
"""Wavefronts of a fragment: tiles lie row by row, so that rows share banks."""


def _compute(row: Schedule, tiles: Tiles, gpu: Gpu) -> Phase:
    """Return the products of a refill."""
    unit, unroll = gpu.unit, row.unroll
    statements_each = tiles.sums * tiles.products
    statements = statements_each + (tiles.image + tiles.filters) * tiles.products
    products = product_cycles(gpu, tiles.warps, tiles.sums, tiles.products)
    wavefronts = tiles.image * IMAGE_WAVEFRONTS + tiles.filters * FILTER_WAVEFRONTS
    wavefronts *= tiles.products * tiles.warps
    issue = (tiles.image + 3 * tiles.filters) * tiles.products * tiles.warps / unit.schedulers
    # A warp waits for a fragment and for its last product: once, where all is written out and
    # the next fragments are loaded meanwhile, or for every load.
    wait = unit.shared_load_cycles + gpu.product_latency
    first, second, sums = FRAGMENTS
    local = 0.0
    rounds = tiles.loads if tiles.loads * statements > unroll else 1
    if statements_each > unroll:
        # Fragments that are chosen at run time lie in local memory, in L1.
        rounds = tiles.loads * statements_each // _written_out(row, unroll)
        wait += unit.l1_cycles
        local = statements_each * (first + second + 2 * sums)
    else:
        held_sums = (unit.registers_per_thread - OTHER_REGISTERS) / sums
        local = max(0.0, tiles.sums - held_sums) * tiles.products * 2 * sums
    local *= tiles.warps
    work = products + Phase(wavefronts + local, 0.0, wavefronts + local, issue)
    return work.times(tiles.loads) + Phase(rounds * wait)


def _written_out(row: Schedule, unroll: int) -> int:
    """Return the products of the innermost loops that are written out together."""
    extents = [axis.registers for axis in row.spatial]
    extents.append(math.prod(axis.products for axis in row.reduce))
    product_count = 1
    for extent in reversed(extents):
        if product_count * extent > unroll:
            break
        product_count *= extent
    return product_count


def _result(tiles: Tiles, gpu: Gpu) -> Phase:
    """Return the stores of the sums: they go to L2, no one waits for them."""
    count = tiles.sums * tiles.warps
    issue = count * STORE_INSTRUCTIONS / gpu.unit.schedulers
    stored = count * ROWS * COLUMNS * ELEMENT
    lines = stored / LINE
    return Phase(max(issue, lines), 0.0, lines, issue, stored)
