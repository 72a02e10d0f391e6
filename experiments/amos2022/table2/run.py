# pyright: basic
"""Counts of the operators of each network that an instruction computes, beside AMOS's table 2.

    python -m experiments.amos2022.table2.run

Writes ``results.md``, ``results.json`` and ``layers.csv`` into ``--output``, by default beside this
file; README.md says what is counted and what is expected. The exit code is 1 if a count is not as
expected.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx

from cpembed.driver.across import line
from cpembed.driver.matching import Match, match_in_worker, prepared_for, typed_for
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import WIDER, KernelOptions
from cpembed.driver.plan import Request
from cpembed.frontends import load_model
from cpembed.graph.graph import Graph
from cpembed.graph.kinds.product import Product
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Axis, AxisKind, Computation
from cpembed.ir.expression import Access, Operation
from cpembed.ir.index import IndexExpr
from cpembed.network.match import OperatorMatch, TargetMatch
from cpembed.runtime.measurement.environment import provenance
from cpembed.targets.units import units_of
from experiments.amos2022.table2.networks import NETWORKS, files
from experiments.amos2022.table2.tables import COLUMNS, Column, markdown
from experiments.common import results_parser, write_results

FOLDER = Path(__file__).resolve().parent

TIMEOUT = 60.0
"""Time limit of a search in seconds, so long that none is stopped on a busy machine."""

PRODUCTS = ("Conv", "Gemm", "MatMul")
"""Operators of ONNX that multiply: those that an instruction could compute."""


def multiplying(model: onnx.ModelProto) -> dict[str, str]:
    """Return the operator of each node that multiplies, by the node's name."""
    return {node.name: node.op_type for node in model.graph.node if node.op_type in PRODUCTS}


def with_filter_axis(depthwise: Computation) -> Computation:
    """Return a depthwise convolution with an axis m of one filter a channel."""
    axis, statement = IndexExpr.iterator("m"), depthwise.statement
    value = statement.value
    assert isinstance(value, Operation)
    image, weights = value.args
    assert isinstance(image, Access)
    assert isinstance(weights, Access)
    grown = {weights.operand, statement.store.operand}

    def longer(access: Access) -> Access:
        return replace(access, index=(*access.index, axis))

    statement = replace(
        statement,
        store=longer(statement.store),
        value=replace(value, args=(image, longer(weights))),
    )
    inputs, outputs = (
        tuple(replace(o, shape=(*o.shape, 1)) if o.name in grown else o for o in operands)
        for operands in (depthwise.inputs, depthwise.outputs)
    )
    axes = (Axis("m", 1, AxisKind.SPATIAL), *depthwise.axes)
    return replace(depthwise, axes=axes, inputs=inputs, outputs=outputs, statements=(statement,))


def matched_alone(graph: Graph, column: Column) -> TargetMatch:
    """Match each product of a network by itself, in the model's layout.

    Products of element types that the target does not multiply are matched as if quantized to types
    that it does, since the paper counts operators and no element types.
    """
    spec = hardware_spec(column.target)
    searched = spec if column.alternatives else replace(spec, alternatives=())
    matches: dict[Computation, Match] = {}
    operators: list[OperatorMatch] = []
    for operator in prepared_for(graph, units_of(spec)).operators:
        name, kind = operator.name, operator.kind
        if not isinstance(kind, Product):
            operators.append(OperatorMatch(name, kind.label))
            continue
        layer = replace(kind.computation, name="product")
        typed = typed_for(layer, spec)
        if layer not in matches:
            request = Request(typed, searched, KernelOptions(timeout=TIMEOUT))
            matches[layer] = replace(match_in_worker(request), retyped=typed != layer)
        match = OperatorMatch(
            name,
            kind.label,
            kind.computation,
            layer=list(matches).index(layer),
            match=matches[layer],
            products=1,
            macs=kind.computation.macs,
        )
        operators.append(match)
    return TargetMatch(column.target, tuple(operators), len(matches), (column.target,))


def products_of_nodes(target_match: TargetMatch, names: Mapping[str, str]) -> list[OperatorMatch]:
    """Return the product that does each node's own multiplications.

    Other products of a node's name sum an operand up, for its zero point.
    """
    largest: dict[str, OperatorMatch] = {}
    for product in target_match.matched:
        if product.name not in names:
            raise RuntimeError(f"{product.name} multiplies, but is none of the model's nodes")
        before = largest.get(product.name)
        if before is None or product.macs > before.macs:
            largest[product.name] = product
    return list(largest.values())


