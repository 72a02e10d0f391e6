"""Check that a program would run on the real machine, and always with the same result.

``docs/vta.md`` lists the rules. Sources: VTA's hardware repository (apache/tvm-vta), HLS and
Chisel. Every rule names the rows that break it, for all instructions at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError
from cpembed.targets.vta.accesses import Violation, content_violations
from cpembed.targets.vta.assembly import instruction_text
from cpembed.targets.vta.encoding import Columns, Numbers, columns_of, misfit, sram_extent
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

Rules = Iterator[tuple[NDArray[np.bool_], str, str]]
"""Masks of the instructions that break a rule, with problem and remedy.

In a problem ``{0[x]}`` stands for the instruction's field x.
"""


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
    first, end = dram_bounds(columns, program)
    tiles = sram_extent(columns, "y") * sram_extent(columns, "x")
    derived = {
        "first_byte": first,
        "last_byte": end - 1,
        "last_sram": columns["sram"] + tiles - 1,
        "last_uop": columns["uop_end"] - 1,
    }
    for rules in (_transfer_rules, _place_rules, _loop_rules):
        yield from _listed(rules(columns, program, derived), columns.fields | derived)


def rule_violations(columns: Columns, program: VtaProgram) -> Iterator[Violation]:
    """Yield operations that some implementation lacks or executes differently."""
    yield from _listed(_operation_rules(columns), columns.fields)
    if not len(columns) or columns.opcode[-1] != Opcode.FINISH:
        last = len(columns) - 1 if len(columns) else None
        yield Violation(last, "the program does not end with FINISH", "append FINISH")


def _listed(rules: Rules, fields: Mapping[str, Numbers]) -> Iterator[Violation]:
    for mask, problem, remedy in rules:
        for row in np.flatnonzero(mask).tolist():
            values: dict[str, Any] = {name: int(column[row]) for name, column in fields.items()}
            values["memory"] = Memory(values["memory"]).name
            yield Violation(row, problem.format(values), remedy)


def _transfer_rules(columns: Columns, program: VtaProgram, derived: Mapping[str, Numbers]) -> Rules:
    loads, stores = columns.is_a(Opcode.LOAD), columns.is_a(Opcode.STORE)
    out = columns["memory"] == Memory.OUT
    remedy = "load into UOP, WGT, INP or ACC; only STORE takes OUT"
    yield loads & out, "LOAD into OUT", remedy
    remedy = "store from OUT, which mirrors the accumulators' low bits"
    yield stores & ~out, "STORE from {0[memory]}", remedy
    # The RTL's counters run on below 0.
    empty = _data_transfers(columns) & (columns["y"] == 0)
    yield empty, "y = 0 with x > 0", "use x = 0 for a transfer of tokens only"
    padded = np.any([columns[name] != 0 for name in PADS], axis=0)
    dense = columns.transfers(Memory.UOP, Memory.WGT)
    remedy = "only INP and ACC are padded: load zeros from DRAM instead"
    yield loads & padded & dense, "pads on a LOAD of {0[memory]}", remedy
    yield stores & padded, "pads on a STORE", "a STORE writes no pads: clear them"


def _place_rules(columns: Columns, program: VtaProgram, derived: Mapping[str, Numbers]) -> Rules:
    config, transfers = program.config, _data_transfers(columns)
    for memory in Memory:
        size = config.usable_uops if memory is Memory.UOP else config.elements(memory)
        problem = f"touches {memory.name} elements {{0[sram]}}..{{0[last_sram]}}, of 0..{size - 1}"
        beyond = transfers & columns.transfers(memory) & (derived["last_sram"] >= size)
        yield beyond, problem, f"end at {size - 1}: move sram or take fewer elements"
    for memory in Memory:
        problem = (
            f"touches bytes {{0[first_byte]:,}}..{{0[last_byte]:,}} of a DRAM image of "
            f"{len(program.dram):,} bytes at {program.base:#x} (dram counts {memory.name} elements "
            f"of {config.element_bytes(memory)} bytes from address 0)"
        )
        outside = (derived["first_byte"] < 0) | (derived["last_byte"] >= len(program.dram))
        moved = transfers & columns.transfers(memory) & (columns["y"] > 0)
        yield moved & outside, problem, "move dram, or enlarge the image"


def _loop_rules(columns: Columns, program: VtaProgram, derived: Mapping[str, Numbers]) -> Rules:
    computes = columns.is_a(Opcode.GEMM, Opcode.ALU)
    usable = program.config.usable_uops
    empty = columns["uop_begin"] >= columns["uop_end"]
    empty |= (columns["outer"] == 0) | (columns["inner"] == 0)
    counts = "[{0[uop_begin]}, {0[uop_end]}) x {0[outer]} x {0[inner]}"
    remedy = "every count is at least 1; to pass tokens use a LOAD with x = 0"
    yield computes & empty, f"executes no micro-op: {counts}", remedy
    beyond = computes & ~empty & (derived["last_uop"] >= usable)
    problem = f"reads micro-ops up to {{0[last_uop]}}, of 0..{usable - 1}"
    yield beyond, problem, f"keep micro-ops below {usable}"


def _operation_rules(columns: Columns) -> Rules:
    alu, op, amount = columns.is_a(Opcode.ALU), columns["op"], columns["immediate"]
    problem = "MUL, which HLS lacks and the RTL never completes"
    yield alu & (op == AluOp.MUL), problem, "use MIN, MAX, ADD or SHR"
    immediate = alu & (columns["use_immediate"] != 0)
    shifts = immediate & (op == AluOp.SHR) & ((amount < 0) | (amount > LARGEST_SHIFT))
    remedy = f"shift by 0..{LARGEST_SHIFT}; implementations differ elsewhere"
    yield shifts, "SHR by {0[immediate]}", remedy
    # A loop of one iteration never adds its factor.
    differs = np.any(
        [
            (columns[f"dst.{loop}"] != columns[f"src.{loop}"]) & (columns[loop] > 1)
            for loop in ("outer", "inner")
        ],
        axis=0,
    )
    problem = (
        "src advances otherwise than dst with an immediate (dst {0[dst.outer]}, {0[dst.inner]}; "
        "src {0[src.outer]}, {0[src.inner]}), and the RTL reads the accumulator at src"
    )
    yield immediate & differs, problem, "give src the factors of dst"
    finish = columns.is_a(Opcode.FINISH)
    early = finish.copy()
    early[-1:] = False
    yield early, "FINISH before the last instruction", "keep only the last one"
    flags = np.any([columns[f"tokens.{flag}"] != 0 for flag in TOKEN_FLAGS], axis=0)
    yield finish & flags, "FINISH with tokens", "clear them: it neither pops nor pushes"


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
