"""Tiles that hold only the depth that adds to a sum: an axis that is shorter than the lane."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cpu.register_blocks import lane_roles, useful_depth
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.targets.x86.amx import plan
from tests.features import needs


def candidates(layer: str, target: str) -> list[RankedCandidate]:
    spec = hardware_spec(target)
    given = workload(layer.split(), target=spec)
    return list(solve(given, spec, constraints="in_place_padded", top=8).embeddings)


def tiles(source: str) -> list[tuple[int, int]]:
    """Rows, and bytes of a row, of each of the eight tiles, by the kernel's text."""
    words = [line.split("T.int64(")[1] for line in source.splitlines() if " cfg[" in line]
    data = b"".join(
        int(word.rstrip(")")).to_bytes(8, "little", signed=True)
        for word in words
        if "]" not in word
    )
    assert len(data) == 64
    return [
        (data[48 + tile], int.from_bytes(data[16 + 2 * tile : 18 + 2 * tile], "little"))
        for tile in range(8)
    ]


@pytest.mark.parametrize(
    "target, layer, axis, depth, used",
    [
        # Of 64 bytes, 20 in five words; of 32 elements of two bytes, 6 in three.
        ("amx_int8", "conv2d n=1 c=1 h=9 w=60 k=16 r=3 s=20 layout=NHWC", "s", 64, 20),
        ("amx_int8", "conv2d n=1 c=1 h=9 w=60 k=16 r=3 s=18 layout=NHWC", "s", 64, 20),
        ("amx_bf16", "conv2d n=1 c=1 h=9 w=60 k=16 r=3 s=5 layout=NHWC", "s", 32, 6),
        # Two tiles of which the second is not full are both whole.
        ("amx_int8", "gemm m=16 n=16 k=80", "k", 64, 64),
    ],
)
def test_tiles_leave_out_padding(target: str, layer: str, axis: str, depth: int, used: int) -> None:
    group = 4 if target == "amx_int8" else 2
    program = next(
        ranked.candidate.program
        for ranked in candidates(layer, target)
        if [d.axis for d in ranked.candidate.embedding.digits["z"]] == [axis]
    )
    assert program.extents["z"] == depth
    assert useful_depth(program, lane_roles(program), group) == used
    space = schedule_space(program, hardware_spec(target))
    shapes = set(tiles(plan(program, space.scheduled(program, space.best())).source))
    rows = program.extents["x"]
    # A, B and C, and tiles that nothing uses.
    wanted = {(rows, used * 4 // group), (used // group, 64), (rows, 64)}
    assert wanted <= shapes <= {*wanted, (0, 0)}


@needs("amx_int8")
@pytest.mark.parametrize("s", [1, 20, 63])
def test_the_rest_of_the_depth_adds_nothing(s: int) -> None:
    spec = hardware_spec("amx_int8")
    layer = f"conv2d n=1 c=1 h=7 w=90 k=24 r=2 s={s} stride=2 layout=NHWC"
    given = workload(layer.split(), target=spec)
    inputs = random_inputs(given, s)
    expected, built = reference(given, inputs), 0
    for ranked in candidates(layer, "amx_int8")[:3]:
        program = ranked.candidate.program
        built += useful_depth(program, lane_roles(program), 4) < 64
        kernel = build(program, spec, backend="native")
        assert np.array_equal(kernel.run(inputs), expected)
        assert np.array_equal(kernel.run_whole(inputs, ["W"]), expected)
    assert bool(built) is (s < 61)
