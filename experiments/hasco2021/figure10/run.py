"""Hypervolume over trials of several methods, beside the true front: HASCO's figure 10.

    python -m experiments.hasco2021.figure10.run --workers 2

All points of ``gemm_432.toml`` are evaluated for ResNet-50 (latency, power and area, as in the
paper), and the front that bounds prove is compared with theirs. Then each method makes 40 trials
from each of ten seeds; costs are looked up. Writes ``results.json``, ``results.md`` and, if
matplotlib is installed, ``results.svg`` into ``--output``, by default beside this file. Needs the
extra explore-gp; without torch, gp is left out. What is computed is kept in ``--results``.

nsga2 is there twice: its population breeds points that were evaluated before. In the paper these
are trials like any other; by default ``cpembed explore`` counts distinct points only, for every
method, which makes nsga2 better than the paper's.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Threads of the packages that gp uses disturb each other; read when they are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from cpembed.exploration.explore import Exploration, open_exploration
from cpembed.exploration.objectives import EvaluatedPoint, Vector, front, hypervolume, worst
from cpembed.exploration.options import ExploreOptions, Method
from cpembed.exploration.sampled import SampledSearch
from cpembed.exploration.space import Place
from cpembed.runtime.cluster import open_workers
from cpembed.runtime.cluster.executors import ThisProcess
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from experiments.common import load_document, pyplot, results_parser, save_figure, write_results

FOLDER = Path(__file__).resolve().parent
SPACE = FOLDER.parent / "gemm_432.toml"
OBJECTIVES = ("time", "power", "area")
TRIALS, SEEDS, POPULATION = 40, 10, 5


@dataclass(frozen=True)
class Contestant:
    """A method; without ``distinct``, a point that is proposed a second time is a trial too."""

    name: str
    method: Method
    distinct: bool = True


CONTESTANTS = (
    Contestant("gp", "gp"),
    Contestant("nsga2", "nsga2"),
    Contestant("nsga2, repeats count", "nsga2", distinct=False),
    Contestant("tpe", "tpe"),
    Contestant("random", "random"),
)

PAPER = {"ratio": 1.19, "fewer": 2.5, "surpassed_at": 16}
"""MOBO's hypervolume over NSGA-II's; NSGA-II's trials over those that MOBO needs for the same
result; the trial after which MOBO is above the others' final results."""


def evaluate(
    space: Path, workers: int, results: Path, layers: str | None, *, bounds: bool
) -> Exploration:
    """Evaluate all points of a space, or those that bounds do not discard.

    Parameters
    ----------
    space : Path
        File of the space.
    workers : int
        Number of processes.
    results : Path
        Folder that keeps what is computed.
    layers : str or None
        Layers of ResNet-50; None for all.
    bounds : bool
        True to discard points by their layers' lower bounds.
    """
    exploration = open_exploration(
        space, "resnet50", objectives=OBJECTIVES, layers=layers, bounds=bounds, results=results
    )
    with open_workers(workers, compiles=False) as crew:
        for step in exploration.run(crew):
            print(
                f"\r{space.stem}: {step.doing} {step.completed}/{step.total}    ",
                end="",
                file=sys.stderr,
            )
    print(file=sys.stderr)
    return exploration


def trials(
    exploration: Exploration,
    contestant: Contestant,
    seed: int,
    evaluated: Mapping[Place, EvaluatedPoint],
    count: int,
) -> SampledSearch:
    """Run a method's trials on points that are evaluated.

    Parameters
    ----------
    exploration : Exploration
        The space, its objectives and limits.
    contestant : Contestant
        The method.
    seed : int
        Seed of the method.
    evaluated : mapping
        All points of the space, with their costs.
    count : int
        Number of trials.
    """
    search = SampledSearch(
        exploration.space,
        exploration.costing,
        exploration.search.objectives,
        exploration.search.limits,
        ExploreOptions(
            method=contestant.method,
            trials=count,
            seed=seed,
            population=POPULATION,
            distinct=contestant.distinct,
        ),
        earlier=evaluated,
    )
    for _ in search.run(ThisProcess()):
        pass
    return search


