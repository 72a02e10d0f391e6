"""Instructions and micro-ops as bits: the fields of any configuration, encoding and decoding.

Fields are packed from bit 0 in the order of VTA's C structures (apache/tvm-vta, ``hw_spec.h``);
one that would cross bit 64 starts there, as in a C bit-field of 64-bit units. The widths of indices
follow the buffers' sizes, so that not every configuration has instructions of 128 bits.

A program has hundreds of thousands of instructions: fields are gathered, checked, shifted and
masked as columns of numpy arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import fields as attributes
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpembed.errors import ProgramError, SpecError
from cpembed.targets.vta.isa import (
    TOKEN_FLAGS,
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

INSTRUCTION_BYTES = 16
UOP_BYTES = 4
_UNIT_BITS, _INSTRUCTION_BITS, _UOP_BITS = 64, 128, 32
"""Bits of the unit that no field crosses, of an instruction, and of a micro-op."""


class Opcode(IntEnum):
    """Kind of an instruction, in its bits 0 to 2."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


@dataclass(frozen=True, slots=True)
class Field:
    """Bit field of an instruction: ``bits`` bits from bit ``low`` on.

    ``name`` is the attribute in :mod:`cpembed.targets.vta.isa`, with dots. ``choices`` are the
    codes of a field that does not take all of its values.
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
        """Mask of the field's bits within the instruction."""
        return ((1 << self.bits) - 1) << self.low


@dataclass(frozen=True)
class Formats:
    """Fields of the instructions by opcode (the opcode itself left out), and of a micro-op."""

    instructions: dict[Opcode, tuple[Field, ...]]
    uop: tuple[Field, ...]

    def field(self, opcode: Opcode, name: str) -> Field:
        """Return the field of a name in the instructions of an opcode."""
        return next(field for field in self.instructions[opcode] if field.name == name)


_Width = tuple[str, int] | tuple[str, int, type[IntEnum]]
_TOKEN_WIDTHS: tuple[_Width, ...] = tuple((f"tokens.{name}", 1) for name in TOKEN_FLAGS)
MOVED, PADS = ("sram", "dram", "y", "x", "x_stride"), ("y_before", "y_after", "x_before", "x_after")
LOOPS = ("uop_begin", "uop_end", "outer", "inner")
FACTORS = tuple(f"{name}.{loop}" for name in ("dst", "src", "wgt") for loop in ("outer", "inner"))
_TRANSFER: tuple[_Width, ...] = (
    ("memory", 3, Memory),
    *((name, 32 if name == "dram" else 16) for name in MOVED),
    *((name, 4) for name in PADS),
)

_MAX_ELEMENT_BYTES = 1 << 20
"""Maximum size of an element: int8 weights of a block of 1024. Byte addresses then fit 64 bits."""

_RESERVED = ""
"""Name of a bit that is always 0."""


@lru_cache
def formats_of(config: VtaConfig) -> Formats:
    """Return the formats of a configuration's instructions and micro-ops.

    Raises :class:`SpecError` where fields do not fit, a buffer holds less than two elements, or an
    element is smaller than a byte or larger than a mebibyte.
    """
    for memory in Memory:
        if not 1 <= config.element_bytes(memory) <= _MAX_ELEMENT_BYTES:
            raise SpecError(
                f"VTA configuration: an element of {memory.name} has "
                f"{config.element_bytes(memory)} bytes; allowed: 1..{_MAX_ELEMENT_BYTES}, "
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
        _layout(
            "micro-ops", (("dst", acc), ("src", max(acc, inp)), ("wgt", wgt)), _UOP_BITS, _UOP_BITS
        ),
    )


def _factors(name: str, bits: int) -> tuple[tuple[str, int], tuple[str, int]]:
    return (f"{name}.outer", bits), (f"{name}.inner", bits)


def _placed(name: str, widths: tuple[_Width, ...]) -> tuple[Field, ...]:
    """Return the fields of an instruction, without its opcode."""
    return _layout(name, (("opcode", 3), *_TOKEN_WIDTHS, *widths), _UNIT_BITS, _INSTRUCTION_BITS)[
        1:
    ]


def _layout(name: str, widths: tuple[_Width, ...], unit: int, size: int) -> tuple[Field, ...]:
    """Lay fields out one after the other in ``size`` bits, none across a multiple of ``unit``."""
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


Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]
FieldValues = dict[str, list[Any]]
KINDS: tuple[type[Instruction], ...] = (Load, Store, Gemm, Finish, Alu)
OPCODES = {kind: Opcode[kind.__name__.upper()] for kind in KINDS}
_TOKENS = [Tokens(bool(n & 1), bool(n & 2), bool(n & 4), bool(n & 8)) for n in range(16)]
_INTEGER_KINDS = "biu"
"""Kinds of numpy's types whose values are compared and shifted without loss."""

