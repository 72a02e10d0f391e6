"""The integers of eight bits that a target multiplies: signed or unsigned.

A tensor of int8 with zero point z stands for the same numbers as one of uint8, every element
larger by 128, with zero point z + 128.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from cpembed.codegen.epilogue import BYTES, Epilogue
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    Concat,
    Dequantize,
    Elementwise,
    Expand,
    Gather,
    Input,
    Kind,
    Number,
    Pad,
    Pool,
    Product,
    Quantize,
    Reduce,
    Reshape,
    Resize,
    Scalar,
    Slice,
    Table,
    Transpose,
)
from cpembed.graph.passes.expressions import apply, is_whole, substituted
from cpembed.graph.passes.quantization import range_of
from cpembed.graph.passes.rewriting import Array, Rewriting, only_reader
from cpembed.ir.dtypes import is_integer, numpy_dtype


def element_types(graph: Graph, first: str, second: str) -> Graph:
    """The same results, equal bit for bit (of means of integers, at most one quantum), of products
    whose operands are of the types ``first`` and ``second``.

    Tensors that belong together, since operators between them move elements, change together.
    Inputs and outputs of the network keep their types: they are converted by tables, and so is
    what an operator writes or reads that cannot change, and what two products want differently.
    """
    if not {first, second} <= {*BYTES}:
        return graph
    wanted = _wanted(graph, first, second)
    change = _Change(graph, wanted, (first, second))
    for operator in graph.operators:
        change.convert(operator)
    return change.rewriting.graph()


def converted(array: Array, dtype: str) -> Array:
    """Integers of eight bits of one type as those of another."""
    distance = DISTANCE.get((str(array.dtype), dtype), 0)
    return (array.astype(np.int16) + distance).astype(dtype)


def conversion(dtype: str, wanted: str) -> Table:
    """The operator that does the same."""
    low, high = range_of(dtype)
    distance = DISTANCE.get((dtype, wanted), 0)
    return Table(tuple(range(low + distance, high + distance + 1)), wanted)


class _Groups:
    """Tensors that have one type, by union and find."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def find(self, name: str) -> str:
        while (above := self._above.get(name, name)) != name:
            self._above[name] = self._above.get(above, above)
            name = above
        return name

    def join(self, names: Iterable[str]) -> None:
        ends = [self.find(name) for name in names]
        for end in ends[1:]:
            self._above[end] = ends[0]


def _wanted(graph: Graph, first: str, second: str) -> dict[str, str]:
    """The type that each tensor of integers of eight bits is to have: that of a first operand where
    it is one anywhere, otherwise that of a second operand; others stay what they are. Tensors that
    a product adds have its result's type."""
    groups, votes = _Groups(), dict[str, str]()
    for operator in graph.operators:
        if moves_elements(operator.kind):
            groups.join([*moved_inputs(operator.kind, operator.inputs), *operator.outputs])
        elif _adds_bytes(operator.kind) and operator.output not in graph.outputs:
            groups.join([operator.inputs[-1], operator.output])
    products = [operator for operator in graph.operators if _is_integral(operator.kind)]
    for operator in products:
        votes[groups.find(operator.inputs[0])] = first
    for operator in products:
        if not graph.is_constant(operator.inputs[1]):
            votes.setdefault(groups.find(operator.inputs[1]), second)
    return {
        name: votes.get(groups.find(name), kind.dtype)
        for name, kind in graph.types.items()
        if kind.dtype in BYTES
    }


def _adds_bytes(kind: Kind) -> bool:
    epilogue = kind.epilogue if isinstance(kind, Product) else None
    return epilogue is not None and epilogue.residual is not None and epilogue.dtype in BYTES


def _is_integral(kind: Kind) -> bool:
    if not isinstance(kind, Product):
        return False
    workload = kind.computation
    return is_integer(workload.output.dtype) and all(o.dtype in BYTES for o in workload.inputs)


