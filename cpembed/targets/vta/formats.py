"""Where the fields of VTA's instructions and micro-ops lie, for any configuration.

Fields are packed from bit 0 in the order of VTA's C structures (apache/tvm-vta, ``hw_spec.h``);
one that would cross bit 64 starts there, as in a C bit-field of 64-bit units. The widths of indices
follow the buffers' sizes, so that not every configuration has instructions of 128 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from cpembed.errors import SpecError
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.isa import TOKEN_FLAGS, AluOp, Memory

INSTRUCTION_BYTES = 16
UOP_BYTES = 4

_HALF, _WHOLE, _UOP = 64, 128, 32
"""Bits of the unit that no field crosses, of an instruction, and of a micro-op."""


class Opcode(IntEnum):
    """Bits 0 to 2 of an instruction."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


@dataclass(frozen=True, slots=True)
class Field:
    """``bits`` bits from bit ``low`` on; ``name`` is the attribute in :mod:`isa`, with dots.

    ``choices`` are the codes of a field that does not take all of its values.
    """

    name: str
    low: int
    bits: int
    signed: bool = False
    choices: type[IntEnum] | None = None

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value."""
        if self.choices is not None:
            return min(self.choices), max(self.choices)
        if self.signed:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1

    @property
    def mask(self) -> int:
        """Its bits in the whole word."""
        return ((1 << self.bits) - 1) << self.low


@dataclass(frozen=True)
class Formats:
    """Fields of the instructions by opcode (the opcode itself left out), and of a micro-op."""

    instructions: dict[Opcode, tuple[Field, ...]]
    uop: tuple[Field, ...]

    def field(self, opcode: Opcode, name: str) -> Field:
        return next(field for field in self.instructions[opcode] if field.name == name)


_Width = tuple[str, int] | tuple[str, int, type[IntEnum]]

_TOKENS: tuple[_Width, ...] = tuple((f"tokens.{name}", 1) for name in TOKEN_FLAGS)
MOVED, PADS = ("sram", "dram", "y", "x", "x_stride"), ("y_before", "y_after", "x_before", "x_after")
LOOPS = ("uop_begin", "uop_end", "outer", "inner")
FACTORS = tuple(f"{name}.{loop}" for name in ("dst", "src", "wgt") for loop in ("outer", "inner"))
_TRANSFER: tuple[_Width, ...] = (
    ("memory", 3, Memory),
    *((name, 32 if name == "dram" else 16) for name in MOVED),
    *((name, 4) for name in PADS),
)
_LARGEST_ELEMENT = 1 << 20
"""Bytes: the weights of a block of 1024; addresses in bytes then fit 64 bits everywhere."""
_RESERVED = ""
"""Name of a bit that is always 0."""


@lru_cache
def formats_of(config: VtaConfig) -> Formats:
    """The formats of a configuration's instructions and micro-ops.

    Raises :class:`SpecError` where fields do not fit, a buffer holds less than two elements, or an
    element is smaller than a byte or larger than a mebibyte.
    """
    for memory in Memory:
        if not 1 <= config.element_bytes(memory) <= _LARGEST_ELEMENT:
            raise SpecError(
                f"VTA configuration: an element of {memory.name} has "
                f"{config.element_bytes(memory)} bytes; allowed: 1..{_LARGEST_ELEMENT}, "
                "change the batch, the block or the width"
            )
    log = {memory: config.log_elements(memory) for memory in Memory}
    for memory, bits in log.items():
        if not 1 <= bits <= 16:
            raise SpecError(
                f"VTA configuration: {memory.name} holds 2^{bits} elements of "
                f"{config.element_bytes(memory)} bytes; allowed: 2^1..2^16, change the buffer"
            )
    uop, inp, wgt, acc = (log[m] for m in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC))
    loops = tuple(zip(LOOPS, (uop, uop + 1, 14, 14), strict=True))
    gemm = (("reset", 1), *loops, *_factors("dst", acc), *_factors("src", inp))
    alu = ((_RESERVED, 1), *loops, *_factors("dst", acc), *_factors("src", acc))
    operation = (("op", 3, AluOp), ("use_immediate", 1), ("immediate", 16))
    return Formats(
        {
            Opcode.LOAD: _placed("LOAD", _TRANSFER),
            Opcode.STORE: _placed("STORE", _TRANSFER),
            Opcode.GEMM: _placed("GEMM", (*gemm, *_factors("wgt", wgt))),
            Opcode.FINISH: _placed("FINISH", ()),
            Opcode.ALU: _placed("ALU", (*alu, *operation)),
        },
        _packed("micro-ops", (("dst", acc), ("src", max(acc, inp)), ("wgt", wgt)), _UOP, _UOP),
    )


def _factors(name: str, bits: int) -> tuple[tuple[str, int], tuple[str, int]]:
    return (f"{name}.outer", bits), (f"{name}.inner", bits)


def _placed(name: str, widths: tuple[_Width, ...]) -> tuple[Field, ...]:
    """Fields of an instruction, without its opcode."""
    return _packed(name, (("opcode", 3), *_TOKENS, *widths), _HALF, _WHOLE)[1:]


def _packed(name: str, widths: tuple[_Width, ...], unit: int, size: int) -> tuple[Field, ...]:
    """Fields one after the other, none across a multiple of ``unit``, in ``size`` bits."""
    fields: list[Field] = []
    end = 0
    for field, bits, *choices in widths:
        low = end if end // unit == (end + bits - 1) // unit else -(-end // unit) * unit
        end = low + bits
        if end > size:
            needed = ", ".join(f"{width[0] or 'reserved'} {width[1]}" for width in widths)
            raise SpecError(
                f"VTA configuration: the fields of {name} do not fit {size} bits"
                + (f" in units of {unit}" if unit < size else "")
                + f": {field} would end at bit {end} ({needed}); "
                "use smaller buffers or larger blocks"
            )
        if field != _RESERVED:
            signed = field == "immediate"
            fields.append(Field(field, low, bits, signed, choices[0] if choices else None))
    return tuple(fields)
