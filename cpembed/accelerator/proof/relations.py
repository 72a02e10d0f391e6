"""Executions, elements and places as isl's sets and relations.

A :class:`Touch` is one operand of one instruction of the text, read or written. Its instances are
pairs of an iteration of the loops and an element of the operand; relations lead from them to the
place in memory, to the claimed element of a tensor and to the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import islpy as isl

from cpembed.accelerator.program import Loop, MainTensor, Node, Program
from cpembed.accelerator.proof.facts import IssueFacts
from cpembed.accelerator.proof.instances import stride_sources
from cpembed.accelerator.proof.result import ObligationError, UndecidedError
from cpembed.accelerator.proof.steps import Step, step
from cpembed.accelerator.proof.tensors import Tensors
from cpembed.accelerator.proof.terms import Number
from cpembed.hw.instruction import TileDimension
from cpembed.hw.isa import MemoryKind
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr
from cpembed.ir.polyhedral import index_text

Names = Mapping[str, str]


@dataclass(frozen=True)
class TextPosition:
    """Place of an instruction in the text: its position in each body around it."""

    positions: tuple[int, ...]
    loops: tuple[Loop, ...]


@dataclass
class IssueRelations:
    """An instruction of the text with its sets of executions and of points."""

    number: int
    facts: IssueFacts
    position: TextPosition
    depth: int
    registers: dict[str, Number] = field(default_factory=dict[str, Number])

    @cached_property
    def loop_names(self) -> dict[str, str]:
        """Name inside isl of each loop."""
        return {loop.name: f"i{number}" for number, loop in enumerate(self.facts.loops)}

    @cached_property
    def axis_names(self) -> dict[str, str]:
        """Name inside isl of each axis of the instruction."""
        axes = self.facts.instruction.axes
        return {axis.name: f"a{number}" for number, axis in enumerate(axes)}

    @property
    def loops_text(self) -> str:
        """Condition of the iterations in which the instruction is executed."""
        extents = [loop.extent for loop in self.facts.loops]
        bounds = [f"0 <= i{number} < {extent}" for number, extent in enumerate(extents)]
        guards = [f"{self.text(guard)} >= 0" for guard in self.facts.issue.guards]
        return " and ".join((*bounds, *guards)) or "true"

    def text(self, index: IndexExpr, names: Names | None = None) -> str:
        """Write an index over the loops, and other names."""
        all_names = {**self.loop_names, **(names or {})}
        unknown = set(index.iterators) - set(all_names)
        if unknown:
            raise ObligationError(
                f"{self.facts.text}: {index} names {sorted(unknown)[0]}, which is "
                "no loop around the instruction"
            )
        return f"({index_text(index, all_names)})"

    def tuple_text(self, name: str, *inner: str) -> str:
        """Write a tuple of the loops and inner names."""
        return f"{name}[{', '.join((*self.loop_names.values(), *inner))}]"

    @cached_property
    def iterations(self) -> isl.Set:
        """Iterations in which the instruction is executed."""
        return isl.Set(f"{{ {self.tuple_text(f'I{self.number}')} : {self.loops_text} }}")

    def size_texts(self, axis: str) -> list[str]:
        """Return the expressions of which the least is an axis' size."""
        claims = self.facts.issue.sizes.get(axis, ())
        maximum = self.facts.instruction.extents[axis]
        return [self.text(claim) for claim in claims] or [str(maximum)]

    def axis_bounds(self, axis: str, variable: str) -> str:
        """Write the condition that a variable is an index of an axis."""
        below = " and ".join(f"{variable} < {size}" for size in self.size_texts(axis))
        return f"0 <= {variable} and {below}"

    def check_sizes(self) -> None:
        """Check that every size is one that the instruction takes."""
        for axis in self.facts.instruction.size_arguments:
            sizes = self.size_texts(axis.name)
            if axis.step != 1:
                raise UndecidedError(f"{self.facts.text}: sizes of {axis.name} in steps")
            small = " or ".join(f"{size} < {axis.minimum}" for size in sizes)
            large = " and ".join(f"{size} > {axis.maximum}" for size in sizes)
            loops = self.tuple_text(f"I{self.number}")
            wrong = isl.Set(f"{{ {loops} : {self.loops_text} and (({small}) or ({large})) }}")
            if not wrong.is_empty():
                raise UndecidedError(
                    f"{self.facts.text}: a size of {axis.name} is not {axis.describe_allowed()}"
                )
        for axis, claims in self.facts.issue.sizes.items():
            fixed = self.facts.instruction.computation.axis(axis).extent
            is_fixed = all(a.name != axis for a in self.facts.instruction.size_arguments)
            if is_fixed and any(claim != IndexExpr((), fixed) for claim in claims):
                raise UndecidedError(f"{self.facts.text}: the size of {axis} is fixed")

    @cached_property
    def points(self) -> isl.Set:
        """Iterations with the points of the instruction."""
        names = self.axis_names
        bounds = [self.axis_bounds(axis, variable) for axis, variable in names.items()]
        condition = " and ".join((self.loops_text, *bounds))
        return isl.Set(f"{{ {self.tuple_text(self.point_space, *names.values())} : {condition} }}")

    @property
    def point_space(self) -> str:
        return f"P{self.number}"

    def at_points(self, target: str, indices: Sequence[IndexExpr]) -> isl.Map:
        """Return the relation from points of the instruction to a tuple of indices."""
        source = self.tuple_text(self.point_space, *self.axis_names.values())
        values = ", ".join(self.text(index, self.axis_names) for index in indices)
        return isl.Map(f"{{ {source} -> {target}[{values}] }}").intersect_domain(self.points)

    @cached_property
    def schedule_text(self) -> list[str]:
        """Time of an execution: its position in each body, and the loops between them."""
        entries: list[str] = []
        for level, position in enumerate(self.position.positions):
            entries.append(str(position))
            if level < len(self.position.loops):
                entries.append(f"i{level}")
        return entries + ["0"] * (2 * self.depth + 1 - len(entries))

    def constants(self) -> dict[Access, Number]:
        """Return the numbers that registers and immediates hold in every execution."""
        constants: dict[Access, Number] = {}
        for read in self.facts.assignment.reads:
            if read in self.facts.element_reads or self.facts.selection() is not None:
                continue
            if self.facts.is_immediate(read.operand):
                constants[read] = self.immediate(read.operand)
            elif self.facts.is_register(read.operand):
                constants[read] = self.register(self.facts.place(read.operand).memory)
        return constants

    def immediate(self, operand: str) -> Number:
        """Return the value of an immediate."""
        address = self.facts.issue.operands[operand]
        if address.table or (address.value is None and address.base.terms):
            raise UndecidedError(f"{self.facts.text}: immediate {operand} depends on loops")
        value = address.base.constant if address.value is None else address.value
        return self.facts.held_number(operand, value)

    def register(self, name: str) -> Number:
        """Return the number that a register holds in every execution."""
        if name not in self.registers:
            raise UndecidedError(f"{self.facts.text}: register {name} holds several values")
        return self.registers[name]

    @cached_property
    def step(self) -> Step:
        """Comparison of the instruction with its claim."""
        return step(self.facts, self.constants())


