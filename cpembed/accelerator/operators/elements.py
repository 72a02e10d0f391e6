"""Operators of single elements as statements: expressions, quantization, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cpembed.accelerator.operators.forms import FormBuilder, Forms, NoForm, OperatorForm, number
from cpembed.accelerator.operators.logical import dimension_order
from cpembed.accelerator.operators.product_parts import bounded
from cpembed.accelerator.operators.scalar_texts import (
    INEXACT,
    inexact_text,
    scalar_text,
    without_rounding,
)
from cpembed.accelerator.operators.scaled_addends import add_scaled, scaled_addends
from cpembed.accelerator.specification import Array
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    Dequantize,
    Elementwise,
    Input,
    Number,
    Quantize,
    Scalar,
    Table,
)
from cpembed.graph.kinds.base import axis_of
from cpembed.ir.dtypes import is_integer
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import reference
from cpembed.ir.scalars import operations


def elementwise_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of an expression at every element.

    Parameters
    ----------
    operator : Operator
        Operator of kind :class:`~cpembed.graph.kinds.elementwise.Elementwise`.
    graph : Graph
    """
    kind = operator.kind
    assert isinstance(kind, Elementwise)
    dtypes = [graph.types[name].dtype for name in operator.inputs]
    computing = kind.computes_in(dtypes)
    if "bool" in (*dtypes, kind.dtype) or computing not in ("float32", "int32", "int64"):
        return NoForm(f"{operator.name}: arithmetic of {computing} on {', '.join(dtypes)}")
    forms = [
        form
        for form in (
            _expression(operator, graph, kind.expression, kind.dtype, computing),
            *_integer_addends(operator, graph, kind, computing),
        )
        if form is not None
    ]
    return tuple(forms) or NoForm(f"{operator.name}: no statement computes {kind.label}")


def _expression(
    operator: Operator, graph: Graph, expression: Scalar, dtype: str, computing: str
) -> OperatorForm | None:
    builder = FormBuilder(operator, graph)
    names: dict[str, str] = {}
    output, extents = _output(builder, operator, graph)
    names["Y"] = output
    floats = computing == "float32"
    reads = [_read(builder, graph, name, extents, names, floats=floats) for name in operator.inputs]
    if floats and is_integer(dtype):
        expression = without_rounding(expression)
    text = scalar_text(expression, reads, floats=floats)
    if text is None or (not floats and is_integer(dtype) is False):
        return None
    if floats and is_integer(dtype):
        text = f"{dtype}({text})"
    builder.add(f"Y[{','.join(extents)}] = {text}", extents, names)
    # Integers of 32 bits wrap around in the operator, and are exact here.
    inexact = INEXACT & operations(expression)
    wraps = not floats and bool(operations(expression) & {"add", "sub", "mul", "neg", "abs"})
    deviation = inexact_text(inexact)
    if wraps and any(graph.types[n].dtype in ("int32", "int64") for n in operator.inputs):
        deviation = deviation or f"{computing} does not wrap around between operations"
    return builder.form("", deviation)


def _output(builder: FormBuilder, operator: Operator, graph: Graph) -> tuple[str, dict[str, int]]:
    """Add the output; return its name and the extent of each of its dimensions."""
    output = builder.tensor(operator.output, dimension_order(graph, operator.output))
    return output, {f"i{k}": size for k, size in enumerate(builder.shapes[output])}


