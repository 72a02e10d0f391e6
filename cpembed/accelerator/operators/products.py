"""Products with their epilogues as statements: sums, requantization, residual.

The sums begin with the bias, so that what follows reads one tensor. Requantization has several
forms, since machines differ in their arithmetic: a float scale, or an integer multiplier and a
shift.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cpembed.accelerator.operators.forms import (
    Forms,
    NoForm,
    OperatorForm,
    integer_text,
    number,
)
from cpembed.accelerator.operators.product_parts import (
    ProductParts,
    bounded,
    residual_tensor,
    stored_text,
    value_text,
    with_sums,
)
from cpembed.accelerator.operators.scalar_texts import (
    INEXACT,
    inexact_text,
    scalar_text,
    without_rounding,
)
from cpembed.accelerator.operators.scaled_addends import (
    ScaledAddends,
    add_scaled,
    scaled_addends,
)
from cpembed.accelerator.specification import Array
from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue, Residual
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.scalars import operations

_MULTIPLIER_BITS = 31
"""Bits of the largest multiplier of a fixed-point requantization."""


def product_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of a product."""
    kind = operator.kind
    assert isinstance(kind, Product)
    if any(kind.zero_points) or kind.padding:
        constant_factor = graph.is_constant(operator.inputs[1])
        if kind.zero_points[1] or not constant_factor:
            return NoForm(
                f"{operator.name}: the zero point {kind.zero_points[1] or kind.zero_points[0]} of "
                "a factor that is not symmetric is part of no product: quantize it symmetrically"
            )
    vectors = operator.inputs[2 : 2 + len(kind.vectors)]
    if not all(graph.is_constant(name) for name in vectors):
        return NoForm(f"{operator.name}: a bias or scale is computed in each call")
    forms = [form for form in _alternatives(operator, graph, kind) if form is not None]
    return tuple(forms) or NoForm(f"{operator.name}: no form of its epilogue, {kind.epilogue}")


def _alternatives(operator: Operator, graph: Graph, kind: Product) -> Iterator[OperatorForm | None]:
    epilogue = kind.epilogue
    if epilogue is None:
        yield with_sums(operator, graph, kind).builder.form("")
        return
    if epilogue.chain is not None:
        yield _chained(operator, graph, kind)
        return
    if epilogue.residual is not None and is_integer(epilogue.dtype):
        yield from residual_forms(operator, graph, kind, epilogue, epilogue.residual)
        return
    yield _finished(operator, graph, kind, bias_after=False)
    if _scales_differ(operator, graph, kind):
        yield _finished(operator, graph, kind, bias_after=False, relu_first=True)
    yield _finished(operator, graph, kind, bias_after=True)
    yield _fixed_point(operator, graph, kind)


def _finished(
    operator: Operator,
    graph: Graph,
    kind: Product,
    *,
    bias_after: bool,
    relu_first: bool = False,
) -> OperatorForm | None:
    """Return the form with the epilogue's own arithmetic.

    With ``relu_first``, sums below 0 become 0 before they are scaled: a positive scale keeps the
    sign, so that the results are the same.
    """
    epilogue = kind.epilogue
    assert epilogue is not None
    integers = is_integer(kind.computation.output.dtype)
    if bias_after and not (epilogue.bias and integers and _is_small(operator, graph, kind)):
        return None
    parts = with_sums(operator, graph, kind, bias_after=bias_after)
    names = {"Y": parts.output}
    text = value_text(parts, epilogue, names, bias=bias_after, relu_first=relu_first)
    if relu_first:
        epilogue = replace(epilogue, relu=False, clip=(-128, epilogue.range[1]))
    if epilogue.residual is not None:
        text = _float_residual(parts, epilogue.residual, names, text)
    text = stored_text(parts, epilogue, text)
    parts.builder.add(f"Y[{parts.index}] = {text}", parts.extents, names)
    labels = {"bias after the sums": bias_after, "ReLU before the scale": relu_first}
    return parts.builder.form(", ".join(label for label, holds in labels.items() if holds))


def _scales_differ(operator: Operator, graph: Graph, kind: Product) -> bool:
    """True if a ReLU of bytes follows positive scales that differ by channel."""
    epilogue = kind.epilogue
    if epilogue is None or not epilogue.scale or epilogue.dtype != "int8" or epilogue.zero_point:
        return False
    scales = graph.constants[operator.inputs[2 + kind.vectors.index(SCALE)]]
    clamps = epilogue.relu or epilogue.range[0] == 0
    return bool(clamps and scales.min(initial=1) > 0 and scales.max(initial=0) > scales.min())


