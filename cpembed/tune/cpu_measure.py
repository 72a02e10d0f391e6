"""Measuring kernels on a machine that others use too.

Every kernel is verified, then timed beside the best one so far, in many short rounds by turns. What
counts is the ratio of the fast rounds (:data:`FAST`) of both: a machine that is slower for a while
is so for both, and what disturbs a kernel only ever slows it down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.backends.contract import Knobs
from cpembed.backends.kernel import CompiledKernel, build
from cpembed.errors import InvariantError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs
from cpembed.measure.runner import Expected, Quantiles, Sampler, quantiles, wall_clock
from cpembed.measure.turns import Side, Turns, time_in_turns
from cpembed.strategy.candidate import Candidate
from cpembed.tune.cpu_choice import Objective, moved
from cpembed.tune.cpu_space import CpuProposal

ROUND_MS = 0.5
"""Of a kernel's turn. Schedulers give others whole milliseconds: the shorter a turn, the more of
them pass undisturbed."""

FIRST_ROUNDS, ROUNDS, FINAL_ROUNDS = 6, 40, 80
"""Before a kernel may be rejected, of one that is not, and at the end of a search; the last two for
kernels that a turn holds."""

_LIMIT_S = 2.0
"""Slower kernels get fewer rounds, but no fewer than the first."""

FAST = 0.1
"""Quantile of the rounds that is compared."""

SLOWER = 1.15
"""A kernel is rejected whose fastest round took longer than the champion's typical one by this."""

_KEPT = 4
"""Embeddings whose packed data are kept."""

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
    """A kernel's times; ``ratio`` is what is minimised over the champion's, 1 where it is alone."""

    latency_us: Quantiles
    moves: Moves
    ratio: float
    noisy: bool
    rejected: bool = False


@dataclass(frozen=True)
class Failed:
    """Why a schedule has no kernel."""

    reason: str


class Workbench:
    """Kernels of one workload on random data, verified against one reference.

    ``known`` holds the moves of embeddings that were measured before, by identifier: they are the
    same for all schedules, and compared only with those of another embedding.
    """

    def __init__(
        self, workload: Computation, spec: HardwareSpec, objective: Objective, seed: int = 0
    ) -> None:
        self.known: dict[str, Moves] = {}
        self._workload = workload
        self._spec = spec
        self._objective = objective
        self._seed = seed
        self._data: OrderedDict[str, _Data] = OrderedDict()
        self._kernels: dict[str, tuple[_Data, Callable[[], Any]]] = {}

    def measure(self, proposal: CpuProposal, champion: CpuProposal | None) -> Timed | Failed:
        """Time a schedule beside the champion, which was measured before.

        Raises :class:`InvariantError` where the kernel's numbers are wrong.
        """
        others = [] if champion is None else [champion]
        try:
            runners = [self._runner(item) for item in (*others, proposal)]
        except LoweringError as error:
            return Failed(str(error))
        contest = _Contest(runners, self._known(runners), self._objective)
        first = contest.run(FIRST_ROUNDS, attempts=1)
        if champion is not None and first.fastest(1) > SLOWER * first.typical(0):
            return first.timed(1, 0, rejected=True)
        found = contest.run(first.affordable(ROUNDS), attempts=1)
        self._forget({item.key for item in (*others, proposal)})
        timed = found.timed(len(runners) - 1, 0)
        self.known.setdefault(runners[-1].data.identifier, timed.moves)
        return timed

    def final(self, proposals: Sequence[CpuProposal]) -> list[Timed]:
        """Time schedules that were measured before beside each other; ratios are over the first."""
        runners = [self._runner(item) for item in proposals]
        contest = _Contest(runners, {}, self._objective)
        first = contest.run(FIRST_ROUNDS, attempts=1)
        found = contest.run(first.affordable(FINAL_ROUNDS), attempts=3)
        return [found.timed(number, 0) for number in range(len(runners))]

    def _known(self, runners: Sequence[_Runner]) -> dict[str, Moves]:
        """Moves that need not be timed: all are where embeddings differ and moves count."""
        names = {runner.data.identifier for runner in runners}
        if self._objective == "total" and len(names) > 1:
            return {}
        return {name: self.known[name] for name in names if name in self.known}

    def _runner(self, proposal: CpuProposal) -> _Runner:
        if proposal.key not in self._kernels:
            data, kernel = self._built(proposal.design.candidate, proposal.knobs)
            self._kernels[proposal.key] = data, kernel.bound(data.packed, data.output)
        data, call = self._kernels[proposal.key]
        return _Runner(data, wall_clock(call))

    def _built(self, candidate: Candidate, knobs: Knobs) -> tuple[_Data, CompiledKernel]:
        kernel = build(candidate.program, self._spec, backend="native", knobs=knobs)
        identifier = candidate.embedding.identifier()
        if identifier not in self._data:
            self._data[identifier] = _Data(identifier, kernel, self._inputs)
        self._data.move_to_end(identifier)
        data = self._data[identifier]
        self._verify(data, kernel, knobs)
        return data, kernel

    def _verify(self, data: _Data, kernel: CompiledKernel, knobs: Knobs) -> None:
        """On an output of its own: what another kernel left there would be right."""
        found = self._expected.judge(data.mover.unpack(kernel.execute(data.packed)))
        if not found.verified:
            raise InvariantError(
                f"the {kernel.backend} kernel of embedding {data.identifier} of "
                f"{self._spec.name} in {self._workload.name} with {knobs} is wrong by up to "
                f"{found.max_error:g} on data of seed {self._seed}: please report this command line"
            )

    def _forget(self, needed: set[str]) -> None:
        """All kernels but those that were just timed, and the data that were not used lately."""
        self._kernels = {key: kernel for key, kernel in self._kernels.items() if key in needed}
        used = {data.identifier for data, _ in self._kernels.values()}
        for identifier in list(self._data):
            if len(self._data) > _KEPT and identifier not in used:
                del self._data[identifier]

    @cached_property
    def _inputs(self) -> Mapping[str, NDArray[Any]]:
        return random_inputs(self._workload, self._seed)

    @cached_property
    def _expected(self) -> Expected:
        return Expected(self._workload, self._inputs)


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
        moving = {operand.name for operand in moved(mover.program)}
        self._fresh = {
            name: mover.original(name, inputs[name]) for name in mover.input_names if name in moving
        }
        self._result = mover.original(output) if output in moving else None

    @property
    def packing(self) -> Sampler | None:
        return wall_clock(self._pack) if self._fresh else None

    @property
    def unpacking(self) -> Sampler | None:
        return None if self._result is None else wall_clock(self._unpack)

    def _pack(self) -> None:
        for name, original in self._fresh.items():
            self.mover.pack_into(name, original, self.packed[name])

    def _unpack(self) -> None:
        self.mover.unpack_into(self.output, self._result)


