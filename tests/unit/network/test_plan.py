"""A residual that is added by an operator of its own: the same results, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Product, TensorType
from cpembed.ir.parser import parse_computation
from cpembed.network.plan import split_epilogues

BYTES = Epilogue("uint8", scale=True, bias=True, zero_point=7)
ADDED = Residual("uint8", own_scale=0.7, scale=1.3, zero_point=9, stored_zero_point=4)
EPILOGUES = {
    "bytes": replace(BYTES, residual=ADDED),
    "limits": replace(BYTES, clip=(20, 90), residual=replace(ADDED, clip=(4, 100))),
    "signed": replace(
        BYTES, dtype="int8", zero_point=-3, residual=replace(ADDED, dtype="int8", zero_point=-5)
    ),
    "not rounded in between": replace(
        BYTES, zero_point=0, relu=True, residual=replace(ADDED, rounds=False)
    ),
    "floats": Epilogue("float32", scale=True, bias=True, residual=Residual("float32", relu=True)),
}


def network(epilogue: Epilogue) -> tuple[Graph, dict[str, np.ndarray]]:
    assert epilogue.residual is not None
    product = parse_computation(
        "C[m,n] += A[m,k] * B[n,k]",
        {"m": 40, "n": 13, "k": 5},
        dtypes={"A": "uint8", "B": "int8", "C": "int32"},
    )
    random = np.random.default_rng(1)
    dtype = epilogue.residual.dtype
    other = random.normal(size=(40, 13)).astype(np.float32) * 100
    if dtype != "float32":
        limits = np.iinfo(dtype)
        other = random.integers(limits.min, limits.max, (40, 13), dtype, endpoint=True)
    constants = {
        "b": random.integers(-128, 128, (13, 5)).astype(np.int8),
        "bias": random.integers(-900, 900, 13).astype(np.int32),
        "scale": random.uniform(0.002, 0.02, 13).astype(np.float32),
    }
    inputs = {"a": random.integers(0, 256, (40, 5)).astype(np.uint8), "r": other}
    kinds = {name: TensorType.of_array(array) for name, array in inputs.items()}
    operator = Operator(
        "one", Product(product, (40, 13), epilogue=epilogue), ("a", *constants, "r"), ("c",)
    )
    return Graph("net", kinds, ("c",), constants, (operator,)), inputs


@pytest.mark.parametrize("epilogue", EPILOGUES.values(), ids=EPILOGUES)
def test_results_are_equal(epilogue: Epilogue) -> None:
    graph, inputs = network(epilogue)
    split = split_epilogues(graph, ["one"])
    assert [len(operator.inputs) for operator in split.operators] == [4, 2]
    assert split.types["c"] == graph.types["c"]
    wanted, found = (evaluate(each, inputs)["c"] for each in (graph, split))
    assert len(np.unique(wanted)) > 20
    assert np.array_equal(found, wanted)


def test_other_operators_stay() -> None:
    graph, _ = network(EPILOGUES["bytes"])
    assert split_epilogues(graph, []).operators == graph.operators
