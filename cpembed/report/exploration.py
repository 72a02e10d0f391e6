"""Reports of ``cpembed explore`` and ``shape``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cpembed.blocks import Block, Bullets, Header, Heading, Table
from cpembed.report.messages import EMPTY, legend, listed, mapping_text, short_names
from cpembed.wording import plural

if TYPE_CHECKING:
    from cpembed.exploration.exact import ExactSearch, Fate
    from cpembed.exploration.explore import ExploreResult
    from cpembed.exploration.objectives import EvaluatedPoint, Objective
    from cpembed.exploration.sampled import SampledSearch
    from cpembed.exploration.shapes.layout_model import Copy
    from cpembed.exploration.shapes.question import LayerRow, NearShapes, ShapeResult
    from cpembed.targets.family import Value

# Maximum number of reasons why points are no machines, or have no programs, that are listed.
_REASONS = 3

_FATES = {
    "dominated": "discarded: an evaluated point is at least as good as their bounds",
    "limit": "discarded: a bound exceeds a limit",
    "no_software": "discarded: no program for any layer, or for one that was analysed",
    "failed": "failed to evaluate",
}

_STATUS = {
    "proven": "the front of the space, proven for the programs that the family considers",
    "unproven": "the front so far: not all points are decided",
    "sampled": "the front of the evaluated points",
    "infeasible": "no point of the space meets the limits and has a program for a layer",
    "unknown": "no evaluated point meets the limits",
}


def explore_report(
    result: ExploreResult, top: int | None = None, picked: EvaluatedPoint | None = None
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
    yield Header(_explore_summary(result))
    if result.front:
        yield from _fronts(result, top)
        yield from _left_out(result)
    if picked is not None:
        yield ""
        yield Heading(f"Point {picked.number}")
        yield _point_layers(picked)


def _explore_summary(result: ExploreResult) -> Iterator[tuple[str, str]]:
    from cpembed.exploration.described.family import DescribedFamily
    from cpembed.exploration.exact import ExactSearch

    space, search = result.space, result.search
    layers = search.costing.layers
    # Objectives count each layer as often as the network has it.
    repetitions = sum(layer.count for layer in layers)
    yield "space", f"{space.name}: {space.description}"
    count = plural(len(layers), "layer")
    yield "suite", f"{result.suite}, {count} ({repetitions} with repetitions)"
    yield "objectives", ", ".join(_with_unit(objective) for objective in result.objectives)
    if result.limits:
        yield "limits", ", ".join(limit.text for limit in result.limits)
    if isinstance(family := space.family, DescribedFamily):
        if family.needs_silicon:
            yield "tables", f"of {family.technology}, for area and energy"
        elif family.silicon_flaw is not None:
            yield "tables", f"no area and energy: {family.silicon_flaw}"
    yield from _exact(search) if isinstance(search, ExactSearch) else _sampled(result, search)
    yield "status", _STATUS[result.status] + ", stopped by the time limit" * bool(result.stopped)
    if (volume := result.hypervolume()) is not None:
        yield "hypervolume", _hypervolume(result, volume["value"], volume.get("optimistic"))


def _exact(search: ExactSearch) -> Iterator[tuple[str, str]]:
    fates = Counter(verdict.fate for verdict in search.verdicts.values())
    yield "points", f"{search.points:,}, of which {search.machines:,} are machines"
    yield from _reasons(search, "no_machine", "no machine")
    yield "evaluated", f"{fates['evaluated']:,}"
    for fate, text in _FATES.items():
        if fates[fate]:
            yield "", f"{fates[fate]:,} {text}"
    yield from _reasons(search, "no_software", "no program")
    if search.open:
        yield "", f"{len(search.open):,} neither evaluated nor discarded"


def _reasons(search: ExactSearch, fate: Fate, text: str) -> Iterator[tuple[str, str]]:
    """Yield the most frequent reasons of a fate."""
    reasons = Counter(str(v.cause) for v in search.verdicts.values() if v.fate == fate)
    for reason, number in reasons.most_common(_REASONS):
        yield "", f"{number:,} {text}: {reason}"
    if len(reasons) > _REASONS:
        rest = sum(reasons.values()) - sum(number for _, number in reasons.most_common(_REASONS))
        yield "", f"{rest:,} {text} for other reasons (--certificate lists all)"


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


def _fronts(result: ExploreResult, top: int | None) -> Iterator[Block]:
    """Yield the front, in parts if its points compute different layers."""
    layers, number = len(result.search.costing.layers), 0
    coverages = dict.fromkeys(point.coverage for point in result.front)
    for coverage in coverages:
        points = [point for point in result.front if point.coverage == coverage]
        rows = points if top is None else points[: max(0, top - number)]
        number += len(points)
        text = f"Front: {plural(len(points), 'point')}"
        if len(coverage) < layers:
            missing = layers - len(coverage)
            text += f" without {plural(missing, 'layer')}, for which they have no software"
        yield ""
        yield Heading(text)
        yield _front(result, rows)
    if len(coverages) > 1:
        yield "A point beats another one only if it computes all of its layers."


def _left_out(result: ExploreResult) -> Iterator[Block]:
    """Yield the layers that points of the front leave out, each reason once."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for point in result.front:
        for item in point.left_out:
            reasons.setdefault((item.layer.label, item.reason), []).append(point.number)
    if not reasons:
        return
    yield ""
    yield Heading("Left out of the sums: layers without software")
    yield Bullets(
        f"{label}: {reason} ({_numbered(numbers, len(result.front))})"
        for (label, reason), numbers in reasons.items()
    )


