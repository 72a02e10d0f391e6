"""Machines that a specification takes from another file, and in which file a fault is."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from tests.unit.hw.toy import edited, write

SHARED = """
[machines.big]
source = "a manual"
known = "published"
clock_mhz = 1000

[machines.big.compute]
latency_cycles = 4

[machines.big.memories.buffer]
parent = "dram"
granule_bytes = 64

[machines.big.memories.sums]
parent = "dram"

[machines.big.memories.dram]
read_bytes_per_cycle = 8
write_bytes_per_cycle = 8

[machines.small]
clock_mhz = "no specification names it"
"""

OWN = """
[machines.big.compute]
cycles = 2

[machines.big.memories.buffer]
granule_bytes = 32
"""


def load(folder: Path, *, own: str = OWN, shared: str = SHARED) -> HardwareSpec:
    (folder / "machines").mkdir()
    (folder / "machines" / "shared.toml").write_text(shared)
    text = edited(
        'source = "made up"', 'source = "made up"\nmachines_from = "machines/shared.toml"'
    )
    return load_hardware_spec(write(folder, text + own))


def test_a_machine_has_what_both_files_say(tmp_path: Path) -> None:
    machines = load(tmp_path).machines
    assert list(machines) == ["big"]
    found = machines["big"]
    assert (found.clock_mhz, found.compute.cycles, found.compute.latency_cycles) == (1000, 2, 4)
    assert found.memories["buffer"].parent == "dram"
    assert found.memories["dram"].read_bytes == 8


def test_the_specification_has_the_last_word(tmp_path: Path) -> None:
    assert load(tmp_path).machines["big"].memories["buffer"].granule_bytes == 32


def test_machines_of_its_own_need_no_other_file(tmp_path: Path) -> None:
    machine, _ = SHARED.split("[machines.small]")
    machine = machine.replace("machines.big", "machines.mine")
    machine = machine.replace("latency_cycles = 4", "cycles = 3")
    assert list(load(tmp_path, own=OWN + machine).machines) == ["big", "mine"]


@pytest.mark.parametrize(
    "old, new, file, problem",
    [
        # Of a wrong type, in either file.
        ("clock_mhz = 1000", "clock_mhz = true", "shared", r"\.big\.clock_mhz: is a boolean"),
        ("cycles = 2", 'cycles = "2"', "toy", r"machines\.big\.compute\.cycles: is a string"),
        # Of a value that is not allowed, found once the tables are put together.
        ("clock_mhz = 1000", "clock_mhz = -1", "shared", r"machines\.big\.clock_mhz: -1\.0 is not"),
        ("granule_bytes = 32", "granule_bytes = 0", "toy", r"granule_bytes: 0 is not allowed"),
        ('parent = "dram"\n\n', 'parent = "drum"\n\n', "shared", r"unknown memory 'drum'"),
        ("cycles = 2", "cycle = 2", "toy", r"machines\.big\.compute\.cycle: unknown key"),
        ("latency_cycles = 4", "latency = 4", "shared", r"compute\.latency: unknown key"),
        # In neither file.
        ("cycles = 2", "issues_per_cycle = 1", "toy", r"compute\.cycles: is missing"),
        ("machines.big.compute]\ncycles", "machines.bag.compute]\ncycles", "toy", "bag.source: is"),
    ],
)  # fmt: skip
def test_a_fault_is_in_the_file_that_holds_it(
    tmp_path: Path, old: str, new: str, file: str, problem: str
) -> None:
    assert (OWN + SHARED).count(old) == 1
    with pytest.raises(SpecError, match=rf"{file}\.toml: .*{problem}") as caught:
        load(tmp_path, own=OWN.replace(old, new), shared=SHARED.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "shared, problem",
    [
        ("name = 'x'\n" + SHARED, r"holds more, or less, than tables \[machines\.NAME\]"),
        ("", "holds more, or less"),
        ("machines = 1", "holds more, or less"),
        ("[machines", r"shared\.toml: not valid TOML"),
    ],
)
def test_the_other_file_holds_machines_alone(tmp_path: Path, shared: str, problem: str) -> None:
    with pytest.raises(SpecError, match=rf"toy\.toml: machines_from: .*{problem}"):
        load(tmp_path, shared=shared)


@pytest.mark.parametrize("name", ["missing.toml", "", "\\u0000", "x" * 300, "toy.toml"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    text = edited('source = "made up"', f'source = "made up"\nmachines_from = "{name}"')
    with pytest.raises(SpecError, match=r"toy\.toml: machines_from: ") as caught:
        load_hardware_spec(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_file_is_named_by_a_text(tmp_path: Path) -> None:
    text = edited('source = "made up"', 'source = "made up"\nmachines_from = 1')
    with pytest.raises(SpecError, match="machines_from: is an integer"):
        load_hardware_spec(write(tmp_path, text))
