"""Steps that see nothing but padding: which they are, by looking at every element."""

from __future__ import annotations

import itertools
import random

import pytest

from cpembed.api.solve import hardware_spec, solve, workload
from cpembed.backends.contract import Knobs
from cpembed.backends.kernel import schedule_space
from cpembed.backends.margins import bodies, executed_share, guarded, is_alike, readable
from cpembed.backends.nest import Nest
from cpembed.backends.x86.features import missing_features
from cpembed.backends.x86.register_blocks import apply_knobs
from tests.running import check_schedules

VNNI, VECTOR = hardware_spec("avx512_vnni"), hardware_spec("avx512_int8")


def applied(words: str, **blocks: int) -> Nest:
    given = workload(words, target=VNNI)
    program = solve(given, VNNI, top=1).embeddings[0].candidate.program
    named = {name.replace("_", "."): size for name, size in blocks.items()}
    return schedule_space(program, VNNI).applied(Knobs(named))


@pytest.mark.parametrize(
    "words, blocks, share",
    [
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=3 s=3 pad=1 layout=NHWC", {"q_o": 7}, 19 / 21),
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=3 s=3 pad=1 layout=NHWC", {"p_o": 7}, 19 / 21),
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=3 s=3 pad=1 layout=NHWC", {}, (19 / 21) ** 2),
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=3 s=3 pad=1 layout=NHWC", {"p_o": 7, "q_o": 2}, 1.0),
        ("conv2d n=1 c=16 h=9 w=7 k=16 r=3 s=3 layout=NHWC", {}, 1.0),
        # Of a filter of one tap, three of seven rows and of seven columns.
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=1 s=1 stride=2 pad=3 layout=NHWC", {"q_o": 7}, 3 / 7),
        ("conv2d n=1 c=16 h=7 w=7 k=16 r=1 s=1 stride=2 pad=3 layout=NHWC", {}, 9 / 49),
        # Four rows of results see rows -2 and -1, 0 and 1, 2 and 3, 4 and 5, of four that exist.
        ("conv2d n=1 c=16 h=4 w=9 k=16 r=2 s=1 stride=2 pad=2 layout=NHWC", {"q_o": 5}, 1 / 2),
    ],
)
def test_share_of_the_steps(words: str, blocks: dict[str, int], share: float) -> None:
    nest = applied(words, **blocks)
    assert executed_share(nest) == pytest.approx(share)
    assert executed_share(nest) == pytest.approx(_counted(nest))


def _counted(nest: Nest) -> float:
    """By all points of each task and step."""
    starts = [[min(n * t.block, t.extent - t.block) for n in range(t.count)] for t in nest.tasks]
    steps = [range(loop.extent) for loop in nest.reductions]
    inner = [range(loop.extent) for loop in nest.inner]
    names = [loop.name for loop in (*nest.tasks, *nest.reductions)]
    seen = total = 0
    for point in itertools.product(*starts, *steps):
        at = dict(zip(names, point, strict=True))
        total += 1
        for margin in nest.margins:
            values = [
                margin.access.evaluate(at | dict(zip((o.name for o in nest.inner), p, strict=True)))
                for p in itertools.product(*inner)
            ]
            if not any(0 <= value < margin.elements for value in values):
                break
        else:
            seen += 1
    return seen / total


def test_a_condition_is_where_its_loop_is_and_only_where_it_can_fail() -> None:
    nest = applied("conv2d n=1 c=16 h=7 w=7 k=16 r=3 s=1 pad=1 layout=NHWC", q_o=7)
    found = [guarded(nest, nest.reductions[:n], {}) for n in range(len(nest.reductions) + 1)]
    assert sum(map(len, found)) == 1
    nest = applied("conv2d n=1 c=16 h=9 w=9 k=16 r=3 s=3 layout=NHWC")
    assert not nest.margins


