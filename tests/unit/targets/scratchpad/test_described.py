"""A machine that is described in TOML alone runs, and what cannot be executed is one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError, SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.reference import reference
from cpembed.targets.scratchpad.boxes import BoxProduct, lower
from cpembed.targets.scratchpad.executor import program
from cpembed.targets.scratchpad.machine import scratchpad_machine
from cpembed.targets.scratchpad.schedule import Plan, Schedule
from cpembed.targets.scratchpad.space import ScratchpadSpace
from tests.cli.calling import Caller
from tests.unit.targets.scratchpad.executor.running import needs_compiler
from tests.unit.targets.scratchpad.machines import (
    command,
    described,
    of_fixed_size,
    shown,
    without_mesh,
    write,
)
from tests.unit.targets.scratchpad.plans import small_inputs

BROKEN: dict[str, tuple[str, str, str]] = {
    "one axis of a fixed size": (
        "y = { multiple = 4, max = 1024 }",
        "y = 4",
        "instruction.axes: a primitive of any size is a product of matrices",
    ),
    "rows and columns exchanged": (
        'A = ["x", "z"]',
        'A = ["z", "x"]',
        'mesh.cut.A: rows and columns cut a product into blocks; allowed: ["x", "z"]',
    ),
    "no square": ("rows = 4", "rows = 2", "mesh: rows and columns cut z into 2 and 4 parts; make"),
    "no whole vector": (
        "multiple = 16",
        "multiple = 8",
        "axes.x.multiple: x, of C and the first factor, is computed in vectors of 4 elements; allo",
    ),
    "alignment": (
        'scope = "npu.sums"',
        'scope = "npu.sums"\nalignment_bytes = 8',
        "operands.C.alignment_bytes: 8 is more than an element of 4 bytes",
    ),
    "transactions": (
        "granule_bytes = 64  ",
        "granule_bytes = 48  ",
        'memories."npu.data".granule_bytes: 48 is not allowed; allowed: a divisor of 256',
    ),
    "no capacity": (
        "capacity_bytes = 262_144",
        "",
        'memories."npu.data".capacity_bytes: is missing; a scratchpad has one',
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_executed_is_one_line(case: str, tmp_path: Path) -> None:
    old, new, problem = BROKEN[case]
    text = described()
    assert text.count(old) == 1
    with pytest.raises(SpecError) as caught:
        scratchpad_machine(load_hardware_spec(write(tmp_path, text.replace(old, new))))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mesh_does_not_execute_an_instruction_of_fixed_size(tmp_path: Path) -> None:
    path = write(tmp_path, of_fixed_size(described()))
    with pytest.raises(SpecError, match="mesh: an instruction of fixed size is executed by one"):
        scratchpad_machine(load_hardware_spec(path))


def test_the_machine_is_as_described(tmp_path: Path) -> None:
    machine = scratchpad_machine(load_hardware_spec(write(tmp_path, described())))
    assert (machine.rows, machine.columns, machine.lanes) == (4, 4, ("x", "y", "z"))
    assert machine.capacities == (16_384, 8_192)
    assert machine.memory_of == {"A": 0, "B": 0, "C": 1}
    assert machine.sized
    assert machine.overlaps
    alone = scratchpad_machine(load_hardware_spec(write(tmp_path, without_mesh(described()))))
    assert alone.elements == 1
    assert alone.capacities == (262_144, 131_072)


@needs_compiler
def test_the_page_shows_what_the_command_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but what the choice among candidates decides."""
    write(tmp_path, described())
    monkeypatch.chdir(tmp_path)
    said = Caller(capsys)(*command()).out.splitlines()
    assert [line.split("  ")[0] for line in said] == [line.split("  ")[0] for line in shown()]
    decided = ("embedding", " ", "schedule", "chosen", "estimated", "counted", "npu.")
    sure = [line for line in said if not line.startswith(decided)]
    assert sure == [line for line in shown() if not line.startswith(decided)]
    equal = "bit for bit equal to the reference (data of seed 1, and with special values)"
    assert f"verified     yes, {equal}" in sure


def unchanged(text: str) -> str:
    return text


def alone(text: str) -> str:
    return of_fixed_size(without_mesh(text))


def without_overlap(text: str) -> str:
    return text.replace('"double_buffer"', '"none"')


def of_float64(text: str) -> str:
    return text.replace('"int8"', '"float64"').replace('"int32"', '"float64"')


def with_less(text: str) -> str:
    return text.replace("262_144", "8_192").replace("131_072", "4_096")


def test_an_instruction_that_only_adds_is_none_of_boxes(tmp_path: Path) -> None:
    text = without_mesh(of_fixed_size(described())).replace(" * B[z,y]", "")
    text = re.sub(r"\[operands\.B\].*?(?=\[operands\.C\])", "", text, flags=re.DOTALL)
    text = text.replace("C[x,y]", "C[x]").replace("y = 4", "").replace(', "y"]', "]")
    text = text.replace('stride = { x = "any", y = "any" }', "")
    with pytest.raises(
        SpecError, match=r"instruction\.expression: a kernel of boxes multiplies two"
    ):
        scratchpad_machine(load_hardware_spec(write(tmp_path, text)))


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        unchanged,
        without_mesh,
        alone,
        without_overlap,
        of_float64,
        with_less,
    ],
)
def test_it_runs(change: Callable[[str], str], tmp_path: Path) -> None:
    spec = load_hardware_spec(write(tmp_path, change(described())))
    given = workload("conv2d n=1 c=12 h=9 w=7 k=20 r=3 s=3 stride=2 pad=1", spec)
    inputs = small_inputs(given, 1)
    product, schedule = first(given, spec)
    found = program(Plan(product, schedule)).run(inputs, 1)
    np.testing.assert_array_equal(found, reference(given, inputs))


def first(given: Computation, spec: HardwareSpec) -> tuple[BoxProduct, Schedule]:
    """Of the best embedding that has one."""
    machine = scratchpad_machine(spec)
    for each in solve(given, spec, top=20).embeddings:
        try:
            product = lower(each.candidate.program, machine)
            return product, ScratchpadSpace(product).best().schedule
        except LoweringError:
            continue
    raise AssertionError(spec)
