"""Each kind of violation is found and named; legal programs pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.errors import ProgramError
from cpembed.targets.vta.checker import check, violations
from cpembed.targets.vta.encoding import pack_uops
from cpembed.targets.vta.isa import (
    NO_TOKENS,
    Alu,
    AluOp,
    Factors,
    Finish,
    Gemm,
    Load,
    Memory,
    Store,
    Tokens,
    VtaConfig,
)
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.simulator import simulate
from tests.unit.targets.vta.convolution import NOTHING, Convolution, image

UOPS = np.array([(n, n, 0) for n in range(8)] + [(0, 0, 0), (1, 1, 0), (1, 2, 0), (2040, 0, 0)])


def legal():
    """Eight rows through a GEMM, an addition of two accumulators, a shift; every kind once."""
    data = np.ones((8, 1, 16), np.int8)
    empty = image(
        {
            "data": data,
            "weights": np.ones((1, 16, 16), np.int8),
            "bias": np.ones((8, 1, 16), np.int32),
            "uops": pack_uops(*UOPS.T, config=VtaConfig()),
            "out": np.zeros((8, 1, 16), np.int8),
        }
    )

    def at(name, memory):
        return empty.tensors[name].offset // empty.config.element_bytes(memory)

    code = (
        Load(Memory.UOP, 0, at("uops", Memory.UOP), 1, 12, 12),
        Load(Memory.ACC, 0, at("bias", Memory.ACC), 1, 8, 8),
        Load(Memory.INP, 0, at("data", Memory.INP), 1, 8, 8),
        Load(Memory.WGT, 0, at("weights", Memory.WGT), 1, 1, 1, tokens=Tokens(push_next=True)),
        Gemm(0, 8, 1, 1, tokens=Tokens(pop_prev=True)),
        Alu(AluOp.ADD, 0, 4, 1, 1, dst=Factors(), src=Factors()),
        Alu(AluOp.SHR, 0, 8, 1, 1, use_immediate=True, immediate=4, tokens=Tokens(push_next=True)),
        Store(Memory.OUT, 0, at("out", Memory.OUT), 2, 4, 4, tokens=Tokens(True, push_prev=True)),
        replace(NOTHING, tokens=Tokens(pop_next=True)),
        Finish(),
    )
    return replace(empty, instructions=code)


UOP, ACC, INP, WGT, GEMM, ADD, SHIFT, STORE, WAIT, FINISH = range(10)


def changed(number, **fields):
    program = legal()
    code = list(program.instructions)
    code[number] = replace(code[number], **fields)
    return replace(program, instructions=tuple(code))


def without(*numbers):
    program = legal()
    code = tuple(i for n, i in enumerate(program.instructions) if n not in numbers)
    return replace(program, instructions=code)


def inserted(number, *more):
    program = legal()
    code = program.instructions
    return replace(program, instructions=(*code[:number], *more, *code[number:]))


def test_legal_programs_pass():
    check(legal())
    for threads in (1, 2):
        check(Convolution(8, 32, 32, rows=4, threads=threads).program())


CORRUPTED = {
    "a field that does not fit": (
        changed(INP, x_stride=65_536),
        INP,
        "x_stride = 65536",
        "0..65535",
    ),
    "iterations": (changed(GEMM, outer=16_384), GEMM, "outer = 16384", "0..16383"),
    "pads": (changed(INP, x_before=16), INP, "x_before = 16", "0..15"),
    "a negative number": (changed(ACC, sram=-1), ACC, "sram = -1", "0..65535"),
    "no such neighbour": (changed(INP, tokens=Tokens(pop_prev=True)), INP, "no module is before"),
    "load into OUT": (changed(ACC, memory=Memory.OUT), ACC, "LOAD into OUT"),
    "store from ACC": (changed(STORE, memory=Memory.ACC), STORE, "STORE from ACC"),
    "no rows": (changed(INP, y=0), INP, "y = 0 with x > 0", "x = 0"),
    "beyond INP": (changed(INP, sram=2041), INP, "INP elements 2041..2048, of 0..2047"),
    "beyond INP with pads": (changed(INP, x_after=15, y_after=15, sram=1700), INP, "of 0..2047"),
    "beyond OUT": (changed(STORE, sram=2042), STORE, "OUT elements 2042..2049"),
    "more micro-ops than the RTL keeps": (changed(UOP, sram=2040), UOP, "2040..2051, of 0..2047"),
    "beyond DRAM": (changed(INP, x_stride=60_000, y=2), INP, "of a DRAM image of"),
    "before DRAM": (replace(legal(), base=1 << 20), UOP, "touches bytes -"),
    "no micro-ops": (changed(GEMM, uop_end=0), GEMM, "executes no micro-op"),
    "no iterations": (changed(SHIFT, inner=0), SHIFT, "executes no micro-op"),
    "micro-ops beyond the RTL's": (changed(GEMM, uop_end=2049), GEMM, "up to 2048, of 0..2047"),
    "padded weights": (changed(WGT, x_before=1), WGT, "pads on a LOAD of WGT"),
    "padded micro-ops": (changed(UOP, y_after=1), UOP, "pads on a LOAD of UOP"),
    "a padded store": (changed(STORE, x_after=1), STORE, "pads on a STORE"),
    "MUL": (changed(ADD, op=AluOp.MUL), ADD, "MUL", "MIN, MAX, ADD or SHR"),
    "shift too far": (changed(SHIFT, immediate=32), SHIFT, "SHR by 32", "0..31"),
    "shift to the left": (changed(SHIFT, immediate=-1), SHIFT, "SHR by -1"),
    "factors of an immediate": (
        changed(SHIFT, outer=2, src=Factors(1, 0)),
        SHIFT,
        "src advances otherwise",
    ),
    "micro-ops of an immediate": (
        changed(SHIFT, uop_begin=10, uop_end=11),
        SHIFT,
        "micro-op 10 has dst 1 and src 2 with an immediate",
        "encode src = dst",
    ),
    "no FINISH": (without(FINISH), WAIT, "does not end with FINISH"),
    "nothing at all": (replace(legal(), instructions=()), None, "does not end with FINISH"),
    "FINISH too early": (inserted(ADD, Finish()), ADD, "FINISH before the last"),
    "FINISH with tokens": (
        changed(FINISH, tokens=Tokens(push_prev=True)),
        FINISH,
        "FINISH with tokens",
    ),
    "ALU writes twice": (
        changed(SHIFT, uop_begin=7, uop_end=8, inner=2),
        SHIFT,
        "writes accumulator 7 right after",
        "put another micro-op between",
    ),
    "GEMM after GEMM": (
        changed(GEMM, uop_begin=8, uop_end=9, inner=2),
        GEMM,
        "writes accumulator 0 right after",
        "2 other micro-ops",
    ),
    "GEMM after one other": (
        changed(GEMM, uop_begin=8, uop_end=10, inner=2),
        GEMM,
        "writes accumulator 0 two micro-ops after",
    ),
    "GEMM after one other, outer loop": (
        changed(GEMM, uop_begin=8, uop_end=10, outer=2),
        GEMM,
        "two micro-ops after",
    ),
    "beyond ACC by factors": (
        changed(GEMM, outer=2, dst=Factors(2041, 0)),
        GEMM,
        "dst reaches ACC element 2048, of 0..2047",
    ),
    "beyond WGT by factors": (
        changed(GEMM, inner=3, wgt=Factors(0, 512)),
        GEMM,
        "wgt reaches WGT element 1024, of 0..1023",
    ),
    "never loaded micro-ops": (
        changed(GEMM, uop_begin=8, uop_end=13),
        GEMM,
        "micro-op 12 was never",
    ),
    "never written accumulators": (without(ACC), GEMM - 1, "accumulator 0, which was never"),
    "never loaded inputs": (changed(INP, x=7), GEMM, "INP element 7, which was never loaded"),
    "never loaded weights": (
        changed(GEMM, wgt=Factors(1, 0), outer=2),
        GEMM,
        "WGT element 1, which was never loaded",
    ),
    "stored before it was written": (
        changed(STORE, sram=1),
        STORE,
        "OUT element 8, which was never written by ALU or GEMM",
    ),
    "a token that is not popped": (
        changed(ACC, tokens=Tokens(push_prev=True)),
        ACC,
        "pushes a token on compute->load that nothing pops: the queue ends with 1",
    ),
    "a token that nobody pushes": (
        changed(WGT, tokens=NO_TOKENS),
        None,
        "compute waits for load at instruction 4",
        "push every token",
    ),
}


@pytest.mark.parametrize("name", CORRUPTED)
def test_a_violation_is_named(name):
    program, number, *words = CORRUPTED[name]
    found = violations(program, limit=1)
    assert [violation.instruction for violation in found] == [number]
    line = found[0].line(program)
    assert "\n" not in line
    for word in words:
        assert word in line
    with pytest.raises(ProgramError) as error:
        simulate(program)
    assert str(error.value) == line


def test_factors_of_a_loop_of_one_iteration_play_no_part():
    """TensorAlu.scala adds them where a loop goes on."""
    check(changed(SHIFT, src=Factors(1, 0)))
    check(changed(SHIFT, src=Factors(7, 5), dst=Factors(3, 9)))
    found = violations(changed(SHIFT, inner=2, src=Factors(0, 5)), limit=1)
    assert "src advances otherwise" in found[0].problem


def test_an_accumulator_may_be_reset_and_loaded_but_then_not_stored():
    code = legal().instructions
    for loses in (code[ACC], Gemm(0, 8, 1, 1, reset=True)):
        program = inserted(STORE, replace(loses, tokens=Tokens(push_next=True)))
        program = replace(
            program,
            instructions=tuple(
                replace(i, tokens=NO_TOKENS) if n == SHIFT else i
                for n, i in enumerate(program.instructions)
            ),
        )
        (found,) = violations(program)
        assert found.instruction == STORE + 1
        assert "only ALU and non-reset GEMM write OUT" in found.problem
        mended = inserted(
            STORE, replace(loses), replace(code[SHIFT], tokens=Tokens(push_next=True))
        )
        mended = replace(
            mended,
            instructions=tuple(
                replace(i, tokens=NO_TOKENS) if n == SHIFT else i
                for n, i in enumerate(mended.instructions)
            ),
        )
        check(mended)


def test_a_reset_may_repeat_an_accumulator():
    """It does not read it; products must be two others apart."""
    check(inserted(GEMM, Gemm(8, 9, 2, 3, reset=True)))
    apart = changed(GEMM, uop_begin=0, uop_end=3, inner=2, outer=2)
    check(apart)


def test_the_source_of_the_alu_counts_as_a_use():
    """dst 1, src 2 right after a write of accumulator 2."""
    rows = pack_uops([2, 1], [5, 2], [0, 0], config=VtaConfig())
    program = legal()
    dram = program.dram.copy()
    start = program.tensors["uops"].offset
    dram[start : start + 8] = rows.view(np.uint8)
    add = Alu(AluOp.ADD, 0, 2, 1, 1)
    code = list(program.instructions)
    code[ADD] = add
    code[GEMM] = replace(code[GEMM], uop_begin=2, tokens=Tokens(pop_prev=True))
    code[SHIFT] = replace(code[SHIFT], uop_begin=2)
    code[STORE] = replace(code[STORE], sram=2, y=1, x=6)
    found = violations(replace(program, instructions=tuple(code), dram=dram))
    assert [v.instruction for v in found] == [ADD]
    assert "reads accumulator 2 right after one that writes it" in found[0].problem


def test_races_between_modules_are_found():
    """Without the token that holds the second load back, it may overwrite what is being read."""
    program = legal()
    code = program.instructions
    again = replace(code[INP], tokens=Tokens(pop_next=True))
    safe = replace(program, instructions=(*code[:GEMM], *_pushing(code[GEMM:], again)))
    check(safe)
    loose = tuple(
        replace(i, tokens=replace(i.tokens, push_prev=False)) if isinstance(i, Gemm) else i
        for i in safe.instructions
    )
    loose = tuple(
        replace(i, tokens=NO_TOKENS) if isinstance(i, Load) and i.tokens.pop_next and i.x else i
        for i in loose
    )
    (found,) = violations(replace(program, instructions=loose))
    assert found.instruction == GEMM
    assert "reads INP element 0, which instruction 5 writes without being ordered" in found.problem


def _pushing(rest, load):
    first, *others = rest
    return (replace(first, tokens=Tokens(pop_prev=True, push_prev=True)), load, *others)


def test_a_store_must_wait_for_its_accumulators():
    program = legal()
    code = list(program.instructions)
    code[SHIFT] = replace(code[SHIFT], tokens=NO_TOKENS)
    code[ADD] = replace(code[ADD], tokens=Tokens(push_next=True))
    (found,) = violations(replace(program, instructions=tuple(code)))
    assert found.instruction == STORE
    assert f"which instruction {SHIFT} writes without being ordered" in found.problem


def test_loads_of_what_a_store_writes_are_ordered_or_refused():
    program = legal()
    out = program.tensors["out"].offset // 16
    late = Load(Memory.INP, 100, out, 1, 8, 8)
    (found,) = violations(inserted(FINISH, late))
    assert "loads DRAM that the STORE at instruction 7 writes" in found.problem
    code = list(program.instructions)
    code[WAIT] = replace(code[WAIT], tokens=Tokens(pop_next=True, push_prev=True))
    ordered = (*code[:FINISH], replace(late, tokens=Tokens(pop_next=True)), Finish())
    check(replace(program, instructions=ordered))
    uops = Load(Memory.UOP, 20, program.tensors["out"].offset // 4, 1, 1, 1)
    (found,) = violations(inserted(FINISH, uops))
    assert "loads micro-ops that the STORE" in found.problem


@pytest.mark.parametrize("ahead, legal_", [(255, True), (256, False)])
def test_a_queue_holds_255_tokens(ahead, legal_):
    push = Load(Memory.INP, 0, 0, 0, 0, 0, tokens=Tokens(push_next=True))
    pop = replace(NOTHING, tokens=Tokens(pop_prev=True))
    code = (*[push] * ahead, *[pop] * ahead, Finish())
    found = violations(VtaProgram(VtaConfig(), code, np.zeros(4, np.uint8), {}))
    assert [v.instruction for v in found] == ([] if legal_ else [255])
    if found:
        assert "may push token 256 on load->compute, which holds 255" in found[0].problem


def test_waiting_for_one_behind_a_full_queue_is_a_deadlock():
    """600 instructions of the load module wait for a token that is pushed after them."""
    pop = Load(Memory.INP, 0, 0, 0, 0, 0, tokens=Tokens(pop_next=True))
    rest = Load(Memory.INP, 0, 0, 0, 0, 0)
    push = replace(NOTHING, tokens=Tokens(push_prev=True))
    for count, fine in ((500, True), (600, False)):
        code = (pop, *[rest] * count, push, Finish())
        found = violations(VtaProgram(VtaConfig(), code, np.zeros(4, np.uint8), {}))
        assert (not found) == fine
    assert "load waits for compute at instruction 0" in found[0].problem
    assert "with queues of 512 instructions" in found[0].problem


def test_all_violations_are_listed_by_instruction():
    program = changed(SHIFT, immediate=40)
    code = list(program.instructions)
    code[ADD] = replace(code[ADD], op=AluOp.MUL)
    code[INP] = replace(code[INP], x=7)
    found = violations(replace(program, instructions=tuple(code)))
    assert [v.instruction for v in found] == [GEMM, ADD, SHIFT]
    assert len(violations(replace(program, instructions=tuple(code)), limit=2)) == 2


def test_a_field_that_is_no_number_is_an_error():
    with pytest.raises(ProgramError, match="instruction 2"):
        check(changed(INP, x=1.5))


@pytest.mark.slow
def test_a_hundred_thousand_instructions_take_a_few_seconds():
    import time

    program = Convolution(28, 512, 8192, rows=14).program()
    assert len(program.instructions) > 100_000
    begin = time.process_time()
    check(program)
    assert time.process_time() - begin < 6
