"""The tables of a suite's comparison with baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from cpembed.driver.bench_baselines import BaselineRow
from cpembed.driver.bench_rows import BenchRow
from cpembed.report.blocks import heading, table
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.wording import plural

_COLUMNS = (
    "#>",
    *(f"{name}>" for name in ("primitive us", "call us", "ours us", "with packing")),
    *("primitive/ours>", "with packing>", "call/ours>", "with packing>"),
    "chosen",
)
_FOLDED = 40

_WORDS = {
    "primitive_ratio": "its primitive over ours",
    "primitive_ratio_with_packing": "the same, our packing counted",
    "call_ratio": "its call over ours",
    "call_ratio_with_packing": "the same, our packing counted",
}


def comparisons(rows: Sequence[BenchRow]) -> Iterator[RenderableType]:
    """One table a baseline; nothing where none was asked for."""
    names = dict.fromkeys(name for row in rows if row.run for name in row.run.baselines)
    for name in names:
        yield heading(f"Beside {name} (a ratio above 1: ours is faster)")
        cells = [
            [str(row.index), *_cells(row.run.baselines[name])]
            for row in rows
            if row.run is not None and name in row.run.baselines
        ]
        result = table(_COLUMNS, cells)
        result.columns[-1].max_width = _FOLDED
        yield result


def _cells(row: BaselineRow) -> list[str]:
    if row.missing is not None:
        return [""] * (len(_COLUMNS) - 2) + [f"not compared: {row.missing}"]
    times = (row.primitive_us, row.call_us, row.ours_us, row.ours_with_packing_us)
    ratios = (
        row.primitive_ratio,
        row.primitive_ratio_with_packing,
        row.call_ratio,
        row.call_ratio_with_packing,
    )
    chosen = " ".join(row.implementations)
    chosen = f"{chosen} ({row.form})" if chosen else row.form or ""
    return [
        *(_median(us, ".1f") for us in times),
        *(_median(ratio, ".2f") for ratio in ratios),
        chosen + (", noisy" if row.noisy else ""),
    ]


def _median(times: Quantiles | None, form: str) -> str:
    return "" if times is None else format(times.median, form)


def summary_lines(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Labels and texts of the summary's ``baselines``."""
    lines: list[tuple[str, str]] = []
    for name, summary in found.items():
        parts = [f"{plural(summary['compared'], 'layer')} compared"]
        if summary["noisy"]:
            parts.append(f"{len(summary['noisy'])} disturbed and left out")
        left_out = sum(len(group["layers"]) for group in summary["not_compared"])
        if left_out:
            parts.append(f"{left_out} not compared")
        lines.append((f"beside {name}", "; ".join(parts)))
        lines += [
            ("", _ratio(words, summary[key])) for key, words in _WORDS.items() if summary[key]
        ]
    return lines


def _ratio(words: str, ratio: Mapping[str, Any]) -> str:
    ahead = f"ours is not slower in {ratio['ours_not_slower']} of {ratio['layers']}"
    return (
        f"{words}: x{ratio['geometric_mean']:.2f} in the geometric mean, "
        f"worst x{ratio['worst']:.2f} (layer {ratio['worst_layer']}), {ahead}"
    )
