"""Reading a specification: what a good file becomes, files that are none, and targets by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.instruction import OperandMemory, StrideRule, TileDimension
from cpembed.hw.loader import available_targets, load_hardware_spec
from tests.unit.hw.toy import GOOD, edited, write


def test_a_file_becomes_the_values_it_states(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    spec = load_hardware_spec(path)
    assert (spec.name, spec.backend, spec.cpu_features) == ("toy", "x86", ("avx512f",))
    assert (spec.description, spec.source) == ("A 4 x 8 x 8 product", "made up")
    assert spec.path == str(path)
    instruction = spec.instruction
    assert instruction.extents == {"x": 4, "y": 8, "z": 8}
    assert instruction.axis("x").allowed == (2, 4)
    assert instruction.dtypes == {"A": ("uint8", "int8"), "B": ("int8",), "C": ("int32",)}
    assert [o.dtype for o in instruction.computation.operands] == ["uint8", "int8", "int32"]
    memory = instruction.memory["A"]
    assert memory.tile == (TileDimension("x"), TileDimension("z"))
    assert memory.stride_rule("x") is StrideRule.ANY
    assert memory.stride_rule("z") is StrideRule.UNIT
    assert (memory.alignment_bytes, memory.capacity_bytes) == (4, 128)
    assert instruction.memory["B"].tile == (
        TileDimension("z", 4),
        TileDimension("y"),
        TileDimension("z", 1, 4),
    )
    assert instruction.memory["C"].capacity_bytes is None


def test_a_path_may_be_given_as_text(tmp_path: Path) -> None:
    assert load_hardware_spec(str(write(tmp_path, GOOD))).name == "toy"


def test_a_redundant_modulus_gives_the_same_tile(tmp_path: Path) -> None:
    plain = load_hardware_spec(write(tmp_path, GOOD)).instruction.memory["B"].tile
    written = edited('"z/4", "y", "z%4"', '"z / 4 % 2", "y", "z%4"')
    assert load_hardware_spec(write(tmp_path, written)).instruction.memory["B"].tile == plain


@pytest.mark.parametrize("scalar", ["C[0]", "C[]"])
def test_dot_product_operands_may_have_an_empty_tile(scalar: str, tmp_path: Path) -> None:
    text = """\
name = "dot"
description = "dot product"
source = "made up"
[instruction]
expression = "C[0] += A[z] * B[z]"
axes = { z = 4 }
[operands]
A = { dtype = "int8", scope = "r", tile = ["z"] }
B = { dtype = "int8", scope = "r", tile = ["z"] }
C = { dtype = "int32", scope = "r", tile = [] }
[memories.r]
"""
    assert text.count("C[0]") == 1
    path = write(tmp_path, text.replace("C[0]", scalar))
    instruction = load_hardware_spec(path).instruction
    assert instruction.tile_shape("C") == ()
    assert instruction.macs == 4


@pytest.mark.parametrize(
    "text, line",
    [
        ('name = "toy"\nbackend = x86\n', "line 2"),
        ('name = "toy"\nname = "toy"\n', "line 2"),
        ('name = "toy"\ncpu_features = [\n', "line 2"),
        ("[instruction\n", "line 1"),
    ],
)
def test_a_syntax_error_names_the_line(text: str, line: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SpecError, match=rf"not valid TOML: .*{line}\b") as caught:
        load_hardware_spec(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_an_empty_file_lacks_its_first_key(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="name: is missing"):
        load_hardware_spec(write(tmp_path, ""))


def test_a_file_that_is_absent_says_so(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    with pytest.raises(SpecError) as caught:
        load_hardware_spec(path)
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory"


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_hardware_spec(path).name == "toy"


def test_a_folder_is_not_a_specification(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        load_hardware_spec(tmp_path)


def test_a_file_that_is_not_text_says_so(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_bytes(b'name = "\xff\xfe"')
    with pytest.raises(SpecError, match=r"not a text file in UTF-8 \(byte 8\)"):
        load_hardware_spec(path)


def named(tmp_path: Path, line: str) -> Path:
    return write(tmp_path, GOOD.replace('name = "toy"', f'name = "toy"\n{line}'))


def test_other_targets_may_run_what_this_one_cannot(tmp_path: Path) -> None:
    path = named(tmp_path, 'alternatives = ["avx512_vnni_dot", "avx512_int8"]')
    assert load_hardware_spec(path).alternatives == ("avx512_vnni_dot", "avx512_int8")
    assert load_hardware_spec(write(tmp_path, GOOD)).alternatives == ()
    path = named(tmp_path, 'alternatives = ["avx512_vnni_dot", "avx512_int"]')
    with pytest.raises(SpecError) as caught:
        load_hardware_spec(path)
    assert str(caught.value) == (
        f"{path}: alternatives[1]: unknown target 'avx512_int' (did you mean avx512_int8?); "
        "allowed: a name that `cpembed targets` lists"
    )
    path = named(tmp_path, 'alternatives = ["amx_int8"]')
    with pytest.raises(
        SpecError, match=r"alternatives\[0\]: amx_int8 names another target in turn"
    ):
        load_hardware_spec(path)


@pytest.mark.parametrize("key", ["otherwise", "beside"])
def test_older_keys_name_an_alternative_each(tmp_path: Path, key: str) -> None:
    path = named(tmp_path, f'{key} = "avx512_int8"')
    assert load_hardware_spec(path).alternatives == ("avx512_int8",)
    path = named(tmp_path, f'{key} = "avx512_int"')
    with pytest.raises(SpecError, match=rf"{key}: unknown target 'avx512_int' \(did you mean"):
        load_hardware_spec(path)
    path = named(tmp_path, f'{key} = "amx_int8"')
    with pytest.raises(SpecError, match=f"{key}: amx_int8 names another target in turn"):
        load_hardware_spec(path)


def test_alternatives_are_named_once(tmp_path: Path) -> None:
    text = 'alternatives = ["avx512_int8"]\notherwise = "avx512_int8"\nbeside = "avx512_vnni_dot"'
    assert load_hardware_spec(named(tmp_path, text)).alternatives == (
        "avx512_int8",
        "avx512_vnni_dot",
    )


def test_an_unknown_target_lists_close_matches_and_the_command() -> None:
    with pytest.raises(SpecError) as caught:
        load_hardware_spec("amx_int")
    assert str(caught.value) == (
        "unknown target 'amx_int' (did you mean amx_int8?); `cpembed targets` lists them, "
        "and a path to a TOML file is a target too"
    )


def test_an_unknown_target_without_close_match() -> None:
    with pytest.raises(SpecError, match=r"unknown target 'tpu'; `cpembed targets`"):
        load_hardware_spec("tpu")


def test_targets_are_listed_by_name() -> None:
    names = available_targets()
    assert names == tuple(sorted(names))
    assert {"vta_1x16x16", "amx_int8"} <= set(names)


def test_a_scalar_has_no_neighbours() -> None:
    assert not OperandMemory("memory", ()).reads_contiguously("x", 1, {"x": 4})
