"""Estimated cycles of a program whose units work in parallel, from its parts.

A *part* is a loop nest whose instructions all belong to one unit: a transfer, or the executions of
one tile. Parts are timed in the order of the text. One begins when its unit is free and the first
of what it reads is there; it ends when all of that was there; what it overwrites has been read.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.cost import executed_sizes, main_traffic, moved_bytes
from cpembed.accelerator.program import Address, Issue, Loop, Node, Program, issues_of
from cpembed.hw.isa import InstructionSet, IsaInstruction, MemoryKind, Synchronization
from cpembed.ir.index import IndexExpr

Array = NDArray[Any]

_MOST_PARTS = 6000
"""Maximum number of executions of parts that are timed; further ones are extrapolated."""

Region = tuple[str, int]
"""Memory and first row of a buffer, or of one of its copies."""


@dataclass(frozen=True)
class _Access:
    """Rows that a part touches: the first of them, and how often it passes over all of them."""

    memory: str
    base: IndexExpr
    passes: int


@dataclass(frozen=True)
class _Part:
    """A nest of one unit: its cycles, bytes and executions in every iteration around it.

    The arrays have length 1 along loops on which nothing depends; ``repeats`` is the number of
    iterations of those.
    """

    unit: str
    loops: tuple[str | None, ...]
    repeats: int
    cycles: Array
    path: Array
    count: Array
    latency: float
    reads: tuple[_Access, ...]
    writes: tuple[_Access, ...]
    accumulates: bool


@dataclass
class _State:
    """When units are free, and regions ready and released, and when the path is taken.

    Transfers that come later in the text, of another unit, may be ahead of others in time. The path
    is taken in intervals that do not overlap.
    """

    unit_free: dict[str, float]
    path_starts: list[float]
    path_ends: list[float]
    first_ready: dict[Region, float]
    last_ready: dict[Region, float]
    first_released: dict[Region, float]
    last_released: dict[Region, float]
    executed: int = 0
    busy: float = 0.0
    end: float = 0.0


def pipelined_cycles(program: Program, regions: Sequence[Region]) -> float:
    """Estimate the cycles of a program.

    Parameters
    ----------
    program : Program
    regions : sequence of (str, int)
        Memory and first row of each copy of each buffer.

    Returns
    -------
    float
        Cycles until everything has ended.
    """
    machine = program.machine
    rows: dict[str, list[int]] = {}
    for memory, row in sorted(set(regions)):
        rows.setdefault(memory, []).append(row)
    tree = [tree for node in program.body for tree in _prepared(node, (), machine, rows)]
    state = _State({}, [], [], {}, {}, {}, {})
    total = sum(_weight(node) for node in tree)
    for node in tree:
        _run(node, {}, state, rows)
    end = state.end
    if state.executed >= _MOST_PARTS:
        return end * max(1.0, total / state.busy)
    return end


_Tree = _Part | tuple[Loop, tuple[Any, ...]]


def _weight(node: _Tree) -> float:
    """Return the cycles of all executions of a node."""
    if isinstance(node, _Part):
        return node.repeats * float(np.sum(node.cycles))
    return sum(_weight(inner) for inner in node[1])


def _prepared(
    node: Node,
    outer: tuple[Loop, ...],
    machine: InstructionSet,
    rows: Mapping[str, Sequence[int]],
) -> Iterator[_Tree]:
    """Yield the parts of a node: one for each unit if its instructions compute one statement."""
    issues = list(issues_of([node]))
    units: dict[str, list[tuple[tuple[Loop, ...], Issue]]] = {}
    for loops, issue in issues:
        units.setdefault(machine.instructions[issue.instruction].unit, []).append((loops, issue))
    # Of the instructions that begin sums and those that go on, one is executed in an iteration.
    statements = {None if i.meaning is None else i.meaning.statement for _, i in issues}
    is_statement = len(statements) == 1 and None not in statements
    is_part = is_statement or (len(units) == 1 and not _hands_on(issues, outer, machine, rows))
    if isinstance(node, Issue) or is_part:
        for of_unit in units.values():
            yield _part(of_unit, outer, machine)
        return
    inner = (tree for n in node.body for tree in _prepared(n, (*outer, node), machine, rows))
    yield node, tuple(inner)


def _hands_on(
    issues: Sequence[tuple[tuple[Loop, ...], Issue]],
    outer: tuple[Loop, ...],
    machine: InstructionSet,
    rows: Mapping[str, Sequence[int]],
) -> bool:
    """True if some instruction reads the buffer that another one of them writes."""
    written: dict[Region, int] = {}
    read: list[tuple[Region, int]] = []
    for number, (inner, issue) in enumerate(issues):
        instruction = machine.instructions[issue.instruction]
        first = {loop.name: 0 for loop in (*outer, *inner)}
        for operand, address in issue.operands.items():
            memory = instruction.places[operand].memory
            if memory not in rows:
                continue
            region = _region(memory, address.base.evaluate(first), rows)
            if operand in instruction.outputs:
                written[region] = number
            else:
                read.append((region, number))
    return any(written.get(region, number) != number for region, number in read)


def _passes(address: Address, span: int, loops: Sequence[Loop]) -> int:
    """Return how often loops pass over the rows that an address walks.

    A loop that moves the address by less than the rows of one execution passes over them again.
    """
    base = address.base
    reach = {t.iterator: abs(t.coefficient) for t in base.terms if t.inner is None}
    moving = [
        n
        for n, loop in enumerate(loops)
        if loop.name in base.iterators and reach.get(loop.name, span) >= span
    ]
    outer = loops[: moving[-1]] if moving else loops
    return math.prod(loop.extent for n, loop in enumerate(outer) if n not in moving)


def _span(
    instruction: IsaInstruction, operand: str, address: Address, extents: Mapping[str, int]
) -> int:
    """Return the number of rows from the first to the last one of an operand.

    ``extents`` are the largest sizes of the axes that are arguments.
    """
    place = instruction.places[operand]
    sizes = instruction.dimension_sizes(operand, extents)
    span = 1
    for d in place.rows:
        described = place.strides.get(str(d), 1)
        stride = described if isinstance(described, int) else address.strides.get(str(d), 1)
        span += stride * (d.size(sizes[d.axis]) - 1)
    return span


def _stalls(
    instruction: IsaInstruction, issue: Issue, loops: Sequence[Loop], cycles: float
) -> float:
    """Return by how much executions take longer because they add to sums that are not ready yet.

    Sums are ready a latency after the execution that adds to them has ended. Loops inside of the
    innermost one that does not move the sums are executed in between.
    """
    if not instruction.reads_outputs or not instruction.latency_cycles or not cycles:
        return 1.0
    moving = issue.operands[instruction.outputs[0]].base.iterators
    repeated = [n for n, loop in enumerate(loops) if loop.name not in moving and loop.extent > 1]
    if not repeated:
        return 1.0
    between = cycles * math.prod(loop.extent for loop in loops[repeated[-1] + 1 :])
    outwards = reversed(loops[: repeated[-1] + 1])
    around = itertools.takewhile(lambda loop: loop.name not in moving, outwards)
    times = math.prod(loop.extent for loop in around)
    waits = max(0.0, cycles + instruction.latency_cycles - between)
    return 1.0 + waits / between * (1 - 1 / times)


def _part(
    issues: Sequence[tuple[tuple[Loop, ...], Issue]],
    outer: tuple[Loop, ...],
    machine: InstructionSet,
) -> _Part:
    everything = {name for _, issue in issues for name in issue.varying}
    shape = tuple(loop.extent if loop.name in everything else 1 for loop in outer)
    cycles, path, count = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    latency = 0.0
    reads: dict[tuple[str, str], _Access] = {}
    writes: dict[tuple[str, str], _Access] = {}
    accumulates = False
    main = machine.main
    for inner, issue in issues:
        instruction = machine.instructions[issue.instruction]
        # Loops on which neither sizes nor guards depend repeat an execution as it is.
        varying = issue.varying
        traversed = [loop for loop in (*outer, *inner) if loop.name in varying]
        repeats = math.prod(loop.extent for loop in inner if loop.name not in varying)
        executed, sizes = executed_sizes(issue, traversed, machine)
        moved = moved_bytes(instruction, machine, sizes)
        through = main_traffic(moved, machine) / main.bytes_per_cycle
        slow = np.maximum(instruction.occupied_cycles(sizes), through)
        slow = slow * _stalls(instruction, issue, inner, float(np.max(slow)))
        rest = tuple(n for n, loop in enumerate(traversed) if loop in inner)
        places = tuple(loop.extent if loop.name in varying else 1 for loop in outer)
        count += repeats * executed.sum(axis=rest).reshape(places)
        cycles += repeats * (executed * slow).sum(axis=rest).reshape(places)
        path += repeats * (executed * through).sum(axis=rest).reshape(places)
        late = instruction.latency_cycles
        if moved.get((main.name, "read")) is not None:
            late += main.latency_cycles
        latency = max(latency, late)
        zero = {loop.name: IndexExpr() for loop in inner}
        largest = {a: int(np.max(size)) for a, size in sizes.items()}
        for operand, address in issue.operands.items():
            memory = instruction.places[operand].memory
            kind = machine.memories[memory].kind if memory in machine.memories else None
            if kind is not MemoryKind.ROWS:
                continue
            target = writes if operand in instruction.outputs else reads
            base = address.base.substitute(zero)
            span = _span(instruction, operand, address, largest)
            access = _Access(memory, base, _passes(address, span, inner))
            target.setdefault((memory, str(base)), access)
        accumulates |= any(s.reduction for s in instruction.computation.statements)
    unit = machine.instructions[issues[0][1].instruction].unit
    return _Part(
        # What is executed in the order of the text is executed as by one unit.
        "" if machine.synchronization is Synchronization.IN_ORDER else unit,
        tuple(loop.name if loop.name in everything else None for loop in outer),
        math.prod(loop.extent for loop in outer if loop.name not in everything),
        cycles,
        path,
        count,
        latency,
        tuple(reads.values()),
        tuple(writes.values()),
        accumulates,
    )


def _run(
    node: _Tree, values: dict[str, int], state: _State, rows: Mapping[str, Sequence[int]]
) -> None:
    if state.executed >= _MOST_PARTS:
        return
    if isinstance(node, _Part):
        _execute(node, values, state, rows)
        return
    loop, body = node
    for value in range(loop.extent):
        values[loop.name] = value
        for inner in body:
            _run(inner, values, state, rows)
    del values[loop.name]


def _regions(
    accesses: Sequence[_Access],
    values: Mapping[str, int],
    rows: Mapping[str, Sequence[int]],
) -> list[tuple[Region, int]]:
    """Return the buffers that accesses touch, each with the number of passes."""
    return [
        (_region(access.memory, access.base.evaluate(values), rows), access.passes)
        for access in accesses
    ]


def _region(memory: str, row: int, rows: Mapping[str, Sequence[int]]) -> Region:
    """Return the buffer that a row belongs to."""
    starts = rows.get(memory, ())
    place = bisect_right(starts, row) - 1
    return memory, starts[place] if place >= 0 else -1


def _carried(state: _State, start: float, path: float) -> float:
    """Take the path for a time in the gaps that others leave, and return the end."""
    starts, ends = state.path_starts, state.path_ends
    first = last = bisect_left(ends, start)
    end = start
    while last < len(starts) and end + path > starts[last]:
        path -= max(0.0, starts[last] - end)
        end = max(end, ends[last])
        last += 1
    end += path
    # One interval takes the place of those that it joins.
    begin = min(start, starts[first]) if first < last else start
    starts[first:last], ends[first:last] = [begin], [end]
    return end


def _execute(
    part: _Part, values: Mapping[str, int], state: _State, rows: Mapping[str, Sequence[int]]
) -> None:
    at = tuple(0 if name is None else values[name] for name in part.loops)
    count = float(part.count[at])
    if not count:
        return
    cycles, path = float(part.cycles[at]), float(part.path[at])
    piece = cycles / count
    reads = _regions(part.reads, values, rows)
    writes = _regions(part.writes, values, rows)
    start = state.unit_free.get(part.unit, 0.0)
    # What is passed over several times has to be complete in the first pass, and is released, or
    # complete, in the last one.
    end = 0.0
    for region, passes in [*reads, *(writes if part.accumulates else ())]:
        start = max(start, state.first_ready.get(region, 0.0))
        end = max(end, state.last_ready.get(region, 0.0) + cycles * (1 - 1 / passes) + piece)
    for region, passes in writes:
        start = max(start, state.first_released.get(region, 0.0))
        end = max(end, state.last_released.get(region, 0.0) + cycles * (1 - 1 / passes) + piece)
    end = max(end, start + cycles)
    if path:
        end = max(end, _carried(state, start, path))
    state.unit_free[part.unit] = end
    for region, passes in reads:
        first = max(start, end - cycles / passes) + piece
        state.first_released[region] = max(state.first_released.get(region, 0.0), first)
        state.last_released[region] = max(state.last_released.get(region, 0.0), end)
    for region, passes in writes:
        state.first_ready[region] = max(start, end - cycles / passes) + piece + part.latency
        state.last_ready[region] = end + part.latency
    state.executed += 1
    state.busy += cycles
    state.end = max(state.end, end + part.latency)
