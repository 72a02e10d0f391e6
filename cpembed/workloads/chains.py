"""Chains of two products: attention, pairs of layers, a convolution before a pointwise one.

The second product's first factor is a function of the first product's result, element by element
or row by row, so that a kernel can compute both without storing what is between them.

>>> heads = attention(b=1, h=8, kv=2, q=128, k=128, d=64, causal=True)
>>> print(heads.first, heads.second, sep="\\n")
S[b, g, r, q, k] += (Q[b, g, r, q, d] * K[b, g, k, d])
O[b, g, r, q, e] += (P[b, g, r, q, k] * V[b, g, k, e])
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import accumulator, dtype_info, is_integer, numpy_dtype
from cpembed.ir.index import IndexExpr
from cpembed.ir.parser import parse_computation
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.family import Family, Parameter, ParameterKind

Array = NDArray[Any]
Inputs = Mapping[str, Array]

LENGTHS, MASK, SINKS, BIAS, SCALE = "Lengths", "Mask", "Sinks", "MiddleBias", "MiddleScale"
"""Names of further inputs: keys of each batch, mask of the scores, scores of no key, vectors of the
function."""

MASK_DTYPES = ("float32", "float16", "bfloat16", "uint8")
"""Element types of masks."""

ACTIVATIONS = ("none", "relu", "gelu", "silu", "tanh")
"""Functions that a pair of products has between them."""

FACTORS = ("float16", "bfloat16", "int8")
"""Element types of the factors."""

TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2}
"""Maximum error of a kernel's result by the factors' type, relative to the largest result: the
operand between the products, and the result, are rounded to that type."""


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
    """Function of each element of the first product's result.

    ``activation((sum + bias) * scale)``, rounded to the second product's element type: integers to
    the nearest even, saturated.

    Attributes
    ----------
    bias, scale : bool
        True if an input has an addend, of the sums' type, or a factor of float32, for each column.
    activation : str
        One of :data:`ACTIVATIONS`.
    """

    bias: bool = False
    scale: bool = False
    activation: str = "none"


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
    """

    name: str
    first: Computation
    second: Computation
    function: RowSoftmax | Pointwise
    output: str

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
        inputs = {operand.name: (operand.shape, operand.dtype) for operand in operands}
        columns = self.first.extents[self.columns]
        if isinstance(self.function, RowSoftmax):
            if self.function.lengths:
                inputs[LENGTHS] = (self.first.extents["b"],), "int32"
            if self.function.mask:
                sizes = self.mask_sizes
                shape = tuple(sizes[name] for name in self.function.mask)
                inputs[MASK] = shape, self.function.mask_dtype
            if self.function.sinks:
                inputs[SINKS] = (self.mask_sizes["h"],), "float32"
            return inputs
        if self.function.bias:
            inputs[BIAS] = (columns,), self.first.output.dtype
        if self.function.scale:
            inputs[SCALE] = (columns,), "float32"
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
            elif name == SCALE:
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
        return reference(self, inputs)


def reference(chain: ProductChain, inputs: Mapping[str, Array]) -> Array:
    """Return the result of a chain, by definition.

    Parameters
    ----------
    chain : ProductChain
    inputs : mapping of str to ndarray
        Arrays of :attr:`ProductChain.inputs`.

    Returns
    -------
    ndarray
        int32 where the factors are integers, else float64.
    """
    exact = is_integer(chain.factors)
    sums = _contract(chain.first, [inputs[x.name] for x in chain.first.inputs], exact=exact)
    if isinstance(chain.function, RowSoftmax):
        middle = _softmax(chain, chain.function, sums, inputs)
    else:
        middle = _pointwise(chain, chain.function, sums, inputs)
    return _contract(chain.second, [middle, inputs[chain.second.inputs[1].name]], exact=exact)


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


