"""A database of MetaSchedule whose records are kernels, and the pass that puts these in place."""
# pyright: basic

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import PyDatabase, TuningRecord, Workload
from tvm.target import Target
from tvm_ffi import structural_equal

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import InvariantError, LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.integrations.tvm.choice import Machine, Refused
from cpembed.integrations.tvm.designs import ANNOTATION, design, named_kernel, recognised, recorded
from cpembed.integrations.tvm.fused import Fused, recognise_fused
from cpembed.integrations.tvm.kernels import Kernel, closed_kernel_of
from cpembed.integrations.tvm.whole import whole_function


def schedule_database(
    target: str | HardwareSpec, *, constraints: str | ConstraintSet | None = None
) -> Any:
    """A ``Database``: of a function that tuning recorded, the fastest design of
    :func:`schedule_space`, of any other in which the instruction embeds the best kernel by the
    target's estimates. Traces cannot hold a function, so ``MetaScheduleApplyDatabase`` names the
    kernel in an annotation, and :func:`place_kernels` puts it there.

    Raises as :meth:`~cpembed.integrations.tvm.choice.Machine.of`.
    """
    return _Kernels(Machine.of(target, constraints))


def place_kernels(
    target: str | HardwareSpec, *, constraints: str | ConstraintSet | None = None
) -> ir.transform.ModulePass:
    """A pass, to follow ``MetaScheduleApplyDatabase`` with a :func:`schedule_database`."""
    made: Any = _Placing(Machine.of(target, constraints))
    return made


@derived_object
class _Kernels(PyDatabase):
    """Records in the order in which they came."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.workloads: list[Workload] = []
        self.records: list[TuningRecord] = []

    def has_workload(self, mod: ir.IRModule) -> bool:
        return self._workload(mod) is not None

    def _workload(self, mod: ir.IRModule) -> Workload | None:
        return next((known for known in self.workloads if structural_equal(known.mod, mod)), None)

    def commit_workload(self, mod: ir.IRModule) -> Workload:
        found = self._workload(mod)
        if found is None:
            found = Workload(mod)
            self.workloads.append(found)
        return found

    def commit_tuning_record(self, record: TuningRecord) -> None:
        self.records.append(record)

    def get_top_k(self, workload: Workload, top_k: int) -> list[TuningRecord]:
        timed = [
            record
            for record in self.records
            if record.run_secs and structural_equal(record.workload.mod, workload.mod)
        ]
        return sorted(timed, key=_seconds)[:top_k]

    def get_all_tuning_records(self) -> list[TuningRecord]:
        return list(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def query_tuning_record(
        self, mod: ir.IRModule, target: Target, workload_name: str | None = None
    ) -> TuningRecord | None:
        """A record whose trace names the kernel."""
        design = self._design(mod, target)
        if design is None:
            return None
        return TuningRecord(design.trace, self.commit_workload(mod), [0.0], target)

    def query_schedule(
        self, mod: ir.IRModule, target: Target, workload_name: str | None = None
    ) -> Any:
        return self._design(mod, target)

    def query_ir_module(
        self, mod: ir.IRModule, target: Target, workload_name: str | None = None
    ) -> ir.IRModule | None:
        design = self._design(mod, target)
        return None if design is None else design.mod

    def _design(self, mod: ir.IRModule, target: Target) -> Any:
        try:
            function, fused = recognised(mod)
            kernel = self._kernel(mod, fused)
            return None if isinstance(kernel, Refused) else design(mod, function, kernel, target)
        except (LoweringError, WorkloadError):
            return None

    def _kernel(self, mod: ir.IRModule, fused: Fused) -> Kernel | Refused:
        workload = self._workload(mod)
        best = self.get_top_k(workload, 1) if workload is not None else []
        key = recorded(best[0]) if best else None
        return named_kernel(self.machine, fused, key) or closed_kernel_of(self.machine, fused)


@ir.transform.module_pass(opt_level=0, name="cpembed.kernels")
class _Placing:
    """Puts kernels in the place of functions whose root blocks name them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def transform_module(self, mod: ir.IRModule, _: ir.transform.PassContext) -> ir.IRModule:
        for variable, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc):
                root = root_of(function)
                key = None if root is None else root.annotations.get(ANNOTATION)
                if key is not None:
                    mod[variable] = self._placed(variable.name_hint, function, str(key))
        return mod

    def _placed(self, name: str, function: tirx.PrimFunc, key: str) -> tirx.PrimFunc:
        fused = recognise_fused(function, name)
        kernel = named_kernel(self.machine, fused, key) or closed_kernel_of(self.machine, fused)
        if isinstance(kernel, Refused):
            raise InvariantError(f"{name} is named as a kernel of {key} and has none")
        return whole_function(kernel, function)


def root_of(function: Any) -> Any:
    """The root block of a function; None where it is no schedulable one."""
    return getattr(function.body, "block", None)


def _seconds(record: TuningRecord) -> float:
    seconds = [float(value) for value in record.run_secs or ()]
    return sum(seconds) / len(seconds)
