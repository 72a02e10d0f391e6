"""Products with their epilogues as statements: sums, requantization, residual.

The sums begin with the bias, so that what follows reads one tensor. Requantization has several
forms, since machines differ in their arithmetic: a float scale, or an integer multiplier and a
shift.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.accelerator.operators.forms import (
    FormBuilder,
    Forms,
    NoForm,
    OperatorForm,
    number,
    renamed_operands,
)
from cpembed.accelerator.operators.logical import dimension_order, split_order
from cpembed.accelerator.operators.scalar_texts import (
    INEXACT,
    operations,
    scalar_text,
    without_rounding,
)
from cpembed.accelerator.specification import Array, Statement
from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue, Residual, channel_axes, channel_numbers
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product
from cpembed.ir.computation import Computation, changed_accesses
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import Access

_MULTIPLIER_BITS = 31
"""Bits of the largest multiplier of a fixed-point requantization."""

_ADDEND_BITS = 8
"""Bits behind the binary point of the addends of a residual sum."""


def product_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of a product.

    Parameters
    ----------
    operator : Operator
        Operator of kind :class:`~cpembed.graph.kinds.product.Product`.
    graph : Graph
    """
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


@dataclass
class _Parts:
    """A form in the making, with what the statements of an epilogue need.

    ``index`` are the iterators of the output, ``channel`` those of its channels.
    """

    builder: FormBuilder
    kind: Product
    output: str
    sums: str
    extents: dict[str, int]
    channel: tuple[str, ...]
    order: tuple[int, ...]

    @property
    def index(self) -> str:
        return ",".join(self.extents)

    def vector(self, name: str) -> Array:
        """Return a vector of the epilogue, with a dimension for each channel axis."""
        place = 2 + self.kind.vectors.index(name)
        graph, operator = self.builder.graph, self.builder.operator
        return graph.constants[operator.inputs[place]].reshape(
            [self.extents[axis] for axis in self.channel]
        )

    def vector_text(self, suffix: str, values: Array, names: dict[str, str]) -> str:
        """Return the text of a vector's element: a number where all are equal."""
        if values.size and np.all(values == values.flat[0]):
            value = values.flat[0]
            return str(int(value)) if values.dtype.kind in "iu" else number(float(value))
        placeholder = f"V{len(names)}"
        names[placeholder] = self.builder.constant(suffix, np.ascontiguousarray(values))
        return f"{placeholder}[{','.join(self.channel)}]"


def _alternatives(operator: Operator, graph: Graph, kind: Product) -> Iterator[OperatorForm | None]:
    epilogue = kind.epilogue
    if epilogue is None:
        yield _with_sums(operator, graph, kind).builder.form("")
        return
    if epilogue.chain is not None:
        yield _chained(operator, graph, kind)
        return
    if epilogue.residual is not None and is_integer(epilogue.dtype):
        yield from _with_residual(operator, graph, kind, epilogue, epilogue.residual)
        return
    yield _finished(operator, graph, kind, bias_after=False)
    if _scales_differ(operator, graph, kind):
        yield _finished(operator, graph, kind, bias_after=False, relu_first=True)
    yield _finished(operator, graph, kind, bias_after=True)
    yield _fixed_point(operator, graph, kind)


# -- sums -------------------------------------------------------------------------------------------


def _with_sums(
    operator: Operator, graph: Graph, kind: Product, *, bias_after: bool = False
) -> _Parts:
    """Begin a form with the statements of the sums."""
    builder = FormBuilder(operator, graph)
    computation, order = _logical(operator, graph, kind, builder)
    output_shape = computation.output.shape
    output = builder.tensor(operator.output, dimension_order(graph, operator.output), output_shape)
    sums = output
    if kind.epilogue is not None:
        sums = builder.temporary("sums", output_shape, computation.output.dtype)
    names = {f"i{k}": size for k, size in enumerate(output_shape)}
    axes = channel_axes(kind.computation)
    inner = [i.single_iterator for i in kind.computation.access(kind.computation.output.name).index]
    channel = tuple(f"i{order.index(inner.index(axis))}" for axis in axes)
    parts = _Parts(builder, kind, output, sums, names, channel, order)
    begins = _initial(parts, bias_after)
    renamed = renamed_operands(computation, {computation.output.name: sums})
    builder.statements.append(Statement(renamed, begins))
    return parts