def _numbered(numbers: Sequence[int], points: int) -> str:
    if len(numbers) == points:
        return "all points"
    return f"{'point' if len(numbers) == 1 else 'points'} {listed(numbers, _LISTED)}"


def _front(result: ExploreResult, points: Sequence[EvaluatedPoint]) -> Table:
    names = list(result.space.parameters)
    # A parameter that is an objective has its column there.
    objectives = [o for o in result.objectives if o.name not in names]
    columns = [f"{_with_unit(objective)}>" for objective in objectives]
    rows = [
        (
            f"{point.number}",
            *(_parameter(point.point[name]) for name in names),
            *(_value(objective, point.value(objective)) for objective in objectives),
            ", ".join(point.provenances),
        )
        for point in points
    ]
    headings = [f"{name}>" for name in short_names(names)]
    return Table(("#>", *headings, *columns, "costs are"), rows)


def _point_layers(point: EvaluatedPoint) -> Table:
    columns = ("layer>", "workload", "times>", "cycles>", "energy uJ>", "costs are", "program")
    rows = [
        (
            f"{each.layer.index}",
            each.layer.label,
            f"{each.layer.count}",
            f"{each.costs.cycles:,.0f}",
            _energy(each.costs.energy_pj),
            each.activity.provenance.value,
            each.choice.words,
        )
        for each in point.layers
    ]
    return Table(columns, rows)


def _energy(energy_pj: float) -> str:
    return EMPTY if math.isnan(energy_pj) else f"{energy_pj * 1e-6:,.4g}"


def _with_unit(objective: Objective) -> str:
    return f"{objective.name} {objective.unit}".strip()


