"""Cache traffic by formula beside a simulated cache."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import replace

import pytest

from cpembed.codegen.nest import KernelOperand, Nest, TileLoop
from cpembed.codegen.traffic import USED_SHARE, Reuse, touched_lines
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import Loop

LINE_BYTES = 64


def operand(parameter: str, dtype: str, terms: dict[str, int]) -> KernelOperand:
    return KernelOperand(
        parameter, dtype, 1 << 20, IndexExpr.sum([IndexTerm(n, c) for n, c in terms.items()])
    )


def gemm(m: int, n: int, k: int, *, columns_outermost: bool = True, block: int = 1) -> Nest:
    """C[m, n] += A[m, k] * B[n, k], all in bytes, k a row of 64."""
    loops = (TileLoop("n", n, block), TileLoop("m", m))
    return Nest(
        loops if columns_outermost else loops[::-1],
        (Loop("k", k, AxisKind.REDUCTION),),
        (Loop("n_step", block, AxisKind.SPATIAL), Loop("lane", 64, AxisKind.REDUCTION)),
        (
            operand("A", "int8", {"m": 64 * k, "k": 64, "lane": 1}),
            operand("B", "int8", {"n": 64 * k, "n_step": 64 * k, "k": 64, "lane": 1}),
            operand("C", "int8", {"m": 64 * n, "n": 64, "n_step": 64}),
        ),
    )


def simulated(nest: Nest, lines: int, bypassing: int | None = None) -> list[int]:
    """Misses by operand of the second execution, of a fully associative cache that evicts what was
    used least recently; operand ``without`` goes past it."""
    loops = [*nest.reductions, *nest.inner]
    names = [task.name for task in nest.tasks] + [loop.name for loop in loops]
    starts = [
        [min(i * task.tile, task.extent - task.tile) for i in range(task.count)]
        for task in nest.tasks
    ]
    cache: OrderedDict[tuple[int, int], None] = OrderedDict()
    misses = [0, 0, 0]
    for execution in range(2):
        misses = [0, 0, 0]
        for values in itertools.product(*starts, *(range(loop.extent) for loop in loops)):
            at = dict(zip(names, values, strict=True))
            for number, accessed in enumerate(nest.operands):
                if number == bypassing:
                    continue
                line = number, int(accessed.access.evaluate(at)) // LINE_BYTES
                if line in cache:
                    cache.move_to_end(line)
                    continue
                misses[number] += execution
                cache[line] = None
                if len(cache) > lines:
                    cache.popitem(last=False)
    return misses


@pytest.mark.parametrize("columns_outermost", [True, False])
@pytest.mark.parametrize("lines", [8, 12, 20, 40, 75, 200])
def test_traffic_is_that_of_a_simulated_cache(lines: int, columns_outermost: bool) -> None:
    nest = gemm(6, 8, 4, columns_outermost=columns_outermost, block=2)
    modelled = Reuse(nest).traffic(int(lines * LINE_BYTES / USED_SHARE) + 1)
    for lines_in, misses in zip(modelled, simulated(nest, lines), strict=True):
        assert lines_in == pytest.approx(misses, rel=0.5, abs=8)


@pytest.mark.parametrize("columns_outermost", [True, False])
@pytest.mark.parametrize("lines", [8, 12, 20, 40, 75])
def test_what_goes_past_a_cache_leaves_it_to_the_others(
    lines: int, columns_outermost: bool
) -> None:
    nest = gemm(6, 8, 4, columns_outermost=columns_outermost, block=2)
    size = int(lines * LINE_BYTES / USED_SHARE) + 1
    for bypassing in (0, 1):
        modelled = Reuse(nest).traffic(size, bypassing)
        assert modelled[bypassing] == 0
        assert sum(modelled) <= sum(Reuse(nest).traffic(size))
        filled = [sum(f) - f[bypassing] for f in Reuse(nest).footprints]
        # What just fits, or just does not, depends on the order of accesses: hence USED_SHARE.
        if any(abs(many - lines) < 0.1 * lines for many in filled):
            continue
        counted = simulated(nest, lines, bypassing)
        for lines_in, misses in zip(modelled, counted, strict=True):
            assert lines_in == pytest.approx(misses, rel=0.5, abs=8)


def test_nothing_moves_where_everything_fits() -> None:
    nest = gemm(6, 8, 4)
    everything = sum(
        touched_lines(o, {"m": 6, "n": 8, "k": 4, "lane": 64}, LINE_BYTES) for o in nest.operands
    )
    assert everything == 6 * 4 + 8 * 4 + 6 * 8
    assert sum(Reuse(nest).traffic(int(everything * LINE_BYTES / USED_SHARE) + 1)) == 0
    assert sum(Reuse(nest).traffic(int((everything - 1) * LINE_BYTES / USED_SHARE))) > 0


def test_threads_share_the_outermost_loops() -> None:
    single, shared = Reuse(gemm(6, 8, 4)), Reuse(gemm(6, 8, 4), threads=4)
    assert single.tasks == 48
    assert shared.tasks == 12
    assert shared.footprints[-1] == (24, 8, 12)


@pytest.mark.parametrize(
    "terms, extents, lines",
    [
        ({"q": 64, "s": 64, "c": 1}, {"q": 14, "s": 3, "c": 64}, 16),
        ({"p": 2048, "r": 2048, "c": 1}, {"p": 14, "r": 3, "c": 64}, 16),
        ({"p": 4096, "r": 2048, "c": 1}, {"p": 14, "r": 3, "c": 64}, 29),
        ({"p": 4096, "c": 1}, {"p": 3, "c": 65}, 6),
        ({"p": 16, "c": 1}, {"p": 8, "c": 16}, 2),
        ({"p": 4096}, {}, 1),
    ],
)
def test_overlapping_windows_count_once(
    terms: dict[str, int], extents: dict[str, int], lines: int
) -> None:
    assert touched_lines(operand("A", "int8", terms), extents, LINE_BYTES) == lines


@pytest.mark.parametrize(
    "columns_outermost, block, lines, piece",
    [
        # The columns of a row come one after the other: rows of eight lines, or everything.
        (False, 1, 8, 1 / 8),
        (False, 1, 48, 1 / 48),
        # A column of all rows: single lines, or pairs of a block, until everything is written.
        (True, 1, 8, 1),
        (True, 2, 16, 1 / 2),
        (True, 2, 48, 1 / 48),
        # Where not even a task has room, it is still written together.
        (True, 2, 1, 1 / 2),
    ],
)
def test_pieces_of_the_output(
    columns_outermost: bool, block: int, lines: int, piece: float
) -> None:
    nest = gemm(6, 8, 4, columns_outermost=columns_outermost, block=block)
    first, second, output = nest.operands
    # Results fill their lines.
    contiguous = replace(output, access=output.access + IndexExpr.iterator("byte"))
    nest = replace(
        nest,
        inner=(*nest.inner, Loop("byte", 64, AxisKind.SPATIAL)),
        operands=(first, second, contiguous),
    )
    assert Reuse(nest).pieces(lines * LINE_BYTES) == pytest.approx(piece)
