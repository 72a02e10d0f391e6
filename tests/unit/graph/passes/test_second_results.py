"""Functions that products store beside their results."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Elementwise, Product, Scalar, Softmax, TensorType
from cpembed.graph.passes.second_results import fuse_second_results
from cpembed.ir.scalars import Input, apply
from cpembed.workloads.einsum import gemm

X = Input(0)
FUNCTIONS: dict[str, Scalar] = {
    "relu": apply("max", X, 0.0),
    "silu": apply("mul", X, apply("sigmoid", X)),
    "copy": X,
    "square": apply("mul", X, X),
}
EPILOGUES = {
    "none": None,
    "bias": Epilogue("float32", bias=True, relu=True),
    "residual": Epilogue("float32", bias=True, residual=Residual("float32", relu=True)),
}


def network(seed: int, epilogue: Epilogue | None, readers: int, stored: bool) -> Graph:
    """A product with as many functions as readers; ``stored`` if its own result is an output."""
    random = np.random.default_rng(seed)
    names = list(random.permutation(list(FUNCTIONS))[:readers])
    product = Product(gemm(m=8, n=4, k=4, dtype="float32"), (8, 4), epilogue=epilogue)
    inputs = ["x", "w"]
    inputs += ["b"] if epilogue is not None else []
    inputs += ["r"] if epilogue is not None and epilogue.residual else []
    operators = [Operator("product", product, tuple(inputs), ("y",))]
    for name in names:
        dtype = random.choice(["float32", "float16", "int8"])
        kind = Elementwise(FUNCTIONS[name], str(dtype), "float32")
        operators.append(Operator(name, kind, ("y",), (name,)))
    constants = {
        "w": random.normal(size=(4, 4)).astype(np.float32),
        "b": random.normal(size=4).astype(np.float32),
    }
    tensors = {"x": TensorType((8, 4), "float32"), "r": TensorType((8, 4), "float32")}
    outputs = (*names, *(["y"] if stored else []))
    return Graph("net", tensors, outputs, constants, tuple(operators))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("readers", [1, 2, 3])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_results_are_equal_and_functions_are_part_of_the_product(
    epilogue: str, readers: int, stored: bool
) -> None:
    for seed in range(4):
        graph = network(seed, EPILOGUES[epilogue], readers, stored)
        fused = fuse_second_results(graph)
        random = np.random.default_rng(seed)
        inputs = {n: random.normal(size=(8, 4)).astype(np.float32) for n in ("x", "r")}
        before, after = evaluate(graph, inputs), evaluate(fused, inputs)
        for name in graph.outputs:
            np.testing.assert_array_equal(before[name], after[name])
        # A single function is left to the chain; of two, both are stored; else one beside it.
        removed = {(1, False): 0, (2, False): 2}.get((readers, stored), 1)
        assert len(graph.operators) - len(fused.operators) == removed
        assert len(fused.operators[0].outputs) == 1 + bool(removed)


def test_other_readers_keep_the_result() -> None:
    graph = network(0, None, 1, False)
    softmax = Operator("softmax", Softmax(1), ("y",), ("s",))
    outputs = (*graph.outputs, "s")
    graph = Graph("net", graph.inputs, outputs, graph.constants, (*graph.operators, softmax))
    fused = fuse_second_results(graph)
    assert [len(operator.outputs) for operator in fused.operators] == [2, 1]
    assert fused.operators[0].outputs[0] == "y"