def references(vectors: Sequence[Vector]) -> dict[str, Vector]:
    """Return the points that bound the hypervolumes.

    A method's share of the true front's hypervolume depends on nothing else: neither on units nor
    on the other end of a scale.
    """
    true = [vectors[n] for n in front(vectors)]
    return {
        "largest of all points": worst(vectors),
        "largest of the front": tuple(value * (1 + 1e-9) for value in worst(true)),
    }


def curve(vectors: Sequence[Vector | None], reference: Vector, true: float) -> list[float]:
    """Return the share of the true hypervolume after each trial."""
    return [
        hypervolume([v for v in vectors[:n] if v is not None], reference) / true
        for n in range(1, len(vectors) + 1)
    ]


def quartiles(values: Sequence[float]) -> list[float]:
    """Return the quartiles of values."""
    return [float(v) for v in statistics.quantiles(values, n=4, method="inclusive")]


def reached(curves: Sequence[Sequence[float]], share: float) -> int | None:
    """Return the first trial after which the median is at least a share."""
    medians = [statistics.median(values) for values in zip(*curves, strict=True)]
    return next((n for n, value in enumerate(medians, 1) if value >= share), None)


def compare(
    exploration: Exploration, contestants: Sequence[Contestant], seeds: int
) -> dict[str, Any]:
    """Run all methods from all seeds; return their shares by reference point.

    Parameters
    ----------
    exploration : Exploration
        Exploration in which every point is evaluated already.
    contestants : sequence of Contestant
        Methods, with their settings.
    seeds : int
        Number of seeds of each method.
    """
    evaluated = {point.place: point for point in exploration.evaluated}
    vectors = [point.vector(exploration.search.objectives) for point in exploration.evaluated]
    bounds = references(vectors)
    true = {name: hypervolume(vectors, reference) for name, reference in bounds.items()}
    methods: dict[str, Any] = {}
    for contestant in contestants:
        started = time.perf_counter()
        runs: list[list[Vector | None]] = []
        proposed = 0
        for seed in range(seeds):
            search = trials(exploration, contestant, seed, evaluated, TRIALS)
            proposed += search.repeats
            objectives = search.objectives
            runs.append([t.point and t.point.vector(objectives) for t in search.trials])
            print(f"\r{contestant.name}: seed {seed}    ", end="", file=sys.stderr)
        print(file=sys.stderr)
        curves = {
            name: [curve(run, reference, true[name]) for run in runs]
            for name, reference in bounds.items()
        }
        methods[contestant.name] = {
            "shares": {
                name: {"final": quartiles([c[-1] for c in runs]), "curves": rounded(runs)}
                for name, runs in curves.items()
            },
            "repeated_proposals": proposed,
            "seconds": round(time.perf_counter() - started, 1),
        }
    return {"true_hypervolume": true, "references": bounds, "methods": methods}


