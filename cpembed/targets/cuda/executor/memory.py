"""The arguments of a launch in memory of their own, as a GPU has them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ExecutionFault

Array = NDArray[Any]
Argument = Array | np.generic | int | float

ALIGNMENT = 256
"""Of a GPU's allocations."""
_GAP = 4096
"""Bytes between arrays, so that running off one does not end in another."""

_SCALARS = {
    ("i", 1): ctypes.c_int8, ("i", 2): ctypes.c_int16, ("i", 4): ctypes.c_int32,
    ("i", 8): ctypes.c_int64, ("u", 1): ctypes.c_uint8, ("u", 2): ctypes.c_uint16,
    ("u", 4): ctypes.c_uint32, ("u", 8): ctypes.c_uint64, ("f", 4): ctypes.c_float,
    ("f", 8): ctypes.c_double,
}  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """An array in the kernel's memory."""

    argument: int
    address: int
    bytes: int
    array: Array


@dataclass(eq=False)
class DeviceMemory:
    """Copies of arrays, and the values of a kernel's parameters."""

    kernel: str
    arena: NDArray[np.uint8]
    buffers: list[Buffer]
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
        memory = _placed(kernel, list(arrays.values()))
        places = {id(b.array): b.address for b in memory.buffers}
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

    def copy_back(self) -> None:
        """What the kernel wrote, into the arrays.

        Raises :class:`ExecutionFault` where it changed an array that is read-only.
        """
        for buffer in self.buffers:
            array = buffer.array
            found = self._bytes_of(buffer).view(array.dtype).reshape(array.shape)
            if array.flags.writeable:
                array[...] = found
            elif found.tobytes() != array.tobytes():
                raise ExecutionFault(
                    f"{self.kernel} writes argument {buffer.argument}, which is a read-only array"
                )

    def _bytes_of(self, buffer: Buffer) -> NDArray[np.uint8]:
        start = buffer.address - self.arena.ctypes.data
        return self.arena[start : start + buffer.bytes]


def _placed(kernel: str, arrays: Sequence[tuple[int, Array]]) -> DeviceMemory:
    places, end = list[int](), _GAP
    for _, array in arrays:
        places.append(end)
        end += -(-(array.nbytes + _GAP) // ALIGNMENT) * ALIGNMENT
    arena = np.empty(end + ALIGNMENT, np.uint8)
    base = -(-arena.ctypes.data // ALIGNMENT) * ALIGNMENT
    memory = DeviceMemory(kernel, arena, [])
    for (number, array), place in zip(arrays, places, strict=True):
        buffer = Buffer(number, base + place, array.nbytes, array)
        memory.buffers.append(buffer)
        memory._bytes_of(buffer)[...] = np.frombuffer(array.tobytes(), np.uint8)  # pyright: ignore[reportPrivateUsage]
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
