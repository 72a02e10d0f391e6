"""All commands state one time for a layer on a described machine that nothing executes."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from cpembed.driver.estimate import estimate
from cpembed.driver.layouts import compare_layouts
from cpembed.driver.matching import matched
from cpembed.driver.named import workload
from cpembed.driver.plan import Request
from cpembed.driver.result import SolveResult
from cpembed.driver.run import run
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import SpecError
from cpembed.exploration.described.keys import ABSENT, read_key, replaced
from cpembed.exploration.shapes.finding import find_shapes
from cpembed.exploration.shapes.question import Question
from cpembed.exploration.shapes.shape import Cost, Model, Scope, Shape
from cpembed.exploration.shapes.timed import open_timed
from cpembed.exploration.values import read_values
from cpembed.hw.loader import load_hardware_spec, specification_file
from cpembed.hw.toml_text import toml_text
from cpembed.runtime.cluster import open_workers
from tests.unit.exploration.described.machines import layers, written
from tests.unit.exploration.described.test_family import CHOICES, explored

WORDS = (
    "gemm m=20 n=14 k=30",
    "gemm m=7 n=33 k=12",
    "conv2d n=1 c=5 h=8 w=9 k=12 r=3 s=3 pad=1",
    "conv2d n=1 c=13 h=6 w=6 k=7 r=1 s=1 stride=2",
    "depthwise n=1 c=6 h=7 w=8 r=3 s=3",
)


def random_machine(folder: Path, chance: random.Random) -> Path:
    """A file in which some keys have other values; those that the loader rejects are taken back."""
    path = written(folder)
    tables = specification_file(path).merged
    for name in chance.sample(list(CHOICES), 6):
        (value,) = read_values(chance.choice(CHOICES[name]))
        changed = replaced(tables, read_key(name), ABSENT if value == "absent" else value)
        path.write_text(toml_text(changed))
        try:
            load_hardware_spec(path)
        except SpecError:
            continue
        tables = changed
    path.write_text(toml_text(tables))
    return path


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(30))
def test_commands_state_one_time(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPEMBED_IN_PROCESS", "1")
    chance = random.Random(seed)
    path = random_machine(tmp_path, chance)
    spec = load_hardware_spec(path)
    words = chance.choice(WORDS)
    layer = workload(words, spec)
    solved = estimate(layer, spec, rank_by="estimate", top=1)
    best = solved.estimates[0] if solved.estimates else "nothing embeds"
    suite = layers(tmp_path, words)
    result = explored(tmp_path, ["machines.soc.clock_mhz=present"], suite, path=path,
                      objectives=["time"])  # fmt: skip
    match = matched(Request(layer, spec))
    if isinstance(best, str):
        assert not result.evaluated
        assert match.estimated is None
        return
    identifier = solved.solved.embeddings[0].candidate.identifier
    # solve, explore.
    (point,) = result.evaluated
    (item,) = point.layers
    assert item.choice.details["us"] == best.total_us
    assert math.isclose(point.value(result.objectives[0]), best.total_us, rel_tol=1e-15)
    assert item.choice.key == identifier
    # match.
    assert match.estimated is not None
    assert match.estimated.us == best.total_us
    # layouts, of operators that have a choice of layouts.
    rows = compare_layouts(words, spec).rows
    plain = next(row for row in rows if set(row.settings.values()) <= {"NCHW", "0"})
    assert plain.times is not None
    assert plain.times.contraction == best.us
    assert plain.times.moving == pytest.approx(best.total_us - best.us, abs=1e-9)
    # run.
    ran = run(layer, spec)
    assert not isinstance(ran, SolveResult)
    assert ran.described is not None
    assert ran.described.total_us == best.total_us
    assert ran.candidate.identifier == identifier


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(10))
def test_shapes_state_the_same_time(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = random_machine(tmp_path, chance)
    spec, words = load_hardware_spec(path), chance.choice(WORDS)
    # A shape replaces the extents: those of the file alone are one.
    shape = Shape(*(spec.instruction.extents[axis] for axis in "xyz"))
    machine = open_timed(str(path))
    scope = Scope(shape.macs, multiples=(shape.x, shape.y, shape.z))
    constraints = load_constraint_set(machine.constraints)
    question = Question(scope, 1, constraints, Cost(machine=machine))
    with open_workers() as workers:
        result = find_shapes(Model(layers(tmp_path, words)), question, workers, lambda *_: None)
    layer = workload(words, spec)
    solved = estimate(layer, spec, rank_by="estimate", top=1, constraints=machine.constraints)
    best = solved.estimates[0] if solved.estimates else "nothing embeds"
    if isinstance(best, str):
        assert not result.shapes
    else:
        assert result.shapes == (shape,)
        assert result.us == best.total_us
