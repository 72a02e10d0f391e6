"""Compare float32 on this processor: our kernels, oneDNN's primitives, MKL's and OpenBLAS's sgemm.

Also the model's choice of a schedule with all schedules.

    cpembed calibrate --threads 1
    python -m benchmarks.float32 [--target avx2_f32] [--parts unit16 gemm:0-20 ...]
    python -m benchmarks.float32 --choice [--layers 20] [--schedules 60]

A part is a suite, or some of its layers. One thread, untuned; convolutions have their channels last
on both sides, weights are packed ahead on both sides if the library can. Ours is a whole call,
packing and unpacking included; oneDNN's is its own account of its computation and the call through
PyTorch; MKL's and OpenBLAS's a call. Of several forms of a library the fastest counts. All take
turns in short blocks of calls, and a time is the middle one of the best few blocks: what disturbs a
block only adds to it. Every result of ours is compared with every library's.

``--choice``: of layers spread evenly over the suites, what is chosen untuned against the schedules
of all its candidates, or as many of them as ``--schedules`` says, spread evenly over the ranking.
Each is compiled and meets the chosen one interleaved, the fastest ones again in longer rounds. The
time of the choice is search, estimates and one compilation; that of brute force all compilations
and measurements.

Writes ``float32.json`` and ``float32.md`` into ``--output``, by default beside this file; a part
that ends early keeps the rows that are measured, and goes on with the others when called again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import read_document, write_document
from cpembed.runtime.measurement.environment import machine, provenance, provenance_lines

FOLDER = Path(__file__).resolve().parent
PARTS = ("unit16", "resnet50", "deepbench", "gemm")
BASELINES = {"gemm": ("onednn", "mkl", "openblas")}
"""Libraries by suite; oneDNN for all others."""
CHOICE_SUITES = ("unit16", "resnet50", "deepbench", "gemm")
MOST_MACS, MOST_BYTES = 1e9, 2**26
"""Limits of a layer for brute force, which measures some hundred kernels with their operands."""
FINALISTS, ROUNDS, ROUND_MS = 3, 21, 5.0

BLOCK_MS, BLOCKS, BEST = 1.0, 40, 5
MOST_S = 20.0
"""Maximum seconds of blocks of a layer: large ones have fewer."""
TOLERANCE = 1e-3
"""Maximum difference of two libraries' sums, as a share of the largest result."""

Row = dict[str, Any]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--target", default="avx512_f32")
    parser.add_argument("--parts", nargs="*", default=PARTS, metavar="SUITE[:LAYERS]")
    parser.add_argument("--choice", action="store_true", help="the model against all schedules")
    parser.add_argument("--layers", type=int, default=20, help="of --choice")
    parser.add_argument("--schedules", type=int, help="of a layer, at most")
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    # Before TVM is loaded.
    os.environ["TVM_NUM_THREADS"] = "1"
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "float32.json"
    parts: dict[str, Row] = read_document(file)["parts"] if file.exists() else {}
    if options.choice:
        name = f"choice/{options.target} on {machine()['cpu']}"
        parts[name] = compare_choices(options.target, options.layers, options.schedules)
        write(options.output, parts)
        return
    for part in options.parts:
        name = f"{part}/{options.target} on {machine()['cpu']}"
        stored = {row["index"]: row for row in parts.get(name, {}).get("rows", [])}
        entry = {"provenance": provenance(), "baselines": names_of(part), "rows": []}
        parts[name] = entry
        for row in measured(part, options.target, stored):
            entry["rows"].append(row)
            write(options.output, parts)


def names_of(part: str) -> list[str]:
    """Return the libraries that a part is compared with."""
    return list(BASELINES.get(part.partition(":")[0], ("onednn",)))


