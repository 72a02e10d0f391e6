"""Random programs with barriers of some threads: a fault exactly where nothing orders accesses.

Happening before is computed here as paths in a graph of all steps of all threads.
"""

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

THREADS = 96
NOTHING, READ, WRITE, BLOCK, SOME, SYNC_MASK, ARRIVE, WAIT = range(8)
BYTES = 3
"""Few, so that threads meet."""

ACTORS = (0, 1, 17, 32, 40, 64, 65)
"""Threads that access memory: of three warps."""


@dataclass(frozen=True)
class Step:
    kind: int
    first: int = 0
    extra: int = 0


Program = list[dict[int, Step]]


def random_program(rng: random.Random, arrivals: tuple[int, ...]) -> Program:
    steps: Program = []
    phase = 0
    for _ in range(rng.randrange(3, 12)):
        kind = rng.choice((READ, READ, READ, BLOCK, SOME, SYNC_MASK, ARRIVE))
        if kind == READ:
            step = dict[int, Step]()
            for thread in rng.sample(ACTORS, rng.randrange(1, 3)):
                step[thread] = Step(rng.choices((READ, WRITE), (3, 1))[0], rng.randrange(BYTES))
            steps.append(step)
        elif kind == BLOCK:
            steps.append({thread: Step(BLOCK) for thread in range(THREADS)})
        elif kind == SOME:
            pair = rng.choice(((0, 1), (0, 2), (1, 2)))
            threads = [t for t in range(THREADS) if t // 32 in pair]
            # A barrier of its own for each pair, or warps of different pairs would meet.
            steps.append({thread: Step(SOME, sum(pair)) for thread in threads})
        elif kind == SYNC_MASK:
            mask = rng.choice((0xFFFFFFFF, 0x3, 0x20001, 0x10101))
            warp = rng.randrange(3)
            lanes = [lane for lane in range(32) if mask >> lane & 1]
            signed = mask - (1 << 32) if mask >> 31 else mask
            steps.append({warp * 32 + lane: Step(SYNC_MASK, 0, signed) for lane in lanes})
        else:
            # All that arrive wait, or a phase would be passed that somebody waits for.
            steps.append({thread: Step(ARRIVE) for thread in arrivals})
            waiting = rng.sample(ACTORS, rng.randrange(4))
            steps.append({t: Step(WAIT, phase % 2) for t in sorted({*waiting, *arrivals})})
            phase += 1
            if not set(waiting) <= set(arrivals):
                steps.append({thread: Step(BLOCK) for thread in range(THREADS)})
    return steps


def is_race(steps: Program) -> bool:
    """Whether two accesses of one byte, one of them a write, are on no path of each other."""
    # known[t][u]: the number of steps of u that have happened before what t does next.
    known = np.zeros((THREADS, THREADS), int)
    arrived = np.zeros(THREADS, int)
    accesses = list[tuple[int, int, Step]]()
    for number, step in enumerate(steps):
        for thread, does in step.items():
            if does.kind not in (READ, WRITE):
                continue
            for before, other, earlier in accesses:
                same = other != thread and earlier.first == does.first
                if same and WRITE in (earlier.kind, does.kind) and known[thread][other] <= before:
                    return True
            accesses.append((number, thread, does))
        threads = list(step)
        kind = step[threads[0]].kind
        if kind in (BLOCK, SOME, SYNC_MASK):
            joined = known[threads].max(0)
            joined[threads] = number + 1
            known[threads] = joined
        elif kind == ARRIVE:
            arrived = known[threads].max(0)
            arrived[threads] = number + 1
        elif kind == WAIT:
            for thread in threads:
                known[thread] = np.maximum(known[thread], arrived)
    return False


def executes(steps: Program, arrivals: int, order: Order | int) -> bool:
    table = np.zeros((len(steps), THREADS, 3), np.int32)
    for number, step in enumerate(steps):
        for thread, does in step.items():
            table[number, thread] = (does.kind, does.first, does.extra)
    launch = Launch("interpreter", (1, 1, 1), (THREADS, 1, 1), 72)
    out = np.zeros(THREADS, np.int32)
    try:
        program("orders.cu").run(launch, [table, len(steps), arrivals, out], order=order)
    except ExecutionFault as fault:
        if not re.search("data race in shared memory", str(fault)):
            raise
        return False
    return True


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_program_ends_in_a_fault_exactly_where_nothing_orders_two_accesses(
    order: Order | int,
) -> None:
    rng = random.Random(3)
    racing = 0
    for _ in range(250):
        arrivals = tuple(sorted(rng.sample(ACTORS, rng.randrange(1, 4))))
        steps = random_program(rng, arrivals)
        race = is_race(steps)
        racing += race
        assert executes(steps, len(arrivals), order) is not race, steps
    assert 60 < racing < 190
