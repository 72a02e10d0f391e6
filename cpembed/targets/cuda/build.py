"""TVM functions of a plan's kernels: CUDA text, and calls for modules that TVM compiles."""
# pyright: basic

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.epilogue import RESIDUAL
from cpembed.codegen.plan import storage_dtype
from cpembed.codegen.recorded import FunctionCall, FunctionCalls, Memory
from cpembed.errors import LoweringError
from cpembed.steps import step
from cpembed.targets.cuda import emit, results
from cpembed.targets.cuda.device import function
from cpembed.targets.cuda.executor import Launch
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.model import multiprocessor_of
from cpembed.targets.cuda.schedule import MAX_THREADS, Plan
from cpembed.targets.cuda.writer import PARAMETERS, PARTIAL, VECTORS, Writer
from cpembed.transform.program import pack

Array = NDArray[Any]

# Defects of TVM 0.27's CUDA code generation, and how they are avoided:
# - tirx.disable_cse_tir: common subexpressions are named before loops are unrolled, so that indices
#   of registers are not constant and ptxas keeps the registers in local memory.
# - The code generator looks the target up in the open scope although it is passed one, so
#   `cuda_text` opens it.
# - Accesses behind pointers are not seen, and local and shared arrays shrink to what is seen:
#   `writer.register_pointer` and the last byte of shared memory in `emit`.
# - Barriers are put around accesses of shared memory that are seen: `writer.shared_pointer`.
# - A pointer to bfloat16 has a type that the text does not define, so such elements are kept as
#   their bits: `codegen.script.storage_dtype`.
# - A fused multiply-add has no CUDA code: `_prim_func` names CUDA's function. A lowering registered
#   for the target would affect all kernels of the process: TVM would then form fused multiply-adds
#   of vectors too.
PASS_OPTIONS = {"tirx.disable_cse_tir": True}
_FUSED_MULTIPLY_ADD = ("T.fma(", 'T.call_pure_extern("float32", "__fmaf_rn", ')


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter: its name, and the number and type of its elements."""

    name: str
    elements: int
    dtype: str


@dataclass(frozen=True)
class Kernel:
    """A kernel of a text: its launch, and its parameters in order."""

    launch: Launch
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class CudaText:
    """CUDA C++ and its kernels in the order in which they run."""

    source: str
    kernels: tuple[Kernel, ...]


def functions(plan: Plan) -> dict[str, tuple[Writer, Launch]]:
    """Return the kernels of a plan by name, in the order in which they run: packing of factors, the
    product, and the addition of parts if its reduction is split.
    """
    product, kernels = plan.product, dict[str, tuple[Writer, Launch]]()

    def add(name: str, writer: Writer, grid: tuple[int, int, int], threads: int) -> None:
        shared_bytes = plan.shared_bytes if name == "product" else 0
        kernels[name] = writer, Launch(f"{name}_kernel", grid, (threads, 1, 1), shared_bytes)

    for name, operand in zip(PARAMETERS, (plan.first, plan.second), strict=True):
        if operand.needs_packing:
            grid = (emit.packing_blocks(operand), 1, 1)
            add(f"pack_{name}", emit.packing_kernel(operand, name), grid, emit.PACKING_THREADS)
    rows, columns, batch, splits = plan.blocks
    grid = (rows * columns, batch, splits)
    add("product", emit.product_kernel(plan), grid, plan.schedule.threads)
    if splits > 1:
        threads = results.REDUCTION_THREADS
        grid = (-(-product.output.layout.elements // threads), 1, 1)
        add("reduction", results.reduction_kernel(plan), grid, threads)
    return kernels


def cuda_text(plan: Plan, architecture: str) -> CudaText:
    """Generate the kernels of a plan as CUDA C++.

    Raises :class:`LoweringError` if TVM rejects them.
    """
    tvm = runtime.tvm()
    kernels, prim_funcs = functions(plan), dict[str, Any]()
    with step("generating a CUDA kernel"):
        for name, (writer, _) in kernels.items():
            prim_funcs[name] = _prim_func(writer).with_attr("global_symbol", name)
        target = cuda_target(architecture)
        with target, tvm.transform.PassContext(config=PASS_OPTIONS):
            try:
                module = tvm.tirx.build(tvm.IRModule(prim_funcs), target=target)
            except (RuntimeError, ValueError) as error:
                reason = " ".join(str(error).split())[:200]
                raise LoweringError(f"TVM makes no CUDA of the kernel: {reason}") from error
    (device,) = module.imports
    source = device.inspect_source()
    return CudaText(
        source,
        tuple(
            Kernel(launch, _parameters(source, launch.kernel, prim_funcs[name]))
            for name, (_, launch) in kernels.items()
        ),
    )


def _parameters(source: str, kernel: str, prim_func: Any) -> tuple[Parameter, ...]:
    parameters = {str(p.name): p for p in prim_func.params}
    return tuple(
        Parameter(name, int(parameters[name].shape[0]), str(parameters[name].dtype))
        for name in parameter_names(source, kernel)
    )


def parameter_names(source: str, kernel: str) -> list[str]:
    """Return a kernel's parameters in the order of a generated text, which is not that of the TVM
    function.

    Raises :class:`LoweringError` if the text has no such kernel.
    """
    match = re.search(rf"\b{kernel}\(([^)]*)\)", source)
    if match is None:
        raise LoweringError(f"the generated text has no kernel {kernel}")
    return [word.split()[-1].removesuffix("_ptr") for word in match[1].split(",")]


def _prim_func(writer: Writer) -> Any:
    tvm = runtime.tvm()
    from tvm.script import from_source
    from tvm.script import tirx as T

    # TVM concatenates the sources, and a preprocessor directive needs a line of its own.
    sources = {name: f"\n{function(name).strip()}\n" for name in sorted(writer.device_functions)}
    script = writer.script.text().replace(*_FUSED_MULTIPLY_ADD)
    return from_source(script, {"T": T, "tvm": tvm, "DEVICE": sources})


def cuda_target(architecture: str) -> Any:
    """Return TVM's target of an architecture, ``sm_80`` for instance."""
    unit = multiprocessor_of(architecture)
    return runtime.tvm().target.Target(
        {
            "kind": "cuda",
            "arch": architecture,
            "max_shared_memory_per_block": unit.shared_bytes_per_block,
            "max_threads_per_block": MAX_THREADS,
            "thread_warp_size": LANES,
            "registers_per_block": unit.registers,
        }
    )


