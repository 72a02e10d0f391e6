"""Two-dimensional convolution with filters of its own for every image."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, PerAxis
from cpembed.operators.stencil import WINDOW, convolution, image_sizes, rows_and_columns


def batched_conv2d(
    *,
    n: int,
    c: int,
    h: int,
    w: int,
    k: int,
    r: int,
    s: int,
    pad: PerAxis = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    dtype: Dtypes = None,
) -> Computation:
    """``O[n,k,p,q] += I[n,c,p+r,q+s] * W[n,k,c,r,s]``; axes n, k, p, q, c, r, s.

    The batch is one of independent convolutions: conditionally parameterised convolutions
    (CondConv, 2019) compute the filters from the image, and AMOS (2022, "BCV") takes them as an
    operand. Operands I [n,c,h,w], W [n,k,c,r,s], O [n,k,p,q].

    Raises :class:`WorkloadError` for a size below 1 or an output without elements.
    """
    BATCHED_CONV2D.check_sizes(n=n, c=c, h=h, w=w, k=k, r=r, s=s)
    rows, columns = rows_and_columns(BATCHED_CONV2D, (h, w), (r, s), pad, stride, dilation)
    outputs = {"p": rows.output_extent, "q": columns.output_extent}
    return convolution(
        BATCHED_CONV2D,
        f"O[n,k,p,q] += I[n, c, {rows.index}, {columns.index}] * W[n,k,c,r,s]",
        {"n": n, "k": k, **outputs, "c": c, "r": r, "s": s},
        (n, c, h, w),
        padded=rows.pad > 0 or columns.pad > 0,
        dtype=dtype,
    )


BATCHED_CONV2D = OperatorFamily(
    "batched_conv2d",
    "2-D convolution with filters per image O[n,k,p,q] += I[n,c,p+r,q+s] * W[n,k,c,r,s]",
    batched_conv2d,
    (*image_sizes(n="images, each with its own filters", k="filters of one image"), *WINDOW, DTYPE),
)
