"""Passes keep the points that a nest executes; random sequences of them keep its results."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.codegen.halo import index_sets
from cpembed.codegen.nest import KernelOperand, Nest, Pass, Peeling, TileLoop
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
from cpembed.codegen.plan import Knobs
from cpembed.codegen.program_nest import kernel_nest
from cpembed.errors import LoweringError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cpu.calibration import Calibration, default_calibration
from cpembed.targets.cpu.estimate import BlockStep
from cpembed.targets.cpu.register_blocks import RegisterModel
from cpembed.targets.cpu.schedules import Schedules, apply_knobs
from cpembed.transform.program import Loop
from tests.unit.codegen.handwritten import conv2d_program, expr

VNNI = load_hardware_spec("avx512_vnni")
SIZES = {"n": 2, "c": 5, "h": 5, "w": 6, "k": 20, "r": 2, "s": 3}


def points(nest: Nest) -> set[tuple[int, ...]]:
    """The elements that meet in each multiply-accumulate."""
    starts = [
        [min(i * task.tile, task.extent - task.tile) for i in range(task.count)]
        for task in nest.tasks
    ]
    loops = [*nest.reductions, *nest.inner]
    names = [task.name for task in nest.tasks] + [loop.name for loop in loops]
    ranges = [*starts, *(range(loop.extent) for loop in loops)]
    visited: set[tuple[int, ...]] = set()
    for values in itertools.product(*ranges):
        at = dict(zip(names, values, strict=True))
        visited.add(tuple(int(o.access.evaluate(at)) for o in nest.operands))
    return visited


def conv_nest() -> Nest:
    return kernel_nest(conv2d_program(VNNI, sizes=SIZES, pad=1, stride=2))


def axis_nest(access: IndexExpr, extent: int) -> Nest:
    """One inner loop ``l`` that the first operand reads by ``access``, the others plainly."""
    plain = IndexExpr.iterator("l")
    operands = (
        KernelOperand("A", "int8", 100, access),
        KernelOperand("B", "int8", 100, plain),
        KernelOperand("C", "int32", 100, plain),
    )
    return Nest((), (), (Loop("l", extent, AxisKind.SPATIAL),), operands)


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (1, 1, 2, 2), (1, 1, 3, 2), (1, 2, 2, 1), (2, 1, 1, 3)]
)
def test_register_tiles_cover_exactly_the_points_of_the_nest(sizes: tuple[int, ...]) -> None:
    nest = conv_nest()
    tasks = [task for task in nest.tasks if task.extent > 1]
    blocks = {task.name: size for task, size in zip(tasks, sizes, strict=False)}
    assert points(register_tile(nest, blocks)) == points(nest)


def test_a_tile_larger_than_its_loop_is_refused() -> None:
    nest = conv_nest()
    with pytest.raises(LoweringError, match="register tiles of 99"):
        register_tile(nest, {nest.tasks[0].name: 99})


def test_a_remainder_tile_is_shifted_back() -> None:
    operands = tuple(
        KernelOperand(name, "int8", 100, IndexExpr.iterator("p")) for name in ("A", "B", "C")
    )
    first, second, output = operands
    nest = register_tile(Nest((TileLoop("p", 7),), (), (), (first, second, output)), {"p": 3})
    assert nest.tasks[0].count == 3
    assert points(nest) == {(i, i, i) for i in range(7)}


def test_dropping_unit_loops_and_reordering_keeps_the_points() -> None:
    nest = conv_nest()
    changed = drop_unit_loops(order_tasks(nest, [nest.tasks[-1].name, nest.tasks[0].name]))
    assert points(changed) == points(nest)
    assert [task.name for task in changed.tasks][-2:] == [nest.tasks[-1].name, nest.tasks[0].name]


def test_sums_walk_the_second_factor_as_it_lies_in_memory() -> None:
    nest = conv_nest()
    ordered = order_reductions(nest)
    second = ordered.operands[1]
    distances = [abs(second.stride(loop.name)) for loop in ordered.reductions]
    assert distances == sorted(distances, reverse=True)
    assert points(ordered) == points(nest)
    assert distances != [abs(second.stride(loop.name)) for loop in nest.reductions]


def test_axis_digits_are_split_where_an_operand_reads_them_apart() -> None:
    access = expr(("l", 50, 4, None), ("l", 1, 1, 4))
    nest = axis_nest(access, 8)
    split = split_axes(nest)
    assert [(loop.name, loop.extent) for loop in split.inner] == [("l_4", 2), ("l_1", 4)]
    assert all(operand.access.is_affine for operand in split.operands)
    assert points(split) == points(nest)


def test_axis_digits_at_natural_distances_are_one_loop() -> None:
    nest = axis_nest(expr(("l", 8, 4, None), ("l", 2, 1, 4)), 8)
    split = split_axes(nest)
    assert [(loop.name, loop.extent) for loop in split.inner] == [("l", 8)]
    assert points(split) == points(nest)


def test_kept_weights_stay_split() -> None:
    split = split_axes(axis_nest(expr(("l", 1)), 8), {"l": (4,)})
    assert [loop.extent for loop in split.inner] == [2, 4]


def test_three_digits_with_a_middle_one_unused_keep_the_points() -> None:
    nest = axis_nest(expr(("l", 7, 6, None), ("l", 3, 1, 2)), 12)
    assert points(split_axes(nest)) == points(nest)


def test_digits_that_do_not_nest_are_refused() -> None:
    nest = axis_nest(IndexExpr((IndexTerm("l", 1, 2, None), IndexTerm("l", 9, 3, None))), 12)
    with pytest.raises(LoweringError, match="do not nest"):
        split_axes(nest)


def product_nest(rows: dict[str, int], columns: dict[str, int]) -> Nest:
    """A product whose row loops walk A and C, its column loops B and C; names as given."""
    a = IndexExpr.sum([IndexTerm(name, 10 ** (3 - i)) for i, name in enumerate(rows)])
    b = IndexExpr.sum([IndexTerm(name) for name in columns])
    tasks = [TileLoop(name, extent, origin=name) for name, extent in {**rows, **columns}.items()]
    operands = (
        KernelOperand("A", "int8", 9999, a),
        KernelOperand("B", "int8", 9999, b),
        KernelOperand("C", "int32", 9999, a + b),
    )
    return Nest(tuple(tasks), (), (), operands)


MACHINE = default_calibration()


def model(largest: int, limit: int = 99) -> RegisterModel:
    """Steps that cost a nanosecond for each product or for each load, whichever are more."""

    def step(nest: Nest, machine: Calibration, rows: int, columns: int) -> BlockStep:
        return BlockStep(rows * columns, rows + columns, (1, 1, 1, 1), rows * columns)

    return RegisterModel(lambda r, c: r * c <= limit, step, largest, "vpdpbusd")


def scheduled(nest: Nest, registers: RegisterModel) -> Schedules:
    return Schedules(nest, registers, MACHINE)


def test_a_block_is_chosen_by_its_cost_and_must_fit() -> None:
    nest = product_nest({"p": 14}, {"k": 4})
    ranked = [knobs for _, knobs in scheduled(nest, model(largest=8, limit=8)).ranked()]
    assert ranked[0].register_tiles == {"p": 2, "k": 4}
    assert all(
        knobs.register_tiles.get("p", 1) * knobs.register_tiles.get("k", 1) <= 8 for knobs in ranked
    )


def test_without_loops_nothing_is_blocked() -> None:
    ranked = scheduled(product_nest({}, {}), model(largest=4)).ranked()
    assert {str(knobs.register_tiles) for _, knobs in ranked} == {"{}"}


def test_knobs_order_and_block_the_tasks_and_keep_the_points() -> None:
    nest = product_nest({"p": 3, "q": 5}, {"k": 4})
    for _, knobs in scheduled(nest, model(largest=6)).ranked():
        changed = apply_knobs(nest, model(largest=6), knobs)
        assert points(changed) == points(nest)
        innermost = changed.tasks[-1].name
        assert innermost == ("q" if knobs.columns_outermost else "k")


@pytest.mark.parametrize(
    "blocks, inside",
    [
        ({"p": 2, "q": 3, "k": 4}, ["p_step", "q_step", "k_step"]),
        ({"q": 3, "k": 4}, ["k_step", "q_step"]),
        ({"k": 2, "p": 2}, ["p_step", "k_step"]),
    ],
)
def test_the_shorter_side_of_a_block_is_inside(blocks: dict[str, int], inside: list[str]) -> None:
    """Whatever order the knobs name loops in; of sides that are as long, columns."""
    nest = product_nest({"p": 3, "q": 5}, {"k": 4})
    changed = apply_knobs(nest, model(largest=6), Knobs(blocks))
    assert [loop.name for loop in changed.steps] == inside
    assert points(changed) == points(nest)


@pytest.mark.parametrize("panels", [{"q": 2}, {"q": 3}, {"p": 2, "k": 3}, {"k": 9}])
@pytest.mark.parametrize("blocks", [{}, {"q": 2}])
def test_panels_come_one_after_the_other_and_keep_the_points(
    panels: dict[str, int], blocks: dict[str, int]
) -> None:
    nest = product_nest({"p": 3, "q": 5}, {"k": 4})
    changed = apply_knobs(nest, model(largest=6), Knobs(blocks, cache_tiles=panels))
    assert points(changed) == points(nest)
    cut = [name for name, size in panels.items() if size < nest_extents(nest)[name]]
    assert [task.name for task in changed.tasks[: len(cut)]] == [f"{name}_panel" for name in cut]


def nest_extents(nest: Nest) -> dict[str, int]:
    return {task.name: task.extent for task in nest.tasks}


def test_panels_are_proposed_where_data_outgrow_the_second_level_cache() -> None:
    def panels(cache: int) -> bool:
        machine = replace(MACHINE, cache_bytes=(cache // 4, cache, 0))
        nest = product_nest({"p": 30}, {"k": 40})
        ranking = Schedules(nest, model(largest=4), machine).ranked()
        return any(knobs.cache_tiles for _, knobs in ranking)

    assert panels(1 << 10)
    assert not panels(1 << 20)


def test_the_estimate_ranks_and_the_best_is_the_first() -> None:
    nest = product_nest({"p": 3, "q": 5}, {"k": 4})
    schedules = scheduled(nest, model(largest=6))
    ranked = schedules.ranked()
    assert schedules.best() == ranked[0][1]
    assert [e.us for e, _ in ranked] == sorted(schedules.estimate(knobs).us for _, knobs in ranked)


def test_knobs_beyond_the_registers_or_on_other_loops_are_refused() -> None:
    nest = product_nest({"p": 8}, {"k": 8})
    with pytest.raises(LoweringError, match="does not fit"):
        apply_knobs(nest, model(largest=8, limit=8), Knobs({"p": 3, "k": 3}))
    with pytest.raises(LoweringError, match="loop c cannot be tiled: use one of p, k"):
        apply_knobs(nest, model(largest=8), Knobs({"c": 2}))


RANDOM_SIZES = {"n": 1, "c": 5, "h": 5, "w": 6, "k": 17, "r": 2, "s": 3}


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
    passes: list[Pass] = [
        lambda nest: cache_tile(nest, cache),
        lambda nest: register_tile(nest, registers),
        lambda nest: shorten_remainder(replace(nest, peeling=peeling)),
    ]
    extents = [loop.extent for loop in nest.reductions if loop.extent > 1]
    if extents and choice.random() < 0.5:
        parts = choice.choice(extents)
        passes.append(lambda nest: split_k(nest, parts))
    anywhere: list[Callable[[Nest], Nest]] = [
        lambda nest: order_tasks(
            nest, [n for n in names if n in {task.name for task in nest.tasks}]
        ),
        order_reductions,
        drop_unit_loops,
        split_axes,
    ]
    for insertion in anywhere:
        passes.insert(choice.randint(0, len(passes)), insertion)
    return passes


@pytest.mark.parametrize("seed", range(30))
def test_any_schedule_computes_the_same(seed: int) -> None:
    choice = random.Random(seed)
    pad, stride = choice.choice([(0, 1), (1, 1), (1, 2), (2, 2)])
    nest = kernel_nest(conv2d_program(VNNI, sizes=RANDOM_SIZES, pad=pad, stride=stride))
    generator = np.random.default_rng(seed)
    first, second = (generator.integers(-9, 9, o.elements) for o in nest.operands[:2])
    expected = executed(nest, first, second)
    assert expected.any()
    assert np.array_equal(executed(nest.after(sequence(nest, choice)), first, second), expected)
