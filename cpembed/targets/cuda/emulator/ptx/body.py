"""Translation of one body of inline PTX: what a row of the table has at hand for an instruction.

A row gets a :class:`Call` and returns C++ statements. It reads operands by :meth:`Call.value`,
:meth:`Call.values` and :meth:`Call.address`, and writes them by :meth:`Call.assign`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.registers import Register, bits_of, c_type, cast
from cpembed.targets.cuda.emulator.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Name,
    Negation,
    Operand,
    Pair,
    Placeholder,
    Special,
    Vector,
)

SPECIAL_REGISTERS = {
    "laneid": "executor_lane()",
    "cluster_ctarank": "executor_cluster_rank()",
    "cluster_nctarank": "executor_cluster_blocks()",
    **{f"clusterid.{axis}": f"executor_cluster_index().{axis}" for axis in "xyz"},
    **{f"cluster_ctaid.{axis}": f"executor_index_in_cluster().{axis}" for axis in "xyz"},
    **{f"cluster_nctaid.{axis}": f"executor_cluster_size().{axis}" for axis in "xyz"},
    **{f"nclusterid.{axis}": f"executor_cluster_count().{axis}" for axis in "xyz"},
    "warpid": "executor_warp()",
    **{f"tid.{axis}": f"executor_thread_index().{axis}" for axis in "xyz"},
    **{f"ntid.{axis}": f"executor_block_size().{axis}" for axis in "xyz"},
    **{f"ctaid.{axis}": f"executor_block_index().{axis}" for axis in "xyz"},
    **{f"nctaid.{axis}": f"executor_grid_size().{axis}" for axis in "xyz"},
}
"""Expression of each special register; all of them have 32 bits."""

SPACES = {
    "": "executor::kGeneric", "global": "executor::kGlobal", "shared": "executor::kShared",
    "shared::cta": "executor::kShared",
    "shared::cluster": "executor::kSharedCluster",
}  # fmt: skip
"""The runtime's names of state spaces (``native/ptx.h``) by their modifiers."""


@dataclass
class Body:
    """Names of a body of inline PTX.

    Parameters
    ----------
    number : int
        Number of the body in its text; makes its labels unique.
    operands : sequence of Register
        Operands of the ``asm`` statement.
    """

    number: int
    operands: Sequence[Register]
    references: set[int] = field(default_factory=set[int])
    """Operands that a row takes the address of, by number; they have no variable of their own."""
    places: set[int] = field(default_factory=set[int])
    """Operands that are read, of which a row takes the address as well, by number."""
    scopes: list[dict[str, Register]] = field(default_factory=lambda: [{}])
    labels: set[str] = field(default_factory=set[str])

    def declare(self, kind: str, names: Sequence[str]) -> str:
        """Declare registers in the innermost scope; return their C++ declarations."""
        bits_of(kind)
        for name in names:
            if name in self.scopes[-1]:
                raise LoweringError(f"the register {name} is declared twice")
            self.scopes[-1][name] = Register(f"ptx_{name.replace('$', 'S')}", kind)
        variables = ", ".join(self.scopes[-1][name].variable for name in names)
        return f"{c_type(kind)} {variables};"

    def register(self, operand: Operand) -> Register:
        """Return the register that an operand names.

        Raises
        ------
        LoweringError
            If it names none.
        """
        if isinstance(operand, Placeholder):
            if operand.number >= len(self.operands):
                raise LoweringError(f"there is no operand %{operand.number}")
            return self.operands[operand.number]
        if isinstance(operand, Name):
            for scope in reversed(self.scopes):
                if operand.name in scope:
                    return scope[operand.name]
            raise LoweringError(f"the register {operand.name} is not declared")
        raise LoweringError("a register is missing where there is another operand")

    def label(self, name: str) -> str:
        """Return the C++ label of a PTX label."""
        return f"ptx_{self.number}_{re.sub(r'[^0-9A-Za-z_]', '_', name)}"


