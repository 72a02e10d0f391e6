"""Small nests and machines, and a simulator of what memories hold while a nest runs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cpembed.cost.machine.nest import ExecutionNest, TileOperand
from cpembed.hw.machine import ComputeUnit, Evidence, Hierarchy, Link, Memory, Overlapping
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import Loop

S, R = AxisKind.SPATIAL, AxisKind.REDUCTION


def operand(
    name: str, indices: Sequence[Sequence[tuple[str, int]]], extents: Mapping[str, int], size: int
) -> TileOperand:
    """Dimensions as sums of (loop, factor); the operand is the output where its name is C."""
    dimensions = tuple(
        (
            IndexExpr.sum([IndexTerm(loop, factor) for loop, factor in index]),
            1 + sum(factor * (extents[loop] - 1) for loop, factor in index),
        )
        for index in indices
    )
    loops = frozenset(loop for index in indices for loop, _ in index if extents[loop] > 1)
    return TileOperand(name, name.lower(), size, size, dimensions, loops, name == "C")


def nest(
    extents: Mapping[str, int],
    reductions: str,
    operands: Mapping[str, Sequence[Sequence[tuple[str, int]]]],
) -> ExecutionNest:
    loops = tuple(
        Loop(name, extent, R if name in reductions else S)
        for name, extent in extents.items()
        if extent > 1
    )
    single = {name: 1 for name, extent in extents.items() if extent == 1}
    tile_operands = [
        operand(name, indices, extents, 4 if name == "C" else 1)
        for name, indices in operands.items()
    ]
    return ExecutionNest(loops, single, tuple(tile_operands))


def gemm(x: int, y: int, z: int) -> ExecutionNest:
    dims = {name: [(name, 1)] for name in "xyz"}
    operands = {
        "A": [dims["x"], dims["z"]],
        "B": [dims["z"], dims["y"]],
        "C": [dims["x"], dims["y"]],
    }
    return nest({"x": x, "y": y, "z": z}, "z", operands)


def image(p: int, q: int, r: int, s: int, step: int, spread: int) -> ExecutionNest:
    """Windows of r x s, ``spread`` apart, at each of p x q places, ``step`` apart."""
    operands = {
        "A": [[("p", step), ("r", spread)], [("q", step), ("s", spread)]],
        "B": [[("r", 1)], [("s", 1)]],
        "C": [[("p", 1)], [("q", 1)]],
    }
    return nest({"p": p, "q": q, "r": r, "s": s}, "rs", operands)


def conv(k: int, p: int, c: int, r: int) -> ExecutionNest:
    operands = {
        "A": [[("c", 1)], [("p", 1), ("r", 1)]],
        "B": [[("k", 1)], [("c", 1)], [("r", 1)]],
        "C": [[("k", 1)], [("p", 1)]],
    }
    return nest({"k": k, "p": p, "c": c, "r": r}, "cr", operands)


def machine(
    *capacities: int,
    units: Sequence[int] = (),
    overlap: Overlapping = Overlapping.HARDWARE,
    multicast: bool = False,
    bypass: bool = False,
) -> Hierarchy:
    """Buffers a, b and c of the first capacity each, then shared memories, then main memory.

    Shared memories serve several units by one read, or may be passed by, if they are said to."""
    count = [*units, *[1] * (len(capacities) - len(units))]
    names = [f"m{level}" for level in range(1, len(capacities))] + ["dram"]
    memories = {
        leaf: Memory(
            name=leaf,
            level=0,
            parent=names[0],
            units=count[0],
            capacity_bytes=capacities[0],
            overlap=overlap,
        )
        for leaf in "abc"
    }
    for level, capacity in enumerate(capacities[1:], 1):
        memories[names[level - 1]] = Memory(
            name=names[level - 1],
            level=level,
            parent=names[level],
            units=count[level],
            capacity_bytes=capacity,
            read_bytes=4.0,
            write_bytes=2.0,
            overlap=overlap,
            multicast=multicast,
            bypass=bypass,
        )
    memories["dram"] = Memory(
        name="dram", level=len(capacities), read_bytes=2.0, write_bytes=1.0, multicast=multicast
    )
    return Hierarchy(
        name="m",
        clock_mhz=100.0,
        compute=ComputeUnit(1.0, 1.0),
        memories=memories,
        evidence=Evidence.ASSUMED,
        source="a test",
    )


Unit = tuple[int, ...]
"""A place in the tree of units: at each level, from main memory inwards, which one."""


@dataclass
class Counted:
    """Bytes by memory and unit, transfers, tiles, and executions by unit of the innermost level."""

    read: Counter[tuple[str, Unit]] = field(default_factory=Counter[tuple[str, Unit]])
    regions: Counter[tuple[str, Unit, str, object]] = field(
        default_factory=Counter[tuple[str, Unit, str, object]]
    )
    write: Counter[tuple[str, Unit]] = field(default_factory=Counter[tuple[str, Unit]])
    moves: Counter[tuple[str, Unit]] = field(default_factory=Counter[tuple[str, Unit]])
    calls: Counter[Unit] = field(default_factory=Counter[Unit])

    def sent(self, link: Link, unit: Unit) -> int:
        """Bytes that a unit of a link's parent reads: with multicast, those of a region once for
        all units below, as often as the one that takes it most often."""
        if not link.parent.multicast:
            return self.below(self.read, link.name, unit)
        most = Counter[tuple[str, object]]()
        for (name, place, operand, region), count in self.regions.items():
            if name == link.name and place[: len(unit)] == unit:
                most[operand, region] = max(most[operand, region], count)
        return most.total()

    def below(self, counts: Counter[tuple[str, Unit]], memory: str, unit: Unit) -> int:
        """Sum over all units of a memory in a part of the tree."""
        return sum(
            count
            for (name, place), count in counts.items()
            if name == memory and place[: len(unit)] == unit
        )


Ranges = Mapping[str, range]


@dataclass(frozen=True)
class Level:
    """How a level is cut: tile sizes, the order of the loops (innermost first), and into how many
    blocks of consecutive tiles loops are dealt to units."""

    tile: Mapping[str, int]
    order: Sequence[str]
    parts: Mapping[str, int] = field(default_factory=dict[str, int])


def simulate(executions: ExecutionNest, hierarchy: Hierarchy, levels: Sequence[Level]) -> Counted:
    """Run a nest: every unit of a memory holds a tile of each operand, moves it when another one is
    needed, and drops it when the tile of the operand around it is replaced. ``levels`` has the
    innermost first."""
    counted = Counted()
    contents: dict[tuple[str, str, Unit], tuple[tuple[range, ...], ...]] = {}
    written: set[tuple[str, str, Unit, tuple[tuple[range, ...], ...]]] = set()

    def need(level: int, path: tuple[Ranges, ...], unit: Unit) -> None:
        for operand in executions.operands:
            region = tuple(tuple(r[name] for name in sorted(operand.loops)) for r in path)
            for link in operand.links(hierarchy):
                if link.memory.level != level:
                    continue
                key = (link.name, operand.name, unit)
                before = contents.get(key)
                if before == region:
                    continue
                contents[key] = region
                place = (link.name, unit)
                elements = touched(operand, executions, path[-1])
                if not operand.is_output and before is not None and before[:-1] == region[:-1]:
                    swept = innermost(operand, levels, level, executions)
                    names = sorted(operand.loops)
                    moving = [
                        name
                        for name, old, new in zip(names, before[-1], region[-1], strict=True)
                        if old != new
                    ]
                    # Another pass begins at the first tile again, of which nothing is kept.
                    goes_on = all(
                        new.start >= old.start
                        for old, new in zip(before[-1], region[-1], strict=True)
                    )
                    if goes_on and moving == [swept]:
                        old = dict(zip(names, before[-1], strict=True))
                        elements -= touched(operand, executions, old)
                size = len(elements) * operand.element_bytes
                again = (*key, region) in written
                written.add((*key, region))
                if operand.is_output:
                    counted.write[place] += size
                    counted.moves[place] += 1
                if again or not operand.is_output:
                    counted.read[place] += size
                    counted.regions[(*place, operand.name, region)] += size
                    counted.moves[place] += 1

    def drop(level: int, path: tuple[Ranges, ...], unit: Unit) -> None:
        """Drop the contents of units inside that belong to another tile."""
        for operand in executions.operands:
            around = tuple(tuple(r[name] for name in sorted(operand.loops)) for r in path)
            for key in list(contents):
                inside = key[2][: len(unit)] == unit and len(key[2]) > len(unit)
                if key[1] == operand.name and inside and contents[key][: len(around)] != around:
                    del contents[key]

    def run(level: int, path: tuple[Ranges, ...], unit: Unit) -> None:
        """The last of ``path`` is the tile of the level outside ``level``."""
        if level < 0:
            counted.calls[unit] += math.prod(len(r) for r in path[-1].values())
            return
        drop(level, path, unit)
        level_cut = levels[level]
        blocks: list[list[range]] = []
        for loop in executions.loops:
            around, size = path[-1][loop.name], level_cut.tile[loop.name]
            tiles = -(-len(around) // size)
            block = -(-tiles // level_cut.parts.get(loop.name, 1)) * size
            blocks.append(cut_range(around, block))
        names = [loop.name for loop in executions.loops]
        shared = [level_cut.parts.get(name, 1) for name in names]
        for places in itertools.product(*(range(len(block)) for block in blocks)):
            number = 0
            for place, count in zip(places, shared, strict=True):
                number = number * count + place
            child = (*unit, number)
            block_tiles = {n: block[p] for n, block, p in zip(names, blocks, places, strict=True)}
            for inner in cut_ranges(block_tiles, level_cut.tile, level_cut.order):
                need(level, (*path, inner), child)
                run(level - 1, (*path, inner), child)

    run(len(levels) - 1, ({loop.name: range(loop.extent) for loop in executions.loops},), ())
    return counted


def cut_range(around: range, size: int) -> list[range]:
    return [
        range(start, min(start + size, around.stop))
        for start in range(around.start, around.stop, size)
    ]


def cut_ranges(ranges: Ranges, tile: Mapping[str, int], order: Sequence[str]) -> Iterator[Ranges]:
    outermost_first = list(reversed(order))
    parts = [cut_range(ranges[name], tile[name]) for name in outermost_first]
    for combination in itertools.product(*parts):
        yield dict(zip(outermost_first, combination, strict=True))


def innermost(
    operand: TileOperand, levels: Sequence[Level], level: int, executions: ExecutionNest
) -> str | None:
    """The innermost loop over several tiles of an operand, along which overlaps are kept."""
    full = {loop.name: loop.extent for loop in executions.loops}
    around = levels[level + 1].tile if level + 1 < len(levels) else full
    tile = levels[level].tile
    several = [n for n in levels[level].order if n in operand.loops and tile[n] < around[n]]
    return several[0] if several else None


def touched(
    operand: TileOperand, executions: ExecutionNest, ranges: Ranges
) -> set[tuple[int, ...]]:
    """Elements, one by one."""
    loops = sorted(operand.loops)
    fixed = dict.fromkeys(executions.axes, 0)
    points = itertools.product(*(ranges[name] for name in loops))
    return {
        tuple(
            index.evaluate({**fixed, **dict(zip(loops, point, strict=True))})
            for index, _ in operand.dimensions
        )
        for point in points
    }


def cycles(counted: Counted, executions: ExecutionNest, hierarchy: Hierarchy) -> float:
    """Return cycles with all transfers overlapped; the first units have the most to do."""
    total = max(counted.calls.values()) * hierarchy.compute.cycles
    total += hierarchy.compute.latency_cycles
    for memory in hierarchy.memories.values():
        links = hierarchy.links_below(memory)
        first = (0,) * (len(hierarchy.levels) - 1 - memory.level)
        written = sum(counted.below(counted.write, link.name, first) for link in links)
        total = max(
            total,
            sum(counted.sent(link, first) for link in links) / memory.read_bytes,
            written / memory.write_bytes,
        )
    return total


def all_tilings(executions: ExecutionNest, hierarchy: Hierarchy) -> Iterator[list[dict[str, int]]]:
    """Every choice of tiles of any size that fit, the innermost first."""

    def inside(level: int, around: Mapping[str, int]) -> Iterator[list[dict[str, int]]]:
        if level < 0:
            yield []
            return
        sizes = (range(1, around[loop.name] + 1) for loop in executions.loops)
        for combination in itertools.product(*sizes):
            tile = {
                loop.name: size for loop, size in zip(executions.loops, combination, strict=True)
            }
            if fits(executions, hierarchy, level, tile):
                for inner in inside(level - 1, tile):
                    yield [*inner, tile]

    yield from inside(
        len(hierarchy.levels) - 2, {loop.name: loop.extent for loop in executions.loops}
    )


def all_parts(executions: ExecutionNest, units: int) -> Iterator[dict[str, int]]:
    """Every way to deal parallel loops to units at most."""
    names = [loop.name for loop in executions.loops if loop.kind is S]
    for numbers in itertools.product(range(1, units + 1), repeat=len(names)):
        if math.prod(numbers) <= units:
            yield dict(zip(names, numbers, strict=True))


def fits(
    executions: ExecutionNest, hierarchy: Hierarchy, level: int, tile: Mapping[str, int]
) -> bool:
    ranges = {name: range(size) for name, size in tile.items()}
    for memory in hierarchy.levels[level]:
        used = sum(
            len(touched(o, executions, ranges)) * o.element_bytes
            for o in executions.operands
            if o.passes(memory, hierarchy)
        )
        if used > (memory.capacity_bytes or math.inf):
            return False
    return True
