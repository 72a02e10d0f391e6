"""The proven front equals brute force, and its certificate says the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpembed.errors import InvariantError, SpecError
from cpembed.exploration.costing import Costing
from cpembed.exploration.exact import ExactSearch
from cpembed.exploration.objectives import OBJECTIVES, Machine, read_objectives
from cpembed.exploration.space_file import read_space
from cpembed.runtime.cluster import open_workers
from cpembed.targets.family import Costs, Point
from tests.unit.exploration.cases import exact, front, run, space, works
from tests.unit.exploration.synthetic import SyntheticFamily

OBJECTIVE_SETS = (
    "cycles,energy,area",
    "time,power,area",
    "time,edp",
    "energy",
    "power,area",
    "cycles,time,energy,area,power,edp",
)
LIMITS = ((), ("area=0.02mm2",), ("power=30mW", "cycles=100000"), ("energy=1pJ",))


def dominates(first: Any, second: Any) -> bool:
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


def brute_front(search: ExactSearch) -> dict[tuple[float, ...], int]:
    """Of a search that evaluated everything: vectors that nothing dominates, each with the smallest
    number that has it. Written anew, without the package's front."""
    within = [p for p in search.evaluated if p.beyond is None]
    rows = [(p.vector(search.objectives), p.number) for p in within]
    found: dict[tuple[float, ...], int] = {}
    for vector, number in rows:
        if not any(dominates(other, vector) for other, _ in rows):
            found[vector] = min(number, found.get(vector, number))
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: " ".join(limits) or "no limit")
@pytest.mark.parametrize("objectives", OBJECTIVE_SETS)
def test_the_front_equals_brute_force(
    tmp_path: Path, objectives: str, limits: tuple[str, ...], seed: int
) -> None:
    coarse = [1, 2000, 50][seed % 3]
    tuned, slack = seed % 4, [0.0, 0.3, 0.9][seed // 4]
    made = space(tmp_path, seed=seed, coarse=coarse, tuned=tuned, slack=slack)
    everything = exact(made, objectives, limits, bounds=False)
    assert len(everything.evaluated) == everything.machines
    found = exact(made, objectives, limits)
    assert found.is_proven
    assert {vector: number for number, vector in front(found)} == brute_front(everything)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(4))
def test_every_discarded_point_is_covered_by_an_evaluated_one(tmp_path: Path, seed: int) -> None:
    made = space(tmp_path, seed=seed, coarse=1000)
    everything = exact(made, "cycles,energy,area", bounds=False)
    true = {p.number: p.vector(everything.objectives) for p in everything.evaluated}
    found = exact(made, "cycles,energy,area")
    there = {p.number: p.vector(found.objectives) for p in found.evaluated}
    discarded = [v for v in found.verdicts.values() if v.fate == "dominated"]
    assert discarded
    for verdict in discarded:
        assert verdict.bound is not None
        assert all(a <= b for a, b in zip(verdict.bound, true[verdict.number], strict=True))
        by = there[verdict.cause]  # type: ignore[index]
        assert all(a <= b for a, b in zip(by, verdict.bound, strict=True))
    assert len(found.verdicts) == found.points
    assert len(found.evaluated) + len(discarded) == found.machines


def test_bounds_save_evaluations(tmp_path: Path) -> None:
    found = exact(space(tmp_path, slack=0.1), "cycles,energy,area")
    partly = [v.layers for v in found.verdicts.values() if v.fate == "dominated"]
    assert len(found.evaluated) < found.machines / 2
    assert min(partly) == 0


def test_a_point_is_discarded_after_some_of_its_layers(tmp_path: Path) -> None:
    found = exact(space(tmp_path, slack=0.9, seed=3), "cycles,energy,area")
    partly = {v.layers for v in found.verdicts.values() if v.fate == "dominated"}
    assert partly & {1, 2, 3}


@pytest.mark.slow
def test_workers_change_nothing(tmp_path: Path) -> None:
    made = space(tmp_path, seed=5, slack=0.6)
    alone = exact(made, "cycles,energy,area")
    with open_workers(2) as workers:
        together = exact(made, "cycles,energy,area", workers=workers)
    assert together.verdicts == alone.verdicts
    assert together.evaluated == alone.evaluated


def test_a_search_goes_on_where_it_was_left(tmp_path: Path) -> None:
    made = space(tmp_path, seed=6)
    whole = exact(made, "cycles,energy,area")
    costing = Costing(made.family, works(made.family), None)
    search = ExactSearch(made, costing, read_objectives(["cycles", "energy", "area"]), ())
    while not search.finished:
        with open_workers() as workers:
            steps = search.run(workers)
            next(steps, None)
            steps.close()  # type: ignore[attr-defined]
    assert search.verdicts == whole.verdicts


