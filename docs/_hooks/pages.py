"""Hook of MkDocs: the pages and pictures that are made from the package when the site is built.

- ``reference/api/``: a page for each package, with its modules, from their docstrings;
- ``reference/commands/``: a page for each command, from click's options;
- ``reference/options.md``: the options dataclasses, field by field;
- ``reference/targets.md``: the targets and constraint sets that ship;
- ``pictures/``: drawings of embeddings (:mod:`pictures`).

Nothing of this is listed anywhere: modules, commands and options are those that the package has.
In the navigation of ``mkdocs.yml``, an entry that ends with a slash stands for all pages of that
folder.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import click
import pictures  # the file next to this one
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PACKAGE = "cpembed"

log = get_plugin_logger("pages")

NavigationEntry = str | dict[str, Any]


# -- hooks -----------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation."""
    entries = cast("list[Any]", config.nav or [])
    config.nav = _expanded(entries, generated_pages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and pictures to the files of the site."""
    contents: dict[str, str] = {**generated_pages(), **pictures.drawings()}
    for path, text in contents.items():
        if (present := files.get_file_from_path(path)) is not None:
            files.remove(present)
        files.append(File.generated(config, path, content=text))
    return files


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links of a notebook lead to pages; those of Markdown pages are resolved by MkDocs."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    folder = posixpath.dirname(page.file.src_uri)

    def resolved(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match["path"]))
        file = files.get_file_from_path(path)
        if file is None:
            log.warning("%s: %s does not exist", page.file.src_uri, match["path"])
            return match[0]
        return f'href="{file.url_relative_to(page.file)}{match["anchor"] or ""}"'

    return re.sub(r'href="(?P<path>[^":#]+\.(?:md|ipynb))(?P<anchor>#[^"]*)?"', resolved, html)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt a page that is also read outside of the site.

    Links to files outside of ``docs/``, which the site does not have, become paths. Bars in code
    within tables lose the backslash that other renderers need and this one would show.
    """
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def written(match: re.Match[str]) -> str:
        title, link = match["title"], match["link"]
        path = posixpath.normpath(posixpath.join(folder, link.partition("#")[0]))
        if path.startswith("docs/"):
            return match[0]
        if not (ROOT / path).exists():
            log.warning("%s: %s does not exist", page.file.src_uri, link)
        if url := cast("dict[str, str]", config.extra).get("source_url"):
            return f"[{title}]({url}/{path})"
        return title if path in title else f"{title} (`{path}`)"

    markdown = re.sub(r"\[(?P<title>[^\]\[]*)\]\((?P<link>\.\./[^)\s]+)\)", written, markdown)
    return re.sub(r"^\|.*$", _plain_bars, markdown, flags=re.MULTILINE)


def _plain_bars(row: re.Match[str]) -> str:
    return re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), row[0])


def _expanded(entries: list[Any], pages: Mapping[str, str]) -> list[NavigationEntry]:
    """Entries of the navigation with all pages of a folder in place of the folder's name."""
    expanded: list[NavigationEntry] = []
    for entry in entries:
        if not isinstance(entry, dict):
            expanded.append(entry)
            continue
        ((title, value),) = cast("dict[str, Any]", entry).items()
        if isinstance(value, list):
            expanded.append({title: _expanded(cast("list[Any]", value), pages)})
        elif value.endswith("/"):
            expanded.append({title: _nested([path for path in pages if path.startswith(value)])})
        else:
            expanded.append(entry)
    return expanded


def _nested(paths: list[str]) -> list[NavigationEntry]:
    """Entries for the pages of a folder: ``cpembed.ir.x`` is one level below ``cpembed.ir``."""
    stems = {posixpath.basename(path).removesuffix(".md"): path for path in paths}
    entries: list[NavigationEntry] = []
    for stem, path in stems.items():
        if stem.rpartition(".")[0] in stems and stem.count(".") > 1:
            continue
        below = [inner for name, inner in stems.items() if name.startswith(f"{stem}.")]
        if below and stem.count(".") == 1:
            entries.append({stem: [path, *({Path(page).stem: page} for page in below)]})
        else:
            entries.append({stem: path})
    return entries


@cache
def generated_pages() -> dict[str, str]:
    """All generated pages: path within ``docs/`` and text."""
    pages = {
        **dict(command_pages()),
        "reference/options.md": options_page(),
        "reference/targets.md": targets_page(),
    }
    # Nine tenths of the time of a build, which whoever writes other pages need not wait for.
    if os.environ.get("CPEMBED_DOCS_WITHOUT_API"):
        return {**pages, "reference/api/left-out.md": "# Left out\n\nThe build left modules out.\n"}
    return {**pages, **dict(api_pages())}


# -- modules ---------------------------------------------------------------------------------------


def api_pages() -> Iterator[tuple[str, str]]:
    """A page for each package: its own docstring, then its modules."""
    for path in sorted((ROOT / PACKAGE).rglob("__init__.py")):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        modules = [
            f"{package}.{module.stem}"
            for module in sorted(path.parent.glob("*.py"))
            if not module.stem.startswith("_")
        ]
        yield f"reference/api/{package}.md", _api_page(package, modules)


def _api_page(package: str, modules: list[str]) -> str:
    lines = [f"# {package} {{#{package}}}", "", _directive(package, level=1, heading=False)]
    for module in modules:
        lines += ["", _directive(module, level=2, heading=True)]
    return "\n".join(lines) + "\n"


def _directive(module: str, *, level: int, heading: bool) -> str:
    return (
        f"::: {module}\n    options:\n"
        f"      heading_level: {level}\n"
        f"      show_root_heading: {str(heading).lower()}\n"
        f"      show_root_toc_entry: {str(heading).lower()}\n"
    )


