"""Times of the packing and unpacking that the host does for a simulated accelerator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.kernel.packing import packed_before
from cpembed.measure.runner import Timing, time_work
from cpembed.provenance import Provenance
from cpembed.targets.vta.lower import LoweredVta
from cpembed.targets.vta.moves import Moves
from cpembed.targets.vta.program import VtaProgram


def measure_moves(
    lowered: LoweredVta,
    moves: Moves,
    program: VtaProgram,
    memory: NDArray[np.uint8],
    inputs: Mapping[str, NDArray[Any]],
    *,
    packed_ahead: Collection[str] | None = None,
    rounds: int = 15,
    round_ms: float = 10.0,
) -> Timing:
    """Time the packing of ``inputs`` and the unpacking of what a run left in ``memory``, on this
    machine: the rest of the timing is left out.

    ``packed_ahead`` is as for :func:`~cpembed.measure.runner.measure`. A layout that is the same
    memory as the original one costs nothing; unpacking includes putting bytes together that were
    stored apart.
    """
    if packed_ahead is None:
        packed_ahead = packed_before(lowered.program.workload)
    operands = [tensor.packed for tensor in lowered.nest.inputs]
    ahead = tuple(operand.name for operand in operands if operand.name in packed_ahead)
    timed = [
        time_work(moves.packing(operand.name, inputs[operand.name]).run, rounds, round_ms)
        for operand in operands
        if operand.name not in ahead and not operand.is_identity
    ]
    packing = sum(times.median for times in timed)
    unpacking = 0.0
    if len(lowered.tail.phases) > 1:
        timed.append(time_work(lambda: lowered.combine(program, memory), rounds, round_ms))
        unpacking += timed[-1].median
    if not lowered.stored.is_identity:
        packed = lowered.combine(program, memory)
        timed.append(time_work(moves.unpacking(packed).run, rounds, round_ms))
        unpacking += timed[-1].median
    noisy = any(times.is_noisy for times in timed)
    macs = lowered.program.unfused.macs
    return Timing(Provenance.SIMULATED, macs, None, packing, unpacking, ahead, noisy)
