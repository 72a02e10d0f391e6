"""Compile the kernels of 120 workloads for three GPUs, and emulate small versions of them.

    python -m experiments.studies.tensor_core_workloads.run            # all rows that are missing
    python -m experiments.studies.tensor_core_workloads.run unit16:3   # these

Writes ``results.json`` and ``results.md`` into ``--output``, by default beside this file; README.md
says what is checked. It can be stopped at any time and started again.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import CpembedError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.targets.cuda.executor import COMPILER
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.schedule import KernelSchedule
from cpembed.targets.cuda.target import CudaTarget
from cpembed.targets.verification import verified
from cpembed.workloads.suites import suite
from experiments.common import Experiment, Row, described, markdown_table

TARGET = "mma_f16"

MACHINES = {"a100": "sm_80", "h100": "sm_90a", "rtx_5090": "sm_120a"}
"""GPUs whose figures choose the schedules, and the architecture that nvcc compiles for."""

SUITES = {
    "unit16": 1,
    "unit_conv3d": 1,
    "resnet18": 1,
    "resnet50": 1,
    "amos": 3,
    "deepbench": 6,
    "gemm": 8,
    "attention": 8,
}
"""Suites, and the step among their layers that have products: 120 in all."""

CONSTRAINTS = "fused"
EMBEDDINGS = 8
"""Number of embeddings, best by overheads, whose estimates are compared: as `run` does."""

LAYOUTS = {"conv1d": "NWC", "conv2d": "NHWC", "conv3d": "NDHWC", "depthwise": "NHWC"}

SMALL = {
    "h": 9,
    "w": 10,
    "d": 5,
    "c": 32,
    "k": 24,
    "m": 33,
    "n": 40,
    "b": 2,
    "l": 12,
    "u": 4,
    "v": 4,
}
"""Greatest sizes of the small versions; windows, strides and paddings stay."""


def words_of(key: str) -> str:
    """Return the words of a row's workload, channels last where there is such a layout."""
    name, _, number = key.partition(":")
    layer = suite(name)[int(number)]
    layout = LAYOUTS.get(layer.operator.name)
    return layer.label if layout is None else f"{layer.label} layout={layout}"


def keys() -> Iterator[str]:
    """Yield the rows: suite and number of a layer."""
    for name, step in SUITES.items():
        layers = [layer for layer in suite(name) if has_product(layer.application)]
        yield from (f"{name}:{layer.index}" for layer in layers[::step])


def has_product(application: str) -> bool:
    """True unless an operator of AMOS only adds: means, variances and scans."""
    return application not in ("MEN", "VAR", "SCN")


def small_words(words: str) -> str:
    """Return a workload of the same operator and windows, of few elements.

    >>> small_words("conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 layout=NHWC")
    'conv2d n=1 c=32 h=9 w=10 k=24 r=3 s=3 pad=1 layout=NHWC'
    """
    operator, *settings = words.split()
    sizes = dict(setting.split("=") for setting in settings)
    # A matrix product is deep where a convolution has channels.
    most = {**SMALL, "k": 80} if "gem" in operator else SMALL
    for name, value in sizes.items():
        if name in most and value.isdigit():
            # An image is at least as large as its window.
            window = {"h": "r", "w": "s", "d": "t"}.get(name, "")
            least = int(sizes[window]) if sizes.get(window, "").isdigit() else 1
            sizes[name] = str(min(int(value), max(most[name], least + 2)))
    # Groups divide the channels of a small version, too.
    if sizes.get("groups", "").isdigit():
        sizes |= {"groups": "2", "c": "32", "k": "32"}
    return " ".join([operator, *(f"{name}={value}" for name, value in sizes.items())])


Choice = tuple[TiledProduct, KernelSchedule, float]
"""A product with its schedule, and the estimated microseconds."""


def choose(computation: Computation, spec: HardwareSpec) -> Choice:
    """Return the product and the schedule of the smallest estimate, in microseconds.

    Raises :class:`LoweringError` if nothing has a kernel.
    """
    target, reason = CudaTarget(spec), "nothing embeds"
    best: Choice | None = None
    solved = solve(computation, spec, constraints=CONSTRAINTS, top=EMBEDDINGS)
    for ranked in solved.embeddings:
        try:
            lowered = target.lower(ranked.candidate.program)
            scored = target.space(lowered).best()
        except LoweringError as error:
            reason = str(error)
            continue
        if best is None or scored.cost < best[2]:
            best = lowered, scored.schedule, scored.cost
    if best is None:
        raise LoweringError(reason)
    return best


