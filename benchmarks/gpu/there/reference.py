"""A layer in float64 by torch: exact for integers, and far closer than any kernel for floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu.there.data import Array, Exact


def pair(layer: Mapping[str, Any], name: str, default: int) -> tuple[int, int]:
    """A size of two axes.

    >>> pair({"sizes": {"stride": [2]}}, "stride", 1), pair({"sizes": {}}, "pad", 0)
    ((2, 2), (0, 0))
    """
    found = layer["sizes"].get(name, [default])
    return (found[0], found[-1])


def convolution(
    layer: Mapping[str, Any], image: torch.Tensor, filters: torch.Tensor
) -> torch.Tensor:
    """Of an image and filters whose channels come last, as views: torch's own order in the
    memory format ``channels_last``. The result likewise.
    """
    found = functional.conv2d(
        image.permute(0, 3, 1, 2),
        filters.permute(0, 3, 1, 2),
        stride=pair(layer, "stride", 1),
        padding=pair(layer, "pad", 0),
        dilation=pair(layer, "dilation", 1),
    )
    return found.permute(0, 2, 3, 1)


def product(layer: Mapping[str, Any], first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return convolution(layer, first, second) if layer["kind"] == "conv2d" else first @ second


def exact(layer: Mapping[str, Any], arrays: Mapping[str, Array], device: str) -> Exact:
    """By operations in float64, which hold every product and every sum of integers exactly."""
    first, second = (
        torch.from_numpy(arrays[operand["name"]]).to(device).double() for operand in layer["inputs"]
    )
    sums = product(layer, first, second)
    magnitudes = product(layer, first.abs(), second.abs())
    return Exact(sums.cpu().contiguous().numpy(), magnitudes.cpu().contiguous().numpy())
