"""A TensorIR function as a computation.

Blocks that only move elements, such as the padding of an image, are inlined first; what is left has
to be one block over affine accesses.
"""
# pyright: basic

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, s_tir, tirx
from tvm_ffi import structural_equal

from cpembed.errors import WorkloadError
from cpembed.integrations.tvm.digits import dimensions_of, in_parts, split_axes
from cpembed.integrations.tvm.indices import is_conditional, read_index, read_window
from cpembed.ir.computation import (
    Assignment,
    Axis,
    AxisKind,
    Computation,
    Operand,
    changed_accesses,
)
from cpembed.ir.dtypes import DTYPES, holds
from cpembed.ir.expression import OPERATIONS, Access, Cast, Constant, Expression, Operation
from cpembed.ir.index import IndexExpr

_OPERATIONS = {
    tirx.Add: "add",
    tirx.Sub: "sub",
    tirx.Mul: "mul",
    tirx.Max: "max",
    tirx.Min: "min",
}

_TAKEN = ("uops",)
"""What programs call something else than an operand."""


@dataclass(frozen=True)
class Recognised:
    """A computation, the operand of each parameter of the function, and for each dimension of the
    function's output how many dimensions of the computation's it is: an index ``group * 8 +
    filter`` makes two of one. Elements lie in memory as they did.
    """

    computation: Computation
    parameters: tuple[str, ...]
    output_split: tuple[int, ...]


def recognise(function: tirx.PrimFunc, name: str = "tensorir") -> Recognised:
    """The computation of a function with buffers as parameters, the output last.

    Raises :class:`WorkloadError` for a function that is none: several blocks that compute, an index
    that is not affine, an operation that computations do not have, a loop nest already scheduled.
    """
    whole = _in_one_block(function, name)
    if not all(isinstance(parameter.ty, tirx.BufferType) for parameter in whole.params):
        raise WorkloadError(f"{name}: has a parameter that is no buffer")
    return read_block(whole.body, list(whole.params), name)


def read_block(
    body: Any, parameters: list[Any], name: str, operands: Sequence[str] | None = None
) -> Recognised:
    """The computation of one block under loops, which reads and, as the last, writes parameters;
    ``operands`` are their names, where they are not to be those of the buffers.

    Raises as :func:`recognise`.
    """
    block, bound = _only_block(body, name)
    return _Reader(name, block, bound, parameters, operands).recognised()


def reduces(block: Any) -> bool:
    """Whether a block has a reduction."""
    return any(iterator.iter_type == tirx.IterVar.CommReduce for iterator in block.iter_vars)


def vars_of(function: Any) -> list[Any]:
    """The parameters of a TensorIR function."""
    return list(function.params)


def _in_one_block(function: tirx.PrimFunc, name: str) -> Any:
    schedule: Any = s_tir.Schedule(ir.IRModule({"main": function}))
    root = schedule.get_sblock("root")
    outputs = {schedule.get(block).name_hint for block in schedule.get_output_blocks(root)}
    for block in schedule.get_child_blocks(root):
        found = schedule.get(block)
        if found.name_hint in outputs:
            continue
        try:
            schedule.compute_inline(block)
        except s_tir.schedule.ScheduleError:
            raise WorkloadError(
                f"{name}: block {found.name_hint} cannot be inlined: a computation is one block"
            ) from None
    return schedule.mod["main"]


def _only_block(body: Any, name: str) -> tuple[Any, dict[Any, int]]:
    """The block under the loops, and the extent of each of its iterators."""
    statement = body.block.body if isinstance(body, s_tir.SBlockRealize) else body
    loops: dict[Any, int] = {}
    while isinstance(statement, tirx.For):
        loops[statement.loop_var] = constant_size(statement.extent, f"{name}: a loop's extent")
        statement = statement.body
    if not isinstance(statement, s_tir.SBlockRealize):
        raise WorkloadError(f"{name}: has several blocks that compute; a computation is one block")
    block: Any = statement.block
    values = list(statement.iter_values)
    predicate = statement.predicate
    always = isinstance(predicate, tirx.IntImm) and bool(predicate.value)
    plain = all(value in loops for value in values) and len(set(values)) == len(loops)
    if not plain or len(values) != len(loops) or not always:
        raise WorkloadError(
            f"{name}: block {block.name_hint} is not under plain loops: pass it unscheduled"
        )
    return block, {
        iterator.var: loops[value] for iterator, value in zip(block.iter_vars, values, strict=True)
    }


