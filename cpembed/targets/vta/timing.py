"""Timed simulator: how many cycles a program takes on VTA's RTL, and where they go.

Durations follow the RTL (``docs/vta.md``); the loop over events is compiled
(:mod:`cpembed.targets.vta.event_loop`). Data plays no part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.runtime import aligned, shared
from cpembed.errors import InvariantError, SpecError
from cpembed.hw.machine import MemoryInterface
from cpembed.targets.vta import event_loop, isa
from cpembed.targets.vta.assembly import instruction_text
from cpembed.targets.vta.checker import check
from cpembed.targets.vta.encoding import Columns, columns_of
from cpembed.targets.vta.program import Numbers, VtaProgram
from cpembed.targets.vta.tokens import QUEUED_INSTRUCTIONS

# Sources and measurements of all durations: docs/vta.md, Cycles.
PIPELINE = 7
"""Cycles of a GEMM or ALU instruction in addition to one (or two) for each micro-op."""

WRITE_COMMAND = 3
"""Cycles before each burst of a STORE."""

_NO_TRANSFER, _FINISH = 2, 1
"""Cycles of a transfer of tokens only, and of FINISH."""


@dataclass(frozen=True)
class MemorySystem:
    """Path between the accelerator and DRAM, as in a target's ``[machine]``.

    ``outstanding`` is the number of bursts in flight. The defaults are the RTL's.
    """

    dram_delay_cycles: int = 16
    bus_bits: int = 64
    burst_beats: int = 16
    outstanding: int = 16

    @classmethod
    def from_machine(cls, machine: MemoryInterface) -> MemorySystem:
        """Return the memory system of a target's machine."""
        return cls(machine.dram_delay_cycles, machine.bus_bits, machine.burst_beats)

    def check(self) -> None:
        """Raise :class:`SpecError` for sizes that the hardware cannot have."""
        for name, value, allowed in (
            ("dram_delay_cycles", self.dram_delay_cycles, range(1 << 20)),
            ("bus_bits", self.bus_bits, (64, 128, 256, 512)),
            ("burst_beats", self.burst_beats, tuple(1 << k for k in range(1, 9))),
            ("outstanding", self.outstanding, range(1, 257)),
        ):
            if value not in allowed:
                values = (
                    f"{allowed[0]}..{allowed[-1]}"
                    if isinstance(allowed, range)
                    else ", ".join(map(str, allowed))
                )
                raise SpecError(f"memory system: {name} = {value}; allowed: {values}")

    @property
    def beat_bytes(self) -> int:
        return self.bus_bits // 8

    @property
    def wide_fetch(self) -> bool:
        """True if a beat holds a whole instruction, not half of one (``FetchWideVME.scala``)."""
        return self.bus_bits >= 8 * isa.INSTRUCTION_BYTES

    @property
    def fetched_at_once(self) -> int:
        """Number of instructions in a burst."""
        return self.burst_beats if self.wide_fetch else self.burst_beats // 2


@dataclass(frozen=True)
class ModuleCycles:
    """Cycles of a module: executing, waiting for tokens (``stalled``), without an instruction."""

    busy: int
    stalled: int
    idle: int


@dataclass(frozen=True, eq=False)
class Timing:
    """Cycles of a program, and where they go.

    Attributes
    ----------
    cycles
        Cycles from launch to FINISH.
    modules
        Cycles of each module.
    bytes
        Bytes transferred by memory; ``FETCH`` are the instructions.
    macs
        Multiply-accumulates, those with zero pads included.
    gemm_cycles
        Cycles of the GEMM core, one for each micro-op of a GEMM that is no reset.
    read_beats, bursts
        Beats and bursts that were read.
    memory
        Memory system of the simulation.
    events
        Times of each instruction, with the columns of
        :data:`~cpembed.targets.vta.event_loop.EVENT`.
    batches
        First and last beat of each batch of instructions.
    """

    cycles: int
    modules: dict[str, ModuleCycles]
    bytes: dict[str, int]
    macs: int
    gemm_cycles: int
    read_beats: int
    bursts: int
    memory: MemorySystem
    events: Numbers
    batches: Numbers

    def event(self, name: str) -> Numbers:
        """Return a column of ``events``."""
        return self.events[:, event_loop.EVENT.index(name)]

    @property
    def gemm_utilisation(self) -> float:
        """Fraction of the cycles in which the GEMM core multiplies."""
        return self.gemm_cycles / self.cycles

    @property
    def read_utilisation(self) -> float:
        """Fraction of the cycles in which the bus carries a beat that is read."""
        return self.read_beats / self.cycles

    def to_json(self) -> dict[str, Any]:
        return {
            "cycles": self.cycles,
            "gemm_utilisation": round(self.gemm_utilisation, 4),
            "read_utilisation": round(self.read_utilisation, 4),
            "macs": self.macs,
            "gemm_cycles": self.gemm_cycles,
            "read_beats": self.read_beats,
            "bursts": self.bursts,
            "modules": {name: asdict(module) for name, module in self.modules.items()},
            "bytes": self.bytes,
            "memory": asdict(self.memory),
        }


