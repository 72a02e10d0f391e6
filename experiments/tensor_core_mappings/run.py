"""What a free choice of the mapping gains on Tensor Cores over two fixed ones, by estimates.

    python experiments/tensor_core_mappings/run.py

Writes ``results.md`` and ``results.json`` into ``--output``, by default beside this file; README.md
says what is compared. No GPU is used: every time is estimated.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.api.solve import solve, workload
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.measure.environment import provenance, provenance_lines
from cpembed.selection.candidate import Candidate
from cpembed.targets.cuda.gpu import Gpu, gpu
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.space import CudaSpace
from cpembed.workloads.suites import suite

HERE = Path(__file__).resolve().parent

TARGET = "wmma_f16"
"""The instruction of the paper's experiment: WMMA of 16 x 16 x 16."""

BATCHES = (1, 16)
LAYOUTS = ("NHWC",)
SETS = ("in_place_padded", "fused", "complete")
"""The last one has fused axes everywhere, also where they save no padding."""

CANDIDATES = 300
SECONDS = 20.0

PAPER = {"im2col": 1.58, "fuse_hw": 1.47}
"""AMOS (ISCA 2022), section 7.4: over its own compiler with one fixed mapping, measured on an
A100, layers of ResNet-18."""

Family = Mapping[str, Sequence[str]]


def is_im2col(family: Family, given: Computation) -> bool:
    """Rows walk all of the image and the batch, the depth the whole window, as far as they have
    more than one step."""
    rows = {axis for axis in ("n", "p", "q") if given.extents[axis] > 1}
    depth = {axis for axis in ("c", "r", "s") if given.extents[axis] > 1}
    return set(family["x"]) == rows and set(family["z"]) == depth


def is_fuse_hw(family: Family, given: Computation) -> bool:
    """Rows walk the image's height and width, the depth the channels."""
    rows = {axis for axis in ("p", "q") if given.extents[axis] > 1}
    return set(family["x"]) == rows and set(family["z"]) == {"c"}


FIXED: dict[str, Callable[[Family, Computation], bool]] = {
    "im2col": is_im2col,
    "fuse_hw": is_fuse_hw,
}


def layers() -> list[int]:
    """Numbers in the suite ``amos`` of its convolutions, ResNet-18's."""
    return [n for n, layer in enumerate(suite("amos")) if layer.application == "C2D"]


def candidates(given: Computation, spec: HardwareSpec) -> list[Candidate]:
    """Of each set, the best embedding of each family."""
    found: dict[object, Candidate] = {}
    for constraints in SETS:
        solved = solve(given, spec, constraints, top=CANDIDATES, timeout=SECONDS)
        for ranked in solved.embeddings:
            family = tuple(ranked.candidate.embedding.family.values())
            found.setdefault((constraints, family), ranked.candidate)
    return list(found.values())


def measure(
    number: int, batch: int, layout: str, spec: HardwareSpec, machine: Gpu
) -> dict[str, Any]:
    """The best estimate of all mappings, and of each fixed one; microseconds, packing included."""
    label = suite("amos")[number].label.replace("n=1 ", f"n={batch} ")
    given = workload(f"{label} layout={layout}", target=spec)
    times: dict[str, tuple[float, str]] = {}
    for candidate in candidates(given, spec):
        try:
            best = CudaSpace(lower(candidate.program, spec), machine).best()
        except LoweringError:
            continue
        family = candidate.embedding.family
        words = " ".join(f"{axis}<-{''.join(by) or '-'}" for axis, by in family.items())
        names = ["free", *(name for name, holds in FIXED.items() if holds(family, given))]
        for name in names:
            if name not in times or best.cost < times[name][0]:
                times[name] = best.cost, words
    return {
        "layer": number,
        "workload": str(given),
        "sizes": dict(given.extents),
        "batch": batch,
        "layout": layout,
        "us": {name: round(us, 3) for name, (us, _) in times.items()},
        "mapping": {name: words for name, (_, words) in times.items()},
    }


def gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means of how much longer the fixed mappings take, by batch and layout."""
    found: dict[str, Any] = {}
    for name in FIXED:
        for batch in BATCHES:
            for layout in LAYOUTS:
                ratios = [
                    row["us"][name] / row["us"]["free"]
                    for row in rows
                    if (row["batch"], row["layout"]) == (batch, layout) and name in row["us"]
                ]
                if ratios:
                    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                    key = f"{name} batch {batch} {layout}"
                    found[key] = {"mean": round(mean, 3), "most": round(max(ratios), 3),
                                  "layers": len(ratios)}  # fmt: skip
    return found


def markdown(document: Mapping[str, Any]) -> str:
    lines = [
        "# Free and fixed mappings on Tensor Cores, estimated",
        "",
        *provenance_lines(document, "nothing was measured"),
        "",
        "How much longer the best schedule of a fixed mapping takes than that of the best mapping,",
        f"by the model of an {document['gpu']}; geometric means. All times are estimated.",
        "",
        "| fixed mapping | batch | layout | mean | most | layers | paper, measured |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key, value in document["gains"].items():
        name, _, batch, layout = key.split()
        lines.append(
            f"| {name} | {batch} | {layout} | {value['mean']:.2f} | {value['most']:.2f} | "
            f"{value['layers']} | {PAPER[name]} |"
        )
    lines += [
        "",
        "| layer | batch | layout | free (us) | by | im2col | fuse_hw |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in document["rows"]:
        us = row["us"]
        cells = [f"{us[name] / us['free']:.2f}" if name in us else "not tried" for name in FIXED]
        lines.append(
            f"| {row['layer']} | {row['batch']} | {row['layout']} | {us['free']:.2f} | "
            f"{row['mapping']['free']} | {cells[0]} | {cells[1]} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE)
    parser.add_argument("--gpu", default="a100")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--layers", type=int, nargs="*", help="numbers in the suite amos")
    given = parser.parse_args(arguments)
    spec = load_hardware_spec(given.target)
    machine = gpu(spec, given.gpu)
    rows: list[dict[str, Any]] = []
    for batch in BATCHES:
        for layout in LAYOUTS:
            for number in given.layers or layers():
                rows.append(measure(number, batch, layout, spec, machine))
                print(f"batch {batch} {layout} amos:{number}", rows[-1]["us"], file=sys.stderr)
    document = {
        **provenance(),
        "provenance": "estimated",
        "target": given.target,
        "gpu": given.gpu,
        "paper": PAPER,
        "gains": gains(rows),
        "rows": rows,
    }
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    (given.output / "results.md").write_text(markdown(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
