"""Table of the instructions that are emulated, by opcode.

A row is a function with the decorator :func:`instruction`: the opcode, then slots for the
modifiers in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.body import Body, Call
from cpembed.targets.cuda.emulator.ptx.syntax import Instruction


@dataclass(frozen=True)
class Slot:
    """Place of a modifier: its name, its values without dots, and whether it may be absent."""

    name: str
    values: tuple[str, ...]
    is_optional: bool


def required(name: str, *values: str) -> Slot:
    """Return the slot of a modifier that has to be there."""
    return Slot(name, values, is_optional=False)


def optional(name: str, *values: str) -> Slot:
    """Return the slot of a modifier that may be left out."""
    return Slot(name, values, is_optional=True)


Translate = Callable[[Call], str]


@dataclass(frozen=True)
class _Mismatch:
    """Number of modifiers that fit before the first that does not, and what is wrong with it."""

    fitting: int
    reason: str


@dataclass(frozen=True)
class _Row:
    slots: tuple[Slot, ...]
    translate: Translate
    operands: tuple[int, ...]
    predicated: bool

    def modifiers(self, values: Sequence[str]) -> dict[str, str] | _Mismatch:
        """Return modifiers by slot, or where they do not fit."""
        modifiers, rest = dict[str, str](), list(values)
        for slot in self.slots:
            if rest and rest[0] in slot.values:
                modifiers[slot.name] = rest.pop(0)
            elif slot.is_optional:
                modifiers[slot.name] = ""
            else:
                modifier = f".{rest[0]}" if rest else "the end"
                expected = ", .".join(slot.values)
                reason = f"{modifier} is where one of .{expected} should be"
                return _Mismatch(len(values) - len(rest), reason)
        if rest:
            reason = f"the modifier .{rest[0]} is not emulated here"
            return _Mismatch(len(values) - len(rest), reason)
        return modifiers


_ROWS: dict[str, list[_Row]] = {}


def instruction(
    opcode: str,
    *slots: Slot,
    operands: int | tuple[int, ...] = (),
    predicated: bool = False,
) -> Callable[[Translate], Translate]:
    """Return a decorator that adds a row to the table.

    Parameters
    ----------
    opcode : str
        Opcode with the modifiers that every form has, ``cp.async.commit_group`` for instance.
        Several rows may share one; the first whose slots fit is taken.
    *slots : Slot
        Further modifiers in their order.
    operands : int or tuple of int
        Numbers of operands that it may have, without that of a cache's hint; by default the
        translation counts them.
    predicated : bool, default False
        Whether the translation passes :attr:`Call.predicate` to the runtime, which has to know of
        the lanes that do not take part; otherwise the predicate becomes a branch around it.
    """

    def add(translate: Translate) -> Translate:
        counts = (operands,) if isinstance(operands, int) else operands
        _ROWS.setdefault(opcode, []).append(_Row(slots, translate, counts, predicated))
        return translate

    return add


def runtime_call(opcode: str, function: str, *slots: Slot, arguments: Sequence[str] = ()) -> None:
    """Add a row that calls one function of the runtime with the instruction's operands.

    Parameters
    ----------
    opcode, *slots
        As of :func:`instruction`.
    function : str
        Name in the runtime, without the beginning that all share.
    arguments : sequence of str
        Kind of each operand: ``constant``, ``shared`` for an address of shared memory, or the PTX
        type of a value.
    """

    def argument(call: Call, place: int, kind: str) -> str:
        if kind == "constant":
            return call.constant(place)
        return call.shared_address(place) if kind == "shared" else call.value(place, kind)

    def translate(call: Call) -> str:
        return call.invoke(function, *(argument(call, *each) for each in enumerate(arguments)))

    instruction(opcode, *slots, operands=len(arguments))(translate)


def translated(body: Body, item: Instruction) -> str:
    """Return an instruction as C++ statements.

    Raises
    ------
    LoweringError
        If there is no row for it, or its operands do not fit.
    """
    parts = item.opcode.split(".")
    problem = _Mismatch(0, "the instruction is not emulated")
    for length in range(len(parts), 0, -1):
        for row in _ROWS.get(".".join(parts[:length]), ()):
            modifiers = row.modifiers(parts[length:])
            if isinstance(modifiers, _Mismatch):
                # The reason of the row that fits best says the most.
                if length + modifiers.fitting > problem.fitting:
                    problem = _Mismatch(length + modifiers.fitting, modifiers.reason)
                continue
            call = Call(body, item, modifiers)
            if row.operands:
                hint = bool(modifiers.get("hint"))
                call.require_operands(*(count + hint for count in row.operands))
            statement = row.translate(call)
            if item.predicate is None or row.predicated:
                return f"{{ {statement} }}"
            return f"if ({call.predicate}) {{ {statement} }}"
    raise LoweringError(problem.reason)


def opcodes() -> tuple[str, ...]:
    """Return an opcode of each row, with all of its modifiers."""
    return tuple(
        ".".join([opcode, *(slot.values[0] for slot in row.slots)])
        for opcode, rows in _ROWS.items()
        for row in rows
    )
