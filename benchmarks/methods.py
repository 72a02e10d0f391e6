"""The methods of a convolution on this processor beside oneDNN: float32, 3x3 filters of stride 1.

    cpembed calibrate --threads 1
    python benchmarks/methods.py [--suites vgg16 resnet50 unit16 deepbench] [--target avx512_f32]

Every layer of the suites with such filters, once each, is computed by the implicit and the explicit
method, by F(2x2, 3x3) and F(4x4, 3x3), and by oneDNN (as PyTorch brings it; its builds for x86 have
no Winograd of their own any more). All are timed interleaved on one thread, untuned: ours from the
image to the output in the layout NHWC, packing and transforms of both included, weights ahead;
oneDNN by its own account of its computation. A ratio is oneDNN's time over ours in the same round,
the median of rounds. Errors are against float64, of uniform data in [-1, 1].

Writes ``methods.json`` after every layer and goes on where it stopped, and ``methods.md``, into
``--output``, by default beside this file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

HERE = Path(__file__).resolve().parent
SUITES = ("vgg16", "resnet50", "unit16", "deepbench")
VGG16 = (
    (3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56), (256, 256, 56),
    (256, 512, 28), (512, 512, 28), (512, 512, 14),
)  # fmt: skip
"""Channels, filters and pixels along a side of the convolutions of VGG16 (configuration D of
Simonyan and Zisserman, 2015), all 3x3 with padding 1."""
METHODS = ("implicit", "explicit", "winograd_2x2", "winograd_4x4")
PRIMITIVE, CALL = "onednn", "onednn call"
LAYOUT = "NHWC"

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--suites", nargs="*", default=SUITES, choices=SUITES)
    parser.add_argument("--target", default="avx512_f32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeat", action="store_true", help="measure again, beside what is there")
    parser.add_argument("--output", type=Path, default=HERE)
    asked = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = "1"
    path = asked.output / "methods.json"
    document: Row = json.loads(path.read_text()) if path.exists() else {"rows": []}
    kept: list[Row] = document.setdefault("repeats" if asked.repeat else "rows", [])
    known = kept[:0] if asked.repeat else kept
    done = {(row["target"], row["layer"]) for row in known}
    for suite, layer in layers(asked.suites):
        if (asked.target, layer.label) in done:
            continue
        row = {"suite": suite, "layer": layer.label, "target": asked.target}
        row |= measured(layer, asked.target, asked.rounds)
        print(line(row), flush=True)
        kept.append(row)
        write(document, path)
    write(document, path)


def layers(suites: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Suite and layer; of equal layers the first."""
    from cpembed.workloads.suites import Layer, suite

    seen: set[str] = set()
    for name in suites:
        if name == "vgg16":
            words = "conv2d n=1 c={0} h={2} w={2} k={1} r=3 s=3 pad=1 stride=1"
            found = [Layer(name, i, "", words.format(*sizes)) for i, sizes in enumerate(VGG16)]
        else:
            found = list(suite(name))
        for layer in found:
            given = layer.parameters
            dense = given.get("stride", "1") == "1" and given.get("r") == given.get("s") == "3"
            if dense and layer.label not in seen:
                seen.add(layer.label)
                yield name, layer


