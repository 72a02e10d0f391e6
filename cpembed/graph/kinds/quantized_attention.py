"""Attention of integers: two products and the softmax between them, rounded as the model says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType
from cpembed.graph.kinds.elementwise import Elementwise, Quantize
from cpembed.graph.kinds.product import Product
from cpembed.graph.kinds.reductions import Softmax
from cpembed.ir.dtypes import numpy_dtype


@dataclass(frozen=True)
class QuantizedAttention(Kind):
    """Operators of an attention on integers as one operator, each with its own definition.

    The inputs are query, key and value, then the further inputs of :attr:`scaling` (masks, sums
    that account for zero points), then those of :attr:`result`. Weights are integers, so that a
    last bit of an exponential may decide how one is rounded: kernels may differ from the definition
    by one step of a weight, and by one step of the result because of it. All else is exact.

    Attributes
    ----------
    scores : Product
        Product of query and key, perhaps with an epilogue that has a scale alone.
    scaling : Elementwise
        Scores of float32 from the product's result, its first input.
    weights : Quantize
        Integers of the softmax along the keys.
    values : Product
        Product of weights and value, which stores the result if it has an epilogue.
    weight_sums : Product, optional
        Product of the weights with ones, which accounts for a zero point of the values.
    result : Elementwise, optional
        Result from the sums, its first input, and those of :attr:`weight_sums`, its second one if
        there are any; None where the product has an epilogue.
    masks : int
        Number of further inputs of :attr:`scaling`.
    scales : tuple of two float
        Scale of each product's epilogue, the same for all channels.
    """

    scores: Product
    scaling: Elementwise
    weights: Quantize
    values: Product
    weight_sums: Product | None
    result: Elementwise | None
    masks: int
    scales: tuple[float, float] = (1.0, 1.0)

    @property
    def label(self) -> str:
        return "quantized attention"

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        *_, (_, kind, operands) = self.pieces(inputs)
        return kind.types(operands)

    def pieces(
        self, inputs: Sequence[TensorType]
    ) -> Iterator[tuple[str, Kind, tuple[TensorType, ...]]]:
        """Yield label, kind and types of inputs of each operator, in their order.

        Raises :class:`WorkloadError` if inputs do not fit.
        """
        further = inputs[3 : 3 + self.masks]
        first = (*inputs[:2], *map(TensorType.of_array, self.vectors(0)))
        (sums,) = self.scores.types(first)
        yield "products", self.scores, first
        (scores,) = self.scaling.types([sums, *further])
        if scores.shape != sums.shape:
            raise WorkloadError(f"masks of scores {list(sums.shape)} make {list(scores.shape)}")
        yield "scores", self.scaling, (sums, *further)
        softmax = Softmax(len(scores.shape) - 1)
        yield "softmax", softmax, (scores,)
        (weights,) = self.weights.types([scores])
        yield "weights", self.weights, (scores,)
        second = (weights, inputs[2], *map(TensorType.of_array, self.vectors(1)))
        operands = [*self.values.types(second)]
        yield "values", self.values, second
        if self.weight_sums is not None:
            ones = self.ones_type
            operands += self.weight_sums.types([weights, ones])
            yield "sums of weights", self.weight_sums, (weights, ones)
        if self.result is not None:
            yield "result", self.result, (*operands, *inputs[3 + self.masks :])

    def vectors(self, number: int) -> list[Array]:
        """Return the scales by channel of the epilogue of the first or the second product."""
        product = (self.scores, self.values)[number]
        count = len(product.vectors)
        return [np.full(product.channels, self.scales[number], np.float32)] * count

    @property
    def ones_type(self) -> TensorType:
        """Type of the ones by which weights are summed."""
        assert self.weight_sums is not None
        operand = self.weight_sums.computation.inputs[1]
        return TensorType(operand.shape, operand.dtype)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        further = inputs[3 : 3 + self.masks]
        (sums,) = self.scores.evaluate([*inputs[:2], *self.vectors(0)])
        (scores,) = self.scaling.evaluate([sums, *further])
        (shares,) = Softmax(scores.ndim - 1).evaluate([scores])
        (weights,) = self.weights.evaluate([shares])
        operands = [*self.values.evaluate([weights, inputs[2], *self.vectors(1)])]
        if self.weight_sums is not None:
            kind = self.ones_type
            ones = np.ones(kind.shape, numpy_dtype(kind.dtype))
            operands += self.weight_sums.evaluate([weights, ones])
        if self.result is None:
            return (operands[0],)
        return self.result.evaluate([*operands, *inputs[3 + self.masks :]])
