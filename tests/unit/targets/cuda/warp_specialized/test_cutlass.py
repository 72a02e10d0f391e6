"""Descriptors and tensor maps beside the rules that CUTLASS states and executes on GPUs.

Rules are quoted from CUTLASS 4.8 with their files; nothing of the package computes them.
"""

from __future__ import annotations

import itertools

import pytest

from cpembed.targets.cuda.tma.tensor_maps import Im2colBox
from cpembed.targets.cuda.tma.views import image_views
from cpembed.targets.cuda.warp_specialized.layouts import SharedImage
from tests.unit.targets.cuda.tma.test_views import products

CHUNK = 8
"""``T`` of the canonical layouts: elements of 16 bits in 16 bytes."""


def swizzle(bits: int, byte: int) -> int:
    """``Swizzle<bits,4,3>`` (cute/swizzle.hpp): bits 7 and up are combined with bits 4 and up."""
    return byte ^ (byte >> 7 & (1 << bits) - 1) << 4


def fields(image: SharedImage) -> tuple[int, int, int]:
    """Leading and stride offsets in elements, and width in chunks, that a descriptor says."""
    bits = image.descriptor.bits
    # cute/arch/mma_sm90_desc.hpp: bits 16, 32 and 62; the base offset, bits 49 to 51, is 0.
    assert bits >> 49 & 7 == 0
    width = {0: 1, 1: 8, 2: 4, 3: 2}[bits >> 62]
    return (bits >> 16 & 0x3FFF) * CHUNK, (bits >> 32 & 0x3FFF) * CHUNK, width


@pytest.mark.parametrize("span, bits", [(128, 3), (64, 2), (32, 1)])
def test_k_major_images_are_canonical(span: int, bits: int) -> None:
    """``((8,m),(T,2)) : ((W*T,SBO),(1,T))`` with W chunks a row (mma_traits_sm90_gmma.hpp)."""
    image = SharedImage(64, span)
    leading, stride, width = fields(image)
    # "Unused for all SWIZZLE_* layouts (and assumed to be 1)".
    assert (leading, width * 16) == (CHUNK, span)
    for row, (deep, element) in itertools.product(
        range(64), itertools.product(range(2), range(CHUNK))
    ):
        canonical = row % 8 * width * CHUNK + row // 8 * stride + deep * CHUNK + element
        byte = (deep * CHUNK + element) * 2
        assert swizzle(bits, canonical * 2) == image.offset(row, byte)


@pytest.mark.parametrize("rows, bits", [(128, 3), (256, 3), (96, 2), (48, 1)])
@pytest.mark.parametrize("deep", [16, 64])
def test_mn_major_images_are_canonical(rows: int, bits: int, deep: int) -> None:
    """``((T,W,m),(8,k)) : ((1,T,LBO),(W*T,SBO))`` (mma_traits_sm90_gmma.hpp)."""
    image = SharedImage(rows, deep * 2, "mn")
    leading, stride, width = fields(image)
    assert width == 1 << bits
    for row, place in itertools.product(range(rows), range(deep)):
        element, chunk, block = row % CHUNK, row // CHUNK % width, row // CHUNK // width
        canonical = element + chunk * CHUNK + block * leading
        canonical += place % 8 * width * CHUNK + place // 8 * stride
        assert swizzle(bits, canonical * 2) == image.offset(row, place * 2)


@pytest.mark.parametrize(
    "n, c, h, w, taps, pad, stride, dilation",
    [
        (2, 64, 14, 14, (3, 3), (1, 1), (1, 1), (1, 1)),
        (1, 32, 15, 13, (3, 5), (1, 2), (2, 1), (1, 1)),
        (2, 16, 12, 20, (3, 3), (2, 1), (1, 2), (2, 1)),
    ],
)
def test_corners_and_filters_are_those_of_forward_convolutions(
    n: int, c: int, h: int, w: int, taps: tuple[int, int], pad: tuple[int, int],
    stride: tuple[int, int], dilation: tuple[int, int],
) -> None:  # fmt: skip
    """Arrays begin with the width, as CuTe's of ``(C,W,H,N)`` do, whatever order cuda.h names.

    conv/collective/detail.hpp: lower corner ``-pad``, upper ``pad - (taps - 1) * dilation``.
    cute/atom/copy_traits_sm90_im2col.hpp: ``(size + upper - lower - 1) / stride + 1`` bases.
    """
    words = (
        f"conv2d n={n} c={c} h={h} w={w} k=16 r={taps[0]} s={taps[1]} pad={pad[0]},{pad[1]} "
        f"stride={stride[0]},{stride[1]} dilation={dilation[0]},{dilation[1]} layout=NHWC"
    )
    views = [v for p in products(words, "fused") for v in image_views(p, 0, 1, 1) if v.is_im2col]
    # Rows that walk along the width, then the height; other embeddings have other orders.
    strides = tuple(2 * c * pixels for pixels in (1, w, w * h)[: 3 if n > 1 else 2])
    walks = [view for view in views if view.tensor_map.global_strides[: len(strides)] == strides]
    assert walks
    for view in walks:
        box = view.tensor_map.box
        assert isinstance(box, Im2colBox)
        assert view.tensor_map.global_dims == (c, w, h, n)
        assert view.tensor_map.element_strides == (1, stride[1], stride[0], 1)
        assert box.lower == (-pad[1], -pad[0])
        upper = [p - (t - 1) * d for p, t, d in zip(pad, taps, dilation, strict=True)]
        bases = [
            (size + up + p - 1) // step + 1
            for size, up, p, step in zip((h, w), upper, pad, stride, strict=True)
        ]
        assert view.tensor_map.bases == tuple(reversed(bases))
        names = [index.iterators for copy in view.copies for index in copy.filter]
        assert [[name[0] for name in sorted(each)] for each in names] == [["s"], ["r"]]


@pytest.mark.parametrize("words", ["gemm m=100 n=72 k=200", "gemm m=72 n=136 k=40 trans_a=1"])
def test_barriers_expect_the_bytes_of_whole_boxes(words: str) -> None:
    """Zeros outside of the array count too.

    TmaTransactionBytes of sm90_mma_tma_gmma_ss_warpspecialized.hpp is that of the tiles of a stage,
    wherever these lie.
    """
    for product in products(words, "fused"):
        for number, rows in ((0, product.instruction.m), (1, product.instruction.n)):
            for tiles in (2, 8):
                for view in image_views(product, number, tiles, 4):
                    assert view.transaction_bytes == tiles * rows * 4 * product.instruction.k * 2
