"""A window of one step is no window: a 1x1 convolution is the product of its channels.

The product is written without the window's axes, over the same output: what it uses of an
instruction is what the convolution must use, under every shipped set and on every shipped target.
"""

from __future__ import annotations

import pytest

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import WorkloadError
from cpembed.resources import constraint_files, hardware_spec_files

PRODUCT = "O[n,k,p,q] += I[n,c,{p},{q}] * W[k,c] n=1 k=32 p={size} q={size} c=32"
LAYERS = {
    "plain": ("conv2d n=1 c=32 h=14 w=14 k=32 r=1 s=1", PRODUCT.format(p="p", q="q", size=14)),
    "margin": (
        "conv2d n=1 c=32 h=12 w=12 k=32 r=1 s=1 pad=1",
        PRODUCT.format(p="p", q="q", size=14),
    ),
    "strided": (
        "conv2d n=1 c=32 h=27 w=27 k=32 r=1 s=1 stride=2",
        PRODUCT.format(p="2*p", q="2*q", size=14),
    ),
    "one pixel": ("conv2d n=1 c=32 h=1 w=1 k=32 r=1 s=1", PRODUCT.format(p="p", q="q", size=1)),
}
"""A convolution, and the product that it is."""
QUICK = [
    (target, named, "plain")
    for target in ("vta_8x8x8", "amx_int8")
    for named in ("strict", "strict_padded", "in_place", "in_place_padded")
] + [("vta_8x8x8", "in_place_padded", "margin"), ("gemm_16x16x16", "relaxed", "one pixel")]


def used(words: str, target: str, named: str) -> float | None:
    """What the best candidate uses; None where nothing fits."""
    spec = hardware_spec(target)
    solved = solve(workload(words, spec), spec, constraints=named, top=1)
    assert solved.complete
    return solved.embeddings[0].overheads.utilisation if solved.count else None


def compare(target: str, named: str, layer: str) -> None:
    convolution, product = LAYERS[layer]
    expected = used(product, target, named)
    found = used(convolution, target, named)
    assert (found is None) <= (expected is None)
    assert (found or 0.0) >= (expected or 0.0)


@pytest.mark.parametrize("target, named, layer", QUICK)
def test_one_by_one_uses_what_the_product_uses(target: str, named: str, layer: str) -> None:
    compare(target, named, layer)


EVERYWHERE = [
    (target, named, layer)
    for target in sorted(hardware_spec_files())
    for named in sorted(constraint_files())
    for layer in LAYERS
    if layer == "plain" or named in ("strict_padded", "in_place_padded", "relaxed")
]


@pytest.mark.slow
@pytest.mark.parametrize("target, named, layer", EVERYWHERE)
def test_one_by_one_uses_what_the_product_uses_everywhere(
    target: str, named: str, layer: str
) -> None:
    try:
        compare(target, named, layer)
    except WorkloadError:
        pytest.skip(f"{target} takes other element types")


def test_an_image_axis_is_mapped_only_where_its_window_has_one_step() -> None:
    """Rows of the image beside a window of one row are mapped, columns beside two are not."""
    spec = hardware_spec("vta_8x8x8")
    layer = workload("conv2d n=1 c=8 h=16 w=16 k=8 r=1 s=2", spec)
    found = solve(layer, spec, constraints="strict_padded", top=None)
    mapped = {axes for item in found.embeddings for axes in item.candidate.embedding.family["x"]}
    assert "p" in mapped
    assert "q" not in mapped
