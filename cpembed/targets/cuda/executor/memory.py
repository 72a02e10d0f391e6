"""The arguments of a launch in memory of their own, as a GPU has them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpembed.errors import ExecutionFault
from cpembed.targets.executor.memory import Arena, Array

Argument = Array | np.generic | int | float

_SCALARS = {
    ("i", 1): ctypes.c_int8, ("i", 2): ctypes.c_int16, ("i", 4): ctypes.c_int32,
    ("i", 8): ctypes.c_int64, ("u", 1): ctypes.c_uint8, ("u", 2): ctypes.c_uint16,
    ("u", 4): ctypes.c_uint32, ("u", 8): ctypes.c_uint64, ("f", 4): ctypes.c_float,
    ("f", 8): ctypes.c_double,
}  # fmt: skip


@dataclass(eq=False)
class DeviceMemory:
    """Copies of arrays, and the values of a kernel's parameters."""

    arena: Arena
    values: list[Any] = field(default_factory=list[Any])
    pointers: int = 0

    @staticmethod
    def of(
        kernel: str, parameters: Sequence[tuple[str, int]], arguments: Sequence[Argument]
    ) -> DeviceMemory:
        """``parameters``: kinds and sizes, as ``native/kernel_entry.h`` has them.

        Raises :class:`ExecutionFault` for arguments that do not fit them.
        """
        if len(parameters) != len(arguments):
            raise ExecutionFault(
                f"{kernel} takes {len(parameters)} arguments, and {len(arguments)} are given"
            )
        arrays: dict[int, tuple[int, Array]] = {}
        for number, ((kind, _), value) in enumerate(zip(parameters, arguments, strict=True)):
            if kind == "p":
                if not isinstance(value, np.ndarray):
                    raise ExecutionFault(f"{kernel} takes an array as argument {number}")
                arrays.setdefault(id(value), (number, value))
        memory = DeviceMemory(Arena.of(kernel, list(arrays.values())))
        places = {id(b.array): b.address for b in memory.arena.buffers}
        for number, ((kind, size), value) in enumerate(zip(parameters, arguments, strict=True)):
            if kind == "p":
                memory.values.append(ctypes.c_void_p(places[id(value)]))
            else:
                memory.values.append(_scalar(kernel, number, kind, size, value))
        table = (ctypes.c_void_p * max(1, len(memory.values)))(
            *(ctypes.addressof(value) for value in memory.values)
        )
        memory.values.append(table)
        memory.pointers = ctypes.addressof(table)
        return memory


def _scalar(kernel: str, number: int, kind: str, size: int, value: Argument) -> Any:
    """A number as the parameter holds it."""
    made: Any = _SCALARS.get((kind, size))
    if made is not None and np.ndim(value) == 0:
        return made(float(value)) if kind == "f" else made(int(value))
    if isinstance(value, np.generic) and value.nbytes == size:  # float16, for one.
        return (ctypes.c_uint8 * size).from_buffer_copy(value.tobytes())
    raise ExecutionFault(
        f"{kernel} takes a number of {size} bytes as argument {number}: give one of numpy's"
    )
