"""Lower bounds on the costs of all embeddings of a space, and the embeddings in their order.

An execution count is a product over workload axes, and a layout's size one over dimensions. Each
axis belongs to one component, so that every map of a component has a factor of its own. Maps with
equal factors are one class.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.footprint import Dimension, Fused, State, Tile, ports_of, states_of
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.embedding.constraints.digits import Digits
from cpembed.embedding.digit_model import AxisMaps, DigitOption, combine
from cpembed.embedding.digit_search import digit_model_obstacle
from cpembed.embedding.domains import full_digits
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import members_of
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.result import EmbeddingSpace, spaces_of
from cpembed.hw.instruction import Instruction, InstructionAxis
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.time_limit import check_time

Floats = NDArray[np.float64]
Maps = Sequence[AxisMaps | Embedding]

SLACK = 1e-12
"""Upper bound on the relative error of a sum or product of a few floating-point numbers."""


@dataclass(frozen=True, order=True)
class Lower:
    """Lower bounds on a candidate's costs, in the order in which candidates are ranked."""

    score: float
    calls: int
    packing_bytes: int


@dataclass
class _Classes:
    """Maps of a component, classified by their factors.

    A class has a factor of the executions, one of each operand's elements, and a number for the
    states of its axes in each joint dimension.
    """

    members: list[list[int]] = field(default_factory=list[list[int]])
    calls: list[int] = field(default_factory=list[int])
    elements: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    states: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    def __len__(self) -> int:
        return len(self.members)


@dataclass
class _Joint:
    """Dimension that axes of several components index: its size by the states in each of them."""

    port: int
    dimension: Dimension
    components: tuple[int, ...]
    states: dict[int, dict[tuple[State, ...], int]] = field(init=False)
    sizes: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.states = {component: {} for component in self.components}

    def tabulate(self, axes: Mapping[int, tuple[str, ...]]) -> None:
        """Fill the table, an axis per component, from the states that occur."""
        shape = [len(self.states[c]) for c in self.components]
        self.sizes = np.empty(shape, np.int64)
        for place, combination in zip(
            np.ndindex(*shape),
            itertools.product(*(self.states[c] for c in self.components)),
            strict=True,
        ):
            check_time()
            by_axis: dict[str, State] = {}
            for component, states in zip(self.components, combination, strict=True):
                by_axis |= dict(zip(axes[component], states, strict=True))
            self.sizes[place] = self.dimension.elements(by_axis)


