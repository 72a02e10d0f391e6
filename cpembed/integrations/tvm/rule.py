"""A rule of dlight: functions in which an instruction embeds are scheduled as its kernels."""
# pyright: basic

from __future__ import annotations

from typing import Any

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight import ScheduleRule
from tvm.target import Target, codegen

from cpembed.codegen import runtime
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.integrations.tvm.choice import Machine, Refused
from cpembed.integrations.tvm.fused import Fused, recognise_fused
from cpembed.integrations.tvm.kernels import Kernel, closed_kernel_of
from cpembed.integrations.tvm.schedule_report import NOBODY, OURS, ScheduleEntry, ScheduleReport
from cpembed.integrations.tvm.whole import whole_function
from cpembed.targets.capabilities import tvm_target


def dlight_rule(
    target: str | HardwareSpec, *, constraints: str | ConstraintSet | None = None
) -> Rule:
    """A rule to be given first to ``ApplyDefaultSchedule``: a convolution or matrix product, with
    what is fused to it, becomes the best kernel of a target; anything else is left to the rules
    that follow. ``report`` says why.

    The module has to be compiled for a machine with the instruction (:func:`llvm_target` for this
    processor). Weights are packed in the function, each time that it is called; :func:`pipeline`
    packs them ahead.

    Raises as :meth:`~cpembed.integrations.tvm.choice.Machine.of`.
    """
    return Rule(Machine.of(target, constraints))


class Rule(ScheduleRule):
    """``report``: what became of each function that it was asked about."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._entries: list[ScheduleEntry] = []

    @property
    def report(self) -> ScheduleReport:
        return ScheduleReport(self.machine.spec.name, tuple(self._entries))

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        name = str((func.attrs or {}).get("global_symbol", "tensorir"))
        try:
            fused = recognise_fused(func, name)
            function, kernel = self._best(fused, func, target)
        except (WorkloadError, LoweringError) as error:
            self._entries.append(ScheduleEntry(name, (), NOBODY, reason=str(error)))
            return None
        self._entries.append(entry_of(kernel))
        return s_tir.Schedule(ir.IRModule({"main": function}))

    def _best(self, fused: Fused, func: tirx.PrimFunc, target: Target) -> Any:
        found = closed_kernel_of(self.machine, fused)
        if isinstance(found, Refused):
            raise LoweringError(found.reason)
        require(found, target)
        return whole_function(found, func), found


def entry_of(kernel: Kernel) -> ScheduleEntry:
    epilogue = kernel.fused.epilogue
    return ScheduleEntry(
        kernel.fused.computation.name,
        (),
        OURS,
        kernel.embedding,
        kernel.ranked.overheads.utilisation,
        kernel.fused.dtype if epilogue is None else str(epilogue),
    )


def require(kernel: Kernel, target: Any) -> None:
    """Raises :class:`LoweringError` where what a module is compiled for lacks what the kernel is
    made of: a code generator would end the process."""
    name, wanted = kernel.program.target.spec.name, tvm_target(kernel.program.target)
    if target.kind.name != wanted:
        raise LoweringError(
            f"{name} is for {wanted}, the module is compiled for {target.kind.name}"
        )
    if any(call.target is not None for call in (*kernel.calls.prepare, *kernel.calls.run)):
        lacking = _features(llvm_target()) - _features(target)
        if lacking:
            few = ", ".join(sorted(lacking)[:3])
            raise LoweringError(
                f"{name} needs what this processor has and the module is not compiled for ({few}, "
                "…): take cpembed.integrations.tvm.llvm_target() as its target"
            )


def _features(target: Target) -> set[str]:
    return {str(name) for name in codegen.llvm_get_cpu_features(target)}


def llvm_target() -> Target:
    """The processor of this machine, with all that it can, as a target of TVM."""
    return runtime.host_target()