def counted(
    graph: Graph, names: Mapping[str, str], column: Column
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a network's counts in a column, and its distinct layers.

    Parameters
    ----------
    graph : Graph
        The network.
    names : mapping of str to str
        Operators of the nodes that multiply, by name.
    column : Column
        Target, with or without its alternatives.
    """
    started = time.perf_counter()
    target_match = matched_alone(graph, column)
    products = products_of_nodes(target_match, names)
    products_on_target = [p for p in products if p.match and p.match.embedded_on == column.target]
    total = line(column.target, [p.figure for p in products])
    used = line(column.target, [p.figure for p in products_on_target])
    totals: dict[str, Any] = {
        "nodes": len(names),
        "operators": len(target_match.operators),
        "mapped": total.embedded,
        "own": used.embedded,
        "for_zero_points": target_match.products - len(products),
        "retyped": sum(bool(p.match and p.match.retyped) for p in products),
        "macs": total.macs,
        "mapped_macs": total.embedded_macs,
        "own_macs": used.macs,
        "use": total.use,
        "use_by_macs": total.use_by_macs,
        "own_use": used.use,
        "own_use_by_macs": used.use_by_macs,
    }
    if column.otherwise:
        totals["otherwise"] = _otherwise(products, column)
    totals["seconds"] = round(time.perf_counter() - started, 1)
    return totals, layers(products)


def _otherwise(products: Sequence[OperatorMatch], column: Column) -> dict[str, Any]:
    """Return the number of unmapped depthwise convolutions that the column's other form maps."""
    spec = replace(hardware_spec(column.target), alternatives=())
    matches: dict[int, Match] = {}
    unmapped = [p for p in products if not p.is_embedded and p.label == "depthwise"]
    for product in unmapped:
        if product.layer not in matches:
            assert product.layer is not None
            assert product.computation is not None
            layer = typed_for(product.computation, spec)
            matches[product.layer] = _matched_otherwise(layer, spec, column)
    depthwise_matches = [matches[p.layer] for p in unmapped if p.layer is not None]
    uses = [m.utilisation for m in depthwise_matches if m.utilisation]
    return {"mapped": len(uses), "use": sum(uses) / len(uses) if uses else None}


def _matched_otherwise(layer: Computation, spec: HardwareSpec, column: Column) -> Match:
    if column.otherwise == "exchanged":
        return match_in_worker(
            Request(layer, spec, KernelOptions(constraints=WIDER, timeout=TIMEOUT))
        )
    return match_in_worker(Request(with_filter_axis(layer), spec, KernelOptions(timeout=TIMEOUT)))


def layers(products: Sequence[OperatorMatch]) -> list[dict[str, Any]]:
    """Return each distinct computation, with its number in the network and its mapping."""
    rows: dict[int | None, dict[str, Any]] = {}
    for product in products:
        if product.layer in rows:
            rows[product.layer]["count"] += 1
            continue
        match, computation = product.match, product.computation
        assert match is not None
        assert computation is not None
        fed = "; ".join(f"{axis} <- {' '.join(axes)}" for axis, axes in match.family.items())
        rows[product.layer] = {
            "first": product.name,
            "count": 1,
            "operator": product.label,
            "sizes": " ".join(f"{name}={size}" for name, size in computation.extents.items()),
            "embedded_on": match.embedded_on,
            "utilisation": None if match.utilisation is None else round(match.utilisation, 4),
            "family": fed,
            "reason": match.reason,
        }
    return list(rows.values())


def measure(name: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a network's counts in all columns, and its layers."""
    float32_path, int8_path = files(name, folder)
    model = onnx.load(float32_path)
    names, network = multiplying(model), NETWORKS[name]
    row: dict[str, Any] = {
        "network": name,
        "title": network.title,
        "paper": None if network.paper is None else asdict(network.paper),
        "onnx_nodes": len(model.graph.node),
        "columns": {},
    }
    graphs = {False: load_model(float32_path), True: load_model(int8_path)}
    rows: list[dict[str, Any]] = []
    for key, column in COLUMNS.items():
        totals, layers_of_column = counted(graphs[column.int8], names, column)
        row["columns"][key] = totals
        rows += [{"network": name, "instruction": key, **layer} for layer in layers_of_column]
        print(name, key, totals, file=sys.stderr)
    return row, rows


def problems(row: Mapping[str, Any]) -> list[str]:
    """Return a message for each count that is not as README.md says."""
    columns = row["columns"]
    messages = [
        f"{row['network']} on {key}: {columns[key]['mapped']} of {columns[key]['nodes']}"
        for key in ("amx_int8", "avx512_vnni", "vta_1x16x16")
        if columns[key]["mapped"] != columns[key]["nodes"]
    ]
    for key in ("amx_int8 alone", "wmma_f16"):
        counts = columns[key]
        if counts["own"] + counts["otherwise"]["mapped"] != counts["nodes"]:
            messages.append(f"{row['network']} on {key}: {counts['own']} of {counts['nodes']}")
    tensor_core, paper = columns["wmma_f16"], row["paper"]
    same = row["network"].endswith("_amos") or f"{row['network']}_amos" not in NETWORKS
    if paper and same and tensor_core["nodes"] != paper["amos"]:
        messages.append(
            f"{row['network']}: {tensor_core['nodes']} products, AMOS has {paper['amos']}"
        )
    return messages


def write(folder: Path, document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the results and the table of layers.

    Parameters
    ----------
    folder : Path
        Folder of the results.
    document : mapping
        Counts of all networks.
    rows : sequence of mappings
        Distinct layers of all networks.
    """
    write_results(folder, document, markdown(document))
    with (folder / "layers.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main() -> int:
    """Run the command; return its exit code."""
    parser = results_parser(__doc__, FOLDER)
    parser.add_argument("names", nargs="*", default=list(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--models", type=Path, help="folder that keeps NAME.onnx, NAME_int8.onnx")
    options = parser.parse_args()
    started = time.perf_counter()
    network_rows: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.names:
            row, layers_of = measure(name, options.models or Path(scratch))
            network_rows.append(row)
            rows += layers_of
    seconds = round(time.perf_counter() - started, 1)
    document = {"networks": network_rows, "seconds": seconds, **provenance()}
    write(options.output, document, rows)
    print(markdown(document), end="")
    wrong = [problem for row in network_rows for problem in problems(row)]
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
