"""Gains of hardware and software over the tuned template at equal area: HASCO's table III on VTA.

    python -m experiments.hasco2021.table3.run --trials 32             # all rows that are missing
    python -m experiments.hasco2021.table3.run resnet50 --trials 32    # this

A row is a network. The configuration is the one of the fewest cycles that needs no more area than
the default, on the same bus at the same clock, by ``cpembed explore`` (proven in the space, for the
schedules that the family considers); then each layer is tuned on it. A layer's cycles are those of
the best program of the tuner and of the exploration, on the default too; the template has as many
programs as both. Writes ``results.json``, ``results.md`` and, if matplotlib is installed,
``results.svg`` into ``--output``.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cpembed.exploration.exact import ExactSearch, Verdict
from cpembed.exploration.explore import open_exploration
from cpembed.hw.instruction import HardwareSpec
from cpembed.runtime.cluster import Task, Workers, open_workers
from cpembed.targets.family import Value
from cpembed.targets.vta.family import target_of
from cpembed.workloads.suites import Layer, suite
from cpembed.workloads.user_suites import read_suite
from experiments.common import Experiment, Row, bars, described
from experiments.hasco2021.codesign import (
    DEFAULT_POINT,
    EXPLORED,
    FAMILY,
    default_spec,
    explored,
    reference,
    tuned,
    workload_of,
)
from experiments.hasco2021.table3.tables import COMPARED, NAMES, gains, markdown

SHARED = Path(__file__).resolve().parents[1]
MOBILENET = str(SHARED / "mobilenet_v1.csv")
NETWORKS = {
    "resnet50": ("resnet50", None),
    # Layers by their indices: without depthwise convolutions, which the template does not execute.
    "mobilenet": (MOBILENET, "0,2,4,6,8,10,12,14,16,18"),
    "xception": (str(SHARED / "xception.csv"), None),
    "mobilenet_all": (MOBILENET, None),
}
LIMIT: dict[str, Value] = {**DEFAULT_POINT, "log_uop_buff": 13}
"""The default, without the micro-ops that no program uses: the spaces have as many."""
SPACES = {"multipliers": "equal_multipliers.toml", "area": "equal_area.toml"}
WORKERS = 2


def layers_of(key: str) -> tuple[Layer, ...]:
    """Return the layers of a row."""
    name, picked = NETWORKS[key]
    layers = read_suite(Path(name)) if name.endswith(".csv") else suite(name)
    return layers if picked is None else tuple(layers[int(n)] for n in picked.split(","))


def compute(key: str, trials: int) -> Row:
    """Compute a network by its name."""
    layers, database = layers_of(key), Path(_folder().name)
    rows: list[dict[str, Any]] = [
        {"layer": layer.label, "count": layer.count, "macs": workload_of(layer).macs}
        for layer in layers
    ]
    machines: dict[str, Any] = {}
    with open_workers(workers=WORKERS) as crew:
        _fill(rows, _on_default(layers, trials, database), crew)
        for row in rows:
            row["software"]["explored"] = row.pop("explored")
        for name, space in SPACES.items():
            spec, cycles, machines[name] = best_machine(SHARED / space, key, database, crew)
            tasks = [
                _task(n, name, layer, tuned, spec, trials, database)
                for n, layer in enumerate(layers)
            ]
            _fill(rows, tasks, crew)
            for row, simulated in zip(rows, cycles, strict=True):
                row[name]["explored"] = simulated
    return {
        "trials": trials,
        "explored": EXPLORED,
        "area_mm2": FAMILY.area_um2(DEFAULT_POINT) * 1e-6,
        "limit_mm2": FAMILY.area_um2(LIMIT) * 1e-6,
        "layers": rows,
        "machines": machines,
    }


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of records: they serve all rows that have a layer."""
    return tempfile.TemporaryDirectory()


def _on_default(layers: tuple[Layer, ...], trials: int, database: Path) -> list[Task]:
    default = default_spec()
    return [
        task
        for n, layer in enumerate(layers)
        for task in (
            _task(n, "reference", layer, reference, trials + EXPLORED),
            _task(n, "software", layer, tuned, default, trials, database),
            _task(n, "explored", layer, explored, DEFAULT_POINT),
        )
    ]


