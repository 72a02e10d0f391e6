"""Operators whose results depend on the order of roundings, or on a library's functions."""

from __future__ import annotations

from collections.abc import Collection

from cpembed.graph import kinds
from cpembed.graph.kinds import Product

# Operations whose last bits may differ from numpy's.
_ROUNDED = frozenset(
    {"exp", "log", "sqrt", "erf", "tanh", "sigmoid", "sin", "cos", "atan", "pow", "div"}
)


def is_rounded(kind: kinds.Kind) -> bool:
    """True if results depend on the order of roundings, or on a library's functions.

    >>> is_rounded(kinds.Softmax(1)), is_rounded(kinds.Reshape((4,)))
    (True, False)
    """
    if isinstance(kind, Product):
        chain = None if kind.epilogue is None else kind.epilogue.chain
        exact = kind.computation.output.dtype in ("int32", "int64") and kind.dtype != "float32"
        return not exact or (chain is not None and _calls(chain.expression, _ROUNDED))
    if isinstance(kind, kinds.Elementwise):
        return _calls(kind.expression, _ROUNDED) or kind.dtype.startswith(("float", "bfloat"))
    if isinstance(kind, kinds.Pool):
        return kind.operation == "mean"
    return isinstance(
        kind,
        kinds.Attention
        | kinds.QuantizedAttention
        | kinds.Softmax
        | kinds.LayerNorm
        | kinds.DynamicQuantize
        | kinds.GroupedProduct
        | kinds.Reduce
        | kinds.Resize
        | kinds.Scan,
    )


def _calls(expression: kinds.Scalar, operations: Collection[str]) -> bool:
    if not isinstance(expression, kinds.Apply):
        return False
    arguments = expression.arguments
    return expression.operation in operations or any(_calls(a, operations) for a in arguments)
