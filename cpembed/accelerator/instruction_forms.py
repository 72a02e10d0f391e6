"""Forms of an instruction: what it computes where some of its arguments are fixed.

A scale of 1, a shift of 0 or an upper bound at the type's limit leaves a simpler computation; a
stride of 0 broadcasts an operand along an axis. Each form is an instance of the instruction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from cpembed.accelerator.normal_form import Clamps, normal_computation
from cpembed.errors import CpembedError
from cpembed.hw.isa import (
    IMMEDIATE,
    InstructionSet,
    IsaInstruction,
    MemoryKind,
    StrideSource,
)
from cpembed.ir.computation import Assignment, Computation, Operand
from cpembed.ir.dtypes import dtype_info, is_integer, neutral_element
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

Operations = tuple[str | None, tuple[tuple[str, int], ...]]
"""Reduction of a statement, and number of each of its operations and conversions."""

_MOST_FORMS = 24
"""Maximum number of forms of an instruction; those with the fewest fixed arguments come first."""


@dataclass(frozen=True)
class InstructionForm:
    """An instruction with some arguments fixed.

    Attributes
    ----------
    instruction : IsaInstruction
    computation : Computation
        What it computes, in normal form, with one statement.
    values : mapping of str to number
        Value of each operand that is fixed.
    repeated : mapping of str to tuple of str
        Dimensions of operands whose stride is 0.
    scalars : frozenset of str
        Operands of the computation that are registers or immediates.
    """

    instruction: IsaInstruction
    computation: Computation
    values: Mapping[str, int | float] = field(default_factory=dict[str, int | float])
    repeated: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    scalars: frozenset[str] = frozenset()

    @cached_property
    def constants(self) -> int:
        """Number of constants in the expression."""
        return constant_count(self.computation)

    @cached_property
    def operations(self) -> Operations:
        """Operations of the expression, and the reduction."""
        return operations(self.computation)

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each argument that is fixed."""
        strides = (
            f"stride 0 of {dimension} repeats {operand}"
            for operand, dimensions in self.repeated.items()
            for dimension in dimensions
        )
        values = (
            f"{operand} = {value:g} changes nothing" for operand, value in self.values.items()
        )
        return (*values, *strides)


@lru_cache(maxsize=4096)
def instruction_forms(machine: InstructionSet, name: str) -> tuple[InstructionForm, ...]:
    """Return the forms of an instruction that has one statement, the unchanged one first."""
    return tuple(_forms(machine, machine.instructions[name]))


def _forms(machine: InstructionSet, instruction: IsaInstruction) -> Iterator[InstructionForm]:
    if len(instruction.computation.statements) != 1:
        return
    scalars = frozenset(n for n in instruction.inputs if is_scalar(machine, instruction, n))
    choices = list(itertools.chain.from_iterable(_fixings(instruction, scalars)))
    computations: set[Computation] = set()
    sizes = range(min(len(choices), 4) + 1)
    for fixed in itertools.chain.from_iterable(itertools.combinations(choices, k) for k in sizes):
        form = _fixed(instruction, scalars, fixed)
        if form is not None and form.computation not in computations:
            computations.add(form.computation)
            yield form
        if len(computations) >= _MOST_FORMS:
            return


def is_scalar(machine: InstructionSet, instruction: IsaInstruction, operand: str) -> bool:
    """True if an operand is a register's contents or an immediate.

    Parameters
    ----------
    machine : InstructionSet
    instruction : IsaInstruction
    operand : str
    """
    memory = instruction.places[operand].memory
    return memory == IMMEDIATE or machine.memories[memory].kind is MemoryKind.REGISTER


_Fixing = tuple[str, str, int | float]
"""Operand, and the dimension whose stride is 0, or an empty text and the operand's value."""


