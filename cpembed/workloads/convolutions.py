"""Every convolution: a statement with channels first, its parameters, and its layouts.

A family is a statement ``O[...] += I[...] * W[...]`` with channels before the axes of the image. An
index ``p+r`` of I says that r walks the filter's taps at output position p. What pads, strides,
dilations and layouts make of these indices is the same for all families. A padded image reads as
zero outside its shape. Axes are in the order of the output's indices, then of the filter's.

>>> str(conv2d(n=1, c=3, h=8, w=8, k=4, r=3, s=3, pad=1, stride=2))
'O[n, k, p, q] += (I[n, c, 2*p + r - 1, 2*q + s - 1] * W[k, c, r, s])'
>>> str(transposed_conv2d(n=1, c=4, h=8, w=8, k=3, r=3, s=3, pad=1, stride=2))
'O[n, k, p, q] += (I[n, c, p + r - 1, q + s - 1] * W[c, k, -r + 2, -s + 2])'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.workloads.family import DTYPE, Dtypes, OperatorFamily, Parameter, ParameterKind


def per_axis_parameter(name: str, meaning: str, smallest: int) -> Parameter:
    """Make a parameter of one number per image axis, by default the smallest allowed number.

    Parameters
    ----------
    name, meaning : str
        Name, and description for the list of operators.
    smallest : int
        The smallest allowed number.
    """
    text = f"{meaning}: one number or one per axis"
    return Parameter(name, text, ParameterKind.PER_AXIS, str(smallest))


_DILATION = per_axis_parameter("dilation", "distance of filter taps", 1)
WINDOW = (
    per_axis_parameter("pad", "zeros around the image", 0),
    per_axis_parameter("stride", "step of the filter", 1),
    _DILATION,
)
"""Optional parameters of an ordinary convolution, in addition to ``dtype``."""

_SIZES = {
    "n": "images",
    "c": "input channels",
    "d": "image planes",
    "h": "image rows",
    "w": "image columns",
    "k": "filters",
    "t": "filter planes",
    "r": "filter rows",
    "s": "filter columns",
}
_IMAGE_SIZES = {"o": "d", "p": "h", "q": "w"}
"""Size of the image along the axis of each output iterator."""


def image_sizes(names: str, **meanings: str) -> tuple[Parameter, ...]:
    """Make the sizes of these letters, with a different meaning for some of them."""
    return tuple(Parameter(name, {**_SIZES, **meanings}[name]) for name in names)


def layout_parameter(first: str, last: str, weights: str, *, blocks: bool = True) -> Parameter:
    """Make the choice of layouts: channels before the image (the default), after it, or in blocks.

    Parameters
    ----------
    first, last : str
        Names of the layouts with channels before and after the image.
    weights : str
        Layout of the weights, for the list of operators.
    blocks : bool
        True if channels may be in blocks too.
    """
    if not blocks:
        meaning, choices = f"{first}, or {last} {weights}", (first, last)
        return Parameter("layout", meaning, ParameterKind.CHOICE, default=first, choices=choices)
    meaning = f"{first}, {last} {weights}, or blocks of channels as in {first}16c"
    choices = first, last, f"{first}16c"
    return Parameter("layout", meaning, ParameterKind.CHOICE, default=first, choices=choices)


def block_of(layout: str) -> int:
    """Number of channels in a block of a layout, by its name; 1 if it has no blocks.

    >>> block_of("NCHW16c"), block_of("NHWC")
    (16, 1)
    """
    number = re.search(r"\d+", layout)
    return 1 if number is None else int(number[0])


@dataclass(frozen=True)
class Layout:
    """Position of the channels of an image: before its axes, after them (``last``), or in blocks.

    With blocks of ``block`` channels, c and k count the blocks and precede the image's axes; ci and
    ki count the channels within a block and follow them. All methods take lists of axis names with
    channels first, the order of the statement.

    >>> Layout(last=True).image(["n", "c", "h", "w"], ["h", "w"])
    ['n', 'h', 'w', 'c']
    >>> Layout(block=16).image(["n", "c", "h", "w"], ["h", "w"])
    ['n', 'c', 'h', 'w', 'ci']
    """

    last: bool = False
    block: int = 1

    @classmethod
    def named(cls, family: OperatorFamily, layout: str, sizes: Mapping[str, int]) -> Layout:
        """Look a layout up by its name.

        Raises :class:`WorkloadError` for a layout that the family does not have, and for a number
        of channels that is not a multiple of the block.
        """
        family.check_choice("layout", layout)
        block = block_of(layout)
        for name in ("c", "k"):
            if sizes.get(name, 0) % block:
                raise family.error(
                    f"{name}={sizes[name]} is no multiple of the {block} channels of a block of "
                    f"{layout}"
                )
        return cls(layout.endswith("C"), block)

    def split(self, names: Iterable[str]) -> list[str]:
        """Add the axis within a block after each axis of channels."""
        if self.block == 1:
            return list(names)
        return [axis for name in names for axis in (name, f"{name}i")[: 1 + (name in "ck")]]

    def image(self, names: list[str], axes: list[str]) -> list[str]:
        """Order the indices of an image, or an output, whose pixels have these axes."""
        start = names.index(axes[0])
        sample, channels, inner = names[0], names[1:start], names[start + len(axes) :]
        if self.block > 1:
            blocks = 1 + next(i for i, name in enumerate(channels) if name in "ck")
            inner = [f"{channels[blocks - 1]}i", *channels[blocks:], *inner]
            channels = channels[:blocks]
        elif self.last:
            return [sample, *axes, *channels, *inner]
        return [sample, *channels, *axes, *inner]

    def weights(self, names: list[str], result: list[str]) -> list[str]:
        """Order the indices of the weights."""
        # Blocks only split axes: the weights lie in memory as they do without blocks.
        if not self.last:
            return self.split(names)
        # Channels that are summed over come last, as in the image; those of a depthwise filter, in
        # the result too, stay.
        summed = [name for name in names if name == "c" and name not in result]
        return [name for name in names if name not in summed] + summed


@dataclass(frozen=True)
class ImageAxis:
    """An axis of an image under a filter.

    >>> ImageAxis.plain(extent=8, taps=3, pad=1, stride=2, dilation=1).output_extent
    4

    Attributes
    ----------
    extent : int
        Size of the image, including zeros that were inserted between pixels.
    taps : int
        Size of the filter.
    before, after : int
        Number of zeros at the two ends; below 0 where the image is cut off.
    stride : int
        Step of the filter.
    dilation : int
        Distance of neighbouring taps.
    flipped : bool
        True if the filter's last tap comes first.
    pixel_step : int
        Distance of neighbouring pixels; the elements between them are zeros.
    """

    extent: int
    taps: int
    before: int
    after: int
    stride: int
    dilation: int
    flipped: bool = False
    pixel_step: int = 1

    @classmethod
    def plain(cls, extent: int, taps: int, pad: int, stride: int, dilation: int) -> ImageAxis:
        """Make an axis of an ordinary convolution, with the same padding at both ends."""
        return cls(extent, taps, before=pad, after=pad, stride=stride, dilation=dilation)

    @classmethod
    def spread(
        cls, extent: int, taps: int, pad: int, stride: int, dilation: int, output_pad: int
    ) -> ImageAxis:
        """Make an axis of a transposed convolution: ``stride - 1`` zeros between pixels, step 1."""
        # Zeros for all that the rotated filter reaches, minus what the output is cut off.
        edge = dilation * (taps - 1) - pad
        size, after = stride * (extent - 1) + 1, edge + output_pad
        axis = cls(size, taps, before=edge, after=after, stride=1, dilation=dilation)
        return replace(axis, flipped=True, pixel_step=stride)

    @property
    def output_extent(self) -> int:
        """Number of positions of the filter in the padded image; below 1 if it does not fit."""
        reach = self.dilation * (self.taps - 1) + 1
        return (self.extent + self.before + self.after - reach) // self.stride + 1

    def index(self, output: str, tap: str) -> str:
        """Index of the image under a tap, as text; the padding is at negative indices."""
        return f"{self.stride}*{output} + {self.dilation}*{tap} - ({self.before})"


@dataclass(frozen=True)
class _Form:
    """A statement ``O[...] += I[...] * W[...]`` with channels first, as lists of names.

    ``axes`` has, for each axis of the image, the iterator of the output, the name of the image's
    size (which stands for its index in ``image``) and the iterator of the filter.
    """

    axes: list[tuple[str, str, str]]
    result: list[str]
    image: list[str]
    weights: list[str]

    @classmethod
    def parse(cls, statement: str) -> _Form:
        """Parse a statement whose indices ``p+r`` are those of the image's axes.

        >>> _Form.parse("O[n,k,q] += I[n,c,q+s] * W[k,c,s]").axes
        [('q', 'w', 's')]
        """
        result, image, weights = (names.split(",") for names in re.findall(r"\[(.*?)\]", statement))
        axes = [(i[0], _IMAGE_SIZES[i[0]], i[2]) for i in image if "+" in i]
        plain = [i for i in image if "+" not in i]
        # The last letter of `R-1-r`, the index of a flipped filter, is its iterator.
        return cls(axes, result, plain + [size for _, size, _ in axes], [i[-1] for i in weights])

    def with_options(self, sizes: Mapping[str, int]) -> _Form:
        """Add axes for groups (g) and for the filters of a channel (m) if there are several."""
        # At these places, g and c (or c and m) are a reshape of the usual channels in memory.
        result, image, weights = [*self.result], [*self.image], [*self.weights]
        if sizes.get("groups", 1) > 1:
            result[1:1] = image[1:1] = weights[:0] = ["g"]
        if sizes.get("m", 1) > 1:
            result[2:2] = weights[1:1] = ["m"]
        return _Form(self.axes, result, image, weights)

    def computation(
        self,
        family: OperatorFamily,
        sizes: Mapping[str, int],
        axes: list[ImageAxis],
        layout: Layout,
        types: tuple[str, ...],
    ) -> Computation:
        """Write the statement at fixed sizes and layout, and parse it."""
        extents = {**sizes, "g": sizes.get("groups", 1)}
        for name in "ck":
            if name in sizes and layout.block > 1:
                extents |= {name: sizes[name] // layout.block, f"{name}i": layout.block}
        # Indices that are more than a name, by the name that stands for them.
        text: dict[str, str] = {}
        for (output, size, tap), axis in zip(self.axes, axes, strict=True):
            extents |= {output: axis.output_extent, size: axis.extent}
            text[size] = axis.index(output, tap)
            text[tap] = f"{axis.taps - 1} - {tap}" if axis.flipped else tap

        def indices(names: list[str]) -> str:
            return ", ".join(text.get(name, name) for name in names)

        result = layout.image(self.result, [output for output, _, _ in self.axes])
        image = layout.image(self.image, [size for _, size, _ in self.axes])
        weights = layout.weights(self.weights, self.result)
        loops = layout.split(dict.fromkeys([*self.result, *self.weights]))
        steps = {size: axis.pixel_step for (_, size, _), axis in zip(self.axes, axes, strict=True)}
        computation = parse_computation(
            f"O[{indices(result)}] += I[{indices(image)}] * W[{indices(weights)}]",
            {name: extents[name] for name in loops},
            name=family.name,
            dtypes=dict(zip("IWO", types, strict=True)),
            shapes={"I": tuple(extents[name] for name in image)},
            # Without padding every access has to stay inside, which the parser then checks.
            zero_outside=("I",) if any(a.before > 0 or a.after > 0 for a in axes) else (),
        )
        if not any(axis.flipped for axis in axes):
            return computation
        return spread_operand(computation, "I", [steps.get(name, 1) for name in image])


def spread_operand(workload: Computation, name: str, steps: Sequence[int]) -> Computation:
    """Mark an operand as one with zeros inserted between its elements.

    Parameters
    ----------
    workload : Computation
        The computation.
    name : str
        The operand.
    steps : sequence of int
        Distance of neighbouring elements in each dimension; 1 where no zeros are inserted.
    """
    return workload.with_operands(
        lambda o: replace(o, spread=tuple(steps)) if o.name == name else o
    )


def convolution(
    name: str,
    summary: str,
    statement: str,
    parameters: tuple[Parameter, ...],
    *,
    axis: Callable[..., ImageAxis] = ImageAxis.plain,
    remedy: str = "enlarge {0} or pad, or shrink {1} or dilation",
    note: str = "",
) -> OperatorFamily:
    """Make the family of a statement with channels first.

    Parameters
    ----------
    name : str
        Name of the operator.
    summary : str
        Short description, printed before the statement.
    statement : str
        Statement with channels first and indices ``p+r`` along the image's axes.
    parameters : tuple of Parameter
        The parameters; ``dtype`` is added.
    axis : callable
        Makes an :class:`ImageAxis` of its extent, its taps and the parameters that are per axis.
    remedy : str
        Advice for an output without elements; ``{0}`` and ``{1}`` are the names of the sizes of
        image and filter.
    note : str
        Conditions on the operands, printed after the statement.
    """
    form = _Form.parse(statement)
    per_axis = [p for p in parameters if p.kind is ParameterKind.PER_AXIS]
    size_names = [p.name for p in parameters if p.kind is ParameterKind.SIZE]

    def image_axes(sizes: Mapping[str, int], settings: Mapping[str, Any]) -> Iterator[ImageAxis]:
        lists: list[tuple[int, ...]] = []
        for p in per_axis:
            smallest = int(p.default or 0)
            value = settings.get(p.name, smallest)
            lists.append(family.per_axis(p.name, value, len(form.axes), smallest))
        for (output, size, tap), numbers in zip(form.axes, zip(*lists, strict=True), strict=True):
            window = dict(zip([p.name for p in per_axis], numbers, strict=True))
            output_pad = window.pop("output_pad", 0)
            # The rows that the filter reaches in part are fewer than the stride or the dilation.
            if output_pad and output_pad >= max(window["stride"], window["dilation"]):
                raise family.error(
                    f"output_pad={output_pad} is not below stride={window['stride']} or "
                    f"dilation={window['dilation']}"
                )
            image_axis = axis(sizes[size], sizes[tap], *numbers)
            if image_axis.output_extent < 1:
                text = " ".join(f"{name}={number}" for name, number in window.items())
                raise family.error(
                    f"output axis {output} has extent {image_axis.output_extent} at "
                    f"{size}={sizes[size]} {tap}={sizes[tap]} {text}: {remedy.format(size, tap)}"
                )
            yield image_axis

    def build(*, layout: str | None = None, dtype: Dtypes = None, **values: Any) -> Computation:
        sizes = {name: values[name] for name in size_names if name in values}
        family.check_sizes(**sizes)
        order = Layout() if layout is None else Layout.named(family, layout, sizes)
        axes = list(image_axes(sizes, values))
        types = family.dtypes(dtype, family.inputs)
        return form.with_options(sizes).computation(family, sizes, axes, order, types)

    description = f"{summary} {statement}{note}"
    family = OperatorFamily(name, description, build, (*parameters, DTYPE))
    return family


conv1d = convolution(
    "conv1d",
    "1-D convolution",
    "O[n,k,q] += I[n,c,q+s] * W[k,c,s]",
    (*image_sizes("ncwks"), *WINDOW, layout_parameter("NCW", "NWC", "with weights KSC")),
)
conv2d = convolution(
    "conv2d",
    "2-D convolution",
    "O[n,k,p,q] += I[n,c,p+r,q+s] * W[k,c,r,s]",
    (
        *image_sizes("nchwkrs", c="input channels (of one group)", k="filters (of one group)"),
        *WINDOW,
        Parameter("groups", "independent groups of c channels and k filters", default="1"),
        layout_parameter("NCHW", "NHWC", "with weights KRSC"),
    ),
)
# With `groups` above 1 there is an axis g after n, and c and k are the channels and filters of one
# group. Channels are then two dimensions, group and channel within it: I [n,g,c,h,w] and
# O [n,g,k,p,q] (NHWC: I [n,h,w,g,c] and O [n,p,q,g,k]), W has g first. In memory that is the usual
# layout with groups * c and groups * k channels: a reshape.
"""Operands by layout: NCHW has I [n,c,h,w], W [k,c,r,s] and O [n,k,p,q]; NHWC has I [n,h,w,c],
W [k,r,s,c] and O [n,p,q,k]; NCHW16c, or another number, has I [n,c,h,w,ci], W [k,ki,c,ci,r,s] (KCRS
in memory) and O [n,k,p,q,ki]."""
conv3d = convolution(
    "conv3d",
    "3-D convolution",
    "O[n,k,o,p,q] += I[n,c,o+t,p+r,q+s] * W[k,c,t,r,s]",
    (*image_sizes("ncdhwktrs"), *WINDOW, layout_parameter("NCDHW", "NDHWC", "with weights KTRSC")),
)
depthwise = convolution(
    "depthwise",
    "depthwise 2-D convolution",
    "O[n,c,p,q] += I[n,c,p+r,q+s] * W[c,r,s]",
    (
        *image_sizes("nchwrs", c="channels"),
        Parameter("m", "filters per channel", default="1"),
        *WINDOW,
        layout_parameter("NCHW", "NHWC", "(weights CRS either way)"),
    ),
)
"""Every channel has its own filter. With a multiplier ``m`` above 1 there is an axis m after c (in
blocks ci), also in W and O: in memory the usual layout with ``m * c`` channels, blocks of the
output ``m`` times as large."""
batched_conv2d = convolution(
    "batched_conv2d",
    "2-D convolution with filters per image",
    "O[n,k,p,q] += I[n,c,p+r,q+s] * W[n,k,c,r,s]",
    (
        *image_sizes("nchwkrs", n="images, each with its own filters", k="filters of one image"),
        *WINDOW,
    ),
)
"""A batch of independent convolutions: conditionally parameterised convolutions (CondConv, 2019)
compute the filters from the image, and AMOS (2022, "BCV") takes them as an operand."""
capsule_conv2d = convolution(
    "capsule_conv2d",
    "2-D convolution into capsules",
    "O[n,k,p,q,u] += I[n,c,p+r,q+s] * W[k,c,r,s,u]",
    (*image_sizes("nchwkrsu", u="components of a capsule"), *WINDOW),
)
"""The form of AMOS (2022, "CAP"): u counts the components of an output capsule, the image has plain
pixels. The products of pose matrices of "Matrix capsules with EM routing" (2018) have a further
reduction inside the capsule; write them as an expression, ``... I[n,c,p+r,q+s,u,x] *
W[k,c,r,s,x,v]``."""
transposed_conv2d = convolution(
    "transposed_conv2d",
    "transposed 2-D convolution",
    "O[n,k,p,q] += I[n,c,p+r,q+s] * W[c,k,R-1-r,S-1-s]",
    (
        *image_sizes(
            "nchwkrs",
            h="image rows before they are spread",
            w="image columns before they are spread",
            k="output channels",
        ),
        per_axis_parameter("pad", "output rows and columns cut off each edge", 0),
        per_axis_parameter("stride", "distance of pixels in the spread image", 1),
        _DILATION,
        per_axis_parameter("output_pad", "output rows and columns added at the end", 0),
    ),
    axis=ImageAxis.spread,
    remedy="enlarge {0} or {1}, or shrink pad",
    note=", I spread",
)
# Every pixel (y, x) adds its multiple of the filter to the output at row stride*y + dilation*r -
# pad; columns alike. Gathered, an output row reads the pixels whose row is a multiple of the stride
# apart, which no affine index says. So I is the spread image, on which the operator is an ordinary
# convolution of stride 1 with the filter rotated by 180 degrees. The index rotates, r' = R-1-r:
# W [c,k,r,s] is the filter of the forward convolution.
"""Gradient of a convolution by its image, on the *spread* image, with ``stride - 1`` zeros between
pixels: I [n, c, stride*(h-1)+1, stride*(w-1)+1]. This is also the form of AMOS (2022, "T2D").
``macs`` counts products with the zeros of the spread image, ``useful_macs`` those with pixels."""
