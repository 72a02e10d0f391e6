"""Four intrinsics with 64 processing elements and 256 KiB: HASCO's figure 7.

    python -m experiments.hasco2021.figure7.run

Writes ``results.json``, ``results.md`` and, if matplotlib is installed, ``results.svg`` into
``--output``, by default beside this file; some three minutes on one core. The README of the paper
says what is compared.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from cpembed.errors import LoweringError
from cpembed.exploration.cores.description import Core
from cpembed.exploration.cores.family import CoreFamily, survey
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.targets.family import Point
from experiments.common import load_document, pyplot, results_parser, save_figure, write_results
from experiments.hasco2021.workloads import Benchmark, benchmarks

FOLDER = Path(__file__).resolve().parent
INTRINSICS = ("gemm", "conv2d", "gemv", "dot")
KINDS = ("MTTKRP", "2-D convolution", "TTM", "GEMM")
PAPER = {"MTTKRP": "gemv", "2-D convolution": "conv2d", "TTM": "gemm", "GEMM": "gemm"}
"""The intrinsic of the highest throughput."""

PAPER_WIDE_FILTERS = "gemm"
"""The intrinsic of the highest throughput for convolutions #1, #5 and #8."""

WIDE_FILTERS = (1, 5, 8)


def point(intrinsic: str) -> Point:
    """Return 64 processing elements, 256 KiB, and the four banks of the paper's table III."""
    family = CoreFamily()
    defaults = {p.name: p.default for p in family.parameters if p.default is not None}
    values = {"intrinsic": intrinsic, "pe_rows": 8, "scratchpad_kib": 256, "banks": 4}
    return {**defaults, **values}


def throughputs(benchmark: Benchmark, intrinsic: str) -> dict[str, Any] | None:
    """Return the shares of the peak of the best embedding and of the worst.

    A share is the useful products by those of all elements in the same cycles. None if a part has
    no embedding. ``choices`` has all embeddings of a TTM.
    """
    core = Core.at(point(intrinsic))
    best = worst = 0.0
    count = 1
    choices: list[tuple[str, float]] = []
    for part in benchmark.parts:
        try:
            programs = survey(core, part)
        except LoweringError:
            return None
        times = [cycles for _, cycles in programs]
        best, worst, count = best + min(times), worst + max(times), count * len(programs)
        if benchmark.kind == "TTM":
            choices = [(family, part.macs / core.elements / cycles) for family, cycles in programs]
    peak = benchmark.macs / core.elements
    return {
        "best": peak / best,
        "worst": peak / worst,
        "programs": count,
        "choices": sorted(choices, key=lambda item: -item[1]),
    }


def measure() -> list[dict[str, Any]]:
    """Return a row of each workload."""
    rows: list[dict[str, Any]] = []
    for benchmark in benchmarks():
        shares = {name: throughputs(benchmark, name) for name in INTRINSICS}
        rows.append(
            {
                "kind": benchmark.kind,
                "number": benchmark.number,
                "sizes": benchmark.sizes,
                "macs": benchmark.macs,
                "intrinsics": shares,
            }
        )
        print(f"{benchmark.kind} #{benchmark.number}", file=sys.stderr)
    return rows


def winner(row: dict[str, Any]) -> str:
    """Return the intrinsic of the highest throughput."""
    able = {name: shares["best"] for name, shares in row["intrinsics"].items() if shares}
    return max(able, key=lambda name: able[name])


def expected(row: dict[str, Any]) -> str:
    """Return the paper's intrinsic of the highest throughput."""
    wide = row["kind"] == "2-D convolution" and row["number"] in WIDE_FILTERS
    return PAPER_WIDE_FILTERS if wide else PAPER[row["kind"]]


def ttm_choices(row: dict[str, Any]) -> float:
    """Return how much the choice of loops matters: the paper's a and b, j and l or i and l of A."""
    best: defaultdict[str, float] = defaultdict(float)
    for family, share in row["intrinsics"]["gemm"]["choices"]:
        for name in ("i", "j"):
            if family in (f"x:{name} y:k", f"x:k y:{name}"):
                best[name] = max(best[name], share)
    return max(best.values()) / min(best.values())


