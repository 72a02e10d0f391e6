"""The last write before each read, from isl's sets and checked by them.

isl's own analysis (``compute_flow``) loses dependences: a read of ``M[9i + e]`` after writes of
``M[3i + 9j]`` has, by isl 0.27, no element without a source, although two of three were never
written. It asks for the reads that a write does not reach together with the last write, and that
second answer is wrong where the write's iterations are no integer function of the read's. The
analysis here subtracts sets instead, and confirms each last write without that function.
"""

from __future__ import annotations

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
        From all instances to times in one space. Instances at the same time write different places.

    Raises
    ------
    UndecidedError
        If the last writes that isl computes are not confirmed.
    """
    read_times = schedule.intersect_domain(reads.domain())
    write_times = schedule.intersect_domain(writes.domain())
    same_place = reads.apply_range(writes.reverse())
    earlier = same_place.intersect(read_times.lex_gt_union_map(write_times))
    times = earlier.apply_range(write_times)
    last = times.lexmax()
    # What lexmax() answers is confirmed: it is a time of a write, for each read, and none is later.
    if not (last.is_subset(times) and earlier.domain().is_subset(last.domain())):
        raise UndecidedError("the last writes before reads are not confirmed")
    for part in maps_of(last):
        order = isl.Map.lex_lt(part.get_space().range())
        later = isl.UnionMap.from_map(part.apply_range(order))
        if not later.intersect(times).is_empty():
            raise UndecidedError("a write after the last one before a read")
    at_last = last.apply_range(write_times.reverse())
    return LastWrites(
        earlier.intersect(at_last).reverse(), reads.domain().subtract(earlier.domain())
    )


def maps_of(relation: isl.UnionMap) -> list[isl.Map]:
    """Return the relations of a union, one for each pair of spaces."""
    maps: list[isl.Map] = []
    relation.foreach_map(maps.append)
    return maps
