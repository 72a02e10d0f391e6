"""Target of VTA: programs of its instructions, executed and timed by simulators."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cpembed.codegen.epilogue import MAX_SHIFT
from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.embedding import Embedding
from cpembed.errors import InvariantError, ProgramError
from cpembed.files import write_whole
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.schema import spec_error
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Quantiles, Timing
from cpembed.runtime.measurement.verification import Expected, Verification, compare_integers
from cpembed.runtime.tuning.space import Proposal
from cpembed.steps import step
from cpembed.targets.base import Array, ChoicePolicy, Details, Execution, Row, Target
from cpembed.targets.tuner import Tuner
from cpembed.targets.vta.bounds import Bounds, bounds
from cpembed.targets.vta.checker import check
from cpembed.targets.vta.host import HostPacking, emit_relax
from cpembed.targets.vta.lower import LoweredVta
from cpembed.targets.vta.program import VtaProgram, save_program
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.simulator import require_simulated, simulate
from cpembed.targets.vta.specification import vta_config
from cpembed.targets.vta.tail import (
    Exact,
    Requantized,
    Tail,
    Truncated,
    default_tail,
    form_of,
    tail_for,
)
from cpembed.targets.vta.timing import MemorySystem, time_program, timeline
from cpembed.targets.vta.timing import Timing as SimulatedTiming
from cpembed.targets.vta.tuning import Machine, Nest, VtaSpace, VtaTrial, key_of, result_form
from cpembed.transform.program import DerivedProgram
from cpembed.wording import data_size, duration


@dataclass(frozen=True)
class VtaDetails(Details):
    """Program with the inputs in its memory, its simulated cycles and their lower bounds.

    ``seconds`` is the wall time by phase.
    """

    lowered: LoweredVta
    program: VtaProgram
    timing: SimulatedTiming
    bounds: Bounds
    clock_mhz: float
    seconds: dict[str, float]

    @property
    def microseconds(self) -> float:
        """Simulated cycles at the target's clock."""
        return self.timing.cycles / self.clock_mhz

    @property
    def gops(self) -> float:
        """Operations per nanosecond of simulated time."""
        # Two for each multiply-accumulate of the workload itself: padding does no useful work.
        return 2 * self.lowered.program.unfused.macs / (self.microseconds * 1e3)

    @property
    def lower_bound_ratio(self) -> float:
        """Cycles over the larger of GEMM and DMA cycles."""
        return self.timing.cycles / self.bounds.gemm_or_dma

    @property
    def busiest_module_ratio(self) -> float:
        """Cycles over those that the busiest module needs."""
        return self.timing.cycles / self.bounds.busiest_module

    def to_json(self) -> dict[str, Any]:
        tail = self.lowered.tail
        return {
            "output": {"form": form_of(tail), "dtype": tail.dtype, **asdict(tail)},
            **self._cycle_figures(),
            "busiest_module_cycles": self.bounds.busiest_module,
            "bounds": asdict(self.bounds),
            "bytes": dict(self.timing.bytes),
            "modules": {name: asdict(module) for name, module in self.timing.modules.items()},
            "memory": asdict(self.timing.memory),
            "instructions": len(self.program.instructions),
            "micro_ops": len(self.lowered.uops),
            "seconds": dict(self.seconds),
        }

    def bench_json(self) -> dict[str, Any]:
        tail = self.lowered.tail
        shift = {"shift": tail.shift} if isinstance(tail, Requantized) else {}
        return {"output": form_of(tail), **shift, **self._cycle_figures()}

    def _cycle_figures(self) -> dict[str, Any]:
        return {
            "simulated_cycles": self.timing.cycles,
            "clock_mhz": self.clock_mhz,
            "simulated_us": self.microseconds,
            "simulated_gops": self.gops,
            "gemm_utilisation": self.timing.gemm_utilisation,
            "lower_bound_cycles": self.bounds.gemm_or_dma,
            "lower_bound_ratio": self.lower_bound_ratio,
            "busiest_module_ratio": self.busiest_module_ratio,
        }

    def rows(self) -> list[Row]:
        timing, bounds = self.timing, self.bounds
        time = f"{duration(self.microseconds)} at {self.clock_mhz:g} MHz"
        size = f"{len(self.program.instructions):,} instructions"
        parts = f"GEMM {bounds.gemm:,}, reading {bounds.read:,}, writing {bounds.write:,}"
        least = f"{bounds.gemm_or_dma:,} cycles, the most of {parts}"
        transferred = (f"{name} {data_size(size)}" for name, size in timing.bytes.items())
        return [
            ("output", str(self.lowered.tail)),
            ("program", f"{size}, {len(self.lowered.uops):,} micro-ops"),
            ("simulated", f"{timing.cycles:,} cycles, {time}, {self.gops:.1f} GOPS"),
            ("", f"GEMM core busy {timing.gemm_utilisation:.1%} of them"),
            ("at least", f"{least}; the program takes {self.lower_bound_ratio:.3f} times that"),
            *([self._row_with_alu()] if bounds.busiest_module > bounds.gemm_or_dma else []),
            ("moved", "  ".join(transferred)),
        ]

    def _row_with_alu(self) -> Row:
        # Resets and the ALU execute in the compute module, one after the other with products.
        least = f"{self.bounds.busiest_module:,} cycles with GEMM's resets and the ALU"
        return "", f"{least}, which share a module; {self.busiest_module_ratio:.3f} times"


