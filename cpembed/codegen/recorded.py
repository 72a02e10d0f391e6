"""Calls of a kernel's execution, recorded instead of made, also as TensorIR functions.

A recorder is a processor on which :class:`~cpembed.codegen.compiled.CompiledKernel` works as on any
other. Its kernels are plans that nothing has compiled yet, its buffers stand for memory of a
program, and each call is recorded with its buffers, in the sequence of a real run. Other compilers'
modules take the same calls as TensorIR functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.plan import KernelPlan, Script, buffer
from cpembed.errors import InvariantError
from cpembed.transform.program import pack

Array = NDArray[Any]


@dataclass(eq=False)
class Memory:
    """Flat buffer of a program, with its contents if they are constant."""

    elements: int
    dtype: str
    contents: Array | None = None


@dataclass(frozen=True)
class RecordedCall:
    """Call of a kernel that is not compiled yet."""

    plan: KernelPlan
    buffers: tuple[Memory, ...]


@dataclass
class RecordedKernel:
    """Kernel of a recorder."""

    plan: KernelPlan
    recorder: Recorder

    def __call__(self, *buffers: Memory) -> None:
        self.recorder.calls.append(RecordedCall(self.plan, buffers))

    def bound(self, *buffers: Memory) -> Callable[[], None]:
        """Record the call: binding happens in the order of execution."""
        self(*buffers)
        return lambda: None

    def assembly(self) -> str:
        raise InvariantError("a recorded kernel is not compiled")


@dataclass
class Recorder:
    """Processor that records calls; kernels are planned for ``threads``, 0 for all there are."""

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

    def drain(self) -> tuple[RecordedCall, ...]:
        """Return the calls since the last time, and forget them."""
        calls = tuple(self.calls)
        self.calls.clear()
        return calls


@dataclass(frozen=True)
class RecordedCalls:
    """Calls of a kernel: those that ``prepare``, once, and those of each ``run``.

    ``caller_memory`` has the inputs that are not constant, and the output, in their original
    layouts, and ``packed`` the same in the layouts of the contraction; both are one memory for
    operands in place. Vectors and a residual have the names of :mod:`~cpembed.codegen.epilogue`.
    All other memory is constant or workspace.
    """

    prepare: tuple[RecordedCall, ...]
    run: tuple[RecordedCall, ...]
    caller_memory: Mapping[str, Memory]
    packed: Mapping[str, Memory]


def recorded_calls(
    kernel: CompiledKernel, ahead: Collection[str], constants: Mapping[str, Array] | None = None
) -> RecordedCalls:
    """Record the call of :meth:`CompiledKernel.bound_whole`.

    Parameters
    ----------
    kernel : CompiledKernel
        Kernel that was made for a recorder.
    ahead : collection of str
        Operands that are packed by preparation; vectors are too.
    constants : mapping of str to array, optional
        Inputs that are packed now, with as many elements as the workload's.

    Raises
    ------
    InvariantError
        The kernel was made for another processor.
    """
    recorder, epilogue = kernel.processor, kernel.epilogue
    if not isinstance(recorder, Recorder):
        raise InvariantError("this kernel is compiled: the calls of a planned one are recorded")
    before = {*ahead, *(epilogue.vectors if epilogue else ())}
    packed: dict[str, Memory] = {}
    originals: dict[str, Memory] = {}
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
        originals[name] = kernel.original(name)
        packed[name] = originals[name] if in_place else kernel.empty(name)
        # Recorded now, before the kernel's own calls, this packing becomes the preparation.
        if name in before:
            kernel.pack_into(name, originals[name], packed[name])
    prepare = recorder.drain()
    output = kernel.program.unfused.output.name
    packed[output] = kernel.empty(output)
    packed_by_run = {
        name: memory
        for name, memory in originals.items()
        if name not in before and not kernel.is_packed_in_place(name)
    }
    kernel.bound_calls(packed_by_run, packed, packed[output])
    run = recorder.drain()
    in_place = kernel.is_packed_in_place(output)
    # Otherwise the last call unpacks the output into its original layout.
    originals[output] = packed[output] if in_place else run[-1].buffers[-1]
    return RecordedCalls(prepare, run, originals, packed)


# ------------------------------------------------------------------------------- TensorIR functions


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """Call of a TensorIR function, which ``function`` makes when it is needed, on flat ``buffers``.

    The last ``written`` buffers are written. The function is compiled for ``target``, a
    ``tvm.target.Target``, by default that of the calling module, with ``options`` of TVM's passes;
    ``functions`` are those in LLVM's language that it calls.
    """

    name: str
    function: Callable[[], Any]
    buffers: tuple[Memory, ...]
    written: int = 1
    target: Any = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    functions: str = ""


@dataclass(frozen=True, eq=False)
class FunctionCalls:
    """Calls of a program: those that ``prepare``, once, and those of each ``run``.

    ``caller_memory`` has the inputs that are not constant, and the output under its operand's
    name, in their original layouts. All other memory is constant or workspace.
    """

    prepare: tuple[FunctionCall, ...]
    run: tuple[FunctionCall, ...]
    caller_memory: Mapping[str, Memory]


def function_calls(
    kernel: CompiledKernel, ahead: Collection[str], constants: Mapping[str, Array]
) -> FunctionCalls:
    """Return :func:`recorded_calls` as TensorIR functions.

    Parameters
    ----------
    kernel, ahead, constants
        Those of :func:`recorded_calls`.
    """
    recorded = recorded_calls(kernel, ahead, constants)
    output = recorded.caller_memory[kernel.program.unfused.output.name]
    # Inputs count as written by the caller; calls add theirs in the order of execution.
    written = {*map(id, recorded.caller_memory.values())} - {id(output)}
    prepare = [_function_call(call, written) for call in recorded.prepare]
    run = [_function_call(call, written) for call in recorded.run]
    return FunctionCalls(tuple(prepare), tuple(run), recorded.caller_memory)


def _function_call(call: RecordedCall, written: set[int]) -> FunctionCall:
    """Return a call as a function; add the memory that it writes to ``written``."""
    plan = call.plan
    # A buffer that is neither constant nor written so far is an output of the call.
    fresh = [b for b in call.buffers if b.contents is None and id(b) not in written]
    written.update(map(id, fresh))
    return FunctionCall(
        name=plan.backend,
        function=lambda: runtime.prim_func(plan),
        buffers=call.buffers,
        written=len(fresh),
        target=runtime.host_target(plan.attributes, plan.options),
        options=runtime.pass_options(plan),
        functions=plan.functions,
    )


def compiled(call: FunctionCall, symbol: str, target: Any) -> Any:
    """Compile the function of a call to a module of TVM's runtime.

    Parameters
    ----------
    call, symbol : FunctionCall, str
        Call of the function, and its name in the module.
    target : tvm.target.Target
        Target to compile for.

    Raises
    ------
    LoweringError
        As for :func:`~cpembed.codegen.runtime.prim_func`.
    """
    library, function = runtime.tvm(), call.function()
    if call.functions:
        function = runtime.importing(function, call.functions)
    module = library.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    # TVM's code generator for GPUs looks the target up in the scope that is open.
    with target, library.transform.PassContext(opt_level=3, config=dict(call.options)):
        return library.compile(module, target).mod


def filling(memory: Memory, value: float) -> FunctionCall:
    """Return a call that sets every element of a buffer to a value."""
    elements, dtype = memory.elements, memory.dtype
    script = Script()
    with (
        script.function([buffer("Filled", elements, dtype)]),
        script.nested(f"for i in T.serial({elements}):", 'with T.sblock("fill"):'),
    ):
        script.line(f"place = T.axis.spatial({elements}, i)")
        script.line(f"Filled[place] = T.{dtype}({value!r})")
    plan = KernelPlan("fill", script.text())
    return FunctionCall("fill", lambda: runtime.prim_func(plan), (memory,))
