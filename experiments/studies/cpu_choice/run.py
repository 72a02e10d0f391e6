"""Losses of the model's choice, and of tuning, to brute force on this machine's CPU.

    python -m experiments.studies.cpu_choice.run                       # all rows that are missing
    python -m experiments.studies.cpu_choice.run unit16:1/amx_int8 --trials 32

Writes ``results.json``, ``results.md`` and, if matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; README.md says what is counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from cpembed.codegen.plan import Knobs
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.tune import OpenTuning, open_tuning
from cpembed.errors import LoweringError
from cpembed.runtime.tuning.session import CandidatePool
from cpembed.runtime.tuning.space import Design, Proposal
from cpembed.targets.cpu.measure import Failed, KernelMeasurer
from cpembed.targets.x86.features import missing_features
from cpembed.workloads.suites import layer
from experiments.common import Experiment, Row, bars, described, geometric_mean

TARGETS, THREADS = ("amx_int8", "avx512_vnni"), "1"
BRUTE = ("unit16:1", "unit16:12", "resnet50:15", "deepbench:10", "odd:3")
"""Layers of which everything is measured; of the others the model's choice and the tuned one."""
LAYERS = (*BRUTE, *(f"unit16:{number}" for number in range(16) if f"unit16:{number}" not in BRUTE))
ROWS = tuple(f"{layer}/{target}" for target in TARGETS for layer in LAYERS)
HOPELESS = 4.0
"""Maximum estimate of a measured schedule, as a multiple of the best estimate."""


def compute(key: str, trials: int) -> Row:
    """Tune a layer as ``cpembed tune`` does, and measure what could have been chosen.

    Of some layers everything is measured; then the model's choice, the tuned one and the best of
    all are timed in turns.
    """
    os.environ["TVM_NUM_THREADS"] = THREADS
    named, target = key.split("/")
    suite, number = named.split(":")
    spec = hardware_spec(target)
    computation = workload([named, "layout=NHWC"], target=spec)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        opened = open_tuning(computation, spec, trials=trials, database=Path(folder))
        assert isinstance(opened, OpenTuning)
        tuning = opened.tuning
        prepared = time.perf_counter()
        list(tuning.run())
        tuned_seconds = time.perf_counter() - prepared
        tuned = opened.result().best
    every = everything(tuning.field)
    first = every[_untuned(tuning.field)]
    proposals = {item.key: item for item in every.values()}
    tuned_proposal = next(
        tuned_proposal
        for design in tuning.field.designs
        if design.identifier == tuned.identifier
        and (tuned_proposal := proposal(design, tuned.knobs)) is not None
    )
    bench = KernelMeasurer(computation, spec, "total")
    began = time.perf_counter()
    best, measured, failed = tuned_proposal, 0, 0
    if named in BRUTE:
        best, measured, failed = brute_force(bench, list(proposals.values()), first)
    brute_seconds = time.perf_counter() - began
    names = {"untuned": first, "tuned": tuned_proposal, "best": best}
    distinct = list({item.key: item for item in names.values()}.values())
    timed = dict(zip([item.key for item in distinct], bench.final(distinct), strict=True))
    least = min(item.ratio for item in timed.values())
    return {
        "layer": layer(suite, int(number)).label,
        "trials": trials,
        "embeddings": len(tuning.field.designs),
        "schedules": len(proposals),
        "measured": measured,
        "without_kernel": failed,
        "choice_seconds": round(prepared - started, 2),
        "tuned_seconds": round(tuned_seconds, 1),
        "brute_seconds": round(brute_seconds, 1),
        "noisy": any(item.noisy for item in timed.values()),
        **{f"{name}_us": timed[item.key].us("total") for name, item in names.items()},
        **{f"{name}_loss": timed[item.key].ratio / least - 1 for name, item in names.items()},
    }


def proposal(design: Design[Knobs], knobs: Knobs) -> Proposal[Knobs] | None:
    """Return a schedule as a proposal; None if it does not fit."""
    try:
        return Proposal(design, design.space.scored(design.space.canonical(knobs)))
    except LoweringError:
        return None


def _untuned(field: CandidatePool[Knobs]) -> tuple[str, str]:
    design = field.designs[0]
    return design.identifier, repr(design.space.canonical(field.untuned))


