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
from cpembed.targets.vta.encoding import Columns
from cpembed.targets.vta.isa import MODULES, QUEUES, Instruction, Tokens, module_of
from cpembed.targets.vta.program import Numbers


class Dependences:
    """Program under construction: instructions, each with the ones that it waits for.

    A module executes in order, so waiting for an instruction is waiting for all before it in its
    module. :meth:`instructions` places one token per wait that does not follow from earlier ones.
    Each is pushed once and popped once, in the same order, so all queues end empty; and as an
    instruction waits for earlier ones only, no order of the modules can deadlock.
    """

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._waits: dict[int, list[int]] = {}

    def append(self, instruction: Instruction, *waits_for: int | None) -> int:
        """Append an instruction and return its number.

        Of the instructions that it waits for, None and those of its own module change nothing: a
        module executes in order.
        """
        number = len(self._instructions)
        self._instructions.append(instruction)
        numbers = [at for at in waits_for if at is not None]
        if numbers:
            self._waits[number] = numbers
        return number

    def instructions(self) -> tuple[Instruction, ...]:
        """Return the program with its tokens."""
        modules = [MODULES.index(module_of(i)) for i in self._instructions]
        awaited: dict[tuple[int, int], int] = {}
        pops: dict[int, set[int]] = {}
        pushes: dict[int, set[int]] = {}
        for number, waits in self._waits.items():
            consumer = modules[number]
            for producer in {modules[at] for at in waits} - {consumer}:
                last = max(at for at in waits if modules[at] == producer)
                # An earlier instruction of this module took a token of that one, or of a later one.
                if last <= awaited.get((consumer, producer), -1):
                    continue
                # Queues join neighbours only: what load needs of store goes through compute.
                if abs(consumer - producer) != 1:
                    raise InvariantError("no token goes from the load to the store module")
                awaited[consumer, producer] = last
                pops.setdefault(number, set()).add(producer - consumer)
                pushes.setdefault(last, set()).add(consumer - producer)
        program = list(self._instructions)
        for number in pops.keys() | pushes.keys():
            pop, push = pops.get(number, ()), pushes.get(number, ())
            # Distances in the order of the modules: -1 is *prev*, 1 is *next*.
            tokens = Tokens(-1 in pop, 1 in pop, -1 in push, 1 in push)
            program[number] = replace(program[number], tokens=tokens)
        return tuple(program)


