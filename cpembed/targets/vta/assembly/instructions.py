"""Lines of assembly text: words with their places, and the instructions that they spell."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from cpembed.errors import ProgramError
from cpembed.hw.schema import close_match, one_of
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

_LONGEST_NUMBER = 40
"""Digits; more would only take time."""


class Word(NamedTuple):
    """A word of a line and where it starts, both counted from 1."""

    text: str
    line: int
    column: int


class Words:
    """Reads words; every fault is a :class:`ProgramError` with ``source:line:column``."""

    def __init__(self, source: str) -> None:
        self._source = source

    @staticmethod
    def of_line(line: str, number: int) -> list[Word]:
        """The words before a comment."""
        code = line.partition(_COMMENT)[0]
        return [Word(m[0], number, m.start() + 1) for m in re.finditer(r"\S+", code)]

    def place(self, word: Word) -> str:
        return f"{self._source}:{word.line}:{word.column}"

    def error(self, word: Word, problem: str) -> ProgramError:
        return ProgramError(f"{self.place(word)}: {problem}")

    def new_name(self, words: list[Word], example: str) -> Word:
        """The name after a directive."""
        if len(words) < 2:
            raise self.error(words[0], f"{words[0].text} needs a name, as in `{example}`")
        name = words[1]
        if not TENSOR_NAME.fullmatch(name.text):
            raise self.error(
                name,
                f"{name.text!r} is not a name; allowed: {NAME_RULE}",
            )
        return name

    def settings(
        self, words: list[Word], allowed: Collection[str], also: Collection[str] = ()
    ) -> dict[str, tuple[Word, str]]:
        """``name=value`` words by name, each with its value; ``also`` are other words that would be
        right here."""
        found: dict[str, tuple[Word, str]] = {}
        for word in words:
            name, equals, value = word.text.partition("=")
            if name not in allowed or not equals:
                what = f"unknown field {name!r}" if equals else f"unknown word {name!r}"
                if name in allowed:
                    what = f"{name} lacks its value, {name}=…"
                choices = [*(f"{choice}=" for choice in allowed), *also]
                raise self.error(
                    word,
                    f"{what}; allowed: {one_of(choices) or 'nothing'}"
                    + close_match(name, [*allowed, *also]),
                )
            if name in found:
                raise self.error(word, f"{name} is given more than once: keep one")
            found[name] = word, value
        return found

    def numbers(self, words: list[Word], allowed: Collection[str]) -> dict[str, tuple[Word, int]]:
        """``name=number`` words by name."""
        found = self.settings(words, allowed)
        return {name: (word, self.number(word, text)) for name, (word, text) in found.items()}

    def number(self, word: Word, text: str) -> int:
        """A whole number, decimal or hexadecimal."""
        if not NUMBER.fullmatch(text) or len(text) > _LONGEST_NUMBER:
            raise self.error(word, f"{text!r} is not a number; write 12, -3 or 0x1f")
        return int(text, 16 if "x" in text else 10)

    def choice(self, word: Word, text: str, choices: Collection[str]) -> str:
        """The text, which is one of the choices."""
        if text not in choices:
            allowed = f"{one_of(choices)}{close_match(text, choices)}"
            raise self.error(word, f"{text!r} is unknown; allowed: {allowed}")
        return text

    def check(self, word: Word, spec: Field, value: int) -> None:
        """A value has to fit its field."""
        problem = misfit(spec, value)
        if problem is not None:
            raise self.error(word, problem)

    def at_most(self, words: list[Word], count: int) -> None:
        """A line has no more words."""
        if len(words) > count:
            raise self.error(words[count], f"{words[count].text!r} is too much: leave it out")


AddressResolver = Callable[[Word, Memory], int]
"""Return the DRAM address, in elements of the memory, of a word ``NAME`` or ``NAME+NUMBER``."""
PendingInstruction = Callable[[AddressResolver], Instruction]
"""An instruction whose DRAM address may be a name: built once all tensors have their places."""


class InstructionReader:
    """Reads the instructions of one configuration."""

    def __init__(self, words: Words, config: VtaConfig) -> None:
        self._words = words
        self._config = config
        self._fields = {
            opcode: {field.name: field for field in fields}
            for opcode, fields in formats_of(config).instructions.items()
        }

    def read(self, line: list[Word]) -> PendingInstruction:
        first, *rest = line
        syntax = MNEMONICS.get(first.text)
        if syntax is None:
            allowed = f"{one_of(MNEMONICS)}{close_match(first.text, MNEMONICS)}"
            raise self._words.error(
                first, f"unknown instruction {first.text!r}; allowed: {allowed}"
            )
        kind = ""
        if syntax.kind is not None:
            names = [member.name.lower() for member in syntax.kind]
            if not rest:
                raise self._words.error(
                    first, f"{first.text} needs one of {one_of(names)} after it"
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
        """Flags and tokens."""
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
        """Values by field, and the DRAM address where it is a name."""
        also = (*syntax.flags, *TOKENS)
        given = self._words.settings(line, (*syntax.required, *syntax.optional), also)
        missing = [name for name in syntax.required if name not in given]
        if missing:
            raise self._words.error(first, f"{first.text} lacks {one_of(missing)}")
        values: dict[str, int] = {}
        address: Word | None = None
        for name, (word, text) in given.items():
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
    """GEMM, ALU or FINISH from its fields."""
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
