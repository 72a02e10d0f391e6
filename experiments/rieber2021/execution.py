"""Execute a tuned program, compare it with numpy, and time its packing and unpacking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import InvariantError
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.measurement.verification import compare_integers
from cpembed.targets.vta.checker import check
from cpembed.targets.vta.host import HostPacking
from cpembed.targets.vta.lower import LoweredVta
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.simulator import simulate


@dataclass(frozen=True, eq=False)
class _Run:
    """A program with its inputs, and the memory that it left."""

    packing: HostPacking
    program: VtaProgram
    memory: NDArray[np.uint8]


class Execution:
    """Random inputs of a workload and its result, computed once for several programs."""

    def __init__(self, workload: Computation, seed: int = 0) -> None:
        self.workload = workload
        self.inputs = random_inputs(workload, seed)
        self._exact = reference(workload, self.inputs)

    def check(self, lowered: LoweredVta) -> _Run:
        """Run a program on the inputs.

        Raises :class:`InvariantError` if the result is not the workload's.
        """
        packing = HostPacking(lowered)
        program = packing.build(self.inputs)
        check(program)
        memory = simulate(program, checked=False)
        output = packing.unpack(lowered.combine(program, memory))
        verification = compare_integers(lowered.tail.reference(self._exact), output)
        if not verification.verified:
            raise InvariantError(
                f"{self.workload}: the VTA program is wrong by up to {verification.max_error:g}"
            )
        return _Run(packing, program, memory)

    def times(self, lowered: LoweredVta) -> dict[str, Any]:
        """Check a program, and return median microseconds of packing and unpacking on this CPU.

        Weights are packed ahead.
        """
        run = self.check(lowered)
        times = run.packing.time(run.program, run.memory, self.inputs)
        return {
            "packing_us": round(times.packing_us, 2),
            "unpacking_us": round(times.unpacking_us, 2),
            "noisy": times.noisy,
        }
