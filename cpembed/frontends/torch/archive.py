"""The archive that ``torch.export.save`` writes, and the tensors in it, read without PyTorch.

PyTorch's own reader unpickles objects, evaluates expressions and loads libraries that an archive
may hold, and looks its members up by other rules than :mod:`zipfile` does (ignoring case, for
instance). Here the members that a network needs are listed, one reader reads them, and an archive
with any other member is rejected.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import io
import math
import re
import struct
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from cpembed.errors import ModelError
from cpembed.files import open_regular
from cpembed.frontends.builder import LARGEST_TENSOR
from cpembed.frontends.torch import description as d

PROGRAM = "models/model.json"
WEIGHTS, CONSTANTS = "data/weights/", "data/constants/"
WEIGHTS_INDEX = f"{WEIGHTS}model_weights_config.json"
CONSTANTS_INDEX = f"{CONSTANTS}model_constants_config.json"
_TEXTS = frozenset(
    ("archive_format", "archive_version", "byteorder", PROGRAM, WEIGHTS_INDEX, CONSTANTS_INDEX)
)
_UNOPENED = frozenset(("data/sample_inputs/model.pt", ".data/version", ".data/serialization_id"))
"""Members that PyTorch always writes and that are never opened here."""
_TENSOR = re.compile(rf"{WEIGHTS}weight_(0|[1-9]\d*)|{CONSTANTS}tensor_(0|[1-9]\d*)", re.ASCII)
_REMEDIES = {
    "extra/": "save the program without extra_files",
    "data/aotinductor/": "a compiled library is not loaded: save the exported program",
    "data/constants/": "objects of Python are not loaded: export a model that holds tensors only",
    "data/weights/": "export and save the model again with PyTorch 2.9 or later",
    "models/": "save one program in a file, by torch.export.save",
    "serialized_": "export and save the model again with PyTorch 2.9 or later",
}
"""Remedies for other members, by the prefix of the name."""
_LARGEST_COUNT = 1 << 17
"""Maximum number of members."""
_LARGEST_DIRECTORY = 1 << 24
"""Maximum size in bytes of the list of members, which zipfile reads at once into objects."""
_LARGEST_TEXT = 1 << 27
"""Maximum size in bytes of a member of JSON: a program of 100,000 operators has some 50 MB."""

ELEMENT_TYPES: Mapping[int, torch.dtype] = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64,
    6: torch.float16, 7: torch.float32, 8: torch.float64, 9: torch.complex32, 10: torch.complex64,
    11: torch.complex128, 12: torch.bool, 13: torch.bfloat16, 28: torch.uint16,
    29: torch.float8_e4m3fn, 30: torch.float8_e5m2, 31: torch.float8_e4m3fnuz,
    32: torch.float8_e5m2fnuz, 34: torch.uint32, 35: torch.uint64,
}  # fmt: skip
"""Element types by their numbers in a file."""
STRIDED = 7
"""Number of the layout of dense tensors in a file."""
_REPEATED_BYTES, _REPEATED_SHARE = 64 << 20, 4
"""Maximum size in bytes of all tensors, beyond a multiple of the members'.

