"""An assignment problem as a cost network.

Variables: the option of each node; of each tensor the layout written; of each reading port the
layout needed. Tables tie an option to its layouts, and hold the costs of options and conversions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.network.assignment.elimination import CostNetwork, Shared, Table
from cpembed.network.assignment.problem import ANY, Problem, Tensor

Costs = NDArray[np.float64]
Kept = list[tuple[int, ...]]
"""Of each node, the numbers of the options that remain."""

_ROUNDS = 4
"""Each looks at all nodes once; what it drops may let the next one drop more."""


def all_options(problem: Problem) -> Kept:
    return [tuple(range(len(node.options))) for node in problem.nodes]


def kept_options(problem: Problem) -> Kept:
    """The options that remain; at least one of each node."""
    kept = all_options(problem)
    matrices = {tensor.name: conversion_costs(tensor) for tensor in problem.tensors}
    for _ in range(_ROUNDS):
        before = list(kept)
        for index in range(len(kept)):
            if len(kept[index]) > 1:
                kept[index] = _remaining(problem, kept, index, matrices)
        if kept == before:
            break
    return kept


def conversion_costs(tensor: Tensor) -> Costs:
    """From each layout (row) to each (column), infinite where impossible."""
    count = len(tensor.layouts)
    costs = np.full((count, count), np.inf)
    for (source, target), cost in tensor.conversion.items():
        costs[source, target] = cost
    np.fill_diagonal(costs, 0)
    return costs


def written_layouts(problem: Problem, kept: Kept, tensor: Tensor) -> list[int]:
    """The layouts in which a tensor may be written."""
    if tensor.given is not None:
        return [tensor.given]
    node, port = problem.producer_of[tensor.name]
    layouts = {problem.nodes[node].options[k].layouts[port] for k in kept[node]}
    return list(range(len(tensor.layouts))) if ANY in layouts else sorted(layouts)


def read_layouts(problem: Problem, kept: Kept, node: int, port: int) -> list[int]:
    """The layouts that a port's options read, ``ANY`` first where it is among them."""
    return sorted({problem.nodes[node].options[k].layouts[port] for k in kept[node]})


def _remaining(
    problem: Problem, kept: Kept, index: int, matrices: dict[str, Costs]
) -> tuple[int, ...]:
    node = problem.nodes[index]
    options = [node.options[k] for k in kept[index]]
    costs = np.array([option.cost for option in options])
    layouts = np.array([option.layouts for option in options], np.int64)
    excess = costs[:, None] - costs[None, :]
    impossible = np.zeros(len(options), np.bool_)
    for port, name in enumerate(node.ports):
        tensor = problem.tensor_of[name]
        worst = (
            _worst_of_reading(problem, kept, tensor, matrices[name])
            if port < len(node.reads)
            else _worst_of_writing(problem, kept, tensor, matrices[name])
        )
        of_port = worst[layouts[:, port][:, None], layouts[:, port][None, :]]
        impossible |= np.isneginf(of_port).any(axis=0)
        excess += np.where(np.isneginf(of_port), 0, of_port)
    excess[:, impossible] = -np.inf
    alive = np.ones(len(options), np.bool_)
    # The dearest first: of two that are worth the same, the cheaper or the earlier one remains.
    for b in sorted(range(len(options)), key=lambda k: (-costs[k], -k)):
        alive[b] = False
        if not (excess[alive, b] <= 0).any():
            alive[b] = True
    return tuple(k for k, lives in zip(kept[index], alive.tolist(), strict=True) if lives)


def _worst_of_reading(problem: Problem, kept: Kept, tensor: Tensor, matrix: Costs) -> Costs:
    """How much more reading layout ``a`` than ``b`` can cost in conversions, whatever is written;
    -infinity where ``b`` can never be had. The last row and column are those of ``ANY``."""
    rows = matrix[written_layouts(problem, kept, tensor)]
    rows = np.concatenate([rows, np.zeros((len(rows), 1))], axis=1)
    alone = len(problem.readers_of[tensor.name]) == 1 and not tensor.wanted
    of_a, of_b = rows[:, :, None], rows[:, None, :]
    # What b needs may be there for others, and then costs nothing.
    saved = of_b if alone else np.where(np.isinf(of_b), np.inf, 0)
    with np.errstate(invalid="ignore"):
        worst = np.where(np.isinf(of_b), -np.inf, of_a - saved).max(axis=0)
    np.fill_diagonal(worst, np.where(np.isneginf(np.diagonal(worst)), -np.inf, 0))
    return worst


def _worst_of_writing(problem: Problem, kept: Kept, tensor: Tensor, matrix: Costs) -> Costs:
    """How much more writing layout ``a`` than ``b`` can cost in conversions, whatever is read;
    -infinity where ``b`` cannot be converted to what is wanted in the end."""
    readers = problem.readers_of[tensor.name]
    reads = {k for node, port in readers for k in read_layouts(problem, kept, node, port)}
    wanted = sorted(set(tensor.wanted))
    free = sorted(reads - {ANY} - set(wanted))
    count = len(matrix)
    with np.errstate(invalid="ignore"):
        each = matrix[:, None, :] - matrix[None, :, :]
    each = np.where(np.isinf(matrix)[None, :, :], -np.inf, each)
    some = np.sort(np.maximum(each[:, :, free], 0), axis=2)[:, :, ::-1][:, :, : len(readers)]
    always = each[:, :, wanted]
    never = np.isneginf(always).any(axis=2)
    worst = np.full((count + 1, count + 1), 0.0)
    total = some.sum(axis=2) + np.where(np.isneginf(always), 0, always).sum(axis=2)
    worst[:count, :count] = np.where(never, -np.inf, total)
    # ANY may be any of the layouts, and is the one that costs least.
    worst[:count, count] = np.maximum(worst[:count, :count].max(axis=1), 0)
    return worst


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
