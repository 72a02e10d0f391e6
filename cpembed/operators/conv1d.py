"""One-dimensional convolution."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, PerAxis
from cpembed.operators.stencil import (
    WINDOW,
    Layout,
    convolution,
    image_axes,
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
    and O [n,q,k]; NCW16c has blocks as conv2d's. A padded image reads as zero outside its shape.

    Raises :class:`WorkloadError` for a size below 1 or an output without elements.
    """
    CONV1D.check_sizes(n=n, c=c, w=w, k=k, s=s)
    order = Layout.of(CONV1D, layout, c=c, k=k)
    (axis,) = image_axes(CONV1D, (("q", "w", "s", w, s),), pad, stride, dilation)
    weights = f"{order.channel('k')}, {order.window('s')}"
    return convolution(
        CONV1D,
        f"O[n, {order.indices('q', 'k')}] += I[n, {order.indices(axis.index, 'c')}] * W[{weights}]",
        {"n": n, **order.axes("k", k), "q": axis.output_extent, **order.axes("c", c), "s": s},
        (n, *order.shape((w,), c)),
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
