"""The layers of ResNet-50 on VTA's default configuration: HASCO's figure 11.

    python -m experiments.hasco2021.figure11.run --trials 64         # all rows that are missing
    python -m experiments.hasco2021.figure11.run 7 12 --trials 64    # these

And how far each layer is from what no schedule of any embedding in the set ``complete`` can beat.
Columns: a library's im2col product, the template that TVM shipped, tuned over its knobs, the
template's mapping under our tuner, and all embeddings under our tuner; of each the same number of
simulated programs but of the library, which runs what has the smallest estimate. Writes
``results.json``, ``results.md`` and, if matplotlib is installed, ``results.svg`` into ``--output``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from cpembed.cost.search import find_best
from cpembed.driver.solve import solve
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.cpsat import SearchLimits
from cpembed.errors import LoweringError
from cpembed.ir.computation import Computation
from cpembed.steps import silent
from cpembed.targets.vta.bounds import Bounds, bounds
from cpembed.targets.vta.tuning import Nest
from cpembed.workloads.einsum import gemm
from cpembed.workloads.suites import layer, suite
from experiments.common import Experiment, Row, bars, described, geometric_mean
from experiments.hasco2021.codesign import (
    DEFAULT,
    DTYPES,
    default_spec,
    reference,
    tuned,
    workload_of,
)
from experiments.rieber2021.tuning import Target, tune

MAPPING = "strict_padded"
"""Batch, filters and channels on the axes of the GEMM core, as the template has them."""

COLUMNS = {
    "im2col": "im2col product",
    "reference": "template",
    "fixed": "its mapping, our tuner",
    "ours": "all embeddings",
}


def compute(key: str, trials: int) -> Row:
    """Compare the ways to run a layer."""
    workload = workload_of(layer("resnet50", int(key)))
    target = Target.open(DEFAULT, workload)
    (fixed,) = solve(workload, target.spec, constraints=MAPPING, top=1).embeddings
    with tempfile.TemporaryDirectory() as folder:
        best = tuned(workload, default_spec(), trials, Path(folder))
    least, embeddings = least_bounds(workload)
    return {
        "layer": layer("resnet50", int(key)).label,
        "count": layer("resnet50", int(key)).count,
        "trials": trials,
        "im2col": {"cycles": im2col(workload)},
        "reference": reference(workload, trials),
        "fixed": {"cycles": tune(fixed.candidate, target, trials).cycles},
        "ours": best,
        "bound": asdict(least) | {"cycles": least.busiest_module},
        "embeddings": embeddings,
    }


def im2col(workload: Computation) -> int:
    """Return the cycles of the product of all windows with the filters.

    The host makes the matrix of the windows; pixels are walked one after the other.
    """
    e = workload.extents
    product = gemm(m=e["n"] * e["p"] * e["q"], n=e["k"], k=e["c"] * e["r"] * e["s"], dtype=DTYPES)
    target = Target.open(DEFAULT, product)
    (mapping,) = solve(product, target.spec, constraints=MAPPING, top=1).embeddings
    return tune(mapping.candidate, target, 1).cycles


def least_bounds(workload: Computation) -> tuple[Bounds, int]:
    """Return the least bounds of all embeddings of the set ``complete``, and their number.

    The least is that of the cycles of the busiest module, of the embeddings that have a program.
    """
    target = Target.open(DEFAULT, workload)
    complete = load_constraint_set("complete")
    candidates = find_best(
        Pairing(workload, target.spec.instruction), complete, None, SearchLimits(), silent
    ).ranking.candidates
    machine = target.machine
    all_bounds: list[Bounds] = []
    for ranked in candidates:
        try:
            nest = Nest.from_program(ranked.candidate.program, machine).nest
        except LoweringError:
            continue
        all_bounds.append(bounds(nest, machine.tail, machine.memory))
    return min(all_bounds, key=lambda b: b.busiest_module), len(all_bounds)


def ratio(row: Row) -> float:
    """Return our cycles over the bound."""
    return row["ours"]["cycles"] / row["bound"]["cycles"]


def markdown(rows: list[Row]) -> list[str]:
    """Return the table and the means."""
    heads = " | ".join(COLUMNS.values())
    lines = [
        "# Figure 11: the layers of ResNet-50 on VTA's default configuration",
        "",
        "Simulated cycles; *over* is the template's over ours. *Bound*: the least over all",
        "embeddings of the set `complete` of the cycles of the busiest module: compute (GEMM's",
        "executions that multiply more than zeros, resets, the ALU), reading each operand once, or",
        "writing the output once.",
        "",
        (
            f"| layer | {heads} | over | bound | ours / bound | GEMM | compute | read | write "
            "| embeddings |"
        ),
        "| ---: |" + " ---: |" * (len(COLUMNS) + 8),
    ]
    for row in rows:
        cycles = " | ".join(f"{row[name]['cycles']:,}" for name in COLUMNS)
        bound = row["bound"]
        parts = " | ".join(f"{bound[n]:,}" for n in ("gemm", "compute", "read", "write"))
        over = row["reference"]["cycles"] / row["ours"]["cycles"]
        lines.append(
            f"| {row['key']} | {cycles} | {over:.2f} | {bound['cycles']:,} | {ratio(row):.3f} "
            f"| {parts} | {row['embeddings']:,} |"
        )
    lines += ["", *_summary(rows)]
    return lines


def _summary(rows: list[Row]) -> list[str]:
    beyond = [row["key"] for row in rows if ratio(row) > 1.05]
    later_layers = [row for row in rows if row["key"] != "0"] or rows
    return [
        f"- geometric mean over ours: {_means(rows)}",
        f"- all layers, as often as the network has them, over ours: {_totals(rows)}",
        (
            "- without layer 0, whose three channels the template pads to 16: geometric mean "
            f"{_means(later_layers)}; all layers {_totals(later_layers)}"
        ),
        (
            f"- ours over the bound: at most {max(map(ratio, rows)):.3f}, geometric mean "
            f"{geometric_mean(map(ratio, rows)):.3f}, of the network "
            f"{total(rows, 'ours') / total(rows, 'bound'):.3f}; above 1.05: "
            f"{', '.join(beyond) or 'none'}"
        ),
    ]


def total(rows: list[Row], column: str) -> int:
    """Return the cycles of all layers, each as often as the network has it."""
    return sum(row["count"] * row[column]["cycles"] for row in rows)


def _means(rows: list[Row]) -> str:
    return _ratios_text(
        lambda name: geometric_mean(row[name]["cycles"] / row["ours"]["cycles"] for row in rows)
    )


def _totals(rows: list[Row]) -> str:
    return _ratios_text(lambda name: total(rows, name) / total(rows, "ours"))


def _ratios_text(over_ours: Callable[[str], float]) -> str:
    return ", ".join(f"{title} {over_ours(n):.4f}" for n, title in COLUMNS.items() if n != "ours")


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the speed-ups over the im2col product."""
    if not rows:
        return False
    series = {
        COLUMNS[name]: [row["im2col"]["cycles"] / row[name]["cycles"] for row in rows]
        for name in COLUMNS
    }
    title = "ResNet-50 on VTA 1x16x16, over the im2col product (simulated cycles)"
    return bars([row["key"] for row in rows], series, folder / "results.svg", title=title)


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=tuple(str(item.index) for item in suite("resnet50")),
    compute=compute,
    markdown=markdown,
    plot=plot,
    trial_unit="simulated programs of a mapping",
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
