"""AMOS's figure 7: networks beside PyTorch, as the sum of their convolutions.

    python -m experiments.amos2022.figure7.run                          # the model's estimates
    python -m experiments.amos2022.figure7.run --results results.json   # measured by a pack

The packs are those of ``cpembed bench resnet18 --target mma_f16 --pack``, of ``resnet50`` and of
``mobilenet``; their layers may be in one results.json. What lies between convolutions is not
counted, so that ratios are those of convolutions. Writes ``results.json`` and ``results.md``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from cpembed.workloads.suites import suite
from experiments.gpu_figures import figure_parser
from experiments.gpu_networks import Network, NetworkPage, write_network_figure

FOLDER = Path(__file__).resolve().parent

SUITES = {"ResNet-18": "resnet18", "ResNet-50": "resnet50", "MobileNet-V1, depthwise": "mobilenet"}
BATCHES = (1, 16)

PAPER = {"least, BERT at batch 16": 0.91, "most, ShuffleNet": 10.42}
"""AMOS's speed-up over PyTorch on V100 and A100 (section 7.4); bars have no numbers."""

PAGE = NetworkPage(
    title="Networks on Tensor Cores (AMOS, figure 7)",
    note=(
        "Sums over the convolutions of a network; nothing else of it is counted. Other networks of",
        "the figure (ShuffleNet, BERT, MI-LSTM) are not here.",
    ),
    column="the paper's speed-up over PyTorch",
    paper=PAPER,
)


def networks() -> tuple[list[Network], dict[str, str]]:
    """Return the networks at each batch, and the words of their layers by name."""
    words: dict[str, str] = {}
    network_list: list[Network] = []
    for title, name in SUITES.items():
        for batch in BATCHES:
            counts: dict[str, int] = {}
            for layer in suite(name):
                key = f"{name}:{layer.index}" + (f" batch {batch}" if batch > 1 else "")
                words[key] = re.sub(r"\bn=\d+", f"n={batch}", layer.label) + " layout=NHWC"
                counts[key] = layer.count
            network_list.append(Network(f"{title}, batch {batch}", counts))
    return network_list, words


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = figure_parser(__doc__, FOLDER).parse_args(arguments)
    write_network_figure(options, *networks(), PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
