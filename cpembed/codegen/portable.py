"""The portable back end: the derived program in plain loops, for any target and element type.

It verifies a derived program on machines that lack its instruction; it is not meant to be fast.
"""

from __future__ import annotations

from dataclasses import replace

from cpembed.codegen.emit import kernel_plan
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.instruction import InstructionText
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.program_nest import kernel_nest
from cpembed.transform.program import DerivedProgram


def plan(program: DerivedProgram, threads: int, epilogue: Epilogue | None = None) -> KernelPlan:
    """A kernel without instructions of the target; raises :class:`LoweringError` for a workload
    that is not a product-sum."""
    nest = replace(kernel_nest(program, epilogue), threads=threads)
    return kernel_plan(nest, InstructionText("generic"))
