"""Kernel of two products, the second of which reads bands of the first one's result from a cache.

A task computes a band of the first product into a buffer of its thread, then the same band of the
second. Both are kernels of a band, functions of addresses that the text calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cpembed.codegen.plan import HEADER, SHARED_BUFFERS, KernelPlan, Script
from cpembed.codegen.recorded import Memory
from cpembed.network.operators.attention_tiles import merged

IMAGE, RESIDUAL, OUTPUT = "image", "residual", "output"
"""Names of the tensors that bands lie in."""
BETWEEN = "between"
"""Name of the buffer of bands of the first result."""

# Elements to which each thread's buffer is rounded up: a cache line of the narrowest type, so that
# no two threads write to one.
_LINE = 64


@dataclass(frozen=True)
class Steps:
    """Number of elements in memory from a sample, and from a row, to the next."""

    sample: int
    row: int


@dataclass(frozen=True)
class Bands:
    """Bands of a result, all of as many rows; the last one of a sample ends with its last row.

    >>> bands = Bands(samples=2, height=10, rows=4)
    >>> bands.count, bands.tasks, bands.computed
    (3, 6, 1.2)
    """

    samples: int
    height: int
    rows: int

    @property
    def count(self) -> int:
        """Number of bands of a sample."""
        return -(-self.height // self.rows)

    @property
    def tasks(self) -> int:
        """Number of bands of all samples."""
        return self.samples * self.count

    @property
    def computed(self) -> float:
        """Number of rows that are computed, relative to those that there are."""
        return self.count * self.rows / self.height


@dataclass(frozen=True)
class BandCall:
    """Call of a kernel of a band.

    Attributes
    ----------
    operands : tuple of str or Memory
        Tensors by name, and constants.
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
        lines = [self._call(f"part{number}", call) for number, call in enumerate(calls)]
        bands, script = self.bands, self.script
        parameters = (
            f'{name}: T.Buffer(({m.elements},), "{m.dtype}")' for name, m in self.memory.items()
        )
        script.line(HEADER)
        with script.nested(f"def main({', '.join(parameters)}):"):
            script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
            first, end = (f"{n} * {bands.tasks} // {self.chunks}" for n in ("chunk", "(chunk + 1)"))
            with script.nested(
                f"for chunk in T.parallel({self.chunks}):",
                f"for task in T.serial({first}, {end}):",
            ):
                script.line(f"sample: T.let = task // {bands.count}")
                start, last = f"task % {bands.count} * {bands.rows}", bands.height - bands.rows
                script.line(f"row: T.let = T.min({start}, {last})")
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

    def _call(self, name: str, call: BandCall) -> str:
        """Return the call of a part, and add its constants to the memory."""
        addresses = (self._address(operand, call.steps) for operand in call.operands)
        return f"Module.{name}({', '.join(addresses)})"

    def _address(self, operand: str | Memory, steps: Mapping[str, Steps]) -> str:
        if isinstance(operand, Memory):
            name = f"constant{len(self.memory)}"
            self.memory[name] = operand
            return f"T.address_of({name}[0])"
        if operand == BETWEEN:
            return f"T.address_of({BETWEEN}[chunk * {self.stride}])"
        step = steps[operand]
        return f"T.address_of({operand}[sample * {step.sample} + row * {step.row}])"
