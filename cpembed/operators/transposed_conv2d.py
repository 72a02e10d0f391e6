"""Transposed two-dimensional convolution: the gradient of a convolution by its image."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.ir.computation import Computation
from cpembed.operators.family import (
    DTYPE,
    Dtypes,
    OperatorFamily,
    Parameter,
    ParameterKind,
    PerAxis,
)
from cpembed.operators.stencil import DILATION, convolution, image_sizes


def transposed_conv2d(
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
    output_pad: PerAxis = 0,
    dtype: Dtypes = None,
) -> Computation:
    """``O[n,k,p,q] += I[n, c, p + r - edge, q + s - edge] * W[c,k,r',s']``.

    Every pixel (y, x) of the image adds its multiple of the filter to the output at row
    ``stride*y + dilation*r - pad``; columns alike. Gathered, an output row reads the pixels whose
    row is a multiple of the stride apart, which no affine index says. So the operand I is the
    *spread* image, with ``stride - 1`` zeros between pixels: I [n, c, stride*(h-1)+1,
    stride*(w-1)+1]. On it the operator is an ordinary convolution of stride 1 with the filter
    turned by 180 degrees, which is also the form of AMOS (2022, "T2D"). The turn is in the index,
    ``r' = R-1-r``: W [c,k,r,s] is the filter of the forward convolution. Axes n, k, p, q, c, r, s.
    ``macs`` counts products with the zeros of the spread image.

    ``pad`` rows and columns are cut off each edge of the output, ``output_pad`` are added at its
    end, where the filter reaches only in part; it is below the stride or the dilation.

    >>> str(transposed_conv2d(n=1, c=4, h=8, w=8, k=3, r=3, s=3, pad=1, stride=2))
    'O[n, k, p, q] += (I[n, c, p + r - 1, q + s - 1] * W[c, k, -r + 2, -s + 2])'

    Raises :class:`WorkloadError` for a size below 1 or an output without elements.
    """
    family = TRANSPOSED_CONV2D
    family.check_sizes(n=n, c=c, h=h, w=w, k=k, r=r, s=s)
    settings = zip(
        (("p", "h", "r", h, r), ("q", "w", "s", w, s)),
        family.per_axis("pad", pad, 2, 0),
        family.per_axis("stride", stride, 2, 1),
        family.per_axis("dilation", dilation, 2, 1),
        family.per_axis("output_pad", output_pad, 2, 0),
        strict=True,
    )
    rows, columns = (_axis(*names, *numbers) for names, *numbers in settings)
    outputs = {"p": rows.output_extent, "q": columns.output_extent}
    return convolution(
        family,
        f"O[n,k,p,q] += I[n, c, {rows.index}, {columns.index}] * W[c, k, {r - 1}-r, {s - 1}-s]",
        {"n": n, "k": k, **outputs, "c": c, "r": r, "s": s},
        (n, c, rows.spread, columns.spread),
        padded=rows.leaves_image or columns.leaves_image,
        dtype=dtype,
    )


@dataclass(frozen=True)
class _Axis:
    """One image axis: output iterator ``output``, filter iterator ``filter``."""

    output: str
    filter: str
    spread: int
    reach: int
    pad: int
    dilation: int
    output_pad: int

    @property
    def output_extent(self) -> int:
        return self.spread + self.reach - 1 - 2 * self.pad + self.output_pad

    @property
    def edge(self) -> int:
        """Zeros in front of the spread image; negative where pixels are cut off."""
        return self.reach - 1 - self.pad

    @property
    def index(self) -> str:
        return f"{self.output} + {self.dilation}*{self.filter} - ({self.edge})"

    @property
    def leaves_image(self) -> bool:
        return self.edge > 0 or self.output_extent + self.reach - 1 - self.edge > self.spread


def _axis(
    output: str,
    image: str,
    filter_axis: str,
    image_extent: int,
    filter_extent: int,
    pad: int,
    stride: int,
    dilation: int,
    output_pad: int,
) -> _Axis:
    if output_pad and output_pad >= max(stride, dilation):
        raise TRANSPOSED_CONV2D.error(
            f"output_pad={output_pad} is not below stride={stride} or dilation={dilation}"
        )
    spread = stride * (image_extent - 1) + 1
    reach = dilation * (filter_extent - 1) + 1
    axis = _Axis(output, filter_axis, spread, reach, pad, dilation, output_pad)
    if axis.output_extent < 1:
        raise TRANSPOSED_CONV2D.error(
            f"output axis {output} has extent {axis.output_extent} at {image}={image_extent} "
            f"{filter_axis}={filter_extent} pad={pad} stride={stride} dilation={dilation}: "
            f"enlarge {image} or {filter_axis}, or shrink pad"
        )
    return axis


TRANSPOSED_CONV2D = OperatorFamily(
    "transposed_conv2d",
    "transposed 2-D convolution O[n,k,p,q] += I[n,c,p+r,q+s] * W[c,k,R-1-r,S-1-s], I spread",
    transposed_conv2d,
    (
        *image_sizes(
            h="image rows before they are spread",
            w="image columns before they are spread",
            k="output channels",
        ),
        Parameter(
            "pad",
            "output rows and columns cut off each edge: one number or one per axis",
            ParameterKind.PER_AXIS,
            "0",
        ),
        Parameter(
            "stride",
            "distance of pixels in the spread image: one number or one per axis",
            ParameterKind.PER_AXIS,
            "1",
        ),
        DILATION,
        Parameter(
            "output_pad",
            "output rows and columns added at the end: one number or one per axis",
            ParameterKind.PER_AXIS,
            "0",
        ),
        DTYPE,
    ),
)
