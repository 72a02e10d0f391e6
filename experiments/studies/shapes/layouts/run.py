"""Effect of layouts between layers on the choice of the shape of a matrix product.

    for name in resnet18 resnet50 inception_v3 mobilenet_v2; do
        python -m tests.models $name --int8 -o MODELS/${name}_int8.onnx
    done
    python -m experiments.studies.shapes.layouts.run MODELS    # 9 minutes on one core

For every ``MODELS/*_int8.onnx`` the best shape and the best two of powers of two within 256 MACs:
by executions alone, with each layer's packing, and with tensors that stay packed between layers.
Each choice is then judged by the last measure: executions and copied bytes, ``--packing`` of which
are an execution, with the best embeddings and layouts that its shapes allow. Writes
``results.json`` and ``results.md`` into ``--output``, by default beside this file. All figures are
computed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.exploration.shapes.finding import find_shapes
from cpembed.exploration.shapes.layout_search import LayoutSearch
from cpembed.exploration.shapes.network import network_of
from cpembed.exploration.shapes.question import DEFAULT_SET, Question, tabulate
from cpembed.exploration.shapes.shape import Cost, Model, Scope, Shape, read_layers, template
from cpembed.runtime.cluster import Workers, open_workers
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.steps import silent
from cpembed.time_limit import Clock
from experiments.common import results_parser, write_results

FOLDER = Path(__file__).resolve().parent
SCOPE = Scope(256, powers=True)
MEASURES = {
    "executions": "executions alone",
    "packing": "each layer's packing",
    "layouts": "layouts between layers",
}


def question_of(measure: str, count: int, packing: int) -> Question:
    """Return the question for the best shapes by a measure.

    Parameters
    ----------
    measure : str
        Key of :data:`MEASURES`.
    count : int
        Number of shapes.
    packing : int
        Number of copied bytes that are worth an execution.
    """
    cost = Cost(None if measure == "executions" else packing)
    constraints = load_constraint_set(DEFAULT_SET)
    return Question(SCOPE, count, constraints, cost, layouts=measure == "layouts")


def judged(model: Path, shapes: list[Shape], packing: int, workers: Workers) -> dict[str, Any]:
    """Return the executions and copied bytes of given shapes.

    Tensors stay packed between layers.

    Parameters
    ----------
    model : Path
        File of the network.
    shapes : list of Shape
        The shapes of a choice.
    packing : int
        Number of copied bytes that are worth an execution.
    workers : Workers
        Processes.
    """
    layers = read_layers(Model(str(model)), template())
    question = question_of("layouts", len(shapes), packing)
    tables = tabulate(layers, question, workers, silent)
    network = network_of(layers, frozenset(n for n, t in enumerate(tables) if t.reason is None))
    places = {tuple(map(int, row)): n for n, row in enumerate(SCOPE.shapes)}
    columns = [places[shape.x, shape.y, shape.z] for shape in shapes]
    executions = np.stack([tables[n].executions[columns] for n in network.computations])
    search_result = LayoutSearch(network, question, shapes, executions, Clock(None)).run(
        workers, silent
    )
    moved_bytes = sum(copy.moved_bytes for copy in search_result.best.copies)
    total = (search_result.best.cost - moved_bytes) / packing
    return {
        "executions": int(total),
        "copied_bytes": moved_bytes,
        "cost": search_result.best.cost / packing,
    }


def examine(model: Path, count: int, packing: int, workers: Workers) -> dict[str, Any]:
    """Choose shapes by each measure.

    Parameters
    ----------
    model : Path
        File of the network.
    count : int
        Number of shapes.
    packing : int
        Number of copied bytes that are worth an execution.
    workers : Workers
        Processes.
    """
    row: dict[str, Any] = {"model": model.stem, "shapes": count}
    for measure in MEASURES:
        choice = find_shapes(
            Model(str(model)), question_of(measure, count, packing), workers, silent
        )
        shapes = list(choice.shapes)
        row[measure] = {
            "best": [list(shape.extents.values()) for shape in shapes],
            "proven": choice.proven,
            **judged(model, shapes, packing, workers),
        }
    return row


def markdown(document: dict[str, Any]) -> str:
    """Return the table."""
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
        for measure, title in MEASURES.items():
            choice = row[measure]
            best = ", ".join("x".join(map(str, shape)) for shape in choice["best"])
            state = "" if choice["proven"] else " (not proven)"
            lines.append(
                f"| {row['model']} | {row['shapes']} | {title} | {best}{state} "
                f"| {choice['executions']:,} | {choice['copied_bytes']:,} "
                f"| {choice['cost'] / row['layouts']['cost']:.4f}x |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the command."""
    parser = results_parser(__doc__, FOLDER)
    parser.add_argument("models", type=Path)
    parser.add_argument("--packing", type=int, default=16)
    options = parser.parse_args()
    models = sorted(options.models.glob("*_int8.onnx"))
    if not models:
        sys.exit(f"{options.models} has no *_int8.onnx: write some with python -m tests.models")
    document: dict[str, Any] = {**provenance(), "packing": options.packing, "rows": []}
    with open_workers() as workers:
        for model in models:
            for count in (1, 2):
                document["rows"].append(examine(model, count, options.packing, workers))
                print(model.stem, count, file=sys.stderr)
    write_results(options.output, document, markdown(document))


if __name__ == "__main__":
    main()
