"""A call of an ATen operator, as the functions that write it in kinds see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpembed.errors import ModelError
from cpembed.frontends.emitter import Emitter
from cpembed.graph.kinds import Kind, TensorType
from cpembed.graph.kinds.base import Array, axis_of
from cpembed.graph.kinds.elementwise import computing_dtype

WITHOUT_EFFECT = frozenset(
    (
        # Where a tensor lies, and how it is stored.
        *("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "implicit"),
        # Which implementation computes it, and what training updates.
        *("cudnn_enabled", "cudnn_enable", "momentum", "generator", "sparse", "scale_grad_by_freq"),
        # What the type of the result says.
        *("dtype", "size", "shape", "sizes", "output_size", "half_to_float", "normalized_shape"),
        *("split_size", "split_sizes", "chunks", "sections", "keepdim", "N", "C", "HxW"),
    )
)
"""Arguments of which the value of a result does not depend, given its type."""

Results = str | None | tuple[str | None, ...]
"""The tensor that a call computes, or those; None for one that has no use in inference."""


@dataclass(frozen=True)
class Call(Emitter):
    """A call of ``operator`` at ``place``: where it stands in the model. ``arguments`` of its
    schema by name, defaults included: tensors by their names in the ``builder``, element types by
    numpy's. ``results``: the types of what it computes. ``dynamic``: of a scale that is computed
    while the model runs, the tensor whose scale it is, and its integers. ``reads_alone``: nothing
    else reads its first tensor. ``defaults``: of arguments that the schema has defaults for;
    ``read``: arguments that a handler has read (:meth:`check_read`)."""

    dynamic: dict[str, tuple[str, str]]
    operator: str
    place: str
    arguments: Mapping[str, Any]
    results: tuple[TensorType | None, ...]
    reads_alone: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    read: set[str] = field(default_factory=set[str])

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self.arguments[name]

    def get(self, name: str) -> Any:
        """An argument that only some overloads have; None where it is missing."""
        self.read.add(name)
        return self.arguments.get(name)

    def in_result(self, *names: str) -> None:
        """Mark arguments whose whole effect is the type of the result."""
        self.read.update(names)

    def check_read(self) -> None:
        """Raise :class:`ModelError` for an argument that has a value other than its default, is not
        in the type of the result, and was read by nothing: it would have been ignored."""
        for name, value in self.arguments.items():
            if name in self.read or name in WITHOUT_EFFECT:
                continue
            if name not in self.defaults or self.defaults[name] != value:
                raise self.error(f"the argument {name}={value} is not known: leave it out")

    @property
    def result(self) -> TensorType:
        """The type of the first result."""
        first = self.results[0]
        if first is None:
            raise self.error("its result is no tensor")
        return first

    def error(self, what: str) -> ModelError:
        return ModelError(f"{self.builder.name}: {self.place} ({self.operator}): {what}")

    # -- tensors ----------------------------------------------------------------------------------

    def axis(self, tensor: str, axis: int) -> int:
        """An axis that may be counted from the end, from the front; 0 of a scalar."""
        rank = len(self.shape(tensor))
        return axis_of(axis, rank) if rank else 0

    def axes(self, tensor: str, axes: Sequence[int] | None) -> tuple[int, ...]:
        """Axes from the front, in ascending order; all where none is given."""
        if not axes:
            return tuple(range(len(self.shape(tensor))))
        return tuple(sorted(self.axis(tensor, axis) for axis in axes))

    def value(self, tensor: str) -> Array | None:
        """The elements of a constant; None for what is computed in every call."""
        return self.builder.value(tensor)

    def known(self, tensor: str, what: str) -> Array:
        """The elements of what has to be a constant."""
        value = self.value(tensor)
        if value is None:
            raise self.error(f"{what} is computed while the model runs: make it a constant")
        return value

    # -- operators --------------------------------------------------------------------------------

    def emit_all(self, kind: Kind, *inputs: str) -> tuple[str, ...]:
        return self.builder.add_all(kind, inputs, self.place)

    def tensor(self, value: Array | Sequence[Any] | float, dtype: str | None = None) -> str:
        return self.builder.constant(np.asarray(value, dtype), f"{self.place}/constant")

    def computing(self, tensor: str, dtype: str) -> str:
        """A tensor such that arithmetic with it is that of ``dtype``."""
        have = self.dtype(tensor)
        same = computing_dtype([have]) == computing_dtype([dtype])
        mixes = same and (have == "bool") == (dtype == "bool")
        return tensor if mixes else self.cast(tensor, dtype)

    def first_of(self, result: str) -> Results:
        """A result of which operators also return others, for training."""
        rest = len(self.results) - 1
        return (result, *[None] * rest) if rest else result


Handler = Callable[[Call], Results]
"""Writes a call in kinds.

Raises :class:`ModelError` for arguments that it does not take.
"""


def per_axis(value: Sequence[int] | int, axes: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """A number for each axis of an image, of what PyTorch takes: one, or one for each axis."""
    numbers = (value,) if isinstance(value, int) else tuple(value) or tuple(default)
    return numbers * axes if len(numbers) == 1 else numbers
