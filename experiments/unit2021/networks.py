"""The convolutions of the paper's nine networks: ``layers.csv``, and how it is made.

    python -m experiments.unit2021.networks    # writes layers.csv from the builders of tests/models

Each row is a distinct convolution, as the command line names it, with its number in each network.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from cpembed.files import write_whole
from experiments.unit2021.paper import NETWORKS

TABLE = Path(__file__).resolve().parent / "layers.csv"


@cache
def layers() -> dict[str, dict[str, int]]:
    """Return the numbers of each distinct convolution by network, without those of no number."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row["layer"]: {name: int(row[name]) for name in NETWORKS if row[name] != "0"}
        for row in rows
    }


def convolutions(model: Any) -> Counter[str]:
    """Return the convolutions of an ONNX model with shapes, as the command line names them."""
    tensors = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in tensors}
    shapes |= {constant.name: list(constant.dims) for constant in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "Conv"]
    return Counter(_label(node, *(shapes[name] for name in node.input[:2])) for node in nodes)


def _label(node: Any, image: list[int], weights: list[int]) -> str:
    values = {each.name: list(each.ints) or each.i for each in node.attribute}
    (batch, channels, height, width), (filters, depth, rows, columns) = image, weights
    top, left, bottom, right = values["pads"]
    if (top, left) != (bottom, right):
        raise ValueError(f"{node.name} is padded by {values['pads']}, unlike on opposite sides")
    stride, _ = values["strides"]
    pad = top if top == left else f"{top},{left}"
    if depth == channels:
        head = f"conv2d n={batch} c={channels} h={height} w={width} k={filters}"
    elif depth == 1 and filters == channels:
        head = f"depthwise n={batch} c={channels} h={height} w={width}"
    else:
        raise ValueError(f"{node.name} has {channels // depth} groups")
    return f"{head} r={rows} s={columns} pad={pad} stride={stride}"


def main() -> int:
    """Write the table; return the exit code."""
    from tests.models.registry import MODELS

    counts = {name: convolutions(MODELS[builder]()) for name, builder in NETWORKS.items()}
    distinct = dict.fromkeys(label for each in counts.values() for label in each)
    lines = [",".join(("layer", *NETWORKS))]
    for label in distinct:
        cell = f'"{label}"' if "," in label else label
        lines.append(",".join((cell, *(str(counts[name][label]) for name in NETWORKS))))
    write_whole(TABLE, "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
