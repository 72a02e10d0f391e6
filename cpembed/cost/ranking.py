"""Candidates: embeddings with their programs, ranked by weighted overheads, and the Pareto front.

Overheads are those over the workload's minimum (Rieber et al. 2021, section 4.4).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cpembed.cost.bounds import Bounded, Lower, best_first
from cpembed.embedding.constraint_set import Weights
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.result import spaces_of
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.time_limit import OutOfTime, check_time, within
from cpembed.transform.derive import LayoutCache, derive
from cpembed.transform.program import DerivedProgram, PackedDimension


@dataclass(frozen=True)
class Candidate:
    """Embedding and the program that executes the workload with it.

    ``variant`` names the change from the embedding that a search returned; empty if there is none.
    """

    embedding: Embedding
    program: DerivedProgram
    variant: str = ""

    def __repr__(self) -> str:
        mapping = "   ".join(self.embedding.axis_texts)
        return f"<candidate {self.identifier}: {mapping}>"

    @property
    def identifier(self) -> str:
        """Id of the embedding, with the names of the operands that the program keeps in place."""
        document = "".join(f"+{name}" for name in self.program.in_place)
        return f"{self.embedding.identifier()}{document}"


def derive_candidate(
    workload: Computation,
    instruction: Instruction,
    embedding: Embedding,
    cache: LayoutCache | None = None,
    in_place: Collection[str] = (),
) -> Candidate:
    """Return the candidate of an embedding.

    Parameters
    ----------
    workload, instruction, embedding
        Problem and its solution.
    cache : LayoutCache, optional
        Layouts shared with other embeddings of the same problem.
    in_place : collection of str
        Operands that keep their layouts.

    Raises
    ------
    TransformError
        No rewrite serves the embedding.
    """
    return Candidate(embedding, derive(workload, instruction, embedding, cache, in_place))


@dataclass(frozen=True)
class Overheads:
    """Costs of a program, and the minimum of the workload itself."""

    macs: int
    """Multiply-accumulates of the workload."""
    executed_macs: int
    """Multiply-accumulates of the program; each execution has the instruction's largest extents."""
    calls: int
    """Number of executions of the instruction."""
    data: int
    packed_data: int
    """Elements of the operands in their original and in the packed layouts."""
    footprint: Mapping[str, int]
    """Packed elements by operand."""
    packing_bytes: int
    """Bytes read and written by packing and unpacking; operands in place cost none."""
    in_place: tuple[str, ...]
    """Operands whose layouts are the same memory."""
    useful_macs: int
    """``macs`` without products with zeros inserted between an operand's elements."""

    @property
    def mac_overhead(self) -> float:
        """MACs executed relative to the minimum."""
        return self.executed_macs / self.macs

    @property
    def data_overhead(self) -> float:
        """Elements in the packed layouts relative to the original ones."""
        return self.packed_data / self.data

    @property
    def utilisation(self) -> float:
        """Useful share of the MACs executed."""
        return self.useful_macs / self.executed_macs

    @property
    def occupancy(self) -> float:
        """Share of the MACs executed that the workload has, useful or not.

        Another embedding may have a higher one; the utilisation depends on the workload too.
        """
        return self.macs / self.executed_macs

    def score(self, mac_weight: float, data_weight: float) -> float:
        """Return the weighted norm of the two absolute overheads; 0 if nothing is wasted."""
        mac = mac_weight * (self.executed_macs - self.macs)
        data = data_weight * (self.packed_data - self.data)
        return math.hypot(mac, data)


def overheads(program: DerivedProgram) -> Overheads:
    """Return the costs of a program."""
    original: dict[str, int] = {}
    footprint: dict[str, int] = {}
    moved = 0
    in_place: list[str] = []
    tensors: set[tuple[str, tuple[PackedDimension, ...], tuple[IndexExpr, ...]]] = set()
    for operand in program.operands:
        tensor = program.workload.operand(operand.name).tensor
        original[tensor] = math.prod(operand.original_shape)
        if operand.is_identity:
            in_place.append(operand.name)
        # Ports of one tensor in the same layout are one copy of it.
        elements = (tensor, operand.dimensions, operand.source)
        if elements in tensors:
            continue
        tensors.add(elements)
        footprint[operand.name] = operand.elements
        if not operand.is_identity:
            moved += (original[tensor] + operand.elements) * size_bytes(operand.dtype)
    return Overheads(
        macs=program.unfused.macs,
        # A unit that is configured to fewer rows is occupied all the same.
        executed_macs=program.calls * program.instruction.macs,
        calls=program.calls,
        data=sum(original.values()),
        packed_data=sum(footprint.values()),
        footprint=footprint,
        packing_bytes=moved,
        in_place=tuple(in_place),
        useful_macs=program.unfused.useful_macs,
    )


@dataclass(frozen=True)
class RankedCandidate:
    """Candidate with its overheads, its score (lower is better) and its rank (1 is best).

    ``constraints`` is the name of the constraint set of the search, if there was one.
    """

    rank: int
    candidate: Candidate
    overheads: Overheads
    score: float
    constraints: str = ""

    def __repr__(self) -> str:
        mapping = "   ".join(self.embedding.axis_texts)
        used = f"{self.overheads.utilisation:.1%} used"
        return f"<candidate {self.identifier} of rank {self.rank}: {mapping}, {used}>"

    @property
    def embedding(self) -> Embedding:
        return self.candidate.embedding

    @property
    def program(self) -> DerivedProgram:
        return self.candidate.program

    @property
    def identifier(self) -> str:
        """Id of the embedding, with the names of the operands that stay in place."""
        return self.candidate.identifier


