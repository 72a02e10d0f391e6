"""Smaller and weaker variants of an infeasible problem, and whether they are feasible.

What an explanation is made of: the instruction cut down to a few of its axes, and the constraint
set with some constraints dropped. Both only ever admit more embeddings, so that a variant that is
still infeasible is a reason for the whole problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cpembed.embedding.boxless import feasible_without_boxes
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.constraints.padding import Padding
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.proto_writer import TooLargeDomain
from cpembed.embedding.regular import TooManyDigits, padded_extents
from cpembed.embedding.search import search
from cpembed.hw.instruction import Instruction, InstructionAxis

ALWAYS = ("dataflow", "all_different")
"""What makes an embedding one at all: never dropped while looking for a conflict."""


def project(instruction: Instruction, axes: Iterable[str]) -> Instruction:
    """The instruction with every axis but the named ones at extent 1.

    An embedding of the instruction, cut to the first element of the other axes, is one of the
    projection; so no embedding of the projection means none of the instruction.
    """
    kept = set(axes)
    if kept >= set(instruction.extents):
        return instruction
    free = tuple(replace(axis, minimum=1, step=1) for axis in instruction.axes)
    ones = {axis.name: 1 for axis in instruction.axes if axis.name not in kept}
    projected = tuple(
        axis if axis.name in kept else InstructionAxis(axis.name, 1, 1) for axis in instruction.axes
    )
    computation = replace(instruction, axes=free).with_extents(ones)
    return replace(instruction, axes=projected, computation=computation)


def axis_groups(instruction: Instruction) -> tuple[tuple[str, ...], ...]:
    """Instruction axes that a projection keeps or drops together, in the instruction's order.

    Axes that share an index (``A[x + z]``) go together: cutting one of them leaves part of a
    dimension, and part of a regular box need not be a regular box.
    """
    group = {axis.name: {axis.name} for axis in instruction.axes}
    computation = instruction.computation
    for access in (*computation.reads, *computation.stores):
        for index in access.index:
            merged = set[str]().union(*(group[name] for name in index.iterators))
            for name in merged:
                group[name] = merged
    names = [axis.name for axis in instruction.axes]
    found = (tuple(name for name in names if name in group[first]) for first in names)
    return tuple(dict.fromkeys(found))


def axis_subsets(instruction: Instruction) -> Iterator[list[tuple[str, ...]]]:
    """Sets of whole groups, those with equally many groups together, from none to all."""
    groups = axis_groups(instruction)
    for size in range(len(groups) + 1):
        chosen = itertools.combinations(groups, size)
        yield [tuple(name for group in some for name in group) for some in chosen]


@dataclass(frozen=True)
class _PaddingDomain(Padding):
    """The part of ``padding`` that has a meaning without boxes: how far the domain reaches."""

    def post(self, model: ScalarModel) -> None:
        """Nothing: the model's domain is all."""

    def holds(self, problem: EmbeddingProblem, node_map: NodeMap) -> bool:
        padded = padded_extents(problem, ConstraintSet("", "", (self,)))
        return all(
            int(image.max()) < padded[axis.name]
            for axis, image in zip(problem.workload.axes, node_map.points, strict=True)
        )

    @property
    def needs_boxes(self) -> bool:
        return False


def dropping(constraints: ConstraintSet, names: Iterable[str]) -> ConstraintSet:
    """The set with the named constraints dropped.

    A dropped constraint is left out, with two particulars. Dropping ``padding`` lets every axis be
    padded without limit, which is the absence of the restriction (leaving it out would pin the
    domain to the extents). Dropping ``hyper_rectangle`` also drops what speaks of its boxes:
    ``dense``, ``linear_access`` with stencils in place, and of ``padding`` the rule that tiles
    cover an axis; the domain's bounds stay.
    """
    dropped = set(names)
    boxes = constraints.get("hyper_rectangle") is not None and "hyper_rectangle" not in dropped
    kept: list[Constraint] = []
    for constraint in constraints.constraints:
        if isinstance(constraint, Padding):
            rule = Padding("all") if constraint.name in dropped else constraint
            kept.append(rule if boxes else _PaddingDomain(rule.axes, rule.below, rule.growth))
        elif constraint.name not in dropped and (boxes or not constraint.needs_boxes):
            kept.append(constraint)
    return replace(constraints, constraints=tuple(kept))


@dataclass(frozen=True)
class Answer:
    """Whether a variant has an embedding (None: stopped by a limit), and the first one found."""

    feasible: bool | None
    embedding: Embedding | None = None


def solve_once(
    problem: EmbeddingProblem, constraints: ConstraintSet, limits: SearchLimits
) -> Answer:
    """Whether the problem has an embedding under the set."""
    try:
        if constraints.get("hyper_rectangle") is None:
            return Answer(feasible_without_boxes(problem, constraints, limits))
        result = search(problem, constraints, replace(limits, solutions=1))
    except (TooManyDigits, TooLargeDomain):
        return Answer(None)
    if result.status is Status.UNKNOWN:
        return Answer(None)
    return Answer(
        result.status is not Status.INFEASIBLE,
        result.embeddings[0] if result.embeddings else None,
    )