class SpaceBounds:
    """Bounds for embeddings that choose one map from each of the components."""

    def __init__(
        self, problem: EmbeddingProblem, components: Sequence[Maps], weights: Weights
    ) -> None:
        self.weights = weights
        self.macs, self.macs_per_call = problem.workload.macs, problem.instruction.macs
        self._extents = problem.workload.extents
        groups = dict.fromkeys(g for m in components for f in m for g in f.flattened.values())
        self._ports = ports_of(problem, groups)
        # Ports of one tensor may share their elements: only the smallest counts for certain.
        tensors: dict[str, list[int]] = {}
        for n, port in enumerate(self._ports):
            tensors.setdefault(port.operand.tensor, []).append(n)
        self._tensors = list(tensors.values())
        self._data = sum(self._ports[group[-1]].elements for group in self._tensors)
        # Each workload axis belongs to one component, so that costs are products of its factors.
        self._owner = {
            axis: n
            for n, maps in enumerate(components)
            for axis_map in maps
            for axis in _axes_of(axis_map)
        }
        # Axes that no component walks are loops around the instruction in every embedding.
        self._calls = math.prod(e for a, e in self._extents.items() if a not in self._owner)
        self._elements = [1] * len(self._ports)
        self._own: list[list[list[Dimension]]] = [
            [[] for _ in self._ports] for _ in range(len(components))
        ]
        self._joint: list[_Joint] = []
        self._place_dimensions()
        self._sizes: dict[tuple[int, tuple[State, ...]], int] = {}
        self.classes = [self._classify(n, maps) for n, maps in enumerate(components)]
        for joint in self._joint:
            joint.tabulate({c: self._axes_in(joint.dimension, c) for c in joint.components})
        self._tables = _Tables(self.classes, self._joint)

    def _place_dimensions(self) -> None:
        for n, port in enumerate(self._ports):
            for dimension in port.dimensions:
                axes = [a for a in dimension.index.iterators if a in self._owner]
                owners = sorted({self._owner[axis] for axis in axes})
                if not owners:
                    self._elements[n] *= dimension.elements({})
                elif len(owners) == 1:
                    self._own[owners[0]][n].append(dimension)
                else:
                    # The size of p + r is no product: it is looked up by the states of both.
                    self._joint.append(_Joint(n, dimension, tuple(owners)))

    def _axes_in(self, dimension: Dimension, component: int) -> tuple[str, ...]:
        return tuple(a for a in dimension.index.iterators if self._owner.get(a) == component)

    def _classify(self, component: int, maps: Maps) -> _Classes:
        classes = _Classes()
        numbers: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
        owned = [axis for axis, owner in self._owner.items() if owner == component]
        for number, axis_map in enumerate(maps):
            check_time()
            states, fused = states_of(axis_map, self._extents)
            calls = math.prod(group.tile.calls(group.extent) for group in fused) * math.prod(
                self._axis_calls(axis, states.get(axis)) for axis in owned
            )
            elements = tuple(
                self._factor(component, n, states, fused) for n in range(len(self._ports))
            )
            place = tuple(self._state_number(joint, component, states) for joint in self._joint)
            key = (calls, elements, place)
            # Maps of equal factors and states cost equally in any embedding: one class, combined
            # once.
            if key not in numbers:
                numbers[key] = len(classes)
                classes.members.append([])
                classes.calls.append(calls)
                classes.elements.append(elements)
                classes.states.append(place)
            classes.members[numbers[key]].append(number)
        return classes

    def _axis_calls(self, axis: str, state: State) -> int:
        if isinstance(state, Tile):
            return state.calls(self._extents[axis])
        return 1 if isinstance(state, Fused) else self._extents[axis]

    def _factor(
        self,
        component: int,
        port: int,
        states: Mapping[str, State],
        fused: Sequence[Fused],
    ) -> int:
        """Return the factor of a map in the number of elements of an operand's layout."""
        size = math.prod(group.padded for group in fused if self._ports[port].has_dimension(group))
        for dimension in self._own[component][port]:
            axes = self._axes_in(dimension, component)
            key = (id(dimension), dimension.relevant(states, axes))
            if key not in self._sizes:
                self._sizes[key] = dimension.elements(states)
            size *= self._sizes[key]
        return size

    def _state_number(self, joint: _Joint, component: int, states: Mapping[str, State]) -> int:
        """Return the number of the states in a joint dimension's table; 0 if they do not matter."""
        numbers = joint.states.get(component)
        if numbers is None:
            return 0
        key = joint.dimension.relevant(states, self._axes_in(joint.dimension, component))
        return numbers.setdefault(key, len(numbers))

    def lower(self, positions: Sequence[int]) -> Lower:
        """Return the exact bound of the embeddings with one class of each component."""
        calls, elements = self._calls, list(self._elements)
        for classes, at in zip(self.classes, positions, strict=True):
            calls *= classes.calls[at]
            elements = [a * b for a, b in zip(elements, classes.elements[at], strict=True)]
        for k, joint in enumerate(self._joint):
            place = tuple(self.classes[c].states[positions[c]][k] for c in joint.components)
            elements[joint.port] *= int(joint.sizes[place])
        # A layout larger than the operand cannot be in place; a layout as large may be.
        moved = sum(
            (port.elements + size) * size_bytes(port.operand.dtype)
            for port, size in zip(self._ports, elements, strict=True)
            if size > port.elements
        )
        mac = self.weights.mac * (calls * self.macs_per_call - self.macs)
        packed = sum(min(elements[n] for n in group) for group in self._tensors)
        data = self.weights.data * max(0, packed - self._data)
        score = math.hypot(mac, data)
        # The last bit of a norm need not be monotone; with one weight it is a product, which is.
        exact = not (self.weights.mac and self.weights.data)
        return Lower(score if exact else score * (1 - SLACK), calls, moved)

    def extend(self, prefix: Sequence[int]) -> Floats:
        """Return lower bounds of the score by class of the next component.

        They hold for all embeddings with the classes ``prefix`` of the components before it.
        """
        calls, elements = self._tables.extend(prefix)
        executed = calls * float(self._calls * self.macs_per_call)
        sizes = [e * constant for e, constant in zip(elements, self._elements, strict=True)]
        packed = sum(functools.reduce(np.minimum, [sizes[n] for n in g]) for g in self._tensors)
        # Rounding must not lift a bound above the costs that it bounds.
        below = 1 - SLACK
        mac = self.weights.mac * np.maximum(0.0, executed * below - self.macs)
        data = self.weights.data * np.maximum(0.0, packed * below - self._data)
        return np.hypot(mac, data) * below


