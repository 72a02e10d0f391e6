"""Text to programs.

Lines are read one by one; tensors are placed and names in addresses resolved at the end, so that a
name may be used before it is declared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields

from cpembed.errors import SpecError
from cpembed.hw.schema import close_match, one_of
from cpembed.targets.vta.assembly.image import Declared, Image, Uops
from cpembed.targets.vta.assembly.instructions import InstructionReader, Pending
from cpembed.targets.vta.assembly.syntax import VERSION
from cpembed.targets.vta.assembly.words import Word, Words
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.container import DTYPES, LARGEST_IMAGE
from cpembed.targets.vta.formats import formats_of
from cpembed.targets.vta.program import Role, VtaProgram

_DATA = re.compile(r"(0x[0-9a-fA-F]{1,16}|[0-9]{1,16}):")
_SHAPE = re.compile(r"scalar|[0-9]{1,16}(?:x[0-9]{1,16}){0,31}")
_BYTE = re.compile(r"[0-9a-fA-F]{2}")

_ONCE = (".vta", ".config", ".dram")
"""Directives that are given at most once, before everything else."""


def assemble(text: str, source: str = "assembly") -> VtaProgram:
    """The program of a text; ``source`` is its name in errors.

    Raises :class:`~cpembed.errors.ProgramError`: ``source:line:column``, what is wrong, what is
    allowed.
    """
    return _Assembler(Words(source)).program(text)


class _Assembler:
    """Reads the lines of one text."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._image = Image(words)
        self._config = VtaConfig()
        self._reader: InstructionReader | None = None
        self._code: list[Pending] = []
        self._once: set[str] = set()
        self._section: Callable[[list[Word]], None] = self._instruction
        self._directives: dict[str, Callable[[list[Word]], None]] = {
            ".vta": self._version,
            ".config": self._configure,
            ".dram": self._dram,
            ".tensor": self._tensor,
            ".uop": self._begin_uops,
            ".data": self._begin_data,
            ".code": self._begin_code,
        }

    def program(self, text: str) -> VtaProgram:
        for number, line in enumerate(text.split("\n"), start=1):
            words = self._words.of_line(line, number)
            if words and words[0].text.startswith("."):
                self._directive(words)
            elif words:
                self._section(words)
        self._image.place(self._config)
        return VtaProgram(
            self._config,
            tuple(pending(self._image) for pending in self._code),
            self._image.content(self._config),
            self._image.tensors,
            self._image.base,
        )

    def _directive(self, line: list[Word]) -> None:
        first = line[0]
        if first.text not in self._directives:
            allowed = f"{one_of(self._directives)}{close_match(first.text, self._directives)}"
            raise self._words.error(first, f"unknown directive {first.text}; allowed: {allowed}")
        if first.text in _ONCE:
            if first.text in self._once:
                raise self._words.error(first, f"{first.text} is given more than once: keep one")
            if self._image.declared or self._image.uops or self._code:
                problem = f"{first.text} comes before tensors, micro-ops and instructions"
                raise self._words.error(first, problem)
            self._once.add(first.text)
        self._directives[first.text](line)

    def _version(self, line: list[Word]) -> None:
        self._words.at_most(line, 2)
        if len(line) < 2 or line[1].text != str(VERSION):
            problem = f"unknown version; this release reads `.vta {VERSION}`"
            raise self._words.error(line[-1], problem)

    def _configure(self, line: list[Word]) -> None:
        values = self._words.numbers(line[1:], [field.name for field in fields(VtaConfig)])
        for name, (word, value) in values.items():
            if not 0 <= value <= 40:
                problem = f"{name} = {value}; allowed: 0..40 (log2 of a size)"
                raise self._words.error(word, problem)
        self._config = VtaConfig(**{name: value for name, (_, value) in values.items()})
        try:
            formats_of(self._config)
        except SpecError as error:
            raise self._words.error(line[0], str(error)) from None

    def _dram(self, line: list[Word]) -> None:
        for name, (word, value) in self._words.numbers(line[1:], ("base", "size")).items():
            limit = LARGEST_IMAGE if name == "size" else (1 << 40) - 1
            if not 0 <= value <= limit:
                raise self._words.error(word, f"{name} = {value}; allowed: 0..{limit}")
            if name == "base":
                self._image.base = value
            else:
                self._image.size = value

    def _tensor(self, line: list[Word]) -> None:
        name = self._words.new_name(line, ".tensor NAME dtype=int8 shape=4x16")
        if name.text in self._image.declared:
            problem = f"{name.text} is declared already: give another name"
            raise self._words.error(name, problem)
        given = self._words.settings(line[2:], ("role", "dtype", "shape", "at"))
        for key in ("dtype", "shape"):
            if key not in given:
                raise self._words.error(line[0], f".tensor lacks {key}=")
        role = self._words.choice(*given["role"], [*Role]) if "role" in given else None
        offset = self._words.number(*given["at"]) if "at" in given else None
        if offset is not None and not 0 <= offset <= LARGEST_IMAGE:
            raise self._words.error(given["at"][0], f"at = {offset}; allowed: 0..{LARGEST_IMAGE}")
        self._image.declared[name.text] = Declared(
            name,
            self._words.choice(*given["dtype"], DTYPES),
            self._shape(*given["shape"]),
            None if role is None else Role(role),
            offset,
        )

    def _shape(self, word: Word, text: str) -> tuple[int, ...]:
        if not _SHAPE.fullmatch(text):
            raise self._words.error(word, f"shape {text!r} cannot be read; write 4x16, or scalar")
        shape = () if text == "scalar" else tuple(int(size) for size in text.split("x"))
        if not 0 < math.prod(shape) <= LARGEST_IMAGE:
            problem = f"shape {text}; allowed: sizes of at least 1, {LARGEST_IMAGE} elements"
            raise self._words.error(word, problem)
        return shape

    def _begin_uops(self, line: list[Word]) -> None:
        self._words.at_most(line, 2)
        name = self._words.new_name(line, ".uop kernel")
        if name.text in self._image.uops:
            problem = f"{name.text} has micro-ops already: join the sections"
            raise self._words.error(name, problem)
        uops = self._image.uops[name.text] = Uops(name)
        self._section = lambda words: self._uop(words, uops)

    def _begin_data(self, line: list[Word]) -> None:
        self._words.at_most(line, 2)
        name = line[1] if len(line) > 1 else None
        self._section = lambda words: self._datum(words, name)

    def _begin_code(self, line: list[Word]) -> None:
        self._words.at_most(line, 1)
        self._section = self._instruction

    def _uop(self, line: list[Word], uops: Uops) -> None:
        values = self._words.numbers(line, ("dst", "src", "wgt"))
        if "dst" not in values:
            raise self._words.error(line[0], "a micro-op lacks dst=")
        for field in formats_of(self._config).uop:
            if field.name in values:
                self._words.check(values[field.name][0], field, values[field.name][1])
        dst, src, wgt = (values[n][1] if n in values else 0 for n in ("dst", "src", "wgt"))
        uops.rows.append((line[0], (dst, src, wgt)))

    def _datum(self, line: list[Word], name: Word | None) -> None:
        found = _DATA.fullmatch(line[0].text)
        if not found:
            problem = "a line of data starts with its offset, as in `0x20: 01 ff`"
            raise self._words.error(line[0], problem)
        for word in line[1:]:
            if not _BYTE.fullmatch(word.text):
                problem = f"{word.text!r} is not a byte; write two hexadecimal digits"
                raise self._words.error(word, problem)
        content = bytes.fromhex("".join(word.text for word in line[1:]))
        self._image.data.append((line[0], name, self._words.number(line[0], found[1]), content))

    def _instruction(self, line: list[Word]) -> None:
        if self._reader is None:
            self._reader = InstructionReader(self._words, self._config)
        self._code.append(self._reader.read(line))
