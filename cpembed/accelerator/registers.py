"""Configuration of registers: instructions that set them, as far out in the loops as possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cpembed.accelerator.addressing import Scalar, TableEntry, bind_scalar
from cpembed.accelerator.problem import PlanningError
from cpembed.accelerator.program import Issue, Loop, Node, issues_of
from cpembed.accelerator.transfers import BoundIssue
from cpembed.hw.isa import InstructionSet, IsaInstruction
from cpembed.ir.expression import copied_read

State = dict[str, Scalar | None]
"""Value of each register at a point of the program; None where iterations differ."""


def with_configuration(body: Sequence[Node], machine: InstructionSet) -> tuple[Node, ...]:
    """Insert the instructions that set registers before those that depend on them.

    A register that has one value in all of a loop is set before the loop.

    Raises
    ------
    PlanningError
        If no instruction sets a register that the program needs.
    """
    return tuple(_configured(body, machine, {}))


def _needs(node: Node) -> Iterator[tuple[str, Scalar | None]]:
    for _, issue in issues_of([node]):
        if isinstance(issue, BoundIssue):
            yield from issue.registers


def _loop_names(node: Node) -> Iterator[str]:
    """Yield the name of a loop and of those inside of it."""
    if isinstance(node, Loop):
        yield node.name
        for inner in node.body:
            yield from _loop_names(inner)


def _configured(body: Sequence[Node], machine: InstructionSet, state: State) -> Iterator[Node]:
    for node in body:
        needs: dict[str, set[Scalar]] = {}
        for register, value in _needs(node):
            needs.setdefault(register, set())
            if value is not None:
                needs[register].add(value)
        loops = set(_loop_names(node))
        required: dict[str, Scalar] = {}
        changing: list[str] = []
        for register, values in needs.items():
            if len(values) > 1 or any(_depends(value, loops) for value in values):
                changing.append(register)
            elif len(values) == 1:
                required[register] = next(iter(values))
            elif state.get(register) is None:
                # Any value will do, but a register that was never set holds none.
                required[register] = 0
        yield from _settings(required, machine, state)
        if isinstance(node, BoundIssue):
            yield _plain(node)
        elif isinstance(node, Loop):
            state.update(dict.fromkeys(changing))
            yield Loop(node.name, node.extent, tuple(_configured(node.body, machine, state)))
            for register, value in state.items():
                # The place in a table is over the loops inside of which it was set.
                if value is not None and _depends(value, loops):
                    state[register] = None
        else:
            yield node


def _depends(value: Scalar, loops: set[str]) -> bool:
    return isinstance(value, TableEntry) and not loops.isdisjoint(value.place.iterators)


def _plain(issue: BoundIssue) -> Issue:
    return Issue(
        issue.instruction,
        issue.operands,
        issue.sizes,
        issue.guards,
        issue.waits,
        issue.signals,
        issue.contents,
        issue.meaning,
        issue.note,
    )


def _settings(
    required: Mapping[str, Scalar], machine: InstructionSet, state: State
) -> Iterator[Issue]:
    """Yield the instructions that bring registers to values, and update the state."""
    missing = {r: v for r, v in required.items() if state.get(r) != v}
    while missing:
        register = next(iter(missing))
        instruction, sets = _setter(machine, register)
        operands: dict[str, Scalar] = {}
        for target, operand in sets.items():
            # Other registers of the same instruction keep the value that they have.
            value = missing.pop(target, state.get(target))
            operands[operand] = 0 if value is None else value
            state[target] = operands[operand]
        bound = {
            operand: bind_scalar(instruction.places[operand], "", value).address
            for operand, value in operands.items()
        }
        outputs = {
            target: bind_scalar(instruction.places[o], "", 0).address
            for target, o in (
                (instruction.computation.operand(s.store.operand).name, s.store.operand)
                for s in instruction.computation.statements
            )
        }
        text = ", ".join(f"{r} = {_text(operands[o])}" for r, o in sets.items())
        yield Issue(instruction.name, {**outputs, **bound}, note=f"set {text}")


def _text(value: Scalar) -> str:
    return f"number {value.place} of a table" if isinstance(value, TableEntry) else str(value)


def _setter(machine: InstructionSet, register: str) -> tuple[IsaInstruction, dict[str, str]]:
    """Return the instruction that sets a register, and its immediate for each register it sets."""
    for instruction in machine.instructions.values():
        if not instruction.is_configuration:
            continue
        sets: dict[str, str] = {}
        for statement in instruction.computation.statements:
            source = copied_read(statement.value)
            if source is not None:
                sets[instruction.places[statement.store.operand].memory] = source.operand
        if register in sets:
            return instruction, sets
    raise PlanningError(
        f"rejected: no instruction of {machine.name} sets the register {register}: "
        "describe one without axes that writes it from an immediate"
    )
