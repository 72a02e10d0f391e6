"""Dependence tokens: from "this waits for that" between modules to push and pop flags."""

from __future__ import annotations

from dataclasses import replace

from cpembed.errors import InvariantError
from cpembed.targets.vta.isa import Instruction, Module, Tokens, module_of

_ORDER = (Module.LOAD, Module.COMPUTE, Module.STORE)


class Dependences:
    """A program under construction: instructions, each with the ones that it waits for.

    A module executes in order, so waiting for an instruction is waiting for all before it in its
    module. :meth:`instructions` places one token per wait that does not follow from earlier ones.
    Each is pushed once and popped once, in the same order, so all queues end empty; and as an
    instruction waits for earlier ones only, no order of the modules can deadlock.
    """

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._waits: dict[int, list[int]] = {}

    def append(self, instruction: Instruction, *waits_for: int | None) -> int:
        """Add an instruction; returns its number. None waits for nothing, and what the same module
        executed is waited for anyway."""
        number = len(self._instructions)
        self._instructions.append(instruction)
        numbers = [at for at in waits_for if at is not None]
        if numbers:
            self._waits[number] = numbers
        return number

    def instructions(self) -> tuple[Instruction, ...]:
        """The program with its tokens."""
        modules = [_ORDER.index(module_of(i)) for i in self._instructions]
        seen: dict[tuple[int, int], int] = {}
        pops: dict[int, set[int]] = {}
        pushes: dict[int, set[int]] = {}
        for number, waits in self._waits.items():
            here = modules[number]
            for there in {modules[at] for at in waits} - {here}:
                last = max(at for at in waits if modules[at] == there)
                if last <= seen.get((here, there), -1):
                    continue
                if abs(here - there) != 1:
                    raise InvariantError("no token goes from the load to the store module")
                seen[here, there] = last
                pops.setdefault(number, set()).add(there - here)
                pushes.setdefault(last, set()).add(here - there)
        found = list(self._instructions)
        for number in pops.keys() | pushes.keys():
            pop, push = pops.get(number, ()), pushes.get(number, ())
            tokens = Tokens(-1 in pop, 1 in pop, -1 in push, 1 in push)
            found[number] = replace(found[number], tokens=tokens)
        return tuple(found)
