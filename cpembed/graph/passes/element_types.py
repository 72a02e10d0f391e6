"""Assign the element types that the target multiplies: signed or unsigned bytes, short floats.

A tensor of int8 with zero point z stands for the same numbers as one of uint8 with zero point
z + 128 whose elements are all larger by 128.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from cpembed.codegen.epilogue import BYTES, Epilogue
from cpembed.graph import kinds
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    Elementwise,
    Input,
    Kind,
    Number,
    Product,
    Scalar,
    Table,
)
from cpembed.graph.passes.expressions import is_whole
from cpembed.graph.passes.quantization import integer_range
from cpembed.graph.passes.rewriting import Rewriting
from cpembed.ir.dtypes import is_integer
from cpembed.ir.scalars import apply, substituted

T = TypeVar("T")

DISTANCE = {("int8", "uint8"): 128, ("uint8", "int8"): -128}
"""Number that is added to each element when a type becomes the other."""

_OPPOSITE = {"int8": "uint8", "uint8": "int8"}


BytePair = tuple[str, str]
"""Types of the two factors of a product of bytes."""


def assign_element_types(
    graph: Graph, first: str, second: str, multiplied: Collection[BytePair] = ()
) -> Graph:
    """Give the operands of integer products the types that an instruction multiplies.

    Results are equal bit for bit; means of integers differ by at most one quantum. Tensors that
    are connected by operators that move elements change together. Tables convert the network's
    inputs and outputs, which keep their types, the operands of operators that cannot change, and
    tensors that two products read in different types.

    Parameters
    ----------
    graph : Graph
    first, second : str
        Types of the two factors. The graph is returned as it is unless both are bytes.
    multiplied : collection of (str, str)
        Further types that the instruction multiplies. If both factors vary, a zero point costs sums
        of the factors in each call: of these types a product gets those of the fewest zero points.
    """
    if not {first, second} <= {*BYTES}:
        return graph
    pairs = {
        operator.outputs[0]: _operand_types(graph, operator, (first, second), multiplied)
        for operator in graph.operators
        if _multiplies_bytes(operator.kind)
    }
    assignment = _Assignment(graph, _assigned_types(graph, pairs), pairs)
    for operator in graph.operators:
        assignment.convert(operator)
    return assignment.rewriting.graph()


def converted(array: Array, dtype: str) -> Array:
    """Convert bytes so that they stand for the same numbers."""
    distance = DISTANCE.get((str(array.dtype), dtype), 0)
    return (array.astype(np.int16) + distance).astype(dtype)


def conversion(source: str, target: str) -> Table:
    """Return the operator that converts bytes of one type to the other."""
    low, high = integer_range(source)
    distance = DISTANCE.get((source, target), 0)
    return Table(tuple(range(low + distance, high + distance + 1)), target)


def _operand_types(
    graph: Graph, operator: Operator, preferred: BytePair, multiplied: Collection[BytePair]
) -> BytePair:
    """Return the types that the factors of a product of bytes get."""
    kind = operator.kind
    assert isinstance(kind, Product)
    # Sums of constant weights become part of the bias, whatever the zero point.
    if any(graph.is_constant(name) for name in operator.inputs[:2]):
        return preferred
    types = [graph.types[name].dtype for name in operator.inputs[:2]]

    def cost(pair: BytePair) -> tuple[int, int, bool]:
        distances = [DISTANCE.get(change, 0) for change in zip(types, pair, strict=True)]
        zeros = (z + d for z, d in zip(kind.zero_points, distances, strict=True))
        return sum(z != 0 for z in zeros), sum(d != 0 for d in distances), pair != preferred

    return min((preferred, *sorted(multiplied)), key=cost)


class _Groups:
    """Disjoint sets of tensors that share a type."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the representative of a tensor's set."""
        while (parent := self._parents.get(name, name)) != name:
            self._parents[name] = self._parents.get(parent, parent)
            name = parent
        return name

    def join(self, names: Iterable[str]) -> None:
        """Unite the sets of some tensors."""
        roots = [self.find(name) for name in names]
        for root in roots[1:]:
            self._parents[root] = roots[0]


