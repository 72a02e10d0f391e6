"""Bars of speed-ups, the paper's numbers beside them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    path: Path,
    *,
    title: str,
    logarithmic: bool = False,
) -> bool:
    """Write the plot; False where matplotlib is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed (extra: bench)", file=sys.stderr)
        return False
    mpl.rcParams["svg.hashsalt"] = "cpembed"
    figure, panel = plt.subplots(figsize=(max(6.0, 0.16 * len(labels) * len(series)), 4))
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(labels))]
        panel.bar(places, values, width, label=name)
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_xticks(range(len(labels)), labels, rotation=90, fontsize=6)
    panel.set_ylabel("speed-up")
    panel.set_title(title, fontsize=9)
    if logarithmic:
        panel.set_yscale("log")
    if len(series) > 1:
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return True