_TOKENS_LOW = 3
"""Lowest bit of the four dependence flags, after the opcode."""


def encode(instructions: Sequence[Instruction], config: VtaConfig) -> bytes:
    """Encode instructions as 16 bytes each.

    Raises :class:`ProgramError` for a value that does not fit its field, naming the instruction,
    the field, the value and the range; :class:`SpecError` if the configuration has no encoding.
    """
    formats = formats_of(config)
    words = np.zeros((len(instructions), 2), dtype=np.uint64)
    faults: dict[int, str] = {}
    for kind, opcode in OPCODES.items():
        rows = [n for n, instruction in enumerate(instructions) if type(instruction) is kind]
        if not rows:
            continue
        fields = formats.instructions[opcode]
        columns = _gathered([instructions[row] for row in rows], [field.name for field in fields])
        fault = _first_misfit(columns, fields)
        if fault is not None:
            faults[rows[fault[0]]] = f"({opcode.name}): {fault[1]}"
            continue
        encoded = np.full((len(rows), 2), [int(opcode), 0], dtype=np.uint64)
        for column, field in enumerate(fields):
            _insert(encoded, field, columns[:, column].astype(np.int64))
        words[rows] = encoded
    if faults:
        row = min(faults)
        raise ProgramError(f"instruction {row} {faults[row]}")
    return words.astype("<u8").tobytes()


def decode(data: bytes, config: VtaConfig) -> tuple[Instruction, ...]:
    """Decode instructions from their bytes.

    Raises :class:`ProgramError` for the first invalid instruction: an unknown opcode, memory or ALU
    operation, reserved bits that are set, or an incomplete instruction at the end.
    """
    if len(data) % INSTRUCTION_BYTES:
        raise ProgramError(
            f"{len(data)} bytes are not a whole number of instructions; "
            f"allowed: a multiple of {INSTRUCTION_BYTES}"
        )
    words = np.frombuffer(data, dtype="<u8").astype(np.uint64).reshape(-1, 2)
    formats = formats_of(config)
    opcodes = (words[:, 0] & np.uint64(7)).astype(np.int64)
    _check_words(words, opcodes, formats.instructions)
    result: list[Any] = [None] * len(words)
    for opcode, fields in formats.instructions.items():
        rows = np.flatnonzero(opcodes == opcode)
        part = words[rows]
        columns = {field.name: _extract(part, field).tolist() for field in fields}
        flags = (part[:, 0] >> np.uint64(_TOKENS_LOW)) & np.uint64(15)
        tokens = [_TOKENS[int(flag)] for flag in flags]
        for row, instruction in zip(rows.tolist(), _built(opcode, columns, tokens), strict=True):
            result[row] = instruction
    return tuple(result)


def pack_uops(
    dst: ArrayLike, src: ArrayLike, wgt: ArrayLike, *, config: VtaConfig
) -> NDArray[np.uint32]:
    """Encode micro-ops as words.

    Parameters
    ----------
    dst, src, wgt
        Indices of ACC, INP (or ACC) and WGT, one of each for a micro-op.
    config
        Configuration, which has the widths of the fields.

    Raises
    ------
    ProgramError
        For an index that does not fit its field.
    """
    arrays = [np.atleast_1d(np.asarray(column)) for column in (dst, src, wgt)]
    if not all(column.dtype.kind in _INTEGER_KINDS for column in arrays):
        # Stacking would convert to floats, and the error could not name the value.
        arrays = [column.astype(object) for column in arrays]
    columns = np.stack(arrays, -1)
    fields = formats_of(config).uop
    fault = _first_misfit(columns, fields)
    if fault is not None:
        raise ProgramError(f"micro-op {fault[0]}: {fault[1]}")
    words = np.zeros(len(columns), dtype=np.uint64)
    for column, field in enumerate(fields):
        words |= columns[:, column].astype(np.uint64) << np.uint64(field.low)
    return words.astype("<u4")


def unpack_uops(words: NDArray[np.uint32], config: VtaConfig) -> tuple[Numbers, Numbers, Numbers]:
    """Decode micro-ops into their indices dst, src and wgt.

    Raises :class:`ProgramError` if reserved bits are set.
    """
    fields = formats_of(config).uop
    wide = words.astype(np.int64)
    spare = wide & ~sum(field.mask for field in fields)
    if spare.any():
        row = int(np.flatnonzero(spare)[0])
        raise ProgramError(f"micro-op {row}: {_reserved(int(spare[row]))}")
    dst, src, wgt = ((wide & field.mask) >> field.low for field in fields)
    return dst, src, wgt


def misfit(field: Field, value: object) -> str | None:
    """Return why a value does not fit its field, or None if it does."""
    if not isinstance(value, int | np.integer):
        return f"{field.name} is {value!r}, not an integer"
    lowest, highest = field.range
    if lowest <= value <= highest:
        return None
    return f"{field.name} = {value} does not fit; allowed: {lowest}..{highest}"


