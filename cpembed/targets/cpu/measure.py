"""Measuring kernels on a machine that others use too.

Every kernel is verified, then timed beside the best one so far. A minute in which that one is
slower than it was is not trusted: what was timed then is timed again, a few times, a little later.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel, in_turn
from cpembed.codegen.packing import packed_before
from cpembed.codegen.plan import Knobs
from cpembed.cost.candidate import Candidate
from cpembed.errors import BackendUnavailable, CrashError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.reference import random_inputs
from cpembed.runtime import worker
from cpembed.runtime.measurement.interleaved import Interleaved, Work, time_interleaved
from cpembed.runtime.measurement.runner import Quantiles, Sampler, quantiles, wall_clock
from cpembed.runtime.measurement.verification import Expected
from cpembed.steps import step
from cpembed.targets.capabilities import throttle_probe
from cpembed.targets.cpu.space import Objective
from cpembed.targets.registry import open_target
from cpembed.transform.program import DerivedProgram

ROUND_MS = 0.5
"""Of a kernel's turn. Schedulers give others whole milliseconds: the shorter a turn, the more of
them pass undisturbed."""

FIRST_ROUNDS = 6
"""Before a kernel may be rejected, and of kernels that are slow."""

FAST = 0.1
"""Quantile of the rounds that is compared."""

_LIMIT_S = 2.0
"""Slower kernels get fewer rounds, but no fewer than the first."""

_LOOK_US = 400.0
"""What it takes to look at the machine's speed, before each turn."""

_POOL = "tvm"


@dataclass(frozen=True)
class Moves:
    """Microseconds of packing what is not packed ahead, and of unpacking: medians."""

    packing_us: float
    unpacking_us: float

    @property
    def us(self) -> float:
        return self.packing_us + self.unpacking_us


@dataclass(frozen=True)
class Timed:
    """A kernel's times; ``ratio`` is what is minimised over the incumbent's, 1 where it is alone.
    ``whole_us``: one call with packing and unpacking, where that was timed.
    """

    latency_us: Quantiles
    moves: Moves
    ratio: float
    noisy: bool
    rejected: bool = False
    whole_us: Quantiles | None = None

    def us(self, objective: Objective) -> float:
        """What is minimised, the median of these rounds."""
        if objective == "kernel":
            return self.latency_us.median
        if self.whole_us is not None:
            return self.whole_us.median
        return self.latency_us.median + self.moves.us


@dataclass(frozen=True)
class Failed:
    """Why a schedule has no kernel."""

    reason: str


@dataclass(frozen=True)
class Runner:
    """A kernel, and the moves of its embedding where there are any; ``key`` names the schedule,
    ``identifier`` the embedding. ``whole`` is the call that moves as well, each thread what it
    needs where it can; None where that is the kernel."""

    key: str
    identifier: str
    kernel: Sampler
    whole: Sampler | None
    packing: Sampler | None
    unpacking: Sampler | None


@dataclass(frozen=True)
class InterleavedComparison:
    """Runners, interleaved; packing of ``known`` embeddings is not timed. ``unthrottled`` says
    whether the machine is as fast as it is at best: rounds in which it is not are repeated."""

    runners: Sequence[Runner]
    known: Mapping[str, Moves]
    objective: Objective
    unthrottled: Callable[[], bool] | None = None

    def run(self, rounds: int) -> Rounds:
        sides = {f"kernel {n}": Work(r.kernel, _POOL) for n, r in enumerate(self.runners)}
        if self.objective == "total":
            sides |= {
                f"whole {n}": Work(runner.whole, _POOL)
                for n, runner in enumerate(self.runners)
                if runner.whole is not None
            }
        for runner in self.runners:
            name = runner.identifier
            moves = {"packing": runner.packing, "unpacking": runner.unpacking}
            sides |= {
                f"{part} {name}": Work(sample, _POOL)
                for part, sample in moves.items()
                if sample is not None and name not in self.known
            }
        interleaved = time_interleaved(
            sides, rounds=rounds, round_ms=ROUND_MS, attempts=1, unthrottled=self.unthrottled
        )
        return Rounds(self, interleaved)


