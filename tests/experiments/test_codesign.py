"""Hardware and software of VTA together: Q-learning's directions and search, and the committed
results."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.target import VtaTarget
from cpembed.targets.vta.tuning import Nest, VtaSpace, canonical
from cpembed.workloads.suites import Layer
from experiments.common import Row, load
from experiments.hasco2021.codesign import DEFAULT, default_spec, reference, workload_of
from experiments.hasco2021.figure11 import run as figure11
from experiments.hasco2021.learning import qlearning
from experiments.hasco2021.learning import run as learning
from experiments.hasco2021.learning.directions import Direction, directions
from experiments.hasco2021.learning.qlearning import (
    ALWAYS,
    DECAYING,
    GAMMA,
    Learner,
    chances,
    estimated_beginnings,
    random_beginnings,
)
from experiments.hasco2021.table3 import run as table3
from experiments.hasco2021.table3 import tables
from experiments.rieber2021.tuning import Target, tune_reference
from tests.experiments.loading import EXPERIMENTS

SCRIPTS = {"table3": table3, "figure11": figure11, "learning": learning}
NEXT = Direction("next thread loop")


@cache
def nests() -> tuple[Nest, ...]:
    workload = workload_of(Layer("words", 0, "", "conv2d n=2 c=32 h=12 w=12 k=48 r=3 s=3 pad=1"))
    target = VtaTarget(default_spec())
    found = solve(workload, target.spec, constraints="strict_padded", top=2).embeddings
    return tuple(target.lower(item.candidate.program) for item in found)


def cut(nest: Nest, *names: str) -> Schedule:
    """A schedule in single tiles along ``names``, in one piece along all other loops."""
    best = VtaSpace(nest).best().schedule
    tiles = {loop.name: loop.extent for loop in nest.nest.loops} | dict.fromkeys(names, 1)
    return canonical(nest.nest, replace(best, tiles=tiles, thread_loop=None))


def test_threads_share_every_loop_that_is_cut_in_turn() -> None:
    nest = nests()[0]
    spatial = [n for n in nest.nest.loops if n.kind is AxisKind.SPATIAL and n.extent > 1]
    assert len(spatial) > 2
    for left_out in spatial:
        names = [loop.name for loop in spatial if loop is not left_out]
        schedule, met = cut(nest, *names), list[str | None]()
        for _ in range(len(names) + 1):
            changed = NEXT.changed(nest.nest, schedule)
            assert changed is not None
            schedule = canonical(nest.nest, changed)
            met.append(schedule.thread_loop)
        assert met == [*names, None]


def test_each_direction_changes_what_it_says_or_nothing() -> None:
    nest = nests()[0].nest
    schedule = cut(nests()[0], nest.loops[0].name)
    for direction in directions(len(nest.loops) + 1):
        changed = direction.changed(nest, schedule)
        if direction.loop == len(nest.loops):
            assert changed is None
        if changed is None or direction == NEXT:
            continue
        what = "tiles" if "parts" in direction.words else "order"
        what = "slots" if "slots" in direction.words else what
        assert getattr(changed, what) != getattr(schedule, what)
        assert changed == replace(schedule, **{what: getattr(changed, what)})


def estimated(nest: Nest, schedule: Schedule) -> int:
    return int(VtaSpace(nest).estimated(schedule))


@pytest.mark.parametrize("exploring", [DECAYING, ALWAYS])
def test_a_search_simulates_nothing_twice_and_gets_better(exploring: tuple[float, float]) -> None:
    asked: list[str] = []

    def simulate(nest: Nest, schedule: Schedule) -> int:
        asked.append(f"{id(nest)} {schedule!r}")
        return estimated(nest, schedule)

    begin = random_beginnings(nests(), 1)
    best = Learner(nests(), simulate, 1, exploring).run(96, begin)
    assert len(best) == len(asked) == len(set(asked)) == 96
    assert best == sorted(best, reverse=True)
    assert best[-1] < best[qlearning.START - 1]
    assert best == Learner(nests(), estimated, 1, exploring).run(96, begin)


def test_a_search_begins_with_what_estimates_choose() -> None:
    best = Learner(nests(), estimated, 0).run(2, estimated_beginnings(nests()))
    assert best[0] == int(min(VtaSpace(nest).best().cost for nest in nests()))


def test_points_are_chosen_by_performance_whatever_its_scale() -> None:
    """Also where the best is better by a percent, and one point is very bad."""
    found = chances(1 / np.array([1000, 1010, 1010, 1010, 9000]))
    assert found.sum() == pytest.approx(1)
    assert found[0] / found[1] == pytest.approx(math.exp(GAMMA))
    assert found[4] < 1e-9
    assert chances(np.ones(4)).tolist() == [0.25] * 4
    most_equal = chances(1 / np.array([1000, 1000, 1000, 2000]))
    assert most_equal[0] / most_equal[3] == pytest.approx(math.exp(GAMMA))


def test_no_random_schedule_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise LoweringError("no")

    monkeypatch.setattr(qlearning, "check_schedule", refuse)
    monkeypatch.setattr(qlearning, "ATTEMPTS", 50)
    with pytest.raises(LoweringError, match="none of 50 random schedules"):
        random_beginnings(nests(), 0)


def test_the_template_has_as_many_programs_as_it_is_given() -> None:
    """Also those that estimates find slow, which other experiments leave out."""
    workload = workload_of(Layer("words", 0, "", "conv2d n=1 c=256 h=4 w=4 k=256 r=1 s=1 pad=0"))
    found = reference(workload, 60)
    fewer = tune_reference(workload, Target.open(DEFAULT, workload), 60)
    assert found is not None
    assert fewer.simulated < found["simulated"] == 60
    assert found["cycles"] == fewer.cycles


SPACE = """
name = "few"
description = "two cores, two sizes of a buffer"
family = "vta"
objectives = ["cycles"]

