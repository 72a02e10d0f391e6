"""A graph in the making, to which operators are added; constants are computed at once.

A quantized constant (integers followed by a :class:`Dequantize`) keeps its integers instead of
becoming a constant of floats. Operators that move its elements move the integers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.graph import Graph, Operator, needed_operators, unused_name
from cpembed.graph.kinds import (
    BlockDequantize,
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
from cpembed.graph.loop import Loop, multiplications, nested_operators
from cpembed.ir.dtypes import numpy_dtype

LARGEST_TENSOR = 1 << 31
"""Maximum number of elements of a tensor."""
LARGEST_CONSTANT = 1 << 30
"""Maximum size in bytes of a computed constant; a larger one is computed in every call."""
COMPUTED_BYTES, COMPUTED_SHARE = 1 << 28, 4
"""Maximum size in bytes of all computed constants, beyond a multiple of the model's own.

A small file cannot make large ones.
"""
_LARGEST_PRODUCT = 1 << 30
"""Maximum number of multiplications of a product, or of a loop, that is computed at once."""
_MOST_OPERATORS = 1 << 16
"""Maximum number of operators that a loop which is computed at once executes."""


@dataclass
class Builder:
    """A graph to which a front end adds operators.

    Attributes
    ----------
    name : str
        Name of the graph.
    types : dict
        Types of all tensors by name.
    constants : dict
        Arrays of the constants among them.
    inputs : dict
        Types of the network's inputs.
    operators : list
        The operators in their order.
    fresh : set
        Tensors named since a caller last emptied the set: nothing else refers to them yet.
    """

    name: str
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    inputs: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    operators: list[Operator] = field(default_factory=list[Operator])
    fresh: set[str] = field(default_factory=set[str])
    _quantized: dict[str, tuple[tuple[str, ...], Dequantize | BlockDequantize]] = field(
        default_factory=dict[str, tuple[tuple[str, ...], "Dequantize | BlockDequantize"]]
    )
    _dequantized: dict[str, Array] = field(default_factory=dict[str, Array])
    _empty: dict[str, Array] = field(default_factory=dict[str, Array])
    _bytes_left: int = COMPUTED_BYTES

    def new_name(self, stem: str) -> str:
        """Return ``stem``, with a number where a tensor has that name."""
        name = unused_name(stem, self.types)
        self.fresh.add(name)
        return name

    def input(self, name: str, kind: TensorType) -> str:
        """Add an input of the network; one without elements is a constant to its readers."""
        _check_size(kind)
        if not kind.elements:
            self._empty[name] = zeros_of(kind)
        self.inputs[name] = self.types[name] = kind
        return name

    def constant(self, array: Array, stem: str = "constant") -> str:
        """Add a constant and return its name."""
        # A model with large constants of its own may have large computed ones.
        self._bytes_left += COMPUTED_SHARE * array.nbytes
        return self._constant(array, stem)

    def _constant(self, array: Array, stem: str) -> str:
        name = self.new_name(stem)
        self.constants[name] = array
        self.types[name] = TensorType.of_array(array)
        return name

    def value(self, tensor: str) -> Array | None:
        """Return the elements of a constant, quantized or not; None for a computed tensor."""
        constant = self.constants.get(tensor, self._empty.get(tensor))
        if constant is not None or tensor not in self._quantized:
            return constant
        if tensor not in self._dequantized:
            inputs, kind = self._quantized[tensor]
            (self._dequantized[tensor],) = kind.evaluate([self.constants[i] for i in inputs])
        return self._dequantized[tensor]

    def is_constant(self, tensor: str) -> bool:
        return tensor in self.constants or tensor in self._quantized or tensor in self._empty

    def is_quantized(self, tensor: str) -> bool:
        """Return True if the tensor is a constant of integers that is dequantized."""
        return tensor in self._quantized

    def copy_constant(self, tensor: str, target: Builder) -> str:
        """Add a constant to another builder and return its name there; quantized ones stay so."""
        if tensor not in self._quantized:
            array = self.constants.get(tensor)
            return target.constant(self._empty[tensor] if array is None else array, tensor)
        integers, kind = self._quantized[tensor]
        copies = [target.constant(self.constants[name], name) for name in integers]
        return target.add(kind, copies, tensor)

    def add(self, kind: Kind, inputs: Sequence[str], name: str, stem: str | None = None) -> str:
        """Add an operator with one output.

        Parameters
        ----------
        kind : Kind
            The computation.
        inputs : sequence of str
            Tensors that it reads.
        name : str
            Place of the operator in the model.
        stem : str, optional
            Name of the output, by default that of the operator; numbered where it is in use.
        """
        (output,) = self.add_all(kind, inputs, name, stem)
        return output

    def add_all(
        self, kind: Kind, inputs: Sequence[str], name: str, stem: str | None = None
    ) -> tuple[str, ...]:
        """Add an operator and return its outputs, computed at once if all inputs are constant.

        Parameters
        ----------
        kind, inputs, name, stem
            As for :meth:`add`.

        Raises
        ------
        WorkloadError
            For inputs that the kind does not take, and for a result of more than 2^31 elements.
        """
        types = kind.types([self.types[tensor] for tensor in inputs])
        for result in types:
            _check_size(result)
        stem = stem or name
        # Nothing is left to compute of a result without elements.
        if all(result.elements == 0 for result in types):
            return tuple(self.constant(zeros_of(result), stem) for result in types)
        if isinstance(kind, Concat):
            # A part without elements adds nothing.
            inputs = [tensor for tensor in inputs if self.types[tensor].elements]
            if len(inputs) == 1:
                return (inputs[0],)
        if len(inputs) == 1 and inputs[0] in self._quantized:
            moved = self._moved(kind, inputs[0], name, stem)
            if moved is not None:
                return (moved,)
        # A constant of floats would lose that its product can be computed in integers.
        quantizes = isinstance(kind, Dequantize | BlockDequantize) and all(
            tensor in self.constants for tensor in inputs
        )
        if not quantizes and self._folds(kind, inputs, types):
            values = [self.value(tensor) for tensor in inputs]
            results = kind.evaluate([value for value in values if value is not None])
            self._bytes_left -= sum(result.nbytes for result in results)
            return tuple(self._constant(result, stem) for result in results)
        outputs: list[str] = []
        for k, result in enumerate(types):
            outputs.append(self.new_name(stem if len(types) == 1 else f"{stem}:{k}"))
            self.types[outputs[-1]] = result
        self.operators.append(Operator(name, kind, tuple(inputs), tuple(outputs)))
        if isinstance(kind, Dequantize | BlockDequantize) and quantizes:
            self._quantized[outputs[0]] = (tuple(inputs), kind)
        return tuple(outputs)

    def _folds(self, kind: Kind, inputs: Sequence[str], types: Sequence[TensorType]) -> bool:
        """Return True if an operator is computed now: of constants, not too large, nor too slow."""
        if not all(map(self.is_constant, inputs)):
            return False
        size = sum(t.elements * np.dtype(t.dtype).itemsize for t in types)
        slow = isinstance(kind, Product) and kind.computation.macs > _LARGEST_PRODUCT
        if isinstance(kind, Loop):
            # A condition may never end a loop.
            operators = (kind.steps or 0) * sum(1 for _ in nested_operators(kind.body))
            work = (kind.steps or 0) * multiplications(kind.body)
            slow = kind.steps is None or operators > _MOST_OPERATORS or work > _LARGEST_PRODUCT
        return size <= min(LARGEST_CONSTANT, self._bytes_left) and not slow

    def _moved(self, kind: Kind, tensor: str, name: str, stem: str) -> str | None:
        """Move the integers of a quantized constant; None where they cannot be moved."""
        (integers, *parameters), dequantize = self._quantized[tensor]
        shape = self.types[tensor].shape
        if isinstance(dequantize, BlockDequantize):
            if not isinstance(kind, Transpose):
                return None
            axis = kind.order.index(axis_of(dequantize.axis, len(shape)))
            transposed = [self.add(kind, [i], name, stem) for i in (integers, *parameters)]
            return self.add(replace(dequantize, axis=axis), transposed, name, stem)
        axis: int | None = 0
        if not isinstance(kind, Transpose | Reshape | Slice):
            return None
        if len(dequantize.scale) > 1 or len(dequantize.zero_point) > 1:
            # The axis of the scales has to stay one axis, with all of its elements.
            axis = axis_of(dequantize.axis, len(shape))
            if isinstance(kind, Transpose):
                axis = kind.order.index(axis)
            elif isinstance(kind, Reshape):
                axis = reshaped_axis(shape, axis, kind.shape)
            elif (kind.starts[axis], kind.stops[axis], kind.steps[axis]) != (0, shape[axis], 1):
                return None
        if axis is None:
            return None
        moved = self.add(kind, [integers], name, f"{stem}/integers")
        return self.add(replace(dequantize, axis=axis), [moved], name, stem)

    def rename(self, tensor: str, name: str) -> str:
        """Rename a tensor that is fresh and not read yet, unless the name is in use.

        Returns
        -------
        str
            The name of the tensor now.
        """
        # Operators hold the names of what they read: only an unread tensor can be renamed.
        unread = tensor in self.constants or self._is_last(tensor)
        if name in self.types or tensor not in self.fresh or not unread:
            return tensor
        self.types[name] = self.types.pop(tensor)
        for table in (self.constants, self._quantized, self._dequantized):
            if tensor in table:
                table[name] = table.pop(tensor)  # pyright: ignore[reportArgumentType]
        if self._is_last(tensor):
            last = self.operators[-1]
            outputs = tuple(name if output == tensor else output for output in last.outputs)
            self.operators[-1] = replace(last, outputs=outputs)
        return name

    def _is_last(self, tensor: str) -> bool:
        return bool(self.operators) and tensor in self.operators[-1].outputs

    def graph(self, outputs: Mapping[str, str]) -> Graph:
        """Return the graph of some tensors, with the operators that they need.

        Parameters
        ----------
        outputs : mapping
            Tensors by the names that they have as outputs of the network.
        """
        new = self._output_names(outputs)
        old = {name: tensor for tensor, name in new.items()}
        needed = needed_operators(self.operators, [old.get(name, name) for name in outputs])
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
            tuple(with_distinct_names(operators)),
        )

    def _output_names(self, outputs: Mapping[str, str]) -> dict[str, str]:
        """Return the new names of tensors such that each output has its own."""
        written = {name for operator in self.operators for name in operator.outputs}
        new: dict[str, str] = {}
        for name, tensor in outputs.items():
            if tensor == name:
                continue
            if tensor in written and tensor not in new and tensor not in outputs:
                new[tensor] = name
            else:
                # The tensor keeps the name that it has, and a copy gets this one.
                copy = self.new_name(f"{name}/copy")
                self.types[copy] = kind = self.types[tensor]
                self.operators.append(Operator(name, Reshape(kind.shape), (tensor,), (copy,)))
                new[copy] = name
        renamed = {*new.values()}
        for name in [name for name in self.types if name in renamed and outputs[name] != name]:
            # A tensor within the network gives the name up.
            if name not in new:
                new[name] = self.new_name(f"{name}/inner")
        return new


def no_tensor(model: str, name: str, names: Sequence[str]) -> str:
    """Return the message that no tensor has a name, with the closest names.

    Parameters
    ----------
    model, name : str
        Names of the model and of the tensor.
    names : sequence of str
        Names of the model's tensors, in its order.
    """
    close = difflib.get_close_matches(name, names, 3) or names[-3:]
    ellipsis = ", …" if len(close) < len(names) else ""
    return f"{model} has no tensor {name} to cut it at: it has {', '.join(close)}{ellipsis}"


def reshaped_axis(shape: Sequence[int], axis: int, new_shape: Sequence[int]) -> int | None:
    """Return the number of an axis after a reshape.

    >>> reshaped_axis((6, 4, 5), 0, (6, 20)), reshaped_axis((6, 4), 0, (2, 3, 4))
    (0, None)

    Parameters
    ----------
    shape, new_shape : sequence of int
        Shapes before and after.
    axis : int
        The axis before.

    Returns
    -------
    int or None
        None where the axis is split or merged.
    """
    before, size = math.prod(shape[:axis]), shape[axis]
    for k, extent in enumerate(new_shape):
        if extent == size and math.prod(new_shape[:k]) == before:
            return k
    return None


def zeros_of(kind: TensorType) -> np.ndarray[Any, Any]:
    """Return an array of zeros of a type."""
    return np.zeros(kind.shape, numpy_dtype(kind.dtype))


def _check_size(kind: TensorType) -> None:
    if kind.elements > LARGEST_TENSOR:
        raise WorkloadError(f"a tensor {kind} has more than 2^31 elements: use smaller sizes")


def with_distinct_names(operators: Iterable[Operator]) -> Iterable[Operator]:
    """Number the operators whose name an earlier one has."""
    counts: dict[str, int] = {}
    for operator in operators:
        count = counts[operator.name] = counts.get(operator.name, 0) + 1
        yield operator if count == 1 else replace(operator, name=f"{operator.name}#{count}")
