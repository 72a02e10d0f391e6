"""Places of a lane's registers in a tile, as TVMScript over the lane."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from cpembed.errors import InvariantError
from cpembed.targets.cuda.instructions import LANES, TensorCoreInstruction, fragments


def bit_order(number: str, digits: Sequence[int]) -> str:
    """Return a number with its binary digits in another order.

    Parameters
    ----------
    number : str
        Expression of a number that is not negative.
    digits : sequence of int
        New place of each digit, the least one first.

    Examples
    --------
    >>> bit_order("x", (0, 1)), bit_order("x", (1, 0))
    ('x', '(x % 2 * 2 + x // 2 % 2)')
    """
    if tuple(digits) == tuple(range(len(digits))):
        return number
    terms: list[str] = []
    for place, digit in enumerate(digits):
        part = f"{number} // {1 << place} % 2" if place else f"{number} % 2"
        terms.append(part if digit == 0 else f"{part} * {1 << digit}")
    return f"({' + '.join(terms)})"


@cache
def place(name: str, element: int) -> tuple[str, str]:
    """Return row and column of an element of a fragment, over the variable ``lane``.

    Parameters
    ----------
    name : str
        Name of the fragment.
    element : int
        Number of the element among those of a lane.
    """
    fragment = fragments()[name]
    (row, column), thread, group = (fragment.position(lane, element) for lane in (0, 1, 4))
    steps = tuple((group[n] - o, thread[n] - o, o) for n, o in enumerate((row, column)))
    for lane in range(LANES):
        expected = tuple(g * (lane // 4) + t * (lane % 4) + o for g, t, o in steps)
        if fragment.position(lane, element) != expected:
            raise InvariantError(f"{name}: places of registers are not affine in the lane")
    first, second = (_affine(*step) for step in steps)
    return first, second


def _affine(group: int, thread: int, constant: int) -> str:
    terms = [f"{name} * {step}" for name, step in (("lane // 4", group), ("lane % 4", thread))
             if step]  # fmt: skip
    return " + ".join([*terms, *([str(constant)] if constant or not terms else [])])


@cache
def lane_rows(instruction: TensorCoreInstruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the rows of a lane's sums, and the lanes with which it shares them.

    Returns
    -------
    tuple of int
        For each sum of a lane, the number of its row among those of the lane.
    tuple of int
        Differences, in binary digits, to the lanes that hold the rest of these rows.
    """
    fragment = fragments()[instruction.fragments[2]]
    rows = [fragment.position(0, element)[0] for element in range(fragment.elements)]
    distinct = sorted(set(rows))
    masks = tuple(
        1 << bit
        for bit in range(LANES.bit_length() - 1)
        if all(
            fragment.position(lane ^ (1 << bit), element)[0] == fragment.position(lane, element)[0]
            for lane in range(LANES)
            for element in range(fragment.elements)
        )
    )
    return tuple(distinct.index(row) for row in rows), masks
