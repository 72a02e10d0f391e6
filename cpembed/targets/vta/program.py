"""VTA programs: instructions with the DRAM image that they work on, in memory and saved.

A saved program is a directory or a zip of ``insns.bin``, ``dram.bin`` and ``meta.json``. The format
is described in ``docs/vta.md`` so that others can read it in twenty lines.
"""

from __future__ import annotations

import io
import math
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError, SpecError
from cpembed.files import make_folder, write_whole
from cpembed.targets.vta.encoding import Columns, Numbers, decode, encode
from cpembed.targets.vta.isa import INSTRUCTION_BYTES, Instruction, Memory, VtaConfig, formats_of


class Role(StrEnum):
    """Purpose of a tensor in DRAM."""

    INPUT = "input"
    WEIGHT = "weight"
    """Packed ahead and the same in every run (the second input of a workload); also a bias."""
    OUTPUT = "output"
    UOPS = "uops"


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Named region of the DRAM image: ``offset`` in bytes from its start, row-major ``shape``.

    ``role`` is None where a saved program or a text states none.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str
    role: Role | None = None

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, eq=False)
class VtaProgram:
    """Instructions with the initial content of DRAM.

    ``dram`` holds all bytes from physical address ``base`` on: packed inputs and weights, the
    micro-ops, and room for the outputs. DRAM addresses in instructions are physical, in elements of
    the memory that they transfer to: ``(base + offset) / element size``. ``tensors`` name regions.
    """

    config: VtaConfig
    instructions: tuple[Instruction, ...]
    dram: NDArray[np.uint8]
    tensors: Mapping[str, Tensor]
    base: int = 0

    def tensor(self, name: str, dram: NDArray[np.uint8] | None = None) -> NDArray[np.generic]:
        """Return a view of a named tensor in ``dram``, by default in the program's own image.

        Raises KeyError for an unknown name.
        """
        region = self.tensors[name]
        memory = self.dram if dram is None else dram
        flat = memory[region.offset : region.offset + region.size_bytes]
        return flat.view(region.dtype).reshape(region.shape)


def dram_bounds(columns: Columns, program: VtaProgram) -> tuple[Numbers, Numbers]:
    """Return the first byte of the image that each transfer touches, and the one after its last."""
    # In the order of the codes, so that the column of memories indexes it.
    sizes = np.array([program.config.element_bytes(memory) for memory in Memory])
    size = sizes[columns["memory"]]
    first = columns["dram"] * size - program.base
    # The last row has no stride after it: it may end with the image.
    reach = (columns["y"] - 1) * columns["x_stride"] + columns["x"]
    return first, first + reach * size


FORMAT = "vta-program"
VERSION = 1
INSTRUCTIONS, DRAM, META = "insns.bin", "dram.bin", "meta.json"
DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
"""Element types of tensors, little-endian."""

# Older releases of numpy read no more dimensions.
_MAX_RANK = 32
"""Maximum rank of a tensor."""

TENSOR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@]*")
"""Names of tensors: ``A@0`` and ``A@1`` are the two reads of a tensor that is both factors."""

NAME_RULE = "a letter or _, then letters, digits and _ . @"
# A damaged file or a typing error must not take all memory.
MAX_IMAGE_BYTES = 1 << 30
"""Maximum size of a DRAM image, 1 GiB."""

# Each instruction takes 1.3 KB while a program is checked.
MAX_INSTRUCTIONS = 1 << 20
"""Maximum number of instructions."""

# A hundred thousand tensors.
_MAX_META_BYTES = 1 << 24
"""Maximum size of ``meta.json``, 16 MiB."""


class _Meta(msgspec.Struct, forbid_unknown_fields=True):
    """Content of ``meta.json``."""

    format: str
    version: int
    config: dict[str, int]
    base: int
    instructions: int
    dram_bytes: int
    tensors: dict[str, Tensor]


class _Header(msgspec.Struct):
    """Format and version, which decide whether the rest of ``meta.json`` can be read."""

    format: str = ""
    version: int | None = None


