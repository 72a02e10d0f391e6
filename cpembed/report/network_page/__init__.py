"""A network as an HTML file that loads nothing from elsewhere, and that reads well without scripts.

The page shows totals, the picture, the choice of layouts, the table of operators, and their cards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cpembed.files import write_whole
from cpembed.report.html_page import definitions, html, page_head, script_text
from cpembed.report.network_page.document import Assignment, Network, Operator, State, read
from cpembed.report.network_page.picture import (
    SYMBOLS,
    UNKNOWN,
    describe,
    macs,
    picture,
    share,
    time,
    yes,
)
from cpembed.wording import data_size, plural, sizes

# Empty panel that the script fills with the card of an operator.
_DETAILS = (
    '<aside id="details" role="status" aria-label="The chosen operator">'
    '<button type="button" class="close">Close</button><div class="body"></div></aside>'
)


def write_page(document: Mapping[str, Any], path: Path) -> None:
    """Write the page of a document of ``cpembed network --json``.

    Raises :class:`~cpembed.errors.InvariantError` for any other document, and the errors of
    :func:`~cpembed.files.write_whole`.
    """
    write_whole(path, page(document))


def page(document: Mapping[str, Any]) -> str:
    """Return the page of a document of ``cpembed network --json``."""
    network = read(document)
    # In the page itself, so that the file may be sent around.
    script = script_text("network_page/page.js")
    title = html(f"{network.network} on {network.target}")
    return "\n".join(
        [
            page_head(title, script),
            '<a class="skip" href="#layers-title">To the table of layers</a>',
            _header(network, title),
            '<main>\n<section aria-label="Totals">',
            _totals(network),
            "</section>",
            *_picture(network),
            *_assignment(network.assignment),
            '<section>\n<h2 id="layers-title">Layers</h2>',
            _layers(network),
            '<p id="said" class="skip" role="status"></p>\n</section>',
            *_machine(network),
            '<section class="cards" aria-labelledby="cards-title">',
            '<h2 id="cards-title">Operators</h2>',
            *_cards(network),
            "</section>\n</main>",
            _DETAILS,
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _header(network: Network, title: str) -> str:
    threads = "" if network.threads is None else f", {plural(network.threads, 'thread')}"
    operators = plural(len(network.operators), "operator")
    floats = network.floats_text and f"; {network.floats_text}"
    about = html(f"{operators}; times are {network.provenance}{threads}{floats}")
    return (
        f"<header><div><h1>{title}</h1><p>{about}</p></div>"
        '<button type="button" id="theme" class="script">Dark</button></header>'
    )


def _picture(network: Network) -> list[str]:
    tools = [
        ("fit", "Fit to width"),
        ("larger", "Larger"),
        ("smaller", "Smaller"),
        ("slowest", "Slowest operator"),
    ]
    buttons = "".join(
        f'<button type="button" class="script" id="{name}">{text}</button>' for name, text in tools
    )
    return [
        '<section>\n<h2 id="network-title">Network</h2>',
        _legend(network),
        f'<div class="tools">{buttons}</div>',
        '<div class="scroll" role="region" aria-labelledby="network-title" tabindex="0">',
        picture(network),
        "</div>\n</section>",
    ]


def _machine(network: Network) -> list[str]:
    if not network.machine:
        return []
    items = network.machine.items()
    facts = ((name, UNKNOWN if value is None else str(value)) for name, value in items)
    return ["<section>\n<h2>Machine</h2>", definitions(facts), "</section>"]


# -- sections -------------------------------------------------------------------------------------

_STATES = {
    State.EMBEDDED: "the target's instruction",
    State.ALTERNATIVE: "another instruction than the target's",
    State.GENERATED: "a generated kernel: no product",
    State.UNMATCHED: "a generated kernel: a product that no instruction fits",
}


def _legend(network: Network) -> str:
    """Return the legend of symbols and marks, with the number of operators of each state."""
    counts = dict.fromkeys(State, 0)
    for operator in network.operators:
        counts[network.state(operator)] += 1
    items = [
        f'<li class="{state.value}"><span class="symbol" aria-hidden="true">{SYMBOLS[state]}</span>'
        f" {html(text)} ({counts[state]})</li>"
        for state, text in _STATES.items()
    ]
    items.append('<li class="mark"><span aria-hidden="true">◆</span> a copy to another layout</li>')
    items.append("<li>bars: the time, relative to the slowest operator</li>")
    return f'<ul class="legend" aria-label="Legend">{"".join(items)}</ul>'


def _totals(network: Network) -> str:
    sums = network.totals
    products = UNKNOWN if sums.products is None else f"{sums.embedded or 0} of {sums.products}"
    tiles = [
        (network.provenance or "measured", time(network.took, network.unit)),
        ("predicted", time(sums.predicted_us)),
        ("first call", time(sums.cold_us)),
        ("embedded", products),
        *([("weight-only", str(sums.weight_only))] if sums.weight_only else []),
        ("MACs", macs(sums.macs)),
        ("rate", _rate(network)),
        ("weights", _bytes(sums.bytes_weights)),
        ("workspace", _bytes(sums.bytes_workspace)),
        ("conversions", time(network.conversions_us)),
    ]
    inner = "".join(
        f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for name, value in tiles
    )
    return f'<dl class="tiles">{inner}</dl>'


def _rate(network: Network) -> str:
    """Return the operations per second, two for each multiply-accumulate."""
    sums = network.totals
    # A plan that did not run still has a predicted rate.
    us = sums.predicted_us if sums.measured_us is None else sums.measured_us
    return f"{2 * sums.macs / us / 1e3:,.0f} GOPS" if sums.macs and us else UNKNOWN


def _bytes(number: int | None) -> str:
    return UNKNOWN if number is None else data_size(number)


def _assignment(assignment: Assignment | None) -> list[str]:
    """Return bars of the layouts' cost, of two simple rules and of the lower bound."""
    if assignment is None:
        return []
    bars = [
        ("chosen", assignment.cost_us),
        ("lower bound", assignment.bound_us),
        ("channels last everywhere", assignment.channels_last_us),
        ("each operator's own best", assignment.own_best_us),
    ]
    # All bars have one scale: they are costs of one network.
    longest = max((us or 0.0 for _, us in bars), default=0.0)
    rows = "".join(
        f'<tr><th scope="row">{html(name)}</th><td class="number">{html(time(us))}</td>'
        f'<td class="wide"><span class="bar" style="width:{100 * us / longest:.1f}%"></span></td>'
        "</tr>"
        for name, us in bars
        if us is not None and longest
    )
    facts = [
        ("gap", share(assignment.gap)),
        ("costs", assignment.costs),
        ("proven the least", _proven(assignment)),
        ("layouts", UNKNOWN if assignment.layouts is None else f"{assignment.layouts:,}"),
        ("choices", UNKNOWN if assignment.options is None else f"{assignment.options:,}"),
        ("solved in", UNKNOWN if assignment.seconds is None else f"{assignment.seconds:.3g} s"),
    ]
    table = f'<table class="costs">{rows}</table>{definitions(facts)}'
    return ["<section>\n<h2>Choice of layouts</h2>", table, "</section>"]


