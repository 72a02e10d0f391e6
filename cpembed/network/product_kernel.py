"""Kernel of a product: target, candidate and schedule, with what they cost, and its recording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.emit import portable_plan
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.recorded import RecordedCalls, Recorder, recorded_calls
from cpembed.cost.ranking import Candidate
from cpembed.errors import LoweringError
from cpembed.graph.graph import Array
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import AxisKind
from cpembed.network.factor_extension import with_extension, words_of
from cpembed.targets.capabilities import planned_kernel
from cpembed.targets.registry import open_target

# Multiply-accumulates per microsecond and thread of portable code. Only the order of magnitude
# counts, so that a native kernel in another layout is preferred.
_PORTABLE_MACS_PER_US = 500.0


@dataclass(frozen=True)
class ProductKernel:
    """Kernel of a product.

    Attributes
    ----------
    spec : HardwareSpec or None
        Target of the instruction; None for portable code.
    cost_us : float
        Estimated microseconds, packing and unpacking included; infinite without an estimate.
    utilisation : float
        Fraction of the executed operations that are useful.
    moved_bytes : int
        Bytes that packing and unpacking read and write.
    reason : str, optional
        Why the kernel is not on a target that was named, or uses an alternative of a unit.
    extended : str or None
        Type of the first factor's bytes if they are extended to 16 bits in memory before the
        kernel.
    stopped : bool
        True for portable code that stands in because a limit stopped the search of a unit.
    """

    spec: HardwareSpec | None
    candidate: Candidate
    schedule: Any
    epilogue: Epilogue | None
    cost_us: float
    utilisation: float
    moved_bytes: int = 0
    reason: str | None = None
    extended: str | None = None
    stopped: bool = False

    @property
    def is_native(self) -> bool:
        """True unless the kernel is portable code."""
        return self.spec is not None

    def estimate_us(self, macs: int, threads: int) -> float:
        """Return the estimated time; of portable code, that of ``macs`` on ``threads``."""
        return self.cost_us if self.is_native else macs / (_PORTABLE_MACS_PER_US * threads)

    @property
    def target(self) -> str:
        """Name of the target, for reports."""
        return "portable" if self.spec is None else self.spec.name

    @property
    def places(self) -> bool:
        """True if the output can be stored inside a larger buffer."""
        return self.epilogue is not None and self.epilogue.placement is not None

    @property
    def computed_results(self) -> int:
        """Number of results that the kernel computes, padding and repeated ones included."""
        program = self.candidate.program
        loops = (*program.loops, *program.instruction_axes)
        return math.prod(loop.extent for loop in loops if loop.kind is AxisKind.SPATIAL)

    @property
    def embedding(self) -> str:
        """Identifier of the embedding."""
        return self.candidate.embedding.identifier()


@dataclass(frozen=True)
class CachedKernel:
    """Result of a search in the cache, which tells "no kernel" from "not searched"."""

    kernel: ProductKernel | None


def recorded_kernel(
    kernel: ProductKernel,
    epilogue: Epilogue | None,
    constants: Mapping[str, Array],
    threads: int = 0,
) -> RecordedCalls:
    """Return the calls of a kernel, with the constants that they read packed.

    Parameters
    ----------
    kernel : ProductKernel
    epilogue : Epilogue or None
        Epilogue with its placements.
    constants : mapping from str to ndarray
        Vectors, and the second factor unless it varies, in the workload's shapes.
    threads : int, default 0
        Number of threads; 0 for the process's.

    Raises
    ------
    LoweringError
        If the target has no kernels that a library can hold.
    """
    recorder = Recorder(threads)
    product = planned_product(kernel, epilogue, recorder)
    if kernel.extended is None:
        return recorded_calls(product, (), constants)
    first = kernel.candidate.program.workload.inputs[0].name
    calls = recorded_calls(product, (), words_of(constants, first))
    if first in constants:
        return calls
    return with_extension(calls, first, kernel.extended, recorder)


def planned_product(
    kernel: ProductKernel, epilogue: Epilogue | None, recorder: Recorder
) -> CompiledKernel:
    """Return a kernel that a recorder executes.

    Parameters
    ----------
    kernel : ProductKernel
    epilogue : Epilogue or None
        Epilogue with its placements.
    recorder : Recorder

    Raises
    ------
    LoweringError
        If the target has no kernels that a library can hold.
    """
    program = kernel.candidate.program
    if kernel.spec is None:
        plan = portable_plan(program, recorder.thread_count(), epilogue)
        return CompiledKernel(program, plan, kernel.reason, epilogue, processor=recorder)
    target = open_target(kernel.spec)
    lowered = target.lower(program, epilogue)
    compiled = planned_kernel(target, lowered, kernel.schedule, recorder)
    if compiled is None:
        raise LoweringError(f"{kernel.target} has no kernels that a library can hold")
    return compiled
