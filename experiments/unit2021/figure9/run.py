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

from experiments.common import markdown_table
from experiments.gpu_figures import cell, figure_parser, figure_rows, write_figure
from experiments.gpu_networks import Network, all_layers, network_table

FOLDER = Path(__file__).resolve().parent
LAYERS = FOLDER.parent / "layers.csv"

PAPER = {"mean": 1.75, "most": 2.2}
"""UNIT's speed-up over cuDNN in float16, batch 1, on a V100 (section VI.A)."""


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
    network_list, words = networks()
    rows, origin = figure_rows(all_layers(network_list, words), options)
    table, mean = network_table(network_list, rows, "cuDNN")
    lines = [
        f"# Networks on Tensor Cores (UNIT, figure 9), {origin}",
        "",
        "Sums over the convolutions of a network at batch 1; *other layers* are depthwise ones.",
        "",
        *table,
        "",
        *markdown_table(
            ["the paper's speed-up over cuDNN", "measured"],
            [[name, cell(value)] for name, value in PAPER.items()],
        ),
    ]
    write_figure(options, rows, lines, {"cuDNN over ours": mean})
    return 0


if __name__ == "__main__":
    sys.exit(main())
