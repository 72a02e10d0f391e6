"""VTA's 128-bit instructions: golden bytes computed by hand, round trips, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpembed.errors import ProgramError, SpecError
from cpembed.targets.vta.encoding import decode, encode, pack_uops, unpack_uops
from cpembed.targets.vta.isa import (
    Alu,
    AluOp,
    Factors,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Store,
    Tokens,
    VtaConfig,
)
from tests.unit.targets.vta.strategies import (
    CONFIGS,
    Uop,
    decode_uops,
    encode_uops,
    instructions,
    uops,
)

DEFAULT = VtaConfig()


def word(*fields: tuple[int, int]) -> bytes:
    """Sixteen bytes with values at bit positions of the hardware guide's table."""
    return sum(value << low for low, value in fields).to_bytes(16, "little")


LOAD = Load(
    *(Memory.INP, 0x123, 0x89ABCDEF, 5, 7, 56),
    *(1, 2, 3, 4),
    tokens=Tokens(pop_next=True, push_next=True),
)
STORE = Store(Memory.OUT, 0x7FF, 16, 1, 14, 28, tokens=Tokens(pop_prev=True, push_prev=True))
GEMM = Gemm(
    *(3, 8192, 14, 9),
    *(Factors(28, 1), Factors(30, 2), Factors(4, 5)),
    reset=True,
    tokens=Tokens(True, True, True, True),
)
ALU = Alu(AluOp.SHR, 1, 2, 3, 4, Factors(5, 6), Factors(7, 8), True, -3)


@pytest.mark.parametrize(
    "instruction, expected",
    [
        (
            LOAD,
            word(
                *((0, 0), (4, 1), (6, 1), (7, 2), (10, 0x123), (26, 0x89ABCDEF)),
                *((64, 5), (80, 7), (96, 56), (112, 1), (116, 2), (120, 3), (124, 4)),
            ),
        ),
        (
            STORE,
            word(
                *((0, 1), (3, 1), (5, 1), (7, 4), (10, 0x7FF), (26, 16)),
                (64, 1),
                (80, 14),
                (96, 28),
            ),
        ),
        (
            GEMM,
            word(
                *((0, 2), (3, 15), (7, 1), (8, 3), (21, 8192), (35, 14), (49, 9)),
                *((64, 28), (75, 1), (86, 30), (97, 2), (108, 4), (118, 5)),
            ),
        ),
        (
            ALU,
            word(
                *((0, 4), (8, 1), (21, 2), (35, 3), (49, 4), (64, 5), (75, 6), (86, 7), (97, 8)),
                *((108, 3), (111, 1), (112, 0x10000 - 3)),
            ),
        ),
        (Finish(), word((0, 3))),
        # Byte by byte: memory WGT is 1 << 7, sram 1 << 10, dram 1 << 26; y, x and stride are 1.
        (
            Load(Memory.WGT, 1, 1, 1, 1, 1),
            bytes([0x80, 0x04, 0, 0x04, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0]),
        ),
    ],
    ids=["load", "store", "gemm", "alu", "finish", "bytes"],
)
def test_bytes_are_those_computed_by_hand(instruction: Instruction, expected: bytes) -> None:
    assert encode([instruction], DEFAULT) == expected
    assert decode(expected, DEFAULT) == (instruction,)


def test_fields_of_8x8x8_have_the_widths_of_its_buffers() -> None:
    # LUOP 13, LINP 9, LWGT 12, LACC 9: factors at 64, 73 (dst), 82, 91 (src), 100, 112 (wgt).
    expected = word(
        *((0, 2), (8, 3), (21, 8192), (35, 14), (49, 9)),
        *((64, 511), (73, 1), (82, 511), (91, 2), (100, 4095), (112, 5)),
    )
    gemm = Gemm(3, 8192, 14, 9, Factors(511, 1), Factors(511, 2), Factors(4095, 5))
    assert encode([gemm], CONFIGS["8x8x8"]) == expected
    # dst at 64, 73, src at 82, 91, then the operation at 100.
    alu = Alu(AluOp.MAX, 0, 1, 1, 1, Factors(5, 6), Factors(7, 8), True, -128)
    expected = word(
        *((0, 4), (21, 1), (35, 1), (49, 1), (64, 5), (73, 6), (82, 7), (91, 8)),
        *((100, 1), (103, 1), (104, 0x10000 - 128)),
    )
    assert encode([alu], CONFIGS["8x8x8"]) == expected


