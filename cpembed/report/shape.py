"""Report of ``cpembed shape``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpembed.blocks import Block, Bullets, Header, Heading, Table
from cpembed.exploration.shapes.layout_model import Copy
from cpembed.exploration.shapes.question import LayerRow, NearShapes, ShapeResult
from cpembed.report.messages import legend, mapping_text
from cpembed.wording import plural

_LISTED = 8
"""Maximum number of equally good shapes, or of copies, that are listed before the rest is
counted."""

_LISTED_NEAR = 40
"""Maximum number of shapes near the best that are listed before the rest is counted."""


def report(result: ShapeResult) -> Iterator[Block]:
    """Yield a row for each layer, the shapes, the copies, and the layers that no shape embeds."""
    if result.layers:
        yield _layers(result)
        yield legend([row.embedded.embedding for row in result.layers])
        yield ""
    yield Header(_summary(result))
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
    """Yield the largest copies, then the number of the others."""
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
    yield Table(["shapes", "executions>", "more>"], rows)
    if len(near.sets) > _LISTED_NEAR:
        yield f"and {len(near.sets) - _LISTED_NEAR:,} more (--json lists them)"


def _layers(result: ShapeResult) -> Table:
    has_shapes, has_layouts = len(result.shapes) > 1, result.copies is not None
    columns = ["#>", "layer", "count>", *["shape"] * has_shapes, "best embedding"]
    rows = [
        [
            str(row.layer.index),
            row.layer.label.removeprefix("conv2d "),
            str(row.layer.count),
            *[str(row.shape)] * has_shapes,
            mapping_text(row.embedded.embedding) + " (commuted)" * row.embedded.commuted,
            *[_layouts(row)] * has_layouts,
            f"{row.embedded.executions:,}",
            f"{row.embedded.utilisation:.1%}",
        ]
        for row in result.layers
    ]
    return Table([*columns, *["reads and writes"] * has_layouts, "executions>", "used>"], rows)


def _layouts(row: LayerRow) -> str:
    *reads, writes = row.layouts or ("",)
    return f"{', '.join(reads)} → {writes}"


def _summary(result: ShapeResult) -> Iterator[tuple[str, str]]:
    question, scope = result.question, result.question.scope
    layers = plural(_layer_count(result), "layer")
    yield f"{result.suite}, {scope.macs:,} MACs", f"{layers} under {question.constraints.name}"
    yield "compared", _compared(result)
    if not result.shapes:
        yield "best", "none"
        return
    for shape in result.shapes:
        count, executions = result.of_shape(shape)
        text = f"{executions:,} executions, {plural(count, 'layer')} by count"
        yield "best", f"{shape} ({shape.macs:,} MACs): {text}"
    if result.equal:
        listed = ", ".join(map(str, result.equal[:_LISTED]))
        more = len(result.equal) - _LISTED
        yield "as good", listed + (f" and {more} more" if more > 0 else "")
    state = "proven" if result.proven else f"not proven: at most {result.gap or 0:.2%} less"
    bytes_per_execution = question.cost.bytes_per_execution
    if bytes_per_execution is None:
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
        more = f"{_cost(result, next_cost)} executions, {next_cost / cost - 1:+.2%}{state}"
        yield "runner-up", f"{shapes}: {more}"


def _layer_count(result: ShapeResult) -> int:
    """Return the number of layers; one that is embedded in several layouts has several rows."""
    return len({row.layer.index for row in result.layers})


def _compared(result: ShapeResult) -> str:
    kind = "powers of two" if result.question.scope.powers else "integers"
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