def _assigned_types(graph: Graph, pairs: Mapping[str, BytePair]) -> dict[str, str]:
    """Return the type of each tensor of bytes, by the types of each product's factors.

    First operands decide, then second ones. Tensors that are neither keep their types. Residuals
    have the type of their product's result.
    """
    groups, votes = _Groups(), dict[str, str]()
    for operator in graph.operators:
        if _shifted_movement(operator.kind, 0) is not None:
            groups.join([*_moved_inputs(operator.kind, operator.inputs), *operator.outputs])
        # In a chain of residual blocks each result is the next one's residual: all have one type.
        elif _has_byte_residual(operator.kind) and operator.output not in graph.outputs:
            groups.join([operator.inputs[-1], operator.output])
    products = [operator for operator in graph.operators if operator.outputs[0] in pairs]
    for operator in products:
        votes[groups.find(operator.inputs[0])] = pairs[operator.outputs[0]][0]
    for operator in products:
        # Constants are converted for each reader, as it needs them.
        if not graph.is_constant(operator.inputs[1]):
            second = pairs[operator.outputs[0]][1]
            votes.setdefault(groups.find(operator.inputs[1]), second)
    return {
        name: votes.get(groups.find(name), kind.dtype)
        for name, kind in graph.types.items()
        if kind.dtype in BYTES
    }


def _has_byte_residual(kind: Kind) -> bool:
    epilogue = kind.epilogue if isinstance(kind, Product) else None
    return epilogue is not None and epilogue.residual is not None and epilogue.dtype in BYTES


def _multiplies_bytes(kind: Kind) -> bool:
    if not isinstance(kind, Product):
        return False
    workload = kind.computation
    return is_integer(workload.output.dtype) and all(o.dtype in BYTES for o in workload.inputs)


class _Assignment:
    """Rewriting of a graph to assigned types, one operator after the other.

    Attributes
    ----------
    assigned : dict from str to str
        Type of each tensor.
    pairs : mapping from str to (str, str)
        Types of the factors of products, by their first outputs.
    """

    def __init__(
        self, graph: Graph, assigned: dict[str, str], pairs: Mapping[str, BytePair]
    ) -> None:
        self.graph, self.assigned, self.pairs = graph, assigned, pairs
        self.rewriting = Rewriting(graph)
        self._versions: dict[tuple[str, str], str] = {}

    def convert(self, operator: Operator) -> None:
        """Let an operator read and write assigned types, or convert before and after it."""
        original = [self._dtype(name) for name in operator.inputs]
        reads = [
            self.assigned.get(name, dtype)
            for name, dtype in zip(operator.inputs, original, strict=True)
        ]
        if operator.outputs[0] in self.pairs:
            reads[:2] = self.pairs[operator.outputs[0]]
        result = operator.outputs[0]
        writes = self.assigned.get(result, self._dtype(result))
        distances = [DISTANCE.get(pair, 0) for pair in zip(original, reads, strict=True)]
        kind = operator.kind
        # Its default type of arithmetic depends on the types of its inputs.
        if isinstance(kind, Elementwise):
            kind = replace(kind, computing=kind.computes_in(original))
        kind = shifted(kind, distances, DISTANCE.get((self._dtype(result), writes), 0))
        # No such kind: the operator stays, and its operands are converted back.
        if kind is None:
            kind, reads, writes = operator.kind, original, self._dtype(result)
        before: list[Operator] = []
        inputs = tuple(
            self._version(name, dtype, before)
            for name, dtype in zip(operator.inputs, reads, strict=True)
        )
        # An output of the network keeps its name and type; the operator writes another tensor.
        outputs, after = operator.outputs, list[Operator]()
        if result in self.graph.outputs and writes != self._dtype(result):
            outputs = (self.rewriting.fresh(f"{result} as {writes}"),)
            table = conversion(writes, self._dtype(result))
            after = [Operator(operator.name, table, outputs, (result,))]
            self._versions[result, self._dtype(result)] = result
        for name in operator.outputs[1:]:
            self._versions[name, self._dtype(name)] = name
        self._versions[result, writes] = outputs[0]
        new = replace(operator, kind=kind, inputs=inputs, outputs=outputs)
        if before or after or new != operator:
            self.rewriting.replace(operator, *before, new, *after)

    def _dtype(self, name: str) -> str:
        return self.graph.types[name].dtype

    def _version(self, name: str, dtype: str, before: list[Operator]) -> str:
        """Return a tensor in a type; an operator that converts it is appended to ``before``."""
        if self._dtype(name) not in BYTES:
            return name
        if (name, dtype) in self._versions:
            return self._versions[name, dtype]
        if name in self.graph.constants:
            array = self.graph.constants[name]
            new = name
            if dtype != self._dtype(name):
                new = self.rewriting.constant(f"{name} as {dtype}", converted(array, dtype))
        elif dtype == self._dtype(name) and name not in self.graph.producers:
            new = name
        else:
            # The tensor exists in the opposite type: as it was written, or as an input.
            opposite = _OPPOSITE[dtype]
            source = self._versions.get((name, opposite), name)
            new = self.rewriting.fresh(f"{name} as {dtype}")
            before.append(Operator(new, conversion(opposite, dtype), (source,), (new,)))
        self._versions[name, dtype] = new
        return new