# -- commands --------------------------------------------------------------------------------------


def command_pages() -> Iterator[tuple[str, str]]:
    """A page for each command of the command line, with the commands of a group below it."""
    from cpembed.cli import cli

    context = click.Context(cli, info_name=PACKAGE)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield f"reference/commands/{name}.md", command_text(command, context, name, level=1)


def command_text(command: click.Command, parent: click.Context, name: str, *, level: int) -> str:
    """Return the page of a command: usage, help text, options, and the commands of a group.

    Parameters
    ----------
    command : click.Command
        The command.
    parent : click.Context
        Context of the group that has it.
    name : str
        Name of the command within the group.
    level : int
        Level of the heading; commands of a group are one below.
    """
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"{'#' * level} {context.command_path}", "", f"    {usage}", ""]
    lines += [_help_text(command.help or ""), ""]
    records = [record for item in command.params if (record := item.get_help_record(context))]
    records += [(", ".join(["-h", "--help"]), "Show the help text and exit.")]
    lines += ["| option | meaning |", "| --- | --- |"]
    # Arguments without a text of their own are in the usage line.
    lines += [f"| {_code(option)} | {_cell(meaning)} |" for option, meaning in records if meaning]
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            below = command.get_command(context, inner)
            assert below is not None
            lines += ["", command_text(below, context, inner, level=level + 1)]
    return "\n".join(lines) + "\n"


def _help_text(text: str) -> str:
    r"""A command's help as Markdown: paragraphs, and blocks after ``\b`` as they are written."""
    blocks: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b\n"):
            blocks.append("\n".join(f"    {line}" for line in paragraph.splitlines()[1:]))
        else:
            blocks.append(_escaped(paragraph))
    return "\n\n".join(blocks)


def _code(option: str) -> str:
    return "`" + option.replace("|", "\\|") + "`"


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Text without characters that Markdown would take for markup, code excepted."""
    parts = text.split("`")
    parts[::2] = [
        re.sub(r"([\\*_\[\]])", r"\\\1", part).replace("<", "&lt;").replace(">", "&gt;")
        for part in parts[::2]
    ]
    return "`".join(parts)


# -- options of the library ------------------------------------------------------------------------


def options_page() -> str:
    """A section for each options dataclass: the fields that it adds, with default and meaning."""
    from cpembed.driver import options

    lines = [
        "# Options of the library's functions",
        "",
        (
            "Each function takes these as keywords, or as one object: "
            "`run(workload, target, relu=True)` is `run(workload, target, RunOptions(relu=True))`. "
            "A class also has the options of the class that it extends."
        ),
    ]
    for kind in _option_classes(options):
        lines += ["", f"## {kind.__name__}", "", _extends(kind), ""]
        inherited = {field.name for base in _bases(kind) for field in dataclasses.fields(base)}
        fields = [field for field in dataclasses.fields(kind) if field.name not in inherited]
        lines += ["| option | default | meaning |", "| --- | --- | --- |"]
        lines += [_option_row(field) for field in fields]
    return "\n".join(lines) + "\n"


def _option_classes(module: ModuleType) -> list[Any]:
    """The dataclasses of a module whose fields have texts, in the order of the file."""
    kinds = [kind for kind in vars(module).values() if dataclasses.is_dataclass(kind)]
    return [
        kind
        for kind in kinds
        if isinstance(kind, type) and any("text" in field.metadata for field in _fields(kind))
    ]


def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _bases(kind: Any) -> list[Any]:
    return [base for base in kind.__bases__ if dataclasses.is_dataclass(base)]


def _extends(kind: Any) -> str:
    """The class's docstring, and links to the classes that it extends."""
    text = inspect.getdoc(kind) or ""
    names = [base.__name__ for base in _bases(kind)]
    links = " and ".join(f"[{name}](#{name.lower()})" for name in names)
    return f"{text} Extends {links}." if names else text


def _option_row(field: dataclasses.Field[Any]) -> str:
    default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
    text = _cell(field.metadata.get("text", ""))
    if choices := field.metadata.get("choices"):
        text += " One of " + ", ".join(f"`{choice}`" for choice in choices) + "."
    return f"| `{field.name}` | {default} | {text} |"


# -- data that ships -------------------------------------------------------------------------------


def targets_page() -> str:
    """Tables of the targets, accelerators and constraint sets that ship, from their files."""
    from cpembed.resources import accelerator_files, constraint_files, hardware_spec_files

    lines = [
        "# Targets and constraint sets that ship",
        "",
        "`cpembed targets` says which of these targets your machine executes.",
        "",
        "## Targets",
        "",
        "| target | description | computes | back end |",
        "| --- | --- | --- | --- |",
    ]
    for name, table in _tables(hardware_spec_files()):
        expression = _code(table["instruction"]["expression"])
        back_end = _code(table["backend"]) if "backend" in table else "none: can be solved"
        description = _cell(table["description"])
        lines.append(f"| `{name}` | {description} | {expression} | {back_end} |")
    lines += ["", "## Accelerators", "", "| accelerator | description | instructions |"]
    lines.append("| --- | --- | --- |")
    for name, table in _tables(accelerator_files()):
        instructions = ", ".join(
            f"`{instruction['name']}`" for instruction in table["instructions"]
        )
        lines.append(f"| `{name}` | {_cell(table['description'])} | {instructions} |")
    lines += ["", "## Constraint sets", "", "| set | description |", "| --- | --- |"]
    for name, table in _tables(constraint_files()):
        lines.append(f"| `{name}` | {_cell(table['description'])} |")
    return "\n".join(lines) + "\n"


def _tables(files: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and contents of each TOML file."""
    for name, path in sorted(files.items()):
        yield name, tomllib.loads(path.read_text(encoding="utf-8"))
