"""Windows packed segment by segment, against the layout maps."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from cpembed.codegen import runtime
from cpembed.codegen.im2col_packing import Bound, Im2colPacking
from cpembed.codegen.packing import Direction, packing_source
from cpembed.codegen.plan import KernelPlan
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.ir.index import IndexExpr
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cpu.estimate import element_cost, segments
from cpembed.targets.cpu.variants import in_windows, require_variant
from cpembed.transform.program import DerivedProgram, PackedOperand, pack
from tests.executed import execute
from tests.unit.transform.small_tiles import small_amx


def over_windows(layer: str, target: str | None = "amx_int8") -> list[DerivedProgram]:
    spec = small_amx() if target is None else hardware_spec(target)
    windowed = workload(layer.split(), target=spec)
    programs: list[DerivedProgram] = []
    for ranked in solve(windowed, spec, constraints="in_place_padded", top=3).embeddings:
        for item in in_windows(ranked, spec):
            require_variant(item.candidate)
            programs.append(item.candidate.program)
    return programs


def windows_of(image: PackedOperand) -> Im2colPacking | None:
    extents = {dimension.name: dimension.extent for dimension in image.dimensions}
    return Im2colPacking.detect(extents, image.source, image.original_shape)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "layer, run, runs",
    [
        # Rows of 3 steps of 3 channels.
        ("conv2d n=1 c=3 h=9 w=11 k=16 r=3 s=3 layout=NHWC", 9, 3),
        ("conv2d n=1 c=3 h=9 w=11 k=16 r=3 s=3 pad=1 stride=2 layout=NHWC", 9, 3),
        # Columns that are not neighbours: channels alone.
        ("conv2d n=1 c=3 h=13 w=15 k=16 r=3 s=3 dilation=2 pad=2 layout=NHWC", 3, 9),
        ("conv2d n=1 c=1 h=9 w=23 k=16 r=5 s=20 layout=NHWC", 20, 5),
        # Rows alone, of each channel.
        ("conv2d n=1 c=3 h=9 w=11 k=16 r=3 s=7 pad=1", 7, 9),
        ("conv2d n=2 c=5 h=9 w=6 k=16 r=3 s=3 pad=2 layout=NHWC", 15, 3),
        # Windows that are all inside beside some that are not; the last runs end with the image.
        ("conv2d n=2 c=3 h=9 w=70 k=16 r=3 s=3 pad=1 layout=NHWC", 9, 3),
        ("conv2d n=1 c=1 h=9 w=70 k=16 r=5 s=5 layout=NHWC", 5, 5),
        ("conv2d n=1 c=1 h=11 w=69 k=16 r=5 s=20 stride=2 layout=NHWC", 20, 5),
    ],
)
def test_neighbours_are_packed_together(layer: str, run: int, runs: int) -> None:
    (program, *_) = over_windows(layer)
    image = program.operand("I")
    windows = windows_of(image)
    assert windows is not None
    assert windows.run == run
    # Few runs a line take as long as copying it; single elements would take 14 times as long.
    assert 1 <= element_cost(image) < 2
    # One that two blocks share counts twice.
    assert runs <= windows.copied <= runs + 1
    data = random_inputs(program.unfused, 5)["I"]
    plan = KernelPlan("packing", packing_source(image, 3, Direction.PACK))
    target = runtime.empty(image.elements, image.dtype)
    runtime.compile_plan(plan)(runtime.from_array(data), target)
    expected = pack(image, data)
    assert np.array_equal(runtime.to_array(target, expected.shape), expected)
    # Past the last run there are zeros, not the image's next row.
    used = np.moveaxis(expected.reshape(-1, *image.shape), 0, -1)
    assert np.count_nonzero(used) <= run * runs * used.size // windows.size


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "layer",
    [
        "conv2d n=1 c=1 h=9 w=20 k=16 r=5 s=5 layout=NHWC",
        "conv2d n=2 c=3 h=8 w=13 k=16 r=3 s=3 pad=1 stride=2 layout=NHWC",
    ],
)
def test_what_is_copied_with_a_run_is_in_the_image(layer: str) -> None:
    """And would not be if it were not asked for."""
    (program, *_) = over_windows(layer)
    image = program.operand("I")
    windows = windows_of(image)
    assert windows is not None
    runs = windows._runs(str, str, IndexExpr(), dict.fromkeys(windows.numbering, 0), "0")
    wide = [run for run in runs if run._width > run.length]
    assert wide
    names = [name for name in windows.extents if name not in windows.numbering]
    size, beyond = math.prod(image.original_shape), 0
    for point in itertools.product(*(range(windows.extents[name]) for name in names)):
        values = dict(zip(names, point, strict=True))

        def holds(bound: Bound, at: dict[str, int] = values) -> bool:
            value = bound.index.evaluate(at)
            return value >= bound.limit if bound.least else value <= bound.limit

        for run in wide:
            first = int(run.source.flat.evaluate(values)) + run.skipped
            inside = first >= 0 and first + run._width <= size
            if all(map(holds, run.needed)):
                assert inside
            elif all(map(holds, [*run._around, *run._ends])):
                assert not inside
                beyond += 1
    assert beyond


def test_what_is_no_window_has_no_runs() -> None:
    layer = "conv2d n=1 c=64 h=9 w=9 k=16 r=3 s=3 layout=NHWC"
    spec = hardware_spec("amx_int8")
    (ranked, *_) = solve(
        workload(layer.split(), target=spec), spec, constraints="in_place_padded", top=1
    ).embeddings
    assert windows_of(ranked.candidate.program.operand("I")) is None


@pytest.mark.slow
def test_random_windows() -> None:
    """Executed operation by operation, and proven."""
    draw, packed = random.Random(11), 0
    for _ in range(25):
        r, s, c = draw.randint(1, 3), draw.randint(2, 3), draw.randint(1, 3)
        layer = f"conv2d n={draw.randint(1, 2)} c={c} k={draw.randint(1, 5)} r={r} s={s}"
        layer += f" h={draw.randint(5, 8)} w={draw.randint(5, 8)} pad={draw.randint(0, 2)}"
        layer += f" stride={draw.randint(1, 2)} dilation={draw.randint(1, 2)}"
        layer += f" layout={draw.choice(('NHWC', 'NCHW'))}"
        for program in over_windows(layer, target=None):
            packed += 1
            data = random_inputs(program.unfused, 3)
            assert np.array_equal(execute(program, data), reference(program.unfused, data))
    assert packed > 20


def test_how_many_runs_are_copied() -> None:
    """3 rows of 3 x 3 neighbours for each of 7 x 9 windows."""
    (program, *_) = over_windows("conv2d n=1 c=3 h=9 w=11 k=16 r=3 s=3 layout=NHWC")
    assert segments(program.operand("I")) == 3 * 7 * 9
    assert segments(program.operand("W")) == 0
