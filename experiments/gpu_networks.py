"""Figures of entire networks on GPUs: the sum of their layers, each as often as it occurs.

``--layers FILE`` writes the layers of a figure as a suite, from which ``cpembed bench FILE --target
mma_f16 --pack`` makes the pack for a GPU. Layers are named by their numbers there.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.common import Row, markdown_table
from experiments.gpu_figures import (
    BEST,
    FigureLayer,
    cell,
    figure_rows,
    mean_of,
    with_products,
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
    """A network: the words of its layers with their counts."""

    name: str
    counts: Mapping[str, int]

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


def read_networks(path: Path) -> list[Network]:
    """Return the networks of a table: a column of counts each, beside the words of the layers."""
    with path.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    return [
        Network(name, {row["layer"]: int(row[name]) for row in table if int(row[name])})
        for name in list(table[0])[1:]
    ]


def on_tensor_cores(network: Network, batch: int = 1) -> Network:
    """Return a network whose layers have products, channels last, at a batch.

    Parameters
    ----------
    network : Network
        A network at batch 1.
    batch : int
        Number of its inputs.
    """
    counts: dict[str, int] = {}
    for words, count in network.counts.items():
        layer = with_batch(with_products(words), batch)
        counts[layer] = counts.get(layer, 0) + count
    return Network(network.name, counts)


def with_batch(words: str, batch: int) -> str:
    """Return a layer of batch 1 at another batch: of images, rows, or products.

    >>> with_batch("batched_gemm b=12 m=128 n=64 k=128", 16)
    'batched_gemm b=192 m=128 n=64 k=128'
    """
    operator = words.split(maxsplit=1)[0]
    name = {"gemm": "m", "batched_gemm": "b"}.get(operator, "n")
    return re.sub(rf"\b{name}=(\d+)", lambda size: f"{name}={batch * int(size[1])}", words)


def all_layers(networks: Sequence[Network]) -> list[FigureLayer]:
    """Return each layer of some networks once."""
    words = dict.fromkeys(name for network in networks for name in network.counts)
    return [FigureLayer(layer, layer) for layer in words]


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
                cell(own_us, 0),
                cell(speed_ups.get(network.name)),
            ]
        )
    head = ["network", "layers with a time", "ours, us", f"{library} over ours"]
    return markdown_table(head, cells), mean_of(speed_ups)


def network_figure(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    networks: Sequence[Network],
    page: NetworkPage,
) -> int:
    """Run the command of a figure: time the layers of networks and write the page.

    Parameters
    ----------
    parser : ArgumentParser
        From :func:`experiments.gpu_figures.figure_parser`.
    arguments : sequence of str, optional
        Arguments of the command line.
    networks : sequence of Network
    page : NetworkPage
        Text beside the table.

    Returns
    -------
    int
        Exit code of the command.
    """
    parser.add_argument("--layers", type=Path, help="write the layers for a pack, nothing else")
    options = parser.parse_args(arguments)
    layers = all_layers(networks)
    if options.layers is not None:
        lines = ["layer", *(layer.words for layer in layers)]
        options.layers.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return 0
    packed = {str(number): layer.name for number, layer in enumerate(layers)}
    rows, origin = figure_rows(layers, options, lambda name: packed.get(name.split(":")[-1], name))
    table, mean = network_table(networks, rows, LIBRARY)
    paper = [[name, cell(value)] for name, value in page.paper.items()]
    lines = [f"# {page.title}, {origin}", "", *page.note, "", *table, ""]
    lines += markdown_table([page.column, "measured"], paper)
    write_figure(options, rows, lines, {f"{LIBRARY} over ours": mean})
    return 0
