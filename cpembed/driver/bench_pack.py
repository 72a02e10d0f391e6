"""Pack the kernels of a suite for a machine that executes them elsewhere (``bench --pack``)."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.bench import select_layers
from cpembed.driver.bench_layers import named_suite
from cpembed.driver.bench_maker import RowMaker
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import WIDER, BenchOptions
from cpembed.driver.plan import SUMS
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import BackendUnavailable, CpembedError, WorkloadError
from cpembed.files import make_folder, write_whole
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import provenance
from cpembed.targets.outputs import Packable, PackedLayer
from cpembed.targets.registry import open_target
from cpembed.workloads.user_suites import ComputedLayer

FORMAT = 2
"""Format of the documents in a pack, which its programs check."""

MOST_EMBEDDINGS = 400
"""Maximum number of embeddings of a layer that are estimated, more than any convolution has."""

BEST = 3
"""Number of schedules of a layer that are packed, besides those of fixed mappings."""

Progress = Callable[[str, int], None]
"""Called with the name of a layer, and 1 when it is packed."""


@dataclass(frozen=True, kw_only=True)
class PackItem:
    """Layer to pack, on a target.

    Attributes
    ----------
    suite, name : str
        Suite of the layer, and its name in reports.
    words : str
        Words of a command line that name the workload.
    workload : Computation
        Its computation.
    spec : HardwareSpec
        The target, whose first machine decides the schedules.
    storing : EpilogueRequest
        What is stored of the sums.
    constraints : str
        Constraint set of the embeddings.
    timeout : float, optional
        Limit of the search in seconds.
    """

    suite: str
    name: str
    words: str
    workload: Computation
    spec: HardwareSpec
    storing: EpilogueRequest = SUMS
    constraints: str = WIDER
    timeout: float | None = None

    def candidates(self) -> Sequence[RankedCandidate]:
        """Return the embeddings among which the target selects."""
        constraints = load_constraint_set(self.constraints)
        return solve(
            self.workload,
            self.spec,
            constraints=constraints,
            top=MOST_EMBEDDINGS,
            timeout=self.timeout,
        ).embeddings

    def layer(self, best: int, further: Mapping[str, Any] | None = None) -> PackedLayer:
        """Return the layer as targets pack it.

        Parameters
        ----------
        best : int
            Number of kernels.
        further : mapping, optional
            Further entries that the files depend on.
        """
        target = open_target(self.spec)
        epilogue = target.epilogue(self.workload, self.storing)
        request = {
            "format": FORMAT,
            "words": self.words,
            "target": self.spec.name,
            "machine": target.described_machine,
            "workload": str(self.workload),
            "sizes": dict(self.workload.extents),
            "dtypes": [operand.dtype for operand in self.workload.operands],
            "epilogue": None if epilogue is None else str(epilogue),
            "constraints": self.constraints,
            "storing": _storing_json(self.storing),
            "best": best,
            **(further or {}),
        }
        return PackedLayer(
            suite=self.suite,
            name=self.name,
            words=self.words,
            workload=self.workload,
            epilogue=epilogue,
            candidates=self.candidates,
            best=best,
            request=request,
        )


def _storing_json(storing: EpilogueRequest) -> dict[str, Any] | None:
    """Return what is stored as a document; None for expressions, which have none."""
    if storing.chain is not None or storing.second is not None:
        return None
    names = ("output", "shift", "bias", "scale", "relu")
    return {name: getattr(storing, name) for name in names}


@dataclass
class PackResult:
    """Pack that was written: its layers by their names in files, and why others failed."""

    path: Path
    slugs: list[str] = field(default_factory=list[str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``bench --pack --json``."""
        return {
            "pack": str(self.path),
            "layers": self.slugs,
            "failed": self.failed,
            "bytes": self.bytes,
        }


def packable(spec: HardwareSpec) -> Packable:
    """Return a target that packs kernels.

    Raises :class:`WorkloadError` if it does not, :class:`BackendUnavailable` if it needs what is
    missing here.
    """
    target = open_target(spec)
    if not isinstance(target, Packable):
        raise WorkloadError(
            f"{spec.name} has no kernels that are timed elsewhere: leave --pack out"
        )
    missing = target.missing_to_pack()
    if missing:
        raise BackendUnavailable(missing)
    return target


