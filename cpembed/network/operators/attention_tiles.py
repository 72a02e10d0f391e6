"""Tiles of an attention, and the calls of a tile's products on operands by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory, RecordedCalls


@dataclass(frozen=True)
class Tiles:
    """Blocks of rows and tiles of keys of an attention.

    Attributes
    ----------
    extents : mapping from str to int
        ``b`` batches, ``h`` heads of the query, ``g`` heads of the query per head of the key, ``s``
        rows, ``n`` keys, ``k`` depth of query and key, ``d`` depth of the values.
    strides : mapping from str to (mapping from str to int)
        Distance in memory along each axis of ``Q``, ``K``, ``V`` and the output ``O``.
    row_axis : str
        ``s``, or ``h`` where the heads that share a key are the rows, of which each has one.
    rows, keys : int
        Rows of a block and keys of a tile. The last one of each begins earlier, to be complete.
    parts : int
        Number of parts of the keys of a block, each of which a task computes alone. Their sums are
        combined afterwards.
    streams : bool
        True if each key and value is read once, so that none is near before its tile requests it.
    """

    extents: Mapping[str, int]
    strides: Mapping[str, Mapping[str, int]]
    row_axis: str
    rows: int
    keys: int
    parts: int = 1
    streams: bool = False

    @property
    def row_count(self) -> int:
        """Number of rows of a task's head."""
        return self.extents["s"] if self.row_axis == "s" else self.extents["g"]

    @property
    def heads(self) -> int:
        """Number of heads, or of groups of heads, that are tasks of their own."""
        return self.extents["h"] if self.row_axis == "s" else self.key_heads

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.extents["h"] // self.extents["g"]

    @property
    def blocks(self) -> int:
        """Number of blocks of rows of a head."""
        return -(-self.row_count // self.rows)

    @property
    def tiles(self) -> int:
        """Number of tiles of keys of a head."""
        return -(-self.extents["n"] // self.keys)

    @property
    def all_blocks(self) -> int:
        """Number of blocks of rows of all heads."""
        return self.extents["b"] * self.heads * self.blocks

    @property
    def tasks(self) -> int:
        """Number of parts of all blocks of rows, which threads share."""
        return self.all_blocks * self.parts

    def products(self, causal: int | None) -> int:
        """Return the number of tiles that all tasks compute."""
        if causal is None or self.row_axis == "h":
            return self.all_blocks * self.tiles
        ends = (min(number * self.rows, self.row_count) for number in range(1, self.blocks + 1))
        counts = (min(self.tiles, max(0, -(-(end + causal) // self.keys))) for end in ends)
        return self.extents["b"] * self.heads * sum(counts)


@dataclass(frozen=True)
class Part:
    """Call of a tile's product or of a packing before it, on operands by name.

    Packed operands are named ``K packed``, further memory by a number.
    """

    plan: KernelPlan
    operands: tuple[str, ...]


@dataclass(frozen=True)
class TileProduct:
    """Calls of a product of tiles, and the memory that they need besides the originals."""

    parts: tuple[Part, ...]
    memory: Mapping[str, Memory]

    @classmethod
    def recorded(cls, calls: RecordedCalls) -> TileProduct:
        """Name the memory of recorded calls."""
        names = {id(memory): f"{name} packed" for name, memory in calls.packed.items()}
        names |= {id(memory): name for name, memory in calls.caller_memory.items()}
        prefix = " ".join(calls.caller_memory)
        memory: dict[str, Memory] = {}
        parts: list[Part] = []
        for call in calls.run:
            operands: list[str] = []
            for buffer in call.buffers:
                name = names.setdefault(id(buffer), f"{prefix} {len(names)}")
                operands.append(name)
                if name not in calls.caller_memory:
                    memory[name] = buffer
            parts.append(Part(call.plan, tuple(operands)))
        return cls(tuple(parts), memory)

    def packing(self, operand: str) -> Part | None:
        """Return the part that packs an operand, if it is no part of the product itself."""
        pair = (operand, f"{operand} packed")
        return next((part for part in self.parts if part.operands == pair), None)


def merged(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the attributes of all parts; one that a part needs is not taken away."""
    names = dict.fromkeys(name for items in lists for name in items)
    needed = {name.removeprefix("+") for name in names if name.startswith("+")}
    return tuple(n for n in names if not (n.startswith("-") and n.removeprefix("-") in needed))
