"""The calls that a kernel's execution consists of, recorded instead of made.

A recorder is a processor on which :class:`~cpembed.kernel.compiled.CompiledKernel` works as on any
other: its kernels are plans that nothing has compiled yet, its buffers stand for memory of a
program, and what is called on what is the recorded sequence, the same that a run executes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from cpembed.errors import InvariantError
from cpembed.kernel import runtime
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.runtime import bits
from cpembed.kernel.script import storage_dtype

Array = NDArray[Any]


@dataclass(eq=False)
class Memory:
    """A flat buffer; ``contents``: what it was made from, where it was made from an array."""

    elements: int
    dtype: str
    contents: Array | None = None


@dataclass(frozen=True)
class RecordedCall:
    plan: KernelPlan
    buffers: tuple[Memory, ...]


@dataclass
class RecordedKernel:
    plan: KernelPlan
    recorder: Recorder

    def __call__(self, *buffers: Memory) -> None:
        self.recorder.calls.append(RecordedCall(self.plan, buffers))

    def bound(self, *buffers: Memory) -> Callable[[], None]:
        """The call is recorded when it is bound: binding is in the order of execution."""
        self(*buffers)
        return _nothing

    def assembly(self) -> str:
        raise InvariantError("a recorded kernel is not compiled")


def _nothing() -> None:
    """A recorded call executes nothing."""


@dataclass
class Recorder:
    """``calls`` in their order."""

    threads: int
    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])

    def thread_count(self) -> int:
        return self.threads

    def compile_plan(self, plan: KernelPlan) -> RecordedKernel:
        return RecordedKernel(plan, self)

    def from_array(self, array: Array) -> Memory:
        return Memory(array.size, str(bits(array[:0]).dtype), array)

    def empty(self, elements: int, dtype: str) -> Memory:
        return Memory(elements, storage_dtype(dtype))

    def to_array(self, buffer: Memory, shape: Sequence[int]) -> Array:
        raise InvariantError("a recorded buffer holds nothing")


def thread_count() -> int:
    """Threads that kernels are planned for."""
    return runtime.thread_count()
