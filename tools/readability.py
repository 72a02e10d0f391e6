"""Check the words of Python files: names that say nothing, docstrings that begin as fragments.

``make lint`` runs this on the package, the benchmarks and the experiments. Every line of the output
names a place and the rule; the exit code is 1 if there is any. A name is vague if all of its words
are: ``found`` is, ``found_embeddings`` is not. Write ``# readability: ignore`` at the end of a line
that must keep its word, for instance because a protocol of another library prescribes it.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VAGUE = frozenset({
    "alone", "apart", "asked", "beside", "by", "chosen", "come", "comes", "done", "found",
    "given", "goes", "gone", "held", "here", "how", "it", "kept", "known", "let", "looked",
    "made", "meant", "of", "one", "other", "others", "ours", "own", "put", "said", "seen",
    "shown", "sites", "stuff", "such", "taken", "theirs", "them", "there", "thing", "things",
    "together", "told", "tried", "used_up", "walked", "wanted", "way", "ways", "what",
    "whole", "whose", "without",
})  # fmt: skip
"""Words that say nothing of what they are bound to."""

FRAGMENTS = frozenset({
    "As", "By", "From", "How", "In", "Of", "So", "Than", "That", "Those", "Until", "What",
    "Where", "Which", "Who", "Whose", "Whether", "With", "Without",
})  # fmt: skip
"""First words of docstrings that are fragments, neither noun phrase nor imperative verb."""

IGNORE = "# readability: ignore"
SECTIONED_PARAMETERS = 3
"""Number of parameters from which a public function needs a Parameters section."""

Offence = tuple[int, str]


def is_vague(name: str) -> bool:
    """Return True if every word of a name is vague."""
    words = [word for word in name.strip("_").lower().split("_") if word]
    return bool(words) and all(word in VAGUE for word in words)


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a module binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the docstrings of modules, classes and functions, and the strings below assignments."""
    for node in ast.walk(tree):
        body: Any = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        holds_docstring = isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        )
        for previous, statement in zip([None, *body], body, strict=False):
            follows = previous is None and holds_docstring
            if follows or isinstance(previous, (ast.Assign, ast.AnnAssign)):
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield text.strip(), statement.lineno


def parameter_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters, ``self`` of a method included."""
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


def unsectioned_functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield public functions of a module with three or more parameters and no Parameters section.

    Commands of click are left out: their docstring is the help text, their parameters are options.
    """
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        is_command = any("command" in ast.unparse(decorator) for decorator in node.decorator_list)
        if node.name.startswith("_") or is_command or parameter_count(node) < SECTIONED_PARAMETERS:
            continue
        if "Parameters\n" not in (ast.get_docstring(node) or ""):
            yield node.name, node.lineno


def offences(source: str, *, sections: bool) -> Iterator[Offence]:
    """Yield the offences of one file in the order of their lines.

    Parameters
    ----------
    source : str
        Text of a Python file.
    sections : bool
        True to also require Parameters sections.
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    offence_list: list[Offence] = [
        (line, f"`{name}` does not say what it binds")
        for name, line in bound_names(tree)
        if is_vague(name)
    ]
    for text, line in docstrings(tree):
        first_word = text.split(None, 1)[0].strip("`*:,;") if text else ""
        if first_word in FRAGMENTS:
            offence_list.append((line, f"the docstring begins with {first_word!r}, a fragment"))
    if sections:
        for name, line in unsectioned_functions(tree):
            offence_list.append((line, f"`{name}` has no Parameters section"))
    yield from sorted(o for o in offence_list if not lines[o[0] - 1].rstrip().endswith(IGNORE))


def main() -> int:
    """Print the offences of the files and folders on the command line.

    Returns
    -------
    int
        1 if there was any offence, else 0.
    """
    parser = argparse.ArgumentParser(description="Check names and docstrings of Python files.")
    parser.add_argument("paths", nargs="+", type=Path, help="files and folders")
    parser.add_argument(
        "--sections", action="store_true", help="require Parameters sections of public functions"
    )
    options = parser.parse_args()
    count = 0
    for path in options.paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for line, message in offences(file.read_text(), sections=options.sections):
                print(f"{file}:{line}: {message}")
                count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