def markdown(document: dict[str, Any]) -> str:
    """Return the table, and the paper's statements."""
    rows = document["rows"]
    lines = [
        "# Figure 7 of HASCO: four intrinsics, 64 processing elements, 256 KiB",
        "",
        "Shares of the array's peak, estimated: of the best embedding, in brackets of the worst.",
        "",
        *provenance_lines(document, "estimated by the neutral model"),
        "",
        f"| workload | sizes | MACs | {' | '.join(INTRINSICS)} | highest | paper |",
        "| --- | --- | ---: |" + " ---: |" * len(INTRINSICS) + " --- | --- |",
    ]
    for row in rows:
        cells: list[str] = []
        for name in INTRINSICS:
            shares = row["intrinsics"][name]
            if shares is None:
                cells.append("none")
            else:
                cells.append(f"{shares['best']:.3f} ({shares['worst']:.3f})")
        agrees = "" if winner(row) == expected(row) else " (not here)"
        lines.append(
            f"| {row['kind']} #{row['number']} | {row['sizes']} | {row['macs'] / 1e6:,.3g} M | "
            + " | ".join(cells)
            + f" | {winner(row)} | {expected(row)}{agrees} |"
        )
    lines += ["", "## Beside the paper", "", "| statement | paper | here |", "| --- | --- | --- |"]
    lines += [f"| {' | '.join(entry)} |" for entry in statements(rows)]
    return "\n".join(lines) + "\n"


def statements(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return the paper's statements, with the paper's figures and ours."""
    statement_list: list[tuple[str, str, str]] = []
    for kind in KINDS:
        rows_of_kind = [row for row in rows if row["kind"] == kind]
        agree = sum(winner(row) == expected(row) for row in rows_of_kind)
        words = PAPER[kind] + (
            f", {PAPER_WIDE_FILTERS} for #1, #5, #8" if kind == "2-D convolution" else ""
        )
        statement_list.append(
            (f"highest throughput, {kind}", words, f"the same for {agree} of {len(rows_of_kind)}")
        )
    # Both keep the array busy nearly all the time, so the winner alone says little.
    margins = [
        row["intrinsics"]["conv2d"]["best"] / row["intrinsics"]["gemm"]["best"]
        for row in rows
        if expected(row) == "conv2d"
    ]
    statement_list.append(
        (
            "CONV2D over GEMM, filters of 3 x 3",
            "above 1",
            f"{min(margins):.4f} to {max(margins):.4f}",
        )
    )
    able = [row for row in rows if row["intrinsics"]["dot"]]
    lowest = sum(
        row["intrinsics"]["dot"]["best"]
        <= min(f["best"] for f in row["intrinsics"].values() if f) * (1 + 1e-9)
        for row in able
    )
    statement_list.append(("DOT is the lowest", "yes", f"for {lowest} of {len(able)}"))
    ratios = [ttm_choices(row) for row in rows if row["kind"] == "TTM"]
    widest = [
        row["intrinsics"]["gemm"]["best"] / row["intrinsics"]["gemm"]["worst"]
        for row in rows
        if row["kind"] == "TTM"
    ]
    statement_list.append(
        (
            "two choices of loops of TTM on GEMM (j and l, or i and l)",
            "3.26x",
            f"{min(ratios):.2f}x to {max(ratios):.2f}x",
        )
    )
    statement_list.append(
        ("best over worst embedding of TTM on GEMM", "-", f"up to {max(widest):.2f}x")
    )
    return statement_list


def plot(document: dict[str, Any], folder: Path) -> bool:
    """Draw the plot; return False if matplotlib is not installed."""
    plt = pyplot()
    if plt is None:
        return False
    figure, panels = plt.subplots(1, len(KINDS), figsize=(15, 3.8), sharey=True)
    for panel, kind in zip(panels, KINDS, strict=True):
        rows = [row for row in document["rows"] if row["kind"] == kind]
        for name, colour in zip(INTRINSICS, ("C0", "C1", "C2", "C3"), strict=True):
            able = [(r["number"], r["intrinsics"][name]) for r in rows if r["intrinsics"][name]]
            if not able:
                continue
            numbers = [number for number, _ in able]
            low = [shares["worst"] for _, shares in able]
            high = [shares["best"] for _, shares in able]
            panel.fill_between(numbers, low, high, color=colour, alpha=0.15)
            panel.plot(numbers, high, marker="o", markersize=3, color=colour, label=name.upper())
        panel.set_title(kind, fontsize=10)
        panel.set_xlabel("workload")
        panel.set_ylim(0, 1.05)
    panels[0].set_ylabel("share of the array's peak (estimated)")
    panels[1].legend(fontsize=8)
    figure.tight_layout()
    save_figure(figure, folder / "results.svg")
    return True


def main() -> None:
    """Run the command."""
    parser = results_parser(__doc__, FOLDER)
    parser.add_argument("--rewrite", action="store_true", help="table and plot from results.json")
    options = parser.parse_args()
    if options.rewrite:
        document = load_document(options.output)
    else:
        document = {**provenance(), "rows": measure()}
        document["statements"] = statements(document["rows"])
    write_results(options.output, document, markdown(document))
    plot(document, options.output)


if __name__ == "__main__":
    main()
