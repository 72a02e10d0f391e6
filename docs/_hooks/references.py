"""References of docstrings as links of the site, and a check that each of them names something.

Docstrings refer to code by Sphinx roles such as ``:func:`~cpembed.ir.parser.parse_computation```,
and to pages by their paths, such as ``docs/embedding.md, "Axis maps"``. mkdocstrings (see
``mkdocs.yml``) loads :class:`SphinxRoles` from this file, which writes both as links.

As a script the file lists every reference that names nothing, one a line::

    python docs/_hooks/references.py        # exit code 1 if there is any
"""

from __future__ import annotations

import builtins
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import griffe
from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[2]
PACKAGE = "cpembed"

ROLE = re.compile(r":(?:py:)?(?:attr|class|const|data|exc|func|meth|mod|obj):`(?P<body>[^`]+)`")
TITLED = re.compile(r"(?P<title>.+?)\s*<(?P<target>[^<>]+)>", re.DOTALL)
PAGE = re.compile(
    r"(?P<code>``)?docs/(?P<page>[\w/-]+\.md)(?(code)``)(?:,\s+\"(?P<section>[^\"]+)\")?"
)
PAGES_FOLDER = "../.."
"""Path from the pages of modules to ``docs/``."""
DOCTEST = re.compile(r"^>>> .*(?:\n.*\S.*)*\n?", re.MULTILINE)
SECTION = re.compile(r"^[A-Z][A-Za-z ]*\n-{3,}$", re.MULTILINE)
EXAMPLES = re.compile(r"^Examples?\n-+$", re.MULTILINE)

log = logging.getLogger("mkdocs.plugins.references")


@dataclass(frozen=True, kw_only=True)
class Dangling:
    """A reference that names nothing.

    Attributes
    ----------
    file : Path
        Source file, relative to the checkout where it lies in it.
    line : int
        Line of the docstring that has the reference.
    owner : str
        Dotted path of the documented object.
    reference : str
        The role or the path of a page as it is written.
    """

    file: Path
    line: int
    owner: str
    reference: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.owner}: {self.reference} names nothing"


