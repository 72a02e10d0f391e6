"""What other distributions add: found by name, listed, never in the way."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

import pytest

from cpembed.cli import main
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.constraints import CONSTRAINTS
from cpembed.errors import CpembedError, SpecError, WorkloadError
from cpembed.hw.isa_reader import available_instruction_sets, load_instruction_set
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.resources import accelerator_files, hardware_spec_files
from cpembed.workloads.naming import parse_workload
from cpembed.workloads.operators import OPERATORS, available_operators, find_operator
from tests.unit.plugins.conftest import Install

OPERATOR = """
from cpembed.ir.parser import parse_computation
from cpembed.workloads.family import OperatorFamily, Parameter

def rows(*, i, j):
    return parse_computation("O[i] += A[i,j] * X[j]", {"i": i, "j": j}, name="rows")

ROWS = OperatorFamily("rows", "products of rows", rows, (Parameter("i", ""), Parameter("j", "")))
OTHER = OperatorFamily("other", "", rows, ())
"""

CONSTRAINT = """
from dataclasses import dataclass
from typing import ClassVar
from cpembed.embedding.constraints.base import Constraint

@dataclass(frozen=True)
class Largest(Constraint):
    name: ClassVar[str] = "largest"
    count: int = 16
    def post(self, model): pass
    def holds(self, problem, node_map): return True
    def allows(self, problem, option): return option.digit.count <= self.count
    def words(self): return "largest"

@dataclass(frozen=True)
class Silent(Constraint):
    name: ClassVar[str] = "silent"
    def post(self, model): pass
    def holds(self, problem, node_map): return True
    def words(self): return "silent"

class NoWords(Constraint):
    name: ClassVar[str] = "no_words"
