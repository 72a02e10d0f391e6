"""The table of an assignment beside simpler ways to choose layouts."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from cpembed.network.comparison import Comparison, Policy
from cpembed.report.blocks import table
from cpembed.wording import duration

_COLUMNS = ("layouts", "total>", "", "operators>", "conversions>", "number>")


def comparison(compared: Comparison) -> Iterator[RenderableType]:
    """One row a policy; costs are microseconds. Of one that is impossible: the tensor."""
    yield table(_COLUMNS, (_row(compared, policy) for policy in compared.policies))


def _row(compared: Comparison, policy: Policy) -> tuple[str, ...]:
    if policy.obstacle is not None:
        return policy.name, "impossible", f"{policy.obstacle} cannot be converted", "", "", ""
    return (
        policy.name,
        duration(policy.cost),
        f"x{compared.relative(policy):.2f}",
        duration(policy.operators),
        duration(policy.converting),
        f"{policy.conversions:,}",
    )