@dataclass(frozen=True)
class Rounds:
    """What the runners of a comparison took, by their numbers."""

    comparison: InterleavedComparison
    interleaved: Interleaved

    def affordable(self, rounds: int) -> int:
        """So many rounds, or fewer where they are slow."""
        # Each turn begins with at least one call that is not timed.
        look = 0.0 if self.comparison.unthrottled is None else _LOOK_US
        each = [
            2 * max(np.median(taken), ROUND_MS * 1e3) + look
            for taken in self.interleaved.samples.values()
        ]
        return max(FIRST_ROUNDS, min(rounds, int(_LIMIT_S * 1e6 / float(sum(each)))))

    def fastest(self, number: int) -> float:
        return float(self._minimised(number).min())

    def typical(self, number: int) -> float:
        return float(np.median(self._minimised(number)))

    def fast_us(self, number: int) -> float:
        """Microseconds of a kernel alone in its fast rounds."""
        return float(np.quantile(self.interleaved.samples[f"kernel {number}"], FAST))

    def timed(self, number: int, *, noisy: bool = False, rejected: bool = False) -> Timed:
        """A kernel's times and its ratio to the first."""
        ours, theirs = (float(np.quantile(self._minimised(runner), FAST)) for runner in (number, 0))
        latency = quantiles(self.interleaved.samples[f"kernel {number}"])
        noisy = noisy or self.interleaved.is_noisy or latency.is_noisy
        whole = self.interleaved.samples.get(f"whole {number}")
        return Timed(
            latency,
            self._moves(number),
            ours / theirs,
            noisy,
            rejected,
            None if whole is None else quantiles(whole),
        )

    def _minimised(self, number: int) -> NDArray[np.float64]:
        """Round by round."""
        kernel = self.interleaved.samples[f"kernel {number}"]
        return np.array(self.interleaved.samples.get(f"whole {number}", kernel))

    def _moves(self, number: int) -> Moves:
        name = self.comparison.runners[number].identifier
        if name in self.comparison.known:
            return self.comparison.known[name]
        packing, unpacking = (
            float(np.median(self.interleaved.samples.get(f"{part} {name}", [0.0])))
            for part in ("packing", "unpacking")
        )
        return Moves(packing, unpacking)


ROUNDS, FINAL_ROUNDS = 40, 80
"""Of a kernel that is not rejected, and at the end of a search; of kernels that a turn holds."""

SLOWER = 1.15
"""A kernel is rejected whose fastest round took longer than the incumbent's typical one by this."""

DISTURBED = 1.25
"""Rounds are not trusted in which kernels took longer than in their best ones by this."""

PAUSES = (0.2, 1.0)
"""Seconds before untrusted rounds are repeated, so many times."""

_TIMED_CALLS = 100
"""Of a slow kernel in all its rounds, about."""

_ROOM = 2**28
"""Bytes for packed data of embeddings that were measured, the last ones first."""


class Timeable(Protocol):
    """A schedule of an embedding; ``key`` tells schedules apart."""

    @property
    def key(self) -> str: ...
    @property
    def candidate(self) -> Candidate: ...
    @property
    def schedule(self) -> Knobs: ...


@dataclass(frozen=True)
class _Sent:
    """A schedule on its way to the worker, without the model that proposed it."""

    key: str
    candidate: Candidate
    schedule: Knobs

    @classmethod
    def of(cls, proposal: Timeable) -> _Sent:
        return cls(proposal.key, proposal.candidate, proposal.schedule)


def native_kernel(program: DerivedProgram, spec: HardwareSpec, knobs: Knobs) -> CompiledKernel:
    """Compile a kernel of the target's instruction.

    Raises :class:`BackendUnavailable` if this machine lacks it, :class:`LoweringError` if the
    schedule does not fit.
    """
    target = open_target(spec)
    if missing := target.missing():
        raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}")
    return target.build(target.lower(program), knobs)


