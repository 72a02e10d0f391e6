"""Three-dimensional convolution."""

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


def conv3d(
    *,
    n: int,
    c: int,
    d: int,
    h: int,
    w: int,
    k: int,
    t: int,
    r: int,
    s: int,
    pad: PerAxis = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    layout: str = "NCDHW",
    dtype: Dtypes = None,
) -> Computation:
    """``O[n,k,o,p,q] += I[n,c,o+t,p+r,q+s] * W[k,c,t,r,s]``; axes n, k, o, p, q, c, t, r, s.

    Operands by layout: NCDHW has I [n,c,d,h,w], W [k,c,t,r,s] and O [n,k,o,p,q]; NDHWC has
    I [n,d,h,w,c], W [k,t,r,s,c] and O [n,o,p,q,k]; NCDHW16c has blocks as conv2d's. ``pad``,
    ``stride`` and ``dilation`` as in conv2d, per image axis in the order planes, rows, columns.

    Raises :class:`WorkloadError` for a size below 1 or an output without elements.
    """
    CONV3D.check_sizes(n=n, c=c, d=d, h=h, w=w, k=k, t=t, r=r, s=s)
    order = Layout.of(CONV3D, layout, c=c, k=k)
    axes = image_axes(
        CONV3D,
        (("o", "d", "t", d, t), ("p", "h", "r", h, r), ("q", "w", "s", w, s)),
        pad,
        stride,
        dilation,
    )
    outputs = {axis.output: axis.output_extent for axis in axes}
    image = ", ".join(axis.index for axis in axes)
    weights = f"{order.channel('k')}, {order.window('t, r, s')}"
    return convolution(
        CONV3D,
        f"O[n, {order.indices('o, p, q', 'k')}] += "
        f"I[n, {order.indices(image, 'c')}] * W[{weights}]",
        {
            "n": n,
            **order.axes("k", k),
            **outputs,
            **order.axes("c", c),
            "t": t,
            "r": r,
            "s": s,
        },
        (n, *order.shape((d, h, w), c)),
        padded=any(axis.pad for axis in axes),
        dtype=dtype,
    )


CONV3D = OperatorFamily(
    "conv3d",
    "3-D convolution O[n,k,o,p,q] += I[n,c,o+t,p+r,q+s] * W[k,c,t,r,s]",
    conv3d,
    (
        Parameter("n", "images"),
        Parameter("c", "input channels"),
        Parameter("d", "image planes"),
        Parameter("h", "image rows"),
        Parameter("w", "image columns"),
        Parameter("k", "filters"),
        Parameter("t", "filter planes"),
        Parameter("r", "filter rows"),
        Parameter("s", "filter columns"),
        *WINDOW,
        layout_parameter("NCDHW", "NDHWC", "with weights KTRSC"),
        DTYPE,
    ),
)
