"""Definitions of ONNX's operators on NaN, infinities and zeros of either sign, beside onnxruntime,
where the specification or IEEE 754 says what they give."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from cpembed.frontends import load_model  # noqa: E402
from cpembed.graph.graph import evaluate  # noqa: E402

X = np.asarray(
    [
        math.nan,
        math.inf,
        -math.inf,
        0.0,
        -0.0,
        10000000000.0,
        -10000000000.0,
        3e38,
        -3e38,
        1e-40,
        -5.0,
        5.0,
        0.5,
        1.5,
        -0.3,
    ],
    np.float32,
)
PAIRS = np.repeat(X, X.size), np.tile(X, X.size)
ROWS = np.asarray(
    [[-math.inf, -math.inf], [1, -math.inf], [math.inf, 1], [math.nan, 1], [1e10, 0]], np.float32
)
UNARY = [
    "Relu",
    "Sign",
    "Round",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Softplus",
    "Exp",
    "Sqrt",
    "Log",
    "Reciprocal",
    "Abs",
    "Neg",
    "Elu",
    "LeakyRelu",
    "HardSigmoid",
    "HardSwish",
    "Gelu",
    "Mish",
    "Selu",
    "Ceil",
    "Floor",
    "Celu",
    "ThresholdedRelu",
    "Softsign",
    "Shrink",
]
COMPARED = ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]
REDUCED = [
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "ReduceMean",
    "ReduceProd",
    "ReduceL1",
    "ReduceSumSquare",
    "ReduceLogSumExp",
    "Softmax",
    "LogSoftmax",
]
Case = tuple[str, tuple[Any, ...], dict[str, Any]]

CASES: list[Case] = [
    *((name, (X,), {}) for name in UNARY),
    *((name, (X,), {"out": TensorProto.BOOL}) for name in ("IsNaN", "IsInf")),
    *((name, PAIRS, {}) for name in ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu"]),
    *((name, PAIRS, {"out": TensorProto.BOOL}) for name in COMPARED),
    *(("Pow", (X, np.float32([p])), {}) for p in (0.5, -0.5, 2.0, 3.0, -1.0)),
    ("Clip", (X, np.float32(0).reshape(()), np.float32(6).reshape(())), {}),
    ("Clip", (X, np.float32(-1).reshape(()), np.float32(math.inf).reshape(())), {}),
    *((name, (ROWS,), {"axis": 1} if "Soft" in name else {"axes": [1]}) for name in REDUCED),
    *((name, (ROWS,), {"axis": 1, "out": TensorProto.INT64}) for name in ("ArgMax", "ArgMin")),
    ("GlobalAveragePool", (ROWS.reshape(1, 1, -1),), {}),
    ("AveragePool", (ROWS.reshape(1, 1, -1),), {"kernel_shape": [2]}),
    ("MatMul", (ROWS, np.float32([[0, 1], [1, 1]])), {}),
    ("Pad", (X, np.int64([1, 2]), np.float32(math.inf).reshape(())), {}),
]


@pytest.mark.quick(24)
@pytest.mark.parametrize("name, arrays, options", CASES, ids=lambda v: v if type(v) is str else "")
def test_special_values(
    name: str, arrays: tuple[Any, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    attributes = {k: v for k, v in options.items() if k != "out"}
    count = 1 if len(arrays) > 1 and arrays[1].size < arrays[0].size else len(arrays)
    names = [f"x{k}" for k in range(len(arrays))]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names[:count], arrays, strict=False)
    ]
    constants = [
        numpy_helper.from_array(np.asarray(a), n)
        for n, a in [*zip(names, arrays, strict=True)][count:]
    ]
    result = helper.make_tensor_value_info("y", options.get("out", TensorProto.FLOAT), None)
    node = helper.make_node(name, names, ["y"], **attributes)
    opset = 12 if "axes" in attributes else 20
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(
            helper.make_graph([node], "g", inputs, [result], constants),
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=9,
        )
    )
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), settings, ["CPUExecutionProvider"]
        )
    except Exception as error:
        pytest.skip(f"onnxruntime does not have it: {type(error).__name__}")
    given = dict(zip(names[:count], arrays, strict=False))
    (wanted,) = session.run(None, given)
    onnx.save(model, tmp_path / "one.onnx")
    graph = load_model(tmp_path / "one.onnx")
    found = evaluate(graph, given)[graph.outputs[0]]
    with np.errstate(all="ignore"):
        near = np.isclose(
            found.astype(float), wanted.astype(float), rtol=1e-5, atol=1e-6, equal_nan=True
        )
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert near.all(), (name, wanted[~near], found[~near])
