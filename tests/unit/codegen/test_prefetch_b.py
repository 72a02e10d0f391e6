"""Prefetch of B: all lines of a tile of columns while the one before is multiplied, where they are
far."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from cpembed.codegen.emit import kernel_plan
from cpembed.codegen.instruction import InstructionText
from cpembed.codegen.nest import Nest, Prefetch, TileLoop
from cpembed.codegen.plan import Knobs
from cpembed.codegen.prefetch import ahead, prefetch_b, tasks_in_turn, turn
from cpembed.codegen.traffic import Reuse
from cpembed.driver.named import hardware_spec
from cpembed.hw.instruction import HardwareSpec
from tests.unit.codegen.prefetched import lines_of, nest_of, prefetched_places, read_lines, verified

VNNI, BF16 = hardware_spec("avx512_vnni"), hardware_spec("avx512_bf16")
CASES = [
    # As many tasks as columns, more of them, fewer.
    (VNNI, "gemm m=12 n=128 k=64", Knobs({"m.o": 4, "n.o": 3})),
    (VNNI, "gemm m=40 n=256 k=64", Knobs({"m.o": 4, "n.o": 3})),
    (VNNI, "gemm m=12 n=256 k=64", Knobs({"m.o": 6, "n.o": 3})),
    (BF16, "batched_gemm b=2 m=24 n=64 k=64", Knobs({"m.o": 4, "n.o": 2})),
    (VNNI, "conv2d n=1 c=32 h=9 w=9 k=96 r=3 s=3 layout=NHWC", Knobs({"q.o": 7, "k.o": 2})),
]


@pytest.mark.parametrize("spec, words, knobs", CASES)
def test_tasks_ask_for_all_of_the_next_block(spec: HardwareSpec, words: str, knobs: Knobs) -> None:
    nest = nest_of(spec, words, knobs)
    second, tasks = nest.operands[1], tasks_in_turn(nest)
    assert 1 < tasks < nest.task_count
    last = {loop.name: loop.start(loop.count - 1) for loop in nest.tasks}
    named = {ahead(name, tasks): at for name, at in last.items()}
    places = [
        at
        for step in itertools.product(*(range(loop.extent) for loop in nest.reductions))
        for number in range(tasks)
        for at in prefetched_places(Prefetch.B, nest, step, {**named, turn(tasks): number})
    ]
    assert lines_of(nest, second, places) == read_lines(nest, second, last)


@pytest.mark.parametrize("spec, words, knobs", CASES)
def test_so_many_tasks_in_turn_multiply_the_same_columns(
    spec: HardwareSpec, words: str, knobs: Knobs
) -> None:
    nest = nest_of(spec, words, knobs)
    second = nest.operands[1]
    blocks = [
        second.access.evaluate(dict.fromkeys(second.access.iterators, 0) | place)
        for place in _places(nest.tasks)
    ]
    lengths = {len(list(same)) for _, same in itertools.groupby(blocks)}
    assert lengths == {tasks_in_turn(nest)}


def _places(tasks: tuple[TileLoop, ...]) -> list[dict[str, int]]:
    starts = [[(task.name, task.start(at)) for at in range(task.count)] for task in tasks]
    return [dict(place) for place in itertools.product(*starts)]


def test_only_tiles_from_afar_that_several_tasks_multiply() -> None:
    knobs = Knobs({"m.o": 6, "n.o": 3})

    def is_annotated(nest: Nest, cache_bytes: int = 128 << 10) -> bool:
        return Prefetch.B in prefetch_b(nest, Reuse(nest), cache_bytes, 1 / 8).prefetched

    nest = nest_of(VNNI, "gemm m=48 n=512 k=512", knobs)
    assert is_annotated(nest)
    assert not is_annotated(nest, 16 << 20)
    assert not is_annotated(nest, 0), "unknown"
    assert not is_annotated(nest_of(VNNI, "gemm m=6 n=512 k=512", knobs)), "one task"
    assert not is_annotated(nest_of(VNNI, "gemm m=48 n=48 k=4096", knobs)), "one tile"
    inside = replace(knobs, loop_order="rows")
    assert not is_annotated(nest_of(VNNI, "gemm m=48 n=512 k=512", inside))
    assert not is_annotated(nest_of(VNNI, "gemm m=4800 n=512 k=512", knobs)), "seldom"


KERNELS = [
    *CASES,
    # A block of fewer columns; panels of rows; padding; parts of sums.
    (VNNI, "gemm m=22 n=80 k=512", Knobs({"m.o": 6, "n.o": 3})),
    (VNNI, "gemm m=40 n=96 k=512", Knobs({"m.o": 5, "n.o": 2}, cache_tiles={"m.o": 10})),
    (VNNI, "conv2d n=1 c=64 h=9 w=9 k=64 r=3 s=3 pad=1", Knobs({"q.o": 2, "p.o": 2, "k.o": 2})),
    (VNNI, "gemm m=20 n=64 k=4096", Knobs({"m.o": 4, "n.o": 2}, split_k=2)),
]


@pytest.mark.quick(4)
@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("spec, words, knobs", KERNELS)
def test_kernels_that_ask_compute_the_same(
    spec: HardwareSpec,
    words: str,
    knobs: Knobs,
    threads: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also the last block, which has none after it."""
    scheduled, built = verified(spec, words, knobs, threads, monkeypatch)
    assert Prefetch.B in scheduled.prefetched
    assert "prefetcht1" in built.assembly()


def test_the_tasks_of_the_next_block_are_named() -> None:
    nest = nest_of(*CASES[1])
    tasks = tasks_in_turn(nest)
    nest = replace(nest, prefetched=frozenset({Prefetch.B}))
    source = kernel_plan(nest, InstructionText("test")).source
    for loop in nest.tasks:
        (bound,) = re.findall(rf"{ahead(loop.name, tasks)} = (.*)", source)
        assert f"(T.min(task + {tasks}, " in bound
    assert f"{turn(tasks)} = T.axis.spatial({tasks}, task % {tasks})" in source