def _logical(
    operator: Operator, graph: Graph, kind: Product, builder: FormBuilder
) -> tuple[Computation, tuple[int, ...]]:
    """Return the product over the graph's tensors, its output's dimensions in their order."""
    computation = kind.computation
    orders: dict[str, tuple[int, ...]] = {}
    names: dict[str, str] = {}
    for operand, name in zip(
        (*computation.inputs, computation.output),
        (*operator.inputs[:2], operator.output),
        strict=True,
    ):
        shape = graph.types[name].shape
        order = dimension_order(graph, name)
        if graph.is_constant(name):
            order = tuple(range(len(shape)))
        parts = split_order(shape, operand.shape, order)
        if parts is None or len(parts) != len(operand.shape):
            order, parts = tuple(range(len(shape))), tuple(range(len(operand.shape)))
        orders[operand.name] = parts
        if operand.name != computation.output.name:
            permuted = [operand.shape[d] for d in parts]
            names[operand.name] = builder.tensor(name, order, permuted)

    def permuted_access(access: Access) -> Access:
        return replace(access, index=tuple(access.index[d] for d in orders[access.operand]))

    ordered = replace(
        computation,
        inputs=tuple(
            replace(o, shape=tuple(o.shape[d] for d in orders[o.name])) for o in computation.inputs
        ),
        outputs=tuple(
            replace(o, shape=tuple(o.shape[d] for d in orders[o.name])) for o in computation.outputs
        ),
        statements=changed_accesses(computation.statements, permuted_access),
    )
    return renamed_operands(ordered, names), orders[computation.output.name]


def _initial(parts: _Parts, bias_after: bool) -> bool:
    """Add the statement with which the sums begin; return True if there is one."""
    kind, builder = parts.kind, parts.builder
    graph, operator = builder.graph, builder.operator
    epilogue = kind.epilogue
    has_bias = epilogue is not None and epilogue.bias and not bias_after
    integers = is_integer(kind.computation.output.dtype)
    if any(kind.zero_points) or kind.padding:
        # Sums are linear in the first factor: zero points and padding add a constant to each.
        zeros = np.zeros(kind.computation.inputs[0].shape, kind.computation.inputs[0].dtype)
        start = kind.sums(zeros, graph.constants[operator.inputs[1]])
        if has_bias:
            place = 2 + kind.vectors.index(BIAS)
            bias = graph.constants[operator.inputs[place]].reshape(-1)
            start = (start + bias[channel_numbers(kind.computation)]).astype(start.dtype)
        moved = np.ascontiguousarray(start.transpose(parts.order))
        name = builder.constant("start", moved)
        names = {"S": parts.sums, "B": name}
        builder.add(f"S[{parts.index}] = B[{parts.index}]", parts.extents, names)
        return True
    # Sums of floats are rounded before the bias is added.
    if not has_bias or not integers:
        return False
    bias = parts.vector(BIAS)
    name = builder.constant("bias", np.ascontiguousarray(bias))
    names = {"S": parts.sums, "B": name}
    builder.add(f"S[{parts.index}] = B[{','.join(parts.channel)}]", parts.extents, names)
    return True


# -- requantization ---------------------------------------------------------------------------------


def _value(
    parts: _Parts,
    epilogue: Epilogue,
    names: dict[str, str],
    *,
    bias: bool,
    relu_first: bool = False,
) -> str:
    """Return the text of the sums after bias, scale, shift and ReLU."""
    text = f"S[{parts.index}]"
    names["S"] = parts.sums
    sums = parts.kind.computation.output.dtype
    if epilogue.bias and (bias or not is_integer(sums)):
        text = f"({text} + {parts.vector_text('bias', parts.vector(BIAS), names)})"
    if not epilogue.in_integers(sums):
        text = f"max({text}, 0)" if relu_first else text
        text = f"float32({text})" if is_integer(sums) else text
        if epilogue.scale:
            text = f"({text} * {parts.vector_text('scale', parts.vector(SCALE), names)})"
    if epilogue.shift:
        text = f"({text} >> {epilogue.shift})"
    return f"max({text}, 0)" if epilogue.relu else text


def _stored(parts: _Parts, epilogue: Epilogue, value: str) -> str:
    """Return the text of a value as the epilogue stores it."""
    dtype = epilogue.dtype
    if not is_integer(dtype) or epilogue.wraps:
        return value
    low, high = epilogue.range
    if epilogue.in_integers(parts.kind.computation.output.dtype):
        return f"{dtype}({bounded(value, low, high, dtype)})"
    if dtype not in ("int8", "uint8"):
        # The largest float32 below the type's limit.
        return f"{dtype}(min({value}, 2147483520.0))"
    if not epilogue.zero_point:
        return f"{dtype}({bounded(value, low, high, dtype)})"
    low, high = epilogue.stored_range
    text = bounded(f"int32({value})", low, high, "int32")
    return f"{dtype}({text} + {_integer(epilogue.zero_point)})"


