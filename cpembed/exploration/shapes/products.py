"""Least products over all ways to split an extent into two factors.

An instruction axis's digits have counts that multiply to its extent, and executions are a product
over digits: a table over extents is made of smaller ones factor by factor, over the divisors.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
"""A value per extent, from 0 (unused) to the largest; infinite where there is none. Executions are
integers below 2**53, which these numbers hold exactly."""


def nothing(largest: int) -> Table:
    """No value for any extent."""
    return np.full(largest + 1, np.inf)


def one(largest: int) -> Table:
    """No digits: extent 1, at one execution."""
    table = nothing(largest)
    table[1] = 1.0
    return table


@cache
def _factors(largest: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of factors of 2 or more whose product is at most the largest, by their products,
    and where those of each product begin: products of two such factors only, ascending."""
    firsts: list[NDArray[np.int64]] = []
    seconds: list[NDArray[np.int64]] = []
    for first in range(2, largest // 2 + 1):
        second = np.arange(2, largest // first + 1, dtype=np.int64)
        firsts.append(np.full(len(second), first, np.int64))
        seconds.append(second)
    empty = np.empty(0, np.int64)
    left = np.concatenate([empty, *firsts])
    right = np.concatenate([empty, *seconds])
    order = np.argsort(left * right, kind="stable")
    return left[order], right[order], (left * right)[order]


@cache
def _starts(largest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The products of :func:`_factors` and where each begins."""
    return np.unique(_factors(largest)[2], return_index=True)


def joined(first: Table, second: Table) -> Table:
    """Per extent the least product of a value of each table at two factors, each 2 or more."""
    largest = len(first) - 1
    left, right, _ = _factors(largest)
    table = nothing(largest)
    if len(left):
        products, starts = _starts(largest)
        table[products] = np.minimum.reduceat(first[left] * second[right], starts)
    return table
