"""Reports of ``cpembed network``, from the document that ``--json`` prints, and ``match``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cpembed.blocks import Block, Bullets, Header, Heading, Table
from cpembed.report import messages
from cpembed.report.messages import mapping_text, percent
from cpembed.report.network_page.document import Assignment, Network, Operator, State, Totals, read
from cpembed.wording import amount, count, data_size, duration, plural, verb

if TYPE_CHECKING:
    from cpembed.driver.across import Figure
    from cpembed.network.match import MatchResult, OperatorMatch, TargetMatch

_OPERATOR_WIDTH = 48

# Marks of the slowest operators.
_MARKS = ("slowest", "2nd", "3rd")

OFF, WORTH_US, WORTH_SHARE = 3.0, 5.0, 0.02
"""Thresholds of a prediction that is reported: ratio, microseconds, share of the network's time."""

# Maximum number of names in a line.
_NAMES = 3

# Maximum number of doubtful operators that are listed before the others are counted.
_DOUBTS = 8


def report(document: Mapping[str, Any]) -> Iterator[Block]:
    """Yield a row for each operator, the slowest ones marked, and the totals.

    Raises :class:`~cpembed.errors.InvariantError` for a mapping that is no document of a network.
    """
    network = read(document)
    yield _operators(network)
    yield ""
    yield Header(_totals(network))
    if any(operator.host for operator in network.operators):
        yield ""
        yield Heading("On the host")
        yield _host_steps(network)
    if network.assignment is not None:
        yield ""
        yield Heading("Choice of layouts")
        yield Header(_assignment_rows(network.assignment))
    doubts = list(_doubts(network))
    if doubts:
        yield ""
        yield Heading("Worth a look")
        more = len(doubts) - _DOUBTS
        yield Bullets([*doubts[:_DOUBTS], *([f"and {more} more"] if more > 0 else [])])