class Touch:
    """An operand of an instruction of the text, read or written.

    Parameters
    ----------
    relations : IssueRelations
        The instruction.
    operand : str
        Name of the operand.
    is_write : bool
        True if it is written.
    is_previous : bool
        True for the read of a partial result that the instruction goes on from.
    """

    def __init__(
        self, relations: IssueRelations, operand: str, *, is_write: bool, is_previous: bool = False
    ) -> None:
        self.relations, self.operand = relations, operand
        self.is_write, self.is_previous = is_write, is_previous
        facts = relations.facts
        place = facts.place(operand)
        kind = "W" if is_write else "R"
        number = [o.name for o in facts.instruction.computation.operands].index(operand)
        self.space = f"{kind}{relations.number}_{number}"
        self.variables = [f"e{number}" for number in range(len(place.dimensions))]
        self.dtype = place.dtype
        content = facts.content(operand)
        self.tensor = "" if content is None else content.tensor

    @property
    def facts(self) -> IssueFacts:
        return self.relations.facts

    @property
    def text(self) -> str:
        return f"operand {self.operand} of {self.facts.text}"

    @property
    def memory(self) -> str:
        """Memory, or ``tensor NAME`` for a tensor in main memory."""
        place, address = self.facts.place(self.operand), self.facts.issue.operands[self.operand]
        memory = self.facts.tensors.program.machine.memories[place.memory]
        return f"tensor {address.tensor}" if memory.kind is MemoryKind.MAIN else memory.name

    @cached_property
    def names(self) -> dict[str, str]:
        """Name inside isl of each dimension of the operand."""
        return dict(zip(self.facts.place(self.operand).dimensions, self.variables, strict=True))

    @property
    def source(self) -> str:
        """Tuple of the touch's instances."""
        return self.relations.tuple_text(self.space, *self.variables)

    @cached_property
    def domain(self) -> isl.Set:
        """Iterations with the elements that are touched."""
        relations, accesses = self.relations, self._accesses
        domains: list[isl.Set] = []
        for access in accesses:
            singles = [index.single_iterator for index in access.index]
            axes = relations.axis_names
            if len(set(singles)) == len(singles) and None not in singles:
                bounds = [
                    relations.axis_bounds(axis, variable)
                    for axis, variable in zip(singles, self.variables, strict=True)
                    if axis is not None
                ]
            else:
                names = [axis for axis in axes if axis in access.iterators]
                equations = [
                    f"{variable} = {index_text(index, axes)}"
                    for variable, index in zip(self.variables, access.index, strict=True)
                ]
                limits = [relations.axis_bounds(axis, axes[axis]) for axis in names]
                inner = " and ".join((*limits, *equations)) or "true"
                quantified = ", ".join(axes[axis] for axis in names)
                bounds = [f"exists ({quantified} : {inner})" if names else inner]
            condition = " and ".join((relations.loops_text, *bounds))
            domains.append(isl.Set(f"{{ {self.source} : {condition} }}"))
        return union(domains)

    @property
    def _accesses(self) -> tuple[Access, ...]:
        accesses = self.facts.instruction.computation.access_maps[self.operand]
        previous = self.relations.step.previous
        if not self.is_write and self.relations.step.number is not None and previous is not None:
            if self.is_previous:
                return (previous,)
            return tuple(a for a in accesses if a != previous)
        return accesses

    def map(self, target: str, values: Iterable[str]) -> isl.Map:
        """Return the relation from the instances to a tuple."""
        text = f"{{ {self.source} -> {target}[{', '.join(values)}] }}"
        return isl.Map(text).intersect_domain(self.domain)

    @cached_property
    def content(self) -> isl.Map:
        """Instances to the index of the claimed element."""
        content = self.facts.content(self.operand)
        if content is None:
            raise UndecidedError(f"{self.text} has no claim")
        return self.map("C", (self.relations.text(i, self.names) for i in content.index))

    @cached_property
    def inside(self) -> isl.Set:
        """Instances whose claimed element is inside of the tensor."""
        shape = self.facts.tensors.shape(self.tensor)
        return self.content.intersect_range(box("C", shape)).domain()

    @cached_property
    def place(self) -> isl.Map:
        """Instances to row and lane, to the element of a buffer, or to the only place."""
        facts, relations = self.facts, self.relations
        place, address = facts.place(self.operand), facts.issue.operands[self.operand]
        strides = self._strides()
        if self.memory.startswith("tensor "):
            steps = zip(self.variables, strides, strict=True)
            terms = [f"{step} * {variable}" for variable, step in steps]
            return self.map("M", [" + ".join((relations.text(address.base), *terms))])
        if facts.is_register(self.operand):
            return self.map("M", [])
        rows = [
            f"{step} * {_digit(digit, self.names)}"
            for digit, step in zip(place.rows, strides, strict=True)
        ]
        lane = relations.text(address.lane)
        lanes = ""
        radices = facts.instruction.lane_radices(self.operand)
        for digit, radix in zip(place.lanes, radices, strict=True):
            lanes = f"({lanes or 0}) * {radix} + {_digit(digit, self.names)}"
        row_text = " + ".join((relations.text(address.base), *rows))
        return self.map("M", [row_text, f"{lane} + {lanes or 0}"])

    def _strides(self) -> list[int]:
        place = self.facts.place(self.operand)
        strides: list[int] = []
        for position, source in enumerate(stride_sources(self.facts, self.operand)):
            if isinstance(source, int):
                strides.append(source)
            elif source == "dense":
                strides.append(self._dense(place.rows[position + 1 :]))
            else:
                value = self.relations.register(source)
                if not isinstance(value, int):
                    raise UndecidedError(f"{self.text}: register {source} holds no integer")
                strides.append(value)
        return strides

    def _dense(self, digits: Sequence[TileDimension]) -> int:
        """Return the number of places of the digits inside of one, if it is always the same."""
        return math.prod(digit.size(self._dimension_size(digit.axis)) for digit in digits)

    def _dimension_size(self, dimension: str) -> int:
        extents: dict[str, int] = {}
        place = self.facts.place(self.operand)
        position = place.dimensions.index(dimension)
        instruction = self.facts.instruction
        accesses = instruction.computation.access_maps[self.operand]
        for axis in {name for access in accesses for name in access.index[position].iterators}:
            claims = self.facts.issue.sizes.get(axis, ())
            if any(claim.terms for claim in claims):
                raise UndecidedError(f"{self.text}: a stride depends on the size of {axis}")
            maximum = instruction.extents[axis]
            extents[axis] = min((claim.constant for claim in claims), default=maximum)
        return instruction.dimension_sizes(self.operand, extents)[dimension]

    @property
    def iterations_to_places(self) -> isl.Map:
        """Iterations of the loops to the places that are touched."""
        loops = self.relations.tuple_text(f"I{self.relations.number}")
        to_loops = isl.Map(f"{{ {self.source} -> {loops} }}").intersect_domain(self.domain)
        return to_loops.reverse().apply_range(self.place)

    @cached_property
    def schedule(self) -> isl.Map:
        """Instances to their time: reads of an execution before its writes."""
        return self.map("T", (*self.relations.schedule_text, "1" if self.is_write else "0"))


