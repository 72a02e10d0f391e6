"""What is stored, in words, as reports print it."""

from __future__ import annotations

import pytest

from cpembed.targets.vta.tail import Exact, Requantized, Tail, Truncated


@pytest.mark.parametrize(
    "tail, words",
    [
        (Requantized(9), "int8: sums shifted right by 9, clipped to -128..127"),
        (Requantized(3, 0, 6, (1,)), "int8: sums with a bias shifted right by 3, clipped to 0..6"),
        (Exact(), "int32: all bits of the sums, stored byte by byte"),
        (Truncated(), "int8: the low eight bits of the sums"),
    ],
)
def test_a_tail_is_said_in_words(tail: Tail, words: str) -> None:
    assert str(tail) == words
