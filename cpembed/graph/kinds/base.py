"""Interface of operator kinds, types of tensors, and the kind that a function of Python defines."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import WorkloadError

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorType:
    """Static shape and element type (numpy's name, or ``bfloat16``)."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of_array(cls, array: Array) -> TensorType:
        """Return the type of an array."""
        return cls(tuple(int(size) for size in array.shape), str(array.dtype))

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Kind(ABC):
    """Function that an operator computes; subclasses are frozen dataclasses of its attributes."""

    @abstractmethod
    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Return the types of the outputs.

        Raises :class:`WorkloadError` for inputs that the kind does not accept.
        """

    @abstractmethod
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Compute the outputs in numpy, which defines the kind."""

    @property
    def label(self) -> str:
        """Short name in tables and diagrams."""
        return type(self).__name__.lower()


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front; negative ones count from the end.

    Raises :class:`WorkloadError` if the tensor has no such axis.
    """
    if not rank:
        raise WorkloadError(f"axis {axis} of a tensor of no dimensions, which has no axes")
    if not -rank <= axis < rank:
        raise WorkloadError(f"axis {axis} of a tensor of {rank} dimensions: give 0 to {rank - 1}")
    return axis % rank


@dataclass(frozen=True)
class Foreign(Kind):
    """Operator that a function computes in the process that calls the network.

    Attributes
    ----------
    operator : str
        Name of the operator in its framework.
    results : tuple of TensorType
        Types of the outputs.
    runtime : str
        Name of what the function calls: ``onnxruntime``, ``torch`` or ``callback``.
    function : callable
        Returns the outputs for the inputs.
    """

    operator: str
    results: tuple[TensorType, ...]
    runtime: str
    function: Callable[[Sequence[Array]], Sequence[Array]] = field(compare=False, repr=False)

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return self.results

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        outputs = tuple(np.asarray(output) for output in self.function(inputs))
        types = tuple(map(TensorType.of_array, outputs))
        if types != self.results:
            returned, expected = (" and ".join(map(str, kinds)) for kinds in (types, self.results))
            raise WorkloadError(
                f"{self.operator} in {self.runtime} returned {returned}, not {expected}: the "
                "types of an operator's results may not depend on elements"
            )
        return outputs

    @property
    def label(self) -> str:
        return f"{self.operator} ({self.runtime})"
