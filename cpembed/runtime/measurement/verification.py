"""Numerical verification: what a kernel computed beside the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import (
    BIAS,
    SCALE,
    Epilogue,
    channel_numbers,
    random_vectors,
    saturated_range,
)
from cpembed.errors import InvariantError, WorkloadError
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import is_integer, numpy_dtype
from cpembed.ir.reference import reference

_UNIT_ROUNDOFF = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
}
_SMALLEST_NORMAL = 2.0**-126
"""What flushing a denormal can cost an addition (AMX flushes) or a conversion to bfloat16."""
_LEAST_ROUNDING = {"float16": 2.0**-25}
"""What an addition of small numbers can be off by, where they are not flushed: half the distance of
subnormal numbers."""
SpecialValues = Literal["none", "finite", "all"]
NO_VECTORS: Mapping[str, NDArray[Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Verification:
    """A kernel's output beside the reference.

    ``tolerance`` is 0 for integers, compared bit for bit. For floats it is relative to the sum of
    the products' magnitudes, ``sum |a| * |b|``: the worst that rounding each addition can do, so
    cancellation does not fail a right kernel and a wrong one does not pass. The roundings of an
    epilogue that is judged within them come on top. ``max_error`` is the largest absolute
    difference from what is expected in the stored type, or from exact arithmetic's float.
    ``special_values``: which of them inputs had whose results were judged, too; ``finite``: of the
    floats zeros and the smallest numbers, without NaN and infinities. ``spreads_nan``: some results
    are no numbers though the reference has numbers there, as it may be where inputs are infinite or
    no numbers: zeros that pad a sum are multiplied by them.
    """

    max_error: float
    verified: bool
    tolerance: float
    spreads_nan: bool = False
    special_values: SpecialValues = "none"

    @property
    def data(self) -> str:
        """Which special values the inputs had, in words that follow "data"."""
        named = {"none": "without special values", "all": "and with special values"}
        words = named.get(self.special_values, "and with finite special values")
        return f"{words}; padding spreads NaN" if self.spreads_nan else words

    def require(self, what: str, seed: int) -> None:
        """Raises :class:`InvariantError` where ``what`` computed this, wrongly, on random data of
        a seed."""
        if not self.verified:
            raise InvariantError(
                f"{what} is wrong by up to {self.max_error:g} on data of seed {seed}: "
                "please report this command line"
            )


class Expected:
    """What a workload's output is on given inputs, for judging several outputs."""

    def __init__(self, workload: Computation, inputs: Mapping[str, NDArray[Any]]) -> None:
        self.workload = workload
        self.result = reference(workload, inputs)
        self._inputs = inputs

    def vectors(self, epilogue: Epilogue | None, seed: int) -> dict[str, NDArray[Any]]:
        """A random bias and scale, where there are such, that suit these sums
        (:func:`~cpembed.codegen.epilogue.random_vectors`)."""
        if epilogue is None:
            return {}
        return random_vectors(self.workload, epilogue, self.result, seed)

    def judge(self, found: NDArray[Any]) -> Verification:
        """Judge an output of the workload's type."""
        self._check_shape(found)
        if is_integer(self.workload.output.dtype):
            return compare_integers(self.result, found)
        return self._judge_floats(found)

    def judge_converted(
        self,
        found: NDArray[Any],
        epilogue: Epilogue | None = None,
        vectors: Mapping[str, NDArray[Any]] = NO_VECTORS,
    ) -> Verification:
        """Judge a library's output, which was converted to a type of its own when it was stored.

        Integers saturate in a narrower integer type and are rounded to a float; bit for bit after
        that. Floats may also be off by one rounding to their type. With an ``epilogue``, whose
        steps a library may take in another order, the output is of its type, within roundings of
        what exact arithmetic stores.
        """
        if epilogue is not None:
            if str(found.dtype) != epilogue.dtype:
                raise WorkloadError(f"the output is {found.dtype}, not {epilogue.dtype}")
            return self._judge_rounded(found, epilogue, vectors)
        self._check_shape(found)
        if is_integer(self.workload.output.dtype):
            expected = self.result
            if np.issubdtype(found.dtype, np.integer):
                limits = np.iinfo(found.dtype)
                expected = expected.clip(limits.min, limits.max)
            return compare_integers(expected.astype(found.dtype), found)
        return self._judge_floats(found)

    def judge_stored(
        self,
        found: NDArray[Any],
        epilogue: Epilogue | None,
        vectors: Mapping[str, NDArray[Any]],
    ) -> Verification:
        """Judge what a kernel stored, given its bias and scale: of integers bit for bit, of floats
        within the roundings of the sums, of the epilogue's steps and to the stored type."""
        if epilogue is None:
            return self.judge(found)
        found = found.view(numpy_dtype(epilogue.dtype))
        self._check_shape(found)
        if is_integer(self.workload.output.dtype):
            channel = channel_numbers(self.workload)
            flat = {name: vector.reshape(-1) for name, vector in vectors.items()}
            expected = epilogue.apply(self.result, flat, channel)
            if epilogue.dtype == "bfloat16":
                expected, found = _flushed(expected), _flushed(found)
            return compare_integers(expected, found)
        return self._judge_rounded(found, epilogue, vectors)

    def _check_shape(self, found: NDArray[Any]) -> None:
        shape = self.result.shape
        if found.shape != shape:
            raise WorkloadError(f"the output is {found.shape}, the workload has {shape}")

    def _judge_rounded(
        self, found: NDArray[Any], epilogue: Epilogue, vectors: Mapping[str, NDArray[Any]]
    ) -> Verification:
        """Against what exact arithmetic stores."""
        self._check_shape(found)
        channel = channel_numbers(self.workload)
        each = {
            name: vector.reshape(-1)[channel].astype(np.float64) for name, vector in vectors.items()
        }
        return self._judge_floats(found, epilogue, each.get(BIAS, 0.0), each.get(SCALE, 1.0))

    def _judge_floats(
        self,
        found: NDArray[Any],
        epilogue: Epilogue | None = None,
        bias: NDArray[np.float64] | float = 0.0,
        scale: NDArray[np.float64] | float = 1.0,
    ) -> Verification:
        """Against what exact arithmetic stores; activation and saturation enlarge no error. Sums
        that are integers are exact, until they meet a float32."""
        sums = self.result.astype(np.float64)
        unit, tolerance, allowed = self._rounding
        expected = sums + bias
        if epilogue is not None and epilogue.vectors:
            # Whether the bias is added before the scale or, multiplied by it, after: to either of
            # the two happen two roundings, and one to the result.
            allowed = allowed + 2 * unit * (np.abs(sums) + np.abs(bias))
            expected = expected * scale
            allowed = allowed * np.abs(scale) + unit * np.abs(expected)
        if epilogue is not None and epilogue.relu:
            expected = np.maximum(expected, 0.0)
        nearest = expected
        if is_integer(str(found.dtype)):
            low, high = saturated_range(str(found.dtype))
            expected = np.where(np.isnan(expected), high, expected).clip(low, high)
            nearest = np.rint(expected)
            allowed = allowed + 0.5
        elif str(found.dtype) != self.workload.output.dtype:
            allowed = allowed + _UNIT_ROUNDOFF[str(found.dtype)] * (np.abs(expected) + allowed)
        values = found.astype(np.float64)
        # A NaN is not below anything: it fails, but where one is expected; infinities are equal.
        same = (values == nearest) | (np.isnan(values) & np.isnan(nearest))
        spread = np.isnan(values) & ~same & self._has_special_inputs
        with np.errstate(invalid="ignore"):
            near = np.isfinite(expected) & (np.abs(values - expected) <= allowed)
            verified = bool((same | spread | near).all())
            error = np.where(same | spread, 0.0, np.abs(values - nearest))
        return Verification(float(error.max()), verified, tolerance, bool(spread.any()))

    @cached_property
    def _has_special_inputs(self) -> bool:
        """Whether an input is infinite or no number."""
        return not all(np.isfinite(a.astype(np.float64)).all() for a in self._inputs.values())

    @cached_property
    def _rounding(self) -> tuple[float, float, NDArray[np.float64] | float]:
        """Of the type in which sums are made: its unit, the tolerance relative to the products'
        magnitudes, and what each sum may be off by."""
        dtype = self.workload.output.dtype
        if is_integer(dtype):
            return _UNIT_ROUNDOFF["float32"], 0.0, 0.0
        additions, unit = _additions(self.workload), _UNIT_ROUNDOFF[dtype]
        magnitudes = _magnitudes(self.workload, self._inputs)
        least = _LEAST_ROUNDING.get(dtype, _SMALLEST_NORMAL)
        return unit, additions * unit, additions * (unit * magnitudes + least)


