"""Constants of an instruction set's file, and machines of other sizes that they make."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from cpembed.errors import SpecError
from cpembed.hw.isa_constants import with_constants
from cpembed.hw.isa_reader import read_instruction_set
from cpembed.resources import accelerator_files


def gemmini() -> dict[str, Any]:
    return tomllib.loads(accelerator_files()["gemmini"].read_text())


@pytest.mark.parametrize("dim", [8, 16, 32])
def test_the_mesh_of_gemmini_is_one_number(dim: int) -> None:
    tables = gemmini()
    tables["constants"]["dim"] = dim
    machine = read_instruction_set(tables, "gemmini.toml")
    assert set(machine.instructions["compute"].extents.values()) == {dim}
    assert machine.memories["scratchpad"].row_bytes == dim
    assert machine.memories["accumulator"].row_bytes == 4 * dim
    # Four blocks of DIM columns, which lie DIM rows apart.
    load = machine.instructions["mvin_a"]
    assert load.extents["e"] == 4 * dim
    assert load.places["D"].strides[f"e/{dim}"] == dim
    assert machine.instructions["compute"].energy_pj == pytest.approx(0.3 * dim**3)


def test_files_without_constants_are_as_they_are() -> None:
    tables = {"rows": "$dim"}
    assert with_constants(tables, "a.toml") is tables


@pytest.mark.parametrize(
    "text, value",
    [
        ("$dim", 6),
        ("$(4*dim+2)", 26),
        ("$((dim+2)*(dim-2))", 32),
        ("e/$dim", "e/6"),
        ("$(dim/4)", 1.5),
        ("a$(dim//4)b$dim", "a1b6"),
        ("$$", "$$"),
    ],
)
def test_references_are_numbers_or_parts_of_texts(text: str, value: Any) -> None:
    tables = {"constants": {"dim": 6}, "key": [text, "$dim"], "table": {text: 1}}
    replaced = {"key": [value, 6], "table": {str(value): 1}}
    assert with_constants(tables, "a.toml") == replaced


@pytest.mark.parametrize(
    "change, said",
    [
        ({"rows": "$dimm"}, "rows: there is no constant 'dimm' (did you mean dim?); allowed: dim"),
        ({"rows": "$(dim**2)"}, "rows: $dim**2: is no expression; use numbers"),
        ({"rows": "$(dim.__class__)"}, "is no expression"),
        ({"rows": "$(1//(dim-6))"}, "divides by zero"),
        ({"rows": "$(dim*99999999999999999)"}, "is beyond all sizes"),
        (
            {"rows": "$dim", "constants": {"dim": 6, "dimm": 8}},
            "constants.dimm: nothing uses $dimm",
        ),
        ({"constants": {"dim": "6"}}, "constants.dim: '6' is no number"),
        ({"constants": 3}, "constants: must be a table of numbers"),
    ],
)
def test_wrong_constants_are_said_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        with_constants({"constants": {"dim": 6}} | change, "a.toml")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
