"""VTA assembly: what a text means, that text and program determine each other, and its errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpembed.errors import ProgramError
from cpembed.targets.vta.assembler import assemble
from cpembed.targets.vta.assembly import disassemble
from cpembed.targets.vta.isa import (
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
from cpembed.targets.vta.program import Role, Tensor, VtaProgram
from tests.unit.targets.vta.strategies import CONFIGS, assert_same, programs

PROGRAM = """\
; One product of a row of 16 with a 16x16 block.
.vta 1
.dram base=0x1000 size=0x500
.tensor A role=input dtype=int8 shape=1x16
.tensor B role=weight dtype=int8 shape=16x16
.tensor O role=output dtype=int8 shape=1x16 at=0x300
.tensor loose dtype=int32 shape=scalar at=0x3fc

.uop product
dst=0 src=1 wgt=0x2  ; the only one
dst=3

.data A
0: 01 ff
0x8: 7F

.data
0x3f0: aa

.code
load uop sram=0 dram=product y=1 x=2 x_stride=2
load inp sram=1 dram=A y=1 x=1 x_stride=1 x_after=2
load wgt sram=2 dram=B y=1 x=1 x_stride=1 push.next
gemm uop_begin=0 uop_end=1 outer=1 inner=2 dst.inner=4 wgt.outer=3 reset pop.prev
alu shr uop_begin=1 uop_end=2 outer=1 inner=1 immediate=-8 push.next
alu add uop_begin=1 uop_end=2 outer=1 inner=1 src.outer=5 unused_immediate=7
store out sram=0 dram=O+1 y=1 x=1 x_stride=1 pop.prev
finish
"""


def test_a_text_gives_the_program_that_it_describes() -> None:
    program = assemble(PROGRAM)
    assert program.config == VtaConfig()
    assert program.base == 0x1000
    # Without a place a tensor follows at the next multiple of the largest element, 256 bytes.
    assert dict(program.tensors) == {
        "A": Tensor(0, (1, 16), "int8", Role.INPUT),
        "B": Tensor(0x100, (16, 16), "int8", Role.WEIGHT),
        "O": Tensor(0x300, (1, 16), "int8", Role.OUTPUT),
        "loose": Tensor(0x3FC, (), "int32", None),
        "product": Tensor(0x400, (2,), "uint32", Role.UOPS),
    }
    assert program.tensor("A").tolist() == [[1, -1, *[0] * 6, 127, *[0] * 7]]
    assert program.tensor("product").tolist() == [0 | 1 << 11 | 2 << 22, 3]
    assert (program.dram[0x3F0], np.count_nonzero(program.dram)) == (0xAA, 3 + 2 + 1 + 1)
    assert len(program.dram) == 0x500
    assert program.instructions == (
        Load(Memory.UOP, 0, 0x1400 // 4, 1, 2, 2),
        Load(Memory.INP, 1, 0x100, 1, 1, 1, x_after=2),
        Load(Memory.WGT, 2, 0x11, 1, 1, 1, tokens=Tokens(push_next=True)),
        Gemm(
            *(0, 1, 1, 2, Factors(0, 4), Factors(), Factors(3, 0), True),
            tokens=Tokens(pop_prev=True),
        ),
        Alu(
            *(AluOp.SHR, 1, 2, 1, 1),
            use_immediate=True,
            immediate=-8,
            tokens=Tokens(push_next=True),
        ),
        Alu(AluOp.ADD, 1, 2, 1, 1, Factors(), Factors(5, 0), False, 7),
        Store(Memory.OUT, 0, 0x131, 1, 1, 1, tokens=Tokens(pop_prev=True)),
        Finish(),
    )


CANONICAL = """\
.vta 1  ; GEMM 4x16x16
.config log_batch=2
.dram base=0x40 size=0x90
.tensor A role=input dtype=int8 shape=4x16 at=0x0
.tensor U role=uops dtype=uint32 shape=3 at=0x40

.data A
0x0010: 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0x0030: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff

.uop U
dst=1
dst=0 src=2
dst=0 wgt=3

