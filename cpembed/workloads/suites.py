"""Suites: named tables of layers, each a workload at fixed sizes.

``deepbench`` is the table of the 108 inference convolutions of Baidu's DeepBench (server and
device), the workloads of Rieber et al. 2021; sizes are facts, the table is this project's own.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.operators.conv2d import conv2d
from cpembed.operators.family import Dtypes

SUITES: dict[str, str] = {"deepbench": "108 inference convolutions of DeepBench"}
"""Name of each suite and what it is; the table is the CSV file of that name beside this module."""


@dataclass(frozen=True)
class Layer:
    """A convolution of a suite; ``pad`` and ``stride`` are rows, columns."""

    suite: str
    index: int
    application: str
    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    pad: tuple[int, int]
    stride: tuple[int, int]

    @property
    def label(self) -> str:
        """The layer in the naming of the command line.

        >>> suite("deepbench")[0].label
        'conv2d n=1 c=1 h=161 w=700 k=32 r=5 s=20 pad=0 stride=2'
        """
        sizes = {name: getattr(self, name) for name in ("n", "c", "h", "w", "k", "r", "s")}
        words = [f"{name}={value}" for name, value in sizes.items()]
        for name, (rows, columns) in (("pad", self.pad), ("stride", self.stride)):
            words.append(f"{name}={rows}" if rows == columns else f"{name}={rows},{columns}")
        return f"conv2d {' '.join(words)}"

    def workload(self, dtypes: Dtypes = None, layout: str = "NCHW") -> Computation:
        """The convolution on operands of ``dtypes`` (see :func:`cpembed.operators.conv2d`)."""
        return conv2d(
            n=self.n,
            c=self.c,
            h=self.h,
            w=self.w,
            k=self.k,
            r=self.r,
            s=self.s,
            pad=self.pad,
            stride=self.stride,
            layout=layout,
            dtype=dtypes,
        )


@cache
def suite(name: str) -> tuple[Layer, ...]:
    """The layers of a suite, in order; raises :class:`WorkloadError` for an unknown name."""
    if name not in SUITES:
        raise WorkloadError(f"unknown suite {name!r}: use {' '.join(SUITES)}")
    text = files("cpembed.workloads").joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return tuple(_layer(name, row) for row in csv.DictReader(text.splitlines()))


def layer(name: str, index: int) -> Layer:
    """One layer of a suite; raises :class:`WorkloadError` for an unknown suite or index."""
    layers = suite(name)
    if not 0 <= index < len(layers):
        raise WorkloadError(f"{name}:{index}: no such layer; {name} has 0 to {len(layers) - 1}")
    return layers[index]


def _layer(name: str, row: dict[str, str]) -> Layer:
    return Layer(
        suite=name,
        index=int(row["index"]),
        application=row["application"],
        n=int(row["n"]),
        c=int(row["c"]),
        h=int(row["h"]),
        w=int(row["w"]),
        k=int(row["k"]),
        r=int(row["r"]),
        s=int(row["s"]),
        pad=(int(row["pad_h"]), int(row["pad_w"])),
        stride=(int(row["stride_h"]), int(row["stride_w"])),
    )
