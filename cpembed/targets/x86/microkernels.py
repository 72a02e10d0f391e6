"""Microkernels: loops that keep one part of an x86 core busy, as TVMScript.

The loops lie inside the compiled function and are as long as its ``counts`` say, so that the
difference of two lengths is free of what a call costs. Every function has the same parameters:
``counts`` (int32), ``config`` (a tile configuration), ``data`` (bytes, a region for each parallel
part) and ``out`` (int32, a cache line for each part).

A body is the statements of one part, ``counts[0]`` the number of its steps. A body that walks goes
through the part's region block by block: ``counts[1]`` is the first block, ``counts[2]`` the number
of blocks, a power of two, less one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpembed.codegen import runtime
from cpembed.codegen.plan import HEADER, KernelPlan, Script, storage_dtype
from cpembed.targets.cpu.dot_products import DotProduct
from cpembed.targets.x86.amx import ATTRIBUTES, OPTIONS
from cpembed.targets.x86.amx_tiles import MAX_ROWS, TILES, call
from cpembed.targets.x86.dot_products import DOT_PRODUCTS

LINE = 64
"""Bytes of a cache line, of a tile's row and of a vector."""
WORDS = LINE // 4
TILE = MAX_ROWS * LINE
BLOCK_LINES = 128
BLOCK = BLOCK_LINES * LINE

COUNTS = 3
STAMPS = LINE // 8
"""Places of a part in ``stamps``; the first two are used."""

_REGISTERS = 8
"""Vector registers that a walk uses in turn."""

_TASK_ROWS, _TASK_COLUMNS = 3, 4
"""Accumulators of a task on vectors."""
TILE_TASK_LINES = 2 * 2 * MAX_ROWS
VECTOR_TASK_LINES = _TASK_ROWS * _TASK_COLUMNS
"""What a task stores."""

Lines = list[str]


def plan(body: Sequence[str], region: int, chunks: int = 1, *, tiles: bool = False) -> KernelPlan:
    """A microkernel of ``chunks`` parallel parts, ``region`` bytes of data for each."""
    script, data, out, stamps = Script(), region * chunks, WORDS * chunks, STAMPS * chunks
    parameters = (
        f'counts: T.Buffer(({COUNTS},), "int32"), config: T.Buffer(({LINE},), "uint8"), '
        f'data: T.Buffer(({data},), "uint8"), out: T.Buffer(({out},), "int32"), '
        f'stamps: T.Buffer(({stamps},), "int64")'
    )
    if tiles:
        body = [call("ldtilecfg", "T.address_of(config[0])"), *body, call("tilerelease")]
    script.line(HEADER)
    with script.nested(f"def main({parameters}):"):
        script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        with script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("chunk"):'):
            script.line(f"part = T.axis.spatial({chunks}, chunk)")
            script.line(f"T.reads(counts[0:{COUNTS}], config[0:{LINE}], data[0:{data}])")
            script.line(f"T.writes(data[0:{data}], out[0:{out}], stamps[0:{stamps}])")
            for line in (_stamp(0), *body, _stamp(1)):
                script.line(line)
    options = (ATTRIBUTES, OPTIONS) if tiles else (("+clflushopt",), ())
    text = script.text()
    # Others would be compiled too, for a processor that may not have them.
    used = [dot.functions for dot in DOT_PRODUCTS.values() if f"cpembed_{dot.name}" in text]
    return KernelPlan("x86.calibration", text, None, *options, functions="".join(used))


def varied_bytes(count: int) -> Any:
    """A buffer of data whose bits vary."""
    some = np.random.default_rng(0).integers(0, 120, 2**16, np.uint8)
    return runtime.from_array(np.resize(some, count))


def nothing() -> Lines:
    """What is left of a call whose parts have no work."""
    return [f"out[part * {WORDS}] = part"]


def clock() -> Lines:
    """A step is an integer multiplication and an addition that wait for each other: four cycles
    on every core since Nehalem and Zen (uops.info: IMUL 3, ADD 1).
    """
    return [
        'chain = T.sblock_alloc_buffer((1,), "int32", scope="local")',
        f"chain[0] = out[part * {WORDS}]",
        *_loop("step", "counts[0]", ["chain[0] = chain[0] * chain[0] + counts[1]"]),
        f"out[part * {WORDS}] = chain[0]",
    ]


def tile_products(instruction: str, tiles: Sequence[tuple[int, int, int]]) -> Lines:
    """A step multiplies tiles a and b into c for each ``(c, a, b)``. The tiles hold data: on zeros
    the unit needs less power, and runs at another clock.
    """
    return [
        *(_load_tile(tile, f"{tile * TILE}") for tile in range(TILES)),
        *_loop("step", "counts[0]", [_multiply_tiles(instruction, *three) for three in tiles]),
    ]


