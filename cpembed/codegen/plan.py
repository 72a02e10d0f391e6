"""A kernel before compilation: its TVMScript, how to compile it, and the choices it was made from.

:class:`Script` writes the text, the functions below it spell types and reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from cpembed.errors import InvariantError, LoweringError
from cpembed.ir.dtypes import INPUT_DTYPES, dtype_info
from cpembed.stores import Count

_STORED_TYPES = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64"),
)

HEADER = "@T.prim_func(s_tir=True)"
"""Decorator that makes the parser read a schedulable TensorIR function."""

LoopOrder = Literal["columns", "rows"]
"""Factor whose loops are outermost: weights (columns) or rows."""


SHARED_BUFFERS = "-enable-tbaa:bool=false"
"""Option of plans with parts. TVM promises LLVM that buffers of different names do not overlap, but
parts have other names for those of their caller: where LLVM inlines a part, results would be read
before they are written."""


@dataclass(frozen=True)
class Knobs:
    """Choices that change a kernel's speed and not its result.

    Parameters
    ----------
    register_tiles : mapping of str to int
        Points by program loop that one task computes with its accumulators in registers.
    loop_order : LoopOrder
        Factor whose loops tasks walk outside the other's; few of its data have to stay near.
    cache_tiles : mapping of str to int
        Points by program loop whose tasks run before any others, so that their data stay in a
        farther cache.
    non_temporal : bool
        Load the factor that the inner tasks move past the nearest cache, to keep the other there.
    split_k : int
        Number of parts of a reduction that different tasks sum.
    """

    register_tiles: Mapping[str, Count] = field(default_factory=dict[str, int])
    loop_order: LoopOrder = "columns"
    cache_tiles: Mapping[str, Count] = field(default_factory=dict[str, int])
    non_temporal: bool = False
    split_k: Count = 1

    @property
    def columns_outermost(self) -> bool:
        """True if the loops of the columns are outermost."""
        return self.loop_order == "columns"


@dataclass(frozen=True)
class KernelPlan:
    """Kernel before compilation.

    Parameters
    ----------
    backend : str
        Name for reports.
    source : str
        TVMScript of the function ``main``.
    schedule : callable, optional
        Rewrite of the parsed function (tensorizes its blocks).
    attributes, options : tuple of str
        Instruction-set attributes of the target, and switches of LLVM's code generator.
    copies : int
        Elements of a last parameter, into which the kernel packs its first factor; 0 if that comes
        packed.
    functions : str
        Functions in LLVM's language that the kernel calls.
    original : bool
        The first factor is read in its original layout.
    in_registers : bool
        Accumulators are registers of the compiler.
    parts : tuple of (str, KernelPlan)
        Kernels that this one calls, by name, as ``Module.NAME(addresses of their buffers)``, with
        the values of parameters that are no buffers. The options have :data:`SHARED_BUFFERS`.
    """

    backend: str
    source: str
    schedule: Callable[[Any], None] | None = None
    attributes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    copies: int = 0
    functions: str = ""
    original: bool = False
    in_registers: bool = False
    parts: tuple[tuple[str, KernelPlan], ...] = ()


_LOOP = re.compile(r"for (?P<name>\w+) in T\.(?P<kind>\w+)\((?P<limits>.*)\):")
_LOOP_VARIABLES = re.compile(r"for (?P<names>[\w, ]+) in ")
_IDENTIFIER = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w.(])")


def _arguments(text: str) -> list[str]:
    """Return the arguments of a call.

    >>> _arguments("T.min(a, b), (c + 1) * 2")
    ['T.min(a, b)', '(c + 1) * 2']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


