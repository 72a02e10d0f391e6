"""Epilogue: what is stored of the sums, fused into the store; one description for every target.

In floats ``(sum + bias) * scale``, then the activation, then rounding to the nearest even, the zero
point and saturation: the requantization of ONNX's QLinearConv and of oneDNN's post-ops. A residual
is added to that as ONNX's QLinearAdd adds it, and stored anew.
In integers ``(sum + bias) >> shift``, the activation, clipping and saturation: that of VTA's ALU,
and of fixed-point inference. Each target lowers what it can and refuses the rest
(:class:`LoweringError`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.placement import Placement
from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info, is_integer, numpy_dtype

SCALE, BIAS, RESIDUAL = "@scale", "@bias", "@residual"
"""Names under which a kernel takes its vectors, and a residual, beside the operands, whose names
are identifiers."""

BYTES = ("int8", "uint8")
MAX_SHIFT = 31
"""Bits of a word but for its sign."""
RESULT_TYPES = ("int32", "float32", "bfloat16", "int8", "uint8", "float16")
PROCESSOR_RESULT_TYPES = RESULT_TYPES[:-1]
"""Those that kernels of processors store."""


@dataclass(frozen=True)
class Storing:
    """What is to be stored of the sums, as a command is told: None and False leave it to the
    target."""

    output: str | None = None
    shift: int | None = None
    bias: bool = False
    scale: bool = False
    relu: bool = False

    @property
    def steps(self) -> tuple[str, ...]:
        """Steps between the sums and the conversion, in words."""
        steps = {"relu": self.relu, "a bias": self.bias, "a scale": self.scale}
        return tuple(name for name, wanted in steps.items() if wanted)

    def epilogue(self, target: str, sums: str) -> Epilogue | None:
        """None where nothing is asked. A shift makes int8 where no type is asked for.

        Raises :class:`WorkloadError` for steps that do not go together.
        """
        if self.shift is not None and not is_integer(sums):
            raise WorkloadError(f"a shift is of integers, and {target} sums {sums}: leave it out")
        if self.output is None and self.shift is None and not self.steps:
            return None
        output = self.output or (sums if self.shift is None else "int8")
        return Epilogue(output, self.scale, self.bias, self.relu, self.shift or 0)


@dataclass(frozen=True)
class Residual:
    """Another tensor of the output's shape, of type ``dtype``, that is added to the stored values.

    Both are what integers of eight bits stand for: of ``q``, which the epilogue would store with
    zero point z, and ``r`` are stored
    ``round(fma(q - z, own_scale, (r - zero_point) * scale)) + stored_zero_point``, limited to
    ``clip``: in float32, the sum rounded once. Floats are added as they are, then limited to
    at least 0 with ``relu``. ``placement``: where it lies; None: as the output's original does.
    Without ``rounds``, what would become ``q - z`` is a float, not rounded and not limited.
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
class Epilogue:
    """What happens to the sums before they are stored as ``dtype``.

    ``bias``: a vector of the sums' type, an element for each channel, is added; ``scale``: a
    float32 vector, likewise, is multiplied in float32; ``relu``: negative values become 0. With a
    scale, integers are rounded, ``zero_point`` is added, and they are limited to ``clip``, two
    numbers. Without one, integers stay integers on the way to an integer result: these are shifted
    right by ``shift`` bits, the sign kept, and limited likewise; ``wraps``: the lower bits are
    stored, without saturation. A NaN is stored as the largest integer. A ``residual`` comes last.
    ``placement``: where the output's elements are stored; None: in a buffer of their own.
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

    def __post_init__(self) -> None:
        if self.dtype not in RESULT_TYPES:
            raise WorkloadError(
                f"a kernel stores {', '.join(RESULT_TYPES)}, not {self.dtype}: choose one of these"
            )
        if self.residual is not None:
            self._check_residual(self.residual)
        if self.is_requantized:
            if self.dtype not in BYTES or self.shift or self.wraps:
                raise WorkloadError(
                    "a zero point, and clipping after a scale, are of int8 and uint8 without a "
                    "shift: store one of these"
                )
            self._check_range()
            return
        if not self.is_integral:
            return
        if self.scale or not is_integer(self.dtype):
            raise WorkloadError(
                "a shift, and clipping, are of integers: leave them out, or the scale, and store "
                "integers"
            )
        self._check_range()

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
            "a residual added": self.residual is not None,
        }
        return ", ".join([self.dtype, *(step for step, taken in steps.items() if taken)])

    @property
    def is_integral(self) -> bool:
        """Whether there is a step that only integers have."""
        return bool(self.shift or (self.clip and not self.scale) or self.wraps)

    @property
    def is_requantized(self) -> bool:
        """Whether rounded results are moved or limited before they are stored."""
        return self.scale and bool(self.zero_point or self.clip)

    @property
    def range(self) -> tuple[int, int]:
        """What integer results are limited to."""
        return self.clip or dtype_info(self.dtype).integer_range

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the vectors that the kernel takes, in its order of parameters."""
        return (*([BIAS] if self.bias else []), *([SCALE] if self.scale else []))

    def vector_dtype(self, name: str, sums: str) -> str:
        return "float32" if name == SCALE else sums

    @property
    def parameters(self) -> tuple[str, ...]:
        """All that a kernel takes beside the operands, in its order."""
        return self.vectors if self.residual is None else (*self.vectors, RESIDUAL)

    @property
    def is_of_sum_alone(self) -> bool:
        """Whether a result depends on its sum only, and lies where the sum would."""
        return not (self.parameters or self.placement)

    def in_integers(self, sums: str) -> bool:
        """Whether no float is involved."""
        return is_integer(sums) and is_integer(self.dtype) and not self.scale

    def expression(self, value: str, sums: str, channel: str, residual: str = "") -> str:
        """TVMScript of the result, from the sum ``value`` of type ``sums``; ``residual`` is the
        element of that."""
        if self.bias:
            value = f"({value} + Bias[{channel}])"
        if self.in_integers(sums):
            return self._integer(value, sums)
        if sums != "float32":
            value = f'T.cast({value}, "float32")'
        if self.scale:
            value = f"{value} * Scale[{channel}]"
        if self.relu:
            value = _relu(value)
        if self.residual is not None:
            return self._added(value, self.residual, residual)
        return self._converted(value)

    def _added(self, value: str, residual: Residual, other: str) -> str:
        if self.dtype == "float32":
            value = f"({value} + {other})"
            return _relu(value) if residual.relu else value
        if residual.rounds:
            low, high = self.stored_range
            value = f"T.nearbyint(T.max(T.min({value}, {float32(high)}), {float32(low)}))"
        moved = f'T.cast(T.cast({other}, "int32") - {residual.zero_point}, "float32")'
        value = (
            f"T.fma({value}, {float32(residual.own_scale)}, {moved} * {float32(residual.scale)})"
        )
        low, high = self.residual_range
        return _byte_bits(value, self.dtype, low, high, residual.stored_zero_point)

    @property
    def stored_range(self) -> tuple[int, int]:
        """What rounded results are limited to before the zero point is added."""
        low, high = self.range
        return low - self.zero_point, high - self.zero_point

    @property
    def residual_range(self) -> tuple[int, int]:
        """What the sum with a residual is limited to before its zero point is added."""
        assert self.residual is not None
        low, high = self.residual.clip or dtype_info(self.dtype).integer_range
        moved = self.residual.stored_zero_point
        return low - moved, high - moved

    def _integer(self, value: str, sums: str) -> str:
        if self.shift:
            value = f"T.shift_right({value}, T.{sums}({self.shift}))"
        if self.relu:
            value = f"T.max({value}, T.{sums}(0))"
        if self.wraps:
            return f'T.cast({value}, "{self.dtype}")'
        if self.dtype == sums and self.clip is None:
            return value
        low, high = self.range
        return f'T.cast(T.max(T.min({value}, T.{sums}({high})), T.{sums}({low})), "{self.dtype}")'

    def _converted(self, value: str) -> str:
        if self.dtype == "float32":
            return value
        if self.dtype == "float16":
            return f'T.cast({value}, "float16")'
        if self.dtype == "bfloat16":
            return f'T.cast({_bfloat16_bits(value)}, "uint16")'
        if self.dtype in BYTES:
            return _byte_bits(value, self.dtype, *self.stored_range, self.zero_point)
        low, high = saturated_range(self.dtype)
        clipped = f"T.max(T.min({value}, T.float32({high})), T.float32({low}))"
        return f'T.cast(T.nearbyint({clipped}), "{self.dtype}")'

    @np.errstate(all="ignore")
    def apply(
        self,
        sums: NDArray[Any],
        vectors: dict[str, NDArray[Any]],
        channel: NDArray[np.int64],
        residual: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """What a kernel stores, by numpy; ``channel`` holds each element's channel.

        The kernel's operations in its order and precision, so that results are equal bit for bit;
        but for results of bfloat16 up to 2^-126, which VCVTNE2PS2BF16 makes 0.
        """
        value: NDArray[Any] = sums
        if self.bias:
            value = value + vectors[BIAS][channel]
        integers = self.in_integers(str(sums.dtype))
        if not integers:
            value = value.astype(np.float32)
        if self.scale:
            value = value * vectors[SCALE][channel]
        if self.shift:
            value = np.right_shift(value, self.shift)
        if self.relu:
            value = np.maximum(value, value.dtype.type(0))
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
        # What float16 does not hold becomes infinite, in kernels too.
        return value.astype(numpy_dtype(self.dtype))

    def _with_residual(
        self, value: NDArray[Any], residual: Residual, other: NDArray[Any]
    ) -> NDArray[Any]:
        if self.dtype == "float32":
            value = value + other
            return np.maximum(value, np.float32(0)) if residual.relu else value
        moved = (other.astype(np.int32) - residual.zero_point).astype(np.float32)
        added = (moved * np.float32(residual.scale)).astype(np.float64)
        # The product of two float32 is exact in float64, so that the sum is rounded once.
        exact = value.astype(np.float64) * np.float64(np.float32(residual.own_scale)) + added
        low, high = self.residual_range
        rounded = np.rint(exact.astype(np.float32))
        rounded = np.where(np.isnan(rounded), np.float32(high), rounded)
        return np.clip(rounded, low, high) + residual.stored_zero_point


def saturated_range(dtype: str) -> tuple[float, float]:
    """Smallest and largest float32 that an integer type holds.

    >>> saturated_range("int32")
    (-2147483648.0, 2147483520.0)
    """
    low, high = dtype_info(dtype).integer_range
    largest = np.float32(high)
    # In numpy's comparison, the integer would be rounded as well.
    if float(largest) > high:
        largest = np.nextafter(largest, np.float32(0))
    return float(low), float(largest)


_WHOLE = 3 << 22
"""Added to a float32 of a smaller magnitude than 2^22: of the sum, the last bit is one, so that it
is rounded to the nearest even, and its lower bits are the integer's, in two's complement."""


def _relu(value: str) -> str:
    """A NaN stays one: of that and another number, TVM's maximum is the second."""
    return f"T.max(T.float32(0), {value})"


def _byte_bits(value: str, dtype: str, low: int, high: int, zero_point: int) -> str:
    """The byte of a float32, limited, rounded, and moved by the zero point.

    Not by a conversion to integers, some vectors of which LLVM takes apart lane by lane (half the
    time of a 1x1 layer from 64 to 256 channels): the low eight bits of an int32 are taken.
    """
    clipped = f"T.max(T.min({value}, T.float32({high})), T.float32({low}))"
    whole = f'T.reinterpret({clipped} + T.float32({_WHOLE}), dtype="int32")'
    moved = f"{whole} + T.int32({zero_point})" if zero_point else whole
    return f'T.cast({moved}, "{dtype}")'


def float32(value: float) -> str:
    """A constant of TVMScript that is this float32 and no neighbour."""
    return f"T.float32({float(np.float32(value))!r})"


def _bfloat16_bits(value: str) -> str:
    """The upper half of a float32, rounded to the nearest even; a NaN stays one."""
    bits = f'T.reinterpret({value}, dtype="uint32")'
    odd = f"T.bitwise_and(T.shift_right({bits}, T.uint32(16)), T.uint32(1))"
    rounded = f"T.shift_right({bits} + T.uint32(32767) + {odd}, T.uint32(16))"
    # To the compiler a number is equal to itself: the bits of a NaN tell.
    is_nan = f"T.bitwise_and({bits}, T.uint32({0x7FFFFFFF})) > T.uint32({0x7F800000})"
    return f"T.if_then_else({is_nan}, T.uint32(32704), {rounded})"


def channel_axes(workload: Computation) -> tuple[str, ...]:
    """Axes of the output whose elements have a bias and a scale of their own: those that the
    second factor has too, the filters of a convolution, groups included, the columns of a GEMM."""
    output, weights = (
        {name for index in workload.access(operand.name).index for name in index.iterators}
        for operand in (workload.output, workload.inputs[1])
    )
    return tuple(axis.name for axis in workload.axes if axis.name in output & weights)


def channel_numbers(workload: Computation) -> NDArray[np.int64]:
    """Of each element of the output, in its shape: the number of its channel, in row-major order
    of :func:`channel_axes`."""
    dimensions = [i.single_iterator for i in workload.access(workload.output.name).index]
    places = np.indices(workload.output.shape, sparse=True)
    total = np.zeros(workload.output.shape, np.int64)
    for axis in channel_axes(workload):
        total = total * workload.extents[axis] + places[dimensions.index(axis)]
    return total


def random_vectors(
    workload: Computation, epilogue: Epilogue, sums: NDArray[Any], seed: int
) -> dict[str, NDArray[Any]]:
    """A bias and a scale for an epilogue that has them, by name, with an extent for each of
    :func:`channel_axes`: biases of the size of the ``sums``, and scales with which results span
    the stored type's range (of wide types a byte's), some beyond it."""
    if not epilogue.vectors:
        return {}
    generator = np.random.default_rng(seed)
    shape = tuple(workload.extents[axis] for axis in channel_axes(workload))
    size = max(1e-6, float(np.sqrt(np.mean(sums.astype(np.float64) ** 2))))
    found: dict[str, NDArray[Any]] = {}
    if epilogue.bias:
        dtype = epilogue.vector_dtype(BIAS, workload.output.dtype)
        found[BIAS] = (generator.normal(size=shape) * size / 2).astype(numpy_dtype(dtype))
    if epilogue.scale:
        largest = 255 if epilogue.dtype == "uint8" else 127
        wanted = generator.uniform(0.5, 1.5, shape) * largest / 2
        found[SCALE] = (wanted / size).astype(np.float32)
    return found
