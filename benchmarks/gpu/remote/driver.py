"""Kernels of cubins, by the CUDA driver alone: ``ctypes`` and libcuda."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_LOCAL_ATTRIBUTE = 3  # CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
_REGISTERS_ATTRIBUTE = 4  # CU_FUNC_ATTRIBUTE_NUM_REGS
_STATIC_SHARED_BYTES = 48 * 1024


class DriverError(Exception):
    """The driver's message of a call that failed, in one line."""


class Driver:
    """The driver's functions, checked; a context has to be current."""

    def __init__(self, library: Any = None) -> None:
        self.library = ctypes.CDLL("libcuda.so.1") if library is None else library

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raise :class:`DriverError` if the status is not 0."""
        status = getattr(self.library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(status, ctypes.byref(text))
            message = (text.value or b"unknown error").decode(errors="replace")
            raise DriverError(f"{name}: {message} ({status})")

    def version(self) -> str:
        """Return the version of CUDA, as the driver has it."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"


def architecture(capability: tuple[int, int]) -> str:
    """Return the architecture whose cubin a device of a compute capability runs.

    Machine code serves later devices of the same major version.

    >>> architecture((8, 6)), architecture((9, 0))
    ('sm_80', 'sm_90')

    Raises :class:`DriverError` for a device that runs none of the pack.
    """
    if capability[0] in (8, 9):
        return f"sm_{capability[0]}0"
    major, minor = capability
    raise DriverError(
        f"the pack has machine code of sm_80 and sm_90, the device is {major}.{minor}"
    )


class Kernels:
    """The kernels of a folder: ``kernel.json`` says how they are launched.

    Raises :class:`DriverError` if the driver does not load them.
    """

    def __init__(self, driver: Driver, folder: Path, cubin: str, stem: str = "kernel") -> None:
        self.driver = driver
        document = json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
        self.kernels: list[dict[str, Any]] = document["kernels"]
        data = (folder / f"{stem}.{cubin}.cubin").read_bytes()
        self._module = ctypes.c_void_p()
        driver.call("cuModuleLoadData", ctypes.byref(self._module), data)
        self._functions = [self._function(kernel) for kernel in self.kernels]

    def _function(self, kernel: Mapping[str, Any]) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        name = kernel["name"].encode()
        self.driver.call("cuModuleGetFunction", ctypes.byref(function), self._module, name)
        if kernel["dynamic_shared_bytes"] > _STATIC_SHARED_BYTES:
            self.driver.call(
                "cuFuncSetAttribute", function, _SHARED_ATTRIBUTE, kernel["dynamic_shared_bytes"]
            )
        return function

    def unload(self) -> None:
        self.driver.call("cuModuleUnload", self._module)

    def attributes(self) -> list[dict[str, Any]]:
        """Return registers of a thread and bytes of local memory, by kernel."""
        attributes: list[dict[str, Any]] = []
        for function, kernel in zip(self._functions, self.kernels, strict=True):
            values: list[int] = []
            for attribute in (_REGISTERS_ATTRIBUTE, _LOCAL_ATTRIBUTE):
                value = ctypes.c_int()
                self.driver.call("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
                values.append(value.value)
            attributes.append({"name": kernel["name"], "registers": values[0], "local": values[1]})
        return attributes

    def parameters(self) -> dict[str, tuple[int, str]]:
        """Return elements and type of each buffer, by name."""
        return {
            argument["name"]: (argument["elements"], argument["dtype"])
            for kernel in self.kernels
            for argument in kernel["arguments"]
        }

    def launch(self, pointers: Mapping[str, int], names: Sequence[str], stream: int = 0) -> None:
        """Launch the kernels of these names, in the order of the document, on buffers by name."""
        for function, kernel in zip(self._functions, self.kernels, strict=True):
            if kernel["name"] in names:
                values = [ctypes.c_void_p(pointers[a["name"]]) for a in kernel["arguments"]]
                launch(self.driver, function, kernel, values, stream)


def launch(
    driver: Driver,
    function: ctypes.c_void_p,
    kernel: Mapping[str, Any],
    values: Sequence[Any],
    stream: int,
) -> None:
    """Launch one kernel on its arguments, in order.

    Parameters
    ----------
    driver : Driver
        The CUDA driver.
    function : ctypes.c_void_p
        The kernel.
    kernel : mapping
        Grid, block and shared memory.
    values : sequence
        Arguments.
    stream : int
        Handle of the stream.
    """
    arguments = (ctypes.c_void_p * len(values))(
        *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
    )
    driver.call(
        "cuLaunchKernel",
        function,
        *kernel["grid"],
        *kernel["block"],
        kernel["dynamic_shared_bytes"],
        ctypes.c_void_p(stream),
        arguments,
        None,
    )
