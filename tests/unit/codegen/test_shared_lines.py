"""Estimates for lines and rows that are shared by threads, split, or far apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.plan import Knobs
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.report.messages import mapping_text
from cpembed.targets.cpu.calibration import default_calibration
from cpembed.targets.cpu.estimate import shared_lines
from cpembed.targets.cpu.target import schedule_space
from cpembed.targets.cpu.variants import with_variants
from cpembed.transform.program import DerivedProgram

SPEC = hardware_spec("amx_int8")
MACHINE = default_calibration(2)


def program_of(layer: str, rows: str) -> DerivedProgram:
    """The program whose tiles have their rows along an axis."""
    conv = workload(f"{layer} layout=NHWC", target=SPEC)
    ranked = solve(conv, SPEC, top=8).embeddings
    return next(
        r.candidate.program for r in ranked if f"x ← {rows}" in mapping_text(r.candidate.embedding)
    )


@pytest.mark.parametrize(
    "channels, stored, columns_outermost, threads, lines",
    [
        # 96 bytes a pixel: both threads write the line in the middle of each, and every second one
        # ends within a line.
        (96, "uint8", True, 2, 14 * 14 * 1.5),
        (96, "uint8", True, 1, 0),
        (96, "uint8", False, 2, 0),
        # 192 bytes of sums are three whole lines.
        (96, None, True, 2, 0),
        (128, "uint8", True, 2, 0),
        (64, "uint8", True, 2, 14 * 14),
    ],
)
def test_narrow_results_share_lines_between_threads(
    channels: int, stored: str | None, columns_outermost: bool, threads: int, lines: float
) -> None:
    program = program_of(f"conv2d n=1 c=64 h=14 w=14 k={channels} r=1 s=1", "q:14")
    epilogue = None if stored is None else Epilogue(stored)
    space = schedule_space(program, SPEC, MACHINE, epilogue)
    nest = space.applied(Knobs(loop_order="columns" if columns_outermost else "rows"))
    assert shared_lines(nest, threads) == lines


def test_rows_in_two_lines_make_loads_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels of 64 bytes begin with a line; of 80, where they are, three quarters do not."""
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    dear = replace(MACHINE, split_line_ns=10 * MACHINE.tile_line_ns[0])
    for channels, splits in ((64, False), (80, True)):
        layer = f"conv2d n=1 c={channels} h=14 w=14 k=16 r=1 s=1"
        conv = workload(f"{layer} layout=NHWC", target=SPEC)
        candidates = with_variants(solve(conv, SPEC, top=8).embeddings, SPEC)
        programs = [c.candidate.program for c in candidates]
        program = next(p for p in programs if p.in_place or not splits)
        usual, more = (
            schedule_space(program, SPEC, machine).estimate(Knobs()).loads_us
            for machine in (MACHINE, dear)
        )
        assert (more > usual) is splits


def test_rows_near_each_other_are_preferred() -> None:
    """The same products and loads, down the image or along it."""
    layer = "conv2d n=1 c=64 h=56 w=56 k=256 r=1 s=1"
    down, along = (
        schedule_space(program_of(layer, f"{axis}:14"), SPEC, MACHINE).ranked()[0][0]
        for axis in ("p", "q")
    )
    assert down.products_us == along.products_us
    assert along.us < down.us
