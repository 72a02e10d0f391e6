"""The directions of Q-learning: knobs of a schedule, and the changes of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cpembed.ir.computation import AxisKind
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tiles import TileNest
from cpembed.targets.vta.tuning import MAX_SLOTS, MIN_SLOTS

Change = Callable[[TileNest, Schedule], Schedule | None]
"""The changed schedule; None if there is nothing to change."""
LoopChange = Callable[[TileNest, Schedule, str], Schedule | None]
"""A change of a loop, by its name."""


@dataclass(frozen=True)
class Direction:
    """A change of a knob; ``loop`` is the number of the loop, if the knob belongs to one."""

    words: str
    loop: int | None = None

    def changed(self, nest: TileNest, schedule: Schedule) -> Schedule | None:
        """Return the changed schedule; None if there is nothing to change, or no such loop."""
        if self.loop is None:
            return OF_ALL[self.words](nest, schedule)
        if self.loop >= len(nest.loops):
            return None
        return OF_LOOPS[self.words](nest, schedule, nest.loops[self.loop].name)


def directions(loops: int) -> list[Direction]:
    """Return the directions of nests of at most so many loops."""
    of_loops = [Direction(words, number) for words in OF_LOOPS for number in range(loops)]
    return [*of_loops, *(Direction(words) for words in OF_ALL)]


def _more_parts(nest: TileNest, schedule: Schedule, name: str) -> Schedule | None:
    return _with_parts(nest, schedule, name, 1)


def _fewer_parts(nest: TileNest, schedule: Schedule, name: str) -> Schedule | None:
    return _with_parts(nest, schedule, name, -1)


def _with_parts(nest: TileNest, schedule: Schedule, name: str, more: int) -> Schedule | None:
    extent, size = nest.extents[name], schedule.tiles[name]
    parts = -(-extent // size) + more
    new = -(-extent // parts) if parts else extent
    if new == size:
        new = size - more
    if new == size or not 1 <= new <= extent:
        return None
    return replace(schedule, tiles={**schedule.tiles, name: new})


def _outwards(nest: TileNest, schedule: Schedule, name: str) -> Schedule | None:
    """Move a loop by one place, among the loops of its kind."""
    kinds = {loop.name: loop.kind for loop in nest.loops}
    at = schedule.order.index(name)
    if at == 0 or kinds[schedule.order[at - 1]] is not kinds[name]:
        return None
    order = list(schedule.order)
    order[at - 1], order[at] = order[at], order[at - 1]
    return replace(schedule, order=tuple(order))


def _slots(which: int, more: int) -> Change:
    def change(nest: TileNest, schedule: Schedule) -> Schedule | None:
        slots = list(schedule.slots)
        slots[which] += more
        if not MIN_SLOTS <= slots[which] <= MAX_SLOTS:
            return None
        return replace(schedule, slots=(slots[0], slots[1]))

    return change


def _next_thread_loop(nest: TileNest, schedule: Schedule) -> Schedule | None:
    """Share the next spatial loop that is cut among threads, or none after the last.

    A loop in one piece has no neighbours to share threads.
    """
    loops: list[str | None] = [None]
    for loop in nest.loops:
        cut = schedule.tiles[loop.name] < nest.extents[loop.name]
        if cut and loop.kind is AxisKind.SPATIAL:
            loops.append(loop.name)
    at = loops.index(schedule.thread_loop) if schedule.thread_loop in loops else 0
    inp, wgt = (max(MIN_SLOTS, slots) for slots in schedule.slots)
    following = loops[(at + 1) % len(loops)]
    return replace(schedule, threads=2, thread_loop=following, slots=(inp, wgt))


OF_LOOPS: dict[str, LoopChange] = {
    "more parts": _more_parts,
    "fewer parts": _fewer_parts,
    "one place outwards": _outwards,
}
OF_ALL: dict[str, Change] = {
    "fewer slots of INP": _slots(0, -1),
    "more slots of INP": _slots(0, 1),
    "fewer slots of WGT": _slots(1, -1),
    "more slots of WGT": _slots(1, 1),
    "next thread loop": _next_thread_loop,
}
