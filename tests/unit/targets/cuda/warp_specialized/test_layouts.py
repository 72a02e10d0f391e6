"""Images of shared memory beside a decoder of descriptors, which follows the PTX ISA."""

from __future__ import annotations

import itertools

import pytest

from cpembed.errors import InvariantError
from cpembed.targets.cuda.warp_specialized.layouts import ALIGNMENT, Descriptor, SharedImage

SPANS = {1: 128, 2: 64, 3: 32}


def address(descriptor: int, line: int, byte: int, atoms: int = 0) -> int:
    """Shared memory's byte of a matrix: line within its atoms of eight, and byte within a line.

    "Matrix Descriptor" and "Swizzling modes": atoms of eight lines are the stride apart, ``atoms``
    further ones along a line the leading distance, and the bits of the chunk within a span are
    combined with those of the line of 128 bytes.
    """
    start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    span = SPANS[descriptor >> 62]
    assert descriptor >> 49 & 7 == 0, "the pattern begins at the address"
    linear = start + line % 8 * span + line // 8 * stride + atoms * leading + byte
    chunks = span // 16
    return linear ^ (linear >> 7 & chunks - 1) << 4


def at(image: SharedImage, base: int, row: int, depth_byte: int) -> int:
    return image.descriptor.bits + (base + image.matrix_offset(row, depth_byte) >> 4)


@pytest.mark.parametrize("span", [32, 64, 128])
@pytest.mark.parametrize("base", [0, 5 * ALIGNMENT])
def test_k_major_matrices_are_where_the_image_has_them(span: int, base: int) -> None:
    image = SharedImage(192, span)
    assert image.is_legal
    for first, deep in itertools.product(range(0, 192, 64), range(0, span, 32)):
        descriptor = at(image, base, first, deep)
        for row, byte in itertools.product(range(64), range(32)):
            expected = base + image.offset(first + row, deep + byte)
            assert address(descriptor, row, byte) == expected


@pytest.mark.parametrize("rows", [64, 128, 192, 32, 96, 16, 48])
@pytest.mark.parametrize("steps", [16, 32, 64])
def test_mn_major_matrices_are_where_the_image_has_them(rows: int, steps: int) -> None:
    image = SharedImage(rows, steps * 2, "mn")
    span = image.span
    assert image.is_legal
    assert span == next(s for s in (128, 64, 32) if rows * 2 % s == 0)
    for deep in range(0, steps, 16):
        descriptor = at(image, ALIGNMENT, 0, deep * 2)
        for row, step, half in itertools.product(range(rows), range(16), range(2)):
            atom, column = divmod(row * 2, span)
            expected = ALIGNMENT + image.offset(row, (deep + step) * 2 + half)
            assert address(descriptor, step, column + half, atom) == expected


@pytest.mark.parametrize(
    "image",
    [SharedImage(40, 64), SharedImage(24, 128), SharedImage(8, 32), SharedImage(96, 64, "mn")],
)
def test_an_image_holds_each_byte_once(image: SharedImage) -> None:
    places = {
        image.offset(row, byte)
        for row, byte in itertools.product(range(image.rows), range(image.depth_bytes))
    }
    assert places == set(range(image.content_bytes))
    assert image.bytes % ALIGNMENT == 0
    assert image.bytes >= image.content_bytes


class Script:
    """What TVMScript means, of numbers."""

    @staticmethod
    def bitwise_xor(a: int, b: int) -> int:
        return a ^ b


@pytest.mark.parametrize("span", [32, 64, 128])
def test_the_script_of_a_place(span: int) -> None:
    image = SharedImage(64, span)
    for row, chunk in itertools.product(range(64), range(span // 16)):
        place = eval(image.place("row", "chunk"), {"T": Script, "row": row, "chunk": chunk})
        assert place == image.offset(row, chunk * 16)


def test_fields_of_the_usual_descriptor() -> None:
    """CUTLASS's, of float16 in rows of 128 bytes: 64 chunks from atom to atom."""
    bits = SharedImage(128, 128).descriptor.bits
    assert (bits >> 32 & 0x3FFF, bits >> 62) == (64, 1)


def test_distances_that_do_not_fit() -> None:
    with pytest.raises(InvariantError, match="cannot hold a distance of 262144 bytes"):
        _ = Descriptor(1 << 18, 1024, 128).bits
    assert not SharedImage(64, 256).is_legal
    assert not SharedImage(8, 64, "mn").is_legal
