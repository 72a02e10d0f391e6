"""What a calibration times: microkernels with their data, as probes of one constant each.

A probe is named as the field of :class:`~cpembed.targets.cpu.calibration.Calibration` that it is
for, with the place in it after a colon.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from cpembed.codegen import runtime
from cpembed.errors import MeasurementError
from cpembed.steps import step
from cpembed.targets.x86 import microkernels
from cpembed.targets.x86.amx_tiles import MAX_ROWS, TileGrid
from cpembed.targets.x86.dot_products import DOT_PRODUCTS
from cpembed.targets.x86.microkernels import BLOCK, BLOCK_LINES, COUNTS, STAMPS, WORDS, Lines

BEST = 5
"""Rounds that count: the middle one of the best few."""

SPREAD = 1.08
"""The last of the best few over the first: above it a figure is not steady."""

Run = Callable[[int], bool]
"""Executes so many steps; False where what it did must not count."""

OnRound = Callable[[int, int], None]
"""Called with the number of rounds that are done and of the probes that need more."""


@dataclass(frozen=True)
class Probe:
    """A piece of work whose time grows by the same amount with each step.

    ``short`` and ``long`` are the steps of its two lengths, ``units`` what a step consists of;
    ``before`` is done ahead of each round, untimed.
    """

    name: str
    run: Run
    short: int
    long: int
    units: float = 1.0
    before: Callable[[], object] | None = None


@dataclass
class Series:
    """Nanoseconds of a probe's two lengths, round by round; ``enough`` rounds make a figure."""

    probe: Probe
    enough: int = BEST
    short: list[float] = field(default_factory=list[float])
    long: list[float] = field(default_factory=list[float])

    def take(self) -> None:
        """One round."""
        probe = self.probe
        if probe.before is not None:
            probe.before()
        probe.run(probe.short)
        started = time.perf_counter_ns()
        counts = probe.run(probe.short)
        between = time.perf_counter_ns()
        counts &= probe.run(probe.long)
        ended = time.perf_counter_ns()
        if counts:
            self.short.append(between - started)
            self.long.append(ended - between)

    @property
    def ns(self) -> float:
        """A unit's time: from two lengths, so that what every call costs is not in it.

        Raises :class:`MeasurementError` where :attr:`has_figure` is not.
        """
        probe = self.probe
        if not self.has_figure:
            raise MeasurementError(
                f"{probe.name} could not be timed in {len(self.long)} rounds: the machine is too "
                "busy; try again, or give more --rounds"
            )
        steps = (probe.long - probe.short) * probe.units
        return (_best(self.long) - _best(self.short)) / steps

    @property
    def has_figure(self) -> bool:
        """Whether enough rounds count, and the longer length took longer in them."""
        return len(self.long) >= self.enough and _best(self.long) > _best(self.short)

    @property
    def spread(self) -> float:
        """How far the best few rounds of the longer length are apart, as a ratio."""
        best = sorted(self.long)[:BEST]
        return best[-1] / best[0] if self.has_figure else math.inf

    @property
    def is_steady(self) -> bool:
        return self.spread <= SPREAD


def time_in_rounds(
    probes: Sequence[Probe], rounds: int, timeout: float, on_round: OnRound | None = None
) -> Mapping[str, Series]:
    """Every probe's series, by name: ``rounds`` rounds of all, then more of those that are not
    steady, until they are. It ends after ``timeout`` seconds, but not before the first few rounds.
    """
    enough = min(rounds, BEST)
    found = {probe.name: Series(probe, enough) for probe in probes}
    deadline = time.perf_counter() + timeout
    pending, done = list(found.values()), 0
    while pending and (done < enough or time.perf_counter() < deadline):
        for series in pending:
            series.take()
        done += 1
        if done >= rounds:
            pending = [series for series in pending if not series.is_steady]
        if on_round is not None:
            on_round(done, len(pending))
    return found


def _best(samples: Sequence[float]) -> float:
    return float(np.median(sorted(samples)[:BEST]))


LEVELS = ("L1", "L2", "L3", "memory")
CLOCK = "clock"
FEW_ROWS = MAX_ROWS // 2
TASK_STEPS = (1, 16)

