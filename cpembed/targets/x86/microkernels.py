"""Microkernels: loops that keep one part of an x86 core busy, as TVMScript.

The loops lie inside the compiled function and are as long as its ``counts`` say, so that the
difference of two lengths is free of the cost of a call. Every function has the same parameters:
``counts`` (int32), ``config`` (a tile configuration), ``data`` (bytes, a region for each parallel
part), ``out`` (int32, a cache line for each part) and ``stamps`` (int64, when each part ran).

A body is the statements of one part; ``counts[0]`` is its number of steps. A *walk* goes through
the part's region block by block: ``counts[1]`` is its first block, ``counts[2]`` the number of
blocks, a power of two, minus one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpembed.codegen import runtime
from cpembed.codegen.plan import KernelPlan, Script, storage_dtype
from cpembed.targets.cpu.dot_products import DotProduct
from cpembed.targets.x86.amx import ATTRIBUTES, OPTIONS
from cpembed.targets.x86.amx_tiles import MAX_ROWS, TILES, call, tile_access, tile_product
from cpembed.targets.x86.dot_products import DOT_PRODUCTS

LINE = 64
"""Number of bytes of a cache line, of a tile's row and of a vector."""
WORDS = LINE // 4
TILE = MAX_ROWS * LINE
BLOCK_LINES = 128
BLOCK = BLOCK_LINES * LINE

COUNTS = 3
STAMPS = LINE // 8
"""Number of elements of ``stamps`` for a part: a cache line, of which two are used."""

_REGISTERS = 8
"""Number of vector registers that a walk uses in turn."""

_TASK_ROWS, _TASK_COLUMNS = 3, 4
"""Rows and columns of accumulators of a task on vectors."""
TILE_TASK_LINES = 2 * 2 * MAX_ROWS
VECTOR_TASK_LINES = _TASK_ROWS * _TASK_COLUMNS
"""Number of lines that a task stores."""

Lines = list[str]


def plan(body: Sequence[str], region: int, chunks: int = 1, *, tiles: bool = False) -> KernelPlan:
    """Return the plan of a microkernel.

    Parameters
    ----------
    body : sequence of str
        Statements of one part.
    region : int
        Bytes of data for each part.
    chunks : int
        Number of parallel parts.
    tiles : bool
        True if the body uses tiles.
    """
    script, data, out, stamps = Script(), region * chunks, WORDS * chunks, STAMPS * chunks
    parameters = (
        f'counts: T.Buffer(({COUNTS},), "int32")',
        f'config: T.Buffer(({LINE},), "uint8")',
        f'data: T.Buffer(({data},), "uint8")',
        f'out: T.Buffer(({out},), "int32")',
        f'stamps: T.Buffer(({stamps},), "int64")',
    )
    if tiles:
        body = [call("ldtilecfg", "T.address_of(config[0])"), *body, call("tilerelease")]
    loop = f"for chunk in T.parallel({chunks}):", 'with T.sblock("chunk"):'
    with script.function(parameters), script.nested(*loop):
        script.line(f"part = T.axis.spatial({chunks}, chunk)")
        script.line(f"T.reads(counts[0:{COUNTS}], config[0:{LINE}], data[0:{data}])")
        script.line(f"T.writes(data[0:{data}], out[0:{out}], stamps[0:{stamps}])")
        script.lines((_stamp(0), *body, _stamp(1)))
    options = (ATTRIBUTES, OPTIONS) if tiles else (("+clflushopt",), ())
    text = script.text()
    # Functions of other products would be compiled too, for a processor that may not have them.
    functions = [dot.functions for dot in DOT_PRODUCTS.values() if f"cpembed_{dot.name}" in text]
    return KernelPlan("x86.calibration", text, None, *options, functions="".join(functions))


def _stamp(place: int) -> str:
    counter = 'T.llvm_lookup_intrinsic_id("llvm.readcyclecounter")'
    return f'stamps[part * {STAMPS} + {place}] = T.call_llvm_intrin({counter}, dtype="int64")'


def _loop(variables: str, extents: str, body: Lines) -> Lines:
    kind = "T.grid" if "," in variables else "T.serial"
    return [f"for {variables} in {kind}({extents}):", *(f"    {line}" for line in body)]


def _steps(body: Lines) -> Lines:
    return _loop("step", "counts[0]", body)


def varied_bytes(count: int) -> Any:
    """Return a buffer of so many random bytes."""
    # On zeros a unit needs less power, and the core runs at another clock.
    values = np.random.default_rng(0).integers(0, 120, 2**16, np.uint8)
    return runtime.from_array(np.resize(values, count))


# ------------------------------------------------------------------------------ calls, clock


def nothing() -> Lines:
    """Return a body without work, which leaves the cost of the call."""
    return [f"out[part * {WORDS}] = part"]