@dataclass(frozen=True)
class _Runner:
    data: _Data
    kernel: Sampler


@dataclass(frozen=True)
class _Contest:
    """Runners by turns; the moves of ``known`` embeddings are not timed."""

    runners: Sequence[_Runner]
    known: Mapping[str, Moves]
    objective: Objective

    def run(self, rounds: int, attempts: int) -> _Rounds:
        sides = {f"kernel {n}": Side(r.kernel, _POOL) for n, r in enumerate(self.runners)}
        for runner in self.runners:
            name = runner.data.identifier
            moves = {"packing": runner.data.packing, "unpacking": runner.data.unpacking}
            sides |= {
                f"{part} {name}": Side(sample, _POOL)
                for part, sample in moves.items()
                if sample is not None and name not in self.known
            }
        turns = time_in_turns(sides, rounds=rounds, round_ms=ROUND_MS, attempts=attempts)
        return _Rounds(self, turns)


@dataclass(frozen=True)
class _Rounds:
    """What the runners of a contest took, by their numbers."""

    contest: _Contest
    turns: Turns

    def affordable(self, rounds: int) -> int:
        """So many rounds, or fewer where they are slow."""
        # Each turn begins with at least one call that is not timed.
        each = [2 * max(np.median(taken), ROUND_MS * 1e3) for taken in self.turns.samples.values()]
        return max(FIRST_ROUNDS, min(rounds, int(_LIMIT_S * 1e6 / float(sum(each)))))

    def fastest(self, number: int) -> float:
        return float(self._minimised(number).min())

    def typical(self, number: int) -> float:
        return float(np.median(self._minimised(number)))

    def timed(self, number: int, champion: int, *, rejected: bool = False) -> Timed:
        ours, theirs = (
            float(np.quantile(self._minimised(runner), FAST)) for runner in (number, champion)
        )
        latency = quantiles(self.turns.samples[f"kernel {number}"])
        noisy = self.turns.is_noisy or latency.is_noisy
        return Timed(latency, self._moves(number), ours / theirs, noisy, rejected)

    def _minimised(self, number: int) -> NDArray[np.float64]:
        """Round by round; known moves are the same in each."""
        kernel = np.array(self.turns.samples[f"kernel {number}"])
        if self.contest.objective == "kernel":
            return kernel
        name = self.contest.runners[number].data.identifier
        if name in self.contest.known:
            return kernel + self.contest.known[name].us
        for part in ("packing", "unpacking"):
            kernel = kernel + np.array(self.turns.samples.get(f"{part} {name}", [0.0]))
        return kernel

    def _moves(self, number: int) -> Moves:
        name = self.contest.runners[number].data.identifier
        if name in self.contest.known:
            return self.contest.known[name]
        packing, unpacking = (
            float(np.median(self.turns.samples.get(f"{part} {name}", [0.0])))
            for part in ("packing", "unpacking")
        )
        return Moves(packing, unpacking)
