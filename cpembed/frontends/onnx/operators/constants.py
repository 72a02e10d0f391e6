"""Operators that are decided while the model is read: constants, shapes, and branches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.builder import LARGEST_CONSTANT
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.model import Body, in_bytes
from cpembed.frontends.onnx.operators.elementwise import element_type


def constant(call: Call) -> str:
    if (value := call.attribute("value")) is not None:
        return call.tensor(in_bytes(value))
    for name, dtype in (("float", "float32"), ("int", "int64")):
        for attribute in (f"value_{name}", f"value_{name}s"):
            if (value := call.attribute(attribute)) is not None:
                return call.tensor(value, dtype)
    call.reject("its value is no dense tensor of numbers: use one")


def shape(call: Call) -> str:
    part = slice(call.attribute("start"), call.attribute("end"))
    return call.tensor(call.type().shape[part], "int64")


def constant_of_shape(call: Call) -> str:
    sizes = call.integers(0, "the shape")
    value = call.attribute("value")
    value = np.zeros(1, np.float32) if value is None else in_bytes(value)
    if min(sizes, default=1) < 0 or math.prod(sizes) * value.itemsize > LARGEST_CONSTANT:
        raise WorkloadError(
            f"a constant of {list(sizes)} is of more than {LARGEST_CONSTANT >> 20} MiB"
        )
    return call.tensor(np.full(sizes, value.reshape(-1)[0], value.dtype))


def range_(call: Call) -> str:
    start, limit, step = (call.constant(k, "the range").reshape(-1)[0] for k in range(3))
    if not step or abs((float(limit) - float(start)) / float(step)) * 8 > LARGEST_CONSTANT:
        raise WorkloadError(f"a range from {start} to {limit} by {step}")
    count = max(0, math.ceil((limit.item() - start.item()) / step.item()))
    return call.tensor((start + np.arange(count) * step).astype(start.dtype))


def eye_like(call: Call) -> str:
    rows, columns = call.type().shape
    dtype = element_type(call, "dtype", call.type().dtype)
    return call.tensor(np.eye(rows, columns, call.integer("k", 0)), dtype)


def non_zero(call: Call) -> str:
    return call.tensor(np.asarray(np.nonzero(call.constant(0, "its input"))), "int64")


def if_(call: Call) -> Sequence[str]:
    """Translate the branch that a constant condition takes in the operator's place."""
    condition = call.builder.value(call.input())
    if condition is None:
        call.reject(
            "its condition is computed while the network runs: export the model with the branch "
            "that is meant"
        )
    body = call.attribute("then_branch" if condition.reshape(-1)[0] else "else_branch")
    if not isinstance(body, Body):
        call.reject("it has no such branch: the file is damaged")
    return call.run(body)


def rejected(operators: str) -> Translation:
    return lambda call: call.reject(
        f"{operators} are not read: export the model with their steps written out"
    )


TABLE: dict[str, Translation] = {
    "Constant": constant,
    "Shape": shape,
    "Size": lambda call: call.tensor(call.type().elements, "int64"),
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "EyeLike": eye_like,
    "NonZero": non_zero,
    "If": if_,
    "Loop": rejected("loops"),
    "Scan": rejected("scans"),
}
