"""Operators of features and linear models, compared with ONNX Runtime, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cpembed.errors import ModelError
from tests.unit.frontends.onnx.referee import Array, check, loaded, single

ML = "ai.onnx.ml"
ROWS = np.random.default_rng(7).normal(size=(5, 4)).astype(np.float32)
WITH_ZEROS = np.where(np.arange(5)[:, None] == 2, 0, ROWS).astype(np.float32)
WITH_NAN = np.where(ROWS > 0.5, np.nan, ROWS).astype(np.float32)
INTEGERS = np.random.default_rng(8).integers(-3, 4, (5, 4))
FOUR = [0.5, -1.0, 2.0, 3.25]


@pytest.mark.parametrize("operator, x, attributes", [
    ("Scaler", ROWS, {"offset": FOUR, "scale": FOUR[::-1]}),
    ("Scaler", ROWS, {"offset": [0.5], "scale": [2.0]}),
    ("Scaler", INTEGERS, {"offset": FOUR, "scale": FOUR}),
    ("Scaler", ROWS.astype(np.float64), {"offset": FOUR, "scale": FOUR}),
    *(("Normalizer", x, {"norm": n}) for n in ("MAX", "L1", "L2") for x in (ROWS, WITH_ZEROS)),
    ("Binarizer", ROWS, {"threshold": 0.25}),
    ("Binarizer", WITH_ZEROS, {}),
    ("Imputer", WITH_NAN, {"imputed_value_floats": FOUR, "replaced_value_float": float("nan")}),
    ("Imputer", WITH_ZEROS, {"imputed_value_floats": [7.0], "replaced_value_float": 0.0}),
    ("Imputer", INTEGERS, {"imputed_value_int64s": [9, 8, 7, 6], "replaced_value_int64": 2}),
    ("LinearRegressor", ROWS, {"coefficients": FOUR}),
    *(("LinearRegressor", ROWS,
       {"coefficients": [*FOUR, *FOUR[::-1]], "intercepts": [0.5, -0.25], "targets": 2,
        "post_transform": transform}) for transform in ("NONE", "SOFTMAX", "LOGISTIC")),
])  # fmt: skip
def test_features_are_computed_as_onnx_runtime_does(
    operator: str, x: Array, attributes: dict[str, Any], tmp_path: Path
) -> None:
    check(single(operator, [x], domain=ML, **attributes), {"x0": x}, tmp_path)


@pytest.mark.parametrize("x", [ROWS, INTEGERS, ROWS[0]])
def test_features_are_selected(x: Array, tmp_path: Path) -> None:
    model = single("ArrayFeatureExtractor", [x, np.asarray([3, 0, 3])], [1], domain=ML)
    check(model, {"x0": x}, tmp_path)


@pytest.mark.parametrize("operator, attributes, said", [
    ("Scaler", {"offset": [1.0, 2.0], "scale": [1.0]}, "2 elements of offset for features [4]"),
    ("LinearRegressor", {"coefficients": [1.0] * 3}, "3 coefficients of 1 targets"),
    ("LinearRegressor", {"coefficients": FOUR, "post_transform": "PROBIT"}, "PROBIT"),
    ("Normalizer", {"norm": "L3"}, "norm L3 is not known: use MAX, L1, L2"),
])  # fmt: skip
def test_what_no_model_has_is_refused(
    operator: str, attributes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        loaded(single(operator, [ROWS], domain=ML, **attributes), tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
