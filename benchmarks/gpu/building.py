"""A layer's kernels as files, and the document that says what they compute."""

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
"""The folder of all kernels, each in one that is named by what it holds."""


def require_compiler() -> None:
    """Raises :class:`BackendUnavailable` where there is no nvcc."""
    if shutil.which("nvcc") is None:
        raise BackendUnavailable(
            "nvcc is not on the path, and a pack holds machine code: install CUDA's toolkit"
        )


def computation(layer: PackedLayer) -> Computation:
    return workload(layer.words, target=hardware_spec(layer.target))


def text_of(selected: Selected, architecture: str = ARCHITECTURES[0]) -> CudaKernels:
    """The CUDA text of a kernel, which serves all architectures."""
    from cpembed.targets.cuda.build import cuda_text

    plan = Plan(selected.lowered, selected.schedule)
    return CudaKernels(plan, cuda_text(plan, architecture))


def kernel_files(made: CudaKernels, root: Path) -> str:
    """The folder under ``root`` of a kernel's text, launch parameters and cubins; a kernel that is
    there is not compiled again.
    """
    digest = hashlib.sha256(made.text.source.encode())
    digest.update(repr(made.text.kernels).encode())
    name = f"{KERNELS}/{digest.hexdigest()[:16]}"
    if (root / name).is_dir():
        return name
    (root / KERNELS).mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=root / KERNELS))
    try:
        save(made, draft)
        for left_out in ("example.cu", "load.py"):
            (draft / left_out).unlink()
        draft.chmod(0o755)
        draft.rename(root / name)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise CpembedError(f"nvcc refuses a kernel: {said[-1] if said else error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return name


def bindings(made: CudaKernels) -> dict[str, Any]:
    """Which parameter each operand is, the kernels that prepare weights before all calls, and the
    parameter of the result.
    """
    plan = made.plan
    workload_ = plan.product.program.workload
    reads, prepares = dict[str, str](), list[str]()
    for name, stored in zip(PARAMETERS, (plan.first, plan.second), strict=True):
        tensor = workload_.operand(stored.layout.name).tensor
        reads[tensor] = f"{name}_original" if stored.needs_packing else name
        if stored.needs_packing and tensor == workload_.inputs[1].tensor:
            prepares.append(f"pack_{name}_kernel")
    return {"reads": reads, "writes": "C", "prepares": prepares}


def variant_document(selected: Selected, made: CudaKernels, folder: str) -> dict[str, Any]:
    embedding = selected.ranked.candidate.embedding
    return {
        "name": selected.roles[0],
        "also": list(selected.roles[1:]),
        "folder": folder,
        "family": {axis: list(axes) for axis, axes in embedding.family.items()},
        "embedding": embedding.identifier(),
        "schedule": str(selected.schedule),
        "estimated_us": selected.estimated_us,
        "registers_estimated": made.plan.registers,
        **bindings(made),
    }


def layer_document(layer: PackedLayer, given: Computation) -> dict[str, Any]:
    """What a layer computes, on which inputs."""
    reduced = [axis.extent for axis in given.axes if axis.kind is AxisKind.REDUCTION]
    depth = 1
    for extent in reduced:
        depth *= extent
    tensors = {operand.tensor: operand for operand in given.inputs}
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
            "shape": list(given.output.shape),
            "sums": given.output.dtype,
            "stored": layer.stored,
        },
        "depth": depth,
        "macs": given.macs,
        "seed": SEED,
    }


def sizes(words: str) -> dict[str, list[int]]:
    """The operator's numbers, those of two axes as two.

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
    from cpembed.files import write_whole

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(document, indent=1) + "\n")
