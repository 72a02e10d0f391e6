"""Gradients of convolutions beside sums over every product of the convolution."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.errors import WorkloadError
from cpembed.ir.reference import reference
from cpembed.workloads.gradients import GRADIENTS, phases

Array = NDArray[np.float64]
Sizes = dict[str, int]


def brute_force(
    gradient: Array, filters: Array, image: Array, window: dict[str, tuple[int, ...]]
) -> tuple[Array, Array]:
    """Gradients by image and filter, channels first: each product of the convolution once."""
    by_image, by_filter = np.zeros(image.shape), np.zeros(filters.shape)
    for place in itertools.product(*map(range, gradient.shape[2:])):
        for tap in itertools.product(*map(range, filters.shape[2:])):
            pixel = tuple(
                stride * p + dilation * r - pad
                for p, r, stride, dilation, pad in zip(
                    place, tap, window["stride"], window["dilation"], window["pad"], strict=True
                )
            )
            if not all(0 <= x < size for x, size in zip(pixel, image.shape[2:], strict=True)):
                continue
            out = gradient[(slice(None), slice(None), *place)]
            by_image[(slice(None), slice(None), *pixel)] += (
                out @ filters[(slice(None), slice(None), *tap)]
            )
            by_filter[(slice(None), slice(None), *tap)] += (
                out.T @ image[(slice(None), slice(None), *pixel)]
            )
    return by_image, by_filter


def random_convolution(rng: random.Random, axes: int) -> tuple[Sizes, dict[str, tuple[int, ...]]]:
    letters = ("dhw"[-axes:], "trs"[-axes:])
    while True:
        window = {
            "stride": tuple(rng.randint(1, 3) for _ in range(axes)),
            "dilation": tuple(rng.randint(1, 3) for _ in range(axes)),
            "pad": tuple(rng.randint(0, 3) for _ in range(axes)),
        }
        sizes = {"n": rng.randint(1, 2), "c": rng.randint(1, 3), "k": rng.randint(1, 3)}
        sizes |= {name: rng.randint(3, 8 if axes < 3 else 5) for name in letters[0]}
        sizes |= {name: rng.randint(1, 4 if axes < 3 else 2) for name in letters[1]}
        rows = output_rows(sizes, window, letters)
        if min(rows) >= 1:
            return sizes, window


def output_rows(
    sizes: Sizes, window: dict[str, tuple[int, ...]], letters: tuple[str, str]
) -> list[int]:
    return [
        (sizes[h] + 2 * pad - dilation * (sizes[r] - 1) - 1) // stride + 1
        for h, r, pad, dilation, stride in zip(
            *letters, window["pad"], window["dilation"], window["stride"], strict=True
        )
    ]


def channels_last(array: Array) -> Array:
    return np.moveaxis(array, 1, -1)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_gradients_are_sums_over_every_product(axes: int, seed: int, last: bool) -> None:
    rng, generator = random.Random(seed * 3 + axes), np.random.default_rng(seed)
    sizes, window = random_convolution(rng, axes)
    letters = ("dhw"[-axes:], "trs"[-axes:])
    image = generator.integers(-4, 5, (sizes["n"], sizes["c"], *(sizes[x] for x in letters[0])))
    filters = generator.integers(-4, 5, (sizes["k"], sizes["c"], *(sizes[x] for x in letters[1])))
    rows = output_rows(sizes, window, letters)
    gradient = generator.integers(-4, 5, (sizes["n"], sizes["k"], *rows))
    by_image, by_filter = brute_force(gradient, filters, image, window)
    family = {f.name.removeprefix(f"conv{axes}d_"): f for f in GRADIENTS if f"{axes}d" in f.name}
    layout = ("NCW", "NCHW", "NCDHW")[axes - 1]
    layout = f"N{layout[2:]}C" if last else layout
    arranged = channels_last if last else np.asarray
    given = family["wgrad"](**sizes, **window, layout=layout, dtype="float32")
    inputs = {"I": arranged(image), "G": arranged(gradient)}
    result = reference(given, {name: array.astype(np.float32) for name, array in inputs.items()})
    np.testing.assert_array_equal(result, arranged(by_filter))

    total = np.zeros(arranged(by_image).shape)
    products = 0
    for phase in phases(sizes, **window):
        given = family["dgrad"](**sizes, **window, phase=phase, layout=layout, dtype="float32")
        inputs = {"G": arranged(gradient), "W": arranged(filters)}
        floats = {name: array.astype(np.float32) for name, array in inputs.items()}
        places = [slice(a, None, s) for a, s in zip(phase, window["stride"], strict=True)]
        index = [slice(None), *places, slice(None)] if last else [slice(None), slice(None), *places]
        total[tuple(index)] = reference(given, floats)
        products += given.macs
    np.testing.assert_array_equal(total, arranged(by_image))
    # Nothing is multiplied by an inserted zero: each row of the image meets each of its taps.
    reaching = 1
    for axis in range(axes):
        stride, dilation, pad = (window[name][axis] for name in ("stride", "dilation", "pad"))
        height, taps = sizes[letters[0][axis]], sizes[letters[1][axis]]
        reaching *= sum(
            (h + pad - dilation * r) % stride == 0 for h in range(height) for r in range(taps)
        )
    assert products == reaching * sizes["n"] * sizes["c"] * sizes["k"]


def test_groups_are_independent_gradients() -> None:
    dgrad, wgrad = (f for f in GRADIENTS if f.name.startswith("conv2d"))
    sizes = {"n": 2, "c": 3, "h": 6, "w": 5, "k": 2, "r": 3, "s": 3}
    window = {"pad": (1, 1), "stride": (1, 1), "dilation": (1, 1)}
    generator = np.random.default_rng(0)
    image = generator.integers(-4, 5, (2, 2, 3, 6, 5))
    filters, gradient = (generator.integers(-4, 5, s) for s in ((2, 2, 3, 3, 3), (2, 2, 2, 6, 5)))
    found_image = reference(
        dgrad(**sizes, pad=1, groups=2, dtype="float32"),
        {"G": gradient.astype(np.float32), "W": filters.astype(np.float32)},
    )
    found_filter = reference(
        wgrad(**sizes, pad=1, groups=2, dtype="float32"),
        {"I": image.astype(np.float32), "G": gradient.astype(np.float32)},
    )
    for g in range(2):
        by_image, by_filter = brute_force(gradient[:, g], filters[g], image[:, g], window)
        np.testing.assert_array_equal(found_image[:, g], by_image)
        np.testing.assert_array_equal(found_filter[g], by_filter)


def test_what_has_no_gradient_is_refused() -> None:
    dgrad = next(f for f in GRADIENTS if f.name == "conv2d_dgrad")
    sizes = {"n": 1, "c": 1, "h": 4, "w": 4, "k": 1, "r": 1, "s": 1}
    with pytest.raises(WorkloadError, match="their gradient is zero"):
        dgrad(**sizes, stride=2, phase=1)
    with pytest.raises(WorkloadError, match="phase=2 is no remainder"):
        dgrad(**sizes, stride=2, phase=2)
    with pytest.raises(WorkloadError, match="output axis p has extent"):
        dgrad(**{**sizes, "r": 9})
