"""Products of matrices, and Einsum, which multiplies its factors two at a time."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.expressions import X, Y, add, mul
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.graph.kinds import Product, Reduce
from cpembed.ir.dtypes import accumulator
from cpembed.ir.parser import parse_computation


def scaled(call: Call, tensor: str) -> str:
    """Multiply a tensor by the attribute ``alpha``."""
    alpha = call.number("alpha", 1.0)
    return tensor if alpha == 1.0 else call.elementwise(mul(X, alpha), tensor)


def fused_matmul(call: Call) -> str:
    if call.flag("transBatchA") or call.flag("transBatchB"):
        call.reject("batches that are transposed are not read: transpose before")
    a, rank = call.input(0), call.rank(0)
    if call.flag("transA"):
        a = call.transposed(a, (*range(rank - 2), rank - 1, rank - 2))
    return scaled(call, call.matmul(a, call.input(1), transposed=call.flag("transB")))


def gemm(call: Call) -> str:
    a, c = call.input(0), call.optional(2)
    beta = call.number("beta", 1.0)
    if not call.rank(0) == call.rank(1) == 2:
        raise WorkloadError(f"a product of {call.type(0)} and {call.type(1)}: give matrices")
    if call.flag("transA"):
        a = call.transposed(a, (1, 0))
    transposed = call.flag("transB")

    def write(b: str, c: str | None) -> str:
        result = scaled(call, call.matmul(a, b, transposed=transposed))
        if c is None or beta == 0.0:
            return result
        return call.elementwise(add(X, Y if beta == 1.0 else mul(Y, beta)), result, c)

    columns = call.type(1).shape[0 if transposed else 1]
    by_column = c is None or call.shape(c) in ((), (1,), (columns,), (1, columns))
    if call.number("alpha", 1.0) == beta == 1.0 and by_column:
        return call.scalable(call.input(1), c, write, axis=0 if transposed else 1)
    return write(call.input(1), c)


# -- einsum ---------------------------------------------------------------------------------------

Factor = tuple[str, str]
"""A tensor and the letters of its axes."""


def einsum(call: Call) -> str:
    tensors = call.all_inputs()
    shapes = [call.shape(tensor) for tensor in tensors]
    letters, result = _letters(call.text("equation", ""), [len(shape) for shape in shapes])
    sizes: dict[str, int] = {}
    for names, shape in zip(letters, shapes, strict=True):
        for name, size in zip(names, shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise WorkloadError(f"axis {name} is of {sizes[name]} and of {size}")
    if 0 in sizes.values():
        return call.tensor(np.zeros([sizes[name] for name in result]), call.dtype(tensors[0]))
    factors = list(zip(tensors, letters, strict=True))
    total = _summed(call, factors[0], {*result, *"".join(letters[1:])})
    for k, factor in enumerate(factors[1:], 1):
        needed = {*result, *"".join(letters[k + 1 :])}
        total = _multiplied(call, total, factor, needed, result, sizes)
    tensor, names = total
    return call.transposed(tensor, [names.index(name) for name in result])


def _letters(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return a letter for each axis, of each factor and of the result."""
    text = re.sub(r"\s", "", equation)
    left, arrow, result = text.partition("->")
    factors = left.split(",")
    if len(factors) != len(ranks):
        raise WorkloadError(f"equation {equation!r} is of {len(factors)} factors, not {len(ranks)}")
    free = [letter for letter in string.ascii_lowercase if letter not in text]
    unnamed = [rank - len(f.replace("...", "")) for f, rank in zip(factors, ranks, strict=True)]
    count = max((n for n, f in zip(unnamed, factors, strict=True) if "..." in f), default=0)
    if count > len(free):
        raise WorkloadError(f"equation {equation!r} has too many axes")
    ellipsis = "".join(free[:count])
    parts: list[str] = []
    for factor, n, rank in zip(factors, unnamed, ranks, strict=True):
        part = factor.replace("...", ellipsis[count - n :] if n else "")
        if len(part) != rank or (rank and not part.isalpha()):
            raise WorkloadError(f"{factor} of equation {equation!r} does not name {rank} axes")
        if len({*part}) != len(part):
            raise WorkloadError(f"{factor} of equation {equation!r} takes a diagonal")
        parts.append(part)
    if arrow:
        result = result.replace("...", ellipsis)
    else:
        every = "".join(parts)
        single = (x for x in {*every} - {*ellipsis} if every.count(x) == 1)
        result = ellipsis + "".join(sorted(single))
    if len({*result}) != len(result) or not {*result} <= {*"".join(parts)}:
        raise WorkloadError(f"the result of equation {equation!r} is none of its factors'")
    return parts, result


def _summed(call: Call, factor: Factor, needed: set[str]) -> Factor:
    """Sum a factor over the axes that nothing else has."""
    tensor, names = factor
    axes = tuple(k for k, name in enumerate(names) if name not in needed)
    if axes:
        tensor = call.emit(Reduce("sum", axes, False), tensor)
    return tensor, "".join(name for name in names if name in needed)


def _multiplied(
    call: Call,
    first: Factor,
    second: Factor,
    needed: set[str],
    result: str,
    sizes: Mapping[str, int],
) -> Factor:
    """Multiply two factors and sum over the axes that nothing else has."""
    if call.builder.is_constant(first[0]) and not call.builder.is_constant(second[0]):
        first, second = second, first
    both = {*first[1], *second[1]}
    remaining = [name for name in result if name in both]
    remaining += sorted(name for name in both if name in needed and name not in remaining)
    # Iterators are lower case, so that a capital letter is doubled.
    axis = {letter: letter if letter.islower() else letter.lower() * 2 for letter in both}

    def indices(names: Sequence[str]) -> str:
        return ", ".join(axis[name] for name in names)

    reduced = [name for name in first[1] + second[1] if name not in remaining]
    dtypes = [call.dtype(tensor) for tensor, _ in (first, second)]
    computation = parse_computation(
        f"C[{indices(remaining)}] += A[{indices(first[1])}] * B[{indices(second[1])}]",
        {axis[name]: sizes[name] for name in [*remaining, *dict.fromkeys(reduced)]},
        name="einsum",
        dtypes={"A": dtypes[0], "B": dtypes[1], "C": accumulator(*dtypes)},
        varying=() if call.builder.is_constant(second[0]) else ("B",),
    )
    product = call.emit(
        Product(computation, tuple(sizes[name] for name in remaining)), first[0], second[0]
    )
    return call.cast(product, dtypes[0]) if "float" in dtypes[0] else product, "".join(remaining)


TABLE: dict[str, Translation] = {
    "MatMul": lambda call: call.matmul(call.input(0), call.input(1)),
    "Gemm": gemm,
    "com.microsoft.FusedMatMul": fused_matmul,
    "Einsum": einsum,
}
