"""Programs of one kernel, and of a convolution by a method such as Winograd's.

Operands are in their original layouts, and weights are packed or transformed once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cpembed.codegen.compiled import PACKING, CompiledKernel
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory, RecordedCall, RecordedCalls, recorded_calls
from cpembed.export.program import Buffer, Call, CompiledObject, Program, Role
from cpembed.ir.computation import Computation
from cpembed.transform.methods.convolution import Rewritten

CompileObject = Callable[[KernelPlan, str], CompiledObject]
"""A function that compiles a plan to the object file of a symbol."""


def kernel_program(
    name: str,
    kernel: CompiledKernel,
    ahead: Collection[str],
    compile_object: CompileObject,
    *,
    features: tuple[str, ...] = (),
    threads: int = 0,
) -> Program:
    """Return the program of one kernel: the calls that :meth:`CompiledKernel.bound_whole` times.

    Steps are named by their purpose, and buffers by their operands, a packed one
    ``<operand>.packed``.

    Parameters
    ----------
    name : str
        Name of the library.
    kernel : CompiledKernel
        The kernel, which is planned and not compiled.
    ahead : collection of str
        Operands that are weights, as are the vectors of an epilogue; the others are inputs.
    compile_object : callable
        Compiles a plan.
    features, threads
        As for :class:`Program`.
    """
    recorded, workload = recorded_calls(kernel, ahead), kernel.program.unfused
    operands = [operand.name for operand in workload.operands]
    labels = {
        key: key if key in operands else vector_name(workload, key)
        for key in recorded.caller_memory
    }
    names = {memory: f"{labels[key]}.packed" for key, memory in recorded.packed.items()}
    names |= {memory: labels[key] for key, memory in recorded.caller_memory.items()}
    buffers: dict[str, Buffer] = {}
    kernels: dict[str, CompiledObject] = {}

    def add(memory: Memory, role: Role, shape: tuple[int, ...] = ()) -> str:
        # Only the memory where the contraction packs its first factor has no name.
        name = names.get(memory, f"{kernel.input_names[0]}.copies")
        buffers.setdefault(name, Buffer(name, memory.dtype, memory.elements, role, shape))
        return name

    def added(call: RecordedCall, role: Role) -> Call:
        arguments = tuple(add(memory, role) for memory in call.buffers)
        label = "compute"
        if call.plan.backend == PACKING:
            source, target = arguments
            label = f"pack_{source}" if target == f"{source}.packed" else f"unpack_{target}"
        symbol = f"{name}_{label}"
        kernels[symbol] = compile_object(call.plan, symbol)
        return Call(symbol, arguments, label)

    for key in sorted(recorded.caller_memory, key=[*operands, *labels].index):
        is_weight = key in ahead or key not in operands
        role = Role.WEIGHTS if is_weight else Role.INPUT
        role = Role.OUTPUT if key == workload.output.name else role
        add(recorded.caller_memory[key], role, kernel.operand(key).original_shape)
    prepare = tuple(added(call, Role.PACKED) for call in recorded.prepare)
    run = tuple(added(call, Role.WORKSPACE) for call in recorded.run)
    return Program(
        name, tuple(buffers.values()), kernels, prepare, run, features=features, threads=threads
    )


def vector_name(workload: Computation, name: str) -> str:
    """Return the buffer's name of an epilogue's vector, which no operand of the workload has."""
    vector = name.removeprefix("@")
    while vector in {operand.name for operand in workload.operands}:
        vector += "_"
    return vector


def method_program(
    name: str,
    method: Rewritten,
    recorded: RecordedCalls,
    compile_object: CompileObject,
    *,
    features: tuple[str, ...] = (),
    threads: int = 0,
) -> Program:
    """Return the program of a convolution by a method.

    A kernel that is called for several blocks is in the library once; the number of the block is a
    constant buffer.

    Parameters
    ----------
    name : str
        Name of the library.
    method : Rewritten
        The rewritten convolution.
    recorded : RecordedCalls
        Its calls.
    compile_object, features, threads
        As for :func:`kernel_program`.
    """
    conv = method.convolution
    roles = {
        conv.image.name: Role.INPUT,
        conv.weights.name: Role.WEIGHTS,
        conv.output.name: Role.OUTPUT,
    }
    packed = {memory for call in recorded.prepare for memory in call.buffers}
    buffers: dict[Memory, Buffer] = {}
    kernels: dict[str, CompiledObject] = {}
    symbols: dict[int, str] = {}

    def buffer(memory: Memory) -> str:
        if memory not in buffers:
            role = Role.PACKED if memory in packed else Role.WORKSPACE
            role = role if memory.contents is None else Role.CONSTANT
            label = f"part.{len(buffers)}"
            buffers[memory] = Buffer(
                label, memory.dtype, memory.elements, role, data=memory.contents
            )
        return buffers[memory].name

    def added(call: RecordedCall) -> Call:
        plan = call.plan
        if id(plan) not in symbols:
            symbol = symbols[id(plan)] = f"{name}_{_label(plan, len(symbols))}"
            kernels[symbol] = compile_object(plan, symbol)
        symbol = symbols[id(plan)]
        return Call(symbol, tuple(map(buffer, call.buffers)), symbol.removeprefix(f"{name}_"))

    for operand, memory in recorded.caller_memory.items():
        shape = conv.workload.operand(operand).shape
        buffers[memory] = Buffer(operand, memory.dtype, memory.elements, roles[operand], shape)
    prepare = tuple(map(added, recorded.prepare))
    run = tuple(map(added, recorded.run))
    return Program(
        name, tuple(buffers.values()), kernels, prepare, run, features=features, threads=threads
    )


def _label(plan: KernelPlan, number: int) -> str:
    """Return the purpose of a kernel; the product is ``compute``, as in a library of one kernel."""
    if plan.backend == PACKING:
        return f"pack_{number}"
    method, _, part = plan.backend.partition(".")
    return f"{method}_{part}" if method == "winograd" else "compute"
