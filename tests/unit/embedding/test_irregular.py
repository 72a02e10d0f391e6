"""Irregular instructions: several results, operands read in several places, no product-sum.

They embed where the dataflow graphs agree, and are refused in words where they do not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from cpembed.driver.named import workload
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints import (
    AllDifferent,
    Constraint,
    Dataflow,
    FixedOrigin,
    HyperRectangle,
    Padding,
)
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.digit_search import digit_model_obstacle
from cpembed.embedding.node_map import expand
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch, pair_operands
from cpembed.embedding.result import Formulation
from cpembed.embedding.search import search
from cpembed.hw.instruction import Instruction, InstructionAxis, OperandMemory, TileDimension
from cpembed.ir.parser import parse_computation
from tests.executed import assert_programs_compute
from tests.node_maps import TooLarge, solutions

COMPLEX = (
    "R[m,n,0] += A[m,k,0]*B[k,n,0] - A[m,k,1]*B[k,n,1]; "
    "R[m,n,1] += A[m,k,0]*B[k,n,1] + A[m,k,1]*B[k,n,0]"
)
IMAGINARY_FIRST = "; ".join(reversed(COMPLEX.split("; ")))
STRIDED = (
    "R[2*m] += A[2*m+2*k]*B[2*k] - A[2*m+2*k+1]*B[2*k+1]; "
    "R[2*m+1] += A[2*m+2*k]*B[2*k+1] + A[2*m+2*k+1]*B[2*k]"
)
SATURATED = "max(min(A[2*i]*B[2*i] + A[2*i+1]*B[2*i+1], 32767), -32768)"
REQUANTIZED = "min(max((A[n,k,p] * M[k] + B[k]) >> 16, -128), 127)"

EMBEDS = {
    "complex_gemm": ("complex_mac", COMPLEX, "m=6 n=3 k=5"),
    "complex_gemm_imaginary_first": ("complex_mac", IMAGINARY_FIRST, "m=6 n=3 k=5"),
    "complex_filter_in_one_dimension": ("complex_mac", STRIDED, "m=9 k=4"),
    "symmetric_filter": (
        "pre_add_dot",
        "Y[n] += (X[n+k] + X[n-k+7]) * H[k]",
        "n=9 k=4",
    ),
    "block_matching": ("avx512_sad", "S[u,b] += abs(P[b,y+u,x] - Q[b,y,x])", "u=3 b=9 y=4 x=4"),
    "saturating_pairs": ("avx2_maddubs", f"C[i] = {SATURATED}", "i=40"),
    "requantized_image": ("requantize", f"Q[n,k,p] = {REQUANTIZED}", "n=2 k=20 p=5"),
}
REFUSED = {
    "real_gemm": ("complex_mac", "R[m,n] += A[m,k]*B[k,n]", "m=6 n=3 k=5", "2 results at a point"),
    "planar_complex": (
        "complex_mac",
        "R[m] += A[m,k,0]*B[k,0] - A[m,k,1]*B[k,1]; J[m] += A[m,k,0]*B[k,1] + A[m,k,1]*B[k,0]",
        "m=6 k=5",
        "C of complex_mac is one operand where the workload has two, R and J",
    ),
    "conjugate": (
        "complex_mac",
        COMPLEX.replace(" - ", " + "),
        "m=6 n=3 k=5",
        r"computes \(.* - .*\) where the workload computes \(.* \+ .*\)",
    ),
    "complex_square_of_two": (
        "complex_mac",
        COMPLEX.replace("A[m,k,1]*B[k,n,1]", "A[m,k,2]*B[k,n,1]"),
        "m=6 n=3 k=5",
        r"is one element at a point where the workload has two, A\[m, k, 2\] and A\[m, k, 1\]",
    ),
    "plain_dot": ("pre_add_dot", "Y[n] += X[n,k] * H[k]", "n=9 k=4", r"computes \(A\[z\] \+ D"),
    "sliding_window": (
        "avx512_sad",
        "S[u,v] += abs(P[u+y,v+x] - Q[y,x])",
        "u=9 v=9 y=8 x=8",
        "no axis of the workload indexes P, Q and S",
    ),
    "accumulated": (
        "avx2_maddubs",
        "C[i] += A[i,k] * B[i,k]",
        "i=40 k=2",
        "combines results by assignment, the workload by add",
    ),
    "other_shift": (
        "requantize",
        f"Q[n,k,p] = {REQUANTIZED}".replace(">> 16", ">> 15"),
        "n=2 k=20 p=5",
        "where the workload computes 15",
    ),
}


def solved(target: str, text: str, sizes: str, constraints: str) -> SolveResult:
    return solve(
        workload([text, *sizes.split()], target), target, constraints=constraints, top=None
    )


@pytest.mark.quick(6)
@pytest.mark.parametrize("constraints", ["relaxed", "complete"])
@pytest.mark.parametrize("name", EMBEDS)
def test_they_embed_and_their_programs_compute_the_workload(name: str, constraints: str) -> None:
    result = solved(*EMBEDS[name], constraints)
    assert result.complete
    assert result.count == len(result.embeddings) > 0
    assert_programs_compute(result)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", REFUSED)
def test_they_are_refused_with_the_reason(name: str) -> None:
    *problem, reason = REFUSED[name]
    target, text, sizes = problem
    result = solved(target, text, sizes, "relaxed")
    assert result.complete
    assert not result.embeddings
    assert result.conflict is not None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError("\n".join(result.conflict.words))


def test_the_order_of_statements_means_nothing() -> None:
    first = solved("complex_mac", COMPLEX, "m=6 n=3 k=5", "relaxed")
    second = solved("complex_mac", IMAGINARY_FIRST, "m=6 n=3 k=5", "relaxed")
    assert [r.candidate.embedding for r in first.embeddings] == [
        r.candidate.embedding for r in second.embeddings
    ]


def instruction(text: str, extents: Mapping[str, int]) -> Instruction:
    computation = parse_computation(text, extents, name="instruction")
    memory: dict[str, OperandMemory] = {}
    for operand in computation.operands:
        found = computation.access_maps[operand.name]
        own = {name: None for access in found for i in access.index for name in i.iterators}
        memory[operand.name] = OperandMemory("m", tuple(TileDimension(axis) for axis in own))
    axes = tuple(InstructionAxis(a.name, a.extent, a.extent) for a in computation.axes)
    dtypes = {operand.name: (operand.dtype,) for operand in computation.operands}
    return Instruction("instruction", axes, computation, dtypes, memory)


TINY = {
    # instruction, and workloads with its graph
    "complex": (
        "C[x,0] += A[x,z,0]*B[z,0] - A[x,z,1]*B[z,1]; C[x,1] += A[x,z,0]*B[z,1] + A[x,z,1]*B[z,0]",
        (COMPLEX, IMAGINARY_FIRST, STRIDED),
    ),
    "difference": (
        # Two ports of A that overlap: neighbours share an element.
        "C[x] += (A[x] - A[x+1]) * B[]",
        (
            "O[m] += (I[m] - I[m+1]) * W[]",
            "O[m] += (I[m] - I[m+2]) * W[]",
            "O[m,n] += (I[m+n] - I[m+n+1]) * W[]",
            "O[m] += (I[m+k] - I[m+k+1]) * W[k]",
            "O[m] += (I[m] - J[m]) * W[]",
        ),
    ),
    "square": ("C[x] += A[x,z] * B[x,z]", ("O[m] += I[m,k] * I[m,k]", "O[m] += I[m+k] * I[m]")),
    "two_sums": (
        "S[x] += A[x,z]; T[x] += A[x,z] * B[z]",
        ("S[m] += I[m,k]; T[m] += I[m,k] * W[k]", "T[m] += I[k,m] * W[k]; S[m] += I[k,m]"),
    ),
}


def tiny_problem(seed: int) -> tuple[EmbeddingProblem | LabelMismatch, ConstraintSet]:
    rng = random.Random(seed)
    text, operators = TINY[rng.choice(sorted(TINY))]
    extents = {axis: rng.choice([1, 2, 3]) for axis in "xz" if f"{axis}" in text.replace("max", "")}
    chosen = rng.choice(operators)
    sizes = {axis: rng.randint(1, 4) for axis in "mnk" if axis in chosen}
    constraints: list[Constraint] = [
        Dataflow(),
        AllDifferent(rng.choice(["none", "along_axes", "all"])),
    ]
    if rng.random() < 0.6:
        constraints.append(FixedOrigin())
    if rng.random() < 0.6:
        # How tiles cover a padded axis is a question about boxes.
        constraints.append(HyperRectangle(rng.choice(["operands", "operations"])))
        constraints.append(Padding("all" if rng.random() < 0.3 else ()))
    found = pair_operands(parse_computation(chosen, sizes), instruction(text, extents))
    return found, ConstraintSet("tiny", "", tuple(constraints))


def compare(seed: int) -> bool:
    """Compare with brute force; whether the problem was tiny enough."""
    problem, constraints = tiny_problem(seed)
    if isinstance(problem, LabelMismatch):
        return False
    try:
        expected = solutions(problem, constraints)
    except TooLarge:
        return False
    formulations = [Formulation.SCALAR]
    if digit_model_obstacle(problem, constraints) is None:
        formulations.append(Formulation.DIGITS)
    for formulation in formulations:
        result = search(problem, constraints, SearchLimits(), formulation=formulation)
        maps = [expand(problem, embedding) for embedding in result.embeddings]
        keys = [m.key() for m in (*maps, *result.irregular) if m is not None]
        assert result.complete
        assert len(keys) == len(set(keys)) == len(maps) + len(result.irregular)
        assert set(keys) == expected, (seed, formulation)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_all_embeddings_are_found(block: int) -> None:
    compared = sum(compare(seed) for seed in range(40 * block, 40 * block + 40))
    assert compared > 10


@pytest.mark.slow
def test_all_embeddings_are_found_at_length() -> None:
    assert sum(compare(seed) for seed in range(1_000, 1_400)) > 100
