"""The last write before each read, from isl's sets and checked by them.

isl's own analysis (``compute_flow``) loses dependences: a read of ``M[9i + e]`` after writes of
``M[3i + 9j]`` has, by isl 0.27, no element without a source, although two of three were never
written. It asks for the reads that a write does not reach together with the last write, and that
second answer is wrong where the write's iterations are no integer function of the read's. The
analysis here subtracts sets instead, and confirms each last write without that function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import islpy as isl

from cpembed.accelerator.proof.result import UndecidedError


@dataclass(frozen=True)
class LastWrites:
    """Last writes of the places that are read.

    Attributes
    ----------
    dependence : islpy.UnionMap
        From each write to the reads of what it wrote.
    unwritten : islpy.UnionSet
        Reads of places that nothing has written before.
    """

    dependence: isl.UnionMap
    unwritten: isl.UnionSet


def last_writes(reads: isl.UnionMap, writes: isl.UnionMap, schedule: isl.UnionMap) -> LastWrites:
    """Return the last write before each read.

    Parameters
    ----------
    reads, writes : islpy.UnionMap
        From instances to places; each instance has one place.
    schedule : islpy.UnionMap
        From all instances to times in one space, of which the first number is the same for all
        instances of a space. Instances at the same time write different places.

    Raises
    ------
    UndecidedError
        If the last writes that isl computes are not confirmed.
    """
    times = {_space(part): part for part in maps_of(schedule)}
    parts: dict[int, list[isl.Map]] = {}
    for write in maps_of(writes):
        parts.setdefault(_position(times[_space(write)]), []).append(write)
    dependence, unwritten = isl.UnionMap("{}"), isl.UnionSet("{}")
    for read in maps_of(reads):
        read_times = times[_space(read)]
        position, left = _position(read_times), read.domain()
        # From the latest part of the text backwards: most reads are of what was just written.
        for number in sorted((n for n in parts if n <= position), reverse=True):
            earlier: list[isl.Map] = []
            for write in parts[number]:
                same_place = read.intersect_domain(left).apply_range(write.reverse())
                if number == position:
                    later = read_times.lex_gt_map(times[_space(write)])
                    same_place = same_place.intersect(later)
                if not same_place.is_empty():
                    earlier.append(same_place)
            for last in _latest(earlier, times):
                dependence = dependence.union(isl.UnionMap.from_map(last.reverse()))
            for same_place in earlier:
                left = left.subtract(same_place.domain())
            if left.is_empty():
                break
        unwritten = unwritten.union(isl.UnionSet.from_set(left))
    return LastWrites(dependence, unwritten)


def _latest(earlier: Sequence[isl.Map], times: Mapping[str, isl.Map]) -> list[isl.Map]:
    """Return the pairs of reads of one space and writes whose write is the last before the read."""
    if not earlier:
        return []
    of_writes = [part.apply_range(times[part.get_tuple_name(isl.dim_type.out)]) for part in earlier]
    moments = of_writes[0]
    for part in of_writes[1:]:
        moments = moments.union(part)
    last = moments.lexmax()
    # What lexmax() answers is confirmed: it is a time of a write, for each read, and none is later.
    if not (last.is_subset(moments) and moments.domain().is_subset(last.domain())):
        raise UndecidedError("the last writes before reads are not confirmed")
    order = isl.Map.lex_lt(last.get_space().range())
    if not last.apply_range(order).intersect(moments).is_empty():
        raise UndecidedError("a write follows the last one before a read")
    return [
        part.intersect(last.apply_range(times[part.get_tuple_name(isl.dim_type.out)].reverse()))
        for part in earlier
    ]


def _space(part: isl.Map) -> str:
    return part.get_tuple_name(isl.dim_type.in_)


def _position(times: isl.Map) -> int:
    """Return the first number of an instruction's times: its position in the outermost body."""
    value = times.range().plain_get_val_if_fixed(isl.dim_type.set, 0)
    if not value.is_int():
        raise UndecidedError(f"{_space(times)} has no position in the text")
    return value.to_python()


def maps_of(relation: isl.UnionMap) -> list[isl.Map]:
    """Return the relations of a union that are not empty, one for each pair of spaces."""
    maps: list[isl.Map] = []
    relation.foreach_map(maps.append)
    return [part for part in maps if not part.is_empty()]
