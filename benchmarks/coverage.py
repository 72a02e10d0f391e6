"""Judgement of results and refusals, and tables, for the pages that cover operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import CpembedError


def refusal(error: CpembedError) -> str:
    """Return the message of a rejection.

    Parameters
    ----------
    error : CpembedError
        Error of reading a model.

    Returns
    -------
    str
        The message, of one line.

    Raises
    ------
    AssertionError
        If the message is empty or has several lines.
    """
    message = str(error)
    assert message, f"{type(error).__name__} without a message"
    assert "\n" not in message, f"a refusal of several lines: {message}"
    return message


def difference(
    result: NDArray[Any], expected: NDArray[Any], relative: float, absolute: float
) -> str:
    """Description of what differs between two arrays.

    Parameters
    ----------
    result, expected : numpy.ndarray
        Shapes and element types have to be equal, and so have integers, Booleans, infinities and
        the places of NaN.
    relative, absolute : float
        Tolerance of floats: relative to the expected element, plus ``absolute``.

    Returns
    -------
    str
        The first element that differs, and how many do; empty where none does.
    """
    if (result.dtype, result.shape) != (expected.dtype, expected.shape):
        return f"{result.dtype}{result.shape} for {expected.dtype}{expected.shape}"
    if expected.dtype.kind in "biu":
        equal = result == expected
    else:
        # Types of two bytes are no types of numpy's own.
        a, b = (
            array if array.dtype.kind == "c" else array.astype(np.float64)
            for array in (result, expected)
        )
        equal = np.isclose(a, b, relative, absolute, equal_nan=True)
    if equal.all():
        return ""
    place = tuple(int(k) for k in np.argwhere(~equal)[0])
    return (
        f"{int((~equal).sum())} of {result.size} elements, at {place} "
        f"{result[place]!r} for {expected[place]!r}"
    )


def table_row(cells: Sequence[object]) -> str:
    """Return a row of a table in Markdown.

    >>> table_row(["Abs", 1, "a | b"])
    '| Abs | 1 | a / b |'
    """
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a table in Markdown, whose columns of numbers are aligned to the right.

    Parameters
    ----------
    head : sequence of str
        Titles of the columns. All columns but the first and the last hold numbers.
    rows : iterable of sequences
        Cells of each row.

    Returns
    -------
    list of str
        The lines, without ends.
    """
    alignment = ["---", *["--:"] * (len(head) - 2), "---"]
    return [table_row(cells) for cells in (head, alignment, *rows)]
