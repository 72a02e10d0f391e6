"""Base of CPU targets: kernels compiled by TVM, chosen by a performance model of the machine."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from cpembed.codegen import runtime
from cpembed.codegen.compiled import CompiledKernel, Processor, described
from cpembed.codegen.epilogue import PROCESSOR_RESULT_TYPES, Epilogue
from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.codegen.packing import packed_before
from cpembed.codegen.plan import Knobs
from cpembed.codegen.recorded import Recorder
from cpembed.cost.ranking import Candidate, RankedCandidate
from cpembed.embedding.constraint_set import Weights
from cpembed.embedding.embedding import Embedding
from cpembed.errors import BackendUnavailable, LoweringError, WorkloadError
from cpembed.files import make_folder, write_whole
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.runner import Timing, measure
from cpembed.targets.base import Array, ChoicePolicy, Execution, Target
from cpembed.targets.capabilities import (
    UNKNOWN_CASE,
    Calibrated,
    HasParts,
    HasVariants,
    HostTimes,
    Linkable,
    Weighing,
)
from cpembed.targets.choice import Choice, built_first, choices_storing, compared
from cpembed.targets.cpu.calibration import (
    Calibration,
    calibration,
    default_calibration,
)
from cpembed.targets.cpu.lowering import BackEnd, Lowered, portable_kernel
from cpembed.targets.cpu.methods import CpuMethods
from cpembed.targets.cpu.schedules import Schedules
from cpembed.targets.cpu.space import (
    CONSIDERED_ON_CPU,
    TIE_RATIO,
    CpuSpace,
    Objective,
    machine_weights,
    schedule_json,
    shortlist,
)
from cpembed.targets.cpu.tuning import CpuTrial, CpuTuner, schedule_text
from cpembed.targets.cpu.variants import require_variant, with_variants
from cpembed.targets.outputs import Saveable
from cpembed.targets.registry import open_target
from cpembed.transform.program import DerivedProgram


class CpuTarget(
    Target[Lowered, Knobs, CompiledKernel],
    HasParts,
    Linkable,
    Saveable,
    HasVariants,
    Weighing,
    Calibrated,
):
    """Target of a CPU instruction.

    ``objective`` tells whether packing and unpacking count when schedules are compared.
    """

    policy = ChoicePolicy(considered=CONSIDERED_ON_CPU, tie_ratio=TIE_RATIO, shortlist=shortlist)
    tuner = CpuTuner

    def __init__(self, spec: HardwareSpec, objective: Objective = "total") -> None:
        super().__init__(spec)
        self.objective: Objective = objective

    @property
    @abstractmethod
    def back_end(self) -> BackEnd:
        """Code generator of the instruction.

        Raises :class:`~cpembed.errors.BackendUnavailable` if there is none.
        """

    @property
    def processor(self) -> Processor:
        """Processor that kernels are compiled for and executed on."""
        return runtime

    @property
    def machine(self) -> Calibration:
        """Constants by which the model ranks schedules."""
        return calibration()

    @property
    def methods(self) -> CpuMethods | None:
        # Their parts run on this processor, which an emulated one is not.
        if self.processor is not runtime:
            return None
        return CpuMethods(self.spec, self.machine, self.processor)

    def epilogue(self, workload: Computation, storing: EpilogueRequest) -> Any:
        if storing.output is not None and storing.output not in PROCESSOR_RESULT_TYPES:
            raise WorkloadError(
                f"{self.spec.name} stores {', '.join(PROCESSOR_RESULT_TYPES)}, not "
                f"{storing.output}: choose one of these"
            )
        storing.require_one_output(self.spec.name)
        return super().epilogue(workload, storing)

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> Lowered:
        return Lowered.from_program(program, self.back_end, epilogue, self.machine, self.processor)

    def space(self, lowered: Lowered) -> CpuSpace:
        return CpuSpace(lowered.program, lowered.schedules, self.objective)

    def build(self, lowered: Lowered, schedule: Knobs) -> CompiledKernel:
        return lowered.compiled(schedule)

    def planned(
        self, lowered: Lowered, schedule: Knobs, processor: Processor | None = None
    ) -> CompiledKernel:
        # A recorder takes the texts and compiles nothing.
        return replace(lowered, processor=processor or Recorder()).compiled(schedule)

    def lower_part(self, program: DerivedProgram, epilogue: Epilogue | None) -> Lowered:
        recorder = Recorder(threads=1)
        return Lowered.from_program(program, self.back_end, epilogue, self.machine, recorder)

    def host_times(self) -> HostTimes:
        machine = self.machine
        products = {**default_calibration().product_ns, **machine.product_ns}
        return HostTimes(
            operation_ns=products["vfmadd231ps_ymm"],
            load_line_ns=machine.vector_line_ns,
            store_line_ns=machine.store_line_ns,
            cache_bytes=machine.cache_bytes,
            call_us=machine.call_us,
            launch_us=machine.launch_us,
        )

    def least_us(self, workload: Computation) -> float:
        # All lanes of all threads multiply all the time, and leave out what is outside an image.
        products = workload.macs_inside / self.spec.instruction.computation.macs
        return products * self.back_end.least_ns(self.machine) / runtime.thread_count() / 1e3

    def part_us(self, program: DerivedProgram, schedule: Knobs) -> float:
        schedules = self.lower(program).schedules
        serial = replace(schedules.nest, threads=1)
        estimate = Schedules(serial, schedules.model, self.machine).estimate(schedule)
        # A call from compiled code passes no buffers of another language.
        return estimate.us - self.machine.call_us

    def execute(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Execution:
        """Execute on packed operands, and as one call that packs for itself."""
        outputs = [artifact.run(inputs)]
        # The whole call is other code, which has to be verified too.
        if artifact.has_inner_packing:
            packed_ahead = packed_before(artifact.program.workload)
            outputs.append(artifact.run_whole(inputs, packed_ahead))
        return Execution(tuple(outputs), self.provenance)

    def time(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Timing:
        return measure(artifact, inputs)

    def save(self, artifact: CompiledKernel, path: Path) -> None:
        """Write a folder with the kernel's assembly and a description of its buffers."""
        make_folder(path)
        write_whole(path / "kernel.s", artifact.assembly())
        document = described(artifact, self.spec.name)
        write_whole(path / "kernel.json", json.dumps(document, indent=2) + "\n")

    def weights(self, first: Sequence[RankedCandidate]) -> Weights | None:
        # The best candidate by overheads stands for all: only the ratio of two costs is needed.
        choice = compared(self, first[:1])
        return machine_weights(choice.estimates[0], self.machine) if choice.estimates else None

    def variants(
        self, candidates: Sequence[RankedCandidate], *, fuses: bool = True
    ) -> Sequence[RankedCandidate]:
        return with_variants(candidates, self.spec, fuses=fuses)

    def require(self, candidate: Candidate) -> None:
        require_variant(candidate)

    def executed_by(self, artifact: CompiledKernel) -> str:
        return artifact.backend

    def schedule_text(self, embedding: Embedding, schedule: Knobs) -> str:
        return schedule_text(schedule, embedding)

    def schedule_json(self, schedule: Knobs) -> dict[str, Any]:
        return schedule_json(schedule)

    def doubts(self, *, noisy: bool) -> tuple[str, ...]:
        disturbance = "other work on the machine disturbed the times: run it again when it is idle"
        if self.machine.is_default:
            calibration_doubt = (
                "the model has published figures of another machine: run `cpembed calibrate`"
            )
        else:
            calibration_doubt = (
                "the machine is not as it was when it was calibrated: run `cpembed calibrate` "
                "again when it is idle"
            )
        return (*((disturbance,) if noisy else ()), calibration_doubt, UNKNOWN_CASE)

    def calibration_digest(self) -> str:
        return repr(self.machine)

    def schedule_of(self, trial: CpuTrial) -> Knobs:
        return trial.knobs

    def storing_kernel(
        self, artifact: CompiledKernel, choice: Choice, epilogue: Epilogue
    ) -> CompiledKernel:
        return built_first(self, choices_storing(self, choice, epilogue), epilogue)[0]


