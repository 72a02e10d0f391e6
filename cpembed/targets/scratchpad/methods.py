"""Methods of convolutions on scratchpad machines: all parts are kernels of its processing elements.

Weights are transformed ahead, on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpembed.ir.dtypes import numpy_dtype
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.targets.methods import MethodPlan, Methods
from cpembed.targets.scratchpad.emit_part import part_text
from cpembed.targets.scratchpad.execute import Array, ScratchpadProgram, shape_of
from cpembed.targets.scratchpad.executor import Counters, compile_text
from cpembed.targets.scratchpad.machine import ScratchpadMachine
from cpembed.targets.scratchpad.method_parts import parts_of
from cpembed.targets.scratchpad.parts import Part
from cpembed.transform.methods.convolution import Rewritten, U, V
from cpembed.transform.program import DerivedProgram


@dataclass(frozen=True)
class ScratchpadMethodPlan(MethodPlan):
    """With the parts before and after the product; None where there is nothing to be done."""

    before: Part | None = None
    after: Part | None = None


@dataclass(frozen=True)
class ScratchpadMethods(Methods):
    """On a machine, by its model."""

    machine: ScratchpadMachine

    def plans(self, method: Rewritten) -> tuple[MethodPlan, ...]:
        return (method_plan(method, self.machine),)

    def takes(self, program: DerivedProgram) -> bool:
        """Boxes are fetched from operands as they lie, whatever the program packs."""
        return True

    def build(self, plan: MethodPlan, product: Any) -> ScratchpadMethodProgram:
        assert isinstance(plan, ScratchpadMethodPlan)
        return ScratchpadMethodProgram(plan, product, self.machine)


def method_plan(method: Rewritten, machine: ScratchpadMachine) -> ScratchpadMethodPlan:
    """Raises :class:`~cpembed.errors.LoweringError` for what has no generated parts."""
    before, after = parts_of(method, machine)
    cycles = sum(part.cycles(machine) for part in (before, after) if part is not None)
    us = cycles / machine.clock_mhz
    return ScratchpadMethodPlan(method, method.product, 1, us, before, after)


@dataclass
class ScratchpadMethodProgram:
    """A method that can be called; ``counters`` are those of the last run, by part."""

    plan: ScratchpadMethodPlan
    product: ScratchpadProgram
    machine: ScratchpadMachine
    counters: dict[str, Counters] = field(default_factory=dict[str, Counters])

    @property
    def backend(self) -> str:
        return f"{self.machine.rows} x {self.machine.columns} emulated PEs"

    def run(self, inputs: Mapping[str, Array], seed: int = 0) -> Array:
        method = self.plan.method
        conv = method.convolution
        image, weights = inputs[conv.image.name], inputs[conv.weights.name]
        given = method.product.operand(V)
        values = self._executed(self.plan.before, image, given.shape, seed)
        # In float64, rounded once: they are transformed ahead.
        ahead = method.weights_part(np.asarray(weights, np.float64)).astype(np.float32)
        fed = {V: values, U: ahead}
        found = self.product.run(fed, seed)
        if self.product.counters is not None:
            self.counters["product"] = self.product.counters
        return self._executed(self.plan.after, found, conv.output.shape, seed)

    def time(self, inputs: Mapping[str, Array]) -> Timing:
        return Timing(Provenance.EMULATED, self.plan.product.macs, None)

    def bound_whole(self, inputs: Mapping[str, Array]) -> None:
        """Nothing here can be timed."""
        return

    def _executed(
        self, part: Part | None, source: Array, shape: tuple[int, ...], seed: int
    ) -> Array:
        if part is None:
            return np.asarray(source).reshape(shape)
        dtype = numpy_dtype("float32")
        given = np.ascontiguousarray(source, dtype).reshape(-1)
        given.flags.writeable = False
        result = np.zeros(int(np.prod(shape)), dtype)
        program = compile_text(part_text(part))
        self.counters[part.name] = program.run(shape_of(self.machine), [given, result], seed=seed)
        return result.reshape(shape)
