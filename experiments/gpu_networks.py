"""Figures of entire networks on GPUs: the sum of their layers, each as often as it occurs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.common import Row, markdown_table
from experiments.gpu_figures import (
    BEST,
    FigureLayer,
    cell,
    figure_rows,
    mean_of,
    write_figure,
)

LIBRARY = "cuDNN"
"""Library beside which networks are shown."""


@dataclass(frozen=True)
class NetworkPage:
    """Text of a figure of networks beside its table.

    Attributes
    ----------
    title : str
        Heading, without where the times are from.
    note : sequence of str
        Lines that say what is counted.
    column : str
        What the paper's numbers are.
    paper : mapping of str to float
        The paper's numbers by their names.
    """

    title: str
    note: Sequence[str]
    column: str
    paper: Mapping[str, float]


@dataclass(frozen=True)
class Network:
    """A network: the names of its layers with their counts, and layers that no kernel computes."""

    name: str
    counts: Mapping[str, int]
    without_kernel: int = 0

    def us(self, rows: Mapping[str, Row], implementation: str = BEST) -> float | None:
        """Return the microseconds of all layers; None if one of them has no time."""
        total = 0.0
        for name, count in self.counts.items():
            us = rows[name]["us"].get(implementation) if name in rows else None
            if us is None:
                return None
            total += count * us
        return total

    def timed(self, rows: Mapping[str, Row]) -> int:
        """Return the number of layers that have a time of ours."""
        return sum(
            count
            for name, count in self.counts.items()
            if name in rows and BEST in rows[name]["us"]
        )


def all_layers(networks: Sequence[Network], words: Mapping[str, str]) -> list[FigureLayer]:
    """Return each layer of some networks once; ``words`` by name."""
    names = dict.fromkeys(name for network in networks for name in network.counts)
    return [FigureLayer(name, words[name]) for name in names]


def network_table(
    networks: Sequence[Network], rows: Mapping[str, Row], library: str
) -> tuple[list[str], float | None]:
    """Return a table of networks beside a library, and the geometric mean of its ratios to ours.

    Parameters
    ----------
    networks : sequence of Network
    rows : mapping of str to Row
        Times of the layers by name.
    library : str
        Name of the library, as the rows have it.
    """
    speed_ups: dict[str, float] = {}
    cells: list[list[str]] = []
    for network in networks:
        own_us, library_us = network.us(rows), network.us(rows, library)
        if own_us is not None and library_us is not None:
            speed_ups[network.name] = library_us / own_us
        layers = sum(network.counts.values())
        cells.append(
            [
                network.name,
                f"{network.timed(rows)} of {layers}",
                str(network.without_kernel),
                cell(own_us, 0),
                cell(speed_ups.get(network.name)),
            ]
        )
    head = ["network", "layers with a time", "other layers", "ours, us", f"{library} over ours"]
    return markdown_table(head, cells), mean_of(speed_ups)


def write_network_figure(
    options: argparse.Namespace,
    networks: Sequence[Network],
    words: Mapping[str, str],
    page: NetworkPage,
) -> None:
    """Time the layers of networks and write the figure's page.

    Parameters
    ----------
    options : Namespace
        Options of :func:`experiments.gpu_figures.figure_parser`.
    networks : sequence of Network
    words : mapping of str to str
        Words of each layer by its name.
    page : NetworkPage
        Text beside the table.
    """
    rows, origin = figure_rows(all_layers(networks, words), options)
    table, mean = network_table(networks, rows, LIBRARY)
    paper = [[name, cell(value)] for name, value in page.paper.items()]
    lines = [f"# {page.title}, {origin}", "", *page.note, "", *table, ""]
    lines += markdown_table([page.column, "measured"], paper)
    write_figure(options, rows, lines, {f"{LIBRARY} over ours": mean})
