"""Copies of a tile of a factor into shared memory as TensorIR: what all kinds of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from cpembed.codegen.plan import storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct
from cpembed.targets.cuda.multistage.schedule import CHUNK, SharedTile
from cpembed.targets.cuda.writer import (
    Writer,
    digits,
    factor_values,
    guarded_place,
    index_script,
    inside_conditions,
    register_pointer,
    shared_pointer,
)
from cpembed.transform.program import Loop

SWIZZLE_ROWS = 8
"""Number of rows after which the permutation of chunks is the same again."""


@dataclass(frozen=True, kw_only=True)
class CopiedTile:
    """A tile of a factor that a block copies in each step of its loop.

    Attributes
    ----------
    name : str
        Parameter of the kernel that is the factor.
    number : int
        0 for the first factor of the product, 1 for the second.
    product : TiledProduct
    operand : GlobalOperand
    tile : SharedTile
    threads : int
        Number of threads of a block.
    first : tuple of str and str
        Expressions of the first instruction tile along rows (or columns) and along the depth.
    moves : tuple of int and int
        Numbers of instruction tiles that a step moves on by, along rows and along the depth.
    visited : tuple of int and int
        Numbers of instruction tiles that all blocks and steps visit, in both directions.
    """

    name: str
    number: int
    product: TiledProduct
    operand: GlobalOperand
    tile: SharedTile
    threads: int
    first: tuple[str, str]
    moves: tuple[int, int]
    visited: tuple[int, int]

    @property
    def extents(self) -> tuple[int, int]:
        """Numbers of rows (or columns) and of steps of the depth of an instruction tile."""
        instruction = self.product.instruction
        return (instruction.m, instruction.n)[self.number], instruction.k

    @property
    def loops(self) -> tuple[tuple[Loop, ...], tuple[Loop, ...]]:
        """Loops over instruction tiles along rows (or columns), and along the depth."""
        return (self.product.rows, self.product.columns)[self.number], self.product.depth

    @property
    def tiles(self) -> tuple[int, int]:
        """Numbers of instruction tiles along rows (or columns), and along the depth."""
        return self.product.tiles[1 + self.number], self.product.tiles[3]

    @property
    def turns(self) -> int:
        """Number of vectors that a thread copies."""
        return -(-self.tile.copies // self.threads)


class TileCopies(ABC):
    """Writer of the copies of a tile."""

    def __init__(self, writer: Writer, copied: CopiedTile) -> None:
        self.writer, self.script, self.copied = writer, writer.script, copied
        self.name, self.number, self.product = copied.name, copied.number, copied.product
        self.operand, self.tile, self.threads = copied.operand, copied.tile, copied.threads
        self.extents = self.product.program.extents
        self.turns = copied.turns
        self.is_partial = self.tile.copies % self.threads > 0
        """True if some threads have nothing to copy in the last turn."""

    @abstractmethod
    def prepare(self) -> None:
        """Write what is computed before the first step."""

    @abstractmethod
    def copy(self, step: str, base: str) -> None:
        """Write the copies of a step to the byte ``base`` of shared memory.

        Steps are written in their order: their state moves on.
        """

    def _row_values(self, tile: str, row: str) -> dict[str, str]:
        """Return the values of all iterators but those of the depth, which are 0."""
        return factor_values(self.product, self.number, tile, "0") | {
            self.product.axes[self.number]: row
        }

    def _row_conditions(self, tile: str, shared_row: str) -> list[str]:
        """Return conditions under which a row of the tile is a row of the factor."""
        conditions: list[str] = []
        if self.copied.visited[0] > self.copied.tiles[0]:
            conditions.append(f"{tile} < {self.copied.tiles[0]}")
        if self.tile.copies > self.tile.rows * self.tile.row_vectors:
            conditions.append(f"{shared_row} < {self.tile.rows}")
        return conditions

    @property
    def depth_is_ragged(self) -> bool:
        """True if the steps of all parts pass the end of the depth."""
        return self.copied.visited[1] > self.copied.tiles[1]

    @contextmanager
    def _turns(self, *, unrolled: bool = True) -> Generator[None]:
        """Write the loop over a thread's vectors around what is written inside."""
        guard = [f"if turn * {self.threads} + thread < {self.tile.copies}:"] * self.is_partial
        kind = "unroll" if unrolled else "serial"
        with self.script.nested(f"for turn in T.{kind}({self.turns}):", *guard):
            yield

    def _array(self, name: str, elements: int) -> None:
        self.script.line(
            f'{self.name}_{name} = T.alloc_buffer(({elements},), "int32", scope="local")'
        )


