"""Methods that propose points: trials are counted, repeated and continued as documented."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from cpembed.errors import BackendUnavailable
from cpembed.exploration.costing import Costing
from cpembed.exploration.objectives import front_of, read_limits, read_objectives
from cpembed.exploration.options import ExploreOptions, Method
from cpembed.exploration.sampled import SampledSearch
from cpembed.exploration.space import Space
from cpembed.exploration.space_file import read_space
from cpembed.runtime.cluster import open_workers
from tests.unit.exploration.cases import exact, front, run, space, works

METHODS = ("random", "tpe", "nsga2", "gp")
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("scipy") is None, reason="missing: torch, scipy"
)


def search(made: Space, method: Method, trials: int, *limits: str, **more: object) -> SampledSearch:
    costing = Costing(made.family, works(made.family), None)
    objectives = read_objectives(["time", "power", "area"])
    return SampledSearch(
        made,
        costing,
        objectives,
        read_limits(limits),
        ExploreOptions(method=method, trials=trials, **more),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[needs_torch] if m == "gp" else []) for m in METHODS]
)
def test_trials_are_distinct_machines(tmp_path: Path, method: Method) -> None:
    found = search(space(tmp_path), method, 15, population=5)
    run(found)
    numbers = [trial.number for trial in found.trials]
    assert len(set(numbers)) == len(numbers) == 15
    for trial in found.trials:
        assert trial.point is not None
        assert found.space.flaw(trial.point.point) is None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["random", "tpe", "nsga2"])
def test_a_seed_makes_the_same_trials_whoever_evaluates(tmp_path: Path, method: Method) -> None:
    made = space(tmp_path)
    first, other = search(made, method, 20, seed=3), search(made, method, 20, seed=4)
    run(first)
    run(other)
    again = search(made, method, 20, seed=3)
    with open_workers(2) as workers:
        run(again, workers)
    assert again.trials == first.trials
    assert [t.number for t in other.trials] != [t.number for t in first.trials]


@pytest.mark.parametrize("method", ["random", "nsga2"])
def test_a_space_is_used_up(tmp_path: Path, method: Method) -> None:
    path = tmp_path / "small.toml"
    path.write_text(
        'name = "small"\ndescription = ""\nfamily = "synthetic"\nwhere = ["rows != 16"]\n'
        '[parameters]\nrows = [8, 16, 32]\nbanks = [1, 2]\ndataflow = ["ws", "os"]\n'
    )
    made = read_space(path)
    everything = exact(made, "time,power,area", bounds=False)
    found = search(made, method, 100)
    run(found)
    assert found.exhausted
    assert {t.number for t in found.trials} == {p.number for p in everything.evaluated}
    points = [t.point for t in found.trials if t.point is not None]
    assert [p.number for p in front_of(points, found.objectives)] == [
        n for n, _ in front(everything)
    ]


def test_every_proposal_counts_where_trials_need_not_be_distinct(tmp_path: Path) -> None:
    found = search(space(tmp_path), "nsga2", 40, population=5, distinct=False)
    run(found)
    repeated = sum(trial.repeated for trial in found.trials)
    assert len(found.trials) == 40
    assert repeated == found.repeats > 0


def test_the_nearest_point_takes_the_place_of_what_was_evaluated(tmp_path: Path) -> None:
    found = search(space(tmp_path), "random", 100)
    places = list(found.space.places())
    run(found)
    nearest = found._nearest_new(places[0])
    assert nearest is not None
    known = {trial.place for trial in found.trials}
    machines = [p for p in places if found.space.flaw(found.space.point(p)) is None]

    def distance(place: tuple[int, ...]) -> int:
        """A word is as far from any other."""
        *numbers, word = zip(place, places[0], strict=True)
        return sum(abs(a - b) for a, b in numbers) + (word[0] != word[1])

    assert distance(nearest) == min(distance(place) for place in machines if place not in known)


def test_points_above_a_limit_are_trials_that_are_not_on_the_front(tmp_path: Path) -> None:
    found = search(space(tmp_path), "tpe", 30, "area=0.02mm2")
    run(found)
    points = [trial.point for trial in found.trials if trial.point is not None]
    assert any(point.beyond is not None for point in points)
    assert all(p.beyond is None for p in front_of(points, found.objectives))


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_what_a_method_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"torch.*explore-gp"):
        search(space(tmp_path), "gp", 5)
