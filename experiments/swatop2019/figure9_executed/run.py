"""The plan that is chosen, and others whose time is counted in an execution: figure 9.

    python -m experiments.swatop2019.figure9_executed.run [--jobs 2]

Layers are scaled down; of each, the plans that the model ranks first and some at random are
executed, and timed by what the executor counted (``counted_time.py``): transactions at their real
addresses, calls that were made. Minutes; it resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.boxes import BoxProduct
from cpembed.targets.scratchpad.executor import program
from cpembed.targets.scratchpad.schedule import Plan, Schedule, check, loop_orders
from cpembed.targets.scratchpad.space import ScratchpadSpace
from experiments.common import Experiment, Row, markdown_table, percent
from experiments.swatop2019 import paper
from experiments.swatop2019.counted_time import counted_us, estimated_us
from experiments.swatop2019.execution import run as executed
from experiments.swatop2019.figure9_model.run import EverySize
from experiments.swatop2019.figures5_8.run import layouts
from experiments.swatop2019.layers import Convolution
from experiments.swatop2019.planning import best, products

RANKED, DRAWN = 16, 8
"""Plans of a layer: the best by the model, of different estimates, and others at random."""


@cache
def layers() -> dict[str, Convolution]:
    """Return every tenth of the layers that are executed."""
    return dict(list(executed.layers().items())[::10])


def compute(key: str) -> Row:
    """Execute the plans of a layer."""
    layer = layers()[key]
    names = layouts(layer.batch)
    planned = best([layer.computation(name) for name in names])
    workload = layer.computation(names[planned.option])
    plans = [planned.plan, *_plans(list(products(workload)))]
    inputs, _ = executed.inputs_and_output(workload)
    times: list[dict[str, Any]] = []
    for plan in plans:
        built = program(plan)
        built.run(inputs, 1)
        assert built.counters is not None
        counted = counted_us(plan, built.counters)
        times.append({"estimated": round(estimated_us(plan), 3), "counted": round(counted, 3)})
    return {"scaled": layer.key, "layout": names[planned.option], "times": times}


def _plans(lowered: Sequence[BoxProduct]) -> Iterator[Plan]:
    ranked: list[tuple[float, int, Schedule]] = []
    for number, product in enumerate(lowered):
        try:
            each = ScratchpadSpace(product).ranked(4)
        except LoweringError:
            continue
        ranked += [(scored.cost, number, scored.schedule) for scored in each]
    # Of equal estimates one: they mostly are one plan under several names.
    distinct = {round(cost, 6): (number, schedule) for cost, number, schedule in reversed(ranked)}
    for cost in sorted(distinct)[:RANKED]:
        number, schedule = distinct[cost]
        yield Plan(lowered[number], schedule)
    random, drawn = Random(1), 0
    while drawn < DRAWN:
        product = random.choice(lowered)
        tile = tuple((n, random.choice(sizes)) for n, sizes in EverySize(product).sizes.items())
        order = random.choice(loop_orders(product))
        constant = any(operand.constant for operand in product.operands)
        plan = Plan(product, Schedule(tile, order, random.choice((1, 2)), constant))
        try:
            yield check(plan)
        except LoweringError:
            continue
        drawn += 1


def losses(rows: Sequence[Row]) -> list[float]:
    """Return the loss of the chosen plan, the first, to the fastest of each row."""
    return [
        row["times"][0]["counted"] / min(time["counted"] for time in row["times"]) - 1
        for row in rows
    ]


def markdown(rows: Sequence[Row]) -> list[str]:
    """Return the table and the losses."""
    loss_list = losses(rows)
    lines = [
        [
            row["scaled"].removeprefix("scaled listing 1 - "),
            row["layout"],
            len(row["times"]),
            f"{row['times'][0]['estimated']:.4g}",
            f"{row['times'][0]['counted']:.4g}",
            f"{min(time['counted'] for time in row['times']):.4g}",
            percent(loss, 1),
        ]
        for row, loss in zip(rows, loss_list, strict=True)
    ]
    ratios = sorted(t["counted"] / t["estimated"] for row in rows for t in row["times"])
    low, middle, high = (ratios[int(share * (len(ratios) - 1))] for share in (0.05, 0.5, 0.95))
    mean, worst = sum(loss_list) / len(loss_list), max(loss_list)
    head = ["layer", "layout", "plans", "chosen: estimated, us", "chosen: counted, us"]
    return [
        "Counts are **emulated**; times from them use the model's rates.",
        "",
        *markdown_table([*head, "fastest: counted, us", "loss"], lines),
        "",
        f"Mean loss {percent(mean, 1)}, worst {percent(worst, 1)} (paper, measured: below",
        f"{percent(paper.CHOICE_LOSS['mean'])} and {percent(paper.CHOICE_LOSS['worst'])}).",
        f"Counted by estimated time of all plans: median {middle:.2f}, 5 % below {low:.2f}, 5 %",
        f"above {high:.2f}.",
    ]


EXPERIMENT = Experiment(
    folder=Path(__file__).resolve().parent,
    description="The model's choice beside executed plans (figure 9)",
    keys=tuple(layers()),
    compute=compute,
    markdown=markdown,
    trials=None,
    quick=tuple(layers())[:1],
    one_origin=True,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
