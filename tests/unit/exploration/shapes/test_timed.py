"""Shapes by time: each costs what its saved file costs, bounds hold, and nothing is better."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from cpembed.driver.estimate import estimate
from cpembed.driver.named import workload
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import SpecError, WorkloadError
from cpembed.exploration.shapes.cells import Cell, picoseconds, search_cell
from cpembed.exploration.shapes.executions import layer_executions
from cpembed.exploration.shapes.finding import find_shapes
from cpembed.exploration.shapes.question import Question, ShapeResult
from cpembed.exploration.shapes.shape import (
    Cost,
    Model,
    Scope,
    Shape,
    shapes_within,
    template,
    template_of,
    tile_bytes,
)
from cpembed.exploration.shapes.timed import TimedMachine, open_timed
from cpembed.hw.loader import load_hardware_spec
from cpembed.runtime.cluster import open_workers
from tests.unit.exploration.described.machines import TEXT, layers, written
from tests.unit.exploration.described.test_agreement import random_machine

WORDS = [
    "gemm m={a} n={b} k={c}",
    "conv2d n=1 c={a} h=6 w=7 k={b} r=3 s=3 pad=1",
    "conv2d n=1 c={a} h=7 w=5 k={b} r=3 s=2 stride=2",
    "depthwise n=1 c={a} h=5 w=5 r=3 s=3 pad=1",
    "gemv m={a} k={b}",
]
DERIVED = [(), ("machines.soc.compute.cycles=x",), ("machines.soc.clock_mhz=4000 // (y + z)",)]


def machine_of(folder: Path, seed: int, constraints: str | None = None) -> TimedMachine:
    path = written(folder) if constraints is None else random_machine(folder, random.Random(seed))
    derived = DERIVED[seed % len(DERIVED)]
    return open_timed(str(path), derived=derived, constraints=constraints)


def asked(suite: str, question: Question) -> ShapeResult:
    with open_workers() as workers:
        return find_shapes(Model(suite), question, workers, lambda *_: None)


def us_alone(folder: Path, machine: TimedMachine, shape: Shape, words: str) -> float:
    """The time of a layer on the saved file of a shape, as ``solve --estimate`` says."""
    path = folder / f"{shape}.toml"
    path.write_text(machine.text(shape))
    try:
        spec = load_hardware_spec(path)
    except SpecError:
        return math.inf
    result = estimate(
        workload(words, spec), spec, rank_by="estimate", top=1, constraints=machine.constraints
    )
    best = result.estimates[0] if result.estimates else ""
    return math.inf if isinstance(best, str) else best.total_us


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(20))
def test_bounds_are_below_the_times_of_saved_files(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    constraints = [None, "boxes", "fused", "strict"][seed % 4]
    machine = machine_of(tmp_path, seed, constraints)
    sizes = {name: chance.randrange(1, 30) for name in "abc"}
    words = chance.choice(WORDS).format(**sizes)
    layer = workload(words, machine.spec)
    scope = Scope(chance.choice([24, 60, 100]))
    chosen = load_constraint_set(machine.constraints)
    table = layer_executions(layer, chosen, scope, machine.spec, True)
    for column in chance.sample(range(len(scope.shapes)), 5):
        shape = Shape(*map(int, scope.shapes[column]))
        inside = table.executions if table.inside is None else table.inside
        executions = np.array([[inside[column]]])
        bound = machine.bounds([shape], [layer], executions)[0, 0]
        cell = search_cell(Cell(layer, chosen, shape, machine.spec), Cost(machine=machine), None)
        alone = us_alone(tmp_path, machine, shape, words)
        assert bound <= picoseconds(alone) if math.isfinite(alone) else True
        if cell.embedded is None:
            assert math.isinf(alone)
        else:
            assert cell.embedded.estimate is not None
            assert cell.embedded.estimate.total_us == alone


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(8))
def test_no_shape_is_faster_than_the_best(tmp_path: Path, seed: int) -> None:
    machine = machine_of(tmp_path, seed)
    words = [("gemm m=14 n=9 k=20", 1), ("conv2d n=1 c=4 h=6 w=6 k=5 r=3 s=3 pad=1", 1)]
    suite = layers(tmp_path, *(text for text, _ in words))
    scope = Scope(24, multiples=[(1, 1, 4), (2, 2, 1), (1, 3, 1)][seed % 3])
    question = Question(
        scope,
        1 + seed % 2,
        load_constraint_set(machine.constraints),
        Cost(machine=machine),
        within=20.0,
    )
    result = asked(suite, question)
    assert result.proven
    shapes = [Shape(*map(int, row)) for row in scope.shapes]
    times = {s: [us_alone(tmp_path, machine, s, text) for text, _ in words] for s in shapes}
    if question.count == 1:
        sums = {
            shape: sum(map(picoseconds, t))
            for shape, t in times.items()
            if all(map(math.isfinite, t))
        }
        least = min(sums.values())
        assert sums[result.shapes[0]] == least == result.sets.cost
        assert result.near is not None
        assert result.near.complete
        near = {shapes[0] for shapes, _ in result.near.sets}
        assert near == {shape for shape, cost in sums.items() if cost <= 1.2 * least}
    else:
        pairs = [
            sum(min(picoseconds(a), picoseconds(b)) for a, b in zip(times[s], times[t], strict=True)
                if min(a, b) < math.inf)
            for s in shapes for t in shapes
            if all(min(a, b) < math.inf for a, b in zip(times[s], times[t], strict=True))
        ]  # fmt: skip
        assert result.sets.cost == min(pairs)
    for row in result.layers:
        assert row.embedded.estimate is not None
        assert row.embedded.estimate.total_us == times[row.shape][row.layer.index]
    assert result.us == sum(times[row.shape][row.layer.index] for row in result.layers)


@pytest.mark.parametrize("multiples", [(1, 1, 1), (4, 4, 4), (1, 8, 2), (3, 1, 5)])
@pytest.mark.parametrize("smallest", [1, 3])
@pytest.mark.parametrize("powers", [False, True])
def test_multiples_leave_the_shapes_that_are_some(
    multiples: tuple[int, int, int], smallest: int, powers: bool
) -> None:
    every = shapes_within(200, powers=powers).tolist()
    expected = [
        shape
        for shape in every
        if all(size % m == 0 and size >= smallest for size, m in zip(shape, multiples, strict=True))
    ]
    if not expected:
        with pytest.raises(WorkloadError, match="no shape of extents"):
            shapes_within(200, powers=powers, smallest=smallest, multiples=multiples)
        return
    listed = shapes_within(200, powers=powers, smallest=smallest, multiples=multiples)
    assert listed.tolist() == expected


def test_operand_bytes_are_those_of_the_element_types() -> None:
    shapes = np.array([[2, 3, 5]])
    # 2 x 5 of A, 5 x 3 of B, 2 x 3 of C.
    assert tile_bytes(shapes, template()).tolist() == [10 + 15 + 4 * 6]
    spec = template_of(("float16", "int8", "float32"))
    assert tile_bytes(shapes, spec).tolist() == [2 * 10 + 15 + 4 * 6]
    with pytest.raises(WorkloadError, match="did you mean float16"):
        template_of(("float17", "int8", "int32"))
    with pytest.raises(WorkloadError, match="A, B and C"):
        template_of(("int8", "int8"))


@pytest.mark.parametrize(
    "old, new, words",
    [
        (
            "C[x,y] += A[x,z] * B[z,y]",
            "C[x,y] += A[x,z] + B[z,y]",
            "shapes are those of C[x, y] +=",
        ),
        ("x = 6,", "x = { min = 1, max = 6 },", "axes.x: is configurable"),
    ],
)
def test_other_instructions_have_no_shapes(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        open_timed(str(written(tmp_path, TEXT.replace(old, new))))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "derived, words",
    [
        ("machines.soc.compute.cycles", "it is not KEY=EXPRESSION"),
        ("machines.soc.compute.cycles=w", "no parameter 'w'"),
        ("machines.sac.compute.cycles=x", "there is no machines.sac"),
    ],
)
def test_wrong_expressions_are_one_line(tmp_path: Path, derived: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        open_timed(str(written(tmp_path)), derived=[derived])
    assert words in str(caught.value)
