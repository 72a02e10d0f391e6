"""What all convolutions share: the image axes, their index expressions and output extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cpembed.operators.family import OperatorFamily, Parameter, ParameterKind, PerAxis

PAD = Parameter(
    "pad", "zeros around the image: one number or one per axis", ParameterKind.PER_AXIS, "0"
)
STRIDE = Parameter(
    "stride", "step of the filter: one number or one per axis", ParameterKind.PER_AXIS, "1"
)
DILATION = Parameter(
    "dilation", "distance of filter taps: one number or one per axis", ParameterKind.PER_AXIS, "1"
)


@dataclass(frozen=True)
class ImageAxis:
    """One image axis of a convolution: output iterator ``output``, filter iterator ``filter``."""

    output: str
    filter: str
    image_extent: int
    filter_extent: int
    pad: int
    stride: int
    dilation: int

    @property
    def output_extent(self) -> int:
        """Positions of the filter inside the padded image; below 1 where it does not fit."""
        reach = self.dilation * (self.filter_extent - 1) + 1
        return (self.image_extent + 2 * self.pad - reach) // self.stride + 1

    @property
    def index(self) -> str:
        """Image index under a filter tap, with the padding at negative indices."""
        return f"{self.stride}*{self.output} + {self.dilation}*{self.filter} - {self.pad}"


def image_axes(
    family: OperatorFamily,
    axes: Sequence[tuple[str, str, str, int, int]],
    pad: PerAxis,
    stride: PerAxis,
    dilation: PerAxis,
) -> tuple[ImageAxis, ...]:
    """Image axes from rows of (output iterator, image size name, filter iterator, their sizes).

    Raises :class:`WorkloadError` for malformed ``pad``, ``stride`` or ``dilation`` and for an
    output without elements.
    """
    pads = family.per_axis("pad", pad, len(axes), 0)
    strides = family.per_axis("stride", stride, len(axes), 1)
    dilations = family.per_axis("dilation", dilation, len(axes), 1)
    made: list[ImageAxis] = []
    for row, p, step, apart in zip(axes, pads, strides, dilations, strict=True):
        output, image, filter_axis, image_extent, filter_extent = row
        axis = ImageAxis(output, filter_axis, image_extent, filter_extent, p, step, apart)
        if axis.output_extent < 1:
            raise family.error(
                f"output axis {output} has extent {axis.output_extent} at {image}={image_extent} "
                f"{filter_axis}={filter_extent} pad={p} stride={step} dilation={apart}: "
                f"enlarge {image} or pad, or shrink {filter_axis} or dilation"
            )
        made.append(axis)
    return tuple(made)
