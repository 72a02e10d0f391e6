"""UNIT's figure 9: nine networks on Tensor Cores beside cuDNN, as the sum of their convolutions.

    python -m experiments.unit2021.figure9.run                          # the model's estimates
    python -m experiments.unit2021.figure9.run --results results.json   # measured by a pack

The layers are those of ``../layers.csv``, which ``cpembed bench`` takes as a suite for the pack.
Depthwise convolutions have no products for a Tensor Core: they are counted apart. Writes
``results.json`` and ``results.md``.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.gpu_figures import figure_parser
from experiments.gpu_networks import Network, NetworkPage, write_network_figure

FOLDER = Path(__file__).resolve().parent
LAYERS = FOLDER.parent / "layers.csv"

PAPER = {"mean": 1.75, "most": 2.2}
"""UNIT's speed-up over cuDNN in float16, batch 1, on a V100 (section VI.A)."""

PAGE = NetworkPage(
    title="Networks on Tensor Cores (UNIT, figure 9)",
    note=(
        "Sums over the convolutions of a network at batch 1; *other layers* are depthwise ones.",
    ),
    column="the paper's speed-up over cuDNN",
    paper=PAPER,
)


def networks() -> tuple[list[Network], dict[str, str]]:
    """Return the networks, and the words of their layers by name."""
    with LAYERS.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    words: dict[str, str] = {}
    network_list: list[Network] = []
    for number, row in enumerate(table):
        words[f"layers:{number}"] = f"{row['layer']} layout=NHWC"
    for title in list(table[0])[1:]:
        counts = {f"layers:{n}": int(row[title]) for n, row in enumerate(table) if int(row[title])}
        depthwise = [name for name in counts if words[name].startswith("depthwise")]
        depthwise_count = sum(counts.pop(name) for name in depthwise)
        network_list.append(Network(title, counts, depthwise_count))
    return network_list, words


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = figure_parser(__doc__, FOLDER).parse_args(arguments)
    write_network_figure(options, *networks(), PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
