"""The digit model, the scalar model and the choice between them give the same embeddings.

Random workloads (sums of axes of one role, windows, strides, maxima, several statements) meet
random instructions (windows of one and two dimensions, strided, dilated, with channels) under
random sets, fused axes included.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from cpembed.embedding.constraint_set import ConstraintSet, Flatten, load_constraint_set
from cpembed.embedding.constraints import (
    AllDifferent,
    Constraint,
    Dataflow,
    Dense,
    Digits,
    DomainBound,
    Extents,
    FixedOrigin,
    HyperRectangle,
    LinearAccess,
    Padding,
    Strides,
)
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.digit_search import check_embedding, digit_model_obstacle
from cpembed.embedding.domains import padded_extents
from cpembed.embedding.node_map import expand
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.result import Formulation
from cpembed.embedding.search import find_embeddings, search
from cpembed.hw.instruction import (
    Instruction,
    InstructionAxis,
    OperandMemory,
    StrideRule,
    TileDimension,
)
from cpembed.ir.parser import parse_computation

FORMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # Instructions, and workloads that have the graph of one of them.
    "product": (
        (
            "C[x,y] += A[x,z] * B[y,z]",
            "C[x] += A[x,z] * B[z]",
            "C[x] += A[x] * B[x]",
            "C[] += A[z] * B[z]",
            "C[x] += A[x+z] * B[z]",
            "C[x] += A[2*x+z] * B[z]",
            "C[x] += A[x+2*z] * B[z]",
            "C[x,y] += A[x+z,y+w] * B[z,w]",
            "C[x,y] += A[y,x+z] * B[z]",
            "C[x,y] += A[x+z,w] * B[y,w,z]",
            "C[x+y] += A[x] * B[y]",
        ),
        (
            "O[m,n] += I[m,k] * W[n,k]",
            "O[m] += I[m,k,l] * W[k,l]",
            "O[m] += I[m,{a}k+{b}l] * W[k,l]",
            "O[m,n] += I[{a}m+{b}n,k] * W[k]",
            "O[m,n] += I[{a}m+{b}n] * W[m,n]",
            "O[m] += I[{a}m+{b}k] * W[k]",
            "O[m,n] += I[m+k,n+l] * W[k,l]",
            "O[m,n] += I[{a}m+{b}k,l] * W[n,k,l]",
            "O[m+n] += I[m,k] * W[n,k]",
            "O[k,m] += I[m,k+l] * W[k]",
            "O[m] += I[m-k+{k}] * W[k]",
        ),
    ),
    "maximum": (
        ("C[x] max= A[x,z]", "C[x] max= A[x+z]", "C[x,y] max= A[x+z,y+w]"),
        (
            "O[m] max= I[m,k,l]",
            "O[m] max= I[m+k]",
            "O[m,n] max= I[{a}m+k,n+l]",
            "O[m,n] max= I[m+n,k]",
        ),
    ),
    "statements": (
        (
            "S[x] += A[x,z]; T[x] += A[x,z] * B[z]",
            "S[x] += A[x+z]; T[x] += A[x+z] * B[z]",
        ),
        (
            "S[m] += I[m,k]; T[m] += I[m,k] * W[k]",
            "T[m] += I[m+k] * W[k]; S[m] += I[m+k]",
            "S[m] += I[m,{a}k+l]; T[m] += I[m,{a}k+l] * W[k,l]",
        ),
    ),
    "ports": (
        ("C[x] += (A[x] - A[x+1]) * B[]", "C[x] += A[x,z] * B[z] - A[x+1,z] * B[z]"),
        (
            "O[m] += (I[m] - I[m+1]) * W[]",
            "O[m] += (I[m] - I[m+2]) * W[]",
            "O[m,n] += (I[{a}m+n] - I[{a}m+n+1]) * W[]",
            "O[m] += (I[m+k] - I[m+k+1]) * W[k]",
            "O[m] += I[m,k] * W[k] - I[m+1,k] * W[k]",
        ),
    ),
}


def letters(text: str, alphabet: str) -> list[str]:
    return [a for a in alphabet if a in text.replace("max=", "")]


def random_instruction(rng: random.Random, text: str, largest: int) -> Instruction:
    names = letters(text, "xyzw")
    while True:
        extents = {name: rng.choice([1, 2, 2, 3, 4]) for name in names}
        if math.prod(extents.values()) <= largest:
            break
    if "2*x+z" in text:  # every element is read
        extents["z"] = max(extents["z"], 2)
    if "x+2*z" in text:
        extents["x"] = max(extents["x"], 2)
    computation = parse_computation(text, extents, name="instruction")
    axes: list[InstructionAxis] = []
    for axis in computation.axes:
        windows = any(
            axis.name in index.iterators and index.single_iterator is None
            for found in computation.access_maps.values()
            for access in found
            for index in access.index
        )
        low = rng.randint(1, axis.extent) if not windows and rng.random() < 0.25 else axis.extent
        axes.append(InstructionAxis(axis.name, low, axis.extent))
    memory: dict[str, OperandMemory] = {}
    for operand in computation.operands:
        found = computation.access_maps[operand.name]
        own = list(dict.fromkeys(n for a in found for i in a.index for n in i.iterators))
        strides = {axis: StrideRule.ANY for axis in own if rng.random() < 0.6}
        memory[operand.name] = OperandMemory("m", tuple(TileDimension(a) for a in own), strides)
    dtypes = {operand.name: (operand.dtype,) for operand in computation.operands}
    return Instruction("instruction", tuple(axes), computation, dtypes, memory)


def fixed_instruction(text: str, extents: Mapping[str, int]) -> Instruction:
    computation = parse_computation(text, extents, name="instruction")
    axes = tuple(InstructionAxis(a.name, a.extent, a.extent) for a in computation.axes)
    memory: dict[str, OperandMemory] = {}
    for operand in computation.operands:
        names = [n for i in computation.access(operand.name).index for n in i.iterators]
        memory[operand.name] = OperandMemory("m", tuple(TileDimension(n) for n in names))
    dtypes = {operand.name: (operand.dtype,) for operand in computation.operands}
    return Instruction("instruction", axes, computation, dtypes, memory)


def random_set(rng: random.Random) -> ConstraintSet:
    """Constraints that both models take: boxes at a fixed origin."""
    operands = rng.random() < 0.4
    kept: list[Constraint] = [
        HyperRectangle("operands" if operands else "operations"),
        Dataflow(),
        FixedOrigin(),
        Padding(
            rng.choice([(), "all", "all", ("m", "k"), ("k", "l")]),
            rng.choice([None, None, 3]),
            rng.choice([None, 1.5, 2.0]),
        ),
    ]
    if rng.random() < 0.9:
        kept.append(AllDifferent(rng.choice(["none", "along_axes", "along_axes", "all"])))
    if rng.random() < 0.35:
        kept.append(Dense(rng.choice(["one", "memory"])))
    if rng.random() < 0.35:
        kept.append(LinearAccess(rng.choice(["none", "in_place", "in_place"])))
    if rng.random() < 0.7:
        strides = tuple(s for s in ("one", "spread", "step") if s == "one" or rng.random() < 0.5)
        mixtures = ["any", "none", "sub_images"] if "spread" in strides else ["any", "none"]
        kept.append(Strides(strides, rng.choice(mixtures)))
    if rng.random() < 0.5:
        kept.append(Digits(rng.choice([1, 2, 3])))
    if rng.random() < 0.3:
        kept.append(Extents())
    if rng.random() < 0.15:
        kept.append(DomainBound(rng.choice([None, 2, 3]), rng.choice([1, 2])))
    return ConstraintSet("random", "", tuple(kept))


def random_problem(
    rng: random.Random, largest: int = 12, domain: int = 800
) -> tuple[EmbeddingProblem, ConstraintSet]:
    while True:
        instructions, workloads = FORMS[rng.choice([*FORMS, "product", "product"])]
        text = rng.choice(workloads)
        sizes = {axis: rng.choice([1, 2, 2, 3, 4]) for axis in letters(text, "mnkl")}
        filled = text.format(
            a=rng.choice(["", "", "2*"]),
            b=rng.choice(["", "", "2*", "3*"]),
            k=sizes.get("k", 1) - 1,
        )
        workload = parse_computation(filled, sizes)
        problem = pair_operands(
            workload, random_instruction(rng, rng.choice(instructions), largest)
        )
        constraints = random_set(rng)
        if not isinstance(problem, EmbeddingProblem):
            continue
        if math.prod(padded_extents(problem, constraints).values()) <= domain:
            return problem, constraints


def keys(
    problem: EmbeddingProblem, constraints: ConstraintSet, formulation: Formulation
) -> set[object]:
    """The embeddings as node maps; each is checked and listed once."""
    result = search(problem, constraints, SearchLimits(), formulation=formulation)
    assert result.complete
    assert not result.irregular
    found: list[object] = []
    for embedding in result.embeddings:
        check_embedding(problem, constraints, embedding)
        node_map = expand(problem, embedding)
        assert node_map is not None
        found.append(node_map.key())
    assert len(found) == len(set(found)), "a solution was listed twice"
    assert bool(found) == (result.status.value == "optimal")
    return set(found)


def agree(seed: int) -> int:
    """The number of embeddings of a random problem, which all searches find."""
    problem, constraints = random_problem(random.Random(seed))
    assert digit_model_obstacle(problem, constraints) is None
    found = [keys(problem, constraints, way) for way in ("scalar", "digits", "auto")]  # type: ignore[arg-type]
    assert found[0] == found[1] == found[2], (seed, len(found[0]), len(found[1]))
    return len(found[0])


@pytest.mark.parametrize("block", range(3))
def test_all_searches_find_the_same_embeddings(block: int) -> None:
    found = [agree(seed) for seed in range(40 * block, 40 * block + 40)]
    assert sum(map(bool, found)) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10, 40))
def test_all_searches_find_the_same_embeddings_at_length(block: int) -> None:
    found = [agree(seed) for seed in range(100 * block, 100 * block + 100)]
    assert sum(map(bool, found)) >= 20


def test_what_cannot_be_searched_is_named_and_nothing_is_proven() -> None:
    """Fused axes need a fixed origin; without one the answer is not complete."""
    loose = replace(
        load_constraint_set("fused").removing("fixed_origin"), flatten=Flatten(max_axes=2)
    )
    instruction = random_instruction(random.Random(0), "C[] += A[z] * B[z]", 4)
    for text, sizes, groups in (
        ("O[m] += I[m,k,l] * W[k,l]", {"m": 1, "k": 1, "l": 2}, True),
        ("O[m] += I[m,k] * W[k]", {"m": 1, "k": 2}, False),
    ):
        result = find_embeddings(parse_computation(text, sizes), instruction, loose)
        assert result.complete is not groups
        assert bool(result.unsearched) is groups
        assert all("fused axes" in part and "fixed_origin" in part for part in result.unsearched)
        assert (result.status in (Status.OPTIMAL, Status.INFEASIBLE)) is not groups


def test_an_axis_that_nothing_can_feed_is_a_proof_without_fused_axes() -> None:
    """No axis of the workload, and so no group of them, has the role of y."""
    loose = load_constraint_set("flattened").removing("fixed_origin")
    instruction = fixed_instruction("C[x,y] += A[x,z] * B[z,y]", {"x": 2, "y": 2, "z": 2})
    sizes = {"m": 2, "k": 2, "l": 2}
    workload = parse_computation("O[m] += I[m,k,l] * W[k,l]", sizes)
    found = find_embeddings(workload, instruction, loose)
    assert (found.status, found.complete) == (Status.INFEASIBLE, True)
    # Elements that may be the same one need no axis.
    same = find_embeddings(workload, instruction, loose.removing("all_different"))
    assert not same.complete


def test_axes_of_one_role_in_an_index_leave_the_other_groups() -> None:
    """c and r meet in an index; d and e, which do not, are fused as ever."""
    sizes = {"k": 4, "p": 2, "c": 2, "r": 2, "d": 3, "e": 5}
    workload = parse_computation("O[k,p] += I[p,c+r,d,e] * W[k,c,r,d,e]", sizes)
    instruction = fixed_instruction("C[y] += A[z] * B[y,z]", {"y": 4, "z": 16})
    found = find_embeddings(workload, instruction, load_constraint_set("fused"))
    assert found.complete
    assert ("d", "e") in {group for e in found.embeddings for group in e.flattened.values()}


def test_an_axis_that_is_never_padded_leaves_the_other_groups() -> None:
    """A maximum is not padded along what it is taken over; its outputs are."""
    workload = parse_computation("O[m,n] max= I[m,n,k,l]", {"m": 3, "n": 3, "k": 3, "l": 3})
    instruction = fixed_instruction("C[x] max= A[x,z]", {"x": 4, "z": 1})
    found = find_embeddings(workload, instruction, load_constraint_set("fused"))
    assert {group for e in found.embeddings for group in e.flattened.values()} == {
        ("m", "n"),
        ("n", "m"),
    }