def compile_kernel(text: str, architecture: str) -> dict[str, Any]:
    """Compile a text with nvcc; warnings are errors. Return registers, spills and its words."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "kernel.cu"
        source.write_text(text)
        command = ["nvcc", "-cubin", f"-arch={architecture}", "-std=c++17", "-Xptxas", "-v"]
        # Functions of the generator's prelude that no kernel calls are no finding.
        command += ["-diag-suppress", "174,177", "-Werror", "all-warnings"]
        command += ["-o", f"{name}/kernel.cubin", str(source)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", process.stderr)
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", process.stderr)]
    report: dict[str, Any] = {
        "compiled": process.returncode == 0,
        "registers": max(registers, default=0),
        "local_bytes": sum(int(frame) + int(stores) for frame, stores in spills),
    }
    return report if report["compiled"] else {**report, "error": process.stderr.strip()[-300:]}


def compute(key: str) -> Row:
    """Compile a row's kernels for all machines, and emulate a small version."""
    words = words_of(key)
    row: Row = {"words": words, "machines": {}}
    for machine, architecture in MACHINES.items():
        spec = hardware_spec(TARGET, machine=machine)
        try:
            lowered, schedule, us = choose(workload(words, target=spec), spec)
            artifact = CudaTarget(spec).build(lowered, schedule)
            report = compile_kernel(artifact.text.source, architecture)
            row["machines"][machine] = {
                "schedule": str(schedule),
                "estimated_us": us,
                **report,
            }
        except CpembedError as error:
            row["machines"][machine] = {"error": str(error)}
    row["small"] = emulate(small_words(words))
    return row


def emulate(words: str) -> dict[str, Any]:
    """Emulate the kernel of a small version, and compare its numbers with the reference."""
    spec = hardware_spec(TARGET)
    target = CudaTarget(spec)
    try:
        computation = workload(words, target=spec)
        lowered, schedule, _ = choose(computation, spec)
        artifact = target.build(lowered, schedule)
        verification, _ = verified(target, artifact, computation, None, seed=1)
    except CpembedError as error:
        return {"words": words, "error": str(error)}
    return {
        "words": words,
        "schedule": str(schedule),
        "verified": verification.verified,
        "largest_error": float(verification.max_error),
    }


def markdown(rows: list[Row]) -> list[str]:
    """Return the tables; README.md says what is checked."""
    counts: Counter[str] = Counter()
    for row in rows:
        for machine, report in row["machines"].items():
            clean = report.get("compiled") and not report["local_bytes"]
            counts[machine] += bool(clean)
        counts["small"] += bool(row["small"].get("verified"))
    lines = markdown_table(
        ["", "kernels", "of"],
        [
            *(
                [f"{MACHINES[machine]}, schedule for {machine}: no warning, no local memory",
                 str(counts[machine]), str(len(rows))]
                for machine in MACHINES
            ),
            ["small versions, emulated: equal to the reference", str(counts["small"]),
             str(len(rows))],
        ],
    )  # fmt: skip
    lines += ["", "What is not among them:", ""]
    lines += list(failures(rows)) or ["- nothing"]
    head = ["row", "workload", *(f"{name}, registers" for name in MACHINES), "small"]
    cells = [
        [
            row["key"],
            f"`{row['words']}`",
            *(str(report.get("registers", "-")) for report in row["machines"].values()),
            "equal" if row["small"].get("verified") else "no kernel",
        ]
        for row in rows
    ]
    return [*lines, "", *markdown_table(head, cells)]


def failures(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each kernel that is missing, does not compile cleanly or is wrong."""
    for row in rows:
        for machine, report in row["machines"].items():
            if "error" in report:
                yield f"- {row['key']}, {machine}: {report['error']}"
            elif report["local_bytes"]:
                yield f"- {row['key']}, {machine}: {report['local_bytes']} bytes of local memory"
        small = row["small"]
        if not small.get("verified"):
            yield f"- {row['key']}, small: {small.get('error', 'wrong numbers')}"


def missing(key: str) -> str:
    """Return what this machine lacks to compute a row."""
    nvcc = () if shutil.which("nvcc") else ("nvcc is not on the path",)
    return "; ".join((*nvcc, *COMPILER.missing()))


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=tuple(keys()),
    compute=compute,
    markdown=markdown,
    trials=None,
    missing=missing,
    quick=("unit16:5",),
    one_origin=True,
)


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
