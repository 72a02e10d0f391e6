"""Suites: named tables of layers, each an operator at fixed sizes.

The table of a suite is the CSV file of its name in this folder: one row per layer, whose ``layer``
column names it as the command line does. The sizes are facts of the sources that :data:`SUITES`
names; the tables were made for this project.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.workloads.convolutions import block_of
from cpembed.workloads.family import Dtypes, OperatorFamily, matches_choice
from cpembed.workloads.operators import OPERATORS

SUITES: dict[str, str] = {
    "deepbench": "108 inference convolutions of DeepBench",
    "amos": "124 configurations of the 15 operators of AMOS (ISCA 2022), batch 1",
    "unit16": "16 convolutions of table I of UNIT (CGO 2021); sizes include the padding",
    "unit_conv3d": "11 convolutions of ResNet-18 made 3-D by UNIT; sizes include the padding",
    "resnet18": "11 distinct convolutions of ResNet-18, of 20 layers, batch 1",
    "resnet50": "20 distinct convolutions of ResNet-50 (v1), of 53 layers, batch 1",
    "odd": "14 convolutions that are in no list: primes, one pixel, few channels, odd strides",
    "mobilenet": "9 depthwise convolutions of MobileNet (v1), of 13 layers, batch 1",
    "attention": "batched products of attention: scores and sums of values, 5 sizes, batch 1",
    "gemm": "88 inference matrix products of DeepBench, 75 for servers, then 13 for devices",
}
"""Name and description of each suite."""

DEFAULT_LAYOUT = "NCHW"
"""Channels before the image, called ``NCDHW`` with planes and ``NCW`` for a row; also the layout of
operators without a choice."""

LAYOUTS = ("NCHW", "NHWC", "NCHW16c")
"""Layouts of a suite, whatever its operators call them; a number stands for any."""


def is_layout(layout: str) -> bool:
    """True for one of :data:`LAYOUTS`."""
    return any(matches_choice(choice, layout) for choice in LAYOUTS)


@dataclass(frozen=True)
class Layer:
    """An operator at fixed sizes; ``count`` is the number of such layers in the network.

    ``label`` names the layer as the command line does.

    >>> suite("deepbench")[0].label
    'conv2d n=1 c=1 h=161 w=700 k=32 r=5 s=20 pad=0 stride=2'
    """

    suite: str
    index: int
    application: str
    label: str
    count: int = 1

    @property
    def operator(self) -> OperatorFamily:
        """The operator that the label names."""
        return OPERATORS[self.label.split()[0]]

    @property
    def parameters(self) -> Mapping[str, str]:
        """The operator's parameters as text.

        >>> suite("deepbench")[41].parameters["stride"]
        '2,8'
        """
        words = (word.partition("=") for word in self.label.split()[1:])
        return MappingProxyType({name: value for name, _, value in words})

    def workload(self, dtypes: Dtypes = None, layout: str = DEFAULT_LAYOUT) -> Computation:
        """Return the layer as a computation, on operands of these element types.

        Raises :class:`WorkloadError` if the operator does not have the layout.
        """
        # A layout that the layer itself names is not exchanged for the suite's.
        layouts = {} if "layout" in self.parameters else self.layout_settings(layout)
        settings = {"dtype": dtypes, **layouts}
        return self.operator.workload({**self.parameters, **settings})

    def layout_settings(self, layout: str) -> dict[str, object]:
        """Translate a layout of images with two axes to the operator's parameter.

        With planes, ``NHWC`` is called ``NDHWC`` and ``NCHW16c`` is called ``NCDHW16c``. The result
        is empty if the operator has no layouts.

        >>> layer("unit_conv3d", 0).layout_settings("NHWC")
        {'layout': 'NDHWC'}

        Raises :class:`WorkloadError` if the operator does not have the layout.
        """
        operator = self.operator
        choices = next((p.choices for p in operator.parameters if p.name == "layout"), ())
        if not choices and layout == DEFAULT_LAYOUT:
            return {}
        for choice in choices:
            if matches_choice(choice, layout):
                return {"layout": layout}
            # With planes or in a row, names differ in between: NDHWC, NWC.
            if is_layout(layout) and choice[-1] == layout[-1]:
                return {"layout": re.sub(r"\d+", str(block_of(layout)), choice)}
        if choices:
            operator.check_choice("layout", layout)
        raise WorkloadError(
            f"{self.suite}:{self.index}: {operator.name} has no layout {layout}; leave layout out"
        )


# Tables are read on first use: few commands name a layer.
@cache
def suite(name: str) -> tuple[Layer, ...]:
    """Return the layers of a suite, in order; raise :class:`WorkloadError` for an unknown name."""
    if name not in SUITES:
        raise WorkloadError(f"unknown suite {name!r}: use {' '.join(SUITES)}")
    text = files("cpembed.workloads").joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return tuple(
        Layer(name, int(row["index"]), row["application"], row["layer"], count=int(row["count"]))
        for row in csv.DictReader(text.splitlines())
    )


def layer(name: str, index: int) -> Layer:
    """Return a layer of a suite; raise :class:`WorkloadError` for an unknown suite or index."""
    layers = suite(name)
    if not 0 <= index < len(layers):
        raise WorkloadError(f"{name}:{index}: no such layer; {name} has 0 to {len(layers) - 1}")
    return layers[index]
