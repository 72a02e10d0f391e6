"""Executions of a layer by the extents of the instruction: a table per instruction axis and what it
uses of that which other axes could use.

What feeds an instruction axis is a set of units (a **kit**) whose counts multiply to its extent.
The kits of two instruction axes combine unless they use the same thing: a workload axis, or a
dimension of an operand that only one digit may move along. So an axis has a table for each set of
shared things that its kits use, and executions are the least product over those that are disjoint.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.problem import EmbeddingProblem
from cpembed.exploration.shapes.products import Table, joined, one
from cpembed.exploration.shapes.shape import AXES, Extents
from cpembed.exploration.shapes.units import Unit, Units

Used = frozenset[str]
"""What a kit uses of that which several instruction axes could use, by name."""


@dataclass(frozen=True)
class AxisTables:
    """Executions along the workload axes that feed one instruction axis, by its extent and by what
    is used."""

    by_used: Mapping[Used, Table]


@dataclass(frozen=True)
class LayerTables:
    """Executions of a layer under one assignment of its operands: ``others`` along the axes that
    feed nothing, times a table for each instruction axis, times the extents of ``contested`` axes
    that no table uses."""

    axes: Mapping[str, AxisTables]
    others: int
    contested: Mapping[str, int]

    def executions(self, shapes: Extents) -> NDArray[np.float64]:
        """Of each shape; infinite where it has no embedding."""
        best = np.full(len(shapes), np.inf)
        for chosen in itertools.product(*(self.axes[axis].by_used.items() for axis in AXES)):
            used = [used for used, _ in chosen]
            whole = frozenset[str]().union(*used)
            if len(whole) < sum(map(len, used)):
                continue
            rest = math.prod(e for name, e in self.contested.items() if name not in whole)
            product = float(self.others * rest) * np.ones(len(shapes))
            for column, (_, table) in enumerate(chosen):
                product = product * table[shapes[:, column]]
            best = np.minimum(best, product)
        return best


def layer_tables(problem: EmbeddingProblem, units: Units, largest: int) -> LayerTables:
    """The tables of a problem from its units."""
    feeding: dict[str, set[str]] = {}
    for unit in units.units:
        for member in unit.members:
            feeding.setdefault(member, set()).add(unit.axis)
    extents = problem.workload.extents
    contested = {name: extents[name] for name, axes in feeding.items() if len(axes) > 1}
    others = math.prod(e for name, e in extents.items() if name not in feeding)
    shared = _shared(units)
    tables: dict[str, AxisTables] = {}
    for axis in AXES:
        own = {n: e for n, e in extents.items() if feeding.get(n) == {axis}}
        found: dict[Used, Table] = {}
        for kit, table in _kits(units, axis, largest):
            fed = {member for unit in kit for member in units.units[unit].members}
            used = frozenset(
                [*(name for name in fed if name in contested)]
                + [f"#{n}" for n, group in enumerate(shared) if not group.isdisjoint(kit)]
            )
            whole = table * math.prod(e for name, e in own.items() if name not in fed)
            found[used] = np.minimum(found[used], whole) if used in found else whole
        tables[axis] = AxisTables(_undominated(found))
    return LayerTables(tables, others, contested)


def _shared(units: Units) -> list[frozenset[int]]:
    """Of the sets that exclude each other, those of units of several instruction axes."""
    return [group for group in units.exclusive if len({units.units[n].axis for n in group}) > 1]


def _undominated(found: Mapping[Used, Table]) -> dict[Used, Table]:
    """Without tables that use more than another and are nowhere better."""
    kept: dict[Used, Table] = {}
    for used, table in sorted(found.items(), key=lambda item: (len(item[0]), sorted(item[0]))):
        least = np.minimum.reduce(
            [other for less, other in kept.items() if less <= used] or [np.full_like(table, np.inf)]
        )
        if (table < least).any():
            kept[used] = table
    return kept


def _kits(units: Units, axis: str, largest: int) -> Iterator[tuple[tuple[int, ...], Table]]:
    """All sets of units that can feed an instruction axis together, each with the executions along
    its workload axes by the extent that its counts multiply to."""
    yield (), one(largest)
    own = [n for n, unit in enumerate(units.units) if unit.axis == axis]
    excluded = {
        n: frozenset(m for group in units.exclusive if n in group for m in group) - {n} for n in own
    }
    yield from _grown(units, own, excluded, (), _Parts(None, None), units.most[axis])


@dataclass(frozen=True)
class _Parts:
    """Executions of a kit without a unit that has to be the first, and with one."""

    later: Table | None
    first: Table | None


def _grown(
    units: Units,
    left: Sequence[int],
    excluded: Mapping[int, frozenset[int]],
    kit: tuple[int, ...],
    parts: _Parts,
    most: int,
) -> Iterator[tuple[tuple[int, ...], Table]]:
    """The kits that add units of ``left`` to one."""
    if len(kit) == most:
        return
    for place, number in enumerate(left):
        unit = units.units[number]
        members = unit.members
        if any(number in excluded[n] or members & units.units[n].members for n in kit):
            continue
        if unit.alone:
            if not kit:
                yield (number,), unit.executions
            continue
        more = _added(parts, unit) if kit else _single(unit)
        whole = [table for table in (more.later, more.first) if table is not None]
        if not whole or not np.isfinite(np.minimum.reduce(whole)).any():
            continue
        larger = (*kit, number)
        yield larger, np.minimum.reduce(whole)
        yield from _grown(units, left[place + 1 :], excluded, larger, more, most)


def _single(unit: Unit) -> _Parts:
    return _Parts(None, unit.executions) if unit.first else _Parts(unit.executions, None)


def _added(parts: _Parts, unit: Unit) -> _Parts:
    """The kit with one more unit: of those that have to be the first there is one at most."""
    later = None if unit.first or parts.later is None else joined(parts.later, unit.executions)
    base = parts.later if unit.first else parts.first
    first = None if base is None else joined(base, unit.executions)
    return _Parts(later, first)
