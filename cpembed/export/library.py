"""A program as a folder that people take away: a shared library, its header, and examples of use.

Constant weights are packed when the library is built, by the library's own kernels.
"""

from __future__ import annotations

import hashlib
import shlex
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpembed.errors import CpembedError
from cpembed.export import loader
from cpembed.export.example import REPEATED, Reference, example
from cpembed.export.layout import Layout, blob_of
from cpembed.export.program import Call, Program, Role
from cpembed.export.texts import NATIVE, about_json, header, readme
from cpembed.export.toolchain import link, link_arguments, parts
from cpembed.runtime import worker
from cpembed.steps import step

EMBEDDED_BYTES = 1 << 18
"""Maximum size in bytes of constants inside the library; larger ones are in a file beside it, which
is mapped into memory."""


@dataclass(frozen=True)
class Library:
    """A library that was written to a folder. The digest of the shared library, which holds the
    weights or their checksum, distinguishes it from one that replaces it.
    """

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
        """True if another library has the name now."""
        return self.digest is not None and self.path.exists() and _digest(self.path) != self.digest


@dataclass(frozen=True)
class Contents:
    """Files beside the library, its header and its description.

    Attributes
    ----------
    python, example, torch : bool
        Whether there is a loader that needs numpy alone, an example in C, an operator of PyTorch.
    reference : Reference
        Definition with which the example compares.
    about : str
        A sentence or two about the computation.
    details : mapping
        Additions to the description in JSON.
    others : mapping
        Texts of further files by name.
    """

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

    Parameters
    ----------
    program : Program
        The program; constant weights are packed now.
    folder : Path
        Folder of the library.
    contents : Contents
        Files beside it.
    check : callable, optional
        Called with the library's path before anything is replaced; nothing is if it raises.
    options : tuple of str
        Further options of the C compiler.

    Raises
    ------
    BackendUnavailable
        Without a C compiler.
    LoweringError
        For an error of the compiler.
    CpembedError
        For a folder that cannot be written.
    """
    layout = _layout(packed_ahead(program))
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


def write_sources(program: Program, folder: Path, contents: Contents = EVERYTHING) -> Library:
    """Write the sources of a library for another machine: object files, the C of the runtime, and a
    Makefile with which a C compiler there links it.

    Parameters
    ----------
    program, folder, contents
        As for :func:`write_library`.

    Raises
    ------
    CpembedError
        For a folder that cannot be written.
    """
    layout = _layout(program)
    texts = {**texts_of(layout, contents, linked=False), "Makefile": makefile(program)}
    files = parts(layout) | {name: text.encode() for name, text in texts.items()}
    with drafted(folder) as draft:
        for file, data in files.items():
            (draft / file).write_bytes(data)
        for file in files:
            (draft / file).replace(folder / file)
    return Library(program.name, folder, tuple(files))


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _layout(program: Program) -> Layout:
    blob = blob_of(program)
    return Layout(program, blob, in_file=len(blob.contents) > EMBEDDED_BYTES)


def _weights_files(layout: Layout) -> list[str]:
    return [f"{layout.program.name}.weights"] if layout.in_file else []


@contextmanager
def drafted(folder: Path) -> Generator[Path]:
    """Provide a temporary folder in a folder, which is created if it does not exist.

    Raises :class:`~cpembed.errors.CpembedError` for a folder that cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft.", dir=folder) as draft:
            yield Path(draft)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CpembedError(f"{folder} cannot be written: {reason}; name another folder") from None


def makefile(program: Program) -> str:
    """Return the Makefile that links a library and builds its example."""
    name = program.name
    arguments = " ".join(map(shlex.quote, link_arguments(program)))
    example = f"$(CC) -O2 example.c -o example -L. -l{name} -Wl,-rpath,'$$ORIGIN' -lm"
    return (
        f"example: lib{name}.so example.c\n\t{example}\n\n"
        f"lib{name}.so: runtime.c program.h\n\t$(CC) {arguments}\n"
    )


def texts_of(layout: Layout, contents: Contents, *, linked: bool = True) -> dict[str, str]:
    """Return the files that people read, by name.

    Parameters
    ----------
    layout : Layout
        The program with the places of its buffers.
    contents : Contents
        Files beside the library.
    linked : bool
        Whether the folder holds the library rather than its sources.
    """
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
    binaries = [f"lib{name}.so"] if linked else ["Makefile", "runtime.c"]
    files = (*binaries, *_weights_files(layout), *texts)
    return texts | {"README.md": readme(program, files, contents.about, linked=linked)}


def loader_text(name: str) -> str:
    """Return ``NAME.py``: :mod:`cpembed.export.loader` for one library."""
    text = Path(loader.__file__).read_text(encoding="utf-8")
    return text.replace('NAME = ""', f'NAME = "{name}"', 1)


# -- packing --------------------------------------------------------------------------------------


def packed_ahead(program: Program) -> Program:
    """Return the program without the calls of ``prepare`` that pack constants: their results become
    constants.

    The calls are executed here, so that the processor needs the features of their kernels.
    """
    constants = {buffer.name for buffer in program.with_role(Role.CONSTANT)}
    ahead: list[Call] = []
    for call in program.prepare:
        # A call of ``prepare`` writes its last argument.
        *read, written = call.arguments
        if constants.issuperset(read) and program.by_name[written].role is Role.PACKED:
            ahead.append(call)
            constants.add(written)
    if not ahead:
        return program
    arrays = _executed(program, ahead)
    buffers = tuple(
        replace(buffer, role=Role.CONSTANT, data=arrays[buffer.name])
        if buffer.name in arrays
        else buffer
        for buffer in program.buffers
    )
    rest = tuple(call for call in program.prepare if call not in ahead)
    return replace(program, buffers=buffers, prepare=rest)


def _executed(program: Program, calls: Sequence[Call]) -> dict[str, NDArray[Any]]:
    """Execute calls and return the buffers that they write, by name."""
    names = {name for call in calls for name in call.arguments}
    packing = Program(
        name="packing",
        buffers=tuple(buffer for buffer in program.buffers if buffer.name in names),
        kernels={call.kernel: program.kernels[call.kernel] for call in calls},
        prepare=(),
        run=tuple(calls),
    )
    layout = Layout(packing, blob_of(packing), in_file=True)
    with tempfile.TemporaryDirectory() as folder:
        path = link(layout, Path(folder))
        return worker.call(_packed, path, [call.arguments[-1] for call in calls])


def _packed(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Run a library in the worker and return some of its buffers."""
    with step("packing the weights of a library"), loader.Library(path, "packing") as library:
        library.run()
        return {name: library.tensor(name) for name in names}
