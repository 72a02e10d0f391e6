"""VTA's configurations as a family of machines.

Parameters are the sizes of the GEMM core and of the buffers, and the memory path. The group of a
point has what its programs and their cycles depend on: all but the sizes of INP, WGT and ACC, the
clock, and micro-op buffers beyond what a program uses. A program does not depend on the sizes of
buffers, it fits them or not: a layer's embeddings and schedules are examined once a group, and each
choice is simulated once for all of its points.
"""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.technology import technologies, technology
from cpembed.cost.ranking import derive_candidate
from cpembed.cost.search import find_best
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.embedding import Embedding
from cpembed.errors import LoweringError, SpecError, TransformError
from cpembed.files import write_whole
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime.tuning.records import WIDEST
from cpembed.steps import silent
from cpembed.targets.family import Activity, Choice, Costs, Family, Parameter, Point, Value
from cpembed.targets.vta.bounds import Floor, Floors
from cpembed.targets.vta.energy import Silicon, energy_counts, work_of
from cpembed.targets.vta.estimate import Tilings, combinations, forms, tile_sizes
from cpembed.targets.vta.isa import Memory, VtaConfig, formats_of
from cpembed.targets.vta.schedule import Schedule, occupancy
from cpembed.targets.vta.simulator import require_simulated
from cpembed.targets.vta.specification import specification
from cpembed.targets.vta.target import VtaTarget
from cpembed.targets.vta.tiles import TileNest
from cpembed.targets.vta.timing import MemorySystem, time_program
from cpembed.targets.vta.tuning import Machine, Nest, VtaSpace
from cpembed.transform.proof import require
from cpembed.workloads.suites import Layer

SIZED = (Memory.INP, Memory.WGT, Memory.ACC)
"""Buffers whose sizes decide what fits."""

MAX_LOG_ELEMENTS = 16
"""Maximum binary logarithm of a buffer's elements, which the instructions' fields address."""

# Fewer than for a single machine: here schedules are ranked for hundreds of buffer sizes.
COMBINATIONS = 1 << 13
"""Maximum number of combinations of tile sizes."""

SMALLEST = {Memory.INP: 1 << 10, Memory.WGT: 1 << 12, Memory.ACC: 1 << 12}
"""Size in bytes of the smallest buffers of the family."""

Logs = tuple[int, int, int]
"""Binary logarithms of numbers of elements, in the order of :data:`SIZED`."""


class ScheduleCandidate(msgspec.Struct, frozen=True):
    """Schedule that is among the best for some sizes of buffers.

    ``embedding`` is the place of its embedding in the analysis, ``needs`` the size of each buffer
    that it fits, ``estimate`` its estimated cycles, and ``floor`` the lower bounds of its program.
    """

    embedding: int
    schedule: Schedule
    needs: Logs
    estimate: float
    floor: Floor


@dataclass(frozen=True, eq=False)
class _Row:
    """Entry of the table of best schedules, which is not built yet.

    ``number`` is that of its nest, ``at`` the position of its tile sizes in ``tilings``.
    """

    number: int
    tilings: Tilings
    form: Schedule
    at: int
    estimate: float


