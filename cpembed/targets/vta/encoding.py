"""Conversion of instructions to bytes and back, and to columns of numbers.

A program has hundreds of thousands of instructions: fields are gathered, checked, shifted and
masked as columns of numpy arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import fields as attributes
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpembed.errors import ProgramError
from cpembed.targets.vta import isa

Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]
FieldValues = dict[str, list[Any]]
_TOKENS = [isa.Tokens(bool(n & 1), bool(n & 2), bool(n & 4), bool(n & 8)) for n in range(16)]
_INTEGER_KINDS = "biu"
"""Kinds of numpy's types whose values are compared and shifted without loss."""

_TOKENS_LOW = 3
"""Lowest bit of the four dependence flags, after the opcode."""


def encode(instructions: Sequence[isa.Instruction], config: isa.VtaConfig) -> bytes:
    """Encode instructions as 16 bytes each.

    Raises :class:`ProgramError` for a value that does not fit its field, naming the instruction,
    the field, the value and the range; :class:`SpecError` if the configuration has no encoding.
    """
    formats = isa.formats_of(config)
    words = np.zeros((len(instructions), 2), dtype=np.uint64)
    faults: dict[int, str] = {}
    for kind, opcode in isa.OPCODES.items():
        rows = [n for n, instruction in enumerate(instructions) if type(instruction) is kind]
        if not rows:
            continue
        fields = formats.instructions[opcode]
        columns = _gathered([instructions[row] for row in rows], [field.name for field in fields])
        fault = _first_misfit(columns, fields)
        if fault is not None:
            # Another kind may have an earlier fault: the first of the program is reported.
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


def decode(data: bytes, config: isa.VtaConfig) -> tuple[isa.Instruction, ...]:
    """Decode instructions from their bytes.

    Raises :class:`ProgramError` for the first invalid instruction: an unknown opcode, memory or ALU
    operation, reserved bits that are set, or an incomplete instruction at the end.
    """
    if len(data) % isa.INSTRUCTION_BYTES:
        raise ProgramError(
            f"{len(data)} bytes are not a whole number of instructions; "
            f"allowed: a multiple of {isa.INSTRUCTION_BYTES}"
        )
    # Two halves of 64 bits for each instruction: no field crosses bit 64.
    words = np.frombuffer(data, dtype="<u8").astype(np.uint64).reshape(-1, 2)
    formats = isa.formats_of(config)
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
    dst: ArrayLike, src: ArrayLike, wgt: ArrayLike, *, config: isa.VtaConfig
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
    fields = isa.formats_of(config).uop
    fault = _first_misfit(columns, fields)
    if fault is not None:
        raise ProgramError(f"micro-op {fault[0]}: {fault[1]}")
    words = np.zeros(len(columns), dtype=np.uint64)
    for column, field in enumerate(fields):
        words |= columns[:, column].astype(np.uint64) << np.uint64(field.low)
    return words.astype("<u4")


def unpack_uops(
    words: NDArray[np.uint32], config: isa.VtaConfig
) -> tuple[Numbers, Numbers, Numbers]:
    """Decode micro-ops into their indices dst, src and wgt.

    Raises :class:`ProgramError` if reserved bits are set.
    """
    fields = isa.formats_of(config).uop
    wide = words.astype(np.int64)
    spare = wide & ~sum(field.mask for field in fields)
    if spare.any():
        row = int(np.flatnonzero(spare)[0])
        raise ProgramError(f"micro-op {row}: {_reserved(int(spare[row]))}")
    dst, src, wgt = ((wide & field.mask) >> field.low for field in fields)
    return dst, src, wgt


def misfit(field: isa.Field, value: object) -> str | None:
    """Return why a value does not fit its field, or None if it does."""
    if not isinstance(value, int | np.integer):
        return f"{field.name} is {value!r}, not an integer"
    lowest, highest = field.range
    if lowest <= value <= highest:
        return None
    return f"{field.name} = {value} does not fit; allowed: {lowest}..{highest}"


