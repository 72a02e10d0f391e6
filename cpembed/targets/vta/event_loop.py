"""Compiled event loop of the timed simulator: instructions, commands and bursts in time order.

Modules issue as soon as their instruction is dispatched and its tokens are visible. Readers of DRAM
send a command for each burst; the memory engine accepts one command a cycle, from the client of
highest priority, and serves bursts in order. The times of other instructions follow from their
issue, so only commands need an order in time: they are accepted when nothing else can proceed.

After VTA's Chisel sources: ``VME.scala`` (commands, tags), ``VTAMemDPI.scala`` (the memory's
delay), ``TensorLoad*VME.scala`` (loads), ``Fetch*.scala``, ``Compute.scala`` (tokens).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from cpembed.codegen.plan import HEADER, KernelPlan
from cpembed.codegen.runtime import Function, compile_plan

# TensorIR has no records: every table is an array of int64, whose columns these tuples name.
_PADDING = ("pads_before", "skipped", "pads_after")
"""Phases of ``ZeroPadding``, in order; of a module, the cycles that are left of each."""

INSTRUCTION = (
    "module", "reads", "duration", "client", "address", "row_bytes", "rows", "stride", "lead",
    "latency", *_PADDING, "pop_a", "pop_b", "push_a", "push_b",
)  # fmt: skip
"""Fields of an instruction, in cycles and bytes; a queue of -1 is none.

``reads``: whether it waits for DRAM; if not, it takes ``duration``. ``lead``: cycles until the
first command; ``latency``: cycles from the bus to SRAM. Pads are written in cycles without data,
one a cycle; between them ``skipped`` rows pass, one a cycle whether data arrive or not.
"""

EVENT = ("available", "issued", "done", "ready", "first_beat", "last_beat")
"""Times of an instruction in cycles; -1 stands for a time that it does not have.

It is ``available`` when it is dispatched, and ``done`` when the next one can issue; ``ready`` is
when its module became free.
"""

SETTING = ("count", "delay", "beat_bytes", "burst", "outstanding", "queued", "batch", "drain")
"""Parameters of the loop.

``batch``: instructions fetched at once; ``drain``: cycles from the last beat of a batch to its
first instruction's dispatch.
"""

CLIENTS = ("fetch", "uop", "inp", "wgt", "acc")
"""Clients that read DRAM, the highest priority first."""

MODULE_STATE = (
    "head", "fetched", "free", "loading", "request", "row", "at", "end", "beats", "padded_until",
    *_PADDING,
)  # fmt: skip
STATE = (
    "go", "last_command", "bursts", "live", "served", "served_beats", "time", "beats", "who",
    "fetch_state", "fetch_next", "fetch_left", "fetch_time", "batches", "ok", "value", "busy",
)  # fmt: skip

TOTALS = ("bursts", "busy", "batches")
"""Parts of the state that are results: bursts, their beats, batches of instructions."""

_BUFFERS = {
    "settings": (len(SETTING),),
    "I": ("n", len(INSTRUCTION)),
    "numbers": ("n",),
    "starts": (4,),
    "E": ("n", len(EVENT)),
    "F": ("n", 2),
    "T_": (4, "n"),
    "Q": (4, 2),
    "ring": ("r",),
    "M": (3, len(MODULE_STATE)),
    "S": (len(STATE),),
}

_NEXT = f"S[{STATE.index('fetch_next')}]"
_QUEUE = f"I[{_NEXT}, {INSTRUCTION.index('module')}]"
_FRONT = f"numbers[starts[m] + M[m, {MODULE_STATE.index('head')}]]"
_LAST = f"numbers[starts[{_QUEUE}] + M[{_QUEUE}, {MODULE_STATE.index('fetched')}]"
_ARRAYS = {
    "S": ("S[{}]", STATE),
    "C": ("settings[{}]", SETTING),
    "M": ("M[m, {}]", MODULE_STATE),
    "I": (f"I[{_FRONT}, {{}}]", INSTRUCTION),
    "E": (f"E[{_FRONT}, {{}}]", EVENT),
    "next": (f"M[{_QUEUE}, {{}}]", MODULE_STATE),
    "next_event": (f"E[{_NEXT}, {{}}]", EVENT),
    "waited": (f"E[{_LAST} - settings[{SETTING.index('queued')}]], {{}}]", EVENT),
}
"""Expressions of elements by the prefix of a name, with the fields that they have.