@dataclass(eq=False)
class _Best:
    """Schedules of least estimates for each size of the three buffers.

    ``estimates`` and their rows (``which``) are arrays ``[rank, inp, wgt, acc]``, of which the
    sizes of buffers are binary logarithms.
    """

    keep: int
    rows: list[_Row] = field(default_factory=list[_Row])

    def __post_init__(self) -> None:
        shape = (self.keep, *(MAX_LOG_ELEMENTS + 1,) * len(SIZED))
        self.estimates = np.full(shape, np.inf)
        self.which = np.full(shape, -1)

    @property
    def worst(self) -> NDArray[np.float64]:
        """Estimates, by size of the buffers, that a schedule must undercut to be among the best."""
        return self.estimates[-1]

    def add(self, rows: Sequence[_Row], places: NDArray[np.int64]) -> None:
        """Add rows of one form, the least estimate first, with the sizes that they need.

        For each size of the buffers only the first row that fits is added: its neighbours would be
        about as fast.
        """
        first = len(self.rows)
        self.rows += rows
        # The first row at its own needs; the running minimum along each axis spreads it to all
        # larger sizes, so that each size gets the first row that fits it.
        rank = np.full(self.worst.shape, len(rows))
        rank[tuple(places[::-1].T)] = np.arange(len(rows))[::-1]
        for axis in range(rank.ndim):
            np.minimum.accumulate(rank, axis=axis, out=rank)
        added = np.array([*(row.estimate for row in rows), np.inf])[rank]
        # Equal estimates nearly always belong to one program that has several embeddings.
        added[(self.estimates == added).any(axis=0)] = np.inf
        estimates = np.concatenate([self.estimates, added[None]])
        which = np.concatenate([self.which, (first + rank)[None]])
        order = np.argsort(estimates, axis=0, kind="stable")[: self.keep]
        self.estimates = np.take_along_axis(estimates, order, axis=0)
        self.which = np.take_along_axis(which, order, axis=0)

    def best_rows(self) -> list[_Row]:
        """Return the rows that are among the best for some sizes of the buffers."""
        return [self.rows[k] for k in np.unique(self.which[np.isfinite(self.estimates)]).tolist()]


def schedule_candidates(
    nests: Sequence[TileNest], machine: Machine, keep: int
) -> list[ScheduleCandidate]:
    """Return the schedules that are among the best for some sizes of the buffers.

    Parameters
    ----------
    nests
        Tile nests of a layer's embeddings.
    machine
        Machine, whose buffers may be resized.
    keep
        Number of schedules of least estimates for each size.

    Returns
    -------
    list
        Schedules, the least estimate first.

    Raises
    ------
    LoweringError
        If no schedule fits the largest buffers.
    """
    best = _Best(keep)
    floors = [Floors(nest, machine.tail, machine.memory) for nest in nests]
    least = [floor.least.busiest_module for floor in floors]
    # The fastest nests first, so that slower ones need not be estimated.
    for number in sorted(range(len(nests)), key=lambda k: least[k]):
        tilings = Tilings(nests[number], combinations(tile_sizes(nests[number], COMBINATIONS)))
        for form in _forms(nests[number], least[number], best):
            _screen(number, tilings, form, machine, best)
    candidates = [_candidate(row, floors[row.number]) for row in best.best_rows()]
    if not candidates:
        raise LoweringError("no schedule: single tiles exceed the buffers of any configuration")
    return sorted(candidates, key=lambda candidate: candidate.estimate)


def _forms(nest: TileNest, least: float, best: _Best) -> Iterator[Schedule]:
    """Yield the forms of a nest that could be among the best."""
    # Not those whose smallest schedule needs sizes for which faster ones than the nest's lower
    # bound are known.
    single = Tilings(nest, {name: np.ones(1, np.int64) for name in nest.extents})
    for form in forms(nest):
        smallest = np.minimum(_logs(single, form)[0], MAX_LOG_ELEMENTS)
        if best.worst[tuple(smallest)] > least:
            yield form


def _screen(number: int, tilings: Tilings, form: Schedule, machine: Machine, best: _Best) -> None:
    """Add a form's schedules to the best, only that of the least estimate of each need."""
    logs = _logs(tilings, form)
    possible = tilings.has_pairs(form) & (logs <= MAX_LOG_ELEMENTS).all(axis=1)
    cycles = tilings.cycles(form, machine.tail, machine.memory)
    possible &= cycles < best.worst[tuple(np.minimum(logs, MAX_LOG_ELEMENTS).T)]
    at = np.flatnonzero(possible)
    if not len(at):
        return
    # A slower schedule of the same needs is never taken.
    order = at[np.argsort(cycles[at], kind="stable")]
    _, first = np.unique(logs[order], axis=0, return_index=True)
    fastest = order[np.sort(first)]
    rows = [
        _Row(number=number, tilings=tilings, form=form, at=int(k), estimate=float(cycles[k]))
        for k in fastest
    ]
    best.add(rows, logs[fastest])


