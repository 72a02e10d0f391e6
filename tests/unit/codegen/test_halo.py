"""Steps that see only padding: which they are, by looking at every element."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from cpembed.codegen.halo import executed_share, guarded, index_sets, reads_no_padding
from cpembed.codegen.nest import Nest
from cpembed.codegen.plan import Knobs
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.hw.instruction import HardwareSpec
from cpembed.targets.cpu.schedules import apply_knobs
from cpembed.targets.cpu.target import schedule_space
from tests.features import needs
from tests.running import check_schedules

VNNI, VECTOR = hardware_spec("avx512_vnni"), hardware_spec("avx512_int8")
BF16 = hardware_spec("avx512_bf16")


def applied(words: str, **blocks: int) -> Nest:
    layer = workload(words, target=VNNI)
    program = (
        solve(layer, VNNI, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    named = {name.replace("_", "."): size for name, size in blocks.items()}
    return schedule_space(program, VNNI).applied(Knobs(named))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "words, blocks, share",
    [
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=3 s=3 pad=1 layout=NHWC", {"q_o": 7}, (19 / 21) ** 2),
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=3 s=3 pad=1 layout=NHWC", {"p_o": 7}, (19 / 21) ** 2),
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=3 s=3 pad=1 layout=NHWC", {}, (19 / 21) ** 2),
        # A filter's row of 40 is not written down for each step: columns are computed on padding.
        ("conv2d n=1 c=16 h=1 w=14 k=16 r=1 s=40 pad=20 layout=NHWC", {"q_o": 7}, 1 / 82),
        ("conv2d n=1 c=16 h=9 w=7 k=16 r=3 s=3 layout=NHWC", {}, 1.0),
        # Of a filter of one tap, three of seven rows and of seven columns.
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=1 s=1 stride=2 pad=3 layout=NHWC", {"q_o": 7}, 9 / 49),
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=1 s=1 stride=2 pad=3 layout=NHWC", {}, 9 / 49),
        # Four rows of results see rows -2 and -1, 0 and 1, 2 and 3, 4 and 5, of four that exist.
        ("conv2d n=1 c=16 h=4 w=9 k=16 r=2 s=1 stride=2 pad=2 layout=NHWC", {"q_o": 5}, 2 / 5),
    ],
)
def test_share_of_the_steps(words: str, blocks: dict[str, int], share: float) -> None:
    nest = applied(words, **blocks)
    assert executed_share(nest) == pytest.approx(share)
    assert executed_share(nest) == pytest.approx(_counted(nest))


def _counted(nest: Nest) -> float:
    """Count products by the body that each task has, over all points of each step."""
    sets = index_sets(nest)
    starts = [[task.start(number) for number in range(task.count)] for task in nest.tasks]
    read = {name for coordinate in nest.halo for name in coordinate.access.iterators}
    inner = [loop for loop in nest.inner if loop not in nest.steps and loop.name in read]
    lanes = [
        dict(zip((loop.name for loop in inner), at, strict=True))
        for at in itertools.product(*(range(loop.extent) for loop in inner))
    ]
    products = 0
    conditions: set[str] = set()
    for place in itertools.product(*starts):
        at = dict(zip((task.name for task in nest.tasks), place, strict=True))
        body = next(b for b in sets if not b.condition or eval(b.condition, {}, at))
        conditions.add(body.condition)
        loops = (*nest.reductions, *body.nest.steps)
        same = {loop.name: loop.name for loop in loops}
        for step in itertools.product(*(range(loop.extent) for loop in loops)):
            point = at | dict(zip((loop.name for loop in loops), step, strict=True))
            inside = all(
                any(
                    coordinate.access.evaluate(point | lane) in range(coordinate.elements)
                    for lane in lanes
                )
                for coordinate in nest.halo
            )
            executed = all(
                eval(condition[3:-1], {}, point)
                for number in range(len(loops) + 1)
                for condition in guarded(body.nest, loops[:number], same)
            )
            assert executed >= inside, point
            assert executed == inside or not reads_no_padding(nest), point
            products += executed
    assert conditions == {body.condition for body in sets}
    points = math.prod(loop.extent for loop in (*nest.reductions, *nest.steps))
    return products / points / math.prod(map(len, starts))


def test_a_condition_is_where_its_loop_is_and_only_where_it_can_fail() -> None:
    nest = applied("conv2d n=1 c=16 h=7 w=7 k=16 r=3 s=1 pad=1 layout=NHWC", q_o=7)
    headers = [guarded(nest, nest.reductions[:n], {}) for n in range(len(nest.reductions) + 1)]
    assert sum(map(len, headers)) == 1
    nest = applied("conv2d n=1 c=16 h=9 w=9 k=16 r=3 s=3 layout=NHWC")
    assert not nest.halo


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "target",
    [pytest.param(spec, marks=needs(spec)) for spec in (VNNI, BF16)],
)
def test_kernels_that_leave_out_steps_are_right(target: HardwareSpec, seed: int) -> None:
    """Half of them have channels that no padding completes, so that images can be read without."""
    rng = random.Random(seed)
    r, s, dilation = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 3)
    c = 4 * rng.randint(1, 3) if seed % 2 else rng.randint(1, 9)
    words = (
        f"conv2d n=1 c={c} h={rng.randint(3, 9)} w={rng.randint(3, 19)} "
        f"k={rng.randint(1, 40)} r={r} s={s} pad={max(r, s) * dilation // 2 + rng.randint(0, 1)} "
        f"stride={rng.randint(1, 3)} dilation={dilation} "
        f"layout={'NHWC' if seed % 2 else rng.choice(['NCHW', 'NHWC'])}"
    )
    check_schedules(words, target, rng, 3)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "target, words, blocks, kinds",
    [
        (VECTOR, "depthwise n=1 c=16 h=9 w=7 r=3 s=3 pad=1 layout=NHWC", {"q.o": 7}, 3),
        (VECTOR, "depthwise n=1 c=16 h=9 w=12 r=3 s=3 pad=1 layout=NHWC", {"q.o": 4}, 9),
        (VECTOR, "depthwise n=2 c=16 h=3 w=8 r=1 s=5 pad=2 layout=NHWC", {"q.o": 8}, 5),
        (VECTOR, "depthwise n=1 c=16 h=9 w=13 r=3 s=3 pad=2 stride=2 dilation=2 layout=NHWC",
         {"q.o": 7}, 3),
        (VECTOR, "depthwise n=1 c=16 h=8 w=3 r=5 s=3 pad=4 layout=NHWC", {"q.o": 9}, 9),
        (VECTOR, "depthwise n=1 c=16 h=9 w=11 r=3 s=3 pad=1 layout=NHWC", {"q.o": 4}, 9),
        (VNNI, "conv2d n=1 c=16 h=7 w=9 k=16 r=3 s=3 pad=1 layout=NHWC", {"q.o": 3}, 3),
        (VNNI, "conv2d n=1 c=16 h=7 w=9 k=16 r=3 s=3 pad=1 layout=NHWC", {"p.o": 7}, 1),
        (VNNI, "conv2d n=1 c=16 h=7 w=9 k=16 r=3 s=3 pad=1 layout=NHWC", {"p.o": 2, "q.o": 3}, 9),
        (VNNI, "conv2d n=1 c=16 h=7 w=7 k=32 r=1 s=1 stride=2 pad=3 layout=NHWC",
         {"q.o": 2, "k.o": 2}, 4),
    ],
)  # fmt: skip
def test_an_unpadded_image_is_read_where_it_is(
    target: HardwareSpec, words: str, blocks: dict[str, int], kinds: int
) -> None:
    """Each task has a body, in which exactly the elements that exist are read."""
    nest = unpadded(target, words, blocks)
    assert nest is not None
    assert reads_no_padding(nest)
    assert len(index_sets(nest)) == kinds
    assert _counted(nest) == pytest.approx(executed_share(nest))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "words, blocks, kinds",
    [
        # 13 columns as 7 and 6; as 5, 4 and 4, of which the last one is at a border too.
        ("conv2d n=1 c=16 h=7 w=13 k=16 r=1 s=1 layout=NHWC", {"q.o": 7}, 2),
        ("conv2d n=1 c=16 h=7 w=13 k=16 r=3 s=3 pad=1 layout=NHWC", {"q.o": 7}, 2),
        ("conv2d n=1 c=16 h=7 w=13 k=16 r=3 s=3 pad=1 layout=NHWC", {"q.o": 5}, 3),
        ("conv2d n=1 c=16 h=7 w=13 k=16 r=3 s=3 pad=1 layout=NHWC", {"q.o": 2}, 3),
        ("conv2d n=1 c=16 h=5 w=13 k=80 r=1 s=1 layout=NHWC", {"k.o": 2}, 2),
        # One loop has shorter blocks, the one that gains most.
        ("conv2d n=1 c=16 h=5 w=13 k=16 r=1 s=1 layout=NHWC", {"p.o": 2, "q.o": 7}, 2),
    ],
)
def test_blocks_of_which_some_are_shorter(words: str, blocks: dict[str, int], kinds: int) -> None:
    nest = applied(words, **{name.replace(".", "_"): size for name, size in blocks.items()})
    assert len(index_sets(nest)) == kinds
    uneven = [task for task in nest.tasks if task.remainder]
    assert len(uneven) == 1
    for task in uneven:
        counts = [
            task.start(number) + point
            for number in range(task.count)
            for point in range(task.tile - (number >= task.count - task.remainder))
        ]
        assert counts == list(range(task.extent))
        starts = [eval(task.start_text(str(n)), {"T": _Min}) for n in range(task.count)]
        assert starts == [task.start(number) for number in range(task.count)]
    assert _counted(nest) == pytest.approx(executed_share(nest))


class _Min:
    """Stand-in for ``T`` in the text of kernels."""

    min = min


def test_what_cannot_be_a_point_shorter_is_moved_back() -> None:
    nest = applied("conv2d n=1 c=16 h=5 w=9 k=16 r=1 s=1 layout=NHWC", q_o=7)
    assert not any(task.remainder for task in nest.tasks)
    assert [task.start(1) for task in nest.tasks if task.tile == 7] == [2]


def unpadded(target: HardwareSpec, words: str, blocks: dict[str, int]) -> Nest | None:
    layer = workload(words, target=target)
    program = (
        solve(layer, target, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    space = schedule_space(program, target)
    return (
        None if space.unpadded is None else apply_knobs(space.unpadded, space.model, Knobs(blocks))
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "target, words, blocks",
    [
        (VECTOR, "depthwise n=1 c=20 h=9 w=11 r=3 s=3 pad=1 layout=NHWC", {"q.o": 4}),
        (VECTOR, "depthwise n=1 c=16 h=1 w=40 r=1 s=33 pad=16 layout=NHWC", {"q.o": 14}),
        # Lanes that are partly padding, a border of each column, too much to be written down.
        (VNNI, "conv2d n=1 c=18 h=7 w=9 k=16 r=3 s=3 pad=1 layout=NHWC", {"q.o": 3}),
        (VECTOR, "depthwise n=1 c=16 h=9 w=9 r=3 s=3 pad=19 layout=NHWC", {"q.o": 2}),
        (VNNI, "conv2d n=1 c=16 h=2 w=20 k=16 r=1 s=40 pad=20 layout=NHWC", {"q.o": 7}),
    ],
)
def test_what_is_read_from_a_copy(target: HardwareSpec, words: str, blocks: dict[str, int]) -> None:
    nest = unpadded(target, words, blocks)
    assert nest is None or not reads_no_padding(nest)
    if nest is not None:
        assert _counted(nest) == pytest.approx(executed_share(nest))


def test_what_has_no_padding_is_read_in_place() -> None:
    assert unpadded(VECTOR, "depthwise n=1 c=16 h=9 w=11 r=3 s=3 layout=NHWC", {}) is None
