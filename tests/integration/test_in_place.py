"""Kernels on data in place, and kernels that pack inside: bit for bit like the reference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cpembed.codegen.packing import packed_before
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.targets.cpu.variants import with_variants
from tests.features import needs

TARGETS = [pytest.param(name, marks=needs(name)) for name in ("avx512_vnni", "amx_int8")]

LAYERS = [
    "conv2d n=1 c=80 h=9 w=11 k=32 r=3 s=3 layout=NHWC",
    "conv2d n=1 c=96 h=19 w=17 k=48 r=1 s=1 layout=NHWC",
    "conv2d n=1 c=64 h=21 w=20 k=32 r=1 s=1 stride=2 layout=NHWC",
    "conv2d n=1 c=66 h=14 w=23 k=33 r=3 s=2 pad=1 stride=2 layout=NHWC",
    "conv2d n=2 c=65 h=18 w=5 k=16 r=3 s=3 pad=1 dilation=2 layout=NHWC",
    "conv2d n=1 c=3 h=31 w=33 k=32 r=7 s=7 pad=3 stride=2 layout=NHWC",
    "conv2d n=1 c=20 h=12 w=13 k=24 r=3 s=3 pad=1",
    "conv2d n=2 c=1 h=11 w=75 k=32 r=5 s=5 pad=1 stride=2 layout=NHWC",
    "conv2d n=1 c=64 h=12 w=13 k=32 r=3 s=3 pad=1 layout=NCHW16c",
    "conv2d n=1 c=128 h=9 w=11 k=64 r=3 s=3 layout=NCHW64c",
    "gemm m=37 n=48 k=100",
    "gemm m=1 n=33 k=70",
    "gemm m=40 n=83 k=128",
]


def found(layer: str, target: str) -> Iterator[RankedCandidate]:
    spec = hardware_spec(target)
    given = workload(layer.split(), target=spec)
    for constraints in ("in_place_padded", "fused"):
        yield from with_variants(
            solve(given, spec, constraints=constraints, top=1).embeddings, spec
        )


@pytest.mark.quick(4)
@pytest.mark.parametrize("threads", ["3", "1"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("target", TARGETS)
def test_data_in_place_and_packing_inside(
    layer: str, target: str, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each candidate the best schedule of one order of the tasks; of both where that is slow."""
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    spec = hardware_spec(target)
    given = workload(layer.split(), target=spec)
    inputs = random_inputs(given, 7)
    expected, ahead = reference(given, inputs), packed_before(given)
    for number, ranked in enumerate(found(layer, target)):
        program = ranked.candidate.program
        try:
            schedules = [knobs for _, knobs in schedule_space(program, spec).ranked()]
        except LoweringError:
            continue
        for outermost in (True, False) if threads == "1" else (number % 2 == 0,):
            knobs = next((k for k in schedules if k.columns_outermost is outermost), None)
            if knobs is None:
                continue
            kernel = build(program, spec, backend="native", knobs=knobs)
            assert np.array_equal(kernel.run(inputs), expected)
            assert np.array_equal(kernel.run_whole(inputs, ahead), expected)


@pytest.mark.parametrize("target", TARGETS)
def test_parts_pack_only_what_they_read(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of an image and the rows that a window adds, where tasks go down the image first."""
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    spec = hardware_spec(target)
    given = workload(["resnet50:2", "layout=NHWC"], target=spec)
    shares: dict[bool, set[float]] = {True: set(), False: set()}
    for ranked in solve(given, spec, constraints="in_place_padded", top=4).embeddings:
        space = schedule_space(ranked.candidate.program, spec)
        for _, knobs in space.ranked():
            packing = space.packing(ranked.candidate.program, knobs)
            if packing is not None and not knobs.cache_tiles:
                shares[knobs.columns_outermost].add(packing.share())
    assert max(shares[True]) == 1.0
    # 30 of 58 rows, or 32 of 62 where rows of tiles are padded.
    assert 0.5 < min(shares[False]) <= 30 / 58