Policy = Literal["round_robin", "load_first", "store_first", "random"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
# In the RTL ``instQueueEntries`` of ``Configs.scala``; the streams of HLS are as deep.
QUEUED_INSTRUCTIONS = 512
"""Capacity of a module's instruction queue."""


@dataclass(frozen=True)
class ExecutionOrder:
    """Numbers of the instructions in the order in which they execute.

    If not all can execute, ``waiting`` has, for each module, the number of its next instruction
    (None: none left) and the queue whose token that lacks (None: it is not dispatched yet).
    """

    order: list[int]
    waiting: tuple[tuple[int | None, int | None], ...] | None


def interleave(
    columns: Columns, policy: Policy = "round_robin", seed: int = 0, *, queued: int | None = None
) -> ExecutionOrder:
    """Execute a program's tokens, one instruction at a time.

    Parameters
    ----------
    columns
        Instructions of the program.
    policy
        Module that goes first when several can execute.
    seed
        Seed of the policy ``random``.
    queued
        Capacity of each module's instruction queue; None for no limit. Instructions are dispatched
        to the queues in program order.
    """
    return _Execution(columns, queued).run(_module_priorities(policy, seed))


def _module_priorities(policy: Policy, seed: int) -> Callable[[int], tuple[int, ...]]:
    """Return a function from the number of executed instructions to the order of the modules."""
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
    """State of the queues of tokens and instructions while a program executes."""

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

    def run(self, choose: Callable[[int], tuple[int, ...]]) -> ExecutionOrder:
        order: list[int] = []
        total = len(self._module)
        self._dispatch()
        while len(order) < total:
            for module in choose(len(order)):
                number = self._ready(module)
                if number is not None:
                    break
            else:
                return ExecutionOrder(order, tuple(map(self._wait, range(len(MODULES)))))
            # A module executes in order, and nothing is timed here: pops and pushes are one event.
            for queue in self._pops[number]:
                self._tokens[queue] -= 1
            for queue in self._pushes[number]:
                self._tokens[queue] += 1
            self._heads[module] += 1
            order.append(number)
            self._dispatch()
        return ExecutionOrder(order, None)

    def _ready(self, module: int) -> int | None:
        """Return the number of the instruction that a module can execute now, if any."""
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
            # Dispatch is in program order: a full queue of one module keeps the others waiting.
            if self._place[number] - self._heads[self._module[number]] >= self._queued:
                return
            self._dispatched += 1

    def _wait(self, module: int) -> tuple[int | None, int | None]:
        """Return the instruction that a module waits at, and the queue whose token is missing."""
        numbers, head = self._lists[module], self._heads[module]
        if head == len(numbers):
            return None, None
        number = numbers[head]
        if number >= self._dispatched:
            return number, None
        return number, next(queue for queue in self._pops[number] if not self._tokens[queue])


def queue_name(queue: int) -> str:
    """Return a queue's name.

    >>> queue_name(0)
    'load->compute'
    """
    return "->".join(MODULES[end].value for end in QUEUES[queue])


def deadlock_text(execution: ExecutionOrder, total: int, text: Callable[[int], str]) -> str:
    """Return a message on a deadlock.

    Parameters
    ----------
    execution
        Execution that stopped, with the instructions that wait.
    total
        Number of instructions of the program.
    text
        Function from an instruction's number to its text.
    """
    waits: list[str] = []
    for module, (number, queue) in enumerate(execution.waiting or ()):
        name = MODULES[module].value
        if number is None:
            waits.append(f"{name} is done")
        elif queue is None:
            waits.append(f"{name} waits for instruction {number} to be dispatched")
        else:
            waited = MODULES[QUEUES[queue][0]].value
            waits.append(f"{name} waits for {waited} at instruction {number} ({text(number)})")
    return f"deadlock after {len(execution.order)} of {total} instructions: {'; '.join(waits)}"


@dataclass(frozen=True, eq=False)
class HappensBefore:
    """Order of the instructions that holds in every execution.

    ``before[i, m]`` is the number of module m's instructions before i, i included; ``place[i]`` is
    i's place in its own module, counted from 1. ``order`` is one execution.
    """

    order: list[int]
    before: Numbers
    place: Numbers


def happens_before(columns: Columns, order: list[int]) -> HappensBefore:
    """Return the order that tokens enforce, from one execution of all instructions."""
    # Vector clocks: each module counts its own instructions and knows how many of the others
    # precede, which tokens carry along. Written out for three modules, as this runs once for each
    # of a million instructions.
    pops, pushes = columns.queues("pop"), columns.queues("push")
    modules: list[int] = columns.module.tolist()
    tokens: list[deque[tuple[int, int, int]]] = [deque() for _ in QUEUES]
    clocks = [(0, 0, 0)] * len(MODULES)
    before: list[tuple[int, int, int]] = [(0, 0, 0)] * len(columns)
    for number in order:
        module = modules[number]
        load, compute, store = clocks[module]
        for queue in pops[number]:
            a, b, c = tokens[queue].popleft()
            load, compute, store = max(load, a), max(compute, b), max(store, c)
        clock = (load + (module == 0), compute + (module == 1), store + (module == 2))
        clocks[module] = before[number] = clock
        for queue in pushes[number]:
            tokens[queue].append(clock)
    counts = np.array(before, np.int64).reshape(-1, len(MODULES))
    place = np.take_along_axis(counts, columns.module[:, None], axis=1)[:, 0]
    return HappensBefore(order, counts, place)
