"""Formulate an assignment problem as a cost network, without options that no optimum needs.

Variables are the option of each node, the written layout of each tensor, and the layout that each
reading port needs. Tables tie options to layouts, and hold the costs of options and conversions.

Option ``b`` of a node is pruned in favour of ``a`` if ``a`` costs no more, whatever the other nodes
choose: with all the conversions that it could add, against the fewest that ``b`` could need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.network.assignment.elimination import (
    CostNetwork,
    Costs,
    SharedConversions,
    Table,
)
from cpembed.network.assignment.problem import ANY, Problem, Tensor

RemainingOptions = list[tuple[int, ...]]
"""Numbers of the options of each node that were not pruned."""

# Maximum number of sweeps over all nodes; what one prunes may let the next prune more.
_ROUNDS = 4


def all_options(problem: Problem) -> RemainingOptions:
    """Return the numbers of all options of each node."""
    return [tuple(range(len(node.options))) for node in problem.nodes]


def prune_options(problem: Problem) -> RemainingOptions:
    """Return the options that some optimum may need, at least one per node."""
    remaining = all_options(problem)
    matrices = {tensor.name: _conversion_costs(tensor) for tensor in problem.tensors}
    for _ in range(_ROUNDS):
        before = list(remaining)
        for index in range(len(remaining)):
            if len(remaining[index]) > 1:
                remaining[index] = _remaining(problem, remaining, index, matrices)
        if remaining == before:
            break
    return remaining


def _conversion_costs(tensor: Tensor) -> Costs:
    """Return the cost from each layout (row) to each (column), infinite if impossible."""
    count = len(tensor.layouts)
    costs = np.full((count, count), np.inf)
    for (source, target), cost in tensor.conversion.items():
        costs[source, target] = cost
    np.fill_diagonal(costs, 0)
    return costs


def _written_layouts(problem: Problem, remaining: RemainingOptions, tensor: Tensor) -> list[int]:
    """Return the layouts in which a tensor may be written."""
    if tensor.input_layout is not None:
        return [tensor.input_layout]
    node, port = problem.producer_of[tensor.name]
    layouts = {problem.nodes[node].options[k].layouts[port] for k in remaining[node]}
    return list(range(len(tensor.layouts))) if ANY in layouts else sorted(layouts)


def _read_layouts(problem: Problem, remaining: RemainingOptions, node: int, port: int) -> list[int]:
    """Return the layouts that a port's options read, in order; ``ANY`` comes first."""
    return sorted({problem.nodes[node].options[k].layouts[port] for k in remaining[node]})


def _remaining(
    problem: Problem, remaining: RemainingOptions, index: int, matrices: dict[str, Costs]
) -> tuple[int, ...]:
    node = problem.nodes[index]
    options = [node.options[k] for k in remaining[index]]
    # Entry (a, b) bounds how much more option a can cost than option b, conversions included.
    costs = np.array([option.cost for option in options])
    layouts = np.array([option.layouts for option in options], np.int64)
    excess = costs[:, None] - costs[None, :]
    impossible = np.zeros(len(options), np.bool_)
    for port, name in enumerate(node.ports):
        tensor = problem.tensor_of[name]
        worst = (
            _worst_of_reading(problem, remaining, tensor, matrices[name])
            if port < len(node.reads)
            else _worst_of_writing(problem, remaining, tensor, matrices[name])
        )
        port_excess = worst[layouts[:, port][:, None], layouts[:, port][None, :]]
        impossible |= np.isneginf(port_excess).any(axis=0)
        excess += np.where(np.isneginf(port_excess), 0, port_excess)
    # An option with a layout that no conversion provides is worse than any other one.
    excess[:, impossible] = -np.inf
    remains = np.ones(len(options), np.bool_)
    # The dearest first, so that of two equally good options the cheaper or the earlier one remains.
    for b in sorted(range(len(options)), key=lambda k: (-costs[k], -k)):
        remains[b] = False
        if not (excess[remains, b] <= 0).any():
            remains[b] = True
    return tuple(k for k, stays in zip(remaining[index], remains.tolist(), strict=True) if stays)


def _worst_of_reading(
    problem: Problem, remaining: RemainingOptions, tensor: Tensor, matrix: Costs
) -> Costs:
    """Bound how much more conversions can cost if layout ``a`` is read instead of ``b``.

    The bound is -infinity if ``b`` can never be provided. The last row and column are ``ANY``.
    """
    rows = matrix[_written_layouts(problem, remaining, tensor)]
    rows = np.concatenate([rows, np.zeros((len(rows), 1))], axis=1)
    is_only_reader = len(problem.readers_of[tensor.name]) == 1 and not tensor.output_layouts
    costs_a, costs_b = rows[:, :, None], rows[:, None, :]
    # With other readers, the conversion that b needs may be paid anyway, and saves nothing.
    saved = costs_b if is_only_reader else np.where(np.isinf(costs_b), np.inf, 0)
    with np.errstate(invalid="ignore"):
        worst = np.where(np.isinf(costs_b), -np.inf, costs_a - saved).max(axis=0)
    np.fill_diagonal(worst, np.where(np.isneginf(np.diagonal(worst)), -np.inf, 0))
    return worst


