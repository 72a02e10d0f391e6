"""Plan on SW26010: embeddings of a workload, and their schedules by the machine's model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.space import Scored
from cpembed.targets.scratchpad.boxes import BoxProduct, lower
from cpembed.targets.scratchpad.machine import ScratchpadMachine, scratchpad_machine
from cpembed.targets.scratchpad.schedule import Plan, Schedule
from cpembed.targets.scratchpad.space import ScratchpadSpace

CONSTRAINTS = "cut_boxes"

CONSIDERED = 32
"""Number of embeddings of a workload whose schedules are compared.

The best by overheads are taken, as many as ``run`` compares.
"""

CLOSE = 1.01
"""Minimum gain, as a factor, of a product or a layout that is looked at."""


@cache
def specification() -> HardwareSpec:
    """Return the specification of SW26010."""
    return load_hardware_spec("sw26010")


@cache
def machine() -> ScratchpadMachine:
    """Return the machine of a core group."""
    return scratchpad_machine(specification())


def peak() -> float:
    """Return the multiply-adds a microsecond of a core group."""
    instruction, core_group = specification().instruction, machine()
    return instruction.macs / core_group.cycles * core_group.clock_mhz


def efficiency(macs: int, us: float) -> float:
    """Return the share of a core group's peak."""
    return macs / us / peak()


@dataclass(frozen=True)
class Planned:
    """The best schedule.

    It is of the ``option``-th workload; ``products`` were lowered, and ``compared`` of them looked
    at.
    """

    option: int
    product: BoxProduct
    scored: Scored[Schedule]
    products: int
    compared: int

    @property
    def us(self) -> float:
        return self.scored.cost

    @property
    def plan(self) -> Plan:
        return Plan(self.product, self.scored.schedule)

    @property
    def text(self) -> str:
        digits = self.product.program.embedding.digits
        axes = "; ".join(
            f"{lane} = {' '.join(f'{d.axis}:{d.count}' for d in each)}"
            for lane, each in digits.items()
        )
        return f"{axes}; {self.scored.schedule}"


def products(workload: Computation, considered: int = CONSIDERED) -> Iterator[BoxProduct]:
    """Yield the lowered embeddings of a workload, the best by overheads first."""
    solved = solve(workload, specification(), constraints=CONSTRAINTS, top=considered)
    for item in solved.embeddings[:considered]:
        try:
            yield lower(item.candidate.program, machine())
        except LoweringError:
            continue


def best(
    options: Sequence[Computation], *, ahead: bool = True, buffers: Sequence[int] = (2, 1)
) -> Planned:
    """Return the fastest plan of some workloads, which do the same in different layouts.

    Parameters
    ----------
    options : sequence of Computation
        The workloads.
    ahead : bool
        True if weights are laid out ahead.
    buffers : sequence of int
        Numbers of buffers of a box to compare.

    Raises
    ------
    LoweringError
        If none can be executed.
    """
    fastest: Planned | None = None
    lowered = compared = 0
    for option, workload in enumerate(options):
        if fastest is not None and workload.macs / peak() * CLOSE >= fastest.us:
            continue
        lowered_products = list(products(workload))
        lowered += len(lowered_products)
        for product in lowered_products:
            below = math.inf if fastest is None else fastest.us
            space = ScratchpadSpace(product, ahead=ahead, buffers=buffers, below=below)
            if space.lower_bound * CLOSE >= below:
                continue
            compared += 1
            try:
                scored = space.best()
            except LoweringError:
                continue
            if scored.cost < below:
                fastest = Planned(option, product, scored, lowered, compared)
    if fastest is None:
        raise LoweringError(f"{options[0].name}: no schedule")
    return Planned(fastest.option, fastest.product, fastest.scored, lowered, compared)
