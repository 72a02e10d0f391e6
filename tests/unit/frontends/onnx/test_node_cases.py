"""The cases that come with the format: a model of one operator each, with inputs and outputs."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx

from cpembed.errors import ModelError
from cpembed.frontends.onnx import load
from cpembed.frontends.onnx.operators.table import TRANSLATIONS
from cpembed.graph.graph import evaluate

PARAMETERS = {
    "QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "Resize", "Upsample",
    "BatchNormalization", "OneHot", "Pad", "Trilu",
}  # fmt: skip
"""Operators all of whose inputs but the first are parameters: constants of the model."""
ALL_PARAMETERS = {"ConstantOfShape", "Range"}

ELSEWHERE = {
    "test_resize_downsample_scales_linear_align_corners":
        "the format's own code divides by a size that is not rounded, ONNX Runtime by the rounded",
    "test_resize_downsample_scales_cubic_align_corners": "as for linear",
    "test_attention_4d_causal_bf16": "bfloat16 sums in other steps",
    "test_attention_4d_causal_bf16_expanded": "bfloat16 sums in other steps",
}  # fmt: skip
"""Cases whose stored results are of another definition."""

REFUSED = {
    "blocked", "mask", "with_argmax", "training_mode", "tf_crop", "empty_set", "zero", "if",
    "loop", "scan", "diagonal", "reduction", "duplicate", "reordered", "peepholes", "scatternd_",
    "string", "optional", "nonzero", "linear_attention", "bernoulli", "bfloat16_type",
}  # fmt: skip
"""Words in names of cases that may be refused: what they need is not read, or has no fixed shape;
any other has to be computed."""


@cache
def cases() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    return [case for case in found if case.model is not None and _is_plain(case)]


def _is_plain(case: Any) -> bool:
    """Whether all nodes have translations, and all inputs and outputs are arrays of numbers."""
    inputs, outputs = case.data_sets[0]
    arrays = all(isinstance(x, np.ndarray) and x.dtype != object for x in (*inputs, *outputs))
    nodes = case.model.graph.node
    return arrays and all(node.op_type in TRANSLATIONS and not node.domain for node in nodes)


def _with_constants(case: Any) -> tuple[Any, dict[str, Any]]:
    """The model with its parameters as constants, and the other inputs."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph, given = model.graph, dict[str, Any]()
    operator = graph.node[0].op_type
    for k, (value, array) in enumerate(zip([*graph.input], case.data_sets[0][0], strict=True)):
        shapes = k > 0 and array.dtype == np.int64
        if shapes or operator in ALL_PARAMETERS or (k > 0 and operator in PARAMETERS):
            graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
            graph.input.remove(value)
        else:
            given[value.name] = array
    return model, given


def _check(case: Any, folder: Path) -> str | None:
    """None where the results are right, otherwise why there are none."""
    model, given = _with_constants(case)
    path = folder / "case.onnx"
    path.write_bytes(model.SerializeToString())
    try:
        graph = load(path)
    except ModelError as error:
        return str(error)
    found = evaluate(graph, given)
    for name, expected in zip(graph.outputs, case.data_sets[0][1], strict=True):
        array = found[name]
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype), case.name
        half = expected.dtype.itemsize == 2 and expected.dtype.kind != "i"
        tolerance = 1e-2 if half else 1e-3
        np.testing.assert_allclose(
            array.astype(np.float64), expected.astype(np.float64), tolerance, 1e-5,
            err_msg=case.name,
        )  # fmt: skip
    return None


GROUPS = 24


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.slow
def test_the_cases_of_the_format(group: int, tmp_path: Path) -> None:
    computed = 0
    for case in cases()[group::GROUPS]:
        if case.name in ELSEWHERE:
            continue
        why = _check(case, tmp_path)
        computed += why is None
        may_be = any(word in case.name for word in REFUSED)
        assert why is None or may_be, f"{case.name}: {why}"
    assert computed > 25
