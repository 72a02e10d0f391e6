"""Kernels for TVM's schedulers: a rule of dlight, and a space and a database of MetaSchedule.

A kernel is a schedule of MetaSchedule whose trace only names it, in an annotation of the root
block, and whose function is that of the kernel.
"""
# pyright: basic

from __future__ import annotations

import itertools
import json
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.ir.utils import derived_object
from tvm.s_tir.dlight import ScheduleRule
from tvm.s_tir.meta_schedule.database import PyDatabase, TuningRecord, Workload
from tvm.s_tir.meta_schedule.space_generator import PySpaceGenerator
from tvm.target import Target, codegen
from tvm_ffi import structural_equal

from cpembed.codegen import runtime
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import InvariantError, LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.integrations.tvm.emission import kernel_function
from cpembed.integrations.tvm.fused import Fused
from cpembed.integrations.tvm.kernels import (
    Kernel,
    Machine,
    Rejection,
    closed_kernel_of,
    closed_kernels_of,
)
from cpembed.integrations.tvm.reports import CPEMBED, NOBODY, ScheduleEntry, ScheduleReport
from cpembed.targets.capabilities import tvm_target

ANNOTATION = "cpembed.codegen"
"""Annotation of a schedule's root block that names a kernel: embedding and schedule, as JSON."""

DESIGNS = 64
"""Default of the maximum number of designs of a space."""


def dlight_rule(
    target: str | HardwareSpec, *, constraints: str | ConstraintSet | None = None
) -> Rule:
    """Return a rule to be passed first to ``ApplyDefaultSchedule``.

    A convolution or matrix product, with what is fused to it, becomes the best kernel of a target;
    anything else is left to the rules that follow, and ``report`` says why. The module must be
    compiled for a machine with the instruction (:func:`llvm_target` for this processor). Weights
    are packed at each call of the function; :func:`pipeline` packs them ahead.

    Raises the errors of :meth:`~cpembed.integrations.tvm.kernels.Machine.open`.
    """
    return Rule(Machine.open(target, constraints))


class Rule(ScheduleRule):
    """Rule of :func:`dlight_rule`; ``report`` lists the functions that it was applied to."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._entries: list[ScheduleEntry] = []

    @property
    def report(self) -> ScheduleReport:
        return ScheduleReport(self.machine.spec.name, tuple(self._entries))

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        name = str((func.attrs or {}).get("global_symbol", "tensorir"))
        try:
            fused = self.machine.recognised(func, name)
            kernel = closed_kernel_of(self.machine, fused)
            if isinstance(kernel, Rejection):
                raise LoweringError(kernel.reason)
            _require_features(kernel, target)
            function = kernel_function(kernel, func)
        except (WorkloadError, LoweringError) as error:
            self._entries.append(ScheduleEntry(name, (), NOBODY, reason=str(error)))
            return None
        entry = ScheduleEntry(
            fused.computation.name,
            (),
            CPEMBED,
            embedding=kernel.embedding,
            utilisation=kernel.ranked.overheads.utilisation,
            stored=kernel.stored,
        )
        self._entries.append(entry)
        return s_tir.Schedule(ir.IRModule({"main": function}))


def _require_features(kernel: Kernel, target: Any) -> None:
    """Raise :class:`LoweringError` if the module's target lacks features that the kernel needs."""
    name, required = kernel.program.target.spec.name, tvm_target(kernel.program.target)
    if target.kind.name != required:
        raise LoweringError(
            f"{name} is for {required}, the module is compiled for {target.kind.name}"
        )
    if any(call.target is not None for call in (*kernel.calls.prepare, *kernel.calls.run)):
        # For a missing feature the code generator would end the process.
        lacking = _features(llvm_target()) - _features(target)
        if lacking:
            few = ", ".join(sorted(lacking)[:3])
            raise LoweringError(
                f"{name} needs features of this processor that the module's target lacks ({few}, "
                "…): use cpembed.integrations.tvm.llvm_target() as its target"
            )


