"""Kernel of attention in tiles: the softmax between the two products of a target's instruction.

A task computes a block of rows of one head. For each tile of keys it multiplies query and key,
takes the powers of the scores, and adds the product with the values: with the maximum and the sum
so far, by which earlier results are scaled where the maximum rises. Products are kernels of tiles,
functions of addresses that the text calls; what a tile needs stays in memory of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cpembed.codegen.plan import HEADER, SHARED_BUFFERS, KernelPlan
from cpembed.codegen.recorded import Memory
from cpembed.graph.kinds import Attention
from cpembed.network.operators.attention_softmax import LOWEST, STATISTICS, TileSoftmax, vectors
from cpembed.network.operators.attention_tiles import Part, TileProduct, Tiles, merged
from cpembed.network.operators.emission import (
    LANE,
    ONES,
    Kernel,
    Operands,
)

_LANES = 32
"""Maximum number of elements per vector of sums."""

_REGISTERS = 'scope="local", annotations={"disable_lower_builtin": True}'


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
    softmax: TileSoftmax = field(init=False)
    scratch: dict[str, Memory] = field(default_factory=dict[str, Memory])
    parts: dict[str, KernelPlan] = field(default_factory=dict[str, KernelPlan])

    def __post_init__(self) -> None:
        self.chunks = min(self.operands.threads, self.tiles.tasks)
        self.kernel = _Kernel(self.operands, self.chunks)
        mask = self.operands.inputs[3] if self.kind.masked else None
        self.softmax = TileSoftmax(self.kernel, self.kind, self.tiles, mask, self._start)

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
            if self.tiles.parts > 1:
                self._write_combination()
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
            ("statistics", STATISTICS * tiles.rows),
            *([("sums", tiles.rows * depth)] if tiles.tiles > 1 else []),
        ):
            copies = tiles.tasks if name in self._partial else self.chunks
            self._buffer(name, elements, "float32", copies)

    @property
    def _partial(self) -> tuple[str, ...]:
        """Buffers that hold the results of a part of the keys until all are combined."""
        return ("statistics", "sums") if self.tiles.parts > 1 else ()

    def _buffer(self, name: str, elements: int, dtype: str, copies: int) -> None:
        # A multiple of a cache line, so that no two threads write to one.
        stride = -(-elements // 64) * 64
        self.scratch[_identifier(name)] = Memory(stride * copies, dtype)

    @property
    def _key_tiles(self) -> int:
        return self.tiles.extents["b"] * self.tiles.key_heads * self.tiles.tiles

    def _start(self, name: str) -> str:
        """Return the first place of the thread's or the task's part of a buffer."""
        size = self.scratch[_identifier(name)].elements
        if name in self._partial:
            return f"task * {size // self.tiles.tasks}"
        return f"chunk * {size // self.chunks}"

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
        self._write_block("task" if tiles.parts == 1 else f"(task // {tiles.parts})")
        if packing := self.products[0].packing("Q"):
            self._call(packing, {"Q": self._rows("Q"), "Q packed": self._address("Q packed")})
        if tiles.tiles > 1:
            self._clear()
            with script.nested(f"for tile in T.serial({self._tile_range()}):"):
                script.line(f"first_key: T.let = {self._first_key('tile')}")
                condition = self.softmax.any_visible()
                with script.nested(*([f"if {condition}:"] if condition else [])):
                    self._write_tile()
        else:
            script.line("first_key: T.let = 0")
            self._write_tile()
        if tiles.parts == 1:
            self._write_results()

    def _write_block(self, block: str) -> None:
        """Write the batch, the heads and the first row of a block."""
        script, tiles = self.kernel.script, self.tiles
        script.line(f"batch: T.let = {block} // {tiles.heads * tiles.blocks}")
        script.line(f"query_head: T.let = {block} // {tiles.blocks} % {tiles.heads}")
        shared = tiles.extents["g"] if tiles.row_axis == "s" else 1
        script.line(f"head: T.let = query_head // {shared}")
        script.line(f"block_start: T.let = {block} % {tiles.blocks} * {tiles.rows}")
        last = tiles.row_count - tiles.rows
        script.line(f"first_row: T.let = T.min(block_start, {last})")

    def _tile_range(self) -> str:
        """Return the limits of the tiles of a task."""
        count, parts = self._tile_count(), self.tiles.parts
        if parts == 1:
            return f"0, {count}"
        return f"task % {parts} * {count} // {parts}, (task % {parts} + 1) * {count} // {parts}"

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
            self.kernel.script.line(f"{self.softmax.statistic(0, row)} = {LOWEST}")
            self.kernel.script.line(f"{self.softmax.statistic(1, row)} = T.float32(0)")
            for at, size, _ in vectors(self.kernel, tiles.extents["d"], _LANES):
                with self.kernel.vectorized(size):
                    place = self._place("sums", row, tiles.extents["d"], at)
                    self.kernel.script.line(f"{place} = T.float32(0)")

    def _each_row(self, first: str = "0") -> Iterator[str]:
        """Yield the row of a loop over the rows of a block."""
        with self.kernel.script.nested(f"for row in T.serial({first}, {self.tiles.rows}):"):
            yield "row"

    def _place(self, name: str, row: str, width: int, at: str) -> str:
        return f"{_identifier(name)}[{self._start(name)} + {row} * {width} + {at} + {LANE}]"

    # --------------------------------------------------------------------------------- tiles

    def _write_tile(self) -> None:
        tiles = self.tiles
        addresses = self._addresses()
        before = {"Q", "K", "V"}
        for part in self.products[0].parts:
            if not self._is_packed_before(part, before):
                self._call(part, addresses)
        self.softmax.write()
        for part in self.products[1].parts:
            if not self._is_packed_before(part, before):
                self._call(part, addresses)
        if tiles.tiles == 1:
            return
        depth = tiles.extents["d"]
        for row in self._each_row():
            for at, size, _ in vectors(self.kernel, depth, _LANES):
                with self.kernel.vectorized(size):
                    total = self._place("sums", row, depth, at)
                    added = self._place("Y", row, depth, at)
                    scaled = f"{total} * {self.softmax.statistic(2, row)}"
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

    # ------------------------------------------------------------------------------- results

    def _write_results(self) -> None:
        """Write the quotients of a block's rows, but for those that the block before has."""
        tiles, depth = self.tiles, self.tiles.extents["d"]
        sums = "sums" if tiles.tiles > 1 else "Y"
        for row in self._each_row("block_start - first_row"):
            total = self.kernel.opaque(self.softmax.statistic(1, row), "float32")
            with self._quotient(total) as quotient:
                for at, size, _ in vectors(self.kernel, depth, _LANES):
                    with self.kernel.vectorized(size):
                        self._store(row, at, quotient(self._place(sums, row, depth, at)))

    @contextmanager
    def _quotient(self, total: str) -> Generator[Callable[[str], str]]:
        """Yield a function from the text of a sum to that of its quotient by a total."""
        share = self.kernel.opaque(f"T.float32(1) / {total}", "float32")
        empty = "T.float32(0)" if self.kind.zero_rows else 'T.float32("nan")'
        yield lambda value: f"T.Select({total} == T.float32(0), {empty}, {value} * {share})"

    def _store(self, row: str, at: str, value: str) -> None:
        place = self._row_place("O", f"first_row + {row}")
        step = self.tiles.strides["O"]["d"]
        self.kernel.script.line(f"out0[{place} + ({at} + {LANE}) * {step}] = {value}")

    def _write_combination(self) -> None:
        """Write the results of all blocks from those of parts of their keys."""
        kernel, script, tiles = self.kernel, self.kernel.script, self.tiles
        depth, count = tiles.extents["d"], tiles.all_blocks
        chunks = min(self.operands.threads, count)
        bounds = f"chunk * {count} // {chunks}, (chunk + 1) * {count} // {chunks}"
        with script.nested(
            f"for chunk in T.parallel({chunks}):", f"for block in T.serial({bounds}):"
        ):
            self._write_block("block")
            for row in self._each_row("block_start - first_row"):
                total = self._weigh_parts(row)
                with self._quotient(total) as quotient:
                    for at, size, _ in vectors(kernel, depth, _LANES):
                        combined = kernel.accumulators(size, "float32", "T.float32(0)")
                        with self._each_part(), kernel.vectorized(size):
                            weighted = f"{self._place('sums', row, depth, at)} * "
                            weighted += self.softmax.statistic(0, row)
                            script.line(f"{combined}[{LANE}] = {combined}[{LANE}] + {weighted}")
                        with kernel.vectorized(size):
                            self._store(row, at, quotient(f"{combined}[{LANE}]"))

    @contextmanager
    def _each_part(self) -> Generator[None]:
        """Write a loop over the parts of a block, whose tasks have their results."""
        parts = self.tiles.parts
        with self.kernel.script.nested(f"for part in T.serial({parts}):"):
            self.kernel.script.line(f"task: T.let = block * {parts} + part")
            yield

    def _weigh_parts(self, row: str) -> str:
        """Replace the maximum of a row in each part by its weight, and return the sum of all."""
        kernel, script = self.kernel, self.kernel.script
        largest = kernel.accumulators(1, "float32", LOWEST)
        with self._each_part():
            maximum = self.softmax.statistic(0, row)
            script.line(f"{largest}[0] = T.max({maximum}, {largest}[0])")
        centre = kernel.opaque(
            f"T.Select({largest}[0] == {LOWEST}, T.float32(0), {largest}[0])", "float32"
        )
        total = kernel.accumulators(1, "float32", "T.float32(0)")
        with self._each_part():
            maximum = self.softmax.statistic(0, row)
            weight = self.softmax.power(maximum, centre)
            script.line(f"{maximum} = {weight}")
            script.line(f"{total}[0] = {total}[0] + {self.softmax.statistic(1, row)} * {weight}")
        return f"{total}[0]"


def _identifier(name: str) -> str:
    return name.replace(" ", "_")


def _at(buffer: str, place: str) -> str:
    return f"T.address_of({buffer}[{place}])"
