"""Copies of a factor whose addresses are linear in rows and depth, whichever of them steps move in.

A thread locates its first vector before the loop; all others, of a step and of later ones, are at
constant distances from it. Whether a vector is inside of the factor is a comparison of its position
with a number, made only where a block goes beyond the end.
"""

from __future__ import annotations

import math

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.multistage.schedule import CHUNK, MAX_UNROLLED_COPIES
from cpembed.targets.cuda.multistage.separation import Positions, linear_limits
from cpembed.targets.cuda.multistage.tile_copies import (
    SWIZZLE_ROWS,
    CopiedTile,
    GeneralCopies,
    TileCopies,
)
from cpembed.targets.cuda.writer import (
    Writer,
    digits,
    index_script,
    register_pointer,
    shared_pointer,
)


def tile_copies(writer: Writer, copied: CopiedTile) -> TileCopies:
    """Return the writer of copies of a tile that computes least in the loop.

    Parameters
    ----------
    writer : Writer
        Text of the kernel, with the variables ``thread`` and ``batch``, and those of
        ``copied.first``.
    copied : CopiedTile
    """
    axes = (copied.product.axes[copied.number], copied.product.axes[2])
    directions = [
        Positions(axis, extent, loops)
        for axis, extent, loops in zip(axes, copied.extents, copied.loops, strict=True)
    ]
    linear = linear_limits(copied.operand, directions)
    if linear is not None and copied.tile.width >= 4:
        copies = LinearCopies(writer, copied, linear)
        if copies.is_short:
            return copies
    return GeneralCopies(writer, copied)


class LinearCopies(TileCopies):
    """Copies at constant distances.

    A thread's variables are named after the factor: ``B_places`` and ``B_targets`` hold its places
    in global and in shared memory, ``B_lines`` and ``B_elements`` its positions where they are
    compared. Vectors of a turn have constant distances to those of the first one if a turn copies
    whole lines; otherwise each turn has places of its own.
    """

    def __init__(
        self, writer: Writer, copied: CopiedTile, linear: tuple[tuple[int, int | None], ...]
    ) -> None:
        super().__init__(writer, copied)
        self.slopes = [slope for slope, _ in linear]
        self.line = int(self.tile.transposed)
        """0 if lines of the tile are rows of the factor, 1 if they are steps of the depth."""
        self.limits: list[int | None] = []
        """Number of positions inside of the factor, where steps go beyond it."""
        for number, (_, limit) in enumerate(linear):
            extent = copied.extents[number]
            inside = copied.tiles[number] * extent
            inside = inside if limit is None else min(inside, limit)
            is_ragged = copied.visited[number] * extent > inside
            self.limits.append(inside if is_ragged else None)
        vectors = self.tile.row_vectors
        self.has_lines = self.threads % vectors == 0
        """True if a turn copies whole lines."""
        self.turn_lines = self.threads // vectors
        period = SWIZZLE_ROWS // math.gcd(SWIZZLE_ROWS, self.turn_lines)
        self.targets = min(self.turns, period) if self.has_lines else self.turns
        """Number of turns after which lines have the same permutation of chunks again."""

    @property
    def is_short(self) -> bool:
        """True if a thread's places fit in registers, and its copies in the text."""
        if self.has_lines and self.targets == 1:
            return True
        return self.turns <= MAX_UNROLLED_COPIES // (1 if self.has_lines else 2)

    def prepare(self) -> None:
        located = 1 if self.has_lines else self.turns
        length, size = self.operand.length, size_bytes(self.operand.layout.dtype)
        self._array("places", located)
        for name in self._compared.values():
            self._array(name, located)
        self._array("targets", self.targets)
        with self.script.nested(f"for turn in T.unroll({max(located, self.targets)}):"):
            self.script.lines(
                (
                    f"slot = turn * {self.threads} + thread",
                    f"shared_row = slot // {self.tile.row_vectors}",
                    f"element = slot % {self.tile.row_vectors} * {length}",
                )
            )
            byte = f"element * {size}"
            place = self.tile.place("shared_row", f"{byte} // {CHUNK}")
            self.script.line(f"{self.name}_targets[turn] = {place} + {byte} % {CHUNK}")
            with self.script.nested(*["if turn == 0:"] * (located < self.targets)):
                self._locate()

    @property
    def _compared(self) -> dict[int, str]:
        """Names of the positions that are compared, by the number of their dimension."""
        names = {self.line: "lines", 1 - self.line: "elements"}
        return {number: names[number] for number in (0, 1) if self.limits[number] is not None}

    def _locate(self) -> None:
        """Write the place and the positions of a turn's vector in the first step."""
        copied, inside = self.copied, ["shared_row", "element"]
        if self.line:
            inside.reverse()
        for variable, number in (("tile", 0), ("deep", 1)):
            first, extent = copied.first[number], copied.extents[number]
            self.script.line(f"{variable} = {first} + {inside[number]} // {extent}")
        values = self._row_values("tile", f"{inside[0]} % {copied.extents[0]}")
        values |= digits("deep", self.product.depth)
        values[self.product.axes[2]] = f"{inside[1]} % {copied.extents[1]}"
        address = index_script(self.operand.address, values, self.extents)
        self.script.line(f"{self.name}_places[turn] = {address}")
        # The compiler would compute parts of it again in each turn of the loop.
        self.writer.call("cpembed_opaque", register_pointer(f"{self.name}_places", "turn"))
        for number, name in self._compared.items():
            position = f"({copied.first[number]}) * {copied.extents[number]} + {inside[number]}"
            self.script.line(f"{self.name}_{name}[turn] = {position}")

    def copy(self, step: str, base: str) -> None:
        name, copied = self.name, self.copied
        moves = [n * extent for n, extent in zip(copied.moves, copied.extents, strict=True)]
        moved = sum(move * slope for move, slope in zip(moves, self.slopes, strict=True))
        # Turns of whole lines are at constant distances from the first.
        turn, distance = ("0", self.turn_lines) if self.has_lines else ("turn", 0)

        def of_turn(variable: str, each_turn: int, each_step: int) -> str:
            text = f"{name}_{variable}[{turn}]"
            text += f" + ({step}) * {each_step}" * bool(each_step)
            return text + f" + turn * {each_turn}" * bool(each_turn)

        conditions = [
            f"{of_turn(variable, distance * (number == self.line), moves[number])} < "
            f"{self.limits[number]}"
            for number, variable in self._compared.items()
        ]
        vectors = self.tile.rows * self.tile.row_vectors
        if self.tile.copies > vectors:
            conditions.append(f"turn * {self.threads} + thread < {vectors}")
        valid = f'T.cast({" and ".join(conditions)}, "int32")' if conditions else "1"
        place = of_turn("places", distance * self.slopes[self.line], moved)
        target = f"{name}_targets[turn % {self.targets}]"
        if self.has_lines:
            period = self.targets * self.turn_lines * self.tile.pitch
            target += f" + turn // {self.targets} * {period}"
        with self._turns(unrolled=self.turns <= MAX_UNROLLED_COPIES):
            self.writer.call(
                f"cpembed_cp_async_{self.tile.width}",
                shared_pointer(f"{base} + {target}"),
                f"T.address_of({name}[{place}])",
                valid,
            )