def save_program(program: VtaProgram, path: Path) -> None:
    """Write a program to a zip if the path ends in ``.zip``, else to a directory, replacing both.

    Raises :class:`ProgramError` for a program that :func:`load_program` would reject, and for a
    path that cannot be written.
    """
    where = str(path)
    check_tensors(program.tensors, len(program.dram), lambda _: where)
    for unit, count, maximum in (
        ("instructions", len(program.instructions), MAX_INSTRUCTIONS),
        ("bytes of DRAM", len(program.dram), MAX_IMAGE_BYTES),
    ):
        if count > maximum:
            raise ProgramError(
                f"{where}: {count:,} {unit}; a saved program has {maximum:,} at most"
            )
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
    """Read a saved program, from any writer of the format.

    Raises :class:`ProgramError` with the file, the problem and the allowed values.
    """
    with _members(path, (INSTRUCTIONS, DRAM, META)) as files:
        if files.sizes[META] > _MAX_META_BYTES:
            raise ProgramError(
                f"{path}: {META}: has {files.sizes[META]:,} bytes; allowed: {_MAX_META_BYTES:,}"
            )
        meta = _read_meta(files.read(META).tobytes(), f"{path}: {META}")
        config = _config(meta.config, f"{path}: {META}")
        # Sizes are checked before anything large is unpacked.
        _check_sizes(path, meta, files.sizes)
        check_tensors(meta.tensors, meta.dram_bytes, lambda _: f"{path}: {META}")
        _check_base(meta.base, f"{path}: {META}")
        code, dram = files.read(INSTRUCTIONS).tobytes(), files.read(DRAM)
    try:
        instructions = decode(code, config)
    except ProgramError as error:
        raise ProgramError(f"{path}: {INSTRUCTIONS}: {error}") from None
    return VtaProgram(config, instructions, dram, meta.tensors, base=meta.base)


def _check_sizes(path: Path, meta: _Meta, sizes: Mapping[str, int]) -> None:
    """Require that the sizes of the files are those that ``meta.json`` states."""
    for name, count, unit, counted, maximum in (
        (INSTRUCTIONS, meta.instructions, INSTRUCTION_BYTES, "instructions", MAX_INSTRUCTIONS),
        (DRAM, meta.dram_bytes, 1, "dram_bytes", MAX_IMAGE_BYTES),
    ):
        if not 0 <= count <= maximum:
            raise ProgramError(f"{path}: {META}: {counted} {count}; allowed: 0..{maximum}")
        if sizes[name] != count * unit:
            raise ProgramError(
                f"{path}: {name}: has {sizes[name]:,} bytes; "
                f"{META} says {count:,} {counted}, {count * unit:,} bytes"
            )