BackendName = Literal["auto", "native", "generic"]


def build(
    program: DerivedProgram,
    spec: HardwareSpec,
    *,
    backend: BackendName = "auto",
    knobs: Knobs | None = None,
    epilogue: Epilogue | None = None,
) -> CompiledKernel:
    """Compile a derived program.

    Parameters
    ----------
    program : DerivedProgram
        Program of an embedding.
    spec : HardwareSpec
        Target.
    backend : str
        ``native`` for the target's instruction, ``generic`` for portable code, ``auto`` for
        portable code only if the instruction cannot be used; the kernel's ``fallback`` is the
        reason.
    knobs : Knobs, optional
        Schedule of native code; by default the best by estimate.
    epilogue : Epilogue, optional
        Conversion of the sums; None to store the sums.

    Raises
    ------
    BackendUnavailable
        If ``native`` is required and this machine lacks the instruction, or there is no code
        generator.
    LoweringError
        If ``native`` is required and the program cannot be expressed with the instruction.
    """
    if backend == "generic":
        return portable_kernel(program, epilogue)
    try:
        target = _cpu_target(spec)
        if missing := target.missing():
            raise BackendUnavailable(
                f"{spec.name}: {'; '.join(missing)}; else use the generic back end"
            )
        lowered = target.lower(program, epilogue)
        return lowered.compiled(knobs or lowered.schedules.best())
    except (BackendUnavailable, LoweringError) as error:
        # A fallback is portable code with the reason; who asks for the instruction gets the error.
        if backend == "native":
            raise
        return portable_kernel(program, epilogue, str(error))


def schedule_space(
    program: DerivedProgram,
    spec: HardwareSpec,
    machine: Calibration | None = None,
    epilogue: Epilogue | None = None,
) -> Schedules:
    """Return the schedules of :func:`build` with their estimates; the best one is its default.

    Parameters
    ----------
    program : DerivedProgram
        Program of an embedding.
    spec : HardwareSpec
        Target; the machine need not have its instruction.
    machine : Calibration, optional
        Constants of the machine; by default the target's.
    epilogue : Epilogue, optional
        Conversion of the sums.

    Raises
    ------
    BackendUnavailable, LoweringError
        As :func:`build` does for ``native``.
    """
    target = _cpu_target(spec)
    # Nothing is compiled, so that the machine need not have the instruction.
    constants = machine or target.machine
    lowered = Lowered.from_program(program, target.back_end, epilogue, constants, target.processor)
    return lowered.schedules


def _cpu_target(spec: HardwareSpec) -> CpuTarget:
    """Open a CPU target. Raises :class:`BackendUnavailable` for a target of another kind."""
    target = open_target(spec)
    if not isinstance(target, CpuTarget):
        raise BackendUnavailable(f"{spec.name} is no target of a CPU; use the generic back end")
    return target
