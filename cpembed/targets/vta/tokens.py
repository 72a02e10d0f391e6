"""Dependence tokens between the load, compute and store modules.

:class:`Dependences` places them in a program under construction, :func:`interleave` executes a
program's, and :func:`happens_before` says what they order in every execution.

Modules execute their own instructions in order and wait for tokens only. The k-th pop of a queue
takes the k-th token pushed, so "must come before" does not depend on which module is faster.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from cpembed.errors import InvariantError
from cpembed.targets.vta.isa import Instruction, Module, Tokens, module_of
from cpembed.targets.vta.program import MODULES, QUEUES, Columns, Numbers

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


Policy = Literal["round_robin", "load_first", "store_first", "random"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
QUEUED_INSTRUCTIONS = 512
"""Instructions that wait in front of a module, in VTA's hardware of either kind (``Configs.scala``:
``instQueueEntries``; the HLS streams are as deep)."""


@dataclass(frozen=True)
class Schedule:
    """``order``: instruction numbers as executed. Where not all are, ``waiting`` has the number of
    the instruction in front of each module (None: none left) and the queue whose token it lacks
    (None: it is not there yet, the instructions before it being stuck)."""

    order: list[int]
    waiting: tuple[tuple[int | None, int | None], ...] | None


def interleave(
    columns: Columns, policy: Policy = "round_robin", seed: int = 0, *, queued: int | None = None
) -> Schedule:
    """Execute tokens only, one instruction at a time; ``queued`` limits how many instructions wait
    in front of a module while others are dispatched in program order."""
    return _Execution(columns, queued).run(_choices(policy, seed))


def _choices(policy: Policy, seed: int) -> Callable[[int], tuple[int, ...]]:
    """Which modules to try, in order, after some number of instructions."""
    rotations = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
    if policy == "load_first":
        return lambda _: (0, 1, 2)
    if policy == "store_first":
        return lambda _: (2, 1, 0)
    if policy == "round_robin":
        return lambda step: rotations[step % 3]
    generator = random.Random(seed)
    return lambda _: tuple(generator.sample((0, 1, 2), 3))


class _Execution:
    def __init__(self, columns: Columns, queued: int | None) -> None:
        self._module: list[int] = columns.module.tolist()
        self._lists: list[list[int]] = [
            np.flatnonzero(columns.module == module).tolist() for module in range(len(MODULES))
        ]
        self._place = [0] * len(columns)
        for numbers in self._lists:
            for place, number in enumerate(numbers):
                self._place[number] = place
        self._pops, self._pushes = columns.queues("pop"), columns.queues("push")
        self._tokens = [0] * len(QUEUES)
        self._heads = [0] * len(MODULES)
        self._queued = queued
        self._dispatched = len(columns) if queued is None else 0

    def run(self, choose: Callable[[int], tuple[int, ...]]) -> Schedule:
        order: list[int] = []
        total = len(self._module)
        self._dispatch()
        while len(order) < total:
            for module in choose(len(order)):
                number = self._ready(module)
                if number is not None:
                    break
            else:
                return Schedule(order, tuple(map(self._wait, range(len(MODULES)))))
            for queue in self._pops[number]:
                self._tokens[queue] -= 1
            for queue in self._pushes[number]:
                self._tokens[queue] += 1
            self._heads[module] += 1
            order.append(number)
            self._dispatch()
        return Schedule(order, None)

    def _ready(self, module: int) -> int | None:
        """The number of the instruction that the module can execute now."""
        numbers, head = self._lists[module], self._heads[module]
        if head == len(numbers):
            return None
        number = numbers[head]
        if number >= self._dispatched:
            return None
        for queue in self._pops[number]:
            if not self._tokens[queue]:
                return None
        return number

    def _dispatch(self) -> None:
        if self._queued is None:
            return
        while self._dispatched < len(self._module):
            number = self._dispatched
            if self._place[number] - self._heads[self._module[number]] >= self._queued:
                return
            self._dispatched += 1

    def _wait(self, module: int) -> tuple[int | None, int | None]:
        numbers, head = self._lists[module], self._heads[module]
        if head == len(numbers):
            return None, None
        number = numbers[head]
        if number >= self._dispatched:
            return number, None
        return number, next(queue for queue in self._pops[number] if not self._tokens[queue])


def queue_name(queue: int) -> str:
    """
    >>> queue_name(0)
    'load->compute'
    """
    return "->".join(MODULES[end].value for end in QUEUES[queue])


def deadlock_text(schedule: Schedule, total: int, text: Callable[[int], str]) -> str:
    """Who waits for whom; ``text`` words an instruction."""
    waits: list[str] = []
    for module, (number, queue) in enumerate(schedule.waiting or ()):
        name = MODULES[module].value
        if number is None:
            waits.append(f"{name} is done")
        elif queue is None:
            waits.append(f"{name} waits for instruction {number} to be dispatched")
        else:
            waited = MODULES[QUEUES[queue][0]].value
            waits.append(f"{name} waits for {waited} at instruction {number} ({text(number)})")
    return f"deadlock after {len(schedule.order)} of {total} instructions: {'; '.join(waits)}"


@dataclass(frozen=True, eq=False)
class HappensBefore:
    """``before[i, m]``: how many of module m's instructions are before i or i itself, in every
    execution; ``place[i]`` counts i in its own module from 1."""

    order: list[int]
    before: Numbers
    place: Numbers


def happens_before(columns: Columns, order: list[int]) -> HappensBefore:
    """``order`` executes all instructions."""
    pops, pushes = columns.queues("pop"), columns.queues("push")
    modules: list[int] = columns.module.tolist()
    tokens: list[deque[tuple[int, int, int]]] = [deque() for _ in QUEUES]
    clocks = [(0, 0, 0)] * len(MODULES)
    found: list[tuple[int, int, int]] = [(0, 0, 0)] * len(columns)
    for number in order:
        module = modules[number]
        load, compute, store = clocks[module]
        for queue in pops[number]:
            a, b, c = tokens[queue].popleft()
            load, compute, store = max(load, a), max(compute, b), max(store, c)
        clock = (load + (module == 0), compute + (module == 1), store + (module == 2))
        clocks[module] = found[number] = clock
        for queue in pushes[number]:
            tokens[queue].append(clock)
    before = np.array(found, np.int64).reshape(-1, len(MODULES))
    place = np.take_along_axis(before, columns.module[:, None], axis=1)[:, 0]
    return HappensBefore(order, before, place)
