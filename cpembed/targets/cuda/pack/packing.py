"""Files of a pack: a folder for each layer, with its kernels, and the programs that run them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.codegen.epilogue import Epilogue
from cpembed.files import write_whole
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer, size_bytes
from cpembed.targets.base import Target
from cpembed.targets.cuda import compiling
from cpembed.targets.cuda.build import CudaText, Kernel, Parameter, Tensor, text_digest
from cpembed.targets.cuda.emulator.executor import Launch
from cpembed.targets.cuda.pack import ceiling_text
from cpembed.targets.cuda.pack.selection import Selected, select
from cpembed.targets.cuda.saving.cases import Case, cases_of
from cpembed.targets.cuda.saving.folder import (
    BASELINES,
    REMOTE,
    Samples,
    SavedKernel,
    remote_text,
    save_kernels,
    save_samples,
)
from cpembed.targets.outputs import PackedLayer

Saved = Callable[[Any, str, Sequence[Case]], SavedKernel]
"""Function from an artifact, a name and cases to what a folder says of the kernels."""

ARCHITECTURES = ("sm_80", "sm_90")
"""Architectures that a pack has machine code of; PTX serves all others."""

PROGRAMS = ("load", "check", "run", "worker", "conversation", "timing", "report")
LIBRARIES = ("libraries", "triton_product")


def pack_programs(root: Path) -> None:
    """Write the programs of a pack, and the kernels that measure a device's ceilings."""
    root.mkdir(parents=True, exist_ok=True)
    for folder, modules in ((REMOTE, PROGRAMS), (BASELINES, LIBRARIES)):
        for module in modules:
            write_whole(root / f"{module}.py", remote_text(folder / f"{module}.py"))
    for target in ceiling_text.NAMES:
        folder = root / "ceilings" / target
        if not (folder / "ceiling.json").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            kernel = _ceiling(target)
            save_kernels(kernel, folder, {}, _compiled(kernel.text))


def _ceiling(target: str) -> SavedKernel:
    """Return a kernel that does nothing but multiply; a launch decides how many blocks it has."""
    threads = ceiling_text.threads(target)
    out = Parameter("out", threads, "int32")
    launch = Launch("ceiling_kernel", (1, 1, 1), (threads, 1, 1))
    text = CudaText(ceiling_text.ceiling_text(target), (Kernel(launch, (out,)),))
    if ceiling_text.instruction(target).kind == "wgmma":
        text = replace(text, architectures=("sm_90a",))
    return SavedKernel(
        name="ceiling",
        text=text,
        inputs=(),
        outputs=[Tensor("out", "out", (threads,), "int32")],
        prepares=frozenset(),
        cases=(),
        macs=ceiling_text.macs_per_block(target),
        about={"target": target},
    )


