"""The solver's solution set equals brute force on each kind of embedding, which provably occurs.

Strided digits, padding, dilated windows and depthwise channels, compared as in
``test_brute_force.py``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints import (
    AllDifferent,
    Constraint,
    Dataflow,
    Digits,
    Extents,
    FixedOrigin,
    HyperRectangle,
    LinearAccess,
    Padding,
    Strides,
)
from cpembed.embedding.embedding import Digit
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.regular import padded_extents
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from tests.unit.embedding.test_brute_force import compare_problem, make_instruction

LARGEST_DOMAIN = 40
"""Points, padding included, of a problem to be enumerated."""
MOST = 2_000
"""Node maps of a problem at most; to judge one takes a millisecond."""
ALL_STRIDES = ("one", "spread", "step")

Witness = Callable[[EmbeddingProblem, Digit], bool]


@dataclass(frozen=True)
class Kind:
    """Workloads, a constraint set at random, and what makes an embedding one of the kind."""

    workloads: tuple[str, ...]
    constraints: Callable[[random.Random], list[Constraint]]
    witness: Witness
    instruction: str = ""
    """What the instruction is to compute; anything by default."""


def windows_of_operations(rng: random.Random) -> list[Constraint]:
    """Digits along any axes, also of sliding windows, with listed strides."""
    return [
        HyperRectangle("operations"),
        AllDifferent("along_axes"),
        Strides(rng.choice([("one",), ("one", "step"), ALL_STRIDES]), rng.choice(["any", "none"])),
        Digits(rng.choice([1, 2, 3])),
        *([Extents()] if rng.random() < 0.5 else []),
        FixedOrigin(),
        Padding(rng.choice([(), "all"]), None, rng.choice([1.5, 2.0])),
    ]


def any_stride(rng: random.Random) -> list[Constraint]:
    if rng.random() < 0.5:
        return [c for c in windows_of_operations(rng) if c.name != "strides"] + [
            Strides(rng.choice([ALL_STRIDES, ("one", "spread")]))
        ]
    return [HyperRectangle(), AllDifferent(), FixedOrigin(), Padding(rng.choice([(), "all"]))]


def padded(rng: random.Random) -> list[Constraint]:
    growth = rng.choice([1.5, 2.0])
    rule = Padding(rng.choice(["all", ("k", "q"), ("m", "c")]), rng.choice([None, 4]), growth)
    kept = windows_of_operations(rng) if rng.random() < 0.6 else [HyperRectangle(), FixedOrigin()]
    return [*(c for c in kept if c.name != "padding"), rule]


def windows(rng: random.Random) -> list[Constraint]:
    if rng.random() < 0.6:
        return windows_of_operations(rng)
    boxes: list[Constraint] = [HyperRectangle(), AllDifferent(), FixedOrigin(), Padding()]
    return [*boxes, LinearAccess("in_place")] if rng.random() < 0.5 else boxes


MATRICES = (
    "O[m,n] += I[m,k] * W[k,n]",
    "O[m,n] += I[k,m] * W[n,k]",
    "O[m] += I[m,k] * W[k]",
    "O[m,n] += I[2*m,k] * W[k,n+1]",
    "O[n] += I[n,c,k] * W[k,c]",
)
KINDS = {
    "strided": Kind(
        (*MATRICES, "O[k,q] += I[c,2*q+s] * W[k,c,s]", "O[q] += I[q+3*s] * W[s]"),
        any_stride,
        lambda problem, digit: digit.stride > 1,
    ),
    "padded": Kind(
        (*MATRICES, "O[k,q] += I[c,q+s] * W[k,c,s]"),
        padded,
        lambda problem, digit: bool(
            problem.workload.extents[digit.axis] % (digit.count * digit.stride)
        ),
    ),
    "dilated": Kind(
        (
            "O[k,q] += I[c,q+2*s] * W[k,c,s]",
            "O[q] += I[2*q+3*s] * W[s]",
            "O[p,q] += I[p+2*r,q+3*s] * W[r,s]",
            "O[q,k] += I[q+2*s] * W[s,k]",
        ),
        windows,
        lambda problem, digit: digit.axis in ("r", "s"),
    ),
    "depthwise": Kind(
        (
            "O[c,q] += I[c,q+s] * W[c,s]",
            "O[q,c] += I[2*q+s,c] * W[s,c]",
            "O[c,m,q] += I[c,q+2*s] * W[c,m,s]",
        ),
        windows,
        lambda problem, digit: digit.axis == "c",
        # The only one with an axis, x, in every operand.
        "C[x] += (A[x, z] * B[x, z])",
    ),
}


def kind_problem(rng: random.Random, kind: Kind) -> tuple[EmbeddingProblem, ConstraintSet]:
    while True:
        text = rng.choice(kind.workloads)
        workload = tiny(rng, text)
        instruction = make_instruction(rng)
        if kind.instruction not in str(instruction.computation):
            continue
        problem = pair_operands(workload, instruction)
        if not isinstance(problem, EmbeddingProblem):
            continue
        constraints = ConstraintSet("kind", "", (Dataflow(), *kind.constraints(rng)))
        if math.prod(padded_extents(problem, constraints).values()) <= LARGEST_DOMAIN:
            return problem, constraints


def tiny(rng: random.Random, text: str) -> Computation:
    axes = sorted({letter for letter in text if letter.islower()})
    return parse_computation(text, {axis: rng.choice([1, 2, 2, 3, 4]) for axis in axes})


def compare_kind(kind: Kind, seeds: range) -> tuple[int, int]:
    """How many problems were compared, and how many of them have an embedding of the kind."""
    compared = shown = 0
    for seed in seeds:
        problem, constraints = kind_problem(random.Random(seed), kind)
        found = compare_problem(problem, constraints, MOST)
        if found is None:
            continue
        compared += 1
        shown += any(
            kind.witness(problem, digit)
            for node_map in found
            for digit in digits_of(problem, node_map)
        )
    return compared, shown


def digits_of(problem: EmbeddingProblem, node_map: NodeMap) -> list[Digit]:
    embedding = decode(problem, node_map)
    return [] if embedding is None else [d for some in embedding.digits.values() for d in some]


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_agrees_with_brute_force(name: str) -> None:
    compared, shown = compare_kind(KINDS[name], range(20))
    assert compared >= 15
    assert shown >= 1


@pytest.mark.slow
@pytest.mark.parametrize("block", range(1, 5))
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_agrees_with_brute_force_at_length(name: str, block: int) -> None:
    compared, shown = compare_kind(KINDS[name], range(block * 100, block * 100 + 100))
    print(compared, shown)
    assert compared >= 60
    assert shown >= 5
