"""HASCO's table III on VTA: what hardware and software gain over the default configuration with the
tuned reference template, at equal area.

    python experiments/codesign/table3/run.py              # all rows that are missing, 15 minutes
    python experiments/codesign/table3/run.py resnet50     # this

A row is a network. The configuration is the one of the fewest cycles that needs no more area than
the default, on the same bus at the same clock, by ``cpembed explore`` (proven in the space, for the
schedules that the family considers); then each layer is tuned on it. Writes ``results.json``,
``results.md`` and, where matplotlib is installed, ``results.svg`` into ``--output``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cpembed.cluster import Task, Workers, open_workers
from cpembed.exploration.exact import ExactSearch
from cpembed.exploration.explore import open_exploration
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.family import Point
from cpembed.workloads.own_suites import read_suite
from cpembed.workloads.suites import Layer, suite
from experiments.codesign.common import (
    DEFAULT_POINT,
    FAMILY,
    HERE,
    default_spec,
    reference,
    tuned,
    workload_of,
)
from experiments.vta_evaluation.plot import bars
from experiments.vta_evaluation.rows import Experiment, Row, geometric_mean

MOBILENET = str(HERE / "mobilenet_v1.csv")
NETWORKS = {
    "resnet50": ("resnet50", None),
    # Layers by their indices: without depthwise convolutions, which the template does not execute.
    "mobilenet": (MOBILENET, "0,2,4,6,8,10,12,14,16,18"),
    "xception": (str(HERE.parent / "hasco" / "xception.csv"), None),
    "mobilenet_all": (MOBILENET, None),
}
COMPARED = ("resnet50", "mobilenet", "xception")
"""Networks all of whose layers the template executes."""
SPACES = {"multipliers": "equal_multipliers.toml", "area": "equal_area.toml"}
WORDS = {
    "multipliers": "equal area and number of multipliers",
    "area": "equal area",
}
WORKERS = 2
PAPER = (1.25, 1.44, 0.2953)
"""HASCO's gains over the default, the least and the largest, and how much of it is hardware's."""


def layers_of(key: str) -> tuple[Layer, ...]:
    name, picked = NETWORKS[key]
    layers = read_suite(Path(name)) if name.endswith(".csv") else suite(name)
    return layers if picked is None else tuple(layers[int(n)] for n in picked.split(","))


def compute(key: str, trials: int) -> Row:
    """A network by its name."""
    layers = layers_of(key)
    with tempfile.TemporaryDirectory() as folder, open_workers(workers=WORKERS) as crew:
        database, default = Path(folder), default_spec()
        rows: list[dict[str, Any]] = [
            {"layer": layer.label, "count": layer.count, "macs": workload_of(layer).macs}
            for layer in layers
        ]
        tasks = [
            task
            for n, layer in enumerate(layers)
            for task in (
                _task(n, "reference", layer, reference, trials),
                _task(n, "software", layer, tuned, default, trials, database),
            )
        ]
        _fill(rows, tasks, crew)
        machines: dict[str, Any] = {}
        for name, space in SPACES.items():
            machine = machines[name] = best_machine(HERE / space, key, database, crew)
            spec = machine.pop("spec")
            tasks = [
                _task(n, name, layer, tuned, spec, trials, database)
                for n, layer in enumerate(layers)
            ]
            _fill(rows, tasks, crew)
    area = FAMILY.area_um2(DEFAULT_POINT) * 1e-6
    return {"trials": trials, "area_mm2": area, "layers": rows, "machines": machines}


def _task(
    number: int, column: str, layer: Layer, function: Callable[..., Any], *arguments: Any
) -> Task:
    return Task(
        f"{number} {column}", function, (workload_of(layer), *arguments), f"tuning {layer.label}"
    )


def _fill(rows: list[dict[str, Any]], tasks: list[Task], crew: Workers) -> None:
    """What tasks give, by the row and the column that their keys name."""
    for done, outcome in enumerate(crew.outcomes(tasks), 1):
        if outcome.error is not None:
            raise outcome.error
        number, column = outcome.task.key.split()
        rows[int(number)][column] = outcome.result
        _say(f"{column}: {done} of {len(tasks)} layers tuned")


def best_machine(space: Path, key: str, results: Path, crew: Workers) -> dict[str, Any]:
    """Of the fewest cycles within the default's area."""
    area = FAMILY.area_um2(DEFAULT_POINT)
    name, picked = NETWORKS[key]
    exploration = open_exploration(
        space,
        name,
        layers=picked,
        objectives=["cycles"],
        limits=[f"area={area!r}um2"],
        results=results,
    )
    for step in exploration.run(crew):
        _say(f"{step.doing} {step.done}/{step.of}")
    found, search = exploration.result(), exploration.search
    point: Point = found.front[0].point
    spec = spec_of(point, results)
    return {
        "spec": spec,
        "name": spec.name,
        "point": {n: v for n, v in point.items() if n.startswith("log_")},
        "area_mm2": FAMILY.area_um2(point) * 1e-6,
        "status": found.status,
        "machines": search.machines if isinstance(search, ExactSearch) else 0,
        "evaluated": len(exploration.evaluated),
        "cycles": found.front[0].costs.cycles,
    }


