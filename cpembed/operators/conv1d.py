"""One-dimensional convolution."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, PerAxis
from cpembed.operators.stencil import (
    WINDOW,
    convolution,
    image_axes,
    is_channels_last,
    layout_parameter,
)


def conv1d(
    *,
    n: int,
    c: int,
    w: int,
    k: int,
    s: int,
    pad: PerAxis = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    layout: str = "NCW",
    dtype: Dtypes = None,
) -> Computation:
    """``O[n,k,q] += I[n, c, stride*q + dilation*s - pad] * W[k,c,s]``; axes n, k, q, c, s.

    Operands by layout: NCW has I [n,c,w], W [k,c,s] and O [n,k,q]; NWC has I [n,w,c], W [k,s,c]
    and O [n,q,k]. A padded image reads as zero outside its shape.

    Raises :class:`WorkloadError` for a size below 1 or an output without elements.
    """
    CONV1D.check_sizes(n=n, c=c, w=w, k=k, s=s)
    channels_last = is_channels_last(CONV1D, layout)
    (axis,) = image_axes(CONV1D, (("q", "w", "s", w, s),), pad, stride, dilation)
    if channels_last:
        statement = f"O[n,q,k] += I[n,{axis.index},c] * W[k,s,c]"
    else:
        statement = f"O[n,k,q] += I[n,c,{axis.index}] * W[k,c,s]"
    return convolution(
        CONV1D,
        statement,
        {"n": n, "k": k, "q": axis.output_extent, "c": c, "s": s},
        (n, w, c) if channels_last else (n, c, w),
        padded=axis.pad > 0,
        dtype=dtype,
    )


CONV1D = OperatorFamily(
    "conv1d",
    "1-D convolution O[n,k,q] += I[n,c,q+s] * W[k,c,s]",
    conv1d,
    (
        Parameter("n", "images"),
        Parameter("c", "input channels"),
        Parameter("w", "image columns"),
        Parameter("k", "filters"),
        Parameter("s", "filter columns"),
        *WINDOW,
        layout_parameter("NCW", "NWC", "with weights KSC"),
        DTYPE,
    ),
)
