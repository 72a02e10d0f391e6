"""The made-up machine with scratchpads of ``docs/add-a-target.md``, and broken copies of it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[4] / "docs" / "add-a-target.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## A machine with scratchpads, in TOML alone") :]


def described() -> str:
    """The complete file that the page shows."""
    found = re.search(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    assert found
    return found[1]


def command() -> list[str]:
    """The command that the page shows, after ``cpembed``."""
    found = re.search(r"^    \$ cpembed (.*)$", SECTION, re.MULTILINE)
    assert found
    return found[1].split()


def shown() -> list[str]:
    """The lines that the page shows below the command."""
    lines = SECTION.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("    $ cpembed ")) + 1
    last = next(n for n in range(first, len(lines)) if not lines[n].startswith("    "))
    return [line.removeprefix("    ") for line in lines[first:last]]


def without_mesh(text: str) -> str:
    return re.sub(
        r"\[machines\.my_chip\.mesh\].*?(?=\[machines\.my_chip\.compute\])",
        "",
        text,
        flags=re.DOTALL,
    )


def of_fixed_size(text: str) -> str:
    return re.sub(r"\{ multiple = (\d+), max = \d+ \}", r"\1", text)


def write(folder: Path, text: str) -> Path:
    path = folder / "my_npu.toml"
    path.write_text(text, encoding="utf-8")
    return path
