"""The tables of ``cpembed shape``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from cpembed.exploration.shapes.layout_model import Copy
from cpembed.exploration.shapes.result import LayerRow, NearShapes, ShapeResult
from cpembed.report.blocks import bullets, header, heading, table
from cpembed.report.words import legend, mapping
from cpembed.wording import plural

_LISTED = 8
"""Shapes that are as good as the best, before the rest is only counted."""

_NEAR = 40
"""Sets that cost little more than the best, before the rest is only counted."""


def report(result: ShapeResult) -> Iterator[RenderableType]:
    """The shapes, then a row a layer, then the layers that no shape embeds."""
    if result.layers:
        yield _layers(result)
        yield legend([row.embedded.embedding for row in result.layers])
        yield ""
    yield header(_summary(result))
    if result.copies:
        yield ""
        yield heading("copied from the layout that a tensor is stored in")
        yield bullets(_copies(result.copies))
    if result.near is not None:
        yield ""
        yield from _near(result, result.near)
    if result.left_out:
        yield ""
        yield heading("left out, as no shape embeds them")
        yield bullets(f"{item.layer.label}: {item.reason}" for item in result.left_out)


def _copies(copies: Sequence[Copy]) -> Iterator[str]:
    """The largest ones."""
    largest = sorted(copies, key=lambda copy: -copy.moved_bytes)
    for copy in largest[:_LISTED]:
        shape = " x ".join(map(str, copy.layout.shape))
        yield f"{copy.tensor}, {shape}: into {copy.name}, {copy.moved_bytes:,} bytes"
    if rest := largest[_LISTED:]:
        bytes_of_rest = sum(copy.moved_bytes for copy in rest)
        yield f"{plural(len(rest), 'more copy', 'more copies')}: {bytes_of_rest:,} bytes"


def _near(result: ShapeResult, near: NearShapes) -> Iterator[RenderableType]:
    """The sets that cost little more than the best, the first of them."""
    of = "" if result.question.count == 1 else " of shapes"
    what = (
        plural(len(near.sets), f"set{of}", f"sets{of}") if of else plural(len(near.sets), "shape")
    )
    state = "all there are, proven" if near.complete else "there may be more"
    yield heading(f"within {result.question.within:g} % of the best: {what}, {state}")
    best = result.sets.cost or 1.0
    rows = [
        [" and ".join(map(str, shapes)), _cost(result, cost), f"{cost / best - 1:+.2%}"]
        for shapes, cost in near.sets[:_NEAR]
    ]
    yield table(["shapes", "executions>", "more>"], rows)
    if len(near.sets) > _NEAR:
        yield f"and {len(near.sets) - _NEAR:,} more (--json lists them)"


def _layers(result: ShapeResult) -> RenderableType:
    several = len(result.shapes) > 1
    kept = result.copies is not None
    columns = ["#>", "layer", "count>", *(["shape"] if several else []), "best embedding"]
    columns += ["reads and writes"] if kept else []
    rows = [
        [
            str(row.layer.index),
            row.layer.label.removeprefix("conv2d "),
            str(row.layer.count),
            *([str(row.shape)] if several else []),
            mapping(row.embedded.embedding) + (" (exchanged)" * row.embedded.commuted),
            *([_layouts(row)] if kept else []),
            f"{row.embedded.executions:,}",
            f"{row.embedded.utilisation:.1%}",
        ]
        for row in result.layers
    ]
    return table([*columns, "executions>", "used>"], rows)


def _layouts(row: LayerRow) -> str:
    *reads, writes = row.layouts or ("",)
    return f"{', '.join(reads)} → {writes}"


def _summary(result: ShapeResult) -> Iterator[tuple[str, str]]:
    question, scope = result.question, result.question.scope
    yield (
        f"{result.suite}, {scope.macs:,} MACs",
        f"{plural(_layer_count(result), 'layer')} under {question.constraints.name}",
    )
    yield "compared", _compared(result)
    if not result.shapes:
        yield "best", "none"
        return
    for shape in result.shapes:
        layers, executions = result.of_shape(shape)
        words = f"{executions:,} executions, {plural(layers, 'layer')} by count"
        yield "best", f"{shape} ({shape.macs:,} MACs): {words}"
    if result.equal:
        listed = ", ".join(map(str, result.equal[:_LISTED]))
        more = len(result.equal) - _LISTED
        yield "as good", listed + (f" and {more} more" if more > 0 else "")
    state = "proven" if result.proven else f"not proven: at most {result.gap or 0:.2%} less"
    counted = question.cost.bytes_per_execution
    if counted is None:
        yield "executions", f"{result.executions:,}, {state}"
    else:
        yield "executions", f"{result.executions:,}"
        what = "packing" if result.copies is None else "copies"
        yield what, f"{result.packing_bytes:,} bytes, {counted:,} of them as an execution"
        yield "together", f"{_cost(result, result.sets.cost)}, {state}"
    yield "ideal", f"{result.ideal:,}, if {scope.macs:,} MACs were never idle"
    if result.utilisation is not None:
        yield "used", f"{result.utilisation:.1%} of the MACs executed"
    other, cost = result.sets.next_cost, result.sets.cost
    if other is not None and cost:
        state = "" if result.sets.next_proven else ", not proven the next"
        shapes = " and ".join(map(str, result.sets.next_best))
        words = f"{_cost(result, other)} executions, {other / cost - 1:+.2%}{state}"
        yield "runner-up", f"{shapes}: {words}"


def _layer_count(result: ShapeResult) -> int:
    """A layer that takes several ways has several rows."""
    return len({row.layer.index for row in result.layers})


def _compared(result: ShapeResult) -> str:
    kind = "powers of two" if result.question.scope.powers else "integers"
    counts = result.counts
    words = f"{plural(counts.compared, 'shape')} of {kind}"
    if counts.not_dominated is not None:
        words += f", {counts.not_dominated:,} of them not dominated"
    if counts.searched is not None:
        pairs = counts.compared * _layer_count(result)
        words += f"; {counts.searched:,} of {pairs:,} pairs of a shape and a layer searched"
    return words


def _cost(result: ShapeResult, cost: float | None) -> str:
    """A cost in executions."""
    value = result.in_executions(cost) or 0.0
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
