"""Numerical verification: a kernel's output compared with the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import BIAS, RESIDUAL, SCALE, Epilogue, channel_axes, channel_numbers
from cpembed.errors import InvariantError, WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer, numpy_dtype, saturated_range
from cpembed.ir.reference import reference
from cpembed.ir.scalars import Scalar, evaluate_scalar, operations
from cpembed.runtime.measurement.verification_data import addition_count, are_exact_sums

# Half the distance of two neighbouring numbers of the type, relative to them.
_UNIT_ROUNDOFF = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
}

# Maximum error of a flushed denormal, in an addition (AMX) or a conversion to bfloat16.
_SMALLEST_NORMAL = 2.0**-126

# Maximum error of an addition of small numbers in types that are not flushed: half the distance of
# subnormal numbers.
_LEAST_ROUNDING = {"float16": 2.0**-25}

# Operations of which implementations differ by some units in the last place.
_INEXACT = frozenset({"exp", "log", "erf", "tanh", "sigmoid", "sin", "cos", "atan", "pow"})

# Some roundings of float32, and approximations within 16 units in the last place, one after the
# other.
_EXPRESSION_ROUNDOFF = 2.0**-18

SpecialValues = Literal["none", "finite", "all"]
"""Special values among the inputs: none, zeros and the smallest numbers, or also NaN and
infinities."""

NO_VECTORS: Mapping[str, NDArray[Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Verification:
    """The result of comparing a kernel's output with the reference.

    ``tolerance`` is 0 for integers, compared bit for bit. For floats it is relative to the sum of
    the products' magnitudes, ``sum |a| * |b|``: the worst that rounding each addition can do, so
    that cancellation does not fail a right kernel and a wrong one does not pass. The roundings of
    an epilogue that is judged within them come on top. ``max_error`` is the largest absolute
    difference from the expected value in the output type, or from exact arithmetic's float.
    ``special_values`` are those among the inputs whose results were judged, too. ``spreads_nan``
    is True if some results are NaN where the reference has numbers, as they may be where inputs
    are NaN or infinite: the zeros that pad a sum are multiplied by them.
    """

    max_error: float
    verified: bool
    tolerance: float
    spreads_nan: bool = False
    special_values: SpecialValues = "none"

    @property
    def data(self) -> str:
        """The special values in words that follow "data"."""
        texts = {"none": "without special values", "all": "and with special values"}
        text = texts.get(self.special_values, "and with finite special values")
        return f"{text}; padding spreads NaN" if self.spreads_nan else text

    def require(self, subject: str, seed: int) -> None:
        """Raise :class:`InvariantError` if the output is wrong.

        ``subject`` computed it on random data of ``seed``.
        """
        if not self.verified:
            raise InvariantError(
                f"{subject} is wrong by up to {self.max_error:g} on data of seed {seed}: "
                "please report this command line"
            )


def random_vectors(
    workload: Computation, epilogue: Epilogue, sums: NDArray[Any], seed: int
) -> dict[str, NDArray[Any]]:
    """Return random vectors for an epilogue, by name, with a dimension for each channel axis.

    A residual is among them, in the shape of the output.

    Biases are as large as the sums; with the scales, results span the range of the output type (of
    a byte, for wider types), and some exceed it.

    Parameters
    ----------
    workload : Computation
        Workload whose output has the channels.
    epilogue : Epilogue
        Epilogue; without parameters the result is empty.
    sums : array
        Sums of an execution, for their magnitude.
    seed : int
        Seed of the random numbers.
    """
    if not epilogue.parameters:
        return {}
    generator = np.random.default_rng(seed)
    shape = tuple(workload.extents[axis] for axis in channel_axes(workload))
    size = max(1e-6, float(np.sqrt(np.mean(sums.astype(np.float64) ** 2))))
    vectors: dict[str, NDArray[Any]] = {}
    if epilogue.bias:
        dtype = epilogue.vector_dtype(BIAS, workload.output.dtype)
        vectors[BIAS] = (generator.normal(size=shape) * size / 2).astype(numpy_dtype(dtype))
    if epilogue.scale:
        largest = 255 if epilogue.dtype == "uint8" else 127
        spread = generator.uniform(0.5, 1.5, shape) * largest / 2
        vectors[SCALE] = (spread / size).astype(np.float32)
    names = () if epilogue.chain is None else epilogue.chain.names
    for name in names:
        vectors[name] = generator.normal(size=shape).astype(np.float32)
    if epilogue.residual is not None:
        dtype = numpy_dtype(epilogue.residual.dtype)
        # As large as what it is added to: results after a scale span a byte's range.
        size = 64.0 if epilogue.scale or dtype.kind in "iu" else size
        values = generator.normal(size=workload.output.shape) * size / 2
        if dtype.kind in "iu":
            values = np.rint(values).clip(np.iinfo(dtype).min, np.iinfo(dtype).max)
        vectors[RESIDUAL] = values.astype(dtype)
    return vectors


class Expected:
    """The right output of a workload for given inputs, with which several outputs are compared."""

    def __init__(self, workload: Computation, inputs: Mapping[str, NDArray[Any]]) -> None:
        self.workload = workload
        self.result = reference(workload, inputs)
        self._inputs = inputs

    def vectors(self, epilogue: Epilogue | None, seed: int) -> dict[str, NDArray[Any]]:
        """Return a random bias and scale that suit these sums, as far as the epilogue has them."""
        if epilogue is None:
            return {}
        return random_vectors(self.workload, epilogue, self.result, seed)

    def judge(self, output: NDArray[Any]) -> Verification:
        """Judge an output of the workload's type."""
        self._check_shape(output)
        if is_integer(self.workload.output.dtype):
            return compare_integers(self.result, output)
        return self._judge_floats(output)

    def judge_converted(
        self,
        output: NDArray[Any],
        epilogue: Epilogue | None = None,
        vectors: Mapping[str, NDArray[Any]] = NO_VECTORS,
    ) -> Verification:
        """Judge a library's output, which was converted to a type of its own.

        Parameters
        ----------
        output
            The output. Integers saturate in a narrower integer type and are rounded to a float;
            they are compared bit for bit after that. Floats may also be off by one rounding to
            their type.
        epilogue
            The epilogue, whose steps a library may take in another order: the output is of its
            type, within roundings of the result of exact arithmetic. None for plain sums.
        vectors
            The epilogue's bias and scale.
        """
        if epilogue is not None:
            if str(output.dtype) != epilogue.dtype:
                raise WorkloadError(f"the output is {output.dtype}, not {epilogue.dtype}")
            return self._judge_rounded(output, epilogue, vectors)
        self._check_shape(output)
        if is_integer(self.workload.output.dtype):
            expected = self.result
            if np.issubdtype(output.dtype, np.integer):
                limits = np.iinfo(output.dtype)
                # Libraries saturate; a cast of numpy would wrap around.
                expected = expected.clip(limits.min, limits.max)
            return compare_integers(expected.astype(output.dtype), output)
        return self._judge_floats(output)

    def judge_stored(
        self,
        output: NDArray[Any],
        epilogue: Epilogue | None,
        vectors: Mapping[str, NDArray[Any]],
    ) -> Verification:
        """Judge a kernel's output.

        Parameters
        ----------
        output
            The output. Integers are compared bit for bit, floats within the roundings of the sums,
            of the epilogue's steps and to the output type.
        epilogue
            The kernel's epilogue; None for plain sums.
        vectors
            The epilogue's bias and scale.
        """
        if epilogue is None:
            return self.judge(output)
        output = output.view(numpy_dtype(epilogue.dtype))
        self._check_shape(output)
        chain = None if epilogue.chain is None else epilogue.chain.expression
        if chain is not None and not self._is_exact(chain):
            return self._judge_expression(output, epilogue, chain, vectors)
        if is_integer(self.workload.output.dtype):
            expected = epilogue.apply(self.result, *self._epilogue_inputs(vectors))
            # Some machines flush denormals in this conversion: compare with both sides flushed.
            if epilogue.dtype == "bfloat16":
                expected, output = _flushed(expected), _flushed(output)
            return compare_integers(expected, output)
        return self._judge_rounded(output, epilogue, vectors)

    def judge_second(
        self,
        output: NDArray[Any],
        epilogue: Epilogue,
        vectors: Mapping[str, NDArray[Any]],
    ) -> Verification:
        """Judge a kernel's second output.

        Parameters
        ----------
        output, epilogue, vectors
            Those of :meth:`judge_stored`; the epilogue has a second output.
        """
        assert epilogue.second is not None
        self._check_shape(output)
        expression = epilogue.second.expression
        if self._is_exact(expression):
            expected = epilogue.apply_second(self.result, *self._epilogue_inputs(vectors))
            return compare_integers(expected, output)
        return self._judge_expression(output, epilogue, expression, vectors)

    def _is_exact(self, expression: Scalar) -> bool:
        """True if an expression of the sums has one value: of exact integers, without functions."""
        return is_integer(self.workload.output.dtype) and not operations(expression) & _INEXACT

    def _epilogue_inputs(
        self, vectors: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64], NDArray[Any] | None]:
        """Return the vectors without their shapes, each element's channel, and the residual."""
        flat = {name: v.reshape(-1) for name, v in vectors.items() if name != RESIDUAL}
        return flat, channel_numbers(self.workload), vectors.get(RESIDUAL)

    @np.errstate(all="ignore")
    def _judge_expression(
        self,
        output: NDArray[Any],
        epilogue: Epilogue,
        expression: Scalar,
        vectors: Mapping[str, NDArray[Any]],
    ) -> Verification:
        """Compare with an expression of the epilogue's inputs in float64.

        A result may differ by what the error of its sum, at its largest, changes in the
        expression, and by roundings of float32 relative to the inputs and to the result. It may
        overflow where float32 does.
        """
        by_element, residual = self._by_element(vectors)
        value, allowed = self._activated(epilogue, by_element)
        names = () if epilogue.chain is None else epilogue.chain.names
        addends = [] if residual is None else [residual]
        addends += [by_element[name] for name in names]

        def evaluated(x: NDArray[np.float64], dtype: str = "float64") -> NDArray[np.float64]:
            inputs = [v.astype(dtype) for v in (x, *addends)]
            result = evaluate_scalar(expression, inputs, dtype)
            return np.broadcast_to(result, x.shape).astype(np.float64)

        expected = evaluated(value)
        moved = [evaluated(value + sign * allowed) for sign in (-1, 1)]
        # What is not finite has no rounding: sigmoid of infinity is 1.
        size = sum(
            (np.abs(np.where(np.isfinite(v), v, 0.0)) for v in (value, *addends)), np.abs(expected)
        )
        error = np.maximum(*(np.abs(each - expected) for each in moved))
        error = np.nan_to_num(error) + _EXPRESSION_ROUNDOFF * size
        dtype = str(output.dtype)
        if dtype == self.workload.output.dtype and not is_integer(dtype):
            # Also results of the sums' type are rounded to it, from float32.
            error = error + _UNIT_ROUNDOFF[dtype] * (np.abs(expected) + error)
        step = np.where(np.isfinite(allowed), allowed, 0.0)
        narrow = [evaluated(value + sign * step, "float32") for sign in (0, -1, 1)]
        return self._compare(output, expected, error, overflows=narrow, nan_is_zero=True)

    def _by_element(
        self, vectors: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64] | None]:
        """Return the vectors' elements of each result, and the residual."""
        flat, channel, residual = self._epilogue_inputs(vectors)
        by_element = {name: vector[channel].astype(np.float64) for name, vector in flat.items()}
        return by_element, None if residual is None else residual.astype(np.float64)

    def _check_shape(self, output: NDArray[Any]) -> None:
        shape = self.result.shape
        if output.shape != shape:
            raise WorkloadError(f"the output is {output.shape}, the workload has {shape}")

    def _judge_rounded(
        self, output: NDArray[Any], epilogue: Epilogue, vectors: Mapping[str, NDArray[Any]]
    ) -> Verification:
        self._check_shape(output)
        by_element, residual = self._by_element(vectors)
        if epilogue.chain is not None:
            return self._judge_expression(output, epilogue, epilogue.chain.expression, vectors)
        expected, allowed = self._activated(epilogue, by_element)
        if epilogue.residual is not None and residual is not None:
            unit = self._rounding[0]
            expected = expected + residual
            allowed = allowed + unit * (np.abs(expected) + np.abs(residual))
            expected = np.maximum(expected, 0.0) if epilogue.residual.relu else expected
        return self._compare(output, expected, allowed)

    def _judge_floats(self, output: NDArray[Any]) -> Verification:
        """Compare sums with the result of exact arithmetic."""
        return self._compare(output, *self._activated(None, {}))

    def _activated(
        self, epilogue: Epilogue | None, by_element: Mapping[str, NDArray[np.float64]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return exact results after bias, scale and ReLU, and the largest errors of kernels'.

        Activation and saturation enlarge no error. Integer sums are exact until they meet a
        float32.
        """
        bias, scale = by_element.get(BIAS, 0.0), by_element.get(SCALE, 1.0)
        sums = self.result.astype(np.float64)
        unit, _, allowed = self._rounding
        expected = sums + bias
        if epilogue is not None and epilogue.vectors:
            # The bias may be added before the scale or, scaled, after it: two roundings of either
            # term, and one of the result.
            allowed = allowed + 2 * unit * (np.abs(sums) + np.abs(bias))
            expected = expected * scale
            allowed = allowed * np.abs(scale) + unit * np.abs(expected)
        if epilogue is not None and epilogue.relu:
            expected = np.maximum(expected, 0.0)
        return expected, np.broadcast_to(np.asarray(allowed, np.float64), expected.shape)

    def _compare(
        self,
        output: NDArray[Any],
        expected: NDArray[np.float64],
        allowed: NDArray[np.float64],
        *,
        overflows: Sequence[NDArray[np.float64]] = (),
        nan_is_zero: bool = False,
    ) -> Verification:
        """Compare with exact results, of which the output is off by at most ``allowed``.

        The output may be infinite where its type ends before the exact result, and it may be what
        is not finite in one of ``overflows``. An integer output takes NaN as the largest integer,
        or as 0 if ``nan_is_zero``.
        """
        nearest = expected
        if is_integer(str(output.dtype)):
            low, high = saturated_range(str(output.dtype))
            nan = 0.0 if nan_is_zero else high
            expected = np.where(np.isnan(expected), nan, expected).clip(low, high)
            # Rounding to an integer is off by up to a half, ties included.
            nearest = np.rint(expected)
            allowed = allowed + 0.5
        elif str(output.dtype) != self.workload.output.dtype:
            allowed = allowed + _UNIT_ROUNDOFF[str(output.dtype)] * (np.abs(expected) + allowed)
        values = output.astype(np.float64)
        # NaN compares as False and so fails, except where it is expected; infinities are equal.
        same = (values == nearest) | (np.isnan(values) & np.isnan(nearest))
        if not is_integer(str(output.dtype)):
            with np.errstate(over="ignore", invalid="ignore"):
                largest = np.copysign(np.abs(expected) + allowed, expected).astype(output.dtype)
            same |= np.isinf(values) & (values == largest.astype(np.float64))
            for beyond in overflows:
                lost = (values == beyond) | (np.isnan(values) & np.isnan(beyond))
                same |= lost & ~np.isfinite(beyond)
        # Zero times infinity: padding is multiplied as well, which the definition never reads.
        spread = np.isnan(values) & ~same & self._has_special_inputs
        with np.errstate(invalid="ignore"):
            near = np.isfinite(expected) & (np.abs(values - expected) <= allowed)
            verified = bool((same | spread | near).all())
            error = np.where(same | spread, 0.0, np.abs(values - nearest))
        tolerance = self._rounding[1]
        return Verification(float(error.max()), verified, tolerance, bool(spread.any()))

    @cached_property
    def _has_special_inputs(self) -> bool:
        """True if an input has NaN or infinities."""
        return not all(np.isfinite(a.astype(np.float64)).all() for a in self._inputs.values())

    @cached_property
    def _rounding(self) -> tuple[float, float, NDArray[np.float64] | float]:
        """Unit roundoff, tolerance relative to the magnitudes, and maximum error of each sum."""
        dtype = self.workload.output.dtype
        if is_integer(dtype):
            return _UNIT_ROUNDOFF["float32"], 0.0, 0.0
        additions, unit = addition_count(self.workload), _UNIT_ROUNDOFF[dtype]
        magnitudes = _magnitudes(self.workload, self._inputs)
        if dtype == "float16" and are_exact_sums(self._inputs, magnitudes):
            return unit, 0.0, 0.0
        least = _LEAST_ROUNDING.get(dtype, _SMALLEST_NORMAL)
        return unit, additions * unit, additions * (unit * magnitudes + least)


def _flushed(values: NDArray[Any]) -> NDArray[Any]:
    """Replace values that a conversion may flush by 0."""
    small = np.abs(values.astype(np.float32)) <= _SMALLEST_NORMAL
    return np.where(small, values.dtype.type(0), values)


def compare_integers(expected: NDArray[Any], output: NDArray[Any]) -> Verification:
    """Judge integers of the same shape and type, bit for bit."""
    # In float64 a difference of 64-bit integers cannot wrap; equality is judged on the bits.
    # Infinities of converted outputs are equal, though their difference is NaN.
    with np.errstate(invalid="ignore"):
        difference = np.abs(output.astype(np.float64) - expected.astype(np.float64))
    difference = np.where(output == expected, 0.0, difference)
    equal = output.dtype == expected.dtype and np.array_equal(output, expected)
    return Verification(float(difference.max()), equal, 0.0)


def _magnitudes(workload: Computation, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return ``sum |a| * |b|`` for each output element."""
    absolute = {name: np.abs(array.astype(np.float64)) for name, array in inputs.items()}
    # In double precision, so that the bound itself is not rounded away.
    float64 = {operand.name: "float64" for operand in workload.operands}
    return reference(workload.with_dtypes(float64), absolute)
