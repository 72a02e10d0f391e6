"""What a user takes away: CUDA C++ in one file, how it is launched, programs that launch it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from cpembed.files import make_folder, write_whole
from cpembed.targets.cuda.build import Kernel
from cpembed.targets.cuda.execute import CudaKernels
from cpembed.targets.cuda.writer import PARAMETERS

INSTRUCTIONS = (
    "kernel.cu holds the kernels, kernel.json how they are launched; "
    "nvcc -std=c++17 -arch=sm_80 example.cu makes a program that times them; "
    "kernel.sm_80.cubin and kernel.sm_90.cubin, where nvcc was there, are loaded by load.py"
)

ARCHITECTURES = ("sm_80", "sm_90")


def save(artifact: CudaKernels, folder: Path) -> None:
    """Write ``kernel.cu``, ``kernel.json``, ``example.cu`` and ``load.py``, and a cubin for each
    architecture where nvcc is there."""
    make_folder(folder)
    write_whole(folder / "kernel.cu", artifact.text.source)
    described = json.dumps(document(artifact), indent=2) + "\n"
    write_whole(folder / "kernel.json", described)
    write_whole(folder / "example.cu", example(artifact))
    write_whole(folder / "load.py", _LOADER)
    compiler = shutil.which("nvcc")
    if compiler is None:
        return
    for architecture in ARCHITECTURES:
        target = folder / f"kernel.{architecture}.cubin"
        command = [compiler, "-cubin", f"-arch={architecture}", "-std=c++17", "-O3"]
        subprocess.run(
            [*command, "-o", str(target), str(folder / "kernel.cu")],
            check=True,
            capture_output=True,
        )


def document(artifact: CudaKernels) -> dict[str, Any]:
    """How the kernels are launched: in their order, with their arguments in theirs."""
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


_CTYPES = {
    "float16": "half",
    "float32": "float",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
    "uint16": "unsigned short",
}


def example(artifact: CudaKernels) -> str:
    """A host program that launches the kernels on buffers of zeros, and times all but the packing
    of weights."""
    kernels = artifact.text.kernels
    buffers = {p.name: p for kernel in kernels for p in kernel.parameters}
    lines = [
        "// Launches the kernels of kernel.cu once, then times the product.",
        '#include "kernel.cu"',
        "#include <cstdio>",
        "#include <cuda_runtime.h>",
        "",
        "static void check(cudaError_t status) {",
        '  if (status != cudaSuccess) { fprintf(stderr, "%s\\n", cudaGetErrorString(status)); _Exit(1); }',  # noqa: E501
        "}",
        "",
        "int main() {",
    ]
    for name, parameter in buffers.items():
        kind = _CTYPES[parameter.dtype]
        lines += [
            f"  {kind}* {name};",
            f"  check(cudaMalloc(&{name}, sizeof({kind}) * {parameter.elements}ull));",
            f"  check(cudaMemset({name}, 0, sizeof({kind}) * {parameter.elements}ull));",
        ]
    lines += [
        f"  check(cudaFuncSetAttribute({kernel.launch.kernel}, "
        f"cudaFuncAttributeMaxDynamicSharedMemorySize, {kernel.launch.shared_bytes}));"
        for kernel in kernels
        if kernel.launch.shared_bytes
    ]
    lines += [f"  {_launched(kernel)}" for kernel in kernels]
    lines += ["  check(cudaDeviceSynchronize());"]
    ahead = f"pack_{_weights(artifact)}_kernel"
    product = [kernel for kernel in kernels if kernel.launch.kernel != ahead]
    lines += [
        "  cudaEvent_t start, stop;",
        "  check(cudaEventCreate(&start));",
        "  check(cudaEventCreate(&stop));",
        "  const int times = 100;",
        "  check(cudaEventRecord(start));",
        "  for (int i = 0; i < times; ++i) {",
        *(f"    {_launched(kernel)}" for kernel in product),
        "  }",
        "  check(cudaEventRecord(stop));",
        "  check(cudaEventSynchronize(stop));",
        "  float ms = 0;",
        "  check(cudaEventElapsedTime(&ms, start, stop));",
        '  printf("%.3f us\\n", ms * 1e3f / times);',
        "  return 0;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _weights(artifact: CudaKernels) -> str:
    """The parameter that is packed ahead of all calls."""
    plan = artifact.plan
    weights = plan.product.program.workload.inputs[1].name
    return PARAMETERS[0 if plan.first.layout.name == weights else 1]


def _launched(kernel: Kernel) -> str:
    grid, block = (", ".join(map(str, size)) for size in (kernel.launch.grid, kernel.launch.block))
    arguments = ", ".join(parameter.name for parameter in kernel.parameters)
    shared = kernel.launch.shared_bytes
    return f"{kernel.launch.kernel}<<<dim3({grid}), dim3({block}), {shared}>>>({arguments});"


_LOADER = '''"""Loads the cubin of this folder by the CUDA driver, and launches its kernels.

    from load import Kernels
    kernels = Kernels()            # the current device, the cubin of its architecture
    kernels.launch({"A": a, ...})  # device pointers by name, of torch for instance: a.data_ptr()

Needs libcuda and nothing else; a context has to be current (torch.cuda.init() makes one).
"""

import ctypes
import json
from pathlib import Path

_FOLDER = Path(__file__).parent
_ATTRIBUTE_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Kernels:
    def __init__(self, architecture=None):
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.document = json.loads((_FOLDER / "kernel.json").read_text())
        if architecture is None:
            architecture = self._architecture()
        cubin = (_FOLDER / f"kernel.{architecture}.cubin").read_bytes()
        self._module = ctypes.c_void_p()
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(self._module), cubin))
        self._functions = []
        for kernel in self.document["kernels"]:
            function = ctypes.c_void_p()
            name = kernel["name"].encode()
            self._check(
                self._cuda.cuModuleGetFunction(ctypes.byref(function), self._module, name)
            )
            shared = kernel["dynamic_shared_bytes"]
            if shared:
                self._check(self._cuda.cuFuncSetAttribute(function, _ATTRIBUTE_SHARED, shared))
            self._functions.append(function)

    def launch(self, pointers, only=None, stream=0):
        """All kernels in their order, or those whose names are in ``only``."""
        for function, kernel in zip(self._functions, self.document["kernels"]):
            if only is not None and kernel["name"] not in only:
                continue
            values = [ctypes.c_void_p(pointers[a["name"]]) for a in kernel["arguments"]]
            arguments = (ctypes.c_void_p * len(values))(
                *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values)
            )
            self._check(
                self._cuda.cuLaunchKernel(
                    function, *kernel["grid"], *kernel["block"], kernel["dynamic_shared_bytes"],
                    ctypes.c_void_p(stream), arguments, None,
                )
            )

    def _architecture(self):
        device, major = ctypes.c_int(), ctypes.c_int()
        self._check(self._cuda.cuCtxGetDevice(ctypes.byref(device)))
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        self._check(self._cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device))
        return "sm_90" if major.value == 9 else "sm_80"

    def _check(self, status):
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError((text.value or b"CUDA error").decode())
'''
