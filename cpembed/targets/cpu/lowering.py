"""Lowering of derived programs on CPUs: code generators, and kernels of a schedule."""

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
from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.targets.cpu.calibration import Calibration, calibration
from cpembed.targets.cpu.estimate import cache_affine, threads_worth
from cpembed.targets.cpu.register_blocks import RegisterModel
from cpembed.targets.cpu.schedules import Schedules
from cpembed.targets.registry import open_target
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class BackEnd:
    """Code generator of an instruction."""

    nest: Callable[[DerivedProgram, Epilogue | None], Nest]
    """Nest of a program with an epilogue, its lanes in digits."""
    model: Callable[[DerivedProgram], RegisterModel]
    """Cost of a program's register blocks."""
    plan: Callable[[DerivedProgram, Nest], KernelPlan]
    """Text of a scheduled nest."""
    least_ns: Callable[[Calibration], float]
    """Lower bound of the time of a full-size product of the instruction."""
    unpadded: Callable[[DerivedProgram, Epilogue | None], Nest] | None = None
    """Nest that reads the first factor in its original layout, without padding, if kernels can do
    so."""

    def nest_unpadded(self, program: DerivedProgram, epilogue: Epilogue | None) -> Nest | None:
        """Return the nest on the original first factor, or None.

        None if its layout differs in more than padding, or not at all.
        """
        if self.unpadded is None or first_factor(program).is_identity:
            return None
        try:
            return self.unpadded(program, epilogue)
        except LoweringError:
            return None


@dataclass(frozen=True)
class Lowered:
    """Program in a code generator's terms, with its schedules and the processor of its kernels."""

    program: DerivedProgram
    epilogue: Epilogue | None
    back_end: BackEnd
    schedules: Schedules
    processor: Processor = runtime

    @classmethod
    def from_program(
        cls,
        program: DerivedProgram,
        back_end: BackEnd,
        epilogue: Epilogue | None = None,
        machine: Calibration | None = None,
        processor: Processor = runtime,
    ) -> Lowered:
        """Lower a program.

        Parameters
        ----------
        program : DerivedProgram
            Program of an embedding.
        back_end : BackEnd
            Code generator.
        epilogue : Epilogue, optional
            Conversion of the sums.
        machine : Calibration, optional
            Constants of the machine; by default this one's.
        processor : Processor
            Compiles and executes kernels.

        Raises
        ------
        LoweringError
            If the code generator cannot express the program.
        """
        _require_processor_types(program)
        threads, model = processor.thread_count(), back_end.model(program)
        nest = replace(back_end.nest(program, epilogue), threads=threads)
        # The loops are the same without padding, so that one schedule serves both nests.
        unpadded = back_end.nest_unpadded(program, epilogue)
        unpadded = unpadded and replace(unpadded, threads=threads)
        constants = (machine or calibration()).for_product(model.product)
        schedules = Schedules(nest, model, constants, unpadded)
        return cls(program, epilogue, back_end, schedules, processor)

    def compiled(self, knobs: Knobs) -> CompiledKernel:
        """Return the kernel of a schedule.

        Raises :class:`LoweringError` if the schedule does not fit.
        """
        space, program = self.schedules, self.program
        scheduled = space.scheduled(program, knobs)
        plan = self.back_end.plan(program, scheduled)

        # Only whole calls need this plan, and many kernels are never called so.
        def whole_plan() -> KernelPlan:
            return self.back_end.plan(program, space.scheduled(program, knobs, whole_call=True))

        # No line of such an operand moves to another core: all threads may pack it, however small.
        affine = cache_affine(scheduled, in_order(program), space.machine, space.threads)
        return CompiledKernel(
            program,
            plan,
            epilogue=self.epilogue,
            whole_plan=whole_plan,
            move_threads=_copy_threads(affine, space.machine, space.threads),
            processor=self.processor,
        )


def _require_processor_types(program: DerivedProgram) -> None:
    """Raise :class:`LoweringError` for 8-bit floats: their bytes would be taken for integers."""
    for operand in program.workload.operands:
        if operand.dtype.startswith("float8_"):
            raise LoweringError(
                f"{operand.name} is {operand.dtype}, which has no kernel of a processor: use an "
                "integer of 8 to 64 bits, bfloat16 or a float of 16 bits or more"
            )


def portable_kernel(
    program: DerivedProgram,
    epilogue: Epilogue | None = None,
    fallback: str | None = None,
    processor: Processor = runtime,
) -> CompiledKernel:
    """Compile portable code.

    Parameters
    ----------
    program : DerivedProgram
        Program of an embedding.
    epilogue : Epilogue, optional
        Conversion of the sums.
    fallback : str, optional
        Reason why the code replaces that of an instruction.
    processor : Processor
        Compiles and executes the kernel.

    Raises
    ------
    LoweringError
        If an operand has 8-bit floats, which processors do not compute with.
    """
    _require_processor_types(program)
    count = processor.thread_count()
    plan = portable_plan(program, count, epilogue)
    threads = _copy_threads((), calibration(), count)
    return CompiledKernel(
        program, plan, fallback, epilogue, move_threads=threads, processor=processor
    )


def _copy_threads(affine: Collection[str], machine: Calibration, threads: int) -> MoveThreads:
    return lambda operand: threads_worth(operand, machine, threads, affine=operand.name in affine)


def native_kernel(program: DerivedProgram, spec: HardwareSpec, knobs: Knobs) -> CompiledKernel:
    """Compile a kernel of the target's instruction.

    Parameters
    ----------
    program : DerivedProgram
        Program of an embedding.
    spec : HardwareSpec
        Target.
    knobs : Knobs
        Schedule.

    Raises
    ------
    BackendUnavailable
        If this machine lacks the instruction.
    LoweringError
        If the schedule does not fit.
    """
    target = open_target(spec)
    if missing := target.missing():
        raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}")
    return target.build(target.lower(program), knobs)
