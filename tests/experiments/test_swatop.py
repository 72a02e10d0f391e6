"""swATOP's evaluation: lists and layers, committed tables, what borders cost, times from counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.scratchpad.executor import program
from cpembed.targets.scratchpad.schedule import Plan, Schedule
from cpembed.targets.scratchpad.space import ScratchpadSpace
from experiments.common import Experiment, load
from experiments.swatop2019 import paper
from experiments.swatop2019.borders import cost_without_borders, padded, zeroing_us
from experiments.swatop2019.counted_time import counted_us, estimated_us, executing_cycles
from experiments.swatop2019.execution.run import TOLERANCE, convolved
from experiments.swatop2019.figure9_executed.run import losses
from experiments.swatop2019.layers import Convolution, Product, listing_1, listing_2, networks
from experiments.swatop2019.planning import best, efficiency, machine, products
from tests.experiments.loading import committed, script
from tests.unit.targets.scratchpad.executor.running import needs_compiler

PARTS = (
    "figures5_8",
    "table2",
    "execution",
    "figure9_model",
    "figure9_executed",
    "table3",
    "figure10",
)


def part(name: str) -> Experiment:
    return script(f"swatop2019/{name}").EXPERIMENT


def rows(name: str) -> list[dict[str, Any]]:
    stored = load(part(name).folder)
    return [stored[key] for key in part(name).keys if key in stored]


def test_the_lists_are_as_long_as_the_paper_says() -> None:
    for batch in paper.BATCHES:
        assert len({layer.key for layer in listing_1((batch,))}) == 75
    assert Counter(product.group for product in listing_2()) == {"unaligned": 216, "aligned": 343}
    layers = networks((1,))
    assert Counter(layer.group for layer in layers) == {"VGG16": 9, "ResNet": 20, "Yolo": 15}
    # Convolutions of the networks, equal ones counted.
    numbers = {group: sum(x.count for x in layers if x.group == group) for group in paper.TABLE_3}
    assert numbers == {"VGG16": 13, "ResNet": 53, "Yolo": 24}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "HWCN"])
@pytest.mark.parametrize("taps, stride, pad", [(3, 1, 0), (3, 2, 1), (1, 2, 0)])
def test_layouts_are_of_the_same_convolution(layout: str, taps: int, stride: int, pad: int) -> None:
    layer = Convolution("", "", 2, 3, 4, 5, taps, stride, pad)
    workload = layer.computation(layout)
    assert workload.macs == layer.macs
    inputs = {n: np.asarray(v, np.float32) for n, v in random_inputs(workload, 1).items()}
    expected = reference(workload, inputs)
    assert np.allclose(convolved(workload, inputs), expected, rtol=1e-4, atol=1e-4)
    plain = layer.computation("NHWC")
    order = {"NCHW": (0, 2, 3, 1), "NHWC": (0, 1, 2, 3), "HWCN": (3, 0, 1, 2)}[layout]
    assert plain.operand("I").shape == tuple(workload.operand("I").shape[n] for n in order)


@pytest.mark.parametrize("name", PARTS)
def test_committed_tables_are_those_of_the_rows(name: str) -> None:
    document = committed(f"swatop2019/{name}")
    text = (part(name).folder / "results.md").read_text(encoding="utf-8")
    assert part(name).page(rows(name), document["origin"]) == text
    assert len(document["rows"]) == len(part(name).keys)


def test_executed_configurations_are_as_numpy_has_them() -> None:
    found = rows("execution")
    assert len(found) == 60
    for row in found:
        assert set(row["methods"]) == {"implicit", "explicit", "winograd_2x2", "winograd_4x4"}
        assert all(method["error"] < TOLERANCE for method in row["methods"].values())


def test_no_plan_is_faster_than_the_machine() -> None:
    for row in rows("figures5_8"):
        assert row["methods"]
        for name, method in row["methods"].items():
            most = {"winograd_2x2": 36 / 16, "winograd_4x4": 144 / 36}.get(name, 1)
            assert 0 < method["efficiency"] <= most, row["key"]
    for row in rows("table2"):
        assert 0 < row["efficiency"] <= 1
        assert row["border"] >= 0


def test_a_row_is_computed_as_committed() -> None:
    for name, key in (("table2", "500 1000 200"), ("table2", "512 768 256")):
        row = part(name).compute(key)
        stored = load(part(name).folder)[key]
        assert {k: stored[k] for k in row} == row


def planned(m: int, n: int, k: int) -> tuple[ScratchpadSpace, Plan]:
    found = best([Product("", m, n, k).computation()], ahead=False)
    return ScratchpadSpace(found.product, ahead=False), found.plan


def test_borders_cost_nothing_where_there_are_none() -> None:
    space, plan = planned(2048, 2048, 2048)
    least = cost_without_borders(space.product, space.ranked())
    assert padded(space.product) == 0
    assert zeroing_us(plan) == 0
    assert space.best().cost == pytest.approx(least, rel=2e-3)


def test_borders_cost_the_granules_that_are_not_full() -> None:
    """25 columns a core are seven vectors of four: 224 for 200."""
    space, plan = planned(8000, 200, 8000)
    assert padded(space.product) == pytest.approx(1 - 200 / 224)
    least = cost_without_borders(space.product, space.ranked())
    assert space.best().cost / least == pytest.approx(224 / 200, rel=0.01)
    assert 0 < zeroing_us(plan) < 0.01 * space.best().cost


def test_a_bound_leaves_out_only_slower_schedules() -> None:
    workload = Convolution("", "", 1, 16, 32, 8).computation("NHWC")
    product = next(iter(products(workload)))
    free = ScratchpadSpace(product).ranked()
    below = free[5].cost
    assert ScratchpadSpace(product, below=below).ranked(5) == free[:5]
    assert free[0].cost >= ScratchpadSpace(product).lower_bound


@needs_compiler
def test_a_plan_without_borders_takes_what_is_counted() -> None:
    """Whole granules from whole transactions: the model counts what is executed."""
    space, _ = planned(64, 256, 256)
    tile = (("m", 32), ("n", 256), ("k", 256))
    plan = Plan(space.product, Schedule(tile, ("m", "n", "k"), 2, ahead=False))
    built = program(plan)
    given = random_inputs(plan.product.program.unfused, 1)
    inputs = {name: np.asarray(v, np.float32) for name, v in given.items()}
    assert np.allclose(built.run(inputs), inputs["A"] @ inputs["B"], atol=1e-3)
    assert built.counters is not None
    assert counted_us(plan, built.counters) == pytest.approx(estimated_us(plan), rel=0.01)
    assert efficiency(64 * 256 * 256, executing_cycles(plan, built.counters)) < machine().clock_mhz


@needs_compiler
def test_padding_takes_the_calls_that_the_model_expects() -> None:
    """Rows of an image whose ends are outside: each is a call. Once the model counted one."""
    layer = Convolution("", "", 8, 32, 8, 10, pad=0)
    workload = layer.computation("NCHW")
    tile = tuple({"n": 8, "k": 8, "p": 10, "q": 12, "c": 32, "r": 3, "s": 1}.items())
    for product in products(workload, 100):
        digits = product.program.embedding.digits
        if [(d.axis, d.count) for d in digits["x"]] == [("q", 4), ("n", 8)]:
            break
    else:
        raise AssertionError
    plan = Plan(product, Schedule(tile, ("k", "n", "p", "q", "c", "r", "s")))
    built = program(plan)
    built.run({n: np.asarray(v, np.float32) for n, v in random_inputs(workload, 1).items()})
    assert built.counters is not None
    assert 0.7 < counted_us(plan, built.counters) / estimated_us(plan) < 1.1


def test_what_a_choice_loses_is_beside_the_fastest() -> None:
    times = [{"counted": 11.0, "estimated": 9.0}, {"counted": 10.0, "estimated": 10.0}]
    assert losses([{"times": times}]) == [pytest.approx(0.1)]


def test_rows_are_stored_and_resumed(tmp_path: Path) -> None:
    computed: list[str] = []

    def compute(key: str) -> dict[str, Any]:
        computed.append(key)
        return {"value": len(key)}

    two = Experiment(
        folder=tmp_path,
        description="Two",
        keys=("a", "bb"),
        compute=compute,
        markdown=lambda found: [str(len(found))],
        trials=None,
        one_origin=True,
    )
    two.run(["bb"], None, tmp_path)
    two.run(["a", "bb"], None, tmp_path)
    assert computed == ["bb", "a"]
    assert [row["value"] for row in load(tmp_path).values()] == [1, 2]
    assert "2 of 2 rows" in (tmp_path / "results.md").read_text()
