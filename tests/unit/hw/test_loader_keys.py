"""Keys of a specification: unknown, missing, of a wrong type, and names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.hw.toy import Broken, assert_refused

BROKEN: dict[str, Broken] = {
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
        ["unknown key", "max, min, step, multiple", "did you mean step?"],
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
        ["is a string ('8')", "must be an integer or a table of max, min, step, multiple"],
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
    "CPU feature in the manual's spelling": (
        "avx512f",
        "AVX512-VNNI",
        "cpu_features[0]",
        ["/proc/cpuinfo", "did you mean avx512_vnni?"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_answered_by_one_line_with_its_key(case: str, tmp_path: Path) -> None:
    assert_refused(BROKEN[case], tmp_path)
