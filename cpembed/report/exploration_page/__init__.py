"""An exploration as an HTML file that loads nothing from elsewhere, readable without scripts.

The page shows the question, a plot for each pair of objectives, the front as a table, and a card
for each evaluated point: parameters, each layer's time, bytes and mapping, and what was left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cpembed.report.exploration_page.document import Exploration, LayerRow, PointRow, read
from cpembed.report.exploration_page.picture import kind, label, number, plot
from cpembed.report.html_page import definitions, html, page_head, script_text, style_text
from cpembed.wording import plural

MAX_CARDS = 400
"""Maximum number of points with a card; those of the front have one in any case."""

# Digits of objectives, in which points of a front may differ little.
_DIGITS = 6

_DETAILS = (
    '<aside id="details" role="status" aria-label="The selected point">'
    '<button type="button" class="close">Close</button><div class="body"></div></aside>'
)

_STATUS = {
    "proven": "the front of the space, proven for the software that the family considers",
    "unproven": "the front so far: not all points are decided",
    "sampled": "the front of the points that were evaluated",
}


def page(document: Mapping[str, Any]) -> str:
    """Return the page of a document of ``cpembed explore --json``.

    Raises :class:`~cpembed.errors.InvariantError` for any other document.
    """
    exploration = read(document)
    script = script_text("exploration_page/page.js")
    title = html(f"{exploration.space.name}: machines for {exploration.suite}")
    return "\n".join(
        [
            page_head(title, script, style_text("exploration_page/page.css")),
            '<a class="skip" href="#front-title">To the table of the front</a>',
            _header(exploration, title),
            "<main>",
            *_question(exploration),
            *_plots(exploration),
            *_front(exploration),
            '<section class="cards" aria-labelledby="cards-title">',
            '<h2 id="cards-title">Points</h2>',
            *_cards(exploration),
            "</section>\n</main>",
            _DETAILS,
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _header(exploration: Exploration, title: str) -> str:
    kinds = sorted({row.provenance for point in exploration.rows for row in point.layers})
    status = _STATUS.get(exploration.status, "no point is within the limits")
    points = plural(len(exploration.rows), "evaluated point")
    costs = f"costs are {' and '.join(kinds)}; " if kinds else ""
    about = html(f"{exploration.space.description}. {points}; {costs}{status}")
    return (
        f"<header><div><h1>{title}</h1><p>{about}</p></div>"
        '<button type="button" id="theme" class="script">Dark</button></header>'
    )


def _question(exploration: Exploration) -> Iterator[str]:
    space = exploration.space
    rows = [
        ("objectives", ", ".join(map(label, exploration.objectives))),
        ("method", exploration.method),
        *((name, ", ".join(map(str, values))) for name, values in space.parameters.items()),
        *((name, f"= {text}") for name, text in space.derived.items()),
        *(("where", text) for text in space.where),
        *(("limit", f"{label(key)}: {value:g}") for key, value in exploration.limits.items()),
    ]
    yield "<section>\n<h2>Space</h2>"
    yield definitions(rows)
    yield "</section>"


def _plots(exploration: Exploration) -> Iterator[str]:
    if not exploration.rows:
        return
    counts = {"front": 0, "evaluated": 0, "beyond": 0}
    for point in exploration.rows:
        counts[kind(exploration, point)] += 1
    names = {"front": "front", "evaluated": "evaluated", "beyond": "above a limit"}
    items = "".join(
        f'<li class="point {name}"><svg class="key" width="14" height="14" aria-hidden="true">'
        f'<circle cx="7" cy="7" r="5"></circle></svg> {names[name]} ({count})</li>'
        for name, count in counts.items()
        if count
    )
    yield '<section>\n<h2 id="plots-title">Objectives</h2>'
    yield f'<ul class="legend" aria-label="Legend">{items}</ul>'
    yield '<p id="hover" class="script" role="status">Point at a mark, or select one.</p>'
    yield '<div class="plots">'
    for first, second in exploration.pairs:
        yield plot(exploration, first, second)
    yield "</div>\n</section>"


def _front(exploration: Exploration) -> Iterator[str]:
    yield '<section>\n<h2 id="front-title">Front</h2>'
    points = {point.number: point for point in exploration.rows}
    if not exploration.front:
        yield "<p>No evaluated point is within the limits.</p>\n</section>"
        return
    some_left_out = any(points[n].left_out for n in exploration.front)
    if some_left_out:
        yield (
            "<p>Layers without software are in no sum. A point beats another one only if it "
            "computes all of its layers.</p>"
        )
    names = list(exploration.space.parameters)
    # A parameter that is an objective has one column.
    objectives = [key for key in exploration.objectives if key not in names]
    heads = ["#", *names, *map(label, objectives), *["left out"] * some_left_out]
    yield '<div class="scroll" role="region" aria-labelledby="front-title" tabindex="0">'
    yield f'<table id="front"><thead><tr>{_cells("th", heads, head=True)}</tr></thead><tbody>'
    for point in map(points.__getitem__, exploration.front):
        link = f'<a href="#point-{point.number}" data-point="{point.number}">{point.number}</a>'
        values = [
            *(str(point.parameters.get(name, "")) for name in names),
            *(number(point.objectives[key], _DIGITS) for key in objectives),
            *[plural(len(point.left_out), "layer")] * some_left_out,
        ]
        cells = f'<td class="number">{link}</td>{_cells("td", values)}'
        yield f'<tr data-point="{point.number}">{cells}</tr>'
    yield "</tbody></table></div>\n</section>"


def _cells(tag: str, texts: list[str], *, head: bool = False) -> str:
    scope = ' scope="col"' if head else ""
    return "".join(f'<{tag} class="number"{scope}>{html(text)}</{tag}>' for text in texts)


# -- cards ----------------------------------------------------------------------------------------


def _cards(exploration: Exploration) -> Iterator[str]:
    front = [point for point in exploration.rows if point.number in exploration.front]
    beaten = [point for point in exploration.rows if point.number not in exploration.front]
    room = max(0, MAX_CARDS - len(front))
    for point in (*front, *beaten[:room]):
        yield _card(exploration, point)
    if beaten[room:]:
        yield f"<p>{plural(len(beaten[room:]), 'more point')} without a card.</p>"


def _card(exploration: Exploration, point: PointRow) -> str:
    area = [] if point.area_um2 is None else [("area", f"{number(point.area_um2 * 1e-6)} mm²")]
    facts = [
        *((name, str(value)) for name, value in point.parameters.items()),
        *(
            (label(key), number(value, _DIGITS))
            for key, value in point.objectives.items()
            if key not in point.parameters
        ),
        ("clock", f"{number(point.clock_mhz)} MHz"),
        *(area if "area_mm2" not in point.objectives else []),
        *([("above", point.beyond)] if point.beyond else []),
    ]
    place = f'id="point-{point.number}" data-point="{point.number}" tabindex="-1"'
    return "\n".join(
        [
            f'<article class="card" {place}>',
            f"<h3>Point {point.number}</h3>{definitions(facts)}",
            *_layers(exploration, point),
            *_left_out(point),
            "</article>",
        ]
    )


def _layers(exploration: Exploration, point: PointRow) -> Iterator[str]:
    heads = ["layer", "times", "µs each", "share", "bytes of main memory", "limited by", "mapping"]
    times = {row.index: row.cycles / point.clock_mhz for row in point.layers}
    counts = {layer.index: layer.count for layer in exploration.layers}
    total = sum(us * counts[index] for index, us in times.items()) or 1.0
    yield '<div class="scroll"><table class="layers"><thead><tr>'
    yield "".join(f'<th scope="col">{html(head)}</th>' for head in heads)
    yield "</tr></thead><tbody>"
    for row in point.layers:
        layer, share = exploration.layer(row.index), times[row.index] * counts[row.index] / total
        bar = f'<span class="bar" style="width:{100 * share:.1f}%"></span>'
        yield (
            f"<tr><td>{html(layer.layer)}</td>"
            f'<td class="number">{layer.count}</td>'
            f'<td class="number">{number(times[row.index])}</td>'
            f'<td class="number">{share:.1%}{bar}</td>'
            f'<td class="number">{_bytes(row)}</td>'
            f"<td>{html(row.details.bound or '')}</td>"
            f"<td>{_mapping(row)}</td></tr>"
        )
    yield "</tbody></table></div>"


def _bytes(row: LayerRow) -> str:
    """Return the bytes read from main memory and written to it."""
    if row.details.main_bytes is not None:
        read_bytes, written = row.details.main_bytes
    elif row.details.levels:
        outermost = row.details.levels[-1]
        read_bytes, written = outermost.read_bytes, outermost.written_bytes
    elif "dram.read" in row.counts:
        read_bytes, written = row.counts["dram.read"], row.counts.get("dram.written", 0.0)
    else:
        return ""
    return f"{read_bytes:,.0f} read<br>{written:,.0f} written"


def _mapping(row: LayerRow) -> str:
    """Return the embedding and the tiling, the outermost tile first."""
    details = row.details
    if details.mapping is None:
        return html(row.software)
    lines = details.mapping.split("; ")
    if details.executions is not None and details.utilisation is not None:
        under = f" under {details.constraints}" if details.constraints else ""
        lines.append(f"{details.executions:,} executions, {details.utilisation:.1%} used{under}")
    for level in reversed(details.tiling):
        sizes = " ".join(f"{name}:{size}" for name, size in level.tile.items())
        around = f", loops around it, innermost first: {' '.join(level.order)}" * bool(level.order)
        units = f", {level.units} units" if level.units > 1 else ""
        lines.append(f"{', '.join(level.memories)}: {sizes or 'one execution'}{around}{units}")
    lines += [f"packing {name}: {number(us)} µs" for name, us in details.packing_us.items() if us]
    if details.instructions:
        executed = (f"{count:,} {name}" for name, count in details.instructions.items() if count)
        lines.append(f"executions: {', '.join(executed)}")
    if details.bound_cycles is not None:
        lines.append(f"{row.cycles:,.0f} cycles, at least {details.bound_cycles:,.0f} by a bound")
    if details.energy_pj and (total := sum(details.energy_pj.values())):
        levels = (f"{name} {pj / total:.0%}" for name, pj in details.energy_pj.items())
        lines.append(f"energy {number(total / 1e6)} µJ: {', '.join(levels)}")
    lines += details.conversions
    if details.exact is False:
        lines.append("best of the tilings that were compared")
    return "<br>".join(html(line) for line in lines)


def _left_out(point: PointRow) -> Iterator[str]:
    if not point.left_out:
        return
    yield "<p>Left out of all sums, because no software computes them here:</p><ul>"
    for item in point.left_out:
        yield f"<li>{html(item.layer)}: {html(item.reason)}</li>"
    yield "</ul>"
