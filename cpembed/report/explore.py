"""Report of ``cpembed explore``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cpembed.blocks import Block, Header, Heading, Table
from cpembed.exploration.exact import ExactSearch
from cpembed.exploration.explore import ExploreResult
from cpembed.exploration.objectives import EvaluatedPoint, Objective
from cpembed.exploration.sampled import SampledSearch
from cpembed.targets.family import Value
from cpembed.wording import plural

_FATES = {
    "dominated": "discarded: an evaluated point is at least as good as their bounds",
    "limit": "discarded: a bound exceeds a limit",
    "no_software": "discarded: no program for a layer",
    "failed": "failed to evaluate",
}

_STATUS = {
    "proven": "the front of the space, proven for the programs that the family considers",
    "unproven": "the front so far: not all points are decided",
    "sampled": "the front of the evaluated points",
    "infeasible": "no point of the space meets the limits and has programs for all layers",
    "unknown": "no evaluated point meets the limits",
}


def report(
    result: ExploreResult, top: int | None, picked: EvaluatedPoint | None
) -> Iterator[Block]:
    """Yield the search, the front, and one point in detail.

    Parameters
    ----------
    result
        Result of the exploration.
    top
        Maximum number of rows of the front; None for all.
    picked
        Point whose programs are listed by layer; None for no point.
    """
    yield Header(_summary(result))
    if result.front:
        yield ""
        yield Heading(f"Front: {plural(len(result.front), 'point')}")
        yield _front(result, top)
    if picked is not None:
        yield ""
        yield Heading(f"Point {picked.number}")
        yield _layers(picked)


def _summary(result: ExploreResult) -> Iterator[tuple[str, str]]:
    space, search = result.space, result.search
    layers = search.costing.layers
    repetitions = sum(layer.count for layer in layers)
    yield "space", f"{space.name}: {space.description}"
    count = plural(len(layers), "layer")
    yield "suite", f"{result.suite}, {count} ({repetitions} with repetitions)"
    yield "objectives", ", ".join(_with_unit(objective) for objective in result.objectives)
    if result.limits:
        yield "limits", ", ".join(limit.text for limit in result.limits)
    yield from _exact(search) if isinstance(search, ExactSearch) else _sampled(result, search)
    yield "status", _STATUS[result.status] + ", stopped by the time limit" * bool(result.stopped)
    if (volume := result.hypervolume()) is not None:
        yield "hypervolume", _hypervolume(result, volume["value"], volume.get("optimistic"))


def _exact(search: ExactSearch) -> Iterator[tuple[str, str]]:
    fates = Counter(verdict.fate for verdict in search.verdicts.values())
    yield "points", f"{search.points:,}, of which {search.machines:,} are machines"
    yield "evaluated", f"{fates['evaluated']:,}"
    for fate, text in _FATES.items():
        if fates[fate]:
            yield "", f"{fates[fate]:,} {text}"
    if search.open:
        yield "", f"{len(search.open):,} neither evaluated nor discarded"


def _sampled(result: ExploreResult, search: SampledSearch) -> Iterator[tuple[str, str]]:
    yield "points", f"{result.space.combinations:,} combinations of values"
    beyond = sum(point.beyond is not None for point in result.evaluated)
    parts = [plural(len(search.trials), "trial")]
    parts += [f"{beyond} above a limit"] * bool(beyond)
    parts += [f"{search.repeats} proposals repeated"] * bool(search.repeats)
    parts += ["all points evaluated"] * search.exhausted
    yield result.method, ", ".join(parts) + f", seed {result.seed}"


def _hypervolume(result: ExploreResult, value: float, optimistic: float | None) -> str:
    """Return the hypervolume with its upper bound; a share of the box below the reference point."""
    assert result.reference is not None
    pairs = zip(result.objectives, result.reference, strict=True)
    reference = ", ".join(f"{each.name} {_value(each, bound)}" for each, bound in pairs)
    gap = ""
    if optimistic is not None and optimistic > value:
        gap = f"; at most {optimistic:.4f} by the bounds of the open points"
    return f"{value:.4f}{gap} (share of the box below {reference})"


def _front(result: ExploreResult, top: int | None) -> Table:
    names = list(result.space.parameters)
    columns = [f"{_with_unit(objective)}>" for objective in result.objectives]
    rows = [
        (
            f"{point.number}",
            *(_parameter(point.point[name]) for name in names),
            *(_value(objective, point.value(objective)) for objective in result.objectives),
            ", ".join(point.provenances),
        )
        for point in result.front[:top]
    ]
    return Table(("#>", *(f"{name}>" for name in names), *columns, "costs are"), rows)


def _layers(point: EvaluatedPoint) -> Table:
    columns = ("layer>", "workload", "times>", "cycles>", "energy uJ>", "costs are", "program")
    rows = [
        (
            f"{each.layer.index}",
            each.layer.label,
            f"{each.layer.count}",
            f"{each.costs.cycles:,.0f}",
            f"{each.costs.energy_pj * 1e-6:,.4g}",
            each.activity.provenance.value,
            each.choice.words,
        )
        for each in point.layers
    ]
    return Table(columns, rows)


def _with_unit(objective: Objective) -> str:
    return f"{objective.name} {objective.unit}".strip()


def _parameter(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(objective: Objective, value: float) -> str:
    return f"{value:,.0f}" if not objective.unit or value >= 1e4 else f"{value:.4g}"
