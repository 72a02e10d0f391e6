"""Weight-only products: weights of few bits with scales of groups, packed as kernels stream them.

A row of weights is cut into groups of ``block`` columns, each with a scale and a zero point. The
product is the sum over the groups of ``scale_g * (sum over k of a_k * (w_k - zero_g))``.

Codes stay packed: ``32 / bits`` of them in a word of 32 bits. A tile holds the words of ``TILE``
rows side by side, so that a vector register has one word of each of several rows, and the words of
a tile follow each other in memory in the order in which a product reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType, axis_of

TILE = 32
"""Number of rows of weights whose words lie side by side: two cache lines, and two or four vector
registers of accumulators."""
BITS = (2, 4, 8)
"""Numbers of bits of a code."""
LARGEST_LEVEL = 127
"""Maximum magnitude of an activation that is rounded to int8."""

_BYTES = 4
# Maximum number of weights in float64 that the definition has in memory at a time.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class GroupedFormat:
    """Format of a matrix of packed weights, which is multiplied by its rows.

    Word ``i`` of a group holds its columns from ``i * codes_per_word`` on. Byte ``j`` of the word,
    shifted right by ``bits * p``, has in its lowest bits the code of column ``4 * p + j`` of the
    word. A group ends with a complete word; codes behind its last column are 0 and unused.

    Attributes
    ----------
    rows, columns : int
        Size of the matrix.
    bits : int
        Bits of a code: 2, 4 or 8.
    block : int
        Number of columns of a group; the last group may have fewer.
    """

    rows: int
    columns: int
    bits: int
    block: int

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise WorkloadError(f"weights of {self.bits} bits: use 2, 4 or 8")
        if min(self.rows, self.columns, self.block) < 1:
            raise WorkloadError(f"{self.rows} by {self.columns} weights in groups of {self.block}")

    @property
    def codes_per_word(self) -> int:
        return 32 // self.bits

    @property
    def groups(self) -> int:
        """Number of groups of a row."""
        return -(-self.columns // self.block)

    @property
    def words(self) -> int:
        """Number of words of a group in a row."""
        return -(-self.block // self.codes_per_word)

    @property
    def padded_block(self) -> int:
        """Number of columns of a group, rounded up to complete words."""
        return self.words * self.codes_per_word

    @property
    def tiles(self) -> int:
        return -(-self.rows // TILE)

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the words."""
        return (self.tiles, self.groups, self.words, TILE)

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """Shape of the scales, and of the zero points."""
        return (self.tiles, self.groups, TILE)

    def place(self, column: int) -> tuple[int, int]:
        """Return the word of a column inside its group, and the lowest bit of its code there.

        >>> [GroupedFormat(1, 64, 4, 32).place(k) for k in (0, 1, 4, 8, 31)]
        [(0, 0), (0, 8), (0, 4), (1, 0), (3, 28)]
        """
        word, inside = divmod(column, self.codes_per_word)
        phase, byte = divmod(inside, _BYTES)
        return word, 8 * byte + self.bits * phase

    def columns_of(self, group: int) -> int:
        """Return the number of columns of a group."""
        return min(self.block, self.columns - group * self.block)

    def packed(self, codes: Array) -> Array:
        """Return the words (int32) of codes (uint8, ``rows`` by ``columns``)."""
        padded = np.zeros((self.tiles * TILE, self.groups * self.block), np.uint32)
        padded[: self.rows, : self.columns] = codes
        padded = padded.reshape(self.tiles, TILE, self.groups, self.block)
        words = np.zeros(self.packed_shape, np.uint32)
        for column in range(self.block):
            word, bit = self.place(column)
            shifted = padded[..., column] << np.uint32(bit)
            words[:, :, word] |= shifted.transpose(0, 2, 1)
        return words.view(np.int32)

    def codes(self, words: Array) -> Array:
        """Return the codes of packed words."""
        codes = np.empty((self.tiles, TILE, self.groups, self.block), np.uint8)
        words = words.view(np.uint32)
        mask = np.uint32(2**self.bits - 1)
        for column in range(self.block):
            word, bit = self.place(column)
            code = (words[:, :, word] >> np.uint32(bit)) & mask
            codes[..., column] = code.transpose(0, 2, 1)
        return codes.reshape(self.tiles * TILE, -1)[: self.rows, : self.columns]

    def tiled(self, parameters: Array) -> Array:
        """Return scales or zero points (``rows`` by ``groups``) as kernels read them."""
        padded = np.zeros((self.tiles * TILE, self.groups), parameters.dtype)
        padded[: self.rows] = parameters
        return np.ascontiguousarray(padded.reshape(self.tiles, TILE, -1).transpose(0, 2, 1))

    def by_row(self, tiled: Array) -> Array:
        """Return tiled scales or zero points, ``rows`` by ``groups``."""
        return tiled.transpose(0, 2, 1).reshape(self.tiles * TILE, -1)[: self.rows]


