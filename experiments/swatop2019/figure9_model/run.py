"""The plan that is chosen, and the best of brute force by the model: figure 9.

    python -m experiments.swatop2019.figure9_model.run [--jobs 2]

Brute force takes every embedding and every size that is a multiple of its granule, nothing thinned
out. Only what provably is no better is passed over. Minutes a row; it resumes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.space import ScratchpadSpace
from experiments.common import Experiment, Row, markdown_table, percent
from experiments.swatop2019 import paper
from experiments.swatop2019.layers import Convolution, listing_1, networks
from experiments.swatop2019.planning import best, products

ALL = 1_000_000
"""Number of embeddings, more than there are."""

LAYOUT = "NHWC"

PIXELS = 7
"""Number of rows of the networks' layers that take part: larger ones have billions of sizes."""


class EverySize(ScratchpadSpace):
    """A space of all multiples of the granules."""

    @cached_property
    def sizes(self) -> dict[str, list[int]]:
        return {
            name: [n * axis.granule for n in range(1, -(-axis.extent // axis.granule) + 1)]
            for name, axis in self.product.axes.items()
        }


@cache
def layers() -> dict[str, Convolution]:
    """Return network layers of few pixels, and the least of listing 1, a batch of one."""
    small = [layer for layer in networks((1,)) if layer.rows == PIXELS]
    listed = [layer for layer in listing_1((1,)) if layer.rows == 16 and layer.channels <= 128]
    return {layer.key: layer for layer in small + listed}


def compute(key: str) -> Row:
    """Compare a layer's plan with the best of all."""
    workload = layers()[key].computation(LAYOUT)
    plan_chosen = best([workload])
    started = time.process_time()
    least, plan, number = plan_chosen.us, plan_chosen.text, 0
    for product in products(workload, ALL):
        number += 1
        space = EverySize(product, below=least)
        if space.lower_bound >= least:
            continue
        try:
            scored = space.best()
        except LoweringError:
            continue
        if scored.cost < least:
            least, plan = scored.cost, str(scored.schedule)
    return {
        "us": round(plan_chosen.us, 3),
        "plan": plan_chosen.text,
        "best_us": round(least, 3),
        "best": plan,
        "embeddings": number,
        "considered": plan_chosen.products,
        "brute_force_s": round(time.process_time() - started, 1),
    }


def markdown(rows: Sequence[Row]) -> list[str]:
    """Return the table and the losses."""
    losses = [row["us"] / row["best_us"] - 1 for row in rows]
    lines = [
        [
            row["key"],
            f"{row['us']:.4g}",
            f"{row['best_us']:.4g}",
            percent(loss, 1),
            row["embeddings"],
            f"{row['brute_force_s']:.0f} s",
        ]
        for row, loss in zip(rows, losses, strict=True)
    ]
    mean, worst = sum(losses) / len(losses), max(losses)
    return [
        "All times are **estimated**: what considering 32 embeddings and thinned-out sizes loses.",
        "",
        *markdown_table(
            ["layer", "chosen, us", "best, us", "loss", "embeddings", "brute force took"], lines
        ),
        "",
        f"Mean loss {percent(mean, 1)}, worst {percent(worst, 1)} (paper, measured: below",
        f"{percent(paper.CHOICE_LOSS['mean'])} and {percent(paper.CHOICE_LOSS['worst'])}).",
    ]


EXPERIMENT = Experiment(
    folder=Path(__file__).resolve().parent,
    description="The model's choice beside brute force by the model (figure 9)",
    keys=tuple(layers()),
    compute=compute,
    markdown=markdown,
    trials=None,
    quick=("listing 1 - b1 c64 k64 16x16 f3 s1",),
    one_origin=True,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
