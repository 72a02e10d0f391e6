"""Cycles against VTA's table of durations, and against the same machine stepped cycle by cycle."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cpembed.errors import ProgramError, SpecError
from cpembed.hw.machine import MemoryInterface
from cpembed.ir.reference import random_inputs
from cpembed.targets.vta.isa import Alu, AluOp, Finish, Gemm, Load, Memory, Store, Tokens, VtaConfig
from cpembed.targets.vta.lower import lower
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tail import Requantized
from cpembed.targets.vta.timing import MemorySystem, time_program, timeline
from tests.unit.targets.vta.convolution import NOTHING, Convolution
from tests.unit.targets.vta.lowering import best_program
from tests.unit.targets.vta.random_code import random_code
from tests.unit.targets.vta.rtl import Rtl

EIGHTS = VtaConfig(log_block=3, log_inp_buff=14, log_wgt_buff=16, log_acc_buff=16)
"""Vectors of 8, of which a bus of 64 bits holds one of INP or OUT."""

LOOPS = ("k.o", "n.o", "p.o", "q.o", "c.o", "r.o", "s.o")
RTL = [
    ("deepbench:41", (2, 1, 26, 1, 1, 5, 7), 2, None, (4, 4), 86_793),
    ("odd:10", (4, 1, 28, 2, 4, 1, 1), 2, "q.o", (4, 4), 116_661),
]
"""Layers, their schedules, and the cycles of the programs on the RTL."""


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


@pytest.mark.parametrize("bits, config", [(128, VtaConfig()), (512, VtaConfig()), (64, EIGHTS)])
@pytest.mark.parametrize("dram, y, x, stride", [(0, 1, 40, 40), (3, 1, 8, 8), (5, 3, 20, 21)])
def test_a_bus_that_holds_a_tile_stores_a_beat_a_cycle(bits, config, dram, y, x, stride):
    """TensorStoreWideVME.scala reads SRAM while it sends: command, two of the address, beats, the
    answer; nothing for rows of tiles."""
    size, beat = config.element_bytes(Memory.OUT), bits // 8
    expected = 1
    for row in range(y):
        start = (dram + row * stride) * size
        beats = range(start // beat, -(-(start + x * size) // beat))
        expected += 4 * len({at // 16 for at in beats}) + len(beats)
    store = Store(Memory.OUT, 0, dram, y, x, stride)
    assert duration(store, MemorySystem(bus_bits=bits), config) == expected


def test_a_wide_bus_brings_the_first_instructions_as_soon_as_a_narrow_one():
    """FetchWideVME.scala sends its first command in the cycle after launch, as Fetch64Bit does."""
    first = [
        timed(Finish(), memory=MemorySystem(16, bits)).batches[0, 0] for bits in (64, 128, 256, 512)
    ]
    assert len(set(first)) == 1
    # Half a beat of instructions takes a beat: three of 16 bytes are two of 32.
    three = timed(NOTHING, NOTHING, Finish(), memory=MemorySystem(16, 256))
    assert three.batches[0, 1] - three.batches[0, 0] == 1


def test_other_machines_have_other_beats():
    wide = MemorySystem(bus_bits=128)
    cube = VtaConfig(log_batch=3, log_block=3)
    assert duration(Load(Memory.ACC, 0, 0, 1, 10, 10), config=cube) == 16 + 7 + 10 * 32
    assert duration(Load(Memory.WGT, 0, 0, 1, 10, 10), wide) == 16 + 7 + 10 * 16
    # An element that fits a beat takes the wide path, a cycle shorter.
    assert duration(Load(Memory.INP, 0, 0, 1, 10, 10), wide) == 16 + 6 + 10
    given = MemoryInterface(clock_mhz=333, bus_bits=128, burst_beats=8, dram_delay_cycles=40)
    assert MemorySystem.from_machine(given) == MemorySystem(40, 128, 8)


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


@pytest.mark.parametrize("seed", range(80))
def test_random_code_agrees_with_the_machine_stepped_cycle_by_cycle(seed):
    delay, burst, outstanding = (0, 16, 40)[seed % 3], (16, 8, 4)[seed // 3 % 3], (16, 2)[seed % 2]
    bits = 64 if seed < 40 else (128, 256, 512)[seed % 3]
    config = EIGHTS if seed % 5 == 0 else VtaConfig()
    code = random_code(seed)
    memory = MemorySystem(delay, bits, burst, outstanding)
    timing = timed(*code, memory=memory, config=config)
    program = VtaProgram(config, code, np.zeros(0, np.uint8), {})
    rtl = Rtl(program, delay=delay, burst=burst, outstanding=outstanding, bus=bits // 8)
    issued, done = rtl.run()
    assert timing.event("issued").tolist() == issued
    assert timing.event("done").tolist() == done
    assert timing.cycles == done[-1]


@pytest.mark.parametrize("shape", [(8, 32, 32, 4), (14, 64, 32, 7)])
def test_convolutions_agree_with_the_machine_stepped_cycle_by_cycle(shape):
    size, channels, outputs, rows = shape
    program = Convolution(size, channels, outputs, rows=rows).program()
    issued, done = Rtl(program).run()
    timing = time_program(program)
    assert (timing.event("issued").tolist(), timing.event("done").tolist()) == (issued, done)


@pytest.mark.parametrize("words, tiles, threads, over, slots, cycles", RTL)
def test_programs_take_the_cycles_that_were_counted_on_the_rtl(
    words, tiles, threads, over, slots, cycles
):
    """Counted on upstream's RTL (Verilator, default configuration): the input has pads above or
    below and none beside, and other LOADs come between."""
    program = best_program(words, "vta_1x16x16", "in_place_padded")
    schedule = Schedule(dict(zip(LOOPS, tiles, strict=True)), LOOPS, threads, over, slots)
    lowered = lower(program, VtaConfig(), schedule, Requantized(12))
    inputs = random_inputs(program.workload, 0)
    assert time_program(lowered.build(inputs)).cycles == cycles


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
    events = json.loads(json.dumps(timeline(program, timing)))["traceEvents"]
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
