"""What docs/cuda.md shows of the executor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.emulator.ptx import translate_inline_ptx
from tests.unit.targets.cuda.emulator.running import needs_compiler

PAGE = Path(__file__).parents[5] / "docs" / "cuda.md"

pytestmark = needs_compiler


def example() -> str:
    found = re.search(
        r"## Execution without a GPU.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    assert found
    return found[1]


def test_the_example_runs() -> None:
    names: dict[str, Any] = {}
    exec(example(), names)
    assert names["counters"].barriers == 1


def test_the_fault_is_the_one_that_is_shown() -> None:
    source = example().replace("  __syncthreads();\n", "")
    with pytest.raises(ExecutionFault) as caught:
        exec(source, {})
    shown = re.search(r"`ExecutionFault`, one line:\n\n(.*?)\n\n", PAGE.read_text(), re.DOTALL)
    assert shown
    assert str(caught.value) == " ".join(shown[1].split())


def refused() -> list[str]:
    table = re.search(
        r"^\| instructions \| for example \|\n(.*?)\n\n", PAGE.read_text(), re.M | re.S
    )
    assert table
    return [code for code in re.findall(r"`([^`]+)`", table[1]) if code != ".aligned"]


@pytest.mark.parametrize("opcode", refused())
def test_what_the_page_says_to_be_refused_is(opcode: str) -> None:
    """By its opcode: operands are not looked at before."""
    assert f"{opcode}: " in translate_inline_ptx(f'asm volatile("{opcode};");')