def vector_products(instruction: str, accumulators: int, products: int) -> Lines:
    """A step is so many products, each into the next accumulator."""
    dot = DOT_PRODUCTS[instruction]
    words = dot.lanes
    factors = [_neighbours(dot, f"{name}[T.ramp(0, 1, {words})]") for name in "ab"]
    step = [_multiply_vectors(dot, number % accumulators, *factors) for number in range(products)]
    return [
        *_accumulators(accumulators, words),
        *(f'{name} = T.sblock_alloc_buffer(({words},), "int32", scope="local")' for name in "ab"),
        *(
            f"{name}[T.ramp(0, 1, {words})] = {_factor(dot, _line(at, words))}"
            for name, at in (("a", "0"), ("b", "64"))
        ),
        *_loop("step", "counts[0]", step),
        *_keep(accumulators, words),
    ]


def tile_loads(region: int) -> Lines:
    """A walk that loads eight tiles a step."""
    return _tile_loads(region, [tile * TILE for tile in range(TILES)])


def split_tile_loads(region: int) -> Lines:
    """The same with every row in two lines; the last tile begins before a line, not after one, to
    stay inside the region.
    """
    shift = LINE // 4
    return _tile_loads(
        region,
        [tile * TILE + (shift if tile < TILES - 1 else shift - LINE) for tile in range(TILES)],
    )


def _tile_loads(region: int, offsets: Sequence[int]) -> Lines:
    block = _block(region)
    loads = [_load_tile(tile, f"{block} + {at}") for tile, at in enumerate(offsets)]
    return _loop("step", "counts[0]", loads)


def tile_stores(region: int) -> Lines:
    """A walk that stores eight tiles a step."""
    block = _block(region)
    stores = [_store_tile(tile, f"{block} + {tile * TILE}") for tile in range(TILES)]
    return _loop("step", "counts[0]", stores)


