"""An assignment problem as a cost network.

Variables: the option of each node; of each tensor the layout written; of each reading port the
layout needed. Tables tie an option to its layouts, and hold the costs of options and conversions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.network.assignment.cost_network import CostNetwork, Shared, Table
from cpembed.network.assignment.problem import ANY, Problem, Tensor
from cpembed.network.assignment.pruning import (
    Kept,
    conversion_costs,
    read_layouts,
    written_layouts,
)


@dataclass(frozen=True)
class Formulation:
    """``kept``: of each node, whose variable has its number, the options that its values stand
    for. ``domains``: of each other variable the layouts; ``written`` and ``read``: the variables
    of tensors and of (node, port)."""

    problem: Problem
    kept: Kept
    network: CostNetwork
    domains: Mapping[int, list[int]]
    written: Mapping[str, int]
    read: Mapping[tuple[int, int], int]

    def options(self, values: Sequence[int]) -> tuple[int, ...]:
        """The options, one a node, that values of the variables stand for."""
        return tuple(kept[value] for kept, value in zip(self.kept, values, strict=False))

    def values(self, options: Sequence[int], written: Mapping[str, int]) -> list[int]:
        """Of all variables; the options have to be among those kept."""
        found = [0] * len(self.network.sizes)
        for node, option in enumerate(options):
            found[node] = self.kept[node].index(option)
        for name, variable in self.written.items():
            found[variable] = self.domains[variable].index(written[name])
        for (node, port), variable in self.read.items():
            layout = self.problem.nodes[node].options[options[node]].layouts[port]
            found[variable] = self.domains[variable].index(layout)
        return found


def formulate(problem: Problem, kept: Kept) -> Formulation:
    """The problem with the options that are kept of each node."""
    domains: dict[int, list[int]] = {}
    written: dict[str, int] = {}
    read: dict[tuple[int, int], int] = {}
    count = len(problem.nodes)
    for tensor in problem.tensors:
        written[tensor.name] = count + len(domains)
        domains[written[tensor.name]] = written_layouts(problem, kept, tensor)
        for node, port in problem.readers_of[tensor.name]:
            layouts = read_layouts(problem, kept, node, port)
            if layouts != [ANY]:
                read[node, port] = count + len(domains)
                domains[read[node, port]] = layouts
    tables = [Table((node,), _costs(problem, kept, node)) for node in range(count)]
    for (node, port), variable in read.items():
        tables.append(_link(problem, kept, node, port, variable, domains[variable]))
    for name, (node, port) in problem.producer_of.items():
        variable = written[name]
        tables.append(_link(problem, kept, node, port, variable, domains[variable]))
    shared: list[Shared] = []
    for tensor in problem.tensors:
        variables = [read[at] for at in problem.readers_of[tensor.name] if at in read]
        found = _conversions(tensor, written[tensor.name], variables, domains)
        tables += [part for part in found if isinstance(part, Table)]
        shared += [part for part in found if isinstance(part, Shared)]
    sizes = (*map(len, kept), *map(len, domains.values()))
    network = CostNetwork(sizes, tuple(tables), tuple(shared))
    return Formulation(problem, kept, network, domains, written, read)


def _costs(problem: Problem, kept: Kept, node: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([problem.nodes[node].options[k].cost for k in kept[node]])


def _link(
    problem: Problem, kept: Kept, node: int, port: int, variable: int, domain: list[int]
) -> Table:
    """Which layouts go with which options at a port. An option that writes any layout goes with
    each; one that reads any needs none, which is a value of its own."""
    layouts = np.array([problem.nodes[node].options[k].layouts[port] for k in kept[node]])
    agree = layouts[:, None] == np.array(domain)[None, :]
    if port >= len(problem.nodes[node].reads):
        agree |= (layouts == ANY)[:, None]
    return Table((node, variable), np.where(agree, 0.0, np.inf))


def _conversions(
    tensor: Tensor, written: int, readers: list[int], domains: Mapping[int, list[int]]
) -> list[Table | Shared]:
    """What is wanted in the end is paid for whoever reads it; the rest depends on who does."""
    rows = conversion_costs(tensor)[domains[written]]
    wanted = sorted(set(tensor.wanted))
    found: list[Table | Shared] = []
    if wanted:
        found.append(Table((written,), rows[:, wanted].sum(axis=1)))
        rows[:, wanted] = 0
    layouts = sorted({k for reader in readers for k in domains[reader]} - {ANY})
    needs = tuple(
        tuple(layouts.index(k) if k != ANY else -1 for k in domains[reader]) for reader in readers
    )
    conversions = Shared(written, rows[:, layouts], tuple(readers), needs)
    if len(readers) == 1:
        found.append(conversions.whole())
    elif readers:
        found.append(conversions)
    return found
