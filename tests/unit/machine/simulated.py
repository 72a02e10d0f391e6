"""Small nests and machines, and a simulator of what memories hold while a nest runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cpembed.hw.level_tables import Known, Overlapping
from cpembed.hw.levels import ComputeUnit, Hierarchy, Memory
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.machine.nest import TileNest, TileOperand
from cpembed.transform.program import Loop

S, R = AxisKind.SPATIAL, AxisKind.REDUCTION


def operand(
    name: str, indices: Sequence[Sequence[tuple[str, int]]], extents: Mapping[str, int], size: int
) -> TileOperand:
    """Dimensions as sums of (loop, factor); the operand is the output where its name is C."""
    dimensions = tuple(
        (
            IndexExpr.of([IndexTerm(loop, factor) for loop, factor in index]),
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
) -> TileNest:
    loops = tuple(
        Loop(name, extent, R if name in reductions else S)
        for name, extent in extents.items()
        if extent > 1
    )
    single = {name: 1 for name, extent in extents.items() if extent == 1}
    made = [
        operand(name, indices, extents, 4 if name == "C" else 1)
        for name, indices in operands.items()
    ]
    return TileNest(loops, single, tuple(made))


def gemm(x: int, y: int, z: int) -> TileNest:
    one = {name: [(name, 1)] for name in "xyz"}
    operands = {
        "A": [one["x"], one["z"]],
        "B": [one["z"], one["y"]],
        "C": [one["x"], one["y"]],
    }
    return nest({"x": x, "y": y, "z": z}, "z", operands)


def conv(k: int, p: int, c: int, r: int) -> TileNest:
    operands = {
        "A": [[("c", 1)], [("p", 1), ("r", 1)]],
        "B": [[("k", 1)], [("c", 1)], [("r", 1)]],
        "C": [[("k", 1)], [("p", 1)]],
    }
    return nest({"k": k, "p": p, "c": c, "r": r}, "cr", operands)


def machine(
    *capacities: int, units: Sequence[int] = (), overlap: Overlapping = Overlapping.HARDWARE
) -> Hierarchy:
    """Buffers a, b and c of the first capacity each, then shared memories, then main memory."""
    count = [*units, *[1] * (len(capacities) - len(units))]
    names = [f"m{level}" for level in range(1, len(capacities))] + ["dram"]
    memories = {
        leaf: Memory(leaf, 0, names[0], count[0], capacities[0], overlap=overlap) for leaf in "abc"
    }
    for level, capacity in enumerate(capacities[1:], 1):
        memories[names[level - 1]] = Memory(
            names[level - 1], level, names[level], count[level], capacity, 4.0, 2.0, overlap=overlap
        )
    memories["dram"] = Memory("dram", len(capacities), None, 1, None, 2.0, 1.0)
    return Hierarchy("m", 100.0, ComputeUnit(1.0, 1.0), memories, Known.ASSUMED, "a test")


@dataclass
class Counted:
    """Bytes by memory, and transfers."""

    read: dict[str, int] = field(default_factory=dict[str, int])
    write: dict[str, int] = field(default_factory=dict[str, int])


Ranges = Mapping[str, range]


def simulate(
    given: TileNest,
    hierarchy: Hierarchy,
    tiles: Sequence[Mapping[str, int]],
    orders: Sequence[Sequence[str]],
) -> Counted:
    """Run a nest: every memory holds a tile of each operand and moves it when another one is
    needed. ``tiles`` and ``orders`` (loops, innermost first) are those of each level, the innermost
    level first."""
    counted = Counted()
    top = len(tiles)
    held: dict[tuple[str, str], tuple[range, ...]] = {}
    seen: dict[tuple[str, str], set[tuple[range, ...]]] = {}

    def need(level: int, ranges: Ranges) -> None:
        for operand in given.operands:
            for memory in hierarchy.path(operand.scope):
                if memory.level != level or memory.parent is None:
                    continue
                key = (memory.name, operand.name)
                wanted = tuple(ranges[name] for name in sorted(operand.loops))
                if held.get(key) == wanted:
                    continue
                held[key] = wanted
                size = touched(operand, given, ranges) * operand.element_bytes
                again = wanted in seen.setdefault(key, set())
                seen[key].add(wanted)
                if operand.is_output:
                    counted.write[memory.name] = counted.write.get(memory.name, 0) + size
                if again or not operand.is_output:
                    counted.read[memory.name] = counted.read.get(memory.name, 0) + size

    def run(level: int, ranges: Ranges) -> None:
        """``ranges`` are the tile of the level outside ``level``."""
        if level < 0:
            return
        for inner in cut_ranges(ranges, tiles[level], orders[level]):
            need(level, inner)
            run(level - 1, inner)

    run(top - 1, {loop.name: range(loop.extent) for loop in given.loops})
    return counted


def cut_ranges(ranges: Ranges, tile: Mapping[str, int], order: Sequence[str]) -> Iterator[Ranges]:
    outermost_first = list(reversed(order))
    parts = [
        [
            range(start, min(start + tile[name], ranges[name].stop))
            for start in range(ranges[name].start, ranges[name].stop, tile[name])
        ]
        for name in outermost_first
    ]
    for chosen in itertools.product(*parts):
        yield dict(zip(outermost_first, chosen, strict=True))


def touched(operand: TileOperand, given: TileNest, ranges: Ranges) -> int:
    """Elements, counted one by one."""
    loops = sorted(operand.loops)
    fixed = dict.fromkeys(given.axes, 0)
    points = itertools.product(*(ranges[name] for name in loops))
    return len(
        {
            tuple(
                index.evaluate({**fixed, **dict(zip(loops, point, strict=True))})
                for index, _ in operand.dimensions
            )
            for point in points
        }
    )


def cycles(counted: Counted, given: TileNest, hierarchy: Hierarchy) -> float:
    """On one unit whose transfers all go beside computing."""
    total = given.calls * hierarchy.compute.cycles + hierarchy.compute.latency_cycles
    for memory in hierarchy.memories.values():
        below = [m.name for m in hierarchy.memories.values() if m.parent == memory.name]
        total = max(
            total,
            sum(counted.read.get(name, 0) for name in below) / memory.read_bytes,
            sum(counted.write.get(name, 0) for name in below) / memory.write_bytes,
        )
    return total


def divisors(extent: int) -> list[int]:
    return [size for size in range(1, extent + 1) if extent % size == 0]


def tilings(given: TileNest, hierarchy: Hierarchy) -> Iterator[list[dict[str, int]]]:
    """Every choice of tiles that divide the tile around them and fit, the innermost first."""

    def inside(level: int, around: Mapping[str, int]) -> Iterator[list[dict[str, int]]]:
        if level < 0:
            yield []
            return
        for sizes in itertools.product(*(divisors(around[loop.name]) for loop in given.loops)):
            tile = {loop.name: size for loop, size in zip(given.loops, sizes, strict=True)}
            if fits(given, hierarchy, level, tile):
                for inner in inside(level - 1, tile):
                    yield [*inner, tile]

    yield from inside(len(hierarchy.levels) - 2, {loop.name: loop.extent for loop in given.loops})


def fits(given: TileNest, hierarchy: Hierarchy, level: int, tile: Mapping[str, int]) -> bool:
    ranges = {name: range(size) for name, size in tile.items()}
    for memory in hierarchy.levels[level]:
        used = sum(
            touched(o, given, ranges) * o.element_bytes
            for o in given.operands
            if memory in hierarchy.path(o.scope)
        )
        if used > (memory.capacity_bytes or math.inf):
            return False
    return True