SIMULATOR = "vta.simulator"
"""Name of the simulator that executes programs, in results."""


@dataclass(eq=False)
class VtaArtifact:
    """Lowered program with its compiled packing, and the results of its run.

    After the run, ``program`` has the inputs in its memory, ``memory`` is the main memory that it
    left, ``timing`` its simulated cycles, and ``seconds`` the wall time by phase.
    """

    lowered: LoweredVta
    packing: HostPacking
    program: VtaProgram | None = None
    memory: Any = None
    timing: SimulatedTiming | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Measure the wall time of a phase."""
        started = time.perf_counter()
        # A step tells the parent process what this one is doing, and how long that may take.
        with step(f"simulating a VTA ({name})", self.lowered.program.workload.macs):
            yield
        self.seconds[name] = time.perf_counter() - started


class VtaTuner(Tuner[Schedule]):
    """Tuning by simulated cycles; each program is checked, but not verified."""

    trial = VtaTrial
    spread = 1.0

    def trial_key(
        self,
        workload: Computation,
        constraints: ConstraintSet,
        epilogue: Any,
        objective: str | None,
    ) -> dict[str, Any]:
        return key_of(workload, self.spec, epilogue or default_tail(workload), constraints)

    def document_entries(self, workload: Computation, epilogue: Any) -> dict[str, Any]:
        return {"form": result_form(epilogue or default_tail(workload))}

    def trial_call(
        self, proposal: Proposal[Schedule], epilogue: Any
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the call that simulates a schedule's cycles."""
        # No results are compared: lowering does not depend on the data, and `run` verifies it.
        return _cycles, (proposal.design.lowered, proposal.schedule)

    def trial_of(self, proposal: Proposal[Schedule], figure: Any, error: str | None) -> VtaTrial:
        design, space, estimate = proposal.design, proposal.design.space, proposal.estimate
        assert isinstance(space, VtaSpace)
        return VtaTrial(
            embedding=design.candidate.embedding.to_json(),
            identifier=design.identifier,
            rank=design.ranked.rank,
            constraints=design.ranked.constraints,
            error=error,
            schedule=proposal.schedule,
            # JSON has no infinity, which the model returns for a schedule that does not fit.
            estimate=estimate if estimate < float("inf") else None,
            cycles=figure,
            lower_bound=space.bounds.gemm_or_dma,
            busiest_module=space.bounds.busiest_module,
        )

    def rows(self, best: VtaTrial, untuned: VtaTrial) -> list[Row]:
        speedup = (untuned.cycles or 0) / (best.cycles or 1)
        microseconds = (best.cycles or 0) / self.target.clock_mhz
        return [
            ("untuned", _trial_text(untuned)),
            ("tuned", f"{_trial_text(best)}; {speedup:.3f} times as fast"),
            ("", f"{duration(microseconds)} at the target's clock"),
        ]

    def trial_json(self, trial: VtaTrial) -> dict[str, Any]:
        return {
            **super().trial_json(trial),
            "us": (trial.cycles or 0) / self.target.clock_mhz,
            "lower_bound_ratio": trial.lower_bound_ratio,
            "busiest_module_ratio": trial.busiest_module_ratio,
        }