def _flushed(values: NDArray[Any]) -> NDArray[Any]:
    """With 0 in the place of what a conversion may make 0."""
    small = np.abs(values.astype(np.float32)) <= _SMALLEST_NORMAL
    return np.where(small, values.dtype.type(0), values)


def compare_integers(expected: NDArray[Any], found: NDArray[Any]) -> Verification:
    """Judge integers of the same shape and type, bit for bit."""
    # In float64 a difference of 64-bit integers cannot wrap; equality is judged on the bits.
    # Where both are infinite, there is none.
    with np.errstate(invalid="ignore"):
        difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    difference = np.where(found == expected, 0.0, difference)
    equal = found.dtype == expected.dtype and np.array_equal(found, expected)
    return Verification(float(difference.max()), equal, 0.0)


def _additions(workload: Computation) -> int:
    """Roundings on the way to one output element."""
    found = 1
    for axis in workload.axes:
        if axis.kind is AxisKind.REDUCTION:
            found *= axis.extent
    return found + 1


def _magnitudes(workload: Computation, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """``sum |a| * |b|`` for each output element."""
    absolute = {name: np.abs(array.astype(np.float64)) for name, array in inputs.items()}
    wide = {operand.name: "float64" for operand in workload.operands}
    return reference(workload.with_dtypes(wide), absolute)