def time_program(
    program: VtaProgram, memory: MemorySystem | None = None, *, checked: bool = True
) -> Timing:
    """Simulate a program's cycles from launch to FINISH.

    Parameters
    ----------
    program
        Program to time; its data plays no part.
    memory
        Memory system, by default the RTL's.
    checked
        Whether to check the program first; False for a program that passed the check before.

    Raises
    ------
    ProgramError
        For an illegal program.
    SpecError
        For an impossible memory system.
    """
    memory = memory or MemorySystem()
    memory.check()
    if checked:
        check(program)
    config = program.config
    columns = columns_of(program.instructions, config)
    totals, events, batches = _run(columns, config, memory)
    # FINISH is last: a STORE that nothing waits for may still run then, and is not counted.
    cycles = int(events[-1, event_loop.EVENT.index("done")]) if len(events) else 0
    if cycles < 0:
        raise InvariantError("the timed simulator stopped before FINISH")
    products = columns.is_a(isa.Opcode.GEMM) & (columns["reset"] == 0)
    gemm_cycles = int(executed_uops(columns)[products].sum())
    return Timing(
        cycles=cycles,
        modules=_module_cycles(columns, events, cycles),
        bytes=_transferred_bytes(columns, config),
        macs=gemm_cycles * config.batch * config.block * config.block,
        gemm_cycles=gemm_cycles,
        read_beats=totals["busy"],
        bursts=totals["bursts"],
        memory=memory,
        events=events,
        batches=batches,
    )


def _run(
    columns: Columns, config: isa.VtaConfig, memory: MemorySystem
) -> tuple[dict[str, int], Numbers, Numbers]:
    """Run the event loop.

    Return :data:`~cpembed.targets.vta.event_loop.TOTALS` by name, the events, and the batches.
    """
    count = len(columns)
    table = _instructions(columns, config, memory)
    # The loop sees the instructions of a module in a row, in their order: a stable sort.
    starts = np.searchsorted(np.sort(columns.module), np.arange(4))
    settings = {
        "count": count,
        "delay": memory.dram_delay_cycles,
        "beat_bytes": memory.beat_bytes,
        "burst": memory.burst_beats,
        "outstanding": memory.outstanding,
        "queued": QUEUED_INSTRUCTIONS,
        "batch": memory.fetched_at_once,
        "drain": 5 if memory.wide_fetch else 2,
    }
    events = _filled(np.full((count, len(event_loop.EVENT)), -1))
    batches = _filled(np.zeros((count, 2)))
    state = _filled(np.zeros(len(event_loop.STATE)))
    # The first command of the fetch, in cycle 2 after the launch.
    state[event_loop.STATE.index("fetch_state")] = 1 if count else 0
    state[event_loop.STATE.index("fetch_time")] = 2
    arrays = (
        _filled(np.array([settings[name] for name in event_loop.SETTING])),
        table,
        _filled(np.argsort(columns.module, kind="stable")),
        _filled(starts),
        events,
        batches,
        _filled(np.zeros((len(isa.QUEUES), count))),
        _filled(np.zeros((len(isa.QUEUES), 2))),
        _filled(np.zeros(memory.outstanding)),
        _filled(np.zeros((len(isa.MODULES), len(event_loop.MODULE_STATE)))),
        state,
    )
    if count:
        event_loop.event_loop()(*map(shared, arrays))
    totals = {name: int(state[event_loop.STATE.index(name)]) for name in event_loop.TOTALS}
    return totals, events, batches[: totals["batches"]]


def _filled(values: NDArray[Any]) -> Numbers:
    array = aligned(values.shape, "int64")
    array[:] = values
    return array


