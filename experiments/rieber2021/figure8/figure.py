"""Draw ``results.svg``, in the manner of figure 8 of Rieber et al. 2021."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.common import pyplot, save_figure
from experiments.rieber2021.figure8.tables import TITLES, layouts, series

COLOURS = ("tab:blue", "tab:orange", "tab:green")
STYLES = {"plain": "-", "A": "--", "B": ":", "AB": "-."}


def plot(rows: list[dict[str, Any]], folder: Path) -> bool:
    """Draw the plot; return False if matplotlib is not installed."""
    plt = pyplot()
    if plt is None:
        return False
    figure, panels = plt.subplots(1, len(TITLES), figsize=(13, 5), sharex=True, sharey=True)
    for panel, (formulation, title) in zip(panels, TITLES.items(), strict=True):
        for colour, layout in zip(COLOURS, layouts(rows), strict=True):
            for strategy, style in STYLES.items():
                curve = series(rows, formulation, layout, strategy)
                panel.plot(
                    [row["channels"] for row in curve],
                    [row["nodes"] for row in curve],
                    style,
                    marker="o",
                    markersize=3,
                    color=colour,
                    label=layout if strategy == "plain" else f"{layout} + {strategy}",
                )
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("input and output channels")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
    panels[0].set_ylabel("search nodes")
    panels[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    save_figure(figure, folder / "results.svg")
    return True
