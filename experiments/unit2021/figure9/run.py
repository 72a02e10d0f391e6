"""UNIT's figure 9: nine networks on Tensor Cores beside cuDNN, as the sum of their convolutions.

    python -m experiments.unit2021.figure9.run                          # the model's estimates
    python -m experiments.unit2021.figure9.run --layers layers.csv      # the suite for a pack
    python -m experiments.unit2021.figure9.run --results results.json   # measured by the pack

The networks are those of ``../layers.csv``. Writes ``results.json`` and ``results.md``;
estimates take ten minutes of processor time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.gpu_figures import figure_parser
from experiments.gpu_networks import (
    Network,
    NetworkPage,
    network_figure,
    on_tensor_cores,
    read_networks,
)

FOLDER = Path(__file__).resolve().parent

PAPER = {"mean": 1.75, "most": 2.2}
"""UNIT's speed-up over cuDNN in float16, batch 1, on a V100 (section VI.A)."""

PAGE = NetworkPage(
    title="Networks on Tensor Cores (UNIT, figure 9)",
    note=(
        "Sums over the convolutions of a network at batch 1; depthwise ones are products with an",
        "axis of one filter a channel.",
    ),
    column="the paper's speed-up over cuDNN",
    paper=PAPER,
)


def networks() -> list[Network]:
    """Return the networks."""
    return [on_tensor_cores(network) for network in read_networks(FOLDER.parent / "layers.csv")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return network_figure(figure_parser(__doc__, FOLDER), arguments, networks(), PAGE)


if __name__ == "__main__":
    sys.exit(main())
