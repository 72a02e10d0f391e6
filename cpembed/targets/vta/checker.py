"""Is a program legal: would it run on the real machine, and always with the same result?

Three stages, each only for programs that passed the one before: fields; ranges; the rest.
``docs/vta.md`` lists the rules. Sources: VTA's hardware repository (apache/tvm-vta), HLS and
Chisel. Every rule names the rows that break it, for all instructions at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError
from cpembed.targets.vta.accesses import Violation, content_violations
from cpembed.targets.vta.assembly.disassembler import instruction_text
from cpembed.targets.vta.encoding import PADS, Opcode, formats_of, misfit
from cpembed.targets.vta.isa import TOKEN_FLAGS, AluOp, Memory
from cpembed.targets.vta.program import (
    MODULES,
    QUEUES,
    Columns,
    VtaProgram,
    columns_of,
    dram_bounds,
    queue_of,
    sram_extent,
)
from cpembed.targets.vta.tokens import (
    QUEUED_INSTRUCTIONS,
    ExecutionOrder,
    HappensBefore,
    deadlock_text,
    happens_before,
    interleave,
    queue_name,
)

LARGEST_SHIFT = 31
Found = Iterator[tuple[NDArray[np.bool_], Callable[[int], tuple[str, str]]]]
"""Rows that break a rule, and for a row what is wrong and the remedy."""


def field_violations(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    """Values that do not fit the 128 bits, tokens to neighbours that do not exist."""
    for opcode, fields in formats_of(program.config).instructions.items():
        rows = columns.is_a(opcode)
        for field in fields:
            lowest, highest = field.range
            numbers = columns[field.name]
            wrong = rows & ((numbers < lowest) | (numbers > highest))
            for row in np.flatnonzero(wrong).tolist():
                problem = misfit(field, int(numbers[row])) or ""
                what, allowed = problem.split("; ")
                yield Violation(row, what, allowed)
    for flag in TOKEN_FLAGS:
        lonely = [m for m in range(len(MODULES)) if queue_of(m, flag) is None]
        wrong = (columns[f"tokens.{flag}"] != 0) & np.isin(columns.module, lonely)
        for row in np.flatnonzero(wrong).tolist():
            name = MODULES[int(columns.module[row])].value
            side = "before" if flag.endswith("prev") else "after"
            yield Violation(
                row,
                f"{flag} is set, but no module is {side} the {name} module",
                "clear the flag",
            )


def range_violations(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    """Accesses of LOAD and STORE outside a buffer or the image, and shapes that no machine takes.

    Only for programs without :func:`field_violations`.
    """
    for rule in (_memories, _shapes, _pads, _buffers, _image, _loops):
        yield from _listed(rule(columns, program))


def rule_violations(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    """What some implementation lacks, or does differently."""
    for rule in (_alu_operations, _immediates, _finish):
        yield from _listed(rule(columns, program))
    if not len(columns) or columns.opcode[-1] != Opcode.FINISH:
        last = len(columns) - 1 if len(columns) else None
        yield Violation(last, "the program does not end with FINISH", "append FINISH")


def _listed(found: Found) -> Iterator[Violation]:
    for mask, describe in found:
        for row in np.flatnonzero(mask).tolist():
            yield Violation(row, *describe(row))


def _memories(columns: Columns, program: VtaProgram) -> Found:
    out = columns["memory"] == Memory.OUT
    yield (
        columns.is_a(Opcode.LOAD) & out,
        lambda _: ("LOAD into OUT", "load into UOP, WGT, INP or ACC; only STORE takes OUT"),
    )
    yield (
        columns.is_a(Opcode.STORE) & ~out,
        lambda row: (
            f"STORE from {Memory(columns['memory'][row]).name}",
            "store from OUT, which mirrors the accumulators' low bits",
        ),
    )


def _shapes(columns: Columns, program: VtaProgram) -> Found:
    moves = _moves(columns)
    yield (
        moves & (columns["y"] == 0),
        lambda _: ("y = 0 with x > 0", "use x = 0 for a transfer of tokens only"),
    )


def _buffers(columns: Columns, program: VtaProgram) -> Found:
    moves = _moves(columns)
    end = columns["sram"] + sram_extent(columns, "y") * sram_extent(columns, "x")
    for memory in Memory:
        size = (
            program.config.usable_uops if memory is Memory.UOP else program.config.elements(memory)
        )

        def describe(row: int, memory: Memory = memory, size: int = size) -> tuple[str, str]:
            span = f"{columns['sram'][row]}..{end[row] - 1}"
            return (
                f"touches {memory.name} elements {span}, of 0..{size - 1}",
                f"end at {size - 1}: move sram or take fewer elements",
            )

        yield moves & columns.transfers(memory) & (end > size), describe


def _image(columns: Columns, program: VtaProgram) -> Found:
    first, last = dram_bounds(columns, program)
    size = len(program.dram)

    def describe(row: int) -> tuple[str, str]:
        name = Memory(columns["memory"][row]).name
        problem = (
            f"touches bytes {first[row]:,}..{last[row] - 1:,} of a DRAM image of {size:,} bytes "
            f"at {program.base:#x} (dram counts {name} elements of "
            f"{program.config.element_bytes(Memory[name])} bytes from address 0)"
        )
        return problem, "move dram, or enlarge the image"

    yield _moves(columns) & (columns["y"] > 0) & ((first < 0) | (last > size)), describe


def _loops(columns: Columns, program: VtaProgram) -> Found:
    computes = columns.is_a(Opcode.GEMM, Opcode.ALU)
    begin, end = columns["uop_begin"], columns["uop_end"]
    kept = program.config.usable_uops
    empty = (begin >= end) | (columns["outer"] == 0) | (columns["inner"] == 0)

    def describe(row: int) -> tuple[str, str]:
        counts = f"[{begin[row]}, {end[row]}) x {columns['outer'][row]} x {columns['inner'][row]}"
        remedy = "every count is at least 1; to pass tokens use a LOAD with x = 0"
        return f"executes no micro-op: {counts}", remedy

    yield computes & empty, describe
    yield (
        computes & ~empty & (end > kept),
        lambda row: (
            f"reads micro-ops up to {end[row] - 1}, of 0..{kept - 1}",
            f"keep micro-ops below {kept}",
        ),
    )


def _pads(columns: Columns, program: VtaProgram) -> Found:
    padded = np.any([columns[name] != 0 for name in PADS], axis=0)
    yield (
        columns.is_a(Opcode.LOAD) & padded & columns.transfers(Memory.UOP, Memory.WGT),
        lambda row: (
            f"pads on a LOAD of {Memory(columns['memory'][row]).name}",
            "only INP and ACC are padded: load zeros from DRAM instead",
        ),
    )
    yield (
        columns.is_a(Opcode.STORE) & padded,
        lambda _: ("pads on a STORE", "a STORE writes no pads: clear them"),
    )


def _alu_operations(columns: Columns, program: VtaProgram) -> Found:
    alu, op = columns.is_a(Opcode.ALU), columns["op"]
    yield (
        alu & (op == AluOp.MUL),
        lambda _: (
            "MUL, which HLS lacks and the RTL never completes",
            "use MIN, MAX, ADD or SHR",
        ),
    )
    amount = columns["immediate"]
    shifts = alu & (op == AluOp.SHR) & (columns["use_immediate"] != 0)
    yield (
        shifts & ((amount < 0) | (amount > LARGEST_SHIFT)),
        lambda row: (
            f"SHR by {amount[row]}",
            f"shift by 0..{LARGEST_SHIFT}; implementations differ elsewhere",
        ),
    )


def _immediates(columns: Columns, program: VtaProgram) -> Found:
    immediate = columns.is_a(Opcode.ALU) & (columns["use_immediate"] != 0)
    # A loop of one iteration never adds its factor.
    differs = np.any(
        [
            (columns[f"dst.{loop}"] != columns[f"src.{loop}"]) & (columns[loop] > 1)
            for loop in ("outer", "inner")
        ],
        axis=0,
    )

    def describe(row: int) -> tuple[str, str]:
        problem = (
            "src advances otherwise than dst with an immediate "
            f"(dst {columns['dst.outer'][row]}, {columns['dst.inner'][row]}; "
            f"src {columns['src.outer'][row]}, {columns['src.inner'][row]}), "
            "and the RTL reads the accumulator at src"
        )
        return problem, "give src the factors of dst"

    yield immediate & differs, describe


def _finish(columns: Columns, program: VtaProgram) -> Found:
    finish = columns.is_a(Opcode.FINISH)
    early = finish.copy()
    early[-1:] = False
    yield early, lambda _: ("FINISH before the last instruction", "keep only the last one")
    flags = np.any([columns[f"tokens.{flag}"] != 0 for flag in TOKEN_FLAGS], axis=0)
    yield (
        finish & flags,
        lambda _: ("FINISH with tokens", "clear them: it neither pops nor pushes"),
    )


def _moves(columns: Columns) -> NDArray[np.bool_]:
    """LOADs and STOREs of data, not of tokens only."""
    return columns.is_a(Opcode.LOAD, Opcode.STORE) & (columns["x"] > 0)


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


def _deadlock(schedule: ExecutionOrder, program: VtaProgram) -> str:
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
