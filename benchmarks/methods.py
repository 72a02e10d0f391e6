"""Compare the methods of a convolution with oneDNN: float32, 3x3 filters of stride 1.

    cpembed calibrate --threads 1
    python -m benchmarks.methods [--suites vgg16 resnet50 unit16 deepbench] [--target avx512_f32]

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
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.documents import read_document, write_document

FOLDER = Path(__file__).resolve().parent
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
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--suites", nargs="*", default=SUITES, choices=SUITES)
    parser.add_argument("--target", default="avx512_f32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeat", action="store_true", help="measure again, beside what is there")
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = "1"
    path = options.output / "methods.json"
    document: Row = read_document(path) if path.exists() else {"rows": []}
    rows: list[Row] = document.setdefault("repeats" if options.repeat else "rows", [])
    measured_rows = rows[:0] if options.repeat else rows
    skipped = {(row["target"], row["layer"]) for row in measured_rows}
    for suite, layer in layers(options.suites):
        if (options.target, layer.label) in skipped:
            continue
        row = {"suite": suite, "layer": layer.label, "target": options.target}
        row |= measured(layer, options.target, options.rounds)
        print(line(row), flush=True)
        rows.append(row)
        write(document, path)
    write(document, path)


def layers(suites: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield suite and layer; of equal layers the first."""
    from cpembed.workloads.suites import Layer, suite

    labels: set[str] = set()
    for name in suites:
        if name == "vgg16":
            pattern = "conv2d n=1 c={0} h={2} w={2} k={1} r=3 s=3 pad=1 stride=1"
            suite_layers = [
                Layer(name, i, "", pattern.format(*sizes)) for i, sizes in enumerate(VGG16)
            ]
        else:
            suite_layers = list(suite(name))
        for layer in suite_layers:
            sizes = layer.parameters
            dense = sizes.get("stride", "1") == "1" and sizes.get("r") == sizes.get("s") == "3"
            if dense and layer.label not in labels:
                labels.add(layer.label)
                yield name, layer


def measured(layer: Any, target: str, rounds: int) -> Row:
    """Return errors, times and ratios of one layer.

    Parameters
    ----------
    layer : Layer
        A layer of a suite.
    target : str
        Name of the target.
    rounds : int
        Number of rounds.
    """
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
    request = Request(workload, target, KernelOptions(untuned=True))
    implicit = choose(request)
    assert isinstance(implicit, Selection)
    compared = fastest(request, implicit)
    inputs = random_inputs(workload, seed=0)
    sides: dict[str, Work] = {}
    row: Row = {
        "macs": workload.macs,
        "chosen": "implicit" if compared is None else compared.name,
        "estimates_us": {} if compared is None else dict(compared.estimates),
        "methods": {},
    }
    for method in METHODS:
        call, about = prepared(method, request, implicit, inputs)
        if call is not None:
            sides[method] = Work(wall_clock(call), OUR_POOL)
        row["methods"][method] = about
    contenders = library.contenders(Subject.from_layer(layer, workload, LAYOUT), inputs)
    assert not isinstance(contenders, NotCovered), contenders
    best = min(contenders, key=lambda form: min(form.primitives(3).us for _ in range(3)))
    sides[PRIMITIVE] = Work(lambda calls: best.primitives(calls).us, library.pool)
    sides[CALL] = Work(wall_clock(best.run), library.pool)
    timing = time_interleaved(sides, rounds=rounds, attempts=2)
    names = list(best.primitives(1).names)
    row["onednn"] = {"form": best.form, "implementations": names, **library.identity()}
    row["us"] = {name: timing.times(name).median for name in sides}
    row["ratios"] = {n: timing.ratio(PRIMITIVE, n).median for n in sides if n in METHODS}
    row["noisy"], row["elsewhere_cores"] = timing.is_noisy, timing.elsewhere
    return row


