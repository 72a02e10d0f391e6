"""Kernels of derived programs on CPUs: what a code generator is, schedules, compilation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from cpembed.codegen import runtime
from cpembed.codegen.compiled import CompiledKernel, MoveThreads, Processor
from cpembed.codegen.emit import portable_plan
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.nest import Nest
from cpembed.codegen.plan import KernelPlan, Knobs
from cpembed.codegen.program_nest import first_factor, in_order
from cpembed.errors import LoweringError
from cpembed.targets.cpu.calibration import Calibration, calibration
from cpembed.targets.cpu.estimate import cache_affine, threads_worth
from cpembed.targets.cpu.register_blocks import RegisterModel, Schedules
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class BackEnd:
    """A code generator: ``nest`` is a program's with lanes in digits, storing an epilogue;
    ``model`` what its register blocks cost; ``plan`` writes one of its schedules down. ``unpadded``
    is the nest on the first factor as it comes, without its padding, where kernels can do that."""

    nest: Callable[[DerivedProgram, Epilogue | None], Nest]
    model: Callable[[DerivedProgram], RegisterModel]
    plan: Callable[[DerivedProgram, Nest], KernelPlan]
    unpadded: Callable[[DerivedProgram, Epilogue | None], Nest] | None = None

    def nest_unpadded(self, program: DerivedProgram, epilogue: Epilogue | None) -> Nest | None:
        """None where the layout is more than padding, or none at all."""
        if self.unpadded is None or first_factor(program).is_identity:
            return None
        try:
            return self.unpadded(program, epilogue)
        except LoweringError:
            return None


@dataclass(frozen=True)
class Lowered:
    """A program in a code generator's terms: its schedules on a machine, and what executes them."""

    program: DerivedProgram
    epilogue: Epilogue | None
    back_end: BackEnd
    schedules: Schedules
    processor: Processor = runtime

    @classmethod
    def of(
        cls,
        program: DerivedProgram,
        back_end: BackEnd,
        epilogue: Epilogue | None = None,
        machine: Calibration | None = None,
        processor: Processor = runtime,
    ) -> Lowered:
        """Raises :class:`LoweringError` where the program cannot be expressed."""
        threads, model = processor.thread_count(), back_end.model(program)
        nest = replace(back_end.nest(program, epilogue), threads=threads)
        unpadded = back_end.nest_unpadded(program, epilogue)
        unpadded = unpadded and replace(unpadded, threads=threads)
        figures = (machine or calibration()).for_product(model.product)
        schedules = Schedules(nest, model, figures, unpadded)
        return cls(program, epilogue, back_end, schedules, processor)

    def compiled(self, knobs: Knobs) -> CompiledKernel:
        """Raises :class:`LoweringError` for a schedule that does not fit."""
        space, program = self.schedules, self.program
        scheduled = space.scheduled(program, knobs)
        plan = self.back_end.plan(program, scheduled)

        def whole() -> KernelPlan:
            return self.back_end.plan(program, space.scheduled(program, knobs, whole=True))

        affine = cache_affine(scheduled, in_order(program), space.machine, space.threads)
        return CompiledKernel(
            program,
            plan,
            epilogue=self.epilogue,
            whole_plan=whole,
            move_threads=copy_threads(affine, space.machine, space.threads),
            processor=self.processor,
        )


def portable_kernel(
    program: DerivedProgram,
    epilogue: Epilogue | None = None,
    fallback: str | None = None,
    processor: Processor = runtime,
) -> CompiledKernel:
    """Portable code; ``fallback`` says what it stands in for."""
    plan = portable_plan(program, runtime.thread_count(), epilogue)
    threads = copy_threads((), calibration(), runtime.thread_count())
    return CompiledKernel(
        program, plan, fallback, epilogue, move_threads=threads, processor=processor
    )


def copy_threads(affine: Collection[str], machine: Calibration, threads: int) -> MoveThreads:
    """By the model of a machine, at most so many; ``near``: see :func:`cache_affine`."""
    return lambda operand: threads_worth(operand, machine, threads, affine=operand.name in affine)
