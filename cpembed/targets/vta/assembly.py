"""Assembly language of VTA: instructions as text and back, and whole programs as text.

An instruction is a mnemonic, for LOAD and STORE the memory, for ALU the operation, then its fields
as ``name=value``, flags, and tokens. Fields are named as the attributes in
:mod:`cpembed.targets.vta.isa`; ``docs/vta.md`` describes the language.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError
from cpembed.hw.schema import close_match, joined
from cpembed.targets.vta import isa
from cpembed.targets.vta.encoding import misfit, unpack_uops
from cpembed.targets.vta.program import NAME_RULE, TENSOR_NAME, Role, Tensor, VtaProgram

VERSION = 1
TOKENS = {flag.replace("_", "."): flag for flag in isa.TOKEN_FLAGS}
"""Attributes of the dependence flags by their words."""


class Mnemonic(NamedTuple):
    """Syntax of an instruction.

    ``kind`` has the choices of the word after the mnemonic; ``optional`` fields are 0 if left out.
    """

    opcode: isa.Opcode
    kind: type[IntEnum] | None
    required: tuple[str, ...]
    optional: tuple[str, ...]
    flags: tuple[str, ...] = ()


# ``immediate`` sets ``use_immediate`` too; the ALU does not read an ``unused_immediate``.
MNEMONICS = {
    "load": Mnemonic(isa.Opcode.LOAD, isa.Memory, isa.TRANSFER, isa.PADS),
    "store": Mnemonic(isa.Opcode.STORE, isa.Memory, isa.TRANSFER, isa.PADS),
    "gemm": Mnemonic(isa.Opcode.GEMM, None, isa.LOOPS, isa.FACTORS, flags=("reset",)),
    "alu": Mnemonic(
        isa.Opcode.ALU, isa.AluOp, isa.LOOPS, (*isa.FACTORS[:4], "immediate", "unused_immediate")
    ),
    "finish": Mnemonic(isa.Opcode.FINISH, None, (), ()),
}
"""Syntax by mnemonic."""

NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]+|[0-9]+)")
_COMMENT = ";"
# Converting more digits would only take time: no field has as many.
_MAX_DIGITS = 40
"""Maximum length of a number."""


class Word(NamedTuple):
    """Word of a line, with its line and its first column, both counted from 1."""

    text: str
    line: int
    column: int


class Words:
    """Reader of words, whose errors are :class:`ProgramError` with ``source:line:column``."""

    def __init__(self, source: str) -> None:
        self._source = source

    @staticmethod
    def split(line: str, number: int) -> list[Word]:
        """Return the words of a line before its comment."""
        code = line.partition(_COMMENT)[0]
        # Columns from 1, as editors count them.
        return [Word(m[0], number, m.start() + 1) for m in re.finditer(r"\S+", code)]

    def place(self, word: Word) -> str:
        """Return the place of a word in the text."""
        return f"{self._source}:{word.line}:{word.column}"

    def error(self, word: Word, problem: str) -> ProgramError:
        """Return an error about a word, to be raised."""
        return ProgramError(f"{self.place(word)}: {problem}")

    def require(self, condition: bool, word: Word, problem: str) -> None:
        """Raise an error about a word unless a condition holds."""
        if not condition:
            raise self.error(word, problem)

    def new_name(self, words: list[Word], example: str) -> Word:
        """Return the tensor's name after a directive."""
        self.require(len(words) > 1, words[0], f"{words[0].text} needs a name, as in `{example}`")
        name = words[1]
        problem = f"{name.text!r} is not a name; allowed: {NAME_RULE}"
        self.require(TENSOR_NAME.fullmatch(name.text) is not None, name, problem)
        return name

    def settings(
        self, words: list[Word], allowed: Collection[str], flags: Collection[str] = ()
    ) -> dict[str, tuple[Word, str]]:
        """Read words ``name=value``.

        Parameters
        ----------
        words
            Words to read.
        allowed
            Names that may be set.
        flags
            Words without a value that the line may have too, for messages.

        Returns
        -------
        dict
            The word and the text of its value, by name.
        """
        settings: dict[str, tuple[Word, str]] = {}
        for word in words:
            name, equals, value = word.text.partition("=")
            if name not in allowed or not equals:
                problem = f"unknown field {name!r}" if equals else f"unknown word {name!r}"
                if name in allowed:
                    problem = f"{name} lacks its value, {name}=…"
                choices = [*(f"{choice}=" for choice in allowed), *flags]
                raise self.error(
                    word,
                    f"{problem}; allowed: {joined(choices) or 'nothing'}"
                    + close_match(name, [*allowed, *flags]),
                )
            self.require(name not in settings, word, f"{name} is given more than once: keep one")
            settings[name] = word, value
        return settings

    def numbers(self, words: list[Word], allowed: Collection[str]) -> dict[str, tuple[Word, int]]:
        """Read words ``name=number``, as :meth:`settings` does."""
        settings = self.settings(words, allowed)
        return {name: (word, self.number(word, text)) for name, (word, text) in settings.items()}

    def number(self, word: Word, text: str) -> int:
        """Return the integer of a text, decimal or hexadecimal, that is part of a word."""
        if not NUMBER.fullmatch(text) or len(text) > _MAX_DIGITS:
            raise self.error(word, f"{text!r} is not a number; write 12, -3 or 0x1f")
        return int(text, 16 if "x" in text else 10)

    def choice(self, word: Word, text: str, choices: Collection[str]) -> str:
        """Return a text that is part of a word, after checking that it is one of the choices."""
        if text not in choices:
            allowed = f"{joined(choices)}{close_match(text, choices)}"
            raise self.error(word, f"{text!r} is unknown; allowed: {allowed}")
        return text

    def check(self, word: Word, field: isa.Field, value: int) -> None:
        """Require that the value of a word fits its field."""
        problem = misfit(field, value)
        self.require(problem is None, word, problem or "")

    def at_most(self, words: list[Word], count: int) -> None:
        """Require that a line has at most ``count`` words."""
        for word in words[count:]:
            raise self.error(word, f"{word.text!r} is too much: leave it out")