def _read(
    builder: FormBuilder,
    graph: Graph,
    name: str,
    extents: dict[str, int],
    names: dict[str, str],
    *,
    floats: bool,
) -> str:
    """Return the text of an input's element, broadcast as in numpy."""
    shape, rank = graph.types[name].shape, len(extents)
    dtype = graph.types[name].dtype
    if graph.is_constant(name) and graph.types[name].elements == 1:
        value = graph.constants[name].reshape(-1)[0].item()
        return number(value) if floats else f"({value})" if value >= 0 else f"(0 - {-value})"
    order = dimension_order(graph, builder.operator.output)
    # Dimensions are aligned at the end, in the graph's order.
    present = [d for d in order if d - (rank - len(shape)) >= 0]
    local = [d - (rank - len(shape)) for d in present]
    label = builder.tensor(name, local)
    placeholder = f"X{len(names)}"
    names[placeholder] = label
    index: list[str] = []
    for dimension, place in zip(present, local, strict=True):
        axis = f"i{order.index(dimension)}"
        index.append(axis if shape[place] == extents[axis] else "0")
    text = f"{placeholder}[{','.join(index)}]"
    return f"float32({text})" if floats and dtype != "float32" else text


def _linear_terms(expression: Scalar) -> dict[int, float] | None:
    """Return the factors of a sum of inputs, each with a constant factor; None for others."""
    match expression:
        case Input(position):
            return {position: 1.0}
        case Apply("mul", (Number(value), inner)) | Apply("mul", (inner, Number(value))):
            terms = _linear_terms(inner)
            return None if terms is None else {k: v * float(value) for k, v in terms.items()}
        case Apply("neg", (inner,)):
            terms = _linear_terms(inner)
            return None if terms is None else {k: -v for k, v in terms.items()}
        case Apply(("add" | "sub") as op, (left, right)):
            first, second = _linear_terms(left), _linear_terms(right)
        case Apply("fma", (a, b, c)):
            op, first, second = "add", _linear_terms(Apply("mul", (a, b))), _linear_terms(c)
        case _:
            return None
    if first is None or second is None:
        return None
    total = dict(first)
    for position, value in second.items():
        total[position] = total.get(position, 0.0) + (value if op == "add" else -value)
    return total


def _clamped(expression: Scalar) -> tuple[Scalar, bool]:
    """Return an expression without a ReLU around it, and whether there was one."""
    match expression:
        case Apply("max", (inner, Number(0))) | Apply("max", (Number(0), inner)):
            return inner, True
        case _:
            return expression, False


def _integer_addends(
    operator: Operator, graph: Graph, kind: Elementwise, computing: str
) -> Iterator[OperatorForm]:
    """Yield the forms of a sum of scaled bytes that add rounded addends in an accumulator."""
    expression, relu = _clamped(without_rounding(kind.expression))
    terms = _linear_terms(expression)
    types = [graph.types[name] for name in operator.inputs]
    shape = graph.types[operator.output].shape
    if terms is None or kind.dtype != "int8" or computing != "float32" or len(terms) < 2:
        return
    if len(terms) != len(operator.inputs):
        return
    if any(types[k].dtype != "int8" or types[k].shape != shape for k in terms):
        return
    order = dimension_order(graph, operator.output)
    for addends in scaled_addends(tuple(terms.values())):
        builder = FormBuilder(operator, graph)
        output, extents = _output(builder, operator, graph)
        sources = [builder.tensor(operator.inputs[k], order) for k in terms]
        text = add_scaled(builder, extents, sources, addends)
        text = f"max({text}, 0)" if relu else text
        names = {"Y": output, "T": f"{operator.output}.total"}
        builder.add(f"Y[{','.join(extents)}] = int8({text})", extents, names)
        yield builder.form(addends.label, addends.deviation)


# -- quantization ----------------------------------------------------------------------------------


