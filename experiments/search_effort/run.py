"""Search effort of the scalar model by axis order and channel count, with and without a portfolio
and a domain bound.

    python experiments/search_effort/run.py            # measure, then write the tables and the plot
    python experiments/search_effort/run.py --replot   # the plot alone, from results.json

Writes ``results.md``, ``results.json`` and, where matplotlib is installed, ``results.svg`` beside
this file; README.md says what is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TARGET = "vta_1x16x16"
LAYOUTS = {"HWNC": "pqnkrsc", "NCHW": "nkpqcrs", "NHWC": "npqkrsc"}
"""Order of the workload's axes and of its operands' dimensions."""
EXPRESSIONS = {
    "HWNC": "O[p,q,n,k] += I[p+r,q+s,n,c] * W[r,s,c,k]",
    "NCHW": "O[n,k,p,q] += I[n,c,p+r,q+s] * W[k,c,r,s]",
    "NHWC": "O[n,p,q,k] += I[n,p+r,q+s,c] * W[r,s,c,k]",
}
CHANNELS = (16, 32, 64, 128, 256, 512)
SIZES = {"n": 1, "p": 28, "q": 28, "r": 3, "s": 3}
SPACES: dict[str, tuple[tuple[str, ...], int | None]] = {
    "strict": ((), None),
    "any stride": (("dense", "padding"), None),
    "no boxes": (("hyper_rectangle", "dense", "padding"), 1),
    "stencils": (("linear_access", "dense", "padding"), 1),
}
"""Constraints of the strict set that are left out, and how many solutions are asked for."""
STRATEGIES = ("plain", "A", "B", "AB")
SECONDS = {"strict": 8.0, "any stride": 8.0, "no boxes": 1.0, "stencils": 8.0}
REPEATS = 3


def conv2d(layout: str, channels: int) -> Any:
    from cpembed.ir.parser import parse_computation

    sizes = {**SIZES, "k": channels, "c": channels}
    dtypes = {"I": "int8", "W": "int8", "O": "int32"}
    found = parse_computation(EXPRESSIONS[layout], sizes, name="conv2d", dtypes=dtypes)
    axes = {axis.name: axis for axis in found.axes}
    return replace(found, axes=tuple(axes[name] for name in LAYOUTS[layout]))


def search(space: str, layout: str, channels: int, strategy: str) -> dict[str, Any]:
    """One search; the plain one is a portfolio of the workload's own order alone."""
    from cpembed.embedding.constraint_set import load_constraint_set
    from cpembed.embedding.constraints import DomainBound
    from cpembed.embedding.cpsat import SearchLimits
    from cpembed.embedding.portfolio import Asset, solve_portfolio
    from cpembed.embedding.problem import pair_operands
    from cpembed.hw.loader import load_hardware_spec

    left_out, solutions = SPACES[space]
    constraints = load_constraint_set("strict").without(*left_out)
    if "B" in strategy:
        bounded = (*constraints.constraints, DomainBound())
        constraints = replace(constraints, constraints=bounded)
    problem = pair_operands(conv2d(layout, channels), load_hardware_spec(TARGET).instruction)
    own = [Asset("workload", tuple(LAYOUTS[layout]))]
    assets = None if "A" in strategy else own
    limits = SearchLimits(seconds=SECONDS[space], solutions=solutions)
    walls: list[float] = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        found = solve_portfolio(problem, constraints, limits, assets, presolve=False)
        walls.append(time.perf_counter() - started)
        if walls[-1] > 1:
            break
    result = found.result
    winners = [e for e in found.efforts if found.winner in (None, e.asset)]
    effort = winners[0].statistics
    total = result.statistics
    return {
        "space": space,
        "layout": layout,
        "channels": channels,
        "strategy": strategy,
        "status": result.status.value if found.winner else "stopped",
        "solutions": len(result.embeddings) + len(result.irregular),
        "winner": found.winner and found.winner.name,
        "branches": effort.branches,
        "conflicts": effort.conflicts,
        "effort": effort.branches + effort.conflicts,
        "effort_all_assets": total.branches + total.conflicts,
        "assets_started": len(found.efforts),
        "solver_ms": round(effort.seconds * 1e3, 2),
        "wall_ms": round(statistics.median(walls) * 1e3, 2),
    }


