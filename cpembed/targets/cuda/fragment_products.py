"""Fragments and products of one warp as TensorIR: ``ldmatrix`` and ``mma.sync``, or WMMA.

Kernels differ in how factors reach a stage of shared memory. What a warp does with it is the same:
it loads the fragments of one instruction's depth while those of the one before are multiplied, into
two sets of registers in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import TensorCoreInstruction
from cpembed.targets.cuda.multistage.schedule import CHUNK, SharedTile
from cpembed.targets.cuda.writer import Writer, register_pointer, shared_pointer

MATRIX_BYTES = 2 * CHUNK
"""Number of bytes along the depth of the factors of one instruction."""


class MatrixImage(Protocol):
    """A factor in a stage of shared memory, whose chunks of 16 bytes are permuted."""

    @property
    def transposed(self) -> bool:
        """True if a row is a step of the depth."""
        ...

    def place(self, row: str, chunk: str) -> str:
        """Return TVMScript of the byte at which a chunk of a row begins."""
        ...

    def matrix_moves(self, row: int, depth_byte: int) -> tuple[int, int]:
        """Return what the place of a matrix is changed by: an exclusive or, and a sum."""
        ...


class FragmentProducts:
    """Writer of a warp's loads of fragments from a stage, and of its products.

    The script has the variables ``lane``, ``warp_row`` and ``warp_column``.

    Parameters
    ----------
    writer : Writer
    instruction : TensorCoreInstruction
        Instruction of a warp.
    tile : tuple of int and int
        Number of instruction tiles of the warp along rows and columns.
    images : tuple of MatrixImage and MatrixImage
        Both factors in a stage.
    places : tuple of str and str
        Expressions of the bytes at which they begin.
    """

    def __init__(
        self,
        writer: Writer,
        instruction: TensorCoreInstruction,
        tile: tuple[int, int],
        images: tuple[MatrixImage, MatrixImage],
        places: tuple[str, str],
    ) -> None:
        self.writer, self.script = writer, writer.script
        self.instruction, self.tile = instruction, tile
        self.images, self.places = images, places

    def allocate(self) -> None:
        """Write the arrays of fragments and sums."""
        (rows, columns), count = self.tile, self.instruction.registers
        # Two sets of fragments: one is multiplied while the other is loaded.
        for name, registers in (("first", 2 * rows * count[0]), ("second", 2 * columns * count[1])):
            self.script.line(f'{name} = T.alloc_buffer(({registers},), "uint32", scope="local")')
        self.script.line(f'sums = T.alloc_buffer(({self.sums},), "{self._dtype}", scope="local")')

    @property
    def sums(self) -> int:
        """Number of registers of a lane's sums."""
        return self.tile[0] * self.tile[1] * self.instruction.registers[2]

    @property
    def _dtype(self) -> str:
        # Two sums of float16 share a register of 32 bits.
        return "uint32" if self.instruction.c == "float16" else self.instruction.c

    def clear(self) -> None:
        """Write the zeros that sums begin with."""
        with self.script.nested(f"for i in T.unroll({self.sums}):"):
            self.script.line(f"sums[i] = T.{self._dtype}(0)")

    def locate(self) -> None:
        """Write ``first_place`` and ``second_place``: bytes of a lane's rows in an image."""
        for name, place in zip(("first", "second"), self._rows(), strict=True):
            self.script.line(f"{name}_place = {place}")

    def _rows(self) -> tuple[str, str]:
        """Return the bytes of a lane's row and chunk of the first depth in a stage."""
        (rows, columns), (m, n) = self.tile, (self.instruction.m, self.instruction.n)
        # Four matrices of 8 rows of 16 bytes each are the first factor of one instruction, or the
        # second factor of two. Where they are transposed, their rows are steps of the depth.
        row, chunk = f"warp_row * {rows * m} + lane % 16", "lane // 16"
        if self.images[0].transposed:
            row, chunk = "lane // 16 * 8 + lane % 8", f"warp_row * {rows * m // 8} + lane // 8 % 2"
        first = self.images[0].place(row, chunk)
        row, chunk = f"warp_column * {columns * n} + lane // 16 * {n} + lane % 8", "lane // 8 % 2"
        if self.images[1].transposed:
            row, chunk = "lane % 16", f"warp_column * {columns * n // 8} + lane // 16"
        return first, self.images[1].place(row, chunk)

    def load(self, inner: int, fragments: int) -> None:
        """Write loads of the depth ``inner`` of a stage into a set of fragments, 0 or 1."""
        (rows, columns), (m, n) = self.tile, (self.instruction.m, self.instruction.n)
        for i in range(rows):
            self._load_matrices(4, 0, (fragments * rows + i) * 4, (i * m, inner))
        for j in range(0, columns, 2):
            count = 4 if j + 1 < columns else 2
            self._load_matrices(count, 1, (fragments * columns + j) * 2, (j * n, inner))

    def _load_matrices(self, count: int, number: int, register: int, at: tuple[int, int]) -> None:
        """Write one ``ldmatrix`` of a factor, at a row and a number along the depth."""
        image, name = self.images[number], ("first", "second")[number]
        # Places of all depths are computed before the loop, to which LDSM adds the stage.
        moved, offset = image.matrix_moves(at[0], at[1] * MATRIX_BYTES)
        place = f"T.bitwise_xor({name}_place, {moved}) + {self.places[number]} + {offset}"
        self.writer.call(
            f"cpembed_ldmatrix_x{count}{'_trans' * image.transposed}",
            register_pointer(name, str(register)),
            shared_pointer(place),
        )

    def multiply(self, fragments: int) -> None:
        """Write the products of a set of fragments."""
        (rows, columns), count = self.tile, self.instruction.registers
        first, second = fragments * rows * count[0], fragments * columns * count[1]
        with self.script.nested(f"for i in T.unroll({rows}):", f"for j in T.unroll({columns}):"):
            self.writer.call(
                self.instruction.mma_function,
                register_pointer("sums", f"(i * {columns} + j) * {count[2]}"),
                register_pointer("first", f"{first} + i * {count[0]}"),
                register_pointer("second", f"{second} + j * {count[1]}"),
            )

    def stage(
        self,
        depth: int,
        first_set: int,
        begin: Callable[[], None],
        end: Callable[[Callable[[], None]], None],
    ) -> None:
        """Write the products of a stage, whose first fragments are loaded.

        Parameters
        ----------
        depth : int
            Number of instruction tiles along the depth of a stage.
        first_set : int
            Set of fragments, 0 or 1, that holds the first.
        begin : callable
            Writes what is done behind the loads of the second fragments.
        end : callable
            Writes what is done before the last products: the change to the next stage, and the
            loads of its first fragments, which are written by the callable that it takes.
        """
        for inner in range(depth):
            current, following = (first_set + inner) % 2, (first_set + inner + 1) % 2
            if inner + 1 < depth:
                self.load(inner + 1, following)
            if inner == 0:
                begin()
            if inner + 1 == depth:
                end(partial(self.load, 0, following))
            self.multiply(current)


class WmmaProducts(FragmentProducts):
    """Writer of WMMA's loads, of rows of the first factor and columns of the second."""

    images: tuple[SharedTile, SharedTile]

    def _rows(self) -> tuple[str, str]:
        (rows, columns), instruction = self.tile, self.instruction
        first = f"warp_row * {rows * instruction.m * self.images[0].pitch}"
        second = f"warp_column * {columns * instruction.n * self.images[1].pitch}"
        return first, second

    def load(self, inner: int, fragments: int) -> None:
        extents = (self.instruction.m, self.instruction.n)
        for number, name in enumerate(("first", "second")):
            count, pitch = self.tile[number], self.images[number].pitch
            size = size_bytes((self.instruction.a, self.instruction.b)[number])
            for i in range(count):
                offset = inner * self.instruction.k * size + i * extents[number] * pitch
                register = (fragments * count + i) * self.instruction.registers[number]
                self.writer.call(
                    self.instruction.load_functions[number],
                    register_pointer(name, str(register)),
                    shared_pointer(f"{name}_place + {self.places[number]} + {offset}"),
                    str(pitch // size),
                )
