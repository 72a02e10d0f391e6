"""Words of VTA's assembly language; ``docs/vta.md`` describes it.

An instruction is a mnemonic, for LOAD and STORE the memory, for ALU the operation, then its fields
as ``name=value``, flags, and tokens. Fields are named as the attributes in
:mod:`cpembed.targets.vta.isa`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from cpembed.targets.vta.formats import FACTORS, LOOPS, MOVED, PADS, Opcode
from cpembed.targets.vta.isa import TOKEN_FLAGS, AluOp, Memory

VERSION = 1

TOKENS = {flag.replace("_", "."): flag for flag in TOKEN_FLAGS}
"""Words of the dependence flags, and their attributes."""


class Mnemonic(NamedTuple):
    """``kind`` names the word after the mnemonic; ``optional`` fields are 0 where left out."""

    opcode: Opcode
    kind: type[IntEnum] | None
    required: tuple[str, ...]
    optional: tuple[str, ...]
    flags: tuple[str, ...] = ()


MNEMONICS = {
    "load": Mnemonic(Opcode.LOAD, Memory, MOVED, PADS),
    "store": Mnemonic(Opcode.STORE, Memory, MOVED, PADS),
    "gemm": Mnemonic(Opcode.GEMM, None, LOOPS, FACTORS, ("reset",)),
    "alu": Mnemonic(Opcode.ALU, AluOp, LOOPS, (*FACTORS[:4], "immediate", "unused_immediate")),
    "finish": Mnemonic(Opcode.FINISH, None, (), ()),
}
"""``immediate`` sets ``use_immediate``; ``unused_immediate`` is one that the ALU does not read."""
