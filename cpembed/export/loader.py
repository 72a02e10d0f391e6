"""A library of cpembed from Python, with numpy alone.

>>> library = Library()                                             # doctest: +SKIP
>>> library.pack(*weights)                                          # doctest: +SKIP
>>> (result,) = library.run(*inputs)                                # doctest: +SKIP
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAME = ""
"""Of the library; its functions begin so."""

Array = NDArray[Any]

_STORED = {"bfloat16": "uint16", "int7": "int8", "uint7": "uint8"}
"""What an element is in memory, where numpy has no such type."""

_LINE = 64


class LibraryError(Exception):
    """A function of the library failed; the text says why."""


class _Described(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_int64),
    )


@dataclass(frozen=True)
class TensorInfo:
    """A tensor that is given: ``dtype`` as the library names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def stored(self) -> np.dtype[Any]:
        """numpy's type of the elements; of bfloat16 their bits."""
        return np.dtype(_STORED.get(self.dtype, self.dtype))

    def accepted(self, array: Any) -> Array:
        """The array as the library reads it, copied where it is not contiguous or not aligned.

        Raises :class:`LibraryError` for another type or shape: nothing is converted.
        """
        array = np.asarray(array)
        if array.dtype.name == self.dtype and array.dtype != self.stored:
            array = array.view(self.stored)
        if array.dtype != self.stored or array.shape != self.shape:
            raise LibraryError(
                f"{self.name} is {array.dtype} {list(array.shape)}, "
                f"the library takes {self.dtype} {list(self.shape)}"
            )
        if array.flags.c_contiguous and array.ctypes.data % _LINE == 0:
            return array
        copy = aligned(self.shape, self.stored)
        copy[...] = array
        return copy


