"""A graph in the making: operators are added one by one, and what is constant is computed at once.

Of a constant that is quantized (integers, then a :class:`Dequantize`) the integers are kept: it is
no constant of floats. What moves its elements moves the integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.graph import Graph, Operator, needed_operators, unused_name
from cpembed.graph.kinds import (
    Concat,
    Dequantize,
    Kind,
    Product,
    Reshape,
    Slice,
    TensorType,
    Transpose,
)
from cpembed.graph.kinds.base import Array, axis_of
from cpembed.ir.dtypes import numpy_dtype

LARGEST_TENSOR = 1 << 31
"""Elements."""
LARGEST_CONSTANT = 1 << 30
"""Bytes of a constant that is computed: what is larger is left to be computed in every call."""
_COMPUTED_BYTES, _COMPUTED_SHARE = 1 << 28, 4
"""Computed constants have at most these bytes together, and so many times those of the model: a
small file makes no large ones."""
_MOST_PRODUCTS = 1 << 30
"""Of numbers, of a product that is computed at once."""


@dataclass
class Builder:
    """``types`` of all tensors so far, ``constants`` among them by their arrays; ``fresh``: those
    named since a caller last emptied it, which nothing else knows yet."""

    name: str
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    inputs: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    operators: list[Operator] = field(default_factory=list[Operator])
    fresh: set[str] = field(default_factory=set[str])
    _quantized: dict[str, tuple[str, Dequantize]] = field(
        default_factory=dict[str, tuple[str, Dequantize]]
    )
    _dequantized: dict[str, Array] = field(default_factory=dict[str, Array])
    _empty: dict[str, Array] = field(default_factory=dict[str, Array])
    _room: int = _COMPUTED_BYTES

    def new_name(self, wanted: str) -> str:
        """A name that no tensor has, of what is ``wanted``."""
        name = unused_name(wanted, self.types)
        self.fresh.add(name)
        return name

    def input(self, name: str, kind: TensorType) -> str:
        """Add an input of the network; one without elements is a constant to what reads it."""
        _check_size(kind)
        if not kind.elements:
            self._empty[name] = np.zeros(kind.shape, _dtype(kind.dtype))
        self.inputs[name] = self.types[name] = kind
        return name

    def constant(self, array: Array, wanted: str = "constant") -> str:
        """The name of a new constant."""
        self._room += _COMPUTED_SHARE * array.nbytes
        return self._constant(array, wanted)

    def _constant(self, array: Array, wanted: str) -> str:
        name = self.new_name(wanted)
        self.constants[name] = array
        self.types[name] = TensorType.of(array)
        return name

    def value(self, tensor: str) -> Array | None:
        """Of a constant, quantized or not; None for what is made anew in every call."""
        constant = self.constants.get(tensor, self._empty.get(tensor))
        if constant is not None:
            return constant
        if tensor not in self._quantized:
            return None
        if tensor not in self._dequantized:
            integers, kind = self._quantized[tensor]
            (self._dequantized[tensor],) = kind.evaluate([self.constants[integers]])
        return self._dequantized[tensor]

    def is_constant(self, tensor: str) -> bool:
        return tensor in self.constants or tensor in self._quantized or tensor in self._empty

    def is_quantized(self, tensor: str) -> bool:
        """Whether it is a constant of integers that is dequantized."""
        return tensor in self._quantized

    def add(self, kind: Kind, inputs: Sequence[str], name: str, wanted: str | None = None) -> str:
        """The only output of an operator that stands at ``name`` in the model; as ``wanted`` the
        tensor is named."""
        (output,) = self.add_all(kind, inputs, name, wanted)
        return output

    def add_all(
        self, kind: Kind, inputs: Sequence[str], name: str, wanted: str | None = None
    ) -> tuple[str, ...]:
        """The outputs of an operator: constants where all inputs are, and where they have no
        elements, which are left out of a concatenation.

        Raises :class:`WorkloadError` for inputs that the kind does not take, and for results of
        more than 2^31 elements.
        """
        types = kind.types([self.types[tensor] for tensor in inputs])
        for result in types:
            _check_size(result)
        wanted = wanted or name
        if all(result.elements == 0 for result in types):
            empty = (np.zeros(t.shape, _dtype(t.dtype)) for t in types)
            return tuple(self.constant(array, wanted) for array in empty)
        if isinstance(kind, Concat):
            inputs = [tensor for tensor in inputs if self.types[tensor].elements]
            if len(inputs) == 1:
                return (inputs[0],)
        if len(inputs) == 1 and inputs[0] in self._quantized:
            moved = self._moved(kind, inputs[0], name, wanted)
            if moved is not None:
                return (moved,)
        quantizes = isinstance(kind, Dequantize) and inputs[0] in self.constants
        if not quantizes and self._folds(kind, inputs, types):
            values = [self.value(tensor) for tensor in inputs]
            results = kind.evaluate([value for value in values if value is not None])
            self._room -= sum(result.nbytes for result in results)
            return tuple(self._constant(result, wanted) for result in results)
        outputs: list[str] = []
        for k, result in enumerate(types):
            outputs.append(self.new_name(wanted if len(types) == 1 else f"{wanted}:{k}"))
            self.types[outputs[-1]] = result
        self.operators.append(Operator(name, kind, tuple(inputs), tuple(outputs)))
        if isinstance(kind, Dequantize) and quantizes:
            self._quantized[outputs[0]] = (inputs[0], kind)
        return tuple(outputs)

    def _folds(self, kind: Kind, inputs: Sequence[str], types: Sequence[TensorType]) -> bool:
        if not all(map(self.is_constant, inputs)):
            return False
        size = sum(t.elements * np.dtype(t.dtype).itemsize for t in types)
        slow = isinstance(kind, Product) and kind.computation.macs > _MOST_PRODUCTS
        return size <= min(LARGEST_CONSTANT, self._room) and not slow

    def _moved(self, kind: Kind, tensor: str, name: str, wanted: str) -> str | None:
        """A quantized constant whose integers are moved instead; None where they cannot be."""
        integers, dequantize = self._quantized[tensor]
        shape = self.types[tensor].shape
        one = len(dequantize.scale) == len(dequantize.zero_point) == 1
        axis = 0
        if not one:
            axis = axis_of(dequantize.axis, len(shape))
            match kind:
                case Transpose(order):
                    axis = order.index(axis)
                case Reshape(other):
                    found = reshaped_axis(shape, axis, other)
                    if found is None:
                        return None
                    axis = found
                case Slice(starts, stops, steps):
                    if (starts[axis], stops[axis], steps[axis]) != (0, shape[axis], 1):
                        return None
                case _:
                    return None
        elif not isinstance(kind, Transpose | Reshape | Slice):
            return None
        moved = self.add(kind, [integers], name, f"{wanted}/integers")
        return self.add(replace(dequantize, axis=axis), [moved], name, wanted)

    def rename(self, tensor: str, wanted: str) -> str:
        """The name that a tensor has now: ``wanted``, where it is fresh, nothing reads it yet, and
        nothing has that name."""
        unread = tensor in self.constants or self._is_last(tensor)
        if wanted in self.types or tensor not in self.fresh or not unread:
            return tensor
        self.types[wanted] = self.types.pop(tensor)
        for table in (self.constants, self._quantized, self._dequantized):
            if tensor in table:
                table[wanted] = table.pop(tensor)  # pyright: ignore[reportArgumentType]
        if self._is_last(tensor):
            last = self.operators[-1]
            outputs = tuple(wanted if name == tensor else name for name in last.outputs)
            self.operators[-1] = replace(last, outputs=outputs)
        return wanted

    def _is_last(self, tensor: str) -> bool:
        return bool(self.operators) and tensor in self.operators[-1].outputs

    def graph(self, outputs: Mapping[str, str]) -> Graph:
        """The graph whose outputs are the tensors that ``outputs`` names; of all operators those
        that they need, with names that no two have."""
        written = {name for operator in self.operators for name in operator.outputs}
        new: dict[str, str] = {}
        for wanted, given in outputs.items():
            tensor = given
            if tensor == wanted:
                continue
            if tensor not in written or tensor in new or tensor in outputs:
                # It has another name already, which it keeps.
                copy = self.new_name(f"{wanted}/copy")
                self.types[copy] = kind = self.types[tensor]
                self.operators.append(Operator(wanted, Reshape(kind.shape), (tensor,), (copy,)))
                tensor = copy
            new[tensor] = wanted
        taken = {*new.values()}
        for name in [name for name in self.types if name in taken and outputs[name] != name]:
            # A tensor within the network gives the name up.
            if name not in new:
                new[name] = self.new_name(f"{name}/inner")
        final = {name: old for old, name in new.items()}
        needed = needed_operators(self.operators, [final.get(wanted, wanted) for wanted in outputs])
        operators = [
            replace(
                operator,
                inputs=tuple(new.get(name, name) for name in operator.inputs),
                outputs=tuple(new.get(name, name) for name in operator.outputs),
            )
            for operator in needed
        ]
        read = {name for operator in operators for name in operator.inputs} | {*outputs}
        constants = {new.get(name, name): array for name, array in self.constants.items()}
        return Graph(
            self.name,
            dict(self.inputs),
            tuple(outputs),
            {name: array for name, array in constants.items() if name in read},
            tuple(_named_apart(operators)),
        )


def reshaped_axis(shape: Sequence[int], axis: int, other: Sequence[int]) -> int | None:
    """Where an axis is after a reshape; None where it does not stay one axis.

    >>> reshaped_axis((6, 4, 5), 0, (6, 20)), reshaped_axis((6, 4), 0, (2, 3, 4))
    (0, None)
    """
    before, size = math.prod(shape[:axis]), shape[axis]
    for k, extent in enumerate(other):
        if extent == size and math.prod(other[:k]) == before:
            return k
    return None


def _dtype(name: str) -> np.dtype[Any]:
    return numpy_dtype(name) if name == "bfloat16" else np.dtype(name)


def _check_size(kind: TensorType) -> None:
    if kind.elements > LARGEST_TENSOR:
        raise WorkloadError(f"a tensor {kind} has more than 2^31 elements: use smaller sizes")


def _named_apart(operators: Iterable[Operator]) -> Iterable[Operator]:
    """The operators, a number added to a name that an earlier one has."""
    seen: dict[str, int] = {}
    for operator in operators:
        count = seen[operator.name] = seen.get(operator.name, 0) + 1
        yield operator if count == 1 else replace(operator, name=f"{operator.name}#{count}")