def _worst_of_writing(
    problem: Problem, remaining: RemainingOptions, tensor: Tensor, matrix: Costs
) -> Costs:
    """Bound how much more conversions can cost if layout ``a`` is written instead of ``b``.

    The bound is -infinity if ``b`` cannot be converted to a layout that the caller needs.
    """
    readers = problem.readers_of[tensor.name]
    reads = {k for node, port in readers for k in _read_layouts(problem, remaining, node, port)}
    outputs = sorted(set(tensor.output_layouts))
    free = sorted(reads - {ANY} - set(outputs))
    count = len(matrix)
    with np.errstate(invalid="ignore"):
        each = matrix[:, None, :] - matrix[None, :, :]
    each = np.where(np.isinf(matrix)[None, :, :], -np.inf, each)
    # There are no more conversions than readers; the dearest ones are the worst case.
    some = np.sort(np.maximum(each[:, :, free], 0), axis=2)[:, :, ::-1][:, :, : len(readers)]
    always = each[:, :, outputs]
    never = np.isneginf(always).any(axis=2)
    worst = np.full((count + 1, count + 1), 0.0)
    total = some.sum(axis=2) + np.where(np.isneginf(always), 0, always).sum(axis=2)
    worst[:count, :count] = np.where(never, -np.inf, total)
    # ANY stands for the layout that costs least, whichever that is.
    worst[:count, count] = np.maximum(worst[:count, :count].max(axis=1), 0)
    return worst


@dataclass(frozen=True)
class Formulation:
    """Cost network of a problem, with the meaning of its variables.

    Attributes
    ----------
    remaining : RemainingOptions
        Options that the values of each node's variable stand for; node k is variable k.
    domains : mapping from int to list of int
        Layouts that the values of each other variable stand for.
    written, read : mapping
        Variable of each tensor, and of each (node, port).
    """

    problem: Problem
    remaining: RemainingOptions
    network: CostNetwork
    domains: Mapping[int, list[int]]
    written: Mapping[str, int]
    read: Mapping[tuple[int, int], int]

    def options(self, values: Sequence[int]) -> tuple[int, ...]:
        """Translate values of the variables to one option per node."""
        return tuple(numbers[value] for numbers, value in zip(self.remaining, values, strict=False))

    def values(self, options: Sequence[int], written: Mapping[str, int]) -> list[int]:
        """Translate options, none of which may be pruned, to values of all variables."""
        values = [0] * len(self.network.sizes)
        for node, option in enumerate(options):
            values[node] = self.remaining[node].index(option)
        for name, variable in self.written.items():
            values[variable] = self.domains[variable].index(written[name])
        for (node, port), variable in self.read.items():
            layout = self.problem.nodes[node].options[options[node]].layouts[port]
            values[variable] = self.domains[variable].index(layout)
        return values


def formulate(problem: Problem, remaining: RemainingOptions) -> Formulation:
    """Formulate a problem with the options that remain after pruning."""
    domains: dict[int, list[int]] = {}
    written: dict[str, int] = {}
    read: dict[tuple[int, int], int] = {}
    count = len(problem.nodes)
    for tensor in problem.tensors:
        written[tensor.name] = count + len(domains)
        domains[written[tensor.name]] = _written_layouts(problem, remaining, tensor)
        for node, port in problem.readers_of[tensor.name]:
            layouts = _read_layouts(problem, remaining, node, port)
            # A port whose options all read any layout needs no variable.
            if layouts != [ANY]:
                read[node, port] = count + len(domains)
                domains[read[node, port]] = layouts
    tables = [Table((node,), _costs(problem, remaining, node)) for node in range(count)]
    links = {**read, **{port: written[name] for name, port in problem.producer_of.items()}}
    for (node, port), variable in links.items():
        tables.append(_link(problem, remaining, node, port, variable, domains[variable]))
    shared: list[SharedConversions] = []
    for tensor in problem.tensors:
        variables = [read[port] for port in problem.readers_of[tensor.name] if port in read]
        conversions = _conversions(tensor, written[tensor.name], variables, domains)
        tables += [part for part in conversions if isinstance(part, Table)]
        shared += [part for part in conversions if isinstance(part, SharedConversions)]
    sizes = (*map(len, remaining), *map(len, domains.values()))
    network = CostNetwork(sizes, tuple(tables), tuple(shared))
    return Formulation(
        problem=problem,
        remaining=remaining,
        network=network,
        domains=domains,
        written=written,
        read=read,
    )


def _costs(problem: Problem, remaining: RemainingOptions, node: int) -> Costs:
    return np.array([problem.nodes[node].options[k].cost for k in remaining[node]])


def _link(
    problem: Problem,
    remaining: RemainingOptions,
    node: int,
    port: int,
    variable: int,
    domain: list[int],
) -> Table:
    """Return the table that allows the layouts of each option at a port.

    An option that writes any layout allows all of them. One that reads any layout needs none in
    particular, which is a value of its own.
    """
    layouts = np.array([problem.nodes[node].options[k].layouts[port] for k in remaining[node]])
    agree = layouts[:, None] == np.array(domain)[None, :]
    if port >= len(problem.nodes[node].reads):
        agree |= (layouts == ANY)[:, None]
    return Table((node, variable), np.where(agree, 0.0, np.inf))


def _conversions(
    tensor: Tensor, written: int, readers: list[int], domains: Mapping[int, list[int]]
) -> list[Table | SharedConversions]:
    """Return the costs of a tensor's conversions, for the network's caller and for readers."""
    rows = _conversion_costs(tensor)[domains[written]]
    outputs = sorted(set(tensor.output_layouts))
    parts: list[Table | SharedConversions] = []
    if outputs:
        # The caller always pays for these, so readers get them for nothing.
        parts.append(Table((written,), rows[:, outputs].sum(axis=1)))
        rows[:, outputs] = 0
    layouts = sorted({k for reader in readers for k in domains[reader]} - {ANY})
    needs = tuple(
        tuple(layouts.index(k) if k != ANY else -1 for k in domains[reader]) for reader in readers
    )
    conversions = SharedConversions(written, rows[:, layouts], tuple(readers), needs)
    if len(readers) == 1:
        parts.append(conversions.as_table())
    elif readers:
        parts.append(conversions)
    return parts
