"""Inputs with which saved kernels are checked on a GPU, and what they have to store.

The numbers are few small integers, so that sums of floats are exact in whatever order a kernel adds
them, and a product that is left out shows. A last case has the smallest numbers of the type, zeros
of both signs, NaN and infinities. ``remote/check.py`` generates the same inputs from the seeds; of
the results it knows checksums, and a sample.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import (
    BIAS,
    RESIDUAL,
    SCALE,
    SECOND,
    Chain,
    Epilogue,
    SecondResult,
    channel_axes,
    channel_numbers,
)
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import dtype_info, is_integer, numpy_dtype, size_bytes
from cpembed.ir.reference import reference
from cpembed.targets.cuda.remote.check import canonical, generated

Array = NDArray[Any]

SLICES = 64
"""Number of parts of a result that have a checksum each."""

SAMPLE = 16384
"""Number of elements of a result that are stored."""

RARE = 4
"""Number of times that each special number is drawn in a tensor, at most on average."""

# Largest numbers whose products with small integers are exact in float32.
_LARGE = {"float16": 65504.0, "bfloat16": 32640.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}

_EXACT = {"float32": 2.0**24, "float16": 2.0**11}
"""Bound below which every integer is a number of the type, and so every sum of integers exact."""


@dataclass(frozen=True)
class Drawing:
    """Numbers that a tensor's elements are drawn from.

    Attributes
    ----------
    seed : int
        Seed of the generator.
    dtype : str
    values : tuple of float
        Numbers that are equally frequent.
    rare : tuple of float
        Numbers each of which is drawn once in ``rare_one_in`` elements.
    """

    seed: int
    dtype: str
    values: tuple[float, ...]
    rare: tuple[float, ...] = ()
    rare_one_in: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the document that the generator reads: numbers as their bits."""
        return {
            "seed": self.seed,
            "values": _bits(self.values, self.dtype),
            "rare": _bits(self.rare, self.dtype),
            "rare_one_in": self.rare_one_in,
        }

    def array(self, shape: Sequence[int]) -> Array:
        """Return a tensor of the numbers."""
        dtype = numpy_dtype(self.dtype)
        data = generated(self.to_json(), math.prod(shape), dtype.itemsize)
        return np.frombuffer(data, dtype).reshape(tuple(shape)).copy()


def _bits(numbers: Sequence[float], dtype: str) -> list[int]:
    array = np.asarray(numbers).astype(numpy_dtype(dtype))
    return [int(bits) for bits in array.view(f"u{size_bytes(dtype)}")]


