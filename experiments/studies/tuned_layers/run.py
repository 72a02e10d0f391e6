"""Tuned layers of DeepBench on the simulated VTA, and the cycles that no schedule can beat.

    python -m experiments.studies.tuned_layers.run          # all rows that are missing
    python -m experiments.studies.tuned_layers.run 3 7 11   # these

Writes ``results.json``, ``results.md`` and, if matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.driver.tune import TuneResult, tune
from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from cpembed.workloads.suites import layer
from experiments.common import DEEPBENCH, Experiment, Row, bars, described, geometric_mean

TARGET = "vta_1x16x16"
REQUIRED, WORST = 1.2, 1.5


def compute(key: str, trials: int) -> Row:
    """Tune a layer as ``cpembed tune`` does, then execute the best as ``cpembed run`` does."""
    workload = layer("deepbench", int(key)).workload()
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, {DIRECTORY_VARIABLE: folder}),
    ):
        tuned = tune(workload, TARGET, trials=trials)
        assert isinstance(tuned, TuneResult)
        ran = run(workload, TARGET)
    assert isinstance(ran, RunResult)
    document = ran.to_json()
    assert document["verified"]
    assert document["simulated_cycles"] == tuned.best.cycles
    return {
        "layer": layer("deepbench", int(key)).label,
        "macs": workload.macs,
        "trials": len(tuned.trials),
        "verified": True,
        "embedding": tuned.best.identifier,
        "untuned": tuned.untuned.cycles,
        "untuned_bound": tuned.untuned.lower_bound,
        "tuned": tuned.best.cycles,
        "bound": tuned.best.lower_bound,
        "busiest": tuned.best.busiest_module,
    }


def markdown(rows: list[Row]) -> list[str]:
    """Return the table and the means."""
    lines = [
        "# Tuned layers of DeepBench on the simulated VTA",
        "",
        "Written by `run.py`; README.md says what is counted. Cycles are simulated. *bound*: the",
        "larger of the cycles of the GEMM core and of the transfers, at full overlap; *busiest",
        "module*: with resets and ALU operations, which the compute module executes too.",
        "",
        "| layer | untuned | tuned | over the bound | over the busiest module | busiest / bound |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ratio = row["tuned"] / row["bound"]
        mark = " **above**" if ratio > WORST else ""
        lines.append(
            f"| {row['key']} `{row['layer']}` | {row['untuned']:,} | {row['tuned']:,} "
            f"| {ratio:.3f}{mark} | {row['tuned'] / row['busiest']:.3f} "
            f"| {row['busiest'] / row['bound']:.3f} |"
        )
    lines.append("")
    for name, numerator, denominator in (
        ("untuned over the bound", "untuned", "untuned_bound"),
        ("tuned over the bound", "tuned", "bound"),
        ("tuned over the busiest module", "tuned", "busiest"),
        ("busiest module over the bound", "busiest", "bound"),
        ("tuned over the bound of what runs untuned", "tuned", "untuned_bound"),
        ("untuned over tuned", "untuned", "tuned"),
    ):
        values = [row[numerator] / row[denominator] for row in rows]
        lines.append(
            f"- {name}: geometric mean {geometric_mean(values):.3f}, "
            f"{min(values):.3f} to {max(values):.3f}"
        )
    above = [row["key"] for row in rows if row["tuned"] / row["bound"] > WORST]
    unavoidable = [row["key"] for row in rows if row["busiest"] / row["bound"] > WORST]
    lines.append(
        f"- above {WORST} times the bound: {len(above)} layers; of {len(unavoidable)} the busiest "
        "module alone is."
    )
    return lines


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the cycles over the bounds."""
    title = f"Simulated cycles over the larger of GEMM and transfer cycles ({TARGET})"
    values = {
        "untuned": [row["untuned"] / row["untuned_bound"] for row in rows],
        "tuned": [row["tuned"] / row["bound"] for row in rows],
    }
    return bars([row["key"] for row in rows], values, folder / "results.svg", title=title)


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=DEEPBENCH,
    compute=compute,
    markdown=markdown,
    plot=plot,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