class KernelMeasurer:
    """Kernels of one workload on random data, verified against one reference.

    ``known`` holds the moves, apart from the kernel, of embeddings that were measured before, by
    identifier: they are the same for all schedules.
    """

    def __init__(
        self, workload: Computation, spec: HardwareSpec, objective: Objective, seed: int = 0
    ) -> None:
        self.known: dict[str, Moves] = {}
        self._workload = workload
        self._spec = spec
        self._objective: Objective = objective
        self._seed = seed
        self._data: OrderedDict[str, _Data] = OrderedDict()
        self._kernels: dict[str, tuple[_Data, Callable[[], Any], Callable[[], Any] | None]] = {}
        """Data, the contraction, and the whole call where it is another one and counts."""
        self._fastest_us: dict[str, float] = {}
        """Microseconds of kernels in their best rounds."""

    def measure(self, proposal: Timeable, incumbent: Timeable | None) -> Timed | Failed:
        """Time a schedule beside the incumbent, which was measured before.

        Raises :class:`InvariantError` where the kernel's numbers are wrong.
        """
        others = [] if incumbent is None else [incumbent]
        self._forget({item.key for item in others})
        try:
            runners = [self._runner(item) for item in (*others, proposal)]
        except LoweringError as error:
            return Failed(str(error))
        comparison = InterleavedComparison(runners, self.known, self._objective, self._unthrottled)
        first = comparison.run(FIRST_ROUNDS)
        slower = incumbent is not None and first.fastest(1) > SLOWER * first.typical(0)
        if slower and self._disturbance(first, 1) <= DISTURBED:
            return first.timed(1, rejected=True)
        found, noisy = self._trusted(comparison, first.affordable(ROUNDS), len(others))
        timed = found.timed(len(others), noisy=noisy)
        self.known.setdefault(runners[-1].identifier, timed.moves)
        return timed

    def final(self, proposals: Sequence[Timeable]) -> list[Timed]:
        """Time schedules that were measured before beside each other; ratios are over the first."""
        self._forget({item.key for item in proposals})
        runners = [self._runner(item) for item in proposals]
        comparison = InterleavedComparison(runners, self.known, self._objective, self._unthrottled)
        rounds = comparison.run(FIRST_ROUNDS).affordable(FINAL_ROUNDS)
        found, noisy = self._trusted(comparison, rounds, len(runners))
        return [found.timed(number, noisy=noisy) for number in range(len(runners))]

    def _trusted(
        self, comparison: InterleavedComparison, rounds: int, before: int
    ) -> tuple[Rounds, bool]:
        """The least disturbed of a few attempts, and whether it was disturbed; the first ``before``
        runners were timed before."""
        best = comparison.run(rounds)
        least = self._disturbance(best, before)
        for pause in PAUSES:
            if least <= DISTURBED:
                break
            time.sleep(pause)
            again = comparison.run(rounds)
            if (disturbance := self._disturbance(again, before)) < least:
                best, least = again, disturbance
        return best, least > DISTURBED

    def _disturbance(self, rounds: Rounds, before: int) -> float:
        """How much longer kernels took than in their best rounds so far: the median of those that
        were timed before, 1 where none was."""
        ratios: list[float] = []
        for number, runner in enumerate(rounds.comparison.runners):
            took = rounds.fast_us(number)
            best = min(took, self._fastest_us.get(runner.key, took))
            self._fastest_us[runner.key] = best
            if number < before:
                ratios.append(took / best)
        return median(ratios) if ratios else 1.0

    def _runner(self, proposal: Timeable) -> Runner:
        key = proposal.key
        if key not in self._kernels:
            data, kernel = self._built(proposal.candidate, proposal.schedule)
            moves = data.packing is not None or data.unpacking is not None
            whole = (
                kernel.bound_whole(self._inputs, data.packed, self._ahead, data.output)
                if moves and self._objective == "total"
                else None
            )
            self._kernels[key] = data, kernel.bound(data.packed, data.output), whole
        data, call, whole = self._kernels[key]
        sampler = None if whole is None else wall_clock(whole)
        return Runner(key, data.identifier, wall_clock(call), sampler, data.packing, data.unpacking)

    def _built(self, candidate: Candidate, knobs: Knobs) -> tuple[_Data, CompiledKernel]:
        kernel = native_kernel(candidate.program, self._spec, knobs)
        identifier = candidate.identifier
        if identifier not in self._data:
            self._data[identifier] = _Data(identifier, kernel, self._inputs)
        self._data.move_to_end(identifier)
        data = self._data[identifier]
        self._verify(data, kernel, knobs)
        return data, kernel

    def _verify(self, data: _Data, kernel: CompiledKernel, knobs: Knobs) -> None:
        """On an output of its own: what another kernel left there would be right."""
        found = self._expected.judge(data.mover.unpack(kernel.execute(data.packed)))
        if found.verified and self._objective == "total" and kernel.has_inner_packing:
            found = self._expected.judge(kernel.run_whole(self._inputs, self._ahead))
        what = f"the {kernel.backend} kernel of embedding {data.identifier} of {self._spec.name}"
        found.require(f"{what} in {self._workload.name} with {knobs}", self._seed)

    def _forget(self, needed: set[str]) -> None:
        """All kernels but the needed ones, and the data that were not used lately."""
        self._kernels = {key: kernel for key, kernel in self._kernels.items() if key in needed}
        used = {data.identifier for data, *_ in self._kernels.values()}
        held = 0
        for identifier, data in reversed(list(self._data.items())):
            held += data.bytes
            if held > _ROOM and identifier not in used:
                del self._data[identifier]

    @cached_property
    def _inputs(self) -> Mapping[str, NDArray[Any]]:
        return random_inputs(self._workload, self._seed)

    @cached_property
    def _ahead(self) -> list[str]:
        return packed_before(self._workload)

    @cached_property
    def _unthrottled(self) -> Callable[[], bool] | None:
        """Whether the CPU's product instruction runs as fast as it does at best."""
        probe = throttle_probe(open_target(self._spec))
        return None if probe is None else probe.is_unthrottled

    @cached_property
    def _expected(self) -> Expected:
        return Expected(self._workload, self._inputs)


