"""Software prefetch of A, B and C: lines that a kernel requests before it needs them.

Each pass annotates a nest where requests pay off, by the traffic beyond the second-level cache.
Lines go into that cache (LLVM's ``prefetch``; PREFETCHT1 and PREFETCHW on x86), a few in each step
of the reductions, because loads wait behind requests that are issued all at once.

- A, the first factor, a task ahead: every row of the next task is at a new place, which hardware
  prefetch recognises only after its first few lines, and rows are short.
- B, the second factor, while the columns before are multiplied: a register tile of columns that
  several tasks multiply in turn is near once the first of them has read it. Each requests its share
  of the next one.
- C, the results, before they are stored: a store to a line that is in no near cache waits for it,
  and few stores can wait at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cpembed.codegen.instruction import bind_task, loop_variable
from cpembed.codegen.nest import KernelOperand, Nest, Prefetch
from cpembed.codegen.plan import Script
from cpembed.codegen.traffic import Reuse
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import Loop

# The compiler unrolls some of so few steps, and a branch in each makes it spill what they loaded.
# Measured on Ice Lake, time relative to a branch: 7x7 filters of 3 channels with a stride of two,
# 42 steps and 24 lines, 0.86; 5x20 filters of one channel, 25 and 22, 0.8 to 0.9; 1x1 filters of
# 256 channels, 64 and 24, 1.07; 3x3 filters of 288 channels, 648 and 24, 1.02.
_FEW_STEPS = 48
"""Maximum number of steps of which surplus ones request the last line again, without a branch."""

# Writes use PREFETCHW whatever the cache is.
_INTO_SECOND_LEVEL, _DATA = 2, 1
"""Arguments of LLVM's prefetch: the cache, and that the lines hold no instructions."""


def prefetch_a(nest: Nest, reuse: Reuse, cache_bytes: int, least: float) -> Nest:
    """Prefetch the first factor if it comes from beyond a cache, each line for several steps.

    Parameters
    ----------
    nest, reuse : Nest, Reuse
        Nest with register tiles, and its footprints.
    cache_bytes : int
        Size of the cache; 0 if unknown, and nothing is prefetched.
    least : float
        Minimum share of the requested lines that really come from beyond the cache.
    """
    along = _along(nest)
    if not cache_bytes or along is None:
        return nest
    requested = _steps(nest, reuse) * _a_lines(nest, along)
    return _annotated(nest, Prefetch.A, reuse.traffic(cache_bytes)[0] >= least * requested)


def prefetch_b(nest: Nest, reuse: Reuse, cache_bytes: int, least: float) -> Nest:
    """Prefetch tiles of columns that several tasks multiply, if they come from beyond a cache.

    A step has to read one line of each column.

    Parameters
    ----------
    nest, reuse, cache_bytes, least
        Those of :func:`prefetch_a`.
    """
    tasks = tasks_in_turn(nest)
    # A single task has no turns to share the requests among; if all tasks multiply the same
    # columns, there are no next ones.
    if not cache_bytes or tasks in (1, nest.task_count) or not _is_by_lines(nest):
        return nest
    requested = _steps(nest, reuse) * _b_lines(nest)
    return _annotated(nest, Prefetch.B, reuse.traffic(cache_bytes)[1] >= least * requested)


def prefetch_c(nest: Nest, reuse: Reuse, cache_bytes: int) -> Nest:
    """Prefetch results that go beyond a cache, if a task stores full lines.

    Parameters
    ----------
    nest, reuse, cache_bytes
        Those of :func:`prefetch_a`.
    """
    far = bool(cache_bytes and reuse.traffic(cache_bytes)[2])
    return _annotated(nest, Prefetch.C, far and bool(_result_lines(nest)))


def write_prefetches(script: Script, nest: Nest) -> None:
    """Write the requests of a step of the reductions."""
    writers = {Prefetch.A: _write_a, Prefetch.B: _write_b, Prefetch.C: _write_c}
    for operand, write in writers.items():
        if operand in nest.prefetched:
            write(script, nest)


