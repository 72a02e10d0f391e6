"""Check that a program would run on the real machine, and always with the same result.

``docs/vta.md`` lists the rules. Sources: VTA's hardware repository (apache/tvm-vta), HLS and
Chisel. Every rule names the rows that break it, for all instructions at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError
from cpembed.targets.vta.accesses import Violation, content_violations
from cpembed.targets.vta.assembly import instruction_text
from cpembed.targets.vta.encoding import Columns, columns_of, misfit, sram_extent
from cpembed.targets.vta.isa import (
    MODULES,
    PADS,
    QUEUES,
    TOKEN_FLAGS,
    AluOp,
    Memory,
    Opcode,
    formats_of,
    queue_of,
)
from cpembed.targets.vta.program import VtaProgram, dram_bounds
from cpembed.targets.vta.tokens import (
    QUEUED_INSTRUCTIONS,
    ExecutionOrder,
    HappensBefore,
    deadlock_text,
    happens_before,
    interleave,
    queue_name,
)

# Implementations differ beyond the 32 bits of an accumulator.
LARGEST_SHIFT = 31
"""Maximum amount of SHR."""

Findings = Iterator[tuple[NDArray[np.bool_], Callable[[int], tuple[str, str]]]]
"""Masks of the instructions that break a rule, each with a function to their problem and remedy."""


def field_violations(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    """Yield values that do not fit their fields, and tokens to modules that do not exist."""
    for opcode, fields in formats_of(program.config).instructions.items():
        rows = columns.is_a(opcode)
        for field in fields:
            lowest, highest = field.range
            numbers = columns[field.name]
            wrong = rows & ((numbers < lowest) | (numbers > highest))
            for row in np.flatnonzero(wrong).tolist():
                # The text of a misfit is its problem and, after a semicolon, what is allowed.
                problem = misfit(field, int(numbers[row])) or ""
                yield Violation(row, *problem.split("; "))
    for flag in TOKEN_FLAGS:
        outermost = [m for m in range(len(MODULES)) if queue_of(m, flag) is None]
        wrong = (columns[f"tokens.{flag}"] != 0) & np.isin(columns.module, outermost)
        for row in np.flatnonzero(wrong).tolist():
            name = MODULES[int(columns.module[row])].value
            side = "before" if flag.endswith("prev") else "after"
            yield Violation(
                row, f"{flag} is set, but no module is {side} the {name} module", "clear the flag"
            )


def range_violations(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    """Yield accesses outside a buffer or the image, and shapes that no machine executes.

    The program must have no :func:`field_violations`.
    """
    for rule in (_memories, _shapes, _pads, _buffers, _image, _loops):
        yield from _listed(rule(columns, program))


def rule_violations(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    """Yield operations that some implementation lacks or executes differently."""
    for rule in (_alu_operations, _immediates, _finish):
        yield from _listed(rule(columns, program))
    if not len(columns) or columns.opcode[-1] != Opcode.FINISH:
        last = len(columns) - 1 if len(columns) else None
        yield Violation(last, "the program does not end with FINISH", "append FINISH")


def _listed(findings: Findings) -> Iterator[Violation]:
    for mask, describe in findings:
        for row in np.flatnonzero(mask).tolist():
            yield Violation(row, *describe(row))


def _memories(columns: Columns, program: VtaProgram) -> Findings:
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


def _shapes(columns: Columns, program: VtaProgram) -> Findings:
    # The RTL's counters run on below 0.
    yield (
        _data_transfers(columns) & (columns["y"] == 0),
        lambda _: ("y = 0 with x > 0", "use x = 0 for a transfer of tokens only"),
    )


def _buffers(columns: Columns, program: VtaProgram) -> Findings:
    transfers = _data_transfers(columns)
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

        yield transfers & columns.transfers(memory) & (end > size), describe


def _image(columns: Columns, program: VtaProgram) -> Findings:
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

    yield _data_transfers(columns) & (columns["y"] > 0) & ((first < 0) | (last > size)), describe


def _loops(columns: Columns, program: VtaProgram) -> Findings:
    computes = columns.is_a(Opcode.GEMM, Opcode.ALU)
    begin, end = columns["uop_begin"], columns["uop_end"]
    usable = program.config.usable_uops
    empty = (begin >= end) | (columns["outer"] == 0) | (columns["inner"] == 0)

    def describe(row: int) -> tuple[str, str]:
        counts = f"[{begin[row]}, {end[row]}) x {columns['outer'][row]} x {columns['inner'][row]}"
        remedy = "every count is at least 1; to pass tokens use a LOAD with x = 0"
        return f"executes no micro-op: {counts}", remedy

    yield computes & empty, describe
    yield (
        computes & ~empty & (end > usable),
        lambda row: (
            f"reads micro-ops up to {end[row] - 1}, of 0..{usable - 1}",
            f"keep micro-ops below {usable}",
        ),
    )


def _pads(columns: Columns, program: VtaProgram) -> Findings:
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


def _alu_operations(columns: Columns, program: VtaProgram) -> Findings:
    alu, op = columns.is_a(Opcode.ALU), columns["op"]
    yield (
        alu & (op == AluOp.MUL),
        lambda _: ("MUL, which HLS lacks and the RTL never completes", "use MIN, MAX, ADD or SHR"),
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


def _immediates(columns: Columns, program: VtaProgram) -> Findings:
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


def _finish(columns: Columns, program: VtaProgram) -> Findings:
    finish = columns.is_a(Opcode.FINISH)
    early = finish.copy()
    early[-1:] = False
    yield early, lambda _: ("FINISH before the last instruction", "keep only the last one")
    flags = np.any([columns[f"tokens.{flag}"] != 0 for flag in TOKEN_FLAGS], axis=0)
    yield (
        finish & flags,
        lambda _: ("FINISH with tokens", "clear them: it neither pops nor pushes"),
    )


def _data_transfers(columns: Columns) -> NDArray[np.bool_]:
    """Return a mask of the LOADs and STOREs of data, without those that carry tokens only."""
    return columns.is_a(Opcode.LOAD, Opcode.STORE) & (columns["x"] > 0)


# The RTL counts tokens with 8 bits; the queues of HLS hold 1,024.
QUEUED_TOKENS = 255
"""Maximum number of tokens in a queue."""


def check(program: VtaProgram) -> None:
    """Raise :class:`ProgramError` with the first violation of an illegal program."""
    for violation in violations(program, limit=1):
        raise ProgramError(violation.line(program))


def violations(program: VtaProgram, limit: int | None = None) -> tuple[Violation, ...]:
    """Return the violations of a program by instruction, at most ``limit`` of them.

    Raises :class:`ProgramError` for a field that is no integer.
    """
    columns = columns_of(program.instructions, program.config)
    # Each stage takes for granted what the one before checked: accesses are computed from fields
    # that fit, and an execution from instructions that some machine executes.
    for stage in (field_violations, range_violations, _execution_violations):
        # Violations of the program as a whole come last.
        problems = sorted(
            stage(columns, program), key=lambda v: (v.instruction is None, v.instruction or 0)
        )
        if problems:
            return tuple(problems[:limit])
    return ()


def _execution_violations(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    """Yield violations of implementations' rules, tokens and accesses."""
    yield from rule_violations(columns, program)
    # Whether a program deadlocks does not depend on the order of the modules. Loads as early as
    # tokens let them show what overwrites data that is still read.
    execution = interleave(columns, "load_first")
    if execution.waiting is not None:
        # Without a complete execution nothing can be said of who is ordered before whom.
        remedy = "push every token that is popped, in an order without a cycle"
        yield Violation(None, _deadlock(execution, program), remedy)
        return
    # Modules with few instructions never fill their queues, so their second execution is skipped.
    if np.bincount(columns.module, minlength=1).max() > QUEUED_INSTRUCTIONS:
        queued = interleave(columns, "load_first", queued=QUEUED_INSTRUCTIONS)
        if queued.waiting is not None:
            yield Violation(
                None,
                f"{_deadlock(queued, program)}, with queues of {QUEUED_INSTRUCTIONS} instructions",
                "put instructions that others wait for further to the front",
            )
    order = happens_before(columns, execution.order)
    yield from _token_violations(columns, order)
    yield from content_violations(columns, program, order)


def _deadlock(execution: ExecutionOrder, program: VtaProgram) -> str:
    count = len(program.instructions)
    return deadlock_text(execution, count, lambda number: instruction_text(program, number))


def _token_violations(columns: Columns, order: HappensBefore) -> Iterator[Violation]:
    """Yield tokens that no instruction pops, and pushes that may find their queue full."""
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
        # Push k finds room for certain only if pop k - 255 is ordered before it.
        for k in range(QUEUED_TOKENS, len(pushed)):
            freed = k - QUEUED_TOKENS
            before = order.before[pushed[k], consumer]
            if freed >= len(popped) or before < order.place[popped[freed]]:
                yield Violation(
                    pushed[k],
                    f"may push token {QUEUED_TOKENS + 1} on {name}, which holds {QUEUED_TOKENS}",
                    "let it wait for the other side now and then",
                )
                break


def _by_queue(queues: list[tuple[int, ...]]) -> list[list[int]]:
    """Return the numbers of each queue's instructions, from each instruction's queues."""
    numbers: list[list[int]] = [[] for _ in QUEUES]
    for number, used in enumerate(queues):
        for queue in used:
            numbers[queue].append(number)
    return numbers
