"""The report of ``cpembed network``, from the document that ``--json`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from cpembed.report.blocks import bullets, header, heading, table
from cpembed.report.network_page.document import Assignment, Network, Operator, State, Totals, read
from cpembed.wording import amount, count, data_size, duration, plural

_FOLDED = 48
_MARKED = 3
"""The slowest operators that are marked."""

OFF, WORTH_US, WORTH_SHARE = 3.0, 5.0, 0.02
"""A prediction that is off by more is said, where it is by so many microseconds, and by this share
of the whole time."""

_NAMED = 3
"""Names that stand in one line."""

_SAID = 8
"""Lines that are printed before the others are only counted."""


def report(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A row an operator, the slowest ones marked, then what they come to.

    Raises :class:`~cpembed.errors.InvariantError` for what is no document of a network.
    """
    network = read(document)
    yield _operators(network)
    yield ""
    yield header(_totals(network))
    if network.assignment is not None:
        yield ""
        yield heading("Choice of layouts")
        yield header(_assignment(network.assignment))
    doubts = list(_doubts(network))
    if doubts:
        yield ""
        yield heading("Worth a look")
        more = len(doubts) - _SAID
        yield bullets([*doubts[:_SAID], *([f"and {more} more"] if more > 0 else [])])


def _operators(network: Network) -> RenderableType:
    whole = network.operators_amount
    by_time = sorted(network.operators, key=lambda operator: operator.amount or 0.0, reverse=True)
    places = {id(operator): place for place, operator in enumerate(by_time[:_MARKED], 1)}
    took = network.provenance or "measured"
    known = ("operator", "kind", "on", "layout", "used>", "MACs>")
    result = table(
        (*known, "predicted>", f"{took}>", "of all>", "off>", ""),
        (
            _row(network, operator, whole, places.get(id(operator)))
            for operator in network.operators
        ),
    )
    result.columns[0].max_width = _FOLDED
    return result


def _row(network: Network, operator: Operator, whole: float, place: int | None) -> tuple[str, ...]:
    took, state = operator.amount, network.state(operator)
    no_instruction = "no instruction" if state is State.UNMATCHED else ""
    ratio = operator.ratio
    marks = {None: "", 1: "slowest", 2: "2nd", 3: "3rd"}
    wrong = "WRONG" if operator.is_wrong else ""
    layout = network.tensor(operator.outputs[0]).layout if operator.outputs else ""
    return (
        operator.name,
        operator.label or operator.kind,
        operator.embedded_on or no_instruction,
        layout,
        "" if operator.utilisation is None else f"{operator.utilisation:.1%}",
        count(operator.macs) if operator.macs else "",
        _amount(network, operator.predicted),
        _amount(network, operator.measured),
        f"{took / whole:.1%}" if took is not None and whole else "",
        "" if ratio is None else f"x{ratio:.2f}",
        " ".join(mark for mark in (marks[place] if took else "", wrong) if mark),
    )


def _totals(network: Network) -> list[tuple[str, str]]:
    found = network.totals
    threads = (
        f" on {plural(network.threads, 'thread')}"
        if network.threads and network.unit == "us"
        else ""
    )
    operators = plural(len(network.operators), "operator")
    rows = [("network", f"{network.network} on {network.target}, {operators}")]
    if any(each.verified is not None for each in network.operators):
        rows.append(("verified", verified(network)))
    if found.products is not None:
        products = f"{found.embedded or 0} of {found.products} products embedded"
        others = sum(network.state(each) is State.ALTERNATIVE for each in network.operators)
        rows.append(("embedded", products + (f", {others} on alternatives" if others else "")))
    if network.took is not None:
        cold = "" if found.cold_us is None else f"; the first call takes {duration(found.cold_us)}"
        how = network.provenance or "measured"
        rows.append((how, f"{amount(network.took, network.unit)}{threads}{_rate(found)}{cold}"))
    if found.predicted_us is not None:
        off = ""
        if found.measured_us and found.predicted_us:
            off = f", x{found.measured_us / found.predicted_us:.2f} of it measured"
        rows.append(("predicted", duration(found.predicted_us) + off))
    converted = sum(len(tensor.conversions) for tensor in network.tensors.values())
    if converted:
        copies = f"{plural(converted, 'copy', 'copies')} to another layout"
        rows.append(("conversions", f"{copies}, {duration(network.conversions_us)}"))
    if found.bytes_weights is not None or found.bytes_workspace is not None:
        weights, workspace = (
            "" if size is None else f"{data_size(size)} {name}"
            for size, name in (
                (found.bytes_weights, "weights"),
                (found.bytes_workspace, "workspace"),
            )
        )
        rows.append(("memory", ", ".join(part for part in (weights, workspace) if part)))
    return rows


