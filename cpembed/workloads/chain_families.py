"""Families of chains that a command line names: attention, pairs of layers, convolutions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import accumulator, is_integer
from cpembed.ir.parser import parse_computation
from cpembed.ir.scalars import Apply, Input, substituted
from cpembed.workloads.chains import (
    ACTIVATIONS,
    FACTORS,
    MASK_DTYPES,
    Pointwise,
    ProductChain,
    RowSoftmax,
)
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.family import Family, Parameter, ParameterKind

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
_FUNCTIONS = (
    Parameter("act", "function between the products", ParameterKind.CHOICE, "none",
              tuple(ACTIVATIONS)),
    Parameter("bias", "1: an addend for each column between", ParameterKind.FLAG, "0"),
    Parameter("end_act", "function of the result", ParameterKind.CHOICE, "none",
              tuple(ACTIVATIONS)),
    Parameter("end_bias", "1: an addend for each column of the result", ParameterKind.FLAG, "0"),
    Parameter("residual", "1: a tensor of the result's type and shape is added before end_act",
              ParameterKind.FLAG, "0"),
)  # fmt: skip


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
    dimensions = _mask(family, mask)
    if mask_type != MASK_DTYPES[0] and not dimensions:
        raise family.error(f"mask_type={mask_type} is of a mask: add mask=qk, or other dimensions")
    function = RowSoftmax(
        scale=_number(family, "scale", scale) if scale else 1 / math.sqrt(d),
        causal=limit,
        window=window or None,
        lengths=lengths,
        mask=dimensions,
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


@dataclass(frozen=True, kw_only=True)
class _Functions:
    """Functions of the sums of two products and type of the result, as parameters name them."""

    act: str = "none"
    bias: bool = False
    end_act: str = "none"
    end_bias: bool = False
    residual: bool = False
    output: str = ""

    def chain(
        self, family: Family[ProductChain], first: Computation, second: Computation
    ) -> ProductChain:
        """Return the chain of two products, with its checked functions and type of the result."""
        dtype = first.inputs[0].dtype
        family.check_choice("act", self.act)
        family.check_choice("end_act", self.end_act)
        stored, end = _output(family, dtype, self.output), ACTIVATIONS[self.end_act]
        if self.residual:
            total = Apply("add", (Input(0), Input(1)))
            end = substituted(end, lambda _: total)
        residual = stored if self.residual else ""
        epilogue = Pointwise(bias=self.end_bias, expression=end, residual=residual)
        if is_integer(dtype) and epilogue != Pointwise():
            raise family.error(f"end_act, end_bias and residual are of floats, not of {dtype}")
        return ProductChain(
            name=family.name,
            first=first,
            second=second,
            # Integers of eight bits need a scale, which brings the sums back to their range.
            function=Pointwise(self.bias, is_integer(dtype), ACTIVATIONS[self.act]),
            output=stored,
            epilogue=epilogue,
        )


def _mlp(
    *, m: int, k: int, n: int, p: int, dtype: str = "float16", **functions: Any
) -> ProductChain:
    family = FAMILIES["mlp"]
    family.check_sizes(m=m, k=k, n=n, p=p)
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
    return _Functions(**functions).chain(family, first, second)


_CONVOLUTION = ("n", "c", "h", "w", "k", "r", "s", "pad", "stride")
"""Parameters of the convolution before a pointwise one."""


def _conv_pointwise(*, m: int, dtype: str = "float16", **settings: Any) -> ProductChain:
    family = FAMILIES["conv_pointwise"]
    family.check_sizes(m=m)
    sizes = {name: settings.pop(name) for name in _CONVOLUTION if name in settings}
    first = conv2d(**sizes, layout="NHWC", dtype=dtype)
    n, rows, columns, k = first.output.shape
    second = parse_computation(
        "Y[n,p,q,m] += T[n,p,q,k] * W2[m,k]",
        {"n": n, "m": m, "p": rows, "q": columns, "k": k},
        name="pointwise",
        dtypes={"T": dtype, "W2": dtype},
    )
    return _Functions(**settings).chain(family, first, second)


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
            "end_act(act(X W1 + bias) W2 + end_bias + residual)",
            _mlp,
            (
                *_sizes(m="rows", k="columns of X", n="columns between", p="columns of the result"),
                *_FUNCTIONS,
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
                *_FUNCTIONS,
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
