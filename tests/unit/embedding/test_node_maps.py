"""The scalar model's solutions equal all node maps that the constraints' own checks accept.

On random tiny workloads and instructions, under sets with boxes and without.
"""

from __future__ import annotations

import random

import pytest

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints import (
    AllDifferent,
    Constraint,
    Contiguous,
    Dataflow,
    Dense,
    Digits,
    Extents,
    FixedOrigin,
    HyperRectangle,
    LinearAccess,
    Padding,
    Strides,
)
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.domains import padded_extents
from cpembed.embedding.node_map import NodeMap, expand
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.result import Formulation
from cpembed.embedding.search import search
from cpembed.hw.instruction import (
    Instruction,
    InstructionAxis,
    OperandMemory,
    StrideRule,
    TileDimension,
)
from cpembed.ir.parser import parse_computation
from tests.node_maps import TooLarge, solutions

WORKLOADS = {
    "gemm": "O[m,n] += I[m,k] * W[k,n]",
    "gemm_transposed": "O[m,n] += I[k,m] * W[n,k]",
    "conv1d": "O[k,q] += I[c,{t}q+{d}s] * W[k,c,s]",
    "conv1d_single": "O[q] += I[{t}q+{d}s] * W[s]",
    "depthwise": "O[c,q] += I[c,{t}q+{d}s] * W[c,s]",
    "image": "O[k,p,q] += I[p+r,q+s] * W[k,r,s]",
    "pointwise": "O[n,k] += I[n,c] * W[k,c]",
    "strided_read": "O[m,n] += I[2*m,k] * W[k,n]",
    "offset_read": "O[m,n] += I[m+1,k] * W[k,n]",
    "outer": "O[m,n] += I[m] * W[n]",
}
INSTRUCTIONS = {
    "gemm": "C[x,y] += A[x,z] * B[z,y]",
    "gemm_transposed": "C[x,y] += A[x,z] * B[y,z]",
    "gemv": "C[y] += A[z] * B[y,z]",
    "dot": "C[] += A[z] * B[z]",
    "lanes": "C[x] += A[x,z] * B[x,z]",
    "outer": "C[x,y] += A[x] * B[y]",
    "filter": "C[x] += A[x+z] * B[z]",
}


def make_instruction(rng: random.Random) -> Instruction:
    expression = INSTRUCTIONS[rng.choice(sorted(INSTRUCTIONS))]
    names = [a for a in "xyz" if f"{a}" in expression]
    extents = {name: rng.choice([1, 2, 2, 3, 4]) for name in names}
    while _product(extents.values()) > 8:
        extents[rng.choice(names)] = rng.choice([1, 2])
    computation = parse_computation(expression, extents, name="instruction")
    axes: list[InstructionAxis] = []
    for axis in computation.axes:
        configurable = "x+z" not in expression and rng.random() < 0.3
        low = rng.randint(1, axis.extent) if configurable else axis.extent
        axes.append(InstructionAxis(axis.name, low, axis.extent))
    memory: dict[str, OperandMemory] = {}
    for operand in computation.operands:
        index = computation.access(operand.name).index
        tile = [i.single_iterator or "z" for i in index]
        strides = {axis: StrideRule.ANY for axis in tile if rng.random() < 0.5}
        contiguous = tuple(axis for axis in names if axis in tile and rng.random() < 0.3)
        memory[operand.name] = OperandMemory(
            "m", tuple(TileDimension(a) for a in tile), strides, contiguous=contiguous
        )
    dtypes = {operand.name: (operand.dtype,) for operand in computation.operands}
    return Instruction("instruction", tuple(axes), computation, dtypes, memory)


def _product(values: object) -> int:
    total = 1
    for value in values:  # type: ignore[attr-defined]
        total *= value
    return total


