"""Node maps: an embedding at the scalar level, and its decoding to axis maps.

A node map gives the image of every node of the instruction's graph. It is what the constraint
model solves for, what each constraint's own check judges, and what brute force enumerates. Where
the images are regular boxes it decodes to an :class:`~cpembed.embedding.embedding.Embedding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.problem import EmbeddingProblem

Coordinates = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NodeMap:
    """Images of the instruction's nodes.

    ``extents``: the extent each instruction axis is used at. ``points``: shape ``(workload axes,
    *extents)``, the workload point of each scalar operation (the operations of one point are
    joined by identity relations and share it). ``elements``: per instruction operand, shape
    ``(workload operand's dimensions, *instruction operand's shape)``, the workload element.
    """

    extents: Mapping[str, int]
    points: Coordinates
    elements: Mapping[str, Coordinates]

    def key(self) -> tuple[tuple[int, ...], bytes]:
        """Hashable identity: the operations' images determine the rest through the dataflow."""
        return tuple(self.points.shape), np.ascontiguousarray(self.points).tobytes()


@dataclass(frozen=True)
class BoxDigit:
    """A digit of an operand's image: index ``index`` of the instruction operand moves along
    ``dimension`` of the workload operand as ``stride * ((i // weight) % count)``."""

    index: int
    dimension: int
    weight: int
    count: int
    stride: int