.code
load uop sram=0 dram=U+1 y=1 x=2 x_stride=2 pop.prev pop.next push.prev push.next  ; 0
load inp sram=0 dram=A y=1 x=1 x_stride=1 y_before=1 y_after=2 x_before=3 x_after=4  ; 1
gemm uop_begin=0 uop_end=2 outer=3 inner=4 dst.outer=5 src.inner=6 wgt.outer=7 reset  ; 2
alu min uop_begin=0 uop_end=1 outer=1 inner=1 immediate=0  ; 3
store out sram=0 dram=9 y=1 x=1 x_stride=1  ; 4
finish  ; 5
"""


def test_a_text_as_the_disassembler_writes_it_comes_back_unchanged() -> None:
    assert disassemble(assemble(CANONICAL)) == CANONICAL


def test_without_data_the_text_still_has_the_micro_ops() -> None:
    text = disassemble(assemble(CANONICAL), data=False)
    assert ".data" not in text
    assert "dst=0 wgt=3" in text


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_text_and_program_determine_each_other(name: str, data: st.DataObject) -> None:
    program = data.draw(programs(CONFIGS[name]))
    text = disassemble(program)
    again = assemble(text)
    assert_same(again, program)
    assert disassemble(again) == text


NEEDS = "uop_begin=0 uop_end=1 outer=1 inner=1"
WRONG = {
    "mnemonic": ("  gem x=1", (1, 3), ["unknown instruction 'gem'", "did you mean gemm?"]),
    "no memory": ("load", (1, 1), ["load needs one of uop, wgt, inp, acc, out"]),
    "memory": ("load inb y=1", (1, 6), ["'inb'", "uop, wgt", "did you mean inp?"]),
    "operation": ("alu sub", (1, 5), ["'sub'", "min, max, add, shr, mul"]),
    "missing": ("load inp sram=0 y=1", (1, 1), ["load lacks dram, x, x_stride"]),
    "unknown field": (
        f"gemm {NEEDS} wgt.iner=1",
        (1, 44),
        ["'wgt.iner'", "did you mean wgt.inner"],
    ),
    "unknown token": ("finish pop.pref", (1, 8), ["'pop.pref'", "did you mean pop.prev?"]),
    "no value": ("gemm uop_begin", (1, 6), ["uop_begin lacks its value"]),
    "field twice": ("gemm outer=1 outer=2", (1, 14), ["outer is given more than once"]),
    "token twice": ("finish push.next push.next", (1, 18), ["push.next is given more than once"]),
    "number": (f"gemm {NEEDS} wgt.inner=1.5", (1, 44), ["'1.5' is not a number", "0x1f"]),
    "range": (
        "\n\nload inp sram=0 dram=0 y=70000 x=1 x_stride=1",
        (3, 24),
        ["y = 70000 does not fit; allowed: 0..65535"],
    ),
    "range of the configuration": (
        f".config log_batch=3 log_block=3\ngemm {NEEDS} src.outer=512",
        (2, 44),
        ["src.outer = 512 does not fit; allowed: 0..511"],
    ),
    "immediates": (
        f"alu add {NEEDS} immediate=1 unused_immediate=1",
        (1, 1),
        ["exclude each other"],
    ),
    "address": ("load inp sram=0 dram=A+ y=1 x=1 x_stride=1", (1, 17), ["NAME+NUMBER"]),
    "address of no tensor": (
        ".tensor A dtype=int8 shape=1\nload inp sram=0 dram=a y=1 x=1 x_stride=1",
        (2, 17),
        ["no tensor 'a'; declared: A"],
    ),
    "address that is not aligned": (
        ".tensor A dtype=int8 shape=1 at=8\nload inp sram=0 dram=A y=1 x=1 x_stride=1",
        (2, 17),
        ["physical address 0x8", "INP's element of 16 bytes", "at="],
    ),
    "directive": (".tenser A", (1, 1), ["unknown directive .tenser", "did you mean .tensor?"]),
    "version": (".vta 2", (1, 6), ["unknown version", ".vta 1"]),
    "late configuration": ("finish\n.config log_block=3", (2, 1), ["comes before"]),
    "configuration twice": (".config\n.config", (2, 1), ["more than once"]),
    "configuration key": (".config log_blok=3", (1, 9), ["did you mean log_block?"]),
    "configuration size": (".config log_block=-1", (1, 9), ["allowed: 0..40"]),
    "configuration without encoding": (".config log_uop_buff=17", (1, 1), ["do not fit 128 bits"]),
    "tensor without type": (".tensor A shape=4", (1, 1), ["lacks dtype="]),
    "tensor name": (".tensor 4 dtype=int8 shape=4", (1, 9), ["'4' is not a name"]),
    "tensor twice": (
        ".tensor A dtype=int8 shape=4\n.tensor A dtype=int8 shape=4",
        (2, 9),
        ["declared already"],
    ),
    "dtype": (".tensor A dtype=int7 shape=4", (1, 11), ["'int7'", "int8", "did you mean"]),
    "role": (".tensor A role=in dtype=int8 shape=4", (1, 11), ["input, weight, output, uops"]),
    "shape": (".tensor A dtype=int8 shape=4,4", (1, 22), ["'4,4'", "4x16"]),
    "empty shape": (".tensor A dtype=int8 shape=4x0", (1, 22), ["sizes of at least 1"]),
    "too large": (".tensor A dtype=int8 shape=1x99999999999", (1, 22), ["1073741824"]),
    "overlap": (
        ".tensor A dtype=int8 shape=4\n.tensor B dtype=int8 shape=4 at=2",
        (2, 9),
        ["'A' and 'B' overlap"],
    ),
    "outside": (
        ".dram size=4\n.tensor A dtype=int8 shape=8",
        (2, 9),
        ["bytes 0..7 are not within DRAM, which has 4"],
    ),
    "micro-op": (".uop k\ndst=2048", (2, 1), ["dst = 2048 does not fit; allowed: 0..2047"]),
    "micro-op without dst": (".uop k\nsrc=1", (2, 1), ["lacks dst="]),
    "too many micro-ops": (
        ".tensor k dtype=uint32 shape=1\n.uop k\ndst=0\ndst=1",
        (4, 1),
        ["k has room for 1"],
    ),
    "data without offset": (".data\n01 02", (2, 1), ["starts with its offset"]),
    "data byte": (".data\n0: 01 0g", (2, 7), ["'0g' is not a byte"]),
    "data beyond": (
        ".tensor A dtype=int8 shape=2\n.data A\n0x1: 01 02",
        (3, 1),
        ["end at 0x3, A has 0x2 bytes"],
    ),
    "data of no tensor": (".data A\n0: 01", (1, 7), ["no tensor 'A'; declared: none"]),
    "too much": (".code here", (1, 7), ["'here' is too much"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_line_column_and_remedy(case: str) -> None:
    text, (line, column), parts = WRONG[case]
    with pytest.raises(ProgramError) as caught:
        assemble(text, "file.s")
    message = str(caught.value)
    assert message.startswith(f"file.s:{line}:{column}: "), message
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_micro_ops_with_reserved_bits_are_shown_as_bytes() -> None:
    config = CONFIGS["8x8x8"]
    dram = np.full(4, 0xFF, dtype=np.uint8)
    program = VtaProgram(config, (), dram, {"u": Tensor(0, (1,), "uint32", Role.UOPS)})
    text = disassemble(program)
    assert "0x0000: ff ff ff ff" in text
    assert_same(assemble(text), program)
