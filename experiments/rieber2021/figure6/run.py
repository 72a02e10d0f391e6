"""Generated schedules of the strict mapping against the hand-written strategy: figure 6.

    python -m experiments.rieber2021.figure6.run          # all rows that are missing
    python -m experiments.rieber2021.figure6.run 3 7 11   # these

On the layers of DeepBench. Writes ``results.json``, ``results.md`` and, if matplotlib is installed,
``results.svg`` into ``--output``, by default beside this file; README.md says what is compared.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cpembed.driver.solve import solve
from cpembed.workloads.suites import layer
from experiments.common import DEEPBENCH, Experiment, Row, bars, described, geometric_mean
from experiments.rieber2021.execution import Execution
from experiments.rieber2021.tuning import Target, tune, tune_reference

TARGET = "vta_1x16x16"
REQUIRED = 0.98

# The axis of figures 6 and 7: the 62 layers that the paper could run.
PAPER = frozenset(
    number
    for first, last in (
        *((3, 3), (7, 9), (11, 14), (20, 20), (26, 26), (28, 31), (33, 33), (35, 39), (42, 42)),
        *((44, 44), (46, 47), (49, 51), (53, 53), (55, 56), (58, 59), (76, 99), (101, 105)),
        (107, 107),
    )
    for number in range(first, last + 1)
)


def compute(key: str, trials: int) -> Row:
    """Tune and execute both mappings of a layer, which are batch, filters and channels."""
    workload = layer("deepbench", int(key)).workload()
    target = Target.open(TARGET, workload)
    solved = solve(workload, target.spec, constraints="strict_padded", top=1)
    tuned_mapping = tune(solved.embeddings[0].candidate, target, trials)
    reference = tune_reference(workload, target, trials)
    execution = Execution(workload)
    for tuned in (reference, tuned_mapping):
        execution.check(tuned.lowered)
    return {
        "layer": layer("deepbench", int(key)).label,
        "in_paper": int(key) in PAPER,
        "macs": workload.macs,
        "clock_mhz": target.clock_mhz,
        "trials": trials,
        "verified": True,
        "reference": reference.to_json(),
        "ours": tuned_mapping.to_json(),
    }


def speedup(row: Row) -> float:
    """Return the cycles of the reference over ours."""
    return row["reference"]["cycles"] / row["ours"]["cycles"]


def markdown(rows: list[Row]) -> list[str]:
    """Return the table, with what the paper states in words: its figure has no numbers."""
    lines = [
        "# Figure 6: strict mapping against the hand-written strategy",
        "",
        "Written by `run.py`; README.md says what is compared. Cycles are simulated, milliseconds",
        "are cycles at the clock of the target; nothing here is measured. *bound*: ours over the",
        "cycles that no schedule of the mapping can beat. The paper: all but two of its 62 layers",
        "are within a standard deviation of the reference (its figure has no numbers).",
        "",
        "| layer | in the paper | reference | ours | ours, ms | speed-up | bound |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        tuned_mapping = row["ours"]
        mark = " **below**" if speedup(row) < REQUIRED else ""
        lines.append(
            f"| {row['key']} `{row['layer']}` | {'yes' if row['in_paper'] else 'no'} "
            f"| {row['reference']['cycles']:,} | {tuned_mapping['cycles']:,} "
            f"| {tuned_mapping['cycles'] / row['clock_mhz'] / 1e3:.3f} | {speedup(row):.3f}{mark} "
            f"| {tuned_mapping['cycles'] / tuned_mapping['bound']:.3f} |"
        )
    lines.append("")
    for name, selection in (("the paper", [r for r in rows if r["in_paper"]]), ("all", rows)):
        if selection:
            values = [speedup(row) for row in selection]
            lines.append(
                f"- layers of {name}: {len(values)}, speed-up {min(values):.3f} to "
                f"{max(values):.3f}, geometric mean {geometric_mean(values):.3f}"
            )
    return lines


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the speed-ups of all layers."""
    title = "Speed-up over the hand-written strategy, simulated cycles (NCHW, strict mapping)"
    values = {"ours": [speedup(row) for row in rows]}
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
