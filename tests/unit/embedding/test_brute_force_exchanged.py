"""Exchanged operands: the solver's solutions equal those of enumerating both orders.

Symmetries that make two of them the same are found by enumeration too.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints import (
    Dataflow,
)
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.node_map import expand
from cpembed.embedding.problem import EmbeddingProblem, pair_operands, point_grid
from cpembed.embedding.regular import padded_extents
from cpembed.embedding.search import find_embeddings
from cpembed.ir.parser import parse_computation
from tests.brute_force import TooLarge, solutions
from tests.unit.embedding.test_brute_force import make_instruction
from tests.unit.embedding.test_brute_force_kinds import (
    LARGEST_DOMAIN,
    MATRICES,
    MOST,
    any_stride,
    padded,
    tiny,
    windows_of_operations,
)

EXCHANGED = (
    *MATRICES,
    "O[k,q] += I[c,q+s] * W[k,c,s]",
    "O[c,q] += I[c,q+2*s] * W[c,s]",
    "O[n] += I[n,k] * W[n,k]",
    "O[n,m] += I[n] * W[m]",
    "O[] += I[k,c] * W[c,k]",
)


def exchanged_case(rng: random.Random) -> tuple[list[EmbeddingProblem], ConstraintSet]:
    """The problems of both orders of a workload's factors, as written, and a commuting set."""
    while True:
        text = rng.choice(EXCHANGED)
        store, product = text.split(" += ")
        first, second = product.split(" * ")
        workload = tiny(rng, text)
        other = parse_computation(f"{store} += {second} * {first}", workload.extents)
        instruction = make_instruction(rng)
        found = [pair_operands(order, instruction) for order in (workload, other)]
        orders = [order for order in found if isinstance(order, EmbeddingProblem)]
        others = rng.choice([windows_of_operations, any_stride, padded])(rng)
        constraints = ConstraintSet("exchanged", "", (Dataflow(commute=True), *others))
        sizes = [math.prod(padded_extents(order, constraints).values()) for order in orders]
        if orders and max(sizes) <= LARGEST_DOMAIN:
            return orders, constraints


def exchanging_renamings(problem: EmbeddingProblem) -> Iterator[tuple[int, ...]]:
    """Orders of the instruction's axes under which its two factors take each other's place: every
    operation then reads of one factor what it read of the other, from the same memory."""
    instruction = problem.instruction
    computation = instruction.computation
    # At extents where no two different indices agree by chance.
    grid = point_grid(instruction, dict.fromkeys(instruction.extents, 3))
    (left, right), (result,) = computation.reads, computation.stores
    axes = [axis.name for axis in instruction.axes]
    for order in itertools.permutations(range(len(axes))):
        moved = dict(zip(axes, (axes[i] for i in order), strict=True))
        if any(
            replace(instruction.axis(old), name=new) != instruction.axis(new)
            for old, new in moved.items()
        ):
            continue
        there = {old: grid[new] for old, new in moved.items()}
        same = all(
            len(one.index) == len(two.index)
            and all(
                np.array_equal(i.evaluate(there), k.evaluate(grid))
                for i, k in zip(one.index, two.index, strict=True)
            )
            for one, two in ((left, right), (right, left), (result, result))
        )
        for one, two in ((left, right), (right, left), (result, result)):
            ours, theirs = instruction.memory[one.operand], instruction.memory[two.operand]
            tile = tuple(replace(part, axis=moved[part.axis]) for part in ours.tile)
            rules = {moved[axis]: rule for axis, rule in ours.strides.items()}
            same = same and tile == theirs.tile and rules == theirs.strides
        if same:
            yield order


def compare_exchanged(seeds: range) -> tuple[int, int, int]:
    """How many cases were compared, have embeddings of exchanged operands, and are symmetric."""
    compared = shown = symmetric = 0
    for seed in seeds:
        orders, constraints = exchanged_case(random.Random(seed))
        try:
            images = [solutions(order, constraints, MOST) for order in orders]
        except TooLarge:
            continue
        expected = {
            (roles_of(order), key)
            for order, keys in zip(orders, images, strict=True)
            for key in keys
        }
        result = find_embeddings(orders[0].original, orders[0].instruction, constraints)
        found = [
            (tuple(sorted(e.operands.items())), key)
            for e, key in zip(
                result.embeddings, exchanged_keys(orders, result.embeddings), strict=True
            )
        ]
        assert result.complete
        assert not result.irregular
        assert len(found) == len(set(found)), f"seed {seed}: a solution was listed twice"
        if len(orders) == 2 and any(exchanging_renamings(orders[0])):
            # The second order repeats the first.
            assert len(images[0]) == len(images[1])
            assert set(found) == {(roles_of(orders[0]), key) for key in images[0]}, f"seed {seed}"
            symmetric += bool(found)
        else:
            assert set(found) == expected, f"seed {seed}: {orders[0].workload}"
            shown += bool(len(orders) == 2 and images[1])
        compared += 1
    return compared, shown, symmetric


def roles_of(problem: EmbeddingProblem) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(problem.roles.items()))


def exchanged_keys(
    orders: list[EmbeddingProblem], embeddings: tuple[Embedding, ...]
) -> Iterator[object]:
    for embedding in embeddings:
        (order,) = (o for o in orders if dict(o.roles) == dict(embedding.operands))
        node_map = expand(order, embedding)
        assert node_map is not None
        yield node_map.key()


def test_exchanged_operands_agree_with_brute_force() -> None:
    compared, shown, symmetric = compare_exchanged(range(60))
    assert compared >= 50
    assert shown >= 8
    assert symmetric >= 1


@pytest.mark.slow
@pytest.mark.parametrize("block", range(1, 5))
def test_exchanged_operands_agree_with_brute_force_at_length(block: int) -> None:
    compared, shown, symmetric = compare_exchanged(range(block * 120, block * 120 + 120))
    print(compared, shown, symmetric)
    assert compared >= 80
    assert shown >= 20
    assert symmetric >= 1
