"""A compiled network beside the definitions of its operators, one after the other.

Each operator is judged on the inputs that it had, so that a difference is found where it arises,
and what is within a tolerance in one operator is not held against the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.export.loader import Library, aligned
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    DynamicQuantize,
    Elementwise,
    LayerNorm,
    Product,
    Reduce,
    Scalar,
    Softmax,
)
from cpembed.ir.dtypes import is_integer
from cpembed.network.build import in_memory, typed
from cpembed.network.layout import Layout
from cpembed.network.plan import NetworkPlan
from cpembed.network.program import NetworkProgram

ROUNDED = frozenset({"exp", "log", "sqrt", "erf", "tanh", "sigmoid", "sin", "cos", "pow", "div"})
"""Operations whose last bits differ between libraries."""

RELATIVE = 2e-5
"""Of floats, to the largest magnitude of the tensor (a sum is rounded in another order)."""


@dataclass(frozen=True)
class Judged:
    """An operator's results beside its definition. ``max_error``: the largest difference;
    ``tolerance``: what is allowed, 0 where results are to be equal bit for bit. ``spreads_nan``:
    some results of a product of floats are no numbers where the definition has numbers, since an
    input is infinite or no number, and zeros that pad the sum are multiplied by it."""

    operator: str
    max_error: float
    tolerance: float
    spreads_nan: bool = False

    @property
    def verified(self) -> bool:
        return self.max_error <= self.tolerance


def judge_network(
    plan: NetworkPlan,
    network: NetworkProgram,
    library: Library,
    inputs: Mapping[str, Array],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[list[Judged], dict[str, Array]]:
    """Every operator judged, and the outputs of the network.

    Memory is what a run has: each operator's results are read before others overwrite them.
    """
    graph = plan.graph
    values: dict[str, Array] = {**graph.constants, **inputs}
    given = [in_memory(inputs[info.name]) for info in library.inputs]
    read = _Reader(plan, network, library)
    results = [aligned(info.shape, info.stored) for info in library.outputs]
    outputs = {info.name: array for info, array in zip(library.outputs, results, strict=True)}
    judged: list[Judged] = []
    done = 0
    for number, operator in enumerate(graph.operators):
        last = network.calls[operator.name][1]
        # Conversions before it belong to the tensors that were written.
        if last > done:
            library.run_steps(done, last, *given, out=results)
        done = max(done, last)
        for name in operator.outputs:
            values[name] = read.tensor(name, outputs)
        judged.append(_judge(graph, operator, values))
        progress(number + 1, len(graph.operators))
    return judged, {name: values[name] for name in graph.outputs}


@dataclass(frozen=True)
class _Reader:
    plan: NetworkPlan
    network: NetworkProgram
    library: Library

    def tensor(self, name: str, outputs: Mapping[str, Array]) -> Array:
        """A tensor that was just written, in the order of its axes."""
        kind, layout = self.plan.graph.types[name], self.plan.written[name]
        buffer = self.network.tensors[name]
        flat = outputs[buffer].copy() if buffer in outputs else self.library.tensor(buffer)
        return typed(_row_major(flat.reshape(-1), layout), kind.dtype)


def _row_major(flat: Array, layout: Layout) -> Array:
    return layout.elements_of(flat[: layout.elements])


def _judge(graph: Graph, operator: Operator, values: Mapping[str, Array]) -> Judged:
    wanted = operator.kind.evaluate([values[name] for name in operator.inputs])
    error = allowed = 0.0
    spreads = _may_spread(operator, values)
    spread = False
    for name, expected in zip(operator.outputs, wanted, strict=True):
        found = values[name]
        if spreads and found.shape == expected.shape:
            more = np.isnan(found.astype(np.float64)) & ~np.isnan(expected.astype(np.float64))
            spread = spread or bool(more.any())
            found = np.where(more, expected, found)
        tolerance = tolerance_of(operator, expected)
        error = max(error, difference(found, expected))
        allowed = max(allowed, tolerance)
    return Judged(operator.name, error, allowed, spread)


def _may_spread(operator: Operator, values: Mapping[str, Array]) -> bool:
    """Whether an input of a product of floats is infinite or no number."""
    kind = operator.kind
    if not isinstance(kind, Product) or is_integer(kind.computation.output.dtype):
        return False
    return not all(np.isfinite(values[n].astype(np.float64)).all() for n in operator.inputs)


def difference(found: Array, expected: Array) -> float:
    """The largest difference; infinite where one is no number and the other is, or shapes or types
    differ."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if not found.size:
        return 0.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max())


def tolerance_of(operator: Operator, expected: Array) -> float:
    """0 for what integers and single roundings make; a quantum for integers that functions of
    floats are rounded to."""
    if not is_rounded(operator):
        return 0.0
    if expected.dtype.kind in "iub":
        return 1.0
    finite = expected.astype(np.float64)
    finite = finite[np.isfinite(finite)]
    size = float(np.abs(finite).max()) if finite.size else 0.0
    roundoff = 2.0**-8 if expected.dtype.name == "bfloat16" else RELATIVE
    return roundoff * size


def is_rounded(operator: Operator) -> bool:
    """Whether results depend on the order of roundings, or on a library's functions."""
    kind = operator.kind
    if isinstance(kind, Softmax | LayerNorm | DynamicQuantize | Reduce):
        return True
    if isinstance(kind, Product):
        return kind.computation.output.dtype not in ("int32", "int64") or kind.dtype == "float32"
    if isinstance(kind, Elementwise):
        return _has(kind.expression, ROUNDED) or kind.dtype.startswith(("float", "bfloat"))
    return operator.kind.label == "mean pool" or "Resize" in type(kind).__name__


def _has(expression: Scalar, names: frozenset[str]) -> bool:
    if not isinstance(expression, Apply):
        return False
    return expression.operation in names or any(_has(a, names) for a in expression.arguments)


def failures(judged: Sequence[Judged]) -> list[Judged]:
    return [one for one in judged if not one.verified]
