"""Latency, power and area that methods find under limits: HASCO's table II.

    python -m experiments.hasco2021.table2.run --workers 2
    python -m experiments.hasco2021.table2.run --networks resnet --intrinsics gemm --seeds 3

ResNet-50, MobileNetV2 and Xception on HASCO's spaces of GEMM and CONV2D cores, 40 trials of gp,
nsga2 (population 5, where repeated proposals are trials, as in the paper) and random. The paper's
limits are 5.7, 5.2 and 4.4 times the least latency and 2.6 to 3.2 times the least power that it
found on GEMM; here they are the same multiples of the least ones in the space of GEMM cores, all of
which are evaluated. Writes ``results.json`` and ``results.md`` into ``--output``, by default beside
this file; cases that are in the file already are kept. Needs the extra explore-gp.

Depthwise convolutions are left out: the cores have no software for them.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Threads of the packages that gp uses disturb each other; read when they are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from cpembed.exploration.explore import open_exploration
from cpembed.exploration.objectives import EvaluatedPoint
from cpembed.exploration.options import Method
from cpembed.runtime.cluster import Workers, open_workers
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from experiments.common import load_document, results_parser, write_results

FOLDER = Path(__file__).resolve().parent
SHARED = FOLDER.parent
SPACES = {"gemm": "gemm_432.toml", "conv2d": "table2_conv.toml"}
OBJECTIVES = ("cycles", "power", "area")
METHODS: tuple[Method, ...] = ("random", "nsga2", "gp")
TRIALS, POPULATION = 40, 5


@dataclass(frozen=True)
class Network:
    """A network of the table.

    ``limits``: the paper's, in cycles and mW; ``paper`` has for each intrinsic latency (1e8
    cycles), power (mW) and area (1e7 um2) of random, NSGA-II and MOBO.
    """

    suite: str
    limits: tuple[float, float]
    paper: dict[str, tuple[tuple[float, float, float], ...]]

    def multiples(self) -> tuple[float, float]:
        """Return the limits over the least that the paper found on GEMM."""
        latency, power, _ = self.paper["gemm"]
        return self.limits[0] / (min(latency) * 1e8), self.limits[1] / min(power)


NETWORKS = {
    "resnet": Network(
        "resnet50",
        (2e9, 1e4),
        {
            "gemm": ((3.972, 3.528, 3.528), (3293.5, 3099.8, 3099.8), (9.470, 7.005, 7.005)),
            "conv2d": ((4.439, 3.863, 3.411), (3298.65, 2989.44, 2403.87), (7.469, 6.551, 5.438)),
        },
    ),
    "mobilenet": Network(
        str(SHARED / "mobilenet_v2.csv"),
        (1e10, 1e4),
        {
            "gemm": ((30.62, 19.23, 19.23), (4068.14, 3874.18, 3487.17), (19.33, 16.86, 11.93)),
            "conv2d": ((21.35, 23.35, 18.13), (3811.98, 3589.21, 3589.21), (13.04, 12.29, 12.29)),
        },
    ),
    "xception": Network(
        str(SHARED / "xception.csv"),
        (1e11, 1e4),
        {
            "gemm": ((228.6, 228.6, 228.6), (4874.48, 4355.45, 3874.18), (27.16, 24.25, 16.86)),
            "conv2d": ((237.5, 217.7, 217.7), (4013.59, 4456.74, 4013.59), (17.56, 19.43, 17.56)),
        },
    ),
}


def limits_of(network: Network, layers: str | None, crew: Workers, results: Path) -> list[str]:
    """Return limits in cycles and W, by all points of the space of GEMM cores.

    Parameters
    ----------
    network : Network
        A row of the table.
    layers : str or None
        Layers of the network; None for all.
    crew : Workers
        Processes.
    results : Path
        Folder that keeps what is computed.
    """
    exploration = open_exploration(
        SHARED / SPACES["gemm"],
        network.suite,
        objectives=OBJECTIVES,
        layers=layers,
        bounds=False,
        results=results,
    )
    for step in exploration.run(crew):
        print(
            f"\rall GEMM cores: {step.doing} {step.completed}/{step.total}    ",
            end="",
            file=sys.stderr,
        )
    print(file=sys.stderr)
    latency, power = (
        min(point.value(objective) for point in exploration.evaluated)
        for objective in exploration.search.objectives[:2]
    )
    first, second = network.multiples()
    return [f"cycles={latency * first:.4g}", f"power={power * second:.4g}W"]


def best(points: Sequence[EvaluatedPoint], names: Sequence[Any]) -> list[float] | None:
    """Return the least value of each objective within the limits; None if no point is."""
    within = [point for point in points if point.beyond is None]
    return [min(point.value(name) for point in within) for name in names] if within else None


def case(
    network: Network,
    intrinsic: str,
    limits: Sequence[str],
    options: argparse.Namespace,
    crew: Workers,
) -> dict[str, Any]:
    """Return the least cycles, W and mm2 of each method's trials within the limits, by seed.

    Parameters
    ----------
    network : Network
        A row of the table.
    intrinsic : str
        Name of the space.
    limits : sequence of str
        Limits of cycles and power.
    options : argparse.Namespace
        Options of the command.
    crew : Workers
        Processes.
    """
    best_by_method: dict[str, Any] = {}
    for method in METHODS:
        best_by_method[method] = []
        for seed in range(options.seeds):
            exploration = open_exploration(
                SHARED / SPACES[intrinsic],
                network.suite,
                method=method,
                trials=TRIALS,
                objectives=OBJECTIVES,
                limits=limits,
                layers=options.layers,
                population=POPULATION,
                distinct=method != "nsga2",
                seed=seed,
                results=options.results,
            )
            for step in exploration.run(crew):
                print(f"\r{step.doing} {step.completed}, seed {seed}    ", end="", file=sys.stderr)
            best_by_method[method].append(
                best(exploration.evaluated, exploration.search.objectives)
            )
        print(file=sys.stderr)
    return best_by_method


def markdown(document: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        "# Table II of HASCO: methods under limits",
        "",
        (
            f"The least latency (cycles), power (mW) and area (mm2) of {TRIALS} trials within the "
            "limits, medians over the seeds that have one (-: none has); beside them the paper's, "
            "of another model, in 1e8 cycles, mW and 1e7 um2."
        ),
        "",
        *provenance_lines(document, "costs estimated by the neutral model"),
        "",
        (
            "| network, limits | intrinsic | | random | nsga2 | gp | random over gp "
            "| paper: random | NSGA-II | MOBO | random over MOBO |"
        ),
        "|" + " --- |" * 3 + " ---: |" * 8,
    ]
    for name, entry in document["cases"].items():
        network, _, intrinsic = name.partition(" ")
        paper = NETWORKS[network].paper[intrinsic]
        for place, (quantity, scale) in enumerate((("latency", 1), ("power", 1e3), ("area", 1))):
            values = [
                statistics.median(row[place] * scale for row in rows)
                if (rows := [row for row in entry["methods"][method] if row])
                else math.nan
                for method in METHODS
            ]
            published = paper[place]
            cells = ["-" if math.isnan(v) else f"{v:,.4g}" for v in (*values, *published)]
            ratio = values[0] / values[-1]
            ratio_text = "-" if math.isnan(ratio) else f"{ratio:.3f}x"
            limits = ", ".join(entry["limits"]) if not place else ""
            lines.append(
                f"| {network if not place else ''} {limits} | {intrinsic} | {quantity} "
                f"| {' | '.join(cells[:3])} | {ratio_text} "
                f"| {' | '.join(cells[3:])} | {published[0] / published[-1]:.3f}x |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the command."""
    parser = results_parser(__doc__, FOLDER)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--intrinsics", nargs="+", choices=SPACES, default=list(SPACES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", help="only these of each network, for a quick look")
    parser.add_argument("--workers", type=int, default=1)
    default = Path(tempfile.gettempdir()) / "cpembed_hasco"
    parser.add_argument("--results", type=Path, default=default)
    options = parser.parse_args()
    stored = (options.output / "results.json").exists()
    cases = load_document(options.output)["cases"] if stored else {}
    with open_workers(options.workers, compiles=False) as crew:
        for name in options.networks:
            network = NETWORKS[name]
            limits = limits_of(network, options.layers, crew, options.results)
            for intrinsic in options.intrinsics:
                if f"{name} {intrinsic}" in cases:
                    continue
                methods = case(network, intrinsic, limits, options, crew)
                cases[f"{name} {intrinsic}"] = {"limits": limits, "methods": methods}
                document = {"cases": cases, **provenance()}
                write_results(options.output, document, markdown(document))


if __name__ == "__main__":
    main()
