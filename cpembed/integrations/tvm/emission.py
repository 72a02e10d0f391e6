"""Kernels and programs as code of TVM.

A kernel is relax calls of compiled functions, or one TensorIR function. Any other program is a call
of the function that executes it: a compiled module holds a pickle of what the program is built
from (specification, derived program, schedule, epilogue). It is trusted, as machine code is.
"""
# pyright: basic

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, s_tir, tirx
from tvm.relax.transform import FuseTIR

from cpembed.codegen.plan import storage_dtype
from cpembed.codegen.recorded import FunctionCall, Memory, compiled, filling
from cpembed.integrations.tvm.kernels import Kernel, Program
from cpembed.integrations.tvm.recognise import vars_of
from cpembed.targets.capabilities import RelaxEmitter
from cpembed.targets.registry import open_target


@dataclass
class Imports:
    """Compiled functions of a relax module, by symbol.

    Each is compiled for its own target and with its own settings of TVM's passes, and imported by
    the module. ``target`` is that of functions that have none of their own.
    """

    target: Any
    modules: dict[str, Any] = field(default_factory=dict[str, Any])
    functions: dict[str, Any] = field(default_factory=dict[str, Any])

    def symbol(self, call: FunctionCall) -> str:
        """Return the symbol of a function, which is compiled if it is new."""
        target, function = call.target or self.target, call.function()
        # All that the machine code depends on: equal functions of several kernels are compiled
        # once.
        text = f"{function.script()}{call.functions}{target}{call.options}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        name = re.sub(r"\W", "_", call.name)
        symbol = f"cpembed_{name}_{digest}"
        if symbol not in self.modules:
            self.modules[symbol] = compiled(call, symbol, target)
            self.functions[symbol] = function
        return symbol


def emit_calls(
    builder: Any, kernel: Kernel, arguments: Mapping[str, Any], result: Any, imports: Imports
) -> Any:
    """Return a relax expression that calls the functions of a kernel on flat views of tensors.

    Parameters
    ----------
    builder
        A ``relax.BlockBuilder``.
    kernel
        Kernel to call.
    arguments
        Relax expressions by input.
    result
        Type of the expression.
    imports
        Compiled functions, to which those of the kernel are added.
    """
    calls = kernel.calls
    values: dict[int, Any] = {}
    for name, argument in arguments.items():
        memory = calls.caller_memory[name]
        view = _view(argument, [memory.elements], storage_dtype(memory.dtype))
        values[id(memory)] = builder.emit(view)

    def called(call: FunctionCall, inputs: relax.Tuple, types: Any) -> Any:
        return relax.call_dps_packed(imports.symbol(call), inputs, types)

    for call in (*calls.prepare, *calls.run):
        _emit(builder, call, values, called)
    flat = values[id(calls.caller_memory[kernel.output])]
    return _view(flat, [int(size) for size in result.shape], str(result.dtype))


def _emit(
    builder: Any,
    call: FunctionCall,
    values: dict[int, Any],
    called: Callable[[FunctionCall, relax.Tuple, Any], Any],
) -> None:
    """Emit a call, and add its results to the ``values`` of memories, by their identity."""
    count = len(call.buffers) - call.written
    inputs: list[Any] = [
        values[id(memory)] if memory.contents is None else relax.const(memory.contents.reshape(-1))
        for memory in call.buffers[:count]
    ]
    types: Any = [_flat_type(memory) for memory in call.buffers[count:]]
    # relax takes a tuple of types only for several outputs.
    types = types[0] if len(types) == 1 else types
    result = builder.emit(called(call, relax.Tuple(inputs), types))
    for number, memory in enumerate(call.buffers[count:]):
        part = result if call.written == 1 else builder.emit(relax.TupleGetItem(result, number))
        values[id(memory)] = part


def _flat_type(memory: Memory) -> relax.TensorType:
    shape: list[Any] = [memory.elements]
    return relax.TensorType(shape, storage_dtype(memory.dtype))


def _view(value: Any, shape: Any, dtype: Any) -> Any:
    """Return the same memory in another shape, or as another type of the same size."""
    if str(value.ty.dtype) == dtype:
        return relax.op.reshape(value, shape)
    return relax.op.memory.view(value, shape, dtype)


