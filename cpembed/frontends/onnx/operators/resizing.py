"""Images of other sizes: by the kind of the graph where that says the same, else by gathering the
neighbours of each result along one axis after the other and weighing them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.emitter import is_float
from cpembed.frontends.expressions import add, mul
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.graph.kinds import Gather, Input, Resize, Scalar
from cpembed.graph.kinds.base import Array, axis_of

_LARGEST = 1 << 20
_KNOWN = ("half_pixel", "asymmetric", "align_corners")
"""Coordinates of the graph's own kind."""
_COORDINATES = (*_KNOWN, "half_pixel_symmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn")
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_POLICIES = ("stretch", "not_larger", "not_smaller")


@dataclass(frozen=True)
class Settings:
    """Attributes of Resize, by their names in the format."""

    mode: str
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False

    def places(self, size: int, result: int, scale: float) -> Array:
        """Where on an axis of ``size`` each of ``result`` elements is read.

        A scale that is the ratio of the sizes as far as float32 can say it is that ratio: then the
        places are exact but for one rounding of float64, so that the middle between two elements is
        the middle. Any other scale is computed with in float32, as runtimes do: which of two
        neighbours is nearest may depend on it.
        """
        at = np.arange(result, dtype=np.int64)
        if self.coordinates == "align_corners":
            return at * (size - 1) / max(1, result - 1)
        if self.coordinates == "pytorch_half_pixel" and result == 1:
            return np.zeros(1)
        if np.float32(result) / np.float32(size) == np.float32(scale):
            match self.coordinates:
                case "asymmetric":
                    return at * size / result
                case "tf_half_pixel_for_nn":
                    return (2 * at + 1) * size / (2 * result)
                case _:
                    return ((2 * at + 1) * size - result) / (2 * result)
        one = np.float32
        middle, factor = at.astype(one) + one(0.5), one(scale)
        match self.coordinates:
            case "asymmetric":
                return at.astype(one) / factor
            case "tf_half_pixel_for_nn":
                return middle / factor
            case "half_pixel_symmetric":
                adjusted = one(result) / (factor * one(size))
                return one(size) / one(2) * (one(1) - adjusted) + middle / factor - one(0.5)
            case _:
                return middle / factor - one(0.5)

    def rounded(self, places: Array) -> Array:
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
        """Indices and weights of what each of ``result`` elements is made of, [neighbour,
        element]."""
        places = self.places(size, result, scale).astype(np.float64)
        if self.mode == "nearest":
            index = np.clip(self.rounded(places), 0, size - 1)[None]
            return index.astype(np.int64), np.ones_like(index)
        spread = max(1.0, 1 / scale) if self.antialias else 1.0
        reach = math.ceil((2 if self.mode == "cubic" else 1) * spread)
        low = np.floor(places)
        index = low[None] + np.arange(1 - reach, reach + 1)[:, None]
        distance = np.abs(places[None] - index) / spread
        weights = self._cubic(distance) if self.mode == "cubic" else np.maximum(0, 1 - distance)
        if self.exclude_outside:
            weights = weights * ((index >= 0) & (index < size))
        if self.exclude_outside or self.antialias:
            weights = weights / weights.sum(0)
        return np.clip(index, 0, size - 1).astype(np.int64), weights

    def _cubic(self, x: Array) -> Array:
        """Keys 1981, "Cubic convolution interpolation for digital image processing"."""
        a = self.cubic
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def resize(site: Site) -> str:
    first = site.version < 11
    settings = Settings(
        site.text("mode", "nearest"),
        "asymmetric"
        if first
        else site.text("coordinate_transformation_mode", "half_pixel", _COORDINATES),
        "floor" if first else site.text("nearest_mode", "round_prefer_floor", _ROUNDINGS),
        site.number("cubic_coeff_a", -0.75),
        site.flag("exclude_outside"),
        site.flag("antialias"),
    )
    shape = site.type().shape
    scales = site.optional_constant(1 if first else 2, "the scales")
    sizes = None if first else site.optional_constant(3, "the sizes")
    axes = [
        axis_of(axis, len(shape)) for axis in site.list_of("axes", tuple(range(len(shape)))) or ()
    ]
    factors, results = [1.0] * len(shape), [*shape]
    if sizes is not None and sizes.size:
        for axis, size in zip(axes, sizes.reshape(-1).tolist(), strict=True):
            factors[axis], results[axis] = size / shape[axis], int(size)
        _keep_ratio(site, axes, factors, results)
    elif scales is not None and scales.size:
        for axis, scale in zip(axes, scales.reshape(-1).tolist(), strict=True):
            factors[axis], results[axis] = scale, scaled_size(shape[axis], scale)
    else:
        site.refuse("neither scales nor sizes are given")
    return resized(site, settings, factors, results)


