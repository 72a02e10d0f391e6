"""Operators of the domain ``ai.onnx.ml`` that scale, replace or select features, and linear models.

Features lie along the last axis. Whatever the type of the input, they are computed in float32.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.expressions import X, Y, add, differ, div, equal, less, mul, sub, where
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.graph.kinds import Gather, Reduce, Softmax
from cpembed.ir.scalars import apply

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC")
"""Functions of a model's scores that are read; the format has two more."""


def _numbers(call: Call, name: str, default: float | None = None) -> list[float]:
    """Return an attribute that is a list of numbers."""
    values = call.attribute(name, () if default is None else (default,))
    items = cast("tuple[object, ...]", values) if isinstance(values, tuple) else (None,)
    numbers = [float(item) for item in items if isinstance(item, int | float)]
    if len(numbers) != len(items):
        call.reject(f"attribute {name} is no list of numbers: give one")
    return numbers


def _per_feature(call: Call, name: str, values: list[float]) -> str:
    """Return numbers of an attribute as a constant with one for all features, or one for each."""
    features = call.type().shape[-1:]
    if len(values) not in (1, *features):
        raise WorkloadError(f"{len(values)} elements of {name} for features {list(features)}")
    return call.tensor(np.asarray(values), "float32")


def _features(call: Call) -> str:
    return call.cast(call.input(), "float32")


def feature_rows(call: Call) -> str:
    """Return the features as float32 rows."""
    x = _features(call)
    return call.reshaped(x, (1, *call.shape(x))) if call.rank() == 1 else x


def transformed_scores(call: Call, scores: str) -> str:
    """Emit the function of a model's scores that ``post_transform`` names."""
    match call.text("post_transform", "NONE", TRANSFORMS):
        case "SOFTMAX":
            return call.emit(Softmax(1), scores)
        case "LOGISTIC":
            return call.elementwise(apply("sigmoid", X), scores)
        case _:
            return scores


def _scaler(call: Call) -> str:
    offset = _per_feature(call, "offset", _numbers(call, "offset", 0.0))
    scale = _per_feature(call, "scale", _numbers(call, "scale", 1.0))
    difference = call.elementwise(sub(X, Y), _features(call), offset)
    return call.elementwise(mul(X, Y), difference, scale)


def _normalizer(call: Call) -> str:
    """Emit features divided by a norm, where it is not 0."""
    x, norm = _features(call), call.text("norm", "MAX", ("MAX", "L1", "L2"))
    terms = {"MAX": X, "L1": apply("abs", X), "L2": mul(X, X)}[norm]
    kind = Reduce("max" if norm == "MAX" else "sum", (call.rank() - 1,), True)
    total = call.emit(kind, x if norm == "MAX" else call.elementwise(terms, x))
    if norm == "L2":
        total = call.elementwise(apply("sqrt", X), total)
    return call.elementwise(where(equal(Y, 0.0), X, div(X, Y)), x, total)


def _binarizer(call: Call) -> str:
    threshold = call.number("threshold", 0.0)
    return call.elementwise(where(less(threshold, X), 1.0, 0.0), _features(call))


def _imputer(call: Call) -> str:
    """Emit features of which one value, NaN as a rule, is replaced."""
    is_integer = call.type().dtype == "int64"
    names = ("imputed_value_int64s", "replaced_value_int64")
    values, old = names if is_integer else ("imputed_value_floats", "replaced_value_float")
    replaced = call.number(old, 0)
    x = call.input() if is_integer else _features(call)
    new = call.cast(_per_feature(call, values, _numbers(call, values)), call.dtype(x))
    is_old = differ(X, X) if replaced != replaced else equal(X, replaced)
    return call.elementwise(where(is_old, Y, X), x, new)


def _feature_extractor(call: Call) -> str:
    """Gather features; those of a vector become a row."""
    x, indices = call.input(0), call.input(1)
    shape, count = call.shape(x), call.type(1).elements
    call.check_indices(indices, shape[-1])
    result = call.emit(Gather(len(shape) - 1), x, call.reshaped(indices, (count,)))
    return call.reshaped(result, (1, count)) if len(shape) == 1 else result


def _linear_regressor(call: Call) -> str:
    rows, targets = feature_rows(call), call.integer("targets", 1)
    coefficients = np.asarray(_numbers(call, "coefficients"), np.float32)
    if coefficients.size != targets * call.shape(rows)[-1]:
        raise WorkloadError(
            f"{coefficients.size} coefficients of {targets} targets for features "
            f"{call.shape(call.input())}"
        )
    weights = call.tensor(coefficients.reshape(targets, -1))
    scores = call.matmul(rows, weights, transposed=True)
    if intercepts := _numbers(call, "intercepts"):
        scores = call.elementwise(add(X, Y), scores, call.tensor(np.asarray(intercepts), "float32"))
    return transformed_scores(call, scores)


TABLE: dict[str, Translation] = {
    "ai.onnx.ml.ArrayFeatureExtractor": _feature_extractor,
    "ai.onnx.ml.Binarizer": _binarizer,
    "ai.onnx.ml.Imputer": _imputer,
    "ai.onnx.ml.LinearRegressor": _linear_regressor,
    "ai.onnx.ml.Normalizer": _normalizer,
    "ai.onnx.ml.Scaler": _scaler,
}
