"""Keys of tables: spelled as in TOML, looked up, replaced without touching the original."""

from __future__ import annotations

import copy
import random
import tomllib
from typing import Any

import pytest

from cpembed.errors import SpecError
from cpembed.exploration.described.keys import ABSENT, read_key, replaced, value_at
from cpembed.hw.schema import key_path
from cpembed.hw.toml_text import toml_text
from tests.unit.exploration.described.machines import TEXT

WORDS = ["x", "on.chip", "a b", "tile", "7", "naïve", "-"]


def random_tables(chance: random.Random, depth: int = 3) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for word in chance.sample(WORDS, 3):
        kind = chance.randrange(6 if depth else 4)
        table[word] = [
            chance.randrange(99),
            chance.random(),
            chance.choice(["int8", 'quo"te', "new\nline", "\x7f"]),
            [True, 1, "z"],
            random_tables(chance, depth - 1) if depth else {},
            [{"name": word, **random_tables(chance, depth - 1)} for word in WORDS[:2]]
            if depth
            else [],
        ][kind]
    return table


def keys_of(value: Any, key: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [k for name, inner in value.items() for k in keys_of(inner, (*key, name))]
    if isinstance(value, list):
        return [k for place, inner in enumerate(value) for k in keys_of(inner, (*key, place))]
    return [key]


@pytest.mark.parametrize("seed", range(30))
def test_each_value_is_reached_and_replaced_alone(seed: int) -> None:
    tables = random_tables(random.Random(seed))
    before = copy.deepcopy(tables)
    for key in keys_of(tables):
        assert read_key(key_path(key)) == key
        changed = replaced(tables, key, "other")
        assert value_at(changed, key) == "other"
        assert tables == before
        others = [k for k in keys_of(tables) if k != key]
        assert [value_at(changed, k) for k in others] == [value_at(tables, k) for k in others]


@pytest.mark.parametrize("seed", range(30))
def test_text_of_tables_is_read_back(seed: int) -> None:
    tables = random_tables(random.Random(seed))
    assert tomllib.loads(toml_text(tables)) == tables


def test_the_text_of_a_specification_is_read_back() -> None:
    tables = tomllib.loads(TEXT)
    assert tomllib.loads(toml_text(tables)) == tables


def test_an_absent_key_is_removed() -> None:
    tables = tomllib.loads(TEXT)
    changed = replaced(tables, read_key('machines.soc.memories."on.chip".banks'), ABSENT)
    assert "banks" not in changed["machines"]["soc"]["memories"]["on.chip"]
    assert value_at(tables, ("machines", "soc", "memories", "on.chip", "banks")) == 4


def test_an_array_of_tables_is_read_by_names() -> None:
    tables = {"instructions": [{"name": "mvin", "cycles": 1}, {"name": "matmul", "cycles": 16}]}
    key = read_key("instructions.matmul.cycles")
    assert value_at(tables, key) == 16
    assert replaced(tables, read_key("instructions.mvin"), ABSENT) == {
        "instructions": [{"name": "matmul", "cycles": 16}]
    }
    with pytest.raises(SpecError, match=r"no instructions.matmull \(did you mean matmul\?\)"):
        replaced(tables, read_key("instructions.matmull"), ABSENT)


@pytest.mark.parametrize(
    "text", ["", ".", "a.", "a..b", 'a."b', "a[", "a[x]", "a b", "a[-1]", "a" * 501]
)
def test_what_is_no_key_is_an_error(text: str) -> None:
    with pytest.raises(SpecError, match="is no key"):
        read_key(text)