@dataclass(frozen=True)
class Call:
    """An instruction that a row translates.

    Parameters
    ----------
    body : Body
        Names of its body.
    instruction : Instruction
    modifiers : mapping of str to str
        Modifiers by the names of the row's slots, without their dots; empty where one is left out.
    """

    body: Body
    instruction: Instruction
    modifiers: Mapping[str, str]

    def __getitem__(self, slot: str) -> str:
        return self.modifiers[slot]

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.instruction.operands

    @property
    def function(self) -> str:
        """C++ that declares ``f_``, which counts the instruction under its opcode."""
        return f'static ExecutorFunction f_{{"{self.instruction.opcode}"}};'

    def invoke(self, function: str, *arguments: str) -> str:
        """Return a call of a function of ``native/ptx.h``, which is named without its prefix."""
        return f"{self.function} executor_{function}({', '.join(('f_', *arguments))});"

    def returned(self, kind: str, function: str, *arguments: str) -> str:
        """Return a call whose result, of a PTX type, is written to the first operand."""
        result = f"executor_{function}({', '.join(('f_', *arguments))})"
        return f"{self.function} {self.assign(self.operands[0], kind, result)}"

    def flag(self, slot: str) -> str:
        """Return C++ that is true if an optional modifier is there."""
        return "true" if self[slot] else "false"

    @property
    def predicate(self) -> str:
        """Expression that tells whether the lane executes the instruction."""
        guard = self.instruction.predicate
        return "true" if guard is None else self.condition(guard)

    def condition(self, operand: Operand) -> str:
        """Return the expression of a predicate, which may be negated."""
        if isinstance(operand, Negation):
            return f"!{self.condition(operand.operand)}"
        register = self.body.register(operand)
        if register.type != "pred":
            raise LoweringError(f"a predicate is needed, not a register of type .{register.type}")
        return register.variable

    def require_operands(self, *counts: int) -> None:
        """Raise :class:`LoweringError` unless the number of operands is one of ``counts``."""
        if len(self.operands) not in counts:
            expected = " or ".join(map(str, counts))
            raise LoweringError(f"{len(self.operands)} operands, where {expected} are needed")

    def value(self, place: int | Operand, kind: str, *, wider: bool = False) -> str:
        """Return the expression of an operand.

        Parameters
        ----------
        place : int or Operand
            Number of the operand, or the operand.
        kind : str
            PTX type of the value.
        wider : bool, default False
            Whether a wider register may hold it, as that of a store may.
        """
        operand = self.operands[place] if isinstance(place, int) else place
        if isinstance(operand, Immediate):
            if kind == "pred":
                raise LoweringError("a predicate is needed, not a constant")
            return f"static_cast<{c_type(kind)}>({operand.text})"
        if isinstance(operand, Special):
            if operand.name not in SPECIAL_REGISTERS:
                raise LoweringError(f"the special register %{operand.name} is not emulated")
            return cast(SPECIAL_REGISTERS[operand.name], "b32", _same_width(kind, 32, operand.name))
        if isinstance(operand, Negation):
            return self.condition(operand)
        register = self.body.register(operand)
        if register.constant:
            return f"static_cast<{c_type(kind)}>({register.variable})"
        if wider and register.bits > bits_of(kind) and register.type[0] != "f":
            return f"static_cast<{c_type(kind)}>({register.variable})"
        return cast(
            register.variable, register.type, _same_width(kind, register.bits, register.type)
        )

    def values(self, place: int, kind: str, count: int) -> list[str]:
        """Return the expressions of a vector of ``count`` operands."""
        return [self.value(item, kind) for item in self.items(place, count)]

    def items(self, place: int, count: int) -> tuple[Operand, ...]:
        """Return the ``count`` operands of a vector; a single one may lack its braces.

        Raises
        ------
        LoweringError
            If there are more or fewer.
        """
        operand = self.operands[place]
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if len(items) != count:
            raise LoweringError(f"operand {place} has {len(items)} registers, not {count}")
        return items

    def constant(self, place: int) -> str:
        """Return a constant operand: a number, or an operand ``"n"``.

        Raises
        ------
        LoweringError
            If it is neither.
        """
        operand = self.operands[place]
        if isinstance(operand, Immediate) and not operand.floating:
            return operand.text
        if isinstance(operand, Placeholder) and self.body.register(operand).constant:
            return self.body.register(operand).variable
        raise LoweringError(f"operand {place} has to be a constant")

    def address(self, place: int, space: str) -> str:
        """Return the expression of an address, of 64 bits.

        Parameters
        ----------
        place : int
            Number of the operand.
        space : str
            State space as in a modifier, empty for generic addresses. Those of shared memory are
            offsets, in registers of 32 or 64 bits.
        """
        operand = self.operands[place]
        if not isinstance(operand, Address) or operand.rest:
            raise LoweringError(f"operand {place} has to be an address in brackets")
        return self.based(operand, space)

    def shared_address(self, place: int) -> str:
        """Return the expression of an address of shared memory, of 32 bits."""
        return f"uint32_t({self.address(place, 'shared')})"

    def based(self, address: Address, space: str) -> str:
        """Return the expression of base and offset of an address."""
        if isinstance(address.base, Immediate):
            base = f"uint64_t({address.base.text})"
        else:
            register = self.body.register(address.base)
            narrow = space.startswith("shared") and register.bits == 32
            if register.type[0] == "f" or not (narrow or register.bits == 64):
                needed = "32 or 64" if space.startswith("shared") else "64"
                raise LoweringError(
                    f"an address of {space or 'generic'} memory needs a register of {needed} bits, "
                    f"not one of type .{register.type}"
                )
            base = f"uint64_t({register.variable})"
        if address.offset is None:
            return base
        offset = address.offset
        text = offset.text if isinstance(offset, Immediate) else self._constant_offset(offset)
        return f"({base} + uint64_t(int64_t({text})))"

    def _constant_offset(self, operand: Operand) -> str:
        register = self.body.register(operand)
        if not register.constant:
            raise LoweringError("the offset of an address has to be a constant")
        return register.variable

    def assign(self, operand: Operand, kind: str, expression: str, *, wider: bool = False) -> str:
        """Return a statement that writes a register.

        Parameters
        ----------
        operand : Operand
            Destination; ``_`` is none.
        kind : str
            PTX type of the value.
        expression : str
            The value.
        wider : bool, default False
            Whether a wider register may take it, with its sign or zeros above.
        """
        if operand == Name("_"):
            return f"(void)({expression});"
        register = self.body.register(operand)
        if register.constant or not register.written:
            raise LoweringError(
                "an input is written: its constraint needs '=' or '+', or it has to be a register"
            )
        if wider and register.bits > bits_of(kind) and register.type[0] != "f":
            # Signed types are extended by their sign, as in C++.
            return f"{register.variable} = static_cast<{c_type(register.type)}>({expression});"
        _same_width(kind, register.bits, register.type)
        return f"{register.variable} = {cast(expression, kind, register.type)};"

    def reference(self, operand: Operand, kind: str) -> str:
        """Return the address of the C++ variable of an operand of the statement.

        An instruction that writes its results later needs them.

        Parameters
        ----------
        operand : Operand
            An operand with the constraint ``"+"``.
        kind : str
            PTX type of the register.
        """
        register = self.body.register(operand)
        if not isinstance(operand, Placeholder) or register.constant or not register.written:
            raise LoweringError("it has to be an operand of the statement that is written")
        _same_width(kind, register.bits, register.type)
        self.body.references.add(operand.number)
        return f"static_cast<void *>(&ptx_l{operand.number})"

    def place(self, operand: Operand) -> str:
        """Return the address of the variable that an operand reads; null of what is none.

        An instruction that reads its registers later needs them.
        """
        register = self.body.register(operand)
        if not isinstance(operand, Placeholder) or register.constant or register.written:
            return "nullptr"
        self.body.places.add(operand.number)
        return f"ptx_p{operand.number}"

    def pair(self, place: int) -> tuple[Operand, Operand | None]:
        """Return the two destinations of an operand ``p|q``, of which the second may be missing."""
        operand = self.operands[place]
        if isinstance(operand, Pair):
            return operand.first, operand.second
        return operand, None


def _same_width(kind: str, bits: int, name: str) -> str:
    if bits_of(kind) != bits:
        raise LoweringError(f"a value of type .{kind} does not fit a register of type .{name}")
    return kind
