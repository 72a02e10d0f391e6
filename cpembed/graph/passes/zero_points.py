"""Remove zero points from products, since kernels sum the integers as they are.

Since ``sum (A - a) (B - b) = sum A B - b sum A - a sum B + n a b``, constant sums become part of
the bias, and the others are computed as products with ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue, channel_axes, channel_numbers
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Elementwise, Input, Kind, Product, Reshape, Scalar
from cpembed.graph.passes.epilogue_matching import reduction_length
from cpembed.graph.passes.quantization import requantized
from cpembed.graph.passes.rewriting import Rewriting, broadcastable
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.scalars import apply

# float32 holds all integers up to this one.
_EXACT_FLOAT32 = 1 << 24


def remove_zero_points(graph: Graph) -> Graph:
    """Return a graph with equal results, bit for bit, whose products have no zero points.

    If the second operand is constant, the zero point of the first goes into the bias, and padding
    becomes that zero point (:attr:`Product.padding`). If the second one varies or has a zero point,
    the product stores its sums in 32 bits, products with ones sum each operand, and elementwise
    operators combine all sums and compute the epilogue.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        match operator.kind:
            case Product(zero_points=(a, b)) as product if a or b:
                if _is_correctable(graph, operator, product):
                    _remove(rewriting, operator, product)
            case _:
                pass
    return rewriting.graph()


def _is_correctable(graph: Graph, operator: Operator, product: Product) -> bool:
    """True if the sums are integers, stored as they are or scaled by constants."""
    epilogue = product.epilogue
    vectors = operator.inputs[2 : 2 + len(product.vectors)]
    plain = epilogue is None or not epilogue.is_integral
    sums = product.computation.output.dtype
    return plain and is_integer(sums) and all(name in graph.constants for name in vectors)


