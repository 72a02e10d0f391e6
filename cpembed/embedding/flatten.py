"""Flattening: an ordered group of axes of one kind becomes a single axis.

Definitions: docs/embedding.md, "Fused axes".

``(r, s, c)`` of extents 7, 7, 3 becomes one axis of 147, so that a digit of 16 is padded once
instead of per axis. The operands stay as they are; their indices become digits of the fused axis.
AMOS calls this a fused iteration.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from cpembed.embedding.problem import AccessPair, EmbeddingProblem
from cpembed.ir.computation import Axis, Computation, Operand, changed_accesses
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm

Groups = Mapping[str, tuple[str, ...]]
"""Name of a fused axis -> its members, outermost first."""

Pitches = Mapping[str, int]
"""Member of a fused axis -> points of the fused axis to a step of the next outer member.

Only members with a pitch above their extent are listed. What lies between is a gap, points of no
original one: windows over the rows of an image are apart by a row of the image, not of the output.
"""


def members_of(groups: Groups, axis: str) -> tuple[str, ...]:
    """Return the workload axes behind an axis: its members if it is fused, else itself."""
    return groups.get(axis, (axis,))


def member_digits(
    workload: Computation, groups: Groups, pitches: Pitches | None = None
) -> dict[str, IndexExpr]:
    """Return each member's coordinate as a digit of its fused axis.

    Parameters
    ----------
    workload : Computation
        Workload with the members as axes.
    groups : Groups
        Fused axes.
    pitches : Pitches, optional
        Members that a gap follows.
    """
    digits: dict[str, IndexExpr] = {}
    for name, members in groups.items():
        weight = 1
        for position, member in reversed(list(enumerate(members))):
            points = (pitches or {}).get(member, workload.extents[member])
            # Padding of the fused axis puts the outermost member outside its extent.
            modulus = None if position == 0 else points
            digits[member] = IndexExpr.sum([IndexTerm(name, 1, weight, modulus)])
            weight *= points
    return digits


def fused_extent(workload: Computation, members: Sequence[str], pitches: Pitches) -> int:
    """Return the number of points of a fused axis up to the last one that is an original point.

    Parameters
    ----------
    workload : Computation
        Workload with the members as axes.
    members : Sequence of str
        Members of the fused axis, outermost first.
    pitches : Pitches
        Members that a gap follows.
    """
    last, weight = 0, 1
    for member in reversed(members):
        last += (workload.extents[member] - 1) * weight
        weight *= pitches.get(member, workload.extents[member])
    return last + 1


def flatten(workload: Computation, groups: Groups, pitches: Pitches | None = None) -> Computation:
    """Return the same computation over fused axes; operands, and so data, are unchanged.

    Parameters
    ----------
    workload : Computation
        Workload with the members as axes.
    groups : Groups
        Axes to fuse.
    pitches : Pitches, optional
        Members that a gap follows.
    """
    if not groups:
        return workload
    pitches = pitches or {}
    digits = member_digits(workload, groups, pitches)
    first = {members[0]: name for name, members in groups.items()}
    axes: list[Axis] = []
    for axis in workload.axes:
        if axis.name in first:
            name = first[axis.name]
            axes.append(Axis(name, fused_extent(workload, groups[name], pitches), axis.kind))
        elif axis.name not in digits:
            axes.append(axis)

    def rewrite(access: Access) -> Access:
        return Access(access.operand, tuple(index.substitute(digits) for index in access.index))

    def opened(operand: Operand) -> Operand:
        """Return the operand, read as zero outside its shape where a gap moves it there."""
        indices = [i for access in workload.access_maps[operand.name] for i in access.index]
        gaps = any(member in index.iterators for member in pitches for index in indices)
        return replace(operand, zero_outside=True) if gaps else operand

    # In one step: the accesses only make sense over the new axes.
    return replace(
        workload,
        axes=tuple(axes),
        inputs=tuple(map(opened, workload.inputs)),
        outputs=tuple(map(opened, workload.outputs)),
        statements=changed_accesses(workload.statements, rewrite),
    )


def candidate_groups(
    workload: Computation, largest: int, smallest_extent: int = 1
) -> dict[str, tuple[str, ...]]:
    """Return the ordered groups of axes that index the same operands, by new names.

    Parameters
    ----------
    workload : Computation
        Workload whose axes may be fused.
    largest : int
        Maximum number of members.
    smallest_extent : int
        Minimum extent of a member.
    """
    groups: dict[str, tuple[str, ...]] = {}
    for members in _ordered_groups(workload, largest, smallest_extent):
        groups[free_name(members, {*groups, *workload.extents})] = members
    return groups


def free_name(members: Sequence[str], used_names: Collection[str]) -> str:
    """Return a name for a fused axis that is not in use."""
    name = "_".join(members)
    while name in used_names:
        name += "_"
    return name


def _ordered_groups(
    workload: Computation, largest: int, smallest_extent: int
) -> Iterator[tuple[str, ...]]:
    # Axes that index the same operands have one role: a fused axis of others would feed nothing.
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
            # Every order, since tiles of (r, s) and of (s, r) cover different points.
            yield from itertools.permutations(axes, size)


def adds_tiles(workload: Computation, members: tuple[str, ...], count: int, *, plain: bool) -> bool:
    """Return True if a digit on the fused axis gives tiles that no other searched digit gives.

    Parameters
    ----------
    workload : Computation
        Workload with the members as axes.
    members : tuple of str
        Members of the fused axis, outermost first.
    count : int
        Count of the digit, of stride 1.
    plain : bool
        True where an instruction axis may have one digit only, so that only the innermost member
        gives the same tiles.
    """
    if plain:
        return workload.extents[members[-1]] % count != 0
    # Digits on the members give the tile where it divides a member, or covers members entirely and
    # ends in the outermost one: padding of that one is padding of the fused axis.
    for member in reversed(members[1:]):
        extent = workload.extents[member]
        if extent % count == 0:
            return False
        if count % extent:
            return True
        count //= extent
    return False


def flattened_problem(problem: EmbeddingProblem, groups: Groups) -> EmbeddingProblem:
    """Return the problem over fused axes, which an embedding with fused axes solves."""
    if not groups:
        return problem
    workload = flatten(problem.workload, groups)
    # The pairing stays: in port form, each operand has one access.
    pairs = tuple(
        AccessPair(pair.instruction, workload.access(pair.workload.operand))
        for pair in problem.pairs
    )
    return replace(
        problem,
        workload=workload,
        pairs=pairs,
        original=flatten(problem.original, groups),
        groups=dict(groups),
        unfused=problem,
    )