def test_a_field_after_a_small_micro_op_buffer_stays_below_bit_64_where_it_fits() -> None:
    # LUOP 8, LINP 8, LWGT 6, LACC 7.
    config = CONFIGS["small buffers"]
    gemm = Gemm(1, 2, 3, 4, Factors(5, 6), Factors(7, 8), Factors(9, 10))
    # uop_begin 8, uop_end 16, outer 25, inner 39, dst.outer 53; 60 + 7 would cross 64.
    expected = word(
        *((0, 2), (8, 1), (16, 2), (25, 3), (39, 4), (53, 5)),
        *((64, 6), (71, 7), (79, 8), (87, 9), (93, 10)),
    )
    assert encode([gemm], config) == expected


def test_micro_ops_are_those_computed_by_hand() -> None:
    assert encode_uops([Uop(3, 5, 7), Uop(2047, 2047, 1023)], DEFAULT) == (
        (3 | 5 << 11 | 7 << 22).to_bytes(4, "little") + b"\xff" * 4
    )
    # 8x8x8: dst 9 bits, src max(9, 9), wgt 12.
    expected = (3 | 5 << 9 | 4095 << 18).to_bytes(4, "little")
    assert encode_uops([Uop(3, 5, 4095)], CONFIGS["8x8x8"]) == expected
    # LINP 10, LACC 11: the ALU's second operand is an accumulator too.
    expected = (3 | 2047 << 11 | 7 << 22).to_bytes(4, "little")
    assert encode_uops([Uop(3, 2047, 7)], CONFIGS["few inputs"]) == expected
    # LINP 8, LACC 7.
    expected = (3 | 255 << 7 | 63 << 15).to_bytes(4, "little")
    assert encode_uops([Uop(3, 255, 63)], CONFIGS["small buffers"]) == expected


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CONFIGS)
@given(data=st.data())
def test_programs_round_trip(name: str, data: st.DataObject) -> None:
    config = CONFIGS[name]
    program = data.draw(st.lists(instructions(config), max_size=20))
    encoded = encode(program, config)
    assert len(encoded) == 16 * len(program)
    assert decode(encoded, config) == tuple(program)
    micro_ops = data.draw(st.lists(uops(config), max_size=20))
    assert decode_uops(encode_uops(micro_ops, config), config) == tuple(micro_ops)


@given(st.binary(min_size=16, max_size=16))
def test_bytes_are_an_instruction_that_encodes_to_them_or_are_refused(data: bytes) -> None:
    try:
        found = decode(data, DEFAULT)
    except ProgramError as error:
        message = str(error)
    else:
        assert encode(found, DEFAULT) == data
        return
    assert re.match(r"instruction 0\b.*allowed: ", message)


