"""Programs of an accelerator: loops around instructions whose addresses are index expressions.

A program runs on tensors in main memory, each with a layout that may have margins around the
elements. Its order is that of its text; how far units may run ahead of it is what the machine's
synchronization says (:class:`~cpembed.hw.isa.Synchronization`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.specification import Specification
from cpembed.errors import ProgramError
from cpembed.hw.isa import InstructionSet
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.index import IndexExpr, row_major_strides

Array = NDArray[Any]

ZERO = IndexExpr()
"""The constant 0 as an index expression."""


@dataclass(frozen=True)
class MainTensor:
    """A tensor in main memory, with the layout of its elements.

    The buffer is row-major over ``order``. Along each dimension, ``before`` and ``after`` positions
    around the elements hold ``fill`` from the moment that the program is loaded. The dimensions of
    ``blocks`` are split once: ``{1: 16}`` puts ``index // 16`` where ``order`` names dimension 1
    first and ``index % 16`` where it names it again.

    Attributes
    ----------
    shape : tuple of int
        Shape of the logical tensor.
    order : tuple of int
        Dimension at each place of the buffer, outermost first; a blocked one is there twice.
    role : str
        ``input``, ``constant``, ``output`` or ``temporary``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    blocks: Mapping[int, int] = field(default_factory=dict[int, int])
    fill: int | float = 0
    role: str = "temporary"

    @staticmethod
    def dense(name: str, shape: tuple[int, ...], dtype: str, role: str) -> MainTensor:
        """Return a row-major tensor without margins."""
        zeros = (0,) * len(shape)
        return MainTensor(name, shape, dtype, tuple(range(len(shape))), zeros, zeros, role=role)

    @property
    def anonymous(self) -> MainTensor:
        """The layout without the name and the role that a program gives the tensor."""
        return replace(self, name="", role="")

    @property
    def is_loaded(self) -> bool:
        """True for a tensor that holds its elements before the program begins."""
        return self.role in ("input", "constant")

    @cached_property
    def padded(self) -> tuple[int, ...]:
        """Size of each dimension with its margins, in whole blocks."""
        sizes = [b + s + a for b, s, a in zip(self.before, self.shape, self.after, strict=True)]
        for dimension, block in self.blocks.items():
            sizes[dimension] = -(-sizes[dimension] // block) * block
        return tuple(sizes)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Size of each place of the buffer, outermost first."""
        placed: set[int] = set()
        sizes: list[int] = []
        for dimension in self.order:
            size, block = self.padded[dimension], self.blocks.get(dimension)
            if block is not None:
                size = block if dimension in placed else size // block
            placed.add(dimension)
            sizes.append(size)
        return tuple(sizes)

    @property
    def elements(self) -> int:
        """Elements of the buffer, margins included."""
        return math.prod(self.places)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Distance in elements between neighbours along each place."""
        return row_major_strides(self.places)

    def buffer(self, array: Array | None = None) -> Array:
        """Return the flat buffer with an array's elements in place, and ``fill`` elsewhere."""
        padded = np.full(self.padded, self.fill, numpy_dtype(self.dtype))
        if array is not None:
            padded[self._inside] = array.reshape(self.shape)
        return np.ascontiguousarray(self._split(padded).transpose(self._axes)).reshape(-1)

    def array(self, buffer: Array) -> Array:
        """Return the elements of a flat buffer in the shape of the logical tensor."""
        inverse = np.argsort(self._axes)
        return buffer.reshape(self.places).transpose(inverse).reshape(self.padded)[self._inside]

    @property
    def _inside(self) -> tuple[slice, ...]:
        return tuple(slice(b, b + s) for b, s in zip(self.before, self.shape, strict=True))

    def _split(self, padded: Array) -> Array:
        sizes: list[int] = []
        for dimension, size in enumerate(self.padded):
            block = self.blocks.get(dimension)
            sizes += [size] if block is None else [size // block, block]
        return padded.reshape(sizes)

    @cached_property
    def _axes(self) -> tuple[int, ...]:
        first = np.cumsum([0, *(2 if d in self.blocks else 1 for d in range(len(self.shape)))])
        placed: set[int] = set()
        axes: list[int] = []
        for dimension in self.order:
            axes.append(int(first[dimension]) + (dimension in placed))
            placed.add(dimension)
        return tuple(axes)


@dataclass(frozen=True)
class Address:
    """Place of an operand in one execution.

    ``tensor`` is the name of a tensor in main memory and empty for other memories. ``base`` is the
    first element of the tensor's buffer, the first row, or the value of an immediate that is an
    integer. ``lane`` is the first lane of a row. ``strides`` are those that are arguments of the
    instruction, by their key (:attr:`~cpembed.hw.isa.OperandPlace.stride_keys`). ``value`` is that
    of an immediate that is a float. ``table`` has the values of an immediate that differ between
    iterations: that at place ``base`` is taken.
    """

    base: IndexExpr = ZERO
    tensor: str = ""
    lane: IndexExpr = ZERO
    strides: Mapping[str, int] = field(default_factory=dict[str, int])
    value: float | None = None
    table: tuple[int | float, ...] = ()

    def number(self, loops: Mapping[str, int]) -> int | float:
        """Return the value of an immediate in one iteration of the loops around it."""
        place = int(self.base.evaluate(loops))
        if self.table:
            if not 0 <= place < len(self.table):
                raise ProgramError(f"a table of {len(self.table)} numbers has no place {place}")
            return self.table[place]
        return place if self.value is None else self.value


@dataclass(frozen=True)
class Content:
    """Claim about what an operand holds in one execution, which the proof checks.

    Attributes
    ----------
    tensor : str
        Tensor of the specification; of an accumulator, the tensor whose sums it holds.
    index : tuple of IndexExpr
        Index of the tensor's element that an element of the operand holds, over the loops around
        the instruction and the operand's dimensions, named as in
        :attr:`~cpembed.hw.isa.OperandPlace.dimensions`. Outside of the tensor's shape it is the
        fill of its margins.
    """

    tensor: str
    index: tuple[IndexExpr, ...]


@dataclass(frozen=True)
class Meaning:
    """Claim about which points of a statement one execution computes, which the proof checks.

    Attributes
    ----------
    statement : int
        Number of the statement in the specification.
    points : mapping of str to IndexExpr
        Value of each axis of the statement, over the loops around the instruction and its axes.
    """

    statement: int
    points: Mapping[str, IndexExpr]


Size = tuple[IndexExpr, ...]
"""Size of an axis in one execution: the least of the expressions."""


@dataclass(frozen=True)
class Issue:
    """One instruction of the text, executed once for each iteration of the loops around it.

    Attributes
    ----------
    sizes : mapping of str to Size
        Size of each axis that is an argument.
    guards : tuple of IndexExpr
        The instruction is executed only in iterations where none of them is negative.
    waits, signals : tuple of str
        Channels on which it takes a signal before it begins, and sends one when it has ended.
    contents : mapping of str to Content
        What each operand holds: of an output, after the execution.
    meaning : Meaning, optional
        What it computes; None for an instruction that moves data or sets registers.
    note : str
        What it does, for readers of the program.
    line : int
        Line of the assembly that it was read from; 0 if it was read from none.
    """

    instruction: str
    operands: Mapping[str, Address]
    sizes: Mapping[str, Size] = field(default_factory=dict[str, Size])
    guards: tuple[IndexExpr, ...] = ()
    waits: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    contents: Mapping[str, Content] = field(default_factory=dict[str, Content])
    meaning: Meaning | None = None
    note: str = ""
    line: int = field(default=0, compare=False)

    @property
    def place(self) -> str:
        """Line of the assembly as the beginning of a message; empty if there is none."""
        return f"line {self.line}: " if self.line else ""

    @property
    def expressions(self) -> Iterator[IndexExpr]:
        """Expressions of the addresses, sizes and guards, over the loops around the instruction."""
        for address in self.operands.values():
            yield address.base
            yield address.lane
        for size in self.sizes.values():
            yield from size
        yield from self.guards

    @property
    def varying(self) -> set[str]:
        """Loops on which the sizes and guards depend."""
        expressions = [*self.guards, *(e for size in self.sizes.values() for e in size)]
        return {name for e in expressions for name in e.iterators}

    def mapped(self, change: Callable[[IndexExpr], IndexExpr]) -> Issue:
        """Return the instruction with a change of every expression, those of its claims too."""
        meaning = self.meaning
        if meaning is not None:
            points = {axis: change(e) for axis, e in meaning.points.items()}
            meaning = replace(meaning, points=points)
        return replace(
            self,
            operands={
                name: replace(a, base=change(a.base), lane=change(a.lane))
                for name, a in self.operands.items()
            },
            sizes={axis: tuple(map(change, size)) for axis, size in self.sizes.items()},
            guards=tuple(map(change, self.guards)),
            contents={
                name: replace(c, index=tuple(map(change, c.index)))
                for name, c in self.contents.items()
            },
            meaning=meaning,
        )


@dataclass(frozen=True)
class Loop:
    """``for name in range(extent)`` around other loops and instructions."""

    name: str
    extent: int
    body: tuple[Node, ...]


Node = Loop | Issue


@dataclass(frozen=True)
class Program:
    """A program of an accelerator, with the tensors in main memory that it reads and writes.

    ``specification`` is what it computes, None for a program that a person wrote.
    """

    name: str
    machine: InstructionSet
    tensors: Mapping[str, MainTensor]
    body: tuple[Node, ...]
    specification: Specification | None = None

    def issues(self) -> Iterator[tuple[tuple[Loop, ...], Issue]]:
        """Yield each instruction of the text with the loops around it, outermost first."""
        yield from issues_of(self.body)


def units_of(node: Node, machine: InstructionSet) -> Iterator[str]:
    """Yield the unit of each instruction of a node, in the order of the text."""
    for _, issue in issues_of([node]):
        yield machine.instructions[issue.instruction].unit


def issues_of(
    body: Sequence[Node], loops: tuple[Loop, ...] = ()
) -> Iterator[tuple[tuple[Loop, ...], Issue]]:
    """Yield each instruction of a body with the loops around it, after those around the body."""
    for node in body:
        if isinstance(node, Loop):
            yield from issues_of(node.body, (*loops, node))
        else:
            yield loops, node


def execution_count(body: Sequence[Node]) -> int:
    """Return the number of executions of a body, those that guards leave out included."""
    return sum(n.extent * execution_count(n.body) if isinstance(n, Loop) else 1 for n in body)
