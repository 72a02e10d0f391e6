"""Verify a compiled network: each operator against its definition, on the inputs that it had.

A difference is reported where it arises, and what is within one operator's tolerance does not count
against the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from cpembed.network.build import as_stored, as_typed
from cpembed.network.layout import Layout
from cpembed.network.plan import NetworkPlan
from cpembed.network.program import NetworkProgram

ROUNDED = frozenset({"exp", "log", "sqrt", "erf", "tanh", "sigmoid", "sin", "cos", "pow", "div"})
"""Operations whose last bits differ between libraries."""

RELATIVE = 2e-5
"""Tolerance of floats relative to the largest magnitude of the tensor: sums are rounded in another
order."""


@dataclass(frozen=True)
class Verdict:
    """Comparison of an operator's results with its definition.

    Attributes
    ----------
    max_error, tolerance : float
        Largest difference and its limit, 0 if results have to be equal bit for bit.
    spreads_nan : bool
        Some results of a product of floats are NaN but not in the definition: an input is infinite
        or
        NaN, and zeros that pad the sum are multiplied by it.
    """

    operator: str
    max_error: float
    tolerance: float
    spreads_nan: bool = False

    @property
    def verified(self) -> bool:
        return self.max_error <= self.tolerance


def verify_network(
    plan: NetworkPlan,
    network: NetworkProgram,
    library: Library,
    inputs: Mapping[str, Array],
    progress: Callable[[int, int], None] = lambda count, total: None,
) -> tuple[list[Verdict], dict[str, Array]]:
    """Run a network step by step; return the verdicts on all operators, and the outputs.

    Memory is that of a run: each operator's results are read before others overwrite them.

    Parameters
    ----------
    plan : NetworkPlan
    network : NetworkProgram
    library : Library
        Loaded library of the network.
    inputs : mapping from str to ndarray
    progress : callable, optional
        Called with the number of verified operators, and of all.
    """
    graph = plan.graph
    values: dict[str, Array] = {**graph.constants, **inputs}
    inputs_in_order = [as_stored(inputs[info.name]) for info in library.inputs]
    read = _Reader(plan, network, library)
    results = [aligned(info.shape, info.stored) for info in library.outputs]
    outputs = {info.name: array for info, array in zip(library.outputs, results, strict=True)}
    verdicts: list[Verdict] = []
    executed = 0
    for number, operator in enumerate(graph.operators):
        last = network.calls[operator.name][1]
        # Conversions before it belong to the tensors that were written.
        if last > executed:
            library.run_steps(executed, last, *inputs_in_order, out=results)
        executed = max(executed, last)
        for name in operator.outputs:
            values[name] = read.tensor(name, outputs)
        verdicts.append(_verdict(graph, operator, values))
        progress(number + 1, len(graph.operators))
    return verdicts, {name: values[name] for name in graph.outputs}


@dataclass(frozen=True)
class _Reader:
    plan: NetworkPlan
    network: NetworkProgram
    library: Library

    def tensor(self, name: str, outputs: Mapping[str, Array]) -> Array:
        """Return a tensor that was just written, row-major."""
        kind, layout = self.plan.graph.types[name], self.plan.written[name]
        buffer = self.network.tensors[name]
        flat = outputs[buffer].copy() if buffer in outputs else self.library.tensor(buffer)
        return as_typed(_row_major(flat.reshape(-1), layout), kind.dtype)


def _row_major(flat: Array, layout: Layout) -> Array:
    return layout.elements_of(flat[: layout.elements])


def _verdict(graph: Graph, operator: Operator, values: Mapping[str, Array]) -> Verdict:
    expected_outputs = operator.kind.evaluate([values[name] for name in operator.inputs])
    error = tolerance = 0.0
    may_spread = _may_spread(operator, values)
    spreads_nan = False
    for name, expected in zip(operator.outputs, expected_outputs, strict=True):
        actual = values[name]
        if may_spread and actual.shape == expected.shape:
            is_nan, may_be_nan = (np.isnan(a.astype(np.float64)) for a in (actual, expected))
            spreads_nan = spreads_nan or bool((is_nan & ~may_be_nan).any())
            actual = np.where(is_nan & ~may_be_nan, expected, actual)
        error = max(error, difference(actual, expected))
        tolerance = max(tolerance, tolerance_of(operator, expected))
    return Verdict(operator.name, error, tolerance, spreads_nan)


def _may_spread(operator: Operator, values: Mapping[str, Array]) -> bool:
    """True if an input of a product of floats is infinite or NaN."""
    kind = operator.kind
    if not isinstance(kind, Product) or is_integer(kind.computation.output.dtype):
        return False
    return not all(np.isfinite(values[n].astype(np.float64)).all() for n in operator.inputs)


def difference(actual: Array, expected: Array) -> float:
    """Return the largest difference.

    It is infinite if one is NaN and the other is not, or shapes or types differ.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if not actual.size:
        return 0.0
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distances = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.nan_to_num(distances, nan=np.inf, posinf=np.inf).max())


def tolerance_of(operator: Operator, expected: Array) -> float:
    """Return the allowed difference.

    It is 0 for integers and single roundings, and a quantum for integers that are rounded from
    functions
    of floats.
    """
    if not _is_rounded(operator):
        return 0.0
    if expected.dtype.kind in "iub":
        return 1.0
    finite = expected.astype(np.float64)
    finite = finite[np.isfinite(finite)]
    size = float(np.abs(finite).max()) if finite.size else 0.0
    roundoff = 2.0**-8 if expected.dtype.name == "bfloat16" else RELATIVE
    return roundoff * size


def _is_rounded(operator: Operator) -> bool:
    """True if results depend on the order of roundings, or on a library's functions."""
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
