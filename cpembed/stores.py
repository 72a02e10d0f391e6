"""Reading back what was kept: a row that is damaged is left out, and said in one line.

Files are kept for months, and edited, copied and torn meanwhile. A row that does not have the types
and ranges of its kind counts as damaged; the others count as before, and nothing is rewritten.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from cpembed.errors import DamagedStore

T = TypeVar("T")

LARGEST = 1e15
"""Of a stored figure: a month in nanoseconds is a third of it. Sums and products of such stay
finite."""

LARGEST_STORE = 2**29
"""Bytes of a file of rows that is read: a row has a few thousand."""

Time = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=LARGEST)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class NotARow(Exception):
    """What is wrong with a row, in a few words."""


def sound(row: object) -> str | None:
    """A row of a kind whose types and ranges say everything."""


def decoded(
    text: bytes,
    kind: type[T],
    flaw: Callable[[T], str | None] = sound,
    hook: Callable[[type[Any], Any], Any] | None = None,
) -> T:
    """A row of a kind; ``flaw`` says what is wrong with one whose types and ranges are right.
    ``hook`` makes what msgspec does not: a value of a type, of JSON's.

    Raises :class:`NotARow`.
    """
    try:
        row = msgspec.json.decode(text, type=kind, dec_hook=hook)
    except msgspec.MsgspecError as error:
        what, _, place = str(error).partition(" - at ")
        # msgspec names places as `$.knobs.split_k`.
        place = place.strip("`").removeprefix("$").removeprefix(".")
        raise NotARow(f"{place}: {what}" if place else what) from None
    except UnicodeDecodeError:
        raise NotARow("not UTF-8") from None
    except RecursionError:
        raise NotARow("nested too deeply") from None
    found = flaw(row)
    if found is not None:
        raise NotARow(found)
    return row


def decoded_rows(
    path: Path,
    lines: Iterable[tuple[int, bytes]],
    kind: type[T],
    flaw: Callable[[T], str | None] = sound,
) -> list[T]:
    """The rows of numbered lines; those that are none are left out, and said together."""
    rows: list[T] = []
    wrong: list[str] = []
    for number, line in lines:
        try:
            rows.append(decoded(line, kind, flaw))
        except NotARow as error:
            wrong.append(f"line {number}: {error}")
    say_left_out(path, wrong, of=len(rows) + len(wrong))
    return rows


def say_left_out(path: Path, wrong: Sequence[str], of: int) -> None:
    """One line for all rows of a file that are left out; ``wrong`` says of each why."""
    if wrong:
        say(
            f"{path}: {len(wrong)} of {of} rows left out as damaged ({wrong[0]}); the others are "
            "used; delete such lines to end this message"
        )


def say(text: str) -> None:
    """A line about a store. The command line prints it on stderr, once; a program sees a warning.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     say("notes.jsonl: not read")
    >>> caught[0].category.__name__
    'DamagedStore'
    """
    warnings.warn(text, DamagedStore, stacklevel=2)
