"""Depthwise two-dimensional convolution."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, PerAxis
from cpembed.operators.stencil import (
    WINDOW,
    Layout,
    convolution,
    layout_parameter,
    rows_and_columns,
)


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
    layout: str = "NCHW",
    dtype: Dtypes = None,
) -> Computation:
    """``O[n,c,p,q] += I[n,c,p+r,q+s] * W[c,r,s]``: every channel has its own filter.

    Axes n, c, p, q, r, s; operands W [c,r,s] and by layout: NCHW has I [n,c,h,w] and O [n,c,p,q],
    NHWC has I [n,h,w,c] and O [n,p,q,c], NCHW16c blocks: I [n,c,h,w,ci], O [n,c,p,q,ci] and W
    [c,ci,r,s]. With a multiplier ``m`` above 1 there is an axis m after c (in blocks ci), also in W
    and O: in memory the usual layout with ``m * c`` channels, blocks of the output ``m`` times as
    large.

    Raises :class:`WorkloadError` for a size below 1 or an output without elements.
    """
    DEPTHWISE.check_sizes(n=n, c=c, h=h, w=w, r=r, s=s, m=m)
    order = Layout.of(DEPTHWISE, layout, c=c)
    rows, columns = rows_and_columns(DEPTHWISE, (h, w), (r, s), pad, stride, dilation)
    multiplier = {"m": m} if m > 1 else {}
    image = order.indices(f"{rows.index}, {columns.index}", "c")
    output = order.indices("p, q", "c", inside="".join(multiplier))
    filters = ", ".join([order.channel("c"), *multiplier])
    return convolution(
        DEPTHWISE,
        f"O[n, {output}] += I[n, {image}] * W[{filters}, r, s]",
        {
            "n": n,
            **order.axes("c", c),
            **multiplier,
            "p": rows.output_extent,
            "q": columns.output_extent,
            "r": r,
            "s": s,
        },
        (n, *order.shape((h, w), c)),
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
        layout_parameter("NCHW", "NHWC", "(weights CRS either way)"),
        DTYPE,
    ),
)
