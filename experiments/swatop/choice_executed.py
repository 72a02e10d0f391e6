"""Figure 9, by execution: the plan that is chosen beside others whose time is counted.

    python -m experiments.swatop.choice_executed [--jobs 2]

Layers are scaled down; of each, the plans that the model ranks first and some at random are
executed, and timed by what the executor counted (``counted.py``): transactions at their real
addresses, calls that were made. Minutes; it resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.boxes import BoxProduct
from cpembed.targets.scratchpad.executor import program
from cpembed.targets.scratchpad.schedule import Plan, Schedule, check, loop_orders
from cpembed.targets.scratchpad.space import ScratchpadSpace
from experiments.swatop import executed, paper
from experiments.swatop.choice import EverySize
from experiments.swatop.convolutions import layouts
from experiments.swatop.counted import counted_us, estimated_us
from experiments.swatop.layers import Convolution
from experiments.swatop.planning import best, products
from experiments.swatop.rows import Part, Row, percent, table

RANKED, DRAWN = 16, 8
"""Plans of a layer: the best by the model, of different estimates, and others at random."""


@cache
def layers() -> dict[str, Convolution]:
    """Every tenth of those that are executed."""
    return dict(list(executed.layers().items())[::10])


def compute(key: str) -> Row:
    layer = layers()[key]
    names = layouts(layer.batch)
    chosen = best([layer.computation(name) for name in names])
    workload = layer.computation(names[chosen.option])
    plans = [chosen.plan, *_plans(list(products(workload)))]
    inputs, _ = executed.given(workload)
    times: list[dict[str, Any]] = []
    for plan in plans:
        built = program(plan)
        built.run(inputs, 1)
        assert built.counters is not None
        counted = counted_us(plan, built.counters)
        times.append({"estimated": round(estimated_us(plan), 3), "counted": round(counted, 3)})
    return {"scaled": layer.key, "layout": names[chosen.option], "times": times}


def _plans(found: Sequence[BoxProduct]) -> Iterator[Plan]:
    ranked: list[tuple[float, int, Schedule]] = []
    for number, product in enumerate(found):
        try:
            each = ScratchpadSpace(product).ranked(4)
        except LoweringError:
            continue
        ranked += [(scored.cost, number, scored.schedule) for scored in each]
    # Of equal estimates one: they mostly are one plan under several names.
    distinct = {round(cost, 6): (number, schedule) for cost, number, schedule in reversed(ranked)}
    for cost in sorted(distinct)[:RANKED]:
        number, schedule = distinct[cost]
        yield Plan(found[number], schedule)
    random, drawn = Random(1), 0
    while drawn < DRAWN:
        product = random.choice(found)
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
    """What the chosen plan, the first, takes beyond the fastest."""
    return [
        row["times"][0]["counted"] / min(time["counted"] for time in row["times"]) - 1
        for row in rows
    ]


def markdown(rows: Sequence[Row]) -> list[str]:
    found = losses(rows)
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
        for row, loss in zip(rows, found, strict=True)
    ]
    ratios = sorted(t["counted"] / t["estimated"] for row in rows for t in row["times"])
    low, middle, high = (ratios[int(share * (len(ratios) - 1))] for share in (0.05, 0.5, 0.95))
    mean, worst = sum(found) / len(found), max(found)
    head = ["layer", "layout", "plans", "chosen: estimated, us", "chosen: counted, us"]
    return [
        "Counts are **emulated**; times from them use the model's rates.",
        "",
        *table([*head, "fastest: counted, us", "loss"], lines),
        "",
        f"Mean loss {percent(mean, 1)}, worst {percent(worst, 1)} (paper, measured: below",
        f"{percent(paper.CHOICE_LOSS['mean'])} and {percent(paper.CHOICE_LOSS['worst'])}).",
        f"Counted by estimated time of all plans: median {middle:.2f}, 5 % below {low:.2f}, 5 %",
        f"above {high:.2f}.",
    ]


def part() -> Part:
    keys = tuple(layers())
    title = "The model's choice beside executed plans (figure 9)"
    return Part("choice_executed", title, keys, keys[:1], compute, markdown)


if __name__ == "__main__":
    sys.exit(part().main())
