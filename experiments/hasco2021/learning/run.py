"""Q-learning, after FlexTensor, against the tuner, with equal numbers of simulated programs.

    python -m experiments.hasco2021.learning.run --trials 256       # 26 minutes
    python -m experiments.hasco2021.learning.run 7 --trials 256     # a layer of ResNet-50

All choose among the same eight embeddings on VTA's default configuration. The tuner begins with
what estimates choose; Q-learning does so too, or begins with random points, as FlexTensor does.
Random directions are the control: they begin with the estimates and go on from the same
distribution of points, without a network. Each is run with several seeds. Writes ``results.json``,
``results.md`` and, if matplotlib is installed, ``results.svg`` into ``--output``.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.runtime.tuning.session import Search
from cpembed.runtime.tuning.space import Design, distinct
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.target import VtaTarget, VtaTuner
from cpembed.targets.vta.timing import time_program
from cpembed.targets.vta.tuning import Nest, VtaSpace
from cpembed.workloads.suites import layer
from experiments.common import Experiment, Row, bars, described, geometric_mean
from experiments.hasco2021.codesign import default_spec, workload_of
from experiments.hasco2021.learning.qlearning import (
    ALWAYS,
    DECAYING,
    Learner,
    estimated_beginnings,
    random_beginnings,
)

LAYERS = ("0", "2", "7", "11", "15", "17")
EMBEDDINGS, SEEDS = 8, 3
AFTER = (16, 64, 256)
"""Numbers of programs after which the best is stored."""
METHODS = {
    "tuner": "the tuner",
    "learning": "Q-learning from estimates",
    "random": "Q-learning from random points",
    "control": "random directions from estimates",
}


class Simulator:
    """Cycles of programs; each is simulated once for all runs."""

    def __init__(self) -> None:
        self._cycles: dict[tuple[int, str], int | None] = {}

    def cycles(self, nest: Nest, schedule: Schedule) -> int | None:
        key = id(nest), repr(schedule)
        if key not in self._cycles:
            try:
                image = nest.lowered(schedule).empty_image()
                cycles = time_program(image, nest.machine.memory, checked=False).cycles
            except LoweringError:
                cycles = None
            self._cycles[key] = cycles
        return self._cycles[key]


def compute(key: str, trials: int) -> Row:
    """Run all searches of a layer of ResNet-50."""
    workload, target = workload_of(layer("resnet50", int(key))), VtaTarget(default_spec())
    ranked = solve(workload, target.spec, constraints="complete", top=64).embeddings
    lowered = [(item, target.lower(item.candidate.program)) for item in ranked]
    designs = distinct(Design(item, nest, VtaSpace(nest)) for item, nest in lowered)
    designs = sorted(designs, key=lambda d: d.space.best().cost)[:EMBEDDINGS]
    simulator = Simulator()
    nests: list[Nest] = [design.lowered for design in designs]
    estimated = estimated_beginnings(nests)
    runs_by_method: dict[str, list[list[int]]] = {name: [] for name in METHODS}
    for seed in range(SEEDS):
        runs_by_method["tuner"].append(_tuner(designs, simulator, seed, trials))
        for name, begin, exploring in (
            ("learning", estimated, DECAYING),
            ("random", random_beginnings(nests, seed), DECAYING),
            ("control", estimated, ALWAYS),
        ):
            learner = Learner(nests, simulator.cycles, seed, exploring)
            runs_by_method[name].append(learner.run(trials, begin))
    return {
        "layer": layer("resnet50", int(key)).label,
        "trials": trials,
        "embeddings": len(nests),
        "bound": min(int(design.space.lower_bound) for design in designs),
        **{name: [_after(run, trials) for run in runs] for name, runs in runs_by_method.items()},
    }


def _after(run: list[int], trials: int) -> dict[str, int]:
    """Return the best after so many programs, by their number."""
    assert len(run) == trials, f"{len(run)} programs of {trials}: the others had more"
    return {str(n): run[n - 1] for n in AFTER if n <= trials}


def _tuner(
    designs: list[Design[Schedule]], simulator: Simulator, seed: int, trials: int
) -> list[int]:
    search = Search(designs, designs[0].space.best().schedule, seed, VtaTuner.spread)
    best: list[int] = []
    # What has no program is no trial.
    for proposal in search.proposals(2 * trials):
        cycles = simulator.cycles(proposal.design.lowered, proposal.schedule)
        search.tell(proposal, cycles)
        if cycles is not None:
            best.append(min([cycles, *best[-1:]]))
        if len(best) == trials:
            break
    return best


def medians(row: Row, method: str) -> dict[int, float]:
    """Return the medians over the seeds, by numbers of programs."""
    numbers = [int(n) for n in row[method][0]]
    return {n: statistics.median(run[str(n)] for run in row[method]) for n in numbers}


def markdown(rows: list[Row]) -> list[str]:
    """Return the tables."""
    numbers = [n for n in AFTER if all(n <= row["trials"] for row in rows)]
    lines = [
        "# Q-learning and the tuner",
        "",
        f"Fewest simulated cycles after so many programs, the median of {SEEDS} seeds (in brackets",
        "the least and the largest); *bound* is the least of the embeddings' bounds.",
        "",
        f"| layer | bound | search | {' | '.join(f'{n} programs' for n in numbers)} |",
        "| ---: | ---: | --- |" + " ---: |" * len(numbers),
    ]
    for row in rows:
        for method, title in METHODS.items():
            cells = " | ".join(_cell(row, method, n) for n in numbers)
            lines.append(f"| {row['key']} | {row['bound']:,} | {title} | {cells} |")
    lines += ["", *(_over_tuner(rows, n) for n in numbers)]
    return lines


def _over_tuner(rows: list[Row], number: int) -> str:
    means = {
        name: geometric_mean(
            medians(row, name)[number] / medians(row, "tuner")[number] for row in rows
        )
        for name in METHODS
        if name != "tuner"
    }
    ratios = ", ".join(f"{METHODS[name]} {mean:.4f}" for name, mean in means.items())
    return f"- {number} programs, cycles over the tuner's, geometric mean: {ratios}"


def _cell(row: Row, method: str, number: int) -> str:
    values = [run[str(number)] for run in row[method]]
    return f"{statistics.median(values):,.0f} ({min(values):,} to {max(values):,})"


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the bound over cycles."""
    if not rows:
        return False
    numbers = [n for n in AFTER if all(n <= row["trials"] for row in rows)]
    series = {
        f"{title}, {n}": [row["bound"] / medians(row, method)[n] for row in rows]
        for method, title in METHODS.items()
        for n in numbers
    }
    title = "bound over cycles, layers of ResNet-50 on VTA 1x16x16 (simulated)"
    return bars([row["key"] for row in rows], series, folder / "results.svg", title=title)


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=LAYERS,
    compute=compute,
    markdown=markdown,
    plot=plot,
    trial_unit="simulated programs of a search",
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
