"""Covering of an expression by instructions, with the values between them as tensors.

A statement that no instruction computes alone may be several that do: each instruction's pattern
covers the root of the expression, and what its operands stand for becomes a tensor, which is
covered in turn. The cheapest covering by the cycles of the matches is returned.

The values do not change. An operation of float32 is rounded by itself, so that its result is a
tensor of float32; integers are exact in 64 bits, and become a tensor of int32 only where their
bounds fit. An operation that goes on from what a tensor holds (``T max= v``) is one on that tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.accelerator.instruction_forms import InstructionForm, instruction_forms
from cpembed.accelerator.lemmas import Rewriting, rewritten
from cpembed.accelerator.matching import matches, written_forms
from cpembed.accelerator.specification import Array, Specification, Statement
from cpembed.hw.isa import InstructionSet
from cpembed.ir.computation import Assignment, AxisKind, Computation, Operand
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import (
    OPERATIONS,
    Access,
    Cast,
    Constant,
    Expression,
    Operation,
    replaced,
    walk,
    yields_float,
)
from cpembed.ir.index import IndexExpr
from cpembed.ir.ranges import typed_range

_DEEPEST = 24
"""Maximum number of instructions on a path from the result to a read."""

_MOST_STEPS = 2000
"""Maximum number of patterns that are compared with an expression's root for one statement."""


def covered(statement: Statement, machine: InstructionSet) -> Rewriting | None:
    """Return statements that instructions compute and that stand for one of several operations.

    Returns
    -------
    Rewriting or None
        None where the statement has a reduction, or no covering was found.
    """
    computation = statement.computation
    if computation.statement.reduction is not None or statement.accumulates:
        return None
    if any(o.dtype == "float64" for o in computation.operands):
        return None
    cover = _Covering(machine, computation)
    step = cover.best(computation.statement.value, computation.output.dtype, _DEEPEST)
    if step is None:
        return None
    statements = cover.statements(step)
    read = {operand.name for s in statements for operand in s.reads}
    constants = {name: array for name, array in cover.constants.items() if name in read}
    return Rewriting(f"{len(statements)} single operations", tuple(statements), constants)


def with_covered_statements(specification: Specification, machine: InstructionSet) -> Specification:
    """Return a specification in which several instructions compute what no single one does.

    Statements that have no covering stay.
    """

    def cover(statement: Statement, _: Mapping[str, Array]) -> Rewriting | None:
        return None if matches(statement, machine) else covered(statement, machine)

    return rewritten(specification, cover) or specification


@dataclass(frozen=True)
class _Step:
    """A computed value: an expression over reads and earlier steps, which are tensors of their own.

    ``goes_on`` is the operation by which it changes the first of the earlier steps in place.
    """

    value: Expression
    dtype: str
    cycles: float
    earlier: tuple[tuple[str, _Step], ...] = ()
    goes_on: str = ""

    @property
    def total(self) -> float:
        """Cycles of this step and all earlier ones."""
        return self.cycles + sum(step.total for _, step in self.earlier)


