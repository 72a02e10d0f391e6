"""A kernel as TensorIR functions, for other compilers' modules: packing, the product, unpacking."""
# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory, RecordedCall, recorded_calls
from cpembed.codegen.script import HEADER, Script, buffer

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """A call of a TensorIR function, a ``tirx.PrimFunc`` of flat buffers, made by ``function`` when
    it is wanted. What it writes are the last ``written`` of its ``buffers``.

    ``target`` and ``options`` are what it has to be compiled for, a ``tvm.target.Target``, and
    settings of TVM's passes; without a target, that of the module that calls it.
    ``functions`` is what it calls that is written in LLVM's own language.
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
    """The calls of a program: those that ``prepare``, once, and of ``run``.

    ``given`` are the inputs that are not known, and the output under its operand's name, in their
    own layouts. What else is called on has contents, or is workspace.
    """

    prepare: tuple[FunctionCall, ...]
    run: tuple[FunctionCall, ...]
    given: Mapping[str, Memory]


def function_calls(
    kernel: CompiledKernel, ahead: Collection[str], constants: Mapping[str, Array]
) -> FunctionCalls:
    """The calls of a kernel that was made for a recorder.

    Operands in ``ahead``, and vectors, are packed by preparation; ``constants``, inputs of as many
    elements as the workload's, are packed now.
    """
    recorded = recorded_calls(kernel, ahead, constants)
    known = {*map(id, recorded.given.values())} - {
        id(recorded.given[kernel.program.unfused.output.name])
    }
    prepare = [_function_call(call, known) for call in recorded.prepare]
    run = [_function_call(call, known) for call in recorded.run]
    return FunctionCalls(tuple(prepare), tuple(run), recorded.given)


def _function_call(call: RecordedCall, known: set[int]) -> FunctionCall:
    """``known``: memory that has its contents by now; what is not is written here."""
    plan = call.plan
    fresh = [b for b in call.buffers if b.contents is None and id(b) not in known]
    known.update(map(id, fresh))
    return FunctionCall(
        plan.backend,
        lambda: runtime.prim_func(plan),
        call.buffers,
        len(fresh),
        runtime.host_target(plan.attributes, plan.options),
        runtime.pass_options(plan),
        plan.functions,
    )


def compiled(call: FunctionCall, symbol: str, target: Any) -> Any:
    """A module of TVM's runtime with the function under a name, compiled for a target.

    Raises :class:`~cpembed.errors.LoweringError` as :func:`~cpembed.codegen.runtime.prim_func`.
    """
    library, function = runtime.tvm(), call.function()
    if call.functions:
        function = runtime.importing(function, call.functions)
    module = library.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    # TVM's code generator for GPUs looks the target up in the scope that is open.
    with target, library.transform.PassContext(opt_level=3, config=dict(call.options)):
        return library.compile(module, target).mod


def filling(memory: Memory, value: float) -> FunctionCall:
    """A call that gives every element of a buffer one value."""
    elements, dtype = memory.elements, memory.dtype
    script = Script()
    script.line(HEADER)
    with script.nested(f"def main({buffer('Filled', elements, dtype)}):"):
        script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        with script.nested(f"for i in T.serial({elements}):", 'with T.sblock("fill"):'):
            script.line(f"place = T.axis.spatial({elements}, i)")
            script.line(f"Filled[place] = T.{dtype}({value!r})")
    plan = KernelPlan("fill", script.text())
    return FunctionCall("fill", lambda: runtime.prim_func(plan), (memory,))
