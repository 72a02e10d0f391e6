"""Parts of the kernel of a pair: the product of a band, and pooling of a band."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.recorded import RecordedCalls, Recorder, recorded_calls
from cpembed.errors import InvariantError, LoweringError
from cpembed.graph.graph import Array
from cpembed.graph.kinds import Pool
from cpembed.network.bands import Band
from cpembed.network.operators import PlacedTensor
from cpembed.network.operators.pairs import (
    BETWEEN,
    IMAGE,
    OUTPUT,
    RESIDUAL,
    WINDOW_START,
    BandCall,
    Bands,
    Steps,
)
from cpembed.network.operators.pooling import pool_band_plan
from cpembed.network.product_kernel import ProductKernel
from cpembed.targets.capabilities import host_times, lower_part, planned_kernel
from cpembed.targets.registry import open_target


@dataclass(frozen=True, eq=False)
class ProductPart:
    """Kernel of one product of a pair, on a band.

    Attributes
    ----------
    epilogue : Epilogue or None
        Epilogue with its places.
    schedule : Any
        Schedule on one thread.
    cost_us : float
        Estimated microseconds of a band on one thread, without those of a call.
    """

    band: Band
    kernel: ProductKernel
    epilogue: Epilogue | None
    schedule: Any
    cost_us: float

    @classmethod
    def scheduled(cls, band: Band, kernel: ProductKernel) -> ProductPart:
        """Choose the schedule of a kernel on one thread.

        Raises :class:`LoweringError` if the target has no kernels that another one calls.
        """
        if kernel.spec is None:
            raise LoweringError("portable code is no part of a kernel")
        target = open_target(kernel.spec)
        epilogue = band.epilogue()
        lowered = lower_part(target, kernel.candidate.program, epilogue)
        best = target.space(lowered).ranked(1)[0]
        cost = max(0.0, best.cost - host_times(target).call_us)
        return cls(band, kernel, epilogue, best.schedule, cost)

    def call(self, constants: Mapping[str, Array]) -> BandCall:
        """Return the call of a band, with the constants packed."""
        recorded = self._recorded(constants)
        if len(recorded.run) != 1:
            raise InvariantError(f"{self.band.computation}: a band is packed")
        (call,) = recorded.run
        operands = {
            BETWEEN if self.band.reads_band else IMAGE: self.band.computation.inputs[0].name,
            OUTPUT if self.band.reads_band else BETWEEN: self.band.computation.output.name,
        }
        # Any further tensor is the residual.
        names = {id(memory): RESIDUAL for memory in recorded.caller_memory.values()}
        names |= {id(recorded.caller_memory[o]): name for name, o in operands.items()}
        buffers = tuple(names.get(id(memory), memory) for memory in call.buffers)
        return BandCall(call.plan, buffers, self.band.steps)

    def _recorded(self, constants: Mapping[str, Array]) -> RecordedCalls:
        assert self.kernel.spec is not None
        target = open_target(self.kernel.spec)
        lowered = lower_part(target, self.kernel.candidate.program, self.epilogue)
        kernel = planned_kernel(target, lowered, self.schedule, Recorder(threads=1))
        assert kernel is not None
        return recorded_calls(kernel, (), constants)


@dataclass(frozen=True, eq=False)
class PoolPart:
    """Kernel of a pooling that reads bands.

    Attributes
    ----------
    source : PlacedTensor
        Rows that a band is computed from, in the buffer between both operators.
    output : PlacedTensor
        The whole result.
    cost_us : float
        Estimated microseconds of a band on one thread, without those of a call.
    """

    kind: Pool
    source: PlacedTensor
    output: PlacedTensor
    bands: Bands
    cost_us: float

    def call(self, constants: Mapping[str, Array]) -> BandCall:
        """Return the call of a band; pooling has no constants."""
        del constants
        bands, layout = self.bands, self.output.layout
        has_start = bands.window.covers_padding(bands.height)
        plan = pool_band_plan(self.kind, self.source, self.output, bands.rows, has_start=has_start)
        strides = layout.strides()
        steps = {OUTPUT: Steps(strides[0], strides[2])}
        numbers = (WINDOW_START,) if has_start else ()
        return BandCall(plan, (BETWEEN, OUTPUT, *numbers), steps)


PairPart = ProductPart | PoolPart
"""Part of the kernel of a pair."""
