"""Operators at every element, beside PyTorch's own."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.unit.frontends.torch.inputs import (  # noqa: E402
    IMAGE,
    ROW,
    Case,
    X,
    Y,
    booleans,
    floats,
    integers,
    positive,
)

F = torch.nn.functional
aten = torch.ops.aten


def _with_half(function: Callable[..., Any], x: Any) -> Any:
    return function(x, 0.5)


UNARY = {
    name: (getattr(torch, name), (X * 3,))
    for name in (
        "neg",
        "abs",
        "exp",
        "erf",
        "tanh",
        "sigmoid",
        "sin",
        "cos",
        "tan",
        "floor",
        "ceil",
        "round",
        "sign",
        "trunc",
        "square",
        "expm1",
        "reciprocal",
        "relu",
        "exp2",
    )
} | {
    name: (getattr(torch, name), (positive(2, 5),))
    for name in ("log", "sqrt", "rsqrt", "log1p", "log2", "log10")
}
ACTIVATIONS = {
    name: (getattr(F, name), (X * 4,))
    for name in (
        "relu6",
        "silu",
        "mish",
        "selu",
        "softsign",
        "logsigmoid",
        "hardswish",
        "hardsigmoid",
        "hardtanh",
        "elu",
        "celu",
        "gelu",
        "leaky_relu",
        "softplus",
        "tanhshrink",
    )
} | {
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), (X * 3,)),
    "elu with alpha": (lambda x: F.elu(x, 0.3), (X,)),
    "softplus with beta": (lambda x: F.softplus(x, 2.0, 3.0), (X * 4,)),
    "hardtanh with bounds": (lambda x: F.hardtanh(x, -0.3, 2), (X,)),
    "prelu": (F.prelu, (IMAGE, floats(4))),
    "prelu of one": (F.prelu, (IMAGE, floats(1))),
    "threshold": (lambda x: F.threshold(x, 0.1, 20), (X,)),
    "glu": (lambda x: F.glu(x, -1), (X,)),
    "round to even": (torch.round, (torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]),)),
    "nan": (torch.isnan, (torch.tensor([float("nan"), 1.0]),)),
    "inf": (torch.isinf, (torch.tensor([float("inf"), -float("inf"), 1.0]),)),
}
ARITHMETIC: dict[str, Case] = {
    "add": (lambda x, y: x + y, (X, ROW)),
    "add alpha": (lambda x, y: torch.add(x, y, alpha=0.5), (X, Y)),
    "add number": (lambda x: 2 + x, (X,)),
    "add integers": (lambda x, y: x + y, (integers(3, 4), integers(4))),
    "add bytes": (lambda x, y: x + y, (integers(9, high=127, dtype=torch.int8),) * 2),
    "integers and floats": (lambda x, y: x * y - 1, (integers(3, 4), floats(4))),
    "Booleans and floats": (lambda x, y: x * y, (booleans(3, 4), floats(4))),
    "Booleans and integers": (lambda x, y: x + y, (booleans(3, 4), integers(4))),
    "sub": (lambda x, y: x - y, (X, Y)),
    "rsub": (lambda x: 1 - x, (X,)),
    "rsub alpha": (lambda x, y: torch.rsub(x, y, alpha=3), (X, Y)),
    "mul number": (lambda x: x * 0.3, (X,)),
    "div": (lambda x, y: x / y, (X, Y)),
    "div integers": (lambda x, y: x / y, (integers(3, 4), integers(3, 4, low=1))),
    "div floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, Y)),
    "div trunc": (lambda x: torch.div(x, 0.3, rounding_mode="trunc"), (X,)),
    "div floor integers": (lambda x, y: x // y, (integers(9), integers(9, low=1))),
    "floor divide": (lambda x: aten.floor_divide(x, 3), (integers(9),)),
    "remainder": (lambda x: torch.remainder(x, 0.7), (X,)),
    "remainder integers": (lambda x: x % 4, (integers(9),)),
    "fmod": (lambda x: torch.fmod(x, 0.7), (X,)),
    "pow 2": (lambda x: x**2, (X,)),
    "pow 3": (lambda x: x**3, (X,)),
    "pow half": (lambda x: x**0.5, (positive(5),)),
    "pow 1.7": (lambda x: x**1.7, (positive(5),)),
    "pow tensor": (torch.pow, (positive(3, 4), floats(4))),
    "pow integers": (lambda x: x**2, (integers(5),)),
    "maximum": (torch.maximum, (X, Y)),
    "minimum": (torch.minimum, (X, Y)),
    "max of two": (torch.max, (X, Y)),
    "min of two": (torch.min, (X, Y)),
    "clamp": (lambda x: x.clamp(-0.5, 0.3), (X,)),
    "clamp below": (lambda x: x.clamp(min=0.1), (X,)),
    "clamp above": (lambda x: x.clamp(max=0.1), (X,)),
    "clamp tensors": (torch.clamp, (X, ROW - 1, ROW + 1)),
    "addcmul": (lambda x, a, b: torch.addcmul(x, a, b, value=0.3), (X, Y, ROW)),
    "addcdiv": (torch.addcdiv, (X, ROW, Y)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (X, Y)),
    "lerp tensor": (torch.lerp, (X, Y, ROW)),
    "numbers alone": (
        lambda x: aten.mul.Scalar(aten.sub.Scalar(aten.div.Scalar(x, 3), 0.5), 2),
        (X,),
    ),
    "quotients of numbers": (
        lambda x: aten.floor_divide.Scalar(aten.div.Scalar_mode(x, 2, rounding_mode="floor"), 2),
        (integers(9),),
    ),
    "quotients of tensors": (lambda x, y: torch.fmod(x, y) + x % y, (X, Y)),
    "where": (torch.where, (booleans(2, 3, 4), X, ROW)),
    "where number": (lambda c, x: torch.where(c, x, 0.5), (booleans(2, 3, 4), X)),
    "where numbers": (lambda c: torch.where(c, 0.5, -math.inf), (booleans(2, 3, 4),)),
    "where large numbers": (lambda c: torch.where(c, 5 << 32, -1), (booleans(2, 3, 4),)),
    "where integers": (torch.where, (booleans(4), integers(4), integers(4) + 1)),
    "masked fill by a tensor": (
        lambda x, m, v: x.masked_fill(m, v[0]),
        (X, booleans(3, 4), ROW),
    ),
    "masked fill": (lambda x, m: x.masked_fill(m, -1e9), (X, booleans(3, 4))),
    "in place": (lambda x: (x + 1).relu_().mul_(2).add_(x), (X,)),
}
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    ARITHMETIC[_name] = (getattr(torch, _name), (integers(4, 5), integers(5)))
    ARITHMETIC[f"{_name} number"] = (partial(_with_half, getattr(torch, _name)), (integers(9),))
for _name in (
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
):
    ARITHMETIC[_name] = (getattr(torch, _name), (booleans(4, 5), booleans(5)))
ARITHMETIC |= {
    "logical and of numbers": (torch.logical_and, (integers(4, low=-1, high=2), floats(4))),
    "logical not": (torch.logical_not, (integers(9, low=-1, high=2),)),
    "bitwise not": (lambda x: ~x, (booleans(9),)),
    "to integers": (lambda x: x.to(torch.int32), (X * 5,)),
    "to Booleans": (lambda x: x.to(torch.bool), (integers(9, low=-1, high=2),)),
    "to floats": (lambda x: x.float() / 3, (integers(9),)),
    "to double": (lambda x: x.double() * 0.1, (X,)),
    "type as": (lambda x, y: x.type_as(y), (X, integers(3))),
}