``S`` is the state, ``C`` the settings, ``M`` module m, ``I`` and ``E`` its next instruction,
``next`` and ``next_event`` the module and the times of the instruction to be dispatched, ``waited``
the times of the one ``queued`` places before that.
"""

_PARTS = {
    # Until nothing can proceed. A command is accepted only when no module can issue and nothing is
    # dispatched: then no earlier command can appear any more.
    "loop": """
while S.go != 0:
    S.go = 0
    for m in T.serial(T.int64(0), T.int64(3)):
        @issue
    @dispatch
    if S.go == 0:
        @command
""",
    # Module m's next instruction, if it is dispatched and its tokens are visible.
    "issue": """
if M.loading == 0 and M.head < M.fetched:
    S.ok = 1
    S.time = T.max(M.free, E.available)
    @await pop_a
    @await pop_b
    if S.ok == 1:
        S.go = 1
        @pop pop_a
        @pop pop_b
        E.ready = M.free
        E.issued = S.time
        if I.reads == 0:
            S.value = S.time + I.duration
            @complete
        else:
            M.loading = 1
            M.request = S.time + 2 + I.lead
            M.row = 0
            M.beats = 0
            M.padded_until = S.time + I.latency
            M.pads_before = I.pads_before
            M.skipped = I.skipped
            M.pads_after = I.pads_after
            @begin_row
""",
    "await": """
if I.$ >= 0:
    if Q[I.$, 1] < Q[I.$, 0]:
        S.time = T.max(S.time, T_[I.$, Q[I.$, 1]])
    else:
        S.ok = 0
""",
    "pop": """
if I.$ >= 0:
    Q[I.$, 1] = Q[I.$, 1] + 1
""",
    # Module m's instruction is complete: the next one can issue at S.value, its tokens are visible.
    "complete": """
E.done = S.value
M.free = S.value
@push push_a
@push push_b
M.loading = 0
M.head = M.head + 1
""",
    # T_[queue, k] is the time of the k-th token, Q[queue] the numbers of pushed and popped ones.
    "push": """
if I.$ >= 0:
    T_[I.$, Q[I.$, 0]] = S.value
    Q[I.$, 0] = Q[I.$, 0] + 1
""",
    # First and last beat of a row of module m's LOAD, in beats of DRAM.
    "begin_row": """
M.at = (I.address + M.row * I.stride) // C.beat_bytes
M.end = (I.address + M.row * I.stride + I.row_bytes + C.beat_bytes - 1) // C.beat_bytes
""",
    # The next fetched instruction goes to its module's queue, when that has room.
    "dispatch": """
if S.fetch_state == 2:
    S.ok = 1
    if next.fetched - C.queued >= 0:
        if next.head > next.fetched - C.queued:
            S.fetch_time = T.max(S.fetch_time, waited.done)
        else:
            S.ok = 0
    if S.ok == 1:
        S.go = 1
        next_event.available = S.fetch_time + 1
        next.fetched = next.fetched + 1
        S.fetch_time = S.fetch_time + 1
        S.fetch_left = S.fetch_left - 1
        S.fetch_next = S.fetch_next + 1
        if S.fetch_left == 0:
            if S.fetch_next < C.count:
                S.fetch_state = 1
                S.fetch_time = S.fetch_time + 2
            else:
                S.fetch_state = 0
""",
    # The next command of all clients, and the burst that it causes; who -1: the fetch.
    "command": """
S.time = NEVER
if S.fetch_state == 1:
    S.time = S.fetch_time
for m in T.serial(T.int64(0), T.int64(2)):
    if M.loading == 1:
        S.time = T.min(S.time, M.request)
if S.time < NEVER:
    S.go = 1
    @when
    @who
    if S.who == -1:
        @fetch_burst
    else:
        for m in T.serial(T.int64(0), T.int64(2)):
            if S.who == m:
                @load_burst
""",
    # One command a cycle, none while all tags are in use or a burst's last beat passes.
    "when": """
S.time = T.max(S.time, S.last_command + 1)
if S.bursts >= C.outstanding:
    S.time = T.max(S.time, ring[S.bursts % C.outstanding] + 1)
while S.live < S.bursts and ring[S.live % C.outstanding] <= S.time:
    if ring[S.live % C.outstanding] == S.time:
        S.time = S.time + 1
    S.live = S.live + 1
""",
    # The client of highest priority among those that request by then.
    "who": """
if S.fetch_state == 1 and S.fetch_time <= S.time:
    S.who = -1
