"""Shared by the experiments on VTA: the tuner over all embeddings, and the default machine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from cpembed.driver.result import SolveResult
from cpembed.driver.tune import tune
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.targets.family import Point, Value
from cpembed.targets.vta.family import VtaFamily
from cpembed.workloads.suites import Layer
from experiments.rieber2021.tuning import Target, tune_reference

DEFAULT = "vta_1x16x16"
DTYPES = ("int8", "int8", "int32")

FAMILY = VtaFamily()
DEFAULT_POINT: dict[str, Value] = {
    p.name: p.default for p in FAMILY.parameters if p.default is not None
}
"""The shipped default as a point of the family."""
EXPLORED = int(DEFAULT_POINT["schedules"])
"""Maximum number of programs of a layer that an exploration simulates at a point."""


def workload_of(layer: Layer) -> Computation:
    """Return the computation of a layer in VTA's types."""
    return layer.workload(DTYPES)


def tuned(workload: Computation, spec: HardwareSpec, trials: int, database: Path) -> dict[str, Any]:
    """Return the cycles of the best of some programs, by the tuner of ``cpembed tune``.

    Parameters
    ----------
    workload : Computation
        A layer.
    spec : HardwareSpec
        The machine.
    trials : int
        Number of programs to simulate, of all embeddings.
    database : Path
        Folder of the tuner's records.
    """
    result = tune(workload, spec, trials=trials, database=database)
    if isinstance(result, SolveResult):
        raise LoweringError(f"{workload} has no embedding on {spec.name}")
    best = result.best
    return {"cycles": best.cycles, "embedding": best.identifier, "untuned": result.untuned.cycles}


def reference(workload: Computation, trials: int) -> dict[str, Any] | None:
    """Return the tuned hand-written strategy on the default; None if it rejects the layer.

    It is tuned over its knobs with as many programs, or all that it has.
    """
    try:
        tuned_template = tune_reference(workload, Target.open(DEFAULT, workload), trials, math.inf)
    except LoweringError:
        return None
    return {"cycles": tuned_template.cycles, "simulated": tuned_template.simulated}


def explored(workload: Computation, point: Point) -> int:
    """Return the cycles of a layer as an exploration simulates them at a point."""
    choices = FAMILY.choices(point, FAMILY.analyse(point, workload))
    return int(min(FAMILY.evaluate(point, workload, choice).cycles for choice in choices))


def default_spec() -> HardwareSpec:
    """Return the specification of the default machine."""
    return load_hardware_spec(DEFAULT)