def _proven(assignment: Assignment) -> str:
    is_rounded = assignment.proven and assignment.gap
    rounded = f", up to {assignment.gap:.1g} of it by rounding" if is_rounded else ""
    return yes(assignment.proven).lower() + rounded


_COLUMNS = (
    ("#", "number"),
    ("operator", ""),
    ("kind", ""),
    ("runs on", ""),
    ("used", "number"),
    ("MACs", "number"),
    ("predicted", "number"),
    ("measured", "number"),
    ("of all", "number"),
    ("measured / predicted", "number"),
)


def _layers(network: Network) -> str:
    """Return the table of operators, in the order of the network; each row links to its card."""
    # Times of a simulated target are not called measured.
    names = {"measured": network.provenance or "measured"}
    columns = [(html(names.get(name, name)), kind) for name, kind in _COLUMNS]
    head = "".join(
        f'<th scope="col" class="{kind}" data-sort="{kind or "text"}">{name}</th>'
        for name, kind in columns
    )
    total = network.operators_amount
    slowest = max((operator.amount or 0.0 for operator in network.operators), default=0.0)
    rows = "\n".join(
        _row(network, number, operator, total, slowest)
        for number, operator in enumerate(network.operators)
    )
    return (
        '<div class="scroll" role="region" aria-labelledby="layers-title" tabindex="0">'
        f'<table id="layers"><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'
        "</div>"
    )


