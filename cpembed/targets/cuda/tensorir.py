"""Kernels of a product as TensorIR functions, for modules that TVM compiles for a GPU."""
# pyright: basic

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.epilogue import RESIDUAL
from cpembed.codegen.recorded import FunctionCall, FunctionCalls, Memory
from cpembed.codegen.script import storage_dtype
from cpembed.targets.cuda.build import functions, prim_func
from cpembed.targets.cuda.defects import PASS_OPTIONS
from cpembed.targets.cuda.emit import Writer
from cpembed.targets.cuda.schedule import Plan
from cpembed.targets.cuda.writer import PARAMETERS, PARTIAL, VECTORS
from cpembed.transform.program import pack

Array = NDArray[Any]


def function_calls(plan: Plan, constants: Mapping[str, Array]) -> FunctionCalls:
    """``constants``, inputs of as many elements as the workload's, are packed now, by operand; the
    other weights by a function that prepares."""
    memory, given, prepared = _memory(plan, constants)
    calls: dict[bool, list[FunctionCall]] = {True: [], False: []}
    for name, (writer, _) in functions(plan).items():
        if memory.get(name.removeprefix("pack_"), _UNKNOWN).contents is not None:
            continue
        calls[name in prepared].append(_call(name, writer, memory))
    return FunctionCalls(tuple(calls[True]), tuple(calls[False]), given)


_UNKNOWN = Memory(0, "int8")


def _memory(
    plan: Plan, constants: Mapping[str, Array]
) -> tuple[dict[str, Memory], dict[str, Memory], set[str]]:
    """By names of parameters, and what is given by names of inputs; names of functions that pack
    weights."""
    product = plan.product
    workload, epilogue = product.program.workload, product.epilogue
    memory: dict[str, Memory] = {}
    given: dict[str, Memory] = {}
    prepared: set[str] = set()
    for name, stored in zip(PARAMETERS, (plan.first, plan.second), strict=True):
        layout, operand = stored.layout, workload.operand(stored.layout.name)
        if operand.tensor in constants:
            array = constants[operand.tensor].reshape(layout.original_shape)
            memory[name] = _holding(pack(layout, array))
            continue
        found = Memory(math.prod(layout.original_shape), storage_dtype(layout.dtype))
        given[operand.tensor] = memory[f"{name}_original" if stored.needs_packing else name] = found
        if operand == workload.inputs[1] and not operand.varies:
            prepared.add(f"pack_{name}")
    for name in epilogue.vectors if epilogue else ():
        if name in constants:
            memory[VECTORS[name]] = _holding(constants[name])
        else:
            dtype = epilogue.vector_dtype(name, product.sums) if epilogue else ""
            given[name] = memory[VECTORS[name]] = Memory(product.channel_count, dtype)
    elements = product.output.layout.elements
    if epilogue is not None and epilogue.residual is not None:
        dtype = storage_dtype(epilogue.residual.dtype)
        given[RESIDUAL] = memory["Residual"] = Memory(elements, dtype)
    output = Memory(elements, storage_dtype(product.stored_dtype))
    given[product.program.unfused.output.name] = memory["C"] = output
    memory[PARTIAL] = Memory(plan.schedule.splits * elements, storage_dtype(product.sums))
    return memory, given, prepared


def _holding(array: Array) -> Memory:
    contents = runtime.bits(np.ascontiguousarray(array)).reshape(-1)
    return Memory(contents.size, str(contents.dtype), contents)


def _call(name: str, writer: Writer, memory: dict[str, Memory]) -> FunctionCall:
    """Each function writes its last parameter."""
    function = prim_func(writer)
    buffers: list[Memory] = []
    for parameter in function.params:
        size, dtype = int(parameter.shape[0]), str(parameter.dtype)
        buffers.append(memory.setdefault(str(parameter.name), Memory(size, dtype)))
    return FunctionCall(name, lambda: function, tuple(buffers), options=PASS_OPTIONS)
