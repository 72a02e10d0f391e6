"""Partial results of a reduction: which points each chain of executions has combined.

An element's *chain* begins when an execution begins it anew, from a neutral number, or from what an
earlier statement wrote, and goes on with executions that read a partial result of it. Chains of one
element are numbered; a partial result carries the number of its chain (its generation) beside its
level. Only the last chain may go on, and within it no point may come twice. So a level counts
different points of one chain, and a level of all points is the complete result.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.proof.result import UndecidedError
from cpembed.accelerator.specification import Statement

Integers = NDArray[np.int64]

GENERATION = 1 << 40
"""Unit of a chain's number in the levels of places; less are the points."""
_LARGEST_DOMAIN = 1 << 31
"""Number of points beyond which a reduction is not enumerated."""
_LARGEST_GENERATION = 255


class Chains:
    """The chains of a statement's elements."""

    def __init__(self, statement: Statement) -> None:
        points = statement.computation.macs
        if points > _LARGEST_DOMAIN:
            raise UndecidedError(f"{statement.computation} has {points:,} points")
        # The number of the last chain that has combined each point.
        self._covered = np.zeros(points, np.uint8)
        self._generations = np.zeros(math.prod(statement.output.shape), np.int64)

    def begin(self, elements: Integers) -> None:
        """Begin a chain for each of these elements."""
        self._generations[elements] += 1
        if elements.size and int(self._generations[elements].max()) > _LARGEST_GENERATION:
            raise UndecidedError("an element of a reduction is begun anew too often")

    def generations(self, elements: Integers) -> Integers:
        """Return the number of the last chain of each element."""
        return self._generations[elements]

    def has(self, points: Integers, elements: Integers) -> NDArray[np.bool_]:
        """Return which points the last chain of their elements has combined."""
        return self._covered[points] == self._generations[elements]

    def add(self, points: Integers, elements: Integers) -> None:
        """Add points to the last chains of their elements."""
        self._covered[points] = self._generations[elements]
