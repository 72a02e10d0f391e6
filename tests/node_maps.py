"""Every injective node map of a tiny instruction, by backtracking.

Definitions: docs/embedding.md, "Ground truth".

Shares nothing with the constraint model: operations are assigned workload points one at a time,
and a partial map is cut as soon as two operations disagree about an element they share. What it
accepts is what each constraint's own check does, of sets without boxes too; tests.brute_force
enumerates embeddings from their definition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.domains import padded_extents
from cpembed.embedding.node_map import NodeMap, from_points
from cpembed.embedding.problem import EmbeddingProblem, point_grid


class TooLarge(Exception):
    """The problem has more partial maps than the budget: not tiny enough for brute force."""


def node_maps(
    problem: EmbeddingProblem,
    domain: Mapping[str, int],
    extents: Mapping[str, int],
    budget: int = 3_000,
    most: int = 1_000_000,
) -> Iterator[NodeMap]:
    """All maps of operations to distinct points of the domain that respect the dataflow.

    Raises :class:`TooLarge` after ``budget`` partial maps or ``most`` whole ones.
    """
    tried = whole = 0
    axes = [axis.name for axis in problem.workload.axes]
    grid = {name: array.ravel() for name, array in point_grid(problem.instruction, extents).items()}
    size = next(iter(grid.values())).size
    candidates = list(itertools.product(*(range(domain[axis]) for axis in axes)))
    # Per access: the instruction element of each operation, and the workload element of each point.
    needs: list[list[tuple[int, ...]]] = []
    gives: list[dict[tuple[int, ...], tuple[int, ...]]] = []
    for pair in problem.pairs:
        index = [np.broadcast_to(i.evaluate(grid), (size,)) for i in pair.instruction.index]
        needs.append([tuple(int(column[n]) for column in index) for n in range(size)])
        table: dict[tuple[int, ...], tuple[int, ...]] = {}
        for point in candidates:
            at = dict(zip(axes, point, strict=True))
            table[point] = tuple(int(i.evaluate(at)) for i in pair.workload.index)
        gives.append(table)
    stores = [pair in problem.store_pairs for pair in problem.pairs]
    chosen: list[tuple[int, ...]] = []
    images: list[dict[tuple[int, ...], tuple[int, ...]]] = [{} for _ in problem.pairs]

    def extend(n: int) -> Iterator[NodeMap]:
        nonlocal tried, whole
        if n == size:
            whole += 1
            if whole > most:
                raise TooLarge
            shape = tuple(extents[axis.name] for axis in problem.instruction.axes)
            points = np.array(chosen, np.int64).T.reshape(len(axes), *shape)
            found = from_points(problem, extents, points)
            # Only ports that overlap can still disagree about an element.
            assert found is not None or problem.instruction.views
            if found is not None:
                yield found
            return
        tried += 1
        if tried > budget:
            raise TooLarge
        for point in candidates:
            if point in chosen:
                continue
            added: list[tuple[int, tuple[int, ...]]] = []
            fits = True
            for number, (need, give) in enumerate(zip(needs, gives, strict=True)):
                element, image = need[n], give[point]
                known = images[number].get(element)
                if known is None:
                    if stores[number] and image in images[number].values():
                        fits = False
                        break
                    images[number][element] = image
                    added.append((number, element))
                elif known != image:
                    fits = False
                    break
            if fits:
                chosen.append(point)
                yield from extend(n + 1)
                chosen.pop()
            for number, element in added:
                del images[number][element]

    yield from extend(0)


def solutions(
    problem: EmbeddingProblem, constraints: ConstraintSet, most: int = 1_000_000
) -> set[object]:
    """Keys of all node maps that every constraint of the set accepts; ``most`` as above."""
    found: set[object] = set()
    choices = [axis.allowed for axis in problem.instruction.axes]
    names = [axis.name for axis in problem.instruction.axes]
    domain = padded_extents(problem, constraints)
    for sizes in itertools.product(*choices):
        extents = dict(zip(names, sizes, strict=True))
        for node_map in node_maps(problem, domain, extents, most=most):
            if all(c.holds(problem, node_map) for c in constraints.constraints):
                found.add(node_map.key())
    return found
