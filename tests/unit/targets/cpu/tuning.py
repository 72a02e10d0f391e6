"""What the tests of tuning on CPUs share: small layers, their designs on a machine with published
figures, a measurer that times nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from cpembed.codegen.plan import Knobs
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.runtime.tuning.space import Design, Proposal, distinct
from cpembed.targets.choice import compared
from cpembed.targets.cpu.calibration import Calibration, default_calibration
from cpembed.targets.cpu.measure import Failed, Moves, Timed
from cpembed.targets.cpu.space import CpuSpace, Objective
from cpembed.targets.x86.target import X86Target

TARGET = "amx_int8"
LAYER = "conv2d n=1 c=64 h=14 w=14 k=64 r=3 s=3 pad=1"
GEMM = "gemm m=96 n=64 k=128"

CpuDesign = Design[Knobs]
CpuProposal = Proposal[Knobs]


def layer(words: str = LAYER) -> Computation:
    return workload(words, target=TARGET)


def machine() -> Calibration:
    return default_calibration(2)


class Modelled(X86Target):
    """The target on a machine of given figures."""

    def __init__(self, figures: Calibration, objective: Objective = "total") -> None:
        super().__init__(hardware_spec(TARGET), objective)
        self._given = figures

    @property
    def machine(self) -> Calibration:
        return self._given


@cache
def candidates(
    words: str = LAYER, constraints: str = "in_place_padded", top: int = 8
) -> tuple[RankedCandidate, ...]:
    return solve(layer(words), TARGET, constraints=constraints, top=top).embeddings


def design_of(ranked: RankedCandidate, objective: Objective = "total") -> CpuDesign:
    target = Modelled(machine(), objective)
    lowered = target.lower(ranked.candidate.program)
    return Design(ranked, lowered, target.space(lowered))


def designs(words: str = LAYER, objective: Objective = "total") -> list[CpuDesign]:
    """What runs untuned first, the best of two constraint sets."""
    untuned = compared(Modelled(machine()), candidates(words)).estimates[0].ranked
    found = [design_of(untuned, objective)]
    for constraints, top in (("in_place_padded", 8), ("complete", 16)):
        found += [design_of(ranked, objective) for ranked in candidates(words, constraints, top)]
    return distinct(found)


def space_of(design: CpuDesign) -> CpuSpace:
    assert isinstance(design.space, CpuSpace)
    return design.space


def kernels(design: CpuDesign) -> list[Knobs]:
    """The schedules, the fastest contraction first."""
    return [knobs for _, knobs in space_of(design).schedules.ranked()]


def proposal(design: CpuDesign, knobs: Knobs) -> CpuProposal | None:
    """None where the schedule does not fit."""
    try:
        return Proposal(design, design.space.scored(knobs))
    except LoweringError:
        return None


@dataclass
class FakeMeasurer:
    """Microseconds by a function of the proposal, without noise; what was asked is recorded."""

    us: Callable[[CpuProposal], float | None]
    known: dict[str, Moves] = field(default_factory=dict[str, Moves])
    beside: list[str | None] = field(default_factory=list[str | None])
    finals: list[list[str]] = field(default_factory=list[list[str]])
    limit: int | None = None
    """Kernels after which a person interrupts."""

    def measure(self, proposal: CpuProposal, incumbent: CpuProposal | None) -> Timed | Failed:
        if self.limit is not None and len(self.beside) >= self.limit:
            raise KeyboardInterrupt
        self.beside.append(None if incumbent is None else incumbent.key)
        us = self.us(proposal)
        if us is None:
            return Failed("no kernel")
        theirs = us if incumbent is None else self.us(incumbent) or us
        return timed(us, us / theirs, rejected=us > 1.5 * theirs)

    def final(self, proposals: Sequence[CpuProposal]) -> list[Timed]:
        self.finals.append([proposal.key for proposal in proposals])
        first = self.us(proposals[0]) or 1.0
        return [timed(us, us / first) for us in (self.us(p) or 1.0 for p in proposals)]


def timed(us: float, ratio: float, *, rejected: bool = False) -> Timed:
    return Timed(Quantiles(us, us, us), Moves(2.0, 3.0), ratio, False, rejected)