def make_constraints(rng: random.Random) -> ConstraintSet:
    constraints: list[Constraint] = [
        HyperRectangle(),
        Dataflow(),
        AllDifferent(rng.choice(["none", "none", "all", "along_axes"])),
    ]
    if rng.random() < 0.8:
        constraints.append(FixedOrigin())
    if rng.random() < 0.6:
        constraints.append(Dense(rng.choice(["one", "memory"])))
    if rng.random() < 0.6:
        constraints.append(LinearAccess(rng.choice(["none", "in_place"])))
    if rng.random() < 0.3:
        constraints.append(Contiguous())
    axes = rng.choice([(), (), "all", ("k",), ("m", "q")])
    constraints.append(Padding(axes, rng.choice([None, None, 3]), rng.choice([1.5, 2.0])))
    if rng.random() < 0.35:
        constraints = relaxed(rng, constraints)
    elif rng.random() < 0.15:
        constraints = [c for c in constraints if not c.needs_boxes and c.name != "hyper_rectangle"]
    return ConstraintSet("random", "", tuple(constraints))


def relaxed(rng: random.Random, constraints: list[Constraint]) -> list[Constraint]:
    """Boxes of the operations only, listed strides, several digits: stencils may be mapped."""
    types = Dataflow | FixedOrigin | Padding | Contiguous
    kept = [c for c in constraints if isinstance(c, types)]
    strides = tuple(s for s in ("one", "spread", "step") if s == "one" or rng.random() < 0.5)
    mixtures = ["any", "none", "sub_images"] if "spread" in strides else ["any", "none"]
    return [
        HyperRectangle("operations"),
        AllDifferent("along_axes"),
        Strides(strides, rng.choice(mixtures)),
        Digits(rng.choice([1, 2, 3])),
        *([Extents()] if rng.random() < 0.5 else []),
        *kept,
    ]


def make_problem(seed: int) -> tuple[EmbeddingProblem, ConstraintSet]:
    """A random problem small enough to enumerate; constraint sets vary with the seed."""
    rng = random.Random(seed)
    while True:
        name = rng.choice(sorted(WORKLOADS))
        text = WORKLOADS[name].format(t=rng.choice(["", "2*"]), d=rng.choice(["", "2*"]))
        axes = sorted({c for c in text if c.islower()} - {"t", "d"})
        extents = {axis: rng.choice([1, 2, 2, 3, 4]) for axis in axes}
        workload = parse_computation(text, extents, name=name)
        problem = pair_operands(workload, make_instruction(rng))
        constraints = make_constraints(rng)
        if not isinstance(problem, EmbeddingProblem):
            continue
        if constraints.get("hyper_rectangle") is None and any(
            not axis.is_fixed for axis in problem.instruction.axes
        ):
            continue
        if _product(padded_extents(problem, constraints).values()) <= 60:
            return problem, constraints


def compare_problem(
    problem: EmbeddingProblem, constraints: ConstraintSet, most: int = 1_000_000
) -> list[NodeMap] | None:
    """The embeddings, found by both; None where the problem is too large to enumerate, having more
    than ``most`` node maps."""
    try:
        expected = solutions(problem, constraints, most)
    except TooLarge:
        return None
    maps: list[NodeMap] = []
    for formulation in (Formulation.SCALAR, Formulation.AUTO):
        result = search(problem, constraints, SearchLimits(), formulation=formulation)
        found = [expand(problem, embedding) for embedding in result.embeddings]
        found += result.irregular
        maps = [node_map for node_map in found if node_map is not None]
        keys = [node_map.key() for node_map in maps]
        assert len(keys) == len(found)
        assert result.complete
        assert len(keys) == len(set(keys)), "a solution was listed twice"
        assert set(keys) == expected
    return maps


def compare(seed: int) -> int | None:
    """Number of embeddings of a random problem; None where it is too large."""
    found = compare_problem(*make_problem(seed))
    return None if found is None else len(found)


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", range(30))
def test_the_solver_finds_the_node_maps_that_hold(block: int) -> None:
    found = [compare(seed) for seed in range(block * 40, block * 40 + 40)]
    compared = [count for count in found if count is not None]
    assert len(compared) >= 20, "most problems of a block must be small enough to compare"
    assert any(compared), "a block without a single embedding tests nothing"
