"""Two-dimensional convolution whose filters give a capsule: a vector per output pixel."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter, PerAxis
from cpembed.operators.stencil import WINDOW, convolution, image_sizes, rows_and_columns


def capsule_conv2d(
    *,
    n: int,
    c: int,
    h: int,
    w: int,
    k: int,
    r: int,
    s: int,
    u: int,
    pad: PerAxis = 0,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    dtype: Dtypes = None,
) -> Computation:
    """``O[n,k,p,q,u] += I[n,c,p+r,q+s] * W[k,c,r,s,u]``; axes n, k, p, q, u, c, r, s.

    The form of AMOS (2022, "CAP"): u counts the components of an output capsule, the image has
    plain pixels. Operands I [n,c,h,w], W [k,c,r,s,u], O [n,k,p,q,u]. The products of pose
    matrices of "Matrix capsules with EM routing" (2018) have a further reduction inside the
    capsule; write them as an expression, ``... I[n,c,p+r,q+s,u,x] * W[k,c,r,s,x,v]``.

    Raises :class:`WorkloadError` for a size below 1 or an output without elements.
    """
    CAPSULE_CONV2D.check_sizes(n=n, c=c, h=h, w=w, k=k, r=r, s=s, u=u)
    rows, columns = rows_and_columns(CAPSULE_CONV2D, (h, w), (r, s), pad, stride, dilation)
    outputs = {"p": rows.output_extent, "q": columns.output_extent, "u": u}
    return convolution(
        CAPSULE_CONV2D,
        f"O[n,k,p,q,u] += I[n, c, {rows.index}, {columns.index}] * W[k,c,r,s,u]",
        {"n": n, "k": k, **outputs, "c": c, "r": r, "s": s},
        (n, c, h, w),
        padded=rows.pad > 0 or columns.pad > 0,
        dtype=dtype,
    )


CAPSULE_CONV2D = OperatorFamily(
    "capsule_conv2d",
    "2-D convolution into capsules O[n,k,p,q,u] += I[n,c,p+r,q+s] * W[k,c,r,s,u]",
    capsule_conv2d,
    (*image_sizes(), Parameter("u", "components of a capsule"), *WINDOW, DTYPE),
)