def measured(layer: Any, target: str, rounds: int) -> Row:
    """Errors, times and ratios of one layer."""
    from cpembed.driver.methods import fastest
    from cpembed.driver.options import KernelOptions
    from cpembed.driver.pipeline import choose
    from cpembed.driver.plan import Request, Selection
    from cpembed.hw.loader import load_hardware_spec
    from cpembed.ir.reference import random_inputs
    from cpembed.runtime.baselines import NotCovered, Subject
    from cpembed.runtime.measurement.interleaved import OUR_POOL, Work, time_interleaved
    from cpembed.runtime.measurement.runner import wall_clock
    from cpembed.targets.capabilities import baselines
    from cpembed.targets.registry import open_target

    workload = layer.workload("float32", LAYOUT)
    spec = load_hardware_spec(target)
    library = baselines(open_target(spec))["onednn"](spec, None)
    asked = Request(workload, target, KernelOptions(untuned=True))
    implicit = choose(asked)
    assert isinstance(implicit, Selection)
    compared = fastest(asked, implicit)
    inputs = random_inputs(workload, seed=0)
    sides: dict[str, Work] = {}
    row: Row = {
        "macs": workload.macs,
        "chosen": "implicit" if compared is None else compared.name,
        "estimates_us": {} if compared is None else dict(compared.estimates),
        "methods": {},
    }
    for method in METHODS:
        call, about = prepared(method, asked, implicit, inputs)
        if call is not None:
            sides[method] = Work(wall_clock(call), OUR_POOL)
        row["methods"][method] = about
    contenders = library.contenders(Subject.from_layer(layer, workload, LAYOUT), inputs)
    assert not isinstance(contenders, NotCovered), contenders
    best = min(contenders, key=lambda one: min(one.primitives(3).us for _ in range(3)))
    sides[PRIMITIVE] = Work(lambda calls: best.primitives(calls).us, library.pool)
    sides[CALL] = Work(wall_clock(best.run), library.pool)
    found = time_interleaved(sides, rounds=rounds, attempts=2)
    names = list(best.primitives(1).names)
    row["onednn"] = {"form": best.form, "implementations": names, **library.identity()}
    row["us"] = {name: found.times(name).median for name in sides}
    row["ratios"] = {n: found.ratio(PRIMITIVE, n).median for n in sides if n in METHODS}
    row["noisy"], row["elsewhere_cores"] = found.is_noisy, found.elsewhere
    return row


def prepared(
    method: str, asked: Any, implicit: Any, inputs: Row
) -> tuple[Callable[[], Any] | None, Row]:
    """One call from image to output, and the error of the method; None where it is refused."""
    import numpy as np

    from cpembed.driver.methods import choose_method
    from cpembed.driver.run import built, judged
    from cpembed.errors import LoweringError, WorkloadError
    from cpembed.ir.reference import reference
    from cpembed.targets.choice import built_first
    from cpembed.transform.methods.im2col import explicit

    workload = asked.workload
    wide = workload.with_dtypes({operand.name: "float64" for operand in workload.operands})
    if method == "implicit":
        kernel, _ = built_first(implicit.plan.target, implicit.plan.choices)
        packed = {name: kernel.pack(name, inputs[name]) for name in kernel.input_names}
        output = kernel.empty(workload.output.name)
        call = kernel.bound_whole(inputs, packed, ("W",), output)
        call()
        found, judge = kernel.unpack(output), explicit(workload)
    else:
        try:
            artifact, _ = built(rewritten := choose_method(asked, cast(Any, method)))
        except (LoweringError, WorkloadError) as error:
            return None, {"refused": str(error)}
        found, judge = artifact.run(inputs), rewritten.method
        call = artifact.bound_whole(inputs)
    verification, error = judged(judge, inputs, found)
    verification.require(method, 0)
    exact = reference(wide, {name: array.astype(np.float64) for name, array in inputs.items()})
    off = np.abs(found.astype(np.float64) - exact)
    about = {"largest_error": float(off.max()), "largest_output": float(np.abs(exact).max())}
    return call, about | ({} if error is None else {"bound": error.bound})


def best_of(row: Row) -> tuple[str, float]:
    """The fastest method as measured, and its ratio."""
    return max(row["ratios"].items(), key=lambda item: item[1])


def line(row: Row) -> str:
    ratios = "  ".join(f"{name} {ratio:.2f}" for name, ratio in row["ratios"].items())
    noisy = " noisy" if row["noisy"] else ""
    return f"{row['layer']}: onednn {row['us'][PRIMITIVE]:.0f} us; {ratios}; {row['chosen']}{noisy}"


