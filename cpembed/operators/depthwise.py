"""Depthwise two-dimensional convolution."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, PerAxis
from cpembed.operators.stencil import WINDOW, convolution, rows_and_columns


def depthwise(
    *,
    n: int,
    c: int,
    h: int,
    w: int,
    r: int,
    s: int,
    m: int = 1,
    pad: PerAxis = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    dtype: Dtypes = None,
) -> Computation:
    """``O[n,c,p,q] += I[n,c,p+r,q+s] * W[c,r,s]``: every channel has its own filter.

    Axes n, c, p, q, r, s; operands I [n,c,h,w], W [c,r,s], O [n,c,p,q]. With a multiplier ``m``
    above 1 there is an axis m after c, W is [c,m,r,s] and O [n,c,m,p,q]: in memory the usual
    layout with ``m * c`` channels.

    Raises :class:`WorkloadError` for a size below 1 or an output without elements.
    """
    DEPTHWISE.check_sizes(n=n, c=c, h=h, w=w, r=r, s=s, m=m)
    rows, columns = rows_and_columns(DEPTHWISE, (h, w), (r, s), pad, stride, dilation)
    multiplier = {"m": m} if m > 1 else {}
    output_channel, filter_channel = ("c, m", "c,m") if multiplier else ("c", "c")
    return convolution(
        DEPTHWISE,
        f"O[n, {output_channel}, p, q] += "
        f"I[n, c, {rows.index}, {columns.index}] * W[{filter_channel},r,s]",
        {
            "n": n,
            "c": c,
            **multiplier,
            "p": rows.output_extent,
            "q": columns.output_extent,
            "r": r,
            "s": s,
        },
        (n, c, h, w),
        padded=rows.pad > 0 or columns.pad > 0,
        dtype=dtype,
    )


DEPTHWISE = OperatorFamily(
    "depthwise",
    "depthwise 2-D convolution O[n,c,p,q] += I[n,c,p+r,q+s] * W[c,r,s]",
    depthwise,
    (
        Parameter("n", "images"),
        Parameter("c", "channels"),
        Parameter("h", "image rows"),
        Parameter("w", "image columns"),
        Parameter("r", "filter rows"),
        Parameter("s", "filter columns"),
        Parameter("m", "filters per channel", default="1"),
        *WINDOW,
        DTYPE,
    ),
)
