"""Instructions from the words of a line."""

from __future__ import annotations

from collections.abc import Callable

from cpembed.hw.schema import close_match, one_of
from cpembed.targets.vta.assembly.image import Image
from cpembed.targets.vta.assembly.syntax import MNEMONICS, TOKENS, Mnemonic
from cpembed.targets.vta.assembly.words import NUMBER, Word, Words
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.formats import Opcode, formats_of
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
)

Pending = Callable[[Image], Instruction]
"""An instruction once the tensors have their places."""


class InstructionReader:
    """Reads the instructions of one configuration."""

    def __init__(self, words: Words, config: VtaConfig) -> None:
        self._words = words
        self._config = config
        self._fields = {
            opcode: {field.name: field for field in fields}
            for opcode, fields in formats_of(config).instructions.items()
        }

    def read(self, line: list[Word]) -> Pending:
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
    ) -> Pending:
        make = Load if opcode is Opcode.LOAD else Store
        if address is None:
            instruction = make(memory, **values, tokens=tokens)
            return lambda _: instruction
        return lambda image: make(
            memory, dram=image.address(address, memory, self._config), **values, tokens=tokens
        )


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
