"""AMX kernels run for the tests, in a process of their own: a fault ends this one only.

``python -m tests.emulation.amx_cases [--only-slow] [EMULATOR.so]`` builds, runs and verifies every
case and writes one JSON object: case name -> what was found. Without an emulator the CPU must have
AMX.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.halo import executed_share
from cpembed.codegen.plan import Knobs
from cpembed.codegen.program_nest import kernel_nest
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.errors import CpembedError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.targets.cpu.target import build
from cpembed.targets.x86.features import ASSUME_VARIABLE, missing_features
from cpembed.transform.derive import derive
from cpembed.transform.program import DerivedProgram
from cpembed.workloads.convolutions import conv2d, conv3d
from cpembed.workloads.einsum import gemm as gemm_workload
from tests.running import verify
from tests.unit.codegen.handwritten import conv2d_program, gemm_program

INT8 = load_hardware_spec("amx_int8")
BF16 = load_hardware_spec("amx_bf16")


def conv(rows: int = 16, dtype: str = "uint8,int8", **options: Any) -> DerivedProgram:
    n, c, h, w, k, r, s = options.pop("sizes")
    sizes = {"n": n, "c": c, "h": h, "w": w, "k": k, "r": r, "s": s}
    spec, depth = (BF16, 32) if dtype == "bfloat16" else (INT8, 64)
    return conv2d_program(spec, sizes=sizes, rows=rows, depth=depth, dtype=dtype, **options)


def gemm(m: int, n: int, k: int, dtype: str = "uint8,int8", **options: Any) -> DerivedProgram:
    spec, depth = (BF16, 32) if dtype == "bfloat16" else (INT8, 64)
    return gemm_program(spec, m=m, n=n, k=k, depth=depth, dtype=dtype, **options)


def derived(
    workload: Computation, in_place: tuple[str, ...] = (), **digits: tuple[Digit, ...]
) -> DerivedProgram:
    """The program that the package derives from an embedding of AMX."""
    spec = BF16 if workload.inputs[0].dtype == "bfloat16" else INT8
    first, second = (operand.name for operand in workload.inputs)
    embedding = Embedding(
        {"A": first, "B": second, "C": workload.output.name},
        {lane: math.prod(digit.count for digit in found) for lane, found in digits.items()},
        digits,
    )
    return derive(workload, spec.instruction, embedding, in_place=in_place)


CASES: dict[str, Callable[[], DerivedProgram]] = {
    "conv-3x3": lambda: conv(7, sizes=(1, 64, 14, 14, 32, 3, 3), pad=1),
    "conv-prime-sizes": lambda: conv(5, sizes=(1, 67, 11, 13, 37, 3, 3), pad=1),
    "conv-stride-2": lambda: conv(7, sizes=(1, 64, 15, 15, 48, 3, 3), pad=1, stride=2),
    "conv-dilation-2": lambda: conv(6, sizes=(1, 64, 12, 12, 16, 3, 3), pad=2, dilation=2),
    "conv-batch-3": lambda: conv(4, sizes=(3, 64, 8, 8, 80, 3, 3), pad=1),
    "conv-7x7-stem": lambda: conv(16, sizes=(1, 3, 32, 32, 32, 7, 7), pad=3, stride=2),
    "conv-1x1": lambda: conv(14, sizes=(1, 128, 14, 14, 64, 1, 1)),
    "conv-planes-nchw": lambda: conv(
        7, sizes=(2, 70, 9, 14, 48, 3, 3), pad=1, layout="NCHW", stride=1
    ),
    "conv-one-row-tiles": lambda: conv(1, sizes=(1, 64, 5, 5, 16, 3, 3)),
    "gemm-full-tiles": lambda: gemm(64, 64, 128, rows=16),
    "gemm-in-place": lambda: gemm(48, 32, 128, rows=16, in_place=True),
    "gemm-prime-sizes": lambda: gemm(37, 83, 131, rows=11),
    "gemm-one-row": lambda: gemm(1, 100, 200, rows=1),
    # One accumulator leaves tiles unused, which LLVM must not take.
    "gemm-one-tile": lambda: gemm(16, 16, 256, rows=16),
    "gemm-7-by-5-tiles": lambda: gemm(112, 80, 64, rows=16),
    "gemm-7-by-7-tiles": lambda: gemm(112, 112, 64, rows=16),
    "gemm-signed": lambda: gemm(20, 40, 100, "int8,int8", rows=10),
    "gemm-unsigned": lambda: gemm(20, 40, 100, "uint8,uint8", rows=10),
    "gemm-signed-unsigned": lambda: gemm(20, 40, 100, "int8,uint8", rows=10),
    "gemm-bfloat16": lambda: gemm(40, 50, 70, "bfloat16", rows=16),
    "conv-bfloat16": lambda: conv(7, "bfloat16", sizes=(1, 40, 14, 14, 32, 3, 3), pad=1),
    "derived-conv2d-nchw": lambda: derived(
        conv2d(n=1, c=40, h=10, w=14, k=20, r=3, s=3, pad=1, dtype="uint8,int8"),
        x=(Digit("q", 14),),
        y=(Digit("k", 16),),
        z=(Digit("c", 64),),
    ),
    "derived-conv2d-strided-dilated": lambda: derived(
        conv2d(
            n=2,
            c=40,
            h=13,
            w=15,
            k=20,
            r=3,
            s=2,
            stride=2,
            dilation=3,
            layout="NHWC",
            dtype="int8",
        ),
        x=(Digit("q", 4),),
        y=(Digit("k", 16),),
        z=(Digit("c", 64),),
    ),
    "derived-conv3d": lambda: derived(
        conv3d(n=1, c=8, d=4, h=5, w=6, k=17, t=2, r=3, s=3, pad=1, dtype="uint8,int8"),
        x=(Digit("p", 5),),
        y=(Digit("k", 16),),
        z=(Digit("c", 64),),
    ),
    "derived-gemm-interleaved-rows": lambda: derived(
        gemm_workload(m=33, n=50, k=70, dtype="uint8,int8"),
        x=(Digit("m", 11, 3),),
        y=(Digit("n", 16),),
        z=(Digit("k", 64),),
    ),
    "derived-gemm-last-columns-twice": lambda: derived(
        gemm_workload(m=40, n=83, k=128, dtype="uint8,int8"),
        ("A", "C"),
        x=(Digit("m", 16),),
        y=(Digit("n", 16),),
        z=(Digit("k", 64),),
    ),
    "derived-gemm-transposed-bfloat16": lambda: derived(
        gemm_workload(m=20, n=30, k=45, trans_a=True, trans_b=True, dtype="bfloat16"),
        x=(Digit("m", 10),),
        y=(Digit("n", 16),),
        z=(Digit("k", 32),),
    ),
    "derived-conv2d-rows-of-batch": lambda: derived(
        conv2d(n=6, c=64, h=4, w=4, k=32, r=3, s=3, layout="NHWC", dtype="uint8,int8"),
        x=(Digit("n", 6),),
        y=(Digit("k", 16),),
        z=(Digit("c", 64),),
    ),
}
STORED: dict[str, tuple[Epilogue, Knobs]] = {
    f"{family}-{epilogue.dtype}{''.join(epilogue.vectors)}-{blocks}": (
        epilogue,
        Knobs({"n.o": blocks}),
    )
    for family in ("int8", "bfloat16")
    for blocks in (4, 3, 1)
    for epilogue in (
        Epilogue("uint8", scale=True, bias=True),
        Epilogue("int8", scale=True, relu=True),
        Epilogue("bfloat16", scale=True),
        Epilogue("int32", bias=True),
        Epilogue("int32", scale=True, relu=True),
        Epilogue("bfloat16"),
    )
}
"""What is stored of a product's sums, by blocks of so many tiles."""
SLOW_CASES: dict[str, Callable[[], DerivedProgram]] = {
    "resnet-56": lambda: conv(14, sizes=(1, 64, 56, 56, 64, 3, 3), pad=1),
    "resnet-14-strided": lambda: conv(14, sizes=(1, 256, 28, 28, 512, 3, 3), pad=1, stride=2),
}


