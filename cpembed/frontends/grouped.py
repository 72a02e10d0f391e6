"""Weight-only products and embeddings of both front ends, from codes, scales and zero points."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.composites import Composites
from cpembed.graph.kinds import GroupedFormat, GroupedGather, GroupedProduct, GroupQuantize
from cpembed.graph.kinds.base import Array


@dataclass(frozen=True)
class Weights:
    """Quantized matrix, row by row.

    Attributes
    ----------
    codes : ndarray of uint8, rows by columns
        Codes from 0 on.
    scales, zeros : ndarray, rows by groups
        Scales and zero points of the groups; zero points are numbers of codes.
    bits, block : int
        Bits of a code, and columns of a group.
    """

    codes: Array
    scales: Array
    zeros: Array
    bits: int
    block: int

    @property
    def form(self) -> GroupedFormat:
        rows, columns = self.codes.shape
        return GroupedFormat(rows, columns, self.bits, self.block)

    @property
    def zero(self) -> float | None:
        """The zero point of all groups; None if they differ."""
        first = self.zeros.flat[0]
        return float(first) if bool((self.zeros == first).all()) else None

    def arrays(self) -> list[Array]:
        """Return the packed words, the scales, and zero points that differ, as kernels read them.

        Raises :class:`WorkloadError` for parameters of another shape.
        """
        form = self.form
        for array in (self.scales, self.zeros):
            if array.shape != (form.rows, form.groups):
                raise WorkloadError(
                    f"scales or zero points {list(array.shape)} of {form.rows} rows in "
                    f"{form.groups} groups"
                )
        arrays = [form.packed(self.codes), form.tiled(self.scales)]
        return arrays if self.zero is not None else [*arrays, form.tiled(self.zeros)]


def grouped_product(
    call: Composites,
    a: str,
    weights: Weights,
    bias: str | None = None,
    *,
    rounds: bool = False,
) -> str:
    """Emit the product of rows of activations and the rows of packed weights.

    Parameters
    ----------
    call : Composites
    a : str
        Activations [..., columns] of any type of floats, which the result has too.
    weights : Weights
    bias : str, optional
        Addend of each row of the weights.
    rounds : bool
        Round the groups of each row of activations to int8.
    """
    form, shape, dtype = weights.form, call.shape(a), call.dtype(a)
    if not shape or shape[-1] != form.columns:
        raise WorkloadError(f"{call.type_of(a)} by weights of {form.columns} columns")
    result = (*shape[:-1], form.rows)
    if not math.prod(result):
        return call.tensor(np.zeros(result), dtype)
    words, *parameters = (call.tensor(array) for array in weights.arrays())
    factors: tuple[str, ...] = (call.cast(a, "float32"),)
    if rounds:
        quantize = GroupQuantize(form.columns, form.block, form.padded_block)
        factors = call.emit_all(quantize, *factors)
    kind = GroupedProduct(
        result,
        form,
        weights.zero or 0.0,
        has_zeros=weights.zero is None,
        has_bias=bias is not None,
        integers=rounds,
    )
    addend = () if bias is None else (call.cast(call.reshaped(bias, (form.rows,)), "float32"),)
    return call.cast(call.emit(kind, *factors, words, *parameters, *addend), dtype)


def grouped_gather(call: Composites, indices: str, weights: Weights, dtype: str) -> str:
    """Emit the rows of packed weights at some indices.

    Parameters
    ----------
    call : Composites
    indices : str
    weights : Weights
    dtype : str
        Element type of the result.
    """
    form = weights.form
    shape = (*call.shape(indices), form.columns)
    if not math.prod(shape):
        return call.tensor(np.zeros(shape), dtype)
    kind = GroupedGather(shape, form, weights.zero or 0.0, has_zeros=weights.zero is None)
    arrays = [call.tensor(array) for array in weights.arrays()]
    return call.cast(call.emit(kind, *arrays, indices), dtype)


def unpacked(packed: Array, bits: int, count: int) -> Array:
    """Return codes of bytes that hold several, the lowest bits first, along the last axis.

    Parameters
    ----------
    packed : ndarray of uint8
    bits : int
        Bits of a code.
    count : int
        Number of codes of a row.

    Examples
    --------
    >>> unpacked(np.array([[0x21, 0x43]], np.uint8), 4, 3)
    array([[1, 2, 3]], dtype=uint8)
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)[..., :count]
