"""Sums of a product, and the texts of an epilogue's steps, from which its forms are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.accelerator.operators.forms import FormBuilder, integer_text, number
from cpembed.accelerator.operators.logical import dimension_order, split_order
from cpembed.accelerator.specification import Array, Statement
from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue, channel_axes, channel_numbers
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product
from cpembed.ir.computation import Computation, Operand, changed_accesses
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import Access


@dataclass
class ProductParts:
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


# -- sums ------------------------------------------------------------------------------------------


def with_sums(
    operator: Operator, graph: Graph, kind: Product, *, bias_after: bool = False
) -> ProductParts:
    """Begin a form with the statements of the sums.

    Parameters
    ----------
    operator : Operator
    graph : Graph
    kind : Product
        Kind of the operator.
    bias_after : bool, default False
        True to leave the bias to the epilogue.
    """
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
    parts = ProductParts(builder, kind, output, sums, names, channel, order)
    begins = _initial(parts, bias_after)
    renamed = computation.with_names({computation.output.name: sums})
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
        inputs=tuple(_permuted(o, orders[o.name]) for o in computation.inputs),
        outputs=tuple(_permuted(o, orders[o.name]) for o in computation.outputs),
        statements=changed_accesses(computation.statements, permuted_access),
    )
    return ordered.with_names(names), orders[computation.output.name]


def _permuted(operand: Operand, order: Sequence[int]) -> Operand:
    shape = tuple(operand.shape[d] for d in order)
    spread = tuple(operand.spread[d] for d in order) if operand.spread else ()
    return replace(operand, shape=shape, spread=spread)


def _initial(parts: ProductParts, bias_after: bool) -> bool:
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


# -- requantization --------------------------------------------------------------------------------


def value_text(
    parts: ProductParts,
    epilogue: Epilogue,
    names: dict[str, str],
    *,
    bias: bool,
    relu_first: bool = False,
) -> str:
    """Return the text of the sums after bias, scale, shift and ReLU.

    Parameters
    ----------
    parts : ProductParts
    epilogue : Epilogue
    names : dict of str to str
        Tensor of each placeholder, to which those of the text are added.
    bias : bool
        True to add the bias here.
    relu_first : bool, default False
        True to replace negative sums by 0 before they are scaled.
    """
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
    return f"max({text}, 0)" if epilogue.relu and not relu_first else text


def stored_text(parts: ProductParts, epilogue: Epilogue, value: str) -> str:
    """Return the text of a value as the epilogue stores it.

    Parameters
    ----------
    parts : ProductParts
    epilogue : Epilogue
    value : str
    """
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
    return f"{dtype}({text} + {integer_text(epilogue.zero_point)})"


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
    text = value if low <= least else f"max({value}, {integer_text(low)})"
    return text if high >= largest else f"min({text}, {integer_text(high)})"


def residual_tensor(parts: ProductParts) -> str:
    """Add the residual to a form; return its name."""
    builder = parts.builder
    name = builder.operator.inputs[2 + len(parts.kind.vectors)]
    shape = tuple(parts.extents.values())
    return builder.tensor(name, dimension_order(builder.graph, name), shape)
