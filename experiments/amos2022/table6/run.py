"""Mapping families of AMOS's 15 operators on a 16x16x16 matrix product, next to AMOS's counts.

    python -m experiments.amos2022.table6.run

Writes ``results.md`` and ``results.json`` into ``--output``, by default beside this file; README.md
says what is counted and what is expected. The exit code is 1 if a count is not as expected.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.search import find_embeddings
from cpembed.hw.instruction import Instruction
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.index import IndexExpr
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.suites import suite
from experiments.common import results_parser, write_results

FOLDER = Path(__file__).resolve().parent
TARGET = "gemm_16x16x16"
CONSTRAINTS = FOLDER / "relaxed_4_digits.toml"

Family = tuple[tuple[str, frozenset[str]], ...]
"""Instruction axis -> the set of workload axes that feed it."""

OPERATORS = {
    "GMV": "matrix-vector product",
    "GMM": "matrix product",
    "C1D": "1-D convolution",
    "C2D": "2-D convolution",
    "C3D": "3-D convolution",
    "T2D": "transposed 2-D convolution",
    "GRP": "group convolution",
    "DIL": "dilated convolution",
    "DEP": "depthwise convolution",
    "CAP": "capsule convolution",
    "BCV": "batched convolution",
    "GFC": "grouped fully connected layer",
    "MEN": "mean",
    "VAR": "variance",
    "SCN": "scan",
}

PAPER = {
    "GMV": 1,
    "GMM": 1,
    "C1D": 6,
    "C2D": 35,
    "C3D": 180,
    "T2D": 7,
    "GRP": 35,
    "DIL": 35,
    "DEP": 11,
    "CAP": 105,
    "BCV": 11,
    "GFC": 1,
    "MEN": 1,
    "VAR": 1,
    "SCN": 1,
}
"""Table 6 of AMOS (Zheng et al., ISCA 2022)."""


@dataclass(frozen=True)
class ResNetLayer:
    """A row of AMOS's table 5.

    ``i1`` and ``r1`` are the axes of its mapping, i2 is always k.
    """

    c: int
    k: int
    p: int
    r: int
    stride: int
    i1: str
    r1: str

    def workload(self) -> Computation:
        """The layer at batch 16; images and filters are square."""
        return conv2d(
            n=16,
            c=self.c,
            h=self.p * self.stride,
            w=self.p * self.stride,
            k=self.k,
            r=self.r,
            s=self.r,
            pad=self.r // 2,
            stride=self.stride,
        )

    @property
    def family(self) -> Family:
        return (("x", frozenset(self.i1)), ("y", frozenset("k")), ("z", frozenset(self.r1)))


TABLE_5 = (
    ResNetLayer(3, 64, 112, 7, 2, "nq", "crs"),
    ResNetLayer(64, 64, 56, 3, 1, "nq", "cr"),
    ResNetLayer(64, 64, 56, 1, 1, "pq", "c"),
    ResNetLayer(64, 128, 28, 3, 2, "npq", "cs"),
    ResNetLayer(64, 128, 28, 1, 2, "pq", "c"),
    ResNetLayer(128, 128, 28, 3, 1, "pq", "c"),
    ResNetLayer(128, 256, 14, 3, 2, "n", "cs"),
    ResNetLayer(128, 256, 14, 1, 2, "npq", "c"),
    ResNetLayer(256, 256, 14, 3, 1, "pq", "c"),
    ResNetLayer(256, 512, 7, 3, 2, "npq", "crs"),
    ResNetLayer(256, 512, 7, 1, 2, "npq", "c"),
    ResNetLayer(512, 512, 7, 3, 1, "n", "crs"),
)
"""C0 to C11 of AMOS's table 5 (ResNet-18 on an A100)."""


def operand_indices(computation: Computation) -> list[tuple[IndexExpr, ...]]:
    """Return the index expressions of each operand, inputs as they are read, output last."""
    return [access.index for access in (*computation.reads, *computation.stores)]


