"""What is done to a sum before it is stored, read from the expression that is stored.

An expression of one element is a chain: the sum, then operations of which each takes the value so
far and at most one other, a number or an element of another tensor.
"""
# pyright: basic

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm_ffi import structural_equal

from cpembed.errors import WorkloadError

_BINARY = {
    tirx.Add: "add",
    tirx.Sub: "subtract",
    tirx.Mul: "multiply",
    tirx.Max: "maximum",
    tirx.Min: "minimum",
    tirx.RShift: "shift",
}
_SYMMETRIC = ("add", "multiply", "maximum", "minimum")


@dataclass(frozen=True)
class Term:
    """The other value of an operation: an element of a parameter, which moves with the ``axes`` of
    the result, or without a parameter a ``number``."""

    parameter: Any = None
    axes: tuple[int, ...] = ()
    number: float = 0.0

    @property
    def is_number(self) -> bool:
        return self.parameter is None


@dataclass(frozen=True)
class Step:
    """An operation; ``dtype`` is that of its result."""

    operation: str
    dtype: str
    term: Term | None = None


def steps_of(store: Any, sums: Any) -> list[Step]:
    """The steps from an element of the buffer ``sums`` to what a statement stores of it, the first
    one first.

    Raises :class:`WorkloadError` where the expression is no such chain, in words.
    """
    found: list[Step] = []
    node = store.value
    while not _is_sum(node, store, sums):
        step, node = _step(node, store, sums)
        found.append(step)
    return found[::-1]


def _is_sum(node: Any, store: Any, sums: Any) -> bool:
    if not (isinstance(node, ir.TensorLoad) and node.source.same_as(sums)):
        return False
    places = zip(node.indices, store.indices, sums.shape, store.buffer.shape, strict=False)
    same = len(node.indices) == len(store.indices) and all(
        int(size) == int(whole) and (structural_equal(index, other) or int(size) == 1)
        for index, other, size, whole in places
    )
    if not same:
        raise WorkloadError("results are not stored where the sums are: they are moved or reshaped")
    return True


def _step(node: Any, store: Any, sums: Any) -> tuple[Step, Any]:
    """The last operation of an expression, and the value that it is of."""
    dtype = str(node.ty.dtype)
    if isinstance(node, tirx.Cast):
        return Step("convert", dtype), node.value
    if isinstance(node, ir.Call):
        name = str(getattr(node.op, "name", "")).rsplit(".", 1)[-1]
        if name == "nearbyint":
            return Step("round", dtype), node.args[0]
        raise WorkloadError(f"{name or node.op} follows the sums, which no kernel stores")
    operation = _BINARY.get(type(node))
    if operation is None:
        raise WorkloadError(f"{type(node).__name__} follows the sums, which no kernel stores")
    first, second = _reads(node.a, sums), _reads(node.b, sums)
    if first and second:
        raise WorkloadError(f"{operation} takes the sums twice")
    if second and operation not in _SYMMETRIC:
        raise WorkloadError(f"{operation} has the sums second")
    value, other = (node.a, node.b) if first else (node.b, node.a)
    term = _term(other, store)
    if operation == "subtract":
        if not term.is_number:
            raise WorkloadError("a tensor is subtracted: add its negative")
        operation, term = "add", Term(number=-term.number)
    return Step(operation, dtype, term), value


def _reads(node: Any, sums: Any) -> bool:
    found: list[Any] = []

    def visit(part: Any) -> None:
        if isinstance(part, ir.TensorLoad) and part.source.same_as(sums):
            found.append(part)

    tirx_visit(node, visit)
    return bool(found)


def tirx_visit(node: Any, visit: Any) -> None:
    """Visit an expression and its parts."""
    visit(node)
    if isinstance(node, ir.TensorLoad):
        return
    parts = node.args if isinstance(node, ir.Call) else []
    for name in ("a", "b", "value", "condition", "true_value", "false_value"):
        part = getattr(node, name, None)
        if isinstance(part, ir.Expr):
            parts = [*parts, part]
    for part in parts:
        tirx_visit(part, visit)


def _term(node: Any, store: Any) -> Term:
    if isinstance(node, tirx.IntImm | tirx.FloatImm):
        return Term(number=node.value)
    if isinstance(node, ir.TensorLoad):
        return Term(node.source, _axes(node, store.indices, store.buffer.shape))
    raise WorkloadError(f"{node} is combined with the sums: only tensors as they come, and numbers")


def _axes(load: Any, places: Sequence[Any], sizes: Sequence[Any]) -> tuple[int, ...]:
    """The dimensions of the result that a read moves with, in the order of its own."""
    found: list[int] = []
    for index, size in zip(load.indices, load.source.shape, strict=True):
        if int(size) == 1:
            continue
        axis = next((a for a, place in enumerate(places) if index.same_as(place)), None)
        if axis is None or int(sizes[axis]) != int(size):
            raise WorkloadError(f"{load} is combined with the sums, which is no element of theirs")
        found.append(axis)
    if found != sorted(set(found)):
        raise WorkloadError(f"{load} is combined with the sums in another order of dimensions")
    return tuple(found)
