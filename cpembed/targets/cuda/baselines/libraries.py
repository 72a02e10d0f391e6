"""Calls of cuDNN and cuBLAS by torch, and of Triton, that compute a layer of a pack."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional


def pair(layer: Mapping[str, Any], name: str, default: int) -> tuple[int, int]:
    """Return a size of two axes.

    Parameters
    ----------
    layer : mapping
        Document of the layer.
    name : str
        Name of the size.
    default : int
        Value along both axes where the layer does not have it.

    Examples
    --------
    >>> pair({"sizes": {"stride": [2]}}, "stride", 1), pair({"sizes": {}}, "pad", 0)
    ((2, 2), (0, 0))
    """
    values = layer["sizes"].get(name, [default])
    return (values[0], values[-1])


def operands_on(
    buffers: list[Mapping[str, Any]], data: Mapping[str, bytes], device: str
) -> list[torch.Tensor]:
    """Return the factors of a layer as tensors.

    Parameters
    ----------
    buffers : list of mapping
        Documents of their buffers.
    data : mapping of str to bytes
        Their elements by buffer.
    device : str
        Device of torch.
    """
    tensors: list[torch.Tensor] = []
    for buffer in buffers:
        dtype = getattr(torch, buffer["dtype"])
        tensor = torch.frombuffer(bytearray(data[buffer["name"]]), dtype=dtype)
        tensors.append(tensor.reshape(buffer["shape"]).to(device))
    return tensors


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


def calls(
    layer: Mapping[str, Any], operands: list[torch.Tensor]
) -> dict[str, Callable[[], torch.Tensor]]:
    """Return the calls that compute a layer's sums, by the library's name.

    None computes what has an epilogue beyond a conversion, or an operator of another kind.
    """
    if not layer["plain"] or len(operands) != 2:
        return {}
    first, second = operands
    halves = first.dtype in (torch.float16, torch.bfloat16)
    if layer["kind"] == "conv2d" and layer["sizes"].get("groups", [1]) == [1]:
        if not halves or "layout=NHWC" not in layer["words"].split():
            return {}
        return {"cuDNN": lambda: convolution(layer, first, second)}
    if layer["kind"] != "gemm":
        return {}
    products: dict[str, Callable[[], torch.Tensor]] = {}
    if halves:
        products["cuBLAS"] = lambda: first @ second
    elif first.dtype == second.dtype == torch.int8:
        products["cuBLAS"] = lambda: torch._int_mm(first, second)  # pyright: ignore[reportPrivateImportUsage]
    try:
        from cpembed.targets.cuda.baselines.triton_product import product
    except ImportError:
        return products
    if first.dtype == second.dtype:
        products["Triton"] = lambda: product(first, second)
    return products


def versions() -> dict[str, Any]:
    """Return the versions of the libraries."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda_of_torch": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "triton": None,
    }
    try:
        import triton  # pyright: ignore[reportMissingImports]
    except ImportError:
        return facts
    return facts | {"triton": triton.__version__}
