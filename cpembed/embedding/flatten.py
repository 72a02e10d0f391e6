"""Flattening: an ordered group of axes of one kind becomes a single axis (embedding.md, section 5).

``(r, s, c)`` of extents 7, 7, 3 becomes one axis of 147, so that a digit of 16 is padded once
instead of per axis. The operands stay as they are; their indices become digits of the fused axis.
AMOS calls this a fused iteration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cpembed.ir.computation import Axis, Computation, changed_accesses
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm

Groups = Mapping[str, tuple[str, ...]]
"""Name of a fused axis -> its members, outermost first."""


def members_of(groups: Groups, axis: str) -> tuple[str, ...]:
    """The workload axes behind an axis: its members if it is fused, else itself."""
    return groups.get(axis, (axis,))


def member_digits(workload: Computation, groups: Groups) -> dict[str, IndexExpr]:
    """Each member's coordinate as a digit of its fused axis.

    The outermost member has no modulus: padding of the fused axis puts it outside its extent.
    """
    digits: dict[str, IndexExpr] = {}
    for name, members in groups.items():
        weight = 1
        for position, member in reversed(list(enumerate(members))):
            extent = workload.extents[member]
            modulus = None if position == 0 else extent
            digits[member] = IndexExpr.of([IndexTerm(name, 1, weight, modulus)])
            weight *= extent
    return digits


def flatten(workload: Computation, groups: Groups) -> Computation:
    """The same computation over fused axes; operands, and so data, are unchanged."""
    if not groups:
        return workload
    digits = member_digits(workload, groups)
    first = {members[0]: name for name, members in groups.items()}
    axes: list[Axis] = []
    for axis in workload.axes:
        if axis.name in first:
            name = first[axis.name]
            extent = math.prod(workload.extents[member] for member in groups[name])
            axes.append(Axis(name, extent, axis.kind))
        elif axis.name not in digits:
            axes.append(axis)

    def rewrite(access: Access) -> Access:
        return Access(access.operand, tuple(index.substitute(digits) for index in access.index))

    # In one step: the accesses only make sense over the new axes.
    statements = changed_accesses(workload.statements, rewrite)
    return replace(workload, axes=tuple(axes), statements=statements)


def candidate_groups(
    workload: Computation, largest: int, smallest_extent: int = 1
) -> dict[str, tuple[str, ...]]:
    """Ordered groups of 2 to ``largest`` axes that index the same operands, by names that no axis
    and no other group has; axes of fewer than ``smallest_extent`` points are in none."""
    found: dict[str, tuple[str, ...]] = {}
    for members in _ordered_groups(workload, largest, smallest_extent):
        name = "_".join(members)
        while name in found or name in workload.extents:
            name += "_"
        found[name] = members
    return found


def _ordered_groups(
    workload: Computation, largest: int, smallest_extent: int
) -> Iterator[tuple[str, ...]]:
    signatures: dict[frozenset[str], list[str]] = {}
    for axis in workload.axes:
        touched = frozenset(
            operand
            for operand, accesses in workload.access_maps.items()
            if any(axis.name in index.iterators for access in accesses for index in access.index)
        )
        if axis.extent >= smallest_extent:
            signatures.setdefault(touched, []).append(axis.name)
    for axes in signatures.values():
        for size in range(2, min(largest, len(axes)) + 1):
            yield from itertools.permutations(axes, size)


def is_plain_digit(workload: Computation, members: tuple[str, ...], count: int) -> bool:
    """Whether a digit on the fused axis is one that the members have without fusing.

    It is where the tile divides a member, or takes whole members and ends in the outermost one:
    padding of that one is padding of the fused axis.
    """
    for member in reversed(members[1:]):
        extent = workload.extents[member]
        if extent % count == 0:
            return True
        if count % extent:
            return False
        count //= extent
    return True