def prepared(
    method: str, request: Any, implicit: Any, inputs: Row
) -> tuple[Callable[[], Any] | None, Row]:
    """Return a call from image to output and the error of a method.

    None instead of the call if the method is rejected.

    Parameters
    ----------
    method : str
        Name of the method.
    request : Request
        The layer on its target.
    implicit : Selection
        Choice of the implicit method.
    inputs : dict of str to array
        Image and weights.
    """
    import numpy as np

    from cpembed.driver.methods import planned_method
    from cpembed.driver.run import built, judged
    from cpembed.errors import LoweringError, WorkloadError
    from cpembed.ir.reference import reference
    from cpembed.targets.choice import built_first
    from cpembed.transform.methods.convolution import explicit

    workload = request.workload
    wide = workload.with_dtypes({operand.name: "float64" for operand in workload.operands})
    if method == "implicit":
        kernel, _ = built_first(implicit.plan.target, implicit.plan.choices)
        packed = {name: kernel.pack(name, inputs[name]) for name in kernel.input_names}
        output = kernel.empty(workload.output.name)
        call = kernel.bound_whole(inputs, packed, ("W",), output)
        call()
        result, judge = kernel.unpack(output), explicit(workload)
    else:
        try:
            artifact, _ = built(rewritten := planned_method(request, cast(Any, method)))
        except (LoweringError, WorkloadError) as error:
            return None, {"refused": str(error)}
        result, judge = artifact.run(inputs), rewritten.method
        call = artifact.bound_whole(inputs)
    verification, error = judged(judge, inputs, result)
    verification.require(method, 0)
    exact = reference(wide, {name: array.astype(np.float64) for name, array in inputs.items()})
    off = np.abs(result.astype(np.float64) - exact)
    about = {"largest_error": float(off.max()), "largest_output": float(np.abs(exact).max())}
    return call, about | ({} if error is None else {"bound": error.bound})


def best_of(row: Row) -> tuple[str, float]:
    """Return the fastest method as measured, and its ratio."""
    return max(row["ratios"].items(), key=lambda item: item[1])


def line(row: Row) -> str:
    """Return a row as a line."""
    ratios = "  ".join(f"{name} {ratio:.2f}" for name, ratio in row["ratios"].items())
    noisy = " noisy" if row["noisy"] else ""
    return f"{row['layer']}: onednn {row['us'][PRIMITIVE]:.0f} us; {ratios}; {row['chosen']}{noisy}"


def geometric(values: list[float]) -> float:
    """Return the geometric mean; NaN of nothing."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else float("nan")


def write(document: Row, path: Path) -> None:
    """Write the document and its page."""
    from cpembed.runtime.measurement.environment import provenance

    document.update(provenance())
    write_document(path, document)
    path.with_suffix(".md").write_text(page(document))


def page(document: Row) -> str:
    """Return the page."""
    from cpembed.runtime.measurement.environment import provenance_lines

    rows = document["rows"]
    lines = [
        "# Methods of convolutions beside oneDNN, float32",
        "",
        "3x3 filters of stride 1, untuned, NHWC, interleaved: `python -m benchmarks.methods`.",
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
        group = [row for row in rows if suite in ("", row["suite"])]
        means = [geometric([r["ratios"][m] for r in group if m in r["ratios"]]) for m in METHODS]
        choice = geometric([row["ratios"].get(row["chosen"], 1.0) for row in group])
        best = [best_of(row)[1] for row in group]
        reached = sum(ratio >= 1.2 for ratio in best)
        cells = [*means, choice, geometric(best), min(best)]
        numbers = " | ".join(f"{cell:.2f}" for cell in cells)
        lines.append(f"| {suite or 'all'} | {len(group)} | {numbers} | {reached} of {len(group)} |")
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
    """Return a warning on rows that other work disturbed."""
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
    """Return the versions of oneDNN and its implementations."""
    library = row["onednn"]
    names = " ".join(library["implementations"])
    limit = f", limited to {library['max_cpu_isa']}" if library["max_cpu_isa"] else ""
    return f"- oneDNN {library['onednn']} of torch {library['torch']}{limit}: {names}"


def repeated(document: Row) -> list[str]:
    """Return the rows that were measured again, to show how far two measurements are apart."""
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
    """Return the largest errors by layer, relative to the largest output."""
    names = [name for name in METHODS if name != "explicit"]
    lines = [
        "Largest error against float64 over the largest output, and in brackets over the bound of",
        "the tile size (`cpembed.transform.methods.error_growth.bound`):",
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