def geometric(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else float("nan")


def write(document: Row, path: Path) -> None:
    from cpembed.runtime.measurement.environment import provenance

    document.update(provenance())
    path.write_text(json.dumps(document, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(document))


def page(document: Row) -> str:
    from cpembed.runtime.measurement.environment import provenance_lines

    rows = document["rows"]
    lines = [
        "# Methods of convolutions beside oneDNN, float32",
        "",
        "3x3 filters of stride 1, untuned, NHWC, interleaved: `python benchmarks/methods.py`.",
        "Ratios are oneDNN's time, by its own account of its computation, over ours from image to",
        "output, in the same round; above 1 ours is faster. *chosen* is what the model takes,",
        "*noisy* a row that other work on the machine disturbed.",
        "",
        *provenance_lines(document, "one thread"),
        *dict.fromkeys(map(library_line, rows)),
        "",
        "| suite | layers | "
        + " | ".join(METHODS)
        + " | chosen | best | least of best | best >= 1.2 |",
        "| --- | ---: |" + " ---: |" * (len(METHODS) + 4),
    ]
    for suite in [*dict.fromkeys(row["suite"] for row in rows), ""]:
        some = [row for row in rows if suite in ("", row["suite"])]
        means = [geometric([r["ratios"][m] for r in some if m in r["ratios"]]) for m in METHODS]
        chosen = geometric([row["ratios"].get(row["chosen"], 1.0) for row in some])
        best = [best_of(row)[1] for row in some]
        reached = sum(ratio >= 1.2 for ratio in best)
        cells = [*means, chosen, geometric(best), min(best)]
        numbers = " | ".join(f"{cell:.2f}" for cell in cells)
        lines.append(f"| {suite or 'all'} | {len(some)} | {numbers} | {reached} of {len(some)} |")
    lines += ["", *disturbed(rows), "Geometric means, but for the last two columns. By layer:", ""]
    lines += ["| layer | oneDNN us | " + " | ".join(METHODS) + " | chosen | noisy |"]
    lines += ["| --- | ---: |" + " ---: |" * len(METHODS) + " --- | --- |"]
    for row in rows:
        ratios = " | ".join(
            f"{row['ratios'][m]:.2f}" if m in row["ratios"] else "" for m in METHODS
        )
        name = row["layer"].removeprefix("conv2d ")
        noisy = "yes" if row["noisy"] else ""
        lines.append(
            f"| {name} | {row['us'][PRIMITIVE]:.0f} | {ratios} | {row['chosen']} | {noisy} |"
        )
    lines += ["", *repeated(document), *errors(rows)]
    return "\n".join(lines) + "\n"


def disturbed(rows: list[Row]) -> list[str]:
    """How far the ratios can be believed."""
    noisy = [row for row in rows if row["noisy"]]
    if not noisy:
        return []
    cores = statistics.median(row["elsewhere_cores"] for row in noisy)
    return [
        f"{len(noisy)} of {len(rows)} rows were disturbed: other processes had {cores:.1f} cores",
        "of the machine meanwhile (median). Single ratios of these may be far off; *best* takes",
        "the largest of several such and is too high by that, *chosen* was decided before anything",
        "was measured.",
        "",
    ]


def library_line(row: Row) -> str:
    found = row["onednn"]
    names = " ".join(found["implementations"])
    limit = f", limited to {found['max_cpu_isa']}" if found["max_cpu_isa"] else ""
    return f"- oneDNN {found['onednn']} of torch {found['torch']}{limit}: {names}"


def repeated(document: Row) -> list[str]:
    """Rows that were measured again: how far two measurements are apart."""
    rows = document.get("repeats", [])
    if not rows:
        return []
    lines = ["Some layers again, later:", "", "| layer | " + " | ".join(METHODS) + " | chosen |"]
    lines.append("| --- |" + " ---: |" * len(METHODS) + " --- |")
    for row in rows:
        cells = [f"{row['ratios'][m]:.2f}" if m in row["ratios"] else "" for m in METHODS]
        name = row["layer"].removeprefix("conv2d ")
        lines.append(f"| {name} | {' | '.join(cells)} | {row['chosen']} |")
    return [*lines, ""]


def errors(rows: list[Row]) -> list[str]:
    """Largest errors by layer, relative to the largest output."""
    names = [name for name in METHODS if name != "explicit"]
    lines = [
        "Largest error against float64 over the largest output, and in brackets over the bound of",
        "the tile size (`cpembed.transform.methods.accuracy.bound`):",
        "",
        "| layer | " + " | ".join(names) + " |",
        "| --- |" + " ---: |" * len(names),
    ]
    for row in rows:
        cells: list[str] = []
        for name in names:
            about = row["methods"][name]
            if "refused" in about:
                cells.append("")
                continue
            text = f"{about['largest_error'] / about['largest_output']:.1e}"
            if "bound" in about:
                text += f" ({about['largest_error'] / about['bound']:.1e})"
            cells.append(text)
        lines.append(f"| {row['layer'].removeprefix('conv2d ')} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
