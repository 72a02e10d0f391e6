"""Software of a layer on the cores of a group: embeddings with tilings, found once for all points
that differ in bandwidth, latency and clock alone.

Of a layer the embeddings that execute the least are tiled by the neutral model
(:mod:`cpembed.machine`). What a tiling moves does not depend on bandwidths and latencies: kept are
all tilings that move no more than any other one, from which a point takes the one of the fewest
cycles *there*, by its own DMA and banks. So more banks, or a wider DMA, never take longer; nor do
twice the bytes of a scratchpad, which keeps what is best for one of the half too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.result import silent
from cpembed.errors import LoweringError, TransformError
from cpembed.exploration.cores.description import DOUBLE, SINGLE, Core, target
from cpembed.hw.machine import Hierarchy
from cpembed.ir.computation import Computation
from cpembed.machine.nest import Floats, TileNest, tile_nest
from cpembed.machine.search import best_tilings, tilings_for
from cpembed.machine.times import compute_time, memory_times
from cpembed.machine.traffic import Tilings, joined, orders
from cpembed.provenance import Provenance
from cpembed.selection.search import find_best
from cpembed.targets.family import Activity, Choice

AMONG = 64
"""The best embeddings by their overheads, whose programs take part."""

_PROGRAMS, _ALIKE = 6, 2
"""Of these, those that execute the least and are tiled, and of them those in which the same axes
feed the array in other parts."""

_REFERENCES = {
    DOUBLE: ((8, 128, 100), (8, 32, 100), (2, 512, 100), (8, 8, 2000)),
    SINGLE: ((1, 128, 100), (1, 32, 100), (8, 8, 2000)),
}
"""By software: banks of the scratchpad, bits to main memory in a cycle, and cycles until that
answers. Where there are too many tilings of the scratchpad for all tilings farther in to be
compared, those that are good for one of these go on."""

_LATEST = 10_000
"""Cycles until main memory answers at most."""

_CHUNK = 256
"""Tilings that are compared with those before them at a time."""

_SMALLEST = 1 << 17
"""Bytes of a scratchpad whose tilings larger ones take over."""

_ROWS, _KEPT = 512, 24
"""Tilings of a level that are compared in each order of the loops, and those of the scratchpad that
go on to local memories; without these all do."""


@dataclass(frozen=True)
class Scheduled:
    """An embedding's program with tilings, one a row, for one of the core's machines."""

    machine: str
    embedding: str
    family: str
    nest: TileNest
    tilings: Tilings


@dataclass(eq=False)
class CoreAnalysis:
    """Of a layer on a group: ``embeddings`` were found by the search, ``programs`` of them were
    looked at."""

    software: tuple[Scheduled, ...]
    embeddings: int
    programs: int

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_known"}

    @cached_property
    def _known(self) -> dict[Core, Choice | None]:
        """Of each point that was looked at."""
        return {}

    def best(self, core: Core) -> Choice | None:
        """The software of the fewest cycles at a point, of equals that which moves least."""
        if core not in self._known:
            self._known[core] = _best(core, self.software)
        return self._known[core]


def analyse(core: Core, workload: Computation) -> CoreAnalysis:
    """Raises :class:`LoweringError` where nothing fits."""
    found, programs = _programs(_embedded(core), workload)
    # All that an analysis does not depend on is the same.
    same = replace(core, dma_bits=128, dram_latency_cycles=100, banks=1, clock_mhz=1.0)
    software = _tiled(replace(same, technology=""), workload)
    if not software:
        raise LoweringError(
            f"{workload.name} has no software on {target(core).name}: nothing fits the scratchpad"
        )
    return CoreAnalysis(software, found, len(programs))


@lru_cache(maxsize=1024)
def _tiled(core: Core, workload: Computation) -> tuple[Scheduled, ...]:
    """Programs with their best tilings, those for the next smaller scratchpad among them: so a
    larger one never takes longer."""
    found = {(item.machine, item.embedding): [item] for item in _searched(core, workload)}
    smaller = 1 << ((core.scratchpad_bytes - 1).bit_length() - 1)
    if smaller >= _SMALLEST:
        for item in _tiled(replace(core, scratchpad_bytes=smaller), workload):
            found.setdefault((item.machine, item.embedding), []).append(item)
    return tuple(
        replace(
            items[0],
            tilings=_undominated(
                joined([item.tilings for item in items]), _machine(core, items[0].machine)
            ),
        )
        for items in found.values()
    )


def _searched(core: Core, workload: Computation) -> Iterator[Scheduled]:
    """Tilings of programs that can be the fastest at some point of the group."""
    fewest = float("inf")
    for program in _programs(_embedded(core), workload)[1]:
        if core.intrinsic.cycles * program.nest.calls > fewest:
            return
        for name, references in _REFERENCES.items():
            machines = [
                _machine(
                    replace(core, banks=banks, dma_bits=bits, dram_latency_cycles=latency), name
                )
                for banks, bits, latency in references
            ]
            kept = _KEPT if core.local_bytes else _ROWS * len(orders(program.nest)[0])
            try:
                found = tilings_for(program.nest, machines, _ROWS, kept)
            except TransformError:
                continue
            tilings = _undominated(found, machines[0])
            if name == SINGLE:
                # With more executions than the slowest point takes cycles a program is no better.
                slowest = replace(core, banks=1, dma_bits=8, dram_latency_cycles=_LATEST)
                total, _ = _cycles(tilings, program.nest, _machine(slowest, name))
                fewest = min(fewest, float(total.min()))
            yield Scheduled(name, program.embedding, program.family, program.nest, tilings)


def _undominated(tilings: Tilings, machine: Hierarchy) -> Tilings:
    """Without rows that move no less than another one to and from any memory, in no fewer
    transfers, and whose first tile and waiting take no less: they take no less time, whatever
    bandwidths and latencies are."""
    return tilings.taken(_front(np.stack(list(_paid(tilings, machine)), axis=1)))


def _paid(tilings: Tilings, machine: Hierarchy) -> Iterator[Floats]:
    """What time depends on beside bandwidths and latencies, that of a memory as far as it is
    added up there."""
    yield tilings.waits
    yield math.prod(tilings.stages[0].sizes.values(), start=np.ones(tilings.rows))
    for traffic in (tilings.traffic, tilings.first):
        for memory in machine.memories.values():
            below = [
                traffic[m.name]
                for m in machine.memories.values()
                if m.parent == memory.name and m.name in traffic
            ]
            if not below:
                continue
            read = sum((t.read_bytes for t in below), start=np.zeros(tilings.rows))
            written = sum((t.write_bytes for t in below), start=np.zeros(tilings.rows))
            reads = sum((t.read_transfers for t in below), start=np.zeros(tilings.rows))
            writes = sum((t.write_transfers for t in below), start=np.zeros(tilings.rows))
            yield from (read + written,) if memory.half_duplex else (read, written)
            if memory.latency_cycles:
                yield from (reads + writes,) if memory.half_duplex else (reads, writes)


def _front(table: Floats) -> NDArray[np.intp]:
    """Rows that no other one is at most in all columns, ascending; of equal ones the first."""
    _, first = np.unique(table, axis=0, return_index=True)
    scaled = table[first] / np.maximum(table.max(axis=0), 1.0)
    # None is dominated by one that comes after it.
    order = first[np.lexsort((first, scaled.sum(axis=1)))]
    front = np.empty((0, table.shape[1]))
    rows = list[NDArray[np.intp]]()
    for begin in range(0, len(order), _CHUNK):
        chunk = order[begin : begin + _CHUNK]
        own = table[chunk]
        no_better = np.all(front[None, :, :] <= own[:, None, :], axis=2)
        left = ~np.any(no_better, axis=1)
        chunk, own = chunk[left], own[left]
        # Each is no worse than itself.
        no_worse = np.all(own[:, None, :] <= own[None, :, :], axis=2)
        alone = np.sum(no_worse, axis=0) == 1
        rows.append(chunk[alone])
        front = np.concatenate([front, own[alone]])
    return np.sort(np.concatenate(rows))


@dataclass(frozen=True)
class _Program:
    """``fed``: the sets of workload axes that feed the array."""

    embedding: str
    family: str
    fed: frozenset[frozenset[str]]
    nest: TileNest


@dataclass(frozen=True)
class _Embedded:
    """What embeddings depend on; ``core`` has other figures than those that are compared."""

    key: tuple[object, ...]
    core: Core = field(compare=False)


def _embedded(core: Core) -> _Embedded:
    key = (core.intrinsic_name, core.rows, core.columns, core.dataflow, core.dtype)
    return _Embedded((*key, core.constraints), core)


@lru_cache(maxsize=1024)
def _programs(embedded: _Embedded, workload: Computation) -> tuple[int, tuple[_Program, ...]]:
    """How many embeddings there are, and programs of the best of them that differ in what they
    execute or move, those of the fewest executions first."""
    count, found = _distinct(embedded.core, workload, AMONG)
    alike: Counter[object] = Counter()
    tiled: list[_Program] = []
    for program in found:
        alike[program.fed] += 1
        if alike[program.fed] <= _ALIKE:
            tiled.append(program)
    return count, tuple(tiled[:_PROGRAMS])


def _distinct(core: Core, workload: Computation, top: int | None) -> tuple[int, list[_Program]]:
    best = find_best(
        workload,
        target(core).instruction,
        load_constraint_set(core.constraints),
        top,
        SearchLimits(),
        silent,
    )
    found: dict[object, _Program] = {}
    for ranked in best.ranking.candidates:
        nest = tile_nest(ranked.candidate.program, _machine(core, DOUBLE).layouts)
        families = ranked.candidate.embedding.family
        words = " ".join(f"{axis}:{'*'.join(fed) or '-'}" for axis, fed in families.items())
        fed = frozenset(frozenset(axes) for axes in families.values())
        program = _Program(ranked.candidate.identifier, words, fed, nest)
        found.setdefault(_form(nest, families, core), program)
    if not found:
        raise LoweringError(
            f"{workload.name} has no embedding on {target(core).name} under {core.constraints}"
        )
    return len(best.found.embeddings), sorted(found.values(), key=lambda own: own.nest.calls)


def survey(core: Core, workload: Computation) -> list[tuple[str, float]]:
    """All embeddings whose programs differ, each with the cycles of its best tiling at a point.

    Raises :class:`LoweringError` where there is none.
    """
    found: list[tuple[str, float]] = []
    for program in _distinct(core, workload, None)[1]:
        times: list[float] = []
        for name in (SINGLE,) if core.banks == 1 else (SINGLE, DOUBLE):
            machine = _machine(core, name)
            with suppress(TransformError):
                best = best_tilings(program.nest, machine, _ROWS).tilings
                times.append(float(_cycles(best, program.nest, machine)[0][0]))
        if times:
            found.append((program.family, min(times)))
    return found


def _form(nest: TileNest, families: Mapping[str, tuple[str, ...]], core: Core) -> object:
    """Equal for nests that take as long on any machine: factors may stand in each other's place
    where the registers of both have the same size."""
    new = {axis: f"<{'*'.join(fed)}:{axis if not fed else ''}>" for axis, fed in families.items()}

    def name(own: str) -> str:
        return new.get(own, own)

    sizes = {f"core.{role.name.lower()}": role for role in core.intrinsic.roles}
    return (
        nest.loops,
        nest.executed,
        tuple(sorted((name(axis), extent) for axis, extent in nest.axes.items())),
        frozenset(
            (
                operand.name,
                core.tile_bytes(sizes[operand.scope].name),
                sizes[operand.scope].name == core.intrinsic.stationary,
                tuple((str(index.rename(name)), extent) for index, extent in operand.dimensions),
            )
            for operand in nest.operands
        ),
    )


def _machine(core: Core, name: str) -> Hierarchy:
    return target(core).machines[name]


def _cycles(
    tilings: Tilings, nest: TileNest, machine: Hierarchy
) -> tuple[Floats, dict[str, Floats]]:
    """Cycles of tilings, and bytes by memory and direction as :class:`Activity` counts them: those
    of a memory's own transfers to and from the one that fills it are among them."""
    total = compute_time(tilings, nest, machine).longest
    counts: dict[str, Floats] = {}
    for found in memory_times(tilings, nest, machine, total):
        total = found.together
        counts[f"{found.memory}.read"] = found.read_bytes
        counts[f"{found.memory}.written"] = found.written_bytes
    for memory in machine.memories.values():
        if memory.parent is None or f"{memory.name}.read" not in counts:
            continue
        own = tilings.traffic[memory.name]
        counts[f"{memory.name}.written"] = counts[f"{memory.name}.written"] + own.read_bytes
        counts[f"{memory.name}.read"] = counts[f"{memory.name}.read"] + own.write_bytes
    return total, counts