class _Tables:
    """Factors of all classes as arrays, with the smallest factors that later components have."""

    def __init__(self, classes: Sequence[_Classes], joint: Sequence[_Joint]) -> None:
        self._joint = joint
        self._calls = [np.array(c.calls, np.float64) for c in classes]
        self._elements = [np.array(c.elements, np.float64) for c in classes]
        self._states = [np.array(c.states, np.int64).reshape(len(c), -1) for c in classes]
        self._least_calls = _suffix_products([c.min(initial=np.inf) for c in self._calls])
        self._least_elements = _suffix_products([e.min(axis=0) for e in self._elements])

    def extend(self, prefix: Sequence[int]) -> tuple[Floats, list[Floats]]:
        """Return executions, and elements of each operand, by class of the next component."""
        depth = len(prefix)
        calls = self._calls[depth] * self._least_calls[depth + 1]
        sizes = self._elements[depth] * self._least_elements[depth + 1]
        for component, at in enumerate(prefix):
            calls = calls * self._calls[component][at]
            sizes = sizes * self._elements[component][at]
        elements = [sizes[:, port] for port in range(sizes.shape[1])]
        for number, joint in enumerate(self._joint):
            # Components that are still open contribute at least the smallest size.
            later = tuple(k for k, c in enumerate(joint.components) if c > depth)
            table = joint.sizes.min(axis=later) if later else joint.sizes
            place: list[Any] = []
            for component in joint.components:
                if component < depth:
                    place.append(self._states[component][prefix[component], number])
                elif component == depth:
                    place.append(self._states[component][:, number])
            elements[joint.port] = elements[joint.port] * table[tuple(place)]
        return calls, elements


def _suffix_products(values: Sequence[Any]) -> list[Any]:
    """Return the product of the values from each position on; 1 after the last."""
    products: list[Any] = [1.0]
    for value in reversed(values):
        products.insert(0, products[0] * value)
    return products


def _axes_of(axis_map: AxisMaps | Embedding) -> set[str]:
    axes = (digit.axis for digits in axis_map.digits.values() for digit in digits)
    return {member for axis in axes for member in members_of(axis_map.flattened, axis)}


# -------------------------------------------------------------------------------------- best first


@dataclass(frozen=True)
class Bounded:
    """Embedding with a lower bound on its costs and the number of its space."""

    lower: Lower
    space: int
    embedding: Embedding


@dataclass(frozen=True)
class _Branch:
    """Extensions of a prefix in ascending order of their bounds, from ``position`` on."""

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
    # Branch and bound over the components: a prefix of classes is extended only when its bound is
    # the least of all that are open, so that the best embeddings come without combining all.
    spaces = [s for s in _spaces(workload, instruction, embeddings) if s.size]
    bounds = [SpaceBounds(space.problem, space.components, weights) for space in spaces]
    numbers = itertools.count()
    heap: list[tuple[Lower, int, _Branch | _Leaf]] = []

    # The running number breaks ties, since nodes cannot be compared.
    def push(lower: Lower, node: _Branch | _Leaf) -> None:
        heapq.heappush(heap, (lower, next(numbers), node))

    def advance(branch: _Branch) -> None:
        if branch.position < len(branch.order):
            push(Lower(branch.scores[branch.position], 0, 0), branch)

    def grow(space: int, prefix: tuple[int, ...]) -> None:
        if len(prefix) == len(bounds[space].classes):
            push(bounds[space].lower(prefix), _Leaf(space, prefix))
            return
        # Only the best extension enters the heap; the next one follows once it is taken out.
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
            # All embeddings of these classes have the same bound.
            for place in itertools.product(*members):
                check_time()
                yield Bounded(lower, node.space, spaces[node.space].embedding(place))
        else:
            at = node.position
            advance(_Branch(node.space, node.prefix, node.scores, node.order, at + 1))
            grow(node.space, (*node.prefix, node.order[at]))


@dataclass(frozen=True)
class _Space:
    """Product of maps, or a list of embeddings as a product of one component."""

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
        # Embeddings of a plain list may pair operands in several ways, each of which is a problem.
        roles: dict[tuple[tuple[str, str], ...], list[Embedding]] = {}
        for embedding in space:
            roles.setdefault(tuple(embedding.operands.items()), []).append(embedding)
        for names, members in roles.items():
            yield _Space(Pairing(workload, instruction).with_roles(dict(names)), (members,))


# ------------------------------------------------------------------------------ without a search


def utilisation_bound(problem: EmbeddingProblem, constraints: ConstraintSet) -> float | None:
    """Return an upper bound on the utilisation of any embedding, without a search.

    Each instruction axis is fed as well as one digit that the constraint set allows can feed it,
    whatever the other axes do. None for instructions beyond the digit model, and for sets that feed
    an instruction axis from several axes.
    """
    digits = constraints.get("digits")
    single_digit = isinstance(digits, Digits) and digits.per_axis == 1
    if not single_digit or digit_model_obstacle(problem, constraints) is not None:
        return None
    best = {axis.name: float(axis.minimum == 1) / axis.maximum for axis in problem.instruction.axes}
    for option in full_digits(problem, constraints):
        axis = problem.instruction.axis(option.instruction_axis)
        best[axis.name] = max(best[axis.name], _used(option, axis))
    return math.prod(best.values())


def _used(option: DigitOption, axis: InstructionAxis) -> float:
    """Return the useful share of an axis at its largest extent, which every execution occupies."""
    step = option.digit.count * option.digit.stride
    # Blocks times interleaved phases; every execution occupies the largest extent.
    executions = -(-option.extent // step) * option.digit.stride
    return option.extent / (executions * axis.maximum)
