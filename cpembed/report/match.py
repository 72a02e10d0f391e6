"""Report of ``cpembed match``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cpembed.blocks import Block, Header, Table
from cpembed.driver.across import Figure
from cpembed.network.match import MatchResult, OperatorMatch, TargetMatch
from cpembed.report import across
from cpembed.report.messages import mapping_text, percent
from cpembed.wording import amount, plural, verb

_COLUMNS = ("operator", "kind", "MACs>", "on", "mapping", "used>", "estimate>", "reason")
_MAX_WIDTHS = {"operator": 40, "mapping": 40, "reason": 60}


def report(result: MatchResult) -> Iterator[Block]:
    """Yield a row for each operator of the target, or a table of all targets; then the totals."""
    if len(result.targets) == 1:
        (match,) = result.targets
        yield Table(_COLUMNS, map(_row, match.operators), _MAX_WIDTHS)
        yield ""
        yield _totals(result, match)
        return
    yield from _side_by_side(result)
    yield ""
    yield across.target_table(match.line for match in result.targets)
    yield ""
    for match in result.targets:
        yield _totals(result, match)
        yield ""
    yield across.LEGEND


def _row(operator: OperatorMatch) -> tuple[str, ...]:
    match, macs = operator.match, across.macs_text(operator.macs)
    reason = operator.reason or ""
    if match is None or match.embedding is None:
        outcome = "" if match is None else across.OUTCOMES[match.outcome]
        return operator.name, operator.label, macs, outcome, "", "", "", reason
    time = match.estimated
    return (
        operator.name,
        operator.label,
        macs,
        match.embedded_on or across.OUTCOMES["no"],
        mapping_text(match.embedding),
        percent(match.utilisation),
        "" if time is None else amount(time.amount, time.unit),
        reason,
    )


def _totals(result: MatchResult, match: TargetMatch) -> Header:
    line = match.line
    products = f"{match.embedded} of {match.products} embedded"
    if match.on_alternatives:
        products += f", {match.on_alternatives} of them on alternatives"
    for outcome, count in match.undecided.items():
        products += f", {count} undecided: {across.OUTCOMES[outcome]}"
    if match.layers != match.products:
        products += f"; {match.layers} distinct"
    operators = f"{match.embedded} of {plural(len(match.operators), 'operator')} embedded"
    if len(match.operators) != result.operators:
        operators += f"; the model has {result.operators} before fusion"
    macs = f"{across.share_text(line.embedded_macs, line.macs)} of {across.macs_text(line.macs)}"
    rows = [
        ("network", f"{result.network} on {match.target}: {operators}"),
        ("products", products),
        ("MACs", macs),
    ]
    if line.use is not None:
        mean = f"{line.use:.1%} in the mean"
        rows.append(("used", f"{mean}, {line.use_by_macs:.1%} of all that is multiplied"))
    if line.times:
        rows.append(("time", f"{across.times_text(line)}, each product by itself"))
    if match.retyped:
        number = plural(match.retyped, "product")
        other = "has other types" if match.retyped == 1 else "have other types"
        quantized = "matched as if quantized to these"
        rows.append(("types", f"{number} {other} than the instruction takes: {quantized}"))
    return Header(rows)


def _side_by_side(result: MatchResult) -> Iterator[Block]:
    """Yield the products of all targets by name, in the order of the first target that has them."""
    by_target = {match.target: _by_name(match) for match in result.targets}
    names = list(dict.fromkeys(name for products in by_target.values() for name in products))
    macs = {
        name: product.macs
        for products in reversed(by_target.values())
        for name, product in products.items()
    }
    figures: dict[str, list[Figure | None]] = {
        target: [products[name].figure if name in products else None for name in names]
        for target, products in by_target.items()
    }
    rows = [(name, across.macs_text(macs[name])) for name in names]
    yield across.layer_table(rows, ("product", "MACs>"), list(by_target), figures)
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