@dataclass(frozen=True)
class Expected:
    """A result, and the rule by which a GPU's is compared with it.

    Attributes
    ----------
    array : ndarray
    absolute, relative : float
        Tolerance of each element; both are 0 if all bits have to be equal, but for the sign of
        zeros and the bits of a NaN.
    spreads : bool
        True if an input has NaN or infinities. Kernels that multiply zeros with which they pad a
        sum may make more results NaN than the definition does, but not all of them.
    """

    array: Array
    absolute: float = 0.0
    relative: float = 0.0
    spreads: bool = False

    @property
    def rule(self) -> str:
        """Rule of the comparison: ``exact`` by checksums, the others on the sample."""
        if self.spreads:
            return "special"
        return "exact" if self.absolute == self.relative == 0 else "tolerance"

    @property
    def sample_step(self) -> int:
        """Distance of the elements of the sample in the flat result."""
        step = -(-self.array.size // SAMPLE)
        # An odd distance reaches all columns of a matrix whose rows are a power of two.
        return step if step == 1 else step | 1

    def sample(self) -> bytes:
        """Return the stored elements of the result."""
        return self.array.reshape(-1)[:: self.sample_step].tobytes()

    def to_json(self, sample: str) -> dict[str, Any]:
        """Return the document of a manifest; ``sample`` is the file that holds the sample."""
        flat = self.array.reshape(-1)
        length = -(-flat.size // SLICES)
        dtype = self.array.dtype.name
        parts = [flat[first : first + length] for first in range(0, flat.size, length)]
        return {
            "rule": self.rule,
            "absolute": self.absolute,
            "relative": self.relative,
            "slice_elements": length,
            "crc32": [zlib.crc32(canonical(part.tobytes(), dtype)) for part in parts],
            "sample": sample,
            "sample_step": self.sample_step,
        }


@dataclass(frozen=True)
class Case:
    """Inputs by tensor, and results by tensor."""

    name: str
    drawings: Mapping[str, Drawing]
    shapes: Mapping[str, tuple[int, ...]]
    results: Mapping[str, Expected]

    def to_json(
        self, inputs: Mapping[str, str], outputs: Mapping[str, str], samples: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the document of a manifest.

        Parameters
        ----------
        inputs, outputs : mapping of str to str
            Tensor by the name of its buffer.
        samples : mapping of str to str
            Name of the file that holds the sample of each result.
        """
        drawn: dict[str, Any] = {}
        for buffer, tensor in inputs.items():
            drawing = self.drawings[tensor]
            data = drawing.array(self.shapes[tensor]).tobytes()
            drawn[buffer] = drawing.to_json() | {"crc32": zlib.crc32(data)}
        expected = {
            buffer: self.results[tensor].to_json(samples[tensor])
            for buffer, tensor in outputs.items()
        }
        return {"name": self.name, "inputs": drawn, "expected": expected}


def cases_of(workload: Computation, epilogue: Epilogue | None) -> list[Case]:
    """Return the cases of a workload: small integers, these with the largest numbers, special ones.

    Integers are of the entire range of their type at once, so they have one case.
    """
    cases = [case_of("integers", workload, epilogue, _factors(workload))]
    floats = any(not is_integer(operand.dtype) for operand in workload.inputs)
    if not floats or workload.macs >= _MOST_PRODUCTS:
        return cases
    large = _factors(workload, large=True)
    # A sum of so many large numbers would not be exact, or overflow in another order.
    if _largest_sum(workload, large) < _EXACT[workload.output.dtype]:
        cases.append(case_of("large", workload, epilogue, large))
    special = _special_factors(workload, epilogue)
    if special is not None:
        cases.append(case_of("special", workload, epilogue, special))
    return cases


_SMALLEST = {
    "float16": 2.0**-24, "bfloat16": 2.0**-126, "float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16,
}  # fmt: skip
"""Smallest subnormal number of a type; of bfloat16 the smallest that is normal, because what is
below is subnormal in the float32 sums too."""

_FEWEST_NUMBERS = 1024
"""Number of elements below which a tensor has no NaN and no infinities."""

_WITHOUT_INFINITY = ("float8_e4m3fn",)


def _special_factors(workload: Computation, epilogue: Epilogue | None) -> dict[str, Drawing] | None:
    """Return factors whose sums are multiples of the smallest number, NaN or infinite.

    NaN and infinities are left out of small tensors, and where integers are stored, in which they
    are undefined. None if sums are not exact.
    """
    drawings = _factors(workload)
    first = workload.inputs[0]
    if first.dtype not in _SMALLEST:
        return None
    least = _SMALLEST[first.dtype]
    if _largest_sum(workload, drawings) >= _EXACT[workload.output.dtype]:
        return None
    stored = [] if epilogue is None else [epilogue.dtype]
    if epilogue is not None and epilogue.second is not None:
        stored.append(epilogue.second.dtype)
    rare: tuple[float, ...] = (math.nan, math.inf, -math.inf)
    if first.dtype in _WITHOUT_INFINITY:
        rare = rare[:1]
    # In a few numbers, NaN could spread over all results.
    few = math.prod(first.shape) < _FEWEST_NUMBERS
    rare = () if few or any(map(is_integer, stored)) else rare
    # As large as the integers, so that sums of them are exact as well, with zeros of both signs.
    values = tuple(value * least for value in drawings[first.tensor].values)
    # A few only: each may spread over all results that a padded sum combines with its position.
    one_in = max(64, 2 * math.prod(first.shape) // RARE) if rare else 1
    drawing = Drawing(_SPECIAL_SEED, first.dtype, (*values, 0.0, -0.0), rare, one_in)
    return drawings | {first.tensor: drawing}


_MOST_PRODUCTS = 1 << 34
"""Number of products beyond which a second case would take minutes of this machine."""


def _depth(workload: Computation) -> int:
    return math.prod(a.extent for a in workload.axes if a.kind is AxisKind.REDUCTION)


def _factors(workload: Computation, *, large: bool = False) -> dict[str, Drawing]:
    """Return the numbers of a workload's factors."""
    drawings: dict[str, Drawing] = {}
    for number, operand in enumerate(workload.inputs):
        if operand.tensor in drawings:
            continue
        if is_integer(operand.dtype):
            low, high = dtype_info(operand.dtype).integer_range
            values = tuple(float(n) for n in range(low, high + 1))
            drawings[operand.tensor] = Drawing(number + 1, operand.dtype, values)
            continue
        # float16 sums of at most 2,048 products of these are exact, longer ones with zeros among
        # them; float32 sums of larger integers are, up to four million.
        values = (-2.0, -1.0, 1.0, 2.0)
        if workload.output.dtype == "float16":
            share = min(1.0, 32 / math.sqrt(_depth(workload)))
            values = (-1.0, 1.0, *[0.0] * round(2 / share - 2))
        rare = (-0.0, *((s * _LARGE[operand.dtype]) for s in (1, -1))) if large else ()
        # In one factor only: products of two would be infinite, or not exact.
        rare = rare if number == 0 else ()
        one_in = max(64, math.prod(operand.shape) // RARE) if rare else 1
        drawings[operand.tensor] = Drawing(number + 1, operand.dtype, values, rare, one_in)
    return drawings


def _arrays(workload: Computation, drawings: Mapping[str, Drawing]) -> dict[str, Array]:
    shapes = {operand.tensor: operand.shape for operand in workload.inputs}
    return {name: drawings[name].array(shape) for name, shape in shapes.items()}


def _largest_sum(workload: Computation, drawings: Mapping[str, Drawing]) -> float:
    """Return the largest sum of magnitudes of the products of one element."""
    arrays = _arrays(workload, drawings)
    wide = workload.with_dtypes({operand.name: "float64" for operand in workload.operands})
    magnitudes = {name: np.abs(array.astype(np.float64)) for name, array in arrays.items()}
    return float(reference(wide, magnitudes).max())


def case_of(
    name: str, workload: Computation, epilogue: Epilogue | None, factors: Mapping[str, Drawing]
) -> Case:
    """Return a case with the result of the workload and of its epilogue.

    Parameters
    ----------
    name : str
        Name of the case.
    workload : Computation
    epilogue : Epilogue or None
    factors : mapping of str to Drawing
        Numbers of the workload's factors.
    """
    with np.errstate(invalid="ignore"):
        sums = reference(workload, _arrays(workload, factors))
    drawings: dict[str, Drawing] = dict(factors)
    shapes = {operand.tensor: tuple(operand.shape) for operand in workload.inputs}
    spreads = not all(map(math.isfinite, (n for d in factors.values() for n in d.rare)))
    absolute = 0.0
    if workload.output.dtype == "float16" and _depth(workload) > _EXACT["float16"]:
        largest = _largest_sum(workload, factors)
        if largest > _EXACT["float16"]:
            # One rounding for each addition, of sums as large as they can be.
            absolute = _depth(workload) * largest * 2.0**-11
    output = workload.output.name
    if epilogue is None:
        return Case(name, drawings, shapes, {output: Expected(sums, absolute, spreads=spreads)})
    vectors: dict[str, Array] = {}
    channels = tuple(workload.extents[axis] for axis in channel_axes(workload))
    for vector, drawing in _vectors(epilogue, workload, sums).items():
        drawings[vector], shapes[vector] = drawing, channels
        vectors[vector] = drawing.array(channels).reshape(-1)
    residual: Array | None = None
    if epilogue.residual is not None:
        drawings[RESIDUAL] = Drawing(_RESIDUAL_SEED, epilogue.residual.dtype, (-2, -1, 0, 1, 2))
        shapes[RESIDUAL] = tuple(workload.output.shape)
        residual = drawings[RESIDUAL].array(workload.output.shape)
    arguments = (sums, vectors, channel_numbers(workload), residual)
    arrays = {output: epilogue.apply(*arguments)}
    functions: dict[str, Chain | SecondResult | None] = {output: epilogue.chain}
    if epilogue.second is not None:
        arrays[SECOND] = epilogue.apply_second(*arguments)
        functions[SECOND] = epilogue.second
    results: dict[str, Expected] = {}
    for tensor, array in arrays.items():
        if functions[tensor] is None:
            results[tensor] = Expected(array, absolute, spreads=spreads)
            continue
        # Functions of floats are not exact on a GPU, nor is their rounding here: of integers, one
        # may become its neighbour.
        least = 1.0 if is_integer(array.dtype.name) else 1e-5
        results[tensor] = Expected(array, max(absolute, least), 2.0**-9, spreads)
    return Case(name, drawings, shapes, results)


_VECTOR_SEED, _RESIDUAL_SEED, _SPECIAL_SEED = 101, 201, 301


def _vectors(epilogue: Epilogue, workload: Computation, sums: Array) -> dict[str, Drawing]:
    """Return the numbers of an epilogue's vectors: integers, and powers of two as scales."""
    drawings: dict[str, Drawing] = {}
    for number, name in enumerate(epilogue.vectors):
        dtype = epilogue.vector_dtype(name, workload.output.dtype)
        values: tuple[float, ...] = (-8.0, -3.0, -1.0, 0.0, 1.0, 2.0, 5.0)
        if name == SCALE:
            finite = sums.astype(np.float64)
            finite = finite[np.isfinite(finite)]
            size = max(1.0, float(np.sqrt(np.mean(finite**2))) if finite.size else 1.0)
            # Most results are within the range of a byte, and some beyond it.
            largest = 2.0 ** math.floor(math.log2(127 / size))
            values = (largest, largest / 2, largest / 4)
        elif name == BIAS and is_integer(dtype):
            values = (-1000.0, -37.0, 0.0, 1.0, 500.0)
        drawings[name] = Drawing(_VECTOR_SEED + number, dtype, values)
    return drawings