def measured(part: str, target: str, stored: dict[int, Row]) -> Iterator[Row]:
    """Yield the rows of a part, stored or measured.

    Parameters
    ----------
    part : str
        A suite, or some of its layers.
    target : str
        Name of the target.
    stored : dict of int to Row
        Rows by layer that are not measured again.
    """
    from cpembed.driver.named import hardware_spec
    from cpembed.targets.capabilities import baselines
    from cpembed.targets.registry import open_target
    from cpembed.workloads.suites import DEFAULT_LAYOUT, suite

    name, _, only = part.partition(":")
    spec = hardware_spec(target)
    # oneDNN first: it is told what to use before PyTorch is loaded.
    openers = baselines(open_target(spec))
    libraries = [openers[each](spec, None) for each in names_of(part)]
    layout = DEFAULT_LAYOUT if name == "gemm" else "NHWC"
    selection = {int(n) for n in expanded(only)} if only else None
    for layer in suite(name):
        if layer.index in stored:
            yield stored[layer.index]
        elif selection is None or layer.index in selection:
            row = {"index": layer.index, **row_of(layer, layout, target, libraries)}
            print(json.dumps(row), file=sys.stderr)
            yield row


def expanded(only: str) -> list[int]:
    """Return the numbers of a list such as ``0,3,10-12``."""
    numbers: list[int] = []
    for piece in only.split(","):
        first, _, last = piece.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def row_of(layer: Any, layout: str, target: str, libraries: list[Any]) -> Row:
    """Measure a layer.

    Parameters
    ----------
    layer : Layer
        A layer of a suite.
    layout : str
        Layout of image and output.
    target : str
        Name of the target.
    libraries : list
        Baselines.
    """
    from cpembed.driver.options import KernelOptions
    from cpembed.driver.pipeline import choose
    from cpembed.driver.plan import Request
    from cpembed.ir.reference import random_inputs
    from cpembed.runtime.baselines import NotCovered, Subject

    workload = layer.workload(("float32", "float32"), layout)
    plan = choose(Request(workload, target, KernelOptions(untuned=True))).plan
    first = plan.choices[0]
    kernel = plan.target.build(plan.target.lower(first.ranked.candidate.program), first.schedule)
    inputs = random_inputs(workload, 1)
    result, sides = kernel.run(inputs), {"ours": timer(whole_call(kernel, inputs))}
    for library in libraries:
        forms = library.contenders(Subject.from_layer(layer, workload, layout), inputs)
        for form in [] if isinstance(forms, NotCovered) else forms:
            error = float(np.abs(form.output() - result).max() / np.abs(result).max())
            if error > TOLERANCE:
                raise SystemExit(f"{layer.label}: {form.form} is {error:g} apart from ours")
            sides[f"{library.name} call {form.form}"] = timer(form.run)
            if form.primitives(1) is not None:
                sides[f"{library.name} own {form.form}"] = lambda n, f=form: f.primitives(n).us
    times = interleaved(sides)

    def least(kind: str) -> float | None:
        return min((us for name, us in times.items() if name.startswith(kind)), default=None)

    row: Row = {"layer": layer.label, "macs": workload.macs, "ours_us": times["ours"]}
    row |= {"on": plan.target.spec.name, "schedule": repr(first.schedule)}
    for library in libraries:
        call, primitive = least(f"{library.name} call"), least(f"{library.name} own")
        row[library.name] = {"call_us": call, "own_us": primitive}
    return row


def timer(call: Any) -> Any:
    """Return a function from a number of calls to a call's microseconds."""
    return lambda times: seconds(call, times) * 1e6


def interleaved(sides: dict[str, Any]) -> dict[str, float]:
    """Return microseconds by side: of blocks in turns, the middle one of the best few."""
    calls = {name: max(1, int(BLOCK_MS * 1e3 / max(0.1, side(1)))) for name, side in sides.items()}
    times_by_side: dict[str, list[float]] = {name: [] for name in sides}
    deadline = time.perf_counter() + MOST_S
    for block in range(BLOCKS):
        for name, side in sides.items():
            times_by_side[name].append(side(calls[name]))
        if block >= BEST and time.perf_counter() > deadline:
            break
    return {name: statistics.median(sorted(times)[:BEST]) for name, times in times_by_side.items()}


