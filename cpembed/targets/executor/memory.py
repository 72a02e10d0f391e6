"""Arrays of a run in memory of their own, apart from each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ExecutionFault

Array = NDArray[Any]

ALIGNMENT = 256
"""Of arrays: what a GPU's allocator gives, and a multiple of the transactions of DMA engines."""
_GAP = 4096
"""Bytes between arrays, so that running off one does not end in another."""


@dataclass(frozen=True)
class Buffer:
    """An array in the kernel's memory."""

    argument: int
    address: int
    bytes: int
    array: Array


@dataclass(frozen=True, eq=False)
class Arena:
    """Copies of arrays, each with the number of the argument that it is."""

    kernel: str
    bytes: NDArray[np.uint8]
    buffers: tuple[Buffer, ...]

    @staticmethod
    def of(kernel: str, arrays: Sequence[tuple[int, Array]]) -> Arena:
        places, end = list[int](), _GAP
        for _, array in arrays:
            places.append(end)
            end += -(-(array.nbytes + _GAP) // ALIGNMENT) * ALIGNMENT
        memory = np.empty(end + ALIGNMENT, np.uint8)
        base = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        buffers = tuple(
            Buffer(number, base + place, array.nbytes, array)
            for (number, array), place in zip(arrays, places, strict=True)
        )
        arena = Arena(kernel, memory, buffers)
        for buffer in buffers:
            arena._bytes_of(buffer)[...] = np.frombuffer(buffer.array.tobytes(), np.uint8)
        return arena

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
        start = buffer.address - self.bytes.ctypes.data
        return self.bytes[start : start + buffer.bytes]
