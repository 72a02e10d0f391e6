"""Which kernels of a layer are packed: the model's best, and the best of fixed mappings."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.driver.bench_pack import PackItem
from cpembed.driver.named import hardware_spec, workload
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.errors import LoweringError
from cpembed.targets.cuda.pack import selection
from cpembed.targets.cuda.pack.selection import FIXED, is_fixed
from cpembed.targets.registry import open_target


def item_of(words: str) -> PackItem:
    spec = hardware_spec("mma_f16")
    layer = workload(words, target=spec)
    return PackItem(suite="", name="", words=words, workload=layer, spec=spec)


def family(x: str, z: str, used: int = 16) -> Embedding:
    digits = {axis: tuple(Digit(a, 1) for a in axes) for axis, axes in (("x", x), ("z", z))}
    digits |= {"y": (Digit("k", 8),)}
    return Embedding({}, {"x": used, "y": 8, "z": used}, digits)


@pytest.mark.parametrize(
    "words, x, z, im2col, fuse_hw",
    [
        ("n=2 c=3 h=6 w=6", "npq", "crs", True, False),
        ("n=2 c=3 h=6 w=6", "pq", "crs", False, False),
        ("n=2 c=3 h=6 w=6", "pq", "c", False, True),
        ("n=2 c=3 h=6 w=6", "npq", "c", False, False),
        # Of whole tiles of channels the rest of the window is outside, wherever it is written.
        ("n=2 c=32 h=6 w=6", "npq", "c", True, False),
        # So are images of whole tiles of pixels.
        ("n=2 c=32 h=8 w=8", "pq", "c", True, True),
        ("n=1 c=3 h=6 w=6", "pq", "crs", True, False),
        ("n=2 c=32 h=6 w=6", "q", "c", False, False),
    ],
)
def test_fixed_mappings_are_told_by_what_they_compute(
    words: str, x: str, z: str, im2col: bool, fuse_hw: bool
) -> None:
    layer = item_of(f"conv2d {words} k=16 r=3 s=3 pad=1 layout=NHWC").workload
    names = [name for name in FIXED if is_fixed(name, family(x, z), layer)]
    assert names == ["im2col"] * im2col + ["fuse_hw"] * fuse_hw


def test_axes_around_whole_tiles_change_nothing() -> None:
    """Tiles of (n, p, q) fused are those of (p, q) where an image has whole tiles, by counting."""
    for rows, size in ((32, 16), (36, 16), (48, 8)):
        fused = np.arange(3 * rows)
        padded = np.pad(fused, (0, -len(fused) % size), constant_values=-1).reshape(-1, size)
        each = [np.pad(part, (0, -rows % size), constant_values=-1).reshape(-1, size)
                for part in fused.reshape(3, rows)]  # fmt: skip
        same = np.array_equal(padded, np.concatenate(each))
        extents = {"n": 3, "p": rows // 4, "q": 4}
        assert selection._fuses(("p", "q"), ("n", "p", "q"), extents, size) == same


@pytest.mark.slow
def test_kernels_of_a_layer_differ_and_are_the_best_first() -> None:
    item = item_of("conv2d n=2 c=32 h=6 w=6 k=24 r=3 s=3 pad=1 stride=2 layout=NHWC")
    target = open_target(item.spec)
    found = selection.select(item.workload, target, item.candidates(), None, 3)
    chosen = {role: item for item in found for role in item.roles}
    assert {"chosen 1", "chosen 2", "chosen 3", "im2col", "fuse_hw"} == set(chosen)
    costs = [chosen[f"chosen {place}"].estimated_us for place in (1, 2, 3)]
    assert costs == sorted(costs)
    assert costs[0] <= min(item.estimated_us for item in found)
    embeddings = {role: c.ranked.candidate.embedding for role, c in chosen.items()}
    assert all(is_fixed(name, embeddings[name], item.workload) for name in FIXED)


def test_a_workload_without_a_kernel_says_why() -> None:
    item = item_of("depthwise n=1 c=8 h=4 w=4 r=3 s=3")
    target = open_target(item.spec)
    with pytest.raises(LoweringError, match="no kernel of mma_f16"):
        selection.select(item.workload, target, item.candidates(), None, 1)
