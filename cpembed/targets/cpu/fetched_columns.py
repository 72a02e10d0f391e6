"""Lines of the second factor that are asked for while the columns before them are multiplied.

A block of columns that several tasks in turn multiply is in the second-level cache once the first
of them has read it. Where all columns together do not stay there, that one waits for lines from
farther away, and during the others none come. So each of them asks for its share of the next block,
a line in each step of the reductions (PREFETCHT1: Intel 64 and IA-32 Architectures Software
Developer's Manual, volume 2).

Measured on Ice Lake, with bytes: 1x1 filters from 1024 to 2048 channels on 14 x 14 pixels with a
stride of two take 0.88 of the time, 3x3 filters of 512 channels on 7 x 7 pixels 0.9, products of
12 x 2048 x 2048 0.83, of 100 x 2048 x 2048 0.95.
"""

from __future__ import annotations

import math

from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.kernel.nest import Nest
from cpembed.kernel.nest_text import ahead, loop_variable, nth_place, prefetch, turn
from cpembed.kernel.script import Script
from cpembed.kernel.traffic import LINE_BYTES, Reuse
from cpembed.targets.cpu.calibration import Calibration
from cpembed.transform.program import Loop

_SELDOM = 1 / 8
"""Of the lines that are asked for, how many have to come from beyond the second-level cache
(measured on Ice Lake: where it is one of eight or twelve, 0.98 to 1.01 times the time)."""


def in_turn(nest: Nest) -> int:
    """How many tasks, one after the other, multiply the same block of columns."""
    second, found = nest.operands[1], 1
    for task in reversed(nest.tasks):
        if task.name in second.access.iterators:
            break
        found *= task.count
    return found


def fetches_columns(nest: Nest, reuse: Reuse, machine: Calibration) -> bool:
    """Whether blocks of columns that several tasks multiply come from beyond the second-level
    cache, a line in each step of a column, and not seldom."""
    size, tasks = machine.cache_bytes[1], in_turn(nest)
    if not size or tasks in (1, nest.task_count) or not _is_by_lines(nest):
        return False
    steps = reuse.tasks * math.prod(loop.extent for loop in nest.reductions)
    return reuse.traffic(size)[1] >= _SELDOM * steps * _lines_a_step(nest)


def fetch_columns(script: Script, nest: Nest) -> None:
    """Ask, in a step of the reductions, for what that step of the next block's tasks reads of one
    column, or of some: of which depends on the task."""
    second, tasks = nest.operands[1], in_turn(nest)
    named = {loop.name: loop_variable(loop) for loop in nest.reductions}
    named |= {loop.name: ahead(loop.name, tasks) for loop in nest.tasks}
    inner = {loop.name for loop in nest.inner}
    outside = [term for term in second.access.terms if not inner & set(term.iterators)]
    start = IndexExpr.of(outside, second.access.constant).rename(named.__getitem__)
    columns = [(loop.extent, second.stride(loop.name)) for loop in reversed(_columns(nest))]
    count, share = math.prod(extent for extent, _ in columns), _lines_a_step(nest)
    for at in range(share):
        number = f"({turn(tasks)} * {count} // {tasks})"
        if share > 1:
            number = f"({turn(tasks)} * {share} + {at})"
        place = nth_place(str(start), number, columns)
        script.line(prefetch(f"{second.parameter}[{place}]", write=False))


def _columns(nest: Nest) -> list[Loop]:
    """Loops over the columns of a block."""
    return [loop for loop in nest.steps if nest.operands[1].stride(loop.name)]


def _lines_a_step(nest: Nest) -> int:
    """How many lines are asked for in a step, so that the tasks of a block ask for all."""
    return -(-math.prod(loop.extent for loop in _columns(nest)) // in_turn(nest))


def _is_by_lines(nest: Nest) -> bool:
    """Whether a step reads one line of each column of a block, a constant distance apart."""
    second, inner = nest.operands[1], {loop.name for loop in nest.inner}
    if not all(term.is_affine for term in second.access.terms if inner & set(term.iterators)):
        return False
    lanes = [loop for loop in nest.inner if loop not in nest.steps and second.stride(loop.name)]
    return math.prod(loop.extent for loop in lanes) * size_bytes(second.dtype) == LINE_BYTES
