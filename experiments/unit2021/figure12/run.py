"""UNIT's figure 12: networks on Arm's dot products, emulated, counted, and estimated.

    python -m experiments.unit2021.figure12.run                # all rows that are missing
    python -m experiments.unit2021.figure12.run --jobs 2       # in two processes
    python -m experiments.unit2021.figure12.run --quick        # a layer by both codes, printed only

A row is a distinct convolution of the nine networks by a code. Writes ``results.json``,
``results.md`` and, if matplotlib is installed, ``results.svg`` into ``--output``, by default beside
this file; ../README.md says what is counted. Needs qemu's user-mode emulation and a C compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.packing import packed_before
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.ir.reference import random_inputs
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.arm.emulator import EmulatedProcessor
from cpembed.targets.cpu.dot_products import column_back_end
from cpembed.targets.cpu.lowering import Lowered
from experiments.common import (
    Experiment,
    Row,
    bars,
    described,
    geometric_mean,
    markdown_table,
)
from experiments.unit2021.figure12.counting import (
    CLASSES,
    Counts,
    counted,
    counting_needs,
    emulator_version,
    least_cycles,
)
from experiments.unit2021.figure12.neon import NEON_PRODUCTS
from experiments.unit2021.networks import layers
from experiments.unit2021.paper import ARM_MACHINE, FIGURE12_CUT, FIGURE12_MEAN, NETWORKS

TARGET = "arm_sdot"
DOT, NEON = "sdot", "neon"
CODES = (DOT, NEON)
"""Codes of a layer: the kernel of the dot products, and the same one in the instructions of a core
without them, for TVM-NEON in the chart. Nothing stands for its third bar, TVM's hand-written
schedules for DOT."""

CUT = ", ".join(map(str, FIGURE12_CUT))

CLOCK_GHZ = 2.3
"""Clock of the paper's machine, as the paper states it."""

NAMES = tuple(layers())
"""Distinct convolutions of the networks, in the order of their table."""
KEYS = tuple(f"{number}/{code}" for number in range(len(NAMES)) for code in CODES)

SMALLEST = NAMES.index("conv2d n=1 c=576 h=7 w=7 k=160 r=1 s=1 pad=0 stride=1")
"""A layer of few products."""
QUICK = tuple(f"{SMALLEST}/{code}" for code in CODES)

ABOUT = f"""\
# Networks on Arm's dot products, emulated (UNIT, figure 12)

Written by `run.py`. **Executed** by qemu's user-mode emulation, each result compared with the
reference bit for bit. **Counted**: the instructions of the convolutions' contractions.
**Estimated**, not measured: the time that the issue pipelines of one Neoverse N1 at {CLOCK_GHZ} GHz
need for so many instructions; caches, memory and waiting for results cost nothing, so that a core
takes longer. *with packing*: each image is packed and each result unpacked besides, which layouts
over a network avoid. `sdot` is the kernel of `{TARGET}`, `neon` the same one without SDOT, whose
products take six instructions; depthwise layers have nothing to sum over, and one kernel for both,
of four lanes (`arm_int8`)."""

PAPER = f"""\
- UNIT over TVM's hand-written schedules for DOT, as stated: {FIGURE12_MEAN}. Nothing stands for
  them here; `neon` stands for the chart's baseline, TVM-NEON.
- the paper measured on {ARM_MACHINE}. Its bars are
  drawn only; those that leave the axis at 8 times TVM-NEON are labelled {CUT}.
- fully connected layers, pooling and additions are not counted."""

PARTS = ("packing", "contraction", "unpacking")


def compute(key: str) -> Row:
    """Execute a layer under emulation, one program for each step, and count."""
    number, code = key.split("/")
    name = NAMES[int(number)]
    spec = hardware_spec(TARGET)
    computation = workload([*name.split(), "layout=NHWC"], target=spec)
    selection = choose(Request(computation, spec, KernelOptions(untuned=True)))
    if not isinstance(selection, Selection):
        raise RuntimeError(f"{name} does not embed {TARGET}: {selection.status}")
    kernel = compiled(selection, code)
    inputs, ahead = random_inputs(computation, 0), packed_before(computation)
    late = [name for name in kernel.input_names if name not in ahead]
    # Weights are packed ahead of time, which does not count.
    packed = {n: kernel.pack(n, inputs[n]) for n in kernel.input_names if n in ahead}
    images, packing = counted(lambda: {n: kernel.pack(n, inputs[n]) for n in late})
    sums, contraction = counted(lambda: kernel.execute({**packed, **images}))
    output, unpacking = counted(lambda: kernel.unpack(sums))
    Expected(computation, inputs).judge(output).require(f"the {code} kernel of {name}", 0)
    counts = dict(zip(PARTS, (packing, contraction, unpacking), strict=True))
    return {
        "layer": name,
        "backend": kernel.backend,
        "emulator": emulator_version(),
        "macs": computation.macs,
        "verified": True,
        "counts": counts,
        "least_us": {part: least_us(counts[part]) for part in PARTS},
    }


