"""Is a program legal: would it run on the real machine, and always with the same result?

Three stages, each only for programs that passed the one before: fields; ranges; the rest.
``docs/vta.md`` lists the rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from cpembed.errors import ProgramError
from cpembed.targets.vta.assembly.disassembler import instruction_text
from cpembed.targets.vta.columns import QUEUES, Columns, columns_of
from cpembed.targets.vta.contents import content_violations
from cpembed.targets.vta.legality import field_violations, range_violations, rule_violations
from cpembed.targets.vta.order import (
    QUEUED_INSTRUCTIONS,
    HappensBefore,
    Schedule,
    deadlock_text,
    happens_before,
    interleave,
    queue_name,
)
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.violations import Violation

TOKENS_HELD = 255
"""Tokens a queue of the RTL holds (a counter of 8 bits); HLS queues hold 1,024."""


def check(program: VtaProgram) -> None:
    """Raise :class:`ProgramError` with the first violation; legal programs pass."""
    for violation in violations(program, limit=1):
        raise ProgramError(violation.line(program))


def violations(program: VtaProgram, limit: int | None = None) -> tuple[Violation, ...]:
    """What makes a program illegal, by instruction; with a ``limit``, the first ones.

    Raises :class:`ProgramError` for a field that is no integer.
    """
    columns = columns_of(program.instructions, program.config)
    for stage in (field_violations, range_violations, _rest):
        # The program as a whole last.
        found = sorted(
            stage(columns, program), key=lambda v: (v.instruction is None, v.instruction or 0)
        )
        if found:
            return tuple(islice(found, limit))
    return ()


def _rest(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    """What implementations lack; tokens; where no instruction waits forever, contents."""
    yield from rule_violations(columns, program)
    schedule = interleave(columns, "load_first")
    if schedule.waiting is not None:
        remedy = "push every token that is popped, in an order without a cycle"
        yield Violation(None, _deadlock(schedule, program), remedy)
        return
    # Modules with few instructions never fill their queues.
    if np.bincount(columns.module, minlength=1).max() > QUEUED_INSTRUCTIONS:
        queued = interleave(columns, "load_first", queued=QUEUED_INSTRUCTIONS)
        if queued.waiting is not None:
            yield Violation(
                None,
                f"{_deadlock(queued, program)}, with queues of {QUEUED_INSTRUCTIONS} instructions",
                "put instructions that others wait for further to the front",
            )
    known = happens_before(columns, schedule.order)
    yield from _token_violations(columns, known)
    yield from content_violations(columns, program, known)


def _deadlock(schedule: Schedule, program: VtaProgram) -> str:
    count = len(program.instructions)
    return deadlock_text(schedule, count, lambda number: instruction_text(program, number))


def _token_violations(columns: Columns, known: HappensBefore) -> Iterator[Violation]:
    pops, pushes = (_by_queue(columns.queues(action)) for action in ("pop", "push"))
    for queue, (_, consumer) in enumerate(QUEUES):
        name, popped, pushed = queue_name(queue), pops[queue], pushes[queue]
        if len(pushed) > len(popped):
            yield Violation(
                pushed[len(popped)],
                f"pushes a token on {name} that nothing pops: the queue ends with "
                f"{len(pushed) - len(popped)}",
                "pop it, or do not push it",
            )
        for k in range(TOKENS_HELD, len(pushed)):
            freed = k - TOKENS_HELD
            before = known.before[pushed[k], consumer]
            if freed >= len(popped) or before < known.place[popped[freed]]:
                yield Violation(
                    pushed[k],
                    f"may push token {TOKENS_HELD + 1} on {name}, which holds {TOKENS_HELD}",
                    "let it wait for the other side now and then",
                )
                break


def _by_queue(queues: list[tuple[int, ...]]) -> list[list[int]]:
    """Instruction numbers by queue."""
    found: list[list[int]] = [[] for _ in QUEUES]
    for number, used in enumerate(queues):
        for queue in used:
            found[queue].append(number)
    return found
