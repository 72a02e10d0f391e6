"""Compare estimated registers of random kernels with those of ptxas, and look for local memory.

    python -m benchmarks.gpu.registers > registers.md    # 150 kernels, 5 minutes of processor time
    python -m benchmarks.gpu.registers --kernels 20      # the first 20

Needs nvcc and no GPU. Kernels are of random matrix products and convolutions, with random
embeddings and schedules that the limits admit, of both kinds: warps that copy, and warps that bulk
copies feed. Each text is compiled to PTX once, and that for three architectures. Prints the page;
an interrupted run goes on from the rows in ``--output``.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.files import write_whole
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.multistage.registers import most_registers
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan, check
from cpembed.targets.cuda.target import CudaSpace, CudaTarget
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from experiments.common import markdown_table

KERNELS = 150

ARCHITECTURES = ("sm_80", "sm_90a", "sm_120a")

TARGETS = ("mma_f16", "mma_f16", "mma_s8", "mma_f16_f16")
"""Targets of kernels whose warps copy, in turns; every third kernel is fed by bulk copies."""

FED = "mma_f16"
FED_MACHINE = "rtx_5090"

EMBEDDINGS, ATTEMPTS = 6, 400

LENGTHS = (64, 128, 136, 200, 256, 500, 1000, 1024)
CHANNELS, FILTERS = (3, 8, 16, 24, 32, 64, 96, 130, 192, 256), (16, 64, 72, 128, 256, 300)

AnyPlan = Plan | SpecializedPlan


def random_words(rng: random.Random) -> str:
    """Return the words of a random matrix product or convolution."""
    if rng.random() < 0.35:
        sizes: dict[str, object] = {name: rng.choice(LENGTHS) for name in "mnk"}
        sizes |= {"trans_a": rng.randint(0, 1), "trans_b": rng.randint(0, 1)}
        return " ".join(["gemm", *(f"{name}={value}" for name, value in sizes.items())])
    taps = rng.choice((1, 3, 3, 5, 7))
    sizes = {
        "n": rng.choice((1, 4, 16)),
        "c": rng.choice(CHANNELS),
        "h": max(taps, rng.choice((7, 14, 28, 56))),
        "w": max(taps, rng.choice((7, 14, 28, 56))),
        "k": rng.choice(FILTERS),
        "r": taps,
        "s": taps,
        "pad": rng.choice((0, 1, taps // 2)),
        "stride": rng.choice((1, 1, 2)),
        "layout": rng.choice(("NHWC", "NHWC", "NCHW")),
    }
    return " ".join(["conv2d", *(f"{name}={value}" for name, value in sizes.items())])


def random_schedule(rng: random.Random, product: TiledProduct, shared_bytes: int) -> KernelSchedule:
    """Return a random schedule that the limits admit, of few idle warps.

    Parameters
    ----------
    rng : random.Random
        Source of the choices.
    product : TiledProduct
        Product that is scheduled.
    shared_bytes : int
        Shared memory of a block.

    Raises
    ------
    LoweringError
        If none of many schedules fits.
    """
    _, rows, columns, depth = product.tiles
    for _ in range(ATTEMPTS):
        drawn = {name: rng.choice(values) for name, values in CudaSpace.choices.items()}
        layouts = tuple(rng.randrange(len(each)) for each in (product.first, product.second))
        drawn |= {"layouts": layouts, "splits": rng.choice((1, 1, 1, 2))}
        schedule = KernelSchedule(**cast(Any, drawn))
        block = schedule.block
        if 1 < block[0] >= 2 * rows or 1 < block[1] >= 2 * columns or schedule.depth >= 2 * depth:
            continue
        if schedule.splits * schedule.depth > max(1, depth // 2):
            continue
        try:
            check(Plan(product, schedule), shared_bytes)
        except LoweringError:
            continue
        return schedule
    raise LoweringError("no random schedule fits")


def random_kernel(number: int) -> tuple[str, str, AnyPlan, str]:
    """Return target, words, plan and text of a random kernel.

    Raises :class:`LoweringError` if there is none of this number.
    """
    rng = random.Random(number)
    is_fed = number % 3 == 2
    name = FED if is_fed else TARGETS[(number // 3 * 2 + number % 3) % len(TARGETS)]
    spec = hardware_spec(name, machine=FED_MACHINE if is_fed else "a100")
    target, words = CudaTarget(spec), random_words(rng)
    operator = workload(words, target=spec)
    ranked = solve(operator, spec, constraints="fused", top=EMBEDDINGS).embeddings
    if not ranked:
        raise LoweringError("nothing embeds")
    product = target.lower(rng.choice(ranked).candidate.program)
    if is_fed:
        bulk = target.space(product).bulk
        schedules = [item.schedule for item in bulk.plain()] if bulk is not None else []
        if not schedules:
            raise LoweringError("no bulk copies load its factors")
        artifact = target.build(product, rng.choice(schedules))
    else:
        schedule = random_schedule(rng, product, target.gpu.shared_bytes)
        artifact = target.build(product, schedule)
    return name, words, cast(AnyPlan, artifact.plan), artifact.text.source


def ptxas_reports(text: str, virtual: str) -> dict[str, tuple[int, int]]:
    """Return the registers and the bytes of local memory of the product's kernel by architecture.

    Parameters
    ----------
    text : str
        CUDA C++.
    virtual : str
        Architecture of the PTX that all machine code is made of.
    """
    reports: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        source, ptx = Path(folder) / "kernel.cu", Path(folder) / "kernel.ptx"
        source.write_text(text)
        command = ["nvcc", "-ptx", f"-arch={virtual}", "-std=c++17", "-O3", "-o", str(ptx)]
        subprocess.run([*command, str(source)], capture_output=True, check=True)
        for architecture in ARCHITECTURES:
            if int(re.sub(r"\D", "", architecture)) < int(re.sub(r"\D", "", virtual)):
                continue
            command = ["ptxas", "-v", f"-arch={architecture}", "-o", "/dev/null", str(ptx)]
            words = subprocess.run(command, capture_output=True, text=True, check=True).stderr
            report = re.search(
                r"entry function 'product_kernel'.*?(\d+) bytes stack frame, (\d+) bytes spill"
                r".*?Used (\d+) registers",
                words,
                re.S,
            )
            assert report is not None
            reports[architecture] = int(report[3]), int(report[1]) + int(report[2])
    return reports


def compute(number: int) -> dict[str, Any]:
    """Return the row of a random kernel."""
    try:
        name, words, plan, text = random_kernel(number)
    except LoweringError as error:
        return {"number": number, "error": str(error)}
    is_fed = isinstance(plan, SpecializedPlan)
    reports = ptxas_reports(text, "compute_90" if is_fed else "compute_80")
    return {
        "number": number,
        "target": name,
        "fed": is_fed,
        "words": words,
        "schedule": str(plan.schedule),
        "estimated": plan.registers,
        "copies_in_loop": is_fed or cast(Plan, plan).copying > 1,
        "most": plan.most_registers if is_fed else most_registers(cast(Plan, plan)),
        "registers": {name: count for name, (count, _) in reports.items()},
        "local_bytes": {name: size for name, (_, size) in reports.items()},
    }


def kind(row: Mapping[str, Any]) -> str:
    """Return the name of a row's kind of kernels."""
    return "fed by bulk copies" if row["fed"] else row["target"]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page: ratios by kind and architecture, and the rows with local memory."""
    built = [row for row in rows if "error" not in row]
    table: list[list[str]] = []
    for name in sorted({kind(row) for row in built}):
        for architecture in ARCHITECTURES:
            some = [r for r in built if kind(r) == name and architecture in r["registers"]]
            if not some:
                continue
            # ptxas reports what is used, and registers are allocated in units of 8.
            allocated = np.array([-(-row["registers"][architecture] // 8) * 8 for row in some])
            ratios = allocated / np.array([row["estimated"] for row in some])
            beyond = sum(row["registers"][architecture] > row["most"] for row in some)
            spilled = sum(row["local_bytes"][architecture] > 0 for row in some)
            quantiles = [f"{value:.2f}" for value in np.percentile(ratios, (5, 25, 50, 75, 95))]
            table.append(
                [name, architecture, str(len(some)), *quantiles, str(beyond), str(spilled)]
            )
    head = ["kernels", "architecture", "number", "5 %", "25 %", "median", "75 %", "95 %"]
    spills = [
        f"- {row['number']}: {row['target']} `{row['words']}`, {row['schedule']}: "
        f"{row['local_bytes']} bytes"
        for row in built
        if any(row["local_bytes"].values())
    ]
    lines = [
        "# Registers: estimated, and of machine code",
        "",
        "Registers that ptxas of CUDA 13 takes, rounded up to 8, over those that are estimated;",
        "kernels that take more than the most that launch bounds and limits reckon with; kernels",
        "with local memory. Random matrix products and convolutions, with random embeddings and",
        "schedules (`python -m benchmarks.gpu.registers`); nothing was timed.",
        "",
        *markdown_table([*head, "above the most", "local memory"], table),
        "",
        *(spills or ["No kernel has local memory."]),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Compare estimated registers with ptxas's.")
    parser.add_argument("--kernels", type=int, default=KERNELS, help="number of random kernels")
    parser.add_argument("-o", "--output", type=Path, default=Path("registers.json"), help="rows")
    arguments = parser.parse_args()
    path: Path = arguments.output
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    for number in range(len(rows), arguments.kernels):
        rows.append(compute(number))
        print(rows[-1], file=sys.stderr, flush=True)
        write_whole(path, json.dumps(rows, indent=1) + "\n")
    print(markdown(rows), end="")


if __name__ == "__main__":
    main()