def compare_choices(target: str, count: int, most: int | None) -> Row:
    """Compare the model's choice with all schedules, for some layers.

    Parameters
    ----------
    target : str
        Name of the target.
    count : int
        Number of layers.
    most : int or None
        Maximum number of schedules of a layer; None for all.
    """
    from cpembed.workloads.suites import DEFAULT_LAYOUT, suite

    layers = [
        (layer, layer.workload(("float32", "float32"), layout))
        for name in CHOICE_SUITES
        for layout in [DEFAULT_LAYOUT if name == "gemm" else "NHWC"]
        for layer in suite(name)
    ]
    layers = [
        (layer, workload)
        for layer, workload in layers
        if workload.macs <= MOST_MACS
        and 4 * sum(math.prod(o.shape) for o in workload.operands) <= MOST_BYTES
    ]
    spread = [layers[(2 * n + 1) * len(layers) // (2 * count)] for n in range(count)]
    rows: list[Row] = []
    for layer, workload in spread:
        rows.append({"layer": layer.label, **choice_of(workload, target, most)})
        print(json.dumps(rows[-1]), file=sys.stderr)
    return {"provenance": provenance(), "most": most, "rows": rows}


def choice_of(workload: Any, target: str, most: int | None) -> Row:
    """Compare the untuned choice with the schedules of its candidates.

    Parameters
    ----------
    workload : Computation
        A layer.
    target : str
        Name of the target.
    most : int or None
        Maximum number of schedules; None for all.
    """
    from cpembed.driver.options import KernelOptions
    from cpembed.driver.pipeline import choose
    from cpembed.driver.plan import Request, Selection
    from cpembed.ir.reference import random_inputs
    from cpembed.targets.choice import compared

    started = time.perf_counter()
    selection = choose(Request(workload, target, KernelOptions(untuned=True)))
    if not isinstance(selection, Selection):
        raise SystemExit(f"{workload.name}: {target} has no embedding of it")
    plan = selection.plan
    first = plan.choices[0]
    built = plan.target.build(plan.target.lower(first.ranked.candidate.program), first.schedule)
    chosen_s = time.perf_counter() - started
    inputs = random_inputs(workload, 1)
    incumbent = whole_call(built, inputs)
    started = time.perf_counter()
    everything = []
    for item in compared(plan.target, [choice.ranked for choice in plan.choices]).estimates:
        lowered = plan.target.lower(item.ranked.candidate.program)
        everything += [(lowered, s.schedule) for s in plan.target.space(lowered).ranked()]
    step = 1 if most is None else max(1.0, len(everything) / most)
    sample = [everything[int(n * step)] for n in range(int(len(everything) / step))]

    def call_of(lowered: Any, schedule: Any) -> Any:
        return whole_call(plan.target.build(lowered, schedule), inputs)

    # Calls hold their operands: none is kept.
    ratios = [ratio(incumbent, call_of(*pair), rounds=3, ms=1.0) for pair in sample]
    brute_s = time.perf_counter() - started
    finalists = sorted(range(len(sample)), key=ratios.__getitem__)[-FINALISTS:]
    best = max(ratio(incumbent, call_of(*sample[n]), rounds=ROUNDS, ms=ROUND_MS) for n in finalists)
    return {
        "target": plan.target.spec.name,
        "schedules": len(everything),
        "measured": len(sample),
        "slower_than_best": max(1.0, best),
        "chosen_s": chosen_s,
        "brute_force_s": brute_s * len(everything) / len(sample),
    }


def whole_call(kernel: Any, inputs: Any) -> Any:
    """Return a call that packs and unpacks what is not packed ahead."""
    from cpembed.codegen.packing import packed_before

    packed = {name: kernel.pack(name, inputs[name]) for name in kernel.input_names}
    output = kernel.execute(packed)
    return kernel.bound_whole(inputs, packed, packed_before(kernel.program.workload), output)


def ratio(incumbent: Any, rival: Any, *, rounds: int, ms: float) -> float:
    """Return the incumbent's time over the rival's, of each the middle of the best few rounds.

    Parameters
    ----------
    incumbent, rival : callable
        Calls.
    rounds : int
        Number of rounds.
    ms : float
        Milliseconds of a round.
    """
    each = [max(1, int(ms / 1e3 / max(1e-7, seconds(call, 1)))) for call in (incumbent, rival)]
    pairs = [(seconds(incumbent, each[0]), seconds(rival, each[1])) for _ in range(rounds)]
    incumbent_s, rival_s = (
        statistics.median(sorted(times)[:BEST]) for times in zip(*pairs, strict=True)
    )
    return incumbent_s / rival_s


def seconds(call: Any, times: int) -> float:
    """Return a call's seconds, on average over so many."""
    call()
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def write(folder: Path, parts: dict[str, Row]) -> None:
    """Write the parts as JSON and as a page."""
    write_document(folder / "float32.json", {"parts": parts})
    (folder / "float32.md").write_text(text(parts))


def text(parts: dict[str, Row]) -> str:
    """Return the page."""
    lines = [
        "# float32 beside oneDNN, MKL and OpenBLAS",
        "",
        "A library's time over ours, one thread, untuned, weights packed ahead: above 1 where ours",
        "is faster. *Own*: oneDNN's account of its computation; *call*: through PyTorch or numpy.",
        "Made by `benchmarks/float32.py`, which says how times are taken.",
        "",
        "| suite / target, processor | beside | rows | own: mean (least) | call: mean (least) |",
        "| --- |" + " --- |" * 4,
    ]
    for name, part in parts.items():
        for library in part.get("baselines", ()):
            cells = [summary(part["rows"], library, kind) for kind in ("own_us", "call_us")]
            lines.append(
                f"| {name} | {library} | {len(part['rows'])} | " + " | ".join(cells) + " |"
            )
    for name, part in parts.items():
        lines += ["", f"## {name}", "", *provenance_lines(part["provenance"], "1 thread"), ""]
        lines += choice_lines(part) if "most" in part else part_lines(part)
    return "\n".join(lines) + "\n"


def summary(rows: list[Row], library: str, kind: str) -> str:
    """Return geometric mean and least ratio of a library's time to ours.

    Parameters
    ----------
    rows : list of Row
        Rows of a part.
    library : str
        Name of the library.
    kind : str
        Member of a row: ``own_us`` or ``call_us``.
    """
    ratios = [row[library][kind] / row["ours_us"] for row in rows if row[library][kind]]
    return f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f})" if ratios else "·"


