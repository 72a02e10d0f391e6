"""Costs of the borders of a planned product: padded products, parts of transactions, zeros.

The same plans are estimated on a machine without borders: of every axis a core holds exactly its
share of the points, and a byte is a transaction. The time of a plan beyond the best of them is what
borders cost, all of it, not only what is copied or filled in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cpembed.runtime.tuning.space import Scored
from cpembed.targets.scratchpad.boxes import Axis, BoxProduct, Operand
from cpembed.targets.scratchpad.forms import Form
from cpembed.targets.scratchpad.model import Work
from cpembed.targets.scratchpad.schedule import Plan, Schedule

FINE = 2**-10
"""Share of a granule that a machine without borders rounds points up to."""

STORED_BYTES = 32
"""Bytes of a cycle's vector store of a core, with which it fills a box with zeros.

An assumption beside those of the machine's description, which counts no time for it.
"""


@dataclass(frozen=True)
class _Fine(Axis):
    """An axis of shares of points."""

    @property
    def grain(self) -> Any:
        return self.granule / self.parts


@dataclass(frozen=True)
class _Exact(Form):
    """A form on the machine without borders, whose executions cover those of the real form."""

    real_form: Form

    @cached_property
    def chains(self) -> Mapping[str, tuple[Axis, ...]]:
        return self.real_form.chains


def padded(product: BoxProduct) -> float:
    """Return the share of the machine's products that are none of the workload's."""
    axes = product.axes.values()
    computed = math.prod(-(-axis.extent // axis.granule) * axis.granule for axis in axes)
    return 1 - math.prod(axis.extent for axis in axes) / computed


def cost_without_borders(product: BoxProduct, plans: Sequence[Scored[Schedule]]) -> float:
    """Return microseconds of the fastest of some plans, were there no borders."""
    machine = product.machine
    return min(_exact_cycles(product, item.schedule) for item in plans) / machine.clock_mhz


def zeroing_us(plan: Plan) -> float:
    """Return the time to fill boxes with zeros before their elements arrive.

    Boxes that reach beyond the operand are filled, by the core that has most to fill, while nothing
    else happens.
    """
    cycles = sum(
        _fetched(plan, buffer.box.operand) * _at_border(plan, buffer.box.operand) * buffer.bytes
        for buffer in plan.buffers[:2]
    )
    return cycles / STORED_BYTES / plan.product.machine.clock_mhz


def _exact_cycles(product: BoxProduct, schedule: Schedule) -> float:
    """Return the cycles of a plan on the machine without borders."""
    machine, form = product.machine, Plan(product, schedule).form
    axes, cycles = dict[str, Axis](), machine.cycles
    for name, axis in product.axes.items():
        finer: Any = FINE if axis.granule > 1 else 1.0
        granule = axis.granule * finer
        axes[name] = _Fine(
            *(name, axis.extent, axis.reduction, axis.lane, granule, axis.parts, axis.weight)
        )
        cycles *= finer
    engines = {name: replace(e, transaction_bytes=1) for name, e in machine.engines.items()}
    exact = replace(product, axes=axes, machine=replace(machine, cycles=cycles, engines=engines))
    tile = {name: np.full(1, float(points)) for name, points in schedule.tile}
    work = Work(_Exact(exact, form.single, form.ahead, form), tile)
    return float(work.times(schedule.order, schedule.buffers).total[0])


def _fetched(plan: Plan, operand: Operand) -> int:
    """Return the number of transfers of a box of an input."""
    number, started = 1, False
    for axis in reversed(plan.loops):
        started = started or axis.name in operand.axes
        number *= plan.count(axis) if started else 1
    return number


def _at_border(plan: Plan, operand: Operand) -> float:
    """Return the share of an operand's boxes that a granule's padding is in."""
    inner = 1.0
    for name in operand.axes:
        axis = plan.product.axes[name]
        if axis.extent % axis.granule:
            inner *= 1 - 1 / plan.count(axis)
    return 1 - inner
