"""UNIT's figure 10: what each step of the space of schedules adds, on 16 convolutions.

    python -m experiments.unit2021.figure10.run              # all rows that are missing
    python -m experiments.unit2021.figure10.run 1 4          # these, as table I numbers them
    python -m experiments.unit2021.figure10.run --quick      # one layer, printed only

Writes ``results.json``, ``results.md`` and, if matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; ../README.md says what is counted.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from cpembed.codegen.plan import Knobs
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.tune import OpenTuning, open_tuning
from cpembed.errors import LoweringError
from cpembed.runtime.tuning.session import CandidatePool
from cpembed.runtime.tuning.space import Design, Proposal
from cpembed.targets.cpu.measure import KernelMeasurer
from cpembed.targets.cpu.space import CpuSpace
from cpembed.workloads.suites import layer, suite
from experiments.common import (
    Experiment,
    Row,
    bars,
    described,
    geometric_mean,
    markdown_table,
    percent,
)
from experiments.cpu import byte_target, measured_layer, missing_target, notes, ratio
from experiments.unit2021.paper import (
    FIGURE10_BEHIND,
    FIGURE10_FIRST,
    FIGURE10_LIMITS,
    VNNI_MACHINE,
)

SUITE, LIBRARY = "unit16", "onednn"
TRIALS = 64

STEPS = {
    "parallel": "Parallel",
    "unroll": "+ Unroll",
    "model": "+ Model",
    "tune": "+ Tune",
}
"""Steps, each with what those before it have; the third is not the paper's."""

PARALLEL, UNROLL = FIGURE10_LIMITS["parallel"], FIGURE10_LIMITS["unroll"]

TIE = 1.02
"""Maximum ratio of two times that count as equal."""

ABOUT = f"""\
# What each step of the space of schedules adds (UNIT, figure 10)

Written by `run.py`. Measured here: whole calls on all cores of the process, channels last, with the
packing that a schedule needs (weights are packed ahead). *Parallel*: the loops outside of the
instruction are the threads' tasks. *+ Unroll*: each task has up to {UNROLL} accumulators along
one axis. *+ Model*: register blocks of two axes, cache tiles and the order of tasks that the model
of the machine expects to be the fastest, untuned, which the paper does not have. *+ Tune*: the
fastest of measured schedules of all embeddings. The four are timed in turns with each other, and
the third with oneDNN's computation; how the others stand beside oneDNN follows. Above 1 ours is
faster. Results were compared with the reference bit for bit. * disturbed by other work."""

BEHIND = " and ".join(f"#{key}" for key in FIGURE10_BEHIND)

PAPER = f"""\
- the paper measured on {VNNI_MACHINE},
  with at most {PARALLEL} parallel tasks and {UNROLL} unrolled instructions before tuning. Its bars
  are drawn only. Its text states that parallel loops and unrolling bring most, that more than
  {percent(FIGURE10_FIRST)} of the kernels are fastest untuned, and that UNIT is behind oneDNN on
  {BEHIND}, whose sizes divide badly."""


def compute(key: str, trials: int) -> Row:
    """Tune a layer, time the steps in turns, and the model's choice in turns with oneDNN."""
    number, target = int(key) - 1, byte_target()
    assert target is not None
    computation = workload([f"{SUITE}:{number}", "layout=NHWC"], target=hardware_spec(target))
    with tempfile.TemporaryDirectory() as folder:
        opened = open_tuning(computation, target, trials=trials, database=Path(folder))
        assert isinstance(opened, OpenTuning)
        measured = len(list(opened.run()))
        tuned = opened.result().best
    field = opened.tuning.field
    steps = proposals(field)
    steps["tune"] = next(
        item
        for design in field.designs
        if design.identifier == tuned.identifier
        and (item := proposal(design, tuned.knobs)) is not None
    )
    distinct = list({item.key: item for item in steps.values()}.values())
    spec = opened.target.spec
    timed = KernelMeasurer(computation, spec, "total").final(distinct)
    times = dict(zip([item.key for item in distinct], timed, strict=True))
    compared = measured_layer(SUITE, number, target, [LIBRARY])
    return {
        **compared,
        "layer": layer(SUITE, number).label,
        "trials": trials,
        "measured": measured,
        "steps_us": {name: times[item.key].us("total") for name, item in steps.items()},
        "steps_noisy": any(item.noisy for item in timed),
    }


