"""A family of machines whose costs are random numbers, the same ones in every process."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any, ClassVar

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.targets.family import Activity, Choice, Costs, Family, Parameter, Point
from cpembed.workloads.suites import Layer


def chance(*parts: Any) -> float:
    """A number in [0, 1) for what is said by the parts' texts."""
    digest = hashlib.sha256("\0".join(map(repr, parts)).encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


class SyntheticFamily(Family):
    """``rows`` and ``dataflow`` make a group, ``banks`` and ``size`` the rest of a point.

    ``lacking`` leaves layers without software, in the analysis or at some sizes only;
    ``coarse`` rounds costs, so that many points are equal; ``slack`` is how far bounds are below
    costs; ``tuned`` choices have to be evaluated, the others are estimated at once. Evaluations are
    counted in the file that the environment names, if any, and take as long as it says.
    """

    name: ClassVar[str] = "synthetic"
    analysis: ClassVar[Any] = tuple[str, int]
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("rows", "rows of the array"),
        Parameter("dataflow", "what stays", "ws"),
        Parameter("banks", "banks of the scratchpad", 1),
        Parameter("size", "KiB of the scratchpad", 64),
        Parameter("seed", "of the random numbers", 0),
        Parameter("coarse", "costs are multiples of it", 1),
        Parameter("slack", "bounds are below costs by up to this share", 0.3),
        Parameter("tuned", "choices that are evaluated", 2),
        Parameter("lacking", "share of the layers that have no software", 0),
    )

    def identity(self) -> str:
        return "synthetic"

    def flaw(self, point: Point) -> str | None:
        if chance("flaw", self._seed(point), sorted(point.items())) < 0.05:
            return "banks: unlucky; take others"
        return None

    def clock_mhz(self, point: Point) -> float:
        return 200.0 if point["dataflow"] == "ws" else 100.0

    def area_um2(self, point: Point) -> float:
        return 1e3 * int(point["rows"]) + 10 * int(point["banks"]) * int(point["size"])

    def leakage_w(self, point: Point) -> float:
        return 1e-9 * self.area_um2(point)

    def energy_pj(self, point: Point, activity: Activity) -> float:
        dynamic = activity.counts["macs"] * (1 + chance("energy", self._seed(point), point["size"]))
        return dynamic + self.leakage_w(point) * activity.cycles / self.clock_mhz(point) * 1e6

    def typed(self, layer: Layer) -> Computation:
        return layer.workload(("int8", "int8", "int32"))

    def group(self, point: Point) -> Hashable:
        return tuple(point[n] for n in ("seed", "rows", "dataflow", "coarse", "slack", "tuned"))

    def analyse(self, point: Point, workload: Computation) -> Any:
        if workload.macs == 6:
            raise WorkloadError("six multiply-accumulates have no software here")
        if chance("lacking", self.group(point), workload.name) < float(point["lacking"]) / 2:
            raise WorkloadError("bad luck")
        return workload.name, workload.macs

    def bound(self, point: Point, analysis: Any) -> Costs | None:
        made = [self._made(point, analysis, choice) for choice in self.choices(point, analysis)]
        if not made:
            return None
        share = 1 - float(point["slack"]) * chance("bound", self.group(point), analysis)
        cycles = min(activity.cycles for activity in made) * share
        energy = min(self.energy_pj(point, activity) for activity in made) * share
        return Costs(cycles, energy)

    def choices(self, point: Point, analysis: Any) -> tuple[Choice, ...]:
        lacks = chance("room", self._seed(point), point["size"], analysis)
        if lacks < float(point["lacking"]) / 2:
            return ()
        # What fits depends on the size, as it does on machines with memories.
        count = 3 if int(point["size"]) >= 64 else 2
        names = [f"c{n}" for n in range(count)]
        tuned = int(point["tuned"])
        return tuple(
            Choice(
                name,
                f"software {name}",
                analysis,
                None if n < tuned else self._made(point, analysis, Choice(name, "")),
            )
            for n, name in enumerate(names)
        )

    def evaluate(self, point: Point, workload: Computation, choice: Choice) -> Activity:
        time.sleep(float(os.environ.get("SYNTHETIC_PAUSE", "0")))
        if log := os.environ.get("SYNTHETIC_LOG"):
            with Path(log).open("a") as file:
                file.write(f"{self.group(point)} {choice.payload} {choice.key}\n")
        return self._made(point, choice.payload, choice)

    def specification(self, point: Point) -> str:
        return f'name = "synthetic"\nrows = {point["rows"]}\n'

    def _seed(self, point: Point) -> int:
        return int(point["seed"])

    def _made(self, point: Point, analysis: Any, choice: Choice) -> Activity:
        _, macs = analysis
        group = self.group(point)
        coarse = int(point["coarse"])
        cycles = macs / int(point["rows"]) * (1 + 2 * chance("cycles", group, analysis, choice.key))
        cycles = coarse * (1 + cycles // coarse)
        energy = coarse * (1 + macs * (1 + chance("macs", group, analysis, choice.key)) // coarse)
        return Activity(cycles, Provenance.SIMULATED, {"macs": energy})