def _pointwise(
    chain: ProductChain, function: Pointwise, sums: Array, inputs: Mapping[str, Array]
) -> Array:
    integers = is_integer(chain.factors)
    # Scales of integers are computed in float32, as kernels do; floats are not rounded here.
    wide = sums.astype(np.int64 if integers else np.float64)
    if function.bias:
        wide = wide + inputs[BIAS].astype(wide.dtype)
    if integers:
        wide = wide.astype(np.float32)
    if function.scale:
        wide = wide * inputs[SCALE].astype(wide.dtype)
    values = activation(function.activation, wide)
    if not integers:
        return values
    low, high = dtype_info(chain.factors).integer_range
    return np.clip(np.rint(values), low, high).astype(numpy_dtype(chain.factors))


def activation(name: str, values: Array) -> Array:
    """Return a function of :data:`ACTIVATIONS`, element by element."""
    if name == "relu":
        return np.maximum(values, 0)
    if name == "gelu":
        error: Callable[..., Array] = np.vectorize(math.erf, otypes=[np.float64])
        return 0.5 * values * (1 + error(values / math.sqrt(2)))
    if name == "silu":
        return values / (1 + np.exp(-values))
    return np.tanh(values) if name == "tanh" else values


# -- families -------------------------------------------------------------------------------------

_FLOAT_DTYPE = Parameter(
    "dtype", "element type of the factors", ParameterKind.CHOICE, "float16", FACTORS[:2]
)
_DTYPE = Parameter("dtype", "element type of the factors", ParameterKind.CHOICE, "float16", FACTORS)
_OUTPUT = Parameter(
    "output",
    "element type of the result; by default the factors', of int8 int32",
    ParameterKind.CHOICE,
    "",
    ("float16", "bfloat16", "float32", "int32"),
)
_ACT = Parameter("act", "function between the products", ParameterKind.CHOICE, "none", ACTIVATIONS)
_BIAS = Parameter("bias", "1: an addend for each column between", ParameterKind.FLAG, "0")


