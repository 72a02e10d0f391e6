"""The ranking is that of the full enumeration, sorted, whatever the weights."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from cpembed.cost.bounds import best_first
from cpembed.cost.ranking import derive_candidate, overheads, rank
from cpembed.driver.named import default_dtypes, hardware_spec
from cpembed.embedding.constraint_set import ConstraintSet, Flatten, Weights, load_constraint_set
from cpembed.embedding.constraints import Constraint, Dataflow, FixedOrigin, Padding
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.problem import EmbeddingProblem, pair_operands
from cpembed.embedding.result import spaces_of
from cpembed.embedding.search import find_embeddings
from cpembed.errors import TransformError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.transform.derive import LayoutCache
from cpembed.workloads.naming import parse_workload
from cpembed.workloads.suites import suite
from tests.unit.embedding.test_node_maps import WORKLOADS as EXPRESSIONS
from tests.unit.embedding.test_node_maps import make_instruction, relaxed

WEIGHTS = (
    Weights(1, 1),
    Weights(1, 0),
    Weights(0, 1),
    Weights(1, 300),
    Weights(0.001, 7),
    Weights(0, 0),
)
TOPS = (1, 2, 10, 60)

Cost = tuple[float, int, int, str, int]
"""Score, executions, bytes moved, canonical form, number of the alternative problem."""


def costs(
    workload: Computation,
    instruction: Instruction,
    embeddings: Sequence[Embedding],
    weights: Weights,
    layouts: LayoutCache,
) -> dict[str, Cost]:
    """Costs of each embedding that has a program, by identifier; all programs are derived."""
    by_identifier: dict[str, Cost] = {}
    for number, space in enumerate(spaces_of(embeddings)):
        for embedding in space:
            try:
                program = derive_candidate(workload, instruction, embedding, layouts).program
            except TransformError:
                continue
            cost = overheads(program)
            score = cost.score(weights.mac, weights.data)
            form = repr(embedding.digits)
            assert embedding.identifier() not in by_identifier, "an embedding was listed twice"
            by_identifier[embedding.identifier()] = (
                score,
                cost.calls,
                cost.packing_bytes,
                form,
                number,
            )
    return by_identifier


def compare(
    workload: Computation,
    instruction: Instruction,
    constraints: ConstraintSet,
    largest: int = 3000,
) -> int:
    """How many embeddings were compared: bounds, order, ties, for all weights and numbers."""
    result = find_embeddings(workload, instruction, constraints)
    assert result.complete
    if not 0 < len(result.embeddings) <= largest:
        return 0
    layouts: LayoutCache = {}
    for weights in WEIGHTS:
        paid = costs(workload, instruction, result.embeddings, weights, layouts)
        bounded = list(best_first(workload, instruction, result.embeddings, weights))
        assert len(bounded) == len(result.embeddings)
        assert [b.lower for b in bounded] == sorted(b.lower for b in bounded)
        for item in bounded:
            cost = paid.get(item.embedding.identifier())
            if cost is not None:
                assert item.lower.score <= cost[0]
                assert item.lower.calls == cost[1]
                assert item.lower.packing_bytes <= cost[2]
        expected = sorted(paid, key=lambda identifier: paid[identifier])
        for top in TOPS:
            ranking = rank(workload, instruction, result.embeddings, weights, top)
            ranked = [item.candidate.embedding.identifier() for item in ranking.candidates]
            assert ranked == expected[:top], (weights, top)
    return len(result.embeddings)


def make_case(rng: random.Random) -> tuple[Computation, Instruction, ConstraintSet] | None:
    """A random workload with room for an instruction of up to 8 MACs, and a wide set."""
    name = rng.choice(sorted(EXPRESSIONS))
    text = EXPRESSIONS[name].format(t=rng.choice(["", "2*"]), d=rng.choice(["", "2*", "3*"]))
    axes = sorted({c for c in text if c.islower()} - {"t", "d"})
    workload = parse_computation(text, {axis: rng.randint(1, 11) for axis in axes}, name=name)
    instruction = make_instruction(rng)
    if not isinstance(pair_operands(workload, instruction), EmbeddingProblem):
        return None
    constraints: list[Constraint] = [
        Dataflow(rng.random() < 0.5),
        FixedOrigin(),
        Padding(rng.choice(["all", ("k", "q")]), None, rng.choice([None, 2.0])),
    ]
    flatten = Flatten(rng.choice([1, 2, 3]))
    return (
        workload,
        instruction,
        ConstraintSet("wide", "", tuple(relaxed(rng, constraints)), Weights(), flatten),
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_random_problems(block: int) -> None:
    compared = 0
    for seed in range(block * 150, block * 150 + 150):
        case = make_case(random.Random(seed))
        compared += 0 if case is None else compare(*case, largest=300)
    assert compared > 200


WORKLOADS = [
    "conv2d n=2 c=12 h=10 w=11 k=16 r=3 s=3 pad=1 stride=2",
    "conv2d n=1 c=3 h=9 w=9 k=20 r=5 s=5 dilation=2",
    "conv2d n=1 c=6 h=8 w=8 k=12 r=1 s=1 stride=3",
    "conv2d n=1 c=8 h=7 w=7 k=8 r=3 s=3 layout=NHWC",
    "conv2d n=1 c=3 h=9 w=8 k=16 r=2 s=3 pad=1 stride=2 layout=NHWC",
    "depthwise n=1 c=24 h=9 w=9 r=3 s=3",
    "conv1d n=2 c=9 w=21 k=17 s=4 stride=3",
    "gemm m=20 n=24 k=50",
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["in_place_padded", "relaxed", "complete"])
@pytest.mark.parametrize("target", ["vta_8x8x8", "avx512_vnni", "wmma_f16"])
def test_operators(target: str, name: str) -> None:
    spec, constraints = hardware_spec(target), load_constraint_set(name)
    compared = 0
    for words in WORKLOADS:
        workload = parse_workload(words.split(), default_dtypes(spec))
        compared += compare(workload, spec.instruction, constraints, 600)
    assert compared > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "target, name",
    [
        ("vta_1x16x16", "relaxed"),
        ("vta_8x8x8", "relaxed"),
        ("avx512_vnni", "relaxed"),
        ("avx512_vnni", "in_place_padded"),
        ("amx_int8", "in_place_padded"),
    ],
)
def test_layers_of_a_suite(target: str, name: str) -> None:
    spec, constraints = hardware_spec(target), load_constraint_set(name)
    compared = 0
    for layer in list(suite("deepbench"))[::9]:
        workload = layer.workload(default_dtypes(spec))
        compared += compare(workload, spec.instruction, constraints, 4000)
    assert compared >= 10


def test_a_layer_with_half_a_million_embeddings_is_ranked_by_a_few_programs() -> None:
    words = "conv3d n=1 c=64 d=16 h=28 w=28 k=64 t=3 r=3 s=3 pad=1"
    spec = hardware_spec("wmma_f16")
    workload = parse_workload(words.split(), default_dtypes(spec))
    result = find_embeddings(workload, spec.instruction, load_constraint_set("complete"))
    assert len(result.embeddings) > 500_000
    for weights in WEIGHTS[:3]:
        assert (
            rank(workload, spec.instruction, result.embeddings, weights, 10).derived
            < len(result.embeddings) / 500
        )
