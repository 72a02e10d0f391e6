"""Images of other sizes.

The graph's own kind is used where it computes the same. Otherwise the neighbours of each element of
the result are gathered along one axis after the other and weighted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.expressions import X, Y, add, mul, where
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.graph.kinds import Gather, Input, Resize, Scalar
from cpembed.graph.kinds.base import Array, axis_of
from cpembed.ir.dtypes import is_integer

_LARGEST = 1 << 20
"""Maximum number of elements of an axis."""
_GRAPH_COORDINATES = ("half_pixel", "asymmetric", "align_corners")
"""Coordinates of :class:`Resize`."""
_COORDINATES = (
    *_GRAPH_COORDINATES, "half_pixel_symmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_POLICIES = ("stretch", "not_larger", "not_smaller")


@dataclass(frozen=True)
class Sampling:
    """Interpolation of Resize by its attributes.

    Attributes
    ----------
    mode, coordinates : str
        Interpolation, and the rule for the place of a result in the image.
    nearest : str
        Rounding of a place to the nearest element.
    cubic : float
        Coefficient of the cubic.
    exclude_outside, antialias : bool
        True to weigh elements outside the image by 0, and to widen the filter where the image
        shrinks.
    region : tuple of float
        Start and end of ``tf_crop_and_resize`` on an axis, as shares of it.
    outside : float
        Value of a result whose place is outside the image, in ``tf_crop_and_resize``.
    """

    mode: str
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    region: tuple[float, float] = (0.0, 1.0)
    outside: float = 0.0

    def places(self, size: int, result: int, scale: float) -> Array:
        """Return the coordinate of each element of the result."""
        steps = np.arange(result, dtype=np.int64)
        if self.coordinates == "align_corners":
            return steps * (size - 1) / max(1, result - 1)
        if self.coordinates == "tf_crop_and_resize":
            start, end = (share * (size - 1) for share in self.region)
            return (
                start + steps * (end - start) / (result - 1)
                if result > 1
                else np.asarray([(start + end) / 2])
            )
        if self.coordinates == "pytorch_half_pixel" and result == 1:
            return np.zeros(1)
        # A scale that is the ratio of the sizes, as far as float32 can represent it, is that ratio:
        # with one rounding of float64 the middle between two elements is the middle.
        if _is_ratio(size, result, scale):
            match self.coordinates:
                case "asymmetric":
                    return steps * size / result
                case "tf_half_pixel_for_nn":
                    return (2 * steps + 1) * size / (2 * result)
                case _:
                    return ((2 * steps + 1) * size - result) / (2 * result)
        # Any other scale is computed with in float32, as runtimes do: the nearest of two neighbours
        # may depend on it.
        f32 = np.float32
        middle, factor = steps.astype(f32) + f32(0.5), f32(scale)
        match self.coordinates:
            case "asymmetric":
                return steps.astype(f32) / factor
            case "tf_half_pixel_for_nn":
                return middle / factor
            case "half_pixel_symmetric":
                adjusted = f32(result) / (factor * f32(size))
                return f32(size) / f32(2) * (f32(1) - adjusted) + middle / factor - f32(0.5)
            case _:
                return middle / factor - f32(0.5)

    def rounded(self, places: Array) -> Array:
        """Round coordinates to the nearest element."""
        match self.nearest:
            case "floor":
                return np.floor(places)
            case "ceil":
                return np.ceil(places)
            case "round_prefer_ceil":
                return np.floor(places + 0.5)
            case _:
                return np.ceil(places - 0.5)

    def neighbours(self, size: int, result: int, scale: float) -> tuple[Array, Array]:
        """Return indices and weights, [neighbours, result], of each result's elements."""
        places = self.places(size, result, scale).astype(np.float64)
        if self.mode == "nearest":
            index = np.clip(self.rounded(places), 0, size - 1)[None]
            return index.astype(np.int64), np.ones_like(index)
        # Against aliasing the filter is as much wider as the image shrinks.
        spread = max(1.0, 1 / scale) if self.antialias else 1.0
        reach = math.ceil((2 if self.mode == "cubic" else 1) * spread)
        index = np.floor(places)[None] + np.arange(1 - reach, reach + 1)[:, None]
        distance = np.abs(places[None] - index) / spread
        weights = self._cubic(distance) if self.mode == "cubic" else np.maximum(0, 1 - distance)
        if self.exclude_outside:
            weights = weights * ((index >= 0) & (index < size))
        if self.exclude_outside or self.antialias:
            weights = weights / weights.sum(0)
        return np.clip(index, 0, size - 1).astype(np.int64), weights

    def _cubic(self, x: Array) -> Array:
        # Keys 1981, "Cubic convolution interpolation for digital image processing".
        a = self.cubic
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))

    def is_of_graph(self, shape: Sequence[int], results: list[int], factors: list[float]) -> bool:
        """Return True if :class:`Resize` computes the same from ``shape`` to ``results``."""
        if self.coordinates not in _GRAPH_COORDINATES or self.antialias:
            return False
        if tuple(results[:2]) != tuple(shape[:2]) or not _are_ratios(shape, results, factors):
            return False
        if self.mode == "linear":
            return not self.exclude_outside
        return self.mode == "nearest" and self.nearest in ("floor", "round_prefer_floor")


