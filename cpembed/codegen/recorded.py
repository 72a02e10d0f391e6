"""The calls that a kernel's execution consists of, recorded instead of made.

A recorder is a processor on which :class:`~cpembed.codegen.compiled.CompiledKernel` works as on any
other: its kernels are plans that nothing has compiled yet, its buffers stand for memory of a
program, and what is called on what is the recorded sequence, the same that a run executes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.plan import KernelPlan
from cpembed.errors import InvariantError
from cpembed.transform.program import pack

Array = NDArray[Any]


@dataclass(eq=False)
class Memory:
    """A flat buffer; ``contents``: its elements, where they are known."""

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
    """``threads``: that kernels are planned for, 0 for as many as there are; ``calls`` in their
    order."""

    threads: int = 0
    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])

    def thread_count(self) -> int:
        return self.threads or runtime.thread_count()

    def compile_plan(self, plan: KernelPlan) -> RecordedKernel:
        return RecordedKernel(plan, self)

    def from_array(self, array: Array) -> Memory:
        contents = runtime.bits(array)
        return Memory(contents.size, str(contents.dtype), contents)

    def empty(self, elements: int, dtype: str) -> Memory:
        return Memory(elements, dtype)

    def to_array(self, buffer: Memory, shape: Sequence[int]) -> Array:
        raise InvariantError("a recorded buffer holds nothing")

    def taken(self) -> tuple[RecordedCall, ...]:
        """The calls since the last time."""
        calls = tuple(self.calls)
        self.calls.clear()
        return calls


@dataclass(frozen=True)
class RecordedCalls:
    """The calls of a kernel: those that ``prepare``, once, and of ``run``.

    ``given`` are the inputs that are not known, and the output, in their own layouts, and
    ``packed`` the same as the contraction takes them, by name, vectors and a residual by those of
    :mod:`~cpembed.codegen.epilogue`. Where both are the same memory it is packed in place. What
    else is called on has contents, or is workspace.
    """

    prepare: tuple[RecordedCall, ...]
    run: tuple[RecordedCall, ...]
    given: Mapping[str, Memory]
    packed: Mapping[str, Memory]


def recorded_calls(
    kernel: CompiledKernel, ahead: Collection[str], constants: Mapping[str, Array] | None = None
) -> RecordedCalls:
    """What a whole call does that :meth:`CompiledKernel.bound_whole` gives, of a kernel that was
    made for a recorder.

    Operands in ``ahead`` are packed by preparation, and so are vectors; ``constants``, inputs of as
    many elements as the workload's, are packed now.
    """
    recorder, epilogue = kernel.processor, kernel.epilogue
    if not isinstance(recorder, Recorder):
        raise InvariantError("this kernel is compiled: the calls of a planned one are recorded")
    before = {*ahead, *(epilogue.vectors if epilogue else ())}
    packed: dict[str, Memory] = {}
    given: dict[str, Memory] = {}
    recorder.calls.clear()
    for name in kernel.input_names:
        in_place = kernel.is_packed_in_place(name)
        if constants and name in constants:
            operand = kernel.operand(name)
            array = constants[name].reshape(operand.original_shape)
            packed[name] = kernel.original(name, array)
            if not in_place:
                packed[name] = recorder.from_array(pack(operand, array))
            continue
        given[name] = kernel.original(name)
        packed[name] = given[name] if in_place else kernel.empty(name)
        if name in before:
            kernel.pack_into(name, given[name], packed[name])
    prepare = recorder.taken()
    output = kernel.program.unfused.output.name
    packed[output] = kernel.empty(output)
    originals = {
        name: memory
        for name, memory in given.items()
        if name not in before and not kernel.is_packed_in_place(name)
    }
    kernel.bound_calls(originals, packed, packed[output])
    run = recorder.taken()
    in_place = kernel.is_packed_in_place(output)
    given[output] = packed[output] if in_place else run[-1].buffers[-1]
    return RecordedCalls(prepare, run, given, packed)
