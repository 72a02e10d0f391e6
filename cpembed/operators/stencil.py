"""What all convolutions share: the image axes, their index expressions and output extents, the
parameters, and the computation over the operands I, W and O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import (
    Dtypes,
    OperatorFamily,
    Parameter,
    ParameterKind,
    PerAxis,
)

PAD = Parameter(
    "pad", "zeros around the image: one number or one per axis", ParameterKind.PER_AXIS, "0"
)
STRIDE = Parameter(
    "stride", "step of the filter: one number or one per axis", ParameterKind.PER_AXIS, "1"
)
DILATION = Parameter(
    "dilation", "distance of filter taps: one number or one per axis", ParameterKind.PER_AXIS, "1"
)
WINDOW = (PAD, STRIDE, DILATION)
"""The optional parameters that every convolution takes, beside ``dtype``."""


def layout_parameter(first: str, last: str, weights: str) -> Parameter:
    """The choice between channels before the image, which is the default, after it, and in blocks:
    blocks before it, the channels of one after it."""
    meaning = f"{first}, {last} {weights}, or blocks of channels as in {first}16c"
    choices = first, last, f"{first}16c"
    return Parameter("layout", meaning, ParameterKind.CHOICE, first, choices)


def block_of(layout: str) -> int:
    """Channels in a block of a layout, by its name; 1 where there are no blocks.

    >>> block_of("NCHW16c"), block_of("NHWC")
    (16, 1)
    """
    number = re.search(r"\d+", layout)
    return 1 if number is None else int(number[0])


@dataclass(frozen=True)
class Layout:
    """Where the channels of an image are: before its axes, after them (``last``), or in blocks of
    ``block``, which are before, the channels of a block after."""

    last: bool
    block: int

    @classmethod
    def of(cls, family: OperatorFamily, layout: str, **channels: int) -> Layout:
        """The layout by its name, for operands of so many ``channels``, by the size's name.

        Raises :class:`WorkloadError` for a layout that the family does not have, and for channels
        that are not whole blocks.
        """
        family.check_choice("layout", layout)
        block = block_of(layout)
        for name, count in channels.items():
            if count % block:
                raise family.error(
                    f"{name}={count} is no multiple of the {block} channels of a block of {layout}"
                )
        return cls(layout.endswith("C"), block)

    def axes(self, name: str, channels: int) -> dict[str, int]:
        """The axis of so many channels, or that of the blocks and ``<name>i`` within one."""
        if self.block == 1:
            return {name: channels}
        return {name: channels // self.block, f"{name}i": self.block}

    def channel(self, name: str) -> str:
        """Indices of the channel of weights: two in blocks, which is the same memory as one."""
        return name if self.block == 1 else f"{name}, {name}i"

    def window(self, axes: str) -> str:
        """Indices of weights after the filter's: the channel's before or after those of the
        window."""
        return f"{axes}, c" if self.last else f"{self.channel('c')}, {axes}"

    def indices(self, image: str, channel: str, *, group: str = "", inside: str = "") -> str:
        """Indices of an image or an output after the first: those of its axes, and the channel's,
        with that of its ``group`` before it and what is ``inside`` of it after it, if any."""
        before, after = (f"{group}, " if group else ""), (f", {inside}" if inside else "")
        if self.block > 1:
            return f"{before}{channel}, {image}, {channel}i{after}"
        channels = f"{before}{channel}{after}"
        return f"{image}, {channels}" if self.last else f"{channels}, {image}"

    def shape(self, image: tuple[int, ...], *channels: int) -> tuple[int, ...]:
        """Extents in the order of :meth:`indices`; of ``channels`` the last one is in blocks."""
        if self.block > 1:
            *groups, count = channels
            return (*groups, count // self.block, *image, self.block)
        return (*image, *channels) if self.last else (*channels, *image)


_SIZES = {
    "n": "images",
    "c": "input channels",
    "h": "image rows",
    "w": "image columns",
    "k": "filters",
    "r": "filter rows",
    "s": "filter columns",
}


def image_sizes(**meanings: str) -> tuple[Parameter, ...]:
    """The sizes of a 2-D convolution, with other words for some of them."""
    return tuple(Parameter(name, meaning) for name, meaning in {**_SIZES, **meanings}.items())


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


def rows_and_columns(
    family: OperatorFamily,
    image: tuple[int, int],
    window: tuple[int, int],
    pad: PerAxis,
    stride: PerAxis,
    dilation: PerAxis,
) -> tuple[ImageAxis, ImageAxis]:
    """The two axes of an image of h x w pixels under a filter of r x s; raises as
    :func:`image_axes`."""
    (h, w), (r, s) = image, window
    axes = (("p", "h", "r", h, r), ("q", "w", "s", w, s))
    rows, columns = image_axes(family, axes, pad, stride, dilation)
    return rows, columns


def convolution(
    family: OperatorFamily,
    statement: str,
    extents: Mapping[str, int],
    image: tuple[int, ...],
    *,
    padded: bool,
    dtype: Dtypes,
) -> Computation:
    """The statement ``O[...] += I[...] * W[...]`` over an image I of a shape, which reads as zero
    outside it where ``padded``."""
    image_type, weight_type, output_type = family.dtypes(dtype, family.inputs)
    return parse_computation(
        statement,
        extents,
        name=family.name,
        dtypes={"I": image_type, "W": weight_type, "O": output_type},
        shapes={"I": image},
        zero_outside=("I",) if padded else (),
    )
