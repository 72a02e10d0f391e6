"""A library of cpembed from Python, with numpy alone.

>>> library = Library()                                             # doctest: +SKIP
>>> library.pack(*weights)                                          # doctest: +SKIP
>>> (result,) = library.run(*inputs)                                # doctest: +SKIP
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAME = ""
"""Name of the library, with which its functions begin."""

Array = NDArray[Any]

# Types of elements in memory where numpy does not have the library's type.
_STORED = {"bfloat16": "uint16", "int7": "int8", "uint7": "uint8"}

# Alignment in bytes of memory that the library uses without a copy.
_LINE = 64

# Maximum number of shapes of inputs whose sizes a library remembers.
_MOST_RESOLVED = 1024

_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int64))


class LibraryError(Exception):
    """Failure of a function of the library; the text gives the reason."""


class _Extent(ctypes.Structure):
    _fields_ = (
        ("axis", ctypes.c_int32),
        ("symbol", ctypes.c_int32),
        ("factor", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("divisor", ctypes.c_int64),
    )


class _Described(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_int64),
        ("item_bytes", ctypes.c_int64),
        ("extent_count", ctypes.c_int32),
        ("extents", ctypes.POINTER(_Extent)),
    )


@dataclass(frozen=True)
class Extent:
    """Part of an axis, ``(factor * size + offset) // divisor`` of a symbol; the offset if -1."""

    axis: int
    symbol: int
    factor: int
    offset: int
    divisor: int = 1

    def at(self, sizes: Sequence[int]) -> int:
        """Return the number of indices at some sizes."""
        times = 0 if self.symbol < 0 else self.factor * sizes[self.symbol]
        return (times + self.offset) // self.divisor


@dataclass(frozen=True)
class TensorInfo:
    """Tensor of the interface; ``dtype`` is the library's name of its type.

    Where sizes are ranges, ``shape`` is that of the largest sizes; an axis has as many indices as
    the product of its ``extents``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    extents: tuple[Extent, ...] = ()

    def at(self, sizes: Sequence[int]) -> TensorInfo:
        """Return the tensor at some sizes of the symbols."""
        shape = [1] * len(self.shape)
        for extent in self.extents:
            shape[extent.axis] *= extent.at(sizes)
        return replace(self, shape=tuple(shape))

    @property
    def stored(self) -> np.dtype[Any]:
        """Type of the elements in numpy; uint16 for bfloat16."""
        return np.dtype(_STORED.get(self.dtype, self.dtype))

    def accepted(self, array: Any) -> Array:
        """Return the array, copied if it is not contiguous or not aligned.

        Raises :class:`LibraryError` for another type or shape: nothing is converted.
        """
        array = np.asarray(array)
        # An array of ml_dtypes' bfloat16 is passed as its bits.
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
    """Return an uninitialized array whose memory the library uses without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    # numpy promises no such alignment, so the array starts inside a larger one.
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(dtype).reshape(tuple(shape))


def _unique_spelling(path: Path) -> str:
    """Return a spelling of an absolute path that only the file there now has.

    Raises :class:`OSError` if there is no file.
    """
    # The dynamic linker reuses the library that it has loaded from a path before, even if another
    # file has replaced it. Files have different inode numbers as long as they are mapped, so the
    # bits of the number are written into the path as components without effect, "/." and "/".
    status = path.stat()
    bits = f"{status.st_dev << 64 | status.st_ino:b}"
    return f"{path.parent}{''.join('/.' if bit == '1' else '/' for bit in bits)}/{path.name}"