def rounded(curves: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return curves with five significant digits."""
    return [[float(f"{value:.5g}") for value in values] for values in curves]


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """Return the paper's ratios, for each reference point."""
    methods = document["methods"]
    ratios: dict[str, Any] = {}
    for name in document["references"]:
        shares_by_method = {method: entry["shares"][name] for method, entry in methods.items()}
        finals = {method: shares["final"][1] for method, shares in shares_by_method.items()}
        if "gp" not in shares_by_method:
            continue
        ratios[name] = {
            rival: {
                "ratio": finals["gp"] / finals[rival],
                "gp_reaches_it_at": reached(shares_by_method["gp"]["curves"], finals[rival]),
            }
            for rival in shares_by_method
            if rival != "gp"
        }
    return ratios


def markdown(document: dict[str, Any]) -> str:
    """Return the tables."""
    lines = [
        "# Figure 10 of HASCO: hypervolume over trials",
        "",
        (
            f"{document['points']} points, ResNet-50 ({document['layers']} convolutions), latency, "
            f"power, area; {TRIALS} trials, {document['seeds']} seeds; medians, with quartiles in "
            f"brackets. The front has {document['front']} points. By bounds: "
            f"{document['by_bounds']}."
        ),
        "",
        *provenance_lines(document, "costs estimated by the neutral model"),
        "",
    ]
    for name, reference in document["references"].items():
        coordinates = ", ".join(f"{o} {v:.4g}" for o, v in zip(OBJECTIVES, reference, strict=True))
        lines += [
            f"Reference point: {name} ({coordinates}; us, W, mm2).",
            "",
            (
                "| method | share of the true hypervolume | at trial 10 | at 20 | gp over it | "
                "gp reaches its result at trial | proposals repeated, all runs |"
            ),
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for method, entry in document["methods"].items():
            shares = entry["shares"][name]
            low, middle, high = shares["final"]
            at = [statistics.median(c[n - 1] for c in shares["curves"]) for n in (10, 20)]
            comparison = document["summary"].get(name, {}).get(method)
            cells = ("-", "-")
            if comparison is not None:
                cells = (f"{comparison['ratio']:.3f}x", f"{comparison['gp_reaches_it_at']}")
            lines.append(
                f"| {method} | {middle:.3f} ({low:.3f} to {high:.3f}) "
                f"| {at[0]:.3f} | {at[1]:.3f} | {cells[0]} | {cells[1]} "
                f"| {entry['repeated_proposals']} |"
            )
        lines.append("")
    lines += [
        (
            f"The paper: MOBO's hypervolume is {PAPER['ratio']}x NSGA-II's, whose result it "
            f"reaches in {PAPER['fewer']}x fewer trials; after trial {PAPER['surpassed_at']} it is "
            "above both others' results. It says neither the reference point nor how many runs."
        ),
        "",
    ]
    return "\n".join(lines)


def plot(document: dict[str, Any], path: Path) -> None:
    """Draw medians and quartiles over trials."""
    plt = pyplot()
    if plt is None:
        return
    names = list(document["references"])
    figure, panels = plt.subplots(
        1, len(names), figsize=(5 * len(names), 3.6), layout="constrained"
    )
    for axes, name in zip(panels, names, strict=True):
        for method, entry in document["methods"].items():
            columns = list(zip(*entry["shares"][name]["curves"], strict=True))
            places = range(1, len(columns) + 1)
            low, middle, high = zip(*(quartiles(c) for c in columns), strict=True)
            (line,) = axes.plot(places, middle, label=method)
            axes.fill_between(places, low, high, color=line.get_color(), alpha=0.15)
        axes.set_title(f"reference: {name}", fontsize=9)
        axes.set_xlabel("trial")
        axes.set_ylabel("share of the true hypervolume")
        axes.legend(fontsize=7, frameon=False)
    save_figure(figure, path)


def main() -> None:
    """Run the command."""
    parser = results_parser(__doc__, FOLDER)
    parser.add_argument("--workers", type=int, default=1)
    default = Path(tempfile.gettempdir()) / "cpembed_hasco"
    parser.add_argument("--results", type=Path, default=default)
    parser.add_argument("--layers", help="only these of ResNet-50, for a quick look")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rewrite", action="store_true", help="from results.json")
    options = parser.parse_args()
    if options.rewrite:
        document = load_document(options.output)
    else:
        shared = (SPACE, options.workers, options.results, options.layers)
        exploration = evaluate(*shared, bounds=False)
        proven = evaluate(*shared, bounds=True)
        front_of_all = [
            (p.number, exploration.result().vector(p)) for p in exploration.result().front
        ]
        proven_front = [(p.number, proven.result().vector(p)) for p in proven.result().front]
        assert front_of_all == proven_front, "the proven front differs from that of all points"
        torch = find_spec("torch") is not None and find_spec("scipy") is not None
        contestants = [c for c in CONTESTANTS if c.method != "gp" or torch]
        document = {
            "points": len(exploration.evaluated),
            "layers": len(exploration.costing.layers),
            "seeds": options.seeds,
            "front": len(front_of_all),
            "by_bounds": f"{len(proven.evaluated)} evaluated, the same front",
            **compare(exploration, contestants, options.seeds),
            **provenance(),
        }
    page = markdown({**document, "summary": summary(document)})
    write_results(options.output, document, page)
    plot(document, options.output / "results.svg")


if __name__ == "__main__":
    main()
