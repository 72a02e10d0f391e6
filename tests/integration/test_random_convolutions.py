"""Random convolutions and products of matrices on Tensor Cores: in the emulator beside the
reference, and the text of some by nvcc for every architecture."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError, WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.cuda.build import CudaKernels, cuda_text
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.multistage.copies import factor_copies
from cpembed.targets.cuda.multistage.reads import count_reads
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan, check
from cpembed.targets.cuda.multistage.traffic import traffic
from cpembed.targets.cuda.writer import Writer
from tests.unit.targets.cuda.emulator.running import needs_compiler, needs_nvcc

SHARED_BYTES = 101_376
"""Of a block on sm_120, the least of all architectures: CUDA C++ Programming Guide."""

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")

TARGETS = ("mma_f16", "mma_bf16", "mma_s8", "mma_f16_f16", "wmma_f16", "wmma_s8")


def random_words(rng: random.Random) -> str:
    """A workload: a convolution of some kind, its gradients, or a product."""
    kind = rng.choice(
        ("conv2d",) * 5 + ("conv1d", "conv3d", "conv2d_dgrad", "conv2d_dgrad", "conv2d_wgrad")
        + ("depthwise", "transposed_conv2d", "gemm")
    )  # fmt: skip
    if kind == "gemm":
        sizes = {name: rng.choice((8, 17, 32, 48, 96)) for name in "mnk"}
        flags = "".join(f" {flag}" for flag in ("trans_a", "trans_b") if rng.random() < 0.3)
        return f"gemm {' '.join(f'{n}={v}' for n, v in sizes.items())}{flags}"
    letters = {"1": ("w", "s"), "3": ("dhw", "trs")}.get(kind[4:5], ("hw", "rs"))
    few = rng.random() < 0.2
    sizes = {"n": rng.choice((1, 2, 3)), "c": rng.choice((3, 8) if few else (16, 24, 32, 64))}
    sizes |= {name: rng.randint(5, 10 if len(letters[0]) < 3 else 5) for name in letters[0]}
    if kind != "depthwise":
        sizes["k"] = rng.choice((8, 16, 24, 40))
    sizes |= {name: rng.randint(1, 4 if len(letters[0]) < 3 else 2) for name in letters[1]}
    words = [f"{name}={value}" for name, value in sizes.items()]
    stride = rng.choice((1, 1, 2, 3))
    words += [f"pad={rng.randint(0, 2)}", f"stride={stride}", f"dilation={rng.choice((1, 1, 2))}"]
    if kind == "conv2d_dgrad":
        words.append(f"phase={rng.randrange(stride)}")
    if kind in ("conv2d", "conv2d_dgrad", "conv2d_wgrad") and rng.random() < 0.2:
        words.append("groups=2")
    if kind != "transposed_conv2d":
        first = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[len(letters[0])]
        words.append(f"layout={rng.choice((first, f'N{first[2:]}C', f'N{first[2:]}C'))}")
    return f"{kind} {' '.join(words)}"


def random_schedule(rng: random.Random) -> KernelSchedule:
    return KernelSchedule(
        rng.choice(((1, 1), (1, 2), (2, 1), (2, 2), (4, 1))),
        rng.choice(((1, 1), (2, 1), (1, 2), (2, 4), (1, 3), (4, 4))),
        rng.choice((1, 2, 4)),
        rng.choice((2, 3, 4)),
        rng.choice((1, 2)),
        rng.choice((1, 1, 2, 3)),
    )


def random_plan(seed: int) -> tuple[Computation, Plan]:
    """A plan that fits; workloads without one are drawn again."""
    rng = random.Random(seed)
    while True:
        words, spec = random_words(rng), hardware_spec(rng.choice(TARGETS))
        try:
            given = workload(words, target=spec)
            embeddings = solve(given, spec, constraints="fused", top=3).embeddings
            program = rng.choice(embeddings).candidate.program if embeddings else None
            if program is None:
                continue
            floats = given.output.dtype.startswith("float")
            epilogue = Epilogue("float16", relu=True) if floats and rng.random() < 0.3 else None
            product = lower(program, spec, epilogue)
            layouts = (rng.randrange(len(product.first)), rng.randrange(len(product.second)))
            schedule = random_schedule(rng)
            plan = Plan(product, KernelSchedule(**{**schedule.__dict__, "layouts": layouts}))
            check(plan, SHARED_BYTES)
        except (WorkloadError, LoweringError):
            continue
        return given, plan


@needs_compiler
@pytest.mark.quick(12)
@pytest.mark.parametrize("seed", range(120))
def test_random_workloads_are_computed(seed: int) -> None:
    given, plan = random_plan(seed)
    made = CudaKernels(plan, cuda_text(plan, "sm_80"))
    inputs = random_inputs(given, seed)
    expected = Expected(given, inputs)
    for order in (Order.REVERSE, seed):
        found = made.run(inputs, order)
        judged = expected.judge_stored(found, plan.product.epilogue, {})
        assert judged.verified, (str(given), plan.schedule, judged)
    counters, counts = made.kernel_counters["product_kernel"], traffic(plan)
    assert sum(counters.mma.values()) == counts.products
    assert counters.shared_load_wavefronts == counts.shared_load_wavefronts
    assert counters.shared_store_wavefronts == counts.shared_store_wavefronts
    assert (counters.global_load_bytes, counters.global_load_sectors) == count_reads(plan)


def test_most_random_factors_are_separable() -> None:
    """So the tests above are of located rows, and some of every form."""
    names = [
        type(factor_copies(Writer(), plan, number)).__name__
        for seed in range(40)
        for plan in (random_plan(seed)[1],)
        for number in range(2)
    ]
    assert 0.6 * len(names) < names.count("_SeparableCopies") < len(names)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(0, 120, 5))
def test_nvcc_compiles_without_warnings_and_spills(
    seed: int, architecture: str, tmp_path: Path
) -> None:
    _, plan = random_plan(seed)
    text = tmp_path / "kernel.cu"
    text.write_text(cuda_text(plan, "sm_80").source)
    command = ["nvcc", "-cubin", f"-arch={architecture}", "-std=c++17", "-O3", "-Xptxas", "-v"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "kernel.cubin"), str(text)],
        capture_output=True,
        text=True,
        check=True,
    )
    warnings = [line for line in done.stderr.splitlines() if "warning" in line and "#" in line]
    # TVM declares functions of halves in every text.
    assert all("was declared but never referenced" in line for line in warnings), done.stderr
    spills = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr
    )
    assert spills
    assert set(spills) == {("0", "0", "0")}