def _parameter(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(objective: Objective, value: float) -> str:
    return f"{value:,.0f}" if not objective.unit or value >= 1e6 else f"{value:,.6g}"


# -- shapes ---------------------------------------------------------------------------------------

# Maximum number of equally good shapes, or of copies, that are listed, not only counted.
_LISTED = 8

# Maximum number of shapes near the best that are listed before the rest is counted.
_LISTED_NEAR = 40


def shape_report(result: ShapeResult) -> Iterator[Block]:
    """Yield a row for each layer, the shapes, the copies, and the layers that no shape embeds."""
    if result.layers:
        yield _shape_layers(result)
        yield legend([row.embedded.embedding for row in result.layers])
        yield ""
    yield Header(_shape_summary(result))
    if result.copies:
        yield ""
        yield Heading("Copies from the layout that a tensor has to the one that is read")
        yield Bullets(_copies(result.copies))
    if result.near is not None:
        yield ""
        yield from _near(result, result.near)
    if result.left_out:
        yield ""
        yield Heading("Left out: no shape embeds these layers")
        yield Bullets(f"{item.layer.label}: {item.reason}" for item in result.left_out)


def _copies(copies: Sequence[Copy]) -> Iterator[str]:
    # The largest first, as only some are listed.
    largest = sorted(copies, key=lambda copy: -copy.moved_bytes)
    for copy in largest[:_LISTED]:
        shape = " x ".join(map(str, copy.layout.shape))
        yield f"{copy.tensor}, {shape}: into {copy.name}, {copy.moved_bytes:,} bytes"
    if rest := largest[_LISTED:]:
        total = sum(copy.moved_bytes for copy in rest)
        yield f"{plural(len(rest), 'more copy', 'more copies')}: {total:,} bytes"


def _near(result: ShapeResult, near: NearShapes) -> Iterator[Block]:
    """Yield the shapes, or sets of shapes, that cost little more than the best."""
    is_single = result.question.count == 1
    nouns = ("shape", "shapes") if is_single else ("set of shapes", "sets of shapes")
    state = "the complete list, proven" if near.complete else "there may be more"
    number = plural(len(near.sets), *nouns)
    yield Heading(f"Within {result.question.within:g} % of the best: {number}, {state}")
    best = result.sets.cost or 1.0
    rows = [
        [" and ".join(map(str, shapes)), _cost(result, cost), f"{cost / best - 1:+.2%}"]
        for shapes, cost in near.sets[:_LISTED_NEAR]
    ]
    unit = "time us>" if result.question.cost.is_time else "executions>"
    yield Table(["shapes", unit, "more>"], rows)
    if len(near.sets) > _LISTED_NEAR:
        yield f"and {len(near.sets) - _LISTED_NEAR:,} more (--json lists them)"


def _shape_layers(result: ShapeResult) -> Table:
    has_shapes, has_layouts = len(result.shapes) > 1, result.copies is not None
    has_times = result.question.cost.is_time
    columns = ["#>", "layer", "count>", *["shape"] * has_shapes, "best embedding"]
    rows = [
        [
            str(row.layer.index),
            row.layer.label.removeprefix("conv2d "),
            str(row.layer.count),
            *[str(row.shape)] * has_shapes,
            mapping_text(row.embedded.embedding) + " (commuted)" * row.embedded.commuted,
            *[_layouts(row)] * has_layouts,
            *_time_cells(row, has_times),
            f"{row.embedded.executions:,}",
            f"{row.embedded.utilisation:.1%}",
        ]
        for row in result.layers
    ]
    columns += ["reads and writes"] * has_layouts
    columns += ["time us>", "limited by"] if has_times else []
    return Table([*columns, "executions>", "used>"], rows)


def _time_cells(row: LayerRow, has_times: bool) -> list[str]:
    estimate = row.embedded.estimate
    if not has_times:
        return []
    return [EMPTY, ""] if estimate is None else [f"{estimate.total_us:,.4g}", estimate.bound]


def _layouts(row: LayerRow) -> str:
    *reads, writes = row.layouts or ("",)
    return f"{', '.join(reads)} → {writes}"


def _shape_summary(result: ShapeResult) -> Iterator[tuple[str, str]]:
    question, scope = result.question, result.question.scope
    layers = plural(_layer_count(result), "layer")
    yield f"{result.suite}, {scope.macs:,} MACs", f"{layers} under {question.constraints.name}"
    yield "compared", _compared(result)
    if not result.shapes:
        # Nothing below has a meaning without a shape.
        yield "best", "none"
        return
    for shape in result.shapes:
        count, executions = result.of_shape(shape)
        text = f"{executions:,} executions, {plural(count, 'layer')} by count"
        yield "best", f"{shape} ({shape.macs:,} MACs): {text}"
    if result.equal:
        yield "as good", listed(result.equal, _LISTED)
    state = "proven" if result.proven else f"not proven: at most {result.gap or 0:.2%} less"
    bytes_per_execution = question.cost.bytes_per_execution
    machine = question.cost.machine
    if result.us is not None and machine is not None:
        yield "executions", f"{result.executions:,}"
        yield "time", f"{result.us:,.1f} us estimated for {machine.name}, {state}"
    elif bytes_per_execution is None:
        yield "executions", f"{result.executions:,}, {state}"
    else:
        yield "executions", f"{result.executions:,}"
        label = "packing" if result.copies is None else "copies"
        rate = f"{bytes_per_execution:,} of them count as an execution"
        yield label, f"{result.packing_bytes:,} bytes, {rate}"
        yield "total", f"{_cost(result, result.sets.cost)}, {state}"
    yield "ideal", f"{result.ideal:,}, if {scope.macs:,} MACs were never idle"
    if result.utilisation is not None:
        yield "used", f"{result.utilisation:.1%} of the MACs executed"
    next_cost, cost = result.sets.next_cost, result.sets.cost
    if next_cost is not None and cost:
        state = "" if result.sets.next_proven else ", not proven the next"
        shapes = " and ".join(map(str, result.sets.next_best))
        unit = "us" if question.cost.is_time else "executions"
        more = f"{_cost(result, next_cost)} {unit}, {next_cost / cost - 1:+.2%}{state}"
        yield "runner-up", f"{shapes}: {more}"


def _layer_count(result: ShapeResult) -> int:
    """Return the number of layers; one that is embedded in several layouts has several rows."""
    return len({row.layer.index for row in result.layers})


def _compared(result: ShapeResult) -> str:
    scope = result.question.scope
    kind = "powers of two" if scope.powers else "integers"
    if scope.multiples != (1, 1, 1):
        factors = dict.fromkeys(scope.multiples)
        multiples = factors if len(factors) == 1 else scope.multiples
        kind += f" that are multiples of {', '.join(map(str, multiples))}"
    counts = result.counts
    text = f"{plural(counts.compared, 'shape')} of {kind}"
    if counts.not_dominated is not None:
        text += f", {counts.not_dominated:,} of them not dominated"
    if counts.searched is not None:
        pairs = counts.compared * _layer_count(result)
        text += f"; {counts.searched:,} of {pairs:,} pairs of a shape and a layer searched"
    return text


def _cost(result: ShapeResult, cost: float | None) -> str:
    """Return a cost in executions."""
    value = result.in_executions(cost) or 0.0
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
