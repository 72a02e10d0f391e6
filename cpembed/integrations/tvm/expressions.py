"""Stored results as an expression of the sums: activations and whatever else is no chain of steps.

Steps (:mod:`cpembed.integrations.tvm.stored`) combine the value so far with one term each, and are
equal bit for bit. Here the sums may occur several times, between functions of floats, which the
kernel and TVM compute each with an error of a few units in the last place.
"""
# pyright: basic

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tvm import ir, tirx

from cpembed.codegen.epilogue import CHAIN_TYPES, Chain, Epilogue, Residual
from cpembed.errors import WorkloadError
from cpembed.integrations.tvm.stored import Stored, Term, is_sum, term_of
from cpembed.ir.scalars import Apply, Input, Number, Scalar

_BINARY = {
    tirx.Add: "add", tirx.Sub: "sub", tirx.Mul: "mul", tirx.Div: "div", tirx.Max: "max",
    tirx.Min: "min", tirx.LT: "less", tirx.LE: "less_equal", tirx.EQ: "equal",
    tirx.And: "and", tirx.Or: "or",
}  # fmt: skip
_FUNCTIONS = {
    "exp": "exp", "log": "log", "erf": "erf", "tanh": "tanh", "sqrt": "sqrt", "sigmoid": "sigmoid",
    "fabs": "abs", "pow": "pow", "power": "pow", "floor": "floor", "ceil": "ceil",
    "nearbyint": "round", "sin": "sin", "cos": "cos", "if_then_else": "where",
}  # fmt: skip
"""Operations by the last part of the name of an intrinsic of TVM."""

_MAX_VECTORS = 6
"""Maximum number of vectors: each is one more pointer of the kernel."""


def stored_expression(
    store: Any, sums: Any, channels: Collection[int], full: Sequence[int]
) -> Stored:
    """Return the epilogue whose chain is the stored expression.

    Parameters
    ----------
    store
        Statement that stores an element of the result.
    sums
        Buffer of the sums.
    channels
        Dimensions along which vectors vary.
    full
        All dimensions of more than one element.

    Raises
    ------
    WorkloadError
        If a kernel computes no such expression, in float32 throughout.
    """
    dtype, node = str(store.value.ty.dtype), store.value
    if dtype not in CHAIN_TYPES or dtype in ("int8", "uint8"):
        raise WorkloadError(f"results in {dtype} are no expression of floats")
    if dtype != "float32":
        if not isinstance(node, tirx.Cast):
            raise WorkloadError(f"an operation on the sums is in {dtype}, not in float32")
        node = node.value
    reader = _Reader(store, sums, tuple(channels), tuple(full))
    expression = reader.read(node)
    chain = Chain(reader.numbered(expression), len(reader.vectors))
    residual = None
    if reader.residual is not None:
        residual = Residual(str(reader.residual.parameter.dtype))
    epilogue = Epilogue(dtype, residual=residual, chain=chain)
    return Stored(epilogue, residual=reader.residual, vectors=tuple(reader.vectors))


class _Reader:
    """Expression of the inputs of a chain; vectors are numbered when all are known."""

    def __init__(
        self, store: Any, sums: Any, channels: tuple[int, ...], full: tuple[int, ...]
    ) -> None:
        self.store, self.sums, self.channels, self.full = store, sums, channels, full
        self.vectors: list[Term] = []
        self.residual: Term | None = None

    def read(self, node: Any) -> Scalar:
        """Return a node of TVM as an expression, whose vectors have negative numbers."""
        if isinstance(node, tirx.IntImm | tirx.FloatImm):
            return Number(float(node.value))
        if isinstance(node, ir.TensorLoad):
            return self._element(node)
        if isinstance(node, tirx.Cast) and isinstance(node.value, ir.TensorLoad):
            # Of shorter floats, or of integers, which become floats before a chain anyway.
            self._require_float32(node)
            return self._element(node.value)
        if isinstance(node, tirx.Select):
            parts = (node.condition, node.true_value, node.false_value)
            return Apply("where", tuple(map(self.read, parts)))
        if isinstance(node, tirx.Not):
            return Apply("not", (self.read(node.a),))
        operation, parts = self._operation(node)
        return Apply(operation, tuple(map(self.read, parts)))

    def _operation(self, node: Any) -> tuple[str, list[Any]]:
        """Return the operation of a node, and its arguments."""
        operation = _BINARY.get(type(node))
        if operation is not None:
            if operation not in ("less", "less_equal", "equal", "and", "or"):
                self._require_float32(node)
            return operation, [node.a, node.b]
        if isinstance(node, ir.Call):
            name = str(getattr(node.op, "name", "")).rsplit(".", 1)[-1]
            if name in _FUNCTIONS:
                self._require_float32(node)
                return _FUNCTIONS[name], list(node.args)
        label = getattr(getattr(node, "op", None), "name", type(node).__name__)
        raise WorkloadError(f"{label} follows the sums, which no epilogue expresses")

    def _require_float32(self, node: Any) -> None:
        dtype = str(node.ty.dtype)
        if dtype != "float32":
            raise WorkloadError(f"an operation on the sums is in {dtype}, not in float32")

    def _element(self, node: Any) -> Scalar:
        if is_sum(node, self.store, self.sums):
            return Input(0)
        term = term_of(node, self.store)
        if set(term.axes) <= set(self.channels):
            if term not in self.vectors:
                self.vectors.append(term)
            return Input(-1 - self.vectors.index(term))
        if term.axes != self.full or self.residual not in (None, term):
            raise WorkloadError("a tensor is combined that has neither the channels' axes nor all")
        if str(term.parameter.dtype) not in ("float32", "float16", "bfloat16"):
            raise WorkloadError(f"a tensor of {term.parameter.dtype} is combined with the sums")
        self.residual = term
        return Input(1)

    def numbered(self, node: Scalar) -> Scalar:
        """Return an expression with the numbers that its vectors have in a chain."""
        if len(self.vectors) > _MAX_VECTORS:
            raise WorkloadError(f"{len(self.vectors)} vectors are combined with the sums")
        if isinstance(node, Input) and node.number < 0:
            return Input((2 if self.residual is not None else 1) - 1 - node.number)
        if isinstance(node, Apply):
            return Apply(node.operation, tuple(map(self.numbered, node.arguments)))
        return node
