"""Chains of two products: attention, pairs of layers, a convolution before a pointwise one.

The second product's first factor is a function of the first product's result, element by element
or row by row, so that a kernel can compute both without storing what is between them.

>>> from cpembed.workloads.chain_families import attention
>>> heads = attention(b=1, h=8, kv=2, q=128, k=128, d=64, causal=True)
>>> print(heads.first, heads.second, sep="\\n")
S[b, g, r, q, k] += (Q[b, g, r, q, d] * K[b, g, k, d])
O[b, g, r, q, e] += (P[b, g, r, q, k] * V[b, g, k, e])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info, is_integer, numpy_dtype
from cpembed.ir.index import IndexExpr
from cpembed.ir.scalars import Apply, Input, Number, Scalar, evaluate_scalar

Array = NDArray[Any]
Inputs = Mapping[str, Array]

LENGTHS, MASK, SINKS = "Lengths", "Mask", "Sinks"
"""Names of further inputs: keys of each batch, mask of the scores, scores of no key."""

MIDDLE = "Middle"
"""First part of the names of inputs that the function of the first product reads."""
END = "End"
"""First part of the names of inputs that the function of the second product reads."""

BIAS, SCALE, RESIDUAL, VECTOR = "Bias", "Scale", "Residual", "Vector"
"""Last parts of these names; vectors are numbered."""

MASK_DTYPES = ("float32", "float16", "bfloat16", "uint8")
"""Element types of masks."""

SUM = Input(0)
"""Sum of a product in the expression of its function."""

ACTIVATIONS: dict[str, Scalar] = {
    "none": SUM,
    "relu": Apply("max", (SUM, Number(0.0))),
    "gelu": Apply(
        "mul",
        (
            Apply("mul", (SUM, Number(0.5))),
            Apply("add", (Number(1.0), Apply("erf", (Apply("mul", (SUM, Number(0.5**0.5))),)))),
        ),
    ),
    "silu": Apply("mul", (SUM, Apply("sigmoid", (SUM,)))),
    "tanh": Apply("tanh", (SUM,)),
}
"""Functions of sums by name."""

FACTORS = ("float16", "bfloat16", "int8")
"""Element types of the factors."""

TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2}
"""Maximum error of a kernel's result by the factors' type, relative to :attr:`Definition.largest`:
the operand between the products, and the result, are rounded to that type."""


@dataclass(frozen=True)
class RowSoftmax:
    """Softmax of the rows of the scores, of which masks exclude keys.

    A row all of whose keys are excluded has the weights 0, so that its result is 0.

    Attributes
    ----------
    scale : float
        Factor of the scores.
    causal : int, optional
        Row i has the keys 0 to ``i + causal`` alone; None for all keys.
    window : int, optional
        Of the keys that :attr:`causal` leaves, row i has the last ones: ``i + causal - window + 1``
        and later. None for all.
    lengths : bool
        True if an input has the number of keys of each batch. Numbers below 0 count as 0, those
        beyond the last key as all keys.
    mask : str
        Dimensions of an input that masks scores, of ``b``, ``h``, ``q`` and ``k`` in this order; it
        is the same along the others. Empty without a mask.
    mask_dtype : str
        Element type of the mask, one of :data:`MASK_DTYPES`: floats are added to the scores, of
        which -inf excludes; of bytes, 0 excludes and other numbers do nothing.
    cap : float, optional
        Scores ``s`` become ``cap * tanh(s / cap)`` before masks; None to leave them.
    sinks : bool
        True if an input of float32 has a score of each head that takes weight from the keys and has
        no value.
    """

    scale: float
    causal: int | None = None
    window: int | None = None
    lengths: bool = False
    mask: str = ""
    mask_dtype: str = "float32"
    cap: float | None = None
    sinks: bool = False


@dataclass(frozen=True)
class Pointwise:
    """Function of each element of a product's result.

    Attributes
    ----------
    bias, scale : bool
        True if an input has an addend, of the sums' type, or a factor of float32, for each column.
    expression : Scalar
        Function of ``(sum + bias) * scale``, its input 0. The next inputs are the residual's
        element, if there is one, and the column's elements of the vectors. The value is rounded to
        the element type that is stored: integers to the nearest even, saturated.
    vectors : int
        Number of inputs of float32 with an element for each column.
    residual : str
        Element type of an input with the shape of the result; empty without one. Only the second
        product's function has one.
    """

    bias: bool = False
    scale: bool = False
    expression: Scalar = SUM
    vectors: int = 0
    residual: str = ""

    def inputs(
        self, first: str, sums: str, columns: int, shape: tuple[int, ...]
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and element type of each input, by name.

        Parameters
        ----------
        first : str
            First part of the names, ``MIDDLE`` or ``END``.
        sums : str
            Element type of the sums.
        columns : int
            Number of columns.
        shape : tuple of int
            Shape of the result.
        """
        vectors = {BIAS: sums} if self.bias else {}
        vectors |= {SCALE: "float32"} if self.scale else {}
        vectors |= {f"{VECTOR}{number}": "float32" for number in range(self.vectors)}
        named: dict[str, tuple[tuple[int, ...], str]] = {
            f"{first}{name}": ((columns,), dtype) for name, dtype in vectors.items()
        }
        if self.residual:
            named[f"{first}{RESIDUAL}"] = shape, self.residual
        return named


