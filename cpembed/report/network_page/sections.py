"""The parts of a page beside the picture: totals, the choice of layouts, the table, the details."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cpembed.report.network_page.document import Assignment, Network, Operator, State
from cpembed.report.network_page.picture import SYMBOLS, describe
from cpembed.report.network_page.text import UNKNOWN, html, macs, share, time, yes
from cpembed.wording import data_size, sizes

STATES = {
    State.EMBEDDED: "the target's instruction",
    State.ALTERNATIVE: "an alternative target's instruction",
    State.GENERATED: "a generated kernel: no product",
    State.UNMATCHED: "a generated kernel: a product that no instruction fits",
}


def legend(network: Network) -> str:
    """What the symbols and the marks are, with how many operators have each."""
    counts = dict.fromkeys(State, 0)
    for operator in network.operators:
        counts[network.state(operator)] += 1
    items = [
        f'<li class="{state.value}"><span class="symbol" aria-hidden="true">{SYMBOLS[state]}</span>'
        f" {html(words)} ({counts[state]})</li>"
        for state, words in STATES.items()
    ]
    items.append('<li class="mark"><span aria-hidden="true">◆</span> a copy to another layout</li>')
    items.append("<li>bars: the time, beside that of the slowest operator</li>")
    return f'<ul class="legend" aria-label="Legend">{"".join(items)}</ul>'


def totals(network: Network) -> str:
    """Tiles with the figures of the whole network."""
    found = network.totals
    products = UNKNOWN if found.products is None else f"{found.embedded or 0} of {found.products}"
    tiles = [
        (network.provenance or "measured", time(network.took, network.unit)),
        ("predicted", time(found.predicted_us)),
        ("first call", time(found.cold_us)),
        ("embedded", products),
        ("MACs", macs(found.macs)),
        ("rate", _rate(network)),
        ("weights", _bytes(found.bytes_weights)),
        ("workspace", _bytes(found.bytes_workspace)),
        ("conversions", time(network.conversions_us)),
    ]
    inner = "".join(
        f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for name, value in tiles
    )
    return f'<dl class="tiles">{inner}</dl>'


def _rate(network: Network) -> str:
    """Operations a second, two a multiply-accumulate."""
    found = network.totals
    us = found.predicted_us if found.measured_us is None else found.measured_us
    return f"{2 * found.macs / us / 1e3:,.0f} GOPS" if found.macs and us else UNKNOWN


def _bytes(number: int | None) -> str:
    return UNKNOWN if number is None else data_size(number)


def assignment(found: Assignment) -> str:
    """The chosen layouts beside two simple rules and the bound, as bars, and how they were
    found."""
    bars = [
        ("chosen", found.cost_us),
        ("no choice takes less than", found.bound_us),
        ("channels last everywhere", found.channels_last_us),
        ("each operator's own best", found.own_best_us),
    ]
    longest = max((us or 0.0 for _, us in bars), default=0.0)
    rows = "".join(
        f'<tr><th scope="row">{html(name)}</th><td class="number">{html(time(us))}</td>'
        f'<td class="wide"><span class="bar" style="width:{100 * us / longest:.1f}%"></span></td>'
        "</tr>"
        for name, us in bars
        if us is not None and longest
    )
    facts = [
        ("gap", share(found.gap)),
        ("costs", found.costs),
        ("proven the least", _proven(found)),
        ("layouts", UNKNOWN if found.layouts is None else f"{found.layouts:,}"),
        ("choices", UNKNOWN if found.options is None else f"{found.options:,}"),
        ("solved in", UNKNOWN if found.seconds is None else f"{found.seconds:.3g} s"),
    ]
    return f'<table class="costs">{rows}</table>{definitions(facts)}'


def _proven(found: Assignment) -> str:
    rounded = f", up to {found.gap:.1g} of it by rounding" if found.proven and found.gap else ""
    return yes(found.proven).lower() + rounded


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    inner = "".join(
        f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for name, value in rows
    )
    return f'<dl class="facts">{inner}</dl>'


def machine(network: Network) -> str:
    """What is known of the machine."""
    return definitions((name, _plain(value)) for name, value in network.machine.items())


def _plain(value: Any) -> str:
    return UNKNOWN if value is None else str(value)


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


def layers(network: Network) -> str:
    """The table of operators, in the order of the network; each row leads to its details."""
    names = {"measured": network.provenance or "measured"}
    columns = [(html(names.get(name, name)), kind) for name, kind in _COLUMNS]
    head = "".join(
        f'<th scope="col" class="{kind}" data-sort="{kind or "text"}">{name}</th>'
        for name, kind in columns
    )
    whole = network.operators_amount
    slowest = max((operator.amount or 0.0 for operator in network.operators), default=0.0)
    rows = "\n".join(
        _row(network, number, operator, whole, slowest)
        for number, operator in enumerate(network.operators)
    )
    return (
        '<div class="scroll" role="region" aria-labelledby="layers-title" tabindex="0">'
        f'<table id="layers"><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'
        "</div>"
    )


def _row(network: Network, number: int, operator: Operator, whole: float, slowest: float) -> str:
    state, amount, ratio = network.state(operator), operator.amount, operator.ratio
    name = f'<a href="#op-{number}" data-op="{number}">{html(operator.name)}</a>'
    on = html(operator.embedded_on or (UNKNOWN if state is State.GENERATED else "no instruction"))
    cells: list[tuple[str, Any]] = [
        (str(number), number),
        (name, operator.name),
        (html(operator.label or operator.kind), operator.label),
        (f'<span class="symbol">{SYMBOLS[state]}</span> {on}', state.value),
        (share(operator.utilisation), operator.utilisation),
        (macs(operator.macs), operator.macs),
        (time(operator.predicted, network.unit), operator.predicted),
        (time(operator.measured, network.unit), operator.measured),
        (_part(amount, whole, slowest), amount),
        (UNKNOWN if ratio is None else f"{ratio:.2f}", ratio),
    ]
    marked = " slowest" if amount and amount == slowest else ""
    inner = "".join(
        f'<td class="{kind}" data-value="{html("" if value is None else value)}">{cell}</td>'
        for (cell, value), (_, kind) in zip(cells, _COLUMNS, strict=True)
    )
    return f'<tr class="{state.value}{marked}" data-op="{number}">{inner}</tr>'


def _part(amount: float | None, whole: float, slowest: float) -> str:
    if amount is None or not whole or not slowest:
        return UNKNOWN
    bar = f'<span class="bar" style="width:{100 * amount / slowest:.1f}%"></span>'
    return f"{amount / whole:.1%}{bar}"


def cards(network: Network) -> Iterator[str]:
    """All that is known of each operator."""
    for number, operator in enumerate(network.operators):
        rows = [(name, value) for name, value in _details(network, operator) if value]
        yield (
            f'<article class="card {network.state(operator).value}" id="op-{number}" '
            f'data-op="{number}" tabindex="-1">'
            f"<h3>{html(operator.name)}</h3>{definitions(rows)}</article>"
        )


def _details(network: Network, operator: Operator) -> Iterator[tuple[str, str]]:
    state = network.state(operator)
    yield "kind", operator.label or operator.kind
    yield "computes", operator.workload or ""
    yield "sizes", sizes(operator.axes)
    where = "" if operator.embedded_on is None else f"{operator.embedded_on}: "
    yield "runs on", where + STATES[state]
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
    for what, names in (("reads", operator.inputs), ("writes", operator.outputs)):
        for name in names:
            yield what, _tensor(network, name)


def _tensor(network: Network, name: str) -> str:
    tensor = network.tensor(name)
    copies = [f"copied to {c.to} in {time(c.us)}" for c in tensor.conversions]
    return "; ".join([f"{name}: {describe(tensor)}", *copies])