def scaled_size(size: int, scale: float) -> int:
    """How many elements an axis has after it is scaled: of the product in float32, as
    runtimes compute it.

    >>> scaled_size(10, float(np.float32(1.3)))
    13
    """
    return math.floor(np.float32(size) * np.float32(scale))


def _keep_ratio(site: Site, axes: list[int], factors: list[float], results: list[int]) -> None:
    """``keep_aspect_ratio_policy``: one factor for all axes."""
    policy = site.text("keep_aspect_ratio_policy", "stretch", _POLICIES)
    if policy == "stretch":
        return
    chosen = (min if policy == "not_larger" else max)(factors[axis] for axis in axes)
    for axis in axes:
        factors[axis] = chosen
        results[axis] = math.floor(site.type().shape[axis] * chosen + 0.5)


def upsample(site: Site) -> str:
    scales = site.attribute("scales")
    if scales is None:
        scales = site.constant(1, "the scales").reshape(-1).tolist()
    shape = site.type().shape
    results = [scaled_size(n, s) for s, n in zip(scales, shape, strict=True)]
    settings = Settings(site.text("mode", "nearest"), "asymmetric", "floor")
    return resized(site, settings, list(scales), results)


def resized(site: Site, settings: Settings, factors: list[float], results: list[int]) -> str:
    """The input with ``results`` elements on its axes."""
    x, shape, dtype = site.input(), site.type().shape, site.type().dtype
    if settings.mode not in ("nearest", "linear", "cubic"):
        site.refuse(f"mode {settings.mode} is not known: use nearest, linear or cubic")
    if max(results, default=1) > _LARGEST:
        raise WorkloadError(f"{list(shape)} resized to {results}: sizes are below a million")
    if 0 in results[:2] and list(shape[:2]) == results[:2] and min(results[2:], default=1) > 0:
        return site.tensor(np.zeros(results), dtype)
    if min((*results, *shape), default=1) < 1 or min(factors, default=1.0) <= 0:
        raise WorkloadError(f"{list(shape)} resized to {results}: sizes are at least 1")
    if settings.coordinates == "align_corners" and not _have_whole_sizes(shape, results, factors):
        site.refuse(
            "align_corners with scales that make a fraction of an element, which the format does "
            "not define: give the sizes"
        )
    if tuple(results) == shape and all(factor == 1.0 for factor in factors):
        return x
    if settings.mode == "nearest" and settings.antialias:
        site.refuse("antialias of the nearest element is not defined: use linear or cubic")
    if settings.mode != "nearest" and not is_float(dtype):
        # The format leaves it open: ONNX Runtime drops the fraction, its reference rounds.
        x = site.cast(x, "float32")
    return site.cast(_resized(site, x, settings, factors, results), dtype)


def _resized(
    site: Site, x: str, settings: Settings, factors: list[float], results: list[int]
) -> str:
    shape = site.shape(x)
    if tuple(results[:2]) == shape[:2] and _is_known(settings, shape, results, factors):
        nearest = settings.nearest
        return site.emit(
            Resize(tuple(results[2:]), settings.mode, settings.coordinates, nearest), x
        )
    for axis, (size, result) in enumerate(zip(shape, results, strict=True)):
        if size != result or factors[axis] != 1.0:
            index, weights = settings.neighbours(size, result, factors[axis])
            x = _weighed(site, x, axis, index, weights)
    return x


def _have_whole_sizes(shape: Sequence[int], results: list[int], factors: list[float]) -> bool:
    """Whether each factor is the ratio of the sizes, as far as float32 can say it."""
    sizes = zip(shape, results, factors, strict=True)
    return all(np.float32(r) / np.float32(s) == np.float32(f) for s, r, f in sizes)


def _is_known(
    settings: Settings, shape: Sequence[int], results: list[int], factors: list[float]
) -> bool:
    """Whether the graph's own kind says the same."""
    plain = settings.coordinates in _KNOWN and not settings.antialias
    if not plain or not _have_whole_sizes(shape, results, factors):
        return False
    if settings.mode == "linear":
        return not settings.exclude_outside
    return settings.mode == "nearest" and settings.nearest in ("floor", "round_prefer_floor")


def _weighed(site: Site, x: str, axis: int, index: Array, weights: Array) -> str:
    """Along one axis, of each result the neighbours by their weights."""
    parts: list[str] = []
    total: Scalar | None = None
    rank = len(site.shape(x))
    shape = [-1 if k == axis else 1 for k in range(rank)]
    for row, factor in zip(index, weights, strict=True):
        if not factor.any():
            continue
        parts.append(site.emit(Gather(axis), x, site.tensor(row)))
        if len(weights) == 1:
            return parts[0]
        parts.append(site.tensor(factor.reshape(shape), "float32"))
        term = mul(Input(len(parts) - 2), Input(len(parts) - 1))
        total = term if total is None else add(total, term)
    assert total is not None
    return site.elementwise(total, *parts)


TABLE: dict[str, Translation] = {"Resize": resize, "Upsample": upsample}
