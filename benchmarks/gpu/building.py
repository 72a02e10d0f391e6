"""Write a layer's kernels as files, and the document that says what they compute."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.choosing import Selected
from benchmarks.gpu.suites import PackedLayer
from cpembed.driver.named import hardware_spec, workload
from cpembed.errors import BackendUnavailable, CpembedError
from cpembed.ir.computation import AxisKind, Computation
from cpembed.targets.cuda.build import ARCHITECTURES, CudaKernels, save
from cpembed.targets.cuda.schedule import Plan
from cpembed.targets.cuda.writer import PARAMETERS
from cpembed.workloads.suites import Layer

SEED = 1

KERNELS = "kernels"
"""Folder of all kernels, each in one that is named by what it holds."""


def require_compiler() -> None:
    """Raise :class:`BackendUnavailable` if there is no nvcc."""
    if shutil.which("nvcc") is None:
        raise BackendUnavailable(
            "nvcc is not on the path, and a pack holds machine code: install CUDA's toolkit"
        )


def computation(layer: PackedLayer) -> Computation:
    """Return the workload of a layer."""
    return workload(layer.words, target=hardware_spec(layer.target))


def text_of(selected: Selected, architecture: str = ARCHITECTURES[0]) -> CudaKernels:
    """Return the CUDA text of a kernel, which serves all architectures."""
    from cpembed.targets.cuda.build import cuda_text

    plan = Plan(selected.lowered, selected.schedule)
    return CudaKernels(plan, cuda_text(plan, architecture))


def kernel_files(kernels: CudaKernels, root: Path) -> str:
    """Return the folder under ``root`` of a kernel's text, launch parameters and cubins.

    A kernel that is there is not compiled again.
    """
    digest = hashlib.sha256(kernels.text.source.encode())
    digest.update(repr(kernels.text.kernels).encode())
    name = f"{KERNELS}/{digest.hexdigest()[:16]}"
    if (root / name).is_dir():
        return name
    (root / KERNELS).mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=root / KERNELS))
    try:
        save(kernels, draft)
        for left_out in ("example.cu", "load.py"):
            (draft / left_out).unlink()
        draft.chmod(0o755)
        draft.rename(root / name)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise CpembedError(f"nvcc rejects a kernel: {lines[-1] if lines else error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return name


def bindings(kernels: CudaKernels) -> dict[str, Any]:
    """Return the parameters of a kernel's operands and of its result.

    Also the names of the kernels that prepare weights before all calls.
    """
    plan = kernels.plan
    workload_ = plan.product.program.workload
    reads, prepares = dict[str, str](), list[str]()
    for name, stored in zip(PARAMETERS, (plan.first, plan.second), strict=True):
        tensor = workload_.operand(stored.layout.name).tensor
        reads[tensor] = f"{name}_original" if stored.needs_packing else name
        if stored.needs_packing and tensor == workload_.inputs[1].tensor:
            prepares.append(f"pack_{name}_kernel")
    return {"reads": reads, "writes": "C", "prepares": prepares}


def variant_document(selected: Selected, kernels: CudaKernels, folder: str) -> dict[str, Any]:
    """Return the document of a kernel.

    Parameters
    ----------
    selected : Selected
        The kernel's embedding and schedule.
    kernels : CudaKernels
        Its text.
    folder : str
        Its folder in the pack.
    """
    embedding = selected.ranked.candidate.embedding
    return {
        "name": selected.roles[0],
        "also": list(selected.roles[1:]),
        "folder": folder,
        "family": {axis: list(axes) for axis, axes in embedding.family.items()},
        "embedding": embedding.identifier(),
        "schedule": str(selected.schedule),
        "estimated_us": selected.estimated_us,
        "registers_estimated": kernels.plan.registers,
        **bindings(kernels),
    }


def layer_document(layer: PackedLayer, layer_workload: Computation) -> dict[str, Any]:
    """Return what a layer computes, on which inputs."""
    reduced = [axis.extent for axis in layer_workload.axes if axis.kind is AxisKind.REDUCTION]
    depth = 1
    for extent in reduced:
        depth *= extent
    tensors = {operand.tensor: operand for operand in layer_workload.inputs}
    return {
        "suite": layer.suite,
        "name": layer.name,
        "slug": layer.slug,
        "words": layer.words,
        "target": layer.target,
        "kind": layer.words.split()[0],
        "sizes": sizes(layer.words),
        "inputs": [
            {"name": tensor, "shape": list(operand.shape), "dtype": operand.dtype}
            for tensor, operand in tensors.items()
        ],
        "output": {
            "shape": list(layer_workload.output.shape),
            "sums": layer_workload.output.dtype,
            "stored": layer.stored,
        },
        "depth": depth,
        "macs": layer_workload.macs,
        "seed": SEED,
    }


def sizes(words: str) -> dict[str, list[int]]:
    """Return the operator's numbers, those of two axes as two.

    >>> sizes("conv2d n=1 c=3 pad=1 stride=2,8 layout=NHWC")
    {'n': [1], 'c': [3], 'pad': [1], 'stride': [2, 8]}
    """
    parsed = Layer("", 0, "", words).parameters
    return {
        name: [int(number) for number in value.split(",")]
        for name, value in parsed.items()
        if value.replace(",", "").isdecimal()
    }


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document, and its folder if needed."""
    from cpembed.files import write_whole

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(document, indent=1) + "\n")
