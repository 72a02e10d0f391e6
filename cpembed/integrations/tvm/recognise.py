"""A TensorIR function as a computation.

Blocks that only copy elements, such as the padding of an image, are inlined first; the rest must be
one block with affine accesses.
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
from cpembed.integrations.tvm import indices
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

# Names that programs use for something other than operands.
_RESERVED = ("uops",)


@dataclass(frozen=True)
class Recognised:
    """Computation of a function; the positions of elements in memory are the function's.

    Parameters
    ----------
    computation
        Computation with affine accesses.
    parameters
        Operand of each parameter of the function.
    output_split
        Number of the computation's dimensions for each dimension of the function's output: an
        index ``group * 8 + filter`` makes two of one.
    """

    computation: Computation
    parameters: tuple[str, ...]
    output_split: tuple[int, ...]


def recognise(function: tirx.PrimFunc, name: str = "tensorir") -> Recognised:
    """Return the computation of a function with buffers as parameters, the output last.

    Raises :class:`WorkloadError` for a function that is none: several blocks that compute, an index
    that is not affine, an operation that computations do not have, a loop nest already scheduled.
    """
    inlined = inline_blocks(function, name)
    return read_block(inlined.body, buffers_of(inlined, name), name)


def read_block(
    body: Any, parameters: list[Any], name: str, operands: Sequence[str] | None = None
) -> Recognised:
    """Return the computation of a single block under loops.

    Parameters
    ----------
    body
        Loop nest.
    parameters
        Buffers that it reads, then the one that it writes.
    name
        Name of the computation.
    operands
        Names of the operands; None for those of the buffers.

    Raises
    ------
    WorkloadError
        The block is no computation; see :func:`recognise`.
    """
    block, bound = _only_block(body, name)
    return _Reader(name, block, bound, parameters, operands).recognised()


def reduces(block: Any) -> bool:
    """Return whether a block has a reduction."""
    return any(iterator.iter_type == tirx.IterVar.CommReduce for iterator in block.iter_vars)


def vars_of(function: Any) -> list[Any]:
    """Return the parameters of a TensorIR function."""
    return list(function.params)


def blocks_of(function: Any) -> list[Any]:
    """Return the blocks of an unscheduled function."""
    schedule: Any = s_tir.Schedule(ir.IRModule({"main": function}))
    root = schedule.get_sblock("root")
    return [schedule.get(block) for block in schedule.get_child_blocks(root)]


def buffers_of(function: Any, name: str) -> list[Any]:
    """Return the parameters of a function; raise :class:`WorkloadError` if one is no buffer."""
    parameters = vars_of(function)
    if not all(isinstance(parameter.ty, tirx.BufferType) for parameter in parameters):
        raise WorkloadError(f"{name}: has a parameter that is no buffer")
    return parameters


def inline_blocks(function: tirx.PrimFunc, name: str, *, keeps_sums: bool = False) -> Any:
    """Return a function with every block inlined but those that write outputs.

    Parameters
    ----------
    function
        Unscheduled function.
    name
        Name in messages.
    keeps_sums
        True keeps blocks with a reduction too.

    Raises
    ------
    WorkloadError
        A block cannot be inlined.
    """
    schedule: Any = s_tir.Schedule(ir.IRModule({"main": function}))
    root = schedule.get_sblock("root")
    # Those that write outputs have no reader to be inlined into.
    outputs = {schedule.get(block).name_hint for block in schedule.get_output_blocks(root)}
    for reference in schedule.get_child_blocks(root):
        block = schedule.get(reference)
        if block.name_hint in outputs or (keeps_sums and reduces(block)):
            continue
        try:
            schedule.compute_inline(reference)
        except s_tir.schedule.ScheduleError:
            rule = "" if keeps_sums else ": a computation is one block"
            problem = f"{name}: block {block.name_hint} cannot be inlined{rule}"
            raise WorkloadError(problem) from None
    return schedule.mod["main"]


def _only_block(body: Any, name: str) -> tuple[Any, dict[Any, int]]:
    """Return the block under the loops, and the extent of each of its iterators."""
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
    # A predicate, or an iterator bound to an expression, is the work of a schedule.
    is_unconditional = isinstance(predicate, tirx.IntImm) and bool(predicate.value)
    is_plain = all(value in loops for value in values) and len(set(values)) == len(loops)
    if not is_plain or len(values) != len(loops) or not is_unconditional:
        raise WorkloadError(
            f"{name}: block {block.name_hint} is not under plain loops: pass it unscheduled"
        )
    return block, {
        iterator.var: loops[value] for iterator, value in zip(block.iter_vars, values, strict=True)
    }


def constant_size(value: Any, subject: str) -> int:
    """Return a size as a number; raise :class:`WorkloadError` for an expression."""
    if not isinstance(value, int | tirx.IntImm):
        raise WorkloadError(f"{subject} is {value}, not a number: bind the symbolic sizes first")
    return int(value)


class _Reader:
    """Reads the computation of a block; see :func:`read_block`."""

    def __init__(
        self,
        name: str,
        block: Any,
        iterators: Mapping[Any, int],
        parameters: list[Any],
        operands: Sequence[str] | None = None,
    ) -> None:
        self._name, self._block = name, block
        names = _unique(var.name.removeprefix("v_") for var in iterators)
        self._iterators = dict(zip(iterators, names, strict=True))
        self._extents = dict(zip(names, iterators.values(), strict=True))
        kinds = (iterator.iter_type for iterator in block.iter_vars)
        self._reduced = {
            axis for axis, kind in zip(names, kinds, strict=True) if kind == tirx.IterVar.CommReduce
        }
        operands = operands or _unique((buffer.name for buffer in parameters), _RESERVED)
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
        subject = f"{self._name}: a size of {operand}"
        return tuple(constant_size(size, subject) for size in self._buffers[operand].shape)

    def _indices(self, indices: Any) -> tuple[IndexExpr, ...]:
        return tuple(self._index(index) for index in indices)

    def _index(self, index: Any) -> IndexExpr:
        return indices.read_index(index, self._iterators, self._extents)

    def _reduction(self, store: Any) -> tuple[str | None, Any]:
        """Return the operation that combines a value with the output's, and the value."""
        kind = _OPERATIONS.get(type(store.value))
        # The old value may be either operand: sum + x or x + sum.
        for first, second in (("a", "b"), ("b", "a")) if kind else ():
            old = getattr(store.value, first)
            if (
                isinstance(old, ir.TensorLoad)
                and old.source.same_as(store.buffer)
                and structural_equal(list(old.indices), list(store.indices))
            ):
                self._check_start(kind, store.buffer.dtype)
                return kind, getattr(store.value, second)
        return None, store.value

    def _check_start(self, kind: str | None, dtype: str) -> None:
        """Raise an error unless sums start from the neutral element."""
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
        padded = indices.read_window(node)
        if padded is not None:
            return self._padded_read(*padded)
        if indices.is_conditional(node):
            raise self._error("has a condition that is more than padding with zeros")
        raise self._error(f"{node} is not a supported operation")

    def _cast(self, node: Any) -> Expression:
        inner = self._expression(node.value)
        wide, narrow = str(node.ty.dtype), str(node.value.ty.dtype)
        if {wide, narrow} <= set(DTYPES) and isinstance(inner, Access | Constant):
            # A conversion that keeps every value is left out: a computation's arithmetic is exact.
            # A computed value may have been cut off before.
            return inner if holds(wide, narrow) else Cast(wide, inner)
        raise self._error(f"converts {inner} to {wide}, which is computed: convert what is read")

    def _padded_read(self, conditions: list[Any], load: Any) -> Access:
        """Return a read that is zero where conditions fail."""
        access = Access(self._operand(load.source), self._indices(load.indices))
        # They must hold exactly if the element exists.
        guards = [self._index(condition) for condition in conditions]
        for index, size in zip(access.index, self._shape(access.operand), strict=True):
            # Each side that the index leaves needs a guard, and no side may have another one: a
            # guard that cuts elements off would be lost in a computation.
            low, high = index.bounds(self._extents)
            negated = IndexExpr.sum((t.times(-1) for t in index.terms), size - 1 - index.constant)
            for margin, needed in ((index, low < 0), (negated, high >= size)):
                key = set(margin.terms), margin.constant
                equal = [g for g in guards if (set(g.terms), g.constant) == key]
                if needed and not equal:
                    raise self._error(f"{access} leaves {access.operand} and nothing guards it")
                guards = [g for g in guards if g not in equal]
        for guard in guards:
            if guard.bounds(self._extents)[0] < 0:
                raise self._error(f"reads {access} only where {guard} >= 0, which cuts it")
        self._zero_outside.add(access.operand)
        return access

    def _in_axes(self, statement: Assignment) -> Recognised:
        """Return the computation over axes and dimensions in which every index is affine."""
        # Each access once, in a fixed order.
        accesses = dict.fromkeys((statement.store, *statement.reads))
        parts = indices.split_axes(self._extents, (i for a in accesses for i in a.index))
        extents = {part.name: part.extent for digits in parts.values() for part in digits}
        shapes: dict[str, tuple[int, ...]] = {}
        output_split: tuple[int, ...] = ()
        rewritten: dict[Access, Access] = {}
        for access in accesses:
            dimensions = [
                indices.dimensions_of(indices.in_parts(index, parts), extents, size)
                for index, size in zip(access.index, self._shape(access.operand), strict=True)
            ]
            flat = [pair for dimension in dimensions for pair in dimension]
            # Two accesses of one operand may split its dimensions in different ways.
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
            for axis, digits in parts.items()
            for part in digits
            # An axis of one step that no index has would be an axis without a meaning.
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
        # Parameters are matched with operands by position later.
        if set(self._buffers) != {*inputs, output} or list(self._buffers)[-1] != output:
            raise self._error("its parameters are not what it reads, followed by what it writes")
        operands = tuple(operand(name) for name in inputs)
        return Computation(self._name, axes, operands, (operand(output),), (final,))


def _unique(names: Iterable[str], reserved: Iterable[str] = ()) -> list[str]:
    """Return the names, with a number appended to repeated and reserved ones."""
    used = list(reserved)
    start = len(used)
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        used.append(next(n for n in itertools.chain([name], numbered) if n not in used))
    return used[start:]
