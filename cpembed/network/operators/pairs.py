"""Kernel of two operators, the second of which reads bands of the first one's result from a cache.

A task computes the rows of the first result that a band of the second one needs into a buffer of
its thread, then the band. Both are kernels of their own, functions of addresses that the text
calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cpembed.codegen.plan import HEADER, SHARED_BUFFERS, KernelPlan, Script
from cpembed.codegen.recorded import Memory
from cpembed.network.operators.attention_tiles import merged
from cpembed.network.operators.emission import chunk_bounds

IMAGE, RESIDUAL, OUTPUT = "image", "residual", "output"
"""Names of the tensors that bands lie in."""
BETWEEN = "between"
"""Name of the buffer of bands of the first result."""
WINDOW_START = "window start"
"""Name of a number: the row of the buffer at which the window of a band's first row begins; it is
negative in the padding."""

# Elements to which each thread's buffer is rounded up: a cache line of the narrowest type, so that
# no two threads write to one.
_LINE = 64


@dataclass(frozen=True)
class Steps:
    """Number of elements in memory from a sample, and from a row, to the next."""

    sample: int
    row: int


@dataclass(frozen=True)
class RowWindow:
    """Rows of an image that a row of a result is computed from.

    Attributes
    ----------
    height : int
        Rows of the image.
    stride, before : int
        Rows from a window to the next, and rows of padding before the image.
    reach : int
        Rows from the first tap of a window to its last, both included.
    """

    height: int
    stride: int = 1
    before: int = 0
    reach: int = 1

    def covers_padding(self, height: int) -> bool:
        """True if a window of a result of some height reaches beyond the image."""
        end = (height - 1) * self.stride - self.before + self.reach
        return self.before > 0 or end > self.height


@dataclass(frozen=True)
class Bands:
    """Bands of a result, all of as many rows; the last one of a sample ends with its last row.

    Attributes
    ----------
    samples, height, rows : int
        Samples, rows of each of them, and rows of a band.
    window : RowWindow
        Rows of the first result that a row is computed from.

    >>> bands = Bands(samples=2, height=10, rows=4, window=RowWindow(21, stride=2, reach=3))
    >>> bands.count, bands.tasks, bands.read, round(bands.computed, 2)
    (3, 6, 9, 1.29)
    """

    samples: int
    height: int
    rows: int
    window: RowWindow

    @property
    def count(self) -> int:
        """Number of bands of a sample."""
        return -(-self.height // self.rows)

    @property
    def tasks(self) -> int:
        """Number of bands of all samples."""
        return self.samples * self.count

    @property
    def is_row_by_row(self) -> bool:
        """True if each row is computed from the row of the same number."""
        return self.window == RowWindow(self.height)

    @property
    def read(self) -> int:
        """Number of rows of the first result that a band is computed from."""
        window = self.window
        return min(window.height, (self.rows - 1) * window.stride + window.reach)

    @property
    def computed(self) -> float:
        """Number of rows of the first result that are computed, relative to its height."""
        return self.count * self.read / self.window.height


@dataclass(frozen=True)
class BandCall:
    """Call of a kernel of a band.

    Attributes
    ----------
    operands : tuple of str or Memory
        Tensors and :data:`WINDOW_START` by name, and constants.
    steps : mapping from str to Steps
        Distances in the tensors that bands lie in.
    """

    plan: KernelPlan
    operands: tuple[str | Memory, ...]
    steps: Mapping[str, Steps]


@dataclass(frozen=True)
class PairPlan:
    """Kernel of a pair, and its memory in the order of its parameters.

    ``memory`` has the tensors under their names, and constants and workspace under names that are
    free.
    """

    plan: KernelPlan
    memory: Mapping[str, Memory]


def pair_plan(
    calls: Sequence[BandCall],
    bands: Bands,
    tensors: Mapping[str, Memory],
    between: Memory,
    threads: int,
) -> PairPlan:
    """Return the kernel of a pair.

    Parameters
    ----------
    calls : sequence of BandCall
        Calls of a band in the order of their execution.
    bands : Bands
    tensors : mapping from str to Memory
        Whole tensors by name.
    between : Memory
        A band of the first result.
    threads : int
        Maximum number of threads.
    """
    return _PairText(bands, min(threads, bands.tasks), dict(tensors)).written(calls, between)


@dataclass
class _PairText:
    """Text of a pair while it is written."""

    bands: Bands
    chunks: int
    memory: dict[str, Memory]
    script: Script = field(default_factory=Script)
    stride: int = 0

    def written(self, calls: Sequence[BandCall], between: Memory) -> PairPlan:
        self.stride = -(-between.elements // _LINE) * _LINE
        self.memory[BETWEEN] = Memory(self.stride * self.chunks, between.dtype)
        # A row of the second result is computed from the same row of the first, or a window of it.
        rows = ("row" if self.bands.is_row_by_row else "start", "row")
        lines = [
            self._call(f"part{number}", call, row)
            for number, (call, row) in enumerate(zip(calls, rows, strict=True))
        ]
        bands, script = self.bands, self.script
        parameters = (
            f'{name}: T.Buffer(({m.elements},), "{m.dtype}")' for name, m in self.memory.items()
        )
        script.line(HEADER)
        with script.nested(f"def main({', '.join(parameters)}):"):
            script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
            share = ", ".join(chunk_bounds(bands.tasks, self.chunks))
            with script.nested(
                f"for chunk in T.parallel({self.chunks}):", f"for task in T.serial({share}):"
            ):
                script.line(f"sample: T.let = task // {bands.count}")
                start, last = f"task % {bands.count} * {bands.rows}", bands.height - bands.rows
                script.line(f"row: T.let = T.min({start}, {last})")
                if not bands.is_row_by_row:
                    # Rows in the padding are no rows of the image.
                    begin = self._window_begin()
                    end = bands.window.height - bands.read
                    script.line(f"start: T.let = T.max(0, T.min({begin}, {end}))")
                script.lines(lines)
        plans = [call.plan for call in calls]
        plan = KernelPlan(
            backend="generated.pair",
            source=script.text(),
            attributes=merged([plan.attributes for plan in plans]),
            options=merged([[SHARED_BUFFERS], *(plan.options for plan in plans)]),
            parts=tuple((f"part{number}", plan) for number, plan in enumerate(plans)),
        )
        return PairPlan(plan, self.memory)

    def _window_begin(self) -> str:
        """Return the row of the first result at which the window of a band's first row begins."""
        window = self.bands.window
        return f"row * {window.stride} - {window.before}"

    def _call(self, name: str, call: BandCall, row: str) -> str:
        """Return the call of a part at a row of its result, and add its constants to the memory."""
        arguments = (self._argument(operand, call.steps, row) for operand in call.operands)
        return f"Module.{name}({', '.join(arguments)})"

    def _argument(self, operand: str | Memory, steps: Mapping[str, Steps], row: str) -> str:
        if isinstance(operand, Memory):
            name = f"constant{len(self.memory)}"
            self.memory[name] = operand
            return f"T.address_of({name}[0])"
        if operand == BETWEEN:
            return f"T.address_of({BETWEEN}[chunk * {self.stride}])"
        if operand == WINDOW_START:
            return f"{self._window_begin()} - start"
        step = steps[operand]
        return f"T.address_of({operand}[sample * {step.sample} + {row} * {step.row}])"