def verified(network: Network) -> str:
    """What was compared with the definitions."""
    wrong = sum(operator.is_wrong for operator in network.operators)
    compared = sum(operator.verified is not None for operator in network.operators)
    result, rest = "each operator", ""
    if compared < len(network.operators):
        result = f"{compared} of {plural(len(network.operators), 'operator')}"
        rest = "; the host computes the others by their definitions"
    if wrong:
        result = f"{plural(wrong, 'operator')} WRONG, the others"
    special = _with_special_values(network.special_inputs, network.spreads_nan)
    return f"{result} on the inputs{special}{rest}"


def _with_special_values(inputs: Sequence[str], spreading: Sequence[str]) -> str:
    """Whether a network was verified with special values too, in which inputs, and in which
    operators padding spreads NaN: the end of a sentence."""
    if not inputs:
        return "; no special values (NaN, infinities, extremes)"
    spread = f"; padding spreads NaN in {_first(spreading)}" if spreading else ""
    return f", and with special values in {_first(inputs)}{spread}"


def _first(names: Sequence[str]) -> str:
    return ", ".join([*names[:_NAMED], *(["…"] if len(names) > _NAMED else [])])


def _rate(found: Totals) -> str:
    us, macs = found.measured_us, found.macs
    return f", {2 * macs / us / 1e3:,.1f} GOPS" if macs and us else ""


def _assignment(found: Assignment) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if found.cost_us is not None:
        rows.append(("chosen", duration(found.cost_us) + _bounded(found)))
    for name, us in (
        ("channels last", found.channels_last_us),
        ("own best", found.own_best_us),
    ):
        if us is not None:
            times = f", x{us / found.cost_us:.2f} of the chosen" if found.cost_us else ""
            rows.append((name, duration(us) + times))
    solved = [
        f"{number:,} {name}"
        for number, name in ((found.layouts, "layouts"), (found.options, "choices"))
        if number is not None
    ]
    if found.seconds is not None:
        solved.append(f"{found.seconds:.3g} s")
    if solved:
        rows.append(("searched", ", ".join(solved)))
    return rows


def _bounded(found: Assignment) -> str:
    if found.proven:
        # The solver's costs are whole numbers: what it proves, it proves up to their rounding.
        rounded = f", up to {found.gap:.1g} of it by rounding" if found.gap else ""
        return f", proven the least of the {found.costs} costs{rounded}"
    if found.bound_us is None:
        return ""
    gap = "" if found.gap is None else f", within {found.gap:.1%}"
    return f"; no choice takes less than {duration(found.bound_us)}{gap}"


def _doubts(network: Network) -> Iterator[str]:
    """What is wrong, what no instruction computes, and predictions that are far off."""
    for operator in network.operators:
        if operator.is_wrong:
            right = " with special values" if operator.verified else ""
            yield f"{operator.name}: the numbers are WRONG{right}"
    for operator in network.operators:
        if network.state(operator) is State.UNMATCHED:
            yield f"{operator.name}: no instruction: {operator.reason or 'not known why'}"
    least = max(WORTH_US, WORTH_SHARE * network.operators_amount)
    for operator in network.operators:
        ratio = operator.ratio
        by = abs((operator.measured or 0.0) - (operator.predicted or 0.0))
        if ratio is not None and not 1 / OFF <= ratio <= OFF and by >= least:
            took, expected = (
                _amount(network, operator.measured),
                _amount(network, operator.predicted),
            )
            yield f"{operator.name}: took {took}, {expected} were predicted"


def _amount(network: Network, value: float | None) -> str:
    return "" if value is None else amount(value, network.unit)