def _instructions(columns: Columns, config: isa.VtaConfig, memory: MemorySystem) -> Numbers:
    """Return the rows of :data:`~cpembed.targets.vta.event_loop.INSTRUCTION`."""
    element = np.array([config.element_bytes(m) for m in isa.Memory])[columns["memory"]]
    reads = columns.is_a(isa.Opcode.LOAD) & (columns["x"] > 0)
    x, y = columns["x"], columns["y"]
    top, bottom = columns["y_before"], columns["y_after"]
    sides = columns["x_before"] + columns["x_after"]
    width = x + sides
    # Rows of zeros above and below, and the zeros at both sides of the other rows.
    pads = (top + bottom) * width + y * sides
    # Between pads above and below, rows without pads of their own take a cycle each.
    passed = (sides == 0) & (bottom > 0)
    # OUT is only written, so that its client is never used.
    clients = ["acc" if m is isa.Memory.OUT else m.name.lower() for m in isa.Memory]
    client = np.array(list(map(event_loop.CLIENTS.index, clients)))[columns["memory"]]
    rows = {
        "module": columns.module,
        "reads": reads,
        "duration": _durations(columns, config, memory),
        "client": client,
        "address": columns["dram"] * element,
        "row_bytes": x * element,
        "rows": y,
        "stride": columns["x_stride"] * element,
        "lead": top,
        # An element that fits a beat takes the wide path, a cycle shorter.
        "latency": np.where(element <= memory.beat_bytes, 1, 2),
        "pads_before": np.where(passed, top * width, pads),
        "skipped": np.where(passed, y, 0),
        "pads_after": np.where(passed, bottom * width, 0),
    }
    for action in ("pop", "push"):
        # An instruction pops from two neighbours at most; -1 stands for no queue.
        pairs = [(*queues, -1, -1)[:2] for queues in columns.queues(action)]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        rows |= {f"{action}_a": table[:, 0], f"{action}_b": table[:, 1]}
    return _filled(np.stack([rows[name] for name in event_loop.INSTRUCTION], axis=1))


def executed_uops(columns: Columns) -> Numbers:
    """Return the micro-ops that each instruction executes, 0 if it is no GEMM or ALU."""
    count = (columns["uop_end"] - columns["uop_begin"]) * columns["outer"] * columns["inner"]
    return np.where(columns.is_a(isa.Opcode.GEMM, isa.Opcode.ALU), count, 0)


def _durations(columns: Columns, config: isa.VtaConfig, memory: MemorySystem) -> Numbers:
    """Return the cycles between issues of instructions that do not read DRAM."""
    # A second accumulator takes a second cycle to read.
    passes = np.where(columns.is_a(isa.Opcode.ALU) & (columns["use_immediate"] == 0), 2, 1)
    cycles = np.full(len(columns), _NO_TRANSFER)
    cycles[columns.is_a(isa.Opcode.FINISH)] = _FINISH
    computes = columns.is_a(isa.Opcode.GEMM, isa.Opcode.ALU)
    cycles[computes] = (PIPELINE + passes * executed_uops(columns))[computes]
    writes = np.flatnonzero(columns.is_a(isa.Opcode.STORE) & (columns["x"] > 0))
    if len(writes):
        cycles[writes] = _stores(columns, writes, config, memory)
    return cycles


def _stores(
    columns: Columns, writes: Numbers, config: isa.VtaConfig, memory: MemorySystem
) -> Numbers:
    """Return the cycles of STOREs, whose rows are split into bursts of whole beats."""
    element = config.element_bytes(isa.Memory.OUT)
    count = columns["y"][writes]
    # One entry for each row of each STORE: rows are aligned differently to bursts.
    owner = np.repeat(np.arange(len(writes)), count)
    row = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    start = (columns["dram"][writes][owner] + row * columns["x_stride"][writes][owner]) * element
    end = start + columns["x"][writes][owner] * element
    burst = memory.burst_beats * memory.beat_bytes
    bursts = (end - 1) // burst - start // burst + 1
    beats = (end - 1) // memory.beat_bytes - start // memory.beat_bytes + 1
    cycles = write_cycles(bursts, beats, config, memory)
    return 1 + np.bincount(owner, cycles, minlength=len(writes)).astype(np.int64)