[parameters]
log_batch = [0, 1]
log_inp_buff = [14, 15]

[fixed]
log_uop_buff = 13
"""


@pytest.mark.slow
def test_a_row_of_table_iii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cycles are the best of what was simulated; cores of two rows have no software for depthwise
    convolutions."""
    suite = tmp_path / "suite.csv"
    table = (EXPERIMENTS / "hasco2021" / "mobilenet_v1.csv").read_text().splitlines()
    suite.write_text("\n".join([table[0], *table[14:16]]) + "\n")
    space = tmp_path / "few.toml"
    space.write_text(SPACE)
    networks = {"mobilenet": (str(suite), "1"), "mobilenet_all": (str(suite), None)}
    monkeypatch.setattr(table3, "NETWORKS", networks)
    monkeypatch.setattr(table3, "SPACES", {"multipliers": space, "area": space})
    rows: list[Row] = [{"key": key, **table3.compute(key, 4)} for key in networks]
    assert [row["machines"]["area"]["rows"] for row in rows] == [[1, 2], [1]]
    assert [row["machines"]["area"]["with_software"] for row in rows] == [4, 2]
    for row in rows:
        for layer in row["layers"]:
            assert layer["area"]["explored"] >= tables.cycles_of(layer["area"])
        # A machine of the default's core is not slower than what was explored there.
        total = row["machines"]["area"]["cycles"]
        assert tables.total(row, "area") <= total
    assert "area, 2 have software for all layers" in "\n".join(table3.markdown(rows[1:]))


@pytest.mark.parametrize("name", ["table3", "figure11", "learning"])
def test_committed_tables_are_those_of_their_rows(name: str) -> None:
    folder = EXPERIMENTS / "hasco2021" / name
    run, rows = SCRIPTS[name], list(load(folder).values())
    assert (folder / "results.md").read_text().startswith("\n".join(run.markdown(rows)))
