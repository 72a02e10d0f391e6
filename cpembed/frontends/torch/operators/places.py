"""Operators at places that the shapes decide: strided views and diagonals."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cpembed.frontends.indexed import scattered_rows
from cpembed.frontends.torch.call import Call, Handler, Results, table
from cpembed.graph.kinds import Reduce
from cpembed.graph.kinds.base import Array


def _gathered_numbers(call: Call, x: str, numbers: Array) -> str:
    return call.flat_gather(x, call.tensor(numbers.astype(np.int64)))


def _replaced_numbers(call: Call, x: str, numbers: Array, source: str) -> str:
    size = math.prod(call.shape(x))
    rows = call.reshaped(call.cast(source, call.dtype(x)), (numbers.size,))
    flat = call.reshaped(x, (size,))
    places = call.tensor(numbers.reshape(-1).astype(np.int64))
    return call.reshaped(scattered_rows(call, flat, places, rows), call.shape(x))


def _strided_numbers(call: Call) -> Array:
    """Return the numbers in memory that a view of sizes and strides has."""
    call.in_result("stride")
    offset = call.get("storage_offset") or 0
    numbers = np.full(tuple(call["size"]), offset, np.int64)
    for k, coordinates in enumerate(np.indices(numbers.shape, sparse=True)):
        numbers = numbers + coordinates * call["stride"][k]
    if numbers.size and numbers.max() >= math.prod(call.shape(call["self"])):
        call.reject("a view beyond the elements of a tensor that is stored row by row")
    return numbers


def _as_strided(call: Call) -> str:
    return _gathered_numbers(call, call["self"], _strided_numbers(call))


def _as_strided_scatter(call: Call) -> str:
    return _replaced_numbers(call, call["self"], _strided_numbers(call), call["src"])


def _diagonal_numbers(call: Call) -> Array:
    x = call["self"]
    shape = call.shape(x)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return np.diagonal(numbers, call["offset"], call["dim1"], call["dim2"])


def _diagonal(call: Call) -> str:
    return _gathered_numbers(call, call["self"], _diagonal_numbers(call))


def _diagonal_scatter(call: Call) -> str:
    return _replaced_numbers(call, call["self"], _diagonal_numbers(call), call["src"])


def _trace(call: Call) -> Results:
    x = call["self"]
    shape = call.shape(x)
    numbers = np.diagonal(np.arange(math.prod(shape)).reshape(shape))
    diagonal = call.cast(_gathered_numbers(call, x, numbers), call.result.dtype)
    return call.emit(Reduce("sum", (0,), False), diagonal)


HANDLERS: Mapping[str, Handler] = table(
    {
        "as_strided as_strided_copy": _as_strided,
        "as_strided_scatter": _as_strided_scatter,
        "diagonal diagonal_copy": _diagonal,
        "diagonal_scatter": _diagonal_scatter,
        "trace": _trace,
    }
)