def _remove(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph = rewriting.source
    (a, b), count = product.zero_points, len(product.vectors)
    vectors = dict(zip(product.vectors, operator.inputs[2:], strict=False))
    weights = graph.constants.get(operator.inputs[1])
    bias = np.full(product.channels, a * b * reduction_length(product), np.int64)
    if weights is not None and a:
        bias -= a * weight_sums(product, weights)
    if BIAS in vectors:
        bias += graph.constants[vectors[BIAS]].reshape(-1)
    # The first zero point times constant sums of weights is a bias per channel.
    if b == 0 and weights is not None:
        epilogue = product.epilogue or Epilogue(product.dtype)
        epilogue = replace(epilogue, bias=True)
        vectors[BIAS] = rewriting.constant(f"{operator.name} bias", _wrapped(bias))
        kind = replace(product, zero_points=(0, 0), epilogue=epilogue, padding=product.padding + a)
        names = (vectors[name] for name in epilogue.vectors)
        inputs = (*operator.inputs[:2], *names, *operator.inputs[2 + count :])
        rewriting.replace(operator, replace(operator, kind=kind, inputs=inputs))
        return
    correction = _Correction(rewriting, operator, product)
    rewriting.replace(operator, *correction.corrected(bias, weights is None))


def weight_sums(product: Product, weights: Array) -> Array:
    """Return, per channel, the sum of the weights that the first operand is multiplied by.

    Weights that are multiplied by padding count as well.
    """
    # One point of the other result axes is enough, since weights do not vary along them.
    small = _at_one_point(product.computation, {*channel_axes(product.computation)})
    a, b = small.inputs
    ones = np.ones(a.shape, a.dtype)
    sums = Product(small, small.output.shape, padding=1).sums(ones, weights.reshape(b.shape))
    vector = np.zeros(product.channels, np.int64)
    vector[channel_numbers(small)] = sums
    return vector


def _at_one_point(workload: Computation, varying: set[str]) -> Computation:
    """Return the computation at one point of all result axes except the ``varying`` ones."""
    access = workload.access(workload.output.name)
    result_axes = {name for index in access.index for name in index.iterators}
    axes = tuple(
        replace(axis, extent=1) if axis.name in result_axes - varying else axis
        for axis in workload.axes
    )
    extents = {axis.name: axis.extent for axis in axes}
    shape = tuple(index.bounds(extents)[1] + 1 for index in access.index)
    return replace(workload, axes=axes, outputs=(replace(workload.output, shape=shape),))


def _wrapped(numbers: Array) -> Array:
    """Return integers modulo 2^32, as the sums hold them."""
    return numbers.astype(np.int64).astype(np.int32)


@dataclass
class _Correction:
    """Operators that replace a product with zero points.

    All tensors have the shape of the result, or of the computation if a part does not broadcast to
    the result.

    Attributes
    ----------
    operators : list of Operator
        Operators of the replacement so far.
    inputs : list of str
        Inputs of the elementwise operator that comes last.
    """

    rewriting: Rewriting
    operator: Operator
    product: Product
    operators: list[Operator] = field(default_factory=list[Operator])
    inputs: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        workload = self.product.computation
        parts = [self._axes_of(0), self._axes_of(1), {*channel_axes(workload)}]
        self.shape = self.product.shape
        if any(self._broadcast_shape(axes) is None for axes in parts):
            self.shape = workload.output.shape

    def corrected(self, bias: Array, weights_vary: bool) -> list[Operator]:
        """Return the operators that compute the product.

        ``bias`` is added to the sums of each channel. It accounts for the sums of the weights,
        unless ``weights_vary``: then these are computed in every call.
        """
        a, b = self.product.zero_points
        total = self._total(a if weights_vary else 0, b, bias)
        epilogue = self.product.epilogue
        if epilogue is None or (epilogue.dtype == "int32" and not epilogue.scale):
            return self._finished(total, "int32", None)
        # One elementwise operator in float32 does everything if float32 holds all sums exactly.
        if self._largest_sum(bias) >= _EXACT_FLOAT32:
            self.inputs = [self._stored(total, "int32", None)]
            total = Input(0)
        scale = residual = None
        vectors = dict(zip(self.product.vectors, self.operator.inputs[2:], strict=False))
        if SCALE in vectors:
            numbers = self.rewriting.source.constants[vectors[SCALE]].reshape(-1)
            scale = self._read(self._channel_constant("scale", numbers))
        if epilogue.residual is not None:
            name = self.operator.inputs[-1]
            if self.shape != self.product.shape:
                name = self._new("residual", Reshape(self.shape), [name])
            residual = self._read(name)
        value = requantized(epilogue, total, scale, residual)
        return self._finished(value, epilogue.dtype, "float32")

    def _largest_sum(self, bias: Array) -> int:
        """Return a bound on the magnitude of all terms and partial sums."""
        first, second = (
            max(map(abs, dtype_info(operand.dtype).integer_range))
            for operand in self.product.computation.inputs
        )
        a, b = map(abs, self.product.zero_points)
        term = first * second + b * first + a * second
        return reduction_length(self.product) * term + int(np.abs(bias).max(initial=0))

    def _total(self, a: int, b: int, bias: Array) -> Scalar:
        """Return the corrected sums as an expression."""
        outside = self.product.zero_points[0] + self.product.padding
        plain = replace(
            self.product, zero_points=(0, 0), epilogue=None, padding=outside, shape=self.shape
        )
        total: Scalar = self._read(self._new("sums", plain, self.operator.inputs[:2]))
        for position, zero_point in ((0, b), (1, a)):
            if zero_point:
                sums = self._read(self._operand_sums(position, outside))
                total = apply("sub", total, apply("mul", sums, zero_point))
        if bias.any():
            constant = self._channel_constant("bias", _wrapped(bias))
            total = apply("add", total, self._read(constant))
        return total

    def _read(self, name: str) -> Input:
        """Add a tensor to the inputs of the final operator."""
        self.inputs.append(name)
        return Input(len(self.inputs) - 1)

    def _stored(self, value: Scalar, dtype: str, computing: str | None) -> str:
        return self._new("stored", Elementwise(value, dtype, computing), self.inputs)

    def _finished(self, value: Scalar, dtype: str, computing: str | None) -> list[Operator]:
        """Return all operators, the last of which writes the result."""
        name = self._stored(value, dtype, computing)
        if self.shape != self.product.shape:
            self._new("reshaped", Reshape(self.product.shape), [name])
        *before, last = self.operators
        return [*before, replace(last, outputs=self.operator.outputs)]

    def _channel_constant(self, label: str, vector: Array) -> str:
        """Add a vector of the channels as a constant that broadcasts to the result."""
        array = vector[:1].reshape(())
        if np.any(vector != vector[0]):
            axes = {*channel_axes(self.product.computation)}
            small = _at_one_point(self.product.computation, axes)
            array = vector[channel_numbers(small)].reshape(self._broadcast_shape(axes) or ())
        return self.rewriting.constant(f"{self.operator.name} {label}", array)

    def _axes_of(self, position: int) -> set[str]:
        """Return the axes that index an operand."""
        workload = self.product.computation
        access = workload.access(workload.inputs[position].name)
        return {name for index in access.index for name in index.iterators}

    def _broadcast_shape(self, axes: set[str]) -> tuple[int, ...] | None:
        """Return the broadcastable shape of a tensor over some axes of the result."""
        workload = self.product.computation
        index = workload.access(workload.output.name).index
        present = [not axes.isdisjoint(i.iterators) for i in index]
        return broadcastable(workload.output.shape, present, self.shape)

    def _operand_sums(self, position: int, padding: int) -> str:
        """Sum one operand under each window, by a product with ones."""
        axes = self._axes_of(position)
        part = _at_one_point(self.product.computation, axes)
        ones = part.inputs[1 - position]
        if not ones.zero_outside:
            # Only as many ones as are read.
            bounds = [index.bounds(part.extents) for index in part.access(ones.name).index]
            ones = replace(ones, shape=tuple(high + 1 for _, high in bounds), varies=False)
            part = part.with_operands(lambda o: ones if o.name == ones.name else o)
        constant = self.rewriting.constant(
            f"{self.operator.name} ones", np.ones(ones.shape, ones.dtype)
        )
        shape = self._broadcast_shape(axes) or part.output.shape
        kind = Product(part, shape, padding=padding if position == 0 else 1)
        operand = self.operator.inputs[position]
        inputs = (operand, constant) if position == 0 else (constant, operand)
        return self._new(f"sums of operand {position + 1}", kind, inputs)

    def _new(self, label: str, kind: Kind, inputs: Sequence[str]) -> str:
        name = self.rewriting.fresh(f"{self.operator.output} {label}")
        self.operators.append(Operator(self.operator.name, kind, tuple(inputs), (name,)))
        return name
