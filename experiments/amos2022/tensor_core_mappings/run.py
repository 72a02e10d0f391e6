"""Gains of a free choice of the mapping on Tensor Cores over two fixed ones, by estimates.

    python -m experiments.amos2022.tensor_core_mappings.run

Writes ``results.md`` and ``results.json`` into ``--output``, by default beside this file; README.md
says what is compared. No GPU is used: every time is estimated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.driver.bench_pack import PackItem
from cpembed.driver.named import workload
from cpembed.hw.loader import load_hardware_spec
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.targets.cuda.pack.selection import FIXED, select
from cpembed.targets.registry import open_target
from cpembed.workloads.suites import suite
from experiments.common import geometric_mean, results_parser, write_results

FOLDER = Path(__file__).resolve().parent

TARGET = "wmma_f16"
"""The instruction of the paper's experiment: WMMA of 16 x 16 x 16."""

BATCHES = (1, 16)
PAPER = {"im2col": 1.58, "fuse_hw": 1.47}
"""AMOS (ISCA 2022), section 7.4: over its own compiler with one fixed mapping, measured on an
A100, layers of ResNet-18."""


def layers() -> list[int]:
    """Return the numbers in the suite ``amos`` of its convolutions, ResNet-18's."""
    return [n for n, layer in enumerate(suite("amos")) if layer.application == "C2D"]


def measure(number: int, batch: int, target: str) -> dict[str, Any]:
    """Return the best estimate of all mappings, and of each fixed one.

    Estimates are microseconds, packing included.

    Parameters
    ----------
    number : int
        Number of the layer in the suite ``amos``.
    batch : int
        Batch of the layer.
    target : str
        Name of the specification.
    """
    label = suite("amos")[number].label.replace("n=1 ", f"n={batch} ")
    words, spec = f"{label} layout=NHWC", load_hardware_spec(target)
    computation = workload(words, target=spec)
    item = PackItem(suite="amos", name=label, words=words, workload=computation, spec=spec)
    us: dict[str, float] = {}
    mapping: dict[str, str] = {}
    for selected in select(computation, open_target(spec), item.candidates(), None, 1):
        family = selected.ranked.candidate.embedding.family
        for role in selected.roles:
            name = "free" if role == "chosen 1" else role
            us[name] = round(selected.estimated_us, 3)
            mapping[name] = " ".join(
                f"{axis}<-{''.join(axes) or '-'}" for axis, axes in family.items()
            )
    sizes = dict(computation.extents)
    return {"layer": number, "sizes": sizes, "batch": batch, "us": us, "mapping": mapping}


def gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ratios of the fixed mappings to the best one, by batch: means and maxima."""
    gains_by_mapping: dict[str, Any] = {}
    for name in FIXED:
        for batch in BATCHES:
            ratios = [
                row["us"][name] / row["us"]["free"]
                for row in rows
                if row["batch"] == batch and name in row["us"]
            ]
            if ratios:
                gains_by_mapping[f"{name} batch {batch}"] = {
                    "mean": round(geometric_mean(ratios), 3),
                    "most": round(max(ratios), 3),
                    "layers": len(ratios),
                }
    return gains_by_mapping


def markdown(document: Mapping[str, Any]) -> str:
    """Return the tables."""
    lines = [
        "# Free and fixed mappings on Tensor Cores, estimated",
        "",
        *provenance_lines(document, "nothing was measured"),
        "",
        "How much longer the best schedule of a fixed mapping takes than that of the best mapping,",
        f"by the model of an {document['gpu']}; geometric means. All times are estimated.",
        "",
        "| fixed mapping | batch | mean | most | layers | paper, measured |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for key, value in document["gains"].items():
        name, _, batch = key.split()
        lines.append(
            f"| {name} | {batch} | {value['mean']:.2f} | {value['most']:.2f} | "
            f"{value['layers']} | {PAPER[name]} |"
        )
    lines += [
        "",
        "| layer | batch | free (us) | by | im2col | fuse_hw |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in document["rows"]:
        us = row["us"]
        cells = [f"{us[name] / us['free']:.2f}" if name in us else "no kernel" for name in FIXED]
        lines.append(
            f"| {row['layer']} | {row['batch']} | {us['free']:.2f} | "
            f"{row['mapping']['free']} | {cells[0]} | {cells[1]} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = results_parser(__doc__, FOLDER)
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--layers", type=int, nargs="*", help="numbers in the suite amos")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for batch in BATCHES:
        for number in options.layers or layers():
            rows.append(measure(number, batch, options.target))
            print(f"batch {batch} amos:{number}", rows[-1]["us"], file=sys.stderr)
    document = {
        **provenance(),
        "provenance": "estimated",
        "target": options.target,
        "gpu": "a100",
        "paper": PAPER,
        "gains": gains(rows),
        "rows": rows,
    }
    write_results(options.output, document, markdown(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