@dataclass
class _Covering:
    """Search for the cheapest steps of the subexpressions of one statement."""

    machine: InstructionSet
    computation: Computation
    memory: dict[tuple[Expression, str], _Step | None] = field(
        default_factory=dict[tuple[Expression, str], "_Step | None"]
    )
    operands: dict[str, Operand] = field(default_factory=dict[str, Operand])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    compared: int = 0

    def __post_init__(self) -> None:
        self.operands.update({o.name: o for o in self.computation.inputs})

    @property
    def dtypes(self) -> dict[str, str]:
        return {name: operand.dtype for name, operand in self.operands.items()}

    def best(self, value: Expression, dtype: str, depth: int) -> _Step | None:
        """Return the cheapest step that has an expression's value in a type; None if none has."""
        key = value, dtype
        if key not in self.memory:
            # Marked first: an expression is no part of its own covering.
            self.memory[key] = None
            steps = [s for s in self._steps(value, dtype, depth) if s is not None]
            self.memory[key] = min(steps, key=lambda step: step.total, default=None)
        return self.memory[key]

    def _steps(self, value: Expression, dtype: str, depth: int) -> Iterator[_Step | None]:
        direct = self._matched(value, dtype)
        if direct is not None:
            yield direct
            return
        if depth == 0:
            return
        computation = self._statement(value, dtype)
        if computation is None:
            return
        for written in dict.fromkeys(c.statement.value for c in written_forms(computation)):
            for form in self._forms():
                if self.compared >= _MOST_STEPS:
                    return
                yield from self._by_pattern(form, written, dtype, depth)
            yield from self._in_place(written, dtype, depth)
            for wide in (written, *_bounded(written, self.dtypes)):
                yield self._narrowed(wide, dtype, depth)

    def _forms(self) -> Iterator[InstructionForm]:
        for name in self.machine.instructions:
            for form in instruction_forms(self.machine, name):
                statement = form.computation.statement
                if statement.reduction is None and isinstance(statement.value, Operation | Cast):
                    yield form

    def _by_pattern(
        self, form: InstructionForm, value: Expression, dtype: str, depth: int
    ) -> Iterator[_Step | None]:
        """Yield the steps whose last instruction has a pattern that covers the root."""
        pattern = form.computation.statement.value
        if form.computation.output.dtype != dtype or not _same_root(pattern, value):
            return
        self.compared += 1
        for leaves in itertools.islice(_unified(pattern, value), 8):
            inner: list[Expression] = [
                part for _, part in leaves if isinstance(part, Operation | Cast)
            ]
            if inner:
                yield self._with_parts(value, dtype, inner, depth)
            rows = [
                part
                for name, part in leaves
                if isinstance(part, Constant) and name not in form.scalars and _is_int32(part)
            ]
            if rows:
                for axes in self._vector_axes():
                    names: dict[Expression, Access] = {
                        part: self._constant(part, axes) for part in rows
                    }
                    yield self._with_parts(value, dtype, inner, depth, names)

    def _with_parts(
        self,
        value: Expression,
        dtype: str,
        parts: list[Expression],
        depth: int,
        constants: Mapping[Expression, Access] | None = None,
    ) -> _Step | None:
        """Return the step of an expression whose parts, and some constants, are tensors."""
        earlier: dict[Expression, tuple[str, _Step]] = {}
        for part in parts:
            part_dtype = self._dtype_of(part)
            # An expression of constants alone has no axes to be a tensor over.
            if part_dtype is None or not any(isinstance(n, Access) for n in walk(part)):
                return None
            step = self.best(part, part_dtype, depth - 1)
            if step is None:
                return None
            earlier[part] = self._tensor(part, part_dtype), step
        reads = {part: self._read(part, name) for part, (name, _) in earlier.items()}
        step = self._matched(replaced(value, {**reads, **(constants or {})}.get), dtype)
        return None if step is None else replace(step, earlier=tuple(earlier.values()))

    def _in_place(self, value: Expression, dtype: str, depth: int) -> Iterator[_Step | None]:
        """Yield the steps whose last instruction changes a tensor that holds the first argument."""
        match value:
            case Operation(("add" | "max" | "min") as op, (first, second)):
                orders = ((first, second), (second, first))
            case _:
                return
        for base, addend in orders:
            if isinstance(base, Constant) or self._dtype_of(base) != dtype:
                continue
            parts = [addend] if isinstance(addend, Operation | Cast) else []
            earlier: list[tuple[str, _Step]] = []
            for part in (base, *parts):
                part_dtype = self._dtype_of(part)
                step = None if part_dtype is None else self.best(part, part_dtype, depth - 1)
                if step is None or part_dtype is None:
                    break
                earlier.append((self._tensor(part, part_dtype), step))
            if len(earlier) != 1 + len(parts):
                continue
            named = zip(parts, earlier[1:], strict=True)
            reads: dict[Expression, Access] = {
                part: self._read(part, name) for part, (name, _) in named
            }
            step = self._matched(replaced(addend, reads.get), dtype, op)
            if step is not None:
                yield replace(step, earlier=tuple(earlier), goes_on=op)

    def _narrowed(self, value: Expression, dtype: str, depth: int) -> _Step | None:
        """Return the step that stores an int32 as a narrower integer, which wraps around."""
        dtypes = self.dtypes
        if not is_integer(dtype) or dtype == "int32" or yields_float(value, dtypes):
            return None
        if not isinstance(value, Operation | Cast) or self._dtype_of(value) != "int32":
            return None
        step = self.best(value, "int32", depth - 1)
        if step is None:
            return None
        name = self._tensor(value, "int32")
        stored = Cast(dtype, self._read(value, name))
        last = self._matched(stored, dtype)
        return None if last is None else replace(last, earlier=((name, step),))

    # -- statements -------------------------------------------------------------------------------

    def _dtype_of(self, value: Expression) -> str | None:
        """Return the type of the tensor that holds an expression's values exactly."""
        if isinstance(value, Access):
            return self.operands[value.operand].dtype
        if isinstance(value, Cast) and value.saturate:
            return value.dtype
        if yields_float(value, self.dtypes):
            return "float32"
        bounds = typed_range(value, self.dtypes)
        low, high = dtype_info("int32").integer_range
        return "int32" if bounds and low <= bounds[0] and bounds[1] <= high else None

    def _axes(self, value: Expression) -> tuple[str, ...]:
        """Return the axes on which an expression depends, in the order of the output."""
        used = {name for node in walk(value) if isinstance(node, Access) for name in node.iterators}
        store = self.computation.statement.store.iterators
        return tuple(name for name in store if name in used)

    def _tensor(self, value: Expression, dtype: str) -> str:
        """Return the name of the tensor that holds an expression, the same for the same one."""
        key = f"{value}:{dtype}"
        output = self.computation.output.name
        names = {k: o for k, o in self.operands.items() if k.startswith(f"{output}.part")}
        for name in names:
            if self._labels.get(name) == key:
                return name
        name = f"{output}.part{len(names)}"
        extents = self.computation.extents
        shape = tuple(extents[axis] for axis in self._axes(value))
        self.operands[name] = Operand(name, shape, dtype)
        self._labels[name] = key
        return name

    _labels: dict[str, str] = field(default_factory=dict[str, str])

    def _read(self, value: Expression, name: str) -> Access:
        return Access(name, tuple(map(IndexExpr.iterator, self._axes(value))))

    def _vector_axes(self) -> Iterator[tuple[str, ...]]:
        """Yield the axes over which a constant may be repeated: the last one, or all."""
        axes = self.computation.statement.store.iterators
        yield axes[-1:]
        if len(axes) > 1:
            yield axes

    def _constant(self, value: Constant, axes: tuple[str, ...]) -> Access:
        """Return the read of a constant that is repeated along axes."""
        dtype = "int32" if isinstance(value.value, int) else "float32"
        key = f"{value}:{axes}"
        name = next((n for n, label in self._labels.items() if label == key), "")
        if not name:
            name = f"{self.computation.output.name}.constant{len(self.constants)}"
            shape = tuple(self.computation.extents[axis] for axis in axes)
            self.operands[name] = Operand(name, shape, dtype)
            self.constants[name] = np.full(shape, value.value, dtype)
            self._labels[name] = key
        return Access(name, tuple(map(IndexExpr.iterator, axes)))

    def _matched(self, value: Expression, dtype: str, goes_on: str = "") -> _Step | None:
        """Return the step of a value that an instruction computes at once."""
        computation = self._statement(value, dtype, goes_on)
        if computation is None:
            return None
        candidates = matches(Statement(computation, bool(goes_on)), self.machine)
        return _Step(value, dtype, candidates[0].cycles) if candidates else None

    def _statement(
        self, value: Expression, dtype: str, goes_on: str = "", name: str = "_value"
    ) -> Computation | None:
        """Return the computation of a value over all axes of the output that it needs."""
        axes = self._axes(value)
        if goes_on and not axes:
            axes = self.computation.statement.store.iterators
        reads = dict.fromkeys(n.operand for n in walk(value) if isinstance(n, Access))
        extents = self.computation.extents
        kinds = {axis.name: axis for axis in self.computation.axes}
        if any(kinds[axis].kind is not AxisKind.SPATIAL for axis in axes):
            return None
        output = Operand(name, tuple(extents[axis] for axis in axes), dtype)
        store = Access(name, tuple(map(IndexExpr.iterator, axes)))
        return Computation(
            self.computation.name,
            tuple(kinds[axis] for axis in kinds if axis in axes),
            tuple(self.operands[read] for read in reads),
            (output,),
            (Assignment(store, value, goes_on or None),),
        )

    def statements(self, step: _Step) -> list[Statement]:
        """Return the statements of a step, the last of which writes the output."""
        ordered: dict[str, Statement] = {}
        last = self.computation.output.name
        self._collect(step, last, ordered)
        return list(ordered.values())

    def _collect(self, step: _Step, name: str, ordered: dict[str, Statement]) -> None:
        # A tensor that is changed in place has the name of the result from the beginning.
        for place, (tensor, earlier) in enumerate(step.earlier):
            changed = step.goes_on and place == 0
            if changed or tensor not in ordered:
                self._collect(earlier, name if changed else tensor, ordered)
        computation = self._statement(step.value, step.dtype, step.goes_on, name)
        assert computation is not None
        if name == self.computation.output.name:
            computation = self._as_output(computation, step)
        key = f"{name} {step.goes_on} {len(ordered)}" if step.goes_on else name
        ordered.setdefault(key, Statement(computation, bool(step.goes_on)))

    def _as_output(self, computation: Computation, step: _Step) -> Computation:
        """Return the computation of a result with the output's own index and axes."""
        original = self.computation
        statement = Assignment(original.statement.store, step.value, step.goes_on or None)
        return replace(
            computation,
            axes=original.axes,
            outputs=(replace(original.output, dtype=step.dtype),),
            statements=(statement,),
        )