def quantize_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of a quantization: a quotient, and a product with the reciprocal.

    Parameters
    ----------
    operator : Operator
        Operator of kind :class:`~cpembed.graph.kinds.elementwise.Quantize`.
    graph : Graph
    """
    kind = operator.kind
    assert isinstance(kind, Quantize)
    if graph.types[operator.inputs[0]].dtype != "float32" or kind.dtype not in ("int8", "uint8"):
        return NoForm(f"{operator.name}: it quantizes to {kind.dtype}")
    if len({*kind.zero_point}) > 1:
        return NoForm(f"{operator.name}: zero points by channel")
    scales = np.asarray(kind.scale, np.float32)
    forms = [_quantized(operator, graph, kind, scales, "/", "")]
    if float(np.abs(scales).min()) > 2.0**-100:
        reciprocals = (1.0 / scales.astype(np.float64)).astype(np.float32)
        # The quotient and the product differ by 2^-22 relative to at most 256.
        form = _quantized(operator, graph, kind, reciprocals, "*", "at most 1 quantum")
        forms.append(form)
    return tuple(forms)


def _quantized(
    operator: Operator,
    graph: Graph,
    kind: Quantize,
    factors: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    operation: str,
    deviation: str,
) -> OperatorForm:
    builder = FormBuilder(operator, graph)
    output, extents = _output(builder, operator, graph)
    names = {"Y": output}
    read = _read(builder, graph, operator.inputs[0], extents, names, floats=True)
    factor = _along(builder, graph, "scale", factors, kind.axis, names)
    text = f"({read} {operation} {factor})"
    zero = kind.zero_point[0]
    text = f"{kind.dtype}({text})"
    if zero:
        # 24 bits, so that adding the zero point saturates as the operator does.
        inner = f"min(max({read} {operation} {factor}, {number(-(2.0**23))}), {number(2.0**23)})"
        added = f"{zero}" if zero > 0 else f"(0 - {-zero})"
        text = f"{kind.dtype}(int32({inner}) + {added})"
    builder.add(f"Y[{','.join(extents)}] = {text}", extents, names)
    return builder.form("a product with the reciprocal" if operation == "*" else "", deviation)


def _along(
    builder: FormBuilder,
    graph: Graph,
    suffix: str,
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    axis: int,
    names: dict[str, str],
) -> str:
    """Return the text of a number, or of one per index of an axis of the graph's tensor."""
    if values.size == 1:
        return number(float(values.reshape(-1)[0]))
    order = dimension_order(graph, builder.operator.output)
    place = order.index(axis_of(axis, len(order)))
    placeholder = f"V{len(names)}"
    names[placeholder] = builder.constant(suffix, values.reshape(-1))
    return f"{placeholder}[i{place}]"


def dequantize_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the form of a dequantization.

    Parameters
    ----------
    operator : Operator
        Operator of kind :class:`~cpembed.graph.kinds.elementwise.Dequantize`.
    graph : Graph
    """
    kind = operator.kind
    assert isinstance(kind, Dequantize)
    if len({*kind.zero_point}) > 1:
        return NoForm(f"{operator.name}: zero points by channel")
    builder = FormBuilder(operator, graph)
    output, extents = _output(builder, operator, graph)
    names = {"Y": output}
    read = _read(builder, graph, operator.inputs[0], extents, names, floats=False)
    zero = kind.zero_point[0]
    if zero:
        read = f"({read} - {zero})" if zero > 0 else f"({read} + {-zero})"
    scales = np.asarray(kind.scale, np.float32)
    factor = _along(builder, graph, "scale", scales, kind.axis, names)
    builder.add(f"Y[{','.join(extents)}] = {read} * {factor}", extents, names)
    return (builder.form(""),)


# -- tables ----------------------------------------------------------------------------------------


def table_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of a table: a scaled and bounded number, or the expression that it holds.

    The expression is computed for all 256 numbers, so that its largest distance is known.

    Parameters
    ----------
    operator : Operator
        Operator of kind :class:`~cpembed.graph.kinds.elementwise.Table`.
    graph : Graph
    """
    kind = operator.kind
    assert isinstance(kind, Table)
    source = graph.types[operator.inputs[0]].dtype
    first = int(np.iinfo(source).min)
    points = np.arange(first, first + 256)
    entries = np.asarray(kind.entries, kind.dtype)
    texts = list(_scaled_texts(points, entries, kind.dtype))
    forms = [_tabulated(operator, graph, text) for text in texts]
    forms += [_through_sums(operator, graph, text) for text in texts]
    expressed = _expressed(operator, graph, kind, points)
    if expressed is not None:
        forms.append(expressed)
    if forms:
        return tuple(forms)
    return NoForm(
        f"{operator.name}: a table of 256 entries that no scale and bounds express: no statement "
        "looks a table up"
    )


