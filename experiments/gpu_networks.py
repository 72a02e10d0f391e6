"""Figures of entire networks on GPUs: the sum of their layers, each as often as it occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.common import Row, markdown_table
from experiments.gpu_figures import BEST, FigureLayer, cell, mean_of


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
    """Return a table of networks beside a library, and the geometric mean of its ratios to ours."""
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
