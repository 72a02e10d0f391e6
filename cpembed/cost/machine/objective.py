"""Cost of a tiling on a machine: cycles, bytes to and from main memory, energy, or a product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from cpembed.cost.machine.nest import ExecutionNest, Floats
from cpembed.cost.machine.times import cycles, memory_times
from cpembed.cost.machine.traffic import Tilings
from cpembed.hw.machine import Hierarchy


class Objective(StrEnum):
    """Quantity that a mapping is to have the least of."""

    CYCLES = "cycles"
    BYTES = "bytes"
    """Bytes to and from main memory."""
    ENERGY = "energy"
    EDP = "edp"
    """Product of energy and cycles."""


@dataclass(frozen=True)
class Price:
    """Cost of a byte that a memory's parent reads for it, and of one that it writes there.

    ``fill`` is the cost of a byte that arrives in the memory: one read may serve several units.
    """

    read: float
    write: float
    fill: float = 0.0


@dataclass(frozen=True)
class Cost:
    """Cost of tilings: cycles, or an amount that is linear in bytes, or the product of both.

    ``prices`` are those of the linear amount by link, ``fixed`` what does not depend on tilings.
    """

    objective: Objective
    prices: Mapping[str, Price]
    fixed: float = 0.0

    @property
    def counts_cycles(self) -> bool:
        return self.objective in (Objective.CYCLES, Objective.EDP)

    @property
    def counts_bytes(self) -> bool:
        return self.objective is not Objective.CYCLES

    def amount(self, tilings: Tilings) -> Floats:
        """Return the linear amount of the tilings' decisions, without the fixed part."""
        total = np.zeros(tilings.rows)
        for name, traffic in tilings.traffic.items():
            price = self.prices[name]
            total = total + price.read * traffic.total_read + price.write * traffic.total_write
            total = total + price.fill * traffic.received
        return total

    def combined(self, time: Floats, amount: Floats) -> Floats:
        """Return the cost from cycles and the linear amount."""
        if self.objective is Objective.CYCLES:
            return time
        total = amount + self.fixed
        return time * total if self.objective is Objective.EDP else total

    def value(self, tilings: Tilings, nest: ExecutionNest, machine: Hierarchy) -> Floats:
        """Return the cost of complete tilings."""
        time = cycles(tilings, nest, machine) if self.counts_cycles else np.zeros(tilings.rows)
        return self.combined(time, self.amount(tilings))


def cycles_cost(machine: Hierarchy) -> Cost:
    """Return the cost in cycles; among equals, bytes count by the time that each takes."""
    prices: dict[str, Price] = {}
    for link in machine.links:
        parent, units = link.parent, link.memory.units
        read = min(parent.read_bytes * parent.units, parent.child_read_bytes * units)
        write = min(parent.write_bytes * parent.units, parent.child_write_bytes * units)
        prices[link.name] = Price(1 / read, 1 / write)
    return Cost(Objective.CYCLES, prices)


def enclosing_cycles(
    tilings: Tilings, nest: ExecutionNest, machine: Hierarchy, inside: Floats
) -> Floats:
    """Return the cycles of partial tilings, from those of everything that is undecided.

    Parameters
    ----------
    tilings : Tilings
        Tilings, from main memory down to some level.
    nest : ExecutionNest
        Nest that they tile.
    machine : Hierarchy
        Machine with its memories.
    inside : array
        Cycles of computing with the transfers of the levels that are undecided.
    """
    total = inside
    for time in memory_times(tilings, nest, machine, inside):
        total = time.total
    return total
