"""Arguments of emulated kernels: arrays in global memory, tensor maps and numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.tma.tensor_maps import TensorMap
from cpembed.targets.executor.program import Arena, Array


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array in global memory, and which of its bytes have been written.

    Reading another byte is a fault. The state is kept between launches.

    Parameters
    ----------
    array : Array
        Its elements.
    written : Array
        A bit for each byte, 64 to an element; two elements more than the bytes fill.
    """

    array: Array
    written: NDArray[np.uint64]

    @staticmethod
    def unwritten(elements: int, dtype: str) -> DeviceArray:
        """Return an array that nothing has written yet."""
        array = np.zeros(elements, dtype)
        return DeviceArray(array, np.zeros(array.nbytes // 64 + 2, np.uint64))

    def require_written(self, name: str) -> Array:
        """Return the elements.

        Raises :class:`ExecutionFault` if some have not been written; ``name`` is the array's.
        """
        bits = np.unpackbits(self.written.view(np.uint8), bitorder="little")[: self.array.nbytes]
        missing = np.flatnonzero(bits == 0)
        if missing.size:
            elements = np.unique(missing // self.array.itemsize)
            raise ExecutionFault(
                f"the kernels leave {elements.size:,} of {self.array.size:,} elements of {name} "
                f"unwritten, the first of them element {elements[0]}"
            )
        return self.array


@dataclass(frozen=True, eq=False)
class MapArgument:
    """A tensor map as argument of a kernel, and the array that it describes.

    For a parameter that is a pointer, the map lies in global memory.
    """

    tensor_map: TensorMap
    array: Array | DeviceArray


Argument = Array | DeviceArray | MapArgument | np.generic | int | float

_SCALARS = {
    ("i", 1): ctypes.c_int8, ("i", 2): ctypes.c_int16, ("i", 4): ctypes.c_int32,
    ("i", 8): ctypes.c_int64, ("u", 1): ctypes.c_uint8, ("u", 2): ctypes.c_uint16,
    ("u", 4): ctypes.c_uint32, ("u", 8): ctypes.c_uint64, ("f", 4): ctypes.c_float,
    ("f", 8): ctypes.c_double,
}  # fmt: skip


_KINDS = {
    "p": "an array", "t": "a tensor map", "i": "a number", "u": "a number", "f": "a number",
    "?": "a value",
}  # fmt: skip
"""Kinds of parameters in messages."""

_MAP_ALIGNMENT = 64
"""Alignment of a tensor map in bytes (CUDA driver API)."""


class Buffer(ctypes.Structure):
    """Array of a launch, as ``native/runtime.cpp`` has it."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("argument", ctypes.c_int32),
        ("initialised", ctypes.c_void_p),
        ("tracked", ctypes.c_bool),
    )


class PlacedArguments:
    """Memory of a launch's arrays, and the C value of each argument.

    Parameters
    ----------
    kernel : str
        Name of the kernel in messages.
    parameters : sequence of (str, int)
        Kind and size in bytes of each parameter.
    arguments : sequence of Argument
        An argument for each.
    computes : bool
        False if the values of every :class:`DeviceArray` are replaced by zeros, and all of its
        bytes count as written.
    """

    def __init__(
        self,
        kernel: str,
        parameters: Sequence[tuple[str, int]],
        arguments: Sequence[Argument],
        *,
        computes: bool,
    ) -> None:
        if len(parameters) != len(arguments):
            raise ExecutionFault(
                f"{kernel} takes {len(parameters)} arguments, and {len(arguments)} are given"
            )
        arrays: dict[int, tuple[int, Array]] = {}
        self._device: dict[int, DeviceArray] = {}
        maps: dict[int, Array] = {}
        for number, ((kind, _), value) in enumerate(zip(parameters, arguments, strict=True)):
            is_map = isinstance(value, MapArgument)
            if (kind == "t" and not is_map) or (kind not in "pt" and is_map):
                raise ExecutionFault(f"{kernel} takes {_KINDS[kind]} as argument {number}")
            if kind not in "pt":
                continue
            array = _array(value)
            if array is None:
                raise ExecutionFault(f"{kernel} takes an array as argument {number}")
            # An array that is passed twice is one buffer.
            first, _ = arrays.setdefault(id(array), (number, array))
            owner = value.array if isinstance(value, MapArgument) else value
            if isinstance(owner, DeviceArray):
                self._device[first] = owner
            if is_map and kind == "p":
                maps[number] = np.zeros(_MAP_BYTES, np.uint8)
        placed = [*arrays.values(), *maps.items()]
        # Copies with guarded gaps, so that an access outside of an array is noticed.
        self.arena = Arena.with_copies(kernel, placed, () if computes else self._device)
        # A run that faults, or is repeated, leaves what was known of the arrays.
        self._written = {n: array.written.copy() for n, array in self._device.items() if computes}
        addresses = {id(b.array): b.address for b in self.arena.buffers}
        self.values = list[Any]()
        for number, ((kind, size), value) in enumerate(zip(parameters, arguments, strict=True)):
            if isinstance(value, MapArgument):
                encoded = value.tensor_map.encode(addresses[id(_array(value))])
                if number in maps:
                    ctypes.memmove(addresses[id(maps[number])], encoded, _MAP_BYTES)
                    self.values.append(ctypes.c_void_p(addresses[id(maps[number])]))
                else:
                    self.values.append(_aligned(encoded))
            elif kind == "p":
                self.values.append(ctypes.c_void_p(addresses[id(_array(value))]))
            else:
                self.values.append(_scalar(kernel, number, kind, size, value))
        self._maps = {id(array) for array in maps.values()}

    def buffers(self, tracked: set[int]) -> ctypes.Array[Buffer]:
        """Return the arrays; readers of those whose arguments are ``tracked`` are noted."""
        buffers = [
            Buffer(
                b.address,
                b.bytes,
                b.argument,
                None
                if id(b.array) in self._maps or b.argument not in self._written
                else self._written[b.argument].ctypes.data,
                b.argument in tracked,
            )
            for b in self.arena.buffers
        ]
        return (Buffer * max(1, len(buffers)))(*buffers)

    def keep_written(self) -> None:
        """Note which bytes of each :class:`DeviceArray` the kernel has written."""
        for number, written in self._written.items():
            self._device[number].written[...] = written


_MAP_BYTES = 128


def _aligned(encoded: bytes) -> Any:
    memory = bytearray(len(encoded) + _MAP_ALIGNMENT)
    at = -ctypes.addressof(ctypes.c_uint8.from_buffer(memory)) % _MAP_ALIGNMENT
    memory[at : at + len(encoded)] = encoded
    return (ctypes.c_uint8 * len(encoded)).from_buffer(memory, at)


def _array(value: Argument) -> Array | None:
    array = value.array if isinstance(value, MapArgument) else value
    array = array.array if isinstance(array, DeviceArray) else array
    return array if isinstance(array, np.ndarray) else None


def _scalar(kernel: str, number: int, kind: str, size: int, value: Argument) -> Any:
    scalar: Any = _SCALARS.get((kind, size))
    # A Python number takes the parameter's type, as in a call of C++.
    is_array = isinstance(value, (np.ndarray, DeviceArray, MapArgument))
    if scalar is not None and not is_array:
        return scalar(float(value)) if kind == "f" else scalar(int(value))
    if isinstance(value, np.generic) and value.nbytes == size:  # float16, for one.
        return (ctypes.c_uint8 * size).from_buffer_copy(value.tobytes())
    raise ExecutionFault(
        f"{kernel} takes a number of {size} bytes as argument {number}: give one of numpy's"
    )