def aligned(shape: Sequence[int], dtype: Any) -> Array:
    """An array whose memory the library uses without a copy; not initialized."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(dtype).reshape(tuple(shape))


def path_of_file(path: Path) -> str:
    """A spelling of an absolute path that only the file which is there now has.

    The dynamic linker takes a path that it has loaded before for the library that it has loaded,
    even where another file has replaced it since. Files differ in their numbers, which are kept as
    long as they are mapped: the bits of the number stand in the path as components that change
    nothing, ``/.`` and ``/``.

    Raises :class:`OSError` where there is no file.
    """
    status = path.stat()
    bits = f"{status.st_dev << 64 | status.st_ino:b}"
    return f"{path.parent}{''.join('/.' if bit == '1' else '/' for bit in bits)}/{path.name}"


class Library:
    """An open library, which runs one call at a time; a context manager."""

    def __init__(
        self,
        path: str | Path | None = None,
        name: str = NAME,
        *,
        threads: int = 0,
        weights_file: str | Path | None = None,
    ) -> None:
        """``path`` of the shared library, by default beside this file; ``threads``: 0 for the
        library's default; ``weights_file``: by default beside the library.

        Raises :class:`LibraryError` where it cannot be opened.
        """
        self._handle = ctypes.c_void_p()
        self._name = name
        path = Path(path or Path(__file__).parent / f"lib{name}.so").resolve()
        try:
            self._library = ctypes.CDLL(path_of_file(path))
        except OSError as error:
            raise LibraryError(f"{path} cannot be loaded: {error}") from None
        self._declare()
        self.inputs, self.outputs, self.weights = (
            self._described(kind) for kind in ("input", "output", "weight")
        )
        file = None if weights_file is None else str(weights_file).encode()
        self._check(self._function("open")(threads, file, ctypes.byref(self._handle)))

    def pack(self, *weights: Any) -> None:
        """Pack the weights, in the order of :attr:`weights`; they are copied."""
        arrays = self._accepted("weights", self.weights, weights)
        self._check(self._function("pack")(self._handle, _pointers(arrays)))

    def run(self, *inputs: Any, out: Sequence[Array] | None = None) -> tuple[Array, ...]:
        """The outputs of one call. ``out``: arrays to write, of the outputs' types and shapes,
        contiguous."""
        return self._run("run", inputs, out)

    def run_steps(
        self, first: int, last: int, *inputs: Any, out: Sequence[Array] | None = None
    ) -> tuple[Array, ...]:
        """The steps from ``first`` to ``last`` - 1 alone; ``out`` as of :meth:`run`, the same
        arrays for all steps of a run: later ones may read what earlier ones wrote."""
        return self._run("run_steps", inputs, out, before=(first, last))

    def run_timed(self, *inputs: Any) -> tuple[tuple[Array, ...], Array]:
        """The outputs, and the nanoseconds of each step."""
        times = np.zeros(len(self.steps))
        pointer = times.ctypes.data_as(ctypes.POINTER(ctypes.c_double))
        return self._run("run_timed", inputs, None, pointer), times

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the steps of a run."""
        named = self._function("step_name")
        return tuple(named(step).decode() for step in range(self._function("step_count")()))

    @property
    def threads(self) -> int:
        """On how many threads it runs."""
        return self._function("thread_count")(self._handle)

    @property
    def workspace_bytes(self) -> int:
        """What a run writes between its steps."""
        return self._function("workspace_size")()

    def tensor(self, name: str) -> Array:
        """A copy of a buffer, flat, as the last steps left it.

        Raises :class:`LibraryError` where there is none now: what a call is given, and its
        results, are in the caller's memory.
        """
        self._require_open()
        dtype, elements = ctypes.c_char_p(), ctypes.c_int64()
        found = self._function("tensor")(
            self._handle, name.encode(), ctypes.byref(dtype), ctypes.byref(elements)
        )
        if not found or dtype.value is None:
            raise LibraryError(f"the library {self._name} has no buffer {name} now")
        text = dtype.value.decode()
        kind = np.dtype(_STORED.get(text, text))
        return np.frombuffer(ctypes.string_at(found, elements.value * kind.itemsize), kind).copy()

    def close(self) -> None:
        """End the threads and free the memory; nothing may be called after it."""
        if self._handle:
            self._function("close")(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _run(
        self,
        function: str,
        inputs: Sequence[Any],
        out: Sequence[Array] | None,
        *more: Any,
        before: tuple[int, ...] = (),
    ) -> tuple[Array, ...]:
        arrays = self._accepted("inputs", self.inputs, inputs)
        if out is None:
            out = [aligned(info.shape, info.stored) for info in self.outputs]
        elif len(out) != len(self.outputs):
            raise LibraryError(f"{len(out)} outputs are given, there are {len(self.outputs)}")
        for info, array in zip(self.outputs, out, strict=True):
            if info.accepted(array).shape != array.shape or not array.flags.c_contiguous:
                raise LibraryError(f"output {info.name} is not contiguous")
        given = _pointers(arrays), _pointers(out), None
        self._check(self._function(function)(self._handle, *before, *given, *more))
        return tuple(out)

    def _accepted(
        self, what: str, infos: Sequence[TensorInfo], given: Sequence[Any]
    ) -> list[Array]:
        self._require_open()
        if len(given) != len(infos):
            names = ", ".join(info.name for info in infos) or "none"
            raise LibraryError(f"{len(given)} {what} are given, the library takes: {names}")
        return [info.accepted(array) for info, array in zip(infos, given, strict=True)]

    def _require_open(self) -> None:
        if not self._handle:
            raise LibraryError(f"the library {self._name} is closed")

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"{self._name}_{name}")

    def _described(self, kind: str) -> tuple[TensorInfo, ...]:
        count, get = self._function(f"{kind}_count")(), self._function(kind)
        found: list[TensorInfo] = []
        for number in range(count):
            one = get(number).contents
            shape = tuple(one.shape[axis] for axis in range(one.rank))
            found.append(TensorInfo(one.name.decode(), one.dtype.decode(), shape))
        return tuple(found)

    def _check(self, status: int) -> None:
        if status == 0:
            return
        text = self._function("status_text")(status).decode()
        said = self._function("kernel_message")(self._handle).decode() if self._handle else ""
        raise LibraryError(f"{self._name}: {text}{f': {said}' if said else ''}")

    def _declare(self) -> None:
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
        described = ctypes.POINTER(_Described)
        results = {
            "status_text": text,
            "kernel_message": text,
            "step_name": text,
            "tensor": pointer,
            "workspace_size": ctypes.c_size_t,
            "close": None,
            "input": described,
            "output": described,
            "weight": described,
        }
        arguments: dict[str, list[Any]] = {
            "open": [number, text, pointer],
            "pack": [pointer, pointer],
            "run": [pointer, pointer, pointer, pointer],
            "run_timed": [pointer, pointer, pointer, pointer, pointer],
            "run_steps": [pointer, number, number, pointer, pointer, pointer],
            "tensor": [pointer, text, pointer, pointer],
            "close": [pointer],
            "thread_count": [pointer],
            "kernel_message": [pointer],
        }
        for name, result in results.items():
            self._function(name).restype = result
        for name, kinds in arguments.items():
            self._function(name).argtypes = kinds


def _pointers(arrays: Sequence[Array]) -> Any:
    """A table of pointers; the arrays have to live as long."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))
