"""Time of an executed plan from what the executor counted of it.

The machine's figures are the model's; transactions are those that each block touches at its real
address, executions those that were called, with their sizes.
"""

from __future__ import annotations

import math

import numpy as np

from cpembed.targets.scratchpad.executor import Counters
from cpembed.targets.scratchpad.machine import ScratchpadMachine
from cpembed.targets.scratchpad.model import Work
from cpembed.targets.scratchpad.schedule import Plan


def counted_us(plan: Plan, counters: Counters) -> float:
    """Return microseconds; the first and the last transfer, not hidden, are the model's."""
    machine, schedule = plan.product.machine, plan.schedule
    executing = executing_cycles(plan, counters)
    transferring = transferring_cycles(machine, counters)
    if schedule.buffers == 2 and machine.overlaps:
        tile = {name: np.full(1, float(points)) for name, points in schedule.tile}
        exposed = float(Work(plan.form, tile).times(schedule.order, 2).exposed[0])
        steps = math.prod(plan.count(axis) for axis in plan.loops)
        cycles = max(executing + exposed, transferring + executing / steps)
    else:
        cycles = transferring + executing
    return cycles / machine.clock_mhz


def transferring_cycles(machine: ScratchpadMachine, counters: Counters) -> float:
    """Return latencies of a core's transfers, and the transactions of all."""
    engine = machine.engine
    transfers = sum(moved.transfers for moved in counters.moved.values()) / machine.elements
    bytes_ = counters.transactions * engine.transaction_bytes
    return transfers * engine.latency_cycles + bytes_ / engine.bytes_per_cycle


def executing_cycles(plan: Plan, counters: Counters) -> float:
    """Return the cycles of all calls, by their sizes (equation 2)."""
    machine, lanes = plan.product.machine, plan.product.lanes
    granule = plan.product.program.instruction.macs
    total = 0.0
    for (m, n, k, _), calls in counters.gemms.items():
        sizes = dict(zip(lanes, (m, n, k), strict=True))
        cycles = machine.cycles * m * n * k / granule
        for names, factor in machine.call_cycles:
            cycles += factor * math.prod(sizes[name] for name in names)
        total += cycles * calls
    return total


def estimated_us(plan: Plan) -> float:
    """Return the model's time of the same plan."""
    schedule = plan.schedule
    tile = {name: np.full(1, float(points)) for name, points in schedule.tile}
    times = Work(plan.form, tile).times(schedule.order, schedule.buffers)
    return float(times.total[0]) / plan.product.machine.clock_mhz
