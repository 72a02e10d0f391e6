"""What reports say of choices by estimates: *the fastest* of those compared only where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.driver.named import workload
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Compared, Request, Selection
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.cpsat import Status
from cpembed.report import run
from cpembed.report.solve import method_rows, search_text
from cpembed.targets.base import ChoicePolicy
from cpembed.targets.choice import Estimated, ModelChoice


@pytest.fixture(scope="module")
def chosen() -> Selection:
    found = choose(
        Request(workload("gemm m=3 n=8 k=8", "vta_8x8x8"), "vta_8x8x8", KernelOptions(untuned=True))
    )
    assert isinstance(found, Selection)
    return found


@pytest.mark.parametrize(
    "costs, equal, said",
    [
        ((10.0, 11.0), 1.0, "the fastest of the 2 candidates that were estimated"),
        ((10.0, 9.9), 1.1, "of the 2 candidates that were estimated, estimates cannot tell it"),
        ((10.0, 5.0), 1.1, "of the 2 candidates that were estimated, the fastest, "),
    ],
)
def test_the_fastest_by_estimate_has_the_least_estimate(
    chosen: Selection, costs: tuple[float, ...], equal: float, said: str
) -> None:
    """Candidates that the target refused were not estimated, and are not counted."""
    target, choice = chosen.plan.target, chosen.choice
    assert choice.scored is not None
    scored = [replace(choice.scored, cost=cost) for cost in costs]
    model = ModelChoice(tuple(Estimated(choice.ranked, one) for one in scored), (("no", "why"),))

    class Judged(type(target)):  # type: ignore[misc]
        pass

    Judged.policy = ChoicePolicy(tie_ratio=equal)
    judge = object.__new__(Judged)
    judge.__dict__.update(target.__dict__)
    first = replace(choice, scored=scored[0], model=model)
    rows = dict(run.schedule_rows(judge, chosen.solved, first))
    assert said in rows["chosen"]


def test_methods_that_estimates_cannot_tell_apart_are_not_ranked() -> None:
    rows = [words for _, words in method_rows(Compared(None, {"implicit": 10.0, "explicit": 9.9}))]
    assert any(words.startswith("estimates cannot tell it from the fastest: ") for words in rows)
    refused = {"winograd_2x2": "windows of stride 1 alone"}
    compared = Compared(None, {"implicit": 10.0, "explicit": 20.0}, refused)
    rows = [words for _, words in method_rows(compared)]
    assert any(words.startswith("the fastest by estimate: implicit") for words in rows)
    assert "not compared: winograd_2x2: windows of stride 1 alone" in rows
    assert compared.to_json()["refused"] == refused


@pytest.mark.parametrize("fixed", [True, False])
def test_a_stopped_search_of_every_place_says_what_makes_it_long(fixed: bool) -> None:
    result = solve(
        workload("gemm m=3 n=8 k=8", "vta_8x8x8"), "vta_8x8x8", constraints="strict_padded"
    )
    flattened = load_constraint_set("flattened")
    every = [each for each in flattened.constraints if fixed or each.name != "fixed_origin"]
    stopped = replace(
        result,
        constraints=replace(flattened, constraints=tuple(every)),
        status=Status.FEASIBLE,
        complete=False,
        timeout=1.0,
    )
    assert ("each place of a tile is another embedding" in search_text(stopped)) is not fixed