def signature(computation: Computation, axis: str) -> tuple[bool, ...]:
    """Return the access signature of an axis: for each operand, if the axis indexes it."""
    return tuple(
        any(axis in index.iterators for index in indices)
        for indices in operand_indices(computation)
    )


def closed_form(workload: Computation, instruction: Computation) -> int:
    """Return the number of families: the product over instruction axes of ``2^m - 1``.

    m counts the workload axes with the instruction axis's access signature; any of them, but at
    least one, may feed it. Nothing is searched.

    >>> from cpembed.workloads.einsum import gemm
    >>> closed_form(gemm(m=4, n=4, k=4), load_hardware_spec(TARGET).instruction.computation)
    1
    """
    signatures = [signature(workload, axis.name) for axis in workload.axes]
    return math.prod(
        2 ** signatures.count(signature(instruction, axis.name)) - 1 for axis in instruction.axes
    )


def single_axis_matches(
    workload: Computation, instruction: Computation
) -> Iterator[Mapping[str, str]]:
    """Yield AMOS's matches: instruction axis -> one workload axis, all others at zero.

    The remainder of each operand's indices must be the instruction's: every mapped axis stands in
    exactly the operands of its instruction axis, alone in one index, with a positive coefficient.
    """
    names = [axis.name for axis in instruction.axes]
    options = [
        [w.name for w in workload.axes if signature(workload, w.name) == signature(instruction, a)]
        for a in names
    ]
    for combination in itertools.product(*options):
        mapped = set(combination)
        if all(_is_plain(index, mapped) for i in operand_indices(workload) for index in i):
            yield dict(zip(names, combination, strict=True))


def _is_plain(index: IndexExpr, mapped: set[str]) -> bool:
    """Return if an index has at most one mapped axis, and that with a positive coefficient."""
    mapped_iterators = [axis for axis in index.iterators if axis in mapped]
    return len(mapped_iterators) <= 1 and all(
        index.coefficient(axis) > 0 for axis in mapped_iterators
    )


def amos_accepts(family: Family, matches: Iterable[Mapping[str, str]]) -> bool:
    """True by AMOS's rule: the family is the union of single-axis matches."""
    sets = dict(family)
    inside = [m for m in matches if all(m[axis] in axes for axis, axes in sets.items())]
    return all(axes == {m[axis] for m in inside} for axis, axes in sets.items())


def families(workload: Computation, instruction: Instruction) -> tuple[int, set[Family]]:
    """Return the number of embeddings of a complete enumeration, and their families."""
    search = find_embeddings(workload, instruction, load_constraint_set(str(CONSTRAINTS)))
    if not search.complete:
        raise RuntimeError(f"the enumeration of {workload} did not end")
    distinct = {
        tuple((axis, frozenset(axes)) for axis, axes in sorted(embedding.family.items()))
        for embedding in search.embeddings
    }
    return len(search.embeddings), distinct


def count(workload: Computation, instruction: Instruction) -> dict[str, int]:
    """Return the counts of one workload."""
    embeddings, family_set = families(workload, instruction)
    matches = list(single_axis_matches(workload, instruction.computation))
    return {
        "embeddings": embeddings,
        "families": len(family_set),
        "closed_form": closed_form(workload, instruction.computation),
        "matches": len(matches),
        "amos_rule": sum(amos_accepts(family, matches) for family in family_set),
    }


def measure_table_6() -> list[dict[str, Any]]:
    """Return a row of each operator, over every layer of the suite ``amos``."""
    instruction = load_hardware_spec(TARGET).instruction
    rows: list[dict[str, Any]] = []
    for operator, meaning in OPERATORS.items():
        layers = [layer for layer in suite("amos") if layer.application == operator]
        counted = {layer.label: count(layer.workload(), instruction) for layer in layers}
        embedded = {label: c for label, c in counted.items() if c["families"] or c["closed_form"]}
        keys = ("families", "closed_form", "matches", "amos_rule")
        kinds = {tuple(c[key] for key in keys) for c in embedded.values()}
        if len(kinds) != 1:
            raise RuntimeError(f"{operator}: the counts depend on the sizes: {counted}")
        sizes = [c["embeddings"] for c in embedded.values()]
        rows.append(
            {
                "operator": operator,
                "meaning": meaning,
                "paper": PAPER[operator],
                **dict(zip(keys, kinds.pop(), strict=True)),
                "layers": len(layers),
                "without_family": [label for label in counted if label not in embedded],
                "embeddings": [min(sizes), max(sizes)],
            }
        )
        print(operator, rows[-1], file=sys.stderr)
    return rows


