"""Reading a specification: what a good file becomes, and the message each broken one gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.instruction import StrideRule, TileDimension
from cpembed.hw.loader import available_targets, load_hardware_spec

GOOD = """\
name = "toy"
description = "A 4 x 8 x 8 product"
source = "made up"
backend = "x86"
cpu_features = ["avx512f"]

[instruction]
expression = "C[x,y] += A[x,z] * B[z,y]"

[instruction.axes]
x = { min = 2, max = 4, step = 2 }
y = 8
z = 8

[operands.A]
dtype = ["uint8", "int8"]
scope = "buffer"
tile = ["x", "z"]
stride = { x = "any" }
alignment_bytes = 4

[operands.B]
dtype = "int8"
scope = "buffer"
tile = ["z/4", "y", "z%4"]

[operands.C]
dtype = "int32"
scope = "sums"
tile = ["x", "y"]

[memories.buffer]
capacity_bytes = 128

[memories.sums]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def edited(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


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


BROKEN = {
    # name: (old, new, key, words of the message)
    "unknown key at the top": (
        'backend = "x86"',
        'backand = "x86"',
        "backand",
        ["unknown key", "cpu_features", "did you mean backend?"],
    ),
    "unknown key of an operand": (
        "alignment_bytes",
        "alignment",
        "operands.A.alignment",
        ["unknown key", "dtype, scope, tile, stride", "did you mean alignment_bytes?"],
    ),
    "unknown key of an axis": (
        "step = 2",
        "steps = 2",
        "instruction.axes.x.steps",
        ["unknown key", "min, max, step", "did you mean step?"],
    ),
    "unknown key of a memory": (
        "capacity_bytes = 128",
        "capacity = 128",
        "memories.buffer.capacity",
        ["unknown key", "allowed: capacity_bytes", "did you mean capacity_bytes?"],
    ),
    "missing key at the top": (
        'source = "made up"\n',
        "",
        "source",
        ["is missing", "must be a string"],
    ),
    "missing expression": (
        'expression = "C[x,y] += A[x,z] * B[z,y]"\n',
        "",
        "instruction.expression",
        ["is missing", "a string"],
    ),
    "missing key of an operand": (
        'scope = "sums"\n',
        "",
        "operands.C.scope",
        ["is missing", "a string"],
    ),
    "missing key of an axis": (
        "{ min = 2, max = 4, step = 2 }",
        "{ max = 4 }",
        "instruction.axes.x.min",
        ["is missing", "an integer"],
    ),
    "wrong type: text for a number": (
        "y = 8",
        'y = "8"',
        "instruction.axes.y",
        ["is a string ('8')", "must be an integer or a table of min, max, step"],
    ),
    "wrong type: float extent": (
        "y = 8",
        "y = 8.0",
        "instruction.axes.y",
        ["is a float (8.0)", "an integer"],
    ),
    "wrong type: boolean extent": (
        "y = 8",
        "y = true",
        "instruction.axes.y",
        ["is a boolean", "an integer"],
    ),
    "wrong type: table for text": (
        'description = "A 4 x 8 x 8 product"',
        "description = { en = 'product' }",
        "description",
        ["is a table", "must be a string"],
    ),
    "wrong type: date": (
        'description = "A 4 x 8 x 8 product"',
        "description = 2021-05-01",
        "description",
        ["is a date or time", "must be a string"],
    ),
    "wrong type: array item": (
        '["avx512f"]',
        '["avx512f", 3]',
        "cpu_features[1]",
        ["is an integer (3)", "must be a string"],
    ),
    "wrong type: tile as text": (
        'tile = ["x", "z"]',
        'tile = "x z"',
        "operands.A.tile",
        ["is a string", "must be an array of strings"],
    ),
    "wrong type: dtype": (
        'dtype = "int32"',
        "dtype = 32",
        "operands.C.dtype",
        ["is an integer (32)", "a string or an array of strings"],
    ),
    "wrong type: value for a table": (
        "[memories.sums]",
        "[memories]\nsums = 3",
        "memories.sums",
        ["is an integer (3)", "must be a table of capacity_bytes"],
    ),
    "number beyond 64 bits": (
        "y = 8",
        "y = 99999999999999999999999",
        "instruction.axes.y",
        ["is not allowed", "allowed: 1..65536"],
    ),
    "empty name": ('name = "toy"', 'name = ""', "name", ["'' is not a name", "allowed"]),
    "name with a slash": (
        'name = "toy"',
        'name = "a/b"',
        "name",
        ["'a/b' is not a name", "letters, digits"],
    ),
    "empty source": ('source = "made up"', 'source = " "', "source", ["is empty"]),
    "unknown backend": (
        'backend = "x86"',
        'backend = "gpu"',
        "backend",
        ["unknown backend 'gpu'", "allowed: x86", "leave the key out"],
    ),
    "CPU feature in the manual's spelling": (
        "avx512f",
        "AVX512-VNNI",
        "cpu_features[0]",
        ["/proc/cpuinfo", "did you mean avx512_vnni?"],
    ),
    "expression that does not parse": (
        "A[x,z] * B",
        "A[x,z] ** B",
        "instruction.expression",
        ["column 19", "'*'"],
    ),
    "expression without a reduction": (
        "+= A",
        "= A",
        "instruction.expression",
        ["'z'", "written repeatedly", "use +="],
    ),
    "axis without extent": (
        "z = 8\n",
        "",
        "instruction.axes.z",
        ["is missing", "z is in the expression and needs an extent"],
    ),
    "extent without axis": (
        "z = 8\n",
        "z = 8\nzz = 8\n",
        "instruction.axes.zz",
        ["is not in the expression", "its axes: x, y, z", "did you mean z?"],
    ),
    "operand without table": (
        "* B[z,y]",
        "* W[z,y]",
        "operands.W",
        ["is missing", "W is in the expression and needs a table"],
    ),
    "table without operand": (
        "[operands.C]",
        "[operands.D]\ndtype = 'int8'\nscope = 'sums'\ntile = []\n[operands.C]",
        "operands.D",
        ["is not in the expression", "its operands: A, B, C"],
    ),
    "extent below 1": ("y = 8", "y = 0", "instruction.axes.y", ["extent 0", "allowed: 1..65536"]),
    "minimum below 1": (
        "min = 2",
        "min = 0",
        "instruction.axes.x.min",
        ["0 is not allowed", "allowed: 1..65536"],
    ),
    "minimum above maximum": (
        "min = 2",
        "min = 6",
        "instruction.axes.x.min",
        ["6 is above max, 4"],
    ),
    "step of zero": (
        "step = 2",
        "step = 0",
        "instruction.axes.x.step",
        ["0 is not allowed", "1..65536"],
    ),
    "step that misses the maximum": (
        "min = 2, max = 4, step = 2",
        "min = 1, max = 4, step = 2",
        "instruction.axes.x.step",
        ["does not lead from min 1 to max 4", "a divisor of 3"],
    ),
    "configurable axis in a sum": (
        "A[x,z]",
        "A[x+z,z]",
        "instruction.axes.x",
        ["is configurable", "index x + z of A", "allowed: a fixed extent"],
    ),
    "configurable axis with a factor": (
        "C[x,y]",
        "C[2*x,y]",
        "instruction.axes.x",
        ["is configurable", "index 2*x of C"],
    ),
    "unknown dtype": (
        'dtype = "int32"',
        'dtype = "int33"',
        "operands.C.dtype",
        ["unknown dtype 'int33'", "allowed: int8, uint8", "did you mean int32?"],
    ),
    "unknown dtype in a list": (
        '["uint8", "int8"]',
        '["uint8", "s8"]',
        "operands.A.dtype[1]",
        ["unknown dtype 's8'", "allowed: int8, uint8"],
    ),
    "no dtype": ('["uint8", "int8"]', "[]", "operands.A.dtype", ["lists no dtype"]),
    "dtype twice": (
        '["uint8", "int8"]',
        '["int8", "int8"]',
        "operands.A.dtype[1]",
        ["int8 is listed twice"],
    ),
    "scope that is not declared": (
        'scope = "sums"',
        'scope = "sum"',
        "operands.C.scope",
        ["'sum' has no [memories] table", "buffer, sums", "did you mean sums?"],
    ),
    "memory that holds nothing": (
        "[memories.sums]",
        "[memories.sums]\n[memories.'l2.x']",
        'memories."l2.x"',
        ["holds no operand", "scopes in use: buffer, sums"],
    ),
    "capacity of zero": (
        "capacity_bytes = 128",
        "capacity_bytes = 0",
        "memories.buffer.capacity_bytes",
        ["0 is not allowed", "at least 1"],
    ),
    "tile larger than its scope": (
        "capacity_bytes = 128",
        "capacity_bytes = 32",
        "operands.B.tile",
        ["takes 64 bytes", "buffer holds 32"],
    ),
    "tiles together larger than their scope": (
        "capacity_bytes = 128",
        "capacity_bytes = 80",
        "memories.buffer.capacity_bytes",
        ["80 is too small", "A, B together", "96 bytes"],
    ),
    "tile lacks an axis": (
        'tile = ["x", "z"]',
        'tile = ["x"]',
        "operands.A.tile",
        ["lacks axis z", "exactly once"],
    ),
    "tile holds an axis twice": (
        'tile = ["x", "z"]',
        'tile = ["x", "z", "z"]',
        "operands.A.tile",
        ["holds axis z more than once"],
    ),
    "tile holds a part twice": (
        '"z/4", "y", "z%4"',
        '"z/4", "z%4", "y", "z%4"',
        "operands.B.tile",
        ["holds axis z more than once", "z%4"],
    ),
    "tile of another operand's axis": (
        'tile = ["x", "z"]',
        'tile = ["x", "y", "z"]',
        "operands.A.tile",
        ["y is not an axis of the operand", "its axes: x, z"],
    ),
    "tile part that is missing": (
        '"z/4", "y", "z%4"',
        '"z/4", "y"',
        "operands.B.tile",
        ["z/4 leaves a gap", "starts with z"],
    ),
    "divisor and modulus differ": (
        '"z/4", "y", "z%4"',
        '"z/4", "y", "z%2"',
        "operands.B.tile",
        ["z/4 leaves a gap", "multiply to 2", "starts with z/2"],
    ),
    "split that does not divide": (
        '"z/4", "y", "z%4"',
        '"z/3", "y", "z%3"',
        "operands.B.tile",
        ["z%3 does not divide the extent 8 of z"],
    ),
    "split that covers only a part": (
        '"z/4", "y", "z%4"',
        '"z%4", "y"',
        "operands.B.tile",
        ["parts of z multiply to 4", "its extent is 8"],
    ),
    "split of a configurable axis": (
        'tile = ["x", "z"]',
        'tile = ["x/2", "x%2", "z"]',
        "operands.A.tile",
        ["splits x, which is configurable", "x whole"],
    ),
    "tile dimension that cannot be read": (
        'tile = ["x", "z"]',
        'tile = ["x", "2*z"]',
        "operands.A.tile",
        ["'2*z' is not a tile dimension", "axis/divisor"],
    ),
    "tile dimension divided by zero": (
        'tile = ["x", "z"]',
        'tile = ["x", "z/0"]',
        "operands.A.tile",
        ["'z/0' divides by zero"],
    ),
    "stride rule of another operand's axis": (
        'stride = { x = "any" }',
        'stride = { y = "any" }',
        "operands.A.stride.y",
        ["y is not an axis of the operand", "its axes: x, z"],
    ),
    "stride rule of a split axis": (
        'tile = ["z/4", "y", "z%4"]',
        'tile = ["z/4", "y", "z%4"]\nstride = { z = "any" }',
        "operands.B.stride.z",
        ["z is split in the tile", "allowed for a split axis: unit"],
    ),
    "unknown stride rule": (
        'x = "any"',
        'x = "free"',
        "operands.A.stride.x",
        ["'free' is not allowed", "allowed: unit, any"],
    ),
    "alignment that is no power of two": (
        "alignment_bytes = 4",
        "alignment_bytes = 12",
        "operands.A.alignment_bytes",
        ["12 is not allowed", "a power of two"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_answered_by_one_line_with_its_key(case: str, tmp_path: Path) -> None:
    old, new, key, words = BROKEN[case]
    path = write(tmp_path, edited(old, new))
    with pytest.raises(SpecError) as caught:
        load_hardware_spec(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {key}: " if key else f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_the_expression_must_make_sense_in_every_output_dtype(tmp_path: Path) -> None:
    text = edited("A[x,z] * B[z,y]", "(A[x,z] * B[z,y]) >> 1")
    assert load_hardware_spec(write(tmp_path, text)).name == "toy"
    path = write(tmp_path, text.replace('"int32"', '["int32", "float32"]'))
    with pytest.raises(SpecError, match=r"instruction\.expression: '>>' needs an integer output"):
        load_hardware_spec(path)


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


def test_a_scalar_has_no_axis_to_hold_in_its_tile(tmp_path: Path) -> None:
    text = edited("C[x,y] += A[x,z] * B[z,y]", "C[y] += A[] * B[z,y]")
    for old, new in (
        ("x = { min = 2, max = 4, step = 2 }\n", ""),
        ('tile = ["x", "z"]\nstride = { x = "any" }', 'tile = ["z"]'),
        ('tile = ["x", "y"]', 'tile = ["y"]'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    with pytest.raises(SpecError, match=r"operands\.A\.tile: z is not an axis .* axes: none"):
        load_hardware_spec(write(tmp_path, text))
    scalar = load_hardware_spec(write(tmp_path, text.replace('["z"]', "[]"))).instruction
    assert scalar.tile_shape("A", {"y": 8}) == ()
    assert scalar.at({"y": 8}).operand("A").shape == ()