@pytest.mark.skipif(bool(missing_features(VNNI)), reason=f"missing: {missing_features(VNNI)}")
@pytest.mark.parametrize("seed", range(8))
def test_kernels_that_leave_out_steps_are_right(seed: int) -> None:
    rng = random.Random(seed)
    r, s, dilation = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 3)
    words = (
        f"conv2d n=1 c={rng.randint(1, 9)} h={rng.randint(3, 9)} w={rng.randint(3, 9)} "
        f"k={rng.randint(1, 20)} r={r} s={s} pad={max(r, s) * dilation // 2 + rng.randint(0, 1)} "
        f"stride={rng.randint(1, 3)} dilation={dilation} layout={rng.choice(['NCHW', 'NHWC'])}"
    )
    check_schedules(words, VNNI, rng, 2)


def unpadded(words: str, blocks: dict[str, int]) -> Nest | None:
    given = workload(words, target=VECTOR)
    program = solve(given, VECTOR, top=1).embeddings[0].candidate.program
    space = schedule_space(program, VECTOR)
    if space.unpadded is None:
        return None
    return apply_knobs(space.unpadded, space.model, Knobs(blocks))


@pytest.mark.parametrize(
    "words, columns",
    [
        ("depthwise n=1 c=16 h=9 w=7 r=3 s=3 pad=1 layout=NHWC", 7),
        ("depthwise n=2 c=16 h=3 w=8 r=1 s=5 pad=2 layout=NHWC", 8),
        ("depthwise n=1 c=16 h=9 w=13 r=3 s=3 pad=2 stride=2 dilation=2 layout=NHWC", 7),
        ("depthwise n=1 c=16 h=8 w=3 r=5 s=3 pad=4 layout=NHWC", 9),
    ],
)
def test_an_unpadded_image_is_read_where_it_is(words: str, columns: int) -> None:
    """Each task has a body, in which exactly the elements that exist are read; the other one, if
    there is one, is of tasks that need no condition of the rows."""
    nest = unpadded(words, {"q.o": columns})
    assert nest is not None
    assert is_alike(nest)
    found = bodies(nest)
    starts = [[min(n * t.block, t.extent - t.block) for n in range(t.count)] for t in nest.tasks]
    loops = (*nest.reductions, *nest.inner)
    steps = [range(loop.extent if not loop.name.startswith("lane") else 1) for loop in loops]
    same = {loop.name: loop.name for loop in nest.reductions}
    chosen: set[str] = set()
    for place in itertools.product(*starts):
        at = dict(zip((task.name for task in nest.tasks), place, strict=True))
        condition, body = next((c, body) for c, body in found if not c or eval(c, {}, at))
        chosen.add(condition)
        for step in itertools.product(*steps):
            point = at | dict(zip((loop.name for loop in loops), step, strict=True))
            inside = all(
                0 <= margin.access.evaluate(point | {"lane_y": 0}) < margin.elements
                for margin in nest.margins
            )
            conditions = [readable(body) or "True"]
            for number in range(len(nest.reductions) + 1):
                opened = nest.reductions[:number]
                conditions += [c[3:-1] for c in guarded(body, opened, same)]
            assert inside == all(eval(c, {}, point) for c in conditions), (point, conditions)
    assert chosen == {condition for condition, _ in found}


def test_what_is_not_read_as_it_came() -> None:
    wide = unpadded("depthwise n=1 c=16 h=9 w=12 r=3 s=3 pad=1 layout=NHWC", {"q.o": 4})
    assert wide is not None
    assert not is_alike(wide)
    blocked = "depthwise n=1 c=20 h=9 w=11 r=3 s=3 pad=1 layout=NHWC"
    assert unpadded(blocked, {}) is None
    assert unpadded("depthwise n=1 c=16 h=9 w=11 r=3 s=3 layout=NHWC", {}) is None
    given = workload("conv2d n=1 c=16 h=7 w=7 k=16 r=3 s=3 pad=1 layout=NHWC", target=VNNI)
    program = solve(given, VNNI, top=1).embeddings[0].candidate.program
    assert schedule_space(program, VNNI).unpadded is None
