"""Run a candidate on a VTA: lower, check, simulate, compare, count cycles.

>>> from cpembed.api.run import run
>>> from cpembed.api.solve import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> result = run(layer, "vta_1x16x16")
>>> result.verification.verified, result.timing.gemm_cycles, result.lowered.tail.shift
(True, 8, 9)
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cpembed.api.expectation import Expectation, of_cycles
from cpembed.api.solve import Progress, SolveResult, workload_json
from cpembed.errors import InvariantError, LoweringError, ProgramError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.schema import spec_error
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs, reference
from cpembed.measure.verification import Verification, compare_integers
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.cpu.choice import CONSIDERED
from cpembed.targets.vta.checker import check
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.estimate import Bounds, bounds
from cpembed.targets.vta.lower import LoweredVta, lower
from cpembed.targets.vta.machine import BACKEND, vta_config
from cpembed.targets.vta.move_times import MoveTimes, measure_moves
from cpembed.targets.vta.moves import Moves
from cpembed.targets.vta.planner import default_schedule, ranked_schedules
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.simulator import require_simulated, simulate
from cpembed.targets.vta.tail import Exact, Requantized, Tail, Truncated, requantized_for
from cpembed.targets.vta.tiles import tile_nest
from cpembed.targets.vta.timing import MemorySystem, Timing, time_program
from cpembed.targets.vta.tuning_kept import tuned
from cpembed.targets.vta.tuning_trials import VtaTrial
from cpembed.transform.program import DerivedProgram
from cpembed.tuning.kept import TunedChoice
from cpembed.worker import step

SIMULATOR = "vta.simulator"
"""What executed the program, as results name it."""

OutputForm = Literal["requantized", "int32", "int8"]
"""What is stored of the sums: shifted and clipped, all their bits, the low eight bits."""


def simulates(spec: HardwareSpec) -> bool:
    """Whether a target is simulated here."""
    return spec.backend == BACKEND


def tail_for(workload: Computation, form: OutputForm | None, shift: int | None) -> Tail:
    """How sums become results; without a form, what the element type of the output says.

    Raises :class:`WorkloadError` where the form does not fit that type, or a shift has no place.
    """
    output = workload.output
    cut_off = output.dtype == "int8"
    chosen = form or ("int8" if cut_off else "requantized")
    if cut_off and chosen != "int8":
        raise WorkloadError(
            f"{output.name} is int8, the low bits of the sums, and cannot be {chosen}: "
            "give it the type int32, or ask for int8"
        )
    if chosen == "requantized":
        return requantized_for(workload) if shift is None else Requantized(shift)
    if shift is not None:
        raise WorkloadError(
            f"output {chosen} has no shift: leave it out, or ask for requantized output"
        )
    return Exact() if chosen == "int32" else Truncated()


@dataclass(frozen=True)
class VtaRunResult:
    """A verified program with its simulated cycles, and the measured times of its packing.

    ``program`` has the inputs in its memory. ``tuned`` is where the candidate's schedule comes
    from, None for the default one. ``seconds`` is wall time by phase.
    """

    solved: SolveResult
    candidate: RankedCandidate
    tuned: TunedChoice[VtaTrial] | None
    lowered: LoweredVta
    program: VtaProgram
    timing: Timing
    bounds: Bounds
    verification: Verification
    moves: MoveTimes
    clock_mhz: float
    seed: int
    seconds: dict[str, float]

    @property
    def form(self) -> OutputForm:
        tail = self.lowered.tail
        if isinstance(tail, Requantized):
            return "requantized"
        return "int32" if isinstance(tail, Exact) else "int8"

    @property
    def microseconds(self) -> float:
        """Simulated cycles at the target's clock."""
        return self.timing.cycles / self.clock_mhz

    @property
    def gops(self) -> float:
        """Two operations a multiply-accumulate of the workload, padding not counted, over the
        simulated time."""
        return 2 * self.solved.workload.macs / (self.microseconds * 1e3)

    @property
    def lower_bound_ratio(self) -> float:
        """Cycles over the larger of GEMM and DMA cycles."""
        return self.timing.cycles / self.bounds.gemm_or_dma

    @property
    def busiest_module_ratio(self) -> float:
        """Cycles over those that the busiest module needs."""
        return self.timing.cycles / self.bounds.busiest_module

    @property
    def expectation(self) -> Expectation | None:
        """What the model expected of the schedule."""
        return of_cycles(self.lowered, self.timing)

    def to_json(self) -> dict[str, Any]:
        """The document of ``run --json``."""
        tail, expected = self.lowered.tail, self.expectation
        return {
            "workload": workload_json(self.solved.workload),
            "target": self.solved.target.name,
            "constraints": self.solved.constraints.name,
            "embedding": self.candidate.candidate.embedding.identifier(),
            "rank": self.candidate.rank,
            "seed": self.seed,
            "backend": SIMULATOR,
            "verified": self.verification.verified,
            "max_error": self.verification.max_error,
            "tolerance": self.verification.tolerance,
            "output": {"form": self.form, "dtype": tail.dtype, **asdict(tail)},
            "simulated_cycles": self.timing.cycles,
            "clock_mhz": self.clock_mhz,
            "simulated_us": self.microseconds,
            "simulated_gops": self.gops,
            "gemm_utilisation": self.timing.gemm_utilisation,
            "lower_bound_cycles": self.bounds.gemm_or_dma,
            "lower_bound_ratio": self.lower_bound_ratio,
            "busiest_module_cycles": self.bounds.busiest_module,
            "busiest_module_ratio": self.busiest_module_ratio,
            "expectation": None if expected is None else expected.to_json(),
            "bounds": asdict(self.bounds),
            "bytes": dict(self.timing.bytes),
            "modules": {name: asdict(module) for name, module in self.timing.modules.items()},
            "memory": asdict(self.timing.memory),
            "schedule": _schedule_json(self.lowered),
            "tuned": None if self.tuned is None else self.tuned.to_json(),
            "instructions": len(self.program.instructions),
            "micro_ops": len(self.lowered.uops),
            "packing_us": self.moves.packing_us,
            "unpacking_us": self.moves.unpacking_us,
            "packed_ahead": list(self.moves.packed_ahead),
            "noisy": self.moves.noisy,
            "seconds": {"solve": self.solved.total_seconds, **self.seconds},
            **self.solved.sets_json(),
        }


