"""TVM on this machine: importing it once, compiling kernels' text, buffers."""
# pyright: basic

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.host_cpu import (
    NAME_VARIABLE,
    HostCpu,
    cache_by_processor,
    exported_attributes,
    host_cpu,
    is_x86,
    named_processor,
)
from cpembed.codegen.plan import KernelPlan, storage_dtype
from cpembed.codegen.script_reader import read_function, read_script
from cpembed.errors import LoweringError
from cpembed.host import core_count
from cpembed.steps import step

_THREADS_VARIABLE = "TVM_NUM_THREADS"
_SPINS = 3000
"""Number of times that a thread polls an empty queue before it sleeps: about a millisecond."""
# TVM's code generator assumes that buffers start at a multiple.
_ALIGNMENT = 64
"""Alignment of buffers in bytes."""
_CPU = 1
"""DLPack's number of the processor among types of devices."""


def thread_count() -> int:
    """Return the threads of a kernel: the cores of this process, unless TVM's variable is set."""
    value = os.environ.get(_THREADS_VARIABLE, "")
    if value.isdecimal() and int(value) > 0:
        return int(value)
    return core_count()


_STORAGE_REWRITE = "tirx.disable_storage_rewrite"
"""Option that disables TVM's reuse of the memory of local buffers."""
# The first one drops annotations of buffers. The second computes the indices that several bodies of
# a task share before it is known which body runs, which is more than registers hold (measured on
# Zen 5: nine bodies of a depthwise filter in bfloat16, 1.3 to 2 times the time).
_NOT_WITH_REGISTERS = (_STORAGE_REWRITE, "tirx.disable_cse_tir")
"""Passes of TVM that are disabled for accumulators in registers."""


