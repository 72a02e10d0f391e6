"""CUDA text of a product with a schedule, by TVM's code generator."""
# pyright: basic

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from cpembed.codegen import runtime
from cpembed.errors import LoweringError
from cpembed.steps import step
from cpembed.targets.cuda import emit, results
from cpembed.targets.cuda.defects import PASS_OPTIONS, text_for_cuda
from cpembed.targets.cuda.device import function
from cpembed.targets.cuda.executor import Launch
from cpembed.targets.cuda.gpu import multiprocessor_of
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.packing import THREADS, packing_blocks, packing_kernel
from cpembed.targets.cuda.schedule import MOST_THREADS, Plan
from cpembed.targets.cuda.writer import PARAMETERS


@dataclass(frozen=True)
class Parameter:
    """Of a kernel: what it is for, and how many elements of which type."""

    name: str
    elements: int
    dtype: str


@dataclass(frozen=True)
class Kernel:
    """A kernel of a text, started as ``launch`` says, on ``parameters`` in order."""

    launch: Launch
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class CudaText:
    """``source`` holds ``kernels``, in the order in which they run."""

    source: str
    kernels: tuple[Kernel, ...]


def functions(plan: Plan) -> dict[str, tuple[emit.Writer, Launch]]:
    """The kernels of a product, in their order, by what they are for: factors are packed, the
    product is computed, and where its reduction is split, the parts are added."""
    product, found = plan.product, dict[str, tuple[emit.Writer, Launch]]()
    for name, stored in zip(PARAMETERS, (plan.first, plan.second), strict=True):
        if stored.needs_packing:
            grid = (packing_blocks(stored), 1, 1)
            launch = Launch(f"pack_{name}_kernel", grid, (THREADS, 1, 1), 0)
            found[f"pack_{name}"] = (packing_kernel(stored, name), launch)
    rows, columns, batch, splits = plan.blocks
    grid, block = (rows * columns, batch, splits), (plan.schedule.threads, 1, 1)
    launch = Launch("product_kernel", grid, block, plan.shared_bytes)
    found["product"] = (emit.main_kernel(plan), launch)
    if splits > 1:
        elements, threads = product.output.layout.elements, results.REDUCTION_THREADS
        launch = Launch("reduction_kernel", (-(-elements // threads), 1, 1), (threads, 1, 1), 0)
        found["reduction"] = (results.reduction_kernel(plan), launch)
    return found


def cuda_text(plan: Plan, architecture: str) -> CudaText:
    """Raises :class:`LoweringError` where TVM makes no code of it."""
    tvm = runtime.tvm()
    written, made = functions(plan), dict[str, Any]()
    with step("generating a CUDA kernel"):
        for name, (writer, _) in written.items():
            made[name] = prim_func(writer).with_attr("global_symbol", name)
        target = cuda_target(architecture)
        with target, tvm.transform.PassContext(config=PASS_OPTIONS):
            try:
                module = tvm.tirx.build(tvm.IRModule(made), target=target)
            except (RuntimeError, ValueError) as error:
                reason = " ".join(str(error).split())[:200]
                raise LoweringError(f"TVM makes no CUDA of the kernel: {reason}") from error
    (device,) = module.imports
    source = device.inspect_source()
    kernels = [
        Kernel(launch, _parameters(source, launch.kernel, made[name]))
        for name, (_, launch) in written.items()
    ]
    return CudaText(source, tuple(kernels))


def _parameters(source: str, kernel: str, function_: Any) -> tuple[Parameter, ...]:
    known = {str(p.name): p for p in function_.params}
    return tuple(
        Parameter(name, int(known[name].shape[0]), str(known[name].dtype))
        for name in parameter_names(source, kernel)
    )


def parameter_names(source: str, kernel: str) -> list[str]:
    """In the order of a generated text, which is not that of the function that it is made of.

    Raises :class:`LoweringError` where the text has no such kernel.
    """
    found = re.search(rf"\b{kernel}\(([^)]*)\)", source)
    if found is None:
        raise LoweringError(f"the generated text has no kernel {kernel}")
    return [word.split()[-1].removesuffix("_ptr") for word in found[1].split(",")]


def prim_func(writer: emit.Writer) -> Any:
    """The function of a script."""
    tvm = runtime.tvm()
    from tvm.script import from_source
    from tvm.script import tirx as T

    # TVM writes them one after the other, and a directive has a line of its own.
    sources = {name: f"\n{function(name).strip()}\n" for name in sorted(writer.called)}
    return from_source(text_for_cuda(writer.script.text()), {"T": T, "tvm": tvm, "DEVICE": sources})


def cuda_target(architecture: str) -> Any:
    """TVM's target of an architecture, ``sm_80`` for instance."""
    unit = multiprocessor_of(architecture)
    return runtime.tvm().target.Target(
        {
            "kind": "cuda",
            "arch": architecture,
            "max_shared_memory_per_block": unit.shared_bytes_per_block,
            "max_threads_per_block": MOST_THREADS,
            "thread_warp_size": LANES,
            "registers_per_block": unit.registers,
        }
    )
