"""Saved VTA programs: a directory or a zip of ``insns.bin``, ``dram.bin`` and ``meta.json``.

The format is described in ``docs/vta.md`` so that others can read it in twenty lines.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError, SpecError
from cpembed.files import make_folder, write_whole
from cpembed.targets.vta.encoding import INSTRUCTION_BYTES, decode, encode, formats_of
from cpembed.targets.vta.isa import VtaConfig
from cpembed.targets.vta.program import Tensor, VtaProgram

FORMAT = "vta-program"

VERSION = 1

INSTRUCTIONS, DRAM, META = "insns.bin", "dram.bin", "meta.json"

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
"""Element types of tensors, little-endian."""

_MOST_SIZES = 32
"""Of a shape; numpy takes no more."""

TENSOR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@]*")
"""``A@0`` and ``A@1`` are what a program reads of a tensor that is both its factors."""

NAME_RULE = "a letter or _, then letters, digits and _ . @"

LARGEST_IMAGE = 1 << 30
"""Bytes of a DRAM image, 1 GiB: a damaged file or a typing error should not take all memory."""

LARGEST_CODE = 1 << 20
"""Instructions of a program, which take 1.3 KB each while it is checked."""

_LARGEST_META = 1 << 24
"""Bytes of ``meta.json``, 16 MiB: a hundred thousand tensors."""


class _Meta(msgspec.Struct, forbid_unknown_fields=True):
    """``meta.json``."""

    format: str
    version: int
    config: dict[str, int]
    base: int
    instructions: int
    dram_bytes: int
    tensors: dict[str, Tensor]


class _Header(msgspec.Struct):
    """What tells whether the rest can be understood."""

    format: str = ""
    version: int | None = None


def save_program(program: VtaProgram, path: Path) -> None:
    """Write a program: a zip where the name ends in ``.zip``, else a directory.

    What is there is replaced. Raises :class:`ProgramError` for a program that could not be read
    back and where the path cannot be written.
    """
    where = str(path)
    check_tensors(program.tensors, len(program.dram), lambda _: where)
    for stated, count, most in (
        ("instructions", len(program.instructions), LARGEST_CODE),
        ("bytes of DRAM", len(program.dram), LARGEST_IMAGE),
    ):
        if count > most:
            raise ProgramError(f"{where}: {count:,} {stated}; a saved program has {most:,} at most")
    _check_base(program.base, where)
    contents = {
        INSTRUCTIONS: encode(program.instructions, program.config),
        DRAM: program.dram.tobytes(),
        META: msgspec.json.format(msgspec.json.encode(_meta(program)), indent=2) + b"\n",
    }
    try:
        if path.suffix == ".zip":
            write_whole(path, _zipped(contents))
            return
        if path.is_file():
            raise ProgramError(
                f"{path} is a file; a program is written to a directory or to a name that ends in "
                ".zip"
            )
    except ValueError as error:  # A null character, or a loop of links.
        raise ProgramError(f"{path} cannot be written: {error}; name another path") from None
    make_folder(path)
    for name, data in contents.items():
        write_whole(path / name, data)


def load_program(path: Path) -> VtaProgram:
    """Read a program that :func:`save_program` wrote, or somebody else.

    Raises :class:`ProgramError`: the file, what is wrong in it, what is allowed.
    """
    with members(path, (INSTRUCTIONS, DRAM, META)) as found:
        if found.sizes[META] > _LARGEST_META:
            raise ProgramError(
                f"{path}: {META}: has {found.sizes[META]:,} bytes; allowed: {_LARGEST_META:,}"
            )
        meta = _read_meta(found.read(META).tobytes(), f"{path}: {META}")
        config = _config(meta.config, f"{path}: {META}")
        _check_sizes(path, meta, found.sizes)
        check_tensors(meta.tensors, meta.dram_bytes, lambda _: f"{path}: {META}")
        _check_base(meta.base, f"{path}: {META}")
        code, dram = found.read(INSTRUCTIONS).tobytes(), found.read(DRAM)
    try:
        instructions = decode(code, config)
    except ProgramError as error:
        raise ProgramError(f"{path}: {INSTRUCTIONS}: {error}") from None
    return VtaProgram(config, instructions, dram, meta.tensors, meta.base)


def _check_sizes(path: Path, meta: _Meta, sizes: Mapping[str, int]) -> None:
    """Before instructions and DRAM are unpacked."""
    for name, count, unit, stated, most in (
        (INSTRUCTIONS, meta.instructions, INSTRUCTION_BYTES, "instructions", LARGEST_CODE),
        (DRAM, meta.dram_bytes, 1, "dram_bytes", LARGEST_IMAGE),
    ):
        if not 0 <= count <= most:
            raise ProgramError(f"{path}: {META}: {stated} {count}; allowed: 0..{most}")
        if sizes[name] != count * unit:
            raise ProgramError(
                f"{path}: {name}: has {sizes[name]:,} bytes; "
                f"{META} says {count:,} {stated}, {count * unit:,} bytes"
            )


def check_tensors(
    tensors: Mapping[str, Tensor], dram_bytes: int, where: Callable[[str], str]
) -> None:
    """Raise :class:`ProgramError` for a tensor that is not within DRAM or overlaps another one.

    ``where`` says where a tensor of a name is declared.
    """
    for name, tensor in tensors.items():
        problem = _tensor_problem(name, tensor, dram_bytes)
        if problem is not None:
            raise ProgramError(f"{where(name)}: tensor {name!r}: {problem}")
    end, last = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            raise ProgramError(
                f"{where(name)}: tensors {last!r} and {name!r} overlap: the first ends before "
                f"byte {end}, the second starts at {tensor.offset}"
            )
        end, last = tensor.offset + tensor.size_bytes, name


def _tensor_problem(name: str, tensor: Tensor, dram_bytes: int) -> str | None:
    if not TENSOR_NAME.fullmatch(name):
        return f"not a name; allowed: {NAME_RULE}"
    if tensor.dtype not in DTYPES:
        return f"unknown dtype {tensor.dtype!r}; allowed: {', '.join(DTYPES)}"
    if len(tensor.shape) > _MOST_SIZES:
        return f"shape of {len(tensor.shape):,} sizes; allowed: {_MOST_SIZES} at most"
    if any(not 1 <= size <= LARGEST_IMAGE for size in tensor.shape):
        return f"shape {[*tensor.shape]}; allowed: sizes of at least 1, {LARGEST_IMAGE} at most"
    if abs(tensor.offset) > LARGEST_IMAGE:
        return f"offset {tensor.offset}; allowed: 0..{LARGEST_IMAGE}"
    end = tensor.offset + tensor.size_bytes
    if tensor.offset < 0 or end > dram_bytes:
        return f"bytes {tensor.offset}..{end - 1} are not within DRAM, which has {dram_bytes} bytes"
    return None


def _check_base(base: int, where: str) -> None:
    if not 0 <= base < 1 << 40:
        raise ProgramError(f"{where}: base {base}; allowed: a physical address, 0..2^40 - 1")


def _meta(program: VtaProgram) -> _Meta:
    return _Meta(
        FORMAT,
        VERSION,
        asdict(program.config),
        program.base,
        len(program.instructions),
        len(program.dram),
        dict(program.tensors),
    )


def _read_meta(data: bytes, where: str) -> _Meta:
    try:
        header = msgspec.json.decode(data, type=_Header)
        if header.format != FORMAT:
            raise ProgramError(f'{where}: format {header.format!r}; allowed: "{FORMAT}"')
        if header.version != VERSION:
            raise ProgramError(
                f"{where}: unknown version {header.version}; this release reads {VERSION}"
            )
        return msgspec.json.decode(data, type=_Meta)
    except msgspec.ValidationError as error:
        raise ProgramError(f"{where}: {' '.join(str(error).split())}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProgramError(f"{where}: not valid JSON: {' '.join(str(error).split())}") from None


def _config(table: dict[str, int], where: str) -> VtaConfig:
    """A configuration of which every size is given, and no other."""
    known = [field.name for field in fields(VtaConfig)]
    for name in (*known, *table):
        if name not in known or name not in table:
            problem = "is missing" if name in known else "unknown key"
            raise ProgramError(f"{where}: config.{name}: {problem}; allowed: {', '.join(known)}")
    for name, value in table.items():
        if not 0 <= value <= 40:
            raise ProgramError(f"{where}: config.{name}: {value}; allowed: 0..40 (log2 of a size)")
    config = VtaConfig(**table)
    try:
        formats_of(config)
    except SpecError as error:
        raise ProgramError(f"{where}: {error}") from None
    return config


def _zipped(contents: dict[str, bytes]) -> bytes:
    """A zip without dates, so that equal programs are equal files."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return file.getvalue()


