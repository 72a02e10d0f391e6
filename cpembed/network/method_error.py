"""Errors of Winograd's method in a network: against float64, and against a convolution's own sums.

Sums in float32 are not exact either. A product by Winograd's method is compared with the definition
in float64, and the root mean square of its error with that of sums in float32, made one term after
the other on the same data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import SCALE, channel_numbers
from cpembed.graph.graph import Array
from cpembed.graph.kinds import Product
from cpembed.transform.methods.convolution import as_convolution, explicit
from cpembed.transform.methods.error_growth import MOST_GROWTH, UNIT_ROUNDOFF, magnitudes
from cpembed.transform.methods.winograd import Winograd

_POSITIONS = 128
"""Maximum number of positions of an image at which sums are made term by term."""


@dataclass(frozen=True)
class MethodError:
    """Root mean squares of errors against float64, at some positions of the result.

    Attributes
    ----------
    rms : float
        That of the method.
    sums_rms : float
        That of sums in float32.
    """

    rms: float
    sums_rms: float

    @property
    def growth(self) -> float:
        """Ratio of the method's error to that of sums."""
        if not self.sums_rms:
            return math.inf if self.rms else 0.0
        return self.rms / self.sums_rms

    @property
    def is_within_limit(self) -> bool:
        return self.growth <= MOST_GROWTH


def defined_in_float64(kind: Product, inputs: Sequence[Array]) -> Array:
    """Return a product's result with sums in float64, rounded once before the epilogue."""
    return kind.finished(_float64_sums(kind, inputs), inputs)


def _float64_sums(kind: Product, inputs: Sequence[Array]) -> Array:
    types = {operand.name: "float64" for operand in kind.computation.operands}
    wide = replace(kind, computation=kind.computation.with_dtypes(types), epilogue=None)
    first, second = (array.astype(np.float64) for array in inputs[:2])
    return wide.sums(first, second).astype(kind.computation.output.dtype)


def method_error(kind: Product, inputs: Sequence[Array], actual: Array) -> MethodError | None:
    """Return the error of a method's result; None for float64, of which there is no wider type.

    Parameters
    ----------
    kind : Product
    inputs : sequence of ndarray
        Finite inputs of the product.
    actual : ndarray
        Result of the method.
    """
    if kind.computation.output.dtype != "float32":
        return None
    exact = _float64_sums(kind, inputs)
    sums, variance = _sums_in_turn(kind, inputs)
    sampled = ~np.isnan(sums)
    expected = kind.finished(exact, inputs)
    by_sums = kind.finished(np.where(sampled, sums, exact), inputs)
    places = sampled.reshape(kind.shape)
    rms, sums_rms = (
        float(np.sqrt(np.mean((array.astype(np.float64) - expected)[places] ** 2)))
        for array in (actual, by_sums)
    )
    # Sums of a few small integers are exact: no sum counts as better than independent roundings
    # make it on average.
    expected_rms = math.sqrt(float(variance[sampled].mean()))
    return MethodError(rms, max(sums_rms, expected_rms))


def _sums_in_turn(kind: Product, inputs: Sequence[Array]) -> tuple[Array, Array]:
    """Return sums in float32, made one term after the other, and the variance of their errors.

    Both have the shape of the computation's output, and NaN where they were not made. The variance
    is that of independent roundings.
    """
    workload = kind.computation
    conv, method = as_convolution(workload), explicit(workload, channels_last=True)
    image, weights = (a.reshape(o.shape) for a, o in zip(inputs, workload.inputs, strict=False))
    groups, filters = conv.size(conv.groups), conv.size(conv.filters)
    v = method.image_part(image)
    v = v.reshape(groups, -1, v.shape[-1])
    u = method.weights_part(weights).reshape(groups, -1, filters)
    count = v.shape[1]
    draw = np.random.default_rng(0)
    places = np.sort(draw.permutation(count)[:_POSITIONS])
    # Terms are exact in float64 and each sum is rounded once, as fused multiply-adds do.
    v, u = v[:, places].astype(np.float64), u.astype(np.float64)
    total = np.zeros((groups, len(places), filters), np.float32)
    added = np.zeros(total.shape)
    for term in range(v.shape[2]):
        # In memory of its own: allocating it for each of thousands of terms takes most of the time.
        np.multiply(v[:, :, term, None], u[:, None, term], out=added)
        np.add(added, total, out=added)
        total[...] = added
    squares = np.matmul(v**2, u**2)
    # Partial sums of independent terms have 1, 2 ... N times the mean square of a term; a rounding
    # has a third of the square of the unit roundoff.
    variance = squares * (v.shape[2] + 1) / 6 * UNIT_ROUNDOFF["float32"] ** 2
    arrays: list[Array] = []
    for values in (total, variance):
        array = np.full((groups, count, filters), np.nan, values.dtype)
        array[:, places] = values
        outputs = [window.outputs for window in conv.windows]
        array = array.reshape(groups, conv.size(conv.samples), *outputs, filters)
        arrays.append(conv.output_array(np.moveaxis(array, -1, 2)))
    scaled = kind.epilogue is not None and kind.epilogue.scale
    if scaled:
        number = kind.vectors.index(SCALE)
        scale = inputs[2 + number].reshape(-1).astype(np.float64)
        arrays[1] = arrays[1] * scale[channel_numbers(workload)] ** 2
    return arrays[0], arrays[1]


def reached_by_special_values(method: Winograd, kind: Product, inputs: Sequence[Array]) -> Array:
    """Return which results share a tile with an infinity or a NaN, in the shape of the result.

    Transforms subtract such values from each other, so that all of these may be NaN.

    Parameters
    ----------
    method : Winograd
        Method.
    kind : Product
        Product that it computes.
    inputs : sequence of ndarray
        Inputs of the product.
    """
    conv = method.convolution
    image, weights = (
        a.reshape(o.shape) for a, o in zip(inputs, kind.computation.inputs, strict=False)
    )
    special = (~np.isfinite(image)).astype(np.float64)
    # Transformed with all signs removed, such an element reaches what it is part of.
    ones = np.ones(weights.shape)
    reached = magnitudes(method, {conv.image.name: special, conv.weights.name: ones}) > 0
    if not np.isfinite(weights).all():
        reached |= True
    return reached.reshape(kind.shape)
