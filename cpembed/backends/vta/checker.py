"""Is a program legal: would it run on the real machine, and always with the same result?

Three stages, each only for programs that passed the one before: fields; ranges; the rest. ``docs/vta.md`` lists the rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from cpembed.backends.vta.columns import QUEUES, Columns, columns_of
from cpembed.backends.vta.contents import content_violations
from cpembed.backends.vta.legality import field_violations, range_violations, rule_violations
from cpembed.backends.vta.order import (
    QUEUED_INSTRUCTIONS,
    HappensBefore,
    deadlock_text,
    happens_before,
    interleave,
    queue_name,
)
from cpembed.backends.vta.program import VtaProgram
from cpembed.backends.vta.assembly.disassembler import instruction_text
from cpembed.backends.vta.violations import Violation
from cpembed.errors import ProgramError

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
    for stage in (_fields, range_violations, _rest):
        found = sorted(stage(columns, program), key=_number)
        if found:
            return tuple(islice(found, limit))
    return ()


def _number(violation: Violation) -> tuple[bool, int]:
    """The program as a whole last."""
    return violation.instruction is None, violation.instruction or 0


def _fields(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    return field_violations(columns, program.config)


def _rest(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    """What implementations lack; tokens; where no instruction waits forever, contents."""
    yield from rule_violations(columns, program)
    for queued in (None, QUEUED_INSTRUCTIONS):
        if queued is not None and np.bincount(columns.module, minlength=1).max() <= queued:
            continue
        schedule = interleave(columns, "load_first", queued=queued)
        if schedule.waiting is not None:
            full = "" if queued is None else f" with {queued} instructions queued for each module"
            text = deadlock_text(
                schedule, len(columns), lambda number: instruction_text(program, number)
            )
            yield Violation(None, text + full, _remedy(queued))
            return
    known = happens_before(columns)
    yield from _token_violations(columns, known)
    yield from content_violations(columns, program, known)


def _remedy(queued: int | None) -> str:
    if queued is None:
        return "push every token that is popped, in an order without a cycle"
    return "put instructions that others wait for further to the front"


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
