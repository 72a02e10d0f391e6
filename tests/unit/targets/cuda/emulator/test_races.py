"""Random programs over shared memory: a fault exactly where the definition of a race says so."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import numpy as np
import pytest

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.emulator.executor import Launch, Order
from tests.unit.targets.cuda.emulator.running import ORDERS, needs_compiler, program

pytestmark = needs_compiler

THREADS, BYTES = 64, 64
NOTHING, READ, WRITE, COPY, WAIT, BLOCK_BARRIER, WARP_BARRIER = range(7)


@dataclass(frozen=True)
class Step:
    """What a thread does: a kind, and the bytes."""

    kind: int
    first: int = 0
    bytes: int = 0

    def touches(self, other: Step) -> bool:
        return self.first < other.first + other.bytes and other.first < self.first + self.bytes


Program = list[dict[int, Step]]
"""For each step, what threads do."""


def random_program(rng: random.Random) -> Program:
    """Mostly threads that touch their own bytes, and a few that stray."""
    steps: Program = []
    copying = set[int]()
    for _ in range(rng.randrange(2, 9)):
        kind = rng.choice((BLOCK_BARRIER, WARP_BARRIER, *[READ] * 3))
        if kind != READ:
            if kind == BLOCK_BARRIER and copying and rng.random() < 0.8:
                steps.append({thread: Step(WAIT) for thread in range(THREADS)})
                copying.clear()
            steps.append({thread: Step(kind) for thread in range(THREADS)})
            continue
        step = dict[int, Step]()
        for thread in rng.sample((0, 1, 2, 31, 32, 33, 63), rng.randrange(1, 5)):
            size = rng.choice((1, 2, 4, 8, 16))
            does = rng.choices((READ, WRITE, COPY), (3, 2, 1))[0]
            if does == COPY:
                size = max(4, size)
                copying.add(thread)
            place = rng.choice((0, 16, 32, 48)) + rng.randrange(0, 16, size)
            step[thread] = Step(does, place, size)
        steps.append(step)
    return steps


def is_race(steps: Program) -> bool:
    """By the definition, over all pairs of accesses; what lasts from a copy to the wait for it is
    touched by nobody, and from then on it is as if the thread had written when it waited."""
    done = list[tuple[int, int, Step]]()
    flying = dict[int, list[tuple[int, Step]]]()
    for number, step in enumerate(steps):
        for thread, does in step.items():
            if does.kind == WAIT:
                landed = flying.pop(thread, [])
                done += [(number, thread, Step(WRITE, c.first, c.bytes)) for _, c in landed]
        accesses = {t: does for t, does in step.items() if does.kind in (READ, WRITE, COPY)}
        for thread, does in accesses.items():
            in_flight = [c for copies in flying.values() for _, c in copies]
            here = [(number, t, other) for t, other in accesses.items() if t != thread]
            if any(does.touches(copy) for copy in in_flight):
                return True
            if any(_race(steps, one, (number, thread, does)) for one in done + here):
                return True
        for thread, does in accesses.items():
            if does.kind == COPY:
                flying.setdefault(thread, []).append((number, does))
            else:
                done.append((number, thread, does))
    return False


def _race(steps: Program, one: tuple[int, int, Step], other: tuple[int, int, Step]) -> bool:
    (before, a, first), (after, b, second) = one, other
    if a == b or first.kind == second.kind == READ or not first.touches(second):
        return False
    between = {next(iter(step.values())).kind for step in steps[before:after] if step}
    if BLOCK_BARRIER in between:
        return False
    return not (a // 32 == b // 32 and WARP_BARRIER in between)


def executes(steps: Program, order: Order | int) -> bool:
    table = np.zeros((len(steps), THREADS, 4), np.int32)
    for number, step in enumerate(steps):
        for thread, does in step.items():
            table[number, thread, :3] = (does.kind, does.first, does.bytes)
    arguments = [table, len(steps), np.zeros(4, np.float32), np.zeros(THREADS, np.int32)]
    launch = Launch("interpreter", (1, 1, 1), (THREADS, 1, 1))
    try:
        program("races.cu").run(launch, arguments, order=order)
    except ExecutionFault as fault:
        return not re.search("data race|not waited for", str(fault))
    return True


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_program_ends_in_a_fault_exactly_where_it_has_a_race(order: Order | int) -> None:
    rng = random.Random(11)
    programs = [random_program(rng) for _ in range(200)]
    racing = [is_race(steps) for steps in programs]
    assert 50 < sum(racing) < 150
    for steps, race in zip(programs, racing, strict=True):
        assert executes(steps, order) is not race, steps
