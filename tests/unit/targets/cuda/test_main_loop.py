"""Loops of machine code, whose waits stand at the end of a kernel and branch back into them."""

from __future__ import annotations

import pytest

from benchmarks.gpu.main_loop import Instruction, kinds, loops, usual_turn
from benchmarks.gpu.peers import PRODUCT, loop_counts, warp_products

# The main loop is L_main to its branch; it waits out of line at L_wait, which branches to itself
# and back to L_go. The loop over tiles, L_tile, has it inside.
LISTING = """
	.section	.text.product,"ax",@progbits
.L_tile:
        /*0000*/                   MOV R1, 0x1 ;
.L_main:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R3 ;
        /*0030*/              @!P0 BRA `(.L_wait) ;
.L_go:
        /*0040*/                   HGMMA.64x128x16.F32 R24, gdesc[UR24], R24 ;
        /*0050*/                   HGMMA.64x128x16.F32 R24, gdesc[UR24], R24 ;
        /*0060*/               @P1 BRA `(.L_main) ;
        /*0070*/                   STG.E.128 desc[UR18][R2.64], R120 ;
        /*0080*/               @P2 BRA `(.L_tile) ;
        /*0090*/                   EXIT ;
.L_wait:
        /*00a0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R3 ;
        /*00b0*/               @P0 BRA `(.L_go) ;
        /*00c0*/                   BRA `(.L_wait) ;
.L_end:
        /*00d0*/                   BRA `(.L_end) ;
"""


def test_the_innermost_loop_with_products_includes_its_waits() -> None:
    (loop,) = loops(LISTING, PRODUCT)
    assert dict(kinds(loop)) == {"integer": 1, "barriers": 2, "control": 4, "products": 2}


def test_loops_without_a_pattern_are_those_that_wait_too() -> None:
    assert [len(loop) for loop in loops(LISTING)] == [3]


def test_counts_are_those_of_32_products_of_a_warp() -> None:
    counts = loop_counts(LISTING)
    assert counts is not None
    # 64 x 128 x 16 is 16 products of 16 x 8 x 16 of each of four warps.
    assert counts.products == 32
    assert counts.slots == 9
    assert counts.kinds["integer"] == 1


@pytest.mark.parametrize(
    "opcode, products",
    [("HMMA.16816.F32", 1), ("HMMA.1688.F32", 0.5), ("HGMMA.64x256x16.F32", 32)],
)
def test_products_of_a_warp(opcode: str, products: float) -> None:
    assert warp_products(Instruction(opcode, "")) == products


def test_padding_is_no_integer_instruction() -> None:
    padding = Instruction("UIADD3", " URZ, UPT, UPT, URZ, URZ, URZ ;")
    assert dict(kinds([padding])) == {"control": 1}


def test_a_usual_turn_passes_what_few_turns_execute() -> None:
    turn = [i.opcode.split(".")[0] for i in usual_turn(LISTING, PRODUCT)]
    # Neither the wait out of line nor what is around the loop.
    assert turn == ["IADD3", "SYNCS", "BRA", "HGMMA", "HGMMA", "BRA"]


def test_a_usual_turn_has_the_copies() -> None:
    listing = LISTING.replace(
        "IADD3 R2, R2, 0x1, RZ ;",
        """@P3 BRA `(.L_skip) ;
        /*0014*/                   LDGSTS.E R1, [R2] ;
        /*0018*/                   MOV R7, R7 ;
.L_skip:""",
    )
    assert "LDGSTS.E" in [i.opcode for i in usual_turn(listing, PRODUCT)]
