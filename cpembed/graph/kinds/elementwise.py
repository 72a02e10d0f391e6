"""Operators that compute each element by itself: expressions, quantization, lookup tables.

Arithmetic is float32 unless every input is an integer or a Boolean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType, axis_of
from cpembed.ir.dtypes import is_integer
from cpembed.ir.scalars import Apply, Scalar, converted, evaluate_scalar


@dataclass(frozen=True)
class Elementwise(Kind):
    """Expression at every element of inputs that broadcast as in numpy.

    Attributes
    ----------
    expression : Scalar
        Function of the inputs' elements.
    dtype : str
        Element type of the result. Floats become integers by rounding to the nearest even and
        saturating.
    computing : str, optional
        Type of the arithmetic, to which inputs are converted; by default :func:`computing_dtype`.
        It is float32 for bytes that stand for floats.
    """

    expression: Scalar
    dtype: str
    computing: str | None = None

    def computes_in(self, dtypes: Sequence[str]) -> str:
        """Return the type of the arithmetic on inputs of some types."""
        return self.computing or computing_dtype(dtypes)

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        try:
            shape = np.broadcast_shapes(*(i.shape for i in inputs))
        except ValueError:
            shapes = " and ".join(str(list(i.shape)) for i in inputs)
            raise WorkloadError(f"shapes {shapes} do not broadcast") from None
        return (TensorType(tuple(shape), self.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (result,) = self.types([TensorType.of_array(i) for i in inputs])
        computing = self.computes_in([str(i.dtype) for i in inputs])
        # Booleans stay, for logical operations and as conditions.
        operands = [i if i.dtype == np.bool_ else i.astype(computing) for i in inputs]
        with np.errstate(all="ignore"):
            value = np.broadcast_to(
                evaluate_scalar(self.expression, operands, computing), result.shape
            )
            return (converted(value, self.dtype),)

    @property
    def label(self) -> str:
        names: list[str] = []

        def walk(node: Scalar) -> None:
            if isinstance(node, Apply):
                for argument in node.arguments:
                    walk(argument)
                names.append(node.operation)

        walk(self.expression)
        return "+".join(names[:3]) + ("…" if len(names) > 3 else "") or "copy"


def computing_dtype(dtypes: Sequence[str]) -> str:
    """Return the default type of arithmetic on inputs of some types."""
    if "float64" in dtypes:
        return "float64"
    if not all(map(is_integer, dtypes)):
        return "float32"
    return "int64" if {"int64", "uint64", "uint32"}.intersection(dtypes) else "int32"


def along(values: Sequence[float | int], axis: int, rank: int, dtype: str) -> Array:
    """Return one number, or one per index of an axis, shaped to broadcast over a tensor.

    Parameters
    ----------
    values : sequence of numbers
        One value, or one per index of ``axis``.
    axis, rank : int
        Axis of the values, and number of axes of the tensor.
    dtype : str
        Element type of the returned array.
    """
    array = np.asarray(values, dtype)
    if array.size == 1:
        return array.reshape(())
    shape = [1] * rank
    shape[axis_of(axis, rank)] = array.size
    return array.reshape(shape)


@dataclass(frozen=True)
class Quantize(Kind):
    """``saturate(round(x / scale) + zero_point)``: rounds to the nearest even, maps NaN to 0.

    ``scale`` and ``zero_point`` have one element, or one per index of ``axis``.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    dtype: str
    axis: int = 0

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType(inputs[0].shape, self.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        scale = along(self.scale, self.axis, x.ndim, "float32")
        # In float64, which adds and clips 32-bit integers exactly.
        zero = along(self.zero_point, self.axis, x.ndim, "float64")
        limits = np.iinfo(self.dtype)
        with np.errstate(all="ignore"):
            rounded = np.rint(x.astype(np.float32) / scale).astype(np.float64) + zero
        return (np.clip(np.nan_to_num(rounded), limits.min, limits.max).astype(self.dtype),)


@dataclass(frozen=True)
class Dequantize(Kind):
    """``(q - zero_point) * scale`` in float32; parameters as in :class:`Quantize`."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = 0

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType(inputs[0].shape, "float32"),)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (q,) = inputs
        scale = along(self.scale, self.axis, q.ndim, "float32")
        # The difference of 32-bit integers needs 33 bits.
        zero = along(self.zero_point, self.axis, q.ndim, "int64")
        return ((q.astype(np.int64) - zero).astype(np.float32) * scale,)


@dataclass(frozen=True)
class DynamicQuantize(Kind):
    """ONNX's DynamicQuantizeLinear: float32 to uint8 by the range of the tensor and 0.

    Outputs are the integers, the scale (float32) and the zero point (uint8). NaNs are ignored in
    the range and stored as 0.
    """

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        scale, zero = TensorType((), "float32"), TensorType((), "uint8")
        return TensorType(inputs[0].shape, "uint8"), scale, zero

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        low, high = (np.float32(f.reduce(x, None, initial=0)) for f in (np.fmin, np.fmax))
        scale = np.float32((high - low) / np.float32(255))
        scale = scale if scale else np.float32(1)
        zero = np.clip(np.nan_to_num(np.rint(-low / scale)), 0, 255)
        q = np.clip(np.nan_to_num(np.rint(x / scale) + zero), 0, 255).astype(np.uint8)
        return q, np.asarray(scale), np.asarray(zero, np.uint8)


@dataclass(frozen=True)
class Table(Kind):
    """Function of an integer of eight bits as a lookup table.

    Attributes
    ----------
    entries : tuple of float or int
        256 values of type ``dtype``, from the least input to the largest.
    dtype : str
    expression : Scalar, optional
        Expression in float32 from which integer entries were rounded and saturated, for machines
        that compute it; the entries are what counts.
    """

    entries: tuple[float | int, ...]
    dtype: str
    expression: Scalar | None = field(default=None, compare=False, repr=False)

    @property
    def is_shift(self) -> bool:
        """True if each entry is the one before and 1: bytes of the other sign."""
        first = self.entries[0]
        return self.dtype in ("int8", "uint8") and all(
            entry == first + number for number, entry in enumerate(self.entries)
        )

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].dtype not in ("int8", "uint8"):
            raise WorkloadError(f"a table of a tensor of {inputs[0].dtype}: it takes eight bits")
        return (TensorType(inputs[0].shape, self.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (q,) = inputs
        place = q.astype(np.int64) - np.iinfo(q.dtype).min
        return (np.asarray(self.entries, self.dtype)[place],)
