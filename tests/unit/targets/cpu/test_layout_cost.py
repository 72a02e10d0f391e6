"""CopyTimes whose parts stay with the threads that compute with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpembed.codegen import runtime
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.packing import plan_transform
from cpembed.codegen.plan import KernelPlan, Knobs
from cpembed.codegen.program_nest import in_order
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cpu import lowering as kernel
from cpembed.targets.cpu.calibration import default_calibration
from cpembed.targets.cpu.estimate import cache_affine, threads_worth, transform_us
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.transform.program import DerivedProgram
from tests.features import needs

VNNI = hardware_spec("avx512_vnni")
BATCHED = "batched_gemm b=6 m=20 n=50 k=30 trans_b=1"


def program_of(words: str) -> DerivedProgram:
    (ranked, *_) = solve(workload(words.split(), target=VNNI), VNNI, top=1).embeddings
    return ranked.candidate.program


MACHINE = replace(default_calibration(2), launch_us=1.0, copy_ns_per_line=2.0)


def near(words: str, threads: int, **how: Any) -> set[str]:
    """``how``: blocks by axis, and ``parts``."""
    parts = how.pop("parts", 1)
    blocks = {f"{axis}.o": size for axis, size in how.items()}
    knobs = Knobs(blocks, loop_order="rows", split_k=parts)
    program = program_of(words)
    space = schedule_space(program, VNNI, epilogue=Epilogue("int8"))
    free = replace(MACHINE, launch_us=0.0)
    return set(cache_affine(space.applied(knobs), in_order(program), free, threads))


def test_equal_parts_of_the_outermost_dimension_are_kept_near() -> None:
    """A batch is outermost of all; six fall into equal parts of two and three threads."""
    assert near(BATCHED, 2, m=4, n=2) == near(BATCHED, 3, m=4, n=2) == {"A", "B", "C"}
    assert near(BATCHED, 4, m=4, n=2) == near(BATCHED, 1, m=4, n=2) == set()
    # Rows of the first factor and of the results, all columns of the second.
    assert near("gemm m=20 n=50 k=30", 2, m=5) == {"A", "C"}
    # Blocks of six, six, five and five rows: either thread would move eleven.
    assert near("gemm m=22 n=50 k=30", 2, m=6) == set()
    # A padded image has more rows than are computed.
    assert "I" not in near("conv2d n=1 c=32 h=8 w=8 k=32 r=3 s=3 pad=1 layout=NHWC", 2)
    # Parts of sums are not the output, which other threads add up.
    assert "C" not in near("gemm m=20 n=16 k=4096", 2, parts=2)


def test_what_packing_does_not_share_out_is_not_kept_near() -> None:
    """Three tiles of 14 pixels, which three threads compute, are packed as one row."""
    target = hardware_spec("amx_int8")
    given = workload(["conv1d", "n=1", "c=64", "w=40", "k=64", "s=1", "layout=NWC"], target=target)
    (ranked, *_) = solve(given, target, constraints="in_place_padded", top=1).embeddings
    program = ranked.candidate.program
    rows_outermost = Knobs(loop_order="rows")
    nest = schedule_space(program, target).applied(rows_outermost)
    image = in_order(program)[0]
    tiles = next(task for task in nest.tasks if task.count > 1)
    assert (tiles.count, nest.operands[0].stride(tiles.name) * 3) == (3, image.elements)
    assert plan_transform(image).row_count == 1
    assert image.name not in cache_affine(
        nest, in_order(program), replace(MACHINE, launch_us=0.0), 3
    )


def test_a_launch_has_to_be_worth_it() -> None:
    program = program_of("gemm m=20 n=20 k=30")
    nest = schedule_space(program, VNNI).applied(Knobs(loop_order="rows"))
    assert cache_affine(nest, in_order(program), replace(MACHINE, launch_us=10.0), 2) == set()
    dear = replace(MACHINE, vector_line_ns=(0.25, 0.5, 50.0, 60.0))
    assert cache_affine(nest, in_order(program), dear, 2) == {"A", "C"}


def test_what_is_kept_near_is_not_handed_over() -> None:
    factor = in_order(program_of(BATCHED))[1]
    assert threads_worth(factor, MACHINE, 2) == 1
    assert threads_worth(factor, MACHINE, 2, affine=True) == 2
    assert transform_us(factor, MACHINE, 2, affine=True) < transform_us(factor, MACHINE, 2)


@needs(VNNI)
@pytest.mark.parametrize("threads, packing", [("2", 2), ("3", 3), ("4", 1)])
def test_kernels_pack_so(threads: str, packing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second factor of six products; four threads have no equal parts."""
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    # Lines of another core are dear.
    machine = replace(MACHINE, vector_line_ns=(0.25, 0.5, 50.0, 60.0))
    monkeypatch.setattr(kernel, "calibration", lambda: machine)
    sources: list[str] = []
    compiled = runtime.compile_plan

    def compile_plan(plan: KernelPlan) -> runtime.Function:
        sources.append(plan.source)
        return compiled(plan)

    monkeypatch.setattr(runtime, "compile_plan", compile_plan)
    program = program_of(BATCHED)
    knobs = Knobs({"m.o": 4}, loop_order="rows")
    built = build(program, VNNI, backend="native", knobs=knobs)
    inputs = random_inputs(program.workload, 3)
    sources.clear()
    built.pack("B", inputs["B"])
    (text,) = sources
    assert f"T.parallel({packing})" in text
    assert np.array_equal(built.run_whole(inputs, ()), reference(program.workload, inputs))