class _Change:
    """``wanted``: the type that tensors are to have; ``operands``: those of products."""

    def __init__(self, graph: Graph, wanted: dict[str, str], operands: tuple[str, str]) -> None:
        self.graph, self.wanted, self.operands = graph, wanted, operands
        self.rewriting = Rewriting(graph)
        self._versions: dict[tuple[str, str], str] = {}

    def convert(self, operator: Operator) -> None:
        """Let an operator read and write what is wanted, or convert what it reads."""
        own = [self._own(name) for name in operator.inputs]
        reads = [
            self.wanted.get(name, dtype) for name, dtype in zip(operator.inputs, own, strict=True)
        ]
        if _is_integral(operator.kind):
            reads[:2] = self.operands
        result = operator.outputs[0]
        writes = self.wanted.get(result, self._own(result))
        distances = [DISTANCE.get(pair, 0) for pair in zip(own, reads, strict=True)]
        kind = operator.kind
        if isinstance(kind, Elementwise):
            kind = replace(kind, computing=kind.computes_in(own))
        kind = shifted(kind, distances, DISTANCE.get((self._own(result), writes), 0))
        if kind is None:
            kind, reads, writes = operator.kind, own, self._own(result)
        before: list[Operator] = []
        inputs = tuple(
            self._version(name, dtype, before)
            for name, dtype in zip(operator.inputs, reads, strict=True)
        )
        outputs, after = operator.outputs, list[Operator]()
        if result in self.graph.outputs and writes != self._own(result):
            outputs = (self.rewriting.fresh(f"{result} as {writes}"),)
            after = [
                Operator(operator.name, conversion(writes, self._own(result)), outputs, (result,))
            ]
            self._versions[result, self._own(result)] = result
        for name in operator.outputs[1:]:
            self._versions[name, self._own(name)] = name
        self._versions[result, writes] = outputs[0]
        new = replace(operator, kind=kind, inputs=inputs, outputs=outputs)
        if before or after or new != operator:
            self.rewriting.replace(operator, *before, new, *after)

    def _own(self, name: str) -> str:
        return self.graph.types[name].dtype

    def _version(self, name: str, dtype: str, before: list[Operator]) -> str:
        """A tensor as integers of a type; the operator that makes them is added to ``before``."""
        if self._own(name) not in BYTES:
            return name
        if (name, dtype) in self._versions:
            return self._versions[name, dtype]
        if name in self.graph.constants:
            array = self.graph.constants[name]
            new = name
            if dtype != self._own(name):
                new = self.rewriting.constant(f"{name} as {dtype}", converted(array, dtype))
        elif dtype == self._own(name) and name not in self.graph.producers:
            new = name
        else:
            other = next(t for t in BYTES if t != dtype)
            source = self._versions.get((name, other), name)
            new = self.rewriting.fresh(f"{name} as {dtype}")
            before.append(Operator(new, conversion(other, dtype), (source,), (new,)))
        self._versions[name, dtype] = new
        return new


def float_types(graph: Graph, first: str, second: str) -> Graph:
    """Operands of products of float32 as shorter floats, rounded to the nearest even: results are
    those of the rounded operands. A product whose result only such operands read stores them."""
    if "bfloat16" not in (first, second):
        return graph
    return _stored_short(_operands(graph, (first, second)))


def _operands(graph: Graph, dtypes: tuple[str, str]) -> Graph:
    rewriting = Rewriting(graph)
    known: dict[tuple[str, str], str] = {}
    for operator in graph.operators:
        kind = operator.kind
        if not isinstance(kind, Product):
            continue
        workload = kind.computation
        if any(operand.dtype != "float32" for operand in workload.operands):
            continue
        before: list[Operator] = []
        names: list[str] = []
        for name, dtype in zip(operator.inputs[:2], dtypes, strict=True):
            if (name, dtype) not in known:
                known[name, dtype] = _short(rewriting, name, dtype, before)
            names.append(known[name, dtype])
        pairs = zip(workload.inputs, dtypes, strict=True)
        workload = workload.with_dtypes({operand.name: dtype for operand, dtype in pairs})
        new = replace(
            operator,
            kind=replace(kind, computation=workload),
            inputs=(*names, *operator.inputs[2:]),
        )
        rewriting.replace(operator, *before, new)
    return rewriting.graph()


