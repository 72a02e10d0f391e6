"""TVMScript as text: a writer that keeps the indentation, and the spelling of types and reads."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import INPUT_DTYPES, dtype_info

FLOAT_TYPES = ("float16", "float32", "float64")
INTEGER_TYPES = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))

HEADER = "@T.prim_func(s_tir=True)"
"""Decorator that makes the parser read a schedulable TensorIR function."""


class Script:
    """Lines of TVMScript, written at the current depth."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        """Write a line."""
        self._lines.append("    " * self._depth + text)

    def lines(self, texts: Iterable[str]) -> None:
        """Write several lines."""
        for text in texts:
            self.line(text)

    @contextmanager
    def nested(self, *headers: str) -> Generator[None]:
        """Write headers, each one level below the last, and the lines written inside below them."""
        for header in headers:
            self.line(header)
            self._depth += 1
        yield
        self._depth -= len(headers)

    @contextmanager
    def function(self, parameters: Iterable[str]) -> Generator[None]:
        """Write the function ``main``, whose buffers do not overlap, around the lines inside."""
        self.line(HEADER)
        with self.nested(f"def main({', '.join(parameters)}):"):
            self.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
            yield

    def text(self) -> str:
        """Return all lines."""
        return "\n".join(self._lines) + "\n"


def storage_dtype(dtype: str) -> str:
    """Return the element type in memory.

    bfloat16 is stored as its bits: the compiler's bfloat16 legalisation silently rewrites buffers
    under opaque tile loads to float32, which is wrong.
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
    """Return an element converted to another type.

    Parameters
    ----------
    element : str
        Element in the text.
    dtype, into : str
        Its logical type, and the type to convert to.

    >>> read("A[i]", "int8", "int32")
    'T.cast(A[i], "int32")'
    """
    if dtype == "bfloat16":
        bits = f'T.shift_left(T.cast({element}, "uint32"), T.uint32(16))'
        element = f'T.reinterpret({bits}, dtype="float32")'
        dtype = "float32"
    return element if dtype == into else f'T.cast({element}, "{into}")'


def zero(dtype: str) -> str:
    """Return the constant 0 of a type."""
    return f"T.{storage_dtype(dtype)}(0)"


def grid(names: Sequence[str], extents: Sequence[int]) -> list[str]:
    """Return the headers of a rectangular nest; none for no loops."""
    if not names:
        return []
    if len(names) == 1:
        return [f"for {names[0]} in T.serial({extents[0]}):"]
    return [f"for {', '.join(names)} in T.grid({', '.join(map(str, extents))}):"]


def buffer(name: str, elements: int, dtype: str) -> str:
    """Return the declaration of a flat buffer parameter.

    Parameters
    ----------
    name : str
        Name of the buffer.
    elements : int
        Number of elements.
    dtype : str
        Logical element type.
    """
    return f'{name}: T.Buffer(({elements},), "{storage_dtype(dtype)}")'