def _gathered(values: Sequence[Any], names: Sequence[str]) -> NDArray[Any]:
    """Return a table with a row for each of one or more values and a column for each attribute."""
    rows = [*map(attrgetter(*names), values)]
    table = np.array(rows)
    # A single float would turn all into floats, and the error could not name it.
    return table if table.dtype.kind in _INTEGER_KINDS else np.array(rows, dtype=object)


def _first_misfit(columns: NDArray[Any], fields: Sequence[isa.Field]) -> tuple[int, str] | None:
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


def _insert(words: Words, field: isa.Field, values: Numbers) -> None:
    half, shift = divmod(field.low, 64)
    bits = values.astype(np.uint64) & np.uint64((1 << field.bits) - 1)
    words[:, half] |= bits << np.uint64(shift)


def _extract(words: Words, field: isa.Field) -> Numbers:
    half, shift = divmod(field.low, 64)
    bits = (words[:, half] >> np.uint64(shift)) & np.uint64((1 << field.bits) - 1)
    values = bits.astype(np.int64)
    # Two's complement: values above the largest positive one are negative.
    return values - ((values > field.range[1]) << field.bits) if field.signed else values


def _check_words(
    words: Words, opcodes: Numbers, instructions: dict[isa.Opcode, tuple[isa.Field, ...]]
) -> None:
    """Raise :class:`ProgramError` for the first word that is no instruction."""
    # All words are tested at once, by masks; only the first wrong one is examined field by field.
    used = np.zeros((8, 2), dtype=np.uint64)
    for opcode, fields in instructions.items():
        mask = sum(field.mask for field in fields) | 7
        used[opcode] = mask & (2**64 - 1), mask >> 64
    wrong = (words & ~used[opcodes]).any(axis=1) | (opcodes > max(isa.Opcode))
    for opcode, fields in instructions.items():
        for field in fields:
            if field.choices is not None:
                wrong |= (opcodes == opcode) & (_extract(words, field) > field.range[1])
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        low, high = words[row].tolist()
        _reject(row, low | high << 64, instructions)


def _reject(row: int, word: int, instructions: dict[isa.Opcode, tuple[isa.Field, ...]]) -> NoReturn:
    code = word & 7
    if code not in {*isa.Opcode}:
        allowed = ", ".join(f"{opcode.value} {opcode.name}" for opcode in isa.Opcode)
        raise ProgramError(f"instruction {row}: unknown opcode {code}; allowed: {allowed}")
    opcode = isa.Opcode(code)
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


def _built(
    opcode: isa.Opcode, columns: FieldValues, tokens: list[isa.Tokens]
) -> Iterable[isa.Instruction]:
    """Return the instructions of one opcode from their fields."""
    # Maps over columns, so that no Python code runs for each field of each instruction.
    arguments: list[Iterable[Any]] = []
    kind = isa.KINDS[opcode]
    for name, type_name in _ATTRIBUTE_TYPES[kind].items():
        if type_name == "Factors":
            pairs = (columns[f"{name}.outer"], columns[f"{name}.inner"])
            arguments.append(map(isa.Factors, *pairs))
        else:
            arguments.append(
                tokens if type_name == "Tokens" else map(_TYPES[type_name], columns[name])
            )
    return map(kind, *arguments)


_TYPES = {kind.__name__: kind for kind in (int, bool, isa.Memory, isa.AluOp)}
_ATTRIBUTE_TYPES = {
    kind: {field.name: str(field.type) for field in attributes(kind)} for kind in isa.KINDS
}
"""Attributes of the instructions, in order, with the names of their types."""


