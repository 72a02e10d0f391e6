"""Products of bytes with a residual as statements, in the arithmetic of machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cpembed.accelerator.operators.forms import OperatorForm, number
from cpembed.accelerator.operators.product_parts import (
    ProductParts,
    bounded,
    integer_text,
    residual_tensor,
    value_text,
    with_sums,
)
from cpembed.accelerator.operators.scaled_addends import (
    ScaledAddends,
    add_scaled,
    scaled_addends,
)
from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product


def residual_forms(
    operator: Operator, graph: Graph, kind: Product, epilogue: Epilogue, residual: Residual
) -> Iterator[OperatorForm | None]:
    """Yield the forms of a product of bytes with a residual.

    Parameters
    ----------
    operator : Operator
    graph : Graph
    kind : Product
        Kind of the operator.
    epilogue : Epilogue
        Its epilogue.
    residual : Residual
        Residual of the epilogue.
    """
    yield _added_floats(operator, graph, kind, epilogue, residual)
    for addends in scaled_addends((residual.own_scale, residual.scale)):
        yield _added_integers(operator, graph, kind, epilogue, residual, addends)


def _rounded_first(
    operator: Operator, graph: Graph, kind: Product, epilogue: Epilogue
) -> tuple[ProductParts, str]:
    """Begin a form with the requantized result as a tensor of its own; return its name."""
    parts = with_sums(operator, graph, kind)
    builder = parts.builder
    low, high = epilogue.stored_range
    # Without a zero point the result fits in its type; with one it needs 9 bits.
    dtype = epilogue.dtype if not epilogue.zero_point else "int16"
    result = builder.temporary("product", tuple(parts.extents.values()), dtype)
    names = {"Q": result}
    value = value_text(parts, replace(epilogue, residual=None), names, bias=False)
    text = f"{dtype}({bounded(value, low, high, dtype)})"
    builder.add(f"Q[{parts.index}] = {text}", parts.extents, names)
    return parts, result


def _added_floats(
    operator: Operator, graph: Graph, kind: Product, epilogue: Epilogue, residual: Residual
) -> OperatorForm | None:
    """Return the form that adds in floats.

    The operator rounds the sum of two products once to float32 where this form rounds each
    operation. Both are within ``2^-22`` of the sum relative to its terms, of magnitude 2^17 at most
    if the scales are below 2^9, so that they are less than 1 apart before they become integers.
    """
    largest = 256 * (abs(residual.own_scale) + abs(residual.scale))
    if not residual.rounds or largest * 2.0**-21 >= 1:
        return None
    parts, product = _rounded_first(operator, graph, kind, epilogue)
    names = {"Q": product, "R": residual_tensor(parts), "Y": parts.output}
    addend = f"R[{parts.index}]"
    if residual.zero_point:
        addend = f"({addend} - {integer_text(residual.zero_point)})"
    own_scale, residual_scale = (float(np.float32(s)) for s in (residual.own_scale, residual.scale))
    text = f"((Q[{parts.index}] * {number(own_scale)}) + ({addend} * {number(residual_scale)}))"
    parts.builder.add(
        f"Y[{parts.index}] = {_residual_stored(epilogue, residual, text)}", parts.extents, names
    )
    return parts.builder.form("residual added in floats", "at most 1 quantum")


def _residual_stored(epilogue: Epilogue, residual: Residual, text: str) -> str:
    low, high = epilogue.residual_range
    if not residual.stored_zero_point:
        return f"{epilogue.dtype}({bounded(text, low, high, epilogue.dtype)})"
    text = bounded(f"int32({text})", low, high, "int32")
    return f"{epilogue.dtype}({text} + {integer_text(residual.stored_zero_point)})"


def _added_integers(
    operator: Operator,
    graph: Graph,
    kind: Product,
    epilogue: Epilogue,
    residual: Residual,
    addends: ScaledAddends,
) -> OperatorForm | None:
    """Return the form that adds scaled, rounded addends in an accumulator."""
    if epilogue.zero_point or residual.zero_point or residual.stored_zero_point:
        return None
    if not residual.rounds or epilogue.dtype != "int8" or residual.dtype != "int8":
        return None
    parts, product = _rounded_first(operator, graph, kind, epilogue)
    sources = (product, residual_tensor(parts))
    text = add_scaled(parts.builder, parts.extents, sources, addends)
    parts.builder.add(
        f"Y[{parts.index}] = {_residual_stored(epilogue, residual, text)}",
        parts.extents,
        {"Y": parts.output, "T": f"{operator.output}.total"},
    )
    return parts.builder.form(f"residual {addends.label}", addends.deviation)