def _best(core: Core, software: tuple[Scheduled, ...]) -> Choice | None:
    found: list[tuple[tuple[float, float], Choice]] = []
    for number, item in enumerate(software):
        if item.machine == DOUBLE and core.banks == 1:
            continue
        total, counts = _cycles(item.tilings, item.nest, _machine(core, item.machine))
        times = np.round(total, 6)
        moved = sum(counts.values(), start=np.zeros(1))
        row = int(np.lexsort((np.broadcast_to(moved, times.shape), times))[0])
        figures = {name: _at(values, row) for name, values in counts.items()}
        figures["macs"] = item.nest.calls * core.intrinsic.macs
        activity = Activity(float(total[row]), Provenance.ESTIMATED, figures)
        words = f"{item.embedding} ({item.family}), {_tiles(item, row)}"
        choice = Choice(f"{number}.{row}", words, None, activity)
        found.append(((float(times[row]), _at(moved, row)), choice))
    return min(found, key=lambda item: item[0])[1] if found else None


def _at(values: Floats, row: int) -> float:
    return float(values[row] if len(values) > 1 else values[0])


def _tiles(item: Scheduled, row: int) -> str:
    """The tile that the scratchpad holds, in words."""
    sizes = item.tilings.stages[0].sizes
    shown = [f"{name.removesuffix('.o')}:{_at(size, row):g}" for name, size in sizes.items()]
    return f"{item.machine.replace('_', '-')}, scratchpad tile {' '.join(shown) or 'whole'}"
