"""Take what a pack's programs measured on another machine into the database of tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.driver.bench_pack import measured
from cpembed.driver.named import hardware_spec, workload
from cpembed.errors import CpembedError, WorkloadError
from cpembed.runtime.tuning.database import tuning_folder
from cpembed.targets.registry import open_target
from cpembed.targets.tuner import TakesResults, require_tuner


@dataclass
class ImportedResults:
    """Number of new trials by layer, and why other layers have none."""

    device: str
    database: Path
    stored: dict[str, int] = field(default_factory=dict[str, int])
    refused: dict[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``tune --results --json``."""
        return {
            "device": self.device,
            "database": str(self.database),
            "stored": self.stored,
            "refused": self.refused,
        }


def import_results(path: Path, database: Path | None = None) -> ImportedResults:
    """Store the times of a pack's kernels, so that ``run`` and ``build`` take the fastest.

    Parameters
    ----------
    path : Path
        ``results.json`` of a run on the machine that measured.
    database : Path, optional
        Folder of the trials; by default the one in which ``run`` looks.

    Raises
    ------
    WorkloadError
        If the file cannot be read, or holds no results of a pack; an error of a layer is part of
        the result.
    """
    # Its report checks every member that is read below.
    _, document = measured(path)
    folder = database or tuning_folder()
    imported = ImportedResults(str(document["device"]["device"]), folder)
    for layer in document["layers"]:
        name = f"{layer['name']} on {layer['target']}"
        try:
            imported.stored[name] = _store(layer, imported.device, folder)
        except (CpembedError, LookupError, TypeError, ValueError) as error:
            imported.refused[name] = str(error)
    return imported


def _store(layer: Mapping[str, Any], device: str, folder: Path) -> int:
    storing = layer.get("storing")
    if storing is None or any("program" not in variant for variant in layer["variants"]):
        raise WorkloadError("the pack does not say how its kernels are made: pack it again")
    spec = hardware_spec(layer["target"], machine=layer["machine"])
    target = open_target(spec)
    tuner = require_tuner(target)
    if not isinstance(tuner, TakesResults):
        raise WorkloadError(f"{spec.name} takes no times from elsewhere")
    computation = workload(layer["words"], target=spec)
    epilogue = target.epilogue(computation, EpilogueRequest(**storing))
    return tuner.store_results(computation, epilogue, layer, device, folder)
