"""Gradients of convolutions as the convolutions that they are.

The gradient by the image (*dgrad*) at image row ``h`` sums the output's gradients that the row
contributed to: ``G[p] * W[r]`` with ``stride*p + dilation*r - pad = h``. Rows with equal remainders
``h % stride`` have the same taps, and among them the sum is a convolution of stride 1 by those taps
in reverse; so each combination of remainders, a *phase*, is a workload of its own, in which nothing
is multiplied by an inserted zero. The gradient by the filter (*wgrad*) is a convolution whose
output positions are reduced over.

>>> str(conv2d_dgrad(n=1, c=3, h=8, w=8, k=4, r=3, s=3, pad=1, stride=2, phase=1))
'O[n, c, p, q] += (G[n, k, p + r, q + s] * W[k, c, -2*r + 2, -2*s + 2])'
>>> str(conv2d_wgrad(n=1, c=3, h=8, w=8, k=4, r=3, s=3, pad=1, stride=2))
'O[k, c, r, s] += (I[n, c, 2*p + r - 1, 2*q + s - 1] * G[n, k, p, q])'
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.workloads.convolutions import (
    WINDOW,
    ImageAxis,
    image_sizes,
    layout_parameter,
    per_axis_parameter,
)
from cpembed.workloads.family import DTYPE, Dtypes, OperatorFamily, Parameter

_AXES = (("o", "d", "t"), ("p", "h", "r"), ("q", "w", "s"))
"""Iterator of the output, size of the image, and size of the filter of each axis."""

_LAYOUTS = (("NCW", "NWC", "KSC"), ("NCHW", "NHWC", "KRSC"), ("NCDHW", "NDHWC", "KTRSC"))

_PHASE = per_axis_parameter("phase", "remainder of the image's rows divided by stride", 0)


@dataclass(frozen=True)
class PhaseAxis:
    """An axis of the gradient by the image: the rows of one remainder.

    >>> axis = PhaseAxis.forward(extent=8, taps=3, pad=1, stride=2, dilation=1, phase=1)
    >>> axis.count, axis.taps, axis.first_tap, axis.tap_step
    (4, 2, 0, 2)

    Attributes
    ----------
    count : int
        Number of rows with the remainder.
    taps : int
        Number of taps that reach them; 0 if their gradient is zero.
    first_tap, tap_step : int
        Number of the first tap, and distance of the others.
    rows : int
        Number of rows of the output of the convolution.
    start : int
        Row of the output that reaches the first row by the last of the taps.
    step : int
        Rows of the output from a tap to the one before.
    """

    count: int
    taps: int
    first_tap: int
    tap_step: int
    rows: int
    start: int
    step: int

    @classmethod
    def forward(
        cls, extent: int, taps: int, pad: int, stride: int, dilation: int, phase: int
    ) -> PhaseAxis:
        """Return the axis of a phase of a convolution.

        Parameters
        ----------
        extent, taps, pad, stride, dilation
            Those of :meth:`ImageAxis.plain`.
        phase : int
            Remainder of the rows' numbers divided by the stride.
        """
        reaching = [r for r in range(taps) if (phase + pad - dilation * r) % stride == 0]
        rows = ImageAxis.plain(extent, taps, pad, stride, dilation).output_extent
        tap_step = stride // math.gcd(stride, dilation)
        last = reaching[-1] if reaching else 0
        return cls(
            count=-(-(extent - phase) // stride),
            taps=len(reaching),
            first_tap=reaching[0] if reaching else 0,
            tap_step=tap_step,
            rows=rows,
            start=(phase + pad - dilation * last) // stride,
            step=dilation * tap_step // stride,
        )

    @property
    def is_padded(self) -> bool:
        """True if some rows are reached from outside of the output."""
        last = self.start + self.count - 1 + (self.taps - 1) * self.step
        return self.start < 0 or last >= self.rows


def _values(
    family: OperatorFamily, names: tuple[str, ...], settings: Mapping[str, Any], axes: int
) -> list[dict[str, int]]:
    """Return the parameters that are per axis, by axis."""
    parameters = {p.name: int(p.default or 0) for p in family.parameters if p.name in names}
    lists = [
        family.per_axis(name, settings.get(name, least), axes, least)
        for name, least in parameters.items()
    ]
    return [dict(zip(parameters, numbers, strict=True)) for numbers in zip(*lists, strict=True)]


def _ordered(sample: list[str], channel: str, axes: list[str], *, last: bool) -> str:
    """Return the indices of an image; groups precede channels."""
    first, *groups = sample
    inner = [*groups, channel]
    return ", ".join([first, *axes, *inner] if last else [first, *inner, *axes])


def _filter(groups: list[str], axes: list[str], *, last: bool) -> str:
    return ", ".join([*groups, "k", *axes, "c"] if last else [*groups, "k", "c", *axes])


def _gradient(kind: str, dimensions: int) -> OperatorFamily:
    """Make the family of a gradient of a convolution of so many dimensions."""
    axes = _AXES[-dimensions:]
    first, last, weights = _LAYOUTS[dimensions - 1]
    letters = "nc" + "".join(size for _, size, _ in axes) + "k" + "".join(r for _, _, r in axes)
    by_image = kind == "dgrad"
    window = (*WINDOW, _PHASE) if by_image else WINDOW

    def build(*, layout: str | None = None, dtype: Dtypes = None, **values: Any) -> Computation:
        sizes = {name: values[name] for name in (*letters, "groups") if name in values}
        family.check_sizes(**sizes)
        if layout is not None:
            family.check_choice("layout", layout)
        settings = _values(family, tuple(p.name for p in window), values, dimensions)
        make = _by_image if by_image else _by_filter
        types = family.dtypes(dtype, family.inputs)
        return make(family, sizes, settings, (layout or first) == last, types)

    outputs = ",".join(output for output, _, _ in axes)
    taps = ",".join(tap for _, _, tap in axes)
    reads = ",".join(f"{output}+{tap}" for output, _, tap in axes)
    if by_image:
        subject, formula = "image", f"O[n,c,{outputs}] += G[n,k,{reads}] * W[k,c,{taps}]"
    else:
        subject, formula = "filter", f"O[k,c,{taps}] += I[n,c,{reads}] * G[n,k,{outputs}]"
    text = f"gradient of a {dimensions}-D convolution by its {subject}"
    family = OperatorFamily(
        f"conv{dimensions}d_{kind}",
        f"{text} {formula}" + ", the rows of one phase" * by_image,
        build,
        (
            *image_sizes(letters, c="input channels (of one group)", k="filters (of one group)"),
            *window,
            Parameter("groups", "independent groups of c channels and k filters", default="1"),
            layout_parameter(first, last, f"with weights {weights}", blocks=False),
            DTYPE,
        ),
    )
    return family


def _output_rows(
    family: OperatorFamily,
    sizes: Mapping[str, int],
    settings: list[dict[str, int]],
) -> list[int]:
    """Return the sizes of the convolution's output; raise an error if there is none."""
    rows: list[int] = []
    for (output, size, tap), numbers in zip(_AXES[-len(settings) :], settings, strict=True):
        plain = {name: numbers[name] for name in ("pad", "stride", "dilation")}
        extent = ImageAxis.plain(sizes[size], sizes[tap], **plain).output_extent
        if extent < 1:
            raise family.error(
                f"the convolution's output axis {output} has extent {extent} at "
                f"{size}={sizes[size]} {tap}={sizes[tap]}: enlarge {size} or pad"
            )
        rows.append(extent)
    return rows