class VtaTarget(Target[Nest, Schedule, VtaArtifact]):
    """Target whose cycles are simulated; packing is compiled for this machine and measured."""

    provenance = Provenance.SIMULATED
    unit = "cycles"
    policy = ChoicePolicy(compares_always=False)
    instructions = (
        "A program for a VTA with its inputs, packed, in main memory: `meta.json` says where its "
        "tensors lie. `cpembed vta run` executes it in the functional simulator, `cpembed vta "
        "cycles` times it; a device's driver copies `dram.bin` to physical address `base` of "
        "`meta.json`, and starts the fetch unit on `insns.bin`. The format: docs/vta.md, Saved "
        "programs."
    )
    tuner = VtaTuner

    def __init__(self, spec: HardwareSpec) -> None:
        """Open the target of a specification.

        Raises :class:`~cpembed.errors.SpecError` if it is no VTA, or one that cannot be simulated.
        """
        super().__init__(spec)
        self.config = vta_config(spec)
        require_simulated(self.config)
        if spec.machine is None:
            problem = "is missing: cycles and times need the clock and the memory path"
            raise spec_error(spec.path or spec.name, ("machine",), problem)
        self.memory = MemorySystem.from_machine(spec.machine)
        self.memory.check()
        self.clock_mhz = spec.machine.clock_mhz

    def missing(self) -> tuple[str, ...]:
        # Programs are simulated: no feature of this processor is needed.
        return ()

    @property
    def described_machine(self) -> str | None:
        return next(iter(self.spec.machines), None)

    def machine(self, workload: Computation, tail: Tail | None = None) -> Machine:
        """Return the machine of a workload, by default with the tail of its output type."""
        return Machine(self.config, self.memory, tail or default_tail(workload))

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> Nest:
        return Nest.from_program(program, self.machine(program.unfused, epilogue))

    def space(self, lowered: Nest) -> VtaSpace:
        return VtaSpace(lowered)

    def build(self, lowered: Nest, schedule: Schedule) -> VtaArtifact:
        started = time.perf_counter()
        program = lowered.lowered(schedule)
        seconds = {"lower": time.perf_counter() - started}
        return VtaArtifact(program, HostPacking(program), seconds=seconds)

    def execute(self, artifact: VtaArtifact, inputs: Mapping[str, Array]) -> Execution:
        """Execute a program in the functional simulator, after checking it.

        Raises :class:`InvariantError` if it is illegal, which is a bug of this package.
        """
        lowered, packing = artifact.lowered, artifact.packing
        with artifact.phase("pack"):
            artifact.program = program = packing.build(_factors(lowered, inputs))
        with artifact.phase("check"):
            try:
                check(program)
            except ProgramError as error:
                workload, embedding = lowered.program.unfused, lowered.program.embedding
                raise InvariantError(
                    f"the VTA program of embedding {embedding.identifier()} of {self.spec.name} in "
                    f"{workload.name} is illegal: {error}; please report this command line"
                ) from error
        # Checked above, in a phase of its own: the wall time of each is reported.
        with artifact.phase("functional"):
            artifact.memory = simulate(program, checked=False)
            result = packing.unpack(lowered.combine(program, artifact.memory))
        return Execution((result,), self.provenance)

    def time(self, artifact: VtaArtifact, inputs: Mapping[str, Array]) -> Timing:
        # Unpacking is timed on the memory that a run leaves.
        if artifact.program is None:
            self.execute(artifact, inputs)
        lowered, program = artifact.lowered, artifact.program
        assert program is not None
        with artifact.phase("timed"):
            artifact.timing = time_program(program, self.memory, checked=False)
        with artifact.phase("measure"):
            factors = _factors(lowered, inputs)
            times = artifact.packing.time(program, artifact.memory, factors)
        cycles = artifact.timing.cycles
        us = cycles / self.clock_mhz
        # Simulated cycles have no spread; only packing and unpacking were measured.
        latency = Quantiles(us, us, us)
        return replace(times, latency_us=latency, cycles=cycles, clock_mhz=self.clock_mhz)

    def save(self, artifact: VtaArtifact, path: Path) -> None:
        """Save the program with its inputs to a directory, or a zip if the name ends in .zip."""
        assert artifact.program is not None
        save_program(artifact.program, path)

    def save_trace(self, artifact: VtaArtifact, path: Path) -> None:
        assert artifact.program is not None
        assert artifact.timing is not None
        document = timeline(artifact.program, artifact.timing)
        write_whole(path, json.dumps(document, separators=(",", ":")))

    def epilogue(self, workload: Computation, storing: EpilogueRequest) -> Tail:
        return tail_for(self.spec.name, workload, storing)

    def stored_type(self, workload: Computation, epilogue: Any) -> str:
        return (epilogue or default_tail(workload)).dtype

    def judge(self, expected: Expected, epilogue: Any, output: Array) -> Verification:
        tail = epilogue or default_tail(expected.workload)
        return compare_integers(tail.reference(expected.result), output)

    def exact(self, workload: Computation) -> Tail:
        return Truncated() if workload.output.dtype == "int8" else Exact()

    def requantized(self, shift: int, low: int, high: int, bias: tuple[int, ...]) -> Tail | None:
        # The ALU shifts by 31 at most, and STORE keeps eight bits.
        fits = shift <= MAX_SHIFT and -128 <= low <= high <= 127
        return Requantized(shift, low, high, bias) if fits else None

    def emit_relax(
        self, builder: Any, artifact: VtaArtifact, arguments: Mapping[str, Any], result: Any
    ) -> Any:

        return emit_relax(builder, artifact.lowered, arguments, result)

    def executed_by(self, artifact: VtaArtifact) -> str:
        return SIMULATOR

    def schedule_text(self, embedding: Embedding, schedule: Schedule) -> str:
        return str(schedule)

    def schedule_json(self, schedule: Schedule) -> Any:
        return schedule.to_json()

    def describe(self, artifact: VtaArtifact, timing: Timing) -> VtaDetails:
        assert artifact.program is not None
        assert artifact.timing is not None
        lowered = artifact.lowered
        return VtaDetails(
            lowered=lowered,
            program=artifact.program,
            timing=artifact.timing,
            bounds=bounds(lowered.nest, lowered.tail, self.memory),
            clock_mhz=self.clock_mhz,
            seconds=dict(artifact.seconds),
        )

    def doubts(self, *, noisy: bool) -> tuple[str, ...]:
        reason = "this schedule waits for loads or stores that the model overlaps"
        return (f"{reason}: `cpembed tune` compares schedules by simulated cycles",)

    def schedule_of(self, trial: VtaTrial) -> Schedule:
        return trial.schedule


def _factors(lowered: LoweredVta, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs by operand: a tensor that is both factors is packed for each."""
    operands = lowered.program.workload.inputs
    return {operand.name: inputs[operand.tensor] for operand in operands}


def _cycles(nest: Nest, schedule: Schedule) -> int:
    """Return the simulated cycles of a schedule; its program is checked as any other."""
    with step("simulating a schedule", nest.program.workload.macs):
        lowered = nest.lowered(schedule)
        return time_program(lowered.empty_image(), nest.machine.memory).cycles


def _trial_text(trial: VtaTrial) -> str:
    """Return a trial's cycles, and their ratios to the lower bounds of its embedding."""
    text = f"{trial.cycles or 0:,} cycles, {trial.lower_bound_ratio:.3f} times what GEMM or DMA "
    text += "alone takes"
    if trial.busiest_module == trial.lower_bound:
        return text
    return f"{text}, {trial.busiest_module_ratio:.3f} times with resets and the ALU"