def bounded(value: str, low: int, high: int, dtype: str) -> str:
    """Return the text of a value between bounds, without those of its type.

    Parameters
    ----------
    value : str
    low, high : int
    dtype : str
        Type to which the value is converted with saturation.
    """
    least, largest = dtype_info(dtype).integer_range
    text = value if low <= least else f"max({value}, {_integer(low)})"
    return text if high >= largest else f"min({text}, {_integer(high)})"


def _integer(value: int) -> str:
    return str(value) if value >= 0 else f"(0 - {-value})"


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
    parts = _with_sums(operator, graph, kind, bias_after=bias_after)
    names = {"Y": parts.output}
    text = _value(parts, epilogue, names, bias=bias_after, relu_first=relu_first)
    if relu_first:
        epilogue = replace(epilogue, relu=False, clip=(-128, epilogue.range[1]))
    if epilogue.residual is not None:
        text = _float_residual(parts, epilogue.residual, names, text)
    text = _stored(parts, epilogue, text)
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


def _float_residual(parts: _Parts, residual: Residual, names: dict[str, str], text: str) -> str:
    """Return the text of a value of floats with its residual."""
    names["R"] = _residual_tensor(parts)
    text = f"({text} + R[{parts.index}])"
    return f"max({text}, 0)" if residual.relu else text


def _residual_tensor(parts: _Parts) -> str:
    builder = parts.builder
    name = builder.operator.inputs[2 + len(parts.kind.vectors)]
    shape = tuple(parts.extents.values())
    return builder.tensor(name, dimension_order(builder.graph, name), shape)


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
    parts = _with_sums(operator, graph, kind)
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
        text = f"{bounded(f'int32({text})', low, high, 'int32')} + {_integer(epilogue.zero_point)}"
        text = f"{epilogue.dtype}({text})"
    else:
        text = f"{epilogue.dtype}({bounded(text, low, high, epilogue.dtype)})"
    parts.builder.add(f"Y[{parts.index}] = {text}", parts.extents, names)
    return parts.builder.form("integer multiplier and shift", "at most 1 quantum")


