"""Comparisons, logic, and choices by Booleans."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cpembed.frontends import expressions as ex
from cpembed.frontends.emitter import is_float
from cpembed.frontends.expressions import X, apply
from cpembed.frontends.torch.call import Call, Handler
from cpembed.frontends.torch.operators.pointwise import (
    EITHER,
    activated,
    function,
    overloads,
    write,
)
from cpembed.graph.kinds import Elementwise, Input, Number, Scalar
from cpembed.graph.kinds.elementwise import computing_dtype


def _promoted(call: Call, *values: Any) -> str:
    """The element type in which a comparison compares: tensors before scalars, floats before
    integers, then the wider one."""
    tensors = [value for value in values if isinstance(value, str)]
    ranked = [t for t in tensors if call.shape(t) != ()] or tensors
    dtypes = [call.dtype(t) for t in ranked]
    floats = [d for d in dtypes if is_float(d)]
    if not floats and any(isinstance(v, float) for v in values):
        return "float32"
    if not floats:
        others = [d for d in (call.dtype(t) for t in tensors) if is_float(d)]
        if others:
            return others[0]
    return max(floats or dtypes, key=lambda d: 2 if d == "bfloat16" else np.dtype(d).itemsize)


def _comparison(make: Callable[[Scalar, Scalar], Scalar]) -> Handler:
    def handler(call: Call) -> str:
        return write(
            call, _promoted(call, call["self"], call["other"]), make, call["self"], call["other"]
        )

    return handler


def _logical(make: Callable[..., Scalar]) -> Handler:
    def handler(call: Call) -> str:
        values = [call[name] for name in ("self", "other") if call.get(name) is not None]
        taken = [call.cast(v, "bool") if isinstance(v, str) else bool(v) for v in values]
        return write(call, "bool", make, *taken)

    return handler


def _bitwise(make: Callable[..., Scalar]) -> Handler:
    logical = _logical(make)

    def handler(call: Call) -> Any:
        if call.result.dtype != "bool":
            raise call.error("operations on the bits of integers are not known: only on Booleans")
        return logical(call)

    return handler


def _xor(a: Scalar, b: Scalar) -> Scalar:
    return apply("not", apply("equal", a, b))


def _where(call: Call) -> str:
    result = call.result.dtype
    condition = call.cast(call["condition"], "bool")
    values = [call["self"], call["other"]]
    taken = [call.computing(v, result) if isinstance(v, str) else v for v in values]
    names = [condition, *(v for v in taken if isinstance(v, str))]
    places = iter(range(1, len(names)))
    arguments = [Input(next(places)) if isinstance(v, str) else Number(v) for v in taken]
    # Beside a condition alone, the numbers decide the type of the arithmetic.
    computing = computing_dtype([result]) if len(names) == 1 else None
    return call.emit(Elementwise(ex.where(X, *arguments), result, computing), *names)


def _masked_fill(call: Call) -> str:
    result = call.result.dtype
    mask, value = call.cast(call["mask"], "bool"), call["value"]
    if isinstance(value, str):
        known = call.value(value)
        value = call.computing(value, result) if known is None else known.item()
    names = [mask, call.computing(call["self"], result)]
    if isinstance(value, str):
        return call.emit(Elementwise(ex.where(X, Input(2), Input(1)), result), *names, value)
    return call.emit(Elementwise(ex.where(X, Number(value), Input(1)), result), *names)


def _is_nan(call: Call) -> str:
    if not is_float(call.dtype(call["self"])):
        return _never(call)
    return activated(call, lambda x: _xor(x, x), call.dtype(call["self"]))


def _never(call: Call) -> str:
    """False at every element."""
    return call.expanded(
        call.tensor(np.zeros((1,) * len(call.result.shape), np.bool_)), call.result.shape
    )


def _is_infinite(call: Call) -> str:
    if not is_float(call.dtype(call["self"])):
        return _never(call)
    size = call.dtype(call["self"])
    return activated(call, lambda x: apply("equal", apply("abs", x), math.inf), size)


_COMPARISONS: Mapping[str, Callable[[Scalar, Scalar], Scalar]] = {
    "eq": function("equal"),
    "ne": _xor,
    "lt": function("less"),
    "le": function("less_equal"),
    "gt": lambda a, b: ex.less(b, a),
    "ge": lambda a, b: apply("less_equal", b, a),
}

OPERATORS: Mapping[str, Handler] = {
    **{
        f"aten.{name}.{kind}": _comparison(make)
        for name, make in _COMPARISONS.items()
        for kind in EITHER
    },
    **overloads("where", _where, "self", "ScalarOther", "ScalarSelf", "Scalar"),
    **overloads("masked_fill", _masked_fill, *EITHER),
    **overloads("logical_and", _logical(function("and")), "default"),
    **overloads("logical_or", _logical(function("or")), "default"),
    **overloads("logical_xor", _logical(_xor), "default"),
    **overloads("logical_not", _logical(function("not")), "default"),
    **overloads("bitwise_and", _bitwise(function("and")), *EITHER),
    **overloads("bitwise_or", _bitwise(function("or")), *EITHER),
    **overloads("bitwise_xor", _bitwise(_xor), *EITHER),
    **overloads("bitwise_not", _bitwise(function("not")), "default"),
    **overloads("isnan", _is_nan, "default"),
    **overloads("isinf", _is_infinite, "default"),
}
