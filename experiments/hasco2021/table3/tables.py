"""The tables of results.md: gains of hardware and software, by a row's cycles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from experiments.common import Row, geometric_mean
from experiments.hasco2021.codesign import EXPLORED

NAMES = {
    "resnet50": "ResNet-50",
    "mobilenet": "MobileNet without depthwise",
    "xception": "Xception without depthwise",
    "mobilenet_all": "MobileNet",
}
COMPARED = ("resnet50", "mobilenet", "xception")
"""Rows all of whose layers the template executes."""
CONDITIONS = {
    "multipliers": "equal area and number of multipliers",
    "area": "equal area",
}
PAPER = (
    "HASCO (ISCA 2021, section VII-E): 1.25 to 1.44x over default GEMM cores with AutoTVM's "
    "software, 29.53% of the reduction by hardware; its platforms and its spaces of hardware are "
    "others."
)


def total(row: Row, which: str, first: int = 0) -> int:
    """Return the cycles of the layers from ``first`` on, each as often as the network has it.

    Parameters
    ----------
    row : Row
        A network.
    which : str
        Column.
    first : int
        Index of the first layer that counts.
    """
    return sum(layer["count"] * cycles_of(layer[which]) for layer in row["layers"][first:])


def cycles_of(entry: dict[str, Any]) -> int:
    """Return the cycles of the best program, by the tuner or by the exploration.

    The template's has no other.
    """
    return min(entry["cycles"], entry.get("explored", entry["cycles"]))


def gains(row: Row, machine: str, first: int = 0) -> tuple[float, float, float]:
    """Return the gains over the template: of software, of hardware, of both.

    Parameters
    ----------
    row : Row
        A network.
    machine : str
        Name of the space.
    first : int
        Index of the first layer that counts.
    """
    template, software, both = (total(row, w, first) for w in ("reference", "software", machine))
    return template / software, software / both, template / both


def markdown(rows: list[Row]) -> list[str]:
    """Return all tables."""
    compared = [row for row in rows if row["key"] in COMPARED]
    lines = [
        "# Table III: hardware and software on VTA",
        "",
        "Simulated cycles of all layers of a row, each as often as the network has it. A layer's",
        "are those of the best program of the tuner and of the exploration, which simulates at",
        f"most {EXPLORED} a layer; the template has as many programs as both, or all its knobs.",
        "Area is estimated from tables at 45 nm; the limit is the default's without the part of",
        "its micro-op buffer that no program uses. *Without depthwise*: the template executes no",
        "depthwise convolutions, nor does any core of several rows.",
        "",
    ]
    if compared:
        for machine in CONDITIONS:
            lines += _machine_table(compared, machine)
        lines += [*_first_layer(compared), ""]
    return [*lines, *_machines_table(rows), *_without_software(rows)]


def _machine_table(rows: list[Row], machine: str) -> list[str]:
    lines = [
        f"## {CONDITIONS[machine].capitalize()}",
        "",
        (
            "| layers of | configuration | area mm2 (limit) | template | software alone | both "
            "| software | hardware | both |"
        ),
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        facts = row["machines"][machine]
        cycles = " | ".join(f"{total(row, w):,}" for w in ("reference", "software", machine))
        area = f"{facts['area_mm2']:.3f} ({row['limit_mm2']:.3f})"
        ratios = _ratios(gains(row, machine))
        lines.append(f"| {NAMES[row['key']]} | {facts['name']} | {area} | {cycles} | {ratios} |")
    means = _ratios(_mean_gains(rows, machine))
    return [*lines, f"| geometric mean | | | | | | {means} |", "", PAPER, ""]


def _mean_gains(rows: list[Row], machine: str, first: int = 0) -> list[float]:
    columns = zip(*(gains(row, machine, first) for row in rows), strict=True)
    return [geometric_mean(column) for column in columns]


def _ratios(ratios: Iterable[float]) -> str:
    return " | ".join(f"{ratio:.3f}x" for ratio in ratios)


def _first_layer(rows: list[Row]) -> list[str]:
    """Return the gains without the first layer.

    It has three channels, which the template pads to 16.
    """
    lines = [
        "## Without the first layer",
        "",
        "The template pads the first layer's three channels to 16. Without it, and with it in",
        "brackets:",
        "",
        (
            "| layers of | software | hardware, equal multipliers | both | hardware, equal area "
            "| both |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    gains_by_network = {
        NAMES[row["key"]]: [_first_gains(partial(gains, row), first) for first in (1, 0)]
        for row in rows
    }
    means = partial(_mean_gains, rows)
    gains_by_network["geometric mean"] = [_first_gains(means, first) for first in (1, 0)]
    for name, (first_layer_out, all_layers) in gains_by_network.items():
        cells = [f"{a:.3f}x ({b:.3f}x)" for a, b in zip(first_layer_out, all_layers, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _first_gains(gains_of: Callable[[str, int], Iterable[float]], first: int) -> list[float]:
    software, *of_multipliers = gains_of("multipliers", first)
    return [software, *of_multipliers, *list(gains_of("area", first))[1:]]


def _machines_table(rows: list[Row]) -> list[str]:
    """Return the machines of all rows, also of the one that the template does not execute."""
    lines = [
        "## Over the default with all embeddings",
        "",
        (
            "| layers of | at equal | configuration | default | best | gain | machines "
            "| within the area | with software | evaluated | status |"
        ),
        "| --- | --- | --- |" + " ---: |" * 7 + " --- |",
    ]
    for row in rows:
        for machine, facts in row["machines"].items():
            default, best = total(row, "software"), total(row, machine)
            counts = " | ".join(
                f"{facts[count]:,}"
                for count in ("machines", "within", "with_software", "evaluated")
            )
            lines.append(
                f"| {NAMES[row['key']]} | {machine} | {facts['name']} | {default:,} | {best:,} "
                f"| {default / best:.3f}x | {counts} | {facts['status']} |"
            )
    return lines


def _without_software(rows: list[Row]) -> list[str]:
    """Return a remark on rows for which only machines of one row have software for all layers."""
    lines: list[str] = []
    for row in rows:
        facts = row["machines"]["area"]
        if facts["rows"] == [1]:
            lines += [
                "",
                (
                    f"{NAMES[row['key']]}: of the {facts['within']:,} machines within the area, "
                    f"{facts['with_software']:,} have software for all layers, each with a core of "
                    "one row: on the others a depthwise convolution has no embedding. So this row "
                    "says nothing of larger cores; proven is that none of these machines is faster "
                    "than that of the table, with the exploration's schedules."
                ),
            ]
    return lines
