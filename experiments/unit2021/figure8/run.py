"""UNIT's figure 8: quantized networks, one image, beside runtimes with oneDNN and others.

    python -m experiments.unit2021.figure8.run                     # all rows that are missing
    python -m experiments.unit2021.figure8.run resnet-18 --again   # one network once more
    python -m experiments.unit2021.figure8.run --quick             # one network, printed only

Writes ``results.json``, ``results.md`` and, if matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; ../README.md says what is counted. Needs onnx and
onnxruntime; openvino, torch and torchao are compared with if they are installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.network_runtimes import RUNTIMES
from benchmarks.network_tables import CPEMBED
from benchmarks.networks import measured
from cpembed.codegen.runtime import thread_count
from experiments.common import (
    Experiment,
    Row,
    bars,
    described,
    geometric_mean,
    markdown_table,
)
from experiments.cpu import PAPER_TARGET, byte_target
from experiments.unit2021.paper import FIGURE8_MEANS, NETWORKS, VNNI_MACHINE

ROUNDS, ROUND_MS = 11, 150.0
TRIES = 3
"""Maximum number of rounds for each undisturbed one."""

ISA_VARIABLE, ISA = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI"
"""Variable and value that limit oneDNN to the paper's instructions on a later processor."""
NATIVE = "native"
"""All instructions of this processor, for one without the paper's."""

PEERS = tuple(name for name in RUNTIMES if name != CPEMBED)

ABOUT = """\
# Quantized networks, one image (UNIT, figure 8)

Written by `run.py`. Measured here: calls from arrays to arrays on all cores of the process, each
runtime in a process of its own, by turns, on the same ONNX file: random weights, int8 in a scale a
channel, uint8 between layers. *over ours*: another runtime's time over that of the library that
`cpembed build` wrote, in the same rounds; above 1 ours is faster. *difference*: between our result
and that of ONNX Runtime without optimizations, in parts of its length. OpenVINO computes by oneDNN,
as the paper's MXNet did; `_f32` keeps float32 between quantized operators, `_unfused` is ONNX
Runtime without joining products with their sums."""

PAPER = f"""\
- the paper: UNIT's speed-up over
  {" and over ".join(f"{name}: {mean}" for name, mean in FIGURE8_MEANS.items())}, geometric means of
  the nine networks, on {VNNI_MACHINE}.
  Its bars are drawn only; by its text, TVM is behind MXNet on resnet-50 and resnet-50_v1b.
- MXNet has ended and TVM no longer has its hand-written schedules: neither is measured here."""


def target() -> str:
    """Return the paper's instruction, or everything that a processor without it has."""
    return PAPER_TARGET if byte_target() == PAPER_TARGET else NATIVE


def compute(key: str, trials: int) -> Row:
    """Quantize and compile a network, and time it in turns with each runtime that is installed."""
    from tests.models.registry import write_int8

    name, threads = NETWORKS[key], thread_count()
    if target() == PAPER_TARGET:
        os.environ.setdefault(ISA_VARIABLE, ISA)
    with tempfile.TemporaryDirectory() as folder:
        model, library = Path(folder) / f"{name}_int8.onnx", Path(folder) / "library"
        write_int8(name, model)
        command = [sys.executable, "-m", "cpembed", "build", str(model), "-o", str(library)]
        subprocess.run([*command, "--target", target()], stdout=subprocess.DEVNULL, check=True)
        paths = {runtime: library if runtime == CPEMBED else model for runtime in RUNTIMES}
        row = measured(model, threads, paths, {}, trials, ROUND_MS, TRIES * trials)
    if CPEMBED in row["missing"]:
        raise RuntimeError(f"the library of {key} does not run: {row['missing'][CPEMBED]}")
    return figures(row, trials)


def figures(row: Row, trials: int) -> Row:
    """Return what is stored of a row of ``benchmarks/networks.py``.

    Its times and versions have names of their own, since each row has its origin's besides.
    """
    stored = {name: value for name, value in row.items() if name not in ("seconds", "versions")}
    return {
        **stored,
        "trials": trials,
        "target": target(),
        "times": row["seconds"],
        "runtimes": row["versions"],
    }


def markdown(rows: list[Row]) -> list[str]:
    """Return the table, the means, and what the paper states."""
    present = [name for name in PEERS if any(name in row["ratios"] for row in rows)]
    head = ["network", "ours ms", *(f"{name} ms" for name in present)]
    head += [*(f"{name} over ours" for name in present), "difference", "quiet rounds"]
    cells = [
        [
            row["key"],
            _ms(row, CPEMBED),
            *(_ms(row, name) for name in present),
            *(_ratio(row, name) for name in present),
            f"{row['difference'].get(CPEMBED, float('nan')):.1e}",
            f"{row['rounds']} of {row['of']}",
        ]
        for row in rows
    ]
    return [
        *ABOUT.splitlines(),
        "",
        *markdown_table(head, cells),
        "",
        *_means(rows, present),
        *PAPER.splitlines(),
        *_notes(rows),
    ]


def _ms(row: Row, name: str) -> str:
    times = row["times"].get(name)
    return "—" if times is None else f"{times['median'] * 1e3:.3g}"


def _ratio(row: Row, name: str) -> str:
    value = row["ratios"].get(name)
    return "—" if value is None else f"{value:.2f}"


def _means(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for name in names:
        ratios = [row["ratios"][name] for row in rows if name in row["ratios"]]
        lines.append(
            f"- {name} over ours: geometric mean {geometric_mean(ratios):.2f}, "
            f"{min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} of {len(rows)} networks"
        )
    return lines


def _notes(rows: Sequence[Row]) -> list[str]:
    """Return the targets, the versions of the runtimes, and why some are missing."""
    lines: list[str] = []
    for name in dict.fromkeys(row["target"] for row in rows):
        keys = ", ".join(row["key"] for row in rows if row["target"] == name)
        limit = f", {ISA_VARIABLE}={ISA}" if name == PAPER_TARGET else f": not {PAPER_TARGET}"
        lines.append(f"- compiled for `{name}`{limit}; {keys}")
    versions = {f"{n} {v}" for row in rows for n, v in row["runtimes"].items() if n != CPEMBED}
    lines.append(f"- {', '.join(sorted(versions)) or 'no other runtime'}")
    missing: dict[str, list[str]] = {}
    for row in rows:
        for name, why in row["missing"].items():
            missing.setdefault(f"{name} is left out: {why}", []).append(row["key"])
    return [*lines, *(f"- {text}; {', '.join(keys)}" for text, keys in missing.items())]


def plot(rows: list[Row], folder: Path) -> bool:
    """Draw the ratios of the runtimes that are there for all networks."""
    names = [name for name in PEERS if all(name in row["ratios"] for row in rows)]
    if not names or not rows:
        return False
    values = {name: [row["ratios"][name] for row in rows] for name in names}
    title = "Quantized networks, one image: a runtime's time over ours"
    return bars([row["key"] for row in rows], values, folder / "results.svg", title=title)


def missing(key: str) -> str:
    """Return what this machine lacks; empty if nothing."""
    packages = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
    return f"pip install {' '.join(packages)}" if packages else ""


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=tuple(NETWORKS),
    compute=compute,
    markdown=markdown,
    plot=plot,
    trials=ROUNDS,
    trial_unit="rounds",
    missing=missing,
    quick=("resnet-18",),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