def pack_items(
    suite_name: str, targets: Sequence[str | HardwareSpec], options: BenchOptions
) -> list[PackItem]:
    """Return the layers of a suite on some targets.

    Parameters
    ----------
    suite_name : str
        A shipped suite, a table of layers, or a model.
    targets : sequence of str or HardwareSpec
        Targets by name, file or value.
    options : BenchOptions
        Selected layers, their layout, what is stored, and the machine.

    Raises
    ------
    WorkloadError
        If the suite or a layer is unknown, or a target packs nothing.
    """
    items: list[PackItem] = []
    for name in targets:
        spec = hardware_spec(name, machine=options.machine)
        packable(spec)
        named = named_suite(suite_name, spec, options.shapes)
        constraints = options.constraints or WIDER
        if not isinstance(constraints, str):
            raise WorkloadError("a pack names its constraint set: give a name or a file")
        maker = RowMaker(
            spec=spec,
            strict=load_constraint_set(WIDER),
            constraints=load_constraint_set(constraints),
            backend=None,
            layout=options.layout,
            seed=0,
            timeout=options.timeout,
        )
        for layer in select_layers(named, options.layers):
            words = layer.label
            if not isinstance(layer, ComputedLayer) and " layout=" not in words:
                settings = layer.layout_settings(options.layout)
                words = " ".join([words, *(f"{name}={value}" for name, value in settings.items())])
            items.append(
                PackItem(
                    suite=named.name,
                    name=f"{named.name}:{layer.index}",
                    words=words,
                    workload=maker.workload(layer),
                    spec=spec,
                    storing=options.storing,
                    constraints=constraints,
                    timeout=options.timeout,
                )
            )
    return items


def write_pack(
    items: Sequence[PackItem],
    path: Path,
    best: int = BEST,
    *,
    progress: Progress | None = None,
    extend: Callable[[PackItem, Path], None] | None = None,
    request: Mapping[str, Any] | None = None,
) -> PackResult:
    """Pack what is not there yet into a folder, or into one file.

    Parameters
    ----------
    items : sequence of PackItem
        Layers.
    path : Path
        A folder, or ``FILE.zip``, which is packed from the folder ``FILE``; that stays.
    best : int
        Number of kernels of a layer.
    progress : callable, optional
        Called before and after each layer.
    extend : callable, optional
        Adds to the folder of a layer that was packed.
    request : mapping, optional
        Further entries that the files depend on.

    Raises
    ------
    CpembedError
        If a file cannot be written; an error of a layer is part of the result.
    """
    root = path.with_suffix("") if path.suffix == ".zip" else path
    if not items:
        raise WorkloadError("there is no layer to pack: select one")
    make_folder(root)
    result = PackResult(path)
    for spec in {item.spec.name: item.spec for item in items}.values():
        packable(spec).pack_programs(root)
    worker.prepare()
    for item in items:
        if progress is not None:
            progress(item.name, 0)
        layer = item.layer(best, request)
        try:
            worker.call(_pack_layer, item, root, best, dict(request or {}))
            if extend is not None:
                extend(item, root / "layers" / layer.slug)
        except CpembedError as error:
            result.failed[item.name] = str(error)
        else:
            result.slugs.append(layer.slug)
        if progress is not None:
            progress(item.name, 1)
    result.slugs = list(dict.fromkeys(result.slugs))
    document = {"format": FORMAT, "layers": result.slugs, "best": best, "packed": provenance()}
    write_whole(root / "pack.json", json.dumps(document, indent=1) + "\n")
    files = packed_files(root, result.slugs)
    if path.suffix == ".zip":
        _zip(root, files, path)
        result.bytes = path.stat().st_size
    else:
        result.bytes = sum(file.stat().st_size for file in files)
    return result


def _pack_layer(item: PackItem, root: Path, best: int, request: Mapping[str, Any]) -> None:
    """Pack a layer; in the worker, since a compiler may crash."""
    packable(item.spec).pack_layer(item.layer(best, request), root)


def packed_files(root: Path, slugs: Sequence[str]) -> list[Path]:
    """Return the files of a pack's layers and programs, no leftovers of other calls.

    Parameters
    ----------
    root : Path
        Folder of the pack.
    slugs : sequence of str
        Names of its layers in files.
    """
    folders = [root / "ceilings", *(root / "layers" / slug for slug in slugs)]
    below = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return [*sorted(root.glob("*.py")), root / "pack.json", *below]


def _zip(root: Path, files: Sequence[Path], path: Path) -> None:
    draft = path.with_suffix(".zip.part")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in files:
            archive.write(file, file.relative_to(root))
    draft.replace(path)


MAX_RESULTS_BYTES = 256 << 20
"""Maximum size of a file of results; those of all suites take a few megabytes."""


def measured(path: Path) -> tuple[str, Mapping[str, Any]]:
    """Return a report of what the programs of a pack measured, and their document.

    Parameters
    ----------
    path : Path
        ``results.json`` of a run.

    Raises
    ------
    WorkloadError
        If it cannot be read, or holds no results of a pack.
    """
    try:
        if path.stat().st_size > MAX_RESULTS_BYTES:
            raise WorkloadError(f"{path}: more than {MAX_RESULTS_BYTES:,} bytes are no results")
        document = json.loads(path.read_bytes())
        name = str(document["layers"][0]["target"])
    except (OSError, ValueError, RecursionError) as error:
        raise WorkloadError(f"{path} holds no results of a pack: {error}") from error
    except (KeyError, IndexError, TypeError) as error:
        raise WorkloadError(
            f"{path} holds no results of a pack: no layer names a target"
        ) from error
    target = open_target(hardware_spec(name))
    if not isinstance(target, Packable):
        raise WorkloadError(f"{path} holds no results of a pack: {name} packs no kernels")
    return target.measured_report(document), document
