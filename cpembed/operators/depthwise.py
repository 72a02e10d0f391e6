"""Depthwise two-dimensional convolution."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, PerAxis
from cpembed.operators.stencil import DILATION, PAD, STRIDE, image_axes


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
    rows, columns = image_axes(
        DEPTHWISE, (("p", "h", "r", h, r), ("q", "w", "s", w, s)), pad, stride, dilation
    )
    image_type, weight_type, output_type = DEPTHWISE.dtypes(dtype, 2)
    multiplier = {"m": m} if m > 1 else {}
    output_channel, filter_channel = ("c, m", "c,m") if multiplier else ("c", "c")
    return parse_computation(
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
        name="depthwise",
        dtypes={"I": image_type, "W": weight_type, "O": output_type},
        shapes={"I": (n, c, h, w)},
        zero_outside=("I",) if rows.pad or columns.pad else (),
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
        PAD,
        STRIDE,
        DILATION,
        DTYPE,
    ),
)
