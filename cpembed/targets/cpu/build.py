"""Kernels from derived programs: the choice of back end, packing, execution."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.kernel import portable, runtime
from cpembed.kernel.compiled import CompiledKernel, MoveThreads
from cpembed.kernel.epilogue import Epilogue
from cpembed.kernel.plan import KernelPlan, Knobs
from cpembed.kernel.program_nest import in_order
from cpembed.targets.added import is_added
from cpembed.targets.added import plan as added_plan
from cpembed.targets.cpu.calibration import Calibration, calibration
from cpembed.targets.cpu.move_time import kept_near, threads_worth
from cpembed.targets.cpu.register_blocks import Schedules
from cpembed.targets.x86 import features
from cpembed.targets.x86.back_ends import back_end
from cpembed.transform.program import DerivedProgram, PackedOperand

BackendChoice = Literal["auto", "native", "generic"]


def build(
    program: DerivedProgram,
    spec: HardwareSpec,
    *,
    backend: BackendChoice = "auto",
    knobs: Knobs | None = None,
    epilogue: Epilogue | None = None,
) -> CompiledKernel:
    """Compile a derived program.

    ``native`` uses the target's instruction or raises: :class:`BackendUnavailable` where there is
    no back end or the machine lacks the instruction, :class:`LoweringError` where the program
    cannot be expressed with it. ``generic`` is portable code; ``auto`` is native where that works,
    else generic, and the kernel's ``fallback`` says why. ``knobs`` set the native schedule;
    ``epilogue`` is what is stored of the sums, by default the sums themselves.
    """
    reason: str | None = None
    if backend != "generic":
        try:
            return _build_native(program, spec, knobs, epilogue)
        except (BackendUnavailable, LoweringError) as error:
            if backend == "native":
                raise
            reason = str(error)
    plan = portable.plan(program, runtime.thread_count(), epilogue)
    return CompiledKernel(program, plan, reason, epilogue, move_threads=_move_threads())


def schedule_space(
    program: DerivedProgram,
    spec: HardwareSpec,
    machine: Calibration | None = None,
    epilogue: Epilogue | None = None,
) -> Schedules:
    """Settings of :func:`build`'s ``knobs`` with their estimated times; the best ranked one is the
    default.

    Raises as :func:`build` does for ``native``, except that the machine need not have the
    instruction.
    """
    found, figures = back_end(spec), machine or calibration()
    nest, model = found.nest(program, epilogue), found.model(program)
    unpadded = found.nest_unpadded(program, epilogue)
    figures = figures.knowing(model.product)
    return Schedules(nest, model, figures, runtime.thread_count(), unpadded)


def _build_native(
    program: DerivedProgram,
    spec: HardwareSpec,
    knobs: Knobs | None,
    epilogue: Epilogue | None,
) -> CompiledKernel:
    features.require(spec)
    if is_added(spec):
        plan = added_plan(program, spec, runtime.thread_count(), epilogue)
        return CompiledKernel(program, plan, epilogue=epilogue, move_threads=_move_threads())
    found = back_end(spec)
    space = schedule_space(program, spec, epilogue=epilogue)
    chosen = knobs or space.best()
    scheduled = space.scheduled(program, chosen)
    plan = found.plan(program, scheduled)

    def whole() -> KernelPlan:
        return found.plan(program, space.scheduled(program, chosen, whole=True))

    near = kept_near(scheduled.nest, in_order(program), space.machine, space.threads)
    return CompiledKernel(
        program, plan, epilogue=epilogue, whole=whole, move_threads=_move_threads(near)
    )


def _move_threads(near: Collection[str] = ()) -> MoveThreads:
    """By the model of the machine; ``near``: see :func:`kept_near`."""

    def threads(operand: PackedOperand) -> int:
        return threads_worth(
            operand, calibration(), runtime.thread_count(), near=operand.name in near
        )

    return threads