def constant_size(value: Any, what: str) -> int:
    """A number; raises :class:`WorkloadError` for an expression."""
    if not isinstance(value, int | tirx.IntImm):
        raise WorkloadError(f"{what} is {value}, not a number: bind the symbolic sizes first")
    return int(value)


class _Reader:
    """Reads one block."""

    def __init__(
        self,
        name: str,
        block: Any,
        bound: Mapping[Any, int],
        parameters: list[Any],
        named: Sequence[str] | None = None,
    ) -> None:
        self._name, self._block = name, block
        names = _unique(var.name.removeprefix("v_") for var in bound)
        self._iterators = dict(zip(bound, names, strict=True))
        self._extents = dict(zip(names, bound.values(), strict=True))
        kinds = (iterator.iter_type for iterator in block.iter_vars)
        self._reduced = {
            axis for axis, kind in zip(names, kinds, strict=True) if kind == tirx.IterVar.CommReduce
        }
        operands = named or _unique((buffer.name for buffer in parameters), _TAKEN)
        self._operands = dict(zip(parameters, operands, strict=True))
        self._buffers = dict(zip(operands, parameters, strict=True))
        self._zero_outside: set[str] = set()

    def recognised(self) -> Recognised:
        body = self._block.body
        if not isinstance(body, tirx.BufferStore):
            raise self._error("its block has more than one statement")
        output = self._operand(body.buffer)
        store = Access(output, self._indices(body.indices))
        reduction, value = self._reduction(body)
        expression = self._expression(value)
        return self._in_axes(Assignment(store, expression, reduction))

    def _error(self, problem: str) -> WorkloadError:
        return WorkloadError(f"{self._name}: {problem}")

    def _operand(self, buffer: Any) -> str:
        if buffer not in self._operands:
            raise self._error(f"{buffer.name} is no parameter")
        return self._operands[buffer]

    def _shape(self, operand: str) -> tuple[int, ...]:
        where = f"{self._name}: a size of {operand}"
        return tuple(constant_size(size, where) for size in self._buffers[operand].shape)

    def _indices(self, indices: Any) -> tuple[IndexExpr, ...]:
        return tuple(self._index(index) for index in indices)

    def _index(self, index: Any) -> IndexExpr:
        return read_index(index, self._iterators, self._extents)

    def _reduction(self, store: Any) -> tuple[str | None, Any]:
        """The operation that combines a value with the output's, and the value."""
        kind = _OPERATIONS.get(type(store.value))
        for own, other in (("a", "b"), ("b", "a")) if kind else ():
            old = getattr(store.value, own)
            if (
                isinstance(old, ir.TensorLoad)
                and old.source.same_as(store.buffer)
                and structural_equal(list(old.indices), list(store.indices))
            ):
                self._check_start(kind, store.buffer.dtype)
                return kind, getattr(store.value, other)
        return None, store.value

    def _check_start(self, kind: str | None, dtype: str) -> None:
        start = self._block.init
        neutral = OPERATIONS[kind].neutral if kind else None
        if neutral is None:
            raise self._error(f"reduces by {kind}; a reduction here adds or multiplies")
        value = start.value if isinstance(start, tirx.BufferStore) else None
        if getattr(value, "value", None) != neutral:
            raise self._error(f"its sums in {dtype} do not start from {neutral}")

    def _expression(self, node: Any) -> Expression:
        if isinstance(node, tirx.IntImm | tirx.FloatImm):
            return Constant(node.value)
        if isinstance(node, ir.TensorLoad):
            return Access(self._operand(node.source), self._indices(node.indices))
        if isinstance(node, tirx.Cast):
            return self._cast(node)
        if type(node) in _OPERATIONS:
            args = (self._expression(node.a), self._expression(node.b))
            return Operation(_OPERATIONS[type(node)], args)
        padded = read_window(node)
        if padded is not None:
            return self._padded_read(*padded)
        if is_conditional(node):
            raise self._error("has a condition that is more than padding with zeros")
        raise self._error(f"{node} is no operation of a computation")

    def _cast(self, node: Any) -> Expression:
        """Conversions that change no value go without saying: a computation's arithmetic is exact.
        Of a value that was computed, it is not known whether it was cut off before."""
        inner = self._expression(node.value)
        wide, narrow = str(node.ty.dtype), str(node.value.ty.dtype)
        if {wide, narrow} <= set(DTYPES) and isinstance(inner, Access | Constant):
            return inner if holds(wide, narrow) else Cast(wide, inner)
        raise self._error(f"converts {inner} to {wide}, which is computed: convert what is read")

    def _padded_read(self, conditions: list[Any], load: Any) -> Access:
        """A read with zero where the conditions fail: they must say, all of it and no more, that
        the element exists."""
        access = Access(self._operand(load.source), self._indices(load.indices))
        given = [self._index(condition) for condition in conditions]
        for index, size in zip(access.index, self._shape(access.operand), strict=True):
            low, high = index.bounds(self._extents)
            negated = IndexExpr.of((t.times(-1) for t in index.terms), size - 1 - index.constant)
            for margin, needed in ((index, low < 0), (negated, high >= size)):
                same = set(margin.terms), margin.constant
                equal = [g for g in given if (set(g.terms), g.constant) == same]
                if needed and not equal:
                    raise self._error(f"{access} leaves {access.operand} and nothing guards it")
                given = [g for g in given if g not in equal]
        for condition in given:
            if condition.bounds(self._extents)[0] < 0:
                raise self._error(f"reads {access} only where {condition} >= 0, which cuts it")
        self._zero_outside.add(access.operand)
        return access

    def _in_axes(self, statement: Assignment) -> Recognised:
        """The computation over axes and dimensions in which every index is affine."""
        accesses = dict.fromkeys((statement.store, *statement.reads))
        parts = split_axes(self._extents, (i for a in accesses for i in a.index))
        extents = {part.name: part.extent for found in parts.values() for part in found}
        shapes: dict[str, tuple[int, ...]] = {}
        output_split: tuple[int, ...] = ()
        rewritten: dict[Access, Access] = {}
        for access in accesses:
            dimensions = [
                dimensions_of(in_parts(index, parts), extents, size)
                for index, size in zip(access.index, self._shape(access.operand), strict=True)
            ]
            flat = [pair for dimension in dimensions for pair in dimension]
            shape = tuple(size for _, size in flat)
            if shapes.setdefault(access.operand, shape) != shape:
                raise self._error(f"{access.operand} is read in groups of different sizes")
            rewritten[access] = Access(access.operand, tuple(index for index, _ in flat))
            if access == statement.store:
                output_split = tuple(map(len, dimensions))
        final = changed_accesses((statement,), lambda access: rewritten[access])[0]
        used = {n for a in rewritten.values() for index in a.index for n in index.iterators}
        axes = tuple(
            Axis(
                part.name,
                part.extent,
                AxisKind.REDUCTION if axis in self._reduced else AxisKind.SPATIAL,
            )
            for axis, found in parts.items()
            for part in found
            if part.extent > 1 or part.name in used
        )
        computation = self._computation(axes, shapes, final)
        return Recognised(computation, tuple(self._buffers), output_split)

    def _computation(
        self, axes: tuple[Axis, ...], shapes: Mapping[str, tuple[int, ...]], final: Assignment
    ) -> Computation:
        def operand(name: str) -> Operand:
            dtype = str(self._buffers[name].dtype)
            return Operand(name, shapes[name], dtype, name in self._zero_outside)

        output = final.store.operand
        inputs = dict.fromkeys(read.operand for read in final.reads)
        if set(self._buffers) != {*inputs, output} or list(self._buffers)[-1] != output:
            raise self._error("its parameters are not what it reads, followed by what it writes")
        operands = tuple(operand(name) for name in inputs)
        return Computation(self._name, axes, operands, (operand(output),), (final,))


def _unique(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names, with a number behind those that are taken."""
    found = list(taken)
    given = len(found)
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        found.append(next(n for n in itertools.chain([name], numbered) if n not in found))
    return found[given:]
