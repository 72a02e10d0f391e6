"""What every kind of operator says of itself."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from cpembed.errors import WorkloadError

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorType:
    """A shape and an element type, as numpy names it; every size is known."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: Array) -> TensorType:
        return cls(tuple(int(size) for size in array.shape), str(array.dtype))

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Kind(ABC):
    """What an operator computes; a frozen dataclass of its attributes."""

    @abstractmethod
    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Of the outputs.

        Raises :class:`WorkloadError` for inputs that the kind does not take.
        """

    @abstractmethod
    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """The outputs, by numpy: the definition of the kind."""

    @property
    def label(self) -> str:
        """Its name in tables."""
        return type(self).__name__.lower()


def axis_of(axis: int, rank: int) -> int:
    """An axis that may be counted from the end, from the front.

    Raises :class:`WorkloadError` where there is none.
    """
    if not rank:
        raise WorkloadError(f"axis {axis} of a tensor of no dimensions, which has no axes")
    if not -rank <= axis < rank:
        raise WorkloadError(f"axis {axis} of a tensor of {rank} dimensions: give 0 to {rank - 1}")
    return axis % rank
