"""Programs whose sizes are ranges: one program for each of a few sizes, with one interface.

A run of any sizes is made of runs of these programs (:mod:`cpembed.graph.instances`), which share
constants and kernels. A program with fixed sizes is the case of one program and no symbols.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cpembed.errors import InvariantError
from cpembed.export.program import (
    CALLER_ROLES,
    Buffer,
    Call,
    CompiledObject,
    Program,
    Role,
    require_name,
)
from cpembed.graph.family import Extent, Filling, Shape, shape_at


@dataclass(frozen=True)
class Symbol:
    """Size that a caller chooses, from ``least`` to ``most``."""

    name: str
    least: int
    most: int


@dataclass(frozen=True)
class SizedTensor:
    """Input or output at any sizes."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class FillerBuffer:
    """Input of a program that the library writes itself: a mask, a quotient or a count."""

    buffer: str
    extent: Extent
    size: int
    kind: Filling


@dataclass(frozen=True)
class ProgramInstance:
    """Program at some sizes of the symbols.

    Attributes
    ----------
    sizes, least, most : tuple of int
        Sizes of the program, and those of runs of which it may be a part.
    cost_us : float
        Predicted microseconds of a run.
    inputs, outputs : tuple of str
        Buffers of the caller's tensors.
    fillers : tuple of FillerBuffer
        Its other inputs.
    """

    program: Program
    sizes: tuple[int, ...] = ()
    least: tuple[int, ...] = ()
    most: tuple[int, ...] = ()
    cost_us: float = 0.0
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    fillers: tuple[FillerBuffer, ...] = ()


@dataclass(frozen=True)
class SizedProgram:
    """Library of programs at several sizes.

    Attributes
    ----------
    symbols : tuple of Symbol
        Sizes that a caller chooses.
    split : str, optional
        Symbol along which a run is divided between programs.
    inputs, outputs : tuple of SizedTensor
        Tensors of the interface.
    instances : tuple of ProgramInstance
        The programs.

    Raises
    ------
    InvariantError
        If programs have weights that are packed at run time, or tensors along ``split`` that cannot
        be divided.
    """

    name: str
    symbols: tuple[Symbol, ...]
    split: str | None
    inputs: tuple[SizedTensor, ...]
    outputs: tuple[SizedTensor, ...]
    instances: tuple[ProgramInstance, ...]

    def __post_init__(self) -> None:
        require_name(self.name)
        for instance in self.instances if self.symbols else ():
            if instance.program.prepare or instance.program.with_role(Role.WEIGHTS):
                raise InvariantError(f"{self.name}: weights of several sizes are packed ahead")
        for tensor in (*self.inputs, *self.outputs):
            for extent in (extent for axis in tensor.shape for extent in axis):
                is_split = self.split is not None and extent.symbol == self.split
                if is_split and (extent.offset or extent.divisor != 1):
                    raise InvariantError(f"{self.name}: {tensor.name} is not divided into rows")

    @classmethod
    def fixed(cls, program: Program) -> SizedProgram:
        """Return a program with fixed sizes as the only instance."""

        def tensors(role: Role) -> tuple[SizedTensor, ...]:
            return tuple(
                SizedTensor(b.name, b.dtype, tuple((Extent(None, 0, n),) for n in b.shape))
                for b in program.with_role(role)
            )

        inputs, outputs = tensors(Role.INPUT), tensors(Role.OUTPUT)
        instance = ProgramInstance(
            program,
            inputs=tuple(tensor.name for tensor in inputs),
            outputs=tuple(tensor.name for tensor in outputs),
        )
        return cls(program.name, (), None, inputs, outputs, (instance,))

    @classmethod
    def sized(cls, program: Program | SizedProgram) -> SizedProgram:
        """Return programs of several sizes as they are, and one with fixed sizes as one of them."""
        return program if isinstance(program, SizedProgram) else cls.fixed(program)

    @property
    def programs(self) -> tuple[Program, ...]:
        """Programs of all instances."""
        return tuple(instance.program for instance in self.instances)

    @property
    def first(self) -> Program:
        """Program of the first instance, the only one with fixed sizes."""
        return self.instances[0].program

    @cached_property
    def kernels(self) -> dict[str, CompiledObject]:
        """Object files of all instances by symbol; equal ones are one."""
        merged: dict[str, CompiledObject] = {}
        for instance in self.instances:
            merged |= instance.program.kernels
        return merged

    @property
    def features(self) -> tuple[str, ...]:
        """CPU features that the kernels need."""
        features = (name for i in self.instances for name in i.program.features)
        return tuple(dict.fromkeys(features))

    @property
    def threads(self) -> int:
        """Default number of threads."""
        return self.first.threads

    @cached_property
    def largest(self) -> Mapping[str, int]:
        """Largest size of each symbol."""
        return {symbol.name: symbol.most for symbol in self.symbols}

    def with_role(self, role: Role) -> tuple[Buffer, ...]:
        """Return the caller's tensors of a role, at the largest sizes."""
        if role is Role.WEIGHTS:
            return self.first.with_role(role)
        if role not in CALLER_ROLES:
            raise InvariantError(f"{self.name}: {role.value} buffers belong to an instance")
        buffers: list[Buffer] = []
        for tensor in self.inputs if role is Role.INPUT else self.outputs:
            shape = shape_at(tensor.shape, self.largest)
            buffers.append(Buffer(tensor.name, tensor.dtype, math.prod(shape), role, shape))
        return tuple(buffers)

    def shape(self, role: Role, number: int) -> Shape:
        """Return the shape of a caller's tensor in terms of the symbols."""
        if role is Role.WEIGHTS:
            buffer = self.first.with_role(role)[number]
            return tuple((Extent(None, 0, size),) for size in buffer.shape)
        return (self.inputs if role is Role.INPUT else self.outputs)[number].shape

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps of all instances."""
        return tuple(
            f"{self.prefix(instance)}{call.label or call.kernel}"
            for instance in self.instances
            for call in instance.program.run
        )

    def prefix(self, instance: ProgramInstance) -> str:
        """Return the beginning of the names of an instance's steps."""
        pairs = zip(self.symbols, instance.sizes, strict=True)
        text = ",".join(f"{symbol.name}={size}" for symbol, size in pairs)
        return f"{text}: " if text else ""

    @property
    def calls(self) -> tuple[Call, ...]:
        """Calls of all instances."""
        return tuple(call for i in self.instances for call in (*i.program.prepare, *i.program.run))