def everything(field: CandidatePool[Knobs]) -> dict[tuple[str, str], Proposal[Knobs]]:
    """Return all schedules of all embeddings that take part, the best by the model first.

    Hopeless ones are left out. Keys are embedding and schedule.
    """
    proposals: list[Proposal[Knobs]] = []
    for design in field.designs:
        knobs = [item.schedule for item in design.space.ranked()]
        extra = [field.untuned] if design is field.designs[0] else []
        proposed = (proposal(design, each) for each in (*extra, *knobs))
        proposals += [item for item in proposed if item is not None]
    proposals.sort(key=lambda item: item.estimate)
    limit, untuned = HOPELESS * proposals[0].estimate, _untuned(field)
    named = {(item.design.identifier, repr(item.schedule)): item for item in proposals}
    return {name: item for name, item in named.items() if item.estimate <= limit or name == untuned}


def brute_force(
    bench: KernelMeasurer, every: list[Proposal[Knobs]], first: Proposal[Knobs]
) -> tuple[Proposal[Knobs], int, int]:
    """Return the fastest of all, the number of measured ones, and of those without a kernel.

    Parameters
    ----------
    bench : KernelMeasurer
        Measures kernels of the layer.
    every : list of Proposal
        Schedules to measure.
    first : Proposal
        The model's choice, which is measured first.
    """
    champion = first
    failed = int(isinstance(bench.measure(first, None), Failed))
    for item in every:
        if item.key == first.key:
            continue
        timed = bench.measure(item, champion)
        if isinstance(timed, Failed):
            failed += 1
        elif not timed.rejected and timed.ratio < 1:
            champion = item
    return champion, len(every) - failed, failed


def markdown(rows: list[Row]) -> list[str]:
    """Return the tables and losses."""
    lines = [
        "# What the model and tuning lose to brute force",
        "",
        "Written by `run.py`; README.md says what is counted. One thread, whole calls, packing",
        "included, NHWC. Rows with a * were disturbed at the end.",
    ]
    for target in TARGETS:
        target_rows = [row for row in rows if row["key"].endswith(f"/{target}")]
        lines += ["", f"## {target}", "", *_table(target_rows)] if target_rows else []
    return lines


def _table(rows: list[Row]) -> list[str]:
    lines = [
        "| layer | best us | model | tuned | trials | all schedules | choice s | tuned s | all s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        schedules = f"{row['measured']:,} of {row['embeddings']} embeddings"
        brute = (schedules, f"{row['brute_seconds']:.0f}") if row["measured"] else ("", "")
        name = row["key"].split("/")[0] + ("*" if row["noisy"] else "")
        lines.append(
            f"| {name} `{row['layer']}` | {row['best_us']:.1f} "
            f"| +{row['untuned_loss']:.1%} | +{row['tuned_loss']:.1%} | {row['trials']} "
            f"| {brute[0]} | {row['choice_seconds']:.1f} | {row['tuned_seconds']:.0f} "
            f"| {brute[1]} |"
        )
    lines.append("")
    everywhere = [row for row in rows if row["measured"]]
    for name, text in (("untuned", "the model's choice"), ("tuned", "the tuned one")):
        losses = [row[f"{name}_loss"] for row in everywhere]
        if losses:
            mean = geometric_mean([1 + loss for loss in losses]) - 1
            lines.append(
                f"- {text} takes {mean:.1%} longer than the best of all in the geometric mean, "
                f"{max(losses):.1%} at worst ({len(losses)} rows);"
            )
    ratios = [row["brute_seconds"] / row["tuned_seconds"] for row in everywhere]
    if ratios:
        mean = geometric_mean(ratios)
        lines.append(f"- brute force takes {mean:.0f} times as long as tuning;")
    behind = [(1 + row["untuned_loss"]) / (1 + row["tuned_loss"]) for row in rows]
    lines.append(
        f"- the model's choice takes {geometric_mean(behind) - 1:.1%} longer than the tuned one in "
        f"the geometric mean, {max(behind) - 1:.1%} at worst ({len(rows)} rows)."
    )
    return lines


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the losses."""
    title = "Time of a call over the fastest of all schedules"
    values = {
        "model": [1 + row["untuned_loss"] for row in rows],
        "tuned": [1 + row["tuned_loss"] for row in rows],
    }
    return bars([row["key"] for row in rows], values, folder / "results.svg", title=title)


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=ROWS,
    compute=compute,
    markdown=markdown,
    plot=plot,
    trial_unit="kernels that tuning measures",
    missing=lambda key: ", ".join(missing_features(hardware_spec(key.split("/")[1]))),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
