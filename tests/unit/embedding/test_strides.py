"""Strides of several digits on one instruction axis: counted by hand and by brute force."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import pytest

from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.constraints import (
    AllDifferent,
    Dataflow,
    Digits,
    FixedOrigin,
    HyperRectangle,
    Padding,
    Strides,
)
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.node_map import NodeMap, expand
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.result import Formulation
from cpembed.embedding.search import search
from cpembed.errors import SpecError
from cpembed.hw.instruction import Instruction, InstructionAxis, OperandMemory, TileDimension
from cpembed.ir.parser import parse_computation
from tests.node_maps import node_maps


def instruction(**extents: int) -> Instruction:
    computation = parse_computation("C[x,y] += A[x,z] * B[z,y]", extents, name="unit")
    axes = tuple(InstructionAxis(axis.name, axis.extent, axis.extent) for axis in computation.axes)
    memory = {
        operand: OperandMemory("m", tuple(TileDimension(axis) for axis in tile))
        for operand, tile in (("A", "xz"), ("B", "zy"), ("C", "xy"))
    }
    dtypes = {operand.name: (operand.dtype,) for operand in computation.operands}
    return Instruction("unit", axes, computation, dtypes, memory)


IMAGE = "O[k,p,q] += I[p+r,q+s] * W[k,r,s]", {"k": 1, "p": 4, "q": 4, "r": 2, "s": 2}
POINTS = IMAGE[0], {**IMAGE[1], "r": 1, "s": 1}
BATCH = "O[n,k,p] += I[n,p+r] * W[k,r]", {"n": 2, "k": 1, "p": 4, "r": 2}
CHANNELS = "O[k,p] += I[c,p+r] * W[k,c,r]", {"k": 1, "p": 1, "c": 2, "r": 4}
ROWS = {"x": 4, "y": 1, "z": 1}
DEPTH = {"x": 1, "y": 1, "z": 4}

# x of 4 on an image of 4 by 4: p or q whole, then p:2 q:2 in either order, each by 1 or by 2. On a
# batch of 2: p whole, n:2 p:2 in either order, p by 1 or by 2. On channels: r whole, c:2 r:2 the
# same way. A filter of 1 by 1 makes no stencil. Counted by hand: ("any", "sub_images", "none").
CASES = [
    (IMAGE, ROWS, (2 + 2 * 4, 2 + 2 * 2, 2 + 2)),
    (POINTS, ROWS, (2 + 2 * 4, 2 + 2, 2 + 2)),
    (BATCH, ROWS, (1 + 2 * 2, 1 + 2 * 2, 1 + 2)),
    (CHANNELS, DEPTH, (1 + 2 * 2, 1 + 2, 1 + 2)),
]


MIXTURES: tuple[Literal["any", "sub_images", "none"], ...] = ("any", "sub_images", "none")


def constraint_set(mixed: Literal["any", "sub_images", "none"]) -> ConstraintSet:
    boxes, strides = HyperRectangle("operations"), Strides(("one", "spread"), mixed)
    different = AllDifferent("along_axes")
    kept = (boxes, Dataflow(), different, FixedOrigin(), strides, Digits(2), Padding())
    return ConstraintSet(mixed, "", kept)


def found_maps(
    problem: EmbeddingProblem, constraints: ConstraintSet, formulation: Formulation
) -> list[NodeMap]:
    result = search(problem, constraints, SearchLimits(), formulation=formulation)
    maps = [expand(problem, embedding) for embedding in result.embeddings]
    return [node_map for node_map in maps if node_map is not None]


@pytest.mark.quick(2)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_mixed_strides_are_those_counted_by_hand(number: int) -> None:
    case, extents, counts = CASES[number]
    problem = pair_operands(parse_computation(*case), instruction(**extents))
    assert isinstance(problem, EmbeddingProblem)
    if math.prod(problem.workload.extents.values()) <= 16:
        everything = list(node_maps(problem, problem.workload.extents, extents, budget=5_000))
    else:
        everything = found_maps(problem, constraint_set("any"), Formulation.SCALAR)
    for mixed, count in zip(MIXTURES, counts, strict=True):
        constraints = constraint_set(mixed)
        expected = {
            node_map.key()
            for node_map in everything
            if all(c.holds(problem, node_map) for c in constraints.constraints)
        }
        assert len(expected) == count
        for formulation in Formulation.SCALAR, Formulation.DIGITS:
            maps = found_maps(problem, constraints, formulation)
            assert len(maps) == len(expected)
            assert {node_map.key() for node_map in maps} == expected


def test_sub_images_without_spread_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.toml"
    path.write_text('extends = "relaxed"\n[strides]\nallowed = ["one"]\nmixed = "sub_images"\n')
    with pytest.raises(SpecError, match=r'strides: mixed is "sub_images".*allow it'):
        load_constraint_set(str(path))