def _digit(digit: TileDimension, names: Names) -> str:
    text = names[digit.axis]
    if digit.divisor != 1:
        text = f"floor(({text})/{digit.divisor})"
    return text if digit.modulus is None else f"(({text}) mod {digit.modulus})"


def box(space: str, shape: Sequence[int]) -> isl.Set:
    """Return the indices of a tensor of a shape."""
    names = [f"c{number}" for number in range(len(shape))]
    bounds = " and ".join(f"0 <= {n} < {size}" for n, size in zip(names, shape, strict=True))
    return isl.Set(f"{{ {space}[{', '.join(names)}] : {bounds or 'true'} }}")


def union(sets: Sequence[isl.Set]) -> isl.Set:
    """Return the union of at least one set."""
    result = sets[0]
    for added in sets[1:]:
        result = result.union(added)
    return result


def layout(tensor: MainTensor) -> isl.Map:
    """Return the relation from indices of a tensor, margins included, to elements of its buffer."""
    names = [f"c{number}" for number in range(len(tensor.shape))]
    limits = [
        f"{-before} <= {name} < {size - before}"
        for name, before, size in zip(names, tensor.before, tensor.padded, strict=True)
    ]
    placed: set[int] = set()
    terms: list[str] = []
    for dimension, stride in zip(tensor.order, tensor.strides, strict=True):
        place, block = f"(c{dimension} + {tensor.before[dimension]})", tensor.blocks.get(dimension)
        if block is not None:
            inner = f"({place} mod {block})"
            place = inner if dimension in placed else f"floor({place}/{block})"
        placed.add(dimension)
        terms.append(f"{stride} * {place}")
    condition = " and ".join(limits) or "true"
    target = " + ".join(terms) or "0"
    return isl.Map(f"{{ C[{', '.join(names)}] -> M[{target}] : {condition} }}")


