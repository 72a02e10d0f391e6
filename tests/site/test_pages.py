"""Pages that are made from the package: every module, command and option has its place."""

from __future__ import annotations

import dataclasses
import json
import re
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


NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs_and_their_links_lead_somewhere(path: Path) -> None:
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        for link in re.findall(r"\]\(([^)#:]+)", "".join(cell["source"])):
            assert (path.parent / link).is_file(), link


def test_links_of_a_notebook_become_addresses_of_pages(caplog: pytest.LogCaptureFixture) -> None:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import File, Files
    from mkdocs.structure.pages import Page

    config = MkDocsConfig()
    config.load_dict({"site_name": "test", "docs_dir": "docs", "site_dir": "site", "plugins": []})
    config.validate()
    names = ["notebooks/first.ipynb", "how-to/run.md"]
    files = Files([File(name, "docs", "site", use_directory_urls=True) for name in names])
    notebook = files.src_uris["notebooks/first.ipynb"]
    notebook.dest_uri = "notebooks/first/index.html"
    page = Page(None, notebook, config)
    text = '<a href="../how-to/run.md#read-it">run</a> <a href="https://x.org/a.md">x</a>'
    content = pages.on_page_content(text, page=page, config=config, files=files)
    assert (
        content == '<a href="../../how-to/run/#read-it">run</a> <a href="https://x.org/a.md">x</a>'
    )
    assert not caplog.records
    wrong = '<a href="../how-to/rum.md">run</a>'
    assert pages.on_page_content(wrong, page=page, config=config, files=files) == wrong
    assert "rum.md does not exist" in caplog.text