def kernel_function(kernel: Kernel, function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return packing, product and unpacking as one function with the parameters of another."""
    parameters = vars_of(function)
    inputs: list[tuple[Memory, Any]] = [
        (kernel.calls.caller_memory[name], parameters[number])
        for name, number in kernel.arguments.items()
    ]
    output = kernel.calls.caller_memory[kernel.output]
    # Inputs of one value have no parameter: each call fills them.
    fills = [
        filling(kernel.calls.caller_memory[name], value) for name, value in kernel.filled.items()
    ]
    calls = [*fills, *kernel.calls.prepare, *kernel.calls.run]
    flat = _joined(calls, [memory for memory, _ in inputs], output)
    # The last parameter of a function is its output.
    outer = [parameter for _, parameter in inputs] + [parameters[-1]]
    views = [
        tirx.DeclBuffer(inner, data=parameter.data)
        for inner, parameter in zip(vars_of(flat), outer, strict=True)
    ]
    body = flat.body
    if functions := "".join({call.functions: None for call in calls}):
        # Functions in LLVM's language that the body calls.
        text = ir.StringImm(functions)
        body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, body)
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt([*views, body]))
    realized = s_tir.SBlockRealize([], True, root)
    joined: Any = tirx.PrimFunc(parameters, realized, attrs=function.attrs)
    return joined.with_attrs({"tirx.noalias": True, "tirx.is_scheduled": True})


def _joined(calls: Sequence[FunctionCall], inputs: Sequence[Memory], output: Memory) -> Any:
    """Return one function of flat buffers, inputs first, that makes all calls."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"p{k}", _flat_type(memory)) for k, memory in enumerate(inputs)]
    values: dict[int, Any] = dict(zip(map(id, inputs), variables, strict=True))
    # FuseTIR fuses the calls of functions that have this attribute.
    primitive: Any = {"Primitive": True}

    def called(call: FunctionCall, arguments: relax.Tuple, types: Any) -> Any:
        function = call.function().without_attr("global_symbol")
        return relax.call_tir(builder.add_func(function, "part"), arguments, types)

    with builder.function("joined", variables, attrs=primitive, private=True):
        with builder.dataflow():
            for call in calls:
                _emit(builder, call, values, called)
            result = builder.emit_output(values[id(output)])
        builder.emit_func_output(result)
    return fuse_calls(builder, variables, "joined")


def fuse_calls(builder: relax.BlockBuilder, parameters: Sequence[Any], name: str) -> tirx.PrimFunc:
    """Return a TensorIR function for a relax function that calls several.

    Parameters
    ----------
    builder
        Builder that holds the relax function.
    parameters
        Parameters of the relax function.
    name
        Name of the relax function.
    """
    variables: list[Any] = [relax.Var(f"a{k}", each.ty) for k, each in enumerate(parameters)]
    primitive = builder.get().get_global_var(name)
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(ir.Call(primitive, variables))
        builder.emit_func_output(result)
    module: Any = FuseTIR()(builder.get())
    # The only binding of `main` is the call of the fused function.
    call = module["main"].body.blocks[0].bindings[0].value
    return module[call.args[0]]


# -- programs -------------------------------------------------------------------------------------

EXECUTE = "cpembed.execute"
"""Name under which compiled modules look up :func:`execute`."""

# Maximum number of programs that are kept ready to run: more than a network has.
_LOADED = 256


def register_functions() -> None:
    """Register the functions that compiled modules look up when they are loaded."""
    from cpembed.targets.vta.host import register

    tvm.register_global_func(EXECUTE, execute, override=True)
    # VTA's relax code calls a function of its own.
    register()


def emit_program(builder: Any, program: Program, arguments: Mapping[str, Any], result: Any) -> Any:
    """Return a relax expression for a program: the target's own code, or a call that executes it.

    Parameters
    ----------
    builder
        A ``relax.BlockBuilder``.
    program
        Program to run.
    arguments
        Relax expressions or arrays, by operand.
    result
        Type of the expression.
    """
    target = program.target
    if isinstance(target, RelaxEmitter):
        return target.emit_relax(builder, program.artifact, arguments, result)
    derived = program.ranked.candidate.program
    parts = target.spec, derived, program.schedule, program.epilogue
    # A tensor of bytes, since constants of a compiled module are tensors.
    recipe = relax.const(np.frombuffer(pickle.dumps(parts), np.uint8))
    names = ir.StringImm(" ".join(arguments))
    values = [
        relax.const(value) if isinstance(value, np.ndarray) else value
        for value in arguments.values()
    ]
    return relax.call_dps_packed(EXECUTE, relax.Tuple([recipe, names, *values]), result)


def execute(recipe: Any, names: str, *tensors: Any) -> None:
    """Run a program.

    Parameters
    ----------
    recipe
        Pickle of the program, as a tensor of bytes.
    names
        Names of the operands, separated by spaces.
    *tensors
        Contents of the operands, then the tensor that takes the result.
    """
    target, program, artifact = _loaded(recipe.numpy().tobytes())
    *inputs, result = tensors
    shapes = {operand.name: operand.shape for operand in program.unfused.inputs}
    arrays = {
        name: np.ascontiguousarray(tensor.numpy()).reshape(shapes[name])
        for name, tensor in zip(names.split(), inputs, strict=True)
    }
    output = target.execute(artifact, arrays).outputs[0]
    result.copyfrom(output.reshape(result.shape))


@lru_cache(maxsize=_LOADED)
def _loaded(data: bytes) -> tuple[Any, Any, Any]:
    """Return the target, the derived program and its artifact."""
    spec, program, schedule, epilogue = pickle.loads(data)
    target = open_target(spec)
    return target, program, target.build(target.lower(program, epilogue), schedule)
