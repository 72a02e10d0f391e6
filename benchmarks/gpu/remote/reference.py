"""Compute a layer in float64 by torch: exact for integers, far closer than kernels for floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu.remote.data import Array, Exact


def pair(layer: Mapping[str, Any], name: str, default: int) -> tuple[int, int]:
    """Return a size of two axes.

    >>> pair({"sizes": {"stride": [2]}}, "stride", 1), pair({"sizes": {}}, "pad", 0)
    ((2, 2), (0, 0))
    """
    values = layer["sizes"].get(name, [default])
    return (values[0], values[-1])


def convolution(
    layer: Mapping[str, Any], image: torch.Tensor, filters: torch.Tensor
) -> torch.Tensor:
    """Convolve an image with filters whose channels come last, as the result's do.

    They are views in torch's own order in the memory format ``channels_last``.

    Parameters
    ----------
    layer : mapping
        Document of the layer.
    image, filters : torch.Tensor
        Operands.
    """
    output = functional.conv2d(
        image.permute(0, 3, 1, 2),
        filters.permute(0, 3, 1, 2),
        stride=pair(layer, "stride", 1),
        padding=pair(layer, "pad", 0),
        dilation=pair(layer, "dilation", 1),
    )
    return output.permute(0, 2, 3, 1)


def product(layer: Mapping[str, Any], first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the layer's result.

    Parameters
    ----------
    layer : mapping
        Document of the layer.
    first, second : torch.Tensor
        Operands.
    """
    return convolution(layer, first, second) if layer["kind"] == "conv2d" else first @ second


def exact(layer: Mapping[str, Any], arrays: Mapping[str, Array], device: str) -> Exact:
    """Return the sums in float64, which hold every product and every sum of integers exactly.

    Parameters
    ----------
    layer : mapping
        Document of the layer.
    arrays : mapping of str to array
        Operands.
    device : str
        Device of torch that computes.
    """
    first, second = (
        torch.from_numpy(arrays[operand["name"]]).to(device).double() for operand in layer["inputs"]
    )
    sums = product(layer, first, second)
    magnitudes = product(layer, first.abs(), second.abs())
    return Exact(sums.cpu().contiguous().numpy(), magnitudes.cpu().contiguous().numpy())
