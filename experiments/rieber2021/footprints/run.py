"""Memory footprints of layers that VTA cannot execute without padding, next to Rieber et al. 2021.

    python -m experiments.rieber2021.footprints.run

Writes ``results.md`` and ``results.json`` into ``--output``, by default beside this file; README.md
says what is compared. The exit code is 1 where other rows than the known ones exceed the paper.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpembed.cost.ranking import Overheads, derive_candidate, overheads, rank
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.search import find_embeddings
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.transform.proof import require
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.suites import layer
from experiments.common import results_parser, write_results
from experiments.rieber2021.mappings import digits_text

FOLDER = Path(__file__).resolve().parent
TOLERANCE = 1.03


@dataclass(frozen=True)
class Ratios:
    """Data (image), weights and their sum relative to the reference with naive padding."""

    data: float
    weights: float
    total: float

    def to_json(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Case:
    """A row of the paper's tables.

    ``fastest`` are the ratios of its implementation with the best combined performance (table 3 or
    5), ``smallest`` of the one with the smallest footprint (table 4; table 5 has no other).
    ``half_unit`` is half of their last digit. ``reference`` are the elements of data and weights
    that the paper's reference must have for its ratios to add up.
    """

    table: str
    row: int
    target: str
    workload: Computation
    naive: Computation
    reference: tuple[int, int]
    fastest: Ratios
    smallest: Ratios
    half_unit: float

    @property
    def label(self) -> str:
        return f"table {self.table}, row {self.row}"

    def add_up(self, ratios: Ratios) -> bool:
        """True if the paper's total follows from its own columns, within their rounding."""
        data, weights = self.reference
        total = (ratios.data * data + ratios.weights * weights) / (data + weights)
        return abs(total - ratios.total) <= 2 * self.half_unit


# ------------------------------------------------------------------- the tables of the paper

# DeepBench layer, then data, weights and total of table 3 and of table 4. The image's zero border
# is not part of the reference: with it the totals do not follow from the columns.
LOW_CHANNEL = (
    (0, (2.330, 0.100, 2.268), (0.974, 0.160, 0.952)),
    (1, (2.330, 0.100, 2.299), (0.974, 0.160, 0.963)),
    (2, (0.974, 0.100, 0.968), (0.974, 0.100, 0.968)),
    (6, (0.977, 0.111, 0.972), (0.977, 0.111, 0.972)),
    (10, (1.000, 0.444, 0.974), (0.509, 0.444, 0.506)),
    (15, (1.004, 0.444, 0.998), (1.004, 0.444, 0.998)),
    (21, (3.964, 0.444, 3.944), (1.004, 0.444, 1.001)),
    (27, (0.513, 0.327, 0.502), (0.513, 0.327, 0.502)),
    (34, (0.513, 0.327, 0.508), (0.513, 0.327, 0.508)),
    (41, (0.786, 0.100, 0.549), (0.352, 0.160, 0.286)),
    (60, (0.963, 0.160, 0.952), (0.963, 0.160, 0.952)),
    (68, (0.963, 0.160, 0.958), (0.963, 0.160, 0.958)),
)

# Channels, image, filters, dilation, the reference's filter by the paper's ratio of weights, and
# the ratios of tables 3 and 4. 0.074 is 9 / 121, a stencil of 11; dilation 4 makes one of 9.
DILATED = (
    (304, 18, 448, 2, 5, (1.0, 0.360, 0.378)),
    (208, 72, 304, 4, 11, (1.0, 0.074, 0.189)),
)

# Channels, image, filters, filter size, padding, stride; then the ratios of table 5. The reference
# has the image's zero border here: without it the totals do not follow from the columns.
BATCH_ONE = (
    (32, 8, 64, 3, 1, 1, (0.60, 1.0, 0.77)),
    (32, 16, 64, 3, 1, 1, (0.19, 1.0, 0.33)),
    (32, 32, 64, 3, 1, 1, (0.16, 1.0, 0.21)),
    (256, 8, 256, 3, 1, 1, (0.60, 1.0, 0.90)),
    (128, 16, 256, 3, 1, 1, (0.19, 1.0, 0.57)),
    (128, 32, 256, 3, 1, 1, (0.16, 1.0, 0.32)),
    (72, 56, 96, 1, 0, 1, (0.14, 1.0, 0.14)),
    (256, 7, 512, 1, 0, 1, (0.22, 1.0, 0.57)),
    (8, 224, 24, 3, 1, 2, (0.13, 1.0, 0.13)),
    (72, 56, 96, 3, 1, 2, (0.16, 1.0, 0.18)),
)

EXPECTED_ABOVE = {("3/4", 14)}
"""Rows whose smallest candidate is above the paper's figure; README.md says why."""