def _by_image(
    family: OperatorFamily,
    sizes: Mapping[str, int],
    settings: list[dict[str, int]],
    last: bool,
    types: tuple[str, ...],
) -> Computation:
    """Return the gradient by the image, at the rows of one phase."""
    axes = _AXES[-len(settings) :]
    _output_rows(family, sizes, settings)
    phases: list[PhaseAxis] = []
    for (_, size, tap), numbers in zip(axes, settings, strict=True):
        if numbers["phase"] >= numbers["stride"] or numbers["phase"] >= sizes[size]:
            raise family.error(
                f"phase={numbers['phase']} is no remainder of {size}={sizes[size]} rows divided by "
                f"stride={numbers['stride']}: give one below both"
            )
        phase = PhaseAxis.forward(sizes[size], sizes[tap], **numbers)
        if not phase.taps:
            raise family.error(
                f"no tap of {tap} reaches the rows of phase={numbers['phase']} of {size}: their "
                "gradient is zero, and nothing is to be computed"
            )
        phases.append(phase)
    groups = ["g"] if sizes.get("groups", 1) > 1 else []
    outputs = [output for output, _, _ in axes]
    # Taps are counted from the last one, so that both indices grow together.
    reads = [
        f"{output} + {phase.step}*{tap} + ({phase.start})"
        for (output, _, tap), phase in zip(axes, phases, strict=True)
    ]
    taps = [
        f"{phase.first_tap} + {phase.tap_step}*({phase.taps - 1} - {tap})"
        for (_, _, tap), phase in zip(axes, phases, strict=True)
    ]
    extents = {"n": sizes["n"], "g": sizes.get("groups", 1), "c": sizes["c"]}
    extents |= {output: phase.count for output, phase in zip(outputs, phases, strict=True)}
    extents |= {"k": sizes["k"]}
    extents |= {tap: phase.taps for (_, _, tap), phase in zip(axes, phases, strict=True)}
    shapes = {name: str(extents[name]) for name in ("n", "g", "k", "c")}
    rows = [str(phase.rows) for phase in phases]
    filter_sizes = [str(sizes[tap]) for _, _, tap in axes]
    sample = ["n", *groups]
    return parse_computation(
        f"O[{_ordered(sample, 'c', outputs, last=last)}] += "
        f"G[{_ordered(sample, 'k', reads, last=last)}] * W[{_filter(groups, taps, last=last)}]",
        {name: extent for name, extent in extents.items() if name != "g" or groups},
        name=family.name,
        dtypes=dict(zip("GWO", types, strict=True)),
        shapes={
            "G": _shape(_ordered(sample, "k", rows, last=last), shapes),
            "W": _shape(_filter(groups, filter_sizes, last=last), shapes),
        },
        zero_outside=("G",) if any(phase.is_padded for phase in phases) else (),
    )


