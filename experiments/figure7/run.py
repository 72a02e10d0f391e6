"""A generated NHWC layout against the hand-written strategy on NCHW, on the layers of DeepBench:
figure 7 of Rieber et al. 2021.

    python experiments/figure7/run.py          # all rows that are missing
    python experiments/figure7/run.py 3 7 11   # these

Writes ``results.json``, ``results.md`` and, where matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is compared.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cpembed.driver.solve import solve
from cpembed.workloads.suites import layer
from experiments.figure6.run import PAPER, TARGET
from experiments.vta_evaluation.comparison import KINDS, Times, times
from experiments.vta_evaluation.moves import Execution
from experiments.vta_evaluation.plot import bars
from experiments.vta_evaluation.rows import DEEPBENCH, Experiment, Row, geometric_mean
from experiments.vta_evaluation.tuning import Target, tune, tune_reference


def compute(key: str, trials: int) -> Row:
    """A layer by its index, in both layouts; packing and unpacking are timed for both."""
    return {
        "layer": layer("deepbench", int(key)).label,
        "in_paper": int(key) in PAPER,
        "trials": trials,
        "verified": True,
        **_reference(int(key), trials),
        **_ours(int(key), trials),
    }


def _reference(index: int, trials: int) -> dict[str, Any]:
    workload = layer("deepbench", index).workload()
    target = Target.of(TARGET, workload)
    tuned = tune_reference(workload, target, trials)
    found = {**tuned.to_json(), **Execution(workload).times(tuned.lowered)}
    return {"clock_mhz": target.clock_mhz, "reference": found}


def _ours(index: int, trials: int) -> dict[str, Any]:
    workload = layer("deepbench", index).workload(layout="NHWC")
    target = Target.of(TARGET, workload)
    solved = solve(workload, target.spec, constraints="strict_padded", top=1)
    tuned = tune(solved.embeddings[0].candidate, target, trials)
    return {"ours": {**tuned.to_json(), **Execution(workload).times(tuned.lowered)}}


def speedups(row: Row) -> Times:
    """Ours over the reference, each with its own packing; none of a kind that takes us no time."""
    theirs, ours = (times(row[side], row["clock_mhz"]) for side in ("reference", "ours"))
    return {kind: theirs[kind] / ours[kind] for kind in KINDS if ours[kind]}


def without_moves(row: Row) -> float:
    """What the combined speed-up would be if NHWC needed no time for packing and unpacking."""
    theirs, ours = (times(row[side], row["clock_mhz"]) for side in ("reference", "ours"))
    return theirs["combined"] / ours["operator"]


def markdown(rows: list[Row]) -> list[str]:
    lines = [
        "# Figure 7: NHWC against NCHW",
        "",
        "Speed-ups of the generated NHWC program over the hand-written strategy on NCHW. Operator",
        "times are simulated cycles at the clock of the target; packing and unpacking are measured",
        "on the CPU named below (weights are packed ahead). *all*: the combined speed-up if NHWC",
        "took no time to pack and unpack. The paper measured packing on the Arm core of its board;",
        "its figure has no numbers: above 1 but for four layers, up to about 20.",
        "*moves*: none where ours moves nothing: the packed layout is the tensor itself.",
        "",
        "| layer | in the paper | reference, op. + moves, ms | ours | op. | moves | both | all |",
        "|" + " --- |" * 8,
    ]
    for row in rows:
        cells = [
            " + ".join(f"{found[kind] / 1e3:.3f}" for kind in ("operator", "transformation"))
            for found in (times(row[side], row["clock_mhz"]) for side in ("reference", "ours"))
        ]
        found = speedups(row)
        noisy = " *" * any(row[side]["noisy"] for side in ("reference", "ours"))
        lines.append(
            f"| {row['key']} `{row['layer']}` | {'yes' if row['in_paper'] else 'no'} "
            f"| {' | '.join(cells)} | {' | '.join(_number(found, kind) for kind in KINDS)}{noisy} "
            f"| {without_moves(row):.3f} |"
        )
    lines += ["", r"\*: the measured times varied by more than half.", ""]
    for name, chosen in (("the paper", [r for r in rows if r["in_paper"]]), ("all", rows)):
        if chosen:
            means = ", ".join(
                f"{kind} {geometric_mean(speedups(row)[kind] for row in chosen):.3f}"
                for kind in ("operator", "combined")
            )
            slower = sum(speedups(row)["combined"] < 1 for row in chosen)
            lines.append(
                f"- layers of {name}: {len(chosen)}, geometric means: {means}; {slower} slower"
            )
    return lines


def _number(found: Times, kind: str) -> str:
    return f"{found[kind]:.3f}" if kind in found else "none"


def plot(rows: list[Row], folder: Path) -> bool:
    series = {kind: [speedups(row)[kind] for row in rows] for kind in ("operator", "combined")}
    title = "NHWC over the NCHW reference: operator simulated, packing measured"
    return bars([row["key"] for row in rows], series, folder / "results.svg", title=title)


EXPERIMENT = Experiment.of_script(__file__, __doc__, DEEPBENCH, compute, markdown, plot)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