def function_calls(plan: Plan, constants: Mapping[str, Array]) -> FunctionCalls:
    """Return the kernels of a plan as calls of TensorIR functions.

    ``constants`` are values of inputs, as many elements as the workload's, by operand; they are
    packed now. Other weights are packed by a call that prepares them.
    """
    memory, arguments, prepared = _memory(plan, constants)
    calls: dict[bool, list[FunctionCall]] = {True: [], False: []}
    for name, (writer, _) in functions(plan).items():
        factor = memory.get(name.removeprefix("pack_"))
        if factor is None or factor.contents is None:
            calls[name in prepared].append(_call(name, writer, memory))
    return FunctionCalls(tuple(calls[True]), tuple(calls[False]), arguments)


def _memory(
    plan: Plan, constants: Mapping[str, Array]
) -> tuple[dict[str, Memory], dict[str, Memory], set[str]]:
    """Return buffers by parameter, those of arguments by operand, and the functions that pack
    weights.
    """
    product = plan.product
    workload, epilogue = product.program.workload, product.epilogue
    memory: dict[str, Memory] = {}
    arguments: dict[str, Memory] = {}
    prepared: set[str] = set()
    for name, factor in zip(PARAMETERS, (plan.first, plan.second), strict=True):
        layout, operand = factor.layout, workload.operand(factor.layout.name)
        if operand.tensor in constants:
            array = constants[operand.tensor].reshape(layout.original_shape)
            memory[name] = _constant(pack(layout, array))
            continue
        original = Memory(math.prod(layout.original_shape), storage_dtype(layout.dtype))
        parameter = f"{name}_original" if factor.needs_packing else name
        arguments[operand.tensor] = memory[parameter] = original
        if operand == workload.inputs[1] and not operand.varies:
            prepared.add(f"pack_{name}")
    elements = product.output.layout.elements
    if epilogue is not None:
        for name in epilogue.vectors:
            if name in constants:
                memory[VECTORS[name]] = _constant(constants[name])
            else:
                dtype = epilogue.vector_dtype(name, product.sums)
                arguments[name] = memory[VECTORS[name]] = Memory(product.channel_count, dtype)
        if epilogue.residual is not None:
            dtype = storage_dtype(epilogue.residual.dtype)
            arguments[RESIDUAL] = memory["Residual"] = Memory(elements, dtype)
    output = Memory(elements, storage_dtype(product.output_dtype))
    arguments[product.program.unfused.output.name] = memory["C"] = output
    memory[PARTIAL] = Memory(plan.schedule.splits * elements, storage_dtype(product.sums))
    return memory, arguments, prepared


def _constant(array: Array) -> Memory:
    contents = runtime.bits(np.ascontiguousarray(array)).reshape(-1)
    return Memory(contents.size, str(contents.dtype), contents)


def _call(name: str, writer: Writer, memory: dict[str, Memory]) -> FunctionCall:
    """Return a call on the buffers of a function's parameters, of which it writes the last."""
    prim_func = _prim_func(writer)
    buffers: list[Memory] = []
    for parameter in prim_func.params:
        size, dtype = int(parameter.shape[0]), str(parameter.dtype)
        buffers.append(memory.setdefault(str(parameter.name), Memory(size, dtype)))
    return FunctionCall(name, lambda: prim_func, tuple(buffers), options=PASS_OPTIONS)
