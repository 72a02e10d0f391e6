"""Variables of generated CUDA text that nothing reads, of which nvcc warns.

Expressions lose variables while TVM simplifies them, so that what a kernel reads is known only from
its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# TVM's declarations of locals: ``alignas(64) int tile_ptr[1];``, ``uint first[4];``, ``int value;``
_DECLARATION = re.compile(r"\s*(?:alignas\(\d+\) )?(?!return\b)\w+ (\w+)(?:\[\d+\])?;")
_STORE = re.compile(r"\s*(\w+)(\[.*?\])? = (.*);")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_CALL = re.compile(r"\bcpembed_\w+\(")


def without_unread(text: str) -> str:
    """Return CUDA text without variables that are written and never read.

    Calls of device functions stay, and so does what they write.

    Examples
    --------
    >>> kernel = ["__global__ void f(int* a) {", "  int b[1];", "  int c;", "  b[0] = a[1];"]
    >>> kernel += ["  c = b[0] + 1;", "  a[0] = 2;", "}"]
    >>> without_unread("\\n".join(kernel))
    '__global__ void f(int* a) {\\n  a[0] = 2;\\n}'
    """
    return "".join(_cleaned(part) for part in _functions(text))


def _functions(text: str) -> Iterator[str]:
    """Yield the parts of a text: each kernel to its closing brace, and what is between them."""
    part: list[str] = []
    for line in text.splitlines(keepends=True):
        if "__global__" in line and part:
            yield "".join(part)
            part = []
        part.append(line)
        if line.startswith("}"):
            yield "".join(part)
            part = []
    yield "".join(part)


def _cleaned(part: str) -> str:
    """Return a part of a text; of a kernel, without what is not read."""
    lines = part.splitlines(keepends=True)
    if not lines or "__global__" not in lines[0]:
        return part
    # Until nothing is removed: what only a removed variable read is not read either.
    while True:
        declared = {match[1] for line in lines if (match := _declaration(line))}
        read = {name for line in lines if not _declaration(line) for name in _read(line)}
        unread = declared - read
        if not unread:
            return "".join(lines)
        lines = [line for line in lines if _name(line) not in unread]


def _declaration(line: str) -> re.Match[str] | None:
    return _DECLARATION.fullmatch(line.rstrip())


def _name(line: str) -> str:
    """Return the variable that a line declares or writes; empty if it does neither."""
    match = _declaration(line) or _STORE.fullmatch(line.rstrip())
    return match[1] if match else ""


def _read(line: str) -> set[str]:
    """Return the names that a line reads; a variable does not read itself."""
    match = _STORE.fullmatch(line.rstrip())
    if match is None or _CALL.search(line):
        return set(_WORD.findall(line))
    return set(_WORD.findall(f"{match[2]} {match[3]}")) - {match[1]}
