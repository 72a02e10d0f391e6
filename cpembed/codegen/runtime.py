"""The compiler's side: importing TVM once, compiling TVMScript text, buffers."""
# pyright: basic

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.host_cpu import (
    NAME_VARIABLE,
    HostCpu,
    host_cpu,
    is_x86,
    taken_attributes,
)
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.script import storage_dtype
from cpembed.errors import LoweringError
from cpembed.steps import step

_THREADS_VARIABLE = "TVM_NUM_THREADS"
_SPINS = 3000
"""Looks at an empty queue before a thread of the pool sleeps: about a millisecond."""
_ALIGNMENT = 64
"""Bytes: kernels are compiled for buffers that start at a multiple."""


def thread_count() -> int:
    """Threads a kernel runs on: the cores this process may use unless TVM is told otherwise."""
    told = os.environ.get(_THREADS_VARIABLE, "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_NOT_WITH_REGISTERS = ("tirx.disable_storage_rewrite", "tirx.disable_cse_tir")
"""The first pass forgets what a buffer is annotated with. The second computes indices once that
several bodies of a task have in common, before it is known which of them runs: more than registers
hold (measured on Zen 5: nine bodies of a depthwise filter in bfloat16, 1.3 to 2 times the time)."""


@cache
def tvm() -> ModuleType:
    """TVM, imported on first use with its thread pool set to the cores of the process.

    Its default is often one thread; binding threads to cores hurts where machines are shared, and
    so do threads that spin for a tenth of a second after each kernel.
    """
    os.environ.setdefault(_THREADS_VARIABLE, str(thread_count()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", str(_SPINS))
    import tvm as module
    import tvm.script  # makes tvm.script.from_source available

    return module


@cache
def compiled_for() -> HostCpu:
    """What kernels of this machine are compiled for."""
    target = tvm().target.Target
    from tvm.target import codegen

    recognised = str(os.environ.get(NAME_VARIABLE) or codegen.llvm_get_system_cpu())
    triple = {"kind": "llvm", "mtriple": codegen.llvm_get_system_triple()}

    def known() -> list[str]:
        return [str(name) for name in codegen.llvm_get_cpu_archlist(target(triple))]

    def features_of(name: str) -> list[str]:
        return [str(one) for one in codegen.llvm_get_cpu_features(target(triple | {"mcpu": name}))]

    return host_cpu(recognised, known, features_of)


@cache
def host_target(attributes: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> Any:
    """The LLVM target of this machine, with further instruction-set attributes (``+amx-int8``) and
    code generator options."""
    description: dict[str, Any] = {"kind": "llvm", "num-cores": thread_count()}
    if is_x86() or platform.machine() == "aarch64":
        cpu = compiled_for()
        description["mcpu"] = cpu.name
        # The last word on a feature counts: what a kernel asks for itself.
        attributes = (*cpu.attributes, *attributes)
    if attributes:
        description["mattr"] = list(attributes)
    if options:
        description["cl-opt"] = list(options)
    return tvm().target.Target(description)


class Function:
    """A compiled kernel over flat buffers."""

    def __init__(self, executable: Any) -> None:
        self._executable = executable
        self._call: Callable[..., Any] = executable["main"]

    def __call__(self, *buffers: Any) -> None:
        self._call(*buffers)

    def bound(self, *buffers: Any) -> Callable[[], Any]:
        """The call of :meth:`__call__`, with as little as possible around the compiled code."""
        return partial(self._call, *buffers)

    def assembly(self) -> str:
        return self._executable.mod.inspect_source("asm")


def compile_plan(plan: KernelPlan) -> Function:
    """Compile a kernel, after its ``schedule`` has rewritten it where it has one.

    Raises :class:`LoweringError` where an intrinsic does not match the block it was to replace.
    """
    with step(f"compiling a kernel of {plan.backend}"):
        return Function(_compiled(plan, host_target(plan.attributes, plan.options)))


class ObjectFile:
    """A compiled kernel that is linked elsewhere: :attr:`contents` are those of an object file."""

    def __init__(self, executable: Any) -> None:
        self._module = executable.mod
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.o"
            self._module.write_to_file(str(path))
            self.contents = path.read_bytes()

    def assembly(self) -> str:
        return self._module.inspect_source("asm")


def compile_object(plan: KernelPlan, triple: str, symbol: str = "main") -> ObjectFile:
    """Compile a kernel for another machine, an LLVM triple; raises as :func:`compile_plan`."""
    description: dict[str, Any] = {"kind": "llvm", "mtriple": triple}
    if plan.attributes:
        description["mattr"] = list(plan.attributes)
    if plan.options:
        description["cl-opt"] = list(plan.options)
    with step(f"compiling a kernel of {plan.backend}"):
        return ObjectFile(_compiled(plan, tvm().target.Target(description), symbol))


def compile_host_object(plan: KernelPlan, symbol: str) -> ObjectFile:
    """Compile a kernel as the object file of the function ``__tvm_ffi_<symbol>``, for machines
    with :func:`~cpembed.codegen.host_cpu.needed_features`; raises as :func:`compile_plan`."""
    attributes = (*plan.attributes, *taken_attributes())
    with step(f"compiling a kernel of {plan.backend}"):
        return ObjectFile(_compiled(plan, host_target(attributes, plan.options), symbol))


def _compiled(plan: KernelPlan, target: Any, symbol: str = "main") -> Any:
    library = tvm()
    function = prim_func(plan)
    if plan.functions:
        function = importing(function, plan.functions)
    module = library.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    with library.transform.PassContext(opt_level=3, config=pass_options(plan)):
        return library.compile(module, target)


def prim_func(plan: KernelPlan) -> Any:
    """The TensorIR function of a plan, scheduled, without the functions that it calls.

    Raises :class:`LoweringError` where an intrinsic does not match the block it was to replace.
    """
    library = tvm()
    module = library.IRModule({"main": library.script.from_source(plan.source)})
    if plan.schedule is None:
        return module["main"]
    from tvm import s_tir

    work = s_tir.Schedule(module)
    try:
        plan.schedule(work)
    except s_tir.schedule.ScheduleError as error:
        last = str(error).strip().splitlines()[-1]
        raise LoweringError(f"the instruction does not match the program: {last}") from error
    return work.mod["main"]


def pass_options(plan: KernelPlan) -> dict[str, bool]:
    """Settings of TVM's passes with which a plan is compiled."""
    return dict.fromkeys(_NOT_WITH_REGISTERS, plan.in_registers)


def importing(function: Any, functions: str) -> Any:
    """A function that calls others, which are written in LLVM's language."""
    from tvm import ir, tirx

    zero, text = tirx.const(0, "int32"), ir.StringImm(functions)
    body = tirx.AttrStmt(zero, "pragma_import_llvm", text, function.body)
    return function.with_body(body)


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """The array as memory holds it: contiguous, bfloat16 as its bits."""
    array = np.ascontiguousarray(array)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def from_array(array: NDArray[Any]) -> Any:
    """A flat buffer with the array's contents (a copy, aligned as kernels expect)."""
    return tvm().runtime.tensor(bits(array).reshape(-1))


def aligned(shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """Zeros that a kernel can work on in place (:func:`shared`)."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(tuple(shape))


def shared(array: NDArray[Any]) -> Any:
    """A buffer over the memory of an array of :func:`aligned`."""
    return tvm().runtime.from_dlpack(array)


def empty(elements: int, dtype: str) -> Any:
    return tvm().runtime.tensor(np.zeros(elements, storage_dtype(dtype)))


def to_array(buffer: Any, shape: Sequence[int]) -> NDArray[Any]:
    return buffer.numpy().reshape(tuple(shape))
