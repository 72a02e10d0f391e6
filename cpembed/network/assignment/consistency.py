"""Values that no possible assignment has, found by looking at one table at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpembed.network.assignment.cost_network import CostNetwork, Costs, Shared

Alive = list[NDArray[np.bool_]]


def possible_values(network: CostNetwork) -> Alive | None:
    """Of each variable, which values each table allows together with others that are possible
    (arc consistency); None where a variable has none, so that nothing is possible."""
    alive = [np.ones(size, np.bool_) for size in network.sizes]
    views = [(table.scope, table.costs) for table in network.tables]
    views += [view for shared in network.shared for view in _pairs(shared)]
    finite = [(scope, np.isfinite(costs)) for scope, costs in views]
    changed = True
    while changed:
        changed = False
        for scope, allowed in finite:
            for axis, variable in enumerate(scope):
                supported = alive[variable] & _supported(scope, allowed, axis, alive)
                if not supported.any():
                    return None
                changed |= bool((supported != alive[variable]).any())
                alive[variable] = supported
    return alive


def _supported(
    scope: tuple[int, ...], allowed: NDArray[np.bool_], axis: int, alive: Alive
) -> NDArray[np.bool_]:
    """The values at one axis that go with possible values of the others."""
    for place, variable in enumerate(scope):
        if place != axis:
            at = [1] * len(scope)
            at[place] = -1
            allowed = allowed & alive[variable].reshape(at)
    others = tuple(place for place in range(len(scope)) if place != axis)
    return np.asarray(allowed.any(axis=others))


def _pairs(shared: Shared) -> list[tuple[tuple[int, ...], Costs]]:
    """A shared conversion as the costs that each reader would have alone."""
    free = np.concatenate([shared.costs, np.zeros((len(shared.costs), 1))], axis=1)
    return [
        ((shared.written, reader), free[:, list(needs)])
        for reader, needs in zip(shared.readers, shared.needs, strict=True)
    ]
