"""What the experiments share: the tuner over all embeddings, and the default machine."""

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
from experiments.vta_evaluation.tuning import Target, tune_reference

HERE = Path(__file__).resolve().parent
DEFAULT = "vta_1x16x16"
DTYPES = ("int8", "int8", "int32")

FAMILY = VtaFamily()
DEFAULT_POINT: dict[str, Value] = {
    p.name: p.default for p in FAMILY.parameters if p.default is not None
}
"""The shipped default as a point of the family."""
EXPLORED = int(DEFAULT_POINT["schedules"])
"""Programs of a layer that an exploration simulates at a point, at most."""


def workload_of(layer: Layer) -> Computation:
    return layer.workload(DTYPES)


def tuned(workload: Computation, spec: HardwareSpec, trials: int, database: Path) -> dict[str, Any]:
    """The tuner of ``cpembed tune`` over all embeddings: cycles of the best of so many programs."""
    result = tune(workload, spec, trials=trials, database=database)
    if isinstance(result, SolveResult):
        raise LoweringError(f"{workload} has no embedding on {spec.name}")
    best = result.best
    return {"cycles": best.cycles, "embedding": best.identifier, "untuned": result.untuned.cycles}


def reference(workload: Computation, trials: int) -> dict[str, Any] | None:
    """The hand-written strategy on the default, tuned over its knobs with as many programs, or all
    that it has; None where it takes no such layer.
    """
    try:
        found = tune_reference(workload, Target.of(DEFAULT, workload), trials, math.inf)
    except LoweringError:
        return None
    return {"cycles": found.cycles, "simulated": found.simulated}


def explored(workload: Computation, point: Point) -> int:
    """Cycles of a layer as an exploration simulates them at a point."""
    choices = FAMILY.choices(point, FAMILY.analyse(point, workload))
    return int(min(FAMILY.evaluate(point, workload, choice).cycles for choice in choices))


def default_spec() -> HardwareSpec:
    return load_hardware_spec(DEFAULT)