def compiled(selection: Selection, code: str) -> CompiledKernel:
    """Compile the kernel that was chosen, or the same one without dot products, to be emulated.

    The emulator executes it on a core of Arm too, where instructions could not be counted.
    """
    target, choice = selection.plan.target, selection.choice
    program, processor = choice.ranked.candidate.program, EmulatedProcessor()
    lowered = replace(target.lower(program), processor=processor)
    # A depthwise layer's kernel has no dot products: it is that of both codes.
    if code == NEON and target.spec.name == TARGET:
        back_end = column_back_end(NEON_PRODUCTS)
        lowered = Lowered.from_program(program, back_end, None, target.machine, processor)
    return lowered.compiled(choice.schedule)


def least_us(counts: Counts) -> float:
    """Return the microseconds that a core's pipelines need at least: an estimate."""
    return round(least_cycles(counts) / CLOCK_GHZ / 1e3, 3)


def network_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the sums over each network whose layers are all there, by each code.

    ``instructions`` and ``us`` are those of the contractions, ``us_with_packing`` of all steps.
    """
    by_key = {row["key"]: row for row in rows}
    sums: list[Row] = []
    for network in NETWORKS:
        counts = {n: layers()[name].get(network, 0) for n, name in enumerate(NAMES)}
        for code in CODES:
            keys = {f"{n}/{code}": count for n, count in counts.items() if count}
            if not keys.keys() <= by_key.keys():
                continue
            parts = [(by_key[key], count) for key, count in keys.items()]
            sums.append(
                {
                    "network": network,
                    "code": code,
                    "layers": sum(count for _, count in parts),
                    "macs": sum(count * row["macs"] for row, count in parts),
                    "instructions": sum(n * instructions(row) for row, n in parts),
                    "us": sum(n * row["least_us"]["contraction"] for row, n in parts),
                    "us_with_packing": sum(n * sum(row["least_us"].values()) for row, n in parts),
                }
            )
    return sums


def instructions(row: Row) -> int:
    """Return the instructions of a layer's contraction."""
    return sum(row["counts"]["contraction"].values())


def markdown(rows: list[Row]) -> list[str]:
    """Return the networks, what the paper states, and the layers."""
    return [
        *ABOUT.splitlines(),
        "",
        *_network_table(network_rows(rows)),
        "",
        *PAPER.splitlines(),
        *(f"- executed by {name}" for name in dict.fromkeys(row["emulator"] for row in rows)),
        "",
        "## Layers",
        "",
        *_layer_table(rows),
        "",
    ]


def _network_table(sums: Sequence[Row]) -> list[str]:
    pairs = {(row["network"], row["code"]): row for row in sums}
    lines: list[list[str]] = []
    ratios: list[float] = []
    for network in NETWORKS:
        dot, neon = pairs.get((network, DOT)), pairs.get((network, NEON))
        if dot is None or neon is None:
            continue
        ratios.append(neon["us"] / dot["us"])
        lines.append(
            [
                network,
                f"{dot['macs'] / 1e6:,.0f}",
                f"{dot['instructions'] / 1e6:,.1f}",
                f"{neon['instructions'] / 1e6:,.1f}",
                f"{neon['instructions'] / dot['instructions']:.2f}",
                f"{dot['us'] / 1e3:.2f}",
                f"{neon['us'] / 1e3:.2f}",
                f"{ratios[-1]:.2f}",
                f"{neon['us_with_packing'] / dot['us_with_packing']:.2f}",
            ]
        )
    absent = [network for network in NETWORKS if all(line[0] != network for line in lines)]
    table: list[str] = []
    if lines:
        head = ["network", "10^6 products", f"10^6 instructions, {DOT}", NEON, "ratio"]
        head += [f"estimated ms, {DOT}", NEON, "ratio", "ratio with packing"]
        mean = f"Geometric mean of the estimated ratio: {geometric_mean(ratios):.2f}."
        table = [*markdown_table(head, lines), "", mean]
    if absent:
        table += ["", f"Rows of layers are missing for {', '.join(absent)}."]
    return table


def _layer_table(rows: Sequence[Row]) -> list[str]:
    head = ("", "layer", "executed by", *CLASSES, "products an instruction", "estimated us")
    cells = [
        (
            row["key"],
            f"`{row['layer']}`",
            row["backend"],
            *(f"{row['counts']['contraction'][name]:,}" for name in CLASSES),
            f"{row['macs'] / instructions(row):.2f}",
            f"{row['least_us']['contraction']:,.1f}",
        )
        for row in rows
    ]
    return markdown_table(head, cells)


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the estimated ratios of the networks, beside the paper's mean over another baseline."""
    pairs = {(row["network"], row["code"]): row["us"] for row in network_rows(rows)}
    names = [name for name in NETWORKS if {(name, DOT), (name, NEON)} <= pairs.keys()]
    if not names:
        return False
    ratios = [pairs[name, NEON] / pairs[name, DOT] for name in names]
    title = "Convolutions of networks on Arm, estimated: time without dot products over with"
    return bars(names, {"neon over sdot": ratios}, folder / "results.svg", title=title)


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=KEYS,
    compute=compute,
    markdown=markdown,
    plot=plot,
    trials=None,
    missing=lambda key: counting_needs(),
    quick=QUICK,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
