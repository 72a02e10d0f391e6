"""Packing blocks, against what each task reads of a packed operand."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cpembed.codegen.nest import Nest
from cpembed.codegen.packing import rows_of
from cpembed.codegen.per_thread_packing import PackingBlocks, RowAccess, plan_packing, row_accesses
from cpembed.codegen.program_nest import in_points
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.targets.cpu.target import schedule_space
from cpembed.targets.cpu.variants import with_variants
from cpembed.transform.program import DerivedProgram, PackedOperand

PACKED_IN = (0.0, 0.05, 1.0)
LAYERS = [
    ("amx_int8", "conv2d n=2 c=3 h=19 w=37 k=64 r=3 s=3 pad=1 layout=NHWC"),
    ("amx_int8", "conv2d n=1 c=64 h=24 w=20 k=64 r=3 s=3 pad=1 layout=NHWC"),
    ("avx512_vnni", "conv2d n=3 c=5 h=9 w=21 k=16 r=3 s=3 pad=1 stride=2"),
]


def packed(target: str, layer: str) -> Iterator[tuple[DerivedProgram, Nest, PackedOperand]]:
    """Programs that pack their image, on some schedules each."""
    spec = hardware_spec(target)
    ranked = solve(
        workload(layer.split(), target=spec), spec, constraints="in_place_padded", top=4
    ).embeddings
    for item in with_variants(ranked, spec):
        program = item.candidate.program
        operand = program.operand("I")
        if operand.is_identity:
            continue
        space = schedule_space(program, spec)
        for _, knobs in space.ranked()[:6]:
            yield program, space.applied(knobs), operand


def rows_read(
    program: DerivedProgram, nest: Nest, operand: PackedOperand, access: RowAccess, task: int
) -> set[int]:
    """Rows that a task reads, by the operand's own access."""
    starts: dict[str, range] = {}
    inside = nest.task_count
    for loop in nest.tasks:
        inside //= loop.count
        at = min(task // inside % loop.count * loop.tile, max(0, loop.extent - loop.tile))
        starts[loop.origin] = range(at, at + loop.tile)
    dimensions = 1 + next(
        n for n in range(len(operand.shape)) if _rows(operand, n + 1) == access.row_count
    )
    rows = {0}
    for position in range(dimensions):
        index = operand.access[position]
        for overlap in program.overlaps:
            if overlap.loop in starts:
                index = in_points(index, overlap)
        ranges = [starts.get(name, range(program.extents.get(name, 1))) for name in index.iterators]
        places = {
            int(index.evaluate(dict(zip(index.iterators, point, strict=True))))
            for point in itertools.product(*ranges)
        }
        rows = {row * operand.shape[position] + place for row in rows for place in places}
    return rows


def _rows(operand: PackedOperand, dimensions: int) -> int:
    rows = 1
    for extent in operand.shape[:dimensions]:
        rows *= extent
    return rows


def value(text: str, **names: int) -> int:
    """Evaluate an index of a kernel's text."""
    assert re.fullmatch(r"[\w\s.,()*/%+-]*", text)
    return int(eval(text, {"T": SimpleNamespace(min=min, max=max)}, dict(names)))


@pytest.mark.quick(1)
@pytest.mark.parametrize("target, layer", LAYERS)
def test_which_rows_each_task_reads(target: str, layer: str) -> None:
    accesses = 0
    for program, nest, operand in packed(target, layer):
        for access in row_accesses(program, operand, nest, rows_of(operand)):
            accesses += 1
            for task in range(0, nest.task_count, 1 + nest.task_count // 40):
                first = access.first_row(task)
                assert value(access.first_row_text("at"), at=task) == first
                read = rows_read(program, nest, operand, access, task)
                assert (min(read), max(read)) == (first, first + access.span - 1)
    assert accesses


@pytest.mark.quick(1)
@pytest.mark.parametrize("target, layer", LAYERS)
@pytest.mark.parametrize("chunks", [1, 3])
def test_packing_blocks_are_all_tasks_in_order(target: str, layer: str, chunks: int) -> None:
    for program, nest, operand in packed(target, layer):
        for access in row_accesses(program, operand, nest, rows_of(operand)):
            for more in (0, 2, access.count):
                blocks = PackingBlocks.longest(access, chunks, access.span + more * access.step)
                assert blocks is not None
                longest = 1 if access.span == access.step else min(access.count, 1 + more)
                assert longest / 2 < blocks.points <= longest
                check(blocks, nest.task_count)
            assert PackingBlocks.longest(access, chunks, access.span - 1) is None
            check(PackingBlocks(access, chunks, 0), nest.task_count)


def check(blocks: PackingBlocks, total: int) -> None:
    """Each chunk's blocks are its tasks, one after the other, and read no more than they say."""
    access, most = blocks.access, 0
    for chunk in range(blocks.chunks):
        mine = str(chunk * total // blocks.chunks), str((chunk + 1) * total // blocks.chunks)
        numbers = [value(text, chunk=chunk) for text in blocks.numbers("chunk", mine)]
        expected = int(mine[0])
        for number in range(*numbers):
            first, end = (value(text, block=number) for text in blocks.tasks("block", mine))
            assert first == expected < end
            expected = end
            low, high = (value(text) for text in blocks.packing_rows(str(first), str(end)))
            assert low == access.first_row(first) * access.each
            last = min(access.row_count, access.first_row(end - 1) + access.span)
            assert high == last * access.each
            most = max(most, last - access.first_row(first))
        assert expected == int(mine[1])
    assert most <= blocks.rows


def test_what_nobody_else_reads_is_packed_in_the_nearest_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows take 21 times the image, of which a row at a time is packed."""
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    target, layer = LAYERS[0]
    spec = hardware_spec(target)
    ranked = solve(
        workload(layer.split(), target=spec), spec, constraints="in_place_padded", top=4
    ).embeddings
    windows = next(i for i in with_variants(ranked, spec) if "windows" in i.constraints)
    program = windows.candidate.program
    space = schedule_space(program, spec)
    rows_outermost = next(
        k for _, k in space.ranked() if not k.columns_outermost and not k.cache_tiles
    )
    nest = replace(space.applied(rows_outermost), threads=1)
    packing = plan_packing(program, nest, (24 << 10, 512 << 10), PACKED_IN)
    assert packing is not None
    assert packing.blocks is not None
    assert packing.bytes <= 24 << 10 < packing.operand.elements
    assert packing.share() == pytest.approx(1.0)
    # Where a cache is as large as you like, rows of a window are packed once.
    roomy = plan_packing(program, nest, (1 << 29, 1 << 28), PACKED_IN)
    assert roomy is not None
    assert roomy.share() == pytest.approx(1.0)
