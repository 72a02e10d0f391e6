"""Products of a network by their definition, beside sums written out."""

import numpy as np

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Product, TensorType
from cpembed.ir.parser import parse_computation


def test_a_requantized_product_with_a_residual() -> None:
    computation = parse_computation(
        "C[m,n] += A[m,k] * B[n,k]",
        {"m": 3, "n": 4, "k": 5},
        dtypes={"A": "uint8", "B": "int8", "C": "int32"},
    )
    residual = Residual("uint8", own_scale=0.5, scale=0.25, zero_point=7, stored_zero_point=3)
    epilogue = Epilogue("uint8", scale=True, bias=True, zero_point=120, residual=residual)
    random = np.random.default_rng(0)
    a = random.integers(0, 256, (3, 5)).astype(np.uint8)
    b = random.integers(-128, 128, (4, 5)).astype(np.int8)
    bias = random.integers(-1000, 1000, 4).astype(np.int32)
    scale = random.uniform(0.001, 0.01, 4).astype(np.float32)
    other = random.integers(0, 256, (3, 4)).astype(np.uint8)
    graph = Graph(
        "one product",
        {"a": TensorType((3, 5), "uint8"), "r": TensorType((3, 4), "uint8")},
        ("c",),
        {"b": b, "bias": bias, "scale": scale},
        (
            Operator(
                "product",
                Product(computation, (3, 4), (11, 0), epilogue),
                ("a", "b", "bias", "scale", "r"),
                ("c",),
            ),
        ),
    )
    sums = (a.astype(np.int64) - 11) @ b.astype(np.int64).T
    first = np.clip(np.rint((sums + bias).astype(np.float32) * scale), -120, 135)
    added = (other.astype(np.float32) - 7) * np.float32(0.25)
    whole = np.clip(np.rint(first * np.float32(0.5) + added) + 3, 0, 255)
    found = evaluate(graph, {"a": a, "r": other})["c"]
    assert found.dtype == np.uint8
    assert np.array_equal(found, whole)