def measure() -> list[dict[str, Any]]:
    search("strict", "NCHW", 16, "plain")  # loading the solver is not in the figures
    rows: list[dict[str, Any]] = []
    for space in SPACES:
        for layout in LAYOUTS:
            for strategy in STRATEGIES:
                for channels in CHANNELS:
                    rows.append(search(space, layout, channels, strategy))
                    print(f"\r{len(rows)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return rows


def pivot(rows: list[dict[str, Any]], space: str, key: str) -> list[str]:
    """One table: a row per layout and strategy, a column per channel count."""
    lines = [
        "| layout | search | " + " | ".join(map(str, CHANNELS)) + " |",
        "| --- | --- |" + " --- |" * len(CHANNELS),
    ]
    for layout in LAYOUTS:
        for strategy in STRATEGIES:
            chosen = [
                r
                for r in rows
                if (r["space"], r["layout"], r["strategy"]) == (space, layout, strategy)
            ]
            cells = [
                f"{r[key]:g}" + ("" if r["status"] != "stopped" else " (stopped)") for r in chosen
            ]
            lines.append(f"| {layout} | {strategy} | " + " | ".join(cells) + " |")
    return lines


def table(document: dict[str, Any]) -> str:
    rows = document["rows"]
    lines = ["# Search effort of the scalar model", "", "Written by `run.py`; see README.md.", ""]
    for space, (left_out, solutions) in SPACES.items():
        what = "the strict set" + (f" without {', '.join(left_out)}" if left_out else "")
        asked = "all solutions" if solutions is None else f"{solutions} solution"
        lines += [f"## {space}: {what}, {asked}", "", "Branches and conflicts", ""]
        lines += [*pivot(rows, space, "effort"), "", "Wall time in ms, with building the model", ""]
        lines += [*pivot(rows, space, "wall_ms"), "", "Solutions", ""]
        lines += [*pivot(rows, space, "solutions"), ""]
    return "\n".join(
        [
            *lines,
            f"- {document['machine']}, {document['cores']} cores",
            f"- presolve off, fixed search, one thread per asset; limits in seconds: {SECONDS}",
            f"- wall time: median of {REPEATS}, one where a search takes more than a second",
            f"- with A: effort of the winning asset, of up to {document['cores']} at a time",
            "",
        ]
    )


def plot(rows: list[dict[str, Any]]) -> bool:
    try:
        import matplotlib as mpl

        mpl.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed (extra: bench)", file=sys.stderr)
        return False
    mpl.rcParams["svg.hashsalt"] = "cpembed"
    figure, axes = plt.subplots(1, len(SPACES), figsize=(19, 4.5), sharex=True)
    colours = dict(zip(LAYOUTS, ("tab:blue", "tab:orange", "tab:green"), strict=True))
    styles = {"plain": "-", "A": "--", "B": ":", "AB": "-."}
    for axis, space in zip(axes, SPACES, strict=True):
        for layout in LAYOUTS:
            for strategy in STRATEGIES:
                chosen = [
                    r
                    for r in rows
                    if (r["space"], r["layout"], r["strategy"]) == (space, layout, strategy)
                ]
                axis.plot(
                    [r["channels"] for r in chosen],
                    [max(r["effort"], 1) for r in chosen],
                    styles[strategy],
                    marker="o",
                    markersize=3,
                    color=colours[layout],
                    label=layout if strategy == "plain" else f"{layout} + {strategy}",
                )
        axis.set_title(space)
        axis.set_xlabel("c and k")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
    axes[0].set_ylabel("branches + conflicts")
    axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(HERE / "results.svg", metadata={"Date": None})
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replot", action="store_true", help="only draw results.json again")
    stored = HERE / "results.json"
    if parser.parse_args().replot:
        return 0 if plot(json.loads(stored.read_text(encoding="utf-8"))["rows"]) else 1
    document: dict[str, Any] = {
        "target": TARGET,
        "sizes": SIZES,
        "machine": f"{platform.machine()}, {platform.system()}",
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "rows": measure(),
    }
    rows = ",\n  ".join(json.dumps(row) for row in document["rows"])
    head = json.dumps({k: v for k, v in document.items() if k != "rows"}, indent=1)
    stored.write_text(f'{head.removesuffix(chr(10) + "}")},\n "rows": [\n  {rows}\n ]\n}}\n')
    (HERE / "results.md").write_text(table(document), encoding="utf-8")
    plot(document["rows"])
    print((HERE / "results.md").read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
