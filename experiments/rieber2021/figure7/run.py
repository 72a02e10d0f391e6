"""Generated NHWC layouts against the hand-written strategy on NCHW: figure 7.

    python -m experiments.rieber2021.figure7.run          # all rows that are missing
    python -m experiments.rieber2021.figure7.run 3 7 11   # these

On the layers of DeepBench. Writes ``results.json``, ``results.md`` and, if matplotlib is installed,
``results.svg`` into ``--output``, by default beside this file; README.md says what is compared.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cpembed.driver.solve import solve
from cpembed.workloads.suites import layer
from experiments.common import DEEPBENCH, Experiment, Row, bars, described, geometric_mean
from experiments.rieber2021.comparison import KINDS, Times, times
from experiments.rieber2021.execution import Execution
from experiments.rieber2021.figure6.run import PAPER, TARGET
from experiments.rieber2021.tuning import Target, tune, tune_reference


def compute(key: str, trials: int) -> Row:
    """Compare a layer in both layouts; packing and unpacking are timed for both."""
    return {
        "layer": layer("deepbench", int(key)).label,
        "in_paper": int(key) in PAPER,
        "trials": trials,
        "verified": True,
        **_reference(int(key), trials),
        **_candidate(int(key), trials),
    }


def _reference(index: int, trials: int) -> dict[str, Any]:
    workload = layer("deepbench", index).workload()
    target = Target.open(TARGET, workload)
    tuned = tune_reference(workload, target, trials)
    entry = {**tuned.to_json(), **Execution(workload).times(tuned.lowered)}
    return {"clock_mhz": target.clock_mhz, "reference": entry}


def _candidate(index: int, trials: int) -> dict[str, Any]:
    workload = layer("deepbench", index).workload(layout="NHWC")
    target = Target.open(TARGET, workload)
    solved = solve(workload, target.spec, constraints="strict_padded", top=1)
    tuned = tune(solved.embeddings[0].candidate, target, trials)
    return {"ours": {**tuned.to_json(), **Execution(workload).times(tuned.lowered)}}


def speedups(row: Row) -> Times:
    """Return ours over the reference, each with its packing; no entry if ours takes no time."""
    reference, candidate = (times(row[side], row["clock_mhz"]) for side in ("reference", "ours"))
    return {kind: reference[kind] / candidate[kind] for kind in KINDS if candidate[kind]}


def without_moves(row: Row) -> float:
    """Return the combined speed-up if NHWC needed no time for packing and unpacking."""
    reference, candidate = (times(row[side], row["clock_mhz"]) for side in ("reference", "ours"))
    return reference["combined"] / candidate["operator"]


def markdown(rows: list[Row]) -> list[str]:
    """Return the table and the means."""
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
            " + ".join(f"{entry[kind] / 1e3:.3f}" for kind in ("operator", "transformation"))
            for entry in (times(row[side], row["clock_mhz"]) for side in ("reference", "ours"))
        ]
        gain = speedups(row)
        noisy = " *" * any(row[side]["noisy"] for side in ("reference", "ours"))
        lines.append(
            f"| {row['key']} `{row['layer']}` | {'yes' if row['in_paper'] else 'no'} "
            f"| {' | '.join(cells)} | {' | '.join(_number(gain, kind) for kind in KINDS)}{noisy} "
            f"| {without_moves(row):.3f} |"
        )
    lines += ["", r"\*: the measured times varied by more than half.", ""]
    for name, selection in (("the paper", [r for r in rows if r["in_paper"]]), ("all", rows)):
        if selection:
            means = ", ".join(
                f"{kind} {geometric_mean(speedups(row)[kind] for row in selection):.3f}"
                for kind in ("operator", "combined")
            )
            slower = sum(speedups(row)["combined"] < 1 for row in selection)
            lines.append(
                f"- layers of {name}: {len(selection)}, geometric means: {means}; {slower} slower"
            )
    return lines


def _number(speedup: Times, kind: str) -> str:
    return f"{speedup[kind]:.3f}" if kind in speedup else "none"


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw operator and combined speed-ups of all layers."""
    series = {kind: [speedups(row)[kind] for row in rows] for kind in ("operator", "combined")}
    title = "NHWC over the NCHW reference: operator simulated, packing measured"
    return bars([row["key"] for row in rows], series, folder / "results.svg", title=title)


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=DEEPBENCH,
    compute=compute,
    markdown=markdown,
    plot=plot,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