def _task(
    number: int, column: str, layer: Layer, function: Callable[..., Any], *arguments: Any
) -> Task:
    return Task(
        f"{number} {column}", function, (workload_of(layer), *arguments), f"tuning {layer.label}"
    )


def _fill(rows: list[dict[str, Any]], tasks: list[Task], crew: Workers) -> None:
    """Enter the results of tasks, by the row and the column that their keys name."""
    for number_done, outcome in enumerate(crew.outcomes(tasks), 1):
        if outcome.error is not None:
            raise outcome.error
        number, column = outcome.task.key.split()
        rows[int(number)][column] = outcome.result
        _report(f"{number_done} of {len(tasks)} ({column}, layer {number})")


def best_machine(
    space: Path, key: str, results: Path, crew: Workers
) -> tuple[HardwareSpec, list[int], dict[str, Any]]:
    """Return the machine of the fewest cycles within the default's area.

    Also returns the cycles of each layer as the exploration simulated them, and facts of the
    search.

    Parameters
    ----------
    space : Path
        File of the space.
    key : str
        Name of the network.
    results : Path
        Folder that keeps what is computed.
    crew : Workers
        Processes.
    """
    name, picked = NETWORKS[key]
    exploration = open_exploration(
        space,
        name,
        layers=picked,
        objectives=["cycles"],
        limits=[f"area={FAMILY.area_um2(LIMIT)!r}um2"],
        results=results,
    )
    for step in exploration.run(crew):
        _report(f"{step.doing} {step.completed}/{step.total}")
    result, search = exploration.result(), exploration.search
    assert isinstance(search, ExactSearch)
    best = result.front[0]
    spec = target_of(FAMILY.specification(best.point)).spec
    about = {
        "name": spec.name,
        "point": {n: v for n, v in best.point.items() if n.startswith("log_")},
        "area_mm2": FAMILY.area_um2(best.point) * 1e-6,
        "status": result.status,
        **_machines(search),
        "cycles": best.costs.cycles,
    }
    return spec, [int(layer.activity.cycles) for layer in best.layers], about


def _computes_all(verdict: Verdict) -> bool:
    """True if a machine within the area has software for all layers."""
    return verdict.fate in ("evaluated", "dominated") and not verdict.left_out


def _machines(search: ExactSearch) -> dict[str, Any]:
    """Return the numbers of machines by their fates.

    These are all, those within the area, with software for all layers, and evaluated; and the rows
    of the GEMM cores of those with software.
    """
    fates = Counter(verdict.fate for verdict in search.verdicts.values())
    within = search.machines - fates["limit"]
    space = search.space
    rows = {
        2 ** int(space.point(place)["log_batch"])
        for place in space.places()
        if _computes_all(search.verdicts[space.number(place)])
    }
    partly = sum(
        verdict.left_out > 0 and verdict.fate in ("evaluated", "dominated")
        for verdict in search.verdicts.values()
    )
    return {
        "machines": search.machines,
        "within": within,
        "with_software": within - fates["no_software"] - partly,
        "rows": sorted(rows),
        "evaluated": fates["evaluated"],
    }


def _report(text: str) -> None:
    print(f"\r{text:100.100}", end="", file=sys.stderr, flush=True)


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the gains; return False if there is nothing to draw."""
    rows = [row for row in rows if row["key"] in COMPARED]
    if not rows:
        return False
    series = {
        "software": [gains(row, "area")[0] for row in rows],
        "and hardware, equal multipliers": [gains(row, "multipliers")[2] for row in rows],
        "and hardware, equal area": [gains(row, "area")[2] for row in rows],
    }
    title = "over the default configuration with the tuned template (simulated cycles)"
    return bars([NAMES[row["key"]] for row in rows], series, folder / "results.svg", title=title)


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=tuple(NETWORKS),
    compute=compute,
    markdown=markdown,
    plot=plot,
    trial_unit="programs of a layer that a tuner simulates",
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