def _row(network: Network, number: int, operator: Operator, total: float, slowest: float) -> str:
    state, amount, ratio = network.state(operator), operator.amount, operator.ratio
    name = f'<a href="#op-{number}" data-op="{number}">{html(operator.name)}</a>'
    on = html(operator.embedded_on or (UNKNOWN if state is State.GENERATED else "no instruction"))
    cells: list[tuple[str, Any]] = [
        (str(number), number),
        (name, operator.name),
        (html(operator.computation), operator.label),
        (f'<span class="symbol">{SYMBOLS[state]}</span> {on}', state.value),
        (share(operator.utilisation), operator.utilisation),
        (macs(operator.macs), operator.macs),
        (time(operator.predicted, network.unit), operator.predicted),
        (time(operator.measured, network.unit), operator.measured),
        (_part(amount, total, slowest), amount),
        (UNKNOWN if ratio is None else f"{ratio:.2f}", ratio),
    ]
    # An operator of no time is not the slowest of a plan without times.
    marked = " slowest" if amount and amount == slowest else ""
    inner = "".join(
        f'<td class="{kind}" data-value="{html("" if value is None else value)}">{cell}</td>'
        for (cell, value), (_, kind) in zip(cells, _COLUMNS, strict=True)
    )
    return f'<tr class="{state.value}{marked}" data-op="{number}">{inner}</tr>'


def _part(amount: float | None, total: float, slowest: float) -> str:
    if amount is None or not total or not slowest:
        return UNKNOWN
    bar = f'<span class="bar" style="width:{100 * amount / slowest:.1f}%"></span>'
    return f"{amount / total:.1%}{bar}"


def _cards(network: Network) -> Iterator[str]:
    for number, operator in enumerate(network.operators):
        # Empty values are of no interest for this kind of operator.
        rows = [(name, value) for name, value in _details(network, operator) if value]
        yield (
            f'<article class="card {network.state(operator).value}" id="op-{number}" '
            f'data-op="{number}" tabindex="-1">'
            f"<h3>{html(operator.name)}</h3>{definitions(rows)}</article>"
        )


def _details(network: Network, operator: Operator) -> Iterator[tuple[str, str]]:
    state = network.state(operator)
    yield "kind", operator.computation
    yield "computes", operator.workload or ""
    yield "sizes", sizes(operator.axes)
    target = "" if operator.embedded_on is None else f"{operator.embedded_on}: "
    yield "runs on", target + _STATES[state]
    yield "why", operator.reason or ""
    yield "mapping", operator.mapping
    yield "embedding", operator.embedding or ""
    yield "used", "" if operator.utilisation is None else share(operator.utilisation)
    yield "MACs", f"{operator.macs:,}" if operator.macs else ""
    yield "predicted", "" if operator.predicted is None else time(operator.predicted, network.unit)
    took = "" if operator.measured is None else time(operator.measured, network.unit)
    yield network.provenance or "measured", took
    yield "numbers verified", "" if operator.verified is None else yes(operator.verified)
    if operator.verified_with_special_values is not None:
        yield "with special values", yes(operator.verified_with_special_values)
    yield "largest error", f"{operator.max_error:g}" if operator.max_error else ""
    for label, names in (("reads", operator.inputs), ("writes", operator.outputs)):
        for name in names:
            yield label, _tensor(network, name)


def _tensor(network: Network, name: str) -> str:
    tensor = network.tensor(name)
    copies = [f"copied to {c.to} in {time(c.us)}" for c in tensor.conversions]
    return "; ".join([f"{name}: {describe(tensor)}", *copies])