def clock() -> Lines:
    """Return a body whose steps take four cycles each."""
    # A multiplication and an addition that wait for each other: 3 cycles and 1 on every core since
    # Nehalem and Zen (uops.info, IMUL and ADD).
    return [
        'chain = T.sblock_alloc_buffer((1,), "int32", scope="local")',
        f"chain[0] = out[part * {WORDS}]",
        *_steps(["chain[0] = chain[0] * chain[0] + counts[1]"]),
        f"out[part * {WORDS}] = chain[0]",
    ]


# ------------------------------------------------------------------------------ products


def tile_products(instruction: str, tiles: Sequence[tuple[int, int, int]]) -> Lines:
    """Return a body whose steps multiply tiles a and b into c for each ``(c, a, b)``."""
    return [
        *(_load_tile(tile, f"{tile * TILE}") for tile in range(TILES)),
        *_steps([tile_product(instruction, *operands) for operands in tiles]),
    ]


def vector_products(instruction: str, accumulators: int, products: int) -> Lines:
    """Return a body whose steps multiply vectors, each product into the next accumulator.

    Parameters
    ----------
    instruction : str
        Name of the dot product.
    accumulators : int
        Number of accumulators.
    products : int
        Number of products of a step.
    """
    dot = DOT_PRODUCTS[instruction]
    words = dot.lanes
    factors = [_as_factor(dot, f"{name}[T.ramp(0, 1, {words})]") for name in "ab"]
    step = [_multiply_vectors(dot, number % accumulators, *factors) for number in range(products)]
    return [
        *_accumulators(accumulators, words),
        *(f'{name} = T.sblock_alloc_buffer(({words},), "int32", scope="local")' for name in "ab"),
        *(
            f"{name}[T.ramp(0, 1, {words})] = {_values(dot, _line(offset, words))}"
            for name, offset in (("a", "0"), ("b", "64"))
        ),
        *_steps(step),
        *_keep(accumulators, words),
    ]


# ------------------------------------------------------------------------------ walks


def tile_loads(region: int) -> Lines:
    """Return a walk that loads eight tiles a step."""
    return _tile_loads(region, [tile * TILE for tile in range(TILES)])


def split_tile_loads(region: int) -> Lines:
    """Return a walk that loads eight tiles a step, with every row in two cache lines."""
    shift = LINE // 4
    offsets = [tile * TILE + shift for tile in range(TILES)]
    # The last tile begins before a line, not after one, to stay inside the region.
    offsets[-1] -= LINE
    return _tile_loads(region, offsets)


def _tile_loads(region: int, offsets: Sequence[int]) -> Lines:
    block = _block(region)
    return _steps([_load_tile(n, f"{block} + {offset}") for n, offset in enumerate(offsets)])


def tile_stores(region: int) -> Lines:
    """Return a walk that stores eight tiles a step."""
    block = _block(region)
    return _steps([_store_tile(tile, f"{block} + {tile * TILE}") for tile in range(TILES)])