REFUSED: dict[str, tuple[Instruction, str]] = {
    "y": (
        Load(Memory.INP, 0, 0, 70_000, 1, 1),
        "instruction 1 (LOAD): y = 70000 does not fit; allowed: 0..65535",
    ),
    "pad": (
        Load(Memory.INP, 0, 0, 1, 1, 1, x_after=16),
        "instruction 1 (LOAD): x_after = 16 does not fit; allowed: 0..15",
    ),
    "negative": (
        Store(Memory.OUT, -1, 0, 1, 1, 1),
        "instruction 1 (STORE): sram = -1 does not fit; allowed: 0..65535",
    ),
    "beyond 64 bits": (
        Store(Memory.OUT, 0, 2**70, 1, 1, 1),
        f"instruction 1 (STORE): dram = {2**70} does not fit; allowed: 0..4294967295",
    ),
    "fraction": (
        Store(Memory.OUT, 0, 1.5, 1, 1, 1),  # type: ignore[arg-type]
        "instruction 1 (STORE): dram is 1.5, not an integer",
    ),
    "factor": (
        Gemm(0, 1, 1, 1, wgt=Factors(0, 1024)),
        "instruction 1 (GEMM): wgt.inner = 1024 does not fit; allowed: 0..1023",
    ),
    "iterations": (
        Gemm(0, 1, 16_384, 1),
        "instruction 1 (GEMM): outer = 16384 does not fit; allowed: 0..16383",
    ),
    "immediate": (
        Alu(AluOp.ADD, 0, 1, 1, 1, use_immediate=True, immediate=32_768),
        "instruction 1 (ALU): immediate = 32768 does not fit; allowed: -32768..32767",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_that_does_not_fit_is_named_with_its_place(case: str) -> None:
    instruction, message = REFUSED[case]
    with pytest.raises(ProgramError) as caught:
        encode([LOAD, instruction, instruction], DEFAULT)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "uop, message",
    [
        (Uop(2048), "micro-op 1: dst = 2048 does not fit; allowed: 0..2047"),
        (Uop(0, -1), "micro-op 1: src = -1 does not fit; allowed: 0..2047"),
        (Uop(0, 0, 1024), "micro-op 1: wgt = 1024 does not fit; allowed: 0..1023"),
        (Uop(0, 0, 0.5), "micro-op 1: wgt is 0.5, not an integer"),  # type: ignore[arg-type]
    ],
)
def test_a_micro_op_that_does_not_fit_is_named(uop: Uop, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        encode_uops([Uop(1), uop], DEFAULT)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "data, parts",
    [
        (word((0, 5)), ("instruction 1:", "unknown opcode 5", "4 ALU")),
        (word((0, 0), (7, 5)), ("(LOAD): unknown memory 5", "4 OUT")),
        (word((0, 4), (108, 7)), ("(ALU): unknown op 7", "3 SHR")),
        (word((0, 0), (58, 1), (63, 1)), ("(LOAD): reserved bits 58, 63 set", "allowed: 0")),
        (word((0, 2), (63, 1)), ("(GEMM): reserved bit 63 set",)),
        (word((0, 4), (7, 1)), ("(ALU): reserved bit 7 set",)),
        (word((0, 3), (127, 1)), ("(FINISH): reserved bit 127 set",)),
        (b"\0" * 15, ("31 bytes", "a multiple of 16")),
    ],
)
def test_bytes_that_are_no_instruction_are_reported(data: bytes, parts: tuple[str, ...]) -> None:
    with pytest.raises(ProgramError) as caught:
        decode(encode([GEMM], DEFAULT) + data, DEFAULT)
    for part in parts:
        assert part in str(caught.value)


def test_reserved_bits_of_a_micro_op_are_reported() -> None:
    with pytest.raises(ProgramError, match=r"micro-op 1: reserved bits 30, 31 set"):
        decode_uops(b"\0" * 4 + b"\xff" * 4, CONFIGS["8x8x8"])


def test_micro_ops_pack_from_arrays() -> None:
    columns = np.array([[1, 2], [3, 4], [5, 6]])
    words = pack_uops(*columns, config=DEFAULT)
    assert words.tobytes() == encode_uops([Uop(1, 3, 5), Uop(2, 4, 6)], DEFAULT)
    assert np.array_equal(unpack_uops(words, DEFAULT), columns)


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"log_uop_buff": 16}, ("fields of GEMM do not fit 128 bits", "in units of 64")),
        ({"log_acc_buff": 18}, ("fields of GEMM", "dst.outer 12")),
        ({"log_acc_buff": 18, "log_inp_buff": 13}, ("fields of ALU", "immediate 16")),
        ({"log_inp_buff": 4}, ("INP holds 2^0 elements", "2^1..2^16")),
        ({"log_inp_buff": 21}, ("INP holds 2^17 elements", "2^1..2^16")),
    ],
)
def test_a_configuration_whose_fields_do_not_fit_is_named(
    changes: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with pytest.raises(SpecError) as caught:
        encode([Finish()], VtaConfig(**changes))
    for part in ("VTA configuration", *parts):
        assert part in str(caught.value)
