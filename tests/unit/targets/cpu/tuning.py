"""What the tests of tuning on CPUs share: small layers, their designs on a machine with published
figures, a measurer that times nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from cpembed.api.solve import hardware_spec, solve, workload
from cpembed.ir.computation import Computation
from cpembed.measure.runner import Quantiles
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.cpu.calibration import Calibration, default_calibration
from cpembed.targets.cpu.choice import choose
from cpembed.targets.cpu.contest import Failed, Moves, Timed
from cpembed.targets.cpu.space import CpuDesign, CpuProposal, design_of, distinct

TARGET = "amx_int8"
LAYER = "conv2d n=1 c=64 h=14 w=14 k=64 r=3 s=3 pad=1"
GEMM = "gemm m=96 n=64 k=128"


def layer(words: str = LAYER) -> Computation:
    return workload(words, target=TARGET)


def machine() -> Calibration:
    return default_calibration(2)


@cache
def candidates(
    words: str = LAYER, constraints: str = "in_place_padded", top: int = 8
) -> tuple[RankedCandidate, ...]:
    return solve(layer(words), TARGET, constraints, top=top).embeddings


def designs(words: str = LAYER) -> list[CpuDesign]:
    """What runs untuned first, the best of two constraint sets."""
    spec = hardware_spec(TARGET)
    first = candidates(words)
    untuned = choose(first, spec, machine()).estimates[0].ranked
    found = [design_of(untuned, spec, machine())]
    for constraints, top in (("in_place_padded", 8), ("complete", 16)):
        found += [
            design_of(ranked, spec, machine()) for ranked in candidates(words, constraints, top)
        ]
    return distinct(found)


@dataclass
class FakeMeasurer:
    """Microseconds by a function of the proposal, without noise; what was asked is recorded."""

    us: Callable[[CpuProposal], float | None]
    known: dict[str, Moves] = field(default_factory=dict[str, Moves])
    beside: list[str | None] = field(default_factory=list[str | None])
    finals: list[list[str]] = field(default_factory=list[list[str]])
    limit: int | None = None
    """Kernels after which a person interrupts."""

    def measure(self, proposal: CpuProposal, champion: CpuProposal | None) -> Timed | Failed:
        if self.limit is not None and len(self.beside) >= self.limit:
            raise KeyboardInterrupt
        self.beside.append(None if champion is None else champion.key)
        us = self.us(proposal)
        if us is None:
            return Failed("no kernel")
        theirs = us if champion is None else self.us(champion) or us
        return timed(us, us / theirs, rejected=us > 1.5 * theirs)

    def final(self, proposals: Sequence[CpuProposal]) -> list[Timed]:
        self.finals.append([proposal.key for proposal in proposals])
        first = self.us(proposals[0]) or 1.0
        return [timed(us, us / first) for us in (self.us(p) or 1.0 for p in proposals)]


def timed(us: float, ratio: float, *, rejected: bool = False) -> Timed:
    return Timed(Quantiles(us, us, us), Moves(2.0, 3.0), ratio, False, rejected)
