"""Lower bounds on the costs of all embeddings of a space, component by component.

An execution count is a product over workload axes, and a layout's size one over dimensions. Each
axis belongs to one component, so that every map of a component has a factor of its own; only the
dimensions that axes of several components index together (``p + r``) are looked up jointly. Maps
with equal factors are one class.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.footprint import Dimension, Fused, State, Tile, dimensions_of
from cpembed.embedding.constraint_set import Weights
from cpembed.embedding.digit_model import AxisMaps
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import members_of
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.ir.computation import Operand
from cpembed.ir.dtypes import size_bytes
from cpembed.time_limit import check_time

Floats = NDArray[np.float64]
Maps = Sequence[AxisMaps | Embedding]

SLACK = 1e-12
"""Relative error that sums and products of a few numbers in floating point stay below."""


@dataclass(frozen=True, order=True)
class Lower:
    """Lower bounds on a candidate's costs, in the order in which candidates are ranked."""

    score: float
    calls: int
    packing_bytes: int


@dataclass(frozen=True)
class _Port:
    """An operand with its dimensions and where their factors come from."""

    operand: Operand
    dimensions: tuple[Dimension, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.operand.shape)

    def has_own(self, fused: Fused) -> bool:
        """Whether a fused axis is counted as a dimension of its own."""
        member = fused.members[0]
        indexed = any(member in d.index.iterators for d in self.dimensions)
        return indexed and not any(fused.members in d.joined for d in self.dimensions)


@dataclass
class _Classes:
    """The maps of a component by their factors: of the executions, of each operand's elements, and
    the states that their axes have in each joint dimension."""

    members: list[list[int]] = field(default_factory=list[list[int]])
    calls: list[int] = field(default_factory=list[int])
    elements: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    states: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    def __len__(self) -> int:
        return len(self.members)


@dataclass
class _Joint:
    """A dimension that axes of several components index: its size by the states in each of them."""

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
        for place, chosen in zip(
            np.ndindex(*shape),
            itertools.product(*(self.states[c] for c in self.components)),
            strict=True,
        ):
            check_time()
            known: dict[str, State] = {}
            for component, states in zip(self.components, chosen, strict=True):
                known |= dict(zip(axes[component], states, strict=True))
            self.sizes[place] = self.dimension.elements(known)


class SpaceBounds:
    """Bounds for embeddings that choose one map from each of the components."""

    def __init__(
        self, problem: EmbeddingProblem, components: Sequence[Maps], weights: Weights
    ) -> None:
        self.weights = weights
        self.macs, self.macs_per_call = problem.workload.macs, problem.instruction.macs
        self._extents = problem.workload.extents
        groups = dict.fromkeys(g for m in components for f in m for g in f.flattened.values())
        self._ports = _ports(problem, groups)
        # Ports of one tensor share what they use in place: only the smallest counts for sure.
        tensors: dict[str, list[int]] = {}
        for n, port in enumerate(self._ports):
            tensors.setdefault(port.operand.tensor, []).append(n)
        self._tensors = list(tensors.values())
        self._data = sum(self._ports[group[-1]].elements for group in self._tensors)
        self._owner = {
            axis: n
            for n, maps in enumerate(components)
            for found in maps
            for axis in _axes_of(found)
        }
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
                    self._joint.append(_Joint(n, dimension, tuple(owners)))

    def _axes_in(self, dimension: Dimension, component: int) -> tuple[str, ...]:
        return tuple(a for a in dimension.index.iterators if self._owner.get(a) == component)

    def _classify(self, component: int, maps: Maps) -> _Classes:
        classes = _Classes()
        known: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
        owned = [axis for axis, owner in self._owner.items() if owner == component]
        for number, found in enumerate(maps):
            check_time()
            states, fused = _states(found, self._extents)
            calls = math.prod(group.tile.calls(group.extent) for group in fused) * math.prod(
                self._axis_calls(axis, states.get(axis)) for axis in owned
            )
            elements = tuple(
                self._factor(component, n, states, fused) for n in range(len(self._ports))
            )
            place = tuple(self._state_number(joint, component, states) for joint in self._joint)
            key = (calls, elements, place)
            if key not in known:
                known[key] = len(classes)
                classes.members.append([])
                classes.calls.append(calls)
                classes.elements.append(elements)
                classes.states.append(place)
            classes.members[known[key]].append(number)
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
        """Factor of a map in the number of elements of an operand's layout."""
        size = math.prod(group.padded for group in fused if self._ports[port].has_own(group))
        for dimension in self._own[component][port]:
            axes = self._axes_in(dimension, component)
            key = (id(dimension), dimension.told(states, axes))
            if key not in self._sizes:
                self._sizes[key] = dimension.elements(states)
            size *= self._sizes[key]
        return size

    def _state_number(self, joint: _Joint, component: int, states: Mapping[str, State]) -> int:
        """Number of the states in the joint dimension's table; 0 where it has no place there."""
        known = joint.states.get(component)
        if known is None:
            return 0
        key = joint.dimension.told(states, self._axes_in(joint.dimension, component))
        return known.setdefault(key, len(known))

    def lower(self, positions: Sequence[int]) -> Lower:
        """The bound of the embeddings that have a class of each component, in exact arithmetic."""
        calls, elements = self._calls, list(self._elements)
        for classes, at in zip(self.classes, positions, strict=True):
            calls *= classes.calls[at]
            elements = [a * b for a, b in zip(elements, classes.elements[at], strict=True)]
        for k, joint in enumerate(self._joint):
            place = tuple(self.classes[c].states[positions[c]][k] for c in joint.components)
            elements[joint.port] *= int(joint.sizes[place])
        moved = sum(
            (port.elements + size) * size_bytes(port.operand.dtype)
            for port, size in zip(self._ports, elements, strict=True)
            if size > port.elements
        )
        mac = self.weights.mac * (calls * self.macs_per_call - self.macs)
        packed = sum(min(elements[n] for n in group) for group in self._tensors)
        data = self.weights.data * max(0, packed - self._data)
        score = math.hypot(mac, data)
        # A norm's last bit need not be monotone; with one weight it is a product, which is.
        exact = not (self.weights.mac and self.weights.data)
        return Lower(score if exact else score * (1 - SLACK), calls, moved)

    def extend(self, prefix: Sequence[int]) -> Floats:
        """Lower bounds of the score by class of the next component, for all embeddings that have
        the classes ``prefix`` of the components before it."""
        calls, elements = self._tables.extend(prefix)
        executed = calls * float(self._calls * self.macs_per_call)
        sizes = [e * constant for e, constant in zip(elements, self._elements, strict=True)]
        packed = sum(functools.reduce(np.minimum, [sizes[n] for n in g]) for g in self._tensors)
        below = 1 - SLACK
        mac = self.weights.mac * np.maximum(0.0, executed * below - self.macs)
        data = self.weights.data * np.maximum(0.0, packed * below - self._data)
        return np.hypot(mac, data) * below