class GeneralCopies(TileCopies):
    """Copies each of which computes its address and whether it is valid."""

    def prepare(self) -> None:
        pass

    def copy(self, step: str, base: str) -> None:
        threads, tile = self.threads, self.tile
        unrolled = tile.unrolled_copies(self.turns)
        with self.script.nested(
            f"for first in T.serial({self.turns // unrolled}, unroll=False):",
            f"for turn in T.unroll({unrolled}):",
        ):
            self.script.line(f"slot = (first * {unrolled} + turn) * {threads} + thread")
            with self.script.nested(*[f"if slot < {tile.copies}:"] * self.is_partial):
                self._locate_vector(step)
                copy_vector(self.writer, self.name, self.operand, "shared_row", tile.place, base)

    def _locate_vector(self, step: str) -> None:
        """Write ``place``, the number of a slot's vector in its factor, and ``valid``."""
        tile, operand, copied = self.tile, self.operand, self.copied
        self.script.lines(
            (
                f"shared_row = slot // {tile.row_vectors}",
                f"element = slot % {tile.row_vectors} * {operand.length}",
            )
        )
        across, along = ("element", "shared_row") if tile.transposed else ("shared_row", "element")
        for variable, number, inside in (("tile", 0, across), ("deep", 1, along)):
            moved = f" + ({step}) * {copied.moves[number]}" if copied.moves[number] else ""
            first = f"{copied.first[number]}{moved}"
            self.script.line(f"{variable} = {first} + {inside} // {copied.extents[number]}")
        values = self._row_values("tile", f"{across} % {copied.extents[0]}")
        values |= digits("deep", self.product.depth)
        values[self.product.axes[2]] = f"{along} % {copied.extents[1]}"
        conditions = self._row_conditions("tile", "shared_row")
        conditions += [f"deep < {copied.tiles[1]}"] * self.depth_is_ragged
        conditions += inside_conditions(operand, values, self.extents)
        address = index_script(operand.address, values, self.extents)
        self.script.lines(guarded_place(conditions, address))


def copy_vector(
    writer: Writer,
    name: str,
    operand: GlobalOperand,
    row: str,
    place: Callable[[str, str], str],
    base: str,
) -> None:
    """Write the copy of a vector into shared memory, asynchronous if it has 4 bytes or more.

    Parameters
    ----------
    writer : Writer
        Text of the kernel, in which ``place`` is the vector's number in the factor, ``valid`` says
        whether it is inside, and ``element`` is its place in a row.
    name : str
        Parameter of the kernel that is the factor.
    operand : GlobalOperand
    row : str
        Expression of the row in shared memory.
    place : callable
        Function from a row and a chunk to the byte at which they begin.
    base : str
        Expression of the first byte in shared memory.
    """
    size = size_bytes(operand.layout.dtype)
    width = operand.length * size
    chunk, offset = f"element * {size} // {CHUNK}", f"element * {size} % {CHUNK}"
    target = shared_pointer(f"{base} + {place(row, chunk)} + {offset}")
    pointer = f"T.address_of({name}[place])"
    if width >= 4:
        writer.call(f"cpembed_cp_async_{width}", target, pointer, "valid")
        return
    # Shorter than cp.async takes: through registers, without overlap.
    dtype = storage_dtype(operand.layout.dtype)
    shape = f"({operand.length},)"
    writer.script.line(f'{name}_one = T.alloc_buffer({shape}, "{dtype}", scope="local")')
    register = register_pointer(f"{name}_one", "0")
    writer.call(f"cpembed_load_{width}", register, pointer, "valid")
    writer.call(f"cpembed_shared_store_{width}", target, register)
