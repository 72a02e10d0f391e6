"""A call of an ATen operator while it is written in kinds of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self

import numpy as np

from cpembed.errors import ModelError
from cpembed.frontends.builder import Builder
from cpembed.frontends.composites import Composites
from cpembed.graph.kinds import Kind, TensorType
from cpembed.graph.kinds.base import Array, axis_of
from cpembed.graph.kinds.elementwise import computing_dtype

WITHOUT_EFFECT = frozenset(
    (
        # Place and storage of a tensor.
        *("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "implicit"),
        # Choice of an implementation, and what training updates.
        *("cudnn_enabled", "cudnn_enable", "momentum", "generator", "sparse", "scale_grad_by_freq"),
        # Properties that the type of the result has.
        *("dtype", "size", "shape", "sizes", "output_size", "half_to_float", "normalized_shape"),
        *("split_size", "split_sizes", "chunks", "sections", "keepdim", "N", "C", "HxW"),
    )
)
"""Arguments that change no element of a result of a given type."""

Results = str | None | tuple[str | None, ...]
"""The tensors that a call computes; None for one that has no use in inference."""


@dataclass(frozen=True, kw_only=True)
class Call(Composites):
    """A call of an ATen operator as its handler sees it.

    Attributes
    ----------
    operator, place : str
        Name of the operator, and place of the call in the model.
    arguments, defaults : Mapping
        Arguments, defaults included, and the schema's defaults: tensors by their names in the
        graph, element types by numpy's names, and numbers.
    results : tuple
        Types of the results, None for one that is no tensor.
    dynamic : dict
        For each scale that is computed at run time, the tensor that it scales and its integers.
    is_only_reader : bool
        True if nothing else reads the first tensor.
    read : set
        Arguments that the handler has read so far.
    """

    operator: str
    place: str
    arguments: Mapping[str, Any]
    results: tuple[TensorType | None, ...]
    dynamic: dict[str, tuple[str, str]]
    is_only_reader: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    read: set[str] = field(default_factory=set[str])

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self.arguments[name]

    def get(self, name: str) -> Any:
        """Return an argument that only some overloads have; None where it is missing."""
        self.read.add(name)
        return self.arguments.get(name)

    def without_effect(self, *names: str) -> None:
        """Mark arguments as read that change no element of a result of its type."""
        self.read.update(names)

    def check_read(self) -> None:
        """Reject an argument that the handler ignored, unless that changes nothing."""
        for name, value in self.arguments.items():
            if name in self.read or name in WITHOUT_EFFECT:
                continue
            if name not in self.defaults or self.defaults[name] != value:
                self.reject(f"the argument {name}={value} is not known: leave it out")

    @property
    def result(self) -> TensorType:
        """Type of the first result."""
        first = self.results[0]
        if first is None:
            self.reject("its result is no tensor")
        return first

    def reject(self, reason: str) -> NoReturn:
        raise ModelError(f"{self.builder.name}: {self.place} ({self.operator}): {reason}")

    # -- tensors ----------------------------------------------------------------------------------

    def rank(self, tensor: str) -> int:
        return len(self.shape(tensor))

    def axis(self, tensor: str, axis: int) -> int:
        """Count an axis from the front; 0 for a scalar."""
        rank = self.rank(tensor)
        return axis_of(axis, rank) if rank else 0

    def along_dim(self) -> tuple[str, int]:
        """Return ``self`` and its axis ``dim``, counted from the front."""
        x = self["self"]
        return x, self.axis(x, self["dim"])

    def axes(self, tensor: str, axes: Sequence[int] | None) -> tuple[int, ...]:
        """Count axes from the front, in ascending order; none stands for all."""
        if not axes:
            return tuple(range(self.rank(tensor)))
        return tuple(sorted(self.axis(tensor, axis) for axis in axes))

    def value(self, tensor: str) -> Array | None:
        """Return the elements of a constant; None for a tensor that is computed in every call."""
        return self.builder.value(tensor)

    def constant(self, tensor: str, label: str) -> Array:
        """Return the elements of a tensor that has to be constant."""
        value = self.value(tensor)
        if value is None:
            self.reject(f"{label} is computed while the model runs: make it a constant")
        return value

    # -- emission ---------------------------------------------------------------------------------

    def inside(self, builder: Builder) -> Self:
        return replace(self, builder=builder, scaling={}, place="step")

    def emit_all(self, kind: Kind, *inputs: str) -> tuple[str, ...]:
        return self.builder.add_all(kind, inputs, self.place)

    def tensor(self, value: Array | Sequence[Any] | float, dtype: str | None = None) -> str:
        return self.builder.constant(np.asarray(value, dtype), f"{self.place}/constant")

    def computing(self, tensor: str, dtype: str) -> str:
        """Cast a tensor where its arithmetic would not be that of ``dtype``."""
        current = self.dtype(tensor)
        same = computing_dtype([current]) == computing_dtype([dtype])
        is_kept = same and (current == "bool") == (dtype == "bool")
        return tensor if is_kept else self.cast(tensor, dtype)

    def first_of(self, result: str) -> Results:
        """Return the first result of an operator, and None for those that training uses."""
        rest = len(self.results) - 1
        return (result, *[None] * rest) if rest else result


Handler = Callable[[Call], Results]
"""A function that writes a call in kinds, or raises :class:`ModelError` for its arguments."""


def table(entries: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return handlers by the names of ATen's operators.

    A key of ``entries`` lists operators, each with its overloads.

    >>> [*table({"add.Tensor|Scalar ravel": lambda call: call["self"]})]
    ['aten.add.Tensor', 'aten.add.Scalar', 'aten.ravel.default']
    """
    handlers: dict[str, Handler] = {}
    for names, handler in entries.items():
        for name in names.split():
            operator, _, overloads = name.partition(".")
            for overload in (overloads or "default").split("|"):
                handlers[f"aten.{operator}.{overload}"] = handler
    return handlers


def per_axis(value: Sequence[int] | int, axes: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Return a number for each image axis.

    Parameters
    ----------
    value : int or sequence of int
        One number, or one for each axis.
    axes : int
        Number of image axes.
    default : sequence of int
        Numbers where the value is empty.
    """
    numbers = (value,) if isinstance(value, int) else tuple(value) or tuple(default)
    return numbers * axes if len(numbers) == 1 else numbers
