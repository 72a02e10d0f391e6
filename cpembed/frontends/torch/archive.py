"""The archive that ``torch.export.save`` writes, read without PyTorch.

PyTorch's own reader unpickles objects, evaluates expressions and loads libraries that an archive
may hold, and looks its members up by other rules than :mod:`zipfile` does (without regard to case,
for instance). Here the members that a network needs are listed, one reader reads them, and an
archive with any other member is refused.
"""

from __future__ import annotations

import io
import re
import struct
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cpembed.errors import ModelError
from cpembed.files import open_regular

PROGRAM = "models/model.json"
WEIGHTS, CONSTANTS = "data/weights/", "data/constants/"
WEIGHTS_INDEX = f"{WEIGHTS}model_weights_config.json"
CONSTANTS_INDEX = f"{CONSTANTS}model_constants_config.json"
_READ = frozenset(
    ("archive_format", "archive_version", "byteorder", PROGRAM, WEIGHTS_INDEX, CONSTANTS_INDEX)
)
_IGNORED = frozenset(("data/sample_inputs/model.pt", ".data/version", ".data/serialization_id"))
"""Members that the writer always adds and that are never opened here."""
_TENSOR = re.compile(rf"{WEIGHTS}weight_(0|[1-9]\d*)|{CONSTANTS}tensor_(0|[1-9]\d*)", re.ASCII)
_REMEDIES = {
    "extra/": "save the program without extra_files",
    "data/aotinductor/": "a compiled library is not loaded: save the exported program",
    "data/constants/": "objects of Python are not loaded: export a model that holds tensors only",
    "data/weights/": "export and save the model again with PyTorch 2.9 or later",
    "models/": "save one program in a file, by torch.export.save",
    "serialized_": "export and save the model again with PyTorch 2.9 or later",
}
"""By the beginning of a member's name."""
_LARGEST_MEMBERS = 1 << 17
_LARGEST_DIRECTORY = 1 << 24
"""Bytes of the list of members, which zipfile reads at once and makes objects of."""
_LARGEST_TEXT = 1 << 27
"""Bytes of a member of JSON: a program of 100,000 operators has some 50 MB."""


@dataclass(frozen=True)
class Archive:
    """The members of the file at ``path`` that hold the program (``texts``: JSON and marks) and its
    tensors (``tensors``: raw bytes), by their names inside the archive's folder."""

    path: Path
    texts: Mapping[str, bytes]
    tensors: Mapping[str, bytes]


def read_archive(path: Path) -> Archive:
    """Read the members that a network needs.

    Parameters
    ----------
    path : Path
        A file that ``torch.export.save`` wrote.

    Returns
    -------
    Archive
        Its members, whose checksums were compared.

    Raises
    ------
    ModelError
        For a file that is no such archive or is damaged, and for a member that is compressed, is
        stored twice, or has a name that no network needs.
    """
    try:
        with _File(open_regular(path)) as file, zipfile.ZipFile(file) as archive:
            file.longest_read = sys.maxsize
            return _read(path, archive)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: there is no such file") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _DAMAGES as error:
        raise ModelError(
            f"{path} is no program of torch.export.save, or is damaged: {error}"
        ) from error


class _File(io.BufferedReader):
    """A file of which no more than ``longest_read`` bytes are read at once."""

    longest_read = _LARGEST_DIRECTORY

    def __init__(self, descriptor: int) -> None:
        super().__init__(io.FileIO(descriptor))

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self.longest_read:
            raise ValueError(f"its list of members has {size:,} bytes")
        return super().read(size)


_DAMAGES = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
"""Exceptions of :mod:`zipfile` about an archive: RuntimeError of one that is encrypted."""


def _read(path: Path, archive: zipfile.ZipFile) -> Archive:
    members = _members(path, archive)
    texts = {name: archive.read(member) for name, member in members.items() if name in _READ}
    marks = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little"}
    for name, mark in marks.items():
        if texts.get(name, mark if name == "byteorder" else None) != mark:
            raise ModelError(
                f"{path} is no program of torch.export.save: its {name} is "
                f"{texts.get(name, b'missing')!r}, not {mark!r}"
            )
    for name in (PROGRAM, WEIGHTS_INDEX, CONSTANTS_INDEX):
        if name not in texts:
            raise ModelError(
                f"{path} is no program of torch.export.save that is read here: it holds no {name}: "
                "export and save the model again with PyTorch 2.9 or later"
            )
    tensors = {
        name: archive.read(member) for name, member in members.items() if _TENSOR.fullmatch(name)
    }
    return Archive(path, texts, tensors)


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by their names inside the archive's folder, sizes checked before any is read."""
    entries = archive.infolist()
    if len(entries) > _LARGEST_MEMBERS:
        raise ModelError(
            f"{path}: the archive has {len(entries):,} members: at most {_LARGEST_MEMBERS:,} "
            "are read"
        )
    folder = entries[0].filename.partition("/")[0] if entries else ""
    found: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        # zipfile cuts a name at a NUL, and compares the name in the local header when it reads.
        full = entry.orig_filename
        top, _, name = full.partition("/")
        if top != folder or not name:
            raise ModelError(f"{path}: the member {full!r} is outside the folder {folder!r}/")
        if not (name in _READ or name in _IGNORED or _TENSOR.fullmatch(name)):
            remedy = next((r for start, r in _REMEDIES.items() if name.startswith(start)), None)
            raise ModelError(
                f"{path} is no program that is read: it holds {name!r}, which no network needs: "
                f"{remedy or 'save the model by torch.export.save'}"
            )
        if name in found:
            raise ModelError(f"{path}: two members of the archive are named {name!r}")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ModelError(
                f"{path}: the member {name!r} is compressed: torch.export.save stores members as "
                "they are"
            )
        if name in _READ and entry.file_size > _LARGEST_TEXT:
            raise ModelError(
                f"{path}: {name} has {entry.file_size:,} bytes: at most {_LARGEST_TEXT:,} are read"
            )
        found[name] = entry
    total, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if total > size:
        raise ModelError(
            f"{path}: the members have {total:,} bytes together, the file {size:,}: members overlap"
        )
    return found
