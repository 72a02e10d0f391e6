"""Operators of single elements as statements: expressions, quantization, tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.operators.forms import (
    FormBuilder,
    Forms,
    NoForm,
    OperatorForm,
    integer_text,
    number,
)
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

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


class ElementBuilder(FormBuilder):
    """A form in the making of an operator whose result has an element at each point.

    Attributes
    ----------
    axes : dict of str to int
        Extent of each dimension of the result.
    names : dict of str to str
        Tensor of each placeholder; that of the result is Y.
    """

    def __init__(self, operator: Operator, graph: Graph) -> None:
        super().__init__(operator, graph)
        output = self.tensor(operator.output, dimension_order(graph, operator.output))
        self.axes = {f"i{k}": size for k, size in enumerate(self.shapes[output])}
        self.names = {"Y": output}

    @property
    def index(self) -> str:
        return ",".join(self.axes)

    def read(self, name: str, *, floats: bool) -> str:
        """Return the text of an input's element, broadcast as in numpy."""
        kind, rank = self.graph.types[name], len(self.axes)
        if self.graph.is_constant(name) and kind.elements == 1:
            value = self.graph.constants[name].reshape(-1)[0].item()
            return number(value) if floats else f"({value})" if value >= 0 else integer_text(value)
        order = dimension_order(self.graph, self.operator.output)
        # Dimensions are aligned at the end, in the graph's order.
        missing = rank - len(kind.shape)
        present = [d for d in order if d >= missing]
        local = [d - missing for d in present]
        placeholder = f"X{len(self.names)}"
        self.names[placeholder] = self.tensor(name, local)
        index: list[str] = []
        for dimension, place in zip(present, local, strict=True):
            axis = f"i{order.index(dimension)}"
            index.append(axis if kind.shape[place] == self.axes[axis] else "0")
        text = f"{placeholder}[{','.join(index)}]"
        return f"float32({text})" if floats and kind.dtype != "float32" else text

    def along(self, suffix: str, values: Floats, axis: int) -> str:
        """Return the text of a number, or of one per index of an axis of the graph's tensor."""
        if values.size == 1:
            return number(float(values.reshape(-1)[0]))
        order = dimension_order(self.graph, self.operator.output)
        place = order.index(axis_of(axis, len(order)))
        placeholder = f"V{len(self.names)}"
        self.names[placeholder] = self.constant(suffix, values.reshape(-1))
        return f"{placeholder}[i{place}]"

    def stored(self, text: str, label: str = "", deviation: str = "") -> OperatorForm:
        """Return the form whose last statement stores a text as the result."""
        self.add(f"Y[{self.index}] = {text}", self.axes, self.names)
        return self.form(label, deviation)


def elementwise_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of an expression at every element."""
    kind = operator.kind
    assert isinstance(kind, Elementwise)
    dtypes = [graph.types[name].dtype for name in operator.inputs]
    computing = kind.computes_in(dtypes)
    if "bool" in (*dtypes, kind.dtype) or computing not in ("float32", "int32", "int64"):
        return NoForm(f"{operator.name}: arithmetic of {computing} on {', '.join(dtypes)}")
    forms = [
        form
        for form in (
            _expression(operator, graph, kind, computing),
            *_integer_addends(operator, graph, kind, computing),
        )
        if form is not None
    ]
    return tuple(forms) or NoForm(f"{operator.name}: no statement computes {kind.label}")


def _expression(
    operator: Operator, graph: Graph, kind: Elementwise, computing: str
) -> OperatorForm | None:
    expression, dtype, floats = kind.expression, kind.dtype, computing == "float32"
    builder = ElementBuilder(operator, graph)
    reads = [builder.read(name, floats=floats) for name in operator.inputs]
    if floats and is_integer(dtype):
        expression = without_rounding(expression)
    text = scalar_text(expression, reads, floats=floats)
    if text is None or (not floats and is_integer(dtype) is False):
        return None
    if floats and is_integer(dtype):
        text = f"{dtype}({text})"
    # Integers of 32 bits wrap around in the operator, and are exact here.
    inexact = INEXACT & operations(expression)
    wraps = not floats and bool(operations(expression) & {"add", "sub", "mul", "neg", "abs"})
    deviation = inexact_text(inexact)
    if wraps and any(graph.types[n].dtype in ("int32", "int64") for n in operator.inputs):
        deviation = deviation or f"{computing} does not wrap around between operations"
    return builder.stored(text, "", deviation)


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
        builder = ElementBuilder(operator, graph)
        sources = [builder.tensor(operator.inputs[k], order) for k in terms]
        text = add_scaled(builder, builder.axes, sources, addends)
        text = f"max({text}, 0)" if relu else text
        builder.names["T"] = f"{operator.output}.total"
        yield builder.stored(f"int8({text})", addends.label, addends.deviation)


# -- quantization ----------------------------------------------------------------------------------


def quantize_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of a quantization: a quotient, and a product with the reciprocal."""
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
    factors: Floats,
    operation: str,
    deviation: str,
) -> OperatorForm:
    builder = ElementBuilder(operator, graph)
    read = builder.read(operator.inputs[0], floats=True)
    factor = builder.along("scale", factors, kind.axis)
    text = f"({read} {operation} {factor})"
    zero = kind.zero_point[0]
    text = f"{kind.dtype}({text})"
    if zero:
        # 24 bits, so that adding the zero point saturates as the operator does.
        inner = f"min(max({read} {operation} {factor}, {number(-(2.0**23))}), {number(2.0**23)})"
        text = f"{kind.dtype}(int32({inner}) + {integer_text(zero)})"
    label = "a product with the reciprocal" if operation == "*" else ""
    return builder.stored(text, label, deviation)


def dequantize_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the form of a dequantization."""
    kind = operator.kind
    assert isinstance(kind, Dequantize)
    if len({*kind.zero_point}) > 1:
        return NoForm(f"{operator.name}: zero points by channel")
    builder = ElementBuilder(operator, graph)
    read = builder.read(operator.inputs[0], floats=False)
    zero = kind.zero_point[0]
    if zero:
        read = f"({read} - {zero})" if zero > 0 else f"({read} + {-zero})"
    scales = np.asarray(kind.scale, np.float32)
    return (builder.stored(f"{read} * {builder.along('scale', scales, kind.axis)}"),)


# -- tables ----------------------------------------------------------------------------------------


def table_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of a table: a scaled and bounded number, or the expression that it holds.

    The expression is computed for all 256 numbers, so that its largest distance is known.
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
    builder = ElementBuilder(operator, graph)
    shape = tuple(builder.axes.values())
    builder.names["S"] = builder.temporary("sums", shape, "int32")
    read = builder.read(operator.inputs[0], floats=False)
    builder.add(f"S[{builder.index}] = {read}", builder.axes, builder.names)
    return builder.stored(text.format(x=f"S[{builder.index}]"), "through sums")


def _tabulated(operator: Operator, graph: Graph, text: str, deviation: str = "") -> OperatorForm:
    builder = ElementBuilder(operator, graph)
    read = builder.read(operator.inputs[0], floats=False)
    return builder.stored(text.format(x=read), "", deviation)


def _scaled_texts(x: Integers, entries: Array, dtype: str) -> Iterator[str]:
    """Yield texts of ``x`` that have exactly these entries."""
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


def _common_scale(x: Integers, values: Integers, low: int, high: int) -> np.float32 | None:
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