def _expressed(operator: Operator, graph: Graph, kind: Table, points: Array) -> OperatorForm | None:
    """Return the form with a table's expression, if it is at most one quantum from each entry."""
    if kind.expression is None or kind.dtype not in ("int8", "uint8"):
        return None
    text = scalar_text(without_rounding(kind.expression), ["float32({x})"], floats=True)
    if text is None:
        return None
    text = f"{kind.dtype}({text})"
    source = graph.types[operator.inputs[0]].dtype
    computation = parse_computation(
        f"Y[i] = {text.format(x='X[i]')}", {"i": 256}, dtypes={"X": source, "Y": kind.dtype}
    )
    values = reference(computation, {"X": points.astype(source)}).astype(np.int64)
    distance = int(np.abs(values - np.asarray(kind.entries, np.int64)).max())
    if distance > 1:
        return None
    return _tabulated(operator, graph, text, "at most 1 quantum" if distance else "")


def _through_sums(operator: Operator, graph: Graph, text: str) -> OperatorForm:
    """Return the form in which an accumulator holds the bytes, for stores that scale sums."""
    builder = FormBuilder(operator, graph)
    output, extents = _output(builder, operator, graph)
    names = {"Y": output, "S": builder.temporary("sums", builder.shapes[output], "int32")}
    index = ",".join(extents)
    read = _read(builder, graph, operator.inputs[0], extents, names, floats=False)
    builder.add(f"S[{index}] = {read}", extents, names)
    builder.add(f"Y[{index}] = {text.format(x=f'S[{index}]')}", extents, names)
    return builder.form("through sums")


def _tabulated(operator: Operator, graph: Graph, text: str, deviation: str = "") -> OperatorForm:
    builder = FormBuilder(operator, graph)
    output, extents = _output(builder, operator, graph)
    names = {"Y": output}
    read = _read(builder, graph, operator.inputs[0], extents, names, floats=False)
    builder.add(f"Y[{','.join(extents)}] = {text.format(x=read)}", extents, names)
    return builder.form("", deviation)


def _scaled_texts(
    points: Sequence[int] | np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    entries: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    dtype: str,
) -> Iterator[str]:
    """Yield texts of ``x`` that have exactly these entries."""
    x = np.asarray(points, np.int64)
    if not is_integer(dtype):
        # A dequantization.
        nonzero = x != 0
        if not np.any(nonzero) or dtype != "float32":
            return
        scale = np.float32(entries[x == 1][0]) if np.any(x == 1) else np.float32(0)
        if np.array_equal(x.astype(np.float32) * scale, entries):
            yield f"{{x}} * {number(float(scale))}"
        return
    values = entries.astype(np.int64)
    low, high = int(values.min()), int(values.max())
    if np.array_equal(np.clip(x, low, high), values):
        yield f"{dtype}({bounded('{x}', low, high, dtype)})"
        return
    scale = _common_scale(x, values, low, high)
    if scale is not None:
        text = bounded(f"({{x}} * {number(float(scale))})", low, high, dtype)
        yield f"{dtype}({text})"


def _common_scale(
    x: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    values: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    low: int,
    high: int,
) -> np.float32 | None:
    """Return a factor of which every value between the bounds is the rounded product."""
    inside = (values > low) & (values < high) & (x != 0)
    if not np.any(inside):
        return None
    ends = np.stack([(values - 0.5)[inside] / x[inside], (values + 0.5)[inside] / x[inside]])
    least, largest = float(ends.min(axis=0).max()), float(ends.max(axis=0).min())
    for scale in (np.float32((least + largest) / 2), np.float32(least), np.float32(largest)):
        products = np.rint(x.astype(np.float32) * scale)
        if np.array_equal(np.clip(products, low, high).astype(np.int64), values):
            return scale
    return None