@dataclass(frozen=True, eq=False)
class Columns:
    """A program's instructions as columns of numbers, for the passes that read all of them at once.

    Each instruction has its ``opcode``, its ``module`` (position in
    :data:`~cpembed.targets.vta.isa.MODULES`), and its fields under the names of
    :class:`~cpembed.targets.vta.isa.Field`; a field that an instruction lacks is 0.
    """

    opcode: Numbers
    module: Numbers
    fields: dict[str, Numbers]

    def __len__(self) -> int:
        return len(self.opcode)

    def __getitem__(self, name: str) -> Numbers:
        return self.fields[name]

    def table(self, *names: str) -> Numbers:
        """Return fields side by side, as a contiguous row for each instruction."""
        return np.ascontiguousarray(np.stack([self.fields[name] for name in names], axis=1))

    def is_a(self, *opcodes: isa.Opcode) -> NDArray[np.bool_]:
        """Return a mask of the instructions with one of some opcodes."""
        return np.isin(self.opcode, opcodes)

    def transfers(self, *memories: isa.Memory) -> NDArray[np.bool_]:
        """Return a mask of the LOADs and STOREs of some memories."""
        return self.is_a(isa.Opcode.LOAD, isa.Opcode.STORE) & np.isin(
            self.fields["memory"], memories
        )

    def queues(self, action: str) -> list[tuple[int, ...]]:
        """Return, for every instruction, the queues that it pops or pushes (the ``action``)."""
        # An action has two flags, so each module has a table of four combinations.
        flags = [flag for flag in isa.TOKEN_FLAGS if flag.startswith(action)]
        tables = [
            [
                tuple(
                    queue
                    for k, flag in enumerate(flags)
                    if bits >> k & 1 and (queue := isa.queue_of(module, flag)) is not None
                )
                for bits in range(4)
            ]
            for module in range(len(isa.MODULES))
        ]
        bits = sum(self.fields[f"tokens.{flag}"] << k for k, flag in enumerate(flags))
        pairs = zip(self.module.tolist(), np.asarray(bits).tolist(), strict=True)
        return [tables[module][flags_set] for module, flags_set in pairs]


def columns_of(instructions: tuple[isa.Instruction, ...], config: isa.VtaConfig) -> Columns:
    """Return the columns of a configuration's instructions.

    Raises :class:`ProgramError` for a field that is not an integer.
    """
    formats = isa.formats_of(config)
    names = {field.name for fields in formats.instructions.values() for field in fields}
    columns: dict[str, Numbers] = {
        name: np.zeros(len(instructions), np.int64)
        for name in (*(f"tokens.{flag}" for flag in isa.TOKEN_FLAGS), *sorted(names))
    }
    opcodes = np.array([isa.OPCODES[type(i)] for i in instructions], np.int64)
    for opcode, fields in formats.instructions.items():
        rows = np.flatnonzero(opcodes == opcode)
        if not len(rows):
            continue
        names_of_fields = [field.name for field in fields]
        table = _gathered([instructions[row] for row in rows.tolist()], names_of_fields)
        if table.dtype.kind not in _INTEGER_KINDS:
            # Encoding raises the error that names the instruction and the field.
            encode(instructions, config)
            raise ProgramError("an instruction's field is no integer of 64 bits")
        for k, name in enumerate(names_of_fields):
            columns[name][rows] = table[:, k].astype(np.int64)
    # The same rule as module_of, for all instructions at once.
    is_loaded = (opcodes == isa.Opcode.LOAD) & np.isin(
        columns["memory"], (isa.Memory.INP, isa.Memory.WGT)
    )
    modules = np.where(opcodes == isa.Opcode.STORE, 2, np.where(is_loaded, 0, 1)).astype(np.int64)
    return Columns(opcodes, modules, columns)


def sram_extent(columns: Columns, name: str) -> Numbers:
    """Return the extent in SRAM of each transfer: its rows (``y``) or elements of a row (``x``)."""
    # Pads lie in SRAM only. A STORE writes none, and a legal one has none.
    pads = columns[f"{name}_before"] + columns[f"{name}_after"]
    return columns[name] + np.where(columns.is_a(isa.Opcode.LOAD), pads, 0)
