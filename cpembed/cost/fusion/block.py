"""Blocks of operators that exchange tensors, and the axes along which they can be tiled jointly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.cost.machine.nest import ExecutionNest, execution_nest
from cpembed.errors import SpecError
from cpembed.hw.instruction import Instruction
from cpembed.hw.machine import Hierarchy, Memory
from cpembed.ir.computation import AxisKind
from cpembed.ir.dtypes import element_bytes
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import DerivedProgram

OperatorAxis = tuple[int, str]
"""Place of an operator in its block, and one of its axes."""

Extents = Mapping[OperatorAxis, int]
"""Extents of the axes of a block's operators, in full or those of a tile."""


@dataclass(frozen=True)
class TiledAxis:
    """Axis of an operator that a loop of its nest walks in steps of ``granule`` elements.

    ``loop`` is empty where no single loop does, so that the axis cannot be tiled.
    """

    name: str
    extent: int
    loop: str
    granule: int
    is_reduction: bool


@dataclass(frozen=True)
class BlockTensor:
    """Tensor as one operator accesses it: an axis for each dimension.

    ``axes`` are empty strings for dimensions that no single axis indexes, as those of windows.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    element_bytes: float
    is_output: bool


@dataclass(frozen=True)
class BlockOperator:
    """Operator of a block: a nest of executions on a machine, its axes and its tensors."""

    name: str
    nest: ExecutionNest
    machine: Hierarchy
    instruction: Instruction
    axes: Mapping[str, TiledAxis]
    tensors: tuple[BlockTensor, ...]

    @staticmethod
    def of_program(name: str, program: DerivedProgram, machine: Hierarchy) -> BlockOperator:
        """Return the operator that a derived program computes.

        Parameters
        ----------
        name : str
            Name of the operator in its block.
        program : DerivedProgram
            Program; its operands are the tensors of the block.
        machine : Hierarchy
            Machine that executes it.
        """
        # All operands pass the memory on chip, in which intermediates can stay.
        memories = {m.name: replace(m, bypass=False) for m in machine.memories.values()}
        machine = replace(machine, memories=memories)
        nest = execution_nest(program, machine.layouts)
        loops = {loop.name: loop.extent for loop in program.loops}
        axes: dict[str, TiledAxis] = {}
        users = _users(program)
        for axis in program.workload.axes:
            loop, granule = _loop_and_step(program.axis_map[axis.name], set(loops))
            if loops.get(loop, 1) == 1 or users.get(loop) != 1:
                loop, granule = "", axis.extent
            reduces = axis.kind is not AxisKind.SPATIAL
            axes[axis.name] = TiledAxis(axis.name, axis.extent, loop, granule, reduces)
        outputs = {operand.name for operand in program.workload.outputs}
        tensors = tuple(
            BlockTensor(
                operand.name,
                tuple(_single(i) for i in program.workload.access(operand.name).index),
                operand.shape,
                element_bytes(operand.dtype),
                operand.name in outputs,
            )
            for operand in program.workload.operands
        )
        return BlockOperator(name, nest, machine, program.instruction, axes, tensors)

    @cached_property
    def output(self) -> BlockTensor:
        """Tensor that the operator produces."""
        return next(tensor for tensor in self.tensors if tensor.is_output)

    def tensor(self, name: str) -> BlockTensor | None:
        """Return the tensor of a name, or None if the operator does not access it."""
        return next((tensor for tensor in self.tensors if tensor.name == name), None)


def _users(program: DerivedProgram) -> dict[str, int]:
    """Return the number of axes that each iterator walks."""
    users: dict[str, int] = {}
    for index in program.axis_map.values():
        for name in set(index.iterators):
            users[name] = users.get(name, 0) + 1
    return users


def _loop_and_step(index: IndexExpr, loops: set[str]) -> tuple[str, int]:
    """Return the loop that walks an axis, and its step; an empty name if there are several."""
    moving = [term for term in index.terms if set(term.iterators) & loops]
    if len(moving) != 1 or not moving[0].is_affine or index.constant:
        return "", 0
    return moving[0].iterator, moving[0].coefficient


def _single(index: IndexExpr) -> str:
    if len(index.terms) == 1 and not index.constant:
        term = index.terms[0]
        if term.is_affine and term.coefficient == 1:
            return term.iterator
    return ""


@dataclass(frozen=True)
class Block:
    """Operators in the order of their execution.

    A tensor that an operator produces and a later one reads is an *intermediate*; all others come
    from main memory or go there, as do the intermediates in ``outputs``.
    """

    name: str
    operators: tuple[BlockOperator, ...]
    outputs: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        produced: dict[str, int] = {}
        for number, operator in enumerate(self.operators):
            for tensor in operator.tensors:
                if tensor.is_output:
                    if tensor.name in produced:
                        raise SpecError(f"{self.name}: {operator.name} overwrites {tensor.name}")
                    produced[tensor.name] = number
        for number, operator in enumerate(self.operators):
            for tensor in operator.tensors:
                source = produced.get(tensor.name, -1)
                if source > number:
                    raise SpecError(
                        f"{self.name}: {operator.name} reads {tensor.name} before "
                        f"{self.operators[source].name} computes it; change their order"
                    )
                if source >= 0 and tensor.shape != self.operators[source].output.shape:
                    raise SpecError(
                        f"{self.name}: {tensor.name} is {self.operators[source].output.shape} in "
                        f"{self.operators[source].name} and {tensor.shape} in {operator.name}"
                    )

    @cached_property
    def producers(self) -> dict[str, int]:
        """Operator that produces each tensor, by its name; block inputs are left out."""
        return {operator.output.name: n for n, operator in enumerate(self.operators)}

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """Operators that read each tensor, in their order."""
        readers: dict[str, tuple[int, ...]] = {}
        for number, operator in enumerate(self.operators):
            for tensor in operator.tensors:
                if not tensor.is_output:
                    readers[tensor.name] = (*readers.get(tensor.name, ()), number)
        return readers

    @cached_property
    def results(self) -> frozenset[str]:
        """Tensors that have to be in main memory at the end."""
        return self.outputs | frozenset(t for t in self.producers if t not in self.readers)

    @cached_property
    def extents(self) -> dict[OperatorAxis, int]:
        """Full extents of all axes."""
        return {
            (number, axis.name): axis.extent
            for number, operator in enumerate(self.operators)
            for axis in operator.axes.values()
        }

    @cached_property
    def chip_memory(self) -> Memory:
        """The memory next to main memory, which all operands pass and intermediates stay in."""
        memories = set[str]()
        for operator in self.operators:
            machine = operator.machine
            below = [m.name for m in machine.memories.values() if m.parent == machine.root.name]
            used = {o.scope for o in operator.nest.operands}
            if len(below) != 1 or any(
                machine.memories[below[0]] not in machine.path(scope) for scope in used
            ):
                raise SpecError(
                    f"{self.name}: {operator.name} passes {', '.join(below)} on its way from main "
                    "memory; intermediates stay on chip only in one memory that all operands pass"
                )
            memories.add(below[0])
        if len(memories) != 1:
            raise SpecError(
                f"{self.name}: operators use different memories next to main memory: "
                f"{', '.join(sorted(memories))}"
            )
        memory = self.operators[0].machine.memories[memories.pop()]
        if memory.units != 1:
            raise SpecError(
                f"{self.name}: {memory.name} is {memory.units} memories, between which "
                "intermediates are not exchanged; fusion needs one that all units share"
            )
        return memory

    def tensor_bytes(self, name: str, extents: Extents) -> float:
        """Return the bytes of a tensor, or of its part that tiles of these extents touch."""
        number = self.producers.get(name, self.readers.get(name, (0,))[0])
        tensor = self.operators[number].tensor(name)
        assert tensor is not None
        return tensor_bytes(number, tensor, extents)

    def joint_axes(self, first: int, last: int) -> list[frozenset[OperatorAxis]]:
        """Return the sets of axes along which consecutive operators can be tiled jointly.

        Axes of two operators are tiled jointly where they index the same dimension of a tensor that
        one of them produces and the other one reads. Each set has one axis of each operator; none
        is a reduction of an operator whose result is read within the tile.

        Parameters
        ----------
        first, last : int
            First and last operator.
        """
        joined = {
            (n, axis): frozenset([(n, axis)])
            for n in range(first, last + 1)
            for axis in self.operators[n].axes
        }
        rigid = set[OperatorAxis]()
        for name, source in self.producers.items():
            for reader in self.readers.get(name, ()):
                if first <= source and reader <= last:
                    mine = self.operators[source].output.axes
                    tensor = self.operators[reader].tensor(name)
                    assert tensor is not None
                    for a, b in zip(mine, tensor.axes, strict=True):
                        if a and b:
                            both = joined[source, a] | joined[reader, b]
                            joined |= dict.fromkeys(both, both)
                        elif a or b:
                            rigid.add((source, a) if a else (reader, b))
        sets = dict.fromkeys(joined.values())
        return [s for s in sets if not s & rigid and self._is_joint(s, first, last)]

    def _is_joint(self, axes: frozenset[OperatorAxis], first: int, last: int) -> bool:
        if sorted(n for n, _ in axes) != list(range(first, last + 1)):
            return False
        for number, name in axes:
            axis = self.operators[number].axes[name]
            if not axis.loop:
                return False
            readers = self.readers.get(self.operators[number].output.name, ())
            if axis.is_reduction and any(first <= reader <= last for reader in readers):
                return False
        return True

    def granule(self, axes: frozenset[OperatorAxis]) -> int:
        """Return the least common multiple of the steps of jointly tiled axes."""
        return math.lcm(*(self.operators[n].axes[name].granule for n, name in axes))

    def touched(self, numbers: Sequence[int]) -> list[str]:
        """Return the tensors that operators read or write, each one once."""
        names = (t.name for n in numbers for t in self.operators[n].tensors)
        return list(dict.fromkeys(names))


def tensor_bytes(number: int, tensor: BlockTensor, extents: Extents) -> float:
    """Return the bytes of a tensor that a tile of an operator touches, at most.

    Parameters
    ----------
    number : int
        Place of the operator in the block.
    tensor : BlockTensor
        Tensor of the operator.
    extents : mapping of (int, str) to int
        Extents of the tile.
    """
    total = tensor.element_bytes
    for axis, size in zip(tensor.axes, tensor.shape, strict=True):
        total *= min(size, extents[number, axis]) if axis else size
    return total