class _Tables:
    """Factors of all classes as arrays, with the smallest that later components can add."""

    def __init__(self, classes: Sequence[_Classes], joint: Sequence[_Joint]) -> None:
        self._joint = joint
        self._calls = [np.array(c.calls, np.float64) for c in classes]
        self._elements = [np.array(c.elements, np.float64) for c in classes]
        self._states = [np.array(c.states, np.int64).reshape(len(c), -1) for c in classes]
        self._least_calls = _suffix_products([c.min(initial=np.inf) for c in self._calls])
        self._least_elements = _suffix_products([e.min(axis=0) for e in self._elements])

    def extend(self, prefix: Sequence[int]) -> tuple[Floats, list[Floats]]:
        """Executions, and elements of each operand, by class of the next component."""
        depth = len(prefix)
        calls = self._calls[depth] * self._least_calls[depth + 1]
        sizes = self._elements[depth] * self._least_elements[depth + 1]
        for component, at in enumerate(prefix):
            calls = calls * self._calls[component][at]
            sizes = sizes * self._elements[component][at]
        elements = [sizes[:, port] for port in range(sizes.shape[1])]
        for number, joint in enumerate(self._joint):
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
    """Product of the values from each position on; 1 after the last."""
    products: list[Any] = [1.0]
    for value in reversed(values):
        products.insert(0, products[0] * value)
    return products


def _ports(problem: EmbeddingProblem, groups: Collection[tuple[str, ...]]) -> list[_Port]:
    """The workload's operands with their dimensions, in the instruction's order."""
    workload, instruction = problem.workload, problem.instruction
    smallest = {axis.name: axis.minimum for axis in instruction.axes}
    ports: list[_Port] = []
    for ours in instruction.computation.operands:
        operand = workload.operand(problem.roles[ours.name])
        access, memory = workload.access(operand.name), instruction.memory[ours.name]
        found = dimensions_of(access, operand, memory, workload.extents, smallest, groups)
        ports.append(_Port(operand, found))
    return ports


def _axes_of(found: AxisMaps | Embedding) -> set[str]:
    walked = (digit.axis for digits in found.digits.values() for digit in digits)
    return {member for axis in walked for member in members_of(found.flattened, axis)}


def _states(
    found: AxisMaps | Embedding, extents: Mapping[str, int]
) -> tuple[dict[str, State], list[Fused]]:
    """States of the workload axes under a map, and its fused axes."""
    states: dict[str, State] = {}
    fused: list[Fused] = []
    for ours, digits in found.digits.items():
        for digit in digits:
            tile = Tile(ours, digit.count, digit.stride, len(digits) == 1)
            members = found.flattened.get(digit.axis)
            if members is None:
                states[digit.axis] = tile
                continue
            group = Fused(members, math.prod(extents[member] for member in members), tile)
            fused.append(group)
            states |= dict.fromkeys(members, group)
    return states, fused