class SphinxRoles(griffe.Extension):
    """Writes the references in all docstrings of a package as links.

    Parameters
    ----------
    strict : bool
        True to warn of each reference that names nothing, which fails a strict build; False to
        count them in one message. ``mkdocs.yml`` sets it.
    """

    def __init__(self, strict: bool = True) -> None:
        super().__init__()
        self.strict = strict

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Rewrite the docstrings of a package that was just loaded."""
        dangling = link_references(pkg)
        for reference in dangling if self.strict else ():
            log.warning("%s", reference)
        if dangling and not self.strict:
            log.info("%d references of docstrings name nothing", len(dangling))


def link_references(package: griffe.Module) -> list[Dangling]:
    """Write the references in the docstrings of a package as links; return those that name nothing.

    References to private objects and to other libraries become code, since they have no page.
    """
    dangling: list[Dangling] = []
    for owner in documented(package):
        docstring = owner.docstring
        assert docstring is not None

        def written(match: re.Match[str], owner: griffe.Object = owner) -> str:
            title, target = title_and_target(match["body"])
            if is_external(target):
                return f"`{title}`"
            path = resolve(package, owner, target)
            if path is None:
                dangling.append(_dangling(owner, match[0]))
                return f"`{title}`"
            return f"[`{title}`][{path}]" if is_public(path) else f"`{title}`"

        def paged(match: re.Match[str], owner: griffe.Object = owner) -> str:
            if not (ROOT / "docs" / match["page"]).exists():
                dangling.append(_dangling(owner, match[0]))
                return f"`docs/{match['page']}`"
            return page_link(match["page"], match["section"])

        text = ROLE.sub(written, docstring.value)
        docstring.value = fenced(PAGE.sub(paged, text))
    return dangling


def page_link(page: str, section: str | None) -> str:
    """Return a link to a page of the site, or to a section of it."""
    if section is None:
        return f"[docs/{page}]({PAGES_FOLDER}/{page})"
    section = " ".join(section.split())
    return f'[docs/{page}, "{section}"]({PAGES_FOLDER}/{page}#{slugify(section, "-")})'


def _dangling(owner: griffe.Object, reference: str) -> Dangling:
    line = owner.docstring.lineno if owner.docstring else None
    return Dangling(
        file=relative(owner.filepath),
        line=line or 1,
        owner=owner.path,
        reference=" ".join(reference.split()),
    )


def fenced(text: str) -> str:
    """Return a docstring with its doctests as blocks of code.

    Doctests after a section such as Returns become a section of examples, since the parser would
    read them as a part of that section; it makes blocks of the doctests of examples itself.
    """
    if EXAMPLES.search(text):
        return text
    section = SECTION.search(text)
    end = section.start() if section else len(text)
    before = DOCTEST.sub(lambda block: f"```pycon\n{block[0].rstrip()}\n```\n", text[:end])
    return before + re.sub(r"^>>> ", "Examples\n--------\n>>> ", text[end:], count=1, flags=re.M)


def documented(scope: griffe.Object) -> Iterator[griffe.Object]:
    """All objects with a docstring that are defined in a module or class, itself first."""
    if scope.docstring is not None:
        yield scope
    for member in scope.members.values():
        if isinstance(member, griffe.Object):
            yield from documented(member)


def title_and_target(body: str) -> tuple[str, str]:
    """Return what a role shows, and the name that it refers to.

    >>> title_and_target("~cpembed.ir.parser.parse"), title_and_target("a parser <ir.parser>")
    (('parse', 'cpembed.ir.parser.parse'), ('a parser', 'ir.parser'))
    """
    if titled := TITLED.fullmatch(body):
        return " ".join(titled["title"].split()), "".join(titled["target"].split())
    name = "".join(body.split()).removesuffix("()")
    target = name.removeprefix("~")
    return (target.rpartition(".")[2] if name.startswith("~") else target), target


def is_external(target: str) -> bool:
    """True for a name of Python itself or of a library that the site does not document."""
    first = target.partition(".")[0]
    return hasattr(builtins, first) or (first != PACKAGE and first in sys.stdlib_module_names)


def is_public(path: str) -> bool:
    """True if no part of a dotted path is private or a special method."""
    return not any(part.startswith("_") for part in path.split("."))


def resolve(package: griffe.Module, owner: griffe.Object, target: str) -> str | None:
    """Return the full path of what a docstring names, or None.

    Parameters
    ----------
    package : griffe.Module
        The package, for full names.
    owner : griffe.Object
        The documented object: names are looked up in it, then in what encloses it.
    target : str
        A name, with or without the modules before it.
    """
    prefix = f"{package.name}."
    if target == package.name:
        return target
    if target.startswith(prefix):
        return member_path(package, target.removeprefix(prefix))
    scope: griffe.Object | None = owner
    while scope is not None:
        if (path := member_path(scope, target)) is not None:
            return path
        scope = scope.parent  # pyright: ignore[reportAssignmentType]
    # Docstrings name the package's errors without their module, whatever raises them.
    return member_path(package, f"errors.{target}")


def member_path(scope: griffe.Object | griffe.Alias, name: str) -> str | None:
    """Return the full path of a member, an inherited one included; None if there is none.

    A name that a module imports has the path of its definition; one whose definition is outside of
    the package has that of the import, which is enough to know that the name exists.
    """
    first, _, rest = name.partition(".")
    try:
        members = scope.all_members if scope.is_class else scope.members
        member = members.get(first)
        if member is None:
            return None
        if rest:
            return member_path(member, rest)
        path = member.canonical_path
    except (griffe.AliasResolutionError, griffe.CyclicAliasError):
        return f"{scope.path}._{first}"  # of another library: private, so that nothing links to it
    return path if path.partition(".")[0] == PACKAGE else f"{scope.path}._{first}"


def relative(path: Path | list[Path] | None) -> Path:
    """Return a file's path within the checkout; of the files of a namespace, the first one's."""
    file = path[0] if isinstance(path, list) else path
    assert file is not None
    return file.relative_to(ROOT) if file.is_relative_to(ROOT) else file


def main() -> int:
    """Print the references of the package that name nothing; 1 if there is any."""
    package = griffe.load(PACKAGE, search_paths=[ROOT], try_relative_path=False)
    assert isinstance(package, griffe.Module)
    dangling = link_references(package)
    print("\n".join(str(reference) for reference in dangling))
    return 1 if dangling else 0


if __name__ == "__main__":
    raise SystemExit(main())
