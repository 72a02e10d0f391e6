"""Cycles against VTA's table of durations, and against the same machine stepped cycle by cycle."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cpembed.backends.vta.config import VtaConfig
from cpembed.backends.vta.isa import Alu, AluOp, Finish, Gemm, Load, Memory, Store, Tokens
from cpembed.backends.vta.program import VtaProgram
from cpembed.backends.vta.timing import MemorySystem, time_program
from cpembed.backends.vta.trace import trace
from cpembed.errors import ProgramError, SpecError
from cpembed.hw.instruction import Machine
from tests.unit.backends.vta.convolution import NOTHING, Convolution
from tests.unit.backends.vta.random_code import random_code
from tests.unit.backends.vta.rtl import Rtl


def timed(*code, memory=None, config=None):
    program = VtaProgram(config or VtaConfig(), code, np.zeros(0, np.uint8), {})
    return time_program(program, memory, checked=False)


def duration(instruction, memory=None, config=None):
    """Cycles from issue to issue, with nothing else going on."""
    timing = timed(instruction, Finish(), memory=memory, config=config)
    return (timing.event("done") - timing.event("issued"))[0]


@pytest.mark.parametrize("delay", [0, 16, 100])
@pytest.mark.parametrize(
    "memory, beats", [(Memory.INP, 2), (Memory.WGT, 32), (Memory.ACC, 8)], ids=str
)
@pytest.mark.parametrize("count", [1, 5, 100])
def test_a_load_takes_the_delay_and_its_beats(delay, memory, beats, count):
    load = Load(memory, 0, 0, 1, count, count)
    assert duration(load, MemorySystem(delay)) == delay + 7 + beats * count
    rows = Load(memory, 0, 3, 5, count, count + 9)
    assert duration(rows, MemorySystem(delay)) == delay + 7 + 5 * beats * count


@pytest.mark.parametrize("count", [1, 2, 7, 64, 500])
def test_micro_ops_come_two_a_beat(count):
    assert duration(Load(Memory.UOP, 0, 0, 1, count, count)) == 16 + 6 + -(-count // 2)
    # From an odd address, the first half of a beat is not wanted.
    assert duration(Load(Memory.UOP, 0, 1, 1, count, count)) == 16 + 6 + (count + 2) // 2


@pytest.mark.parametrize("delay", [0, 16])
@pytest.mark.parametrize("sides", [0, 1, 4])
@pytest.mark.parametrize("rows", [0, 2])
def test_pads_cost_what_the_delay_does_not_hide(delay, sides, rows):
    load = Load(Memory.INP, 0, 0, 6, 4, 4, rows, 0, sides, sides)
    pads = rows * (4 + 2 * sides) + 6 * 2 * sides
    expected = delay + 7 + 48 + max(0, pads - delay - 4)
    # The first command leaves after as many cycles as there are rows above; some pads hide there.
    assert expected <= duration(load, MemorySystem(delay)) <= expected + rows


def test_products_and_the_alu_take_their_micro_ops():
    assert duration(Gemm(0, 9, 14, 28)) == 7 + 9 * 14 * 28
    assert duration(Gemm(0, 9, 14, 28, reset=True)) == 7 + 9 * 14 * 28
    assert duration(Alu(AluOp.MAX, 2, 5, 4, 2, use_immediate=True)) == 7 + 24
    assert duration(Alu(AluOp.MAX, 2, 5, 4, 2)) == 7 + 2 * 24
    assert duration(NOTHING) == 2
    assert timed(Finish()).event("done")[0] - timed(Finish()).event("issued")[0] == 1


@pytest.mark.parametrize(
    "dram, y, x, stride", [(0, 1, 1, 1), (0, 1, 8, 8), (3, 1, 8, 8), (5, 3, 20, 21)]
)
def test_stores_are_split_at_rows_and_128_bytes(dram, y, x, stride):
    bursts = [
        {tile // 8 for tile in range(dram + row * stride, dram + row * stride + x)}
        for row in range(y)
    ]
    expected = 1 + 3 * sum(map(len, bursts)) + 3 * x * y
    assert duration(Store(Memory.OUT, 0, dram, y, x, stride)) == expected


def test_other_machines_have_other_beats():
    wide = MemorySystem(bus_bits=128)
    cube = VtaConfig(log_batch=3, log_block=3)
    assert duration(Load(Memory.ACC, 0, 0, 1, 10, 10), config=cube) == 16 + 7 + 10 * 32
    assert duration(Load(Memory.WGT, 0, 0, 1, 10, 10), wide) == 16 + 7 + 10 * 16
    # An element that fits a beat takes the wide path, a cycle shorter.
    assert duration(Load(Memory.INP, 0, 0, 1, 10, 10), wide) == 16 + 6 + 10
    given = Machine(clock_mhz=333, bus_bits=128, burst_beats=8, dram_delay_cycles=40)
    assert MemorySystem.of(given) == MemorySystem(40, 128, 8)


@pytest.mark.parametrize("delay", [0, 16, 50])
def test_instructions_are_fetched_eight_at_a_time(delay):
    timing = timed(*[NOTHING] * 35, Finish(), memory=MemorySystem(delay))
    first = timing.batches[:, 0]
    assert len(first) == 5
    assert set(np.diff(first).tolist()) == {delay + 3 * 8 + 5}
    assert timing.bytes["FETCH"] == 36 * 16


def test_a_token_is_visible_when_its_instruction_is_done():
    load = Load(Memory.INP, 0, 0, 1, 4, 4, tokens=Tokens(push_next=True))
    waits = Gemm(0, 1, 1, 1, reset=True, tokens=Tokens(pop_prev=True))
    timing = timed(load, waits, Finish())
    assert timing.event("issued")[1] == timing.event("done")[0]
    assert timing.modules["compute"].stalled > 0


@pytest.mark.parametrize("seed", range(40))
def test_random_code_agrees_with_the_machine_stepped_cycle_by_cycle(seed):
    delay, burst, outstanding = (0, 16, 40)[seed % 3], (16, 8, 4)[seed // 3 % 3], (16, 2)[seed % 2]
    code = random_code(seed)
    timing = timed(*code, memory=MemorySystem(delay, 64, burst, outstanding))
    program = VtaProgram(VtaConfig(), code, np.zeros(0, np.uint8), {})
    issued, done = Rtl(program, delay=delay, burst=burst, outstanding=outstanding).run()
    assert timing.event("issued").tolist() == issued
    assert timing.event("done").tolist() == done
    assert timing.cycles == done[-1]


@pytest.mark.parametrize("seed", range(40, 50))
def test_rows_passed_between_pads_cost_at_most_two_cycles_of_difference(seed):
    code = random_code(seed, passing=True)
    timing = timed(*code)
    _, done = Rtl(VtaProgram(VtaConfig(), code, np.zeros(0, np.uint8), {})).run()
    assert abs(timing.cycles - done[-1]) <= 2


@pytest.mark.parametrize("shape", [(8, 32, 32, 4), (14, 64, 32, 7)])
def test_convolutions_agree_with_the_machine_stepped_cycle_by_cycle(shape):
    size, channels, outputs, rows = shape
    program = Convolution(size, channels, outputs, rows=rows).program()
    issued, done = Rtl(program).run()
    timing = time_program(program)
    assert (timing.event("issued").tolist(), timing.event("done").tolist()) == (issued, done)


@pytest.mark.parametrize("threads, busy", [(1, 0.78), (2, 0.94)])
def test_virtual_threads_keep_the_core_busy(threads, busy):
    """The shares that VTA's RTL was measured at, of a 28x28x128 3x3 convolution."""
    program = Convolution(rows=28, threads=threads, shift=None).program()
    timing = time_program(program)
    assert timing.gemm_utilisation == pytest.approx(busy, abs=0.03)
    assert timing.macs == 28 * 28 * 128 * 128 * 9


