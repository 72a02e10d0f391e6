"""Lines of the first factor that are asked for a task ahead.

Where a core's caches do not hold the rows that the next task begins with, these come line after
line from farther away: every row is a new place, which the CPU foresees only after its first few
lines, and rows are short. So each step of the reductions asks for a line of what the next task
reads in that step (PREFETCHT1: Intel 64 and IA-32 Architectures Software Developer's Manual,
volume 2), into the second-level cache, which has room beside what the present one reads.

Measured on Zen 4: a product of 512 x 64 x 512 in bfloat16, 16 times, 2.84 ms without and 2.58 with
it (blocks of 4 x 4; of 8 x 2 3.41 and 2.62), of which 2.31 are products; 1x1 filters from 64 to 256
channels on 56 x 56 pixels 252 us and 232.
"""

from __future__ import annotations

import math

from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.kernel.nest import Nest
from cpembed.kernel.nest_text import ahead, loop_variable, nth_place, prefetch
from cpembed.kernel.script import Script
from cpembed.kernel.traffic import LINE_BYTES, Reuse
from cpembed.targets.cpu.calibration import Calibration
from cpembed.transform.program import Loop

_SELDOM = 1 / 16
"""Of the lines that are asked for, how many have to come from beyond the second-level cache: others
are in it already, and asking takes time (measured on Zen 4: 1024 x 1024 x 64 in bfloat16, where it
is one in a hundred, 1.07 times the time)."""


def fetches_rows(nest: Nest, reuse: Reuse, machine: Calibration) -> bool:
    """Whether the first factor comes from beyond the second-level cache, each line of it for
    several steps of a reduction, and not seldom."""
    size, along = machine.cache_bytes[1], _along(nest)
    if not size or along is None:
        return False
    steps = reuse.tasks * math.prod(loop.extent for loop in nest.reductions)
    return reuse.traffic(size)[0] >= _SELDOM * steps * _lines_a_step(nest, along)


def fetch_rows(script: Script, nest: Nest) -> None:
    """Ask, in a step of the reductions, for some of the lines that it reads a task later."""
    first, along = nest.operands[0], _along(nest)
    assert along is not None
    reductions = {loop.name: loop_variable(loop) for loop in nest.reductions}
    tasks = {loop.name: ahead(loop.name, 1) for loop in nest.tasks}
    inner = {loop.name for loop in nest.inner}
    outside = [t for t in first.access.terms if not inner & set(t.iterators)]
    named = {**tasks, **reductions}
    start = IndexExpr.of(outside, first.access.constant).rename(named.__getitem__)
    rows = [(loop.extent, first.stride(loop.name)) for loop in nest.spatial_inner]
    rows = [(extent, distance) for extent, distance in rows if distance]
    count = math.prod(extent for extent, _ in rows)
    each = min(_steps_a_line(nest, along), along.extent)
    for at in range(_lines_a_step(nest, along)):
        number = f"({loop_variable(along)} % {each} + {at * each})"
        # Rather a line again than a branch (1x1 filters from 64 to 256 channels on 56 x 56 pixels:
        # 252 us without any of this, 232 so, 242 with a branch).
        if count < each * (at + 1):
            number = f"T.min({number}, {count - 1})"
        place = nth_place(str(start), number, rows[::-1])
        script.line(prefetch(f"{first.parameter}[{place}]", write=False))


def _lines_a_step(nest: Nest, along: Loop) -> int:
    """How many lines are asked for in a step, some of them again."""
    first = nest.operands[0]
    count = math.prod(o.extent for o in nest.spatial_inner if first.stride(o.name))
    return -(-count // min(_steps_a_line(nest, along), along.extent))


def _along(nest: Nest) -> Loop | None:
    """The innermost reduction that walks along the first factor's lines; None without one, and
    where rows are no constant distance apart."""
    inner = {loop.name for loop in nest.inner}
    terms = nest.operands[0].access.terms
    if not all(term.is_affine for term in terms if inner & set(term.iterators)):
        return None
    return next((o for o in reversed(nest.reductions) if _steps_a_line(nest, o) > 1), None)


def _steps_a_line(nest: Nest, loop: Loop) -> int:
    """How many steps of a reduction read the same line; 0 where that is no number."""
    first = nest.operands[0]
    distance = abs(first.stride(loop.name)) * size_bytes(first.dtype)
    return 0 if not distance or LINE_BYTES % distance else LINE_BYTES // distance
