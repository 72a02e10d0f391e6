"""A program as a folder that people take away: a shared library, its header, what uses it."""

from __future__ import annotations

import hashlib
import shlex
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpembed.errors import CpembedError
from cpembed.export.example import REPEATED, Reference, example
from cpembed.export.header import header
from cpembed.export.packing import packed_ahead
from cpembed.export.program import Program
from cpembed.export.readme import readme
from cpembed.export.tables import Layout, about_json
from cpembed.export.toolchain import NATIVE, link, link_arguments, parts
from cpembed.export.weights import blob_of

LOADER = Path(__file__).parent / "loader.py"

EMBEDDED_BYTES = 1 << 18
"""Constants of more bytes are in a file beside the library, which is mapped into memory."""


@dataclass(frozen=True)
class Library:
    """What was written: ``folder`` with ``lib<name>.so`` and the other ``files``; ``digest``: of
    the library's file, by which one that takes its place is told from it. It holds the weights, or
    the checksum of their file."""

    name: str
    folder: Path
    files: tuple[str, ...]
    digest: bytes | None = None

    @property
    def path(self) -> Path:
        """The shared library."""
        return self.folder / f"lib{self.name}.so"

    @property
    def is_replaced(self) -> bool:
        """Whether another library has the name now."""
        return self.digest is not None and self.path.exists() and _digest(self.path) != self.digest


@dataclass(frozen=True)
class Contents:
    """What a folder holds beside the library, its header and its description: a loader that needs
    numpy alone, an example in C with what it compares with, an operator of PyTorch. ``about`` says
    in a sentence or two what the library computes; ``details`` are added to its description in
    JSON; ``others`` are further files by name."""

    python: bool = True
    example: bool = True
    torch: bool = False
    reference: Reference = REPEATED
    about: str = ""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    others: Mapping[str, str] = field(default_factory=dict[str, str])


EVERYTHING = Contents()


def write_library(
    program: Program,
    folder: Path,
    contents: Contents = EVERYTHING,
    *,
    check: Callable[[Path], None] | None = None,
    options: tuple[str, ...] = (),
) -> Library:
    """Write a program as a library; files of the same names are replaced, others stay.

    Weights that are known now are packed now. ``check`` is called with the library's path before
    anything is replaced, and nothing is where it raises; ``options``: further ones of the C
    compiler.

    Raises :class:`~cpembed.errors.BackendUnavailable` without a C compiler,
    :class:`~cpembed.errors.LoweringError` where it fails, and
    :class:`~cpembed.errors.CpembedError` for a folder that cannot be written.
    """
    layout = _laid_out(packed_ahead(program))
    texts = texts_of(layout, contents)
    with drafted(folder) as draft:
        path = link(layout, draft, options)
        digest = _digest(path)
        if check is not None:
            check(path)
        for file, text in texts.items():
            (draft / file).write_text(text, encoding="utf-8")
        files = (path.name, *_weights_files(layout), *texts)
        for file in files:
            (draft / file).replace(folder / file)
    return Library(program.name, folder, files, digest)


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _laid_out(program: Program) -> Layout:
    blob = blob_of(program)
    return Layout(program, blob, in_file=len(blob.contents) > EMBEDDED_BYTES)


def _weights_files(layout: Layout) -> list[str]:
    """The file beside the library, if there is one."""
    return [f"{layout.program.name}.weights"] if layout.in_file else []


@contextmanager
def drafted(folder: Path) -> Generator[Path]:
    """A place in a folder, which is made if it is not there, to put files until all are written.

    Raises :class:`~cpembed.errors.CpembedError` for a folder that cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft.", dir=folder) as draft:
            yield Path(draft)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CpembedError(f"{folder} cannot be written: {reason}; name another folder") from None


def write_sources(program: Program, folder: Path, contents: Contents = EVERYTHING) -> Library:
    """Write what the library of a program for another machine is made of: object files, the C of
    its runtime and a Makefile, by which a C compiler there links it.

    Raises :class:`~cpembed.errors.CpembedError` for a folder that cannot be written.
    """
    layout = _laid_out(program)
    files = parts(layout)
    texts = texts_of(layout, contents, linked=False)
    texts["Makefile"] = makefile(program)
    files |= {name: text.encode() for name, text in texts.items()}
    with drafted(folder) as draft:
        for file, data in files.items():
            (draft / file).write_bytes(data)
        for file in files:
            (draft / file).replace(folder / file)
    return Library(program.name, folder, tuple(files))


def makefile(program: Program) -> str:
    """Links the library on the machine that it is for, and builds the example."""
    name = program.name
    words = " ".join(shlex.quote(word) for word in link_arguments(program))
    example = f"$(CC) -O2 example.c -o example -L. -l{name} -Wl,-rpath,'$$ORIGIN' -lm"
    return (
        f"example: lib{name}.so example.c\n\t{example}\n\n"
        f"lib{name}.so: runtime.c program.h\n\t$(CC) {words}\n"
    )


def texts_of(layout: Layout, contents: Contents, *, linked: bool = True) -> dict[str, str]:
    """The files that people read, by name; ``linked``: beside the library, not what makes it."""
    program = layout.program
    name = program.name
    texts = {
        f"{name}.h": header(program, in_file=layout.in_file),
        f"{name}.json": about_json(layout, contents.details),
    }
    if contents.example:
        texts["example.c"] = example(program, contents.reference)
    if contents.python or contents.torch:
        texts[f"{name}.py"] = loader_text(name)
    if contents.torch:
        operator = (NATIVE / "torch_operator.py.txt").read_text(encoding="utf-8")
        texts[f"{name}_torch.py"] = operator.replace("NAME", name)
    texts |= contents.others
    made = [f"lib{name}.so"] if linked else ["Makefile", "runtime.c"]
    files = (*made, *_weights_files(layout), *texts)
    return texts | {"README.md": readme(program, files, contents.about, linked=linked)}


def loader_text(name: str) -> str:
    """``NAME.py``: :mod:`cpembed.export.loader` for one library."""
    text = LOADER.read_text(encoding="utf-8")
    return text.replace('NAME = ""', f'NAME = "{name}"', 1)