def parts_report(document: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the reports of a network's libraries, then the operators that run elsewhere."""
    for part in document["parts"]:
        yield Heading(part["network"])
        yield from report(part)
        yield ""
    yield Heading("Run elsewhere, in this process")
    yield Table(
        ("operator", "kind", "measured>"),
        (
            (entry["operator"], entry["kind"], duration(entry["measured_us"]))
            for entry in document["fallback"]
        ),
        {"operator": _OPERATOR_WIDTH},
    )


def _operators(network: Network) -> Table:
    total = network.operators_amount
    by_time = sorted(network.operators, key=lambda operator: operator.amount or 0.0, reverse=True)
    # By identity: equal operators are different rows.
    marks = {id(operator): mark for operator, mark in zip(by_time, _MARKS, strict=False)}
    columns = ("operator", "kind", "on", "layout", "used>", "MACs>")
    measured = network.provenance or "measured"
    return Table(
        (*columns, "predicted>", f"{measured}>", "of all>", "off>", ""),
        (
            _row(network, operator, total, marks.get(id(operator), ""))
            for operator in network.operators
        ),
        {"operator": _OPERATOR_WIDTH},
    )


def _row(network: Network, operator: Operator, total: float, mark: str) -> tuple[str, ...]:
    time, state = operator.amount, network.state(operator)
    no_instruction = "no instruction" if state is State.UNMATCHED else ""
    wrong = "WRONG" if operator.is_wrong else ""
    # The second operator of a pair has the time of both.
    fused = f"with {operator.fused_with}" if operator.fused_with and not operator.predicted else ""
    return (
        operator.name,
        operator.computation,
        operator.embedded_on or ("host" if operator.host else no_instruction),
        network.tensor(operator.outputs[0]).layout if operator.outputs else "",
        percent(operator.utilisation),
        count(operator.macs) if operator.macs else "",
        _amount(network, operator.predicted),
        _amount(network, operator.measured),
        f"{time / total:.1%}" if time is not None and total else "",
        "" if operator.ratio is None else f"x{operator.ratio:.2f}",
        " ".join(filter(None, (mark if time else "", fused, wrong))),
    )


def _host_steps(network: Network) -> Table:
    """Return the steps that the host executes, each with its estimated time."""
    return Table(
        ("operator", "step", "estimated>"),
        (
            (
                operator.name,
                step.work,
                "" if step.estimated_us is None else duration(step.estimated_us),
            )
            for operator in network.operators
            for step in operator.host
        ),
        {"operator": _OPERATOR_WIDTH},
    )


def _host_text(network: Network) -> str:
    """Return how many operators the host executes, or parts of, and its estimated time."""
    entire = sum(bool(o.host) and o.embedded_on is None for o in network.operators)
    partly = sum(bool(o.host) and o.embedded_on is not None for o in network.operators)
    numbers = [f"{plural(entire, 'operator')}"] if entire else []
    numbers += [f"steps after {plural(partly, 'product')}"] if partly else []
    time = "" if network.totals.host_us is None else f": {duration(network.totals.host_us)}"
    return f"{' and '.join(numbers)}{time} estimated on one thread of this processor"


def _totals(network: Network) -> list[tuple[str, str]]:
    sums = network.totals
    operators = plural(len(network.operators), "operator")
    rows = [("network", f"{network.network} on {network.target}, {operators}")]
    if any(operator.verified is not None for operator in network.operators):
        rows.append(("verified", verification_text(network)))
    if sums.products is not None:
        products = f"{sums.embedded or 0} of {sums.products} products embedded"
        number = sum(network.state(each) is State.ALTERNATIVE for each in network.operators)
        products += f", {number} on alternatives" if number else ""
        rows.append(("embedded", products + _weight_only_text(sums.weight_only or 0)))
    products_by_unit = Counter(o.embedded_on for o in network.operators if o.embedded_on)
    # With one target named and nothing else in use, the line above says it.
    if set(products_by_unit) - {network.target}:
        counts = [f"{number} on {unit}" for unit, number in products_by_unit.most_common()]
        rows.append(("units", ", ".join(counts)))
    if network.floats_text:
        rows.append(("floats", network.floats_text))
    if methods := _methods_text(network):
        rows.append(("methods", methods))
    if pairs := _pairs_text(network):
        rows.append(("pairs", pairs))
    if network.took is not None:
        time = amount(network.took, network.unit)
        if network.threads and network.unit == "us":
            time += f" on {plural(network.threads, 'thread')}"
        cold = "" if sums.cold_us is None else f"; the first call takes {duration(sums.cold_us)}"
        rows.append((network.provenance or "measured", f"{time}{_rate(sums)}{cold}"))
    if sums.predicted_us is not None:
        ratio = ""
        if sums.measured_us and sums.predicted_us:
            ratio = f"; measured: x{sums.measured_us / sums.predicted_us:.2f} of it"
        place = f", the products on {network.target}" if sums.host_us is not None else ""
        rows.append(("predicted", duration(sums.predicted_us) + place + ratio))
    if sums.host_us is not None and any(operator.host for operator in network.operators):
        rows.append(("host", _host_text(network)))
    conversions = sum(len(tensor.conversions) for tensor in network.tensors.values())
    if conversions:
        copies = f"{plural(conversions, 'copy', 'copies')} to another layout"
        rows.append(("conversions", f"{copies}, {duration(network.conversions_us)}"))
    sizes = ((sums.bytes_weights, "weights"), (sums.bytes_workspace, "workspace"))
    memory = [f"{data_size(size)} {name}" for size, name in sizes if size is not None]
    if memory:
        rows.append(("memory", ", ".join(memory)))
    return rows


def _pairs_text(network: Network) -> str:
    """Return how many pairs of operators are one kernel, and why further ones are not."""
    # Both operators name each other, or one computes both.
    pairs = len({frozenset((o.name, o.fused_with)) for o in network.operators if o.fused_with})
    reasons = Counter(o.not_fused.partition(":")[0] for o in network.operators if o.not_fused)
    if not pairs:
        return ""
    text = f"{plural(pairs, 'pair')} of operators in one kernel each"
    separate = ", ".join(f"{number} ({reason})" for reason, number in reasons.most_common())
    return f"{text}; not in one: {separate}" if separate else text


def _methods_text(network: Network) -> str:
    """Return how many convolutions each method computes, and how their errors grow by it."""
    names = Counter(o.method for o in network.operators if o.method and o.is_rewritten)
    text = ", ".join(f"{number} by {name}" for name, number in sorted(names.items()))
    errors = [o.error for o in network.operators if o.error is not None]
    growths = [error.growth for error in errors if error.growth is not None]
    if growths:
        text += f"; errors against float64 up to x{max(growths):.2f} of those of float32 sums"
    return text


def verification_text(network: Network) -> str:
    """Return which operators were compared with their definitions, on which inputs."""
    wrong = sum(operator.is_wrong for operator in network.operators)
    compared = sum(operator.verified is not None for operator in network.operators)
    operators, rest = "each operator", ""
    if compared < len(network.operators):
        operators = f"{compared} of {plural(len(network.operators), 'operator')}"
        rest = "; the host computes the others by their definitions"
    if wrong:
        operators = f"{plural(wrong, 'operator')} WRONG, the others"
    special = "; no special values (NaN, infinities, extremes)"
    if network.special_inputs:
        special = f", and with special values in {_first(network.special_inputs)}"
        if network.spreads_nan:
            special += f"; padding spreads NaN in {_first(network.spreads_nan)}"
    return f"{operators} on the inputs{special}{rest}"


def execution_text(network: Network, cpu: Mapping[str, Any] | None) -> str:
    """Return the extent of verification, and how a library for another processor was executed."""
    if cpu is None or cpu["executed"] == "here":
        return verification_text(network)
    if cpu["executed"] is None:
        return f"not executed here: {cpu['reason']}"
    return f"{verification_text(network)}; emulated"


def portable_lines(network: Network) -> list[str]:
    """Return a line for each reason why products have no kernel of a unit, with their names."""
    names: dict[tuple[str, str], list[str]] = {}
    for operator in network.operators:
        if network.state(operator) is State.UNMATCHED:
            # Where products run one by one, the host computes these.
            executed = "on the host" if operator.host else "portable code"
            reason = operator.reason or "unknown reason"
            names.setdefault((executed, reason), []).append(operator.name)
    return [f"{executed}: {_first(group)}: {reason}" for (executed, reason), group in names.items()]


def _first(names: Sequence[str]) -> str:
    return ", ".join([*names[:_NAMES], *(["…"] if len(names) > _NAMES else [])])


def _rate(sums: Totals) -> str:
    us, macs = sums.measured_us, sums.macs
    return f", {2 * macs / us / 1e3:,.1f} GOPS" if macs and us else ""


def _assignment_rows(assignment: Assignment) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    cost = assignment.cost_us
    if cost is not None:
        rows.append(("chosen", duration(cost) + _bound_text(assignment)))
    rules = (("channels last", assignment.channels_last_us), ("own best", assignment.own_best_us))
    for name, us in rules:
        if us is not None:
            ratio = f", x{us / cost:.2f} of the chosen" if cost else ""
            rows.append((name, duration(us) + ratio))
    numbers = ((assignment.layouts, "layouts"), (assignment.options, "choices"))
    searched = [f"{number:,} {name}" for number, name in numbers if number is not None]
    if assignment.seconds is not None:
        searched.append(f"{assignment.seconds:.3g} s")
    if searched:
        rows.append(("searched", ", ".join(searched)))
    return rows


def _bound_text(assignment: Assignment) -> str:
    """Return the proven bound on the cost of the selected layouts."""
    if assignment.proven:
        # The solver's costs are integers: a proof holds up to their rounding.
        rounding = f", up to {assignment.gap:.1g} of it by rounding" if assignment.gap else ""
        return f", proven the least of the {assignment.costs} costs{rounding}"
    if assignment.bound_us is None:
        return ""
    gap = "" if assignment.gap is None else f", within {assignment.gap:.1%}"
    return f"; no choice takes less than {duration(assignment.bound_us)}{gap}"


def _doubts(network: Network) -> Iterator[str]:
    """Yield wrong results, products not on the unit or hardly filling it, wrong predictions."""
    for operator in network.operators:
        if operator.is_wrong:
            special = " with special values" if operator.verified else ""
            yield f"{operator.name}: the numbers are WRONG{special}"
    for operator in network.operators:
        if network.state(operator) is State.UNMATCHED:
            yield f"{operator.name}: no instruction: {operator.reason or 'unknown reason'}"
    # The slowest first, since the others are only counted.
    if network.totals.host_us is not None:
        slowest = sorted(network.operators, key=lambda o: o.amount or 0.0, reverse=True)
        for operator in slowest:
            if operator.reason and network.state(operator) is State.EMBEDDED:
                yield f"{operator.name}: {operator.reason}"
    # A large ratio of a few microseconds changes nothing.
    least = max(WORTH_US, WORTH_SHARE * network.operators_amount)
    for operator in network.operators:
        ratio = operator.ratio
        difference = abs((operator.measured or 0.0) - (operator.predicted or 0.0))
        if ratio is not None and not 1 / OFF <= ratio <= OFF and difference >= least:
            measured = _amount(network, operator.measured)
            predicted = _amount(network, operator.predicted)
            yield f"{operator.name}: took {measured}, {predicted} were predicted"


def _amount(network: Network, value: float | None) -> str:
    return "" if value is None else amount(value, network.unit)


# -- match ----------------------------------------------------------------------------------------

_MATCH_COLUMNS = ("operator", "kind", "MACs>", "on", "mapping", "used>", "estimate>", "reason")
_MAX_WIDTHS = {"operator": 40, "mapping": 40, "reason": 60}


def match_report(result: MatchResult) -> Iterator[Block]:
    """Yield a row for each operator of the target, or a table of all targets; then the totals."""
    if len(result.targets) == 1:
        (match,) = result.targets
        yield Table(_MATCH_COLUMNS, map(_match_row, match.operators), _MAX_WIDTHS)
        yield ""
        yield _match_totals(result, match)
        return
    yield from _side_by_side(result)
    yield ""
    yield messages.target_table(match.line for match in result.targets)
    yield ""
    for match in result.targets:
        yield _match_totals(result, match)
        yield ""
    yield messages.LEGEND


def _match_row(operator: OperatorMatch) -> tuple[str, ...]:
    match, macs = operator.match, messages.macs_text(operator.macs)
    reason = operator.reason or ""
    if match is None or match.embedding is None:
        outcome = "" if match is None else messages.OUTCOMES[match.outcome]
        return operator.name, operator.label, macs, outcome, "", "", "", reason
    time = match.estimated
    return (
        operator.name,
        operator.label,
        macs,
        match.embedded_on or messages.OUTCOMES["no"],
        mapping_text(match.embedding),
        percent(match.utilisation),
        "" if time is None else amount(time.amount, time.unit),
        reason,
    )


def _weight_only_text(count: int) -> str:
    """Return the number of weight-only products behind that of the others."""
    return f", {count} weight-only in kernels of their own" if count else ""


def _match_totals(result: MatchResult, match: TargetMatch) -> Header:
    line = match.line
    products = f"{match.embedded} of {match.products} embedded"
    if match.on_alternatives:
        products += f", {match.on_alternatives} of them on alternatives"
    for outcome, number in match.undecided.items():
        products += f", {number} undecided: {messages.OUTCOMES[outcome]}"
    if match.layers != match.products:
        products += f"; {match.layers} distinct"
    products += _weight_only_text(len(match.weight_only))
    operators = f"{len(match.fitting)} of {plural(len(match.operators), 'operator')} embedded"
    if len(match.operators) != result.operators:
        operators += f"; the model has {result.operators} before fusion"
    share = messages.share_text(line.embedded_macs, line.macs)
    rows = [
        ("network", f"{result.network} on {match.target}: {operators}"),
        ("products", products),
        ("MACs", f"{share} of {messages.macs_text(line.macs)}" if line.macs else share),
    ]
    if line.use is not None:
        mean = f"{line.use:.1%} in the mean"
        rows.append(("used", f"{mean}, {line.use_by_macs:.1%} of all that is multiplied"))
    if line.times:
        where = "in the layouts of the network" if match.is_planned else "each product by itself"
        rows.append(("time", f"{messages.times_text(line)}, {where}"))
    if match.retyped:
        products = f"{plural(match.retyped, 'product')} {'has' if match.retyped == 1 else 'have'}"
        quantized = "quantized to these, it would be embedded"
        if match.retyped > 1:
            quantized = "quantized to these, they would be embedded"
        rows.append(("types", f"{products} other types than the target takes; {quantized}"))
    return Header(rows)


def _side_by_side(result: MatchResult) -> Iterator[Block]:
    """Yield the products of all targets by name, in the order of the first target that has them."""
    by_target = {match.target: _by_name(match) for match in result.targets}
    names = list(dict.fromkeys(name for products in by_target.values() for name in products))
    macs = {
        name: product.macs
        # Reversed, so that the entry of the first target wins.
        for products in reversed(by_target.values())
        for name, product in products.items()
    }
    figures: dict[str, list[Figure | None]] = {
        target: [products[name].figure if name in products else None for name in names]
        for target, products in by_target.items()
    }
    rows = [(name, messages.macs_text(macs[name])) for name in names]
    yield messages.layer_table(rows, ("product", "MACs>"), list(by_target), figures)
    rest = len(result.targets[0].operators) - result.targets[0].products
    if rest:
        yield f"{plural(rest, 'other operator')} {verb(rest, 'contain')} no product"


def _by_name(match: TargetMatch) -> dict[str, OperatorMatch]:
    """Return the products by name; the second of a name is called ``NAME (2)``."""
    products: dict[str, OperatorMatch] = {}
    numbers: Counter[str] = Counter()
    for operator in match.matched:
        numbers[operator.name] += 1
        number = numbers[operator.name]
        products[operator.name if number == 1 else f"{operator.name} ({number})"] = operator
    return products
