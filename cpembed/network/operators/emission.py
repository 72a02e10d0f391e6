"""The text of a generated kernel: its parameters, its share of the work for each thread, loops."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.script import HEADER, Script
from cpembed.network.operators.intrinsics import one_function, ones
from cpembed.network.operators.nest import Loop, Nest
from cpembed.network.operators.placed import Placed

SHARE_BYTES = 1 << 19
"""What a thread is to move at least where there are several: waking one takes some 3 microseconds
(measured on Zen 5), in which a core moves half of that."""
_LINE = 64
"""Elements: shares of a contiguous loop begin at a multiple."""
_ONES = "# ones"
"""Stands where factors of 1 are computed, for :func:`rounded_product`."""
UNROLLED = 8
"""An innermost loop of so few steps is unrolled, so that the loop around it is vectorised."""


class Kernel:
    """The text while it is written. Everything is inside a loop over ``chunk``, of which each part
    of the work does its share."""

    def __init__(self, inputs: Sequence[Placed], outputs: Sequence[Placed], chunks: int) -> None:
        self.script = Script()
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.chunks = chunks
        self._functions: dict[str, str] = {}
        self._names = 0

    @contextmanager
    def written(self) -> Generator[None]:
        """What is inside lies in the body of the kernel."""
        parameters = [t.parameter(f"in{k}") for k, t in enumerate(self.inputs)]
        parameters += [t.parameter(f"out{k}") for k, t in enumerate(self.outputs)]
        self.script.line(HEADER)
        with self.script.nested(f"def main({', '.join(parameters)}):"):
            self.script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
            loop = "parallel" if self.chunks > 1 else "serial"
            with self.script.nested(f"for chunk in T.{loop}({self.chunks}):"):
                self.script.line(_ONES)
                yield

    def plan(self, what: str) -> KernelPlan:
        source = self.script.text()
        used = [dtype for dtype in ("float32", "float64") if ones(dtype) in source]
        indent = source[: source.index(_ONES)].rpartition("\n")[2]
        lines = ""
        for dtype in used:
            name, text = one_function(dtype)
            self.include(name, text)
            lines += f'{indent}{ones(dtype)}: T.let = T.call_extern("{dtype}", "{name}")\n'
        source = source.replace(f"{indent}{_ONES}\n", lines)
        return KernelPlan(f"generated.{what}", source, functions="".join(self._functions.values()))

    def name(self, start: str) -> str:
        """A name that nothing else has."""
        self._names += 1
        return f"{start}{self._names}"

    def let(self, value: str) -> str:
        """The name of a value that is computed here."""
        name = self.name("v")
        self.script.line(f"{name}: T.let = {value}")
        return name

    def kept(self, value: str, dtype: str) -> str:
        """Likewise, and nothing looks through the name: TVM's analysis takes named values apart
        again and again, in a time that is exponential in how deep they lie in each other. In no
        vectorised loop. Buffers of another scope than the default one would be asked of the
        workspace, of which a library has few blocks, and not lie in registers."""
        name = self.name("kept")
        self.script.line(f'{name} = T.alloc_buffer((1,), "{dtype}")')
        self.script.line(f"{name}[0] = {value}")
        return f"{name}[0]"

    def include(self, name: str, text: str) -> None:
        """A function in LLVM's language that the kernel calls."""
        self._functions[name] = text

    def constant(self, values: NDArray[np.generic], place: str) -> str:
        """An element of an array that is part of the code."""
        name, text = constant_array(values)
        self.include(name, text)
        return f'T.call_pure_extern("{values.dtype}", "{name}", {place})'

    def share(self, total: int, unit: int = 1) -> str:
        """The bounds of a chunk's part of so many steps; all parts begin at multiples of
        ``unit``."""
        if self.chunks == 1:
            return f"0, {total}"
        units = -(-total // unit)
        first = f"chunk * {units} // {self.chunks}"
        end = f"(chunk + 1) * {units} // {self.chunks}"
        if unit == 1:
            return f"{first}, {end}"
        return f"{first} * {unit}, T.min({end} * {unit}, {total})"

    @contextmanager
    def rows(self, loops: Sequence[Loop]) -> Generator[None]:
        """A chunk's share of the points of some loops; as many of the outermost as give every chunk
        enough are walked as one."""
        if self.chunks == 1:
            with self.script.nested(*(f"for {x.name} in T.serial({x.extent}):" for x in loops)):
                yield
            return
        count, total = 0, 1
        while count < len(loops) and total < 8 * self.chunks:
            total *= loops[count].extent
            count += 1
        row = self.name("row")
        with self.script.nested(f"for {row} in T.serial({self.share(total)}):"):
            inside = total
            for number, loop in enumerate(loops[:count]):
                inside //= loop.extent
                value = row if inside == 1 else f"{row} // {inside}"
                value += f" % {loop.extent}" if number else ""
                self.script.line(f"{loop.name}: T.let = {value}")
            rest = (f"for {x.name} in T.serial({x.extent}):" for x in loops[count:])
            with self.script.nested(*rest):
                yield

    @contextmanager
    def points(self, nest: Nest) -> Generator[None]:
        """A chunk's share of all points of a nest, for a statement that the compiler vectorises
        along the innermost loop."""
        loops = nest.loops or (Loop("one", 1),)
        *outer, inner = loops
        rows = math.prod(loop.extent for loop in outer)
        if self.chunks > 1 and rows < 4 * self.chunks and inner.extent >= 4 * _LINE:
            headers = [f"for {x.name} in T.serial({x.extent}):" for x in outer]
            headers.append(f"for {inner.name} in T.serial({self.share(inner.extent, _LINE)}):")
            with self.script.nested(*headers):
                yield
            return
        if self.chunks > 1 and rows < 2:
            with self.rows(loops):
                yield
            return
        kind = "unroll" if inner.extent <= UNROLLED and outer else "serial"
        with (
            self.rows(outer),
            self.script.nested(f"for {inner.name} in T.{kind}({inner.extent}):"),
        ):
            yield


def chunks_for(
    inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int, effort: float = 1
) -> int:
    """Into how many parts the work is cut; ``effort``: how much longer a byte takes than one of a
    copy."""
    moved = sum(tensor.bytes for tensor in (*inputs, *outputs))
    return max(1, min(threads, int(moved * effort) // SHARE_BYTES))


_LLVM_TYPES = {
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def constant_array(values: NDArray[np.generic]) -> tuple[str, str]:
    """The name and the text, in LLVM's language, of a function from a place to an element."""
    values = np.ascontiguousarray(values).reshape(-1)
    dtype, kind = str(values.dtype), _LLVM_TYPES[str(values.dtype)]
    digest = hashlib.sha256(values.tobytes() + dtype.encode()).hexdigest()[:16]
    name = f"cpembed_constant_{digest}"
    if values.dtype.kind == "f":
        wide = values.astype(np.float64).view(np.uint64)
        items = ", ".join(f"{kind} 0x{int(bits):016X}" for bits in wide)
    else:
        signed = values.view(f"int{8 * values.itemsize}")
        items = ", ".join(f"{kind} {int(value)}" for value in signed)
    array = f"[{values.size} x {kind}]"
    return name, (
        f"@{name}_values = private unnamed_addr constant {array} [{items}], align 64\n"
        f"define internal {kind} @{name}(i32 %place) alwaysinline {{\n"
        f"  %address = getelementptr inbounds {kind}, ptr @{name}_values, i32 %place\n"
        f"  %value = load {kind}, ptr %address\n"
        f"  ret {kind} %value\n"
        f"}}\n"
    )