def proposals(field: CandidatePool[Knobs]) -> dict[str, Proposal[Knobs]]:
    """Return the untuned steps, all of the embedding that runs untuned."""
    design = field.designs[0]
    knobs = {"parallel": Knobs(), "unroll": unrolled(design.space), "model": field.untuned}
    steps = {name: proposal(design, each) for name, each in knobs.items()}
    # A block that does not fit the registers leaves the step before.
    steps["unroll"] = steps["unroll"] or steps["parallel"]
    return {name: item for name, item in steps.items() if item is not None}


def unrolled(space: CpuSpace) -> Knobs:
    """Return the schedule with the accumulators that the paper unrolls, along one loop.

    It is the innermost loop over the image, or over filters where the image has none.
    """
    rows, columns = space.loops
    loops = rows or columns
    if not loops:
        return Knobs()
    return Knobs({loops[-1].origin: min(loops[-1].steps, UNROLL)})


def proposal(design: Design[Knobs], knobs: Knobs) -> Proposal[Knobs] | None:
    """Return a schedule as a proposal; None if it does not fit."""
    try:
        return Proposal(design, design.space.scored(design.space.canonical(knobs)))
    except LoweringError:
        return None


def relative(row: Row) -> Mapping[str, float]:
    """Return oneDNN's time over each step's; over the first step's where oneDNN is missing."""
    times = row["steps_us"]
    over_model = ratio(row, LIBRARY, packing=True)
    compared_us = times["parallel"] if over_model is None else over_model * times["model"]
    return {name: compared_us / us for name, us in times.items()}


def markdown(rows: list[Row]) -> list[str]:
    """Return the tables, what they say, and what the paper states."""
    head = ("#", "", *(f"{label}, us" for label in STEPS.values()), *STEPS.values())
    cells = [
        (
            row["key"],
            f"`{row['layer']}`{'*' * row['steps_noisy']}",
            *(f"{row['steps_us'][name]:,.1f}" for name in STEPS),
            *(f"{relative(row)[name]:.2f}" for name in STEPS),
        )
        for row in rows
    ]
    compared = [row for row in rows if ratio(row, LIBRARY) is not None]
    lines = [*ABOUT.splitlines(), "", *markdown_table(head, cells), ""]
    if len(compared) < len(rows):
        lines.append("- where oneDNN is missing, ratios are over the first step")
    return [*lines, *gains(rows), *PAPER.splitlines(), *notes(rows)]


def gains(rows: Sequence[Row]) -> list[str]:
    """Return what each step gains over the one before, and how often tuning gains nothing."""
    lines: list[str] = []
    for before, name in pairwise(STEPS):
        ratios = [row["steps_us"][before] / row["steps_us"][name] for row in rows]
        lines.append(
            f"- {STEPS[name]} over {STEPS[before]}: geometric mean {geometric_mean(ratios):.2f}, "
            f"{min(ratios):.2f} to {max(ratios):.2f}"
        )
    untuned = [row for row in rows if row["steps_us"]["model"] <= TIE * row["steps_us"]["tune"]]
    lines.append(
        f"- within {percent(TIE - 1)} of the tuned time without tuning: {len(untuned)} of "
        f"{len(rows)} layers"
    )
    compared = [relative(row) for row in rows if ratio(row, LIBRARY) is not None]
    for name, label in STEPS.items() if compared else ():
        ratios = [each[name] for each in compared]
        mean = geometric_mean(ratios)
        lines.append(f"- oneDNN over {label}: geometric mean {mean:.2f}, least {min(ratios):.2f}")
    return lines


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the steps of each layer."""
    values = {label: [relative(row)[name] for row in rows] for name, label in STEPS.items()}
    title = "Steps of the space of schedules: oneDNN's time over ours"
    if any(ratio(row, LIBRARY) is None for row in rows):
        title += " (the first step's where oneDNN is missing)"
    return bars([row["key"] for row in rows], values, folder / "results.svg", title=title)


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=tuple(str(each.index + 1) for each in suite(SUITE)),
    compute=compute,
    markdown=markdown,
    plot=plot,
    trials=TRIALS,
    trial_unit="schedules that tuning measures",
    missing=lambda key: missing_target(),
    quick=("2",),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