def vector_loads(region: int) -> Lines:
    """Return a walk that adds up a block's vectors."""
    step = [
        f"{_register(n)} = {_register(n)} + {_line(f'{_block(region)} + (i * 8 + {n}) * {LINE}')}"
        for n in range(_REGISTERS)
    ]
    inner = _loop("i", str(BLOCK_LINES // _REGISTERS), step)
    return [*_accumulators(_REGISTERS), *_steps(inner), *_keep(_REGISTERS)]


def vector_stores(region: int) -> Lines:
    """Return a walk that stores one vector to each line of a block."""
    store = _set_line(f"{_block(region)} + i * {LINE}", _register(0))
    inner = _loop("i", str(BLOCK_LINES), [store])
    return [*_accumulators(1), f"{_register(0)} = {_line('0')}", *_steps(inner)]


def copies(region: int) -> Lines:
    """Return a walk that copies blocks of the region's first half to its second half.

    Each block of 8 x 16 cache lines is transposed to 16 x 8: lines that are 16 apart in the source
    are adjacent in the target, which is the access pattern of packing. ``region`` is in bytes.
    """
    source = f"{_block(region)} + (j * 16 + i) * {LINE}"
    target = f"{_block(region)} + {region // 2} + (i * 8 + j) * {LINE}"
    return _steps(_loop("i, j", f"{BLOCK_LINES // 8}, 8", [_set_line(target, _line(source))]))


def flushes(region: int) -> Lines:
    """Return a walk that flushes a block's lines from all caches."""
    flush = call("clflushopt", f"T.address_of(data[{_block(region)} + i * {LINE}])")
    return _steps(_loop("i", str(BLOCK_LINES), [flush]))


def _block(region: int) -> str:
    """Return the offset of a step's block in ``data``."""
    return f"part * {region} + T.bitwise_and(counts[1] + step, counts[2]) * {BLOCK}"


# ------------------------------------------------------------------------------ tasks


def tile_tasks(instruction: str) -> Lines:
    """Return a body of ``counts[0]`` tasks of ``counts[2]`` steps, as kernels on tiles have them.

    A task clears 2 x 2 accumulators; a step loads four tiles and multiplies; then the results are
    stored. All data stay in the first-level cache: the tiles of two steps, then the results.
    """
    base = f"T.bitwise_and(step, 1) * {4 * TILE}"
    step = [
        *(_load_tile(4 + number, f"{base} + {number * TILE}") for number in range(3)),
        *(tile_product(instruction, c, a, 6) for c, a in ((0, 4), (2, 5))),
        _load_tile(7, f"{base} + {3 * TILE}"),
        *(tile_product(instruction, c, a, 7) for c, a in ((1, 4), (3, 5))),
    ]
    task = [
        *(call("tilezero", f"T.int8({tile})") for tile in range(4)),
        *_loop("step", "counts[2]", step),
        *(_store_tile(tile, f"{(8 + tile) * TILE}") for tile in range(4)),
    ]
    return _loop("task", "counts[0]", task)


def vector_tasks(instruction: str) -> Lines:
    """Return a body of ``counts[0]`` tasks of ``counts[2]`` steps, as kernels on vectors have them.

    A step loads four vectors and broadcasts three words. The results of each register have a cache
    line to themselves.
    """
    dot = DOT_PRODUCTS[instruction]
    words, registers = dot.lanes, range(_TASK_ROWS * _TASK_COLUMNS)
    base = f"T.bitwise_and(step, 15) * {4 * LINE}"
    step: Lines = []
    for number in registers:
        row, column = divmod(number, _TASK_COLUMNS)
        word = f'data.vload([{base} + {row * 4}], dtype="uint8x4")'
        first = f'T.broadcast(T.reinterpret({word}, dtype="int32"), {words})'
        second = _line(f"{base} + {column * LINE}", words)
        factors = _as_factor(dot, first), _as_factor(dot, second)
        step.append(_multiply_vectors(dot, number, *factors))
    task = [
        *(f"{_register(n, words)} = T.broadcast(0, {words})" for n in registers),
        *_loop("step", "counts[2]", step),
        *(_set_line(f"{8 * TILE + n * LINE}", _register(n, words), words) for n in registers),
    ]
    return [*_accumulators(len(registers), words), *_loop("task", "counts[0]", task)]


# ------------------------------------------------------------------------------ statements


def _load_tile(tile: int, offset: str) -> str:
    return tile_access("tileloadd64", tile, f"data[{offset}]", LINE)


def _store_tile(tile: int, offset: str) -> str:
    return tile_access("tilestored64", tile, f"data[{offset}]", LINE)


def _accumulators(count: int, words: int = WORDS) -> Lines:
    """Return the allocation of vector registers, cleared."""
    return [
        f'acc = T.sblock_alloc_buffer(({count * words},), "int32", scope="local")',
        *(f"{_register(n, words)} = T.broadcast(0, {words})" for n in range(count)),
    ]


def _register(number: int, words: int = WORDS) -> str:
    return f"acc[T.ramp({number * words}, 1, {words})]"


def _keep(count: int, words: int = WORDS) -> Lines:
    # Results that nobody reads would let the compiler drop the loop.
    total = " + ".join(_register(number, words) for number in range(count))
    return [f"out[T.ramp(part * {WORDS}, 1, {words})] = {total}"]


def _line(offset: str, words: int = WORDS) -> str:
    """Return a cache line, or its first words."""
    return f'T.reinterpret(data[T.ramp({offset}, 1, {4 * words})], dtype="int32x{words}")'


def _set_line(offset: str, value: str, words: int = WORDS) -> str:
    size = 4 * words
    return f'data[T.ramp({offset}, 1, {size})] = T.reinterpret({value}, dtype="uint8x{size}")'


def _as_factor(dot: DotProduct, words: str) -> str:
    """Return words as a vector of the factors' type."""
    dtype = f"{storage_dtype(dot.factors[0])}x{dot.lanes * dot.depth}"
    return f'T.reinterpret({words}, dtype="{dtype}")'


def _values(dot: DotProduct, words: str) -> str:
    """Return bytes as they are, or bfloat16 values between 0.5 and 1 made of the same bits."""
    if dot.sums == "int32":
        return words
    low, high = (f"T.broadcast({number}, {dot.lanes})" for number in (0x007F007F, 0x3F003F00))
    return f"T.bitwise_or(T.bitwise_and({words}, {low}), {high})"


def _multiply_vectors(dot: DotProduct, accumulator: int, first: str, second: str) -> str:
    register = _register(accumulator, dot.lanes)
    sums = f'T.reinterpret({register}, dtype="{dot.sums}x{dot.lanes}")'
    product = dot.call(sums, first, second, False)
    return f'{register} = T.reinterpret({product}, dtype="int32x{dot.lanes}")'
