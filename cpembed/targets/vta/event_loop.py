"""The event loop of the timed simulator, compiled: instructions, commands and bursts in time order.

Modules issue as soon as their instruction is there and its tokens are visible. What reads DRAM
sends commands, one a burst; the memory engine takes one command a cycle, of the client of highest
priority, and serves bursts in order. Times of fixed instructions follow when they issue, so only
commands need an order in time: they are taken when nothing else can go on.

After VTA's Chisel sources: ``VME.scala`` (commands, tags), ``VTAMemDPI.scala`` (the memory's
delay), ``TensorLoad*VME.scala`` (loads), ``Fetch*.scala``, ``Compute.scala`` (tokens).
"""

from __future__ import annotations

from functools import cache

from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.runtime import Function, compile_plan
from cpembed.kernel.script import HEADER, Script

INSTRUCTION = (
    "module",
    "reads",
    "duration",
    "client",
    "address",
    "row_bytes",
    "rows",
    "stride",
    "lead",
    "latency",
    "pads_before",
    "skipped",
    "pads_after",
    "pop_a",
    "pop_b",
    "push_a",
    "push_b",
)
"""What the loop knows of an instruction, in cycles and bytes; -1 for no queue. ``reads``: it waits
for DRAM, else it takes ``duration``. ``lead``: cycles until the first command; ``latency``: from
the bus to SRAM. Pads are written in cycles without data, one a cycle; between them ``skipped`` rows
pass, one a cycle whether data arrive or not."""

EVENT = ("available", "issued", "done", "ready", "first_beat", "last_beat")
"""What it finds out: fetched, issued, complete (the next one's issue), the module free; beats of
its first and last burst. Absent beats are -1."""

SETTING = (
    "count",
    "delay",
    "beat_bytes",
    "burst",
    "outstanding",
    "queued",
    "batch",
    "drain",
)
"""``batch``: instructions fetched at once; ``drain``: cycles from the last beat of a batch to its
first instruction's dispatch."""

CLIENTS = ("fetch", "uop", "inp", "wgt", "acc")
"""Who reads DRAM, the highest priority first."""

_PADDING = ("pads_before", "skipped", "pads_after")
"""What ``ZeroPadding`` goes through, in order; of a module, what is left of each."""
_MODULE_STATE = (
    "head", "fetched", "free", "loading", "request", "row", "at", "end", "beats", "padded_until",
    *_PADDING,
)  # fmt: skip
_STATE = (
    "go", "last_command", "bursts", "live", "served", "served_beats", "time", "beats", "who",
    "fetch_state", "fetch_next", "fetch_left", "fetch_time", "batches", "ok", "value", "busy",
)  # fmt: skip

COMPLETED = ("bursts", "busy", "batches")
"""Of the state, what counts at the end: bursts, beats of all, batches of instructions."""


def state_size() -> int:
    return len(_STATE)


def state_index(name: str) -> int:
    return _STATE.index(name)


@cache
def event_loop() -> Function:
    """``(settings, instructions [n, INSTRUCTION], numbers [n], starts [4], events [n, EVENT],
    batches [n, 2], tokens [4, n], queues [4, 2], ring [outstanding], modules [3, ...], state)``.

    ``numbers`` are the instructions of module 0, 1, 2 one after the other, from ``starts`` on.
    """
    return compile_plan(KernelPlan("vta.timing", _Source().text()))


def module_state_size() -> int:
    return len(_MODULE_STATE)


def _s(name: str) -> str:
    return f"S[{_STATE.index(name)}]"


def _set(name: str) -> str:
    return f"settings[{SETTING.index(name)}]"


def _m(name: str, module: str = "m") -> str:
    return f"M[{module}, {_MODULE_STATE.index(name)}]"


def _i(name: str, number: str) -> str:
    return f"I[{number}, {INSTRUCTION.index(name)}]"


def _e(name: str, number: str) -> str:
    return f"E[{number}, {EVENT.index(name)}]"


_HEAD = f"numbers[starts[m] + {_m('head')}]"
"""The instruction in front of module m."""

