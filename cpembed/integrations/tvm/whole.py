"""A kernel as one TensorIR function of the same parameters as the function that it replaces."""
# pyright: basic

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax, s_tir, tirx

from cpembed.codegen.recorded import FunctionCall, Memory, filling
from cpembed.codegen.script import storage_dtype
from cpembed.integrations.tvm.groups import fused
from cpembed.integrations.tvm.kernels import Kernel
from cpembed.integrations.tvm.recognise import vars_of


def whole_function(kernel: Kernel, function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Packing, the product and unpacking in one function, scheduled; its parameters are those of
    the function that was recognised, and none of them is known."""
    given = vars_of(function)
    memories: list[tuple[Memory, Any]] = [
        (kernel.calls.given[name], given[number]) for name, number in kernel.arguments.items()
    ]
    output = kernel.calls.given[kernel.output]
    fills = [filling(kernel.calls.given[name], value) for name, value in kernel.filled.items()]
    calls = [*fills, *kernel.calls.prepare, *kernel.calls.run]
    made = _in_one(calls, [memory for memory, _ in memories], output)
    flat = vars_of(made)
    parameters = [parameter for _, parameter in memories] + [given[-1]]
    views = [
        tirx.DeclBuffer(inner, data=outer.data)
        for inner, outer in zip(flat, parameters, strict=True)
    ]
    body = _imported(made.body, "".join({call.functions: None for call in calls}))
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt([*views, body]))
    realized = s_tir.SBlockRealize([], True, root)
    whole: Any = tirx.PrimFunc(given, realized, attrs=function.attrs)
    return whole.with_attrs({"tirx.noalias": True, "tirx.is_scheduled": True})


def _imported(body: Any, functions: str) -> Any:
    """The body with functions that it calls, which are written in LLVM's language."""
    if not functions:
        return body
    text = ir.StringImm(functions)
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, body)


def _in_one(calls: Sequence[FunctionCall], given: Sequence[Memory], output: Memory) -> Any:
    """One function of flat buffers: what is given, then the output."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"p{k}", _flat(memory)) for k, memory in enumerate(given)]
    values: dict[int, Any] = dict(zip(map(id, given), variables, strict=True))
    primitive: Any = {"Primitive": True}
    with builder.function("whole", variables, attrs=primitive, private=True):
        with builder.dataflow():
            for call in calls:
                _emit(builder, call, values)
            result = builder.emit_output(values[id(output)])
        builder.emit_func_output(result)
    return fused(builder, variables, "whole")


def _emit(builder: Any, call: FunctionCall, values: dict[int, Any]) -> None:
    count = len(call.buffers) - call.written
    given = [values[id(memory)] for memory in call.buffers[:count]]
    types: Any = [_flat(memory) for memory in call.buffers[count:]]
    function = call.function().without_attr("global_symbol")
    added = builder.add_func(function, "part")
    made = relax.call_tir(added, relax.Tuple(given), types[0] if len(types) == 1 else types)
    found = builder.emit(made)
    for number, memory in enumerate(call.buffers[count:]):
        one = found if call.written == 1 else builder.emit(relax.TupleGetItem(found, number))
        values[id(memory)] = one


def _flat(memory: Memory) -> relax.TensorType:
    shape: list[Any] = [memory.elements]
    return relax.TensorType(shape, storage_dtype(memory.dtype))
