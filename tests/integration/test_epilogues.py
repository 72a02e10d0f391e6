"""Bias, scale, activation and conversion fused into the store, bit for bit equal to numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cpembed.codegen.epilogue import (
    BIAS,
    PROCESSOR_RESULT_TYPES,
    SCALE,
    Epilogue,
    channel_axes,
    channel_numbers,
)
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.measurement.verification import random_vectors
from cpembed.targets.cpu.target import BackendName, build
from cpembed.targets.vta.tail import Exact, Requantized, Tail, Truncated
from cpembed.transform.program import DerivedProgram
from cpembed.workloads.convolutions import conv2d, depthwise
from cpembed.workloads.einsum import dot
from tests.features import require_features
from tests.integration.epilogue_workloads import WORKLOADS

EPILOGUES = [
    Epilogue(dtype, scale=scale, bias=bias, relu=relu)
    for dtype, (scale, bias, relu) in itertools.product(
        PROCESSOR_RESULT_TYPES, [(True, True, True), (True, False, False), (False, True, True)]
    )
]

TARGETS = {
    "avx512_vnni": ("uint8", "int8", "int32"),
    "avx512_vnni_dot": ("uint8", "int8", "int32"),
    "amx_int8": ("uint8", "int8", "int32"),
    "amx_bf16": ("bfloat16", "bfloat16", "float32"),
    "avx512_bf16": ("bfloat16", "bfloat16", "float32"),
    "avx512_bf16_dot": ("bfloat16", "bfloat16", "float32"),
}


def check(program: DerivedProgram, target: str, epilogue: Epilogue, backend: BackendName) -> None:
    workload = program.original or program.workload
    inputs = random_inputs(workload, 7)
    sums = reference(workload, inputs)
    extra = random_vectors(workload, epilogue, sums, 8)
    kernel = build(program, load_hardware_spec(target), backend=backend, epilogue=epilogue)
    found = kernel.run({**inputs, **extra})
    flat = {name: vector.reshape(-1) for name, vector in extra.items()}
    expected = epilogue.apply(sums, flat, channel_numbers(workload))
    assert found.dtype == np.dtype("uint16" if epilogue.dtype == "bfloat16" else epilogue.dtype)
    if workload.output.dtype == "int32":
        assert np.array_equal(found, expected.view(found.dtype)), epilogue
    else:
        # Sums in another order differ in their last bits, and so may what they round to.
        values = found.view(numpy_dtype(epilogue.dtype)).astype(np.float64)
        error = np.abs(values - expected.astype(np.float64))
        step = 1.0 if "int" in epilogue.dtype else 2.0**-6 * np.abs(values) + 1e-2
        assert (error <= step).all(), epilogue


@pytest.mark.quick(10)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("target", TARGETS)
def test_native_kernels_store_what_numpy_computes(target: str, name: str, part: int) -> None:
    """``part``: every fourth epilogue, beginning with this one."""
    spec = load_hardware_spec(target)
    require_features(spec)
    workload = WORKLOADS[name](TARGETS[target])
    solved = solve(workload, spec, constraints="in_place_padded", top=1)
    for epilogue in EPILOGUES[part::4]:
        check(solved.embeddings[0].candidate.program, target, epilogue, "native")


@pytest.mark.quick(1)
@pytest.mark.parametrize("epilogue", EPILOGUES[::2], ids=str)
def test_portable_kernels_store_the_same(epilogue: Epilogue) -> None:
    workload = depthwise(n=1, c=20, h=8, w=8, r=3, s=3, dtype="int8")
    solved = solve(workload, "vta_1x16x16", constraints="complete", top=1)
    check(solved.embeddings[0].candidate.program, "vta_1x16x16", epilogue, "generic")


def test_channels_of_a_grouped_convolution_are_two_axes() -> None:
    workload = conv2d(n=1, c=8, h=5, w=5, k=12, r=3, s=3, groups=2, dtype="int8")
    assert {axis: workload.extents[axis] for axis in channel_axes(workload)} == {"g": 2, "k": 12}
    solved = solve(workload, "vta_1x16x16", constraints="in_place_padded", top=1)
    program = solved.embeddings[0].candidate.program
    check(program, "vta_1x16x16", EPILOGUES[0], "generic")


def test_a_vector_of_another_length_is_refused() -> None:
    workload = WORKLOADS["gemm"](TARGETS["avx512_vnni"])
    solved = solve(workload, "avx512_vnni", constraints="in_place_padded", top=1)
    epilogue = Epilogue("uint8", scale=True)
    kernel = build(
        solved.embeddings[0].candidate.program,
        load_hardware_spec("avx512_vnni"),
        backend="generic",
        epilogue=epilogue,
    )
    inputs = random_inputs(workload, 1)
    with pytest.raises(WorkloadError, match=r"@scale is float32 \(5,\), the kernel takes"):
        kernel.run({**inputs, SCALE: np.ones(5, np.float32)})


def test_other_result_types_are_refused() -> None:
    with pytest.raises(WorkloadError, match="not int64: choose one of these"):
        Epilogue("int64")


def test_bfloat16_results_round_to_the_nearest_even() -> None:
    sums = np.array([0x3F808000, 0x3F818000, 0x3F80C000, 0x7FC00001], np.uint32).view(np.float32)
    found = Epilogue("bfloat16").apply(sums, {}, np.zeros(4, np.int64))
    assert [hex(bits) for bits in found.view(np.uint16)[:3]] == ["0x3f80", "0x3f82", "0x3f81"]
    assert np.isnan(found.astype(np.float32)[3])


@pytest.mark.quick(2)
@pytest.mark.parametrize("backend", ["portable", "native"])
def test_a_result_without_channels_has_one_bias_and_one_scale(backend: BackendName) -> None:
    spec = load_hardware_spec("avx512_vnni_dot")
    if backend == "native":
        require_features(spec)
    workload = dot(k=70, dtype=TARGETS[spec.name])
    epilogue = Epilogue("float32", scale=True, bias=True)
    assert channel_axes(workload) == ()
    vectors = random_vectors(workload, epilogue, reference(workload, random_inputs(workload, 7)), 8)
    assert {vector.shape for vector in vectors.values()} == {()}
    solved = solve(workload, spec, constraints="in_place_padded", top=1)
    check(solved.embeddings[0].candidate.program, spec.name, epilogue, backend)


INTEGERS = [
    Epilogue("int8", shift=7),
    Epilogue("int8", bias=True, relu=True, shift=9),
    Epilogue("uint8", bias=True, shift=8, clip=(3, 200)),
    Epilogue("int32", shift=3),
    Epilogue("int8", clip=(-100, 6)),
    Epilogue("int8", wraps=True),
]


@pytest.mark.quick(6)
@pytest.mark.parametrize("target, backend", [("avx512_vnni", "native"), ("avx512_vnni", "generic")])
@pytest.mark.parametrize("epilogue", INTEGERS, ids=str)
@pytest.mark.parametrize("words", ["conv", "gemm"])
def test_shifted_and_clipped_integers(
    words: str, epilogue: Epilogue, target: str, backend: BackendName
) -> None:
    spec = load_hardware_spec(target)
    if backend == "native":
        require_features(spec)
    program = solve(WORKLOADS[words](TARGETS[target]), spec, top=1).embeddings[0].candidate.program
    check(program, target, epilogue, backend)


def tail_of(epilogue: Epilogue, bias: tuple[int, ...] = ()) -> Tail:
    """Return the tail of an epilogue; ``bias`` are the dimensions of the output that its bias has.

    Raises :class:`LoweringError` if the ALU cannot execute it: it adds, shifts and clips integers,
    and stores bytes.

    >>> tail_of(Epilogue("int8", relu=True, shift=9))
    Requantized(shift=9, low=0, high=127, bias=())
    """
    plain = not (epilogue.bias or epilogue.relu or epilogue.shift or epilogue.clip)
    if epilogue.residual is not None or epilogue.placement is not None:
        raise LoweringError("a VTA program adds no residual and stores in a buffer of its own")
    if epilogue.dtype == "int32" and plain and not epilogue.scale:
        return Exact()
    # A scale needs MUL, which HLS lacks and the RTL never completes.
    if epilogue.dtype != "int8" or epilogue.scale or (epilogue.wraps and not plain):
        raise LoweringError(
            f"VTA's ALU adds a bias, shifts and clips to int8, and does not make {epilogue}: "
            "name a target that a CPU executes"
        )
    if epilogue.wraps:
        return Truncated()
    # ReLU is a clip at 0, which the ALU does as the maximum that it takes anyway.
    low, high = epilogue.range
    return Requantized(epilogue.shift, max(low, 0) if epilogue.relu else low, high, bias)


def epilogue_of(tail: Tail) -> Epilogue:
    """Return the epilogue of a tail: :func:`tail_of` inverted, without the bias' dimensions."""
    if isinstance(tail, Requantized):
        clip = tail.low, tail.high
        return Epilogue("int8", bias=bool(tail.bias), shift=tail.shift, clip=clip)
    return Epilogue("int32") if isinstance(tail, Exact) else Epilogue("int8", wraps=True)