class IsolatedMeasurer:
    """A :class:`KernelMeasurer` in another process, where ``call`` executes functions: a kernel
    that ends it has failed."""

    def __init__(
        self,
        workload: Computation,
        spec: HardwareSpec,
        objective: Objective,
        seed: int = 0,
        call: Callable[..., Any] = worker.call,
    ) -> None:
        self.known: dict[str, Moves] = {}
        made: _Made = (workload, spec, objective, seed)
        self._of = uuid.uuid4().hex, made
        self._call = call

    def measure(self, proposal: Timeable, incumbent: Timeable | None) -> Timed | Failed:
        """As :meth:`KernelMeasurer.measure`."""
        try:
            best = None if incumbent is None else _Sent.of(incumbent)
            found = self._call(_measure, *self._of, self.known, _Sent.of(proposal), best)
        except CrashError as error:
            return Failed(str(error))
        if isinstance(found, Timed) and not found.rejected:
            self.known.setdefault(proposal.candidate.identifier, found.moves)
        return found

    def final(self, proposals: Sequence[Timeable]) -> list[Timed]:
        """As :meth:`KernelMeasurer.final`; raises :class:`CrashError`."""
        sent = [_Sent.of(proposal) for proposal in proposals]
        return self._call(_final, *self._of, self.known, sent)


_open: dict[str, KernelMeasurer] = {}
"""In the other process: the measurer that was used last."""

_Made = tuple[Computation, HardwareSpec, Objective, int]


def _measurer(key: str, made: _Made, known: Mapping[str, Moves]) -> KernelMeasurer:
    if key not in _open:
        _open.clear()
        _open[key] = KernelMeasurer(*made)
    _open[key].known.update(known)
    return _open[key]


def _measure(
    key: str,
    made: _Made,
    known: Mapping[str, Moves],
    proposal: Timeable,
    incumbent: Timeable | None,
) -> Timed | Failed:
    with step("measuring a schedule", _TIMED_CALLS * made[0].macs):
        return _measurer(key, made, known).measure(proposal, incumbent)


def _final(
    key: str,
    made: _Made,
    known: Mapping[str, Moves],
    proposals: Sequence[Timeable],
) -> list[Timed]:
    with step("measuring the best schedules", _TIMED_CALLS * len(proposals) * made[0].macs):
        return _measurer(key, made, known).final(proposals)


class _Data:
    """Operands of an embedding in its layouts, which all its schedules share.

    ``mover`` is a kernel of the embedding: it packs and unpacks for the others.
    """

    def __init__(
        self, identifier: str, mover: CompiledKernel, inputs: Mapping[str, NDArray[Any]]
    ) -> None:
        self.identifier = identifier
        self.mover = mover
        self.packed = {name: mover.pack(name, inputs[name]) for name in mover.input_names}
        output = mover.program.workload.output.name
        self.output = mover.empty(output)
        ahead = packed_before(mover.program.workload)
        self._packing = mover.bound_packing(mover.originals(inputs, ahead), self.packed)
        self._unpacking = mover.bound_unpacking(self.output)

    @property
    def bytes(self) -> int:
        """Of the packed operands."""
        operands = self.mover.program.operands
        return sum(operand.elements * size_bytes(operand.dtype) for operand in operands)

    @property
    def packing(self) -> Sampler | None:
        return wall_clock(in_turn(self._packing)) if self._packing else None

    @property
    def unpacking(self) -> Sampler | None:
        return wall_clock(in_turn(self._unpacking)) if self._unpacking else None
