"""Operators that no kernel computes, and a function of Python does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType


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