@pytest.mark.parametrize("epilogue", [one for one in INTEGERS if one.dtype == "int8"], ids=str)
def test_one_description_is_the_same_on_vta(epilogue: Epilogue) -> None:
    sums = np.random.default_rng(3).integers(-(2**14), 2**14, (5, 7), np.int32)
    bias = np.arange(-3, 4, dtype=np.int32) * 1000
    tail = tail_of(epilogue, (1,) if epilogue.bias else ())
    given = () if not epilogue.bias else (bias,)
    channel = np.broadcast_to(np.arange(7), sums.shape)
    assert np.array_equal(tail.reference(sums, *given), epilogue.apply(sums, {BIAS: bias}, channel))
    assert tail_of(epilogue_of(tail), tail.bias) == tail


@pytest.mark.parametrize(
    "epilogue",
    [Epilogue("uint8"), Epilogue("int8", scale=True), Epilogue("int32", shift=2)],
    ids=str,
)
def test_what_vta_cannot_store_is_refused(epilogue: Epilogue) -> None:
    with pytest.raises(LoweringError, match="name a target that a CPU executes"):
        tail_of(epilogue)


def test_steps_of_integers_do_not_go_with_floats() -> None:
    for options in ({"scale": True, "shift": 3}, {"clip": (5, 4)}, {"shift": 32}):
        with pytest.raises(WorkloadError):
            Epilogue("int8", **options)
    with pytest.raises(WorkloadError, match="need an integer result type"):
        Epilogue("float32", shift=1)
