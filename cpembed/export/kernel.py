"""A kernel of one workload as a program: its operands in their original layouts, its weights packed
once."""

from __future__ import annotations

from collections.abc import Callable, Collection

from cpembed.codegen.compiled import PACKING, CompiledKernel
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory, RecordedCall, recorded_calls
from cpembed.export.program import Buffer, Call, CompiledObject, Program, Role
from cpembed.ir.computation import Computation

CompileObject = Callable[[KernelPlan, str], CompiledObject]
"""A plan as the object file of a symbol."""


def kernel_program(
    name: str,
    kernel: CompiledKernel,
    ahead: Collection[str],
    compile_object: CompileObject,
    *,
    features: tuple[str, ...] = (),
    threads: int = 0,
) -> Program:
    """The program of one kernel, which is planned and not compiled: what a whole call does that
    :meth:`CompiledKernel.bound_whole` times.

    Operands in ``ahead`` are weights, and so are the vectors of an epilogue (:func:`vector_name`);
    the others are inputs.
    Steps are called by what they do, and buffers by their operands, in the packed layout
    ``<operand>.packed``.
    """
    made, workload = recorded_calls(kernel, ahead), kernel.program.unfused
    operands = [operand.name for operand in workload.operands]
    words = {key: key if key in operands else vector_name(workload, key) for key in made.given}
    names = {memory: f"{words[key]}.packed" for key, memory in made.packed.items()}
    names |= {memory: words[key] for key, memory in made.given.items()}
    buffers: dict[str, Buffer] = {}
    kernels: dict[str, CompiledObject] = {}

    def add(memory: Memory, role: Role, shape: tuple[int, ...] = ()) -> str:
        # What has no name is where the contraction packs its first factor.
        name = names.get(memory, f"{kernel.input_names[0]}.copies")
        buffers.setdefault(name, Buffer(name, memory.dtype, memory.elements, role, shape))
        return name

    def called(call: RecordedCall, role: Role) -> Call:
        arguments = tuple(add(memory, role) for memory in call.buffers)
        label = _label(call, arguments)
        symbol = f"{name}_{label}"
        kernels[symbol] = compile_object(call.plan, symbol)
        return Call(symbol, arguments, label)

    for key in sorted(made.given, key=[*operands, *words].index):
        once = key in ahead or key not in operands
        role = Role.WEIGHTS if once else Role.INPUT
        role = Role.OUTPUT if key == workload.output.name else role
        add(made.given[key], role, kernel.operand(key).original_shape)
    prepare = tuple(called(call, Role.PACKED) for call in made.prepare)
    run = tuple(called(call, Role.WORKSPACE) for call in made.run)
    return Program(name, tuple(buffers.values()), kernels, prepare, run, features, threads)


def _label(call: RecordedCall, arguments: tuple[str, ...]) -> str:
    if call.plan.backend != PACKING:
        return "compute"
    source, target = arguments
    return f"pack_{source}" if target == f"{source}.packed" else f"unpack_{target}"


def vector_name(workload: Computation, name: str) -> str:
    """What the buffer of an epilogue's vector is called: by its own word, which differs from the
    names of the workload's operands."""
    word = name.removeprefix("@")
    while word in {operand.name for operand in workload.operands}:
        word += "_"
    return word
