"""Node maps: an embedding at the scalar level, and its decoding to axis maps.

A node map gives the image of every node of the instruction's graph. The constraint model solves
for it, each constraint judges it independently, and brute force enumerates it. Where the images
are regular boxes it decodes to an :class:`~cpembed.embedding.embedding.Embedding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.problem import EmbeddingProblem

Coordinates = NDArray[np.int64]

Walks = list[list[tuple[int, int, int, int]]]
"""Digits ``(dimension, weight, count, stride)`` by which images walk, for each index of a box."""


@dataclass(frozen=True, eq=False)
class NodeMap:
    """Images of the instruction's nodes.

    Attributes
    ----------
    extents : Mapping
        Extent at which each instruction axis is used.
    points : array of shape ``(workload axes, *extents)``
        Workload point of each scalar operation. The operations of one point are joined by identity
        relations and share it.
    elements : Mapping
        For each instruction operand an array of shape ``(workload operand's dimensions,
        *instruction operand's shape)``, the workload elements.
    """

    extents: Mapping[str, int]
    points: Coordinates
    elements: Mapping[str, Coordinates]

    @cached_property
    def walks(self) -> Walks | None:
        """:func:`walks` of the operations' images, by which several constraints judge a map."""
        return walks(self.points)

    def key(self) -> tuple[tuple[int, ...], bytes]:
        """Return a hashable identity."""
        # The operations' images determine those of the elements through the dataflow.
        return tuple(self.points.shape), np.ascontiguousarray(self.points).tobytes()


@dataclass(frozen=True)
class BoxDigit:
    """A digit of an operand's image.

    Index ``index`` of the instruction operand moves along ``dimension`` of the workload operand as
    ``stride * ((i // weight) % count)``.
    """

    index: int
    dimension: int
    weight: int
    count: int
    stride: int


def profile_digit(profile: Coordinates) -> tuple[int, int, int] | None:
    """Return ``(weight, count, stride)`` of the digit that a profile is, or None.

    ``profile[i] == stride * ((i // weight) % count)`` with a positive stride. An all-zero profile
    has count 1.
    """
    moved = profile.nonzero()[0]
    if moved.size == 0:
        return 1, 1, 0
    weight = int(moved[0])
    stride = int(profile[weight])
    if stride <= 0:
        return None
    count, rest = divmod(int(profile.max()), stride)
    count += 1
    if rest:
        return None
    steps = np.arange(profile.size, dtype=np.int64)
    if not np.array_equal(profile, stride * ((steps // weight) % count)):
        return None
    return weight, count, stride


def walks(coordinates: Coordinates) -> Walks | None:
    """Return the digits of each index of a box, lowest weight first; None where there is no box.

    ``coordinates`` has the shape ``(dimensions, *box)``. A box has a regular stride for each
    dimension, and any assignment of indices to dimensions (Rieber et al. 2021, section 4.2.2).
    """
    dimensions, shape = coordinates.shape[0], coordinates.shape[1:]
    first = coordinates[(slice(None), *([slice(1)] * len(shape)))]
    # Images are a box along the indices if they are the first one plus a distance for each index.
    total = first
    digits_of_indices: Walks = []
    for index, extent in enumerate(shape):
        line: list[int | slice] = [0] * len(shape)
        line[index] = slice(None)
        profiles = coordinates[(slice(None), *line)] - first.reshape(dimensions, 1)
        spread = [1] * len(shape)
        spread[index] = extent
        total = total + profiles.reshape(dimensions, *spread)
        digits: list[tuple[int, int, int, int]] = []
        for dimension in np.flatnonzero(np.any(profiles, axis=1)).tolist():
            digit = profile_digit(profiles[dimension])
            if digit is None:
                return None
            digits.append((dimension, *digit))
        digits.sort(key=lambda walk: walk[1])
        # The digits of an index number its extent: each weight is the product of the counts before.
        expected = 1
        for _, weight, count, _ in digits:
            if weight != expected:
                return None
            expected *= count
        if expected != extent:
            return None
        digits_of_indices.append(digits)
    # The lines through the first node are digits; every other node must be the sum of its lines.
    return digits_of_indices if np.array_equal(total, coordinates) else None


def _as_box(digits_of_indices: Walks | None) -> list[BoxDigit] | None:
    """Return the digits of walks, None unless each dimension is used at most once."""
    if digits_of_indices is None:
        return None
    digits = [
        BoxDigit(index, *walk)
        for index, digits_of_index in enumerate(digits_of_indices)
        for walk in digits_of_index
    ]
    used = [digit.dimension for digit in digits]
    return digits if len(used) == len(set(used)) else None


def operation_box(node_map: NodeMap) -> list[BoxDigit] | None:
    """Return the digits of the operations' images; None when these are no axis-parallel box."""
    return _as_box(node_map.walks)


def operand_boxes(node_map: NodeMap) -> dict[str, list[BoxDigit]] | None:
    """Return the digits of every operand's images; None when one of them is no box."""
    boxes: dict[str, list[BoxDigit]] = {}
    for operand, coordinates in node_map.elements.items():
        digits = _as_box(walks(coordinates))
        if digits is None:
            return None
        boxes[operand] = digits
    return boxes


def decode(problem: EmbeddingProblem, node_map: NodeMap) -> Embedding | None:
    """Return the axis maps of a node map, None where it is not regular.

    They are defined in docs/embedding.md, "Axis maps".
    """
    if node_map.walks is None:
        return None
    axes = [axis.name for axis in problem.workload.axes]
    origin = node_map.points[(slice(None), *([0] * len(node_map.walks)))]
    return Embedding(
        dict(problem.roles),
        dict(node_map.extents),
        {
            axis.name: tuple(
                Digit(axes[place], count, stride) for place, _, count, stride in index_digits
            )
            for axis, index_digits in zip(problem.instruction.axes, node_map.walks, strict=True)
        },
        {axis: int(at) for axis, at in zip(axes, origin, strict=True)},
    )


def from_points(
    problem: EmbeddingProblem,
    extents: Mapping[str, int],
    points: Coordinates,
    *,
    checks: bool = True,
) -> NodeMap | None:
    """Return the node map of given operation images; elements follow the workload's accesses.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem with the accesses.
    extents : Mapping
        Extent at which each instruction axis is used.
    points : Coordinates
        Workload point of each operation, shape ``(workload axes, *extents)``.
    checks : bool
        Whether operations that share an element are compared; if not, that is left to the
        constraint ``dataflow``.

    Returns
    -------
    NodeMap or None
        None where two operations disagree about a shared element: the dataflow is violated.
    """
    point = {axis.name: points[i] for i, axis in enumerate(problem.workload.axes)}
    shape = points.shape[1:]
    elements: dict[str, Coordinates] = {}
    for pair in problem.pairs:
        images = np.empty((len(pair.workload.index), *shape), np.int64)
        for dimension, index in enumerate(pair.workload.index):
            images[dimension] = index.evaluate(point)
        # One operation that accesses an element gives its image; all others must agree.
        operand_images = problem.first_points(pair, images, extents)
        if checks and (problem.at_points(pair, operand_images, extents) != images).any():
            return None
        elements[pair.instruction.operand] = operand_images
    if checks and not _ports_agree(problem, elements):
        return None
    return NodeMap(dict(extents), points, elements)


def _ports_agree(problem: EmbeddingProblem, elements: Mapping[str, Coordinates]) -> bool:
    """Return True if ports that share an element of a tensor have one image of it."""
    shapes = {name: image.shape[1:] for name, image in elements.items()}
    return all(
        np.array_equal(
            elements[first][(slice(None), *first_at)], elements[second][(slice(None), *second_at)]
        )
        for (first, first_at), (second, second_at) in problem.shared_elements(shapes)
    )


def expand(
    problem: EmbeddingProblem, embedding: Embedding, *, checks: bool = True
) -> NodeMap | None:
    """Return the node map that axis maps stand for: the inverse of :func:`decode`.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem that the axis maps solve.
    embedding : Embedding
        Axis maps.
    checks : bool
        As for :func:`from_points`.

    Returns
    -------
    NodeMap or None
        None where it violates the dataflow.
    """
    sizes = [embedding.extents[axis.name] for axis in problem.instruction.axes]
    # One line along each axis: a coordinate grows to the box where it depends on several.
    lines = np.indices(sizes, dtype=np.int64, sparse=True)
    grid = {axis.name: lines[i] for i, axis in enumerate(problem.instruction.axes)}
    points = np.empty((len(problem.workload.axes), *sizes), np.int64)
    for place, axis in enumerate(problem.workload.axes):
        offset = embedding.offset(axis.name).evaluate(grid)
        points[place] = offset + embedding.origin.get(axis.name, 0)
    return from_points(problem, embedding.extents, points, checks=checks)