@cache
def tvm() -> ModuleType:
    """Return TVM, imported on first use with a thread for each core of the process."""
    # TVM's default is often one thread. Binding threads to cores hurts on shared machines, and so
    # do threads that spin for a tenth of a second after each kernel.
    os.environ.setdefault(_THREADS_VARIABLE, str(thread_count()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", str(_SPINS))
    with _import_blocked("torch"):
        import tvm as module
        import tvm.script  # makes tvm.script.from_source available

    return module


@contextmanager
def _import_blocked(name: str) -> Generator[None]:
    """Let imports of a module fail that is not imported yet."""
    # TVM imports PyTorch wherever that is installed, which takes three times as long as TVM itself
    # and serves only tensors of PyTorch that are passed to it.
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


@cache
def llvm_processors(triple: str) -> dict[str, frozenset[str]]:
    """Return LLVM's features of each processor that it knows of a system, by its name."""
    target = tvm().target.Target
    from tvm.target import codegen

    system = {"kind": "llvm", "mtriple": triple}
    names = [str(name) for name in codegen.llvm_get_cpu_archlist(target(system))]
    targets = {name: target(system | {"mcpu": name}) for name in names}
    return {n: frozenset(map(str, codegen.llvm_get_cpu_features(t))) for n, t in targets.items()}


@cache_by_processor
def compiled_for() -> HostCpu:
    """Return the processor that kernels are compiled for, by default that of this machine."""
    named = named_processor()
    if named is not None:
        return HostCpu(named.name, named.name)
    target = tvm().target.Target
    from tvm.target import codegen

    recognised = str(os.environ.get(NAME_VARIABLE) or codegen.llvm_get_system_cpu())
    triple = {"kind": "llvm", "mtriple": codegen.llvm_get_system_triple()}

    def names() -> list[str]:
        return [str(name) for name in codegen.llvm_get_cpu_archlist(target(triple))]

    def features_of(name: str) -> list[str]:
        cpu = target(triple | {"mcpu": name})
        return [str(feature) for feature in codegen.llvm_get_cpu_features(cpu)]

    return host_cpu(recognised, names, features_of)


@cache_by_processor
def host_target(attributes: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> Any:
    """Return the LLVM target of the processor that kernels are built for.

    Parameters
    ----------
    attributes, options : tuple of str
        Further attributes (``+amx-int8``) and options of LLVM.
    """
    description: dict[str, Any] = {"kind": "llvm", "num-cores": thread_count()}
    named = named_processor()
    if named is not None:
        description["mtriple"] = named.triple
    if is_x86() or platform.machine() == "aarch64" or named is not None:
        cpu = compiled_for()
        description["mcpu"] = cpu.name
        # Of contradicting attributes the last one counts, so a kernel's own come last.
        attributes = (*cpu.attributes, *attributes)
    if attributes:
        description["mattr"] = list(attributes)
    if options:
        description["cl-opt"] = list(options)
    return tvm().target.Target(description)


class Function:
    """Compiled kernel over flat buffers."""

    def __init__(self, executable: Any) -> None:
        self._executable = executable
        self._call: Callable[..., Any] = executable["main"]

    def __call__(self, *buffers: Any) -> None:
        self._call(*buffers)

    def bound(self, *buffers: Any) -> Callable[[], Any]:
        """Return the call with as little as possible around the compiled code, to be timed."""
        return partial(self._call, *buffers)

    def assembly(self) -> str:
        return self._executable.mod.inspect_source("asm")


def compile_plan(plan: KernelPlan) -> Function:
    """Compile a kernel, rewritten by its ``schedule`` if it has one.

    Raises
    ------
    LoweringError
        An intrinsic does not match the block that it replaces.
    """
    with step(f"compiling a kernel of {plan.backend}"):
        return Function(_compiled(plan, host_target(plan.attributes, plan.options)))


class ObjectFile:
    """Compiled kernel that is linked elsewhere; :attr:`contents` are those of an object file."""

    def __init__(self, executable: Any) -> None:
        self._module = executable.mod
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.o"
            self._module.write_to_file(str(path))
            self.contents = path.read_bytes()

    def assembly(self) -> str:
        return self._module.inspect_source("asm")


def compile_object(plan: KernelPlan, triple: str, symbol: str = "main") -> ObjectFile:
    """Compile a kernel for another machine; raise as :func:`compile_plan`.

    Parameters
    ----------
    plan : KernelPlan
        Kernel.
    triple, symbol : str
        LLVM triple of the machine, and name of the function.
    """
    description: dict[str, Any] = {"kind": "llvm", "mtriple": triple}
    if plan.attributes:
        description["mattr"] = list(plan.attributes)
    if plan.options:
        description["cl-opt"] = list(plan.options)
    with step(f"compiling a kernel of {plan.backend}"):
        return ObjectFile(_compiled(plan, tvm().target.Target(description), symbol))


def compile_host_object(plan: KernelPlan, symbol: str) -> ObjectFile:
    """Compile a kernel as the object file of ``__tvm_ffi_<symbol>``; raise as :func:`compile_plan`.

    It is for the processor that kernels are built for, and runs on machines with
    :func:`~cpembed.codegen.host_cpu.needed_features`.
    """
    attributes = (*plan.attributes, *exported_attributes())
    with step(f"compiling a kernel of {plan.backend}"):
        return ObjectFile(_compiled(plan, host_target(attributes, plan.options), symbol))


def _compiled(plan: KernelPlan, target: Any, symbol: str = "main") -> Any:
    library = tvm()
    module = module_of(plan, symbol)
    with library.transform.PassContext(opt_level=3, config=pass_options(plan)):
        return library.compile(module, target)


def module_of(plan: KernelPlan, symbol: str) -> Any:
    """Return the module with the function of a plan under a symbol, and those that it calls.

    Raises :class:`LoweringError` as :func:`prim_func` does.
    """
    library = tvm()
    if not plan.parts:
        function = _with_functions(prim_func(plan), plan)
        return library.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    ir = library.ir
    parts = {name: _part(part) for name, part in plan.parts}
    variables = {name: ir.GlobalVar(name) for name in parts}
    calls = {name: _calls(variables[name], function) for name, function in parts.items()}
    main = _with_functions(read_function(plan.source, calls), plan)
    functions = {variables[name]: function for name, function in parts.items()}
    main = main.with_attr("global_symbol", symbol)
    return library.IRModule({ir.GlobalVar(symbol): main, **functions})


def _calls(variable: Any, function: Any) -> Callable[..., Any]:
    """Return a function that makes the calls of a part."""
    from tvm import ir

    return lambda *arguments: ir.Call(variable, arguments, ret_ty=function.ret_type)


def _with_functions(function: Any, plan: KernelPlan) -> Any:
    return importing(function, plan.functions) if plan.functions else function


def _part(plan: KernelPlan) -> Any:
    """Return the function of a plan that another one calls with the addresses of its buffers."""
    from tvm import ir, tirx

    # The caller's threads run it, each all of it.
    plan = replace(plan, source=plan.source.replace("T.parallel(", "T.serial("))
    function = _with_functions(prim_func(plan), plan)
    # Only functions that are called from outside get their buffers as tensors.
    parameters: list[Any] = []
    declared: list[Any] = []
    for parameter in function.params:
        if _is_number(parameter):
            parameters.append(parameter)
            continue
        parameters.append(tirx.Var(f"{parameter.name}_data", parameter.data.ty))
        declared.append(tirx.DeclBuffer(parameter, data=parameters[-1]))
    body = tirx.SeqStmt([*declared, function.body])
    # The workspace of larger local buffers, such as results of AMX tiles, belongs to a device,
    # which TVM knows of functions that are called from outside only.
    for key, value in (("device_type", _CPU), ("device_id", 0)):
        body = tirx.AttrStmt(ir.StringImm("default"), key, tirx.const(value, "int32"), body)
    # Where memory is allocated, code returns whether that failed.
    part = tirx.PrimFunc(parameters, body, tirx.const(0, "int32").ty)
    return part.with_attr("tirx.noalias", True).with_attr("s_tir", True)


def _is_number(parameter: Any) -> bool:
    """True if a parameter of a function is neither a buffer nor an address."""
    from tvm import ir

    return isinstance(parameter.ty, ir.PrimType)


def prim_func(plan: KernelPlan) -> Any:
    """Return the TensorIR function of a plan, scheduled, without the functions that it calls.

    Raises
    ------
    LoweringError
        An intrinsic does not match the block that it replaces.
    """
    library = tvm()
    module = library.IRModule({"main": read_script(plan.source)})
    if plan.schedule is None:
        return module["main"]
    from tvm import s_tir

    work = s_tir.Schedule(module)
    try:
        plan.schedule(work)
    except s_tir.schedule.ScheduleError as error:
        # The lines before print the whole function.
        last = str(error).strip().splitlines()[-1]
        raise LoweringError(f"the instruction does not match the program: {last}") from error
    return work.mod["main"]


def pass_options(plan: KernelPlan) -> dict[str, bool]:
    """Return the settings of TVM's passes for a plan."""
    in_registers = plan.in_registers or any(part.in_registers for _, part in plan.parts)
    options: dict[str, bool] = dict.fromkeys(_NOT_WITH_REGISTERS, in_registers)
    # It would move the local buffers of parts out of the statement that names their device.
    options[_STORAGE_REWRITE] = in_registers or bool(plan.parts)
    return options


def importing(function: Any, functions: str) -> Any:
    """Return a function with the definitions, in LLVM's language, of those that it calls."""
    from tvm import ir, tirx

    zero, text = tirx.const(0, "int32"), ir.StringImm(functions)
    body = tirx.AttrStmt(zero, "pragma_import_llvm", text, function.body)
    return function.with_body(body)


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array as memory holds it: contiguous, bfloat16 as its bits."""
    array = np.ascontiguousarray(array)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def from_array(array: NDArray[Any]) -> Any:
    """Return a flat buffer with a copy of the array, aligned as kernels expect."""
    return tvm().runtime.tensor(bits(array).reshape(-1))


def aligned(shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """Return zeros that a kernel can work on in place (:func:`shared`)."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    # numpy promises less, so the array begins inside a larger one.
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(tuple(shape))


def shared(array: NDArray[Any]) -> Any:
    """Return a buffer over the memory of an array of :func:`aligned`."""
    return tvm().runtime.from_dlpack(array)


def empty(elements: int, dtype: str) -> Any:
    """Return a zeroed flat buffer."""
    return tvm().runtime.tensor(np.zeros(elements, storage_dtype(dtype)))


def to_array(buffer: Any, shape: Sequence[int]) -> NDArray[Any]:
    """Return a buffer's contents as an array."""
    return buffer.numpy().reshape(tuple(shape))
