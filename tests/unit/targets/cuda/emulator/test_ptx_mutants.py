"""Errors in the PTX of the kernels that this package generates: a named fault or a wrong number."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import ExecutionFault, LoweringError
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.reference import reference
from cpembed.targets.cuda import device
from cpembed.targets.cuda.build import CudaKernels, cuda_text
from cpembed.targets.cuda.emulator.executor import Launch, Order, compile_text
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan, check
from tests.unit.targets.cuda.emulator.mutants import (
    KERNEL_KINDS,
    KINDS,
    Kind,
    mutated,
    mutated_kernel,
)
from tests.unit.targets.cuda.emulator.running import ORDERS, Array, needs_compiler

pytestmark = needs_compiler

SHARED_BYTES = 166_912


@dataclass(frozen=True)
class Case:
    """A kernel by what it is generated from."""

    target: str
    words: str
    schedule: KernelSchedule
    epilogue: Epilogue | None = None


CASES = {
    "padded image": Case(
        "mma_f16", "conv2d n=1 c=32 h=7 w=7 k=24 r=3 s=3 pad=1 layout=NHWC",
        KernelSchedule((2, 1), (1, 3), 2, 3),
    ),
    "packed image": Case(
        "mma_f16_f16", "conv2d n=1 c=16 h=6 w=6 k=24 r=3 s=3 pad=1",
        KernelSchedule((1, 1), (2, 2), 1, 3),
    ),
    "ragged product": Case("mma_bf16", "gemm m=33 n=19 k=50", KernelSchedule((1, 2), (1, 2), 1, 3)),
    "split bytes": Case(
        "mma_s8", "gemm m=40 n=24 k=200", KernelSchedule((1, 1), (2, 2), 1, 3, splits=2),
    ),
    "stored bytes": Case(
        "mma_s8", "conv2d n=1 c=12 h=5 w=5 k=16 r=3 s=3 pad=1 layout=NHWC",
        KernelSchedule((1, 1), (1, 2), 2, 3), Epilogue("int8", relu=True),
    ),
    "stored halves": Case(
        "mma_f16", "gemm m=32 n=24 k=68", KernelSchedule((1, 1), (1, 3), 1, 3),
        Epilogue("float16", relu=True),
    ),
    "fragments": Case("wmma_f16", "gemm m=40 n=40 k=48", KernelSchedule((1, 2), (1, 1), 1, 3)),
    "fragments of bytes": Case(
        "wmma_s8", "gemm m=32 n=48 k=32", KernelSchedule((1, 1), (2, 1), 2, 3)
    ),
    "wide fragments": Case(
        "wmma_f16_8x32x16", "gemm m=24 n=64 k=48", KernelSchedule((1, 1), (1, 2), 1, 3)
    ),
}  # fmt: skip

PROBE = "functions"
"""Case whose kernels call device functions directly: what tiles are padded with is multiplied by
zeros in a product, so that errors in the padding of one factor change no result of it."""

WIDTHS = (1, 2, 4, 8, 16)
THREADS = 64

PROBES = """
extern "C" __global__ void moved_{n}(const unsigned char* in, unsigned char* out) {{
  __shared__ __align__(16) unsigned char tile[{threads} * {n}];
  __align__(16) unsigned words[4] = {{7, 7, 7, 7}};
  const int t = threadIdx.x;
  cpembed_load_{n}(words, in + t * {n}, t % 3 != 0);
  cpembed_shared_store_{n}(tile + t * {n}, words);
  __syncthreads();
  cpembed_shared_load_{n}(words, tile + (t ^ 1) * {n});
  cpembed_store_{n}(out + t * {n}, words, t % 5 != 0);
}}
"""

COPY_PROBES = """
extern "C" __global__ void copied_{n}(const unsigned char* in, unsigned char* out) {{
  __shared__ __align__(16) unsigned char tile[{threads} * {n}];
  const int t = threadIdx.x;
  cpembed_cp_async_{n}(tile + t * {n}, in + t * {n}, t % 3 != 0);
  cpembed_cp_async_commit();
  cpembed_cp_async_wait_0();
  for (int i = 0; i < {n}; i++) out[t * {n} + i] = tile[t * {n} + i];
}}
"""


@cache
def probe() -> str:
    functions = "".join(
        device.function(name)
        for name in device.names()
        if re.fullmatch(r"cpembed_((shared_)?(load|store)_\d+|cp_async_(\d+|commit|wait_0))", name)
    )
    moved = "".join(PROBES.format(n=n, threads=THREADS) for n in WIDTHS)
    copied = "".join(COPY_PROBES.format(n=n, threads=THREADS) for n in device.COPIES)
    return functions + moved + copied


def probe_outcome(source: str, order: Order | int) -> str:
    """Empty if the kernels of the probe move bytes as they should; otherwise what is wrong."""
    lanes = np.arange(THREADS)
    for kernel in [f"moved_{n}" for n in WIDTHS] + [f"copied_{n}" for n in device.COPIES]:
        n = int(kernel.split("_")[1])
        data = np.random.default_rng(n).integers(1, 256, (THREADS, n), dtype=np.uint8)
        out = np.full((THREADS, n), 9, np.uint8)
        loaded = np.where((lanes % 3 != 0)[:, None], data, 0)
        right = loaded
        if kernel.startswith("moved"):
            right = np.where((lanes % 5 != 0)[:, None], loaded[lanes ^ 1], out)
        try:
            launch = Launch(kernel, (1, 1, 1), (THREADS, 1, 1))
            compile_text(source).run(launch, [data.reshape(-1), out.reshape(-1)], order=order)
        except (LoweringError, ExecutionFault) as error:
            return str(error)
        if not np.array_equal(out, right):
            return f"a wrong number in {kernel}"
    return ""


@cache
def source_of(name: str) -> str:
    return probe() if name == PROBE else kernels(name).text.source


@cache
def kernels(name: str) -> CudaKernels:
    case = CASES[name]
    spec = hardware_spec(case.target)
    given = workload(case.words, target=spec)
    program = solve(given, spec, constraints="fused", top=1).embeddings[0].candidate.program
    plan = Plan(lower(program, spec, case.epilogue), case.schedule)
    check(plan, SHARED_BYTES)
    return CudaKernels(plan, cuda_text(plan, "sm_80"))


@cache
def inputs(name: str) -> dict[str, Array]:
    """Small integers, of which every sum is exact in float16."""
    given = kernels(name).plan.product.program.unfused
    random = np.random.default_rng(11)
    return {
        operand.tensor: random.integers(
            0 if operand.dtype == "uint8" else -2, 3, operand.shape
        ).astype(numpy_dtype(operand.dtype))
        for operand in given.inputs
    }


@cache
def expected(name: str) -> Array:
    case, given = CASES[name], kernels(name).plan.product.program.unfused
    wide = reference(given, inputs(name)).astype(np.float64)
    if case.epilogue is None:
        return wide
    return np.clip(np.maximum(wide, 0), None, 127 if case.epilogue.dtype == "int8" else None)


def outcome(name: str, source: str, order: Order | int) -> str:
    """Empty if the text computes the right result; otherwise what is wrong."""
    if name == PROBE:
        return probe_outcome(source, order)
    original = kernels(name)
    made = CudaKernels(original.plan, replace(original.text, source=source))
    try:
        found = made.run(inputs(name), order)
    except (LoweringError, ExecutionFault) as error:
        return str(error)
    return "" if np.array_equal(found.astype(np.float64), expected(name)) else "a wrong number"


def mutants(kind: Kind) -> dict[str, list[tuple[str, str]]]:
    """Case and text of each error of a kind, by the function that it is in."""
    errors = mutated_kernel if kind in KERNEL_KINDS else mutated
    texts: dict[str, list[tuple[str, str]]] = {}
    for name in (*CASES, PROBE):
        for function, text in errors(source_of(name), kind):
            texts.setdefault(function, []).append((name, text))
    return texts


@pytest.mark.quick(9)
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", [*CASES, PROBE])
def test_kernels_without_an_error_are_right(name: str, order: Order | int) -> None:
    assert outcome(name, source_of(name), order) == ""


@pytest.mark.quick(8)
@pytest.mark.parametrize("kind", [*KINDS, *KERNEL_KINDS], ids=lambda kind: kind.name)
def test_an_error_is_a_fault_or_a_wrong_number(kind: Kind) -> None:
    """In some kernel, for each function that can have it; a neutral one changes nothing in any."""
    texts = mutants(kind)
    assert texts
    for function, cases in texts.items():
        if kind.neutral:
            assert [outcome(*case, Order.FORWARD) for case in cases[:2]] == [""] * len(cases[:2])
        else:
            assert any(outcome(*case, Order.FORWARD) for case in cases), function


def test_kinds_are_many_and_different() -> None:
    kinds = (*KINDS, *KERNEL_KINDS)
    assert len({kind.name for kind in kinds}) == len(kinds)
    assert sum(not kind.neutral for kind in kinds) >= 100


BUGS = {
    "a load where its predicate is false": (r"cpembed_load_\d+", "@p ", "@!p "),
    "a copy that ignores its size": (r"cpembed_cp_async_\d+", r"(\d+), %2;", r"\1;"),
    "a wait for one group fewer": (
        "cpembed_cp_async_wait_1", "wait_group 1", "wait_group 2",
    ),
}  # fmt: skip
"""Three errors that an emulation with functions of its own could not see."""


@pytest.mark.quick(3)
@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_three_bugs_of_device_functions_are_found(bug: str, order: Order | int) -> None:
    kind = Kind(bug, *BUGS[bug])
    for name, text in next(iter(mutants(kind).values())):
        if name != PROBE and outcome(name, text, order):
            return
    pytest.fail(bug)
