# pyright: basic
"""How many operators of each network an instruction computes, beside AMOS's table 2.

    python experiments/network_mapping/run.py

Writes ``results.md``, ``results.json`` and ``layers.csv`` into ``--output``, by default beside this
file; README.md says what is counted and what is expected. The exit code is 1 where a count is not
as expected.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx

from cpembed.driver.across import line
from cpembed.driver.matching import Match, match_in_worker
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import WIDER, KernelOptions
from cpembed.driver.plan import Request
from cpembed.frontends import load_model
from cpembed.graph.graph import Graph
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Axis, AxisKind, Computation
from cpembed.ir.expression import Access, Operation
from cpembed.ir.index import IndexExpr
from cpembed.network.match import OperatorMatch, TargetMatch, match
from cpembed.runtime.measurement.environment import provenance
from experiments.network_mapping.networks import NETWORKS, files
from experiments.network_mapping.tables import COLUMNS, Column, markdown

HERE = Path(__file__).resolve().parent

TIMEOUT = 60.0
"""Seconds of a search, so that none is stopped on a busy machine."""

PRODUCTS = ("Conv", "Gemm", "MatMul")
"""The operators of ONNX that multiply: those that an instruction could compute."""


def multiplying(model: onnx.ModelProto) -> dict[str, str]:
    """The nodes that multiply: the operator of each name."""
    return {node.name: node.op_type for node in model.graph.node if node.op_type in PRODUCTS}


def with_filter_axis(depthwise: Computation) -> Computation:
    """A depthwise convolution with an axis m of one filter a channel, as a multiplier would be."""
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


def own_products(found: TargetMatch, names: Mapping[str, str]) -> list[OperatorMatch]:
    """The product that does each node's own multiplications. Others of a node's name sum an operand
    up, for its zero point.
    """
    largest: dict[str, OperatorMatch] = {}
    for product in found.matched:
        if product.name not in names:
            raise RuntimeError(f"{product.name} multiplies, but is none of the model's nodes")
        before = largest.get(product.name)
        if before is None or product.macs > before.macs:
            largest[product.name] = product
    return list(largest.values())


def counted(
    graph: Graph, names: Mapping[str, str], column: Column
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A network's counts in a column, and its distinct layers."""
    started = time.perf_counter()
    (found,) = match(
        graph, [column.target], alternatives=column.alternatives, timeout=TIMEOUT
    ).targets
    products = own_products(found, names)
    own = [p for p in products if p.match and p.match.embedded_on == column.target]
    total = line(column.target, [p.figure for p in products])
    used = line(column.target, [p.figure for p in own])
    totals: dict[str, Any] = {
        "nodes": len(names),
        "operators": len(found.operators),
        "mapped": total.embedded,
        "own": used.embedded,
        "for_zero_points": found.products - len(products),
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
    """How many of the depthwise convolutions that are not mapped are in the column's other way."""
    spec = replace(hardware_spec(column.target), alternatives=())
    matches: dict[int, Match] = {}
    left = [p for p in products if not p.is_embedded and p.label == "depthwise"]
    for product in left:
        if product.layer not in matches:
            assert product.layer is not None
            assert product.computation is not None
            matches[product.layer] = _matched_otherwise(product.computation, spec, column)
    found = [matches[p.layer] for p in left if p.layer is not None]
    uses = [m.utilisation for m in found if m.utilisation]
    return {"mapped": len(uses), "use": sum(uses) / len(uses) if uses else None}


def _matched_otherwise(layer: Computation, spec: HardwareSpec, column: Column) -> Match:
    if column.otherwise == "exchanged":
        return match_in_worker(
            Request(layer, spec, KernelOptions(constraints=WIDER, timeout=TIMEOUT))
        )
    return match_in_worker(Request(with_filter_axis(layer), spec, KernelOptions(timeout=TIMEOUT)))


def layers(products: Sequence[OperatorMatch]) -> list[dict[str, Any]]:
    """Each distinct computation, how often the network has it, and what it is mapped to."""
    rows: dict[int | None, dict[str, Any]] = {}
    for product in products:
        if product.layer in rows:
            rows[product.layer]["count"] += 1
            continue
        found, computation = product.match, product.computation
        assert found is not None
        assert computation is not None
        fed = "; ".join(f"{axis} <- {' '.join(axes)}" for axis, axes in found.family.items())
        rows[product.layer] = {
            "first": product.name,
            "count": 1,
            "operator": product.label,
            "sizes": " ".join(f"{name}={size}" for name, size in computation.extents.items()),
            "embedded_on": found.embedded_on,
            "utilisation": None if found.utilisation is None else round(found.utilisation, 4),
            "family": fed,
            "reason": found.reason,
        }
    return list(rows.values())


def measure(name: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A network in all columns."""
    whole, int8 = files(name, folder)
    model = onnx.load(whole)
    names, network = multiplying(model), NETWORKS[name]
    row: dict[str, Any] = {
        "network": name,
        "title": network.title,
        "paper": None if network.paper is None else asdict(network.paper),
        "onnx_nodes": len(model.graph.node),
        "columns": {},
    }
    graphs = {False: load_model(whole), True: load_model(int8)}
    rows: list[dict[str, Any]] = []
    for key, column in COLUMNS.items():
        totals, found = counted(graphs[column.int8], names, column)
        row["columns"][key] = totals
        rows += [{"network": name, "instruction": key, **layer} for layer in found]
        print(name, key, totals, file=sys.stderr)
    return row, rows


def problems(row: Mapping[str, Any]) -> list[str]:
    """What of a network's counts is not as README.md says."""
    columns = row["columns"]
    wrong = [
        f"{row['network']} on {key}: {columns[key]['mapped']} of {columns[key]['nodes']}"
        for key in ("amx_int8", "avx512_vnni", "vta_1x16x16")
        if columns[key]["mapped"] != columns[key]["nodes"]
    ]
    for key in ("amx_int8 alone", "wmma_f16"):
        found = columns[key]
        if found["own"] + found["otherwise"]["mapped"] != found["nodes"]:
            wrong.append(f"{row['network']} on {key}: {found['own']} of {found['nodes']}")
    tensor_core, paper = columns["wmma_f16"], row["paper"]
    same = row["network"].endswith("_amos") or f"{row['network']}_amos" not in NETWORKS
    if paper and same and tensor_core["nodes"] != paper["amos"]:
        wrong.append(f"{row['network']}: {tensor_core['nodes']} products, AMOS has {paper['amos']}")
    return wrong


def write(folder: Path, document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (folder / "results.json").write_text(text, encoding="utf-8")
    (folder / "results.md").write_text(markdown(document), encoding="utf-8")
    with (folder / "layers.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--output", type=Path, default=HERE, help="folder of the results")
    parser.add_argument("--models", type=Path, help="folder that keeps NAME.onnx, NAME_int8.onnx")
    asked = parser.parse_args()
    started = time.perf_counter()
    found: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in asked.names:
            row, layers_of = measure(name, asked.models or Path(scratch))
            found.append(row)
            rows += layers_of
    seconds = round(time.perf_counter() - started, 1)
    document = {"networks": found, "seconds": seconds, **provenance()}
    write(asked.output, document, rows)
    print(markdown(document), end="")
    wrong = [problem for row in found for problem in problems(row)]
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
