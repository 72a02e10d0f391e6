"""Words of VTA's assembly language; ``docs/vta.md`` describes it.

An instruction is a mnemonic, for LOAD and STORE the memory, for ALU the operation, then its fields
as ``name=value``, flags, and tokens. Fields are named as the attributes in
:mod:`cpembed.targets.vta.isa`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from cpembed.targets.vta.formats import Opcode
from cpembed.targets.vta.isa import AluOp, Memory

VERSION = 1

TOKENS = {
    "pop.prev": "pop_prev",
    "pop.next": "pop_next",
    "push.prev": "push_prev",
    "push.next": "push_next",
}
"""Words of the dependence flags, and their attributes."""

_FACTORS = ("dst.outer", "dst.inner", "src.outer", "src.inner")
_LOOPS = ("uop_begin", "uop_end", "outer", "inner")
_MOVED = ("sram", "dram", "y", "x", "x_stride")
_PADS = ("y_before", "y_after", "x_before", "x_after")


class Mnemonic(NamedTuple):
    """``kind`` names the word after the mnemonic; ``optional`` fields are 0 where left out."""

    opcode: Opcode
    kind: type[IntEnum] | None
    required: tuple[str, ...]
    optional: tuple[str, ...]
    flags: tuple[str, ...] = ()


MNEMONICS = {
    "load": Mnemonic(Opcode.LOAD, Memory, _MOVED, _PADS),
    "store": Mnemonic(Opcode.STORE, Memory, _MOVED, _PADS),
    "gemm": Mnemonic(Opcode.GEMM, None, _LOOPS, (*_FACTORS, "wgt.outer", "wgt.inner"), ("reset",)),
    "alu": Mnemonic(Opcode.ALU, AluOp, _LOOPS, (*_FACTORS, "immediate", "unused_immediate")),
    "finish": Mnemonic(Opcode.FINISH, None, (), ()),
}
"""``immediate`` sets ``use_immediate``; ``unused_immediate`` is one that the ALU does not read."""
