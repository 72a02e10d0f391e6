"""What the tests of tuning share: a small layer, its designs, a machine."""

from __future__ import annotations

from functools import cache

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.space import Design, Proposal
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.target import VtaTarget, VtaTuner
from cpembed.targets.vta.tiles import TileNest
from cpembed.targets.vta.tuning import Machine, VtaSpace, VtaTrial

TARGET = "vta_1x16x16"
LAYER = "conv2d n=1 c=32 h=8 w=6 k=32 r=3 s=3 pad=1"
SMALL = "conv2d n=1 c=16 h=4 w=4 k=32 r=3 s=3"
LOW_CHANNEL = "conv2d n=1 c=1 h=16 w=16 k=16 r=5 s=5"


def layer(words: str = LAYER) -> Computation:
    return workload(words, target=TARGET)


@cache
def target() -> VtaTarget:
    return VtaTarget(hardware_spec(TARGET))


@cache
def machine(words: str = LAYER) -> Machine:
    return target().machine(layer(words))


@cache
def designs(
    words: str = LAYER, constraints: str = "relaxed", top: int = 4
) -> tuple[Design[Schedule], ...]:
    found: list[Design[Schedule]] = []
    for ranked in solve(layer(words), TARGET, constraints=constraints, top=top).embeddings:
        lowered = target().lower(ranked.candidate.program, machine(words).tail)
        found.append(Design(ranked, lowered, target().space(lowered)))
    return tuple(found)


def space_of(design: Design[Schedule]) -> VtaSpace:
    assert isinstance(design.space, VtaSpace)
    return design.space


def nest_of(design: Design[Schedule]) -> TileNest:
    return space_of(design).nest


def measure(proposal: Proposal[Schedule], words: str = LAYER) -> VtaTrial:
    return VtaTuner(target()).run_trial(proposal, machine(words).tail)
