"""The report of ``cpembed match``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from cpembed.driver.across import Figure
from cpembed.network.match import MatchResult, OperatorMatch, TargetMatch
from cpembed.report import across, words
from cpembed.report.blocks import header, table
from cpembed.wording import plural, verb

_COLUMNS = ("operator", "kind", "MACs>", "on", "mapping", "used>", "estimate>", "why")
_FOLDED = {"operator": 40, "mapping": 40, "why": 60}


def report(result: MatchResult) -> Iterator[RenderableType]:
    """One row an operator of each target, or one table of all targets; then the totals."""
    if len(result.targets) == 1:
        (found,) = result.targets
        yield _operators(found)
        yield ""
        yield _totals(result, found)
        return
    yield from _compared(result)
    yield ""
    yield across.lines(found.line for found in result.targets)
    yield ""
    for found in result.targets:
        yield _totals(result, found)
        yield ""
    yield across.LEGEND


def _operators(found: TargetMatch) -> RenderableType:
    result = table(_COLUMNS, (_row(operator) for operator in found.operators))
    for column in result.columns:
        column.max_width = _FOLDED.get(str(column.header))
    return result


def _row(operator: OperatorMatch) -> tuple[str, ...]:
    found, macs = operator.match, across.macs_text(operator.macs)
    if found is None or found.embedding is None:
        outcome = "no" if found is None else found.outcome
        return operator.name, operator.label, macs, outcome, "", "", "", operator.reason or ""
    time = found.estimated
    return (
        operator.name,
        operator.label,
        macs,
        found.embedded_on or "no",
        words.mapping(found.embedding),
        across.percent(found.utilisation),
        "" if time is None else across.amount_text(time.amount, time.unit),
        operator.reason or "",
    )


def _totals(result: MatchResult, found: TargetMatch) -> RenderableType:
    line = found.line
    products = f"{found.embedded} of {found.products} embedded"
    if found.on_alternatives:
        products += f", {found.on_alternatives} of them on alternatives"
    for outcome, count in found.undecided.items():
        products += f", {count} {outcome}: whether these can be embedded is not known"
    if found.layers != found.products:
        products += f"; {found.layers} distinct"
    macs = f"{across.share(line.embedded_macs, line.macs)} of {across.macs_text(line.macs)}"
    rows = [
        ("network", f"{result.network} on {found.target}: {_operators_text(result, found)}"),
        ("products", products),
        ("MACs", macs),
    ]
    if line.use is not None:
        used = f"{line.use:.1%} in the mean"
        rows.append(("used", f"{used}, {line.use_by_macs:.1%} of all that is multiplied"))
    if line.times:
        rows.append(("time", f"{across.times_text(line)}, each product by itself"))
    if found.retyped:
        rows.append(("types", _retyped(found.retyped)))
    return header(rows)


def _operators_text(result: MatchResult, found: TargetMatch) -> str:
    operators = f"{found.embedded} of {plural(len(found.operators), 'operator')} mapped"
    if len(found.operators) == result.operators:
        return operators
    return f"{operators}; the model has {result.operators} before they are fused"


def _retyped(number: int) -> str:
    have = "has" if number == 1 else "have"
    return (
        f"{plural(number, 'product')} {have} other types than the instruction takes, and "
        f"{'is' if number == 1 else 'are'} matched as if quantized to these"
    )


def _compared(result: MatchResult) -> Iterator[RenderableType]:
    """The products of all targets by their names, in the order of the first that has them."""
    by_name = {found.target: _named(found) for found in result.targets}
    names = list(dict.fromkeys(name for known in by_name.values() for name in known))
    macs = {name: o.macs for known in reversed(by_name.values()) for name, o in known.items()}
    figures: dict[str, list[Figure | None]] = {
        target: [known[name].figure if name in known else None for name in names]
        for target, known in by_name.items()
    }
    rows = [(name, across.macs_text(macs[name])) for name in names]
    yield from across.by_layer(rows, ("product", "MACs>"), list(by_name), figures)
    rest = len(result.targets[0].operators) - result.targets[0].products
    if rest:
        yield f"{plural(rest, 'other operator')} {verb(rest, 'contain')} no product"


def _named(found: TargetMatch) -> dict[str, OperatorMatch]:
    """The products by their names; of several with one, the later ones are numbered."""
    named: dict[str, OperatorMatch] = {}
    seen: dict[str, int] = {}
    for operator in found.matched:
        seen[operator.name] = number = seen.get(operator.name, 0) + 1
        named[operator.name if number == 1 else f"{operator.name} ({number})"] = operator
    return named