class Library:
    """Open library, which runs one call at a time; a context manager.

    Parameters
    ----------
    path : str or Path, optional
        Path of the shared library, by default next to this file.
    name : str
        Name of the library.
    threads : int, default 0
        Number of threads; 0 for the library's default.
    weights_file : str or Path, optional
        File of the weights, by default next to the library.

    Raises
    ------
    LibraryError
        If the library cannot be opened.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        name: str = NAME,
        *,
        threads: int = 0,
        weights_file: str | Path | None = None,
    ) -> None:
        # First, since __del__ runs even if opening fails.
        self._handle = ctypes.c_void_p()
        self._name = name
        path = Path(path or Path(__file__).parent / f"lib{name}.so").resolve()
        try:
            self._library = ctypes.CDLL(_unique_spelling(path))
        except OSError as error:
            raise LibraryError(f"{path} cannot be loaded: {error}") from None
        self._declare()
        self.inputs, self.outputs, self.weights = (
            self._described(kind) for kind in ("input", "output", "weight")
        )
        file = None if weights_file is None else str(weights_file).encode()
        self.ranges = self._ranges()
        # Sizes, inputs and outputs of calls so far, by the shapes of inputs: they take longer to
        # find out than a small network to run.
        self._resolved: dict[
            tuple[tuple[int, ...], ...],
            tuple[tuple[int, ...], list[TensorInfo], list[TensorInfo]],
        ] = {}
        self._check(self._function("open")(threads, file, ctypes.byref(self._handle)))

    def pack(self, *weights: Any) -> None:
        """Pack copies of the weights, in the order of ``weights``."""
        arrays = self._accepted("weights", self.weights, weights)
        self._check(self._function("pack")(self._handle, _pointers(arrays)))

    def run(self, *inputs: Any, out: Sequence[Array] | None = None) -> tuple[Array, ...]:
        """Run one call and return its outputs, which are the contiguous arrays ``out`` if given."""
        return self._run("run", inputs, out)

    def run_steps(
        self, first: int, last: int, *inputs: Any, out: Sequence[Array] | None = None
    ) -> tuple[Array, ...]:
        """Run the steps from ``first`` to before ``last`` of a call.

        Parameters
        ----------
        first, last : int
            Range of the steps.
        *inputs : array
        out : sequence of array, optional
            Outputs, the same for all steps of a call, since later steps may read what earlier ones
            wrote.
        """
        return self._run("run_steps", inputs, out, leading=(first, last))

    def run_timed(self, *inputs: Any) -> tuple[tuple[Array, ...], Array]:
        """Run one call and return its outputs and the nanoseconds of each step."""
        times = np.zeros(len(self.steps))
        pointer = times.ctypes.data_as(ctypes.POINTER(ctypes.c_double))
        return self._run("run_timed", inputs, None, pointer), times

    def run_observed(
        self, observer: Callable[[int, Sequence[int]], None], *inputs: Any
    ) -> tuple[Array, ...]:
        """Run one call, with a call of ``observer`` after each step.

        Parameters
        ----------
        observer : callable
            Called with the number of the step and the iteration that each loop is in; after loop k
            with -1 - k. It may call :meth:`tensor`. The first exception that it raises is raised
            when the call has ended.
        *inputs : array
        """
        errors: list[BaseException] = []

        def observed(_: Any, step: int, iterations: Any) -> None:
            if not errors:
                try:
                    observer(step, iterations)
                except BaseException as error:
                    # It cannot pass through the library.
                    errors.append(error)

        results = self._run("run_observed", inputs, None, _OBSERVER(observed), None)
        if errors:
            raise errors[0]
        return results

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps of a run."""
        step_name = self._function("step_name")
        return tuple(step_name(step).decode() for step in range(self._function("step_count")()))

    @property
    def threads(self) -> int:
        """Number of threads."""
        return self._function("thread_count")(self._handle)

    @property
    def workspace_bytes(self) -> int:
        """Size in bytes of the memory that a run writes between its steps."""
        return self._function("workspace_size")()

    def tensor(self, name: str) -> Array:
        """Return a flat copy of a buffer as the last steps left it.

        Raises :class:`LibraryError` for an unknown name, and, but for observers, for inputs and
        outputs, which the caller has.
        """
        self._require_open()
        dtype, elements = ctypes.c_char_p(), ctypes.c_int64()
        address = self._function("tensor")(
            self._handle, name.encode(), ctypes.byref(dtype), ctypes.byref(elements)
        )
        if not address or dtype.value is None:
            raise LibraryError(f"the library {self._name} has no buffer {name} now")
        text = dtype.value.decode()
        kind = np.dtype(_STORED.get(text, text))
        return np.frombuffer(ctypes.string_at(address, elements.value * kind.itemsize), kind).copy()

    def sizes_of(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the size of each symbol from the shapes of the inputs.

        Raises :class:`LibraryError` for shapes that contradict each other or the ranges.
        """
        sizes: dict[int, int] = {}
        names = list(self.ranges)
        # An axis of several symbols tells one of them once the others are known.
        for _ in self.ranges:
            for info, shape in zip(self.inputs, shapes, strict=True):
                for axis, total in enumerate(shape):
                    parts = [e for e in info.extents if e.axis == axis]
                    unknown = [e for e in parts if e.symbol >= 0 and e.symbol not in sizes]
                    if len(shape) != len(info.shape) or len(unknown) != 1:
                        continue
                    extent = unknown[0]
                    rest = math.prod(
                        e.at([sizes.get(k, 0) for k in range(len(names))])
                        for e in parts if e is not extent
                    )  # fmt: skip
                    indices = total // max(1, rest) * extent.divisor
                    size = -(-(indices - extent.offset) // extent.factor)
                    low, high = self.ranges[names[extent.symbol]]
                    if not low <= size <= high:
                        raise LibraryError(
                            f"{info.name} is {list(shape)}: {names[extent.symbol]} is {size}, the "
                            f"library takes {low} to {high}"
                        )
                    sizes[extent.symbol] = size
        return tuple(
            sizes.get(number, high) for number, (_, high) in enumerate(self.ranges.values())
        )

    def _resized(self, inputs: Sequence[Any]) -> tuple[list[TensorInfo], list[TensorInfo]]:
        """Set the sizes that inputs have, and return inputs and outputs at these."""
        if not self.ranges or len(inputs) != len(self.inputs):
            return list(self.inputs), list(self.outputs)
        self._require_open()
        shapes = tuple(np.shape(array) for array in inputs)
        if shapes not in self._resolved:
            sizes = self.sizes_of(shapes)
            takes, yields = (
                [info.at(sizes) for info in each] for each in (self.inputs, self.outputs)
            )
            if len(self._resolved) >= _MOST_RESOLVED:
                self._resolved.pop(next(iter(self._resolved)))
            self._resolved[shapes] = sizes, takes, yields
        sizes, takes, yields = self._resolved[shapes]
        numbers = (ctypes.c_int64 * len(sizes))(*sizes)
        self._check(self._function("resize")(self._handle, numbers))
        return takes, yields

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """Return the least and the largest size of each symbol."""
        ranges: dict[str, tuple[int, int]] = {}
        for number in range(self._function("symbol_count")()):
            low, high = ctypes.c_int64(), ctypes.c_int64()
            name = self._function("symbol")(number, ctypes.byref(low), ctypes.byref(high))
            ranges[name.decode()] = low.value, high.value
        return ranges

    @property
    def variants(self) -> tuple[str, ...]:
        """Processors that a library was built for, in the order in which it tries them.

        Empty for a library of one variant.
        """
        if not hasattr(self._library, f"{self._name}_variant"):
            return ()
        name, count = self._function("variant_name"), self._function("variant_count")()
        name.restype = ctypes.c_char_p
        return tuple(name(number).decode() for number in range(count))

    @property
    def variant(self) -> str | None:
        """Processor whose variant runs; None for a library of one variant."""
        variants = self.variants
        number: int = self._function("variant")() if variants else 0
        return variants[number] if variants else None

    def close(self) -> None:
        """End the threads and free the memory; no other method may be called afterwards."""
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
        *trailing: Any,
        leading: tuple[int, ...] = (),
    ) -> tuple[Array, ...]:
        takes, yields = self._resized(inputs)
        arrays = self._accepted("inputs", takes, inputs)
        if out is None:
            out = [aligned(info.shape, info.stored) for info in yields]
        elif len(out) != len(yields):
            raise LibraryError(f"{len(out)} outputs are given, there are {len(yields)}")
        for info, array in zip(yields, out, strict=True):
            if info.accepted(array).shape != array.shape or not array.flags.c_contiguous:
                raise LibraryError(f"output {info.name} is not contiguous")
        buffers = _pointers(arrays), _pointers(out), None
        self._check(self._function(function)(self._handle, *leading, *buffers, *trailing))
        return tuple(out)

    def _accepted(
        self, role: str, infos: Sequence[TensorInfo], arrays: Sequence[Any]
    ) -> list[Array]:
        self._require_open()
        if len(arrays) != len(infos):
            names = ", ".join(info.name for info in infos) or "none"
            raise LibraryError(f"{len(arrays)} {role} are given, the library takes: {names}")
        return [info.accepted(array) for info, array in zip(infos, arrays, strict=True)]

    def _require_open(self) -> None:
        if not self._handle:
            raise LibraryError(f"the library {self._name} is closed")

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"{self._name}_{name}")

    def _described(self, kind: str) -> tuple[TensorInfo, ...]:
        count, get = self._function(f"{kind}_count")(), self._function(kind)
        infos: list[TensorInfo] = []
        for number in range(count):
            tensor = get(number).contents
            shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
            extents = tuple(
                Extent(e.axis, e.symbol, e.factor, e.offset, e.divisor)
                for e in (tensor.extents[k] for k in range(tensor.extent_count))
            )
            infos.append(TensorInfo(tensor.name.decode(), tensor.dtype.decode(), shape, extents))
        return tuple(infos)

    def _check(self, status: int) -> None:
        if status == 0:
            return
        text = self._function("status_text")(status).decode()
        detail = self._function("kernel_message")(self._handle).decode() if self._handle else ""
        raise LibraryError(f"{self._name}: {text}{f': {detail}' if detail else ''}")

    def _declare(self) -> None:
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
        size, tensor = ctypes.c_size_t, ctypes.POINTER(_Described)
        results: dict[str, Any] = {
            "status_text": text, "kernel_message": text, "step_name": text, "tensor": pointer,
            "workspace_size": size, "close": None, "input": tensor, "output": tensor,
            "weight": tensor, "symbol": text,
        }  # fmt: skip
        arguments: dict[str, list[Any]] = {
            "open": [number, text, pointer],
            "pack": [pointer] * 2,
            "run": [pointer] * 4,
            "run_timed": [pointer] * 5,
            "run_observed": [*[pointer] * 4, _OBSERVER, pointer],
            "run_steps": [pointer, number, number, *[pointer] * 3],
            "tensor": [pointer, text, pointer, pointer],
            "symbol": [number, pointer, pointer],
            "resize": [pointer, pointer],
            "close": [pointer],
            "thread_count": [pointer],
            "kernel_message": [pointer],
        }
        for name, result in results.items():
            self._function(name).restype = result
        for name, kinds in arguments.items():
            self._function(name).argtypes = kinds


def _pointers(arrays: Sequence[Array]) -> Any:
    """Return a table of pointers, which is valid as long as the arrays live."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))
