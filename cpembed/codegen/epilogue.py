"""Epilogue: the steps between a kernel's sums and its output, one description for every target.

In floats: ``(sum + bias) * scale``, then the activation, then rounding to the nearest even, the
zero point and saturation, which is the requantization of ONNX's QLinearConv and of oneDNN's
post-ops. A residual is added to the result as ONNX's QLinearAdd adds it. In integers: ``(sum +
bias) >> shift``, the activation, clipping and saturation, as on VTA's ALU and in fixed-point
inference. A chain (:class:`Chain`) is any expression of the result in float32, such as an
activation that is no ReLU. Their text is in
:mod:`cpembed.codegen.epilogue_text`. Each target lowers the steps that it can and rejects the rest
(:class:`~cpembed.errors.LoweringError`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.placement import Placement
from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info, is_integer, numpy_dtype, saturated_range
from cpembed.ir.scalars import Scalar, converted, evaluate_scalar, input_numbers

SCALE, BIAS, RESIDUAL = "@scale", "@bias", "@residual"
"""Names of the vectors and the residual among a kernel's inputs; no operand is called so, since the
names of operands are identifiers."""
SECOND = "@second"
"""Name of a kernel's second output."""
_CHAIN_VECTOR = "@vector"
"""First part of the names of a chain's vectors."""

BYTES = ("int8", "uint8")
"""Integer types of eight bits, the only ones with a zero point."""
MAX_SHIFT = 31
"""Largest shift in bits: an int32 without its sign bit."""
RESULT_TYPES = ("int32", "float32", "bfloat16", "int8", "uint8", "float16")
"""Output types of kernels."""
PROCESSOR_RESULT_TYPES = RESULT_TYPES[:-1]
"""Output types of kernels on CPUs: there is no float16."""


@dataclass(frozen=True)
class Residual:
    """Tensor of the output's shape that is added to the results.

    Integers of eight bits are added as the numbers that they represent. From ``q``, which the
    epilogue would store with zero point z, and the residual's element ``r`` it makes
    ``round(fma(q - z, own_scale, (r - zero_point) * scale)) + stored_zero_point`` in float32, with
    one rounding of the sum. Floats are added as they are.

    Parameters
    ----------
    dtype : str
        Element type: float32, int8 or uint8.
    own_scale, scale : float
        Factors of the epilogue's results and of the residual.
    zero_point, stored_zero_point : int
        Zero points of the residual and of the output.
    clip : tuple of two int, optional
        Range of the output; by default that of its type.
    relu : bool
        Replace negative sums of floats by 0.
    placement : Placement, optional
        Place in a larger buffer; by default the layout of the output's original.
    rounds : bool
        Round and clip ``q - z`` before the addition.
    """

    dtype: str
    own_scale: float = 1.0
    scale: float = 1.0
    zero_point: int = 0
    stored_zero_point: int = 0
    clip: tuple[int, int] | None = None
    relu: bool = False
    placement: Placement | None = None
    rounds: bool = True


@dataclass(frozen=True)
class Chain:
    """Expression of the results of a kernel, computed in float32 (:mod:`cpembed.ir.scalars`).

    Input 0 is the result of the epilogue's other steps, before it is converted. Input 1 is the
    element of the residual, if there is one. The next inputs are the channel's elements of float32
    vectors. The value becomes the output type as that of an elementwise operator does: integers are
    rounded to the nearest even and saturated, and NaN is 0.

    Parameters
    ----------
    expression : Scalar
    vectors : int
        Number of the vectors.
    """

    expression: Scalar
    vectors: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the vectors among a kernel's inputs."""
        return tuple(f"{_CHAIN_VECTOR}{number}" for number in range(self.vectors))


CHAIN_TYPES = ("float32", "bfloat16", "int8", "uint8", "float16")
"""Types of a chain's results and of the residual that it reads."""
PROCESSOR_CHAIN_TYPES = CHAIN_TYPES[:-1]
"""Types of chains on CPUs: there is no float16."""

RESIDUAL_INPUT = 1
"""Number of the residual among the inputs of a chain without vectors."""


