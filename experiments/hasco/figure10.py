"""HASCO's figure 10: hypervolume over trials of several methods, beside the true front.

    python experiments/hasco/figure10.py --workers 2

All points of ``gemm_432.toml`` are evaluated for ResNet-50 (latency, power and area, as in the
paper), and the front that bounds prove is compared with theirs. Then each method makes 40 trials
from each of ten seeds; costs are looked up. Writes ``figure10.json``, ``figure10.md`` and, where
matplotlib is installed, ``figure10.svg`` into ``--output``, by default beside this file. Needs the
extra explore-gp; without torch, gp is left out. What is computed is kept in ``--results``.

nsga2 is there twice: its population breeds points that were evaluated before. In the paper these
are trials like any other; by default ``cpembed explore`` counts distinct points only, for every
method, which makes nsga2 better than the paper's.
"""

from __future__ import annotations

import argparse
import json
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

from cpembed.exploration.costing import Method
from cpembed.exploration.explore import Exploration, open_exploration
from cpembed.exploration.points import EvaluatedPoint, Vector, front, hypervolume, worst
from cpembed.exploration.sampled import SampledSearch, SamplingOptions
from cpembed.exploration.space import Place
from cpembed.runtime.cluster import open_workers
from cpembed.runtime.cluster.executors import ThisProcess
from cpembed.runtime.measurement.environment import provenance, provenance_lines

HERE = Path(__file__).resolve().parent
OBJECTIVES = ("time", "power", "area")
TRIALS, SEEDS, POPULATION = 40, 10, 5


@dataclass(frozen=True)
class Contestant:
    """``distinct`` False: what is proposed a second time is a trial too."""

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
"""MOBO's hypervolume over NSGA-II's; NSGA-II's trials over those that MOBO needs for the same; the
trial after which MOBO is above the others' final results."""


def evaluate(
    space: Path, workers: int, results: Path, layers: str | None, *, bounds: bool
) -> Exploration:
    exploration = open_exploration(
        space, "resnet50", objectives=OBJECTIVES, layers=layers, bounds=bounds, results=results
    )
    with open_workers(workers, compiles=False) as crew:
        for step in exploration.run(crew):
            print(
                f"\r{space.stem}: {step.doing} {step.done}/{step.total}    ",
                end="",
                file=sys.stderr,
            )
    print(file=sys.stderr)
    return exploration


def trials(
    whole: Exploration,
    one: Contestant,
    seed: int,
    known: Mapping[Place, EvaluatedPoint],
    count: int,
) -> SampledSearch:
    """A method's trials on points that are evaluated."""
    search = SampledSearch(
        whole.space,
        whole.costing,
        whole.search.objectives,
        whole.search.limits,
        SamplingOptions(
            method=one.method,
            trials=count,
            seed=seed,
            population=POPULATION,
            distinct=one.distinct,
        ),
        earlier=known,
    )
    for _ in search.run(ThisProcess()):
        pass
    return search


def references(vectors: Sequence[Vector]) -> dict[str, Vector]:
    """Points that bound the hypervolumes. What share of the true front's a method reaches depends
    on nothing else: neither on units nor on the other end of a scale.
    """
    true = [vectors[n] for n in front(vectors)]
    return {
        "largest of all points": worst(vectors),
        "largest of the front": tuple(value * (1 + 1e-9) for value in worst(true)),
    }


def curve(vectors: Sequence[Vector | None], reference: Vector, true: float) -> list[float]:
    """Share of the true hypervolume after each trial."""
    return [
        hypervolume([v for v in vectors[:n] if v is not None], reference) / true
        for n in range(1, len(vectors) + 1)
    ]


def quartiles(values: Sequence[float]) -> list[float]:
    return [float(v) for v in statistics.quantiles(values, n=4, method="inclusive")]


def reached(curves: Sequence[Sequence[float]], share: float) -> int | None:
    """The first trial after which the median is at least a share."""
    medians = [statistics.median(values) for values in zip(*curves, strict=True)]
    return next((n for n, value in enumerate(medians, 1) if value >= share), None)


