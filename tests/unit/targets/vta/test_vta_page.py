"""What ``docs/vta.md`` shows is what the package does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cpembed.errors import ProgramError
from cpembed.targets import vta
from cpembed.targets.vta.assembler import assemble
from cpembed.targets.vta.checker import violations
from cpembed.targets.vta.isa import Finish, Gemm, Memory, Transfer
from cpembed.targets.vta.program import Role, save_program

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "vta.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.parametrize("name", ["product", "product.zip"])
def test_a_program_is_read_in_twenty_lines(name: str, tmp_path: Path) -> None:
    script = block("python")
    assert len(script.splitlines()) <= 20
    path = tmp_path / name
    save_program(assemble(block("asm").replace(".vta 1", ".vta 1\n.dram base=0x1000")), path)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "['LOAD', 'GEMM', 'LOAD', 'LOAD', 'GEMM', 'ALU', 'STORE', 'LOAD', 'FINISH']",
        "A input 0x1000 2",
        "B weight 0x1100 0",
        "C output 0x1200 0",
        "kernel uops 0x1300 0",
    ]


def test_every_role_is_explained() -> None:
    assert set(re.findall(r"^\| `(\w+)` \| .*$", PAGE, re.MULTILINE)) >= {*Role}


def test_every_module_has_its_place_in_the_architecture() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    modules = {path.name for path in Path(vta.__path__[0]).glob("*.py")} - {"__init__.py"}
    assert {name for name in modules if f"`{name}`" not in text} == set()


def test_the_example_is_a_legal_program() -> None:
    program = assemble(block("asm"))
    assert violations(program) == ()
    moved = [i.memory for i in program.instructions if isinstance(i, Transfer)]
    assert moved == [Memory.UOP, Memory.INP, Memory.WGT, Memory.OUT, Memory.UOP]
    assert [i.reset for i in program.instructions if isinstance(i, Gemm)] == [True, False]
    assert isinstance(program.instructions[-1], Finish)


def test_the_message_is_the_one_shown() -> None:
    text = block("asm").replace("dram=kernel y=1", "dram=kernel y=70000")
    with pytest.raises(ProgramError) as caught:
        assemble(text, "product.s")
    shown = re.findall(r"^product\.s:.*$", PAGE, re.MULTILINE)
    assert [str(caught.value)] == shown
