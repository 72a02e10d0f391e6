"""Files of spaces, relations, objectives and limits: what is read, and what is said of faults."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.exploration.objectives import read_limit, read_limits, read_objectives
from cpembed.exploration.relations import read_relation
from cpembed.exploration.space_file import read_space
from tests.unit.exploration.cases import space

GOOD = """
name = "random"
description = "machines"
family = "synthetic"
where = ["rows * banks <= size"]
objectives = ["time", "area"]
[parameters]
rows = [16, 8]
size = { from = 32, to = 128, powers_of_two = true }
banks = { from = 2, to = 8, step = 3 }
[fixed]
dataflow = "os"
[limits]
power = "2W"
cycles = 1000000
"""


def read(folder: Path, text: str) -> object:
    path = folder / "space.toml"
    path.write_text(text)
    return read_space(path)


def test_values_relations_and_defaults(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(GOOD)
    made = read_space(path)
    assert made.parameters == {"rows": (8, 16), "size": (32, 64, 128), "banks": (2, 5, 8)}
    assert made.fixed["dataflow"] == "os"
    assert made.fixed["coarse"] == 1
    points = {
        (p["rows"], p["size"], p["banks"]) for p in (made.point(place) for place in made.places())
    }
    every = itertools.product((8, 16), (32, 64, 128), (2, 5, 8))
    assert points == {(r, s, b) for r, s, b in every if r * b <= s}
    assert [limit.value for limit in made.limits] == [2.0, 1e6]
    assert [one.name for one in made.objectives] == ["time", "area"]


def test_numbers_of_points_are_their_order(tmp_path: Path) -> None:
    made = space(tmp_path)
    assert [made.number(place) for place in made.places()] == list(range(made.combinations))


@pytest.mark.parametrize(
    "good, bad, said",
    [
        ('family = "synthetic"', 'family = "synthetik"', ["family: ", "did you mean synthetic"]),
        ('family = "synthetic"', "", ["family: is missing"]),
        ("rows = [16, 8]", "rows = []", ["parameters.rows: is empty"]),
        ("rows = [16, 8]", "rows = [8, 8]", ["parameters.rows: has 8 twice"]),
        ("rows = [16, 8]", 'rows = [8, "8"]', ["parameters.rows: has text and numbers"]),
        ("rows = [16, 8]", "rows = [8, true]", ["parameters.rows[1]: "]),
        ("rows = [16, 8]", "rows = [8, nan]", ["parameters.rows: has a value that is no finite"]),
        ("rows = [16, 8]", "rows = 8", ["parameters.rows: is an integer (8)", "from, to, step"]),
        ("rows = [16, 8]", "rowz = [16, 8]", ["parameters.rowz: unknown", "did you mean rows"]),
        ("rows = [16, 8]", "", ["parameters.rows: is missing", "rows of the array"]),
        ("to = 8, step = 3", "to = 9, step = 3", ["parameters.banks.to: 9 is not reached"]),
        ("to = 8, step = 3", "to = 8, step = 0", ["parameters.banks.step: 0"]),
        ("to = 8, step = 3", "to = 1", ["parameters.banks: from 2 is above to 1"]),
        ("to = 8, step = 3", "upto = 8", ["parameters.banks.upto: unknown key", "from, to"]),
        ("to = 8, step = 3", "step = 3", ["parameters.banks.to: is missing"]),
        ("to = 8, step = 3", "to = 80000", ["parameters.banks.to: has more than 4,096 values"]),
        ("from = 32", "from = 33", ["parameters.size.from: 33 is no power of two"]),
        ("powers_of_two = true", "powers_of_two = true, step = 2", ["parameters.size.step"]),
        ('dataflow = "os"', "rows = 8", ["fixed.rows: is a parameter too"]),
        ('dataflow = "os"', "flow = 8", ["fixed.flow: unknown parameter"]),
        ('dataflow = "os"', "dataflow = [1]", ["fixed.dataflow: is an array"]),
        ("rows * banks <= size", "rows * bank <= size", ["where[0]: ", "did you mean banks"]),
        ("rows * banks <= size", "rows * banks", ["where[0]: ", "compares nothing"]),
        ("rows * banks <= size", "rows <=", ["where[0]: ", "is no expression"]),
        ("rows * banks <= size", "__import__('os') == 1", ["where[0]: ", "is not allowed"]),
        ("rows * banks <= size", "rows ** 9 == 1", ["where[0]: ", "is not allowed"]),
        ('["time", "area"]', '["time", "areas"]', ["objectives: ", "did you mean area"]),
        ('["time", "area"]', '["time", "time"]', ["objectives: ", "given twice"]),
        ('["time", "area"]', "[]", ["objectives: no objective"]),
        ('power = "2W"', 'power = "2"', ["limits.power: ", "the unit of power is one of: W, mW"]),
        ('power = "2W"', 'powr = "2W"', ["limits.powr: ", "did you mean power"]),
        ('name = "random"', 'name = "random', ["not valid TOML"]),
    ],
)
def test_faults_are_one_line(tmp_path: Path, good: str, bad: str, said: list[str]) -> None:
    assert good in GOOD
    with pytest.raises(SpecError) as caught:
        read(tmp_path, GOOD.replace(good, bad))
    text = str(caught.value)
    assert "\n" not in text
    for part in ("space.toml: ", *said):
        assert part in text


@pytest.mark.parametrize(
    "text, holds",
    [
        ("a == b", False),
        ("a < b < 10", True),
        ("a < b < 7", False),
        ("a * 2 + 1 == b - -1", False),
        ("a * 2 + 2 == b + 1", True),
        ("b // a == 2", True),
        ("b % a == 1", True),
        ('c == "ws"', True),
        ('c != "ws"', False),
    ],
)
def test_relations_mean_what_python_means(text: str, holds: bool) -> None:
    point = {"a": 3, "b": 7, "c": "ws"}
    assert read_relation(text, point).holds(point) is holds
    assert eval(text, dict(point)) is holds


@pytest.mark.parametrize(
    "text", ["a // (b - b) == 1", 'a < "x"', 'c + "x" == c', "a" + "*a" * 99 + "==1"]
)
def test_relations_without_a_value_are_told(text: str) -> None:
    point = {"a": 1000, "b": 7, "c": "ws"}
    with pytest.raises(SpecError, match="has no value at"):
        read_relation(text, point).holds(point)


@pytest.mark.parametrize(
    "text",
    [
        *("a.b == 1", "a[0] == 1", "f(a) == 1", "(a == 1) == 1", "True == a", "a if a else b"),
        *("a in b", "lambda: 1", "a and b", "[a] == b", "(a := 1) == b", "a is b"),
        *("a == " + "(" * 300 + "1" + ")" * 300, "a == 1" + " " * 500),
    ],
)
def test_nothing_else_is_a_relation(text: str) -> None:
    with pytest.raises(SpecError):
        read_relation(text, ["a", "b"])


@pytest.mark.parametrize(
    "text, value",
    [
        ("power=2W", 2.0),
        ("power = 500 mW", 0.5),
        ("area=1.5mm2", 1.5),
        ("area=2e6um2", 2.0),
        ("energy=3mJ", 3.0),
        ("energy=2J", 2000.0),
        ("cycles=1e9", 1e9),
        ("time=20ms", 20_000.0),
    ],
)
def test_limits_in_units(text: str, value: float) -> None:
    assert read_limit(text).value == pytest.approx(value)


@pytest.mark.parametrize(
    "text, said",
    [
        ("power=2", "the unit of power is one of: W, mW, uW"),
        ("power=2kW", "the unit of power"),
        ("power=-2W", "is not NAME=NUMBER"),
        ("power=0W", "above 0"),
        ("power=1e999W", "above 0"),
        ("power", "is not NAME=NUMBER"),
        ("cycles=5W", "the unit of cycles is one of: none"),
        ("powr=2W", "did you mean power"),
    ],
)
def test_wrong_limits_are_told(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read_limit(text)


def test_two_limits_of_one_objective_are_refused() -> None:
    with pytest.raises(SpecError, match="two limits"):
        read_limits(["power=2W", "power=3W"])


def test_objectives_keep_their_order() -> None:
    assert [one.name for one in read_objectives(["area", "cycles"])] == ["area", "cycles"]


@pytest.mark.parametrize(
    "text", ["memories.buffer.banks < 4", 'memories."buffer".banks < 4', 'memories . "buffer"']
)
def test_a_key_has_one_name_however_it_is_spelled(text: str) -> None:
    if "<" not in text:
        # Blanks between the parts are those of Python: an attribute is no key.
        with pytest.raises(SpecError):
            read_relation(text, {"memories.buffer"})
        return
    relation = read_relation(text, {"memories.buffer.banks"})
    assert relation.names == {"memories.buffer.banks"}
    assert relation.holds({"memories.buffer.banks": 3})
    assert not relation.holds({"memories.buffer.banks": 4})


def test_texts_of_relations_are_no_keys() -> None:
    relation = read_relation('dataflow == "a.b"', {"dataflow"})
    assert relation.holds({"dataflow": "a.b"})
