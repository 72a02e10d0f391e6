"""The meaning of a computation, executed point by point: the ground truth of all other tests.

It is written for plainness, not speed: points are enumerated in chunks, every read is an indexed
gather, every reduction an indexed scatter. :mod:`cpembed.ir.reference` is the fast counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.ir.arithmetic import (
    UFUNCS,
    Array,
    computing_dtype,
    evaluate,
    stored,
    sums_floats,
)
from cpembed.ir.computation import Assignment, Computation
from cpembed.ir.dtypes import dtype_info, numpy_dtype, require_values
from cpembed.ir.expression import Access


def interpret(
    computation: Computation, inputs: Mapping[str, Array], *, chunk_points: int = 1 << 20
) -> Array:
    """Execute a computation with a single output.

    >>> from cpembed.ir.parser import parse_computation
    >>> total = parse_computation("O[n] += A[n,k]", {"n": 2, "k": 3})
    >>> interpret(total, {"A": np.arange(6, dtype=np.int8).reshape(2, 3)})
    array([ 3, 12], dtype=int32)

    Parameters
    ----------
    computation, inputs, chunk_points
        As of :func:`interpret_all`.
    """
    output = computation.output.name
    return interpret_all(computation, inputs, chunk_points=chunk_points)[output]


def interpret_all(
    computation: Computation, inputs: Mapping[str, Array], *, chunk_points: int = 1 << 20
) -> dict[str, Array]:
    """Execute a computation and return every output by name, in its shape and dtype.

    The arithmetic is that of :mod:`cpembed.ir.arithmetic`. Integer results wrap around in the
    output's dtype. Output elements that no point writes are zero.

    Parameters
    ----------
    computation : Computation
        The computation, in port form or not.
    inputs : mapping of str to array
        Arrays by tensor: ports of one tensor share its array.
    chunk_points : int
        Number of points that are executed at once, which bounds the memory.

    Raises
    ------
    WorkloadError
        If an input is missing or has another shape or dtype.
    """
    arrays = check_inputs(computation, inputs)
    results = {
        operand.name: np.zeros(operand.shape, numpy_dtype(operand.dtype))
        for operand in computation.outputs
    }
    for statement in computation.statements:
        values, written = _execute(computation, statement, arrays, chunk_points)
        output = computation.operand(statement.store.operand)
        result = results[output.name].reshape(-1)
        result[written] = stored(values[written], output.dtype)
    return results


def _execute(
    computation: Computation,
    statement: Assignment,
    arrays: Mapping[str, Array],
    chunk_points: int,
) -> tuple[Array, Array]:
    """Return the flat values of a statement's output, and a mask of the elements it writes."""
    output = computation.operand(statement.store.operand)
    dtype = computing_dtype(output.dtype)
    values = np.full(output.shape, start_value(statement.reduction, dtype), dtype).reshape(-1)
    written = np.zeros(values.shape, bool)
    extents = tuple(computation.extents.values())
    # Overflow and invalid conversions are part of the semantics: results wrap around.
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, computation.macs, chunk_points):
            flat = np.arange(first, min(first + chunk_points, computation.macs))
            # One coordinate array per axis; a computation without axes is the single point ().
            coordinates = np.unravel_index(flat, extents) if extents else ()
            point = dict(zip(computation.extents, coordinates, strict=True))
            results = evaluate(
                statement.value,
                partial(_gather, computation, arrays, point, len(flat)),
                wide=sums_floats(statement, output.dtype),
            )
            results = np.broadcast_to(results, (len(flat),)).astype(dtype)
            targets, inside = _locate(statement.store, output.shape, point, len(flat))
            _combine(statement.reduction, values, targets[inside], results[inside])
            written[targets[inside]] = True
    return values, written


def check_inputs(computation: Computation, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Check the input arrays against the operands, and return them by operand."""
    checked: dict[str, Array] = {}
    for operand in computation.inputs:
        if operand.tensor not in inputs:
            problem = f"no array for input {operand.tensor}; pass one"
            raise WorkloadError(f"{computation.name}: {problem}")
        array = inputs[operand.tensor]
        if array.shape != operand.shape or array.dtype != numpy_dtype(operand.dtype):
            raise WorkloadError(
                f"{computation.name}: input {operand.name} is {array.dtype}{list(array.shape)}; "
                f"pass {operand.dtype}{list(operand.shape)}"
            )
        require_values(operand.name, operand.dtype, array)
        checked[operand.name] = array
    return checked


def start_value(reduction: str | None, dtype: np.dtype[Any]) -> Any:
    """Return the value with which a reduction begins, in the type of its arithmetic."""
    if reduction not in ("max", "min"):
        return 1 if reduction == "mul" else 0
    if dtype.kind == "f":
        return -np.inf if reduction == "max" else np.inf
    low, high = dtype_info(dtype.name).integer_range
    return low if reduction == "max" else high


def _combine(reduction: str | None, values: Array, targets: Array, results: Array) -> None:
    if reduction is None:
        values[targets] = results
    else:
        # Unbuffered: plain indexing would add only one of several points that write an element.
        UFUNCS[reduction].at(values, targets, results)


def _locate(
    access: Access, shape: tuple[int, ...], point: Mapping[str, Array], points: int
) -> tuple[Array, Array]:
    """Return the flat element number of an access at each point, and a mask of those inside."""
    flat = np.zeros(points, np.int64)
    inside = np.ones(points, bool)
    for index, size in zip(access.index, shape, strict=True):
        position = np.broadcast_to(np.asarray(index.evaluate(point)), (points,))
        inside &= (position >= 0) & (position < size)
        flat = flat * size + position
    return np.where(inside, flat, 0), inside


def _gather(
    computation: Computation,
    arrays: Mapping[str, Array],
    point: Mapping[str, Array],
    points: int,
    access: Access,
) -> Array:
    """Return the elements that an access reads at each point, zero outside."""
    flat, inside = _locate(access, computation.operand(access.operand).shape, point, points)
    read = arrays[access.operand].reshape(-1)[flat]
    return np.where(inside, read, np.zeros((), read.dtype))