def profile_digit(profile: Coordinates) -> tuple[int, int, int] | None:
    """``(weight, count, stride)`` with ``profile[i] == stride * ((i // weight) % count)``, stride
    positive; None when no such digit exists. An all-zero profile has count 1."""
    moved = np.flatnonzero(profile)
    if moved.size == 0:
        return 1, 1, 0
    weight = int(moved[0])
    stride = int(profile[weight])
    if stride <= 0:
        return None
    count, rest = divmod(int(profile.max()), stride)
    count += 1
    steps = np.arange(profile.size, dtype=np.int64)
    if rest or not np.array_equal(profile, stride * ((steps // weight) % count)):
        return None
    return weight, count, stride


def is_number_system(digits: list[tuple[int, int]], extent: int) -> bool:
    """Whether (weight, count) pairs are the digits of ``0 .. extent-1``: each weight is the
    product of the counts before it."""
    expected = 1
    for weight, count in sorted(digits):
        if weight != expected:
            return False
        expected *= count
    return expected == extent


def box_digits(coordinates: Coordinates) -> list[BoxDigit] | None:
    """The digits of an axis-parallel box in lexicographic order, None when it is not one.

    ``coordinates``: shape ``(dimensions, *box)``. Rieber et al. 2021, section 4.2.2: regular
    stride per dimension, each dimension used at most once, any assignment of indices to
    dimensions.
    """
    dimensions, shape = coordinates.shape[0], coordinates.shape[1:]
    origin = coordinates[(slice(None), *([0] * len(shape)))]
    relative = coordinates - origin.reshape(-1, *([1] * len(shape)))
    total = np.zeros_like(relative)
    digits: list[BoxDigit] = []
    for index, extent in enumerate(shape):
        line: list[int | slice] = [0] * len(shape)
        line[index] = slice(None)
        profiles = relative[(slice(None), *line)]
        spread = [1] * len(shape)
        spread[index] = extent
        total += profiles.reshape(dimensions, *spread)
        found: list[tuple[int, int]] = []
        for dimension in range(dimensions):
            digit = profile_digit(profiles[dimension])
            if digit is None:
                return None
            weight, count, stride = digit
            if count > 1:
                found.append((weight, count))
                digits.append(BoxDigit(index, dimension, weight, count, stride))
        if not is_number_system(found, extent):
            return None
    used = [digit.dimension for digit in digits]
    if len(used) != len(set(used)) or not np.array_equal(total, relative):
        return None
    return digits


def operand_boxes(node_map: NodeMap) -> dict[str, list[BoxDigit]] | None:
    """:func:`box_digits` of every operand, None when one of them is not a box."""
    boxes: dict[str, list[BoxDigit]] = {}
    for operand, coordinates in node_map.elements.items():
        digits = box_digits(coordinates)
        if digits is None:
            return None
        boxes[operand] = digits
    return boxes


def decode(problem: EmbeddingProblem, node_map: NodeMap) -> Embedding | None:
    """Axis maps of a node map, None where it is not regular (docs/embedding.md, "Axis maps")."""
    names = [axis.name for axis in problem.instruction.axes]
    axes = [axis.name for axis in problem.workload.axes]
    origin = node_map.points[(slice(None), *([0] * len(names)))]
    relative = node_map.points - origin.reshape(-1, *([1] * len(names)))
    total = np.zeros_like(relative)
    digits: dict[str, tuple[Digit, ...]] = {}
    for position, name in enumerate(names):
        extent = node_map.extents[name]
        line: list[int | slice] = [0] * len(names)
        line[position] = slice(None)
        profiles = relative[(slice(None), *line)]
        spread = [1] * len(names)
        spread[position] = extent
        total += profiles.reshape(len(axes), *spread)
        found: list[tuple[int, Digit]] = []
        for axis, profile in zip(axes, profiles, strict=True):
            digit = profile_digit(profile)
            if digit is None:
                return None
            weight, count, stride = digit
            if count > 1:
                found.append((weight, Digit(axis, count, stride)))
        found.sort(key=lambda item: item[0])
        if not is_number_system([(weight, d.count) for weight, d in found], extent):
            return None
        digits[name] = tuple(digit for _, digit in found)
    if not np.array_equal(total, relative):
        return None
    return Embedding(
        dict(problem.roles),
        dict(node_map.extents),
        digits,
        {axis: int(at) for axis, at in zip(axes, origin, strict=True)},
    )


def from_points(
    problem: EmbeddingProblem, extents: Mapping[str, int], points: Coordinates
) -> NodeMap | None:
    """The node map of given operation images, with elements following the workload's accesses;
    None when two operations disagree about a shared element (the dataflow is violated)."""
    workload_point = {a.name: points[i] for i, a in enumerate(problem.workload.axes)}
    shape = points.shape[1:]
    elements: dict[str, Coordinates] = {}
    for pair in problem.pairs:
        where = problem.element_index(pair, extents)
        box = tuple(int(w.max()) + 1 for w in where)
        image = np.zeros((len(pair.workload.index), *shape), np.int64)
        for dimension, index in enumerate(pair.workload.index):
            image[dimension] = index.evaluate(workload_point)
        found = np.zeros((len(image), *box), np.int64)
        if box:
            found[(slice(None), *where)] = image
        else:
            found[:] = image[(slice(None), *([0] * len(shape)))]
        accessed = found[(slice(None), *where)] if box else found[(..., *([None] * len(shape)))]
        if not np.array_equal(np.broadcast_to(accessed, image.shape), image):
            return None
        elements[pair.instruction.operand] = found
    shapes = {name: image.shape[1:] for name, image in elements.items()}
    for (first, at), (second, there) in problem.shared_elements(shapes):
        mine, theirs = elements[first], elements[second]
        if np.any(mine[(slice(None), *at)] != theirs[(slice(None), *there)]):
            return None
    return NodeMap(dict(extents), points, elements)


def expand(problem: EmbeddingProblem, embedding: Embedding) -> NodeMap | None:
    """The node map that axis maps stand for; the inverse of :func:`decode`."""
    sizes = [embedding.extents[axis.name] for axis in problem.instruction.axes]
    arrays = np.indices(sizes, dtype=np.int64)
    grid = {axis.name: arrays[i] for i, axis in enumerate(problem.instruction.axes)}
    points = np.stack(
        [
            np.broadcast_to(
                np.asarray(embedding.offset(axis.name).evaluate(grid), np.int64), tuple(sizes)
            )
            + embedding.origin.get(axis.name, 0)
            for axis in problem.workload.axes
        ]
    )
    return from_points(problem, embedding.extents, points)
