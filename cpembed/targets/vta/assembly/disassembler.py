"""Programs as text that :func:`~cpembed.targets.vta.assembly.assembler.assemble` reads back.

An instruction is a mnemonic, for LOAD and STORE the memory, for ALU the operation, then its fields
as ``name=value``, flags, and tokens. Fields are named as the attributes in
:mod:`cpembed.targets.vta.isa`; ``docs/vta.md`` describes the language.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import fields
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError
from cpembed.targets.vta.encoding import FACTORS, LOOPS, MOVED, PADS, Opcode, unpack_uops
from cpembed.targets.vta.isa import (
    TOKEN_FLAGS,
    Alu,
    AluOp,
    Gemm,
    Instruction,
    Load,
    Memory,
    Store,
    VtaConfig,
)
from cpembed.targets.vta.program import Role, Tensor, VtaProgram

VERSION = 1
TOKENS = {flag.replace("_", "."): flag for flag in TOKEN_FLAGS}
"""Attributes of the dependence flags by their words."""


class Mnemonic(NamedTuple):
    """Syntax of an instruction: ``kind`` has the choices of the word after the mnemonic, and
    ``optional`` fields are 0 if left out.
    """

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
"""Syntax by mnemonic. ``immediate`` sets ``use_immediate``; the ALU does not read an
``unused_immediate``."""

_BYTES_PER_LINE = 16


def disassemble(program: VtaProgram, *, data: bool = True) -> str:
    """Return a program as text, without the tensors' content unless ``data``.

    Assembling the text gives the program again, and disassembling that gives the same text.
    """
    return "\n".join((*_header(program), *_contents(program, data=data), *_code(program), ""))


def instruction_text(program: VtaProgram, number: int) -> str:
    """Return one instruction as :func:`disassemble` writes it."""
    return " ".join(_words(program.instructions[number], _AddressNames(program)))


def _header(program: VtaProgram) -> Iterator[str]:
    config = program.config
    shape = f"{config.batch}x{config.block}x{config.block}"
    yield f".vta {VERSION}  ; GEMM {shape}"
    default = VtaConfig()
    sizes = [(f.name, getattr(config, f.name), getattr(default, f.name)) for f in fields(config)]
    changed = [f"{name}={value}" for name, value, standard in sizes if value != standard]
    if changed:
        yield f".config {' '.join(changed)}"
    end = max((t.offset + t.size_bytes for t in program.tensors.values()), default=0)
    if program.base or len(program.dram) != end:
        yield f".dram base={program.base:#x} size={len(program.dram):#x}"
    for name, tensor in program.tensors.items():
        role = f" role={tensor.role}" if tensor.role else ""
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        yield f".tensor {name}{role} dtype={tensor.dtype} shape={shape} at={tensor.offset:#x}"


def _contents(program: VtaProgram, *, data: bool) -> Iterator[str]:
    """Yield the lines of DRAM's initial content; lines of zeros are left out."""
    for name, tensor in program.tensors.items():
        content = program.dram[tensor.offset : tensor.offset + tensor.size_bytes]
        uops = _uops(tensor, content, program.config)
        if uops is not None:
            yield from ("", f".uop {name}", *uops)
        elif data and content.any():
            yield from ("", f".data {name}", *_bytes(content, 0))
    gaps = [(start, end) for start, end in _gaps(program) if program.dram[start:end].any()]
    if data and gaps:
        yield from ("", ".data  ; outside the tensors")
        for start, end in gaps:
            yield from _bytes(program.dram[start:end], start)


def _uops(tensor: Tensor, content: NDArray[np.uint8], config: VtaConfig) -> list[str] | None:
    """Return the lines of a tensor of micro-ops; None if its content cannot be read as such."""
    if tensor.role is not Role.UOPS or tensor.dtype != "uint32":
        return None
    try:
        columns = unpack_uops(content.view("<u4"), config)
    except ProgramError:
        return None
    return [
        f"dst={dst}" + (f" src={src}" if src else "") + (f" wgt={wgt}" if wgt else "")
        for dst, src, wgt in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _bytes(content: NDArray[np.uint8], first: int) -> Iterator[str]:
    """Yield lines of bytes, each with its offset; lines of zeros are left out."""
    for start in range(0, len(content), _BYTES_PER_LINE):
        line = content[start : start + _BYTES_PER_LINE]
        if line.any():
            yield f"{first + start:#06x}: {line.tobytes().hex(' ')}"


def _gaps(program: VtaProgram) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the image's bytes that belong to no tensor."""
    end = 0
    for tensor in sorted(program.tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.offset > end:
            yield end, tensor.offset
        end = max(end, tensor.offset + tensor.size_bytes)
    if end < len(program.dram):
        yield end, len(program.dram)


def _code(program: VtaProgram) -> Iterator[str]:
    """Yield the instructions, each with its number as a comment."""
    yield from ("", ".code")
    names = _AddressNames(program)
    for number, instruction in enumerate(program.instructions):
        text = " ".join(_words(instruction, names))
        yield f"{text}  ; {number}"


class _AddressNames:
    """Texts of DRAM addresses, relative to the tensors that they lie in."""

    def __init__(self, program: VtaProgram) -> None:
        self._program = program
        self._tensors = sorted((t.offset, name, t) for name, t in program.tensors.items())
        self._starts = [offset for offset, _, _ in self._tensors]

    def text(self, transfer: Load | Store) -> str:
        size = self._program.config.element_bytes(transfer.memory)
        base = self._program.base
        byte = transfer.dram * size - base
        place = bisect_right(self._starts, byte) - 1
        if place < 0:
            return str(transfer.dram)
        offset, name, tensor = self._tensors[place]
        if byte >= offset + tensor.size_bytes or (base + offset) % size:
            return str(transfer.dram)
        elements = (byte - offset) // size
        return f"{name}+{elements}" if elements else name


def _words(instruction: Instruction, names: _AddressNames) -> Iterator[str]:
    mnemonic = type(instruction).__name__.lower()
    syntax = MNEMONICS[mnemonic]
    yield mnemonic
    if isinstance(instruction, Load | Store):
        yield instruction.memory.name.lower()
    elif isinstance(instruction, Alu):
        yield instruction.op.name.lower()
    for name in syntax.required:
        if name == "dram" and isinstance(instruction, Load | Store):
            yield f"dram={names.text(instruction)}"
        else:
            yield f"{name}={attrgetter(name)(instruction)}"
    for name in syntax.optional:
        if name.endswith("immediate"):
            continue
        value = attrgetter(name)(instruction)
        if value:
            yield f"{name}={value}"
    if isinstance(instruction, Alu) and (instruction.use_immediate or instruction.immediate):
        yield (
            "" if instruction.use_immediate else "unused_"
        ) + f"immediate={instruction.immediate}"
    if isinstance(instruction, Gemm) and instruction.reset:
        yield "reset"
    yield from (word for word, flag in TOKENS.items() if getattr(instruction.tokens, flag))