else:
    S.value = CLIENTS
    for m in T.serial(T.int64(0), T.int64(2)):
        if M.loading == 1 and M.request <= S.time:
            if I.client < S.value:
                S.value = I.client
                S.who = m
""",
    # S.beats commanded at S.time: the memory waits its delay if its queue was empty.
    "burst": """
if S.bursts > 0 and S.time <= S.served:
    S.value = T.max(S.time + 1, S.served + S.served_beats)
else:
    S.value = T.max(S.time + 1 + C.delay, S.served + S.served_beats)
S.served = S.value
S.served_beats = S.beats
ring[S.bursts % C.outstanding] = S.served + S.beats
S.bursts = S.bursts + 1
S.last_command = S.time
S.busy = S.busy + S.beats
""",
    # A batch of instructions of 16 bytes, which are dispatched after its last beat.
    "fetch_burst": """
S.fetch_left = T.min(C.batch, C.count - S.fetch_next)
S.beats = (S.fetch_left * 16 + C.beat_bytes - 1) // C.beat_bytes
@burst
F[S.batches, 0] = S.served + 1
F[S.batches, 1] = S.served + S.beats
S.batches = S.batches + 1
S.fetch_time = S.served + S.beats + C.drain
S.fetch_state = 2
""",
    # A burst ends with its row and at multiples of its size.
    "load_burst": """
S.beats = T.min(C.burst - M.at % C.burst, M.end - M.at)
@burst
if M.beats == 0:
    E.first_beat = S.served + 1
S.value = S.served + 1 + I.latency - M.padded_until
M.padded_until = M.padded_until + S.value + S.beats
@pad pads_before
@pad skipped
@pad pads_after
if M.pads_before == 0:
    M.skipped = T.max(M.skipped - S.beats, 0)
M.beats = M.beats + S.beats
M.at = M.at + S.beats
M.request = S.time + 2
if M.at == M.end:
    M.row = M.row + 1
    if M.row < I.rows:
        @begin_row
    else:
        E.last_beat = S.served + S.beats
        S.value = M.padded_until + M.pads_before + M.skipped + M.pads_after + 1
        @complete
""",
    # Pads and skipped rows up to the end of the burst that is being served.
    "pad": """
S.ok = T.min(S.value, M.$)
M.$ = M.$ - S.ok
S.value = S.value - S.ok
""",
}
"""Parts of the loop, each one event. ``@part word`` inserts a part, with the word for ``$``."""


@cache
def event_loop() -> Function:
    """Return the compiled loop.

    It is a function of ``(settings, instructions [n, INSTRUCTION], numbers [n], starts [4], events
    [n, EVENT], batches [n, 2], tokens [4, n], queues [4, 2], ring [outstanding], modules [3, ...],
    state)``. ``numbers`` are the instructions of module 0, 1, 2 one after the other, from
    ``starts`` on.
    """
    return compile_plan(KernelPlan("vta.timing", source()))


def source() -> str:
    """Return TVMScript of the loop."""
    body = ["n = T.int64()", "r = T.int64()"]
    for name, shape in _BUFFERS.items():
        extents = ", ".join(map(str, shape))
        body.append(f'{name} = T.match_buffer(h_{name}, ({extents},), "int64")')
    body += [_indexed("S.go = 1"), *_lines("loop")]
    handles = ", ".join(f"h_{name}: T.handle" for name in _BUFFERS)
    return "\n".join((HEADER, f"def main({handles}):", *(f"    {line}" for line in body), ""))


def _lines(part: str, word: str = "") -> Iterator[str]:
    """Yield the lines of a part with the parts that it inserts."""
    for line in _PARTS[part].strip().splitlines():
        code = line.lstrip()
        if code.startswith("@"):
            name, _, argument = code[1:].partition(" ")
            margin = " " * (len(line) - len(code))
            yield from (f"{margin}{inner}" for inner in _lines(name, argument))
        else:
            yield _indexed(line.replace("$", word))


def _indexed(line: str) -> str:
    """Return a line with its names replaced by elements of arrays."""

    def element(match: re.Match[str]) -> str:
        form, names = _ARRAYS[match[1]]
        return form.format(names.index(match[2]))

    # 2^62: later than any cycle, and far enough from overflow to be added to.
    line = line.replace("NEVER", "T.int64(4611686018427387904)")
    line = line.replace("CLIENTS", str(len(CLIENTS)))
    return re.sub(rf"\b({'|'.join(_ARRAYS)})\.(\w+)", element, line)
