"""A program as a folder that people take away: a shared library, its header, what uses it.

>>> sorted(files_of("net", in_file=True, python=True))
['libnet.so', 'net.h', 'net.json', 'net.py', 'net.weights']
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from cpembed.errors import CpembedError
from cpembed.export.header import header
from cpembed.export.packing import packed_ahead
from cpembed.export.program import Program
from cpembed.export.tables import Layout, about_json, tables
from cpembed.export.toolchain import link
from cpembed.export.weights import blob_of

LOADER = Path(__file__).parent / "loader.py"

EMBEDDED_BYTES = 1 << 18
"""Constants of more bytes are in a file beside the library, which is mapped into memory."""

@dataclass(frozen=True)
class Library:
    """What was written: ``folder`` with ``lib<name>.so`` and the other ``files``."""

    name: str
    folder: Path
    files: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The shared library."""
        return self.folder / f"lib{self.name}.so"


def files_of(name: str, *, in_file: bool, python: bool) -> tuple[str, ...]:
    """The files of a library without an example."""
    weights = (f"{name}.weights",) if in_file else ()
    loader = (f"{name}.py",) if python else ()
    return (f"lib{name}.so", f"{name}.h", f"{name}.json", *weights, *loader)


def write_library(
    program: Program, folder: Path, *, python: bool = True, options: tuple[str, ...] = ()
) -> Library:
    """Write a program as a library; files of the same names are replaced, others stay.

    Weights that are known now are packed now. ``python``: with a loader that needs numpy alone;
    ``options``: further ones of the C compiler. Raises
    :class:`~cpembed.errors.BackendUnavailable` without a C compiler, and
    :class:`~cpembed.errors.LoweringError` where it fails.
    """
    program = packed_ahead(program)
    layout = Layout(program, blob_of(program))
    in_file = len(layout.blob.contents) > EMBEDDED_BYTES
    texts = {
        f"{program.name}.h": header(program, in_file=in_file),
        f"{program.name}.json": about_json(layout),
    }
    if python:
        texts[f"{program.name}.py"] = loader_text(program.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft.", dir=folder) as draft:
            link(layout, Path(draft), in_file=in_file, options=options)
            for name, text in texts.items():
                (Path(draft) / name).write_text(text, encoding="utf-8")
            files = files_of(program.name, in_file=in_file, python=python)
            for name in files:
                (Path(draft) / name).replace(folder / name)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CpembedError(f"{folder} cannot be written: {reason}; name another folder") from None
    return Library(program.name, folder, files)


def loader_text(name: str) -> str:
    """``NAME.py``: :mod:`cpembed.export.loader` for one library."""
    text = LOADER.read_text(encoding="utf-8")
    return text.replace('NAME = ""', f'NAME = "{name}"', 1)