_BUFFERS = (
    ("settings", (len(SETTING),)),
    ("I", ("n", len(INSTRUCTION))),
    ("numbers", ("n",)),
    ("starts", (4,)),
    ("E", ("n", len(EVENT))),
    ("F", ("n", 2)),
    ("T_", (4, "n")),
    ("Q", (4, 2)),
    ("ring", ("r",)),
    ("M", (3, len(_MODULE_STATE))),
    ("S", (len(_STATE),)),
)


class _Source:
    """Writes the loop; each part is one thing that can happen."""

    def __init__(self) -> None:
        self._script = Script()

    def text(self) -> str:
        line, nested = self._script.line, self._script.nested
        line(HEADER)
        handles = ", ".join(f"h_{name}: T.handle" for name, _ in _BUFFERS)
        with nested(f"def main({handles}):"):
            line("n = T.int64()")
            line("r = T.int64()")
            for name, shape in _BUFFERS:
                extents = ", ".join(map(str, shape))
                line(f'{name} = T.match_buffer(h_{name}, ({extents},), "int64")')
            line(f"{_s('go')} = 1")
            with nested(f"while {_s('go')} != 0:"):
                line(f"{_s('go')} = 0")
                with nested("for m in T.serial(T.int64(0), T.int64(3)):"):
                    self._issue()
                self._dispatch()
                with nested(f"if {_s('go')} == 0:"):
                    self._command()
        return self._script.text()

    def _issue(self) -> None:
        """Module m's next instruction, if it is there and its tokens are."""
        line, nested = self._script.line, self._script.nested
        with nested(f"if {_m('loading')} == 0 and {_m('head')} < {_m('fetched')}:"):
            line(f"{_s('ok')} = 1")
            line(f"{_s('time')} = T.max({_m('free')}, {_e('available', _HEAD)})")
            for pop in ("pop_a", "pop_b"):
                queue = _i(pop, _HEAD)
                with nested(f"if {queue} >= 0:"):
                    with nested(f"if Q[{queue}, 1] < Q[{queue}, 0]:"):
                        line(f"{_s('time')} = T.max({_s('time')}, T_[{queue}, Q[{queue}, 1]])")
                    with nested("else:"):
                        line(f"{_s('ok')} = 0")
            with nested(f"if {_s('ok')} == 1:"):
                line(f"{_s('go')} = 1")
                for pop in ("pop_a", "pop_b"):
                    queue = _i(pop, _HEAD)
                    with nested(f"if {queue} >= 0:"):
                        line(f"Q[{queue}, 1] = Q[{queue}, 1] + 1")
                line(f"{_e('ready', _HEAD)} = {_m('free')}")
                line(f"{_e('issued', _HEAD)} = {_s('time')}")
                with nested(f"if {_i('reads', _HEAD)} == 0:"):
                    line(f"{_s('value')} = {_s('time')} + {_i('duration', _HEAD)}")
                    self._complete()
                with nested("else:"):
                    line(f"{_m('loading')} = 1")
                    line(f"{_m('request')} = {_s('time')} + 2 + {_i('lead', _HEAD)}")
                    line(f"{_m('row')} = 0")
                    line(f"{_m('beats')} = 0")
                    line(f"{_m('padded_until')} = {_s('time')} + {_i('latency', _HEAD)}")
                    for name in _PADDING:
                        line(f"{_m(name)} = {_i(name, _HEAD)}")
                    self._begin_row()

    def _complete(self) -> None:
        """Module m's instruction is complete: the next one can issue at ``value``, when its tokens
        are visible."""
        line, nested = self._script.line, self._script.nested
        line(f"{_e('done', _HEAD)} = {_s('value')}")
        line(f"{_m('free')} = {_s('value')}")
        for push in ("push_a", "push_b"):
            queue = _i(push, _HEAD)
            with nested(f"if {queue} >= 0:"):
                line(f"T_[{queue}, Q[{queue}, 0]] = {_s('value')}")
                line(f"Q[{queue}, 0] = Q[{queue}, 0] + 1")
        line(f"{_m('loading')} = 0")
        line(f"{_m('head')} = {_m('head')} + 1")

    def _begin_row(self) -> None:
        """First and last beat of a row of module m's LOAD, in beats of DRAM."""
        start = f"({_i('address', _HEAD)} + {_m('row')} * {_i('stride', _HEAD)})"
        beat = _set("beat_bytes")
        self._script.line(f"{_m('at')} = {start} // {beat}")
        self._script.line(
            f"{_m('end')} = ({start} + {_i('row_bytes', _HEAD)} + {beat} - 1) // {beat}"
        )

    def _dispatch(self) -> None:
        """The next fetched instruction goes to its module's queue, when that has room."""
        line, nested = self._script.line, self._script.nested
        number = _s("fetch_next")
        module = _i("module", number)
        full = f"{_m('fetched', module)} - {_set('queued')}"
        with nested(f"if {_s('fetch_state')} == 2:"):
            line(f"{_s('ok')} = 1")
            with nested(f"if {full} >= 0:"):
                with nested(f"if {_m('head', module)} > {full}:"):
                    freed = _e("done", f"numbers[starts[{module}] + {full}]")
                    line(f"{_s('fetch_time')} = T.max({_s('fetch_time')}, {freed})")
                with nested("else:"):
                    line(f"{_s('ok')} = 0")
            with nested(f"if {_s('ok')} == 1:"):
                line(f"{_s('go')} = 1")
                line(f"{_e('available', number)} = {_s('fetch_time')} + 1")
                line(f"{_m('fetched', module)} = {_m('fetched', module)} + 1")
                line(f"{_s('fetch_time')} = {_s('fetch_time')} + 1")
                line(f"{_s('fetch_left')} = {_s('fetch_left')} - 1")
                line(f"{number} = {number} + 1")
                with nested(f"if {_s('fetch_left')} == 0:"):
                    with nested(f"if {number} < {_set('count')}:"):
                        line(f"{_s('fetch_state')} = 1")
                        line(f"{_s('fetch_time')} = {_s('fetch_time')} + 2")
                    with nested("else:"):
                        line(f"{_s('fetch_state')} = 0")

    def _command(self) -> None:
        """The next command of all clients, and the burst that it causes."""
        line, nested = self._script.line, self._script.nested
        never = "T.int64(4611686018427387904)"
        line(f"{_s('time')} = {never}")
        with nested(f"if {_s('fetch_state')} == 1:"):
            line(f"{_s('time')} = {_s('fetch_time')}")
        with (
            nested("for m in T.serial(T.int64(0), T.int64(2)):"),
            nested(f"if {_m('loading')} == 1:"),
        ):
            line(f"{_s('time')} = T.min({_s('time')}, {_m('request')})")
        with nested(f"if {_s('time')} < {never}:"):
            line(f"{_s('go')} = 1")
            self._when()
            self._who()
            with nested(f"if {_s('who')} == -1:"):
                self._fetch_burst()
            readers = "for m in T.serial(T.int64(0), T.int64(2)):"
            with nested("else:", readers, f"if {_s('who')} == m:"):
                self._load_burst()

    def _when(self) -> None:
        """One command a cycle, none while all tags are out or a burst's last beat passes."""
        line, nested = self._script.line, self._script.nested
        time, bursts, live = _s("time"), _s("bursts"), _s("live")
        out = _set("outstanding")
        line(f"{time} = T.max({time}, {_s('last_command')} + 1)")
        with nested(f"if {bursts} >= {out}:"):
            line(f"{time} = T.max({time}, ring[{bursts} % {out}] + 1)")
        with nested(f"while {live} < {bursts} and ring[{live} % {out}] <= {time}:"):
            with nested(f"if ring[{live} % {out}] == {time}:"):
                line(f"{time} = {time} + 1")
            line(f"{live} = {live} + 1")

    def _who(self) -> None:
        """Of those that ask by then, the client of highest priority: -1 the fetch, or a module."""
        line, nested = self._script.line, self._script.nested
        with nested(f"if {_s('fetch_state')} == 1 and {_s('fetch_time')} <= {_s('time')}:"):
            line(f"{_s('who')} = -1")
        with nested("else:"):
            line(f"{_s('value')} = {len(CLIENTS)}")
            with nested(
                "for m in T.serial(T.int64(0), T.int64(2)):",
                f"if {_m('loading')} == 1 and {_m('request')} <= {_s('time')}:",
                f"if {_i('client', _HEAD)} < {_s('value')}:",
            ):
                line(f"{_s('value')} = {_i('client', _HEAD)}")
                line(f"{_s('who')} = m")

    def _burst(self) -> None:
        """``beats`` commanded at ``time``: the memory waits D where its queue was empty."""
        line, nested = self._script.line, self._script.nested
        served, bursts, time = _s("served"), _s("bursts"), _s("time")
        with nested(f"if {bursts} > 0 and {time} <= {served}:"):
            line(f"{_s('value')} = T.max({time} + 1, {served} + {_s('served_beats')})")
        with nested("else:"):
            line(
                f"{_s('value')} = T.max({time} + 1 + {_set('delay')}, "
                f"{served} + {_s('served_beats')})"
            )
        line(f"{served} = {_s('value')}")
        line(f"{_s('served_beats')} = {_s('beats')}")
        line(f"ring[{bursts} % {_set('outstanding')}] = {served} + {_s('beats')}")
        line(f"{bursts} = {bursts} + 1")
        line(f"{_s('last_command')} = {time}")
        line(f"{_s('busy')} = {_s('busy')} + {_s('beats')}")

    def _fetch_burst(self) -> None:
        line = self._script.line
        left = f"T.min({_set('batch')}, {_set('count')} - {_s('fetch_next')})"
        line(f"{_s('fetch_left')} = {left}")
        beat = _set("beat_bytes")
        line(f"{_s('beats')} = ({_s('fetch_left')} * 16 + {beat} - 1) // {beat}")
        self._burst()
        line(f"F[{_s('batches')}, 0] = {_s('served')} + 1")
        line(f"F[{_s('batches')}, 1] = {_s('served')} + {_s('beats')}")
        line(f"{_s('batches')} = {_s('batches')} + 1")
        line(f"{_s('fetch_time')} = {_s('served')} + {_s('beats')} + {_set('drain')}")
        line(f"{_s('fetch_state')} = 2")

    def _load_burst(self) -> None:
        """A burst ends with its row and at multiples of its size."""
        line, nested = self._script.line, self._script.nested
        burst = _set("burst")
        aligned = f"{burst} - {_m('at')} % {burst}"
        line(f"{_s('beats')} = T.min({aligned}, {_m('end')} - {_m('at')})")
        self._burst()
        with nested(f"if {_m('beats')} == 0:"):
            line(f"{_e('first_beat', _HEAD)} = {_s('served')} + 1")
        self._pad()
        line(f"{_m('beats')} = {_m('beats')} + {_s('beats')}")
        line(f"{_m('at')} = {_m('at')} + {_s('beats')}")
        line(f"{_m('request')} = {_s('time')} + 2")
        with nested(f"if {_m('at')} == {_m('end')}:"):
            line(f"{_m('row')} = {_m('row')} + 1")
            with nested(f"if {_m('row')} < {_i('rows', _HEAD)}:"):
                self._begin_row()
            with nested("else:"):
                self._loaded()

    def _pad(self) -> None:
        """Pads and skipped rows up to the end of the burst that is being served."""
        line, nested = self._script.line, self._script.nested
        free, until = _s("value"), _m("padded_until")
        line(f"{free} = {_s('served')} + 1 + {_i('latency', _HEAD)} - {until}")
        line(f"{until} = {until} + {free} + {_s('beats')}")
        for name in _PADDING:
            line(f"{_s('ok')} = T.min({free}, {_m(name)})")
            line(f"{_m(name)} = {_m(name)} - {_s('ok')}")
            line(f"{free} = {free} - {_s('ok')}")
        with nested(f"if {_m('pads_before')} == 0:"):
            line(f"{_m('skipped')} = T.max({_m('skipped')} - {_s('beats')}, 0)")

    def _loaded(self) -> None:
        """The last beat is known: what is left of the padding follows it."""
        line = self._script.line
        line(f"{_e('last_beat', _HEAD)} = {_s('served')} + {_s('beats')}")
        left = " + ".join(_m(name) for name in _PADDING)
        line(f"{_s('value')} = {_m('padded_until')} + {left} + 1")
        self._complete()
