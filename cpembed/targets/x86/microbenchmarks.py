"""Probes of a calibration: microkernels with their data, each timed for one constant.

A probe is named after the field of :class:`~cpembed.targets.cpu.calibration.Calibration` that it is
for, with the key or the cache level after a colon: ``product_ns:vpdpbusd``, ``tile_line_ns:L3``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from cpembed.codegen import runtime
from cpembed.errors import MeasurementError
from cpembed.steps import step
from cpembed.targets.x86 import microkernels
from cpembed.targets.x86.amx_tiles import MAX_ROWS, TileGrid
from cpembed.targets.x86.dot_products import DOT_PRODUCTS
from cpembed.targets.x86.microkernels import BLOCK, BLOCK_LINES, COUNTS, STAMPS, WORDS, Lines

# ------------------------------------------------------------------------------ timing

BEST = 5
"""Number of best rounds whose median counts."""

SPREAD = 1.08
"""Maximum ratio of the slowest to the fastest of these rounds for a steady result."""

Run = Callable[[int], bool]
"""Executes so many steps; returns False if the time of this call must not count."""

OnRound = Callable[[int, int], None]
"""Called after a round with the number of rounds so far and of probes that need more."""


@dataclass(frozen=True)
class Probe:
    """Piece of work whose time grows by the same amount with each step.

    ``short`` and ``long`` are the numbers of steps that are compared, ``units`` the timed units of
    a step, such as products or cache lines. ``before`` is untimed work ahead of each round.
    """

    name: str
    run: Run
    short: int
    long: int
    units: float = 1.0
    before: Callable[[], object] | None = None


@dataclass
class Series:
    """Nanoseconds of a probe's two lengths, round by round; ``enough`` rounds make a result."""

    probe: Probe
    enough: int = BEST
    short: list[float] = field(default_factory=list[float])
    long: list[float] = field(default_factory=list[float])

    def take(self) -> None:
        """Time one round."""
        probe = self.probe
        if probe.before is not None:
            probe.before()
        # The first call is not timed: it brings code and data into the caches.
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
        """Time of a unit, from the difference of two lengths: the cost of a call cancels out.

        Raises :class:`MeasurementError` without :attr:`has_result`.
        """
        probe = self.probe
        if not self.has_result:
            raise MeasurementError(
                f"{probe.name} could not be timed in {len(self.long)} rounds: the machine is too "
                "busy; try again, or give more --rounds"
            )
        steps = (probe.long - probe.short) * probe.units
        return (_median_of_best(self.long) - _median_of_best(self.short)) / steps

    @property
    def has_result(self) -> bool:
        """True if enough rounds count, and the longer length took longer in them."""
        if len(self.long) < self.enough:
            return False
        return _median_of_best(self.long) > _median_of_best(self.short)

    @property
    def spread(self) -> float:
        """Ratio of the slowest to the fastest of the best rounds of the longer length."""
        best = sorted(self.long)[:BEST]
        return best[-1] / best[0] if self.has_result else math.inf

    @property
    def is_steady(self) -> bool:
        return self.spread <= SPREAD


def time_in_rounds(
    probes: Sequence[Probe], rounds: int, timeout: float, on_round: OnRound | None = None
) -> Mapping[str, Series]:
    """Return the series of all probes, timed in rounds; more rounds for those that are not steady.

    Rounds interleave the probes, so that a disturbance hits a few samples of each and not all of
    one.

    Parameters
    ----------
    probes : sequence of Probe
        Probes.
    rounds : int
        Number of rounds of all probes.
    timeout : float
        Seconds after which no further round starts, unless results lack rounds.
    on_round : callable, optional
        Called after each round.
    """
    enough = min(rounds, BEST)
    series_by_name = {probe.name: Series(probe, enough) for probe in probes}
    deadline = time.perf_counter() + timeout
    pending, finished = list(series_by_name.values()), 0
    while pending and (finished < enough or time.perf_counter() < deadline):
        for series in pending:
            series.take()
        finished += 1
        if finished >= rounds:
            pending = [series for series in pending if not series.is_steady]
        if on_round is not None:
            on_round(finished, len(pending))
    return series_by_name


def _median_of_best(samples: Sequence[float]) -> float:
    # Disturbances only add time.
    return float(np.median(sorted(samples)[:BEST]))


