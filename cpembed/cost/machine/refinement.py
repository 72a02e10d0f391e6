"""Local search: mappings that differ from the best one in one decision, until none is better."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.nest import ExecutionNest, Floats
from cpembed.cost.machine.passes import Integers, Stage
from cpembed.cost.machine.sizes import cuts
from cpembed.cost.machine.traffic import HeldTile, Tilings, cut, untiled
from cpembed.hw.machine import Hierarchy
from cpembed.ir.computation import AxisKind


@dataclass(frozen=True)
class Decisions:
    """Decisions of tilings, one a row: tile sizes of each stage, and division by level.

    ``stages`` have the level and the operands of each, the outermost first; ``sizes`` are
    ``[stage, loop, row]`` and ``parts`` ``[level, loop, row]``.
    """

    names: tuple[str, ...]
    stages: tuple[tuple[int, frozenset[str]], ...]
    orders: tuple[tuple[str, ...], ...]
    sizes: Floats
    parts: Floats

    @staticmethod
    def from_tilings(tilings: Tilings, names: tuple[str, ...], levels: int) -> Decisions:
        """Return the decisions of one tiling."""
        sizes = [[stage.sizes[n][0] for n in names] for stage in tilings.stages]
        parts = np.ones((levels, len(names), 1))
        for stage in tilings.stages:
            for name, count in stage.parts.items():
                parts[stage.level, names.index(name), 0] = count[0]
        return Decisions(
            names,
            tuple((stage.level, stage.operands) for stage in tilings.stages),
            tuple(_order(stage, names) for stage in tilings.stages),
            np.array(sizes).reshape(len(tilings.stages), len(names), 1),
            parts,
        )

    def select(self, rows: Integers) -> Decisions:
        """Return some of the rows."""
        return replace(self, sizes=self.sizes[:, :, rows], parts=self.parts[:, :, rows])

    def fit(self, nest: ExecutionNest, machine: Hierarchy) -> Integers:
        """Return the rows whose tiles fit all memories."""
        rows: int = self.sizes.shape[2]
        fits: NDArray[np.bool_] = np.ones(rows, bool)
        for level, memories in enumerate(machine.levels[:-1]):
            resident = {
                name: dict(zip(self.names, self.sizes[number], strict=True))
                for number, (stage, operands) in enumerate(self.stages)
                if stage == level
                for name in operands
            }
            for memory in memories:
                filled = np.zeros(1)
                for operand in nest.operands_in(memory, machine):
                    filled = filled + nest.occupied_bytes(memory, operand, resident[operand.name])
                fits = fits & (filled <= memory.tile_capacity)
        return np.flatnonzero(fits)

    def tilings(self, nest: ExecutionNest, machine: Hierarchy) -> Tilings:
        """Return the tilings with their traffic."""
        rows: int = self.sizes.shape[2]
        tilings = untiled(nest).select(np.zeros(rows, np.intp))
        for level in reversed(range(len(machine.levels) - 1)):
            numbers = [n for n, (stage, _) in enumerate(self.stages) if stage == level]
            tiles = [
                HeldTile(dict(zip(self.names, self.sizes[n], strict=True)), self.stages[n][1])
                for n in numbers
            ]
            blocks: dict[str, Floats] = {}
            if machine.fan_out(level) > 1:
                parts = zip(self.names, self.parts[level], strict=True)
                blocks = {name: count for name, count in parts if (count > 1).any()}
            orders = [[self.orders[n] for n in numbers]]
            (tilings,) = cut(tilings, level, tiles, blocks, orders, nest, machine)
        return tilings


def _order(stage: Stage, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: float(stage.ranks[name][0])))


def neighbours(
    decisions: Decisions, nest: ExecutionNest, machine: Hierarchy
) -> Iterator[Decisions]:
    """Yield tilings that differ from one tiling in sizes or in divisions.

    Parameters
    ----------
    decisions : Decisions
        The tiling, in one row.
    nest : ExecutionNest
        Nest that is tiled.
    machine : Hierarchy
        Machine with its memories.
    """
    sizes, parts = list[Floats](), list[Floats]()
    first_sizes, first_parts = decisions.sizes[:, :, 0], decisions.parts[:, :, 0]
    for changed in _resized(first_sizes, nest):
        sizes.append(changed)
        parts.append(first_parts)
    for level, changed in _redealt(first_parts, nest, machine):
        sizes.append(first_sizes)
        parts.append(changed)
        # More units get smaller tiles, so that as much is left for each.
        inside = [number for number, (stage, _) in enumerate(decisions.stages) if stage <= level]
        scaled = first_sizes.copy()
        scaled[inside] = np.ceil(first_sizes[inside] * first_parts[level] / changed[level])
        scaled = np.minimum(scaled, np.array([[loop.extent for loop in nest.loops]]))
        sizes.append(np.minimum.accumulate(scaled, axis=0))
        parts.append(changed)
    table = np.concatenate([np.stack(sizes, axis=2), np.stack(parts, axis=2)])
    table = np.unique(table, axis=2)
    count = len(decisions.stages)
    yield replace(decisions, sizes=table[:count], parts=table[count:])


def reordered(
    decisions: Decisions,
    machine: Hierarchy,
    loop_order: Callable[[Sequence[str]], tuple[str, ...]],
) -> Iterator[Decisions]:
    """Yield tilings whose operands are held in another order at one level.

    Parameters
    ----------
    decisions : Decisions
        The tiling, in one row.
    machine : Hierarchy
        Machine with its memories.
    loop_order : callable
        Loops of a stage, innermost first, for the operands that are held from it on inwards.
    """
    for level in range(len(machine.levels) - 1):
        numbers = [n for n, (stage, _) in enumerate(decisions.stages) if stage == level]
        resident = [decisions.stages[n][1] for n in numbers]
        for order in itertools.permutations(resident):
            stages, orders = list(decisions.stages), list(decisions.orders)
            for place, number in enumerate(numbers):
                stages[number] = level, order[place]
                orders[number] = loop_order([name for names in order[place:] for name in names])
            yield replace(decisions, stages=tuple(stages), orders=tuple(orders))


def _resized(sizes: Floats, nest: ExecutionNest) -> Iterator[Floats]:
    """Yield tile sizes with another size in one stage, or in all from that one on inwards."""
    for place, loop in enumerate(nest.loops):
        grid = cuts(loop.extent)
        for number in range(sizes.shape[0]):
            size = int(sizes[number, place])
            near = int(np.searchsorted(grid, size))
            options = {*grid[max(0, near - 2) : near + 3], size - 1, size + 1, 1, loop.extent}
            around = int(sizes[number - 1, place]) if number else loop.extent
            options |= {-(-around // 2), around, max(1, size // 2), min(2 * size, loop.extent)}
            for option in options - {size}:
                if not 1 <= option <= loop.extent:
                    continue
                changed = sizes.copy()
                changed[number, place] = option
                # Tiles outside are no smaller, those inside no larger.
                changed[:number, place] = np.maximum(changed[:number, place], option)
                changed[number + 1 :, place] = np.minimum(changed[number + 1 :, place], option)
                yield changed
                # Stages of equal sizes change together.
                equal = changed.copy()
                inside = sizes[number:, place] == size
                equal[number:, place][inside] = option
                equal[:, place] = np.minimum.accumulate(equal[:, place])
                yield equal


def _redealt(
    parts: Floats, nest: ExecutionNest, machine: Hierarchy
) -> Iterator[tuple[int, Floats]]:
    """Yield levels, and divisions of their tiles that give one or two loops other numbers."""
    spatial = [n for n, loop in enumerate(nest.loops) if loop.kind is AxisKind.SPATIAL]
    for level in range(parts.shape[0]):
        units = machine.fan_out(level)
        if units == 1:
            continue
        for place in spatial:
            shared = math.prod(parts[level]) / parts[level, place]
            most = min(units // shared, nest.loops[place].extent)
            count = parts[level, place]
            for option in {count - 1, count + 1, 2 * count, count // 2, most, 1.0}:
                if 1 <= option <= most:
                    changed = parts.copy()
                    changed[level, place] = option
                    yield level, changed
        for more, less in itertools.permutations(spatial, 2):
            for factor in (2, 3, 4):
                changed = parts.copy()
                changed[level, less] = max(1.0, changed[level, less] // factor)
                rest = units // (math.prod(changed[level]) / changed[level, more])
                changed[level, more] = min(rest, nest.loops[more].extent)
                yield level, changed