def check_tensors(
    tensors: Mapping[str, Tensor], dram_bytes: int, where: Callable[[str], str]
) -> None:
    """Require that tensors have valid names and types, lie within DRAM, and do not overlap.

    Parameters
    ----------
    tensors
        Tensors by name.
    dram_bytes
        Size of the DRAM image.
    where
        Function from a tensor's name to the place of its declaration, for messages.

    Raises
    ------
    ProgramError
        For the first tensor that breaks a rule.
    """
    for name, tensor in tensors.items():
        problem = _tensor_problem(name, tensor, dram_bytes)
        if problem is not None:
            raise ProgramError(f"{where(name)}: tensor {name!r}: {problem}")
    # In the order of their offsets each tensor can overlap its neighbour only.
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
    if len(tensor.shape) > _MAX_RANK:
        return f"shape of {len(tensor.shape):,} sizes; allowed: {_MAX_RANK} at most"
    if any(not 1 <= size <= MAX_IMAGE_BYTES for size in tensor.shape):
        return f"shape {[*tensor.shape]}; allowed: sizes of at least 1, {MAX_IMAGE_BYTES} at most"
    # Before the end is computed: an offset from JSON may have any number of digits.
    if abs(tensor.offset) > MAX_IMAGE_BYTES:
        return f"offset {tensor.offset}; allowed: 0..{MAX_IMAGE_BYTES}"
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
        # The header first: of another version, only this much is known to be there.
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
    """Return the configuration of a table, which must have exactly the sizes of one."""
    sizes = [field.name for field in fields(VtaConfig)]
    for name in (*sizes, *table):
        if name not in sizes or name not in table:
            problem = "is missing" if name in sizes else "unknown key"
            raise ProgramError(f"{where}: config.{name}: {problem}; allowed: {', '.join(sizes)}")
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
    """Return a zip of files without dates, so that equal programs are equal files."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return file.getvalue()


_CHUNK_BYTES = 1 << 20
"""Number of bytes to unpack at a time."""

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
"""Errors that reading a damaged file or zip raises."""


@dataclass(frozen=True)
class _Members:
    """Files of an open program; nothing is unpacked before :meth:`read`.

    ``sizes`` are in bytes, unpacked, as the directory or the zip states them.
    """

    sizes: dict[str, int]
    _open: Callable[[str], IO[bytes]]
    _where: str
    _expected: str

    def read(self, name: str) -> NDArray[np.uint8]:
        """Return a file's content, as many bytes as its size says.

        Raises :class:`ProgramError` for a damaged file.
        """
        # Allocated by the stated size, which was checked: a zip may unpack to far more.
        content = np.empty(self.sizes[name], np.uint8)
        filled = 0
        with _damage_named(self._where, self._expected), self._open(name) as file:
            while filled < len(content):
                part = file.read(min(_CHUNK_BYTES, len(content) - filled))
                if not part:
                    raise EOFError(f"{name} ends after {filled:,} of {len(content):,} bytes")
                content[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
                filled += len(part)
        return content


@contextmanager
def _members(path: Path, names: Sequence[str]) -> Generator[_Members]:
    """Open the files of a saved program, a directory or a zip.

    Raises :class:`ProgramError` if one is missing, or the zip cannot be read.
    """
    expected = f"a directory or a zip of {', '.join(names[:-1])} and {names[-1]}"
    if not path.is_file():
        # The last name first: without meta.json, the path is no program at all.
        sizes = {name: _file_size(path, name, expected) for name in reversed(names)}
        yield _Members(sizes, lambda name: (path / name).open("rb"), str(path), expected)
        return
    with _damage_named(str(path), expected):
        archive = zipfile.ZipFile(path)
    with archive:
        sizes = {name: _zip_member_size(path, archive, name, expected) for name in reversed(names)}
        yield _Members(sizes, archive.open, str(path), expected)


@contextmanager
def _damage_named(where: str, expected: str) -> Generator[None]:
    try:
        yield
    except _DAMAGE as error:
        # zipfile's EOFError of a member that is cut off has no text.
        text = getattr(error, "strerror", None) or str(error) or "it is cut off"
        reason = " ".join(text.split())
        raise ProgramError(f"{where}: not a saved program: {reason}; allowed: {expected}") from None


def _zip_member_size(path: Path, archive: zipfile.ZipFile, name: str, expected: str) -> int:
    # A zip can hold a name twice, and readers differ in which of them they take.
    matches = [member for member in archive.infolist() if member.filename == name]
    if len(matches) != 1:
        problem = f"has {len(matches)} members {name}" if matches else f"has no member {name}"
        raise ProgramError(f"{path}: {problem}; a program is {expected}, one of each")
    if matches[0].compress_type not in _COMPRESSIONS:
        raise ProgramError(
            f"{path}: {name} is compressed by method {matches[0].compress_type}; "
            "allowed: deflated (8) or stored (0)"
        )
    return matches[0].file_size


def _file_size(path: Path, name: str, expected: str) -> int:
    try:
        status = (path / name).stat()
        reason = None if stat.S_ISREG(status.st_mode) else "it is no file"
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        status, reason = None, getattr(error, "strerror", None) or str(error)
    if status is None or reason is not None:
        raise ProgramError(f"{path}: {name} cannot be read: {reason}; a program is {expected}")
    return status.st_size