_CHUNK = 1 << 20
"""Bytes that are unpacked at a time."""

_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_DAMAGE = (
    EOFError,
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,  # an encrypted member
    ValueError,
)
"""What reading a damaged file or zip raises."""


@dataclass(frozen=True)
class Members:
    """``sizes`` in bytes, unpacked, as the directory or the zip states them; nothing is unpacked
    before :meth:`read`."""

    sizes: dict[str, int]
    _open: Callable[[str], IO[bytes]]
    _where: str
    _expected: str

    def read(self, name: str) -> NDArray[np.uint8]:
        """As many bytes of a member as its size says; raises :class:`ProgramError`."""
        content = np.empty(self.sizes[name], np.uint8)
        done = 0
        with _damage_named(self._where, self._expected), self._open(name) as file:
            while done < len(content):
                part = file.read(min(_CHUNK, len(content) - done))
                if not part:
                    raise EOFError(f"{name} ends after {done:,} of {len(content):,} bytes")
                content[done : done + len(part)] = np.frombuffer(part, np.uint8)
                done += len(part)
        return content


@contextmanager
def members(path: Path, names: Sequence[str]) -> Generator[Members]:
    """The members of a saved program, while it is open.

    Raises :class:`ProgramError` where one is missing, or the zip cannot be read.
    """
    expected = f"a directory or a zip of {', '.join(names[:-1])} and {names[-1]}"
    if not path.is_file():
        sizes = {name: _file_size(path, name, expected) for name in reversed(names)}
        yield Members(sizes, lambda name: (path / name).open("rb"), str(path), expected)
        return
    with _damage_named(str(path), expected):
        archive = zipfile.ZipFile(path)
    with archive:
        sizes = {name: _zip_member_size(path, archive, name, expected) for name in reversed(names)}
        yield Members(sizes, archive.open, str(path), expected)