# ------------------------------------------------------------------------------ kernels

LEVELS = ("L1", "L2", "L3", "memory")
CLOCK = "clock"
# With fewer rows than half a tile, a product takes no less time.
FEW_ROWS = MAX_ROWS // 2
TASK_STEPS = (1, 16)

_USUAL_CACHE_BYTES = (32 * 2**10, 2**20, 32 * 2**20)
"""Sizes of caches that the system does not report."""
_SAMPLE_NS = 120_000
"""Duration of a probe's longer length: short enough to fit between two disturbances."""
_WARM_UP_NS = 300_000
"""Duration of the wide products before each sample that needs the clock of kernels: a core lowers
its clock some time after wide units start."""
_OVERLAP = 0.9
"""Minimum fraction of the longest part's time in which all parallel parts run."""
_NEAR_NS = {"L1": 0.25, "L2": 1.0}
"""Approximate time of a line from the caches of a core."""
VECTOR_ACCUMULATORS = 16
"""Number of accumulators of vector products: enough to hide six cycles at two products a cycle."""
BLOCK_PRODUCTS = ((0, 4, 6), (2, 5, 6), (1, 4, 7), (3, 5, 7))
"""Products of a block of 2 x 2 accumulators, in the order of kernels."""


class Kernel:
    """Compiled microkernel of ``chunks`` parallel parts, with its buffers.

    ``rows`` is the height of the first factor's tiles.
    """

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
        """Execute steps; True if all parts ran at the same time.

        ``setting`` is the third count (blocks of a walk minus one, or steps of a task), ``first``
        the second one (the first block of a walk).
        """
        self._counts[:] = steps, first, setting
        self._function(*self._buffers)
        if len(self._stamps) == 1:
            return True
        # Parts that ran one after the other did not share caches and memory as a kernel's do.
        began, ended = self._stamps[:, 0], self._stamps[:, 1]
        return ended.min() - began.max() >= _OVERLAP * (ended - began).max()

    def call(self, times: int) -> bool:
        """Call the function so many times."""
        for _ in range(times):
            self._function(*self._buffers)
        return True

    def walk(self, blocks: int) -> Run:
        """Return runs that each continue where the last one ended, round a set of blocks."""
        position = 0

        def run(steps: int) -> bool:
            nonlocal position
            start, position = position, (position + steps) % blocks
            return self.run(steps, blocks - 1, start)

        return run


def tile_configuration(rows: int) -> bytes:
    """Return a configuration whose accumulators 0 to 3 and tiles 4 and 5 have so many rows."""
    pair = (0, 0)
    return TileGrid(
        rows=rows,
        columns=16,
        depth=64,
        group=4,
        a_offsets=pair,
        b_offsets=pair,
        c_offsets=(pair, pair),
        a_stride=64,
        b_stride=64,
        c_stride=16,
    ).configuration()


# ------------------------------------------------------------------------------ probes


_ProbeFactory = Callable[[], list[Probe]]
"""Compiles a kernel and returns its probes."""


