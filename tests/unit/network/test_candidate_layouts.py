"""Which layouts tensors get, on a small network of convolutions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.driver.named import workload
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Pool, Product, Reshape, Softmax, TensorType
from cpembed.network.build import uniquely_named
from cpembed.network.layout import CandidateLayouts, Layout, residual_of

TYPES = "dtype=uint8,int8,int32"


def network(padding: int = 3) -> Graph:
    """x → conv (3x3, padded) → conv (1x1, adds the first) → pool → matrix."""
    first = workload(f"conv2d n=1 c=32 h=8 w=8 k=32 r=3 s=3 pad=1 {TYPES}")
    second = workload(f"conv2d n=1 c=32 h=8 w=8 k=32 r=1 s=1 {TYPES}")
    scaled = Epilogue("uint8", scale=True)
    added = replace(scaled, residual=Residual("uint8"))
    shape = (1, 32, 8, 8)
    pool = Pool("mean", (8, 8), (1, 1), (0, 0), (0, 0), (1, 1))
    weights = np.ones((32, 32, 3, 3), np.int8)
    return Graph(
        "small",
        {"x": TensorType(shape, "uint8")},
        ("out",),
        {"w": weights, "v": weights[:, :, :1, :1], "s": np.ones(32, np.float32)},
        (
            Operator("a", Product(first, shape, epilogue=scaled, padding=padding),
                     ("x", "w", "s"), ("y",)),
            Operator("b", Product(second, shape, epilogue=added), ("y", "v", "s", "y"), ("z",)),
            Operator("a", pool, ("z",), ("p",)),
            Operator("a", Reshape((1, 32)), ("p",), ("m",)),
            Operator("s", Softmax(1), ("m",), ("out",)),
        ),
    )  # fmt: skip


def test_images_and_what_is_made_of_them() -> None:
    layouts = CandidateLayouts(network())
    assert layouts.images == {"x", "y", "z", "p"}
    assert layouts.by_tensor["out"] == (Layout.plain((1, 32)),)
    assert layouts.by_tensor["m"] == (Layout.plain((1, 32)),)
    assert residual_of(network().operators[1]) == ("y",)


def test_a_halo_is_as_wide_as_the_padding_and_holds_its_value() -> None:
    layouts = CandidateLayouts(network(padding=3))
    assert layouts.halos == {"x": (1, 1)}
    assert layouts.fills == {"x": 3}
    assert any(layout.has_halo for layout in layouts.by_tensor["x"])
    assert not any(layout.has_halo for layout in layouts.by_tensor["y"])


def test_layouts_of_a_tensor_are_different_memories() -> None:
    layouts = CandidateLayouts(network())
    for name in layouts.activations:
        found = layouts.by_tensor[name]
        pairs = [(a, b) for a in found for b in found if a is not b]
        assert not any(a.same_memory(b) for a, b in pairs)
    # One pixel lies alike in every order.
    assert len(layouts.by_tensor["p"]) == 1


def test_operators_of_one_name_are_numbered() -> None:
    named = uniquely_named(network())
    assert [operator.name for operator in named.operators] == ["a", "b", "a (2)", "a (3)", "s"]
