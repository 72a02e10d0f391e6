"""What the tests of tuning share: a small layer, its designs, a machine."""

from __future__ import annotations

from functools import cache

from cpembed.api.run_vta import VtaSimulation
from cpembed.targets.vta.tuning_space import Design, Machine, design_of

from cpembed.api.solve import hardware_spec, solve, workload
from cpembed.ir.computation import Computation

TARGET = "vta_1x16x16"
LAYER = "conv2d n=1 c=32 h=8 w=6 k=32 r=3 s=3 pad=1"
SMALL = "conv2d n=1 c=16 h=4 w=4 k=32 r=3 s=3"
LOW_CHANNEL = "conv2d n=1 c=1 h=16 w=16 k=16 r=5 s=5"


def layer(words: str = LAYER) -> Computation:
    return workload(words, target=TARGET)


@cache
def machine(words: str = LAYER) -> Machine:
    simulation = VtaSimulation.of(hardware_spec(TARGET), layer(words), None, None)
    return Machine(simulation.config, simulation.memory, simulation.tail)


@cache
def designs(words: str = LAYER, constraints: str = "relaxed", top: int = 4) -> tuple[Design, ...]:
    solved = solve(layer(words), TARGET, constraints, top=top)
    return tuple(
        design_of(ranked.candidate, ranked.rank, constraints, machine(words))
        for ranked in solved.embeddings
    )
