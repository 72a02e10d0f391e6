"""Fused axes: the solver's solutions equal those of enumerating every flattened workload.

Groups of axes and the digits that need fusing are found by enumeration too.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest

from cpembed.embedding.checks import flattened_problem
from cpembed.embedding.constraint_set import ConstraintSet, Flatten
from cpembed.embedding.constraints import (
    Dataflow,
    Padding,
)
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.node_map import expand
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.regular import digit_model_obstacle, padded_extents
from cpembed.embedding.search import search
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from tests.brute_force import TooLarge, node_maps
from tests.unit.embedding.test_brute_force import make_instruction
from tests.unit.embedding.test_brute_force_kinds import (
    MOST,
    digits_of,
    windows_of_operations,
)

FUSED_BUDGET = 1_500
"""Partial maps per set of groups; there are many sets."""

FUSED = (
    "O[k] += I[c,s] * W[k,c,s]",
    "O[k,q] += I[c,q+s] * W[k,c,s]",
    "O[n,q] += I[n,q,c] * W[c]",
    "O[p,q] += I[p+r,q+s] * W[r,s]",
    "O[n,q,k] += I[q,n] * W[k]",
    "O[m,n] += I[m,k,l] * W[l,n,k]",
)


def fused_problem(rng: random.Random) -> tuple[EmbeddingProblem, ConstraintSet]:
    """A problem that the digit model takes, with groups of axes that may be fused."""
    while True:
        text = rng.choice(FUSED)
        names = sorted({letter for letter in text if letter.islower()})
        workload = parse_computation(text, {name: rng.choice([1, 2, 2, 3, 3]) for name in names})
        problem = pair_operands(workload, make_instruction(rng))
        kept = [c for c in windows_of_operations(rng) if c.name != "padding"]
        padding = Padding(rng.choice([(), "all", "all"]), None, rng.choice([1.5, 2.0]))
        flatten = Flatten(rng.choice([2, 2, 3]), plain=rng.random() < 0.3)
        chosen = ConstraintSet("fused", "", (Dataflow(), *kept, padding), flatten=flatten)
        if (
            isinstance(problem, EmbeddingProblem)
            and digit_model_obstacle(problem, chosen) is None
            and 3 <= problem.instruction.macs <= 6
            and workload.macs <= 18
        ):
            # Cases without a fused embedding must agree too, but most have none.
            fused = any(e.flattened for e in search(problem, chosen, SearchLimits()).embeddings)
            if fused or rng.random() < 0.2:
                return problem, chosen


def groups_of(workload: Computation, largest: int) -> Iterator[dict[str, tuple[str, ...]]]:
    """Every set of disjoint ordered groups of axes that occur in the same operands."""
    accesses = {access for found in workload.access_maps.values() for access in found}

    def operands(axis: str) -> set[str]:
        return {a.operand for a in accesses if any(axis in i.iterators for i in a.index)}

    names = [axis.name for axis in workload.axes]
    single = [
        members
        for size in range(2, largest + 1)
        for members in itertools.permutations(names, size)
        if all(operands(member) == operands(members[0]) for member in members)
    ]
    for count in range(len(names) // 2 + 1):
        for chosen in itertools.combinations(single, count):
            flat = [member for members in chosen for member in members]
            if len(flat) == len(set(flat)):
                yield {"_".join(members): members for members in chosen}


def needs_fusing(extents: tuple[int, ...], count: int) -> bool:
    """Whether tiles of a fused axis are not all the same box of its members, whose outermost one
    goes on into padding."""
    extents = (extents[0] * count, *extents[1:])
    points = np.stack(np.unravel_index(np.arange(math.prod(extents)), extents))
    points = points.reshape(len(extents), -1, count)
    relative = points - points[:, :, :1]
    return bool(np.any(relative != relative[:, :1]))


def is_wanted(extents: tuple[int, ...], count: int, *, plain: bool) -> bool:
    """Whether a digit on a fused axis is to be listed: where a digit on the innermost member is no
    such tile, or no digits on the members are."""
    return bool(extents[-1] % count) if plain else needs_fusing(extents, count)


def fused_solutions(problem: EmbeddingProblem, constraints: ConstraintSet) -> set[object]:
    """(fused axes, node map) of all embeddings, each fused axis having a digit that is wanted."""
    found: set[object] = set()
    for groups in groups_of(problem.workload, constraints.flatten.max_axes):
        flat = flattened_problem(problem, groups)
        domain = padded_extents(flat, constraints)
        for sizes in itertools.product(*(axis.allowed for axis in flat.instruction.axes)):
            names = (axis.name for axis in flat.instruction.axes)
            extents = dict(zip(names, sizes, strict=True))
            for node_map in node_maps(flat, domain, extents, FUSED_BUDGET, MOST):
                if not all(c.holds(flat, node_map) for c in constraints.constraints):
                    continue
                # A fused axis is walked by consecutive iterations only.
                digits = digits_of(flat, node_map)
                counts = {digit.axis: digit.count for digit in digits if digit.stride == 1}
                if all(
                    name in counts
                    and is_wanted(
                        tuple(problem.workload.extents[m] for m in members),
                        counts[name],
                        plain=constraints.flatten.plain,
                    )
                    for name, members in groups.items()
                ):
                    found.add((tuple(sorted(groups.items())), node_map.key()))
    return found


def compare_fused(seeds: range) -> tuple[int, int]:
    compared = shown = 0
    for seed in seeds:
        problem, constraints = fused_problem(random.Random(seed))
        try:
            expected = fused_solutions(problem, constraints)
        except TooLarge:
            continue
        result = search(problem, constraints, SearchLimits())
        found = [
            (tuple(sorted(e.flattened.items())), image_of(problem, e)) for e in result.embeddings
        ]
        assert result.complete
        assert len(found) == len(set(found)), f"seed {seed}: a solution was listed twice"
        assert set(found) == expected, f"seed {seed}: {problem.workload}"
        compared += 1
        shown += any(embedding.flattened for embedding in result.embeddings)
    return compared, shown


def image_of(problem: EmbeddingProblem, embedding: Embedding) -> object:
    node_map = expand(flattened_problem(problem, embedding.flattened), embedding)
    assert node_map is not None
    return node_map.key()


@pytest.mark.slow
@pytest.mark.slow
def test_fused_axes_agree_with_brute_force() -> None:
    compared, shown = compare_fused(range(15))
    assert compared >= 6
    assert shown >= 2


@pytest.mark.slow
@pytest.mark.parametrize("block", range(1, 5))
def test_fused_axes_agree_with_brute_force_at_length(block: int) -> None:
    compared, shown = compare_fused(range(block * 100, block * 100 + 100))
    print(compared, shown)
    assert compared >= 35
    assert shown >= 12
