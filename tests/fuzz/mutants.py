"""Files of JSON lines as damage leaves them: bytes flipped, lines torn and doubled, values of other
types and sizes, keys of other names."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**53 + 2, 10**30, -0.5, 0.0, 1e-300, 1e300),
    *("", "no", "k", "\u0000", "é" * 300, [], {}, [1], [[[]]], {"k": 1}, {"no": -1}, [None]),
)

LITERALS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "9" * 5000, "[" * 3000)


def mutant(data: bytes, random: Random) -> bytes:
    """One kind of damage, once or a few times."""
    damage = random.choice(DAMAGES)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        data = damage(data, random)
    return data


def flipped(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def other_byte(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice((b"\xff", b"\x00", b"\n", b'"', b"}", b"-")) + data[at + 1 :]


def truncated(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def cut(data: bytes, random: Random) -> bytes:
    first, last = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return data[:first] + data[last:]


def on_lines(change: Callable[[list[bytes], Random], None]) -> Callable[[bytes, Random], bytes]:
    def changed(data: bytes, random: Random) -> bytes:
        lines = data.split(b"\n")
        change(lines, random)
        return b"\n".join(lines)

    return changed


def doubled(lines: list[bytes], random: Random) -> None:
    lines.insert(random.randrange(len(lines) + 1), random.choice(lines))


def exchanged(lines: list[bytes], random: Random) -> None:
    first, second = random.randrange(len(lines)), random.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]


def rewritten(lines: list[bytes], random: Random) -> None:
    """A place in the document of a line has another value, or its key another name, or is gone."""
    at = random.randrange(len(lines))
    try:
        document = json.loads(lines[at])
    except (ValueError, RecursionError):
        return
    places = list(_places(document))
    if not places:
        return
    holder, key = random.choice(places)
    what = random.randrange(4)
    literal = None
    if what == 0 and isinstance(holder, dict):
        holder[random.choice(("no", "", "k"))] = holder.pop(key)
    elif what == 1:
        del holder[key]
    elif what == 2:
        literal, holder[key] = random.choice(LITERALS), "@literal@"
    else:
        holder[key] = random.choice(VALUES)
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    if literal is not None:
        text = text.replace('"@literal@"', literal)
    lines[at] = text.encode("utf-8", "surrogatepass")


def _places(document: Any) -> Any:
    """Containers with the keys and positions in them."""
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in list(items):
            yield document, key
            yield from _places(value)


DAMAGES: tuple[Callable[[bytes, Random], bytes], ...] = (
    flipped,
    other_byte,
    truncated,
    cut,
    on_lines(doubled),
    on_lines(exchanged),
    *[on_lines(rewritten)] * 6,
)
