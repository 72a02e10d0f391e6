"""The embeddings of product spaces in ascending order of what they cost at least.

Branch and bound over the components: a prefix of classes is extended only when its bound is the
least of all that are open, so that what is never reached is never combined.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.embedding.commute import problem_of
from cpembed.embedding.constraint_set import Weights
from cpembed.embedding.digit_model import AxisMaps, combine
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.result import EmbeddingSpace, spaces_of
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.selection.bounds import Lower, Maps, SpaceBounds
from cpembed.time_limit import check_time


@dataclass(frozen=True)
class Bounded:
    """An embedding, what it costs at least, and the number of its space."""

    lower: Lower
    space: int
    embedding: Embedding


@dataclass(frozen=True)
class _Branch:
    """Extensions of a prefix in ascending order of their bounds, from the ``position``-th on."""

    space: int
    chosen: tuple[int, ...]
    scores: list[float]
    order: list[int]
    position: int = 0


@dataclass(frozen=True)
class _Leaf:
    space: int
    chosen: tuple[int, ...]


def best_first(
    workload: Computation,
    instruction: Instruction,
    embeddings: Sequence[Embedding],
    weights: Weights,
) -> Iterator[Bounded]:
    """All embeddings, each as late as its bound allows."""
    spaces = [s for s in _spaces(workload, instruction, embeddings) if s.size]
    bounds = [SpaceBounds(space.problem, space.components, weights) for space in spaces]
    numbers = itertools.count()
    heap: list[tuple[Lower, int, _Branch | _Leaf]] = []

    def push(lower: Lower, node: _Branch | _Leaf) -> None:
        heapq.heappush(heap, (lower, next(numbers), node))

    def advance(branch: _Branch) -> None:
        if branch.position < len(branch.order):
            push(Lower(branch.scores[branch.position], 0, 0), branch)

    def grow(space: int, chosen: tuple[int, ...]) -> None:
        if len(chosen) == len(bounds[space].classes):
            push(bounds[space].lower(chosen), _Leaf(space, chosen))
            return
        scores = bounds[space].extend(chosen)
        order = np.argsort(scores, kind="stable")
        advance(_Branch(space, chosen, scores[order].tolist(), order.tolist()))

    for number in range(len(spaces)):
        grow(number, ())
    while heap:
        check_time()
        lower, _, node = heapq.heappop(heap)
        if isinstance(node, _Leaf):
            members = [
                classes.members[at]
                for classes, at in zip(bounds[node.space].classes, node.chosen, strict=True)
            ]
            for place in itertools.product(*members):
                check_time()
                yield Bounded(lower, node.space, spaces[node.space].embedding(place))
        else:
            at = node.position
            advance(_Branch(node.space, node.chosen, node.scores, node.order, at + 1))
            grow(node.space, (*node.chosen, node.order[at]))


@dataclass(frozen=True)
class _Space:
    """A product of maps, or a list of embeddings as a product of one component."""

    problem: EmbeddingProblem
    components: tuple[Maps, ...]

    @property
    def size(self) -> int:
        return min(map(len, self.components))

    def embedding(self, place: tuple[int, ...]) -> Embedding:
        parts: list[AxisMaps] = []
        for maps, number in zip(self.components, place, strict=True):
            found = maps[number]
            if isinstance(found, Embedding):
                return found
            parts.append(found)
        return combine(self.problem, parts)


def _spaces(
    workload: Computation, instruction: Instruction, embeddings: Sequence[Embedding]
) -> Iterator[_Space]:
    for space in spaces_of(embeddings):
        if isinstance(space, EmbeddingSpace):
            yield _Space(space.problem, tuple(component.maps for component in space.components))
            continue
        roles: dict[tuple[tuple[str, str], ...], list[Embedding]] = {}
        for embedding in space:
            roles.setdefault(tuple(embedding.operands.items()), []).append(embedding)
        for names, members in roles.items():
            yield _Space(problem_of(workload, instruction, dict(names)), (members,))