def measure_table_5() -> list[dict[str, Any]]:
    """Return if AMOS's mapping of each ResNet-18 layer is among the families of that layer."""
    instruction = load_hardware_spec(TARGET).instruction
    rows: list[dict[str, Any]] = []
    for number, layer in enumerate(TABLE_5):
        workload = layer.workload()
        _, family_set = families(workload, instruction)
        matches = list(single_axis_matches(workload, instruction.computation))
        rows.append(
            {
                "layer": f"C{number}",
                "workload": str(workload),
                "extents": dict(workload.extents),
                "mapping": {"x": layer.i1, "y": "k", "z": layer.r1},
                "found": layer.family in family_set,
                "amos_rule": amos_accepts(layer.family, matches),
                "size": asdict(layer),
            }
        )
    return rows


def agrees(row: Mapping[str, Any]) -> bool:
    """True if the families are those of the closed form, and the paper's under its own rule."""
    return row["families"] == row["closed_form"] and row["amos_rule"] == row["paper"]


def markdown(document: Mapping[str, Any]) -> str:
    """Return the results as tables."""
    lines = [
        f"# Mapping families on {TARGET}",
        "",
        "Written by `run.py`; README.md says what the columns are.",
        "",
        (
            "| operator | AMOS, table 6 | under AMOS's rule | all legal families | closed form "
            "| single-axis matches | agree | layers | embeddings of a layer |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in document["table_6"]:
        low, high = row["embeddings"]
        size = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        lines.append(
            f"| {row['operator']} {row['meaning']} | {row['paper']} | {row['amos_rule']} "
            f"| {row['families']} | {row['closed_form']} | {row['matches']} "
            f"| {'yes' if agrees(row) else '**no**'} | {row['layers']} | {size} |"
        )
    lines += ["", "The families are the same for every layer of an operator. Left out:", ""]
    lines += [
        f"- `{label}`: no workload axis has the signature of one of the instruction's axes, and "
        "nothing embeds"
        for row in document["table_6"]
        for label in row["without_family"]
    ]
    lines += [
        "",
        "## The mappings of AMOS's table 5",
        "",
        "| layer | axes that feed i1, i2, r1 | among the families | passes AMOS's rule |",
        "| --- | --- | --- | --- |",
    ]
    for row in document["table_5"]:
        fed = ", ".join("{" + ", ".join(axes) + "}" for axes in row["mapping"].values())
        lines.append(
            f"| {row['layer']} | {fed} | {'yes' if row['found'] else '**no**'} "
            f"| {'yes' if row['amos_rule'] else '**no**'} |"
        )
    lines += [
        "",
        *provenance_lines(document, f"{document['seconds']:.0f} s"),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command; return its exit code."""
    folder: Path = results_parser(__doc__, FOLDER).parse_args().output
    started = time.perf_counter()
    document: dict[str, Any] = {
        "target": TARGET,
        "constraints": CONSTRAINTS.name,
        "table_6": measure_table_6(),
        "table_5": measure_table_5(),
        "seconds": round(time.perf_counter() - started, 1),
        **provenance(),
    }
    write_results(folder, document, markdown(document))
    print(markdown(document), end="")
    expected = all(map(agrees, document["table_6"]))
    return 0 if expected and all(row["found"] for row in document["table_5"]) else 1


if __name__ == "__main__":
    sys.exit(main())
