"""Report of a model that ``torch.compile`` compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cpembed.blocks import Block, Header, Heading, Table
from cpembed.wording import duration, plural

if TYPE_CHECKING:
    from cpembed.frontends.torch.compile_summary import CompileSummary, Part

_COLUMNS = ("part", "operators >", "compiled >", "calls >", "mean >", "left to PyTorch because")


def report(summary: CompileSummary) -> Iterator[Block]:
    """Yield the totals, then a table of each module's parts."""
    yield Header(
        [
            ("networks", str(summary.networks)),
            ("left to PyTorch", plural(summary.left_to_pytorch, "operator")),
        ]
    )
    for module in summary.modules:
        yield Heading(f"inputs {', '.join(module.inputs) or 'none'}")
        yield Table(_COLUMNS, map(_row, module.parts), {_COLUMNS[-1]: 48})


def _row(part: Part) -> tuple[str, ...]:
    return (
        part.name,
        str(sum(part.operators.values())),
        duration(part.compile_seconds * 1e6) if part.is_network else "",
        str(part.calls),
        duration(part.seconds / part.calls * 1e6) if part.calls else "",
        "; ".join(_reasons(part.operators, part.reasons)),
    )


def _reasons(operators: Mapping[str, int], reasons: tuple[str, ...]) -> Iterator[str]:
    """Yield the reasons, the first with the operators that are left most often."""
    most = sorted(operators, key=lambda name: -operators[name])[:3]
    for number, reason in enumerate(reasons):
        yield reason if number else f"{', '.join(most)}: {reason}"