@dataclass(frozen=True)
class Ranking:
    """Best candidates in ascending score.

    ``derived`` is the number of embeddings whose program had to be derived, ``refused`` are the
    reasons why some have no program. With ``cut``, time was over before the ranking was complete.
    """

    candidates: tuple[RankedCandidate, ...]
    derived: int
    refused: tuple[str, ...]
    cut: bool = False


def rank(
    workload: Computation,
    instruction: Instruction,
    embeddings: Sequence[Embedding],
    weights: Weights,
    top: int | None = None,
    report: Callable[[int], None] = lambda count: None,
    layouts: LayoutCache | None = None,
    seconds: float | None = None,
) -> Ranking:
    """Rank embeddings by score.

    Equal scores are ordered by fewer executions of the instruction, fewer bytes copied by packing,
    then the embedding's canonical form, so that the order is the same on every machine.

    Parameters
    ----------
    workload, instruction, embeddings
        Problem and its solutions.
    weights : Weights
        Weights of the score.
    top : int, optional
        Number of candidates; by default all.
    report : callable
        Called with the number of programs derived so far.
    layouts : LayoutCache, optional
        Layouts shared with other rankings of the same problem.
    seconds : float, optional
        Time limit, after which the best of the derived candidates are returned.
    """
    if top == 0:
        return Ranking((), 0, ())
    cache: LayoutCache = {} if layouts is None else layouts
    best: list[tuple[_Key, Candidate, Overheads]] = []
    refused: list[str] = []
    derived, cut = 0, False

    def derive_all() -> None:
        nonlocal derived
        # The digits bound the costs from below: programs, whose derivation takes most of the time,
        # are derived in the order of the bounds, until the next bound excludes a place among the
        # best.
        for item in _in_order(workload, instruction, embeddings, weights, top):
            check_time()
            if top is not None and len(best) >= top:
                last = best[-1][0]
                # Bounds ascend, so no later embedding can be better either.
                if item.lower > last.cost:
                    break
                # Equal costs are ordered by the canonical form, which is known without a program.
                if _Key(item.lower, repr(item.embedding.digits), item.space) > last:
                    continue
            derived += 1
            report(derived)
            try:
                candidate = derive_candidate(workload, instruction, item.embedding, cache)
            except TransformError as error:
                refused.append(str(error))
                continue
            cost = overheads(candidate.program)
            costs = Lower(cost.score(weights.mac, weights.data), cost.calls, cost.packing_bytes)
            key = _Key(costs, repr(item.embedding.digits), item.space)
            bisect.insort(best, (key, candidate, cost), key=lambda entry: entry[0])
            if top is not None:
                del best[top:]

    try:
        within(seconds, derive_all)
    except OutOfTime:
        # The limit that passed is the caller's.
        if seconds is None:
            raise
        cut = True
    ranked = (
        RankedCandidate(n, candidate, cost, key.cost.score)
        for n, (key, candidate, cost) in enumerate(best[:top], 1)
    )
    return Ranking(tuple(ranked), derived, tuple(refused), cut)


@dataclass(frozen=True, order=True)
class _Key:
    """Sort key of the ranking; ``space`` is the number of the alternative problem."""

    cost: Lower
    canonical: str
    space: int


def _in_order(
    workload: Computation,
    instruction: Instruction,
    embeddings: Sequence[Embedding],
    weights: Weights,
    top: int | None,
) -> Iterator[Bounded]:
    """Return the embeddings in the order of their bounds, if that order matters."""
    # If all are ranked, all are derived, and sorting them by bounds first would gain nothing.
    if top is not None and top < len(embeddings):
        return best_first(workload, instruction, embeddings, weights)
    trivial = Lower(0.0, 0, 0)
    return (
        Bounded(trivial, number, embedding)
        for number, space in enumerate(spaces_of(embeddings))
        for embedding in space
    )


# ------------------------------------------------------------------------------------ Pareto front


class Objectives(NamedTuple):
    """Costs of a candidate; less is better.

    ``moved_bytes`` are read and written by packing and unpacking; ``footprint_bytes`` is the size
    of all operands in the packed layouts.
    """

    executed_macs: int
    moved_bytes: int
    footprint_bytes: int

    def dominates(self, rival: Objectives) -> bool:
        """Return True if it is at least as good in every respect and better in one.

        >>> Objectives(8, 0, 64).dominates(Objectives(8, 16, 64))
        True
        >>> Objectives(8, 0, 64).dominates(Objectives(8, 0, 64))
        False
        """
        return self != rival and all(a <= b for a, b in zip(self, rival, strict=True))


def objectives(candidate: RankedCandidate) -> Objectives:
    """Return the costs of a candidate."""
    cost, operands = candidate.overheads, candidate.program.operands
    footprint = sum(operand.elements * size_bytes(operand.dtype) for operand in operands)
    return Objectives(cost.executed_macs, cost.packing_bytes, footprint)


def front(candidates: Sequence[RankedCandidate]) -> tuple[RankedCandidate, ...]:
    """Return the candidates that no other one dominates, in their order.

    Candidates of equal costs do not dominate each other: all of them stay.
    """
    nondominated: set[Objectives] = set()
    # Whatever dominates a point comes before it in this order, and if that is itself dominated,
    # then by a point of the front: comparing with the front so far is enough.
    for point in sorted({objectives(item) for item in candidates}):
        if not any(rival.dominates(point) for rival in nondominated):
            nondominated.add(point)
    return tuple(item for item in candidates if objectives(item) in nondominated)
