"""Prefetch of C: all lines of a task's results, once, and only where they come from afar."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import pytest

from cpembed.codegen.emit import kernel_plan
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.instruction import InstructionText
from cpembed.codegen.nest import Nest, Prefetch
from cpembed.codegen.plan import Knobs
from cpembed.codegen.prefetch import prefetch_c
from cpembed.codegen.traffic import Reuse
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cpu import lowering as kernel
from cpembed.targets.cpu import target as cpu_target
from cpembed.targets.cpu.calibration import calibration
from cpembed.targets.cpu.target import build, schedule_space
from tests.features import needs
from tests.running import verify
from tests.unit.codegen.prefetched import nest_of as asked_nest_of
from tests.unit.codegen.prefetched import prefetched_places

SPEC, VECTORS = hardware_spec("amx_int8"), hardware_spec("avx512_int8")
DOTS = hardware_spec("avx512_vnni")
LAYERS = (
    "conv2d n=1 c=64 h=32 w=32 k=64 r=1 s=1 layout=NHWC",
    "conv2d n=1 c=64 h=34 w=34 k=64 r=3 s=3 layout=NHWC",
)


def nest_of(layer: str, dtype: str, blocks: dict[str, int]) -> Nest:
    (ranked, *_) = solve(workload(layer.split(), target=SPEC), SPEC, top=1).embeddings
    space = schedule_space(ranked.candidate.program, SPEC, epilogue=Epilogue(dtype))
    rows = next(loop.origin for loop in space.model.rows(space.nest) if loop.steps > 1)
    columns = next(loop.origin for loop in space.model.columns(space.nest) if loop.steps > 1)
    named = {"rows": rows, "columns": columns}
    return space.applied(Knobs({named[name]: size for name, size in blocks.items()}))


@pytest.mark.parametrize(
    "dtype, blocks, lines",
    [
        ("float32", {"rows": 2, "columns": 2}, 64),
        ("uint8", {"columns": 4}, 16),
        # A quarter of 16 lines, and half.
        ("uint8", {}, None),
        ("uint8", {"columns": 2}, None),
    ],
)
@pytest.mark.parametrize("layer", LAYERS)
def test_whole_lines_are_asked_for(
    layer: str, dtype: str, blocks: dict[str, int], lines: int | None
) -> None:
    nest = nest_of(layer, dtype, blocks)
    prefetched_nest = prefetch_c(nest, Reuse(nest), 32 << 10)
    assert (Prefetch.C in prefetched_nest.prefetched) == (lines is not None)
    # What stays in the cache is there.
    assert not prefetch_c(nest, Reuse(nest), 64 << 20).prefetched
    if lines is None:
        return
    size = size_bytes(nest.operands[2].dtype)
    places = [
        at * size
        for step in itertools.product(*(range(loop.extent) for loop in nest.reductions))
        for at in prefetched_places(Prefetch.C, nest, step)
    ]
    assert all(at % nest.line_bytes == 0 for at in places)
    assert len(places) == len(set(places)) == lines


def test_few_steps_ask_without_a_branch() -> None:
    """All of 25 steps request a line, the last ones again the last; of 225 only the first do."""
    knobs = Knobs({"q.o": 6, "k.o": 2})
    for channels, steps in ((4, 25), (36, 225)):
        words = f"conv2d n=1 c={channels} h=16 w=16 k=32 r=5 s=5 layout=NHWC"
        nest = asked_nest_of(DOTS, words, knobs)
        loops = [range(loop.extent) for loop in nest.reductions]
        assert math.prod(map(len, loops)) == steps
        places = [
            at
            for step in itertools.product(*loops)
            for at in prefetched_places(Prefetch.C, nest, step)
        ]
        assert len(places) == (25 if steps == 25 else 12)
        assert len(set(places)) == 12


def test_results_beyond_the_cache_are_written_whole() -> None:
    """Four tasks fill a pixel's 16 lines: one after the other or, with the weights outermost, in a
    panel that the cache holds; the model prefers either to a whole image in pieces."""
    words = "conv2d n=1 c=64 h=56 w=56 k=256 r=1 s=1 layout=NHWC"
    layer = workload(words.split(), target=SPEC)
    candidate = (
        schedule_space(ranked.candidate.program, SPEC, epilogue=Epilogue("float32"))
        for ranked in solve(layer, SPEC, top=8).embeddings
    )
    # A panel of rows that are not the tiles' own.
    space = next(s for s in candidate if any(loop.steps == 56 for loop in s.model.rows(s.nest)[:2]))
    machine = replace(space.machine, cache_bytes=(48 << 10, 2 << 20, 64 << 20))
    space = replace(space, machine=machine, _executed_nests={})
    ranking = [knobs for _, knobs in space.ranked()]
    columns = space.model.columns(space.nest)[0].origin
    assert not ranking[0].columns_outermost or ranking[0].cache_tiles
    pieces = Knobs({columns: 4}, loop_order="columns")
    panels = [
        k
        for k in ranking
        if k.register_tiles == pieces.register_tiles and k.columns_outermost and k.cache_tiles
    ]
    assert panels
    stores = [space.estimate(replace(k, non_temporal=False)).stores_us for k in (panels[0], pieces)]
    contiguous = space.estimate(replace(pieces, loop_order="rows")).stores_us
    assert contiguous < stores[0] < stores[1]
    # Where the output stays in the cache it does not matter.
    near = replace(space, machine=replace(machine, cache_bytes=(48 << 10, 8 << 20, 64 << 20)))
    near = replace(near, _executed_nests={})
    assert near.estimate(pieces).stores_us == pytest.approx(
        near.estimate(replace(pieces, loop_order="rows")).stores_us
    )


def test_few_places_at_a_time_where_data_come_from_afar() -> None:
    """Rows of 64 KiB of which nothing is read twice: no more of them together than are foreseen."""
    tall = workload("gemm m=512 n=1 k=65536", target=SPEC)
    (ranked, *_) = solve(tall, SPEC, top=1).embeddings
    space = schedule_space(ranked.candidate.program, SPEC)
    tile_rows = ranked.candidate.program.extents["x"]
    (rows,) = [loop.origin for loop in space.model.rows(space.nest) if loop.steps > 1]
    near = replace(space.machine, cache_bytes=(48 << 10, 1 << 30, 1 << 31))
    afar = replace(space.machine, cache_bytes=(48 << 10, 1 << 20, 1 << 21))
    most = [
        replace(space, machine=machine, _executed_nests={}).best().register_tiles.get(rows, 1)
        * tile_rows
        for machine in (near, afar)
    ]
    assert most[0] > 32 >= most[1]


def test_results_are_written_in_the_order_of_memory() -> None:
    """Results are written by pixels, with all columns of a pixel, not by tiles."""
    nest = nest_of(LAYERS[0], "float32", {"rows": 2, "columns": 2})
    source = kernel_plan(nest, InstructionText("test", opaque=True)).source
    loops = re.findall(r"for at_(\w+) in", source.partition('T.sblock("results")')[2])
    written = loops[: len(nest.spatial_inner)]
    strides = [nest.operands[2].stride(name) for name in written]
    assert len(strides) == 4
    assert strides == sorted(strides, reverse=True)


@needs(VECTORS)
@pytest.mark.parametrize("dtype", ["int32", "float32", "uint8"])
def test_vectors_that_ask_compute_the_same(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = replace(calibration(), cache_bytes=(1 << 9, 1 << 10, 1 << 20))
    for module in (kernel, cpu_target):
        monkeypatch.setattr(module, "calibration", lambda: machine)
    words = "depthwise n=2 c=64 h=9 w=7 r=3 s=3 pad=1 layout=NHWC"
    layer = workload(words.split(), target=VECTORS)
    (ranked, *_) = solve(layer, VECTORS, top=1).embeddings
    program, epilogue = ranked.candidate.program, Epilogue(dtype)
    space = schedule_space(program, VECTORS, epilogue=epilogue)
    knobs = Knobs({loop.origin: 4 for loop in space.nest.tasks if loop.origin.startswith("c")})
    built = build(program, VECTORS, backend="native", epilogue=epilogue, knobs=knobs)
    assert "prefetchw" in built.assembly()
    assert verify(built, layer).verified
