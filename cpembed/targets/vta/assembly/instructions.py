"""Lines of assembly text: words with their places, and the instructions that they spell."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from cpembed.errors import ProgramError
from cpembed.hw.schema import close_match, joined
from cpembed.targets.vta.assembly.disassembler import MNEMONICS, TOKENS, Mnemonic
from cpembed.targets.vta.container import NAME_RULE, TENSOR_NAME
from cpembed.targets.vta.encoding import Field, Opcode, formats_of, misfit
from cpembed.targets.vta.isa import (
    NO_TOKENS,
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

NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]+|[0-9]+)")
_COMMENT = ";"
_MAX_DIGITS = 40
"""Maximum length of a number: converting more digits would only take time."""


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
        return [Word(m[0], number, m.start() + 1) for m in re.finditer(r"\S+", code)]

    def place(self, word: Word) -> str:
        """Return the place of a word in the text."""
        return f"{self._source}:{word.line}:{word.column}"

    def error(self, word: Word, problem: str) -> ProgramError:
        """Return an error about a word, to be raised."""
        return ProgramError(f"{self.place(word)}: {problem}")

    def new_name(self, words: list[Word], example: str) -> Word:
        """Return the tensor's name after a directive."""
        if len(words) < 2:
            raise self.error(words[0], f"{words[0].text} needs a name, as in `{example}`")
        name = words[1]
        if not TENSOR_NAME.fullmatch(name.text):
            raise self.error(name, f"{name.text!r} is not a name; allowed: {NAME_RULE}")
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
            if name in settings:
                raise self.error(word, f"{name} is given more than once: keep one")
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

    def check(self, word: Word, field: Field, value: int) -> None:
        """Require that the value of a word fits its field."""
        problem = misfit(field, value)
        if problem is not None:
            raise self.error(word, problem)

    def at_most(self, words: list[Word], count: int) -> None:
        """Require that a line has at most ``count`` words."""
        if len(words) > count:
            raise self.error(words[count], f"{words[count].text!r} is too much: leave it out")


AddressResolver = Callable[[Word, Memory], int]
"""Return the DRAM address, in elements of the memory, of a word ``NAME`` or ``NAME+NUMBER``."""
PendingInstruction = Callable[[AddressResolver], Instruction]
"""An instruction whose DRAM address may be a name: built once all tensors have their places."""


class InstructionReader:
    """Reader of the instructions of one configuration."""

    def __init__(self, words: Words, config: VtaConfig) -> None:
        self._words = words
        self._config = config
        self._fields = {
            opcode: {field.name: field for field in fields}
            for opcode, fields in formats_of(config).instructions.items()
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
            if not rest:
                raise self._words.error(
                    first, f"{first.text} needs one of {joined(names)} after it"
                )
            kind = self._words.choice(rest[0], rest[0].text, names).upper()
            rest = rest[1:]
        flags = self._flags(rest, syntax)
        values, address = self._values(first, [w for w in rest if w.text not in flags], syntax)
        tokens = NO_TOKENS
        if any(word in flags for word in TOKENS):
            tokens = Tokens(*(word in flags for word in TOKENS))
        if syntax.opcode in (Opcode.LOAD, Opcode.STORE):
            return self._transfer(syntax.opcode, Memory[kind], values, address, tokens)
        instruction = _computing(syntax.opcode, kind, values, "reset" in flags, tokens)
        return lambda _: instruction

    def _flags(self, line: list[Word], syntax: Mnemonic) -> set[str]:
        """Return the flags and tokens of a line."""
        flags: set[str] = set()
        for word in line:
            if word.text in TOKENS or word.text in syntax.flags:
                if word.text in flags:
                    raise self._words.error(word, f"{word.text} is given more than once: keep one")
                flags.add(word.text)
        return flags

    def _values(
        self, first: Word, line: list[Word], syntax: Mnemonic
    ) -> tuple[dict[str, int], Word | None]:
        """Return the values by field, and the word of a DRAM address that is a name."""
        flags = (*syntax.flags, *TOKENS)
        settings = self._words.settings(line, (*syntax.required, *syntax.optional), flags)
        missing = [name for name in syntax.required if name not in settings]
        if missing:
            raise self._words.error(first, f"{first.text} lacks {joined(missing)}")
        values: dict[str, int] = {}
        address: Word | None = None
        for name, (word, text) in settings.items():
            if name == "dram" and not NUMBER.fullmatch(text):
                address = Word(text, word.line, word.column)
                continue
            values[name] = self._words.number(word, text)
            field = self._fields[syntax.opcode][name.removeprefix("unused_")]
            self._words.check(word, field, values[name])
        if "immediate" in values and "unused_immediate" in values:
            problem = "immediate and unused_immediate exclude each other: keep one"
            raise self._words.error(first, problem)
        return values, address

    def _transfer(
        self,
        opcode: Opcode,
        memory: Memory,
        values: dict[str, int],
        address: Word | None,
        tokens: Tokens,
    ) -> PendingInstruction:
        make = Load if opcode is Opcode.LOAD else Store
        if address is None:
            instruction = make(memory, **values, tokens=tokens)
            return lambda _: instruction
        return lambda resolve: make(memory, dram=resolve(address, memory), **values, tokens=tokens)


def _computing(
    opcode: Opcode, operation: str, values: dict[str, int], reset: bool, tokens: Tokens
) -> Instruction:
    """Return a GEMM, ALU or FINISH instruction from its fields."""
    if opcode is Opcode.FINISH:
        return Finish(tokens)

    def factors(name: str) -> Factors:
        return Factors(values.get(f"{name}.outer", 0), values.get(f"{name}.inner", 0))

    loops = {name: values[name] for name in ("uop_begin", "uop_end", "outer", "inner")}
    dst, src = factors("dst"), factors("src")
    if opcode is Opcode.GEMM:
        return Gemm(**loops, dst=dst, src=src, wgt=factors("wgt"), reset=reset, tokens=tokens)
    return Alu(
        AluOp[operation],
        **loops,
        dst=dst,
        src=src,
        use_immediate="immediate" in values,
        immediate=values.get("immediate", values.get("unused_immediate", 0)),
        tokens=tokens,
    )
