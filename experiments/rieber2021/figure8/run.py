"""Search effort of the scalar model by axis order and channel count: figure 8.

    python -m experiments.rieber2021.figure8.run            # measure, then write tables and plot
    python -m experiments.rieber2021.figure8.run --replot   # the plot alone, from results.json

With and without a portfolio and a domain bound. Writes ``results.md``, ``results.json`` and, if
matplotlib is installed, ``results.svg`` into ``--output``, by default beside this file; README.md
says what is compared. The exit code is 1 if AB grows with the channels, or a strict search takes
too long.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.constraints import DomainBound
from cpembed.embedding.cpsat import (
    SearchControl,
    SearchLimits,
    SearchStatistics,
    StopSignal,
    enumerate_solutions,
)
from cpembed.embedding.model_writer import Ids
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
from experiments.common import load_document, results_parser, write_results
from experiments.rieber2021.figure8.figure import plot
from experiments.rieber2021.figure8.tables import checks, markdown

FOLDER = Path(__file__).resolve().parent
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
"""Time limit of one search."""
REPEATS = 3
FIRST_WORK = 0.01
"""Deterministic time of the first round of the assets, which grows fourfold."""


@dataclass(frozen=True)
class Effort:
    """The effort of a search.

    ``winner`` is the asset with the answer, None if a limit came first; ``nodes`` and ``conflicts``
    are its own, ``nodes_all`` of all assets; ``refused`` are the assignments that the check of
    memory accesses rejected.
    """

    winner: str | None
    nodes: int
    conflicts: int
    nodes_all: int
    refused: int = 0


def conv2d(layout: str, channels: int) -> Computation:
    """Return the convolution with axes and operands in the order of a layout."""
    sizes = {**SIZES, "k": channels, "c": channels}
    dtypes = {"I": "int8", "W": "int8", "O": "int32"}
    computation = parse_computation(EXPRESSIONS[layout], sizes, name="conv2d", dtypes=dtypes)
    axes = {axis.name: axis for axis in computation.axes}
    return replace(computation, axes=tuple(axes[name] for name in LAYOUTS[layout]))


def problem_of(layout: str, channels: int) -> EmbeddingProblem:
    """Return the embedding problem of a convolution."""
    problem = pair_operands(conv2d(layout, channels), load_hardware_spec(TARGET).instruction)
    assert isinstance(problem, EmbeddingProblem)
    return problem


def bounded(constraints: ConstraintSet) -> ConstraintSet:
    """Return the constraints with the domain bound."""
    return replace(constraints, constraints=(*constraints.constraints, DomainBound()))


def posted_strictly(problem: EmbeddingProblem, strategy: str) -> Effort:
    """Find all solutions, every constraint posted."""
    constraints = load_constraint_set("strict")
    posted = bounded(constraints) if "B" in strategy else constraints
    assets = axis_orders(problem, posted) if "A" in strategy else [workload_order(problem)]
    limits = SearchLimits(seconds=SECONDS)
    effort = solve_portfolio(problem, posted, limits, assets, presolve=False).effort
    won = [a.statistics for a in effort.orders if a.name == effort.winner]
    spent = won[0] if won else effort.total
    return Effort(effort.winner, spent.branches, spent.conflicts, effort.total.branches)


def checked_late(problem: EmbeddingProblem, strategy: str) -> Effort:
    """Find the first solution, memory accesses and padding checked on whole assignments.

    Of several assets, in rounds, that with the least deterministic time counts: the first to end if
    each has a core.
    """
    posted = load_constraint_set(str(FOLDER / "posted.toml"))
    names = {constraint.name for constraint in posted.constraints}
    late = load_constraint_set("strict").removing(*names)
    if "B" in strategy:
        posted = bounded(posted)
    if "A" not in strategy:
        asset = workload_order(problem)
        spent, rejections, accepted = first_accepted(problem, posted, late, asset, None)
        winner = asset.name if accepted else None
        return Effort(winner, spent.branches, spent.conflicts, spent.branches, rejections)
    total, work = 0, FIRST_WORK
    while True:
        runs = [
            (asset.name, *first_accepted(problem, posted, late, asset, work))
            for asset in axis_orders(problem, posted)
        ]
        total += sum(spent.branches for _, spent, _, _ in runs)
        answers = [
            (spent.work, name, spent, rejections)
            for name, spent, rejections, accepted in runs
            if accepted
        ]
        if answers:
            _, name, spent, rejections = min(answers, key=lambda answer: answer[:2])
            return Effort(name, spent.branches, spent.conflicts, total, rejections)
        work *= 4


def first_accepted(
    problem: EmbeddingProblem,
    posted: ConstraintSet,
    late: ConstraintSet,
    asset: DecisionOrder,
    work: float | None,
) -> tuple[SearchStatistics, int, bool]:
    """Search in an asset's order until every late constraint accepts an assignment.

    Returns the effort, the number of rejected assignments, and whether one was accepted.
    """
    model = post(problem, posted)
    model.axis_order = asset.axes
    rejections, accepted = 0, False
    stop = StopSignal()

    def receive(values: Ids) -> None:
        nonlocal rejections, accepted
        node_map = model.node_map(values)
        if accepted or all(c.holds(problem, node_map) for c in late.constraints):
            accepted = True
            stop.stop()
        else:
            rejections += 1

    control = SearchControl(presolve=False, work=work, stop=stop)
    limits = SearchLimits(seconds=SECONDS)
    _, _, spent = enumerate_solutions(model.build(), receive, limits, control)
    return spent, rejections, accepted


FORMULATIONS = {"late": checked_late, "strict": posted_strictly}


def measure() -> Iterable[dict[str, Any]]:
    """Yield a row of each search."""
    posted_strictly(problem_of("NCHW", 16), "plain")  # loading the solver is not in the figures
    for formulation, search in FORMULATIONS.items():
        for layout in LAYOUTS:
            for strategy in STRATEGIES:
                for channels in CHANNELS:
                    walls: list[float] = []
                    while len(walls) < REPEATS and sum(walls) < 1:
                        started = time.perf_counter()
                        search_effort = search(problem_of(layout, channels), strategy)
                        walls.append(time.perf_counter() - started)
                    yield {
                        "formulation": formulation,
                        "layout": layout,
                        "strategy": strategy,
                        "channels": channels,
                        **vars(search_effort),
                        "wall_ms": round(statistics.median(walls) * 1e3, 2),
                    }


def measure_default() -> Iterable[dict[str, Any]]:
    """Yield the times of ``solve`` under the strict set: the digit model, with presolve."""
    strict, instruction = load_constraint_set("strict"), load_hardware_spec(TARGET).instruction
    for layout in LAYOUTS:
        for channels in CHANNELS:
            walls: list[float] = []
            for _ in range(REPEATS):
                started = time.perf_counter()
                search = find_embeddings(conv2d(layout, channels), instruction, strict)
                walls.append(time.perf_counter() - started)
                assert search.complete
            wall = round(statistics.median(walls) * 1e3, 2)
            yield {"layout": layout, "channels": channels, "wall_ms": wall}


def main() -> int:
    """Run the command; return its exit code."""
    parser = results_parser(__doc__, FOLDER)
    parser.add_argument("--replot", action="store_true", help="only draw results.json again")
    options = parser.parse_args()
    folder: Path = options.output
    if options.replot:
        return 0 if plot(load_document(folder)["rows"], folder) else 1
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
    write_results(folder, document, markdown(document))
    plot(rows, folder)
    print(markdown(document), end="")
    return 0 if all(check.holds for check in checks(document)) else 1


if __name__ == "__main__":
    sys.exit(main())