@dataclass(frozen=True)
class SecondResult:
    """Second output of a kernel: another expression of the same inputs, in a buffer of its own.

    Its inputs are those of a chain, or without one the result of the epilogue's other steps before
    it is converted; so an activation is stored beside its argument, or bytes beside floats. The
    shape and the layout are the output's.

    Parameters
    ----------
    dtype : str
        Element type, one of :data:`CHAIN_TYPES`.
    expression : Scalar
    """

    dtype: str
    expression: Scalar

    def __post_init__(self) -> None:
        if self.dtype not in CHAIN_TYPES:
            raise WorkloadError(
                f"a second output is {', '.join(CHAIN_TYPES)}, not {self.dtype}: "
                "choose one of these"
            )


@dataclass(frozen=True)
class Epilogue:
    """Steps between the sums and the output, in the order of the parameters.

    Without a scale, integer sums stay integers on the way to an integer output. A NaN becomes the
    largest integer.

    Parameters
    ----------
    dtype : str
        Output type, one of :data:`RESULT_TYPES`.
    scale : bool
        Multiply in float32 by a float32 vector with an element per channel, after the bias.
    bias : bool
        Add a vector of the sums' type with an element per channel.
    relu : bool
        Replace negative values by 0.
    shift : int
        Bits of an arithmetic shift to the right; integers without a scale only.
    clip : tuple of two int, optional
        Range of integer results; by default that of ``dtype``.
    wraps : bool
        Store the lower bits instead of saturating.
    zero_point : int
        Integer added to the rounded product with a scale.
    residual : Residual, optional
        Tensor that is added last. A chain reads it instead.
    chain : Chain, optional
        Expression of the result, evaluated after bias, scale and ReLU in place of what follows.
    placement : Placement, optional
        Place of the output in a larger buffer; by default a buffer of its own.
    second : SecondResult, optional
        Another result of the same sums.

    Raises
    ------
    WorkloadError
        The steps exclude each other, or a number lies outside its range.
    """

    dtype: str
    scale: bool = False
    bias: bool = False
    relu: bool = False
    shift: int = 0
    clip: tuple[int, int] | None = None
    wraps: bool = False
    zero_point: int = 0
    residual: Residual | None = None
    placement: Placement | None = None
    chain: Chain | None = None
    second: SecondResult | None = None

    def __post_init__(self) -> None:
        if self.dtype not in RESULT_TYPES:
            raise WorkloadError(
                f"a kernel stores {', '.join(RESULT_TYPES)}, not {self.dtype}: choose one of these"
            )
        if self.chain is not None:
            self._check_chain()
        elif self.residual is not None:
            self._check_residual(self.residual)
        if self.second is not None and self.chain is None:
            self._check_second(self.second)
        if self.is_requantized and (self.dtype not in BYTES or self.shift or self.wraps):
            raise WorkloadError(
                "a zero point, and clipping after a scale, are of int8 and uint8 without a "
                "shift: store one of these"
            )
        integral = self.is_integral and not self.is_requantized
        if integral and (self.scale or not is_integer(self.dtype)):
            raise WorkloadError(
                "a shift, wrapping, and clipping without a scale need an integer result type and "
                "no scale: omit these steps, or omit the scale and store integers"
            )
        if self.is_requantized or integral:
            self._check_range()

    def _check_chain(self) -> None:
        if self.shift or self.clip or self.wraps or self.zero_point:
            raise WorkloadError(
                "a chain replaces shifting, clipping, wrapping and the zero point: make these part "
                "of its expression"
            )
        residual = self.residual
        if residual is not None and residual != Residual(
            residual.dtype, placement=residual.placement
        ):
            raise WorkloadError(
                "a chain reads the residual's elements as they are: make their scale, zero point "
                "and ReLU part of its expression"
            )
        types = [self.dtype] if residual is None else [self.dtype, residual.dtype]
        for dtype in types:
            if dtype not in CHAIN_TYPES:
                raise WorkloadError(
                    f"a chain reads and stores {', '.join(CHAIN_TYPES)}, not {dtype}: choose one "
                    "of these"
                )

    def _check_second(self, second: SecondResult) -> None:
        if input_numbers(second.expression) - {0} or self.shift or self.wraps:
            raise WorkloadError(
                "without a chain a second output is an expression of the float32 result alone: "
                "give a chain, and no shift or wrapping"
            )

    def _check_residual(self, residual: Residual) -> None:
        bytes_both = self.dtype in BYTES and residual.dtype in BYTES and self.scale
        floats_both = self.dtype == residual.dtype == "float32"
        if not (bytes_both or floats_both):
            raise WorkloadError(
                f"a residual of {residual.dtype} is not added to {self.dtype}: both are float32, "
                "or integers of eight bits with a scale"
            )

    def _check_range(self) -> None:
        low, high = self.range
        least, largest = dtype_info(self.dtype).integer_range
        if not 0 <= self.shift <= MAX_SHIFT:
            raise WorkloadError(f"a shift of {self.shift} bits: give 0 to {MAX_SHIFT}")
        if not least <= low <= high <= largest:
            raise WorkloadError(f"clipped to {low} … {high}, which is not in {self.dtype}")

    def __str__(self) -> str:
        steps = {
            "a bias added": self.bias,
            "scaled": self.scale,
            f"shifted right by {self.shift}": bool(self.shift),
            "negative results as 0": self.relu,
            f"clipped to {' … '.join(map(str, self.clip or ()))}": self.clip is not None,
            "the lower bits": self.wraps,
            f"around {self.zero_point}": bool(self.zero_point),
            "a residual added": self.residual is not None and self.chain is None,
            "a chain": self.chain is not None,
            f"a second output of {self.second.dtype if self.second else ''}": bool(self.second),
        }
        return ", ".join([self.dtype, *(step for step, enabled in steps.items() if enabled)])

    @property
    def is_integral(self) -> bool:
        """True if a step applies to integers only."""
        return bool(self.shift or (self.clip and not self.scale) or self.wraps)

    @property
    def is_requantized(self) -> bool:
        """True if rounded results are offset or clipped before they are stored."""
        return self.scale and bool(self.zero_point or self.clip)

    @property
    def range(self) -> tuple[int, int]:
        """Range of integer results, that of the type unless they are clipped."""
        return self.clip or dtype_info(self.dtype).integer_range

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the kernel's vectors, in its order of parameters."""
        chain = () if self.chain is None else self.chain.names
        return (*([BIAS] if self.bias else []), *([SCALE] if self.scale else []), *chain)

    def vector_dtype(self, name: str, sums: str) -> str:
        """Return the element type of a vector, for sums of a type."""
        return sums if name == BIAS else "float32"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the kernel's parameters besides the operands, in its order."""
        return self.vectors if self.residual is None else (*self.vectors, RESIDUAL)

    @property
    def is_of_sum_alone(self) -> bool:
        """True if a result depends on its sum only, and lies where the sum would."""
        return not (self.parameters or self.placement or self.chain or self.second)

    @property
    def computes_functions(self) -> bool:
        """True if an expression is part of it, which targets round by their own functions."""
        return self.chain is not None or self.second is not None

    def in_integers(self, sums: str) -> bool:
        """Return True if no step involves floats."""
        return is_integer(sums) and is_integer(self.dtype) and not (self.scale or self.chain)

    @property
    def stored_range(self) -> tuple[int, int]:
        """Range of rounded results before the zero point is added."""
        low, high = self.range
        return low - self.zero_point, high - self.zero_point

    @property
    def residual_range(self) -> tuple[int, int]:
        """Range of the sum with the residual before the output's zero point is added."""
        assert self.residual is not None
        low, high = self.residual.clip or dtype_info(self.dtype).integer_range
        zero_point = self.residual.stored_zero_point
        return low - zero_point, high - zero_point

    @np.errstate(all="ignore")
    def apply(
        self,
        sums: NDArray[Any],
        vectors: dict[str, NDArray[Any]],
        channel: NDArray[np.int64],
        residual: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Apply the epilogue in numpy: equal to kernels bit for bit, but for the least bfloat16.

        Parameters
        ----------
        sums : array
            Sums, in any shape.
        vectors : dict of str to array
            Bias and scale by name, with an element per channel.
        channel : array of int64
            Number of each element's channel, in the shape of ``sums``.
        residual : array, optional
            Residual, in the shape of ``sums``.
        """
        # VCVTNE2PS2BF16 makes 0 of results up to 2^-126, which numpy keeps.
        integers = self.in_integers(str(sums.dtype))
        value = self._activated(sums, vectors, channel, integers=integers)
        if self.chain is not None:
            inputs = self._chain_inputs(value, vectors, channel, residual)
            result = evaluate_scalar(self.chain.expression, inputs, "float32")
            return converted(np.broadcast_to(result, sums.shape), self.dtype)
        rounds = self.residual is None or self.residual.rounds
        if is_integer(self.dtype) and not self.wraps and rounds:
            low, high = saturated_range(self.dtype)
            if integers:
                low, high = self.range
            else:
                low, high = self.stored_range if self.dtype in BYTES else (low, high)
                value = np.where(np.isnan(value), np.float32(high), np.rint(value))
            value = np.clip(value, low, high)
        if self.residual is not None and residual is not None:
            value = self._with_residual(value, self.residual, residual)
        elif self.zero_point:
            value = value + value.dtype.type(self.zero_point)
        # Values beyond the range of float16 become infinite, in kernels too.
        return value.astype(numpy_dtype(self.dtype))

    def _activated(
        self,
        sums: NDArray[Any],
        vectors: dict[str, NDArray[Any]],
        channel: NDArray[np.int64],
        *,
        integers: bool,
    ) -> NDArray[Any]:
        """Return the values after bias, scale, shift and ReLU, in float32 unless ``integers``."""
        value: NDArray[Any] = sums
        if str(sums.dtype) in ("float16", "bfloat16"):
            # Kernels add to short sums in float32 too: each step would round otherwise.
            value = value.astype(np.float32)
        if self.bias:
            value = value + vectors[BIAS][channel]
        if not integers:
            value = value.astype(np.float32)
        if self.scale:
            value = value * vectors[SCALE][channel]
        if self.shift:
            value = np.right_shift(value, self.shift)
        return np.maximum(value, value.dtype.type(0)) if self.relu else value

    def _chain_inputs(
        self,
        value: NDArray[Any],
        vectors: dict[str, NDArray[Any]],
        channel: NDArray[np.int64],
        residual: NDArray[Any] | None,
    ) -> list[NDArray[Any]]:
        """Return the inputs of a chain and of a second output's expression."""
        addends = [] if residual is None else [residual.astype(np.float32)]
        names = () if self.chain is None else self.chain.names
        return [value, *addends, *(vectors[name][channel] for name in names)]

    @np.errstate(all="ignore")
    def apply_second(
        self,
        sums: NDArray[Any],
        vectors: dict[str, NDArray[Any]],
        channel: NDArray[np.int64],
        residual: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Return the second output in numpy.

        Parameters
        ----------
        sums, vectors, channel, residual
            Those of :meth:`apply`.
        """
        assert self.second is not None
        value = self._activated(sums, vectors, channel, integers=False)
        inputs = self._chain_inputs(value, vectors, channel, residual)
        result = evaluate_scalar(self.second.expression, inputs, "float32")
        return converted(np.broadcast_to(result, sums.shape), self.second.dtype)

    def _with_residual(
        self, value: NDArray[Any], residual: Residual, addend: NDArray[Any]
    ) -> NDArray[Any]:
        if self.dtype == "float32":
            value = value + addend
            return np.maximum(value, np.float32(0)) if residual.relu else value
        offset = (addend.astype(np.int32) - residual.zero_point).astype(np.float32)
        added = (offset * np.float32(residual.scale)).astype(np.float64)
        # The product of two float32 is exact in float64, so that the sum is rounded once.
        exact = value.astype(np.float64) * np.float64(np.float32(residual.own_scale)) + added
        low, high = self.residual_range
        rounded = np.rint(exact.astype(np.float32))
        rounded = np.where(np.isnan(rounded), np.float32(high), rounded)
        return np.clip(rounded, low, high) + residual.stored_zero_point


def channel_axes(workload: Computation) -> tuple[str, ...]:
    """Return the axes of the output whose elements have a bias and a scale of their own."""
    # Those that the second factor has too: the filters of a convolution, groups included, or the
    # columns of a GEMM.
    output, weights = (
        set(workload.access(operand.name).iterators)
        for operand in (workload.output, workload.inputs[1])
    )
    return tuple(axis.name for axis in workload.axes if axis.name in output & weights)


def channel_numbers(workload: Computation) -> NDArray[np.int64]:
    """Return the channel's number of each output element, row-major over :func:`channel_axes`."""
    dimensions = [i.single_iterator for i in workload.access(workload.output.name).index]
    places = np.indices(workload.output.shape, sparse=True)
    total = np.zeros(workload.output.shape, np.int64)
    for axis in channel_axes(workload):
        total = total * workload.extents[axis] + places[dimensions.index(axis)]
    return total
