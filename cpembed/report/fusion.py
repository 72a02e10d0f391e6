"""Report of a block of operators on a machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cpembed.blocks import Block, Header, Heading, Preformatted, Table
from cpembed.cost.fusion.schedule import FusedLoop, Sequence
from cpembed.wording import count, data_size, duration

if TYPE_CHECKING:
    from cpembed.driver.fusion import FusionResult


def fusion_report(result: FusionResult) -> Iterator[Block]:
    """Yield the totals, the costs of each operator, and the schedule.

    Parameters
    ----------
    result : FusionResult
        Best schedule of a block.
    """
    document, fused = result.to_json(), result.fused
    gap = "no schedule costs less by the model"
    if fused.gap > 1e-9:
        gap = f"another schedule costs at most {fused.gap:.1%} less by the model"
    yield Header(
        [
            ("block", f"{result.block.name}, {len(result.block.operators)} operators"),
            ("machine", f"{document['machine']}, {document['clock_mhz']:,.0f} MHz; estimated"),
            ("objective", result.objective.value),
            ("bound", gap),
        ]
    )
    yield ""
    rows = [("unfused", document["unfused"]), ("fused", document["fused"])]
    yield Table(
        ("", "time>", "cycles>", "main memory>", "energy>"),
        ((name, *_figures(totals, document["clock_mhz"])) for name, totals in rows),
    )
    yield ""
    yield Table(
        ("operator", "target", "time>", "cycles>", "main memory>", "energy>"),
        (
            (entry["name"], entry["target"], *_figures(entry["fused"], document["clock_mhz"]))
            for entry in document["operators"]
        ),
    )
    yield ""
    yield Heading(f"Schedule, and tensors in {document['memory']}")
    yield Preformatted("\n".join(_lines(result, fused.schedule, "")))


def _figures(totals: dict[str, float], clock_mhz: float) -> tuple[str, str, str, str]:
    energy = f"{totals['energy_pj'] / 1e6:,.1f} uJ" if totals["energy_pj"] else "unknown"
    return (
        duration(totals["cycles"] / clock_mhz),
        count(totals["cycles"]),
        data_size(totals["bytes"]),
        energy,
    )


def _lines(result: FusionResult, sequence: Sequence, indent: str) -> Iterator[str]:
    for part, names in zip(sequence.parts, sequence.resident, strict=True):
        tensors = f"    [{' '.join(sorted(names))}]" if names else ""
        if isinstance(part, FusedLoop):
            axes = " ".join(dict.fromkeys(axis for _, axis in sorted(part.axes)))
            yield f"{indent}for {axes} in tiles of {part.tile:,}:{tensors}"
            yield from _lines(result, part.body, f"{indent}    ")
        else:
            yield f"{indent}{result.block.operators[part].name}{tensors}"