Strides may repeat elements, and several tensors may share a member.
"""


@dataclass(frozen=True)
class Archive:
    """Members of a file by their names inside the archive's folder.

    ``texts`` are JSON and marks of the format, ``tensors`` raw bytes.
    """

    path: Path
    texts: Mapping[str, bytes]
    tensors: Mapping[str, bytes]


def read_archive(path: Path) -> Archive:
    """Read the members that a network needs and compare their checksums.

    Raises :class:`ModelError` for a file that is no such archive or is damaged, and for a member
    that is compressed, is stored twice, or has a name that no network needs.
    """
    try:
        with _File(open_regular(path)) as file, zipfile.ZipFile(file) as archive:
            # The list of members is read; what follows are members, whose sizes are checked first.
            file.longest_read = sys.maxsize
            return _read(path, archive)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: there is no such file") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _ZIP_ERRORS as error:
        raise ModelError(
            f"{path} is no program of torch.export.save, or is damaged: {error}"
        ) from error


_ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
"""Errors of :mod:`zipfile` for a damaged archive; RuntimeError for an encrypted one."""


class _File(io.BufferedReader):
    """A file whose single reads have at most ``longest_read`` bytes."""

    longest_read = _LARGEST_DIRECTORY

    def __init__(self, descriptor: int) -> None:
        super().__init__(io.FileIO(descriptor))

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self.longest_read:
            raise ValueError(f"its list of members has {size:,} bytes")
        return super().read(size)


def _read(path: Path, archive: zipfile.ZipFile) -> Archive:
    members = _members(path, archive)
    texts = {name: archive.read(member) for name, member in members.items() if name in _TEXTS}
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
    """Return the members, whose names and sizes are checked before any is read."""
    entries = archive.infolist()
    if len(entries) > _LARGEST_COUNT:
        raise ModelError(
            f"{path}: the archive has {len(entries):,} members: at most {_LARGEST_COUNT:,} are read"
        )
    folder = entries[0].filename.partition("/")[0] if entries else ""
    members: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        # zipfile cuts a name at a NUL, and compares the name in the local header when it reads.
        full = entry.orig_filename
        top, _, name = full.partition("/")
        if top != folder or not name:
            raise ModelError(f"{path}: the member {full!r} is outside the folder {folder!r}/")
        if not (name in _TEXTS or name in _UNOPENED or _TENSOR.fullmatch(name)):
            remedy = next((r for prefix, r in _REMEDIES.items() if name.startswith(prefix)), None)
            raise ModelError(
                f"{path} is no program that is read: it holds {name!r}, which no network needs: "
                f"{remedy or 'save the model by torch.export.save'}"
            )
        if name in members:
            raise ModelError(f"{path}: two members of the archive are named {name!r}")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ModelError(
                f"{path}: the member {name!r} is compressed: torch.export.save stores members as "
                "they are"
            )
        if name in _TEXTS and entry.file_size > _LARGEST_TEXT:
            raise ModelError(
                f"{path}: {name} has {entry.file_size:,} bytes: at most {_LARGEST_TEXT:,} are read"
            )
        members[name] = entry
    # An archive whose members share bytes could describe far more than it holds.
    total, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if total > size:
        raise ModelError(
            f"{path}: the members have {total:,} bytes together, the file {size:,}: members overlap"
        )
    return members


# -- tensors --------------------------------------------------------------------------------------


class Payloads:
    """Tensors of an archive, built from raw bytes by their descriptions."""

    def __init__(self, archive: Archive) -> None:
        self.path, self.members = archive.path, archive.tensors
        self.indices: dict[str, Mapping[str, d.Payload]] = {}
        for folder, name in ((WEIGHTS, WEIGHTS_INDEX), (CONSTANTS, CONSTANTS_INDEX)):
            index = d.decoded(f"{archive.path}: {name}", archive.texts[name], d.PayloadIndex)
            self.indices[folder] = index.config
        self._storages: dict[str, torch.Tensor] = {}
        self._stored_bytes = sum(map(len, self.members.values()))
        self._bytes_left = _REPEATED_BYTES + _REPEATED_SHARE * self._stored_bytes

    def tensor(self, target: str, folder: str) -> torch.Tensor:
        """Return a tensor by its name in the model and the folder of its kind.

        Raises :class:`ModelError` for one that is missing, is an object of Python, or does not fit
        its member.
        """
        place = f"{self.path}: {target[:200]}"
        # A buffer that is not saved with a model's weights is among the constants.
        folders = [f for f in dict.fromkeys((folder, CONSTANTS)) if target in self.indices[f]]
        if not folders:
            raise ModelError(f"{place}: the archive does not say where it is")
        payload = self.indices[folders[0]][target]
        if payload.use_pickle or payload.tensor_meta is None:
            raise ModelError(f"{place} is an object of Python: a network holds tensors")
        member = folders[0] + payload.path_name
        if member not in self.members:
            raise ModelError(f"{place}: the archive holds no {payload.path_name[:60]!r}")
        return self._strided(place, member, payload.tensor_meta)

    def _strided(self, place: str, member: str, meta: d.TensorMeta) -> torch.Tensor:
        sizes, strides = checked_layout(place, meta)
        offset = d.integer(place, meta.storage_offset)
        dtype, content = ELEMENT_TYPES[meta.dtype], self.members[member]
        elements = math.prod(sizes)
        last = offset + sum((s - 1) * t for s, t in zip(sizes, strides, strict=True))
        if elements and (last + 1) * dtype.itemsize > len(content):
            raise ModelError(
                f"{place}: the tensor ends at byte {(last + 1) * dtype.itemsize:,} of its storage, "
                f"which has {len(content):,}"
            )
        self._bytes_left -= elements * dtype.itemsize
        if self._bytes_left < 0:
            raise ModelError(
                f"{place}: the tensors up to this one are made of {self._stored_bytes:,} bytes by "
                f"repetition, and have more than {_REPEATED_BYTES:,} and {_REPEATED_SHARE} times "
                "these: expand them in the model's forward"
            )
        if not elements:
            return torch.empty(sizes, dtype=dtype)
        if dtype is torch.bool and content.translate(None, b"\0\1"):
            raise ModelError(f"{place}: a Boolean is neither 0 nor 1")
        if member not in self._storages:
            # A copy: PyTorch requires memory that it may write to.
            self._storages[member] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        size = len(content) // dtype.itemsize * dtype.itemsize
        return torch.as_strided(self._storages[member][:size].view(dtype), sizes, strides, offset)


def checked_layout(place: str, meta: d.TensorMeta) -> tuple[list[int], list[int]]:
    """Return sizes and strides of a tensor.

    Raises :class:`ModelError` for one that is not dense, not on the CPU, or too large.
    """
    sizes, strides = (
        [d.integer(place, union) for union in unions] for unions in (meta.sizes, meta.strides)
    )
    if meta.layout != STRIDED:
        raise ModelError(f"{place} is no dense tensor: convert it before the export")
    if meta.dtype not in ELEMENT_TYPES:
        raise ModelError(f"{place}: the element type {meta.dtype} is not known")
    if meta.device.type != "cpu":
        raise ModelError(
            f"{place} is on {meta.device.type[:40]}: move the model to the CPU before the export"
        )
    if len(sizes) != len(strides) or len(sizes) > 64:
        raise ModelError(f"{place} is damaged: {len(sizes)} sizes and {len(strides)} strides")
    if max([*sizes, *strides, math.prod(sizes)], default=0) > LARGEST_TENSOR:
        raise ModelError(f"{place} has {math.prod(sizes):,} elements: at most 2^31 are taken")
    return sizes, strides
