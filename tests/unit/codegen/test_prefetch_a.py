"""Prefetch of A, a task ahead: all lines that the next task reads, where they are far."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from cpembed.codegen.emit import kernel_plan
from cpembed.codegen.instruction import InstructionText
from cpembed.codegen.nest import Nest, Prefetch
from cpembed.codegen.plan import Knobs
from cpembed.codegen.prefetch import ahead, prefetch_a
from cpembed.codegen.traffic import Reuse
from cpembed.driver.named import hardware_spec
from cpembed.hw.instruction import HardwareSpec
from tests.unit.codegen.prefetched import lines_of, nest_of, prefetched_places, read_lines, verified

VNNI, BF16 = hardware_spec("avx512_vnni"), hardware_spec("avx512_bf16")
CASES = [
    (VNNI, "gemm m=40 n=64 k=512", {"m.o": 5, "n.o": 2}),
    (VNNI, "gemm m=40 n=64 k=512", {"m.o": 10, "n.o": 1}),
    (BF16, "batched_gemm b=3 m=24 n=32 k=64", {"m.o": 4, "n.o": 2}),
    (VNNI, "conv2d n=1 c=64 h=12 w=12 k=32 r=1 s=1 layout=NHWC", {"q.o": 4, "p.o": 3, "k.o": 1}),
    (VNNI, "conv2d n=1 c=64 h=9 w=9 k=32 r=3 s=3 stride=2 layout=NHWC", {"q.o": 2, "k.o": 2}),
    # Half a line a pixel: the steps along it do not suffice for a row each.
    (VNNI, "conv2d n=2 c=32 h=12 w=12 k=16 r=1 s=1 layout=NHWC", {"q.o": 12}),
]


@pytest.mark.parametrize("spec, words, blocks", CASES)
def test_a_task_asks_for_what_the_next_one_reads(
    spec: HardwareSpec, words: str, blocks: dict[str, int]
) -> None:
    nest = nest_of(spec, words, Knobs(blocks))
    first = nest.operands[0]
    assert any(first.stride(loop.name) for loop in nest.steps), "several rows"
    last = {loop.name: loop.start(loop.count - 1) for loop in nest.tasks}
    named = {ahead(name, 1): at for name, at in last.items()}
    places = [
        at
        for step in itertools.product(*(range(loop.extent) for loop in nest.reductions))
        for at in prefetched_places(Prefetch.A, nest, step, named)
    ]
    assert lines_of(nest, first, places) == read_lines(nest, first, last)


def test_only_what_is_far_and_not_seldom() -> None:
    knobs = Knobs({"m.o": 5, "n.o": 2})

    def is_annotated(nest: Nest, cache_bytes: int) -> bool:
        return Prefetch.A in prefetch_a(nest, Reuse(nest), cache_bytes, 1 / 16).prefetched

    nest = nest_of(VNNI, "gemm m=400 n=64 k=512", knobs)
    assert is_annotated(nest, 64 << 10)
    assert not is_annotated(nest, 16 << 20)
    assert not is_annotated(nest, 0), "unknown"
    # The same rows for many columns, and these inside.
    wide = nest_of(VNNI, "gemm m=40 n=2048 k=512", knobs)
    columns = replace(wide, tasks=tuple(sorted(wide.tasks, key=lambda o: o.origin != "m.o")))
    assert not is_annotated(columns, 64 << 10)


KERNELS = [
    *((spec, words, Knobs(blocks)) for spec, words, blocks in CASES),
    # Padding, which whole calls leave out or pack; a block of fewer rows; panels; parts of sums.
    (
        VNNI,
        "conv2d n=1 c=64 h=14 w=14 k=32 r=3 s=3 stride=2 pad=1 layout=NHWC",
        Knobs({"q.o": 3, "p.o": 1}),
    ),
    (VNNI, "conv2d n=1 c=64 h=9 w=9 k=32 r=3 s=3 pad=1", Knobs({"q.o": 2, "p.o": 2})),
    (VNNI, "gemm m=22 n=64 k=512", Knobs({"m.o": 6, "n.o": 2})),
    (VNNI, "gemm m=40 n=64 k=512", Knobs({"m.o": 5, "n.o": 2}, cache_tiles={"m.o": 10})),
    (VNNI, "gemm m=20 n=16 k=4096", Knobs({"m.o": 4}, split_k=2)),
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
    """Also of the last task, which has none after it."""
    _, built = verified(spec, words, knobs, threads, monkeypatch)
    assert "prefetcht1" in built.assembly()
    # Lines of results, where a task has whole ones of its own.
    assert "prefetchw" in built.assembly() or (spec, words, dict(knobs.register_tiles)) not in CASES


def test_the_next_task_is_named() -> None:
    spec, words, blocks = CASES[0]
    nest = nest_of(spec, words, Knobs(blocks))
    nest = replace(nest, prefetched=frozenset({Prefetch.A}))
    source = kernel_plan(nest, InstructionText("test")).source
    for loop in nest.tasks:
        (bound,) = re.findall(rf"{ahead(loop.name, 1)} = (.*)", source)
        assert "(T.min(task + 1, " in bound
