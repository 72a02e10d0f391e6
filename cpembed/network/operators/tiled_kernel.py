"""Kernel that calls products of tiles: its memory, the packing of keys and values, its tasks.

A task computes a block of rows of one head. Products are kernels of tiles, functions of addresses
that the text calls; what a tile needs stays in memory of the thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cpembed.codegen.plan import HEADER, SHARED_BUFFERS, KernelPlan, storage_dtype
from cpembed.codegen.recorded import Memory
from cpembed.network.operators.attention_tiles import Part, TileProduct, Tiles, merged
from cpembed.network.operators.emission import LANE, ONES, Kernel, Operands, chunk_bounds

_REGISTERS = 'scope="local", annotations={"disable_lower_builtin": True}'


@dataclass(frozen=True)
class AttentionPlan:
    """Kernel of an attention, and the memory that it takes after its outputs."""

    plan: KernelPlan
    scratch: tuple[Memory, ...]


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
class TiledKernel:
    """Text of a kernel of tasks that call products of tiles, while it is written.

    The first three inputs are query, key and value.

    Attributes
    ----------
    products : tuple of two TileProduct
        Products ``S = Q K^T`` and ``Y = P V`` of a tile.
    """

    operands: Operands
    tiles: Tiles
    products: tuple[TileProduct, TileProduct]
    kernel: Kernel = field(init=False)
    scratch: dict[str, Memory] = field(init=False, default_factory=dict[str, Memory])
    parts: dict[str, KernelPlan] = field(init=False, default_factory=dict[str, KernelPlan])

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
            self._write_end()
        plan = replace(
            self.kernel.plan("attention"),
            attributes=merged([part.attributes for part in self.parts.values()]),
            options=merged([[SHARED_BUFFERS], *(part.options for part in self.parts.values())]),
            parts=tuple(self.parts.items()),
        )
        return AttentionPlan(plan, tuple(self.scratch.values()))

    @abstractmethod
    def _own_buffers(self) -> Iterator[tuple[str, int, str, int]]:
        """Yield name, elements, type and number of copies of further memory."""

    @abstractmethod
    def _write_task(self) -> None:
        """Write the body of a task."""

    def _write_end(self) -> None:
        """Write the text after all tasks."""

    # -------------------------------------------------------------------------------- memory

    def _packed_before(self) -> list[tuple[str, Part]]:
        """Return the packings of keys and values, which all blocks of rows share."""
        pairs = [("K", self.products[0].packing("K")), ("V", self.products[1].packing("V"))]
        return [(name, part) for name, part in pairs if part is not None]

    def _reserve(self) -> None:
        """Reserve packed keys and values, and the memory of each thread."""
        shared = {f"{name} packed" for name, _ in self._packed_before()}
        for product in self.products:
            for name, memory in product.memory.items():
                copies = self._key_tiles if name in shared else self.chunks
                self._buffer(name, memory.elements, memory.dtype, copies)
        for name, elements, dtype, copies in self._own_buffers():
            self._buffer(name, elements, dtype, copies)

    def _buffer(self, name: str, elements: int, dtype: str, copies: int) -> None:
        # A multiple of a cache line, so that no two threads write to one.
        stride = -(-elements // 64) * 64
        self.scratch[identifier(name)] = Memory(stride * copies, storage_dtype(dtype))

    @property
    def _key_tiles(self) -> int:
        return self.tiles.extents["b"] * self.tiles.key_heads * self.tiles.tiles

    def _start(self, name: str) -> str:
        """Return the first place of the thread's part of a buffer."""
        return f"chunk * {self.scratch[identifier(name)].elements // self.chunks}"

    def _address(self, name: str, at: str = "0") -> str:
        """Return the address of a thread's buffer."""
        return f"T.address_of({identifier(name)}[{self._start(name)} + {at}])"

    # ------------------------------------------------------------------------------- packing

    def _write_packing(self, packed: Sequence[tuple[str, Part]]) -> None:
        """Write the packing of all tiles of keys and values."""
        script, tiles = self.kernel.script, self.tiles
        total = self._key_tiles
        chunks = min(self.operands.threads, total)
        bounds = ", ".join(chunk_bounds(total, chunks))
        with script.nested(
            f"for chunk in T.parallel({chunks}):", f"for unit in T.serial({bounds}):"
        ):
            script.line(f"batch: T.let = unit // {tiles.key_heads * tiles.tiles}")
            script.line(f"head: T.let = unit // {tiles.tiles} % {tiles.key_heads}")
            script.line(f"first_key: T.let = {self._first_key(f'unit % {tiles.tiles}')}")
            for name, part in packed:
                buffer = identifier(f"{name} packed")
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

    def _each_row(self, first: str = "0") -> Iterator[str]:
        """Yield the row of a loop over the rows of a block."""
        with self.kernel.script.nested(f"for row in T.serial({first}, {self.tiles.rows}):"):
            yield "row"

    def _place(self, name: str, row: str, width: int, at: str) -> str:
        return f"{identifier(name)}[{self._start(name)} + {row} * {width} + {at} + {LANE}]"

    def _write_query_packing(self) -> None:
        """Write the packing of a block's rows of the query, if its product takes them packed."""
        if packing := self.products[0].packing("Q"):
            self._call(packing, {"Q": self._rows("Q"), "Q packed": self._address("Q packed")})

    def _write_product(self, number: int, weights: str) -> None:
        """Write a product of a tile; the weights are in a buffer of the thread."""
        addresses = self._addresses(weights)
        for part in self.products[number].parts:
            if not self._is_packed_before(part, {"Q", "K", "V"}):
                self._call(part, addresses)

    def _is_packed_before(self, part: Part, names: set[str]) -> bool:
        return any(part is product.packing(name) for product in self.products for name in names)

    def _addresses(self, weights: str) -> dict[str, str]:
        """Return the addresses of all operands of a tile's products."""
        shared = {f"{name} packed" for name, _ in self._packed_before()}
        addresses = {name: self._address(name) for name in ("S", "Y")}
        addresses |= {"P": self._address(weights), "Q": self._rows("Q")}
        addresses |= {name: f"T.address_of({self._tensor(name)})" for name in "KV"}
        tiles = self.tiles
        tile = "tile" if tiles.tiles > 1 else "0"
        unit = f"(batch * {tiles.key_heads} + head) * {tiles.tiles} + {tile}"
        for product in self.products:
            for name in product.memory:
                if name in shared:
                    buffer = identifier(name)
                    size = self.scratch[buffer].elements // self._key_tiles
                    addresses[name] = _at(buffer, f"({unit}) * {size}")
                else:
                    addresses[name] = self._address(name)
        return addresses


def identifier(name: str) -> str:
    """Return the name of a buffer in the text."""
    return name.replace(" ", "_")


def _at(buffer: str, place: str) -> str:
    return f"T.address_of({buffer}[{place}])"
