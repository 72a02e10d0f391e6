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

from cpembed.cost.bounds import Lower, Maps, SpaceBounds
from cpembed.embedding.commute import problem_of
from cpembed.embedding.constraint_set import Weights
from cpembed.embedding.digit_model import AxisMaps, combine
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.result import EmbeddingSpace, spaces_of
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
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
    prefix: tuple[int, ...]
    scores: list[float]
    order: list[int]
    position: int = 0


@dataclass(frozen=True)
class _Leaf:
    space: int
    classes: tuple[int, ...]


def best_first(
    workload: Computation,
    instruction: Instruction,
    embeddings: Sequence[Embedding],
    weights: Weights,
) -> Iterator[Bounded]:
    """Yield all embeddings, each as late as its bound allows.

    Parameters
    ----------
    workload : Computation
        Operator at fixed sizes.
    instruction : Instruction
        Embedded instruction.
    embeddings : Sequence of Embedding
        Embeddings of a search: products of components or plain sequences.
    weights : Weights
        Weights of the score.
    """
    spaces = [s for s in _spaces(workload, instruction, embeddings) if s.size]
    bounds = [SpaceBounds(space.problem, space.components, weights) for space in spaces]
    numbers = itertools.count()
    heap: list[tuple[Lower, int, _Branch | _Leaf]] = []

    def push(lower: Lower, node: _Branch | _Leaf) -> None:
        heapq.heappush(heap, (lower, next(numbers), node))

    def advance(branch: _Branch) -> None:
        if branch.position < len(branch.order):
            push(Lower(branch.scores[branch.position], 0, 0), branch)

    def grow(space: int, prefix: tuple[int, ...]) -> None:
        if len(prefix) == len(bounds[space].classes):
            push(bounds[space].lower(prefix), _Leaf(space, prefix))
            return
        scores = bounds[space].extend(prefix)
        order = np.argsort(scores, kind="stable")
        advance(_Branch(space, prefix, scores[order].tolist(), order.tolist()))

    for number in range(len(spaces)):
        grow(number, ())
    while heap:
        check_time()
        lower, _, node = heapq.heappop(heap)
        if isinstance(node, _Leaf):
            members = [
                classes.members[at]
                for classes, at in zip(bounds[node.space].classes, node.classes, strict=True)
            ]
            for place in itertools.product(*members):
                check_time()
                yield Bounded(lower, node.space, spaces[node.space].embedding(place))
        else:
            at = node.position
            advance(_Branch(node.space, node.prefix, node.scores, node.order, at + 1))
            grow(node.space, (*node.prefix, node.order[at]))


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
            axis_map = maps[number]
            if isinstance(axis_map, Embedding):
                return axis_map
            parts.append(axis_map)
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