def spec_of(point: Point, folder: Path) -> HardwareSpec:
    path = folder / "machine.toml"
    path.write_text(FAMILY.specification(point), encoding="utf-8")
    return load_hardware_spec(path)


def _say(text: str) -> None:
    print(f"\r{text:100.100}", end="", file=sys.stderr, flush=True)


def total(row: Row, which: str, *, all_layers: bool = False) -> int:
    """Cycles of the network's layers; by default of those that the template executes."""
    return sum(
        layer["count"] * layer[which]["cycles"]
        for layer in row["layers"]
        if all_layers or layer["reference"] is not None
    )


def gains(row: Row, machine: str) -> tuple[float, float, float]:
    """Over the template: of software, of hardware, of both."""
    template, software = total(row, "reference"), total(row, "software")
    both = template / total(row, machine)
    return template / software, software / total(row, machine), both


def markdown(rows: list[Row]) -> list[str]:
    lines = ["# Table III: hardware and software on VTA", ""]
    lines += [
        "Simulated cycles of all layers of a network, each as often as it has it, tuned with equal",
        "numbers of simulated programs; area is estimated from tables at 45 nm. MobileNet is",
        "without its depthwise convolutions, which the template does not execute; the last table",
        "has them.",
        "",
    ]
    for machine in SPACES:
        lines += _machine_table([row for row in rows if row["key"] in COMPARED], machine)
    lines += _whole_table(rows)
    return lines


def _machine_table(rows: list[Row], machine: str) -> list[str]:
    lines = [
        f"## {WORDS[machine].capitalize()}",
        "",
        (
            "| network | configuration | area mm2 (default) | template | software alone | both "
            "| software | hardware | both |"
        ),
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    found: list[tuple[float, float, float]] = []
    for row in rows:
        made, gain = row["machines"][machine], gains(row, machine)
        found.append(gain)
        cycles = " | ".join(f"{total(row, w):,}" for w in ("reference", "software", machine))
        ratios = " | ".join(f"{g:.2f}x" for g in gain)
        area = f"{made['area_mm2']:.3f} ({row['area_mm2']:.3f})"
        lines.append(f"| {row['key']} | {made['name']} | {area} | {cycles} | {ratios} |")
    means = [geometric_mean(column) for column in zip(*found, strict=True)]
    ratios = " | ".join(f"**{mean:.2f}x**" for mean in means)
    lines.append(f"| geometric mean | | | | | | {ratios} |")
    low, high, share = PAPER
    lines += [
        "",
        (
            f"Paper: {low} to {high}x, {share:.2%} of it by hardware; its platforms and its spaces "
            "of hardware are others."
        ),
        "",
    ]
    return lines


def _whole_table(rows: list[Row]) -> list[str]:
    lines = [
        "## All layers, without the template",
        "",
        "| network | default | equal multipliers | equal area | gain | status |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        cycles = [total(row, w, all_layers=True) for w in ("software", *SPACES)]
        columns = " | ".join(f"{c:,}" for c in cycles)
        status = ", ".join(
            f"{m['status']}, {m['evaluated']} of {m['machines']} evaluated"
            for m in row["machines"].values()
        )
        lines.append(f"| {row['key']} | {columns} | {cycles[0] / cycles[-1]:.2f}x | {status} |")
    return lines


def plot(rows: list[Row], folder: Path) -> bool:
    rows = [row for row in rows if row["key"] in COMPARED]
    if not rows:
        return False
    series = {
        "software": [gains(row, "area")[0] for row in rows],
        "and hardware, equal multipliers": [gains(row, "multipliers")[2] for row in rows],
        "and hardware, equal area": [gains(row, "area")[2] for row in rows],
    }
    title = "over the default configuration with the tuned template (simulated cycles)"
    return bars([row["key"] for row in rows], series, folder / "results.svg", title=title)


if __name__ == "__main__":
    experiment = Experiment.of_script(
        __file__, __doc__, tuple(NETWORKS), compute, markdown, plot, "simulated programs of a layer"
    )
    sys.exit(experiment.main())