def _is_ratio(size: int, result: int, scale: float) -> np.bool:
    """Return True if the scale is the ratio of the sizes, as far as float32 can represent it."""
    return np.float32(result) / np.float32(size) == np.float32(scale)


def _are_ratios(shape: Sequence[int], results: list[int], factors: list[float]) -> bool:
    return all(map(_is_ratio, shape, results, factors))


def _resize(call: Call) -> str:
    first = call.version < 11
    coordinates, nearest = "asymmetric", "floor"
    if not first:
        name = "coordinate_transformation_mode"
        coordinates = call.text(name, "half_pixel", _COORDINATES)
        nearest = call.text("nearest_mode", "round_prefer_floor", _ROUNDINGS)
    sampling = Sampling(
        call.text("mode", "nearest"),
        coordinates,
        nearest,
        cubic=call.number("cubic_coeff_a", -0.75),
        exclude_outside=call.flag("exclude_outside"),
        antialias=call.flag("antialias"),
    )
    shape = call.type().shape
    scales = call.optional_constant(1 if first else 2, "the scales")
    sizes = None if first else call.optional_constant(3, "the sizes")
    numbers = call.list_of("axes", tuple(range(len(shape))))
    axes = [axis_of(axis, len(shape)) for axis in numbers]
    factors, results = [1.0] * len(shape), [*shape]
    if sizes is not None and sizes.size:
        for axis, size in zip(axes, sizes.reshape(-1).tolist(), strict=True):
            factors[axis], results[axis] = size / shape[axis], int(size)
        _keep_ratio(call, axes, factors, results)
    elif scales is not None and scales.size:
        for axis, scale in zip(axes, scales.reshape(-1).tolist(), strict=True):
            factors[axis], results[axis] = scale, scaled_size(shape[axis], scale)
    else:
        call.reject("neither scales nor sizes are given")
    if sampling.coordinates == "tf_crop_and_resize":
        return _cropped(call, sampling, axes, factors, results)
    return _resized(call, [sampling] * len(shape), factors, results)


def _cropped(
    call: Call, sampling: Sampling, axes: list[int], factors: list[float], results: list[int]
) -> str:
    """Resize a region of the node's input; what lies outside the image has a value."""
    shape, value = call.type().shape, call.number("extrapolation_value", 0.0)
    region = call.constant(1, "the region").reshape(-1).astype(np.float64)
    if region.size != 2 * len(axes):
        raise WorkloadError(f"a region of {region.size} numbers for {len(axes)} axes")
    samplings = [sampling] * len(shape)
    for k, axis in enumerate(axes):
        ends = float(region[k]), float(region[len(axes) + k])
        samplings[axis] = replace(sampling, region=ends)
    x = _resized(call, samplings, factors, results)
    for axis, (size, result) in enumerate(zip(shape, results, strict=True)):
        places = samplings[axis].places(size, result, factors[axis])
        inside = (places >= 0) & (places <= size - 1)
        if not inside.all():
            mask = call.tensor(inside.reshape([-1 if k == axis else 1 for k in range(len(shape))]))
            x = call.elementwise(where(X, Y, value), mask, x, dtype=call.dtype(x))
    return x


def scaled_size(size: int, scale: float) -> int:
    """Return the number of elements of a scaled axis, computed in float32 as runtimes do.

    >>> scaled_size(10, float(np.float32(1.3)))
    13
    """
    return math.floor(np.float32(size) * np.float32(scale))