@dataclass(frozen=True)
class GroupedProduct(Kind):
    """Product of rows of activations and packed weights of groups, plus a bias.

    Inputs are the activations, words, scales, zero points if ``has_zeros``, and a bias if
    ``has_bias``. Activations are floats [..., columns], or integers of :class:`GroupQuantize`
    followed by their scales and sums. Sums of integers are exact within a group.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result, whose last axis has the rows of the weights.
    weights : GroupedFormat
    zero : float
        Zero point of all groups without ``has_zeros``.
    integers : bool
        True if activations are integers.
    """

    shape: tuple[int, ...]
    weights: GroupedFormat
    zero: float = 0.0
    has_zeros: bool = False
    has_bias: bool = False
    integers: bool = False

    @property
    def leading(self) -> int:
        """Number of inputs before the words."""
        return 3 if self.integers else 1

    @property
    def rows(self) -> int:
        """Number of rows of activations."""
        return int(np.prod(self.shape[:-1], dtype=np.int64))

    @property
    def macs(self) -> int:
        return self.rows * self.weights.rows * self.weights.columns

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        form, rows = self.weights, self.rows
        if self.integers:
            expected = [
                TensorType((rows, form.groups, form.padded_block), "int8"),
                TensorType((rows, form.groups), "float32"),
                TensorType((rows, form.groups), "int32"),
            ]
        else:
            expected = [TensorType((rows, form.columns), "float32")]
        expected.append(TensorType(form.packed_shape, "int32"))
        actual = list(inputs)
        for wanted_type, tensor in zip(expected, actual, strict=False):
            if tensor.elements != wanted_type.elements or tensor.dtype != wanted_type.dtype:
                raise WorkloadError(f"a grouped product takes {wanted_type}, not {tensor}")
        rest = actual[len(expected) :]
        if len(rest) != 1 + self.has_zeros + self.has_bias:
            raise WorkloadError(f"a grouped product of {len(actual)} tensors")
        for tensor in rest[: 1 + self.has_zeros]:
            if tensor.shape != form.parameter_shape:
                raise WorkloadError(f"scales or zero points {tensor} of {form}")
        if self.has_bias and rest[-1] != TensorType((form.rows,), "float32"):
            raise WorkloadError(f"a bias {rest[-1]} of {form.rows} rows")
        return (TensorType(self.shape, "float32"),)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        form, rest = self.weights, list(inputs[self.leading :])
        words, scales = rest[0], form.by_row(rest[1]).astype(np.float64)
        zeros = np.full(scales.shape, self.zero)
        if self.has_zeros:
            zeros = form.by_row(rest[2]).astype(np.float64)
        bias = rest[-1] if self.has_bias else None
        result = np.empty((self.rows, form.rows), np.float64)
        activations = self._activations(inputs)
        # Row by row of the weights' tiles, so that the floats of few weights exist at a time.
        step = max(1, _AT_ONCE // (TILE * form.columns))
        for first in range(0, form.tiles, step):
            last = min(form.tiles, first + step)
            part = GroupedFormat(TILE * (last - first), form.columns, form.bits, form.block)
            rows = slice(TILE * first, min(form.rows, TILE * last))
            count = rows.stop - rows.start
            codes = part.codes(words[first:last])[:count].astype(np.float64)
            centred = codes - _per_column(zeros[rows], form)
            result[:, rows] = activations @ (centred * _per_column(scales[rows], form)).T
        if bias is not None:
            result += bias
        return (result.astype(np.float32).reshape(self.shape),)

    def _activations(self, inputs: Sequence[Array]) -> Array:
        form = self.weights
        if not self.integers:
            return inputs[0].reshape(self.rows, form.columns).astype(np.float64)
        levels = inputs[0].reshape(self.rows, form.groups, -1)[..., : form.block]
        scale = inputs[1].reshape(self.rows, form.groups, 1).astype(np.float64)
        floats = levels.astype(np.float64) * scale
        return floats.reshape(self.rows, -1)[:, : form.columns]


def _per_column(parameters: Array, form: GroupedFormat) -> Array:
    return np.repeat(parameters, form.block, axis=1)[:, : form.columns]


@dataclass(frozen=True)
class GroupQuantize(Kind):
    """Rounding of the groups of each row to int8, in a scale of their own.

    Results are the integers ``[rows, groups, padded]``, 0 behind the last column of a group, with
    the scales ``[rows, groups]``, the largest magnitude of a group divided by 127, and the sums of
    the integers ``[rows, groups]``. A group with an infinity or a NaN has integers of 0 and that
    scale, so that its products are NaN.

    Attributes
    ----------
    columns, block : int
        Number of columns of a row and of a group.
    padded : int
        Number of integers of a group.
    """

    columns: int
    block: int
    padded: int

    @property
    def groups(self) -> int:
        return -(-self.columns // self.block)

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (tensor,) = inputs
        if tensor.dtype != "float32" or tensor.elements % self.columns:
            raise WorkloadError(f"{tensor} has no rows of {self.columns} floats")
        rows = tensor.elements // self.columns
        return (
            TensorType((rows, self.groups, self.padded), "int8"),
            TensorType((rows, self.groups), "float32"),
            TensorType((rows, self.groups), "int32"),
        )

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        rows = inputs[0].reshape(-1, self.columns)
        padded = np.zeros((len(rows), self.groups * self.block), np.float32)
        padded[:, : self.columns] = rows
        padded = padded.reshape(len(rows), self.groups, self.block)
        largest = np.abs(padded).max(axis=2)
        factor = np.float32(LARGEST_LEVEL) / largest
        rounded = np.rint(np.nan_to_num(padded * factor[..., None], nan=0.0))
        # The quotient of a subnormal number overflows.
        rounded = np.clip(rounded, -LARGEST_LEVEL, LARGEST_LEVEL)
        rounded[~np.isfinite(largest)] = 0
        levels = np.zeros((len(rows), self.groups, self.padded), np.int8)
        levels[..., : self.block] = rounded.astype(np.int8)
        scale = largest / np.float32(LARGEST_LEVEL)
        return levels, scale, levels.sum(axis=2, dtype=np.int32)


@dataclass(frozen=True)
class BlockDequantize(Kind):
    """Dequantization with a scale, and maybe a zero point, for each block along an axis.

    Inputs are integers of one byte, scales, and zero points of the integers' type or floats. The
    shapes of the last two are that of the integers, with the number of blocks on the axis.
    """

    axis: int
    block: int

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        integers, *parameters = inputs
        axis = axis_of(self.axis, len(integers.shape))
        blocks = list(integers.shape)
        blocks[axis] = -(-blocks[axis] // self.block)
        for parameter in parameters:
            if list(parameter.shape) != blocks:
                raise WorkloadError(
                    f"scales or zero points {list(parameter.shape)} of blocks of {self.block} on "
                    f"axis {axis} of {list(integers.shape)}: give {blocks}"
                )
        return (TensorType(integers.shape, "float32"),)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        integers, *parameters = inputs
        axis = axis_of(self.axis, integers.ndim)
        size = integers.shape[axis]
        scale, *zero = (
            np.repeat(p.astype(np.float32), self.block, axis).take(range(size), axis)
            for p in parameters
        )
        centred = integers.astype(np.float32)
        if zero:
            centred = centred - zero[0]
        return (centred * scale,)


@dataclass(frozen=True)
class GroupedGather(Kind):
    """Rows of packed weights, dequantized: an embedding whose table has few bits.

    Inputs are the words, the scales, zero points if ``has_zeros``, and the indices of the rows.
    Negative indices count from the end. The shape of the result is ``shape``: that of the indices,
    then the columns.
    """

    shape: tuple[int, ...]
    weights: GroupedFormat
    zero: float = 0.0
    has_zeros: bool = False

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        words, *parameters, indices = inputs
        form = self.weights
        if words != TensorType(form.packed_shape, "int32") or any(
            p.shape != form.parameter_shape for p in parameters
        ):
            raise WorkloadError(f"{words} and its parameters are no weights of {form}")
        if indices.elements * form.columns != int(np.prod(self.shape, dtype=np.int64)):
            raise WorkloadError(f"rows at {indices} as {list(self.shape)}")
        return (TensorType(self.shape, "float32"),)

    @np.errstate(all="ignore")
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        words, scales, *zeros, indices = inputs
        form, flat = self.weights, indices.reshape(-1)
        if flat.size and not (-form.rows <= flat.min() and flat.max() < form.rows):
            raise WorkloadError(f"an index beyond the {form.rows} rows of the weights")
        flat = np.where(flat < 0, flat + form.rows, flat).astype(np.int64)
        codes = form.codes(words)[flat].astype(np.float32)
        zero = np.float32(self.zero)
        if self.has_zeros:
            zero = _per_column(form.by_row(zeros[0])[flat].astype(np.float32), form)
        scale = _per_column(form.by_row(scales)[flat].astype(np.float32), form)
        return (((codes - zero) * scale).reshape(self.shape),)
