"""TVMScript as text: a writer that keeps the indentation, and the spelling of types and reads."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import INPUT_DTYPES, dtype_info

FLOAT_TYPES = ("float16", "float32", "float64")
INTEGER_TYPES = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))

HEADER = "@T.prim_func(s_tir=True)"
"""What makes the parser read a schedulable TensorIR function."""


class Script:
    """Lines of TVMScript at the current depth."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    @contextmanager
    def nested(self, *headers: str) -> Generator[None]:
        """Everything written inside lies below the headers, each one level below the last."""
        for header in headers:
            self.line(header)
            self._depth += 1
        yield
        self._depth -= len(headers)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def storage_dtype(dtype: str) -> str:
    """The element type in memory.

    bfloat16 travels as its bits: the compiler's bfloat16 legalisation rewrites buffers under
    opaque tile loads to float32 without a word, which is wrong.
    """
    if dtype == "bfloat16":
        return "uint16"
    if dtype in INPUT_DTYPES:
        dtype = dtype_info(dtype).in_memory
    if dtype not in (*INTEGER_TYPES, *FLOAT_TYPES):
        raise LoweringError(
            f"element type {dtype} has no kernel: use an integer of 8 to 64 bits, "
            "bfloat16 or a float"
        )
    return dtype


def read(element: str, dtype: str, into: str) -> str:
    """An element of logical type ``dtype`` converted to ``into``.

    >>> read("A[i]", "int8", "int32")
    'T.cast(A[i], "int32")'
    """
    if dtype == "bfloat16":
        bits = f'T.shift_left(T.cast({element}, "uint32"), T.uint32(16))'
        element = f'T.reinterpret({bits}, dtype="float32")'
        return element if into == "float32" else f'T.cast({element}, "{into}")'
    return element if dtype == into else f'T.cast({element}, "{into}")'


def zero(dtype: str) -> str:
    return f"T.{storage_dtype(dtype)}(0)"


def grid(names: Sequence[str], extents: Sequence[int]) -> list[str]:
    """Loop headers for a rectangular nest; none for no loops."""
    if not names:
        return []
    if len(names) == 1:
        return [f"for {names[0]} in T.serial({extents[0]}):"]
    return [f"for {', '.join(names)} in T.grid({', '.join(map(str, extents))}):"]


def buffer(name: str, elements: int, dtype: str) -> str:
    """A flat buffer parameter."""
    return f'{name}: T.Buffer(({elements},), "{storage_dtype(dtype)}")'