def _is_small(operator: Operator, graph: Graph, kind: Product) -> bool:
    """True if no sum of integers leaves 32 bits, with the bias or without it."""
    place = 2 + kind.vectors.index(BIAS)
    bias = int(np.abs(graph.constants[operator.inputs[place]].astype(np.int64)).max(initial=0))
    largest = [
        max(map(abs, dtype_info(operand.dtype).integer_range))
        for operand in kind.computation.inputs
    ]
    computation = kind.computation
    reduced = computation.macs // computation.output.elements
    return reduced * math.prod(largest) + bias < 2**31


def _float_residual(
    parts: ProductParts, residual: Residual, names: dict[str, str], text: str
) -> str:
    """Return the text of a value of floats with its residual."""
    names["R"] = residual_tensor(parts)
    text = f"({text} + R[{parts.index}])"
    return f"max({text}, 0)" if residual.relu else text


def _fixed_point(operator: Operator, graph: Graph, kind: Product) -> OperatorForm | None:
    """Return the form whose scale is an integer multiplier and a shift.

    The product with the multiplier is within ``128 * error`` of that with the scale wherever the
    result is not saturated, where ``error`` is the relative error of the multipliers and of the two
    roundings of float32. Both are then rounded to integers: as the distance is below 1, these
    differ by 1 at most.
    """
    epilogue = kind.epilogue
    assert epilogue is not None
    bytes_of_integers = epilogue.dtype in ("int8", "uint8") and is_integer(
        kind.computation.output.dtype
    )
    if not (epilogue.scale and bytes_of_integers) or epilogue.residual or epilogue.chain:
        return None
    parts = with_sums(operator, graph, kind)
    scales = parts.vector(SCALE).astype(np.float64)
    fixed = fixed_multipliers(scales)
    if fixed is None:
        return None
    multipliers, shift = fixed
    error = float(np.max(np.abs(multipliers / 2.0**shift - scales) / scales)) + 2.0**-22
    low, high = epilogue.stored_range
    if error * (max(-low, high) + 1) >= 1:
        return None
    names = {"Y": parts.output, "S": parts.sums}
    factor = parts.vector_text("multiplier", multipliers.astype(np.int32), names)
    text = f"((S[{parts.index}] * {factor} + {1 << (shift - 1)}) >> {shift})"
    if epilogue.relu:
        text = f"max({text}, 0)"
    if epilogue.zero_point:
        text = (
            f"{bounded(f'int32({text})', low, high, 'int32')} + {integer_text(epilogue.zero_point)}"
        )
        text = f"{epilogue.dtype}({text})"
    else:
        text = f"{epilogue.dtype}({bounded(text, low, high, epilogue.dtype)})"
    parts.builder.add(f"Y[{parts.index}] = {text}", parts.extents, names)
    return parts.builder.form("integer multiplier and shift", "at most 1 quantum")


def fixed_multipliers(scales: Array) -> tuple[Array, int] | None:
    """Return integer multipliers with a common shift, as precise as 31 bits allow.

    >>> fixed_multipliers(np.array([0.5, 0.25]))
    (array([1073741824,  536870912]), 31)

    Returns
    -------
    (ndarray, int) or None
        None where a scale is not positive, or the shift is outside of 1 to 62.
    """
    if not scales.size or float(scales.min()) <= 0 or not np.all(np.isfinite(scales)):
        return None
    shift = _MULTIPLIER_BITS - 1 - math.floor(math.log2(float(scales.max())))
    shift = min(shift, 62)
    multipliers = np.rint(scales * 2.0**shift).astype(np.int64)
    # A scale just below a power of two rounds up to one more bit.
    if int(multipliers.max()) >= 2**_MULTIPLIER_BITS:
        shift -= 1
        multipliers = np.rint(scales * 2.0**shift).astype(np.int64)
    return (multipliers, shift) if shift >= 1 else None


# -- chains ----------------------------------------------------------------------------------------


def _chained(operator: Operator, graph: Graph, kind: Product) -> OperatorForm | None:
    """Return the form of an epilogue with an expression of the result."""
    epilogue = kind.epilogue
    assert epilogue is not None
    assert epilogue.chain is not None
    parts = with_sums(operator, graph, kind)
    names: dict[str, str] = {"Y": parts.output}
    inputs = [value_text(parts, epilogue, names, bias=False)]
    if epilogue.residual is not None:
        names["R"] = residual_tensor(parts)
        inputs.append(f"float32(R[{parts.index}])")
    inputs += [
        parts.vector_text(name.removeprefix("@"), parts.vector(name), names)
        for name in epilogue.chain.names
    ]
    expression = epilogue.chain.expression
    if is_integer(epilogue.dtype):
        expression = without_rounding(expression)
    text = scalar_text(expression, inputs, floats=True)
    if text is None:
        return None
    if is_integer(epilogue.dtype):
        text = f"{epilogue.dtype}({text})"
    parts.builder.add(f"Y[{parts.index}] = {text}", parts.extents, names)
    inexact = INEXACT & operations(expression)
    return parts.builder.form("", inexact_text(inexact))


# -- residuals -------------------------------------------------------------------------------------


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
