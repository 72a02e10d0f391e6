"""What a convolution is rewritten into: three parts around a product of matrices.

V = image part of I      U = weights part of W (ahead of all calls)
M = product of V and U   (a computation that is embedded like any other)
O = output part of M
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.transform.methods.convolution import Array, Convolution

V, U, M = "V", "U", "M"
"""The operands of every product: of the image, of the weights, and its result."""


class Rewritten(ABC):
    """A convolution as parts around a product; every part maps arrays in their own layouts."""

    convolution: Convolution
    product: Computation
    orders: Orders

    @property
    @abstractmethod
    def name(self) -> str:
        """The method, as it is asked for."""

    @abstractmethod
    def image_part(self, image: Array) -> Array:
        """V of I."""

    @abstractmethod
    def weights_part(self, weights: Array) -> Array:
        """U of W: weights do not change between calls."""

    @abstractmethod
    def output_part(self, found: Array) -> Array:
        """O of M, in the layout and the element type of the workload."""

    @property
    def relative_multiplications(self) -> float:
        """Multiplications of the product by those of the convolution, padding of tiles included."""
        return self.product.macs / self.convolution.workload.macs

    def computed(
        self, inputs: Mapping[str, Array], multiply: Callable[[Array, Array], Array]
    ) -> Array:
        """O of the workload's inputs by name; ``multiply`` computes M of V and U."""
        image = inputs[self.convolution.image.name]
        weights = inputs[self.convolution.weights.name]
        return self.output_part(multiply(self.image_part(image), self.weights_part(weights)))

    def multiplied(self, image: Array, weights: Array) -> Array:
        """M of V and U by numpy, in the arrays' arithmetic."""
        last, several = self.orders.last, image.ndim > weights.ndim
        if several:
            # One sample after the other has the same weights.
            weights = np.expand_dims(weights, -3)
        return image @ weights if last else weights @ image


@dataclass(frozen=True)
class Orders:
    """Indices of the product's operands: ``last``: channels and filters are the fastest, in
    ``image`` [.., x, c], ``weights`` [.., c, k] and ``result`` [.., x, k]; else pixels are, in
    [.., c, x], [.., k, c] and [.., k, x]."""

    last: bool

    def statement(self, image: str, weights: str) -> str:
        """The product with leading indices, such as ``e,`` of an image's and a weights' part."""
        if self.last:
            return f"M[{image}x,k] += V[{image}x,c] * U[{weights}c,k]"
        return f"M[{image}k,x] += U[{weights}k,c] * V[{image}c,x]"

    def image(self, found: Array) -> Array:
        """V of ``[.., x, c]``."""
        return found if self.last else found.swapaxes(-1, -2)

    def weights(self, found: Array) -> Array:
        """U of ``[.., k, c]``."""
        return found.swapaxes(-1, -2) if self.last else found

    def result(self, found: Array) -> Array:
        """``[.., x, k]`` of M."""
        return found if self.last else found.swapaxes(-1, -2)


def product(
    statement: str, extents: Mapping[str, int], name: str, types: Mapping[str, str]
) -> Computation:
    """A product's computation, axes in the order of the result's indices, the reduction last; V is
    made anew for every call wherever it stands."""
    result = statement[2 : statement.index("]")].split(",")
    order = {axis: extents[axis] for axis in (*result, "c")}
    return parse_computation(statement, order, name=name, dtypes=types, varying=(V,))
