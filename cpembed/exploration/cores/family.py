"""The family of cores: embeddings and tilings of a layer, searched once for a group of points.

The points of a group differ in bandwidth, latency and clock alone. The embeddings that execute the
least are tiled by the neutral model (:mod:`cpembed.cost.machine`); a memory holds the tiles of all
operands at one place, where ``solve --estimate`` may hold slices of one inside another's. An
analysis holds all tilings
that move no more than any other one, and a point takes the one of the fewest cycles by its own DMA
and banks. So more banks, or a wider DMA, never take longer; nor does a scratchpad of twice the
size, from 64 KiB, which inherits the tilings of the smaller one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.nest import ExecutionNest, Floats, execution_nest
from cpembed.cost.machine.sampling import tilings_for
from cpembed.cost.machine.times import compute_time, memory_times
from cpembed.cost.machine.traffic import Tilings, joined, orders
from cpembed.cost.search import find_best
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.cpsat import SearchLimits
from cpembed.errors import LoweringError, SpecError, TransformError
from cpembed.exploration.cores.description import (
    DOUBLE,
    SINGLE,
    Core,
    Silicon,
    read_core,
    specification_text,
    target,
)
from cpembed.hw.machine import Hierarchy
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.steps import silent
from cpembed.targets.family import Activity, Choice, Costs, Family, Parameter, Point
from cpembed.workloads.suites import Layer

CANDIDATES = 64
"""Number of the best embeddings by their overheads whose programs are candidates."""

_PROGRAMS, _SAME_FEEDS = 6, 2
"""Maximum number of candidates that are tiled, those that execute the least first, and of them
those in which the same axes feed the array in other parts."""

_REFERENCES = {
    DOUBLE: ((8, 128, 100), (8, 32, 100), (2, 512, 100), (8, 8, 2000)),
    SINGLE: ((1, 128, 100), (1, 32, 100), (8, 8, 2000)),
}
"""Reference machines by software: banks of the scratchpad, bits to main memory in a cycle, and
cycles until that answers. Where there are too many tilings of the scratchpad to compare all tilings
of local memories for each, only those that are good for one of these machines are refined."""

_MAX_LATENCY = 10_000
"""Maximum number of cycles until main memory answers."""

_CHUNK = 256
"""Number of tilings that are compared with earlier ones at a time, which bounds memory."""

_INHERITED_BYTES = 1 << 16
"""Minimum size in bytes of a scratchpad whose tilings a larger one inherits."""

_ROWS, _REFINED = 512, 24
"""Maximum number of tilings of a level that are compared in each order of the loops, and of those
of the scratchpad that are refined for local memories; without such memories all remain."""


@dataclass(frozen=True)
class Scheduled:
    """An embedding's program with tilings, one a row, for one of the core's machines."""

    machine: str
    embedding: str
    family: str
    nest: ExecutionNest
    tilings: Tilings


@dataclass(eq=False)
class CoreAnalysis:
    """The software of a layer on a group of points.

    ``embeddings`` is the number that the search found, ``programs`` the number that were tiled.
    """

    software: tuple[Scheduled, ...]
    embeddings: int
    programs: int

    # Choices of points are cached in the instance; a worker need not send them.
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_best"}

    @cached_property
    def _best(self) -> dict[Core, Choice | None]:
        """The best software of points that were looked at."""
        return {}

    def best(self, core: Core) -> Choice | None:
        """Return the software of the fewest cycles at a point, of equals that which moves least."""
        if core not in self._best:
            self._best[core] = _best(core, self.software)
        return self._best[core]


def analyse(core: Core, workload: Computation) -> CoreAnalysis:
    """Return the software of a layer; raise :class:`LoweringError` where nothing fits."""
    embeddings, programs = _programs(_embedded(core), workload)
    # Parameters on which an analysis does not depend are made equal, so that points share it.
    shared = replace(core, dma_bits=128, dram_latency_cycles=100, banks=1, clock_mhz=1.0)
    software = _tiled(replace(shared, technology=""), workload)
    if not software:
        raise LoweringError(
            f"{workload.name} has no software on {target(core).name}: nothing fits the scratchpad"
        )
    return CoreAnalysis(software, embeddings, len(programs))


@lru_cache(maxsize=1024)
def _tiled(core: Core, workload: Computation) -> tuple[Scheduled, ...]:
    """Return programs with their best tilings."""
    scheduled = {(item.machine, item.embedding): [item] for item in _search(core, workload)}
    # Tilings for the next smaller scratchpad too: sizes are sampled, and without them a larger
    # scratchpad could take longer.
    smaller = 1 << ((core.scratchpad_bytes - 1).bit_length() - 1)
    if smaller >= _INHERITED_BYTES:
        for item in _tiled(replace(core, scratchpad_bytes=smaller), workload):
            scheduled.setdefault((item.machine, item.embedding), []).append(item)
    return tuple(
        replace(
            items[0],
            tilings=_undominated(
                joined([item.tilings for item in items]), _machine(core, items[0].machine)
            ),
        )
        for items in scheduled.values()
    )


def _search(core: Core, workload: Computation) -> Iterator[Scheduled]:
    """Yield programs that can be the fastest at some point of the group, with their tilings."""
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
            refined = _REFINED if core.local_bytes else _ROWS * len(orders(program.nest))
            try:
                tilings = tilings_for(program.nest, machines, _ROWS, refined)
            except TransformError:
                continue
            tilings = _undominated(tilings, machines[0])
            if name == SINGLE:
                # A program with more executions than the slowest point takes cycles is no better.
                slowest = replace(core, banks=1, dma_bits=8, dram_latency_cycles=_MAX_LATENCY)
                total, _ = _cycles(tilings, program.nest, _machine(slowest, name))
                fewest = min(fewest, float(total.min()))
            yield Scheduled(name, program.embedding, program.family, program.nest, tilings=tilings)


def _undominated(tilings: Tilings, machine: Hierarchy) -> Tilings:
    """Drop tilings that take no less time than another one at every point of the group."""
    # Bytes and transfers of a tiling depend on no bandwidth or latency, and the points differ in
    # these alone. One that moves no less to and from any memory, in no fewer transfers, and whose
    # first tile and waiting take no less, is therefore never faster.
    return tilings.select(_front(np.stack(list(_time_factors(tilings, machine)), axis=1)))


def _time_factors(tilings: Tilings, machine: Hierarchy) -> Iterator[Floats]:
    """Yield the quantities on which time depends besides bandwidths and latencies.

    Those of a memory are added up as far as its times are.
    """
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
    """Return the rows that no other row is below or equals in all columns, ascending.

    Of equal rows the first is returned.
    """
    _, first = np.unique(table, axis=0, return_index=True)
    scaled = table[first] / np.maximum(table.max(axis=0), 1.0)
    # A row has a smaller sum than those that it dominates, so none is dominated by a later one.
    order = first[np.lexsort((first, scaled.sum(axis=1)))]
    front = np.empty((0, table.shape[1]))
    rows = list[NDArray[np.intp]]()
    for begin in range(0, len(order), _CHUNK):
        chunk = order[begin : begin + _CHUNK]
        values = table[chunk]
        dominated = np.any(np.all(front[None, :, :] <= values[:, None, :], axis=2), axis=1)
        chunk, values = chunk[~dominated], values[~dominated]
        no_worse = np.all(values[:, None, :] <= values[None, :, :], axis=2)
        # Each row is no worse than itself.
        undominated = np.sum(no_worse, axis=0) == 1
        rows.append(chunk[undominated])
        front = np.concatenate([front, values[undominated]])
    return np.sort(np.concatenate(rows))


@dataclass(frozen=True)
class _Program:
    """A program of an embedding; ``fed`` are the sets of workload axes that feed the array."""

    embedding: str
    family: str
    fed: frozenset[frozenset[str]]
    nest: ExecutionNest


@dataclass(frozen=True)
class _Embedded:
    """A core, compared by the parameters on which embeddings depend."""

    key: tuple[object, ...]
    core: Core = field(compare=False)


def _embedded(core: Core) -> _Embedded:
    key = (core.intrinsic_name, core.rows, core.columns, core.dataflow, core.dtype)
    return _Embedded((*key, core.constraints), core)


@lru_cache(maxsize=1024)
def _programs(embedded: _Embedded, workload: Computation) -> tuple[int, tuple[_Program, ...]]:
    """Return the number of embeddings, and distinct programs, fewest executions first."""
    count, programs = _distinct(embedded.core, workload, CANDIDATES)
    # Programs whose array is fed from the same axes differ little, so they would crowd out others.
    same_feeds: Counter[object] = Counter()
    tiled: list[_Program] = []
    for program in programs:
        same_feeds[program.fed] += 1
        if same_feeds[program.fed] <= _SAME_FEEDS:
            tiled.append(program)
    return count, tuple(tiled[:_PROGRAMS])


def _distinct(core: Core, workload: Computation, top: int | None) -> tuple[int, list[_Program]]:
    best = find_best(
        Pairing(workload, target(core).instruction),
        load_constraint_set(core.constraints),
        top,
        SearchLimits(),
        silent,
    )
    programs: dict[object, _Program] = {}
    for ranked in best.ranking.candidates:
        nest = execution_nest(ranked.candidate.program, _machine(core, DOUBLE).layouts)
        families = ranked.candidate.embedding.family
        family = " ".join(f"{axis}:{'*'.join(fed) or '-'}" for axis, fed in families.items())
        fed = frozenset(frozenset(axes) for axes in families.values())
        program = _Program(ranked.candidate.identifier, family, fed, nest)
        programs.setdefault(_form(nest, families, core), program)
    if not programs:
        raise LoweringError(
            f"{workload.name} has no embedding on {target(core).name} under {core.constraints}"
        )
    return len(best.search.embeddings), sorted(
        programs.values(), key=lambda program: program.nest.calls
    )


def survey(core: Core, workload: Computation) -> list[tuple[str, float]]:
    """Return all embeddings whose programs differ, each with the cycles of its best tiling.

    Raises :class:`LoweringError` where there is none.
    """
    surveyed: list[tuple[str, float]] = []
    for program in _distinct(core, workload, None)[1]:
        times: list[float] = []
        for name in (SINGLE,) if core.banks == 1 else (SINGLE, DOUBLE):
            machine = _machine(core, name)
            with suppress(TransformError):
                tilings = tilings_for(program.nest, [machine], _ROWS)
                times.append(float(_cycles(tilings, program.nest, machine)[0].min()))
        if times:
            surveyed.append((program.family, min(times)))
    return surveyed


def _form(nest: ExecutionNest, families: Mapping[str, tuple[str, ...]], core: Core) -> object:
    """Return a value that is equal for nests that take equally long on any machine.

    Factors may replace each other where their registers have the same size.
    """
    renamed = {
        axis: f"<{'*'.join(fed)}:{axis if not fed else ''}>" for axis, fed in families.items()
    }

    def name(axis: str) -> str:
        return renamed.get(axis, axis)

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
    tilings: Tilings, nest: ExecutionNest, machine: Hierarchy
) -> tuple[Floats, dict[str, Floats]]:
    """Return the cycles of tilings, and bytes by memory and direction.

    The bytes are counted as :class:`Activity` does, with those of a memory's own transfers to and
    from the memory that fills it.
    """
    total = compute_time(tilings, nest, machine).longest
    counts: dict[str, Floats] = {}
    for times in memory_times(tilings, nest, machine, total):
        total = times.total
        counts[f"{times.memory}.read"] = times.read_bytes
        counts[f"{times.memory}.written"] = times.written_bytes
    for memory in machine.memories.values():
        if memory.parent is None or f"{memory.name}.read" not in counts:
            continue
        traffic = tilings.traffic[memory.name]
        counts[f"{memory.name}.written"] = counts[f"{memory.name}.written"] + traffic.read_bytes
        counts[f"{memory.name}.read"] = counts[f"{memory.name}.read"] + traffic.write_bytes
    return total, counts


def _best(core: Core, software: tuple[Scheduled, ...]) -> Choice | None:
    ranked: list[tuple[tuple[float, float], Choice]] = []
    for number, item in enumerate(software):
        # With one bank, loading and computing do not overlap.
        if item.machine == DOUBLE and core.banks == 1:
            continue
        total, counts = _cycles(item.tilings, item.nest, _machine(core, item.machine))
        # Rounded, so that equal cycles tie despite floating point; then the least bytes win.
        times = np.round(total, 6)
        moved = sum(counts.values(), start=np.zeros(1))
        row = int(np.lexsort((np.broadcast_to(moved, times.shape), times))[0])
        quantities = {name: _at(values, row) for name, values in counts.items()}
        quantities["macs"] = item.nest.calls * core.intrinsic.macs
        activity = Activity(float(total[row]), Provenance.ESTIMATED, quantities)
        words = f"{item.embedding} ({item.family}), {_tiles(item, row)}"
        choice = Choice(f"{number}.{row}", words, None, activity)
        ranked.append(((float(times[row]), _at(moved, row)), choice))
    return min(ranked, key=lambda item: item[0])[1] if ranked else None


def _at(values: Floats, row: int) -> float:
    return float(values[row] if len(values) > 1 else values[0])


def _tiles(item: Scheduled, row: int) -> str:
    """Return a text with the tile that the scratchpad holds."""
    sizes = item.tilings.stages[0].sizes
    texts = [f"{name.removesuffix('.o')}:{_at(size, row):g}" for name, size in sizes.items()]
    return f"{item.machine.replace('_', '-')}, scratchpad tile {' '.join(texts) or 'whole'}"


class CoreFamily(Family):
    """The family of cores; cycles, energy and area are estimated (``docs/cores.md``)."""

    name: ClassVar[str] = "core"
    analysis: ClassVar[Any] = CoreAnalysis
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("intrinsic", "what the array computes: gemm, conv2d, gemv, dot"),
        Parameter("pe_rows", "rows of the array of processing elements"),
        Parameter("pe_columns", "columns of the array; 0: as many as rows", 0),
        Parameter("scratchpad_kib", "KiB of the scratchpad"),
        Parameter("banks", "banks of the scratchpad, each read or written once a cycle"),
        Parameter("bank_bits", "bits of an access to a bank", 64),
        Parameter("local_kib", "KiB of the local memories of all processing elements together", 0),
        Parameter(
            "dataflow", "what stays in the processing elements: os (sums), ws (weights)", "os"
        ),
        Parameter("dtype", "element type of the factors: int8, float16, float32", "int8"),
        Parameter("dma_bits", "bits a cycle to and from main memory", 128),
        Parameter("dma_burst_bytes", "bytes of a burst, of which transfers are whole ones", 64),
        Parameter("dram_latency_cycles", "cycles until main memory answers", 100),
        Parameter("clock_mhz", "MHz", 200),
        Parameter("constraints", "constraint set of the embeddings", "cut_boxes"),
        Parameter("technology", "of area and energy", "45nm"),
    )

    def flaw(self, point: Point) -> str | None:
        try:
            _read(point)
        except SpecError as error:
            return str(error)
        return None

    def clock_mhz(self, point: Point) -> float:
        return _read(point)[0].clock_mhz

    def area_um2(self, point: Point) -> float:
        return _read(point)[1].area_um2

    def leakage_w(self, point: Point) -> float:
        return _read(point)[1].leakage_w

    def energy_pj(self, point: Point, activity: Activity) -> float:
        core, costs = _read(point)
        return costs.energy_pj(activity, core.clock_mhz)

    def typed(self, layer: Layer) -> Computation:
        """Return the layer on int8."""
        return layer.workload(("int8", "int8", "int32"))

    def group(self, point: Point) -> Hashable:
        core, _ = _read(point)
        return (
            *(core.intrinsic_name, core.rows, core.columns, core.dataflow, core.dtype),
            *(core.scratchpad_bytes, core.local_bytes, core.bank_bits, core.dma_burst_bytes),
            core.constraints,
        )

    def analyse(self, point: Point, workload: Computation) -> CoreAnalysis:
        core, _ = _read(point)
        # typed() cannot know the point, so the element types are replaced here.
        outputs = {operand.name for operand in workload.outputs}
        types = {o.name: core.sums if o.name in outputs else core.dtype for o in workload.operands}
        return analyse(core, workload.with_dtypes(types))

    def bound(self, point: Point, analysis: CoreAnalysis) -> Costs | None:
        """Return the costs themselves: nothing is left to evaluate."""
        choice = analysis.best(_read(point)[0])
        if choice is None or choice.activity is None:
            return None
        return Costs(choice.activity.cycles, self.energy_pj(point, choice.activity))

    def choices(self, point: Point, analysis: CoreAnalysis) -> tuple[Choice, ...]:
        choice = analysis.best(_read(point)[0])
        return () if choice is None else (choice,)

    def evaluate(self, point: Point, workload: Computation, choice: Choice) -> Activity:
        """Return the activity of the choice; no search calls this, as every choice has one."""
        assert choice.activity is not None
        return choice.activity

    def specification(self, point: Point) -> str:
        return specification_text(_read(point)[0])


def _read(point: Point) -> tuple[Core, Silicon]:
    return read_core(tuple(sorted(point.items())))