@contextmanager
def _damage_named(where: str, expected: str) -> Generator[None]:
    try:
        yield
    except _DAMAGE as error:
        # zipfile's EOFError of a member that is cut off has no text.
        said = getattr(error, "strerror", None) or str(error) or "it is cut off"
        reason = " ".join(said.split())
        raise ProgramError(f"{where}: not a saved program: {reason}; allowed: {expected}") from None


def _zip_member_size(path: Path, archive: zipfile.ZipFile, name: str, expected: str) -> int:
    found = [member for member in archive.infolist() if member.filename == name]
    if len(found) != 1:
        problem = f"has {len(found)} members {name}" if found else f"has no member {name}"
        raise ProgramError(f"{path}: {problem}; a program is {expected}, one of each")
    if found[0].compress_type not in _COMPRESSIONS:
        raise ProgramError(
            f"{path}: {name} is compressed by method {found[0].compress_type}; "
            "allowed: deflated (8) or stored (0)"
        )
    return found[0].file_size


def _file_size(path: Path, name: str, expected: str) -> int:
    try:
        status = (path / name).stat()
        reason = None if stat.S_ISREG(status.st_mode) else "it is no file"
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        status, reason = None, getattr(error, "strerror", None) or str(error)
    if status is None or reason is not None:
        raise ProgramError(f"{path}: {name} cannot be read: {reason}; a program is {expected}")
    return status.st_size