_UNKNOWN = (32 * 2**10, 2**20, 32 * 2**20)
"""Cache sizes where the system does not say."""
_SAMPLE_NS = 120_000
"""The longer length of a probe: short enough to fit between two disturbances."""
_HEAT_NS = 300_000
"""A core lowers its clock for wide units some time after they start. So long they run before each
sample that is to have the clock that kernels have."""
_TOGETHER = 0.9
"""Of the time that the longest of the parallel parts takes: so much of it all must run."""
VECTOR_ACCUMULATORS = 16
"""Accumulators of vector products: more than hide a latency of six cycles at two a cycle."""
BLOCK_PRODUCTS = ((0, 4, 6), (2, 5, 6), (1, 4, 7), (3, 5, 7))
"""Products of a block of 2 x 2 accumulators, as kernels order them."""


class Kernel:
    """A compiled microkernel with its buffers."""

    def __init__(self, function: runtime.Function, chunks: int, data: object, rows: int) -> None:
        self._function = function
        self._counts = runtime.aligned((COUNTS,), "int32")
        self._stamps = runtime.aligned((chunks, STAMPS), "int64")
        self._buffers = (
            runtime.shared(self._counts),
            runtime.from_array(np.frombuffer(tile_configuration(rows), np.uint8)),
            data,
            runtime.empty(chunks * WORDS, "int32"),
            runtime.shared(self._stamps.reshape(-1)),
        )

    def run(self, steps: int, setting: int = 0, first: int = 0) -> bool:
        """Whether all parts ran at the same time."""
        self._counts[:] = steps, first, setting
        self._function(*self._buffers)
        if len(self._stamps) == 1:
            return True
        began, ended = self._stamps[:, 0], self._stamps[:, 1]
        return ended.min() - began.max() >= _TOGETHER * (ended - began).max()

    def call(self, times: int) -> bool:
        for _ in range(times):
            self._function(*self._buffers)
        return True

    def walk(self, blocks: int) -> Callable[[int], bool]:
        """Runs that go on where the last one ended, round a set of blocks."""
        position = 0

        def run(steps: int) -> bool:
            nonlocal position
            start, position = position, (position + steps) % blocks
            return self.run(steps, blocks - 1, start)

        return run