def shifted(kind: Kind, inputs: Sequence[int], result: int) -> Kind | None:
    """Return the kind that computes the same on bytes that are all larger by a distance.

    Parameters
    ----------
    kind : Kind
        Kind on the original types; if elementwise, with the type in which it computes.
    inputs : sequence of int
        Distance of each input: 128, -128 or 0.
    result : int
        Distance of the result.

    Returns
    -------
    Kind or None
        None if there is no such kind.
    """
    if not any(inputs) and not result:
        return kind
    match kind:
        case kinds.Quantize():
            dtype = _OPPOSITE[kind.dtype]
            return replace(kind, zero_point=_all_moved(kind.zero_point, result), dtype=dtype)
        case kinds.Dequantize():
            return replace(kind, zero_point=_all_moved(kind.zero_point, inputs[0]))
        case Table() if result:
            entries = tuple(entry + result for entry in kind.entries)
            return replace(kind, entries=entries, dtype=_OPPOSITE[kind.dtype])
        # Its entries are in the order of the inputs, which stays.
        case Table():
            return kind
        case Product():
            return _shifted_product(kind, inputs, result)
        case Elementwise():
            return _shifted_elementwise(kind, inputs, result)
        case _:
            alike = all(distance == result for distance in _moved_inputs(kind, inputs))
            return _shifted_movement(kind, result) if alike else None


def _moved_inputs(kind: Kind, inputs: Sequence[T]) -> Sequence[T]:
    """Select, from a sequence with one item per input, those whose elements the kind moves."""
    return inputs if isinstance(kind, kinds.Concat) else inputs[:1]


def with_output_type(epilogue: Epilogue, dtype: str) -> Epilogue:
    """Return an epilogue that rounds to the same numbers and stores another type of bytes."""
    distance = DISTANCE.get((epilogue.dtype, dtype), 0)
    if not distance:
        return epilogue
    clip = _moved_clip(epilogue.range, distance)
    return replace(epilogue, dtype=dtype, zero_point=epilogue.zero_point + distance, clip=clip)


def _all_moved(numbers: Sequence[int], distance: int) -> tuple[int, ...]:
    return tuple(number + distance for number in numbers)


def _shifted_movement(kind: Kind, distance: int) -> Kind | None:
    """Shift a kind whose results are elements of the inputs, or extremes or means of some."""
    match kind:
        case kinds.Concat() | kinds.Reshape() | kinds.Transpose() | kinds.Slice():
            return kind
        case kinds.Gather() | kinds.Expand() | kinds.Resize(mode="nearest"):
            return kind
        case kinds.Reduce(operation="max" | "min" | "mean") | kinds.Pool(operation="max"):
            return kind
        case kinds.Pad(mode="constant"):
            return replace(kind, value=kind.value + distance)
        case kinds.Pad():
            return kind
        case kinds.Pool(ratio=None):
            return replace(kind, zero_point=kind.zero_point + distance)
        case kinds.Pool():
            stored = kind.stored_zero_point + distance
            return replace(kind, zero_point=kind.zero_point + distance, stored_zero_point=stored)
        case _:
            return None


