"""Zero points, residuals and places in larger buffers, native and portable, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.epilogue import RESIDUAL, SCALE, Epilogue, Residual, channel_numbers
from cpembed.codegen.placement import Placement
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.ir.reference import random_inputs
from cpembed.runtime.measurement.verification import Expected, random_vectors
from cpembed.targets.portable import PortableTarget
from cpembed.targets.registry import missing_for, open_target

CONV = "conv2d n=1 c=32 h=9 w=9 k=48 r=3 s=3 pad=1 layout=NHWC"
LAYERS = (CONV, "gemm m=37 n=48 k=64", "depthwise n=1 c=80 h=9 w=9 r=3 s=3 pad=1 layout=NHWC")
SPECIAL = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, 0.0, -0.0)
"""Scales that make results NaN, infinite, or too large for an integer."""
TARGETS = ("avx512_vnni", "avx2_int8")


def epilogues(shape: tuple[int, ...], dtype: str) -> dict[str, Epilogue]:
    moved = 3 if dtype == "uint8" else -5
    before = (0,) + (1,) * (len(shape) - 2) + (0,)
    whole = tuple(size + 2 * b for size, b in zip(shape, before, strict=True))
    place = Placement.inside(whole, before, shape)
    wide = Placement.inside((shape[0] + 1, *shape[1:]), (0,) * len(shape), shape)
    plain = Epilogue(dtype, scale=True, bias=True)
    residual = Residual(dtype, 0.7, 0.31, 4, 6, (5, 120), placement=place)
    return {
        "zero point": replace(plain, zero_point=moved),
        "zero point and relu": replace(plain, zero_point=moved, relu=True),
        "limits": replace(plain, zero_point=moved, clip=(10, 100)),
        "placed": replace(plain, placement=place),
        "residual": replace(plain, zero_point=moved, residual=residual),
        "residual of sums that are not rounded": replace(
            plain, residual=replace(residual, rounds=False)
        ),
        "residual, placed": replace(plain, residual=residual, placement=wide),
        "zero points at the ends": replace(
            plain,
            zero_point=int(np.iinfo(dtype).max),
            residual=Residual(
                dtype, 1.3, 0.9, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), placement=place
            ),
        ),
        "only rounded": replace(plain, dtype="int32"),
    }


@pytest.fixture(scope="module")
def chosen() -> dict[tuple[str, str], Selection]:
    selections: dict[tuple[str, str], Selection] = {}
    for target in TARGETS:
        for words in LAYERS:
            result = choose(Request(workload(words, hardware_spec(target)), target))
            assert isinstance(result, Selection)
            selections[target, words] = result
    return selections


def built(chosen: Selection, epilogue: Epilogue, native: bool) -> CompiledKernel:
    program = chosen.ranked.program
    if not native:
        target = PortableTarget(chosen.solved.target)
        return target.build(target.lower(program, epilogue), None)
    target = open_target(chosen.solved.target)
    lowered = target.lower(program, epilogue)
    return target.build(lowered, target.space(lowered).best().schedule)


@pytest.mark.parametrize(
    "native", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["native", "portable"]
)
@pytest.mark.parametrize("dtype", ["uint8", pytest.param("int8", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "target, words",
    [
        pytest.param(target, words, id=f"{target}-{words.split()[0]}", marks=marks)
        for target, words, marks in (
            # A kernel of each epilogue takes a second: the other pairs differ in the nest alone.
            ("avx512_vnni", LAYERS[0], ()),
            ("avx2_int8", LAYERS[1], ()),
            ("avx2_int8", LAYERS[2], ()),
            ("avx512_vnni", LAYERS[1], pytest.mark.slow),
            ("avx512_vnni", LAYERS[2], pytest.mark.slow),
            ("avx2_int8", LAYERS[0], pytest.mark.slow),
        )
    ],
)
def test_bit_for_bit(
    chosen: dict[tuple[str, str], Selection], target: str, words: str, dtype: str, native: bool
) -> None:
    if native and missing_for(hardware_spec(target)):
        pytest.skip(f"the processor lacks features of {target}")
    selection = chosen[target, words]
    layer = selection.solved.workload
    inputs = random_inputs(layer, 1)
    expected = Expected(layer, inputs)
    for name, epilogue in epilogues(layer.output.shape, dtype).items():
        vectors = random_vectors(layer, epilogue, expected.result, 1)
        other = None
        if epilogue.residual is not None:
            limits = np.iinfo(dtype)
            random = np.random.default_rng(2)
            shape = layer.output.shape
            other = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
            vectors[RESIDUAL] = other
        kernel = built(selection, epilogue, native)
        for special in (False, True):
            if special:
                scale = vectors[SCALE].reshape(-1)
                scale[: len(SPECIAL)] = SPECIAL
            actual = kernel.run({**inputs, **vectors})
            flat = {n: v.reshape(-1) for n, v in vectors.items()}
            with np.errstate(all="ignore"):
                wanted = epilogue.apply(expected.result, flat, channel_numbers(layer), other)
            assert np.array_equal(actual, wanted), (name, special)