def _by_filter(
    family: OperatorFamily,
    sizes: Mapping[str, int],
    settings: list[dict[str, int]],
    last: bool,
    types: tuple[str, ...],
) -> Computation:
    """Return the gradient by the filter."""
    axes = _AXES[-len(settings) :]
    rows = _output_rows(family, sizes, settings)
    groups = ["g"] if sizes.get("groups", 1) > 1 else []
    outputs, taps = [output for output, _, _ in axes], [tap for _, _, tap in axes]
    reads = [
        ImageAxis.plain(
            sizes[size], sizes[tap], numbers["pad"], numbers["stride"], numbers["dilation"]
        ).index(output, tap)
        for (output, size, tap), numbers in zip(axes, settings, strict=True)
    ]
    extents = {"g": sizes.get("groups", 1), "k": sizes["k"], "c": sizes["c"]}
    extents |= {tap: sizes[tap] for tap in taps}
    extents |= {"n": sizes["n"], **dict(zip(outputs, rows, strict=True))}
    image = [str(sizes[size]) for _, size, _ in axes]
    shapes = {name: str(extents[name]) for name in ("n", "g", "k", "c")}
    sample = ["n", *groups]
    return parse_computation(
        f"O[{_filter(groups, taps, last=last)}] += "
        f"I[{_ordered(sample, 'c', reads, last=last)}] * "
        f"G[{_ordered(sample, 'k', outputs, last=last)}]",
        {name: extent for name, extent in extents.items() if name != "g" or groups},
        name=family.name,
        dtypes=dict(zip("IGO", types, strict=True)),
        shapes={"I": _shape(_ordered(sample, "c", image, last=last), shapes)},
        zero_outside=("I",) if any(numbers["pad"] for numbers in settings) else (),
        # Both factors are new in every call: none is packed ahead as weights are.
        varying=("G",),
    )


def _shape(names: str, sizes: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(int(sizes.get(name, name)) for name in names.split(", "))


conv1d_dgrad, conv2d_dgrad, conv3d_dgrad = (_gradient("dgrad", n) for n in (1, 2, 3))
conv1d_wgrad, conv2d_wgrad, conv3d_wgrad = (_gradient("wgrad", n) for n in (1, 2, 3))

GRADIENTS = (conv1d_dgrad, conv2d_dgrad, conv3d_dgrad, conv1d_wgrad, conv2d_wgrad, conv3d_wgrad)


def phases(
    sizes: Mapping[str, int],
    *,
    pad: int | tuple[int, ...] = 0,
    stride: int | tuple[int, ...] = 1,
    dilation: int | tuple[int, ...] = 1,
) -> list[tuple[int, ...]]:
    """Return the phases of a gradient by the image that are not zero.

    Parameters
    ----------
    sizes : mapping of str to int
        Sizes of the convolution by name; those of images and filters decide.
    pad, stride, dilation : int or tuple of int
        One number, or one for each axis of the image.

    Returns
    -------
    list of tuple of int
        Remainders of the rows of each axis, for the parameter ``phase``.

    >>> phases({"h": 8, "w": 8, "r": 1, "s": 1}, stride=2)
    [(0, 0)]
    """
    axes = [axis for axis in _AXES if axis[1] in sizes]

    def numbers(value: int | tuple[int, ...]) -> tuple[int, ...]:
        return (value,) * len(axes) if isinstance(value, int) else value

    reached: list[list[int]] = []
    for (_, size, tap), p, step, d in zip(
        axes, numbers(pad), numbers(stride), numbers(dilation), strict=True
    ):
        candidates = range(min(step, sizes[size]))
        reached.append(
            [
                a
                for a in candidates
                if PhaseAxis.forward(sizes[size], sizes[tap], p, step, d, a).taps
            ]
        )
    return list(itertools.product(*reached))
