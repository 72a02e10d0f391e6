"""The solver's solution set equals brute force on each kind of embedding, which provably occurs.

Strided digits, padding, dilated windows and depthwise channels here are compared as in
``test_brute_force.py``. Fused axes and exchanged operands are enumerated over the flattened and
over the exchanged workload, with groups, fused digits and symmetries found by enumeration too.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from cpembed.embedding.checks import flattened_problem
from cpembed.embedding.constraint_set import ConstraintSet, Flatten
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
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.node_map import NodeMap, decode, expand
from cpembed.embedding.problem import EmbeddingProblem, pair_operands, point_grid
from cpembed.embedding.regular import digit_model_obstacle, padded_extents
from cpembed.embedding.search import find_embeddings, search
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from tests.brute_force import TooLarge, node_maps, solutions
from tests.unit.embedding.test_brute_force import compare_problem, make_instruction

LARGEST_DOMAIN = 40
"""Points, padding included, of a problem to be enumerated."""
MOST = 2_000
"""Node maps of a problem at most; to judge one takes a millisecond."""
FUSED_BUDGET = 1_500
"""Partial maps per set of groups; there are many sets."""
ALL_STRIDES = ("one", "spread", "step")

# -- kinds that a single problem has --------------------------------------------------------------

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


# -- fused axes -----------------------------------------------------------------------------------

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
        chosen = ConstraintSet(
            "fused", "", (Dataflow(), *kept, padding), flatten=Flatten(rng.choice([2, 2, 3]))
        )
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


def fused_solutions(problem: EmbeddingProblem, constraints: ConstraintSet) -> set[object]:
    """(fused axes, node map) of all embeddings, each fused axis having a digit that needs it."""
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
                    and needs_fusing(
                        tuple(problem.workload.extents[m] for m in members), counts[name]
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


# -- exchanged operands ---------------------------------------------------------------------------

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
