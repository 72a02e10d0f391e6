"""Three-dimensional convolution."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, PerAxis
from cpembed.operators.stencil import WINDOW, convolution, image_axes


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
    dtype: Dtypes = None,
) -> Computation:
    """``O[n,k,o,p,q] += I[n,c,o+t,p+r,q+s] * W[k,c,t,r,s]``; axes n, k, o, p, q, c, t, r, s.

    Operands I [n,c,d,h,w], W [k,c,t,r,s], O [n,k,o,p,q]; ``pad``, ``stride`` and ``dilation`` as
    in conv2d, per image axis in the order planes, rows, columns.

    Raises :class:`WorkloadError` for a size below 1 or an output without elements.
    """
    CONV3D.check_sizes(n=n, c=c, d=d, h=h, w=w, k=k, t=t, r=r, s=s)
    axes = image_axes(
        CONV3D,
        (("o", "d", "t", d, t), ("p", "h", "r", h, r), ("q", "w", "s", w, s)),
        pad,
        stride,
        dilation,
    )
    outputs = {axis.output: axis.output_extent for axis in axes}
    return convolution(
        CONV3D,
        f"O[n,k,o,p,q] += I[n, c, {', '.join(axis.index for axis in axes)}] * W[k,c,t,r,s]",
        {"n": n, "k": k, **outputs, "c": c, "t": t, "r": r, "s": s},
        (n, c, d, h, w),
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
        DTYPE,
    ),
)