def part_lines(part: Row) -> list[str]:
    """Return times in microseconds, and ratios by the more exact account of a library."""
    names = part["baselines"]
    lines = ["| layer | on | ours us | " + " | ".join(f"{n} us | ratio" for n in names) + " |"]
    lines += ["| --- |" + " --- |" * (2 + 2 * len(names))]
    for row in part["rows"]:
        cells = [f"{row['index']} {row['layer']}", row["on"], f"{row['ours_us']:.1f}"]
        for name in names:
            us = row[name]["own_us"] or row[name]["call_us"]
            cells += ["·", "·"] if us is None else [f"{us:.1f}", f"{us / row['ours_us']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def choice_lines(part: Row) -> list[str]:
    """Return the table of choices."""
    rows = part["rows"]
    worst = max(row["slower_than_best"] for row in rows)
    share = max(row["chosen_s"] / row["brute_force_s"] for row in rows)
    limit = "all schedules" if part["most"] is None else f"at most {part['most']} of a layer"
    lines = [
        f"The model's choice against measuring {limit}: at worst {worst:.3f} times the best one's",
        f"time, at {share:.4f} of the time of measuring all, or less.",
        "",
        "| layer | on | schedules | measured | chosen over best | chosen in s | all in s |",
        "| --- |" + " --- |" * 6,
    ]
    lines += [
        f"| {row['layer']} | {row['target']} | {row['schedules']} | {row['measured']} "
        f"| {row['slower_than_best']:.3f} | {row['chosen_s']:.2f} | {row['brute_force_s']:.0f} |"
        for row in rows
    ]
    return lines


if __name__ == "__main__":
    main()
