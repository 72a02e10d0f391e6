"""Between floats and integers of eight bits: ``x = (q - zero_point) * scale``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType, axis_of


def along(values: Sequence[float | int], axis: int, rank: int, dtype: str) -> Array:
    """One number, or one for each index of an axis, so that it broadcasts."""
    array = np.asarray(values, dtype)
    if array.size == 1:
        return array.reshape(())
    shape = [1] * rank
    shape[axis_of(axis, rank)] = array.size
    return array.reshape(shape)


@dataclass(frozen=True)
class Quantize(Kind):
    """``saturate(round(x / scale) + zero_point)``, rounded to the nearest even, a NaN as 0;
    ``scale`` and ``zero_point`` have one element, or one for each index of ``axis``."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    dtype: str
    axis: int = 0

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType(inputs[0].shape, self.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        scale = along(self.scale, self.axis, x.ndim, "float32")
        zero = along(self.zero_point, self.axis, x.ndim, "float64")
        limits = np.iinfo(self.dtype)
        with np.errstate(all="ignore"):
            rounded = np.rint(x.astype(np.float32) / scale).astype(np.float64) + zero
        return (np.clip(np.nan_to_num(rounded), limits.min, limits.max).astype(self.dtype),)


@dataclass(frozen=True)
class Dequantize(Kind):
    """``(q - zero_point) * scale`` in float32; parameters as of :class:`Quantize`."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = 0

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType(inputs[0].shape, "float32"),)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (q,) = inputs
        scale = along(self.scale, self.axis, q.ndim, "float32")
        zero = along(self.zero_point, self.axis, q.ndim, "int64")
        return ((q.astype(np.int64) - zero).astype(np.float32) * scale,)


@dataclass(frozen=True)
class DynamicQuantize(Kind):
    """ONNX's DynamicQuantizeLinear: float32 to uint8 by the range of the tensor itself, which is
    widened to hold 0; the outputs are the integers, the scale (float32) and the zero point. A NaN
    is passed over where the range is taken, and stored as 0."""

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
    """A function of an integer of eight bits, by its 256 values (``entries``, from the least input
    to the largest) of type ``dtype``."""

    entries: tuple[float | int, ...]
    dtype: str

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].dtype not in ("int8", "uint8"):
            raise WorkloadError(f"a table of a tensor of {inputs[0].dtype}: it takes eight bits")
        return (TensorType(inputs[0].shape, self.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (q,) = inputs
        place = q.astype(np.int64) - np.iinfo(q.dtype).min
        return (np.asarray(self.entries, self.dtype)[place],)
