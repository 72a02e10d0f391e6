"""What layouts between layers change about the shape of a matrix product.

    for name in resnet18 resnet50 inception_v3 mobilenet_v2; do
        python -m tests.models $name --int8 -o MODELS/${name}_int8.onnx
    done
    python experiments/shapes/layouts.py MODELS    # 9 minutes on one core

For every ``MODELS/*_int8.onnx`` the best shape and the best two of powers of two within 256 MACs:
by executions alone, with each layer's packing, and with tensors that stay packed between layers.
Each choice is then judged by the last measure: executions and copied bytes, ``--packing`` of which
are an execution, with the best embeddings and layouts that its shapes allow. Writes
``layouts.json`` and ``layouts.md`` into ``--output``, by default beside this file. All figures are
computed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.exploration.shapes.finding import find_shapes
from cpembed.exploration.shapes.layout_search import LayoutSearch
from cpembed.exploration.shapes.network import network_of
from cpembed.exploration.shapes.question import DEFAULT_SET, Question, tabulate
from cpembed.exploration.shapes.shape import Cost, Model, Scope, Shape, read_layers
from cpembed.runtime.cluster import Workers, open_workers
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.time_limit import Clock

HERE = Path(__file__).resolve().parent
SCOPE = Scope(256, powers=True)
WAYS = {
    "executions": "executions alone",
    "packing": "each layer's packing",
    "layouts": "layouts between layers",
}


def question_of(way: str, count: int, packing: int) -> Question:
    cost = Cost(None if way == "executions" else packing)
    constraints = load_constraint_set(DEFAULT_SET)
    return Question(SCOPE, count, constraints, cost, layouts=way == "layouts")


def judged(model: Path, shapes: list[Shape], packing: int, workers: Workers) -> dict[str, Any]:
    """Executions and copied bytes of given shapes, tensors staying packed between layers."""
    layers = read_layers(Model(str(model)))
    question = question_of("layouts", len(shapes), packing)
    tables = tabulate(layers, question, workers, silent)
    network = network_of(layers, frozenset(n for n, t in enumerate(tables) if t.reason is None))
    places = {tuple(map(int, row)): n for n, row in enumerate(SCOPE.shapes)}
    columns = [places[shape.x, shape.y, shape.z] for shape in shapes]
    executions = np.stack([tables[n].executions[columns] for n in network.computations])
    found = LayoutSearch(network, question, shapes, executions, Clock(None)).run(workers, silent)
    moved = sum(copy.moved_bytes for copy in found.best.copies)
    total = (found.best.cost - moved) / packing
    return {"executions": int(total), "copied_bytes": moved, "cost": found.best.cost / packing}


def silent(what: str, done: int, total: int) -> None:
    pass


def examine(model: Path, count: int, packing: int, workers: Workers) -> dict[str, Any]:
    row: dict[str, Any] = {"model": model.stem, "shapes": count}
    for way in WAYS:
        found = find_shapes(Model(str(model)), question_of(way, count, packing), workers, silent)
        shapes = list(found.shapes)
        row[way] = {
            "best": [list(shape.extents.values()) for shape in shapes],
            "proven": found.proven,
            **judged(model, shapes, packing, workers),
        }
    return row


def markdown(document: dict[str, Any]) -> str:
    lines = [
        "# Shapes and layouts between layers",
        "",
        (
            f"256 MACs, extents of powers of two, {document['packing']} bytes copied worth an "
            "execution; *cost* is executions and copies of each choice, with tensors that stay "
            "packed between layers, relative to the choice that takes them into account."
        ),
        "",
        *provenance_lines(document, "computed"),
        "",
        "| model | shapes | chosen by | best | executions | copied bytes | cost |",
        "| --- | ---: | --- | --- | ---: | ---: | ---: |",
    ]
    for row in document["rows"]:
        for way, words in WAYS.items():
            found = row[way]
            best = ", ".join("x".join(map(str, shape)) for shape in found["best"])
            state = "" if found["proven"] else " (not proven)"
            lines.append(
                f"| {row['model']} | {row['shapes']} | {words} | {best}{state} "
                f"| {found['executions']:,} | {found['copied_bytes']:,} "
                f"| {found['cost'] / row['layouts']['cost']:.4f}x |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--packing", type=int, default=16)
    parser.add_argument("--output", type=Path, default=HERE)
    given = parser.parse_args()
    models = sorted(given.models.glob("*_int8.onnx"))
    if not models:
        sys.exit(f"{given.models} has no *_int8.onnx: write some with python -m tests.models")
    document: dict[str, Any] = {**provenance(), "packing": given.packing, "rows": []}
    with open_workers() as workers:
        for model in models:
            for count in (1, 2):
                document["rows"].append(examine(model, count, given.packing, workers))
                print(model.stem, count, file=sys.stderr)
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "layouts.json").write_text(json.dumps(document, indent=1) + "\n")
    (given.output / "layouts.md").write_text(markdown(document))


if __name__ == "__main__":
    main()
