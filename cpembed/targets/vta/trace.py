"""Timelines for people: Chrome's trace format, which ui.perfetto.dev and chrome://tracing show.

A row for each module, and one for each memory that is read or written. A cycle is shown as a
microsecond, the format's unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpembed.targets.vta.assembly.disassembler import instruction_text
from cpembed.targets.vta.columns import MODULES
from cpembed.targets.vta.event_loop import EVENT
from cpembed.targets.vta.isa import Alu, Gemm, Instruction, Load, Module, Store, module_of
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.timing import Timing

_CHANNELS = ("FETCH", "UOP", "INP", "WGT", "ACC", "OUT")
_MODULES, _MEMORY = 1, 2
"""Process numbers: the groups of rows."""


def trace(program: VtaProgram, timing: Timing) -> dict[str, Any]:
    """The trace of a timed program, as a JSON document."""
    return {
        "displayTimeUnit": "ns",
        "otherData": {"cycles": timing.cycles, "unit": "1 us is a cycle"},
        "traceEvents": [
            *_names(),
            *_batches(timing),
            *_instructions(program, timing),
        ],
    }


def _names() -> Iterator[dict[str, Any]]:
    groups = {_MODULES: ("modules", [m.value for m in MODULES]), _MEMORY: ("DRAM", _CHANNELS)}
    for process, (name, rows) in groups.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
        for number, row in enumerate(rows):
            place = {"pid": process, "tid": number}
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": row}}
            yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": number}}


def _batches(timing: Timing) -> Iterator[dict[str, Any]]:
    for number, (first, last) in enumerate(timing.batches.tolist()):
        yield _span(_MEMORY, _CHANNELS.index("FETCH"), f"batch {number}", first, last + 1, {})


def _instructions(program: VtaProgram, timing: Timing) -> Iterator[dict[str, Any]]:
    rows = timing.events.tolist()
    for number, (instruction, row) in enumerate(zip(program.instructions, rows, strict=True)):
        event = dict(zip(EVENT, row, strict=True))
        module = module_of(instruction)
        waited = event["issued"] - max(event["ready"], event["available"])
        arguments = {
            "instruction": number,
            "text": instruction_text(program, number),
            "waited for tokens": waited,
        }
        name, (begin, end) = _name(instruction), (event["issued"], event["done"])
        yield _span(_MODULES, MODULES.index(module), name, begin, end, arguments)
        if not isinstance(instruction, Load | Store) or not instruction.x:
            continue
        channel = _CHANNELS.index(instruction.memory.name)
        if module is not Module.STORE:
            begin, end = event["first_beat"], event["last_beat"] + 1
        yield _span(_MEMORY, channel, name, begin, end, {"instruction": number})


def _name(instruction: Instruction) -> str:
    if isinstance(instruction, Load | Store):
        kind = type(instruction).__name__.lower()
        return f"{kind} {instruction.memory.name}" if instruction.x else "tokens"
    if isinstance(instruction, Gemm):
        return "reset" if instruction.reset else "gemm"
    return f"alu {instruction.op.name.lower()}" if isinstance(instruction, Alu) else "finish"


def _span(
    process: int, row: int, name: str, begin: int, end: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": begin, "dur": end - begin}
    return {"ph": "X", "pid": process, "tid": row, "name": name, **times, "args": arguments}