AddressResolver = Callable[[Word, isa.Memory], int]
"""Return the DRAM address, in elements of the memory, of a word ``NAME`` or ``NAME+NUMBER``."""
PendingInstruction = Callable[[AddressResolver], isa.Instruction]
"""An instruction whose DRAM address may be a name: built once all tensors have their places."""


class InstructionReader:
    """Reader of the instructions of one configuration."""

    def __init__(self, words: Words, config: isa.VtaConfig) -> None:
        self._words = words
        self._config = config
        self._fields = {
            opcode: {field.name: field for field in fields}
            for opcode, fields in isa.formats_of(config).instructions.items()
        }

    def read(self, line: list[Word]) -> PendingInstruction:
        """Read the instruction of a line."""
        first, *rest = line
        syntax = MNEMONICS.get(first.text)
        if syntax is None:
            allowed = f"{joined(MNEMONICS)}{close_match(first.text, MNEMONICS)}"
            raise self._words.error(
                first, f"unknown instruction {first.text!r}; allowed: {allowed}"
            )
        kind = ""
        if syntax.kind is not None:
            names = [member.name.lower() for member in syntax.kind]
            problem = f"{first.text} needs one of {joined(names)} after it"
            self._words.require(bool(rest), first, problem)
            kind = self._words.choice(rest[0], rest[0].text, names).upper()
            rest = rest[1:]
        flags = self._flags(rest, syntax)
        values, address = self._values(first, [w for w in rest if w.text not in flags], syntax)
        # Most instructions have none: they share one object.
        tokens = isa.NO_TOKENS
        if any(word in flags for word in TOKENS):
            tokens = isa.Tokens(*(word in flags for word in TOKENS))
        if syntax.opcode in (isa.Opcode.LOAD, isa.Opcode.STORE):
            return self._transfer(syntax.opcode, isa.Memory[kind], values, address, tokens)
        instruction = _computing(syntax.opcode, kind, values, "reset" in flags, tokens)
        return lambda _: instruction

    def _flags(self, line: list[Word], syntax: Mnemonic) -> set[str]:
        """Return the flags and tokens of a line."""
        flags: set[str] = set()
        for word in line:
            if word.text in TOKENS or word.text in syntax.flags:
                problem = f"{word.text} is given more than once: keep one"
                self._words.require(word.text not in flags, word, problem)
                flags.add(word.text)
        return flags

    def _values(
        self, first: Word, line: list[Word], syntax: Mnemonic
    ) -> tuple[dict[str, int], Word | None]:
        """Return the values by field, and the word of a DRAM address that is a name."""
        flags = (*syntax.flags, *TOKENS)
        settings = self._words.settings(line, (*syntax.required, *syntax.optional), flags)
        missing = [name for name in syntax.required if name not in settings]
        self._words.require(not missing, first, f"{first.text} lacks {joined(missing)}")
        values: dict[str, int] = {}
        address: Word | None = None
        for name, (word, text) in settings.items():
            # A name may be declared further down; a number is checked at once.
            if name == "dram" and not NUMBER.fullmatch(text):
                address = Word(text, word.line, word.column)
                continue
            values[name] = self._words.number(word, text)
            field = self._fields[syntax.opcode][name.removeprefix("unused_")]
            self._words.check(word, field, values[name])
        both = {"immediate", "unused_immediate"} <= values.keys()
        problem = "immediate and unused_immediate exclude each other: keep one"
        self._words.require(not both, first, problem)
        return values, address

    def _transfer(
        self,
        opcode: isa.Opcode,
        memory: isa.Memory,
        values: dict[str, int],
        address: Word | None,
        tokens: isa.Tokens,
    ) -> PendingInstruction:
        make = isa.Load if opcode is isa.Opcode.LOAD else isa.Store
        # Names are resolved at the end, numbers need not wait.
        if address is None:
            instruction = make(memory, **values, tokens=tokens)
            return lambda _: instruction
        return lambda resolve: make(memory, dram=resolve(address, memory), **values, tokens=tokens)