def pack_layer(target: Target[Any, Any, Any], saved: Saved, layer: PackedLayer, root: Path) -> None:
    """Write the kernels of a layer.

    A layer that was packed before on the same request is left as it is.

    Parameters
    ----------
    target : Target
        Target that generates the kernels.
    saved : callable
        Function from an artifact to what a folder says of it.
    layer : PackedLayer
        The layer and its embeddings.
    root : Path
        Folder of the pack.

    Raises
    ------
    LoweringError
        If no embedding has a kernel, or nvcc rejects one.
    """
    folder = root / "layers" / layer.slug
    if is_packed(folder, layer.request):
        return
    selection = select(layer.workload, target, layer.candidates(), layer.epilogue, layer.best)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
    try:
        document = _layer(target, saved, layer, selection, draft)
        write_whole(draft / "layer.json", json.dumps(document, indent=1) + "\n")
        draft.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def is_packed(folder: Path, request: Mapping[str, Any]) -> bool:
    """True if a layer's folder is complete, and was written on the same request."""
    try:
        document = json.loads((folder / "layer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    variants = document.get("variants", [])
    return document.get("request") == request and all(
        (folder / variant["folder"] / f"{variant['folder']}.json").is_file() for variant in variants
    )


def _layer(
    target: Target[Any, Any, Any],
    saved: Saved,
    layer: PackedLayer,
    selection: Sequence[Selected],
    folder: Path,
) -> dict[str, Any]:
    """Write a layer's kernels, and return its document."""
    cases = cases_of(layer.workload, layer.epilogue)
    samples = save_samples(cases, folder)
    variants: dict[str, dict[str, Any]] = {}
    for number, selected in enumerate(selection, start=1):
        artifact = target.build(selected.lowered, selected.schedule)
        # Of equal texts there is one, with the roles of all.
        key = text_digest(artifact.text)
        if key in variants:
            variants[key]["also"] += selected.roles
            continue
        name = f"kernel{number}"
        save_variant(saved(artifact, name, cases), folder / name, samples)
        variants[key] = _variant(selected, getattr(artifact.plan, "registers", None), name)
        variants[key]["program"] = {
            "embedding": selected.ranked.candidate.embedding.to_json(),
            "rank": selected.ranked.rank,
            "constraints": selected.ranked.constraints,
            "schedule": target.schedule_json(selected.schedule),
            "text": key,
        }
    stored = layer.workload.output.dtype if layer.epilogue is None else layer.epilogue.dtype
    return {
        "request": dict(layer.request),
        "suite": layer.suite,
        "name": layer.name,
        "slug": layer.slug,
        "words": layer.words,
        "kind": layer.kind,
        "sizes": dict(layer.sizes),
        "target": target.spec.name,
        "machine": target.described_machine,
        "epilogue": None if layer.epilogue is None else str(layer.epilogue),
        "storing": layer.request.get("storing"),
        "constraints": layer.request.get("constraints"),
        "plain": _converts_only(layer.epilogue),
        "macs": layer.workload.macs,
        "bytes": bytes_moved(layer.workload, stored),
        "variants": list(variants.values()),
        "rules": [],
    }


def _converts_only(epilogue: Epilogue | None) -> bool:
    """True if the sums are stored as they are, or rounded to another float type."""
    if epilogue is None:
        return True
    return not is_integer(epilogue.dtype) and epilogue == Epilogue(epilogue.dtype)


def save_variant(
    saved: SavedKernel,
    folder: Path,
    samples: Samples,
    architectures: Sequence[str] = ARCHITECTURES,
) -> None:
    """Write a kernel of a layer, whose samples are in the folder above.

    Parameters
    ----------
    saved : SavedKernel
    folder : Path
        Its folder.
    samples : mapping
        Files of the layer's samples.
    architectures : sequence of str
        Architectures that a text for all is compiled for, the first one with PTX; none to leave
        compiling to the machine with the GPU.
    """
    folder.mkdir()
    above = {
        case: {tensor: f"../{file}" for tensor, file in files.items()}
        for case, files in samples.items()
    }
    save_kernels(saved, folder, above, _compiled(saved.text, architectures))


def _compiled(text: CudaText, architectures: Sequence[str] = ARCHITECTURES) -> Sequence[str]:
    """Return the architectures, but those of a text that is for some architectures only."""
    special = text.architectures != compiling.ARCHITECTURES
    return text.architectures if architectures and special else architectures


def bytes_moved(workload: Computation, stored: str) -> int:
    """Return the bytes of a layer's inputs, and of its result in the type that is stored."""
    shapes = {operand.tensor: (operand.shape, operand.dtype) for operand in workload.inputs}
    sizes = [int(np.prod(shape)) * size_bytes(dtype) for shape, dtype in shapes.values()]
    return sum(sizes) + int(np.prod(workload.output.shape)) * size_bytes(stored)


def _variant(selected: Selected, registers: int | None, folder: str) -> dict[str, Any]:
    embedding = selected.ranked.candidate.embedding
    return {
        "name": selected.roles[0],
        "also": list(selected.roles[1:]),
        "folder": folder,
        "family": {axis: list(axes) for axis, axes in embedding.family.items()},
        "embedding": embedding.identifier(),
        "schedule": str(selected.schedule),
        "estimated_us": selected.estimated_us,
        "registers_estimated": registers,
    }