def compare(whole: Exploration, contestants: Sequence[Contestant], seeds: int) -> dict[str, Any]:
    known = {point.place: point for point in whole.evaluated}
    vectors = [point.vector(whole.search.objectives) for point in whole.evaluated]
    bounds = references(vectors)
    true = {name: hypervolume(vectors, reference) for name, reference in bounds.items()}
    found: dict[str, Any] = {}
    for one in contestants:
        started = time.perf_counter()
        runs: list[list[Vector | None]] = []
        proposed = 0
        for seed in range(seeds):
            search = trials(whole, one, seed, known, TRIALS)
            proposed += search.repeats
            objectives = search.objectives
            runs.append([t.point and t.point.vector(objectives) for t in search.trials])
            print(f"\r{one.name}: seed {seed}    ", end="", file=sys.stderr)
        print(file=sys.stderr)
        curves = {
            name: [curve(run, reference, true[name]) for run in runs]
            for name, reference in bounds.items()
        }
        found[one.name] = {
            "shares": {
                name: {"final": quartiles([c[-1] for c in own]), "curves": rounded(own)}
                for name, own in curves.items()
            },
            "repeated_proposals": proposed,
            "seconds": round(time.perf_counter() - started, 1),
        }
    return {"true_hypervolume": true, "references": bounds, "methods": found}


def rounded(curves: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[float(f"{value:.5g}") for value in one] for one in curves]


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """What the paper states, for each reference."""
    methods = document["methods"]
    found: dict[str, Any] = {}
    for name in document["references"]:
        own = {method: entry["shares"][name] for method, entry in methods.items()}
        finals = {method: shares["final"][1] for method, shares in own.items()}
        if "gp" not in own:
            continue
        found[name] = {
            other: {
                "ratio": finals["gp"] / finals[other],
                "gp_reaches_it_at": reached(own["gp"]["curves"], finals[other]),
            }
            for other in own
            if other != "gp"
        }
    return found


def markdown(document: dict[str, Any]) -> str:
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
        said = ", ".join(f"{o} {v:.4g}" for o, v in zip(OBJECTIVES, reference, strict=True))
        lines += [
            f"Reference point: {name} ({said}; us, W, mm2).",
            "",
            (
                "| method | share of the true hypervolume | at trial 10 | at 20 | gp over it | "
                "gp reaches its result at trial | proposals repeated, all runs |"
            ),
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for method, entry in document["methods"].items():
            own = entry["shares"][name]
            low, middle, high = own["final"]
            at = [statistics.median(c[n - 1] for c in own["curves"]) for n in (10, 20)]
            beside = document["summary"].get(name, {}).get(method)
            cells = ("-", "-")
            if beside is not None:
                cells = (f"{beside['ratio']:.3f}x", f"{beside['gp_reaches_it_at']}")
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
    if find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (extra: bench)", file=sys.stderr)
        return
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "cpembed", "svg.fonttype": "none"}):
        names = list(document["references"])
        figure = Figure(figsize=(5 * len(names), 3.6), layout="constrained")
        for part, name in enumerate(names):
            axes = figure.add_subplot(1, len(names), part + 1)
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
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--output", type=Path, default=HERE)
    default = Path(tempfile.gettempdir()) / "cpembed_hasco"
    parser.add_argument("--results", type=Path, default=default)
    parser.add_argument("--layers", help="only these of ResNet-50, for a quick look")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rewrite", action="store_true", help="from figure10.json")
    given = parser.parse_args()
    path = given.output / "figure10.json"
    if given.rewrite:
        document = json.loads(path.read_text())
    else:
        space = HERE / "gemm_432.toml"
        shared = (space, given.workers, given.results, given.layers)
        whole = evaluate(*shared, bounds=False)
        proven = evaluate(*shared, bounds=True)
        expected = [(p.number, whole.result().vector(p)) for p in whole.result().front]
        found = [(p.number, proven.result().vector(p)) for p in proven.result().front]
        assert expected == found, "the proven front differs from that of all points"
        torch = find_spec("torch") is not None and find_spec("scipy") is not None
        contestants = [one for one in CONTESTANTS if one.method != "gp" or torch]
        document = {
            "points": len(whole.evaluated),
            "layers": len(whole.costing.layers),
            "seeds": given.seeds,
            "front": len(expected),
            "by_bounds": f"{len(proven.evaluated)} evaluated, the same front",
            **compare(whole, contestants, given.seeds),
            **provenance(),
        }
        path.write_text(json.dumps(document, indent=1) + "\n")
    document["summary"] = summary(document)
    (given.output / "figure10.md").write_text(markdown(document))
    plot(document, given.output / "figure10.svg")


if __name__ == "__main__":
    main()
