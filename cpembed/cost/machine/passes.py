"""Number of times that tiles are moved, counted tile by tile.

The loops of a nest are cut stage by stage, from main memory inwards. A tile that does not divide
the one around it leaves a partial tile, so that a loop has tiles of a few sizes, each with a count;
they are counted exactly. A tile of an operand is moved if another one was there before: an
innermost loop that does not move the operand leaves it in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.nest import Floats, TileOperand

Integers = NDArray[np.intp]


@dataclass(frozen=True)
class Stage:
    """Tiles of a level inside those around them, one row for each tiling.

    ``parts`` are the numbers of blocks into which the tiles of a loop are dealt to the units of
    ``level`` (empty for one unit), ``ranks`` the positions of the loops over tiles, 0 for the
    innermost. ``operands`` are those that the level holds in these tiles.
    """

    level: int
    sizes: Mapping[str, Floats]
    parts: Mapping[str, Floats]
    ranks: Mapping[str, Floats]
    operands: frozenset[str] = frozenset()


Scopes = tuple[float, ...]
"""Levels that select the units to count: in stages at this level and farther out the first unit, in
stages farther in all units. 0 selects the first unit of the machine, infinity all units. A negative
one selects the first unit in stages farther in than that level, and all units in the others."""


def _counts_first(scope: float, level: int) -> bool:
    """Return True if a scope counts the first unit alone in the stages of a level."""
    return level < -scope if scope < 0 else level >= scope


@dataclass(frozen=True)
class _Classes:
    """Classes of tiles of equal size and position.

    An entry stands for ``count[scope, entry]`` tiles of ``size`` in the tiling ``row``; ``last`` is
    the innermost stage that has several of them, -1 if none has.
    """

    row: Integers
    size: Floats
    count: Floats
    last: Integers

    def split(self, piece: Floats, first: NDArray[np.bool_], stage: int | None) -> _Classes:
        """Return the tiles cut into pieces; scopes in ``first`` count only the first piece.

        With a ``stage``, pieces follow each other in time, else they are dealt to units.
        """
        full = np.floor(self.size / piece)
        rest = self.size - full * piece
        last = self.last
        if stage is not None:
            last = np.where(full + (rest > 0) > 1, stage, last)
        counted = np.where(first[:, None], np.minimum(full, 1.0), full) * self.count
        # A scope of first pieces counts the partial one only if there is no full one.
        partial = np.where(first[:, None] & (full > 0), 0.0, self.count)
        wholes, parts = np.flatnonzero(full > 0), np.flatnonzero(rest > 0)
        if not len(parts):
            return _Classes(self.row, np.broadcast_to(piece, self.size.shape), counted, last)
        return _Classes(
            np.concatenate([self.row[wholes], self.row[parts]]),
            np.concatenate([piece[wholes], rest[parts]]),
            np.concatenate([counted[:, wholes], partial[:, parts]], axis=1),
            np.concatenate([last[wholes], last[parts]]),
        )

    def by_row(self) -> _Classes:
        order = np.argsort(self.row, kind="stable")
        return _Classes(self.row[order], self.size[order], self.count[:, order], self.last[order])

    def totals(self, rows: int, weights: Floats | None = None) -> Floats:
        """Return the number of tiles, or the sum of their weights, as ``[scope, row]``."""
        each = self.count if weights is None else self.count * weights
        return np.stack([np.bincount(self.row, scope, rows) for scope in each]).astype(np.float64)


class LoopCuts:
    """Loop of ``extent`` iterations, cut by ``stages`` in each of ``rows`` tilings.

    The tiles of the stage ``swept`` count as one that moves over all of them.
    """

    def __init__(
        self,
        name: str,
        extent: int,
        stages: Sequence[Stage],
        scopes: Scopes,
        rows: int,
        swept: int | None = None,
    ) -> None:
        self.name, self.extent, self.rows = name, extent, rows
        self.scopes, self._swept = scopes, swept
        begin = _Classes(
            np.arange(rows),
            np.full(rows, float(extent)),
            np.ones((len(scopes), rows)),
            np.full(rows, -1),
        )
        self._prefixes = [begin]
        self._stages = stages
        self._cuts_any = [bool(np.any(self.several(n))) for n in range(len(stages))]
        for number in range(len(stages)):
            self._prefixes.append(self._cut(self._prefixes[-1], number, first=False))

    def tile(self, number: int) -> Floats:
        """Return the size of the full tiles of a stage, by row."""
        return self._stages[number].sizes[self.name]

    def several(self, number: int) -> NDArray[np.bool_]:
        """Return the rows in which a stage has several tiles of the loop."""
        around = self.tile(number - 1) if number else float(self.extent)
        return np.asarray(self.tile(number) < around)

    def swept(self, number: int) -> LoopCuts:
        """Return the loop with the tiles of a stage as one that moves over all of them."""
        return LoopCuts(self.name, self.extent, self._stages, self.scopes, self.rows, number)

    @cached_property
    def classes(self) -> _Classes:
        """Innermost tiles, ordered by row."""
        return self._prefixes[-1].by_row()

    @cached_property
    def first(self) -> _Classes:
        """First tile of each unit, ordered by row."""
        return self._first_after(0).by_row()

    def _first_after(self, depth: int) -> _Classes:
        """Return all tiles of the first stages, each with the first one of the stages inside."""
        classes = self._prefixes[depth]
        for number in range(depth, len(self._stages)):
            classes = self._cut(classes, number, first=True)
        return classes

    @cached_property
    def visits(self) -> Floats:
        """Iterations over tiles of the first ``depth`` stages, as ``[depth, scope, row]``.

        Each has the first tile of the stages inside, on all units that are counted.
        """
        visits = [self._prefixes[-1].totals(self.rows)]
        for depth in reversed(range(len(self._stages))):
            # Without a cut there is one tile, which is the first one.
            is_cut = self._cuts_any[depth]
            visits.append(self._first_after(depth).totals(self.rows) if is_cut else visits[-1])
        return np.stack(visits[::-1])

    @cached_property
    def iterations(self) -> Floats:
        """Iterations of the loop itself, as ``[scope, row]``."""
        classes = self._prefixes[-1]
        return classes.totals(self.rows, classes.size)

    def _cut(self, classes: _Classes, number: int, *, first: bool) -> _Classes:
        if not self._cuts_any[number]:
            return classes
        stage = self._stages[number]
        piece = stage.sizes[self.name][classes.row]
        parts = stage.parts.get(self.name)
        if parts is not None:
            # Units get blocks of consecutive tiles, as equal as possible, so that no unit has more
            # to do than the first one.
            tiles = np.ceil(classes.size / piece)
            block = np.ceil(tiles / parts[classes.row]) * piece
            first_unit = np.array([_counts_first(scope, stage.level) for scope in self.scopes])
            classes = classes.split(block, first_unit, None)
            piece = stage.sizes[self.name][classes.row]
        if self._swept is not None and number >= self._swept and not first:
            several = classes.size > piece
            return replace(classes, last=np.where(several, number, classes.last))
        return classes.split(piece, np.full(len(self.scopes), first), number)


class OperandTiles:
    """Innermost tiles of an operand: combinations of tiles of the loops that move it.

    With ``first``, only the first tile of each unit counts. ``still_scopes`` are the places of the
    scopes in which loops count that leave the operand in place; by default those of the others.
    """

    def __init__(
        self,
        operand: TileOperand,
        cuts: Mapping[str, LoopCuts],
        scopes: Scopes,
        rows: int,
        *,
        first: bool = False,
        still_scopes: Sequence[int] | None = None,
    ) -> None:
        self.operand, self.rows, self._cuts = operand, rows, cuts
        self.row: Integers = np.arange(rows)
        self.count = np.ones((len(scopes), rows))
        self.sizes: dict[str, Floats] = {}
        self._last: dict[str, Integers] = {}
        for name in sorted(operand.loops):
            self._join(name, cuts[name].first if first else cuts[name].classes)
        # Loops that leave the operand in place: how often its tiles are moved depends on where they
        # are.
        still = [name for name in cuts if name not in operand.loops]
        self._still = {name: cuts[name] for name in still}
        self._still_scopes = still_scopes

    def _join(self, name: str, classes: _Classes) -> None:
        each = np.bincount(classes.row, minlength=self.rows)
        starts = np.cumsum(each) - each
        repeat = each[self.row]
        # All pairs of an entry and a class of the same row.
        entries = np.repeat(np.arange(len(self.row)), repeat)
        within = np.arange(len(entries)) - np.repeat(np.cumsum(repeat) - repeat, repeat)
        partners = starts[self.row[entries]] + within
        self.row = self.row[entries]
        self.count = self.count[:, entries] * classes.count[:, partners]
        self.sizes = {loop: sizes[entries] for loop, sizes in self.sizes.items()}
        self.sizes[name] = classes.size[partners]
        self._last = {loop: last[entries] for loop, last in self._last.items()}
        self._last[name] = classes.last[partners]

    @cached_property
    def _innermost(self) -> Integers:
        """Innermost stage in which some loop goes on to another tile of the operand."""
        innermost = np.full(len(self.row), -1)
        for last in self._last.values():
            innermost = np.maximum(innermost, last)
        return innermost

    def moves(self, ranks: Sequence[Mapping[str, Floats]]) -> Floats:
        """Return the number of times that tiles are moved, as ``[scope, entry]``.

        ``ranks`` are the positions of the loops of each stage.
        """
        stage = self._innermost
        # Position of the innermost loop that goes on to another tile of the operand.
        first = np.full(len(self.row), math.inf)
        for name, last in self._last.items():
            places = _at(ranks, name, stage, self.row)
            first = np.where(last == stage, np.minimum(first, places), first)
        moved = self.count
        for name, cut in self._still.items():
            # A tile is moved again in each iteration outside the innermost loop that moves it.
            outside = _at(ranks, name, stage, self.row) > first
            depth = np.where(stage < 0, 0, stage + outside)
            moved = moved * self._visits(cut)[depth, :, self.row].T
        return moved

    def _visits(self, still: LoopCuts) -> Floats:
        """Return the visits of a loop that leaves the operand in place, in its scopes."""
        return still.visits if self._still_scopes is None else still.visits[:, self._still_scopes]

    @cached_property
    def every(self) -> Floats:
        """Result of :meth:`moves` if each iteration moved the tile again."""
        return self._times(-1)

    @cached_property
    def distinct(self) -> Floats:
        """Result of :meth:`moves` if each tile were moved only once."""
        return self._times(0)

    def _times(self, depth: int) -> Floats:
        moved = self.count
        for cut in self._still.values():
            moved = moved * self._visits(cut)[depth][:, self.row]
        return moved

    def totals(self, values: Floats) -> Floats:
        """Return sums over the entries of a row, as ``[scope, row]``."""
        sums = [np.bincount(self.row, scope, self.rows) for scope in values]
        return np.stack(sums).astype(np.float64)


def _at(ranks: Sequence[Mapping[str, Floats]], name: str, stage: Integers, row: Integers) -> Floats:
    """Return the position of a loop in the stage of each entry."""
    table = np.stack([rank[name] for rank in ranks])
    return table[np.maximum(stage, 0), row]