@dataclass(frozen=True, kw_only=True)
class ProductChain:
    """Two products, and the function between them.

    Attributes
    ----------
    name : str
        Name of the family.
    first, second : Computation
        The products. The result of the first has the shape and the axes of the second's first
        factor, :attr:`middle`.
    function : RowSoftmax or Pointwise
    output : str
        Element type of the result.
    epilogue : Pointwise
        Function of the second product's result, of floats.
    """

    name: str
    first: Computation
    second: Computation
    function: RowSoftmax | Pointwise
    output: str
    epilogue: Pointwise = Pointwise()

    @property
    def middle(self) -> str:
        """Name of the second product's factor that the first product and the function make."""
        return self.second.inputs[0].name

    @property
    def factors(self) -> str:
        """Element type of the factors."""
        return self.first.inputs[0].dtype

    @property
    def macs(self) -> int:
        """Multiply-accumulates of both products."""
        return self.first.macs + self.second.macs

    @cached_property
    def inputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and element type of each input, by name."""
        operands = (*self.first.inputs, self.second.inputs[1])
        inputs: dict[str, tuple[tuple[int, ...], str]] = {
            operand.name: (operand.shape, operand.dtype) for operand in operands
        }
        if isinstance(self.function, RowSoftmax):
            if self.function.lengths:
                inputs[LENGTHS] = (self.first.extents["b"],), "int32"
            if self.function.mask:
                sizes = self.mask_sizes
                shape = tuple(sizes[name] for name in self.function.mask)
                inputs[MASK] = shape, self.function.mask_dtype
            if self.function.sinks:
                inputs[SINKS] = (self.mask_sizes["h"],), "float32"
        else:
            inputs |= _inputs(self.function, MIDDLE, self.first, self.columns)
        if self.epilogue != Pointwise():
            inputs |= _inputs(self.epilogue, END, self.second, self.result_columns)
        return inputs

    @property
    def mask_sizes(self) -> dict[str, int]:
        """Extents of the dimensions that a mask can have: batch, heads, queries and keys."""
        extents = self.first.extents
        return {
            "b": extents["b"],
            "h": extents["g"] * extents["r"],
            "q": extents["q"],
            "k": extents["k"],
        }

    @property
    def columns(self) -> str:
        """Axis of the first product that is the last dimension of its result."""
        return _single(self.first.access(self.first.output.name).index[-1])

    @property
    def result_columns(self) -> str:
        """Axis of the second product whose elements have bias and scale of their own."""
        output, weights = (
            self.second.access(operand.name).iterators
            for operand in (self.second.output, self.second.inputs[1])
        )
        (name,) = {*output} & {*weights}
        return name

    def __str__(self) -> str:
        return f"{self.first}; {self.second}"

    def random_inputs(self, seed: int) -> dict[str, Array]:
        """Return inputs from a seed."""
        random = np.random.default_rng(seed)
        arrays: dict[str, Array] = {}
        for name, (shape, dtype) in self.inputs.items():
            if name == LENGTHS:
                # Numbers that are no lengths too, which are defined.
                arrays[name] = random.integers(-2, self.first.extents["k"] + 3, shape, np.int32)
            elif name.endswith(SCALE):
                arrays[name] = random.uniform(0.001, 0.02, shape).astype(np.float32)
            elif name == MASK and dtype == "uint8":
                arrays[name] = (random.random(shape) < 0.8).astype(np.uint8)
            elif is_integer(dtype):
                low, high = (-100, 100) if dtype == "int32" else dtype_info(dtype).integer_range
                arrays[name] = random.integers(low, high + 1, shape).astype(numpy_dtype(dtype))
            elif name == MASK:
                mask = random.standard_normal(shape)
                mask[random.random(shape) < 0.2] = -np.inf
                arrays[name] = mask.astype(numpy_dtype(dtype))
            else:
                arrays[name] = random.standard_normal(shape).astype(numpy_dtype(dtype))
        return arrays

    def evaluate(self, inputs: Mapping[str, Array]) -> Array:
        """Return the result: exact of integers, in float64 and not rounded of floats."""
        return definition(self, inputs).result


@dataclass(frozen=True)
class Definition:
    """Result of a chain by definition.

    Attributes
    ----------
    result : ndarray
        int32 where the factors are integers, else float64.
    largest : float
        Largest magnitude of the second product's sums and of the result, to which errors are
        relative: a function of the sums, such as a tangent, may be small where they are not.
    """

    result: Array
    largest: float


def definition(chain: ProductChain, inputs: Mapping[str, Array]) -> Definition:
    """Compute a chain by its definition.

    Parameters
    ----------
    chain : ProductChain
    inputs : mapping of str to ndarray
        Arrays of :attr:`ProductChain.inputs`.
    """
    exact = is_integer(chain.factors)
    sums = _contract(chain.first, [inputs[x.name] for x in chain.first.inputs], exact=exact)
    if isinstance(chain.function, RowSoftmax):
        middle = _softmax(chain, chain.function, sums, inputs)
    else:
        middle = _middle(chain, chain.function, sums, inputs)
    sums = _contract(chain.second, [middle, inputs[chain.second.inputs[1].name]], exact=exact)
    result = sums
    if chain.epilogue != Pointwise():
        index = chain.second.access(chain.second.output.name).index
        columns = [_single(each) for each in index].index(chain.result_columns)
        result = _pointwise(chain.epilogue, END, sums, inputs, len(index) - 1 - columns)
    return Definition(result, float(max(np.abs(sums).max(), np.abs(result).max())))


def _inputs(
    function: Pointwise, first: str, product: Computation, columns: str
) -> dict[str, tuple[tuple[int, ...], str]]:
    output = product.output
    return function.inputs(first, output.dtype, product.extents[columns], output.shape)


def _single(index: IndexExpr) -> str:
    """Return the only iterator of an index."""
    (name,) = index.iterators
    return name


def _contract(product: Computation, arrays: Sequence[Array], *, exact: bool) -> Array:
    """Return the sums of a product, window by window where it has some."""
    wide = [array.astype(np.int64 if exact else np.float64) for array in arrays]
    shape = product.output.shape
    total = np.zeros(shape, wide[0].dtype)
    first, second = (product.access(operand.name).index for operand in product.inputs)
    output = product.access(product.output.name).index
    # Axes of windows are indexed by sums of iterators, which einsum has not: one tap at a time.
    taps = [
        axis.name
        for axis in product.axes
        if any(len(index.iterators) > 1 and axis.name in index.iterators for index in first)
        and axis.name not in {name for index in output for name in index.iterators}
    ]
    letters = {axis.name: chr(ord("a") + n) for n, axis in enumerate(product.axes)}
    for point in np.ndindex(*(product.extents[name] for name in taps)):
        values = dict(zip(taps, point, strict=True))
        window = _window(wide[0], first, values, product)
        names = [next(name for name in index.iterators if name not in values) for index in first]
        weights = wide[1]
        dimensions: list[str] = []
        for place, index in reversed(list(enumerate(second))):
            name = _single(index)
            if name in values:
                weights = np.take(weights, values[name], axis=place)
            else:
                dimensions.insert(0, name)
        text = (
            "".join(letters[n] for n in names)
            + ","
            + "".join(letters[n] for n in dimensions)
            + "->"
            + "".join(letters[_single(index)] for index in output)
        )
        total += np.einsum(text, window, weights, optimize=True)
    return total.astype(np.int32) if exact else total


def _window(
    image: Array, index: Sequence[IndexExpr], values: Mapping[str, int], product: Computation
) -> Array:
    """Return the elements that one tap of a window reads, zero outside of the image."""
    for place, expression in enumerate(index):
        name = next(n for n in expression.iterators if n not in values)
        coordinates = expression.evaluate({**values, name: np.arange(product.extents[name])})
        inside = (coordinates >= 0) & (coordinates < image.shape[place])
        image = np.take(image, np.where(inside, coordinates, 0), axis=place)
        shape = [1] * image.ndim
        shape[place] = -1
        image = image * inside.reshape(shape)
    return image


def _softmax(chain: ProductChain, function: RowSoftmax, sums: Array, inputs: Inputs) -> Array:
    rows, keys = sums.shape[-2:]
    scores = sums * function.scale
    if function.cap is not None:
        scores = function.cap * np.tanh(scores / function.cap)
    if function.mask:
        sizes, mask = chain.mask_sizes, inputs[MASK]
        shape = [sizes[name] if name in function.mask else 1 for name in "bhqk"]
        if function.mask_dtype == "uint8":
            mask = np.where(mask, 0.0, -np.inf)
        # Heads are those of keys, and the ones that share them.
        heads = chain.first.extents["g"], chain.first.extents["r"]
        split = heads if "h" in function.mask else (1, 1)
        scores = scores + mask.astype(np.float64).reshape(shape[0], *split, *shape[2:])
    if function.causal is not None:
        last = _numbers(rows).reshape(-1, 1) + function.causal
        scores = np.where(_numbers(keys) > last, -np.inf, scores)
        if function.window is not None:
            scores = np.where(_numbers(keys) <= last - function.window, -np.inf, scores)
    if function.lengths:
        lengths = inputs[LENGTHS].reshape(-1, 1, 1, 1, 1)
        scores = np.where(_numbers(keys) >= lengths, -np.inf, scores)
    top = scores.max(axis=-1, keepdims=True)
    sinks = np.full((1, 1, 1, 1, 1), -np.inf)
    if function.sinks:
        heads = chain.first.extents["g"], chain.first.extents["r"]
        sinks = inputs[SINKS].astype(np.float64).reshape(1, *heads, 1, 1)
        top = np.maximum(top, sinks)
    centre = np.where(top == -np.inf, 0, top)
    powers = np.exp(scores - centre)
    total = powers.sum(axis=-1, keepdims=True) + np.exp(sinks - centre)
    return powers / np.where(total == 0, 1, total)


def _numbers(count: int) -> Array:
    return np.arange(count)


def _middle(chain: ProductChain, function: Pointwise, sums: Array, inputs: Inputs) -> Array:
    """Return the operand between the products, rounded only to integers."""
    values = _pointwise(function, MIDDLE, sums, inputs, 0)
    if not is_integer(chain.factors):
        return values
    low, high = dtype_info(chain.factors).integer_range
    return np.clip(np.rint(values), low, high).astype(numpy_dtype(chain.factors))


def _pointwise(function: Pointwise, first: str, sums: Array, inputs: Inputs, after: int) -> Array:
    """Return a function of sums; ``after`` is the number of dimensions behind the columns."""
    # Scales of integers are computed in float32, as kernels do; floats are not rounded here.
    integers = is_integer(str(sums.dtype))
    computing = "float32" if integers else "float64"

    def vector(name: str) -> Array:
        return inputs[f"{first}{name}"].reshape(-1, *[1] * after)

    values = sums.astype(np.int64 if integers else np.float64)
    if function.bias:
        values = values + vector(BIAS).astype(values.dtype)
    values = values.astype(computing)
    if function.scale:
        values = values * vector(SCALE).astype(computing)
    operands = [values]
    if function.residual:
        operands.append(inputs[f"{first}{RESIDUAL}"])
    operands += [vector(f"{VECTOR}{number}") for number in range(function.vectors)]
    with np.errstate(over="ignore"):
        return evaluate_scalar(function.expression, operands, computing)