def test_open_points_have_bounds_that_hold(tmp_path: Path) -> None:
    made = space(tmp_path, seed=7)
    everything = exact(made, "cycles,area", bounds=False)
    true = {p.number: p.vector(everything.objectives) for p in everything.evaluated}
    costing = Costing(made.family, works(made.family), None)
    search = ExactSearch(made, costing, read_objectives(["cycles", "area"]), ())
    with open_workers() as workers:
        for _ in search.run(workers):
            if search.bounded and search.evaluated:
                break
    assert search.open
    assert not search.is_proven
    for number, bound in search.open:
        assert all(a <= b for a, b in zip(bound, true[number], strict=True))


def test_a_layer_without_software_is_named_and_in_no_sum(tmp_path: Path) -> None:
    made = space(tmp_path)
    layers = works(made.family, ((8, 16, 16, 1), (1, 2, 3, 1)))
    found = exact(made, "cycles", layers=layers)
    alone = exact(made, "cycles", layers=layers[:1])
    assert front(found) == front(alone)
    for point in found.evaluated:
        assert [item.layer.label for item in point.left_out] == ["gemm m=1 n=2 k=3"]
        assert "six multiply-accumulates" in point.left_out[0].reason


def test_a_machine_without_software_for_any_layer_is_none(tmp_path: Path) -> None:
    made = space(tmp_path)
    found = exact(made, "cycles", layers=works(made.family, ((1, 2, 3, 1),)))
    assert not found.evaluated
    reasons = {v.cause for v in found.verdicts.values() if v.fate == "no_software"}
    assert reasons == {"gemm m=1 n=2 k=3: six multiply-accumulates have no software here"}


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(24))
def test_fronts_compare_only_what_computes_as_much(tmp_path: Path, seed: int) -> None:
    made = space(tmp_path, seed=seed, coarse=[1, 2000][seed % 2], lacking=[0.2, 0.6][seed // 12])
    objectives = ["cycles,energy,area", "cycles,area"][seed % 2]
    everything = exact(made, objectives, bounds=False)
    found = exact(made, objectives)
    assert found.is_proven
    rows = [(p.number, p.coverage, p.vector(found.objectives)) for p in everything.evaluated]
    assert len({coverage for _, coverage, _ in rows}) > 1
    # Written anew: a rival computes at least the same layers, and is better somewhere or earlier.
    expected = {
        number
        for number, coverage, vector in rows
        if not any(
            other != number
            and covered >= coverage
            and all(a <= b for a, b in zip(rival, vector, strict=True))
            and (covered != coverage or rival != vector or other < number)
            for other, covered, rival in rows
        )
    }
    assert {number for number, _ in front(found)} == expected


def test_area_limits_come_before_any_analysis(tmp_path: Path) -> None:
    found = exact(space(tmp_path), "cycles", ["area=1um2"])
    assert not found.costing.answers
    assert {v.fate for v in found.verdicts.values()} == {"limit", "no_machine"}


class TooSure(SyntheticFamily):
    """Bounds that are none."""

    def bound(self, point: Point, analysis: Any) -> Costs | None:
        found = super().bound(point, analysis)
        return None if found is None else Costs(found.cycles * 1.7, found.energy_pj)


def test_a_bound_above_the_costs_is_told(tmp_path: Path) -> None:
    made = space(tmp_path, slack=0.0)
    costing = Costing(TooSure(), works(made.family), None)
    search = ExactSearch(made, costing, read_objectives(["cycles", "area"]), ())
    with pytest.raises(InvariantError, match="below its lower bound"):
        run(search)


def test_spaces_beyond_enumeration_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    path.write_text(
        'name = "large"\ndescription = ""\nfamily = "synthetic"\n[parameters]\n'
        "rows = { from = 1, to = 1000 }\nbanks = { from = 1, to = 1000 }\n"
    )
    with pytest.raises(SpecError, match="1,000,000 combinations"):
        exact(read_space(path), "cycles")


def test_objectives_of_bounds_are_below_those_of_costs() -> None:
    family = SyntheticFamily()
    point = {p.name: p.default for p in family.parameters} | {"rows": 8}
    machine = Machine.at(family, point)  # type: ignore[arg-type]
    leaked = machine.leakage_w * 1000 / machine.clock_mhz * 1e6
    costs = Costs(1000.0, leaked + 5000.0)
    for objective in OBJECTIVES.values():
        assert objective.bound(machine, costs) <= objective.value(machine, costs)
