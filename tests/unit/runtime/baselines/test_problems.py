"""Layers as libraries know them: the same numbers as the workload's own loop nest."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.baselines import NotCovered, Subject
from cpembed.targets.x86.baselines import Convolution, Product, problem_of
from cpembed.workloads.suites import Layer


def subject(label: str, layout: str = "NCHW") -> Subject:
    layer = Layer("", 0, "", label)
    return Subject.from_layer(layer, layer.workload(("uint8", "int8"), layout), layout)


def convolve(problem: Convolution, image: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """``[n, groups * filters, *output]`` by the book, from an image with channels last."""
    pads = [(0, 0), *((p, p) for p in problem.pad), (0, 0)]
    image = np.pad(image.astype(np.int64), pads)
    axes = list(
        zip(
            problem.image,
            problem.window,
            problem.pad,
            problem.stride,
            problem.dilation,
            strict=True,
        )
    )
    extents = [(i + 2 * p - d * (w - 1) - 1) // s + 1 for i, w, p, s, d in axes]
    found = np.zeros((problem.batch, problem.groups * problem.filters, *extents), np.int64)
    for group, tap in itertools.product(
        range(problem.groups), itertools.product(*map(range, problem.window))
    ):
        window = tuple(
            slice(t * d, t * d + (extent - 1) * s + 1, s)
            for t, extent, (_, _, _, s, d) in zip(tap, extents, axes, strict=True)
        )
        channels = slice(group * problem.channels, (group + 1) * problem.channels)
        filters = slice(group * problem.filters, (group + 1) * problem.filters)
        factors = weights[(filters, slice(None), *tap)].astype(np.int64)
        found[:, filters] += np.einsum(
            "n...c,kc->nk...", image[(slice(None), *window, channels)], factors
        )
    return found


@pytest.mark.parametrize(
    "label, layouts",
    [
        ("conv1d n=2 c=3 w=9 k=4 s=3 pad=2 stride=2 dilation=2", ("NCHW", "NHWC")),
        ("conv2d n=2 c=3 h=7 w=9 k=4 r=3 s=2 pad=1,2 stride=2,1", ("NCHW", "NHWC")),
        ("conv2d n=2 c=3 h=6 w=5 k=2 r=2 s=3 groups=3 dilation=1,2", ("NCHW", "NHWC")),
        ("conv3d n=1 c=2 d=4 h=5 w=6 k=3 t=2 r=3 s=2 pad=1,0,2 stride=1,2,3", ("NCHW", "NHWC")),
        ("depthwise n=2 c=3 h=6 w=5 r=3 s=2 pad=1", ("NCHW", "NHWC")),
        ("depthwise n=2 c=3 h=6 w=5 r=3 s=2 m=2 stride=2", ("NCHW", "NHWC")),
        ("conv1d n=2 c=4 w=9 k=6 s=3", ("NCHW2c",)),
        ("conv2d n=2 c=8 h=7 w=9 k=12 r=3 s=2 pad=1,2", ("NCHW4c",)),
        ("conv2d n=2 c=4 h=6 w=5 k=2 r=2 s=3 groups=3", ("NCHW2c",)),
        ("conv3d n=1 c=2 d=4 h=5 w=6 k=4 t=2 r=3 s=2 stride=1,2,3", ("NCHW2c",)),
        ("depthwise n=2 c=6 h=6 w=5 r=3 s=2 pad=1", ("NCHW3c",)),
        ("depthwise n=2 c=6 h=6 w=5 r=3 s=2 m=2", ("NCHW3c",)),
    ],
)
def test_convolutions(label: str, layouts: tuple[str, ...]) -> None:
    for layout in layouts:
        what = subject(label, layout)
        inputs = random_inputs(what.workload, 1)
        problem = problem_of(what)
        assert isinstance(problem, Convolution)
        image, weights = problem.images(inputs), problem.weights(inputs)
        assert image.flags.c_contiguous
        assert weights.flags.c_contiguous
        found = problem.result(convolve(problem, image, weights))
        np.testing.assert_array_equal(found, reference(what.workload, inputs))


@pytest.mark.parametrize(
    "label",
    [
        "gemm m=3 n=4 k=5",
        "gemm m=3 n=4 k=5 trans_a=1 trans_b=1",
        "gemv m=3 k=5",
        "gemv m=3 k=5 trans_a=1 column=1",
    ],
)
def test_products(label: str) -> None:
    what = subject(label)
    inputs = random_inputs(what.workload, 1)
    problem = problem_of(what)
    assert isinstance(problem, Product)
    left, right = problem.left(inputs), problem.right(inputs)
    assert left.flags.c_contiguous
    assert right.flags.c_contiguous
    found = problem.result(left.astype(np.int32) @ right.astype(np.int32))
    np.testing.assert_array_equal(found, reference(what.workload, inputs))


def test_other_operators_are_no_problem_of_a_library() -> None:
    found = problem_of(subject("grouped_fc n=2 g=3 c=4 k=5"))
    assert isinstance(found, NotCovered)
    assert "grouped_fc" in found.reason
