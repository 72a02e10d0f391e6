"""Pages that are made from the package: every module, command and option has its place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
import pytest

from tests.site.hooks import ROOT, hook

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
pictures = hook("pictures")  # which pages imports
pages = hook("pages")


def test_every_public_module_is_on_a_page() -> None:
    text = "\n".join(text for _, text in pages.api_pages())
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "cpembed").rglob("*.py")
    }
    public = {name for name in modules if not any(part[0] == "_" for part in name.split("."))}
    assert {line[4:] for line in text.splitlines() if line.startswith("::: ")} == public


def test_every_option_of_a_command_is_on_its_page() -> None:
    from cpembed.cli import SUBCOMMANDS, cli

    texts = dict(pages.command_pages())
    assert set(texts) == {f"reference/commands/{name}.md" for name in SUBCOMMANDS}
    command = cli.get_command(click.Context(cli), "run")
    assert command is not None
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.opts[0] in texts["reference/commands/run.md"]
    assert "## cpembed vta asm" in texts["reference/commands/vta.md"]


def test_every_option_of_the_library_is_on_the_page_once() -> None:
    from cpembed.driver.options import RunOptions

    text = pages.options_page()
    for field in dataclasses.fields(RunOptions):
        assert f"| `{field.name}` |" in text
    assert text.count("| `relu` |") == 1
    assert "Extends [KernelOptions](#kerneloptions)." in text


def test_markup_in_help_texts_is_no_markup() -> None:
    command = click.Command(
        "x",
        help="Take *all* of\n`a*b`.\n\n\b\n  x [y]\n",
        params=[click.Option(["--a"], metavar="A|B", help="One [of] <two>.")],
    )
    text = pages.command_text(command, click.Context(command, info_name="c"), "x", level=1)
    assert "Take \\*all\\* of\n`a*b`." in text
    assert "\n      x [y]" in text
    assert "| `--a A\\|B` | One \\[of\\] &lt;two&gt;. |" in text


@pytest.mark.parametrize(
    "entries, expanded",
    [
        (["index.md", {"A": "a.md"}], ["index.md", {"A": "a.md"}]),
        ([{"A": [{"C": "c/"}]}], [{"A": [{"C": [{"x": "c/x.md"}, {"y": "c/y.md"}]}]}]),
        (
            [{"P": "p/"}],
            [{"P": [{"m": "p/m.md"}, {"m.n": ["p/m.n.md", {"m.n.o": "p/m.n.o.md"}]}]}],
        ),
    ],
)
def test_a_folder_in_the_navigation_is_all_of_its_pages(
    entries: list[Any], expanded: list[Any]
) -> None:
    names = ["c/x.md", "c/y.md", "p/m.md", "p/m.n.md", "p/m.n.o.md"]
    assert pages._expanded(entries, dict.fromkeys(names, "")) == expanded


def test_committed_pictures_are_there() -> None:
    for path in pictures.COMMITTED:
        assert Path(ROOT / "docs" / path).read_text(encoding="utf-8").startswith("<svg")
