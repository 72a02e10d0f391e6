"""Kernel of attention in tiles: the softmax between the two products of a target's instruction.

A task computes a block of rows of one head. For each tile of keys it multiplies query and key,
takes the powers of the scores, and adds the product with the values: with the maximum and the sum
so far, by which earlier results are scaled where the maximum rises. Products are kernels of tiles,
functions of addresses that the text calls; what a tile needs stays in memory of the thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cpembed.codegen.approximations import APPROXIMATIONS, exp_below
from cpembed.codegen.plan import HEADER, SHARED_BUFFERS, KernelPlan
from cpembed.codegen.recorded import Memory
from cpembed.codegen.values import literal
from cpembed.graph.kinds import Attention
from cpembed.network.operators.attention_tiles import Part, TileProduct, Tiles, merged
from cpembed.network.operators.emission import (
    LANE,
    ONES,
    SERIAL,
    VECTORIZED,
    Kernel,
    Operands,
)
from cpembed.network.operators.nest import PlacedTensor

_LANES = 32
"""Maximum number of scores per vector: with 64, their accumulators and powers leave registers."""

_REGISTERS = 'scope="local", annotations={"disable_lower_builtin": True}'

_LOWEST = 'T.float32("-inf")'


@dataclass(frozen=True)
class AttentionPlan:
    """Kernel of an attention, and the memory that it takes after its outputs."""

    plan: KernelPlan
    scratch: tuple[Memory, ...]


def attention_plan(
    kind: Attention, operands: Operands, tiles: Tiles, scores: TileProduct, values: TileProduct
) -> AttentionPlan:
    """Return the kernel of an attention.

    Parameters
    ----------
    kind : Attention
    operands : Operands
    tiles : Tiles
    scores : TileProduct
        Product ``S = Q K^T`` of a block of rows and a tile of keys.
    values : TileProduct
        Product ``Y = S V`` of a tile.
    """
    return _AttentionKernel(kind, operands, tiles, (scores, values)).written()


class _Kernel(Kernel):
    """Text of a kernel that is compiled like the products that it calls.

    Their accumulators are registers, so that passes which would find registers for others are off.
    """

    def local(self, size: int, dtype: str) -> str:
        name = self.name("local")
        self.script.line(f'{name} = T.alloc_buffer(({size},), "{dtype}", {_REGISTERS})')
        return name

    def opaque(self, value: str, dtype: str) -> str:
        name = self.local(1, dtype)
        self.script.line(f"{name}[0] = {value}")
        return f"{name}[0]"


@dataclass
class _AttentionKernel:
    """Text of an attention while it is written."""

    kind: Attention
    operands: Operands
    tiles: Tiles
    products: tuple[TileProduct, TileProduct]
    kernel: Kernel = field(init=False)
    scratch: dict[str, Memory] = field(default_factory=dict[str, Memory])
    parts: dict[str, KernelPlan] = field(default_factory=dict[str, KernelPlan])

    def __post_init__(self) -> None:
        self.chunks = min(self.operands.threads, self.tiles.tasks)
        self.kernel = _Kernel(self.operands, self.chunks)

    def written(self) -> AttentionPlan:
        """Write the text and return the plan."""
        body = self.kernel.script
        packed = self._packed_before()
        self._reserve()
        inputs = [t.parameter(f"in{k}") for k, t in enumerate(self.operands.inputs)]
        outputs = [t.parameter("out0") for t in self.operands.outputs]
        memory = [
            f'{name}: T.Buffer(({m.elements},), "{m.dtype}")' for name, m in self.scratch.items()
        ]
        body.line(HEADER)
        with body.nested(f"def main({', '.join([*inputs, *outputs, *memory])}):"):
            body.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
            if packed:
                self._write_packing(packed)
            with body.nested(f"for chunk in T.parallel({self.chunks}):"):
                body.line(ONES)
                share = self.kernel.share(self.tiles.tasks)
                with body.nested(f"for task in T.serial({share}):"):
                    self._write_task()
        plan = replace(
            self.kernel.plan("attention"),
            attributes=merged([part.attributes for part in self.parts.values()]),
            options=merged([[SHARED_BUFFERS], *(part.options for part in self.parts.values())]),
            parts=tuple(self.parts.items()),
        )
        return AttentionPlan(plan, tuple(self.scratch.values()))

    # -------------------------------------------------------------------------------- memory

    def _packed_before(self) -> list[tuple[str, Part]]:
        """Return the packings of keys and values, which all blocks of rows share."""
        pairs = [("K", self.products[0].packing("K")), ("V", self.products[1].packing("V"))]
        return [(name, part) for name, part in pairs if part is not None]

    def _reserve(self) -> None:
        """Reserve packed keys and values, and the memory of each thread."""
        tiles = self.tiles
        shared = {f"{name} packed" for name, _ in self._packed_before()}
        for product in self.products:
            for name, memory in product.memory.items():
                copies = self._key_tiles if name in shared else self.chunks
                self._buffer(name, memory.elements, memory.dtype, copies)
        depth = tiles.extents["d"]
        for name, elements in (
            ("S", tiles.rows * tiles.keys),
            ("Y", tiles.rows * depth),
            ("statistics", 3 * tiles.rows),
            *([("sums", tiles.rows * depth)] if tiles.tiles > 1 else []),
        ):
            self._buffer(name, elements, "float32", self.chunks)

    def _buffer(self, name: str, elements: int, dtype: str, copies: int) -> None:
        # A multiple of a cache line, so that no two threads write to one.
        stride = -(-elements // 64) * 64
        self.scratch[_identifier(name)] = Memory(stride * copies, dtype)

    @property
    def _key_tiles(self) -> int:
        return self.tiles.extents["b"] * self.tiles.key_heads * self.tiles.tiles

    def _start(self, name: str) -> str:
        """Return the first place of the thread's part of a buffer."""
        buffer = _identifier(name)
        return f"chunk * {self.scratch[buffer].elements // self.chunks}"

    def _address(self, name: str, at: str = "0") -> str:
        """Return the address of a thread's buffer."""
        return f"T.address_of({_identifier(name)}[{self._start(name)} + {at}])"

    # ------------------------------------------------------------------------------- packing

    def _write_packing(self, packed: Sequence[tuple[str, Part]]) -> None:
        """Write the packing of all tiles of keys and values."""
        script, tiles = self.kernel.script, self.tiles
        total = self._key_tiles
        chunks = min(self.operands.threads, total)
        bounds = f"chunk * {total} // {chunks}, (chunk + 1) * {total} // {chunks}"
        with script.nested(
            f"for chunk in T.parallel({chunks}):", f"for unit in T.serial({bounds}):"
        ):
            script.line(f"batch: T.let = unit // {tiles.key_heads * tiles.tiles}")
            script.line(f"head: T.let = unit // {tiles.tiles} % {tiles.key_heads}")
            script.line(f"first_key: T.let = {self._first_key(f'unit % {tiles.tiles}')}")
            for name, part in packed:
                buffer = _identifier(f"{name} packed")
                size = self.scratch[buffer].elements // total
                source = f"T.address_of({self._tensor(name)})"
                self._call(part, {name: source, f"{name} packed": _at(buffer, f"unit * {size}")})

    def _first_key(self, number: str) -> str:
        tiles = self.tiles
        start = f"{number} * {tiles.keys}"
        if tiles.extents["n"] % tiles.keys:
            return f"T.min({start}, {tiles.extents['n'] - tiles.keys})"
        return start

    def _tensor(self, name: str) -> str:
        """Return the element of K or V at the first key of a tile of the batch and head."""
        strides = self.tiles.strides[name]
        place = f"batch * {strides['b']} + head * {strides['h']} + first_key * {strides['s']}"
        return f"in{'QKV'.index(name)}[{place}]"

    def _call(self, part: Part, addresses: Mapping[str, str]) -> None:
        name = next((n for n, plan in self.parts.items() if plan == part.plan), None)
        if name is None:
            name = f"part{len(self.parts)}"
            self.parts[name] = part.plan
        arguments = ", ".join(addresses[operand] for operand in part.operands)
        self.kernel.script.line(f"Module.{name}({arguments})")

    # --------------------------------------------------------------------------------- tasks

    def _write_task(self) -> None:
        script, tiles = self.kernel.script, self.tiles
        script.line(f"batch: T.let = task // {tiles.heads * tiles.blocks}")
        script.line(f"query_head: T.let = task // {tiles.blocks} % {tiles.heads}")
        shared = tiles.extents["g"] if tiles.row_axis == "s" else 1
        script.line(f"head: T.let = query_head // {shared}")
        script.line(f"block_start: T.let = task % {tiles.blocks} * {tiles.rows}")
        last = tiles.row_count - tiles.rows
        script.line(f"first_row: T.let = T.min(block_start, {last})")
        if packing := self.products[0].packing("Q"):
            self._call(packing, {"Q": self._rows("Q"), "Q packed": self._address("Q packed")})
        if tiles.tiles > 1:
            self._clear()
            with script.nested(f"for tile in T.serial({self._tile_count()}):"):
                script.line(f"first_key: T.let = {self._first_key('tile')}")
                self._write_tile()
        else:
            script.line("first_key: T.let = 0")
            self._write_tile()
        self._write_results()

    def _rows(self, name: str) -> str:
        """Return the address of the first row of a block in the query or the output."""
        buffer = "in0" if name == "Q" else "out0"
        return f"T.address_of({buffer}[{self._row_place(name, 'first_row')}])"

    def _row_place(self, name: str, row: str) -> str:
        strides = self.tiles.strides[name]
        if self.tiles.row_axis == "s":
            head = f"query_head * {strides['h']}"
        else:
            head = f"query_head * {self.tiles.extents['g'] * strides['h']}"
        return f"batch * {strides['b']} + {head} + ({row}) * {strides[self.tiles.row_axis]}"

    def _tile_count(self) -> str:
        """Return the number of tiles that the rows of a block have keys in."""
        tiles, causal = self.tiles, self.kind.causal
        if causal is None or tiles.row_axis == "h":
            return str(tiles.tiles)
        # The last row has the most keys.
        keys = f"first_row + {tiles.rows + causal}"
        return f"T.max(0, T.min({tiles.tiles}, ({keys} + {tiles.keys - 1}) // {tiles.keys}))"

    def _clear(self) -> None:
        """Write the start of the sums and statistics of rows."""
        tiles = self.tiles
        for row in self._each_row():
            self.kernel.script.line(f"{self._statistic(0, row)} = {_LOWEST}")
            self.kernel.script.line(f"{self._statistic(1, row)} = T.float32(0)")
            for at, size, _ in self._vectors(tiles.extents["d"]):
                with self.kernel.vectorized(size):
                    place = self._place("sums", row, tiles.extents["d"], at)
                    self.kernel.script.line(f"{place} = T.float32(0)")

    def _each_row(self, first: str = "0") -> Iterator[str]:
        """Yield the row of a loop over the rows of a block."""
        with self.kernel.script.nested(f"for row in T.serial({first}, {self.tiles.rows}):"):
            yield "row"

    def _statistic(self, number: int, row: str) -> str:
        """Return a number of a row: 0 for its maximum, 1 for its sum, 2 for the rescaling."""
        place = f"{self._start('statistics')} + {number * self.tiles.rows} + {row}"
        return f"statistics[{place}]"

    def _place(self, name: str, row: str, width: int, at: str) -> str:
        return f"{_identifier(name)}[{self._start(name)} + {row} * {width} + {at} + {LANE}]"

    def _vectors(self, extent: int) -> Iterator[tuple[str, int, str]]:
        """Write loops over vectors of a row; yield each one's start, size and first start."""
        start, size = 0, _LANES
        while start < extent:
            while size > extent - start:
                size //= 2
            count = (extent - start) // size
            if count > 1:
                name = self.kernel.name("step")
                with self.kernel.script.nested(f"for {name} in T.serial({count}):"):
                    yield f"({name} * {size} + {start})", size, str(start)
            else:
                yield str(start), size, str(start)
            start += count * size

    # --------------------------------------------------------------------------------- tiles

    def _write_tile(self) -> None:
        tiles = self.tiles
        addresses = self._addresses()
        before = {"Q", "K", "V"}
        for part in self.products[0].parts:
            if not self._is_packed_before(part, before):
                self._call(part, addresses)
        for row in self._each_row():
            self._write_softmax(row)
        for part in self.products[1].parts:
            if not self._is_packed_before(part, before):
                self._call(part, addresses)
        if tiles.tiles == 1:
            return
        depth = tiles.extents["d"]
        for row in self._each_row():
            for at, size, _ in self._vectors(depth):
                with self.kernel.vectorized(size):
                    total = self._place("sums", row, depth, at)
                    added = self._place("Y", row, depth, at)
                    scaled = f"{total} * {self._statistic(2, row)}"
                    self.kernel.script.line(f"{total} = {scaled} + {added}")

    def _is_packed_before(self, part: Part, names: set[str]) -> bool:
        return any(part is product.packing(name) for product in self.products for name in names)

    def _addresses(self) -> dict[str, str]:
        """Return the addresses of all operands of a tile's products."""
        shared = {f"{name} packed" for name, _ in self._packed_before()}
        addresses = {name: self._address(name) for name in ("S", "Y")}
        addresses |= {"P": addresses["S"], "Q": self._rows("Q")}
        addresses |= {name: f"T.address_of({self._tensor(name)})" for name in "KV"}
        tiles = self.tiles
        tile = "tile" if tiles.tiles > 1 else "0"
        unit = f"(batch * {tiles.key_heads} + head) * {tiles.tiles} + {tile}"
        for product in self.products:
            for name in product.memory:
                if name in shared:
                    buffer = _identifier(name)
                    size = self.scratch[buffer].elements // self._key_tiles
                    addresses[name] = _at(buffer, f"({unit}) * {size}")
                else:
                    addresses[name] = self._address(name)
        return addresses

    # ------------------------------------------------------------------------------- softmax

    def _write_softmax(self, row: str) -> None:
        """Write the powers of a row's scores in a tile, and its statistics."""
        kernel, tiles = self.kernel, self.tiles
        limit = self._limit(row)
        width = tiles.keys
        top = kernel.accumulators(min(_LANES, _power(width)), "float32", _LOWEST)
        for at, size in self._visible(limit):
            # Hyperbolic tangents name integers, which TVM's vectors do not allow.
            with kernel.vectorized(size, SERIAL if self.kind.softcap else VECTORIZED):
                place = self._place("S", row, width, at)
                score = self._score(place, row, at, limit)
                kernel.script.line(f"{place} = {score}")
                kernel.script.line(f"{top}[{LANE}] = T.max({score}, {top}[{LANE}])")
        largest = self._combined(top, "max")
        if tiles.tiles > 1:
            largest = kernel.opaque(f"T.max({largest}, {self._statistic(0, row)})", "float32")
        # Differences from a maximum of -inf would be NaN; its powers are zeros.
        centre = kernel.opaque(
            f"T.Select({largest} == {_LOWEST}, T.float32(0), {largest})", "float32"
        )
        total = kernel.accumulators(min(_LANES, _power(width)), "float32", "T.float32(0)")
        for at, size in self._visible(limit, clears=row):
            with kernel.vectorized(size):
                place = self._place("S", row, width, at)
                power = exp_below(kernel.bind, kernel.bind(f"{place} - {centre}"))
                kernel.script.line(f"{place} = {power}")
                kernel.script.line(f"{total}[{LANE}] = {total}[{LANE}] + {power}")
        summed = self._combined(total, "sum")
        if tiles.tiles == 1:
            kernel.script.line(f"{self._statistic(1, row)} = {summed}")
            return
        difference = kernel.opaque(f"{self._statistic(0, row)} - {centre}", "float32")
        rescaling = exp_below(kernel.bind, difference)
        kernel.script.line(f"{self._statistic(2, row)} = {rescaling}")
        before = f"{self._statistic(1, row)} * {rescaling}"
        kernel.script.line(f"{self._statistic(1, row)} = {before} + {summed}")
        kernel.script.line(f"{self._statistic(0, row)} = {largest}")

    def _limit(self, row: str) -> str | None:
        """Write the last key of a tile that a row has; None if it has all."""
        causal = self.kind.causal
        if causal is None:
            return None
        number = f"first_row + {row}" if self.tiles.row_axis == "s" else "0"
        return self.kernel.bind(f"{number} + {causal} - first_key")

    def _visible(self, limit: str | None, clears: str | None = None) -> Iterator[tuple[str, int]]:
        """Write loops over the vectors of a tile with keys of a row; yield start and size.

        Scores beyond the limit are not computed, and cleared for a row ``clears``.
        """
        kernel, width = self.kernel, self.tiles.keys
        if limit is None:
            for at, size, _ in self._vectors(width):
                yield at, size
            return
        start, size = 0, _LANES
        while start < width:
            while size > width - start:
                size //= 2
            count = (width - start) // size
            needed = f"T.max(0, T.min({count}, ({limit} - {start} + {size}) // {size}))"
            steps, name = kernel.bind(needed), kernel.name("step")
            with kernel.script.nested(f"for {name} in T.serial({steps}):"):
                yield f"({name} * {size} + {start})", size
            if clears is not None:
                rest = kernel.name("step")
                with (
                    kernel.script.nested(f"for {rest} in T.serial({steps}, {count}):"),
                    kernel.vectorized(size),
                ):
                    place = self._place("S", clears, width, f"({rest} * {size} + {start})")
                    kernel.script.line(f"{place} = T.float32(0)")
            start += count * size

    def _score(self, place: str, row: str, at: str, limit: str | None) -> str:
        """Write a score with its scale and masks, and return its name."""
        kernel, kind, tiles = self.kernel, self.kind, self.tiles
        value = kernel.bind(f"{place} * {literal(kind.scale, 'float32')}")
        if kind.softcap:
            cap, inverse = (literal(c, "float32") for c in (kind.softcap, 1 / kind.softcap))
            tangent = APPROXIMATIONS["tanh"](kernel.bind, kernel.bind(f"{value} * {inverse}"))
            value = kernel.bind(f"{tangent} * {cap}")
        if kind.masked:
            mask = self.operands.inputs[3]
            element = f"in3[{self._mask_place(mask, row, at)}]"
            if mask.dtype == "bool":
                excluded = literal(kind.excluded, "float32")
                value = kernel.bind(f"T.Select({element} != T.uint8(0), {value}, {excluded})")
            else:
                value = kernel.bind(f"{value} + {element}")
        if limit is not None:
            value = kernel.bind(f"T.Select({at} + {LANE} <= {limit}, {value}, {_LOWEST})")
        if tiles.extents["n"] % tiles.keys:
            # The last tile begins earlier: keys of the tile before it count there.
            skipped = f"tile * {tiles.keys} - first_key"
            value = kernel.bind(f"T.Select({at} + {LANE} >= {skipped}, {value}, {_LOWEST})")
        return value

    def _mask_place(self, mask: PlacedTensor, row: str, at: str) -> str:
        """Return the place of a mask's element, which broadcasts."""
        tiles = self.tiles
        shape = (1,) * (4 - len(mask.shape)) + mask.shape
        steps = [0 if shape[k] == 1 else math.prod(shape[k + 1 :]) for k in range(4)]
        if tiles.row_axis == "s":
            head, number = "query_head", f"(first_row + {row})"
        else:
            head, number = f"(query_head * {tiles.extents['g']} + first_row + {row})", "0"
        indices = ("batch", head, number, f"(first_key + {at} + {LANE})")
        terms = [f"{index} * {step}" for index, step in zip(indices, steps, strict=True) if step]
        return " + ".join(terms) or "0"

    def _combined(self, name: str, operation: str) -> str:
        """Write the combination of the lanes of an accumulator, and return it."""
        kernel = self.kernel
        size = min(_LANES, _power(self.tiles.keys))
        while size > 1:
            size //= 2
            half = kernel.local(size, "float32")
            with kernel.vectorized(size):
                first, second = f"{name}[{LANE}]", f"{name}[{LANE} + {size}]"
                joined = (
                    f"{first} + {second}" if operation == "sum" else f"T.max({first}, {second})"
                )
                kernel.script.line(f"{half}[{LANE}] = {joined}")
            name = half
        return f"{name}[0]"

    # ------------------------------------------------------------------------------- results

    def _write_results(self) -> None:
        """Write the quotients of a block's rows, but for those that the block before has."""
        kernel, tiles, depth = self.kernel, self.tiles, self.tiles.extents["d"]
        sums = "sums" if tiles.tiles > 1 else "Y"
        step = tiles.strides["O"]["d"]
        for row in self._each_row("block_start - first_row"):
            total = kernel.opaque(self._statistic(1, row), "float32")
            empty = "T.float32(0)" if self.kind.zero_rows else 'T.float32("nan")'
            share = kernel.opaque(f"T.float32(1) / {total}", "float32")
            for at, size, _ in self._vectors(depth):
                with kernel.vectorized(size):
                    value = f"{self._place(sums, row, depth, at)} * {share}"
                    value = f"T.Select({total} == T.float32(0), {empty}, {value})"
                    place = self._row_place("O", f"first_row + {row}")
                    kernel.script.line(f"out0[{place} + ({at} + {LANE}) * {step}] = {value}")


def _power(extent: int) -> int:
    """Return the largest power of two that is at most an extent."""
    return 1 << (extent.bit_length() - 1)


def _identifier(name: str) -> str:
    return name.replace(" ", "_")


def _at(buffer: str, place: str) -> str:
    return f"T.address_of({buffer}[{place}])"
