"""Variants of small and odd shapes: every one that is made has a program, and none is asked for
that cannot have one."""

from __future__ import annotations

import random

import pytest

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.errors import WorkloadError
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.cpu.variants import require_variant, with_variants
from tests.fuzz.test_shapes import expression, named

TARGETS = ("avx2_int8", "avx2_f32", "avx512_vnni", "avx512_vnni_dot", "avx512_f32", "avx2_lanes")


def made(words: list[str], target: str) -> int:
    spec = load_hardware_spec(target)
    layer = workload(words, spec)
    solved = solve(layer, spec, top=3, timeout=5)
    variants = with_variants(solved.embeddings, spec, fuses=True)
    for ranked in variants:
        require_variant(ranked.candidate)
    return len(variants)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_are_shorter_than_every_extent_of_a_lane(target: str) -> None:
    """Two by two outputs are rows of four points, an instruction of eight lanes has none."""
    assert made(["depthwise", "n=1", "c=8", "h=4", "w=4", "r=3", "s=3"], target)


@pytest.mark.parametrize("target", ["avx2_f32", "avx512_vnni", "avx512_f32"])
def test_a_window_of_which_another_input_has_a_part(target: str) -> None:
    """``z`` and ``y`` are no one axis: B is indexed by z alone."""
    assert made(["O[i] += A[z,y+i]*B[z]", "i=8", "z=33", "y=3"], target)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_shapes_have_variants_or_none(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        words = expression(rng) if rng.random() < 0.7 else named(rng)
        try:
            made(words, rng.choice(TARGETS))
        except WorkloadError:
            continue
