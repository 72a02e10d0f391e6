"""Planning on SW26010: embeddings of a workload, and their schedules by the machine's model."""

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
"""Embeddings of a workload whose schedules are compared, the best by overheads: as many as ``run``
compares."""

CLOSE = 1.01
"""What cannot be faster than the best by more than this is not looked at."""


@cache
def specification() -> HardwareSpec:
    return load_hardware_spec("sw26010")


@cache
def machine() -> ScratchpadMachine:
    return scratchpad_machine(specification())


def peak() -> float:
    """Multiply-adds a microsecond of a core group."""
    instruction, found = specification().instruction, machine()
    return instruction.macs / found.cycles * found.clock_mhz


def efficiency(macs: int, us: float) -> float:
    """Of a core group's peak."""
    return macs / us / peak()


@dataclass(frozen=True)
class Planned:
    """The best schedule: of the ``option``-th workload, ``products`` of which were lowered, and
    ``compared`` that were looked at.
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
    def words(self) -> str:
        digits = self.product.program.embedding.digits
        axes = "; ".join(
            f"{lane} = {' '.join(f'{d.axis}:{d.count}' for d in each)}"
            for lane, each in digits.items()
        )
        return f"{axes}; {self.scored.schedule}"


def products(workload: Computation, considered: int = CONSIDERED) -> Iterator[BoxProduct]:
    """What the instruction can execute of a workload's embeddings, the best by overheads first."""
    solved = solve(workload, specification(), constraints=CONSTRAINTS, top=considered)
    for item in solved.embeddings[:considered]:
        try:
            yield lower(item.candidate.program, machine())
        except LoweringError:
            continue


def best(
    options: Sequence[Computation], *, ahead: bool = True, buffers: Sequence[int] = (2, 1)
) -> Planned:
    """The fastest of some workloads, which do the same in different layouts.

    Raises :class:`LoweringError` where none can be executed.
    """
    found: Planned | None = None
    lowered = compared = 0
    for option, workload in enumerate(options):
        if found is not None and workload.macs / peak() * CLOSE >= found.us:
            continue
        given = list(products(workload))
        lowered += len(given)
        for product in given:
            below = math.inf if found is None else found.us
            space = ScratchpadSpace(product, ahead=ahead, buffers=buffers, below=below)
            if space.lower_bound * CLOSE >= below:
                continue
            compared += 1
            try:
                scored = space.best()
            except LoweringError:
                continue
            if scored.cost < below:
                found = Planned(option, product, scored, lowered, compared)
    if found is None:
        raise LoweringError(f"{options[0].name}: no schedule")
    return Planned(found.option, found.product, found.scored, lowered, compared)
