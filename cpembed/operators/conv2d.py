"""Two-dimensional convolution: strided, dilated, grouped, in any layout of channels."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, PerAxis
from cpembed.operators.stencil import (
    WINDOW,
    Layout,
    convolution,
    image_sizes,
    layout_parameter,
    rows_and_columns,
)


def conv2d(
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
    groups: int = 1,
    layout: str = "NCHW",
    dtype: Dtypes = None,
) -> Computation:
    """``O[n,k,p,q] += I[n, c, stride*p + dilation*r - pad, ...] * W[k,c,r,s]``.

    Axes n, k, p, q, c, r, s. Operands by layout: NCHW has I [n,c,h,w], W [k,c,r,s] and
    O [n,k,p,q]; NHWC has I [n,h,w,c], W [k,r,s,c] and O [n,p,q,k]; NCHW16c, or another
    number, has blocks of channels and filters: I [n,c,h,w,ci], W [k,ki,c,ci,r,s] (KCRS in memory)
    and O [n,k,p,q,ki], with axes ci and ki within a block. A padded image reads as zero outside its
    shape.

    With ``groups`` above 1 there is an axis g after n, and ``c`` and ``k`` are the channels and
    filters of one group. Channels are then two dimensions, group and channel within it: I
    [n,g,c,h,w] and O [n,g,k,p,q] (NHWC: I [n,h,w,g,c] and O [n,p,q,g,k]), W has g first. In
    memory that is the usual layout with ``groups * c`` and ``groups * k`` channels: a reshape.

    >>> str(conv2d(n=1, c=3, h=8, w=8, k=4, r=3, s=3, pad=1, stride=2))
    'O[n, k, p, q] += (I[n, c, 2*p + r - 1, 2*q + s - 1] * W[k, c, r, s])'

    Raises :class:`WorkloadError` for a size below 1 or an output without elements.
    """
    CONV2D.check_sizes(n=n, c=c, h=h, w=w, k=k, r=r, s=s, groups=groups)
    order = Layout.of(CONV2D, layout, c=c, k=k)
    rows, columns = rows_and_columns(CONV2D, (h, w), (r, s), pad, stride, dilation)
    group = {"g": groups} if groups > 1 else {}
    output = order.indices("p, q", "k", group="".join(group))
    image = order.indices(f"{rows.index}, {columns.index}", "c", group="".join(group))
    weights = ", ".join([*group, order.channel("k"), order.window("r, s")])
    return convolution(
        CONV2D,
        f"O[n, {output}] += I[n, {image}] * W[{weights}]",
        {
            "n": n,
            **group,
            **order.axes("k", k),
            "p": rows.output_extent,
            "q": columns.output_extent,
            **order.axes("c", c),
            "r": r,
            "s": s,
        },
        (n, *order.shape((h, w), *group.values(), c)),
        padded=rows.pad > 0 or columns.pad > 0,
        dtype=dtype,
    )


CONV2D = OperatorFamily(
    "conv2d",
    "2-D convolution O[n,k,p,q] += I[n,c,p+r,q+s] * W[k,c,r,s]",
    conv2d,
    (
        *image_sizes(c="input channels (of one group)", k="filters (of one group)"),
        *WINDOW,
        Parameter("groups", "independent groups of c channels and k filters", default="1"),
        layout_parameter("NCHW", "NHWC", "with weights KRSC"),
        DTYPE,
    ),
)