def _attention(
    b: int,
    h: int,
    q: int,
    k: int,
    d: int,
    kv: int = 0,
    e: int = 0,
    causal: bool = False,
    offset: int | None = None,
    window: int = 0,
    lengths: bool = False,
    mask: str | bool = "",
    mask_type: str = "float32",
    cap: str = "",
    sinks: bool = False,
    layout: str = "BHSD",
    scale: str = "",
    dtype: str = "float16",
    output: str = "",
) -> ProductChain:
    family = FAMILIES["attention"]
    kv, e = kv or h, e or d
    family.check_sizes(b=b, h=h, q=q, k=k, d=d, kv=kv, e=e)
    family.check_choice("layout", layout)
    if h % kv:
        raise family.error(f"h={h} is no multiple of kv={kv}, the heads of keys and values")
    extents = {"b": b, "g": kv, "r": h // kv, "q": q, "k": k, "d": d, "e": e}
    rows, heads = ("b,g,r,q", "b,g,k") if layout == "BHSD" else ("b,q,g,r", "b,k,g")
    stored = _output(family, dtype, output)
    first = parse_computation(
        f"S[b,g,r,q,k] += Q[{rows},d] * K[{heads},d]",
        {name: extents[name] for name in "bgrqkd"},
        name="scores",
        dtypes={"Q": dtype, "K": dtype},
        varying=("Q", "K"),
    )
    second = parse_computation(
        f"O[{rows},e] += P[b,g,r,q,k] * V[{heads},e]",
        {name: extents[name] for name in "bgrqek"},
        name="values",
        dtypes={"P": dtype, "V": dtype},
        varying=("P", "V"),
    )
    if offset is not None and not causal:
        raise family.error("offset is of causal=1: add it")
    if window and not causal:
        raise family.error("window is of causal=1: add it, with offset=N for keys after the query")
    limit = (k - q if offset is None else offset) if causal else None
    if mask_type not in MASK_DTYPES:
        raise family.error(f"mask_type={mask_type} is none of {' '.join(MASK_DTYPES)}")
    function = RowSoftmax(
        scale=_number(family, "scale", scale) if scale else 1 / math.sqrt(d),
        causal=limit,
        window=window or None,
        lengths=lengths,
        mask=_mask(family, mask),
        mask_dtype=mask_type,
        cap=_cap(family, cap),
        sinks=sinks,
    )
    return ProductChain(
        name=family.name, first=first, second=second, function=function, output=stored
    )


def _number(family: Family[ProductChain], name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise family.error(f"{name}={text} is not a number") from None
    if not math.isfinite(number):
        raise family.error(f"{name}={text} is not a finite number")
    return number


def _cap(family: Family[ProductChain], text: str) -> float | None:
    number = _number(family, "cap", text) if text else None
    if number is not None and number <= 0:
        raise family.error(f"cap={text} is not positive")
    return number


def _mask(family: Family[ProductChain], value: str | bool) -> str:
    """Return the dimensions of a mask: queries and keys if there is just one."""
    if isinstance(value, bool):
        value = "1" if value else ""
    dimensions = {"0": "", "1": "qk"}.get(value, value)
    # In the order of the scores, each at most once.
    if dimensions and not re.fullmatch("b?h?q?k", dimensions):
        raise family.error(f"mask={value} is none of 0, 1, and dimensions of bhqk that end in k")
    return dimensions


def _output(family: Family[ProductChain], dtype: str, output: str) -> str:
    """Return the checked element type of a result."""
    for name, value in (("dtype", dtype), ("output", output or None)):
        choices = next(p.choices for p in family.parameters if p.name == name)
        # Not `check_choice`, to which numbers within words are any number.
        if value is not None and value not in choices:
            raise family.error(f"{name}={value} is none of {' '.join(choices)}")
    stored = output or (accumulator(dtype, dtype) if is_integer(dtype) else dtype)
    if is_integer(stored) != is_integer(dtype):
        raise family.error(f"output={output} of factors of {dtype}")
    return stored


def _function(dtype: str, act: str, bias: bool) -> Pointwise:
    # Integers of eight bits need a scale, which brings the sums back to their range.
    return Pointwise(bias=bias, scale=is_integer(dtype), activation=act)


def _mlp(
    m: int,
    k: int,
    n: int,
    p: int,
    act: str = "none",
    bias: bool = False,
    dtype: str = "float16",
    output: str = "",
) -> ProductChain:
    family = FAMILIES["mlp"]
    family.check_sizes(m=m, k=k, n=n, p=p)
    family.check_choice("act", act)
    stored = _output(family, dtype, output)
    first = parse_computation(
        "S[m,n] += X[m,k] * W1[k,n]",
        {"m": m, "n": n, "k": k},
        name="up",
        dtypes={"X": dtype, "W1": dtype},
    )
    second = parse_computation(
        "Y[m,p] += H[m,n] * W2[n,p]",
        {"m": m, "p": p, "n": n},
        name="down",
        dtypes={"H": dtype, "W2": dtype},
    )
    return ProductChain(
        name=family.name,
        first=first,
        second=second,
        function=_function(dtype, act, bias),
        output=stored,
    )


def _conv_pointwise(
    n: int,
    c: int,
    h: int,
    w: int,
    k: int,
    r: int,
    s: int,
    m: int,
    pad: int = 0,
    stride: int = 1,
    act: str = "none",
    bias: bool = False,
    dtype: str = "float16",
    output: str = "",
) -> ProductChain:
    family = FAMILIES["conv_pointwise"]
    family.check_sizes(m=m)
    family.check_choice("act", act)
    stored = _output(family, dtype, output)
    first = conv2d(
        n=n, c=c, h=h, w=w, k=k, r=r, s=s, pad=pad, stride=stride, layout="NHWC", dtype=dtype
    )
    _, rows, columns, _ = first.output.shape
    second = parse_computation(
        "Y[n,p,q,m] += T[n,p,q,k] * W2[m,k]",
        {"n": n, "m": m, "p": rows, "q": columns, "k": k},
        name="pointwise",
        dtypes={"T": dtype, "W2": dtype},
    )
    return ProductChain(
        name=family.name,
        first=first,
        second=second,
        function=_function(dtype, act, bias),
        output=stored,
    )


def _sizes(**meanings: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, meaning) for name, meaning in meanings.items())


FAMILIES: dict[str, Family[ProductChain]] = {
    family.name: family
    for family in (
        Family(
            "attention",
            "softmax(scale Q K^T + masks) V, each head",
            _attention,
            (
                *_sizes(b="batch", h="heads", q="queries", k="keys", d="depth of a head"),
                Parameter("kv", "heads of keys and values, by default h", default="0"),
                Parameter("e", "depth of values, by default d", default="0"),
                Parameter("causal", "1: the last query has all keys", ParameterKind.FLAG, "0"),
                Parameter("offset", "keys before the first query's, with causal=1", default=""),
                Parameter("window", "number of last keys that a query has, with causal=1",
                          default="0"),
                Parameter("lengths", "1: keys of each batch are an input", ParameterKind.FLAG, "0"),
                Parameter("mask", "dimensions of an input that masks scores: 1 or qk, hqk, bk, ...",
                          ParameterKind.CHOICE, "0"),
                Parameter("mask_type", "element type of the mask, whose values are added; uint8: 0 "
                          "hides", ParameterKind.CHOICE, "float32", MASK_DTYPES),
                Parameter("cap", "scores s become cap tanh(s / cap)", ParameterKind.CHOICE, ""),
                Parameter("sinks", "1: a score of each head, of no key, is an input",
                          ParameterKind.FLAG, "0"),
                Parameter(
                    "layout", "order of axes", ParameterKind.CHOICE, "BHSD", ("BHSD", "BSHD")
                ),
                Parameter("scale", "1 / sqrt(d) by default", ParameterKind.CHOICE, ""),
                _FLOAT_DTYPE,
                _OUTPUT,
            ),
        ),
        Family(
            "mlp",
            "act(X W1 + bias) W2",
            _mlp,
            (
                *_sizes(m="rows", k="columns of X", n="columns between", p="columns of the result"),
                _ACT,
                _BIAS,
                _DTYPE,
                _OUTPUT,
            ),
        ),
        Family(
            "conv_pointwise",
            "a convolution, channels last, and one of 1 x 1",
            _conv_pointwise,
            (
                *_sizes(
                    n="images", c="input channels", h="image rows", w="image columns",
                    k="filters", r="filter rows", s="filter columns", m="filters of 1 x 1",
                ),
                Parameter("pad", "zeros around the image", default="0"),
                Parameter("stride", "step of the filter", default="1"),
                _ACT,
                _BIAS,
                _DTYPE,
                _OUTPUT,
            ),
        ),
    )
}  # fmt: skip
"""Families of chains by name."""

attention = FAMILIES["attention"]
mlp = FAMILIES["mlp"]
conv_pointwise = FAMILIES["conv_pointwise"]


def names_chain(words: Sequence[str]) -> bool:
    """Return True if words of a command line name a chain."""
    text = " ".join(words).split()
    return bool(text) and text[0] in FAMILIES


def parse_chain(words: Sequence[str]) -> ProductChain:
    """Parse the name of a chain and its settings, ``NAME=VALUE``; a flag may stand alone.

    Raises
    ------
    WorkloadError
        In one line: what is wrong, where, and the remedy.
    """
    name, *settings = " ".join(words).split()
    family = FAMILIES[name]
    flags = {p.name for p in family.parameters if p.kind is ParameterKind.FLAG} | {"mask"}
    values: dict[str, object] = {}
    for word in settings:
        key, separator, value = word.partition("=")
        if not separator and key in flags:
            value = "1"
        elif not separator or not value:
            raise WorkloadError(f"word {word!r} is not a setting: write NAME=VALUE")
        if key in values:
            raise WorkloadError(f"{key} is set twice: keep one")
        values[key] = value
    return family.workload(values)