def bind_prefetched(script: Script, nest: Nest, end: str) -> None:
    """Bind the iterators of the tasks that a step prefetches for: :func:`ahead` and :func:`turn`.

    Parameters
    ----------
    script, nest : Script, Nest
        Text to write to, and nest with its annotations.
    end : str
        End of the tasks; the last one is prefetched for again instead of those beyond.
    """
    distances = {Prefetch.A: 1, Prefetch.B: tasks_in_turn(nest)}
    for tasks in {distances[operand] for operand in distances if operand in nest.prefetched}:
        task = f"T.min(task + {tasks}, {end} - 1)"
        bind_task(script, nest, task, lambda name, tasks=tasks: ahead(name, tasks))
        if tasks > 1:
            script.line(f"{turn(tasks)} = T.axis.spatial({tasks}, task % {tasks})")


def ahead(loop: str, tasks: int) -> str:
    """Return the name of a task loop's iterator for the task that comes ``tasks`` later."""
    return f"{loop}_ahead_{tasks}"


def turn(tasks: int) -> str:
    """Return the name of a task's position among ``tasks`` that multiply the same columns."""
    return f"turn_of_{tasks}"


def tasks_in_turn(nest: Nest) -> int:
    """Return the number of consecutive tasks that multiply the same tile of columns."""
    second, tasks = nest.operands[1], 1
    for task in reversed(nest.tasks):
        if task.name in second.access.iterators:
            break
        tasks *= task.count
    return tasks


def _write_a(script: Script, nest: Nest) -> None:
    first, along = nest.operands[0], _along(nest)
    assert along is not None
    start = _start(nest, first, 1)
    rows = [(o.extent, first.stride(o.name)) for o in nest.spatial_inner if first.stride(o.name)]
    count = math.prod(extent for extent, _ in rows)
    each = min(_steps_a_line(nest, along), along.extent)
    for at in range(_a_lines(nest, along)):
        number = f"({loop_variable(along)} % {each} + {at * each})"
        # Surplus steps request a line again, which is faster than a branch (1x1 filters from 64 to
        # 256 channels on 56 x 56 pixels: 252 us without prefetch, 232 so, 242 with a branch).
        if count < each * (at + 1):
            number = f"T.min({number}, {count - 1})"
        request_line(script, first.parameter, _nth(start, number, rows[::-1]))


def _write_b(script: Script, nest: Nest) -> None:
    """Prefetch a step's share of the columns that the next tile's tasks read."""
    second, tasks = nest.operands[1], tasks_in_turn(nest)
    start = _start(nest, second, tasks)
    columns = [(loop.extent, second.stride(loop.name)) for loop in reversed(_columns(nest))]
    count, share = math.prod(extent for extent, _ in columns), _b_lines(nest)
    for at in range(share):
        number = f"({turn(tasks)} * {count} // {tasks})"
        if share > 1:
            number = f"({turn(tasks)} * {share} + {at})"
        request_line(script, second.parameter, _nth(start, number, columns))