def cases() -> Iterator[Case]:
    """Yield the 14 workloads of tables 3 and 4 and the 10 of table 5."""
    for row, (index, fastest, smallest) in enumerate(LOW_CHANNEL, 1):
        source = layer("deepbench", index)
        n, c, h, w, k, r, s = (int(source.parameters[name]) for name in "nchwkrs")
        channels = -(-c // 16) * 16
        workload = source.workload()
        reference = (n * channels * h * w, k * channels * r * s)
        yield Case(
            "3/4",
            row,
            "vta_1x16x16",
            workload,
            workload,
            reference,
            Ratios(*fastest),
            Ratios(*smallest),
            0.0005,
        )
    for row, (c, h, k, dilation, stencil, ratios) in enumerate(DILATED, len(LOW_CHANNEL) + 1):
        workload = conv2d(n=1, c=c, h=h, w=h, k=k, r=3, s=3, dilation=dilation)
        blown = 2 * dilation + 1
        naive = conv2d(n=1, c=c, h=h, w=h, k=k, r=blown, s=blown)
        reference = (c * h * h, k * c * stencil**2)
        both = Ratios(*ratios)
        yield Case("3/4", row, "vta_1x16x16", workload, naive, reference, both, both, 0.0005)
    for row, (c, h, k, r, pad, stride, ratios) in enumerate(BATCH_ONE, 1):
        workload = conv2d(n=1, c=c, h=h, w=h, k=k, r=r, s=r, pad=pad, stride=stride)
        reference = (8 * c * (h + 2 * pad) ** 2, k * c * r * r)
        both = Ratios(*ratios)
        yield Case("5", row, "vta_8x8x8", workload, workload, reference, both, both, 0.005)


# --------------------------------------------------------------------------------- measuring


def size(cost: Overheads) -> int:
    """Return the elements of data and weights; the paper counts no outputs."""
    return cost.footprint["I"] + cost.footprint["W"]


def naive_padding(case: Case, instruction: Instruction) -> Overheads:
    """Return the overheads of the best candidate of ``strict_padded``.

    It maps batch, filters and channels, as the template does: an image beside a window of one step
    could be mapped too.
    """
    constraints = load_constraint_set("strict_padded")
    search = find_embeddings(case.naive, instruction, constraints)
    embeddings = [e for e in search.embeddings if set(e.family["x"]) <= {"n"}]
    ranking = rank(case.naive, instruction, embeddings, constraints.weights, 1)
    return ranking.candidates[0].overheads


def search(case: Case, constraints: str, reference: Overheads) -> dict[str, Any]:
    """Return the best candidate by score and the smallest, of all embeddings, proven."""
    instruction = load_hardware_spec(case.target).instruction
    constraint_set = load_constraint_set(constraints)
    embeddings = find_embeddings(case.workload, instruction, constraint_set)
    if not embeddings.complete:
        raise RuntimeError(f"{case.label}: the enumeration did not end")
    candidates: list[tuple[Embedding, Overheads, float]] = []
    rejected = 0
    for embedding in embeddings.embeddings:
        try:
            program = derive_candidate(case.workload, instruction, embedding).program
        except TransformError:
            rejected += 1
            continue
        cost = overheads(program)
        score = cost.score(constraint_set.weights.mac, constraint_set.weights.data)
        candidates.append((embedding, cost, score))

    def describe(embedding: Embedding, cost: Overheads, score: float) -> dict[str, Any]:
        require(derive_candidate(case.workload, instruction, embedding).program)
        data, weights = cost.footprint["I"], cost.footprint["W"]
        ratios = Ratios(
            data / reference.footprint["I"],
            weights / reference.footprint["W"],
            size(cost) / size(reference),
        )
        return {
            "mapping": digits_text(embedding),
            **ratios.to_json(),
            "elements": {"data": data, "weights": weights},
            "macs": round(cost.executed_macs / reference.executed_macs, 4),
            "score": round(score, 1),
        }

    return {
        "embeddings": len(embeddings.embeddings),
        "derived": len(candidates),
        "refused": rejected,
        "best": describe(*min(candidates, key=lambda c: (c[2], size(c[1])))),
        "smallest": describe(*min(candidates, key=lambda c: (size(c[1]), c[2]))),
    }


def compare(case: Case) -> dict[str, Any]:
    """Return one row: the paper's ratios and ours."""
    instruction = load_hardware_spec(case.target).instruction
    naive = naive_padding(case, instruction)
    row: dict[str, Any] = {
        "table": case.table,
        "row": case.row,
        "target": case.target,
        "workload": str(case.workload),
        "extents": dict(case.workload.extents),
        "image": list(case.workload.operand("I").shape),
        "paper": {"fastest": case.fastest.to_json(), "smallest": case.smallest.to_json()},
        "paper_adds_up": [case.add_up(case.fastest), case.add_up(case.smallest)],
        "half_unit": case.half_unit,
        "naive": {"data": naive.footprint["I"], "weights": naive.footprint["W"]},
        "paper_reference": dict(zip(("data", "weights"), case.reference, strict=True)),
        "relaxed": search(case, "relaxed", naive),
    }
    if case.table == "3/4":
        row["flattened"] = search(case, "flattened", naive)
    return row


def against(row: Mapping[str, Any], entry: Mapping[str, Any], paper: str) -> tuple[float, float]:
    """Return a candidate's size relative to the paper's, as a ratio of ratios and in elements.

    Compared are the totals; in table 5 the data, since there the weights are the reference's. The
    second takes the paper's reference instead of ours: they differ where the image has a zero
    border, or the reference another stencil.

    Parameters
    ----------
    row : mapping
        Case with the paper's figures.
    entry : mapping
        Candidate with its elements.
    paper : str
        Candidate of the paper: ``fastest`` or ``smallest``.
    """
    total = row["table"] != "5"
    stated = row["paper"][paper]["total" if total else "data"]
    counted = ("data", "weights") if total else ("data",)
    elements = sum(entry["elements"][part] for part in counted)
    reference = sum(row["paper_reference"][part] for part in counted)
    return entry["total" if total else "data"] / stated, elements / (stated * reference)


def is_above(row: Mapping[str, Any], kind: str, which: str, paper: str) -> bool:
    """True if a candidate needs more than the paper's, beyond the tolerance."""
    return against(row, row[kind][which], paper)[0] > TOLERANCE


# ----------------------------------------------------------------------------------- writing


def triple(ratios: Mapping[str, float]) -> str:
    """Return the three ratios as text."""
    return " / ".join(f"{ratios[name]:.3f}" for name in ("data", "weights", "total"))


def case_label(row: Mapping[str, Any]) -> str:
    """Return image and filters as the paper writes them."""
    n, c, h, w = row["image"]
    extents = row["extents"]
    return f"{row['row']} ({n}, {c}, {h}, {w}) ({extents['k']}, {extents['r']}, {extents['s']})"


def table(rows: list[dict[str, Any]], kind: str, which: str, paper: str) -> list[str]:
    """Return the lines of one comparison."""
    lines = [
        "| row, image, filters | paper | ours | ours / paper | in elements | MACs | mapping |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        entry = row[kind][which]
        ratio, elements = against(row, entry, paper)
        mark = " **above**" if is_above(row, kind, which, paper) else ""
        note = "" if row["paper_adds_up"][paper == "smallest"] else " †"
        lines.append(
            f"| {case_label(row)} | {triple(row['paper'][paper])}{note} | {triple(entry)} "
            f"| {ratio:.2f}{mark} | {elements:.2f} | {entry['macs']:.3f} | {entry['mapping']} |"
        )
    return lines


def spread_line(rows: list[dict[str, Any]], kind: str, which: str, paper: str) -> str:
    """Return a sentence on how far the rows are from the paper's."""
    ratios = sorted((against(row, row[kind][which], paper)[0], row["row"]) for row in rows)
    (low, first), (high, last) = ratios[0], ratios[-1]
    middle = statistics.median(ratio for ratio, _ in ratios)
    most = f"from {low:.3f} (row {first}) to {high:.3f} (row {last})"
    return f"Ours / paper: {most}, median {middle:.3f}."


def markdown(document: Mapping[str, Any]) -> str:
    """Return all comparisons."""
    low = [row for row in document["rows"] if row["table"] == "3/4"]
    batch = [row for row in document["rows"] if row["table"] == "5"]
    lines = [
        "# Footprints relative to naive padding",
        "",
        "Written by `run.py`; README.md says what is compared. Ratios are data / weights / total.",
        "Images are (n, c, h, w), filters (k, r, s).",
        "",
    ]
    sections = (
        ("1 x 16 x 16: smallest footprint, and table 4", low, "relaxed", "smallest", "smallest"),
        ("1 x 16 x 16: best score, and table 3", low, "relaxed", "best", "fastest"),
        (
            "1 x 16 x 16: best score with fused axes, and table 3",
            low,
            "flattened",
            "best",
            "fastest",
        ),
        ("8 x 8 x 8: smallest footprint, and table 5", batch, "relaxed", "smallest", "smallest"),
        ("8 x 8 x 8: best score, and table 5", batch, "relaxed", "best", "fastest"),
    )
    for title, rows, kind, which, paper in sections:
        lines += [f"## {title}", "", *table(rows, kind, which, paper), ""]
        lines += [spread_line(rows, kind, which, paper), ""]
    lines += [
        "† The paper's total does not follow from its own columns.",
        "",
        *provenance_lines(document, f"{document['seconds']:.0f} s"),
    ]
    return "\n".join(lines) + "\n"


def above(rows: list[dict[str, Any]]) -> set[tuple[str, int]]:
    """Return the rows whose smallest candidate under ``relaxed`` is above the paper's smallest."""
    return {
        (row["table"], row["row"])
        for row in rows
        if is_above(row, "relaxed", "smallest", "smallest")
    }


def main() -> int:
    """Run the command; return its exit code."""
    folder: Path = results_parser(__doc__, FOLDER).parse_args().output
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for case in cases():
        rows.append(compare(case))
        print(case.label, f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    document: dict[str, Any] = {
        "rows": rows,
        "seconds": round(time.perf_counter() - started, 1),
        **provenance(),
    }
    write_results(folder, document, markdown(document))
    print(markdown(document), end="")
    return 0 if above(rows) == EXPECTED_ABOVE else 1


if __name__ == "__main__":
    sys.exit(main())