def test_modules_account_for_every_cycle():
    timing = time_program(Convolution(8, 32, 32, rows=4).program())
    for module in timing.modules.values():
        assert module.busy + module.stalled + module.idle == timing.cycles
        assert min(module.busy, module.stalled, module.idle) >= 0
    assert timing.bytes["OUT"] == 8 * 8 * 32
    assert json.loads(json.dumps(timing.to_json()))["cycles"] == timing.cycles


def test_a_timeline_has_a_row_for_each_module_and_memory():
    program = Convolution(8, 32, 32, rows=4).program()
    timing = time_program(program)
    events = json.loads(json.dumps(trace(program, timing)))["traceEvents"]
    rows = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert rows == ["load", "compute", "store", "FETCH", "UOP", "INP", "WGT", "ACC", "OUT"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len([e for e in spans if e["pid"] == 1]) == len(program.instructions)
    by_row = {}
    for span in spans:
        by_row.setdefault((span["pid"], span["tid"]), []).append(span)
    for (process, _), row in by_row.items():
        ends = [span["ts"] + span["dur"] for span in row]
        assert max(ends) <= timing.cycles
        if process == 1:
            assert all(e <= s["ts"] for e, s in zip(ends, row[1:], strict=False))


@pytest.mark.parametrize(
    "memory",
    [
        MemorySystem(-1),
        MemorySystem(bus_bits=96),
        MemorySystem(burst_beats=3),
        MemorySystem(outstanding=0),
    ],
)
def test_impossible_memory_systems_are_refused(memory):
    with pytest.raises(SpecError, match="allowed"):
        timed(Finish(), memory=memory)


def test_illegal_programs_are_not_timed():
    with pytest.raises(ProgramError, match="FINISH"):
        time_program(VtaProgram(VtaConfig(), (NOTHING,), np.zeros(0, np.uint8), {}))