def vector_loads(region: int) -> Lines:
    """A walk that adds up a block's vectors."""
    step = [
        f"{_register(n)} = {_register(n)} + {_line(f'{_block(region)} + (i * 8 + {n}) * {LINE}')}"
        for n in range(_REGISTERS)
    ]
    inner = _loop("i", str(BLOCK_LINES // _REGISTERS), step)
    return [
        *_accumulators(_REGISTERS),
        *_loop("step", "counts[0]", inner),
        *_keep(_REGISTERS),
    ]


def vector_stores(region: int) -> Lines:
    """A walk that stores one vector to each line of a block."""
    store = _set_line(f"{_block(region)} + i * {LINE}", _register(0))
    inner = _loop("i", str(BLOCK_LINES), [store])
    first = f"{_register(0)} = {_line('0')}"
    return [*_accumulators(1), first, *_loop("step", "counts[0]", inner)]


def copies(region: int) -> Lines:
    """A walk over the first half of the region that copies lines to the second half in another
    order, as packing does: lines 16 apart become neighbours.
    """
    source = f"{_block(region)} + (j * 16 + i) * {LINE}"
    target = f"{_block(region)} + {region // 2} + (i * 8 + j) * {LINE}"
    inner = _loop("i, j", f"{BLOCK_LINES // 8}, 8", [_set_line(target, _line(source))])
    return _loop("step", "counts[0]", inner)


def flushes(region: int) -> Lines:
    """A walk that throws a block's lines out of all caches."""
    flush = call("clflushopt", f"T.address_of(data[{_block(region)} + i * {LINE}])")
    return _loop("step", "counts[0]", _loop("i", str(BLOCK_LINES), [flush]))


def tile_tasks(instruction: str) -> Lines:
    """``counts[0]`` tasks as kernels have them, of ``counts[2]`` steps: 2 x 2 accumulators are
    cleared, a step loads four tiles and multiplies, the results are stored. All data stay in the
    first-level cache: two steps' tiles, then the results.
    """
    base = f"T.bitwise_and(step, 1) * {4 * TILE}"
    step = [
        *(_load_tile(4 + number, f"{base} + {number * TILE}") for number in range(3)),
        *(_multiply_tiles(instruction, c, a, 6) for c, a in ((0, 4), (2, 5))),
        _load_tile(7, f"{base} + {3 * TILE}"),
        *(_multiply_tiles(instruction, c, a, 7) for c, a in ((1, 4), (3, 5))),
    ]
    task = [
        *(call("tilezero", f"T.int8({tile})") for tile in range(4)),
        *_loop("step", "counts[2]", step),
        *(_store_tile(tile, f"{(8 + tile) * TILE}") for tile in range(4)),
    ]
    return _loop("task", "counts[0]", task)


def vector_tasks(instruction: str) -> Lines:
    """The same on vectors: a step loads four and broadcasts three words. A register's results have
    a line to themselves.
    """
    dot = DOT_PRODUCTS[instruction]
    rows, columns, base = _TASK_ROWS, _TASK_COLUMNS, f"T.bitwise_and(step, 15) * {4 * LINE}"
    words = dot.lanes
    zero = [f"{_register(n, words)} = T.broadcast(0, {words})" for n in range(rows * columns)]
    step: Lines = []
    for number in range(rows * columns):
        row, column = divmod(number, columns)
        word = f'data.vload([{base} + {row * 4}], dtype="uint8x4")'
        first = f'T.broadcast(T.reinterpret({word}, dtype="int32"), {words})'
        second = _line(f"{base} + {column * LINE}", words)
        factors = _neighbours(dot, first), _neighbours(dot, second)
        step.append(_multiply_vectors(dot, number, *factors))
    stores = [
        _set_line(f"{8 * TILE + n * LINE}", _register(n, words), words)
        for n in range(rows * columns)
    ]
    task = [*zero, *_loop("step", "counts[2]", step), *stores]
    return [*_accumulators(rows * columns, words), *_loop("task", "counts[0]", task)]


def _stamp(place: int) -> str:
    counter = 'T.llvm_lookup_intrinsic_id("llvm.readcyclecounter")'
    return f'stamps[part * {STAMPS} + {place}] = T.call_llvm_intrin({counter}, dtype="int64")'


def _block(region: int) -> str:
    """Where the walk's block of a step begins."""
    return f"part * {region} + T.bitwise_and(counts[1] + step, counts[2]) * {BLOCK}"


def _loop(variables: str, extents: str, body: Lines) -> Lines:
    kind = "T.grid" if "," in variables else "T.serial"
    return [f"for {variables} in {kind}({extents}):", *(f"    {line}" for line in body)]


def _load_tile(tile: int, offset: str) -> str:
    return call(
        "tileloadd64", f"T.int8({tile})", f"T.address_of(data[{offset}])", f"T.int64({LINE})"
    )


def _store_tile(tile: int, offset: str) -> str:
    return call(
        "tilestored64", f"T.int8({tile})", f"T.address_of(data[{offset}])", f"T.int64({LINE})"
    )


def _multiply_tiles(instruction: str, *tiles: int) -> str:
    return call(instruction, *(f"T.int8({tile})" for tile in tiles))


def _accumulators(count: int, words: int = WORDS) -> Lines:
    """Vector registers, cleared."""
    return [
        f'acc = T.sblock_alloc_buffer(({count * words},), "int32", scope="local")',
        *(f"{_register(n, words)} = T.broadcast(0, {words})" for n in range(count)),
    ]


def _register(number: int, words: int = WORDS) -> str:
    return f"acc[T.ramp({number * words}, 1, {words})]"


def _keep(count: int, words: int = WORDS) -> Lines:
    """Use the registers, so that the compiler keeps what was computed."""
    total = " + ".join(_register(number, words) for number in range(count))
    return [f"out[T.ramp(part * {WORDS}, 1, {words})] = {total}"]


def _line(offset: str, words: int = WORDS) -> str:
    """A cache line, or the words that it begins with."""
    return f'T.reinterpret(data[T.ramp({offset}, 1, {4 * words})], dtype="int32x{words}")'


def _set_line(offset: str, value: str, words: int = WORDS) -> str:
    size = 4 * words
    return f'data[T.ramp({offset}, 1, {size})] = T.reinterpret({value}, dtype="uint8x{size}")'


def _neighbours(dot: DotProduct, words: str) -> str:
    """Words as the factor that they hold."""
    dtype = f"{storage_dtype(dot.factors[0])}x{dot.lanes * dot.depth}"
    return f'T.reinterpret({words}, dtype="{dtype}")'


def _factor(dot: DotProduct, words: str) -> str:
    """Bytes as they are, or bfloat16 values between 0.5 and 1 of these bits."""
    if dot.sums == "int32":
        return words
    low, high = (f"T.broadcast({number}, {dot.lanes})" for number in (0x007F007F, 0x3F003F00))
    return f"T.bitwise_or(T.bitwise_and({words}, {low}), {high})"


def _multiply_vectors(dot: DotProduct, accumulator: int, first: str, second: str) -> str:
    register = _register(accumulator, dot.lanes)
    sums = f'T.reinterpret({register}, dtype="{dot.sums}x{dot.lanes}")'
    product = dot.call(sums, first, second, False)
    return f'{register} = T.reinterpret({product}, dtype="int32x{dot.lanes}")'