def _is_int32(value: Constant) -> bool:
    """True unless a constant is an integer that int32 cannot hold."""
    low, high = dtype_info("int32").integer_range
    return isinstance(value.value, float) or low <= value.value <= high


def _bounded(value: Expression, dtypes: Mapping[str, str]) -> Iterator[Expression]:
    """Yield a conversion of an integer that saturates as a minimum and a maximum."""
    match value:
        case Cast(dtype, arg, True) if is_integer(dtype) and not yields_float(arg, dtypes):
            low, high = dtype_info(dtype).integer_range
            least = Operation("max", (arg, Constant(low)))
            yield Operation("min", (least, Constant(high)))
        case _:
            return


def _same_root(pattern: Expression, value: Expression) -> bool:
    match pattern, value:
        case Operation(), Operation():
            return pattern.op == value.op
        case Cast(), Cast():
            return pattern.dtype == value.dtype and pattern.saturate == value.saturate
        case _:
            return False


_Leaves = tuple[tuple[str, Expression], ...]
"""Operands of a pattern, each with the part of an expression that it stands for."""


def _unified(pattern: Expression, value: Expression) -> Iterator[_Leaves]:
    """Yield the parts of an expression that the leaves of a pattern stand for."""
    match pattern, value:
        case Access(), _:
            yield ((pattern.operand, value),)
        case Constant(), Constant() if pattern.value == value.value:
            yield ()
        case Cast(), Cast() if _same_root(pattern, value):
            yield from _unified(pattern.arg, value.arg)
        case Operation(), Operation() if pattern.op == value.op:
            orders = [value.args]
            if OPERATIONS[value.op].commutative and len(value.args) == 2:
                orders.append(value.args[::-1])
            for args in orders:
                choices = [list(_unified(p, v)) for p, v in zip(pattern.args, args, strict=True)]
                for parts in itertools.product(*choices):
                    yield tuple(itertools.chain.from_iterable(parts))
        case _:
            return
