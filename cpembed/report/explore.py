"""The report of ``cpembed explore``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import RenderableType

from cpembed.exploration.exact import ExactSearch
from cpembed.exploration.explore import ExploreResult
from cpembed.exploration.objectives import Objective
from cpembed.exploration.points import EvaluatedPoint
from cpembed.exploration.sampled import SampledSearch
from cpembed.report.blocks import header, heading, table
from cpembed.targets.family import Value
from cpembed.wording import plural

_FATES = {
    "dominated": "discarded: an evaluated point is at least as good as their bounds",
    "limit": "discarded: a bound is above a limit",
    "no_software": "a layer has no software there",
    "failed": "an evaluation failed",
}


def report(
    result: ExploreResult, top: int | None, picked: EvaluatedPoint | None
) -> list[RenderableType]:
    """``top`` rows of the front, all where None; of ``picked`` each layer's software too."""
    parts: list[RenderableType] = [header(_head(result))]
    if result.front:
        parts += ["", heading(_title(result)), _front(result, top)]
    if picked is not None:
        parts += ["", heading(f"Point {picked.number}"), _layers(picked)]
    return parts


def _head(result: ExploreResult) -> Iterator[tuple[str, str]]:
    space, search = result.space, result.search
    yield "space", f"{space.name}: {space.description}"
    layers = plural(len(search.costing.layers), "layer")
    yield "suite", f"{result.suite}, {layers} ({_executions(result)} with repetitions)"
    yield "objectives", ", ".join(_named(one) for one in result.objectives)
    if result.limits:
        yield "limits", ", ".join(limit.text for limit in result.limits)
    yield from _exact(search) if isinstance(search, ExactSearch) else _sampled(result, search)
    yield "status", _status(result)
    if (volume := result.hypervolume()) is not None:
        yield "hypervolume", _hypervolume(result, volume["value"], volume.get("optimistic"))


def _executions(result: ExploreResult) -> int:
    return sum(layer.count for layer in result.search.costing.layers)


def _exact(search: ExactSearch) -> Iterator[tuple[str, str]]:
    fates = Counter(verdict.fate for verdict in search.verdicts.values())
    yield "points", f"{search.points:,}, of which {search.machines:,} are machines"
    yield "evaluated", f"{fates['evaluated']:,}"
    for fate, words in _FATES.items():
        if fates[fate]:
            yield "", f"{fates[fate]:,} {words}"
    if search.open:
        yield "", f"{len(search.open):,} neither evaluated nor discarded"


def _sampled(result: ExploreResult, search: SampledSearch) -> Iterator[tuple[str, str]]:
    yield "points", f"{result.space.combinations:,} combinations of values"
    beyond = sum(point.beyond is not None for point in result.evaluated)
    words = [plural(len(search.trials), "trial")]
    words += [f"{beyond} above a limit"] * bool(beyond)
    words += [f"{search.repeats} proposals were repeated"] * bool(search.repeats)
    words += ["all points are evaluated"] * search.exhausted
    yield result.method, ", ".join(words) + f", seed {result.seed}"


def _status(result: ExploreResult) -> str:
    words = {
        "proven": "the front of the space, proven for the software that the family looks at",
        "unproven": "the front so far: not all points are decided",
        "sampled": "the front of the points that were evaluated",
        "infeasible": "no point of the space holds the limits and has software for all layers",
        "unknown": "no point was evaluated that holds the limits",
    }[result.status]
    return words + (", stopped by the time limit" if result.stopped else "")


def _hypervolume(result: ExploreResult, value: float, optimistic: float | None) -> str:
    assert result.reference is not None
    pairs = zip(result.objectives, result.reference, strict=True)
    reference = ", ".join(f"{one.name} {_value(one, value)}" for one, value in pairs)
    gap = ""
    if optimistic is not None and optimistic > value:
        gap = f"; at most {optimistic:.4f} by the bounds of what is open"
    return f"{value:.4f}{gap} (share of the box below {reference})"


def _title(result: ExploreResult) -> str:
    return f"Front: {plural(len(result.front), 'point')}"


def _front(result: ExploreResult, top: int | None) -> RenderableType:
    names = list(result.space.parameters)
    values = [f"{_named(one)}>" for one in result.objectives]
    rows = [
        (
            f"{point.number}",
            *(_parameter(point.point[name]) for name in names),
            *(_value(one, point.value(one)) for one in result.objectives),
            ", ".join(point.provenances),
        )
        for point in result.front[:top]
    ]
    return table(("#>", *(f"{name}>" for name in names), *values, "costs are"), rows)


def _layers(picked: EvaluatedPoint) -> RenderableType:
    columns = ("layer>", "workload", "times>", "cycles>", "energy uJ>", "costs are", "software")
    rows = [
        (
            f"{one.layer.index}",
            one.layer.label,
            f"{one.layer.count}",
            f"{one.costs.cycles:,.0f}",
            f"{one.costs.energy_pj * 1e-6:,.4g}",
            one.activity.provenance.value,
            one.choice.words,
        )
        for one in picked.layers
    ]
    return table(columns, rows)


def _named(objective: Objective) -> str:
    return f"{objective.name} {objective.unit}".strip()


def _parameter(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(objective: Objective, value: float) -> str:
    return f"{value:,.0f}" if not objective.unit or value >= 1e4 else f"{value:.4g}"