"""

SET = 'extends = "strict"\n[largest]\ncount = 4\n'


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**filters: object) -> None:
        raise AssertionError("the installed distributions were looked through")

    monkeypatch.setattr(importlib.metadata, "entry_points", refuse)


@pytest.mark.usefixtures("nobody_looks")
def test_what_ships_is_found_without_looking_at_distributions() -> None:
    load_hardware_spec("vta_1x16x16")
    load_constraint_set("in_place_padded")
    parse_workload(["gemm", "m=4", "n=4", "k=4"])
    parse_workload(["deepbench:3"])
    words = ["gemm", "m=4", "n=16", "k=16", "--target", "vta_1x16x16", "--json"]
    assert main(["solve", *words]) == 0


def test_an_operator_of_another_distribution(install: Install) -> None:
    install("rows-op", {"cpembed.operators": {"rows": "rows_op:ROWS"}}, {"rows_op.py": OPERATOR})
    assert parse_workload(["rows", "i=3", "j=5"]).extents == {"i": 3, "j": 5}
    assert list(available_operators()) == [*OPERATORS, "rows"]
    with pytest.raises(WorkloadError, match=r"unknown workload 'row'.*variance.* rows\)"):
        parse_workload(["row"])


def test_a_constraint_of_another_distribution(install: Install) -> None:
    folder = install(
        "largest-digit",
        {"cpembed.constraints": {"largest": "largest_digit:Largest"}},
        {"largest_digit.py": CONSTRAINT, "own.toml": SET},
    )
    loaded = load_constraint_set(str(folder / "own.toml"))
    # After those that ship: it may rely on what they posted.
    assert [c.name for c in loaded.constraints][-1] == "largest"
    assert getattr(loaded.get("largest"), "count", None) == 4
    assert set(CONSTRAINTS) & {"largest"} == set()
    (folder / "own.toml").write_text(SET.replace("count", "cuont"))
    with pytest.raises(SpecError, match=r"largest\.cuont: allowed are count"):
        load_constraint_set(str(folder / "own.toml"))
    (folder / "own.toml").write_text(SET.replace("[largest]", "[largets]"))
    with pytest.raises(SpecError, match=r"'largets' \(did you mean largest\?\)"):
        load_constraint_set(str(folder / "own.toml"))


def test_constraint_sets_of_another_distribution(install: Install) -> None:
    entries = {
        "cpembed.constraints": {"largest": "cp_sets:Largest"},
        "cpembed.constraint_sets": {"any-name": "cp_sets.toml_files"},
    }
    install(
        "more-sets",
        entries,
        {
            "cp_sets/__init__.py": CONSTRAINT,
            "cp_sets/toml_files/small_digits.toml": SET,
            "cp_sets/toml_files/smaller.toml": 'extends = "small_digits"\n[largest]\ncount = 2\n',
        },
    )

    def count(loaded: ConstraintSet) -> object:
        return getattr(loaded.get("largest"), "count", None)

    assert count(load_constraint_set("small_digits")) == 4
    assert count(load_constraint_set("smaller")) == 2
    with pytest.raises(SpecError, match=r"small_digits.*did you mean smaller"):
        load_constraint_set("smallr")


def test_a_file_extends_a_set_of_another_distribution(install: Install) -> None:
    folder = install(
        "sets",
        {"cpembed.constraint_sets": {"sets": "sets_pkg"}},
        {
            "sets_pkg/__init__.py": "",
            "sets_pkg/bare.toml": "[dataflow]\n",
            "own.toml": 'extends = "bare"\n[all_different]\n',
        },
    )
    loaded = load_constraint_set(str(folder / "own.toml"))
    assert [c.name for c in loaded.constraints] == ["dataflow", "all_different"]


def spec_text(name: str) -> str:
    text = hardware_spec_files()["vta_1x16x16"].read_text(encoding="utf-8")
    return text.replace('"vta_1x16x16"', f'"{name}"', 1)


@pytest.mark.parametrize("value", ["my_hw", "my_hw.where:FOLDER"])
def test_targets_of_another_distribution(install: Install, value: str) -> None:
    where = "from pathlib import Path\nFOLDER = Path(__file__).parent\n"
    install(
        "my-hw",
        {"cpembed.hw_specs": {"mine": value}},
        {
            "my_hw/__init__.py": "",
            "my_hw/where.py": where,
            "my_hw/my_unit.toml": spec_text("my_unit"),
        },
    )
    assert load_hardware_spec("my_unit").name == "my_unit"
    assert set(available_targets()) == {*hardware_spec_files(), "my_unit"}
    with pytest.raises(SpecError, match="did you mean my_unit"):
        load_hardware_spec("my_unti")


def test_accelerators_of_another_distribution(install: Install) -> None:
    text = accelerator_files()["qkv_attention"].read_text(encoding="utf-8")
    files = {"my_isa/__init__.py": "", "my_isa/my_machine.toml": text}
    install("my-isa", {"cpembed.accelerators": {"mine": "my_isa"}}, files)
    assert "gemm" in load_instruction_set("my_machine").instructions
    assert set(available_instruction_sets()) == {*accelerator_files(), "my_machine"}


BROKEN = {
    "module": ("cpembed.operators", "rows", "nowhere:ROWS", "ModuleNotFoundError"),
    "attribute": ("cpembed.operators", "rows", "broken_code:NONE", "AttributeError"),
    "syntax": ("cpembed.operators", "rows", "broken_syntax:ROWS", "SyntaxError"),
    "raises": ("cpembed.constraints", "largest", "broken_raises:X", "ZeroDivisionError"),
    "operator type": ("cpembed.operators", "rows", "broken_code:rows", "not an OperatorFamily"),
    "operator name": ("cpembed.operators", "rows", "broken_code:OTHER", "of the name 'other'"),
    "constraint type": ("cpembed.constraints", "largest", "broken_set:Largest.words", "not a subc"),
    "constraint name": ("cpembed.constraints", "small", "broken_set:Largest", "has the name 'larg"),
    "constraint digits": ("cpembed.constraints", "silent", "broken_set:Silent", "neither allows"),
    "constraint faces": ("cpembed.constraints", "no_words", "broken_set:NoWords", "not a dataclas"),
    "folder": ("cpembed.hw_specs", "unit", "broken_code", "neither a package nor"),
    "no folder": ("cpembed.constraint_sets", "sets", "broken_set:MISSING", "not a folder"),
}

LOOK_UP: dict[str, Callable[[str], object]] = {
    "cpembed.operators": lambda name: parse_workload([name, "i=3", "j=5"]),
    "cpembed.hw_specs": load_hardware_spec,
    "cpembed.constraint_sets": load_constraint_set,
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_one_line_that_names_its_distribution(
    case: str, install: Install
) -> None:
    group, name, value, reason = BROKEN[case]
    folder = install(
        "broken-dist",
        {group: {name: value}},
        {
            "broken_code.py": OPERATOR,
            "broken_syntax.py": "def",
            "broken_raises.py": "1 / 0",
            "broken_set.py": CONSTRAINT + "MISSING = '/nowhere/at/all'\n",
            "own.toml": f"[{name}]\n",
        },
    )
    look_up = LOOK_UP.get(group, lambda name: load_constraint_set(str(folder / "own.toml")))
    with pytest.raises(SpecError) as caught:
        look_up(name)
    message = str(caught.value)
    assert message.startswith(f"broken-dist: entry point {name} = {value} of {group} ")
    assert reason in message
    assert "\n" not in message


def test_a_broken_plugin_does_not_disturb_what_ships(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = ("cpembed.operators", "cpembed.hw_specs", "cpembed.constraint_sets")
    install("broken-dist", {group: {"gone": "nowhere:X"} for group in groups}, {})
    words = ["gemm", "m=4", "n=16", "k=16", "--target", "vta_1x16x16", "--json"]
    assert main(["solve", *words]) == 0
    capsys.readouterr()
    for command in ("operators", "targets"):
        assert main([command]) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        assert captured.err.startswith("cpembed: broken-dist: ")


def test_two_distributions_with_one_name(install: Install) -> None:
    for name in ("first", "second"):
        module = f"{name}_op"
        install(name, {"cpembed.operators": {"rows": f"{module}:ROWS"}}, {f"{module}.py": OPERATOR})
    for ask in (lambda: find_operator("rows"), available_operators):
        with pytest.raises(
            SpecError, match=r"first and second both add 'rows' to cpembed\.operators"
        ):
            ask()


def test_two_distributions_with_one_file_name(install: Install) -> None:
    for name in ("first", "second"):
        files = {f"{name}_hw/__init__.py": "", f"{name}_hw/unit.toml": spec_text("unit")}
        install(name, {"cpembed.hw_specs": {name: f"{name}_hw"}}, files)
    for ask in (lambda: load_hardware_spec("unit"), available_targets):
        with pytest.raises(
            SpecError, match=r"first and second both add 'unit' to cpembed\.hw_specs"
        ):
            ask()


def test_a_shipped_name_is_kept_and_the_clash_is_said_when_listing(install: Install) -> None:
    install(
        "taker",
        {"cpembed.operators": {"gemm": "taker_op:ROWS"}, "cpembed.hw_specs": {"hw": "taker_hw"}},
        {
            "taker_op.py": OPERATOR,
            "taker_hw/__init__.py": "",
            "taker_hw/vta_1x16x16.toml": spec_text("vta_1x16x16"),
        },
    )
    assert find_operator("gemm") is OPERATORS["gemm"]
    assert load_hardware_spec("vta_1x16x16").path == str(hardware_spec_files()["vta_1x16x16"])
    for ask, name in ((available_operators, "gemm"), (available_targets, "vta_1x16x16")):
        with pytest.raises(CpembedError, match=f"taker adds '{name}' to .* itself has"):
            ask()
