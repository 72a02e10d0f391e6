"""Implementations of a layer, kernels of the pack and libraries; each computes it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.remote import reference
from benchmarks.gpu.remote.data import Array
from benchmarks.gpu.remote.driver import Driver, Kernels

GUARD_BYTES = 4096
"""Number of bytes behind every buffer that kernels write; they must not change."""

UNWRITTEN, GUARD = 0xA5, 0x5A

TORCH_TYPES = {
    "float16": torch.float16,
    "float32": torch.float32,
    "int8": torch.int8,
    "int32": torch.int32,
}


@dataclass(frozen=True)
class Implementation:
    """An implementation of a layer.

    ``run`` starts it on the current stream; ``result`` returns what it computed, after a run.
    ``loose``: it may add in the stored type, as libraries do.
    """

    name: str
    run: Callable[[], None]
    result: Callable[[], Array]
    loose: bool = False
    about: Mapping[str, Any] | None = None


class Buffers:
    """Device memory of a folder's kernels, by name; operands are those of the caller."""

    def __init__(
        self,
        parameters: Mapping[str, tuple[int, str]],
        operands: Mapping[str, torch.Tensor],
        device: str,
    ) -> None:
        self.memory: dict[str, torch.Tensor] = {}
        self.sizes: dict[str, int] = {}
        for name, (elements, dtype) in parameters.items():
            size = elements * np.dtype(dtype).itemsize
            tensor = operands.get(name)
            if tensor is None:
                self.sizes[name] = size
                tensor = torch.full(
                    (size + GUARD_BYTES,), UNWRITTEN, dtype=torch.uint8, device=device
                )
                tensor[size:] = GUARD
            elif tensor.numel() * tensor.element_size() != size:
                raise ValueError(f"{name} has {tensor.numel()} elements, not {elements}")
            self.memory[name] = tensor
        self.pointers = {name: tensor.data_ptr() for name, tensor in self.memory.items()}

    def overwritten(self) -> list[str]:
        """Return the buffers behind whose end something was written."""
        return [
            name
            for name, size in self.sizes.items()
            if bool((self.memory[name][size:] != GUARD).any())
        ]

    def array(self, name: str, dtype: str) -> Array:
        data = self.memory[name][: self.sizes[name]].cpu().numpy()
        return data.view(dtype)


def packed(
    layer: Mapping[str, Any],
    variant: Mapping[str, Any],
    root: Path,
    driver: Driver,
    cubin: str,
    operands: Mapping[str, torch.Tensor],
) -> Implementation:
    """Return kernels of the pack; those that prepare weights have run.

    Raises :class:`~benchmarks.gpu.remote.driver.DriverError` if they cannot be loaded.

    Parameters
    ----------
    layer, variant : mapping
        Documents of the layer and of the kernel.
    root : Path
        Folder of the pack.
    driver : Driver
        The CUDA driver.
    cubin : str
        Architecture whose machine code is loaded.
    operands : mapping of str to torch.Tensor
        Operands of the layer by name.
    """
    kernels = Kernels(driver, root / variant["folder"], cubin)
    parameters = {parameter: operands[name] for name, parameter in variant["reads"].items()}
    device = str(next(iter(operands.values())).device)
    buffers = Buffers(kernels.parameters(), parameters, device)
    before = list(variant["prepares"])
    timed = [kernel["name"] for kernel in kernels.kernels if kernel["name"] not in before]

    def stream() -> int:
        return torch.cuda.current_stream().cuda_stream if device.startswith("cuda") else 0

    def run() -> None:
        kernels.launch(buffers.pointers, timed, stream())

    def result() -> Array:
        written = buffers.overwritten()
        if written:
            raise ValueError(f"kernels write behind the end of {', '.join(written)}")
        return buffers.array(variant["writes"], layer["output"]["stored"])

    kernels.launch(buffers.pointers, before, stream())
    about = {"kernels": kernels.attributes()}
    return Implementation(variant["name"], run, result, about=about)


def libraries(
    layer: Mapping[str, Any], operands: Mapping[str, torch.Tensor]
) -> dict[str, Callable[[], torch.Tensor]]:
    """Return calls of torch, by the library's name."""
    first, second = (operands[operand["name"]] for operand in layer["inputs"])
    if layer["kind"] == "conv2d":
        if first.dtype != torch.float16:
            return {}
        return {"cuDNN": lambda: reference.convolution(layer, first, second)}
    if first.dtype == torch.int8:
        return {"cuBLAS": lambda: torch._int_mm(first, second)}
    return {"cuBLAS": lambda: first @ second}


def library(name: str, call: Callable[[], torch.Tensor]) -> Implementation:
    """Return a call of a library, which allocates its result itself."""
    last: list[torch.Tensor] = []

    def run() -> None:
        last[:] = [call()]

    return Implementation(name, run, lambda: last[0].contiguous().cpu().numpy(), loose=True)


def operands_on(arrays: Mapping[str, Array], device: str) -> dict[str, torch.Tensor]:
    """Return operands on a device."""
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