def _features(target: Target) -> set[str]:
    return {str(name) for name in codegen.llvm_get_cpu_features(target)}


def llvm_target() -> Target:
    """Return the processor of this machine, with all its features, as a target of TVM."""
    return runtime.host_target()


# -- MetaSchedule ---------------------------------------------------------------------------------


def schedule_space(
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    limit: int = DESIGNS,
) -> Any:
    """Return a ``SpaceGenerator`` whose designs are kernels.

    A function's designs are its embeddings with the target's schedules, round by round the best by
    its estimates of each embedding; a function that does not embed has none. The strategy
    ``replay-func`` searches the space.

    Parameters
    ----------
    target
        Name, file or specification of the target.
    constraints
        Constraint set; None for the presets.
    limit
        Maximum number of designs.

    Raises the errors of :meth:`~cpembed.integrations.tvm.kernels.Machine.open`.
    """
    return _Space(Machine.open(target, constraints), limit)


@derived_object
class _Space(PySpaceGenerator):
    def __init__(self, machine: Machine, limit: int) -> None:
        super().__init__()
        self.sch_rules, self.postprocs, self.mutator_probs = [], [], {}
        self.machine, self.limit = machine, limit
        self.target: Any = None
        """Target of TVM; None for the current one."""
        self.spaces: list[tuple[Any, list[Any]]] = []

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.target = context.target

    def generate_design_space(self, mod: ir.IRModule) -> list[Any]:
        # The strategy asks again for each trial.
        designs = next((space for each, space in self.spaces if each.same_as(mod)), None)
        if designs is None:
            designs = self._designs(mod)
            self.spaces.append((mod, designs))
        return [schedule.copy() for schedule in designs]

    def _designs(self, mod: ir.IRModule) -> list[Any]:
        target = self.target or Target.current(allow_none=False)
        try:
            function, fused = _recognised(self.machine, mod)
            kernels = closed_kernels_of(self.machine, fused)
            return [
                _design(mod, function, kernel, target)
                for kernel in itertools.islice(kernels, self.limit)
            ]
        except (LoweringError, WorkloadError):
            return []

    def clone(self) -> Any:
        return _Space(self.machine, self.limit)


def schedule_database(
    target: str | HardwareSpec, *, constraints: str | ConstraintSet | None = None
) -> Any:
    """Return a ``Database`` of kernels.

    A tuned function has the fastest design of :func:`schedule_space`; any other in which the
    instruction embeds has the best kernel by the target's estimates. Traces cannot hold functions,
    so ``MetaScheduleApplyDatabase`` only names the kernel in an annotation, and
    :func:`place_kernels` inserts it.

    Raises the errors of :meth:`~cpembed.integrations.tvm.kernels.Machine.open`.
    """
    return _Database(Machine.open(target, constraints))


def place_kernels(
    target: str | HardwareSpec, *, constraints: str | ConstraintSet | None = None
) -> ir.transform.ModulePass:
    """Return a pass to follow ``MetaScheduleApplyDatabase`` with a :func:`schedule_database`.

    Raises the errors of :meth:`~cpembed.integrations.tvm.kernels.Machine.open`.
    """
    placing: Any = _Placing(Machine.open(target, constraints))
    return placing