def _fixings(instruction: IsaInstruction, scalars: frozenset[str]) -> Iterator[list[_Fixing]]:
    dtypes = {operand.name: operand.dtype for operand in instruction.computation.operands}
    for node in walk(instruction.computation.statement.value):
        if isinstance(node, Operation):
            for position, arg in enumerate(node.args):
                if isinstance(arg, Access) and arg.operand in scalars:
                    value = _neutral(node.op, position, dtypes[arg.operand])
                    if value is not None:
                        yield [(arg.operand, "", value)]
    for operand in instruction.inputs:
        yield [(operand, dimension, 0) for dimension in _free_strides(instruction, operand)]


def _neutral(op: str, position: int, dtype: str) -> int | float | None:
    """Return the value with which an operand of a type leaves the other argument as it is."""
    if op in ("max", "min"):
        return neutral_element(op, dtype)
    if op == "mul" or (op == "div" and position == 1):
        return 1 if is_integer(dtype) else 1.0
    return 0 if op == "add" or (op in ("sub", "shr") and position == 1) else None


def _free_strides(instruction: IsaInstruction, operand: str) -> Iterator[str]:
    """Yield the dimensions of an operand whose stride can be 0."""
    place, access = instruction.places[operand], instruction.computation.access(operand)
    for dimension, index in zip(place.dimensions, access.index, strict=True):
        stride = place.strides.get(dimension)
        if dimension not in place.stride_keys or index.single_iterator is None:
            continue
        if (
            stride is not None and not isinstance(stride, int) and stride != StrideSource.DENSE
        ) or (
            stride is None and not (place.rows or place.lanes) and dimension != place.dimensions[-1]
        ):
            yield dimension


def _fixed(
    instruction: IsaInstruction, scalars: frozenset[str], fixed: tuple[_Fixing, ...]
) -> InstructionForm | None:
    values: dict[str, int | float] = {}
    repeated: dict[str, tuple[str, ...]] = {}
    for operand, dimension, value in fixed:
        if dimension:
            repeated[operand] = (*repeated.get(operand, ()), dimension)
        else:
            values[operand] = value
    computation = instruction.computation
    try:
        for operand, value in values.items():
            computation = _with_value(computation, operand, value)
        for operand, dimensions in repeated.items():
            dropped = [instruction.places[operand].dimensions.index(d) for d in dimensions]
            computation = _without_dimensions(computation, operand, dropped)
        computation = normal_computation(computation, Clamps.AS_WRITTEN)
    except CpembedError:
        return None
    return InstructionForm(instruction, computation, values, repeated, scalars - values.keys())


def _with_value(computation: Computation, operand: str, value: int | float) -> Computation:
    """Replace a scalar operand by a number."""

    def number(node: Expression) -> Expression | None:
        return Constant(value) if isinstance(node, Access) and node.operand == operand else None

    statement = computation.statement
    inputs = tuple(o for o in computation.inputs if o.name != operand)
    changed_statement = replace(statement, value=replaced(statement.value, number))
    return replace(computation, inputs=inputs, statements=(changed_statement,))


def _without_dimensions(computation: Computation, operand: str, dropped: list[int]) -> Computation:
    """Leave dimensions of an operand out."""

    def changed(node: Expression) -> Expression | None:
        if not isinstance(node, Access) or node.operand != operand:
            return None
        index = tuple(i for place, i in enumerate(node.index) if place not in dropped)
        return replace(node, index=index)

    statement = computation.statement
    inputs = tuple(
        replace(o, shape=tuple(s for place, s in enumerate(o.shape) if place not in dropped))
        if o.name == operand
        else o
        for o in computation.inputs
    )
    changed_statement = replace(statement, value=replaced(statement.value, changed))
    return replace(computation, inputs=inputs, statements=(changed_statement,))


def constant_count(computation: Computation) -> int:
    """Return the number of constants in the expression of a computation of one statement."""
    return sum(isinstance(node, Constant) for node in walk(computation.statement.value))


