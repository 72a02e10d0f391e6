"""Places in a compiled text, as those who wrote it know them: its lines and its variables."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_PLACE = re.compile(r"\{at:(\d+)\}")
_VARIABLE = re.compile(r"\{variable:(\d+):(\d+)\}")
_LONGEST_CODE = 60


@dataclass(frozen=True)
class Locations:
    """Of a library that was made of a text, by its tables of lines and symbols."""

    library: Path
    file: str
    """What the text is called in the tables."""
    source: Sequence[str]

    def said(self, fault: str) -> str:
        """A fault of the runtime with lines for places of calls, and names for addresses of
        variables (``native/fault.h``)."""
        return _VARIABLE.sub(self._variable, _PLACE.sub(self._line, fault))

    def _line(self, match: re.Match[str]) -> str:
        found = [n for n in _lines(self.library, self.file, int(match[1])) if n <= len(self.source)]
        if not found:
            return "an unknown line"
        code = self.source[found[0] - 1].strip()
        if len(code) > _LONGEST_CODE:
            code = f"{code[: _LONGEST_CODE - 3]}..."
        caller = f"; from line {found[-1]}" if found[-1] != found[0] else ""
        return f"line {found[0]} ({code}{caller})"

    def _variable(self, match: re.Match[str]) -> str:
        first, last = map(int, match.groups())
        for start, size, name in _symbols(self.library):
            if start <= first < start + size:
                return f"bytes {first - start} to {last - start} of {name}"
        return "a static variable"


@lru_cache(maxsize=4096)
def _lines(library: Path, file: str, place: int) -> tuple[int, ...]:
    """The line of a call, then those of the calls that brought its function there, to the kernel's;
    none where nothing tells."""
    # The instruction before the return address is the call.
    words = ("-i", "-e", str(library), hex(max(place - 1, 0)))
    found = list[int]()
    for line in _output("addr2line", *words):
        name, _, rest = line.partition(":")
        digits = rest.split(" ")[0]
        if Path(name).name == file and digits.isdecimal() and int(digits):
            found.append(int(digits))
    return tuple(found)


@lru_cache(maxsize=64)
def _symbols(library: Path) -> tuple[tuple[int, int, str], ...]:
    """Of variables: where they begin, their bytes, and their names without what they are in."""
    found = list[tuple[int, int, str]]()
    for line in _output("nm", "-C", "-S", "--defined-only", str(library)):
        words = line.split(" ", 3)
        if len(words) == 4 and len(words[1]) == len(words[0]):
            found.append((int(words[0], 16), int(words[1], 16), words[3].rpartition("::")[2]))
    return tuple(found)


def _output(name: str, *words: str) -> list[str]:
    """The lines that a tool of binutils prints; none where it is not there."""
    tool = shutil.which(name) or shutil.which(f"llvm-{name}")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()