class Microbenchmarks:
    """The probes of a CPU that has the product instructions ``products``, among those of
    :data:`~cpembed.targets.cpu.calibration.OPERATIONS`.
    """

    def __init__(
        self, products: Collection[str], cache_bytes: tuple[int, int, int], threads: int
    ) -> None:
        l1, l2, l3 = (size or usual for size, usual in zip(cache_bytes, _UNKNOWN, strict=True))
        self._threads = threads
        self._near = (_power_of_two(l1 // 2), _power_of_two(l2 // 4))
        """Bytes that lie well inside the caches of a core."""
        self._region = _power_of_two(4 * l2 - 1)
        """More than a core's caches hold."""
        self._streams = max(1, min(threads, l3 * 3 // 4 // self._region))
        """Threads whose regions stay in L3 together."""
        self._tile_products = [name for name in products if name.startswith("tdp")]
        self._vector_products = [name for name in products if name in DOT_PRODUCTS]
        self.has_tiles = bool(self._tile_products)
        self._memory = dict[int, object]()
        self._functions = dict[str, runtime.Function]()

    def probes(self, on_kernel: Callable[[int, int], None]) -> list[Probe]:
        """All probes; ``on_kernel`` hears of every kernel that is compiled, and of how many."""
        makers = [*self._cores(), *self._products(), *self._near_lines(), *self._tasks()]
        makers += self._far_lines(self._threads)
        found: list[Probe] = []
        for done, make in enumerate(makers, 1):
            found += make()
            on_kernel(done, len(makers))
        return found

    def alone(self, names: Collection[str]) -> list[Probe]:
        """Those of the named probes of shared levels, on one thread."""
        found = [probe for make in self._far_lines(1) for probe in make()] if names else []
        return [probe for probe in found if probe.name in names]

    def _cores(self) -> Iterator[_Maker]:
        chain, nothing = microkernels.clock(), microkernels.nothing()
        yield lambda: [_probe(CLOCK, self._kernel(chain).run, 1.6, units=4)]
        yield lambda: [_probe("call_us", self._kernel(nothing).call, 1000)]
        yield lambda: [_probe("launch_us", self._kernel(nothing, self._threads).call, 3000)]

    def _products(self) -> Iterator[_Maker]:
        for name in self._tile_products:
            body = microkernels.tile_products(name, BLOCK_PRODUCTS)
            chain = microkernels.tile_products(name, [BLOCK_PRODUCTS[0]] * len(BLOCK_PRODUCTS))
            probe = partial(self._product, tiles=True, ns=7.0, units=len(BLOCK_PRODUCTS))
            yield partial(probe, f"product_row_ns:{name}", body, rows=FEW_ROWS)
            yield partial(probe, f"latency_ns:{name}", chain)
            yield from self._product_pair(name, partial(probe, body=body))
        for name in self._vector_products:
            body = microkernels.vector_products(name, VECTOR_ACCUMULATORS, VECTOR_ACCUMULATORS)
            chain = microkernels.vector_products(name, 1, VECTOR_ACCUMULATORS)
            probe = partial(self._product, tiles=False, units=VECTOR_ACCUMULATORS)
            yield partial(probe, f"latency_ns:{name}", chain, ns=2.0)
            yield from self._product_pair(name, partial(probe, body=body, ns=0.2))

    def _product_pair(self, name: str, probe: Callable[..., list[Probe]]) -> Iterator[_Maker]:
        """One thread, and all."""
        yield partial(probe, f"product_ns:{name}")
        if self._threads > 1:
            yield partial(probe, f"product_shared_ns:{name}", chunks=self._threads)

    def _product(
        self,
        name: str,
        body: Lines,
        *,
        tiles: bool,
        ns: float,
        units: int,
        chunks: int = 1,
        rows: int = MAX_ROWS,
    ) -> list[Probe]:
        with step(f"measuring {name.partition(':')[2]}"):
            run = self._kernel(body, chunks, tiles=tiles, rows=rows).run
            # Where the processor does not execute it after all, this says which one.
            run(1)
        return [_probe(name, run, units * ns, units=units, before=self._heat(tiles=tiles))]

    def _near_lines(self) -> Iterator[_Maker]:
        for constant, body, tiles in self._line_bodies():
            yield partial(self._near_probes, constant, body, tiles)
        if self.has_tiles:
            yield self._split
        yield self._copy

    def _near_probes(self, constant: str, body: Lines, tiles: bool) -> list[Probe]:
        kernel = self._kernel(body, tiles=tiles)
        return [
            _probe(
                f"{constant}:{level}",
                partial(kernel.run, setting=size // BLOCK - 1),
                ns * BLOCK_LINES,
                units=BLOCK_LINES,
                before=self._heat(tiles=tiles),
            )
            for level, size, ns in zip(LEVELS, self._near, (0.25, 1.0), strict=False)
        ]

    def _split(self) -> list[Probe]:
        kernel = self._kernel(microkernels.split_tile_loads(self._region), tiles=True)
        run = partial(kernel.run, setting=self._near[0] // BLOCK - 1)
        before = self._heat(tiles=True)
        return [_probe("split_line_ns", run, BLOCK_LINES, units=BLOCK_LINES, before=before)]

    def _copy(self) -> list[Probe]:
        kernel = self._kernel(microkernels.copies(self._region))
        run = partial(kernel.run, setting=self._near[1] // 2 // BLOCK - 1)
        return [_probe("copy_ns_per_line", run, 2.0 * BLOCK_LINES, units=BLOCK_LINES)]

    def _tasks(self) -> Iterator[_Maker]:
        if self.has_tiles:
            body, ns = microkernels.tile_tasks(self._tile_products[0]), 28.0
        else:
            body, ns = microkernels.vector_tasks(self._vector_products[0]), 2.5
        yield partial(self._task_probes, body, ns)

    def _task_probes(self, body: Lines, step_ns: float) -> list[Probe]:
        kernel, heat = self._kernel(body, tiles=self.has_tiles), self._heat(tiles=self.has_tiles)
        return [
            _probe(
                f"task_ns:{steps}",
                partial(kernel.run, setting=steps),
                (1 + steps) * step_ns,
                before=heat,
            )
            for steps in TASK_STEPS
        ]

    def _far_lines(self, threads: int) -> Iterator[_Maker]:
        """Through L3, as many threads as it has room for, and from memory, all of them."""
        streams = min(threads, self._streams)
        for constant, body, tiles in self._line_bodies():
            yield partial(self._far_probe, f"{constant}:L3", body, tiles, streams)
            if constant != "store_line_ns":
                yield partial(self._far_probe, f"{constant}:memory", body, tiles, threads)

    def _far_probe(self, name: str, body: Lines, tiles: bool, threads: int) -> list[Probe]:
        """Before each round its data are brought into L3, after what others have used it for, or
        thrown out of all caches.
        """
        run = self._kernel(body, threads, tiles=tiles).walk(self._blocks)
        before = partial(run, self._blocks)
        if name.endswith(":memory"):
            flush = self._kernel(microkernels.flushes(self._region), threads)
            before = partial(flush.run, self._blocks, self._blocks - 1)
        return [_probe(name, run, 5.0 * BLOCK_LINES, units=BLOCK_LINES, before=before)]

    @property
    def _blocks(self) -> int:
        """Of a region."""
        return self._region // BLOCK

    def _line_bodies(self) -> list[tuple[str, Lines, bool]]:
        """By field: the walk, and whether it uses tiles."""
        region = self._region
        stores = microkernels.tile_stores if self.has_tiles else microkernels.vector_stores
        loads = [("vector_line_ns", microkernels.vector_loads(region), False)]
        if self.has_tiles:
            loads.append(("tile_line_ns", microkernels.tile_loads(region), True))
        return [*loads, ("store_line_ns", stores(region), self.has_tiles)]

    def _kernel(
        self,
        body: Sequence[str],
        chunks: int = 1,
        *,
        tiles: bool = False,
        rows: int = MAX_ROWS,
    ) -> Kernel:
        plan = microkernels.plan(body, self._region, chunks, tiles=tiles)
        if plan.source not in self._functions:
            self._functions[plan.source] = runtime.compile_plan(plan)
        data = self._bytes(self._region * chunks)
        return Kernel(self._functions[plan.source], chunks, data, rows)

    def _bytes(self, count: int) -> object:
        """The same for all kernels that want as many."""
        if count not in self._memory:
            self._memory[count] = microkernels.varied_bytes(count)
        return self._memory[count]

    def _heat(self, *, tiles: bool) -> Callable[[], bool]:
        return self._tile_heat if tiles else self._vector_heat

    @cached_property
    def _tile_heat(self) -> Callable[[], bool]:
        body = microkernels.tile_products(self._tile_products[0], BLOCK_PRODUCTS)
        return partial(self._kernel(body, tiles=True).run, int(_HEAT_NS / 28))

    @cached_property
    def _vector_heat(self) -> Callable[[], bool]:
        count = VECTOR_ACCUMULATORS
        body = microkernels.vector_products(self._vector_products[0], count, count)
        return partial(self._kernel(body).run, int(_HEAT_NS / 2.5))


_Maker = Callable[[], list[Probe]]
"""Compiles a kernel and makes its probes."""


def _probe(
    name: str,
    run: Callable[[int], bool],
    step_ns: float,
    *,
    units: float = 1.0,
    before: Callable[[], object] | None = None,
) -> Probe:
    """``step_ns`` is what a step takes, about."""
    long = max(16, int(_SAMPLE_NS / step_ns))
    return Probe(name, run, long // 16, long, units, before)


def tile_configuration(rows: int) -> bytes:
    """Accumulators 0 to 3 and tiles 4 and 5 of ``rows`` rows, the others full."""
    pair = (0, 0)
    return TileGrid(rows, 16, 64, 4, pair, pair, (pair, pair), 64, 64, 16).configuration()


def _power_of_two(number: int) -> int:
    """The largest that is no larger."""
    return 1 << max(0, number.bit_length() - 1)