def operations(computation: Computation) -> Operations:
    """Return what statements that match have in common.

    Parameters
    ----------
    computation : Computation
        A computation of one statement.
    """
    counts: dict[str, int] = {}
    for node in walk(computation.statement.value):
        if isinstance(node, Operation):
            counts[node.op] = counts.get(node.op, 0) + 1
        elif isinstance(node, Cast):
            label = f"{node.dtype}{'()' if node.saturate else ''}"
            counts[label] = counts.get(label, 0) + 1
    return computation.statement.reduction, tuple(sorted(counts.items()))


# -- constants of a statement in registers and immediates ------------------------------------------


@dataclass(frozen=True)
class LiftedStatement:
    """A statement some of whose constants are operands without dimensions.

    Attributes
    ----------
    computation : Computation
    values : mapping of str to number
        Value of each of these operands.
    floats : frozenset of str
        Those of them that meet a float, so that they may be integers or floats.
    """

    computation: Computation
    values: Mapping[str, int | float]
    floats: frozenset[str] = frozenset()

    @cached_property
    def operations(self) -> Operations:
        """Operations of the expression, and the reduction."""
        return operations(self.computation)

    def takes(self, operand: str, dtype: str) -> bool:
        """True if an operand of the instruction's type can hold the constant."""
        value = self.values[operand]
        if operand in self.floats:
            if is_integer(dtype):
                low, high = dtype_info(dtype).integer_range
                return float(value).is_integer() and low <= value <= high
            return float(dtype_info(dtype).numpy.type(value)) == value
        if isinstance(value, int):
            return is_integer(dtype) and (
                dtype_info(dtype).integer_range[0] <= value <= dtype_info(dtype).integer_range[1]
            )
        return not is_integer(dtype) and float(dtype_info(dtype).numpy.type(value)) == value


@lru_cache(maxsize=1024)
def lifted_statements(computation: Computation, constants: int) -> tuple[LiftedStatement, ...]:
    """Return a statement with all but a number of its constants as operands, in every way.

    Parameters
    ----------
    computation : Computation
        A computation of one statement.
    constants : int
        Number of constants that stay.
    """
    statement = computation.statement
    places = [n for n in walk(statement.value) if isinstance(n, Constant)]
    count = len(places) - constants
    if not 0 <= count <= 4:
        return ()
    if count == 0:
        return (LiftedStatement(computation, {}),)
    choices = itertools.combinations(range(len(places)), count)
    return tuple(_lifted(computation, choice) for choice in itertools.islice(choices, 16))


def _lifted(computation: Computation, choice: tuple[int, ...]) -> LiftedStatement:
    dtypes = {operand.name: operand.dtype for operand in computation.operands}
    values: dict[str, int | float] = {}
    floats: set[str] = set()
    position = itertools.count()

    def changed(node: Expression, beside_float: bool) -> Expression:
        if isinstance(node, Constant):
            number = next(position)
            if number not in choice:
                return node
            name = f"constant{number}"
            values[name] = node.value
            if beside_float:
                floats.add(name)
            return Access(name, ())
        if isinstance(node, Cast):
            return replace(node, arg=changed(node.arg, False))
        if isinstance(node, Operation):
            args: list[Expression] = []
            for place, arg in enumerate(node.args):
                further = [a for k, a in enumerate(node.args) if k != place]
                is_float = OPERATIONS[node.op].is_float or any(
                    yields_float(a, dtypes) for a in further
                )
                args.append(changed(arg, is_float))
            return Operation(node.op, tuple(args))
        return node

    statement = computation.statement
    value = changed(statement.value, False)
    lifted = tuple(
        Operand(name, (), "int32" if isinstance(number, int) else "float32")
        for name, number in values.items()
    )
    read = {node.operand: None for node in walk(value) if isinstance(node, Access)}
    operands = {operand.name: operand for operand in (*computation.inputs, *lifted)}
    inputs = tuple(operands[name] for name in read)
    changed_statement = Assignment(statement.store, value, statement.reduction)
    return LiftedStatement(
        replace(computation, inputs=inputs, statements=(changed_statement,)),
        values,
        frozenset(floats),
    )
