"""Attention over heads as one operator: of floats, and of integers rounded as the model says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType
from cpembed.graph.kinds.elementwise import Elementwise, Quantize
from cpembed.graph.kinds.product import Product
from cpembed.graph.kinds.reductions import Softmax
from cpembed.ir.dtypes import numpy_dtype

AXES = "bhsd"
"""Letters of the axes: batch, heads, sequence (rows, or keys), depth of a head."""

HEADS_FIRST = (AXES,) * 4
"""Order of the axes of query, key, value and result where none is transposed."""


@dataclass(frozen=True)
class Attention(Kind):
    """Attention ``softmax(scale Q K^T + mask) V`` of each row of each head.

    The inputs are the query, the key, the value and, if ``masked``, the mask. Several heads of the
    query may share one of key and value: their number is a multiple.

    Attributes
    ----------
    scale : float
        Factor of the products of query and key.
    axes : tuple of four str
        Order of the axes of query, key, value and result, in the letters of :data:`AXES`. A batch
        or an axis of heads that is missing has one element.
    masked : bool
        True if there is a mask, which broadcasts to ``[b, h, rows, keys]``. A Boolean one selects
        the keys of each row, one of floats is added to the scores. Keys whose score becomes -inf by
        it do not count, even if their values are NaN: kernels may not read them.
    causal : int, optional
        Row i has the keys 0 to ``i + causal`` alone: the number of keys before the first row's own.
        None for no such limit. Keys beyond it are not read: their values do not count, even NaN.
    excluded : float
        Score of keys that a Boolean mask excludes.
    softcap : float
        Limit c of the scores before the mask, ``c tanh(score / c)``; 0 for none.
    zero_rows : bool
        True if a row is zeros where all its scores are -inf; otherwise it is NaN, as softmax is.
    factors : str
        Type of query, key and value, float32 or bfloat16. Products and softmax are of float32. Of
        bfloat16, kernels may round the powers that they multiply by the values to it too, which
        this definition does not: results differ by 2^-8 of the largest value at most.
    dtype : str
        Type of the result, to which it is rounded once: float32 or bfloat16.
    """

    scale: float
    axes: tuple[str, ...] = HEADS_FIRST
    masked: bool = False
    causal: int | None = None
    excluded: float = -math.inf
    softcap: float = 0.0
    zero_rows: bool = False
    factors: str = "float32"
    dtype: str = "float32"

    def sizes(self, inputs: Sequence[TensorType]) -> tuple[dict[str, int], ...]:
        """Return the extents of the axes of query, key and value, by letter.

        Raises :class:`WorkloadError` if they do not fit each other.
        """
        extents: list[dict[str, int]] = []
        for name, axes, kind in zip(("query", "key", "value"), self.axes, inputs, strict=False):
            if len(axes) != len(kind.shape) or len({*axes} & {*AXES}) != len(axes):
                raise WorkloadError(f"the {name} of attention is {kind}, its axes are {axes}")
            extents.append(dict.fromkeys(AXES, 1) | dict(zip(axes, kind.shape, strict=True)))
        query, key, value = extents
        if (
            query["b"] != key["b"]
            or query["d"] != key["d"]
            or any(key[axis] != value[axis] for axis in "bhs")
            or not key["h"]
            or query["h"] % key["h"]
        ):
            shapes = ", ".join(str(list(kind.shape)) for kind in inputs[:3])
            raise WorkloadError(f"attention of query, key and value of {shapes}")
        return query, key, value

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        query, key, value = self.sizes(inputs)
        dtypes = {kind.dtype for kind in inputs[:3]}
        if dtypes != {self.factors}:
            raise WorkloadError(
                f"attention of {', '.join(sorted(dtypes))}: it is of {self.factors}"
            )
        if self.masked:
            mask, scores = inputs[3], (query["b"], query["h"], query["s"], key["s"])
            if not _broadcasts(mask.shape, scores) or mask.dtype not in ("bool", "float32"):
                raise WorkloadError(f"a mask of {mask} for scores of {list(scores)}")
        extents = {**query, "d": value["d"]}
        absent = [axis for axis in AXES if axis not in self.axes[3] and extents[axis] != 1]
        if absent:
            raise WorkloadError(f"attention stores {self.axes[3]}, without its {absent[0]}")
        return (TensorType(tuple(extents[axis] for axis in self.axes[3]), self.dtype),)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (result,) = self.types([TensorType.of_array(array) for array in inputs])
        if not result.elements:
            return (np.zeros(result.shape, numpy_dtype(self.dtype)),)
        query, key, value = (
            _in_order(array, axes) for array, axes in zip(inputs[:3], self.axes[:3], strict=True)
        )
        group = query.shape[1] // key.shape[1]
        key, value = np.repeat(key, group, 1), np.repeat(value, group, 1)
        mask = inputs[3] if self.masked else None
        hidden = self._hidden(mask, query.shape[2], key.shape[2])
        scores = np.where(hidden, -np.inf, self._scores(query, key, mask))
        total = self._total(self._weights(scores), value, hidden)
        total = total.astype(np.float32).astype(numpy_dtype(self.dtype))
        # Axes that the result does not have are of one element.
        present = [AXES.index(axis) for axis in self.axes[3]]
        absent = tuple(k for k in range(4) if k not in present)
        dense = total.squeeze(absent)
        order = [sorted(present).index(k) for k in present]
        return (np.ascontiguousarray(dense.transpose(order)),)

    def _scores(self, query: Array, key: Array, mask: Array | None) -> Array:
        """Return the scores with the mask, in float64."""
        # Products beyond float32 are infinite, as those of kernels are.
        products = (query.astype(np.float64) @ key.astype(np.float64).swapaxes(2, 3)).astype(
            np.float32
        )
        scores: Array = products.astype(np.float64) * self.scale
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        if mask is not None and mask.dtype == np.bool_:
            scores = np.where(mask, scores, self.excluded)
        elif mask is not None:
            scores = scores + mask.astype(np.float64)
        return scores

    def _hidden(self, mask: Array | None, rows: int, keys: int) -> Array:
        """Return which keys of each row do not count, in a shape that broadcasts to the scores."""
        hidden: Array = np.arange(keys) >= self._limits(rows, keys)[:, None]
        if mask is None:
            return hidden[None, None]
        if mask.dtype != np.bool_:
            hidden = hidden | (mask == -np.inf)
        elif self.excluded == -math.inf:
            hidden = hidden | ~mask
        return hidden.reshape((1,) * (4 - hidden.ndim) + hidden.shape)

    def _limits(self, rows: int, keys: int) -> Array:
        """Return the number of keys that each row has."""
        if self.causal is None:
            return np.full(rows, keys)
        return np.clip(np.arange(rows) + self.causal + 1, 0, keys)

    def _weights(self, scores: Array) -> Array:
        top = scores.max(axis=3, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - top)
        weights = powers / powers.sum(axis=3, keepdims=True)
        return np.where(top == -np.inf, 0.0, weights) if self.zero_rows else weights

    def _total(self, weights: Array, value: Array, hidden: Array) -> Array:
        wide = value.astype(np.float64)
        if np.isfinite(wide).all():
            return weights @ wide
        # Zero times infinity is NaN, so that keys that do not count are left out.
        hidden = np.broadcast_to(hidden, weights.shape)
        total = np.zeros((*weights.shape[:3], wide.shape[3]))
        for row in range(weights.shape[2]):
            products = weights[:, :, row, :, None] * wide
            total[:, :, row] = np.where(hidden[:, :, row, :, None], 0.0, products).sum(axis=2)
        if not self.zero_rows:
            total[hidden.all(axis=3)] = np.nan
        return total


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    if len(shape) > len(target):
        return False
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return all(size in (1, extent) for size, extent in pairs)


def _in_order(array: Array, axes: str) -> Array:
    """Return a tensor with all axes in the order of :data:`AXES`."""
    present = [axes.index(axis) for axis in AXES if axis in axes]
    extents = dict(zip(axes, array.shape, strict=True))
    return array.transpose(present).reshape([extents.get(axis, 1) for axis in AXES])


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
