"""Reasons for rejected candidates name a layout that works when it is followed."""

from __future__ import annotations

import random
import re

import pytest

from cpembed.driver.estimate import EstimateResult, estimate
from cpembed.driver.named import workload
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.registry import missing_for

_REMEDY = re.compile(r"\b([A-C])\[([a-z](?:, [a-z])*)\] would do")
Orders = dict[str, tuple[str, ...]]


def _estimated(orders: Orders, sizes: str, target: str) -> EstimateResult:
    texts = {name: f"{name}[{','.join(order)}]" for name, order in orders.items()}
    words = f"{texts['C']} += {texts['A']} * {texts['B']} {sizes}"
    return estimate(workload(words, target), target, top=8)


def _reasons(result: EstimateResult) -> dict[tuple[str, ...], str | None]:
    """Return the reason, or None, of each mapping."""
    pairs = zip(result.solved.embeddings, result.times, strict=True)
    return {
        tuple(item.candidate.embedding.axis_texts): time if isinstance(time, str) else None
        for item, time in pairs
    }


@pytest.mark.parametrize("target", ["gemmini_16x16", "nvdla_small", "sw26010"])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 8))]
)
def test_a_layout_that_would_do_does(target: str, seed: int) -> None:
    if missing := missing_for(load_hardware_spec(target)):
        pytest.skip("; ".join(missing))
    chance = random.Random(seed)
    orders: Orders = {
        name: tuple(chance.sample(axes, 2))
        for name, axes in (("A", "mk"), ("B", "kn"), ("C", "mn"))
    }
    sizes = " ".join(f"{axis}={chance.choice([16, 24, 40, 64])}" for axis in "mnk")
    followed = 0
    for mapping, first in _reasons(_estimated(orders, sizes, target)).items():
        reason, changed, seen = first, dict(orders), set[str]()
        # One operand after the other: each reason is of one.
        while reason is not None and (remedy := _REMEDY.search(reason)):
            assert remedy[0] not in seen, f"{remedy[0]} was followed and is the remedy again"
            seen.add(remedy[0])
            changed[remedy[1]] = tuple(remedy[2].split(", "))
            reason = _reasons(_estimated(changed, sizes, target))[mapping]
            followed += 1
        assert reason is None, f"{orders} {sizes} {mapping}: {reason}"
    if target == "gemmini_16x16" and orders["A"] != ("m", "k"):
        assert followed
