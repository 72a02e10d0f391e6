"""Passes in any order leave what a nest computes as it is: random sequences, executed in numpy."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.codegen.halo import index_sets
from cpembed.codegen.nest import Nest, Pass, Peeling
from cpembed.codegen.passes import (
    cache_tile,
    can_tile,
    drop_unit_loops,
    order_reductions,
    order_tasks,
    register_tile,
    shorten_remainder,
    split_axes,
    split_k,
)
from cpembed.codegen.program_nest import kernel_nest
from cpembed.hw.loader import load_hardware_spec
from tests.unit.codegen.handwritten import conv2d_program

SPEC = load_hardware_spec("avx512_vnni")
SIZES = {"n": 1, "c": 5, "h": 5, "w": 6, "k": 17, "r": 2, "s": 3}


def executed(nest: Nest, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """The output, task by task, each in its index set; of a split nest after adding up. Where tiles
    overlap, a point is stored again."""
    a, b, c = nest.operands
    output = np.zeros(c.elements, np.int64)
    sets = index_sets(nest)
    starts = [[task.start(number) for number in range(task.count)] for task in nest.tasks]
    for place in itertools.product(*starts):
        at = dict(zip((task.name for task in nest.tasks), place, strict=True))
        part = next(s for s in sets if not s.condition or eval(s.condition, {}, dict(at))).nest
        loops = (*part.reductions, *part.inner)
        grid = np.meshgrid(*(np.arange(loop.extent) for loop in loops), indexing="ij")
        values = at | dict(zip((loop.name for loop in loops), grid, strict=True))
        shape = [loop.extent for loop in loops]
        indices = [
            np.broadcast_to(np.asarray(o.access.evaluate(values)), shape).ravel() for o in (a, b, c)
        ]
        task = np.zeros(c.elements, np.int64)
        np.add.at(task, indices[2], first[indices[0]] * second[indices[1]])
        output[indices[2]] = task[indices[2]]
    if nest.split is None:
        return output
    return output.reshape(nest.split.parts, -1).sum(axis=0)


def sequence(nest: Nest, choice: random.Random) -> list[Pass]:
    """A schedule: cache tiles come before register tiles, these before the remainder, a split last;
    what has no such condition comes anywhere."""

    def sizes(outermost: int) -> dict[str, int]:
        loops = [task for task in nest.tasks if task.steps > 1 and can_tile(nest, task)]
        taken = choice.sample(loops, min(outermost, len(loops)))
        return {loop.name: choice.randint(1, loop.steps) for loop in taken}

    cache, registers = sizes(1), sizes(2)
    registers = {n: size for n, size in registers.items() if size <= cache.get(n, size)}
    names = choice.sample([task.name for task in nest.tasks], len(nest.tasks))
    peeling = choice.choice(list(Peeling))
    found: list[Pass] = [
        lambda nest: cache_tile(nest, cache),
        lambda nest: register_tile(nest, registers),
        lambda nest: shorten_remainder(replace(nest, peeling=peeling)),
    ]
    extents = [loop.extent for loop in nest.reductions if loop.extent > 1]
    if extents and choice.random() < 0.5:
        parts = choice.choice(extents)
        found.append(lambda nest: split_k(nest, parts))
    anywhere: list[Callable[[Nest], Nest]] = [
        lambda nest: order_tasks(
            nest, [n for n in names if n in {task.name for task in nest.tasks}]
        ),
        order_reductions,
        drop_unit_loops,
        split_axes,
    ]
    for one in anywhere:
        found.insert(choice.randint(0, len(found)), one)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_any_schedule_computes_the_same(seed: int) -> None:
    choice = random.Random(seed)
    pad, stride = choice.choice([(0, 1), (1, 1), (1, 2), (2, 2)])
    nest = kernel_nest(conv2d_program(SPEC, sizes=SIZES, pad=pad, stride=stride))
    generator = np.random.default_rng(seed)
    first, second = (generator.integers(-9, 9, o.elements) for o in nest.operands[:2])
    expected = executed(nest, first, second)
    assert expected.any()
    assert np.array_equal(executed(nest.after(sequence(nest, choice)), first, second), expected)
