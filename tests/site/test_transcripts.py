"""The commands that pages show print what the pages show."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from cpembed import hardware_spec
from cpembed.targets.registry import open_target
from tests.compilers import needs_executor
from tests.site.hooks import ROOT, hook

transcripts = hook("transcripts")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tutorial.md", "how-to/your-instruction.md"])
def test_a_page_shows_what_its_commands_print(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    if "avx2_int8" in page and (missing := open_target(hardware_spec("avx2_int8")).missing()):
        pytest.skip(f"avx2_int8: {missing}")
    executed = list(transcripts.transcripts(page, tmp_path))
    assert len(executed) > 2
    old = [item.command for item in executed if not item.is_current]
    assert not old, f"run `python docs/_hooks/transcripts.py docs/{name}`"


@pytest.mark.parametrize("name", ["npu.toml", "network.py", "product.s", "quantize.py"])
def test_files_of_the_page_on_accelerators_are_the_examples(name: str) -> None:
    page = (ROOT / "docs" / "how-to" / "accelerator.md").read_text(encoding="utf-8")
    files = [block["body"] for block in transcripts.BLOCK.finditer(page) if name in block["info"]]
    example = ROOT / "examples" / "accelerator" / name
    assert files == [example.read_text(encoding="utf-8")]


@pytest.mark.slow
@needs_executor
def test_the_page_on_accelerators_shows_what_its_commands_print(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "accelerator.md").read_text(encoding="utf-8")
    executed = list(transcripts.transcripts(page, tmp_path))
    assert len(executed) == 5
    old = [item.command for item in executed if not item.is_current]
    assert not old, "run `python docs/_hooks/transcripts.py docs/how-to/accelerator.md`"
    code = (tmp_path / "programs" / "001_maxpool8" / "program.c").read_text(encoding="utf-8")
    assert f"```c\n{code[code.index('void ') :]}```" in page


@pytest.mark.slow
def test_the_examples_in_python_of_the_tutorial_give_what_it_shows() -> None:
    result = doctest.testfile(
        str(ROOT / "docs" / "tutorial.md"), module_relative=False, encoding="utf-8"
    )
    assert (result.attempted > 4, result.failed) == (True, 0)


PAGE = """
```toml title="mine.toml"
name = "mine"
```

```console
$ cpembed operators
old
$ cpembed \\
      --version
```
"""


def test_outputs_are_rewritten_and_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    def printed(command: str, folder: Path) -> str:
        commands.append(command)
        assert (folder / "mine.toml").read_text() == 'name = "mine"\n'
        return f"new {len(commands)}\n"

    monkeypatch.setattr(transcripts, "printed", printed)
    page = transcripts.updated(PAGE, tmp_path)
    assert commands == ["cpembed operators", "cpembed \\\n      --version"]
    assert page == PAGE.replace("old", "new 1").replace("--version\n", "--version\nnew 2\n")


@pytest.mark.parametrize(
    "shown, printed, measured, current",
    [
        ("found  2; 0.07 s\n", "found  2; 12.1 s\n", False, True),
        ("found  2; 0.07 s\n", "found  3; 0.07 s\n", False, False),
        ("latency  2 us, 30 GOPS\n  more\n", "latency  of 3\n", True, True),
        ("latency  2 us\n", "portable  2 us\n", True, False),
    ],
)
def test_only_what_does_not_change_is_compared(
    shown: str, printed: str, measured: bool, current: bool
) -> None:
    transcript = transcripts.Transcript(
        command="cpembed", documented=shown, printed=printed, measured=measured
    )
    assert transcript.is_current is current
