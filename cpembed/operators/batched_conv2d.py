"""Two-dimensional convolution with filters of its own for every image."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, PerAxis
from cpembed.operators.stencil import DILATION, PAD, STRIDE, image_axes


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
    rows, columns = image_axes(
        BATCHED_CONV2D, (("p", "h", "r", h, r), ("q", "w", "s", w, s)), pad, stride, dilation
    )
    image_type, weight_type, output_type = BATCHED_CONV2D.dtypes(dtype, BATCHED_CONV2D.inputs)
    outputs = {"p": rows.output_extent, "q": columns.output_extent}
    return parse_computation(
        f"O[n,k,p,q] += I[n, c, {rows.index}, {columns.index}] * W[n,k,c,r,s]",
        {"n": n, "k": k, **outputs, "c": c, "r": r, "s": s},
        name="batched_conv2d",
        dtypes={"I": image_type, "W": weight_type, "O": output_type},
        shapes={"I": (n, c, h, w)},
        zero_outside=("I",) if rows.pad or columns.pad else (),
    )


BATCHED_CONV2D = OperatorFamily(
    "batched_conv2d",
    "2-D convolution with filters per image O[n,k,p,q] += I[n,c,p+r,q+s] * W[n,k,c,r,s]",
    batched_conv2d,
    (
        Parameter("n", "images, each with its own filters"),
        Parameter("c", "input channels"),
        Parameter("h", "image rows"),
        Parameter("w", "image columns"),
        Parameter("k", "filters of one image"),
        Parameter("r", "filter rows"),
        Parameter("s", "filter columns"),
        PAD,
        STRIDE,
        DILATION,
        DTYPE,
    ),
)