def _shifted_product(kind: Product, inputs: Sequence[int], result: int) -> Product | None:
    workload, epilogue = kind.computation, kind.epilogue
    dtypes = {
        operand.name: _OPPOSITE[operand.dtype]
        for operand, distance in zip(workload.inputs, inputs, strict=False)
        if distance
    }
    a, b = (zero + distance for zero, distance in zip(kind.zero_points, inputs, strict=False))
    # Inputs after the operands are vectors, which have no distance, and the residual at the end.
    if result or any(inputs[2:]):
        epilogue = None if epilogue is None else _shifted_epilogue(epilogue, inputs[-1], result)
        if epilogue is None:
            return None
    return replace(
        kind, computation=workload.with_dtypes(dtypes), zero_points=(a, b), epilogue=epilogue
    )


def _shifted_epilogue(epilogue: Epilogue, addend: int, result: int) -> Epilogue | None:
    """Return an epilogue whose residual and result are larger by ``addend`` and ``result``."""
    if not epilogue.scale or epilogue.dtype not in BYTES:
        return None
    residual = epilogue.residual
    if residual is not None:
        residual = replace(
            residual,
            dtype=_OPPOSITE[residual.dtype] if addend else residual.dtype,
            zero_point=residual.zero_point + addend,
            stored_zero_point=residual.stored_zero_point + result,
            clip=_moved_clip(residual.clip, result),
        )
    return replace(
        epilogue,
        dtype=_OPPOSITE[epilogue.dtype] if result else epilogue.dtype,
        clip=_moved_clip(epilogue.clip, result),
        zero_point=epilogue.zero_point + result,
        residual=residual,
    )


def _moved_clip(clip: tuple[int, int] | None, distance: int) -> tuple[int, int] | None:
    return None if clip is None else (clip[0] + distance, clip[1] + distance)


def _shifted_elementwise(
    kind: Elementwise, inputs: Sequence[int], result: int
) -> Elementwise | None:
    shifted_inputs = frozenset(number for number, distance in enumerate(inputs) if distance)

    def original(node: Input) -> Scalar:
        distance = inputs[node.number]
        return apply("sub", node, distance) if distance else node

    # Most expressions subtract a zero point first, which joins with the distance.
    expression = _offsets_joined(substituted(kind.expression, original), shifted_inputs)
    if not result:
        return replace(kind, expression=expression)
    # Rounded before the distance is added: the sum with a fraction would round once more.
    if (kind.computing or "").startswith("float") and not is_whole(expression):
        expression = apply("round", expression)
    expression = _offsets_joined(apply("add", expression, result), shifted_inputs)
    return replace(kind, expression=expression, dtype=_OPPOSITE[kind.dtype])


def _offsets_joined(expression: Scalar, shifted_inputs: frozenset[int]) -> Scalar:
    """Join consecutive offsets by whole numbers into one.

    This is exact for bytes (``shifted_inputs``) and for values that were rounded.
    """
    if not isinstance(expression, Apply):
        return expression
    arguments = tuple(_offsets_joined(a, shifted_inputs) for a in expression.arguments)
    expression = Apply(expression.operation, arguments)
    inner, last = arguments[0], arguments[-1]
    if not (_is_offset(expression) and isinstance(inner, Apply) and _is_offset(inner)):
        return expression
    start, number = inner.arguments
    is_byte = isinstance(start, Input) and start.number in shifted_inputs
    if not isinstance(number, Number) or not isinstance(last, Number):
        return expression
    if not is_byte and not (isinstance(start, Apply) and is_whole(start)):
        return expression
    total = _signed(expression, last) + _signed(inner, number)
    if not total:
        return start
    return apply("add", start, total) if total > 0 else apply("sub", start, -total)


def _is_offset(expression: Apply) -> bool:
    """True if a whole number is added or subtracted."""
    if expression.operation not in ("add", "sub"):
        return False
    number = expression.arguments[1]
    return isinstance(number, Number) and is_whole(number)


def _signed(expression: Apply, number: Number) -> float | int:
    return number.value if expression.operation == "add" else -number.value
