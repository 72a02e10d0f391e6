"""CUDA kernels of a product: executed here by the emulator, or saved for a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.epilogue import RESIDUAL
from cpembed.files import make_folder, write_whole
from cpembed.ir.dtypes import numpy_dtype
from cpembed.targets.cuda.build import CudaText, Kernel
from cpembed.targets.cuda.executor import Counters, Order, compile_text
from cpembed.targets.cuda.schedule import Plan
from cpembed.targets.cuda.writer import PARAMETERS, VECTORS

Array = NDArray[Any]

INSTRUCTIONS = (
    "kernel.cu holds the kernels, kernel.json how they are launched; "
    "nvcc -std=c++17 -arch=sm_80 example.cu makes a program that times them; "
    "kernel.sm_80.cubin and kernel.sm_90.cubin, where nvcc was there, are loaded by load.py"
)
"""Message to a user about the saved files."""

ARCHITECTURES = ("sm_80", "sm_90")
"""Architectures that cubins are saved for."""


@dataclass(eq=False)
class CudaKernels:
    """Generated kernels of a plan."""

    plan: Plan
    text: CudaText
    kernel_counters: dict[str, Counters] = field(default_factory=dict[str, Counters])
    """Counters of the last run by kernel."""

    @property
    def counters(self) -> Counters:
        """Counters of the last run, all kernels together."""
        return sum(self.kernel_counters.values(), Counters())

    def run(self, inputs: Mapping[str, Array], order: Order | int = Order.FORWARD) -> Array:
        """Execute the kernels.

        Parameters
        ----------
        inputs
            Inputs of the workload by operand, in their original layouts.
        order
            Order of threads, or the seed of a random one.

        Returns
        -------
        Array
            The output in its original layout.

        Raises
        ------
        ExecutionFault
            If the kernels do what a GPU leaves undefined.
        """
        memory, program = self._input_memory(inputs), compile_text(self.text.source)
        self.kernel_counters = {}
        for kernel in self.text.kernels:
            arguments = [
                memory.setdefault(p.name, unwritten(p.elements, p.dtype)) for p in kernel.parameters
            ]
            name = kernel.launch.kernel
            self.kernel_counters[name] = program.run(kernel.launch, arguments, order=order)
        product = self.plan.product
        output = memory["C"].view(numpy_dtype(product.output_dtype))
        return output.reshape(product.output.layout.original_shape)

    def _input_memory(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the arrays of inputs by the names of the kernels' parameters."""
        product, workload = self.plan.product, self.plan.product.program.workload
        memory: dict[str, Array] = {}
        for name, operand in zip(PARAMETERS, (self.plan.first, self.plan.second), strict=True):
            array = flat_bits(inputs[workload.operand(operand.layout.name).tensor])
            memory[f"{name}_original" if operand.needs_packing else name] = array
        epilogue = product.epilogue
        if epilogue is not None:
            for name in epilogue.vectors:
                memory[VECTORS[name]] = flat_bits(inputs[name])
            if epilogue.residual is not None:
                memory["Residual"] = flat_bits(inputs[RESIDUAL])
        return memory


def flat_bits(array: Array) -> Array:
    """Return the elements as they are in memory, in one dimension; the same memory if possible."""
    return runtime.bits(array).reshape(-1)


def unwritten(elements: int, dtype: str) -> Array:
    """Return memory whose contents no result may depend on."""
    return np.full(elements * np.dtype(dtype).itemsize, 0xA5, np.uint8).view(dtype)


def save(artifact: CudaKernels, folder: Path) -> None:
    """Write ``kernel.cu``, ``kernel.json``, ``example.cu`` and ``load.py``, and a cubin for each
    architecture if nvcc is installed.
    """
    make_folder(folder)
    write_whole(folder / "kernel.cu", artifact.text.source)
    write_whole(folder / "kernel.json", json.dumps(_document(artifact), indent=2) + "\n")
    write_whole(folder / "example.cu", _example(artifact))
    write_whole(folder / "load.py", _template("load.py.txt"))
    compiler = shutil.which("nvcc")
    if compiler is None:
        return
    for architecture in ARCHITECTURES:
        target = folder / f"kernel.{architecture}.cubin"
        command = [compiler, "-cubin", f"-arch={architecture}", "-std=c++17", "-O3"]
        command += ["-o", str(target), str(folder / "kernel.cu")]
        subprocess.run(command, check=True, capture_output=True)


def _document(artifact: CudaKernels) -> dict[str, Any]:
    """Return ``kernel.json``: launches in their order, with their arguments in theirs."""
    plan = artifact.plan
    return {
        "workload": str(plan.product.program.unfused),
        "embedding": plan.product.program.embedding.to_json(),
        "schedule": str(plan.schedule),
        "kernels": [
            {
                "name": kernel.launch.kernel,
                "grid": list(kernel.launch.grid),
                "block": list(kernel.launch.block),
                "dynamic_shared_bytes": kernel.launch.shared_bytes,
                "arguments": [
                    {"name": p.name, "elements": p.elements, "dtype": p.dtype}
                    for p in kernel.parameters
                ],
            }
            for kernel in artifact.text.kernels
        ],
    }


_C_TYPES = {
    "float16": "half",
    "float32": "float",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
    "uint16": "unsigned short",
}


def _example(artifact: CudaKernels) -> str:
    """Return a host program that launches the kernels on zeros, and times all but the packing of
    weights.
    """
    kernels = artifact.text.kernels
    buffers = {p.name: p for kernel in kernels for p in kernel.parameters}
    setup: list[str] = []
    for name, parameter in buffers.items():
        kind = _C_TYPES[parameter.dtype]
        setup += [
            f"  {kind}* {name};",
            f"  check(cudaMalloc(&{name}, sizeof({kind}) * {parameter.elements}ull));",
            f"  check(cudaMemset({name}, 0, sizeof({kind}) * {parameter.elements}ull));",
        ]
    setup += [
        f"  check(cudaFuncSetAttribute({kernel.launch.kernel}, "
        f"cudaFuncAttributeMaxDynamicSharedMemorySize, {kernel.launch.shared_bytes}));"
        for kernel in kernels
        if kernel.launch.shared_bytes
    ]
    setup += [f"  {_launch_statement(kernel)}" for kernel in kernels]
    setup.append("  check(cudaDeviceSynchronize());")
    # Weights are packed ahead of all calls.
    plan = artifact.plan
    weights = plan.product.program.workload.inputs[1].name
    packing = f"pack_{PARAMETERS[0 if plan.first.layout.name == weights else 1]}_kernel"
    launches = [f"    {_launch_statement(k)}" for k in kernels if k.launch.kernel != packing]
    template = Template(_template("example.cu.txt"))
    return template.substitute(setup="\n".join(setup), launches="\n".join(launches))


def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _launch_statement(kernel: Kernel) -> str:
    grid, block = (", ".join(map(str, size)) for size in (kernel.launch.grid, kernel.launch.block))
    arguments = ", ".join(parameter.name for parameter in kernel.parameters)
    shared = kernel.launch.shared_bytes
    return f"{kernel.launch.kernel}<<<dim3({grid}), dim3({block}), {shared}>>>({arguments});"
