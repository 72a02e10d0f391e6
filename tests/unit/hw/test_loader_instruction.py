"""Expression, axes and element types of a specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.loader import load_hardware_spec
from tests.unit.hw.toy import Broken, assert_refused, edited, write

BROKEN: dict[str, Broken] = {
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
    "more operations than can be enumerated": (
        "y = 8",
        "y = 65536",
        "instruction.axes",
        ["operations in one instruction", "allowed: 1,048,576"],
    ),
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
    "multiple below 1": (
        "min = 2, max = 4, step = 2",
        "multiple = 0, max = 4",
        "instruction.axes.x.multiple",
        ["0 is not allowed", "allowed: 1..65536"],
    ),
    "multiple beside a minimum": (
        "step = 2",
        "multiple = 2",
        "instruction.axes.x.min",
        ["stands beside `multiple`", "leave one of them out"],
    ),
    "multiple beside a step": (
        "min = 2, max = 4",
        "multiple = 2, max = 4",
        "instruction.axes.x.step",
        ["stands beside `multiple`", "leave one of them out"],
    ),
    "largest size that is no multiple": (
        "min = 2, max = 4, step = 2",
        "multiple = 3, max = 4",
        "instruction.axes.x.max",
        ["4 is not allowed", "allowed: a multiple of 3, up to 65536"],
    ),
    "largest size below the multiple": (
        "min = 2, max = 4, step = 2",
        "multiple = 4, max = 0",
        "instruction.axes.x.max",
        ["0 is not allowed", "a multiple of 4"],
    ),
    "multiple without a largest size": (
        "min = 2, max = 4, step = 2",
        "multiple = 4",
        "instruction.axes.x.max",
        ["is missing", "an integer"],
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
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_answered_by_one_line_with_its_key(case: str, tmp_path: Path) -> None:
    assert_refused(BROKEN[case], tmp_path)


def test_an_axis_of_any_size_is_embedded_by_its_granule(tmp_path: Path) -> None:
    text = edited("min = 2, max = 4, step = 2", "multiple = 4, max = 64")
    axis = load_hardware_spec(write(tmp_path, text)).instruction.axis("x")
    assert (axis.minimum, axis.maximum, axis.step, axis.largest) == (4, 4, 1, 64)
    assert axis.describe_allowed() == "multiples of 4 up to 64"


def test_the_expression_must_make_sense_in_every_dtype(tmp_path: Path) -> None:
    text = edited("A[x,z] * B[z,y]", "(A[x,z] * B[z,y]) >> 1")
    assert load_hardware_spec(write(tmp_path, text)).name == "toy"
    floats = '["uint8", "int8", "float32"]'
    path = write(tmp_path, text.replace('["uint8", "int8"]', floats))
    with pytest.raises(SpecError, match=r"instruction\.expression: '>>' shifts integers and"):
        load_hardware_spec(path)
    path = write(tmp_path, edited('["uint8", "int8"]', floats))
    with pytest.raises(SpecError, match=r"C is int32 and its value is a float: write int32\("):
        load_hardware_spec(path)
