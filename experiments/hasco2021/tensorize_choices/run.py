"""Tensorize choices of HASCO's benchmarks on its intrinsics, next to HASCO's counts.

    python -m experiments.hasco2021.tensorize_choices.run

Writes ``results.md`` and ``results.json`` into ``--output``, by default beside this file; README.md
says what is counted. The exit code is 1 if a count is not the paper's.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.search import find_embeddings
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from experiments.common import results_parser, write_results

FOLDER = Path(__file__).resolve().parent
CONSTRAINTS = FOLDER / "single_axis.toml"
TARGETS = ("gemm_16x16x16", "gemv", "dot", "axpy", "pointwise_conv")

Choice = frozenset[str]
"""The loops that form the sub-workload."""


@dataclass(frozen=True)
class Product:
    """A sum of products of two operands, ``output += left * right``."""

    output: str
    left: str
    right: str
    extents: Mapping[str, int]

    def workload(self, name: str, swapped: bool = False) -> Computation:
        """Return the workload with its factors in this order or swapped.

        The order decides which operand of the intrinsic each factor becomes.
        """
        first, second = (self.right, self.left) if swapped else (self.left, self.right)
        types = {side.split("[")[0]: "int8" for side in (first, second)}
        return parse_computation(
            f"{self.output} += {first} * {second}",
            dict(self.extents),
            name=name,
            dtypes={**types, self.output.split("[")[0]: "int32"},
        )


WORKLOADS = {
    "gemm": Product("L[i,j]", "M[i,k]", "N[k,j]", {"i": 64, "j": 64, "k": 64}),
    "ttm": Product("C[i,j,k]", "A[i,j,l]", "B[l,k]", {"i": 64, "j": 64, "k": 64, "l": 64}),
    "mttkrp, first stage": Product(
        "E[i,k,j]", "A[i,k,l]", "B[l,j]", {"i": 64, "k": 64, "j": 64, "l": 64}
    ),
    "mttkrp, second stage": Product("D[i,j]", "E[i,k,j]", "C[k,j]", {"i": 64, "j": 64, "k": 64}),
    "conv2d": Product(
        "B[k,x,y]",
        "A[c,x+r,y+s]",
        "W[k,c,r,s]",
        {"k": 64, "x": 56, "y": 56, "c": 64, "r": 3, "s": 3},
    ),
}
"""HASCO's benchmarks as it writes them; a convolution has no batch."""

PAPER: dict[tuple[str, str], tuple[int, str]] = {
    ("conv2d", "gemm_16x16x16"): (6, "section IV-B, figure 5(b); VII-B: k, x/y and c/r/s"),
    ("gemm", "gemv"): (2, "figure 4, choices 1 and 3; choice 2 is illegal"),
    ("ttm", "gemm_16x16x16"): (2, "section VII-B, the choices a (j, l) and b (i, l)"),
    ("mttkrp, first stage", "gemm_16x16x16"): (2, "section VII-B: i/k, l and j"),
    ("mttkrp, second stage", "gemm_16x16x16"): (0, "section VII-B: only the first stage"),
}
"""Counts that HASCO (Xiao et al., ISCA 2021) states, and their places in the paper."""


def tensorize_choices(product: Product, name: str, target: str) -> dict[Choice, set[str]]:
    """Return every choice, with the mappings that make it, over both roles of the operands."""
    instruction = load_hardware_spec(target).instruction
    constraints = load_constraint_set(str(CONSTRAINTS))
    choices: dict[Choice, set[str]] = {}
    for swapped in (False, True):
        workload = product.workload(name, swapped)
        result = find_embeddings(workload, instruction, constraints)
        if not result.complete:
            raise RuntimeError(f"the enumeration of {workload} on {target} did not end")
        for embedding in result.embeddings:
            family = embedding.family
            loops = frozenset(loop for axes in family.values() for loop in axes)
            mapping = " ".join(f"{axis}<-{axes[0]}" for axis, axes in family.items() if axes)
            choices.setdefault(loops, set()).add(mapping)
    return choices


def distinct_indices(product: Product, name: str, choice: Choice) -> bool:
    """True if no two loops of a choice meet in one index of a tensor.

    This is HASCO's structure matching: the lowest common ancestor of two loops of one index is an
    addition, where the intrinsic has an access.
    """
    workload = product.workload(name)
    return all(
        sum(axis in choice for axis in index.iterators) <= 1
        for access in (*workload.reads, *workload.stores)
        for index in access.index
    )


def leaf_subsets(product: Product, name: str, target: str) -> int:
    """Return the number of leaf subsets that HASCO's index matching enumerates.

    It takes as many of the workload's leaves as the intrinsic has, a leaf being an iterator in an
    index of an input.
    """

    def leaves(computation: Computation) -> int:
        return sum(len(index.iterators) for access in computation.reads for index in access.index)

    instruction = load_hardware_spec(target).instruction.computation
    return math.comb(leaves(product.workload(name)), leaves(instruction))


def measure() -> list[dict[str, Any]]:
    """Return a row of each benchmark and intrinsic."""
    rows: list[dict[str, Any]] = []
    for name, product in WORKLOADS.items():
        label = name.split(",")[0]
        for target in TARGETS:
            choices = tensorize_choices(product, label, target)
            stated = PAPER.get((name, target))
            rows.append(
                {
                    "workload": name,
                    "expression": f"{product.output} += {product.left} * {product.right}",
                    "target": target,
                    "paper": stated and stated[0],
                    "source": stated and stated[1],
                    "choices": len(choices),
                    "structure_matching": sum(
                        distinct_indices(product, label, choice) for choice in choices
                    ),
                    "leaf_subsets": leaf_subsets(product, label, target),
                    "loops": sorted(sorted(choice) for choice in choices),
                    "mappings": sorted(m for mappings in choices.values() for m in mappings),
                }
            )
    return rows


def agrees(row: Mapping[str, Any]) -> bool:
    """True if the paper states no count, or this one."""
    return row["paper"] is None or row["choices"] == row["paper"]


def markdown(document: Mapping[str, Any]) -> str:
    """Return the results as a table."""
    lines = [
        "# Tensorize choices of HASCO's benchmarks",
        "",
        "Written by `run.py`; README.md says what the columns are.",
        "",
        (
            "| workload | intrinsic | HASCO | choices | under its structure matching "
            "| leaf subsets | loops of the choices |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in document["rows"]:
        loops = " ".join("".join(choice) for choice in row["loops"]) or "none"
        paper = "" if row["paper"] is None else str(row["paper"])
        paper += "" if agrees(row) else " (**differs**)"
        lines.append(
            f"| {row['workload']} `{row['expression']}` | `{row['target']}` | {paper} "
            f"| {row['choices']} | {row['structure_matching']} | {row['leaf_subsets']} | {loops} |"
        )
    lines += ["", "What HASCO states:", ""]
    lines += [
        f"- {row['workload']} on `{row['target']}`: {row['paper']} ({row['source']})"
        for row in document["rows"]
        if row["paper"] is not None
    ]
    lines += [
        "",
        *provenance_lines(document, f"{document['seconds']:.1f} s"),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command; return its exit code."""
    folder: Path = results_parser(__doc__, FOLDER).parse_args().output
    started = time.perf_counter()
    document: dict[str, Any] = {
        "constraints": CONSTRAINTS.name,
        "rows": measure(),
        "seconds": round(time.perf_counter() - started, 1),
        **provenance(),
    }
    write_results(folder, document, markdown(document))
    print(markdown(document), end="")
    return 0 if all(map(agrees, document["rows"])) else 1


if __name__ == "__main__":
    sys.exit(main())