def _gathered(values: Sequence[Any], names: Sequence[str]) -> NDArray[Any]:
    """Return a table with a row for each value and a column for each attribute; there is at least
    one value.
    """
    rows = [*map(attrgetter(*names), values)]
    table = np.array(rows)
    # A single float would turn all into floats, and the error could not name it.
    return table if table.dtype.kind in _INTEGER_KINDS else np.array(rows, dtype=object)


def _first_misfit(columns: NDArray[Any], fields: Sequence[Field]) -> tuple[int, str] | None:
    """Return the first row with a value that does not fit its field, and why; None if all fit."""
    rows: Iterable[int] = range(len(columns))
    if columns.dtype.kind in _INTEGER_KINDS:
        lowest, highest = (
            np.array(bound) for bound in zip(*(f.range for f in fields), strict=True)
        )
        rows = np.flatnonzero(((columns < lowest) | (columns > highest)).any(axis=1))[:1].tolist()
    for row in rows:
        for field, value in zip(fields, columns[row].tolist(), strict=True):
            problem = misfit(field, value)
            if problem is not None:
                return row, problem
    return None


def _insert(words: Words, field: Field, values: Numbers) -> None:
    half, shift = divmod(field.low, 64)
    bits = values.astype(np.uint64) & np.uint64((1 << field.bits) - 1)
    words[:, half] |= bits << np.uint64(shift)


def _extract(words: Words, field: Field) -> Numbers:
    half, shift = divmod(field.low, 64)
    bits = (words[:, half] >> np.uint64(shift)) & np.uint64((1 << field.bits) - 1)
    values = bits.astype(np.int64)
    return values - ((values > field.range[1]) << field.bits) if field.signed else values


def _check_words(
    words: Words, opcodes: Numbers, instructions: dict[Opcode, tuple[Field, ...]]
) -> None:
    """Raise :class:`ProgramError` for the first word that is no instruction."""
    used = np.zeros((8, 2), dtype=np.uint64)
    for opcode, fields in instructions.items():
        mask = sum(field.mask for field in fields) | 7
        used[opcode] = mask & (2**64 - 1), mask >> 64
    wrong = (words & ~used[opcodes]).any(axis=1) | (opcodes > max(Opcode))
    for opcode, fields in instructions.items():
        for field in fields:
            if field.choices is not None:
                wrong |= (opcodes == opcode) & (_extract(words, field) > field.range[1])
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        low, high = words[row].tolist()
        _reject(row, low | high << 64, instructions)


def _reject(row: int, word: int, instructions: dict[Opcode, tuple[Field, ...]]) -> NoReturn:
    code = word & 7
    if code not in {*Opcode}:
        allowed = ", ".join(f"{opcode.value} {opcode.name}" for opcode in Opcode)
        raise ProgramError(f"instruction {row}: unknown opcode {code}; allowed: {allowed}")
    opcode = Opcode(code)
    where = f"instruction {row} ({opcode.name})"
    for field in instructions[opcode]:
        value = (word & field.mask) >> field.low
        if field.choices is not None and value > field.range[1]:
            allowed = ", ".join(f"{choice.value} {choice.name}" for choice in field.choices)
            raise ProgramError(f"{where}: unknown {field.name} {value}; allowed: {allowed}")
    spare = word & ~(sum(field.mask for field in instructions[opcode]) | 7)
    raise ProgramError(f"{where}: {_reserved(spare)}")


def _reserved(spare: int) -> str:
    bits = [str(bit) for bit in range(spare.bit_length()) if spare >> bit & 1]
    plural = "s" if len(bits) > 1 else ""
    return f"reserved bit{plural} {', '.join(bits)} set; allowed: 0 (is the configuration right?)"


def _built(opcode: Opcode, columns: FieldValues, tokens: list[Tokens]) -> Iterable[Instruction]:
    """Return the instructions of one opcode from their fields."""
    arguments: list[Iterable[Any]] = []
    kind = KINDS[opcode]
    for name, type_name in _ATTRIBUTE_TYPES[kind].items():
        if type_name == "Factors":
            pairs = (columns[f"{name}.outer"], columns[f"{name}.inner"])
            arguments.append(map(Factors, *pairs))
        else:
            arguments.append(
                tokens if type_name == "Tokens" else map(_TYPES[type_name], columns[name])
            )
    return map(kind, *arguments)


_TYPES = {kind.__name__: kind for kind in (int, bool, Memory, AluOp)}
_ATTRIBUTE_TYPES = {
    kind: {field.name: str(field.type) for field in attributes(kind)} for kind in KINDS
}
"""Attributes of the instructions, in order, with the names of their types."""