class Script:
    """Lines of TVMScript, written at the current depth."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._shifted: list[str] = []
        self._loops: list[str] = []
        self._bounds = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    @contextmanager
    def nested(self, *headers: str) -> Generator[None]:
        """Write headers, each one level below the last, and the lines written inside below them.

        Raises :class:`InvariantError` for a loop with the variable of a loop around it, of which
        expressions inside could no longer speak.
        """
        outside, loops = len(self._shifted), len(self._loops)
        for header in headers:
            if loop := _LOOP_VARIABLES.match(header):
                variables = _IDENTIFIER.findall(loop["names"])
                if hidden := {*variables} & {*self._loops}:
                    raise InvariantError(f"{header} hides the loop variable {', '.join(hidden)}")
                self._loops += variables
            self.line(self._with_bound_limits(header))
            self._depth += 1
        yield
        self._depth -= len(headers)
        del self._shifted[outside:]
        del self._loops[loops:]

    def _with_bound_limits(self, header: str) -> str:
        """Return a header whose limits are variables where TVM would shift them wrongly.

        TVM's ``CanonicalizeLoop`` lets every loop begin at 0. Where a loop that does not begins or
        ends at an expression of an outer one that does not either, it takes the outer variable in
        this expression for the one that begins at 0. What a variable stands for is right.
        """
        loop = _LOOP.fullmatch(header)
        limits = _arguments(loop["limits"]) if loop else []
        if loop is None or len(limits) != 2 or limits[0] == "0":
            return header
        named = {*_IDENTIFIER.findall(loop["limits"])}
        if named & {*self._shifted}:
            for number, limit in enumerate(limits):
                limits[number] = f"limit{self._bounds}"
                self.line(f"{limits[number]}: T.let = {limit}")
                self._bounds += 1
        self._shifted.append(loop["name"])
        return f"for {loop['name']} in T.{loop['kind']}({', '.join(limits)}):"

    @contextmanager
    def function(self, parameters: Iterable[str]) -> Generator[None]:
        """Write the function ``main``, whose buffers do not overlap, around the lines inside."""
        self.line(HEADER)
        with self.nested(f"def main({', '.join(parameters)}):"):
            # The promise that buffers do not overlap lets LLVM reorder loads and stores of
            # different ones.
            self.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
            yield

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def storage_dtype(dtype: str) -> str:
    """Return the element type in memory, that of a buffer.

    bfloat16 and floats of 8 bits are stored as their bits.
    """
    # The compiler's bfloat16 legalisation silently rewrites buffers under opaque tile loads to
    # float32, which is wrong.
    if dtype == "bfloat16":
        return "uint16"
    if dtype.startswith("float8_"):
        return "uint8"
    if dtype in INPUT_DTYPES:
        dtype = dtype_info(dtype).in_memory
    if dtype not in _STORED_TYPES:
        raise LoweringError(
            f"element type {dtype} has no kernel: use an integer of 8 to 64 bits, "
            "bfloat16 or a float"
        )
    return dtype


def read(element: str, dtype: str, into: str) -> str:
    """Return an element converted to another type.

    >>> read("A[i]", "int8", "int32")
    'T.cast(A[i], "int32")'

    Parameters
    ----------
    element : str
        Element in the text.
    dtype, into : str
        Its logical type, and the type to convert to.
    """
    if dtype == "bfloat16":
        # Its bits are the upper half of those of the float32 of the same value.
        bits = f'T.shift_left(T.cast({element}, "uint32"), T.uint32(16))'
        element = f'T.reinterpret({bits}, dtype="float32")'
        dtype = "float32"
    return element if dtype == into else f'T.cast({element}, "{into}")'


def bfloat16_bits(value: str, bits: str | None = None) -> str:
    """Return the upper half (uint32) of a float32, rounded to the nearest even; a NaN stays one.

    Parameters
    ----------
    value : str
        Text of the float32.
    bits : str, optional
        Name of its bits (uint32), where they have one.
    """
    bits = bits or f'T.reinterpret({value}, dtype="uint32")'
    upper = f"T.shift_right({bits}, T.uint32(16))"
    # Just below half of the last kept bit, and one more if that bit is odd: halves go to the even.
    odd = f"T.bitwise_and({upper}, T.uint32(1))"
    rounded = f"T.shift_right({bits} + T.uint32(32767) + {odd}, T.uint32(16))"
    # Rounding might carry a NaN to infinity, so it becomes the quiet one of its sign. The compiler
    # folds a comparison of a number with itself, so the bits are tested.
    magnitude = f'T.bitwise_and(T.reinterpret({value}, dtype="int32"), T.int32({0x7FFFFFFF}))'
    quiet = f"T.bitwise_and({upper}, T.uint32({0x8000})) + T.uint32({0x7FC0})"
    return f"T.Select({magnitude} > T.int32({0x7F800000}), {quiet}, {rounded})"


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
    name, dtype : str
        Name and logical element type.
    elements : int
        Number of elements.
    """
    return f'{name}: T.Buffer(({elements},), "{storage_dtype(dtype)}")'