def _keep_ratio(call: Call, axes: list[int], factors: list[float], results: list[int]) -> None:
    """Apply ``keep_aspect_ratio_policy``: one factor for all axes."""
    policy = call.text("keep_aspect_ratio_policy", "stretch", _POLICIES)
    if policy == "stretch":
        return
    # The smallest factor keeps the image within the sizes, the largest fills them.
    factor = (min if policy == "not_larger" else max)(factors[axis] for axis in axes)
    for axis in axes:
        factors[axis] = factor
        results[axis] = math.floor(call.type().shape[axis] * factor + 0.5)


def _upsample(call: Call) -> str:
    scales = call.attribute("scales")
    if scales is None:
        scales = call.constant(1, "the scales").reshape(-1).tolist()
    results = [scaled_size(n, s) for s, n in zip(scales, call.type().shape, strict=True)]
    sampling = Sampling(call.text("mode", "nearest"), "asymmetric", "floor")
    return _resized(call, [sampling] * len(results), list(scales), results)


def _resized(
    call: Call, samplings: Sequence[Sampling], factors: list[float], results: list[int]
) -> str:
    """Resize the node's input to new sizes, by a factor of each axis."""
    sampling = samplings[0]
    x, shape, dtype = call.input(), call.type().shape, call.type().dtype
    if sampling.mode not in ("nearest", "linear", "cubic"):
        call.reject(f"mode {sampling.mode} is not known: use nearest, linear or cubic")
    if max(results, default=1) > _LARGEST:
        raise WorkloadError(f"{list(shape)} resized to {results}: sizes are below a million")
    # Of no images or channels only the shape of the result is left.
    if 0 in results[:2] and list(shape[:2]) == results[:2] and min(results[2:], default=1) > 0:
        return call.tensor(np.zeros(results), dtype)
    if min((*results, *shape), default=1) < 1 or min(factors, default=1.0) <= 0:
        raise WorkloadError(f"{list(shape)} resized to {results}: sizes are at least 1")
    if sampling.coordinates == "align_corners" and not _are_ratios(shape, results, factors):
        call.reject(
            "align_corners with scales that make a fraction of an element, which the format does "
            "not define: give the sizes"
        )
    is_cropped = any(sampling.region != (0.0, 1.0) for sampling in samplings)
    if tuple(results) == shape and all(factor == 1.0 for factor in factors) and not is_cropped:
        return x
    if sampling.mode == "nearest" and sampling.antialias:
        call.reject("antialias of the nearest element is not defined: use linear or cubic")
    if sampling.mode != "nearest" and is_integer(dtype):
        # The format leaves it open: ONNX Runtime drops the fraction, its reference rounds.
        x = call.cast(x, "float32")
    if sampling.is_of_graph(shape, results, factors):
        kind = Resize(tuple(results[2:]), sampling.mode, sampling.coordinates, sampling.nearest)
        return call.cast(call.emit(kind, x), dtype)
    for axis, (size, result) in enumerate(zip(shape, results, strict=True)):
        sampling = samplings[axis]
        if size != result or factors[axis] != 1.0 or sampling.region != (0.0, 1.0):
            x = _weighted(call, x, axis, *sampling.neighbours(size, result, factors[axis]))
    return call.cast(x, dtype)


def _weighted(call: Call, x: str, axis: int, index: Array, weights: Array) -> str:
    """Sum the neighbours along one axis by their weights, [neighbours, result]."""
    parts: list[str] = []
    total: Scalar | None = None
    shape = [-1 if k == axis else 1 for k in range(len(call.shape(x)))]
    for row, factor in zip(index, weights, strict=True):
        # A neighbour without weight is not gathered.
        if not factor.any():
            continue
        parts.append(call.emit(Gather(axis), x, call.tensor(row)))
        # The nearest element is the only neighbour, of weight 1.
        if len(weights) == 1:
            return parts[0]
        parts.append(call.tensor(factor.reshape(shape), "float32"))
        term = mul(Input(len(parts) - 2), Input(len(parts) - 1))
        total = term if total is None else add(total, term)
    assert total is not None
    return call.elementwise(total, *parts)


TABLE: dict[str, Translation] = {"Resize": _resize, "Upsample": _upsample}