def _write_c(script: Script, nest: Nest) -> None:
    """Request a step's share of the lines of a task's results."""
    output, inner = nest.operands[2], {loop.name for loop in nest.spatial_inner}
    outside = [t for t in output.access.terms if not inner & set(t.iterators)]
    first = str(IndexExpr.sum(outside, output.access.constant))
    lines = _result_lines(nest)
    count = math.prod(extent for extent, _ in lines)
    steps = math.prod(loop.extent for loop in nest.reductions)
    share = -(-count // steps)
    # Number of the step, over all reductions.
    step = "0"
    for loop in nest.reductions:
        step = f"({step}) * {loop.extent} + {loop_variable(loop)}"
    for at in range(share):
        number, conditions = f"(({step}) * {share} + {at})", list[str]()
        if count < steps <= _FEW_STEPS:
            number = f"T.min({number}, {count - 1})"
        elif steps * share > count:
            conditions = [f"if {number} < {count}:"]
        with script.nested(*conditions):
            request_line(script, output.parameter, _nth(first, number, lines), write=True)


def _annotated(nest: Nest, operand: Prefetch, pays: bool) -> Nest:
    return replace(nest, prefetched=nest.prefetched | {operand}) if pays else nest


def _steps(nest: Nest, reuse: Reuse) -> float:
    """Return the number of steps of the reductions in all tasks of a thread."""
    return reuse.tasks * math.prod(loop.extent for loop in nest.reductions)


def _start(nest: Nest, factor: KernelOperand, tasks: int) -> str:
    """Return the index at which a factor's inner loops begin, ``tasks`` later, in the same step."""
    named = {loop.name: loop_variable(loop) for loop in nest.reductions}
    named |= {loop.name: ahead(loop.name, tasks) for loop in nest.tasks}
    inner = {loop.name for loop in nest.inner}
    outside = [term for term in factor.access.terms if not inner & set(term.iterators)]
    return str(IndexExpr.sum(outside, factor.access.constant).rename(named.__getitem__))


def _nth(start: str, number: str, loops: Iterable[tuple[int, int]]) -> str:
    """Return the ``number``-th place over loops of ``(extent, distance)``, the innermost first.

    Past the last place it begins again.
    """
    place, inside = start, 1
    for extent, distance in loops:
        place += f" + {number} // {inside} % {extent} * {distance}"
        inside *= extent
    return place


def request_line(script: Script, buffer: str, place: str, *, write: bool = False) -> None:
    """Write the request of a line into the second-level cache.

    Parameters
    ----------
    script : Script
    buffer, place : str
        Buffer and place of an element in the line.
    write : bool
        Request the line to write it.
    """
    number = 'T.llvm_lookup_intrinsic_id("llvm.prefetch")'
    address = f"T.address_of({buffer}[{place}])"
    arguments = f"{address}, {int(write)}, {_INTO_SECOND_LEVEL}, {_DATA}"
    script.line(f'T.evaluate(T.call_llvm_intrin({number}, {arguments}, dtype="void"))')


def _along(nest: Nest) -> Loop | None:
    """Return the innermost reduction that walks along the first factor's lines.

    None if there is none, or if rows are no constant distance apart.
    """
    inner = {loop.name for loop in nest.inner}
    terms = nest.operands[0].access.terms
    if not all(term.is_affine for term in terms if inner & set(term.iterators)):
        return None
    return next((o for o in reversed(nest.reductions) if _steps_a_line(nest, o) > 1), None)


def _steps_a_line(nest: Nest, loop: Loop) -> int:
    """Return the number of steps of a reduction that read the same line of A; 0 if it varies."""
    first = nest.operands[0]
    distance = abs(first.stride(loop.name)) * size_bytes(first.dtype)
    return 0 if not distance or nest.line_bytes % distance else nest.line_bytes // distance


def _a_lines(nest: Nest, along: Loop) -> int:
    """Return the number of lines of A that a step requests, some of them again."""
    first = nest.operands[0]
    count = math.prod(o.extent for o in nest.spatial_inner if first.stride(o.name))
    return -(-count // min(_steps_a_line(nest, along), along.extent))


def _columns(nest: Nest) -> Sequence[Loop]:
    """Return the loops over the columns of a register tile."""
    return [loop for loop in nest.steps if nest.operands[1].stride(loop.name)]


def _b_lines(nest: Nest) -> int:
    """Return the number of lines of B that a step requests, so that a tile's tasks request all."""
    return -(-math.prod(loop.extent for loop in _columns(nest)) // tasks_in_turn(nest))


def _is_by_lines(nest: Nest) -> bool:
    """Return True if a step reads one line of each column of a tile, a constant distance apart."""
    second, inner = nest.operands[1], {loop.name for loop in nest.inner}
    if not all(term.is_affine for term in second.access.terms if inner & set(term.iterators)):
        return False
    axes = [loop for loop in nest.inner if loop not in nest.steps and second.stride(loop.name)]
    return math.prod(loop.extent for loop in axes) * size_bytes(second.dtype) == nest.line_bytes


def _result_lines(nest: Nest) -> list[tuple[int, int]]:
    """Return (number, distance in elements) of the lines of a task's results, the nearest first.

    Empty if results are no full lines, or an access is not affine.
    """
    output, loops = nest.operands[2], nest.spatial_inner
    names = {loop.name for loop in loops}
    terms = [term for term in output.access.terms if names & set(term.iterators)]
    if not all(term.is_affine for term in terms):
        return []
    contiguous, strided = 1, list[tuple[int, int]]()
    # From the nearest loop on: those that continue a run of neighbours make it longer.
    for distance, extent in sorted((abs(output.stride(o.name)), o.extent) for o in loops):
        if distance == contiguous and not strided:
            contiguous *= extent
        else:
            strided.append((extent, distance))
    per_line = nest.line_bytes // size_bytes(output.dtype)
    return [] if contiguous % per_line else [(contiguous // per_line, per_line), *strided]