def run_stored(name: str) -> dict[str, Any]:
    """Verify one of :data:`STORED`."""
    epilogue, knobs = STORED[name]
    # Results are converted and stored by AVX-512, which nothing emulates.
    stores = "avx512_bf16" if epilogue.dtype == "bfloat16" else "avx512_int8"
    missing = missing_features(load_hardware_spec(stores))
    if missing:
        return {"missing": missing}
    dtype = "bfloat16" if name.startswith("bfloat16") else "uint8,int8"
    program, spec = gemm(40, 83, 131, dtype, rows=16), BF16 if dtype == "bfloat16" else INT8
    kernel = build(program, spec, backend="native", knobs=knobs, epilogue=epilogue)
    return {"verified": verify(kernel, program.workload, seed=1).verified}


def run(make: Callable[[], DerivedProgram], products: Callable[[], int]) -> dict[str, Any]:
    """Verify one case; ``products`` counts the tile products executed so far."""
    program = make()
    spec = BF16 if program.operands[0].dtype == "bfloat16" else INT8
    before = products()
    try:
        kernel = build(program, spec, backend="native")
    except CpembedError as error:
        return {"error": str(error)}
    found = verify(kernel, program.workload, seed=1)
    return {
        "backend": kernel.backend,
        "verified": found.verified,
        "max_error": found.max_error,
        "tolerance": found.tolerance,
        "products": products() - before,
        "calls": program.calls,
        # Of one tile a task: blocks of more see something where each tile may see only padding.
        "least": round(program.calls * executed_share(kernel_nest(program))),
    }


def emulate(library: str) -> ctypes.CDLL:
    """Load the emulator: from here on this process takes the CPU for one with AMX."""
    os.environ[ASSUME_VARIABLE] = "amx_tile,amx_int8,amx_bf16"
    return ctypes.CDLL(library)


def main() -> None:
    """Runs the cases that the first argument names, separated by commas."""
    names, *libraries = sys.argv[1:]
    products: Callable[[], int] = lambda: 0  # noqa: E731
    if libraries:
        products = emulate(libraries[0]).amx_emulator_products
    cases = CASES | SLOW_CASES
    found = {
        name: run_stored(name) if name in STORED else run(cases[name], products)
        for name in names.split(",")
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