def _short(rewriting: Rewriting, name: str, dtype: str, before: list[Operator]) -> str:
    array = rewriting.source.constants.get(name)
    if dtype == "float32":
        return name
    if array is not None:
        return rewriting.constant(f"{name} as {dtype}", array.astype(numpy_dtype(dtype)))
    new = rewriting.fresh(f"{name} as {dtype}")
    before.append(Operator(new, Elementwise(Input(0), dtype), (name,), (new,)))
    return new


def _stored_short(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        match operator.kind:
            case Elementwise(Input(0), dtype="bfloat16"):
                pass
            case _:
                continue
        before = graph.producers.get(operator.inputs[0])
        if before is None or not isinstance(before.kind, Product):
            continue
        epilogue = before.kind.epilogue or Epilogue(before.kind.dtype)
        if epilogue.dtype != "float32" or epilogue.residual is not None:
            continue
        if only_reader(graph, operator.inputs[0]) is operator:
            kind = before.kind.with_epilogue(replace(epilogue, dtype="bfloat16"))
            rewriting.replace(operator, replace(before, kind=kind, outputs=operator.outputs))
    return rewriting.graph()


T = TypeVar("T")

DISTANCE = {("int8", "uint8"): 128, ("uint8", "int8"): -128}
"""By how much elements grow from one type to the other."""

_OTHER = {"int8": "uint8", "uint8": "int8"}


def shifted(kind: Kind, inputs: Sequence[int], result: int) -> Kind | None:
    """The kind that does the same on ``inputs`` whose elements are larger by so much each (128,
    -128 or 0), to a ``result`` whose elements are; None where there is none. An elementwise kind
    says in what it computes."""
    if not any(inputs) and not result:
        return kind
    match kind:
        case Quantize():
            dtype = _OTHER[kind.dtype]
            return replace(kind, zero_point=_all(kind.zero_point, result), dtype=dtype)
        case Dequantize():
            return replace(kind, zero_point=_all(kind.zero_point, inputs[0]))
        case Table() if result:
            entries = tuple(entry + result for entry in kind.entries)
            return replace(kind, entries=entries, dtype=_OTHER[kind.dtype])
        case Table():
            return kind
        case Product():
            return _product(kind, inputs, result)
        case Elementwise():
            return _elementwise(kind, inputs, result)
        case _:
            alike = all(distance == result for distance in moved_inputs(kind, inputs))
            return _moving(kind, result) if alike else None


def moves_elements(kind: Kind) -> bool:
    """Whether the elements of the result are those of the inputs, or extremes or means of them."""
    return _moving(kind, 0) is not None


def moved_inputs(kind: Kind, inputs: Sequence[T]) -> Sequence[T]:
    """Of what belongs to the inputs of such a kind, that of those whose elements it moves."""
    return inputs if isinstance(kind, Concat) else inputs[:1]


def storing_as(epilogue: Epilogue, dtype: str) -> Epilogue:
    """An epilogue that rounds to the same numbers around its zero point, on the way to another
    type of eight bits."""
    distance = DISTANCE.get((epilogue.dtype, dtype), 0)
    if not distance:
        return epilogue
    clip = _moved_limits(epilogue.range, distance)
    return replace(epilogue, dtype=dtype, zero_point=epilogue.zero_point + distance, clip=clip)


def _all(numbers: Sequence[int], distance: int) -> tuple[int, ...]:
    return tuple(number + distance for number in numbers)


def _moving(kind: Kind, distance: int) -> Kind | None:
    match kind:
        case Concat() | Reshape() | Transpose() | Slice() | Gather() | Expand():
            return kind
        case Resize(mode="nearest"):
            return kind
        case Reduce(operation="max" | "min" | "mean"):
            return kind
        case Pad(mode="constant"):
            return replace(kind, value=kind.value + distance)
        case Pad():
            return kind
        case Pool(operation="max"):
            return kind
        case Pool(ratio=None):
            return replace(kind, zero_point=kind.zero_point + distance)
        case Pool():
            stored = kind.stored_zero_point + distance
            return replace(kind, zero_point=kind.zero_point + distance, stored_zero_point=stored)
        case _:
            return None


def _product(kind: Product, inputs: Sequence[int], result: int) -> Product | None:
    workload, epilogue = kind.computation, kind.epilogue
    dtypes = {
        operand.name: _OTHER[operand.dtype]
        for operand, distance in zip(workload.inputs, inputs, strict=False)
        if distance
    }
    a, b = (zero + moved for zero, moved in zip(kind.zero_points, inputs, strict=False))
    if result or any(inputs[2:]):
        epilogue = None if epilogue is None else _epilogue(epilogue, inputs[-1], result)
        if epilogue is None:
            return None
    return replace(
        kind, computation=workload.with_dtypes(dtypes), zero_points=(a, b), epilogue=epilogue
    )


def _epilogue(epilogue: Epilogue, other: int, result: int) -> Epilogue | None:
    if not epilogue.scale or epilogue.dtype not in BYTES:
        return None
    residual = epilogue.residual
    if residual is not None:
        residual = replace(
            residual,
            dtype=_OTHER[residual.dtype] if other else residual.dtype,
            zero_point=residual.zero_point + other,
            stored_zero_point=residual.stored_zero_point + result,
            clip=_moved_limits(residual.clip, result),
        )
    return replace(
        epilogue,
        dtype=_OTHER[epilogue.dtype] if result else epilogue.dtype,
        clip=_moved_limits(epilogue.clip, result),
        zero_point=epilogue.zero_point + result,
        residual=residual,
    )


def _moved_limits(clip: tuple[int, int] | None, distance: int) -> tuple[int, int] | None:
    return None if clip is None else (clip[0] + distance, clip[1] + distance)


def _elementwise(kind: Elementwise, inputs: Sequence[int], result: int) -> Elementwise | None:
    bytes_read = frozenset(number for number, distance in enumerate(inputs) if distance)

    def moved(node: Input) -> Scalar:
        distance = inputs[node.number]
        return apply("sub", node, distance) if distance else node

    expression = _joined(substituted(kind.expression, moved), bytes_read)
    if not result:
        return replace(kind, expression=expression)
    floats = (kind.computing or "").startswith("float")
    whole = _whole(expression) if floats else expression
    expression = _joined(apply("add", whole, result), bytes_read)
    return replace(kind, expression=expression, dtype=_OTHER[kind.dtype])


def _whole(expression: Scalar) -> Scalar:
    """A result that is rounded before it is moved."""
    return expression if is_whole(expression) else apply("round", expression)


def _joined(expression: Scalar, bytes_read: frozenset[int]) -> Scalar:
    """Whole numbers that are added or subtracted one after the other as one: exact for inputs of
    eight bits and for what was rounded."""
    if not isinstance(expression, Apply):
        return expression
    arguments = tuple(_joined(argument, bytes_read) for argument in expression.arguments)
    expression = Apply(expression.operation, arguments)
    inner, last = arguments[0], arguments[-1]
    if not (_is_step(expression) and isinstance(inner, Apply) and _is_step(inner)):
        return expression
    start, number = inner.arguments
    exact = isinstance(start, Input) and start.number in bytes_read
    if not isinstance(number, Number) or not isinstance(last, Number):
        return expression
    if not exact and not (isinstance(start, Apply) and is_whole(start)):
        return expression
    total = _signed(expression, last) + _signed(inner, number)
    if not total:
        return start
    return apply("add", start, total) if total > 0 else apply("sub", start, -total)


def _is_step(expression: Apply) -> bool:
    """Whether a whole number is added or subtracted."""
    if expression.operation not in ("add", "sub"):
        return False
    number = expression.arguments[1]
    return isinstance(number, Number) and is_whole(number)


def _signed(expression: Apply, number: Number) -> float | int:
    return number.value if expression.operation == "add" else -number.value