def write_cycles(
    bursts: Numbers, beats: Numbers, config: isa.VtaConfig, memory: MemorySystem
) -> Numbers:
    """Return the cycles of STOREs without the one of their issue.

    Each burst takes its command and its beats. If a beat holds a tile, SRAM is read while beats are
    sent and a burst ends with a cycle for the answer (``TensorStoreWideVME.scala``); else sending
    stops for each row of a tile, which is read before (``TensorStoreNarrowVME.scala``).

    Parameters
    ----------
    bursts, beats
        Numbers of bursts and of beats of each STORE.
    config
        Configuration, which has the size of a tile.
    memory
        Memory system, which has the size of a beat.
    """
    element = config.element_bytes(isa.Memory.OUT)
    if element <= memory.beat_bytes:
        return (WRITE_COMMAND + 1) * bursts + beats
    # Reading SRAM takes a cycle for each row of a tile, in which no beat is sent.
    beats_per_row = max(1, element // config.batch // memory.beat_bytes)
    return WRITE_COMMAND * bursts + beats + beats // beats_per_row


def _module_cycles(columns: Columns, events: Numbers, cycles: int) -> dict[str, ModuleCycles]:
    available, issued, complete, ready = (
        events[:, event_loop.EVENT.index(name)] for name in ("available", "issued", "done", "ready")
    )
    modules: dict[str, ModuleCycles] = {}
    for place, module in enumerate(isa.MODULES):
        rows = columns.module == place
        busy = int((complete - issued)[rows].sum())
        # From when both the module and its instruction are there, only tokens can be missing.
        stalled = int((issued - np.maximum(available, ready))[rows].sum())
        modules[module.value] = ModuleCycles(busy, stalled, cycles - busy - stalled)
    return modules


def _transferred_bytes(columns: Columns, config: isa.VtaConfig) -> dict[str, int]:
    elements = columns["x"] * columns["y"]
    return {"FETCH": len(columns) * isa.INSTRUCTION_BYTES} | {
        memory.name: int(elements[columns.transfers(memory)].sum()) * config.element_bytes(memory)
        for memory in isa.Memory
    }


_CHANNELS = ("FETCH", "UOP", "INP", "WGT", "ACC", "OUT")
_MODULES, _MEMORY = 1, 2
"""Process numbers of the timeline, which group its rows."""


def timeline(program: VtaProgram, timing: Timing) -> dict[str, Any]:
    """Return a timed program's timeline, a JSON document in Chrome's trace format.

    ui.perfetto.dev and chrome://tracing show it: a row for each module, and one for each memory
    that is read or written. A cycle is shown as a microsecond, the format's unit.
    """
    return {
        "displayTimeUnit": "ns",
        "otherData": {"cycles": timing.cycles, "unit": "1 us is a cycle"},
        "traceEvents": [*_names(), *_batches(timing), *_instruction_spans(program, timing)],
    }


def _names() -> Iterator[dict[str, Any]]:
    groups = {_MODULES: ("modules", [m.value for m in isa.MODULES]), _MEMORY: ("DRAM", _CHANNELS)}
    for process, (name, rows) in groups.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
        for number, row in enumerate(rows):
            place = {"pid": process, "tid": number}
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": row}}
            yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": number}}


def _batches(timing: Timing) -> Iterator[dict[str, Any]]:
    for number, (first, last) in enumerate(timing.batches.tolist()):
        yield _span(_MEMORY, _CHANNELS.index("FETCH"), f"batch {number}", first, last + 1, {})


def _instruction_spans(program: VtaProgram, timing: Timing) -> Iterator[dict[str, Any]]:
    rows = timing.events.tolist()
    for number, (instruction, row) in enumerate(zip(program.instructions, rows, strict=True)):
        event = dict(zip(event_loop.EVENT, row, strict=True))
        module = isa.module_of(instruction)
        waited = event["issued"] - max(event["ready"], event["available"])
        arguments = {
            "instruction": number,
            "text": instruction_text(program, number),
            "waited for tokens": waited,
        }
        name, (begin, end) = _name(instruction), (event["issued"], event["done"])
        yield _span(_MODULES, isa.MODULES.index(module), name, begin, end, arguments)
        if not isinstance(instruction, isa.Load | isa.Store) or not instruction.x:
            continue
        # A LOAD occupies its channel from its first beat on; it is issued long before.
        channel = _CHANNELS.index(instruction.memory.name)
        if module is not isa.Module.STORE:
            begin, end = event["first_beat"], event["last_beat"] + 1
        yield _span(_MEMORY, channel, name, begin, end, {"instruction": number})


def _name(instruction: isa.Instruction) -> str:
    if isinstance(instruction, isa.Load | isa.Store):
        kind = type(instruction).__name__.lower()
        return f"{kind} {instruction.memory.name}" if instruction.x else "tokens"
    if isinstance(instruction, isa.Gemm):
        return "reset" if instruction.reset else "gemm"
    return f"alu {instruction.op.name.lower()}" if isinstance(instruction, isa.Alu) else "finish"


def _span(
    process: int, row: int, name: str, begin: int, end: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": begin, "dur": end - begin}
    return {"ph": "X", "pid": process, "tid": row, "name": name, **times, "args": arguments}