def issue_relations(program: Program, tensors: Tensors) -> list[IssueRelations]:
    """Return the instructions of the text in their order."""
    positions: list[tuple[TextPosition, IssueFacts]] = []

    def collect(body: Sequence[Node], outer: tuple[int, ...], loops: tuple[Loop, ...]) -> None:
        for number, node in enumerate(body):
            if isinstance(node, Loop):
                collect(node.body, (*outer, number), (*loops, node))
            else:
                facts = IssueFacts(tensors, loops, node)
                facts.check()
                positions.append((TextPosition((*outer, number), loops), facts))

    collect(program.body, (), ())
    depth = max((len(position.loops) for position, _ in positions), default=0)
    return [
        IssueRelations(number, facts, position, depth)
        for number, (position, facts) in enumerate(positions)
    ]


def reads_in_place(read: Touch, write: Touch) -> bool:
    """Return True if each point of an instruction reads where it writes."""
    relations = read.relations
    facts = relations.facts
    if facts.assignment.reduction is not None:
        return False
    places: list[isl.Map] = []
    for touch, accesses in (
        (read, facts.instruction.computation.access_maps[read.operand]),
        (write, (facts.assignment.store,)),
    ):
        if len(accesses) != 1:
            return False
        elements = relations.at_points(
            touch.space,
            [IndexExpr.iterator(loop.name) for loop in facts.loops] + list(accesses[0].index),
        )
        places.append(elements.apply_range(touch.place))
    return bool(places[0].is_equal(places[1]))
