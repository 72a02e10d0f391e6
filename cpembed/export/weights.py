"""The constants of a library: one block of bytes, in the library or in a file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cpembed.export.memory import ALIGNMENT, aligned
from cpembed.export.program import Program, Role

MAGIC = b"CPEMBEDW"
"""Begins a file of weights."""

_WORDS = 1 << 20
"""Words of a part of a checksum."""


@dataclass(frozen=True)
class Blob:
    """Constants behind one another, each at a multiple of a line: ``places`` by name."""

    contents: bytes
    places: Mapping[str, int]

    @cached_property
    def sums(self) -> tuple[int, int]:
        """The checksum that the runtime computes too: the sum of the 64-bit words, and the sum of
        each times its place, which begins at 1, modulo 2**64 (Fletcher)."""
        words = np.frombuffer(self.contents, "<u8")
        plain = placed = 0
        for start in range(0, words.size, _WORDS):
            part = words[start : start + _WORDS]
            places = np.arange(start + 1, start + 1 + part.size, dtype=np.uint64)
            plain += int(part.sum(dtype=np.uint64))
            placed += int((part * places).sum(dtype=np.uint64))
        return plain % 2**64, placed % 2**64

    def file(self) -> bytes:
        """The contents of a file of weights: a line of header, then the constants."""
        sums = b"".join(value.to_bytes(8, "little") for value in self.sums)
        header = MAGIC + len(self.contents).to_bytes(8, "little") + sums
        return header.ljust(ALIGNMENT, b"\0") + self.contents


def blob_of(program: Program) -> Blob:
    """The constants that calls of a program take."""
    parts: list[bytes] = []
    places: dict[str, int] = {}
    end = 0
    for buffer in program.of(Role.CONSTANT):
        if buffer.name not in program.used or buffer.data is None:
            continue
        data = np.ascontiguousarray(buffer.data).tobytes()
        size = aligned(len(data))
        parts.append(data.ljust(size, b"\0"))
        places[buffer.name] = end
        end += size
    return Blob(b"".join(parts), places)