def _logs(tilings: Tilings, form: Schedule) -> NDArray[np.int64]:
    """Return the needs of schedules for each buffer, rounded up to the next size of the family."""
    needed = tilings.needs(form)
    columns = [
        np.maximum(smallest_log(tilings.nest.config, memory), np.ceil(np.log2(needed[memory])))
        for memory in SIZED
    ]
    return np.stack(columns, axis=1).astype(np.int64)


def smallest_log(config: VtaConfig, memory: Memory) -> int:
    """Return the binary logarithm of the elements of the smallest buffer."""
    # At least two elements: an index has at least one bit.
    return max(1, (SMALLEST[memory] // config.element_bytes(memory)).bit_length() - 1)


def _candidate(row: _Row, floors: Floors) -> ScheduleCandidate:
    schedule = row.tilings.schedule(row.form, row.at)
    occupied = occupancy(floors.nest, schedule)
    # Exactly, as lowering counts: estimates count more for accesses with digits.
    inp, wgt, acc = (max(1, (occupied[memory][0] - 1).bit_length()) for memory in SIZED)
    return ScheduleCandidate(
        embedding=row.number,
        schedule=schedule,
        needs=(inp, wgt, acc),
        estimate=row.estimate,
        floor=floors.floor(schedule),
    )


_BUFFERS = ("log_uop_buff", "log_inp_buff", "log_wgt_buff", "log_acc_buff")
_DTYPES = ("int8", "int8", "int32")


@dataclass(frozen=True)
class Configuration:
    """Parameters of a point, checked and converted."""

    config: VtaConfig
    memory: MemorySystem
    clock_mhz: float
    silicon: Silicon


class VtaAnalysis(msgspec.Struct, frozen=True, dict=True):
    """Software of a layer for a group's machines: embeddings, and schedules by their estimates."""

    embeddings: tuple[dict[str, Any], ...]
    candidates: tuple[ScheduleCandidate, ...] = msgspec.field(name="contenders")

    @cached_property
    def needs(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Needs as an array ``[candidate, buffer]``."""
        return np.array([item.needs for item in self.candidates])


class Software(msgspec.Struct, frozen=True):
    """Choice of an embedding, as JSON, and a schedule."""

    embedding: dict[str, Any]
    schedule: Schedule


class VtaFamily(Family):
    """Family of VTAs; cycles are simulated, area and energy estimated."""

    name: ClassVar[str] = "vta"
    analysis: ClassVar[Any] = VtaAnalysis
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("log_batch", "binary logarithm of the GEMM core's rows", 0),
        Parameter("log_block", "binary logarithm of the GEMM core's block", 4),
        Parameter("log_inp_buff", "binary logarithm of the bytes of INP", 15),
        Parameter("log_wgt_buff", "binary logarithm of the bytes of WGT", 18),
        Parameter("log_acc_buff", "binary logarithm of the bytes of ACC", 17),
        Parameter("log_uop_buff", "binary logarithm of the bytes of UOP", 15),
        Parameter("bus_bits", "bits of the bus to main memory: 64, 128, 256, 512", 64),
        Parameter("burst_beats", "beats of a burst, a power of two", 16),
        Parameter("dram_delay_cycles", "cycles until main memory answers", 16),
        Parameter("clock_mhz", "MHz", 100),
        Parameter("technology", "of area and energy", "45nm"),
        Parameter("embeddings", "embeddings that take part, the best of all", 32),
        Parameter("schedules", "schedules of a layer that are simulated at a point", 3),
    )

    def flaw(self, point: Point) -> str | None:
        try:
            _configuration(_key(point))
        except SpecError as error:
            return str(error)
        return None

    def clock_mhz(self, point: Point) -> float:
        return _configuration(_key(point)).clock_mhz

    def area_um2(self, point: Point) -> float:
        return _configuration(_key(point)).silicon.area_um2

    def leakage_w(self, point: Point) -> float:
        return _configuration(_key(point)).silicon.leakage_w

    def energy_pj(self, point: Point, activity: Activity) -> float:
        read = _configuration(_key(point))
        # W over cycles of 1/MHz is uJ.
        leaked = read.silicon.leakage_w * activity.cycles / read.clock_mhz * 1e6
        return read.silicon.energy_pj(activity.counts) + leaked

    def typed(self, layer: Layer) -> Computation:
        return layer.workload(_DTYPES)

    def group(self, point: Point) -> Hashable:
        read = _configuration(_key(point))
        memory = read.memory
        # What programs and their cycles depend on; buffers only decide which programs fit.
        return (
            *(read.config.log_batch, read.config.log_block, read.config.usable_uops),
            *(memory.bus_bits, memory.burst_beats, memory.dram_delay_cycles),
            *(point["embeddings"], point["schedules"]),
        )

    def analyse(self, point: Point, workload: Computation) -> VtaAnalysis:
        """Return the best embeddings under the most relaxed preset, with their best schedules."""
        target = target_of(self.specification(point))
        machine = target.machine(workload)
        nests = _nests(workload, target, machine, int(point["embeddings"]))
        tile_nests = [nest.nest for nest in nests]
        candidates = schedule_candidates(tile_nests, machine, int(point["schedules"]))
        embeddings = tuple(nest.program.embedding.to_json() for nest in nests)
        return VtaAnalysis(embeddings, tuple(candidates))

    def bound(self, point: Point, analysis: VtaAnalysis) -> Costs | None:
        fitting = self._fitting(point, analysis)
        if not fitting:
            return None
        config = _configuration(_key(point)).config
        floors = [analysis.candidates[at].floor for at in fitting]
        activities = [
            Activity(floor.cycles, Provenance.ESTIMATED, energy_counts(floor.work, config))
            for floor in floors
        ]
        return Costs(
            min(activity.cycles for activity in activities),
            min(self.energy_pj(point, activity) for activity in activities),
        )

    def choices(self, point: Point, analysis: VtaAnalysis) -> tuple[Choice, ...]:
        return tuple(self._choice(analysis, at) for at in self._fitting(point, analysis))

    def evaluate(self, point: Point, workload: Computation, choice: Choice) -> Activity:
        """Return the simulated activity of a proven program."""
        software: Software = choice.payload
        target = target_of(self.specification(point))
        embedding = Embedding.from_json(software.embedding)
        candidate = derive_candidate(workload, target.spec.instruction, embedding)
        # Embeddings come from a store: each is proven again before its cycles count.
        require(candidate.program)
        lowered = Nest.from_program(candidate.program, target.machine(workload)).lowered(
            software.schedule
        )
        program = lowered.empty_image()
        cycles = time_program(program, target.memory, checked=False).cycles
        return Activity(
            cycles, Provenance.SIMULATED, energy_counts(work_of(program), target.config)
        )

    def specification(self, point: Point) -> str:
        read = _configuration(_key(point))
        return specification(read.config, read.memory, read.clock_mhz)

    def _fitting(self, point: Point, analysis: VtaAnalysis) -> list[int]:
        """Return the places of the candidates of least estimates that fit a point's buffers."""
        config = _configuration(_key(point)).config
        sizes = np.array([config.log_elements(memory) for memory in SIZED])
        # Candidates are sorted by their estimates, so the first that fit are the best that fit.
        fits = np.flatnonzero((analysis.needs <= sizes).all(axis=1))
        return fits[: int(point["schedules"])].tolist()

    def _choice(self, analysis: VtaAnalysis, at: int) -> Choice:
        item = analysis.candidates[at]
        document = analysis.embeddings[item.embedding]
        text = f"{Embedding.from_json(document).identifier()}: {item.schedule}"
        return Choice(str(at), text, Software(document, item.schedule))


def _nests(workload: Computation, target: VtaTarget, machine: Machine, count: int) -> list[Nest]:
    """Return the nests of the best embeddings, one for each program.

    Raises :class:`LoweringError` if there is none.
    """
    best = find_best(
        Pairing(workload, target.spec.instruction),
        load_constraint_set(WIDEST),
        count,
        SearchLimits(),
        silent,
    )
    nests: dict[object, Nest] = {}
    for ranked in best.ranking.candidates:
        try:
            nest = Nest.from_program(ranked.candidate.program, machine)
        except (LoweringError, TransformError):
            continue
        # Embeddings that differ in packing only have the same cycles: the best-ranked stands for
        # all.
        nests.setdefault(VtaSpace(nest).form(), nest)
    if not nests:
        raise LoweringError(f"{workload.name} has no embedding on {target.spec.name}")
    return list(nests.values())


_Key = tuple[tuple[str, str, Value], ...]


def _key(point: Point) -> _Key:
    """Return a key of a point with the types of its values: 4.0 equals 4, but is no logarithm."""
    return tuple((name, type(value).__name__, value) for name, value in sorted(point.items()))


@lru_cache(maxsize=1 << 14)
def _configuration(key: _Key) -> Configuration:
    """Return the configuration of a point, by its :func:`_key`.

    Raises :class:`SpecError` for a parameter of a wrong value.
    """
    point = {name: value for name, _, value in key}
    for name, value in point.items():
        if name == "technology":
            if value not in technologies():
                raise SpecError(f"technology {value}: allowed: {', '.join(technologies())}")
        elif name == "clock_mhz":
            if isinstance(value, str) or not 0 < value <= 100_000:
                raise SpecError(f"clock_mhz = {value}; allowed: above 0, to 100,000")
        elif not isinstance(value, int) or not 0 <= value < 1 << 20:
            raise SpecError(f"{name} = {value} is no natural number below a million")
    numbers = {name: int(value) for name, value in point.items() if name != "technology"}
    for name, largest in (("embeddings", 1024), ("schedules", 64)):
        if not 1 <= numbers[name] <= largest:
            raise SpecError(f"{name} = {numbers[name]}; allowed: 1 to {largest}")
    config = VtaConfig(
        log_batch=_bounded(numbers, "log_batch", 10),
        log_block=_bounded(numbers, "log_block", 10),
        **{name: _bounded(numbers, name, 40) for name in _BUFFERS},
    )
    formats_of(config)
    require_simulated(config)
    for memory, size in SMALLEST.items():
        name, smallest = f"log_{memory.name.lower()}_buff", size.bit_length() - 1
        if numbers[name] < smallest:
            raise SpecError(f"{name} = {numbers[name]}; allowed: {smallest} and more")
    memory = MemorySystem(numbers["dram_delay_cycles"], numbers["bus_bits"], numbers["burst_beats"])
    memory.check()
    silicon = Silicon.from_config(config, technology(str(point["technology"])))
    return Configuration(config, memory, float(point["clock_mhz"]), silicon)


def _bounded(numbers: dict[str, int], name: str, limit: int) -> int:
    if numbers[name] > limit:
        raise SpecError(f"{name} = {numbers[name]}; allowed: 0 to {limit}: it is a logarithm")
    return numbers[name]


@lru_cache
def target_of(text: str) -> VtaTarget:
    """Return the target of a specification that :meth:`VtaFamily.specification` wrote."""
    # Specifications are read from files only, whose names stand in messages.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vta.toml"
        write_whole(path, text)
        return VtaTarget(load_hardware_spec(path))
