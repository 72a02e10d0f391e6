"""Words of a line with their places, and what can be read from them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from cpembed.errors import ProgramError
from cpembed.hw.schema import close_match, one_of
from cpembed.targets.vta.container import NAME_RULE, TENSOR_NAME
from cpembed.targets.vta.encoding import misfit
from cpembed.targets.vta.formats import Field

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
