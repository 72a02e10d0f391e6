"""Columns of the results, which are targets, and the results as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.runtime.measurement.environment import provenance_lines


@dataclass(frozen=True)
class Column:
    """A target whose matches are counted.

    With or without the alternatives of its specification, for the quantized network or that of
    floats. ``otherwise``: a key of :data:`OTHERWISE` by which the depthwise convolutions that are
    not mapped are matched once more.
    """

    target: str
    title: str
    alternatives: bool = True
    int8: bool = True
    otherwise: str | None = None


OTHERWISE = {
    "exchanged": "under the set `fused`, which exchanges the factors",
    "filter axis": "with an axis of extent 1 for the filters of a channel",
}

COLUMNS = {
    "amx_int8": Column("amx_int8", "AMX or AVX-512"),
    "amx_int8 alone": Column("amx_int8", "AMX alone", alternatives=False, otherwise="exchanged"),
    "avx512_vnni": Column("avx512_vnni", "AVX-512 VNNI"),
    "wmma_f16": Column("wmma_f16", "Tensor Core", int8=False, otherwise="filter axis"),
    "vta_1x16x16": Column("vta_1x16x16", "VTA"),
}


def markdown(document: Mapping[str, Any]) -> str:
    """Return the results as tables."""
    rows = document["networks"]
    lines = [
        "# Operators that an instruction computes",
        "",
        "Written by `run.py`; README.md says what the columns are.",
        "",
        "## Operators",
        "",
        "| network | AMOS: all | XLA | AMOS | ONNX nodes | fused | products "
        + "".join(f"| {column.title} " for column in COLUMNS.values())
        + "| AMX alone, exchanged | Tensor Core, filter axis |",
        "| --- " * (9 + len(COLUMNS)) + "|",
    ]
    lines += [_operators(row) for row in rows]
    titles = "".join(f"| {column.title} " for column in COLUMNS.values())
    lines += ["", "## Multiplications", "", "Share of the products' MACs that is mapped.", ""]
    lines += [f"| network | MACs {titles}|", "| --- " * (2 + len(COLUMNS)) + "|"]
    lines += [_shares(row) for row in rows]
    lines += [
        "",
        "## How much of the instruction is used",
        "",
        "Of the mapped products: mean / of all that their instructions multiply. Last columns: the "
        "depthwise convolutions that are not mapped, "
        + "; ".join(f"*{name}*: {condition}" for name, condition in OTHERWISE.items())
        + ".",
        "",
        f"| network {titles}| AMX alone, exchanged | Tensor Core, filter axis |",
        "| --- " * (3 + len(COLUMNS)) + "|",
    ]
    lines += [_uses(row) for row in rows]
    lines += ["", *provenance_lines(document, f"{document['seconds']:.0f} s")]
    return "\n".join(lines) + "\n"


def _operators(row: Mapping[str, Any]) -> str:
    paper, columns = row["paper"], row["columns"]
    cells = [paper[k] if paper else "" for k in ("operators", "xla", "amos")]
    tensor_core, amx = columns["wmma_f16"], columns["amx_int8 alone"]
    cells += [row["onnx_nodes"], tensor_core["operators"], tensor_core["nodes"]]
    for counts in columns.values():
        on_alternatives = counts["mapped"] - counts["own"]
        cells.append(
            f"{counts['mapped']}"
            + (f" ({counts['own']} + {on_alternatives})" if on_alternatives else "")
        )
    cells += [c["own"] + c["otherwise"]["mapped"] for c in (amx, tensor_core)]
    return f"| {row['title']} | " + " | ".join(map(str, cells)) + " |"


def _shares(row: Mapping[str, Any]) -> str:
    columns = row["columns"]
    macs = columns["wmma_f16"]["macs"]
    shares = [f"{c['mapped_macs'] / c['macs']:.1%}" for c in columns.values()]
    return f"| {row['title']} | {macs / 1e6:,.0f} M | " + " | ".join(shares) + " |"


def _uses(row: Mapping[str, Any]) -> str:
    columns = row["columns"]
    cells = [f"{c['use']:.1%} / {c['use_by_macs']:.1%}" for c in columns.values()]
    for key in ("amx_int8 alone", "wmma_f16"):
        use = columns[key]["otherwise"]["use"]
        cells.append("" if use is None else f"{use:.1%}")
    return f"| {row['title']} | " + " | ".join(cells) + " |"