@dataclass(frozen=True)
class Choice:
    """A candidate to execute, and where its schedule comes from if not by default."""

    candidate: RankedCandidate
    tuned: TunedChoice[VtaTrial] | None = None


@dataclass(frozen=True)
class VtaSimulation:
    """A machine and a form of the output: everything that can be wrong is found before a search."""

    spec: HardwareSpec
    config: VtaConfig
    memory: MemorySystem
    clock_mhz: float
    tail: Tail

    @classmethod
    def of(
        cls, spec: HardwareSpec, workload: Computation, form: OutputForm | None, shift: int | None
    ) -> VtaSimulation:
        """Raises :class:`SpecError` for a target that cannot be simulated, :class:`WorkloadError`
        as :func:`tail_for` does."""
        config = vta_config(spec)
        require_simulated(config)
        if spec.machine is None:
            problem = "is missing: cycles and times need the clock and the memory path"
            raise spec_error(spec.path or spec.name, ("machine",), problem)
        memory = MemorySystem.of(spec.machine)
        memory.check()
        tail = tail_for(workload, form, shift)
        return cls(spec, config, memory, spec.machine.clock_mhz, tail)

    def fastest(self, found: Sequence[SolveResult]) -> tuple[SolveResult, RankedCandidate]:
        """Of the best of several searches, the candidate whose schedule has the least estimate in
        cycles, with its search; the first where none has a schedule."""
        candidates = [(solved, item) for solved in found for item in solved.embeddings[:CONSIDERED]]
        cycles = [self._estimate(item.candidate.program) for _, item in candidates]
        return candidates[cycles.index(min(cycles))]

    def _estimate(self, program: DerivedProgram) -> float:
        try:
            nest = tile_nest(program, self.config)
            return ranked_schedules(nest, self.tail, 1, self.memory)[0][0]
        except LoweringError:
            return float("inf")

    def tuned(
        self,
        solved: SolveResult,
        candidate: RankedCandidate,
        *,
        any_set: bool,
        any_embedding: bool,
    ) -> Choice:
        """The fastest that tuning kept, under the search's constraint set or any, of the candidate
        or any embedding; the candidate itself where nothing is kept.
        """
        kept = tuned(
            solved.workload,
            self.spec,
            self.tail,
            None if any_set else solved.constraints,
            identifier=None if any_embedding else candidate.candidate.identifier,
        )
        if kept is None:
            return Choice(candidate)
        return Choice(kept.ranked(solved.constraints.weights), kept)

    def run(
        self, solved: SolveResult, choice: Choice, seed: int, progress: Progress
    ) -> VtaRunResult:
        """Lower a candidate, execute it on random data of a seed, compare, count.

        Raises :class:`LoweringError` where there is no program of the candidate, and
        :class:`InvariantError` where it is illegal or its numbers are wrong.
        """
        phases = _Phases(progress, solved.workload.macs)
        workload, candidate = solved.workload, choice.candidate
        with phases("lower"):
            derived = candidate.candidate.program
            if choice.tuned is not None:
                schedule = choice.tuned.trial.schedule
            else:
                nest = tile_nest(derived, self.config)
                schedule = default_schedule(nest, self.tail, self.memory)
            lowered = lower(derived, self.config, schedule, self.tail)
        inputs = random_inputs(workload, seed)
        with phases("pack"):
            moves = Moves(lowered)
            # A tensor that is both factors is packed for each.
            tensors = {operand.name: operand.tensor for operand in derived.workload.inputs}
            factors = {name: inputs[tensor] for name, tensor in tensors.items()}
            program = moves.build(factors)
        about = f"of embedding {candidate.candidate.embedding.identifier()} of {self.spec.name} in "
        about += f"{workload.name} (data of seed {seed})"
        with phases("check"):
            _require_legal(program, about)
        with phases("functional"):
            memory = simulate(program, checked=False)
            found = moves.unpack(lowered.combine(program, memory))
        with phases("reference"):
            verification = compare_integers(self.tail.reference(reference(workload, inputs)), found)
        if not verification.verified:
            raise InvariantError(
                f"the VTA program {about} is wrong by up to {verification.max_error:g}: "
                "please report this command line"
            )
        with phases("timed"):
            timing = time_program(program, self.memory, checked=False)
        with phases("measure"):
            times = measure_moves(lowered, moves, program, memory, factors)
        return VtaRunResult(
            solved,
            candidate,
            choice.tuned,
            lowered,
            program,
            timing,
            bounds(lowered.nest, self.tail, self.memory),
            verification,
            times,
            self.clock_mhz,
            seed,
            phases.seconds,
        )


@dataclass
class _Phases:
    """Wall time of each phase, which is announced when it begins."""

    progress: Progress
    macs: int
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        self.progress(name, 0)
        started = time.perf_counter()
        with step(f"simulating a VTA ({name})", self.macs):
            yield
        self.seconds[name] = time.perf_counter() - started


def _require_legal(program: VtaProgram, about: str) -> None:
    """An illegal program that was generated is a bug, whatever the checker says of programs."""
    try:
        check(program)
    except ProgramError as error:
        raise InvariantError(
            f"the VTA program {about} is illegal: {error}; please report this command line"
        ) from error


def _schedule_json(lowered: LoweredVta) -> dict[str, Any]:
    chosen = lowered.schedule
    return {
        "tiles": {name: chosen.tiles[name] for name in chosen.order},
        "threads": chosen.threads,
        "thread_loop": chosen.thread_loop,
        "slots": {"inp": chosen.slots[0], "wgt": chosen.slots[1]},
    }