class Microbenchmarks:
    """Probes of a CPU with some product instructions, caches (0: unknown) and kernel threads."""

    def __init__(
        self, products: Collection[str], cache_bytes: tuple[int, int, int], threads: int
    ) -> None:
        sizes = zip(cache_bytes, _USUAL_CACHE_BYTES, strict=True)
        l1, l2, l3 = (size or usual for size, usual in sizes)
        self._threads = threads
        # Half of L1 and a quarter of L2 certainly stay there; four times L2 certainly does not.
        self._near_bytes = (_power_of_two_below(l1 // 2), _power_of_two_below(l2 // 4))
        self._region = _power_of_two_below(4 * l2 - 1)
        self._blocks = self._region // BLOCK
        # Number of threads whose regions fit into L3 together.
        self._streams = max(1, min(threads, l3 * 3 // 4 // self._region))
        self._tile_products = [name for name in products if name.startswith("tdp")]
        self._vector_products = [name for name in products if name in DOT_PRODUCTS]
        self.has_tiles = bool(self._tile_products)
        self._buffers = dict[int, object]()
        self._functions = dict[str, runtime.Function]()
        self._warm_ups = dict[bool, Callable[[], bool]]()

    def probes(self, on_kernel: Callable[[int, int], None]) -> list[Probe]:
        """Compile all probes; ``on_kernel`` gets the number compiled so far and in total."""
        factories = [*self._core_probes(), *self._product_probes(), *self._near_probes()]
        factories += [self._task_probes, *self._far_probes(self._threads)]
        probes: list[Probe] = []
        for number, create in enumerate(factories, 1):
            probes += create()
            on_kernel(number, len(factories))
        return probes

    def single_thread(self, names: Collection[str]) -> list[Probe]:
        """Return, for one thread, those of the named probes that measure L3 and memory."""
        if not names:
            return []
        probes = [probe for create in self._far_probes(1) for probe in create()]
        return [probe for probe in probes if probe.name in names]

    def _core_probes(self) -> Iterator[_ProbeFactory]:
        # The last numbers are approximate nanoseconds, from which the number of steps follows.
        chain, nothing = microkernels.clock(), microkernels.nothing()
        yield lambda: [_probe(CLOCK, self._kernel(chain).run, 1.6, units=4)]
        yield lambda: [_probe("call_us", self._kernel(nothing).call, 1000)]
        yield lambda: [_probe("launch_us", self._kernel(nothing, self._threads).call, 3000)]

    def _product_probes(self) -> Iterator[_ProbeFactory]:
        for name in self._tile_products:
            body = microkernels.tile_products(name, BLOCK_PRODUCTS)
            # All products add to one accumulator, so that each waits for the last.
            chain = microkernels.tile_products(name, [BLOCK_PRODUCTS[0]] * len(BLOCK_PRODUCTS))
            create = partial(self._product, tiles=True, ns=7.0, units=len(BLOCK_PRODUCTS))
            yield partial(create, f"product_row_ns:{name}", body, rows=FEW_ROWS)
            yield partial(create, f"latency_ns:{name}", chain)
            yield from self._with_shared(name, partial(create, body=body))
        for name in self._vector_products:
            body = microkernels.vector_products(name, VECTOR_ACCUMULATORS, VECTOR_ACCUMULATORS)
            chain = microkernels.vector_products(name, 1, VECTOR_ACCUMULATORS)
            create = partial(self._product, tiles=False, units=VECTOR_ACCUMULATORS)
            yield partial(create, f"latency_ns:{name}", chain, ns=2.0)
            yield from self._with_shared(name, partial(create, body=body, ns=0.2))

    def _with_shared(
        self, name: str, create: Callable[..., list[Probe]]
    ) -> Iterator[_ProbeFactory]:
        yield partial(create, f"product_ns:{name}")
        if self._threads > 1:
            yield partial(create, f"product_shared_ns:{name}", chunks=self._threads)

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
        """Return the probe of a product that takes about ``ns``."""
        with step(f"measuring {name.partition(':')[2]}"):
            run = self._kernel(body, chunks, tiles=tiles, rows=rows).run
            # A processor may reject an instruction that it reports. The crash then names the step.
            run(1)
        return [_probe(name, run, units * ns, units=units, before=self._warm_up(tiles=tiles))]

    def _near_probes(self) -> Iterator[_ProbeFactory]:
        """Yield the probes of lines in the caches of a core."""
        for constant, body, tiles in self._line_bodies():
            yield partial(self._near_lines, constant, body, tiles=tiles)
        if self.has_tiles:
            split = microkernels.split_tile_loads(self._region)
            yield partial(self._near_lines, "split_line_ns", split, tiles=True, levels={"": 1.0})
        yield self._copy

    def _near_lines(
        self, constant: str, body: Lines, *, tiles: bool, levels: Mapping[str, float] = _NEAR_NS
    ) -> list[Probe]:
        kernel = self._kernel(body, tiles=tiles)
        return [
            _probe(
                f"{constant}:{level}".removesuffix(":"),
                partial(kernel.run, setting=size // BLOCK - 1),
                ns * BLOCK_LINES,
                units=BLOCK_LINES,
                before=self._warm_up(tiles=tiles),
            )
            for (level, ns), size in zip(levels.items(), self._near_bytes, strict=False)
        ]

    def _copy(self) -> list[Probe]:
        # Both halves of the walk, source and target, stay in L2.
        blocks = self._near_bytes[1] // 2 // BLOCK
        run = partial(self._kernel(microkernels.copies(self._region)).run, setting=blocks - 1)
        return [_probe("copy_ns_per_line", run, 2.0 * BLOCK_LINES, units=BLOCK_LINES)]

    def _task_probes(self) -> list[Probe]:
        tiles = self.has_tiles
        if tiles:
            body, step_ns = microkernels.tile_tasks(self._tile_products[0]), 28.0
        else:
            body, step_ns = microkernels.vector_tasks(self._vector_products[0]), 2.5
        kernel = self._kernel(body, tiles=tiles)
        return [
            _probe(
                f"task_ns:{steps}",
                partial(kernel.run, setting=steps),
                (1 + steps) * step_ns,
                before=self._warm_up(tiles=tiles),
            )
            for steps in TASK_STEPS
        ]

    def _far_probes(self, threads: int) -> Iterator[_ProbeFactory]:
        """Yield the probes of L3, on as many threads as it has room for, and of memory, on all."""
        streams = min(threads, self._streams)
        for constant, body, tiles in self._line_bodies():
            yield partial(self._far_lines, f"{constant}:L3", body, tiles, streams)
            # Stores of more than L2 holds have one constant, wherever the lines go.
            if constant != "store_line_ns":
                yield partial(self._far_lines, f"{constant}:memory", body, tiles, threads)

    def _far_lines(self, name: str, body: Lines, tiles: bool, threads: int) -> list[Probe]:
        run = self._kernel(body, threads, tiles=tiles).walk(self._blocks)
        # Rounds are interleaved, so another probe has used L3 since: bring the data back into it,
        # or flush it from all caches.
        before = partial(run, self._blocks)
        if name.endswith(":memory"):
            flush = self._kernel(microkernels.flushes(self._region), threads)
            before = partial(flush.run, self._blocks, self._blocks - 1)
        return [_probe(name, run, 5.0 * BLOCK_LINES, units=BLOCK_LINES, before=before)]

    def _line_bodies(self) -> list[tuple[str, Lines, bool]]:
        """Return the field of each constant, its walk, and whether it uses tiles."""
        region = self._region
        stores = microkernels.tile_stores if self.has_tiles else microkernels.vector_stores
        loads = [("vector_line_ns", microkernels.vector_loads(region), False)]
        if self.has_tiles:
            loads.append(("tile_line_ns", microkernels.tile_loads(region), True))
        return [*loads, ("store_line_ns", stores(region), self.has_tiles)]

    def _kernel(
        self, body: Sequence[str], chunks: int = 1, *, tiles: bool = False, rows: int = MAX_ROWS
    ) -> Kernel:
        plan = microkernels.plan(body, self._region, chunks, tiles=tiles)
        if plan.source not in self._functions:
            self._functions[plan.source] = runtime.compile_plan(plan)
        # Kernels with as much data share it, since regions are several megabytes for each thread.
        size = self._region * chunks
        if size not in self._buffers:
            self._buffers[size] = microkernels.varied_bytes(size)
        return Kernel(self._functions[plan.source], chunks, self._buffers[size], rows)

    def _warm_up(self, *, tiles: bool) -> Callable[[], bool]:
        if tiles not in self._warm_ups:
            if tiles:
                body, step_ns = (
                    microkernels.tile_products(self._tile_products[0], BLOCK_PRODUCTS),
                    28,
                )
            else:
                count, name = VECTOR_ACCUMULATORS, self._vector_products[0]
                body, step_ns = microkernels.vector_products(name, count, count), 2.5
            run = self._kernel(body, tiles=tiles).run
            self._warm_ups[tiles] = partial(run, int(_WARM_UP_NS / step_ns))
        return self._warm_ups[tiles]


def _probe(
    name: str,
    run: Run,
    step_ns: float,
    *,
    units: float = 1.0,
    before: Callable[[], object] | None = None,
) -> Probe:
    """Return a probe of a step that takes about ``step_ns``, with lengths of a fitting duration."""
    long = max(16, int(_SAMPLE_NS / step_ns))
    return Probe(name, run, long // 16, long, units, before)


def _power_of_two_below(number: int) -> int:
    """Return the largest power of two that is at most this number."""
    return 1 << max(0, number.bit_length() - 1)