def fixed_multipliers(scales: Array) -> tuple[Array, int] | None:
    """Return integer multipliers with a common shift, as precise as 31 bits allow.

    >>> fixed_multipliers(np.array([0.5, 0.25]))
    (array([1073741824,  536870912]), 31)

    Parameters
    ----------
    scales : ndarray
        Positive scales.

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


# -- residuals of bytes -----------------------------------------------------------------------------


def _with_residual(
    operator: Operator, graph: Graph, kind: Product, epilogue: Epilogue, residual: Residual
) -> Iterator[OperatorForm | None]:
    yield _added_floats(operator, graph, kind, epilogue, residual)
    for addends in scaled_addends((residual.own_scale, residual.scale)):
        yield _added_integers(operator, graph, kind, epilogue, residual, addends)


@dataclass(frozen=True)
class ScaledAddends:
    """Arithmetic of a sum of scaled bytes in an accumulator.

    Each addend is multiplied by its factor and rounded to ``dtype``; the sum is multiplied by
    ``scale``. ``quanta`` bounds the distance from the rounded sum of the exact products.
    """

    label: str
    factors: tuple[float, ...]
    scale: float
    dtype: str
    quanta: int

    @property
    def deviation(self) -> str:
        return "at most 1 quantum" if self.quanta == 1 else f"at most {self.quanta} quanta"


_FLOAT_ERROR = 0.25
"""Bound of the roundings of float32 that :func:`scaled_addends` allows for."""


def scaled_addends(scales: Sequence[float]) -> Iterator[ScaledAddends]:
    """Yield ways to add bytes times scales by rounding each addend.

    An addend that is rounded to an integer and multiplied by c is off by ``c / 2`` at most, and by
    0 if its factor is 1, since bytes are integers. Where their sum d, with the roundings of
    float32, is below a whole number n, the rounded results differ by n at most: rounding is
    monotone and commutes with adding integers. If c is 1, the sum is an integer already, and
    ``d + 1/2 < n + 1`` suffices.

    Parameters
    ----------
    scales : sequence of float
        Factors of the operator.
    """
    # Each of the three roundings of a term is within 2^-24 of it; bytes are 128 at most.
    if 3 * 128 * sum(map(abs, scales)) * 2.0**-24 >= _FLOAT_ERROR or not any(scales):
        return
    terms = len(scales)
    for bits in (_ADDEND_BITS, 0):
        scale = 2.0**-bits
        factors = tuple(float(np.float32(s / scale)) for s in scales)
        distance = terms * scale / 2 + _FLOAT_ERROR
        quanta = math.floor(distance + 0.5) if bits == 0 else math.floor(distance) + 1
        label = f"added in an accumulator with {bits} bits of fraction"
        yield ScaledAddends(label, factors, scale, "int32", max(1, quanta))
    largest = float(np.float32(max(scales)))
    if min(scales) > 0:
        # No factor exceeds 1, so that no addend leaves eight bits.
        factors = tuple(min(1.0, float(np.float32(s / largest))) for s in scales)
        distance = sum(f < 1 for f in factors) * largest / 2 + _FLOAT_ERROR
        label = "added in an accumulator as bytes"
        yield ScaledAddends(label, factors, largest, "int8", math.floor(distance) + 1)


def _rounded_first(
    operator: Operator, graph: Graph, kind: Product, epilogue: Epilogue
) -> tuple[_Parts, str]:
    """Begin a form with the requantized result as a tensor of its own; return its name."""
    parts = _with_sums(operator, graph, kind)
    builder = parts.builder
    low, high = epilogue.stored_range
    # Without a zero point the result fits in its type; with one it needs 9 bits.
    dtype = epilogue.dtype if not epilogue.zero_point else "int16"
    result = builder.temporary("product", tuple(parts.extents.values()), dtype)
    names = {"Q": result}
    value = _value(parts, replace(epilogue, residual=None), names, bias=False)
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
    names = {"Q": product, "R": _residual_tensor(parts), "Y": parts.output}
    addend = f"R[{parts.index}]"
    if residual.zero_point:
        addend = f"({addend} - {_integer(residual.zero_point)})"
    own, other = (float(np.float32(s)) for s in (residual.own_scale, residual.scale))
    text = f"((Q[{parts.index}] * {number(own)}) + ({addend} * {number(other)}))"
    parts.builder.add(
        f"Y[{parts.index}] = {_residual_stored(epilogue, residual, text)}", parts.extents, names
    )
    return parts.builder.form("residual added in floats", "at most 1 quantum")


def _residual_stored(epilogue: Epilogue, residual: Residual, text: str) -> str:
    low, high = epilogue.residual_range
    if not residual.stored_zero_point:
        return f"{epilogue.dtype}({bounded(text, low, high, epilogue.dtype)})"
    text = bounded(f"int32({text})", low, high, "int32")
    return f"{epilogue.dtype}({text} + {_integer(residual.stored_zero_point)})"


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
    sources = (product, _residual_tensor(parts))
    text = add_scaled(parts.builder, parts.extents, sources, addends)
    parts.builder.add(
        f"Y[{parts.index}] = {_residual_stored(epilogue, residual, text)}",
        parts.extents,
        {"Y": parts.output, "T": f"{operator.output}.total"},
    )
    return parts.builder.form(f"residual {addends.label}", addends.deviation)


def add_scaled(
    builder: FormBuilder,
    extents: Mapping[str, int],
    sources: Sequence[str],
    addends: ScaledAddends,
) -> str:
    """Add the statements of a sum of scaled bytes; return the text of the sum of T.

    Parameters
    ----------
    builder : FormBuilder
    extents : mapping of str to int
        Axes of all tensors.
    sources : sequence of str
        Tensors that are added.
    addends : ScaledAddends
    """
    total = builder.temporary("total", tuple(extents.values()), "int32")
    index = ",".join(extents)
    for place, (source, factor) in enumerate(zip(sources, addends.factors, strict=True)):
        sign = "+=" if place else "="
        scaled = f"{addends.dtype}(X[{index}] * {number(factor)})"
        names = {"T": total, "X": source}
        builder.add(f"T[{index}] {sign} {scaled}", extents, names, accumulates=bool(place))
    return f"T[{index}]" if addends.scale == 1 else f"(T[{index}] * {number(addends.scale)})"


# -- chains -----------------------------------------------------------------------------------------


def _chained(operator: Operator, graph: Graph, kind: Product) -> OperatorForm | None:
    """Return the form of an epilogue with an expression of the result."""
    epilogue = kind.epilogue
    assert epilogue is not None and epilogue.chain is not None
    parts = _with_sums(operator, graph, kind)
    names: dict[str, str] = {"Y": parts.output}
    inputs = [_value(parts, epilogue, names, bias=False)]
    if epilogue.residual is not None:
        names["R"] = _residual_tensor(parts)
        inputs.append(f"float32(R[{parts.index}])")
    for name in epilogue.chain.names:
        inputs.append(parts.vector_text(name.removeprefix("@"), parts.vector(name), names))
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


def inexact_text(inexact: set[str] | frozenset[str]) -> str:
    """Return the deviation of an expression with operations that are rounded differently."""
    if not inexact:
        return ""
    return f"units in the last place of float32 in {', '.join(sorted(inexact))}"
