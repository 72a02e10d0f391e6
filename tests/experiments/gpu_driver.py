"""A CUDA driver without a GPU: kernels of a pack are run by the executor of their CUDA text."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.targets.cuda.executor import Launch, compile_text


class EmulatedLibrary:
    """What :class:`benchmarks.gpu.remote.driver.Driver` calls of libcuda. ``launched``: names and
    pointers, in order; ``broken``: names of kernels that fail when they are launched."""

    def __init__(self, root: Path, cubin: str = "sm_80") -> None:
        self.folders = {
            path.read_bytes(): path.parent for path in root.glob(f"kernels/*/kernel.{cubin}.cubin")
        }
        self.modules: list[Path] = []
        self.functions: list[tuple[Path, dict[str, Any]]] = []
        self.launched: list[tuple[str, list[int]]] = []
        self.shared: dict[str, int] = {}
        self.broken: set[str] = set()

    def cuModuleLoadData(self, module: Any, data: bytes) -> int:
        if data not in self.folders:
            return 200
        self.modules.append(self.folders[data])
        module._obj.value = len(self.modules)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        folder = self.modules[module.value - 1]
        kernels = json.loads((folder / "kernel.json").read_text())["kernels"]
        found = [kernel for kernel in kernels if kernel["name"] == name.decode()]
        if not found:
            return 500
        self.functions.append((folder, found[0]))
        function._obj.value = len(self.functions)
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        self.shared[self.functions[function.value - 1][1]["name"]] = value
        return 0 if attribute == 8 else 1

    def cuFuncGetAttribute(self, value: Any, attribute: int, function: Any) -> int:
        value._obj.value = {3: 0, 4: 96}[attribute]
        return 0

    def cuModuleUnload(self, module: Any) -> int:
        return 0

    def cuDriverGetVersion(self, number: Any) -> int:
        number._obj.value = 13010
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = {200: b"no such image", 500: b"not found", 700: b"illegal address"}.get(
            status, b"unknown"
        )
        return 0

    def cuLaunchKernel(self, function: Any, *given: Any) -> int:
        *sizes, shared, _, arguments, extra = given
        folder, kernel = self.functions[function.value - 1]
        assert extra is None
        assert shared == kernel["dynamic_shared_bytes"]
        pointers = [
            ctypes.cast(arguments[n], ctypes.POINTER(ctypes.c_void_p))[0]
            for n in range(len(kernel["arguments"]))
        ]
        self.launched.append((kernel["name"], pointers))
        if kernel["name"] in self.broken:
            return 700
        arrays = [
            _memory(pointer, argument["elements"], argument["dtype"])
            for pointer, argument in zip(pointers, kernel["arguments"], strict=True)
        ]
        program = compile_text((folder / "kernel.cu").read_text())
        x, y, z, *block = sizes
        launch = Launch(kernel["name"], (x, y, z), (block[0], block[1], block[2]), shared)
        program.run(launch, arrays)
        return 0


def _memory(pointer: int, elements: int, dtype: str) -> np.ndarray:
    size = elements * np.dtype(dtype).itemsize
    raw = (ctypes.c_uint8 * size).from_address(pointer)
    return np.frombuffer(raw, np.uint8).view(dtype)
