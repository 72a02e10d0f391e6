"""What the targets of CPUs share: kernels compiled by TVM, chosen by a model of the machine."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpembed.codegen import runtime
from cpembed.codegen.compiled import CompiledKernel, Processor, described
from cpembed.codegen.epilogue import PROCESSOR_RESULT_TYPES, Epilogue, EpilogueRequest
from cpembed.codegen.packing import packed_before
from cpembed.codegen.plan import Knobs
from cpembed.codegen.recorded import Recorder
from cpembed.cost.candidate import Candidate
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.embedding.embedding import Embedding
from cpembed.errors import WorkloadError
from cpembed.files import make_folder, write_whole
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime import worker
from cpembed.runtime.measurement.runner import Timing, measure
from cpembed.runtime.tuning.session import CandidatePool, Task
from cpembed.targets.base import Array, Execution, Row, Target
from cpembed.targets.choice import Choice, built_first, compared, storing
from cpembed.targets.cpu import report
from cpembed.targets.cpu.build import BackEnd, Lowered
from cpembed.targets.cpu.calibration import Calibration, calibration
from cpembed.targets.cpu.choice import AMONG, EQUAL, Objective, contenders, machine_weights
from cpembed.targets.cpu.figures import figures
from cpembed.targets.cpu.measure import IsolatedMeasurer
from cpembed.targets.cpu.methods import CpuMethods
from cpembed.targets.cpu.space import CpuSpace
from cpembed.targets.cpu.trials import CpuTrial, key_of, schedule_json
from cpembed.targets.cpu.tuning import CpuTuning
from cpembed.targets.cpu.variants import require_variant, with_variants
from cpembed.transform.program import DerivedProgram


class CpuTarget(Target[Lowered, Knobs, CompiledKernel]):
    """``objective``: whether packing and unpacking count where schedules are compared."""

    considered = AMONG
    equal = EQUAL
    contenders = staticmethod(contenders)
    weighs = True
    trial = CpuTrial
    objectives = ("total", "kernel")
    tunes_stored = False
    files = ("--save",)
    spread = 2.0

    def __init__(self, spec: HardwareSpec, objective: Objective = "total") -> None:
        super().__init__(spec)
        self.objective = objective

    @property
    def _minimised(self) -> Objective:
        return "kernel" if self.objective == "kernel" else "total"

    @property
    @abstractmethod
    def back_end(self) -> BackEnd:
        """The code generator of the instruction.

        Raises :class:`~cpembed.errors.BackendUnavailable` where there is none.
        """

    @property
    def processor(self) -> Processor:
        """What its kernels are compiled for and called on."""
        return runtime

    @property
    def machine(self) -> Calibration:
        """The figures by which its model ranks schedules."""
        return calibration()

    @property
    def methods(self) -> CpuMethods | None:
        return CpuMethods(self) if self.processor is runtime else None

    def epilogue(self, workload: Computation, storing: EpilogueRequest) -> Any:
        if storing.output is not None and storing.output not in PROCESSOR_RESULT_TYPES:
            raise WorkloadError(
                f"{self.spec.name} stores {', '.join(PROCESSOR_RESULT_TYPES)}, not "
                f"{storing.output}: choose one of these"
            )
        return super().epilogue(workload, storing)

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> Lowered:
        return Lowered.of(program, self.back_end, epilogue, self.machine, self.processor)

    def space(self, lowered: Lowered) -> CpuSpace:
        return CpuSpace(lowered.program, lowered.schedules, self._minimised)

    def build(self, lowered: Lowered, schedule: Knobs) -> CompiledKernel:
        return lowered.compiled(schedule)

    links = True
    has_tensorir = True

    def planned(
        self, lowered: Lowered, schedule: Knobs, processor: Processor | None = None
    ) -> CompiledKernel:
        return replace(lowered, processor=processor or Recorder()).compiled(schedule)

    def copying_us(self, size: int, threads: int, *, reordered: bool) -> float | None:
        machine, constants = self.machine, figures()
        launch = machine.launch_us if threads > 1 else machine.call_us
        line_ns = machine.copy_ns_per_line / 2 * (constants.transposed if reordered else 1.0)
        return launch + size / constants.line_bytes * line_ns / threads / 1e3

    def execute(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Execution:
        """On packed operands, and as one call that packs for itself, where that is other code."""
        outputs = [artifact.run(inputs)]
        if artifact.has_inner_packing:
            ahead = packed_before(artifact.program.workload)
            outputs.append(artifact.run_whole(inputs, ahead))
        return Execution(tuple(outputs), self.provenance)

    def time(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Timing:
        return measure(artifact, inputs)

    def save(self, artifact: CompiledKernel, path: Path) -> None:
        """A folder with the kernel's assembly, and what its buffers are."""
        make_folder(path)
        write_whole(path / "kernel.s", artifact.assembly())
        document = described(artifact, self.spec.name)
        write_whole(path / "kernel.json", json.dumps(document, indent=2) + "\n")

    def weights(self, first: Sequence[RankedCandidate]) -> Weights | None:
        found = compared(self, first[:1])
        return machine_weights(found.estimates[0], self.machine) if found.estimates else None

    def variants(
        self, candidates: Sequence[RankedCandidate], *, fuses: bool = True
    ) -> Sequence[RankedCandidate]:
        return with_variants(candidates, self.spec, fuses=fuses)

    def require(self, candidate: Candidate) -> None:
        require_variant(candidate)

    def executed_by(self, artifact: CompiledKernel) -> str:
        return artifact.backend

    def schedule_text(self, embedding: Embedding, schedule: Knobs) -> str:
        return report.knobs(schedule, embedding)

    def schedule_json(self, schedule: Knobs) -> dict[str, Any]:
        return schedule_json(schedule)

    def doubts(self, *, noisy: bool) -> tuple[str, ...]:
        again = "other work on the machine disturbed the times: run it again when it is idle"
        if self.machine.is_default:
            known = "the model has published figures of another machine: run `cpembed calibrate`"
        else:
            known = (
                "the machine is not as it was when it was calibrated: run `cpembed calibrate` "
                "again when it is idle"
            )
        return (*((again,) if noisy else ()), known, *super().doubts(noisy=noisy))

    def figures(self) -> str:
        return repr(self.machine)

    def minimising(self, objective: str | None) -> CpuTarget:
        return type(self)(self.spec, "kernel" if objective == "kernel" else "total")

    def trial_key(
        self,
        workload: Computation,
        constraints: ConstraintSet,
        epilogue: Any,
        objective: str | None,
    ) -> dict[str, Any]:
        """Kernels are tuned for the sums as they are, whatever is stored."""
        return key_of(
            workload, self.spec, constraints, "kernel" if objective == "kernel" else "total"
        )

    def schedule_of(self, trial: CpuTrial) -> Knobs:
        return trial.knobs

    def open_tuning(
        self,
        task: Task,
        field: CandidatePool[Knobs],
        epilogue: Any,
        folder: Path,
        call: Callable[..., Any] = worker.call,
    ) -> CpuTuning:
        measurer = IsolatedMeasurer(task.workload, self.spec, self._minimised, call=call)
        return CpuTuning(task, field, measurer, self._minimised, folder, self.spread)

    def tuning_rows(self, best: CpuTrial, untuned: CpuTrial) -> list[Row]:
        return report.tuning_rows(best, untuned, self._minimised)

    def trial_json(self, trial: CpuTrial) -> dict[str, Any]:
        return super().trial_json(trial) | {"total_us": trial.total_us}

    def storing_kernel(
        self, artifact: CompiledKernel, choice: Choice, epilogue: Epilogue
    ) -> CompiledKernel:
        return built_first(self, storing(self, choice, epilogue), epilogue)[0]
