"""Images of factors in shared memory, and the descriptors by which ``wgmma`` reads them.

An image consists of rows of 32, 64 or 128 bytes, one after the other, whose chunks of 16 bytes are
permuted within spans as long as a row (PTX ISA, "Shared Memory Matrix Layout" and "Swizzling
modes"). It is the image that TMA writes for a box with such rows and the swizzle of the same span.

K-major, a row holds a row of the factor along the depth. MN-major, it holds 64, 32 or 16 neighbours
of 16 bits along the other dimension at one place of the depth; rows of all places of the depth
follow each other, and then those of the next neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cpembed.errors import InvariantError
from cpembed.targets.cuda.writer import Writer, shared_pointer

CHUNK = 16
"""Number of bytes that swizzles move together."""

SPANS = (128, 64, 32)
"""Number of bytes of a row, and of the span in which its chunks are permuted."""

PATTERN_ROWS = 8
"""Number of rows of a matrix that hardware reads at a time, at a common distance."""

ALIGNMENT = 1024
"""Bytes that the address of an image is a multiple of: the longest period of a swizzle."""

Major = Literal["k", "mn"]

# PTX ISA, "Matrix Descriptor": bits 62 and 63.
_SWIZZLE_CODES = {128: 1, 64: 2, 32: 3}
_ENCODED_BITS = 14


@dataclass(frozen=True)
class Descriptor:
    """Fields of a matrix descriptor beside the address, in bytes.

    ``leading_bytes`` lie between neighbouring atoms along the contiguous dimension, which K-major
    images that are as wide as their swizzle do not have; ``stride_bytes`` between atoms of eight
    rows.
    """

    leading_bytes: int
    stride_bytes: int
    swizzle: int

    @property
    def bits(self) -> int:
        """The 64 bits of a descriptor of address 0."""
        leading, stride = _encoded(self.leading_bytes), _encoded(self.stride_bytes)
        return leading << 16 | stride << 32 | _SWIZZLE_CODES[self.swizzle] << 62


def _encoded(size: int) -> int:
    code, rest = divmod(size, CHUNK)
    if rest or not 0 <= code < 1 << _ENCODED_BITS:
        raise InvariantError(f"a descriptor cannot hold a distance of {size} bytes")
    return code


@dataclass(frozen=True)
class SharedImage:
    """A factor in one stage of shared memory.

    Attributes
    ----------
    rows : int
        Number of rows or columns of the product, a multiple of eight.
    depth_bytes : int
        Number of bytes of one of them along the depth.
    major : {"k", "mn"}
        Dimension that is contiguous. MN-major elements have 16 bits.
    """

    rows: int
    depth_bytes: int
    major: Major = "k"

    @property
    def span(self) -> int:
        """Number of bytes of a row of the image."""
        if self.major == "k":
            return self.depth_bytes
        return next((span for span in SPANS if self.rows * 2 % span == 0), 0)

    @property
    def content_bytes(self) -> int:
        return self.rows * self.depth_bytes

    @property
    def bytes(self) -> int:
        """Number of bytes, such that another image can follow."""
        return -(-self.content_bytes // ALIGNMENT) * ALIGNMENT

    @property
    def is_legal(self) -> bool:
        return self.span in SPANS and self.rows % PATTERN_ROWS == 0

    @property
    def descriptor(self) -> Descriptor:
        atom = PATTERN_ROWS * self.span
        if self.major == "k":
            # The leading dimension's distance is not used; the ISA assumes 1.
            return Descriptor(CHUNK, atom, self.span)
        # MN-major: the next neighbours lie behind all places of the depth.
        return Descriptor(self.depth_bytes // 2 * self.span, atom, self.span)

    def matrix_offset(self, row: int, depth_byte: int) -> int:
        """Return the distance in bytes of the descriptor of a matrix from that of the image.

        The matrix begins at a row that is a multiple of eight (K-major) or of a row of the image
        (MN-major), and at a byte of the depth that is a multiple of 32.
        """
        if self.major == "k":
            return row * self.span + depth_byte
        places, neighbours = self.depth_bytes // 2, self.span // 2
        return (row // neighbours * places + depth_byte // 2) * self.span

    @property
    def transposed(self) -> bool:
        """True if a row of the image is a step of the depth."""
        return self.major == "mn"

    def place(self, row: str, chunk: str) -> str:
        """Return TVMScript of the byte at which a chunk of a row of the image begins.

        MN-major, the chunks of a step of the depth go on in the next neighbours.
        """
        chunks = self.span // CHUNK
        turn = row if chunks == PATTERN_ROWS else f"({row}) // {PATTERN_ROWS // chunks}"
        begin = f"({row}) * {self.span}"
        if self.transposed:
            begin = f"({chunk}) // {chunks} * {self.depth_bytes // 2 * self.span} + {begin}"
            chunk = f"({chunk}) % {chunks}"
        permuted = f"T.bitwise_xor({chunk}, ({turn}) % {chunks})"
        return f"{begin} + {permuted} * {CHUNK}"

    def matrix_moves(self, row: int, depth_byte: int) -> tuple[int, int]:
        """Return what the place of a matrix is changed by: an exclusive or, and a sum.

        The matrix begins so many rows of the factor, and bytes along its depth, behind the place.
        """
        if self.transposed:
            moved = row % (self.span // 2) // PATTERN_ROWS * CHUNK
            return moved, self.matrix_offset(row, depth_byte)
        return depth_byte, row * self.span

    def offset(self, row: int, depth_byte: int) -> int:
        """Return the byte of the image that holds a byte along the depth of a row or column."""
        if self.major == "mn":
            neighbours = self.span // 2
            line = row // neighbours * (self.depth_bytes // 2) + depth_byte // 2
            column = row % neighbours * 2 + depth_byte % 2
        else:
            line, column = row, depth_byte
        chunks = self.span // CHUNK
        turn = line // (PATTERN_ROWS // chunks) % chunks
        return line * self.span + (column // CHUNK ^ turn) * CHUNK + column % CHUNK


def write_descriptor(writer: Writer, name: str, image: SharedImage, place: str) -> None:
    """Write a variable with the descriptor of an image.

    Parameters
    ----------
    writer : Writer
    name : str
        The variable.
    image : SharedImage
    place : str
        Expression of the byte at which the image, or a matrix of it, begins.
    """
    bits = image.descriptor.bits
    # TVM reads constants of 64 bits with a sign.
    fields = f"T.int64({bits - (bits >> 63 << 64)})"
    writer.value(name, "cpembed_matrix_descriptor", "uint64", shared_pointer(place), fields)