def _computing(
    opcode: isa.Opcode, operation: str, values: dict[str, int], reset: bool, tokens: isa.Tokens
) -> isa.Instruction:
    """Return a GEMM, ALU or FINISH instruction from its fields."""
    if opcode is isa.Opcode.FINISH:
        return isa.Finish(tokens)

    def factors(name: str) -> isa.Factors:
        return isa.Factors(values.get(f"{name}.outer", 0), values.get(f"{name}.inner", 0))

    loops = {name: values[name] for name in ("uop_begin", "uop_end", "outer", "inner")}
    dst, src = factors("dst"), factors("src")
    if opcode is isa.Opcode.GEMM:
        return isa.Gemm(**loops, dst=dst, src=src, wgt=factors("wgt"), reset=reset, tokens=tokens)
    return isa.Alu(
        isa.AluOp[operation],
        **loops,
        dst=dst,
        src=src,
        use_immediate="immediate" in values,
        immediate=values.get("immediate", values.get("unused_immediate", 0)),
        tokens=tokens,
    )


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
    default = isa.VtaConfig()
    sizes = [(f.name, getattr(config, f.name), getattr(default, f.name)) for f in fields(config)]
    changed = [f"{name}={value}" for name, value, standard in sizes if value != standard]
    if changed:
        yield f".config {' '.join(changed)}"
    # What assembling would do by itself is left out: base 0, and a size up to the last tensor.
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
        # Micro-ops are written even without data: without them instructions say nothing.
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


def _uops(tensor: Tensor, content: NDArray[np.uint8], config: isa.VtaConfig) -> list[str] | None:
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

    def text(self, transfer: isa.Load | isa.Store) -> str:
        size = self._program.config.element_bytes(transfer.memory)
        base = self._program.base
        byte = transfer.dram * size - base
        # The last tensor that begins at the address or before it: tensors do not overlap.
        place = bisect_right(self._starts, byte) - 1
        if place < 0:
            return str(transfer.dram)
        offset, name, tensor = self._tensors[place]
        # A name stands for a whole element, so a tensor elsewhere cannot be named.
        if byte >= offset + tensor.size_bytes or (base + offset) % size:
            return str(transfer.dram)
        elements = (byte - offset) // size
        return f"{name}+{elements}" if elements else name


def _words(instruction: isa.Instruction, names: _AddressNames) -> Iterator[str]:
    mnemonic = type(instruction).__name__.lower()
    syntax = MNEMONICS[mnemonic]
    yield mnemonic
    if isinstance(instruction, isa.Load | isa.Store):
        yield instruction.memory.name.lower()
    elif isinstance(instruction, isa.Alu):
        yield instruction.op.name.lower()
    for name in syntax.required:
        if name == "dram" and isinstance(instruction, isa.Load | isa.Store):
            yield f"dram={names.text(instruction)}"
        else:
            yield f"{name}={attrgetter(name)(instruction)}"
    for name in syntax.optional:
        # Written below: whether it is used decides its name.
        if name.endswith("immediate"):
            continue
        value = attrgetter(name)(instruction)
        if value:
            yield f"{name}={value}"
    if isinstance(instruction, isa.Alu) and (instruction.use_immediate or instruction.immediate):
        # Bits that the ALU ignores are kept, so that assembling gives the same program again.
        prefix = "" if instruction.use_immediate else "unused_"
        yield f"{prefix}immediate={instruction.immediate}"
    if isinstance(instruction, isa.Gemm) and instruction.reset:
        yield "reset"
    yield from (word for word, flag in TOKENS.items() if getattr(instruction.tokens, flag))
