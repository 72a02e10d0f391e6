"""Search effort of the scalar model by axis order and channel count, with and without a portfolio
and a domain bound: figure 8 of Rieber et al. 2021.

    python experiments/search_effort/run.py            # measure, then write the tables and the plot
    python experiments/search_effort/run.py --replot   # the plot alone, from results.json

Writes ``results.md``, ``results.json`` and, where matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is compared. The exit code is 1 where
AB grows with the channels, or a strict search takes too long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from figure import plot
from tables import checks, markdown

from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.constraints import DomainBound
from cpembed.embedding.cpsat import (
    SearchControl,
    SearchLimits,
    SearchStatistics,
    StopSignal,
    enumerate_solutions,
)
from cpembed.embedding.model_builder import Ids
from cpembed.embedding.portfolio import (
    DecisionOrder,
    axis_orders,
    post,
    solve_portfolio,
    workload_order,
)
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.search import find_embeddings
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.runtime.measurement.environment import provenance

HERE = Path(__file__).resolve().parent
TARGET = "vta_1x16x16"
LAYOUTS = {"HWNC": "pqnkrsc", "NCHW": "nkpqcrs", "NHWC": "npqkrsc"}
"""Order of the workload's axes and of its operands' dimensions."""
EXPRESSIONS = {
    "HWNC": "O[p,q,n,k] += I[p+r,q+s,n,c] * W[r,s,c,k]",
    "NCHW": "O[n,k,p,q] += I[n,c,p+r,q+s] * W[k,c,r,s]",
    "NHWC": "O[n,p,q,k] += I[n,p+r,q+s,c] * W[r,s,c,k]",
}
CHANNELS = (16, 32, 64, 128, 256, 512)
SIZES = {"n": 1, "p": 28, "q": 28, "r": 3, "s": 3}
STRATEGIES = ("plain", "A", "B", "AB")
SECONDS = 600.0
"""Limit of one search."""
REPEATS = 3
FIRST_WORK = 0.01
"""Deterministic time of the first round of the assets, which grows fourfold."""


@dataclass(frozen=True)
class Found:
    """A search: ``nodes`` of the asset with the answer, None where a limit came first, and of all
    assets; ``refused`` are the assignments that the check of memory accesses rejected.
    """

    winner: str | None
    nodes: int
    conflicts: int
    nodes_all: int
    refused: int = 0


def conv2d(layout: str, channels: int) -> Computation:
    sizes = {**SIZES, "k": channels, "c": channels}
    dtypes = {"I": "int8", "W": "int8", "O": "int32"}
    found = parse_computation(EXPRESSIONS[layout], sizes, name="conv2d", dtypes=dtypes)
    axes = {axis.name: axis for axis in found.axes}
    return replace(found, axes=tuple(axes[name] for name in LAYOUTS[layout]))


def problem_of(layout: str, channels: int) -> EmbeddingProblem:
    found = pair_operands(conv2d(layout, channels), load_hardware_spec(TARGET).instruction)
    assert isinstance(found, EmbeddingProblem)
    return found


def bounded(constraints: ConstraintSet) -> ConstraintSet:
    return replace(constraints, constraints=(*constraints.constraints, DomainBound()))


def posted_strictly(problem: EmbeddingProblem, strategy: str) -> Found:
    """All solutions, every constraint posted."""
    constraints = load_constraint_set("strict")
    chosen = bounded(constraints) if "B" in strategy else constraints
    assets = axis_orders(problem, chosen) if "A" in strategy else [workload_order(problem)]
    limits = SearchLimits(seconds=SECONDS)
    effort = solve_portfolio(problem, chosen, limits, assets, presolve=False).effort
    won = [a.statistics for a in effort.orders if a.name == effort.winner]
    spent = won[0] if won else effort.total
    return Found(effort.winner, spent.branches, spent.conflicts, effort.total.branches)


def checked_late(problem: EmbeddingProblem, strategy: str) -> Found:
    """The first solution, memory accesses and padding checked on whole assignments.

    Of several assets, in rounds, that with the least deterministic time counts: the first to end
    where each has a core.
    """
    posted = load_constraint_set(str(HERE / "posted.toml"))
    names = {constraint.name for constraint in posted.constraints}
    late = load_constraint_set("strict").removing(*names)
    if "B" in strategy:
        posted = bounded(posted)
    if "A" not in strategy:
        own = workload_order(problem)
        spent, refused, accepted = first_accepted(problem, posted, late, own, None)
        winner = own.name if accepted else None
        return Found(winner, spent.branches, spent.conflicts, spent.branches, refused)
    total, work = 0, FIRST_WORK
    while True:
        runs = [
            (asset.name, *first_accepted(problem, posted, late, asset, work))
            for asset in axis_orders(problem, posted)
        ]
        total += sum(spent.branches for _, spent, _, _ in runs)
        answers = [(spent.work, name, spent, refused) for name, spent, refused, ok in runs if ok]
        if answers:
            _, name, spent, refused = min(answers, key=lambda answer: answer[:2])
            return Found(name, spent.branches, spent.conflicts, total, refused)
        work *= 4


def first_accepted(
    problem: EmbeddingProblem,
    posted: ConstraintSet,
    late: ConstraintSet,
    asset: DecisionOrder,
    work: float | None,
) -> tuple[SearchStatistics, int, bool]:
    """Search in the asset's order until every late constraint accepts an assignment: the effort,
    how many were refused, and whether one was accepted.
    """
    model = post(problem, posted)
    model.axis_order = asset.axes
    refused, accepted = 0, False
    stop = StopSignal()

    def receive(values: Ids) -> None:
        nonlocal refused, accepted
        node_map = model.node_map(values)
        if accepted or all(c.holds(problem, node_map) for c in late.constraints):
            accepted = True
            stop.stop()
        else:
            refused += 1

    control = SearchControl(presolve=False, work=work, stop=stop)
    limits = SearchLimits(seconds=SECONDS)
    _, _, spent = enumerate_solutions(model.build(), receive, limits, control)
    return spent, refused, accepted


FORMULATIONS = {"late": checked_late, "strict": posted_strictly}


def measure() -> Iterable[dict[str, Any]]:
    posted_strictly(problem_of("NCHW", 16), "plain")  # loading the solver is not in the figures
    for formulation, search in FORMULATIONS.items():
        for layout in LAYOUTS:
            for strategy in STRATEGIES:
                for channels in CHANNELS:
                    walls: list[float] = []
                    while len(walls) < REPEATS and sum(walls) < 1:
                        started = time.perf_counter()
                        found = search(problem_of(layout, channels), strategy)
                        walls.append(time.perf_counter() - started)
                    yield {
                        "formulation": formulation,
                        "layout": layout,
                        "strategy": strategy,
                        "channels": channels,
                        **vars(found),
                        "wall_ms": round(statistics.median(walls) * 1e3, 2),
                    }


def measure_default() -> Iterable[dict[str, Any]]:
    """What ``solve`` does under the strict set: the digit model, with presolve."""
    strict, instruction = load_constraint_set("strict"), load_hardware_spec(TARGET).instruction
    for layout in LAYOUTS:
        for channels in CHANNELS:
            walls: list[float] = []
            for _ in range(REPEATS):
                started = time.perf_counter()
                found = find_embeddings(conv2d(layout, channels), instruction, strict)
                walls.append(time.perf_counter() - started)
                assert found.complete
            wall = round(statistics.median(walls) * 1e3, 2)
            yield {"layout": layout, "channels": channels, "wall_ms": wall}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE, help="folder of the results")
    parser.add_argument("--replot", action="store_true", help="only draw results.json again")
    asked = parser.parse_args()
    folder: Path = asked.output
    if asked.replot:
        stored = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        return 0 if plot(stored["rows"], folder) else 1
    rows: list[dict[str, Any]] = []
    for row in measure():
        rows.append(row)
        print(json.dumps(row), file=sys.stderr)
    document: dict[str, Any] = {
        "target": TARGET,
        "sizes": SIZES,
        "rows": rows,
        "solve": list(measure_default()),
        **provenance(),
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    head = json.dumps({k: v for k, v in document.items() if k != "rows"}, indent=1)
    text = f'{head.removesuffix(chr(10) + "}")},\n "rows": [\n  {lines}\n ]\n}}\n'
    (folder / "results.json").write_text(text, encoding="utf-8")
    (folder / "results.md").write_text(markdown(document), encoding="utf-8")
    plot(rows, folder)
    print(markdown(document), end="")
    return 0 if all(check.holds for check in checks(document)) else 1


if __name__ == "__main__":
    sys.exit(main())
