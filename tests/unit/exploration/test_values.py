"""Lists and ranges of values as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from cpembed.errors import SpecError
from cpembed.exploration.values import labelled, read_values


@pytest.mark.parametrize(
    "text, values",
    [
        ("8", [8]),
        ("8, 16,32", [8, 16, 32]),
        ("8..11", [8, 9, 10, 11]),
        ("8..32+8", [8, 16, 24, 32]),
        ("3..48*2", [3, 6, 12, 24, 48]),
        ("1KiB..4KiB*2", [1024, 2048, 4096]),
        ("1..3, 16, 64..128*2", [1, 2, 3, 16, 64, 128]),
        ("0.5,1e3", [0.5, 1000.0]),
        ("int8,float16", ["int8", "float16"]),
        ('"a, b",c', ["a, b", "c"]),
        ('["x","z"],["z","x"]', [["x", "z"], ["z", "x"]]),
        ("true,false", [True, False]),
        ("{ min = 1, max = 4 }, 4", [{"min": 1, "max": 4}, 4]),
    ],
)
def test_values_are_read(text: str, values: list[Any]) -> None:
    assert read_values(text) == values
    assert list(map(type, read_values(text))) == list(map(type, values))


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "empty value"),
        ("8,,9", "empty value"),
        ("8..4", "from 8 is above to 4"),
        ("8..12+3", "12 is not reached from 8 in steps of 3"),
        ("8..24*2", "24 is not reached from 8 by factors of 2"),
        ("8..64*1", "factor of 2 or more"),
        ("0..64*2", "begins at 1 or more"),
        ("1..99999", "more than 4,096"),
        ("8 9", "is no value"),
        ("[8", "is no value"),
        ("8; import os", "is no value"),
    ],
)
def test_what_is_no_list_is_an_error(text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_values(text)
    assert words in str(caught.value)


def test_numbers_ascend_and_other_values_are_words() -> None:
    assert labelled([32, 8, 16]) == {8: 8, 16: 16, 32: 32}
    assert labelled([True, "os", 4]) == {"true": True, "os": "os", "4": 4}
    with pytest.raises(SpecError, match="twice"):
        labelled([["x"], ["x"]])
