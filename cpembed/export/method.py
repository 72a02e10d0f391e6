"""A convolution by a method as a program: weights are transformed once, then every run converts,
transforms and multiplies, block by block."""

from __future__ import annotations

from cpembed.codegen.compiled import PACKING
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory, RecordedCall, RecordedCalls
from cpembed.export.kernel import CompileObject
from cpembed.export.program import Buffer, Call, CompiledObject, Program, Role
from cpembed.transform.methods.convolution import Rewritten


def method_program(
    name: str,
    method: Rewritten,
    made: RecordedCalls,
    compile_object: CompileObject,
    *,
    features: tuple[str, ...] = (),
    threads: int = 0,
) -> Program:
    """The program of the recorded calls of a method.

    A kernel that is called for several blocks is there once; which block it computes is a constant.
    """
    conv = method.convolution
    roles = {
        conv.image.name: Role.INPUT,
        conv.weights.name: Role.WEIGHTS,
        conv.output.name: Role.OUTPUT,
    }
    packed = {memory for call in made.prepare for memory in call.buffers}
    buffers: dict[Memory, Buffer] = {}
    kernels: dict[str, CompiledObject] = {}
    symbols: dict[int, str] = {}

    def buffer(memory: Memory) -> str:
        if memory not in buffers:
            buffers[memory] = _buffer(memory, f"part.{len(buffers)}", memory in packed)
        return buffers[memory].name

    def called(call: RecordedCall) -> Call:
        plan = call.plan
        if id(plan) not in symbols:
            label = _label(plan, len(symbols))
            symbol = symbols[id(plan)] = f"{name}_{label}"
            kernels[symbol] = compile_object(plan, symbol)
        symbol = symbols[id(plan)]
        arguments = tuple(map(buffer, call.buffers))
        return Call(symbol, arguments, symbol.removeprefix(f"{name}_"))

    for operand, memory in made.given.items():
        shape = conv.workload.operand(operand).shape
        buffers[memory] = Buffer(operand, memory.dtype, memory.elements, roles[operand], shape)
    prepare = tuple(map(called, made.prepare))
    run = tuple(map(called, made.run))
    return Program(name, tuple(buffers.values()), kernels, prepare, run, features, threads)


def _buffer(memory: Memory, name: str, packed: bool) -> Buffer:
    if memory.contents is not None:
        values = memory.contents
        return Buffer(name, memory.dtype, memory.elements, Role.CONSTANT, data=values)
    role = Role.PACKED if packed else Role.WORKSPACE
    return Buffer(name, memory.dtype, memory.elements, role)


def _label(plan: KernelPlan, number: int) -> str:
    """What a kernel does; the product is ``compute``, as in a library of one kernel."""
    if plan.backend == PACKING:
        return f"pack_{number}"
    method, _, part = plan.backend.partition(".")
    return f"{method}_{part}" if method == "winograd" else "compute"