@derived_object
class _Database(PyDatabase):
    """Database of :func:`schedule_database`; records are in the order of their arrival."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.workloads: list[Workload] = []
        self.records: list[TuningRecord] = []

    def has_workload(self, mod: ir.IRModule) -> bool:
        return self._workload(mod) is not None

    def _workload(self, mod: ir.IRModule) -> Workload | None:
        return next((each for each in self.workloads if structural_equal(each.mod, mod)), None)

    def commit_workload(self, mod: ir.IRModule) -> Workload:
        workload = self._workload(mod)
        if workload is None:
            workload = Workload(mod)
            self.workloads.append(workload)
        return workload

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
        """Return a record whose trace names the kernel; None for a function without one."""
        schedule = self._schedule(mod, target)
        if schedule is None:
            return None
        return TuningRecord(schedule.trace, self.commit_workload(mod), [0.0], target)

    def query_schedule(
        self, mod: ir.IRModule, target: Target, workload_name: str | None = None
    ) -> Any:
        return self._schedule(mod, target)

    def query_ir_module(
        self, mod: ir.IRModule, target: Target, workload_name: str | None = None
    ) -> ir.IRModule | None:
        schedule = self._schedule(mod, target)
        return None if schedule is None else schedule.mod

    def _schedule(self, mod: ir.IRModule, target: Target) -> Any:
        workload = self._workload(mod)
        # A measured design goes before the best estimate.
        best = self.get_top_k(workload, 1) if workload is not None else []
        key = recorded(best[0]) if best else None
        try:
            function, fused = _recognised(self.machine, mod)
            kernel = _best_kernel(self.machine, fused, key)
            return None if isinstance(kernel, Rejection) else _design(mod, function, kernel, target)
        except (LoweringError, WorkloadError):
            return None


@ir.transform.module_pass(opt_level=0, name="cpembed.kernels")
class _Placing:
    """Replaces functions by the kernels that their root blocks name."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def transform_module(self, mod: ir.IRModule, _: ir.transform.PassContext) -> ir.IRModule:
        for variable, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc):
                root = getattr(getattr(function, "body", None), "block", None)
                key = None if root is None else root.annotations.get(ANNOTATION)
                if key is not None:
                    mod[variable] = self._placed(variable.name_hint, function, str(key))
        return mod

    def _placed(self, name: str, function: tirx.PrimFunc, key: str) -> tirx.PrimFunc:
        fused = self.machine.recognised(function, name)
        kernel = _best_kernel(self.machine, fused, key)
        if isinstance(kernel, Rejection):
            raise InvariantError(f"{name} names the kernel {key} and has none")
        return kernel_function(kernel, function)


def _best_kernel(machine: Machine, fused: Fused, key: str | None) -> Kernel | Rejection:
    """Return the kernel that an annotation names, or else the best by the target's estimates."""
    if key is not None:
        for kernel in closed_kernels_of(machine, fused):
            # Traces hold texts only: the kernel is found again by its embedding and schedule.
            if _key_of(kernel) == key:
                return kernel
    return closed_kernel_of(machine, fused)


def _seconds(record: TuningRecord) -> float:
    seconds = [float(value) for value in record.run_secs or ()]
    return sum(seconds) / len(seconds)


def _recognised(machine: Machine, mod: ir.IRModule) -> tuple[tirx.PrimFunc, Fused]:
    """Return the function of a module and its product; :class:`WorkloadError` if it has not one."""
    functions = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    if len(functions) != 1:
        raise WorkloadError(f"the module has {len(functions)} functions, not one")
    return functions[0], machine.recognised(functions[0])


def _design(mod: ir.IRModule, function: tirx.PrimFunc, kernel: Kernel, target: Target) -> Any:
    """Return a schedule whose trace names a kernel, and whose function is that of the kernel."""
    _require_features(kernel, target)
    schedule: Any = s_tir.Schedule(mod)
    root = schedule.get_sblock("root")
    schedule.annotate(root, ANNOTATION, _key_of(kernel))
    # Traces cannot hold a function: the body is replaced in the schedule's state.
    replacement: Any = kernel_function(kernel, function)
    schedule.state.replace(schedule.get_sref(root), replacement.body.block)
    return schedule


def _key_of(kernel: Kernel) -> str:
    """Return the value of the annotation that names a kernel."""
    schedule = kernel.program.target.schedule_json(kernel.program.schedule)
    return json.dumps([kernel.ranked.candidate.identifier, schedule], sort_keys=True)


def recorded(record: TuningRecord) -> str | None:
    """Return the value of the annotation in a record's trace; None if it has none."""
    for instruction in record.trace.insts:
        inputs, attributes = list(instruction.inputs), list(instruction.attrs)
        if instruction.kind.name == "Annotate" and ANNOTATION in map(str, attributes):
            return str(inputs[1])
    return None
