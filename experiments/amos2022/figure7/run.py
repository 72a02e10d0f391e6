"""AMOS's figure 7: six networks at batch 1 and 16 beside PyTorch, as the sum of their products.

    python -m experiments.amos2022.figure7.run                          # the model's estimates
    python -m experiments.amos2022.figure7.run --layers layers.csv      # the suite for a pack
    python -m experiments.amos2022.figure7.run --results results.json   # measured by the pack

Layers of the ResNets are those of the suites. ``networks.csv`` has the other networks, in the form
of AMOS's published code: the products that ../table2 counts, with strides and paddings. What lies
between products is not counted, so that ratios are those of products. Writes ``results.json`` and
``results.md``; estimates take two minutes of processor time.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cpembed.workloads.suites import suite
from experiments.gpu_figures import figure_parser
from experiments.gpu_networks import (
    Network,
    NetworkPage,
    network_figure,
    on_tensor_cores,
    read_networks,
)

FOLDER = Path(__file__).resolve().parent

SUITES = {"ResNet-18": "resnet18", "ResNet-50": "resnet50"}
BATCHES = (1, 16)

PAPER = {"least, BERT at batch 16": 0.91, "most, ShuffleNet": 10.42}
"""AMOS's speed-up over PyTorch on V100 and A100 (section 7.4); bars have no numbers."""

PAGE = NetworkPage(
    title="Networks on Tensor Cores (AMOS, figure 7)",
    note=(
        "Sums over the convolutions and matrix products of a network; nothing else of it counts.",
        "Depthwise convolutions are products with an axis of one filter a channel, as AMOS writes",
        "them; MI-LSTM is a step.",
    ),
    column="the paper's speed-up over PyTorch",
    paper=PAPER,
)


def networks() -> list[Network]:
    """Return the networks at each batch."""
    at_one = read_networks(FOLDER / "networks.csv")
    for title, name in SUITES.items():
        counts: Counter[str] = Counter()
        for layer in suite(name):
            counts[layer.label] += layer.count
        at_one.append(Network(title, counts))
    return [
        replace(on_tensor_cores(network, batch), name=f"{network.name}, batch {batch}")
        for network in at_one
        for batch in BATCHES
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return network_figure(figure_parser(__doc__, FOLDER), arguments, networks(), PAGE)


if __name__ == "__main__":
    sys.exit(main())
