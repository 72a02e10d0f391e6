"""Kernels of Arm's instructions against the reference, bit for bit, under emulation."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from cpembed.codegen.packing import packed_before
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import CrashError
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.targets.cpu.variants import with_variants
from tests.running import check_schedules
from tests.unit.targets.arm.emulation import needs_emulator

pytestmark = needs_emulator

INSTRUCTIONS = {"arm_sdot": "sdot", "arm_udot": "udot", "arm_smmla": "smmla"}
LAYERS = 200
PRIMES = (1, 2, 3, 5, 7, 11, 13, 17, 19, 23)


def gemm(rng: random.Random) -> str:
    m, n, k = rng.choices(PRIMES, k=3)
    name = rng.choice(("gemm", f"batched_gemm b={rng.choice((2, 3))}"))
    return f"{name} m={m} n={n} k={k} trans_a={rng.randrange(2)} trans_b={rng.randrange(2)}"


def window(rng: random.Random, names: str) -> str:
    """Sizes of an image and a filter, ``names`` by turns, and how one moves over the other."""
    filters = [rng.choice((1, 2, 3)) for _ in names[::2]]
    dilation, pad = rng.choice((1, 1, 2, 3)), rng.choice((0, 0, 1, 2))
    words = [f"pad={pad}", f"stride={rng.choice((1, 1, 2, 3))}", f"dilation={dilation}"]
    for image, kernel, size in zip(names[::2], names[1::2], filters, strict=True):
        least = max(1, (size - 1) * dilation + 1 - 2 * pad)
        extent = rng.choice([prime for prime in PRIMES[:7] if prime >= least])
        words += [f"{image}={extent}", f"{kernel}={size}"]
    return " ".join(words)


def conv2d(rng: random.Random) -> str:
    groups = rng.choice((1, 1, 2, 3))
    c, k = (groups * rng.choice(PRIMES[:6]) for _ in range(2))
    layout = rng.choice(("NCHW", "NHWC"))
    sizes = f"n={rng.choice((1, 1, 2))} c={c} k={k} groups={groups} layout={layout}"
    return f"conv2d {sizes} {window(rng, 'hrws')}"


def conv1d(rng: random.Random) -> str:
    c, k = rng.choices(PRIMES, k=2)
    layout = rng.choice(("NCW", "NWC"))
    return f"conv1d n={rng.choice((1, 2))} c={c} k={k} layout={layout} {window(rng, 'ws')}"


def conv3d(rng: random.Random) -> str:
    c, k = rng.choices(PRIMES[:5], k=2)
    layout = rng.choice(("NCDHW", "NDHWC"))
    return f"conv3d n=1 c={c} k={k} layout={layout} {window(rng, 'dthrws')}"


def depthwise(rng: random.Random) -> str:
    c, m = rng.choice(PRIMES), rng.choice((1, 1, 2))
    layout = rng.choice(("NCHW", "NHWC"))
    return f"depthwise n={rng.choice((1, 2))} c={c} m={m} layout={layout} {window(rng, 'hrws')}"


def transposed(rng: random.Random) -> str:
    c, k = rng.choices(PRIMES[:6], k=2)
    sizes = " ".join(f"{n}={rng.choice(PRIMES[1:5])}" for n in "hw")
    filters = f"r={rng.choice((2, 3))} s={rng.choice((2, 3))} stride={rng.choice((1, 2))}"
    return f"transposed_conv2d n=1 c={c} k={k} {sizes} {filters}"


FAMILIES: list[Callable[[random.Random], str]] = [
    gemm, gemm, conv2d, conv2d, conv2d, conv1d, conv3d, transposed,
]  # fmt: skip


@pytest.mark.quick(6)
@pytest.mark.parametrize("number", range(LAYERS))
@pytest.mark.parametrize("target", INSTRUCTIONS)
def test_random_layers_are_bit_exact(target: str, number: int) -> None:
    rng = random.Random(number)
    words = FAMILIES[number % len(FAMILIES)](rng)
    check(words, target, INSTRUCTIONS[target], rng)


@pytest.mark.quick(2)
@pytest.mark.parametrize("number", range(LAYERS // 5))
def test_random_depthwise_layers_are_bit_exact(number: int) -> None:
    rng = random.Random(number)
    words, types = depthwise(rng), rng.choice(("int8", "uint8", "uint8,int8"))
    check(f"{words} dtype={types}", "arm_int8", "v", rng)


@pytest.mark.quick(3)
@pytest.mark.parametrize("number", range(24))
def test_random_layers_of_floats_are_within_rounding(number: int) -> None:
    rng = random.Random(number)
    is_depthwise = number % 3 == 2
    words = depthwise(rng) if is_depthwise else FAMILIES[number % len(FAMILIES)](rng)
    spec = hardware_spec("arm_f32_lanes" if is_depthwise else "arm_f32")
    given = workload(words, target=spec)
    inputs = random_inputs(given, rng.randrange(1 << 30))
    best = solve(given, spec, top=1).embeddings
    candidate = rng.choice(with_variants(best, spec)).candidate
    space = schedule_space(candidate.program, spec).ranked()
    _, knobs = space[0] if rng.randrange(2) else rng.choice(space)
    kernel = build(candidate.program, spec, backend="native", knobs=knobs)
    expected = reference(given, inputs)
    assert "\tfmla" in kernel.assembly() or not expected.any(), words
    # Sums of products of random floats from -1 to 1, in another order.
    np.testing.assert_allclose(kernel.run(inputs), expected, rtol=1e-4, atol=1e-4)


def check(words: str, target: str, mnemonic: str, rng: random.Random) -> None:
    """A random variant on a schedule, the model's as often as any other, is exact and uses the
    instruction."""
    spec, seed = hardware_spec(target), rng.randrange(1 << 30)
    given = workload(words, target=spec)
    inputs = random_inputs(given, seed)
    best = solve(given, spec, top=1).embeddings
    candidate = rng.choice(with_variants(best, spec)).candidate
    space = schedule_space(candidate.program, spec).ranked()
    _, knobs = space[0] if rng.randrange(2) else rng.choice(space)
    kernel = build(candidate.program, spec, backend="native", knobs=knobs)
    expected = reference(given, inputs)
    # A filter may see nothing but padding: no product is left.
    assert f"\t{mnemonic}" in kernel.assembly() or not expected.any(), words
    np.testing.assert_array_equal(kernel.run(inputs), expected, words)
    if kernel.has_inner_packing:
        whole = kernel.run_whole(inputs, packed_before(given))
        np.testing.assert_array_equal(whole, expected, words)


@pytest.mark.slow
@pytest.mark.parametrize("target", INSTRUCTIONS)
@pytest.mark.parametrize("words", ["gemm m=13 n=17 k=19", "conv2d n=1 c=5 h=9 w=9 k=7 r=3 s=3"])
def test_schedules_and_epilogues_are_bit_exact(target: str, words: str) -> None:
    check_schedules(words, hardware_spec(target), random.Random(words), 2)


@pytest.mark.quick(3)
@pytest.mark.parametrize("target", INSTRUCTIONS)
@pytest.mark.parametrize("ends", ["min min", "max max", "min max"])
def test_extreme_bytes_are_exact(target: str, ends: str) -> None:
    spec = hardware_spec(target)
    given = workload("gemm m=5 n=7 k=61", target=spec)
    program = solve(given, spec, top=1).embeddings[0].candidate.program
    limits = [getattr(np.iinfo(given.inputs[0].dtype), end) for end in ends.split()]
    inputs = {
        operand.name: np.full(operand.shape, value, operand.dtype)
        for operand, value in zip(given.inputs, limits, strict=True)
    }
    kernel = build(program, spec, backend="native")
    np.testing.assert_array_equal(kernel.run(inputs), reference(given, inputs))


@pytest.mark.parametrize("target", INSTRUCTIONS)
def test_a_core_without_the_instruction_traps(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = hardware_spec(target)
    given = workload("gemm m=8 n=8 k=8", target=spec)
    program = solve(given, spec, top=1).embeddings[0].candidate.program
    kernel = build(program, spec, backend="native")
    inputs = random_inputs(given, 1)
    kernel.run(inputs)
    monkeypatch.setenv("QEMU_CPU", "cortex-a57")
    said = (
        f"running the {kernel.backend} kernel ended in SIGILL: the emulated core cortex-a57 lacks"
    )
    with pytest.raises(CrashError, match=said) as found:
        kernel.run(inputs)
    assert found.value.exit_code == 5
    assert "\n" not in str(found.value)
