"""Saved VTA programs: a directory or a zip of ``insns.bin``, ``dram.bin`` and ``meta.json``.

The format is described in ``docs/vta.md`` so that others can read it in twenty lines.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path

import msgspec
import numpy as np

from cpembed.backends.vta.config import VtaConfig
from cpembed.backends.vta.encoding import decode, encode
from cpembed.backends.vta.formats import INSTRUCTION_BYTES, formats_of
from cpembed.backends.vta.program import Role, Tensor, VtaProgram
from cpembed.errors import ProgramError, SpecError

FORMAT = "vta-program"
VERSION = 1
INSTRUCTIONS, DRAM, META = "insns.bin", "dram.bin", "meta.json"

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
"""Element types of tensors, little-endian."""

TENSOR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@]*")
"""``A@0`` and ``A@1`` are what a program reads of a tensor that is both its factors."""
NAME_RULE = "a letter or _, then letters, digits and _ . @"

_LARGEST_META, _LARGEST = 1 << 26, 1 << 34
"""Bytes that members of a zip may unpack to: 64 MiB and 16 GiB."""


class _TensorMeta(msgspec.Struct, forbid_unknown_fields=True):
    offset: int
    shape: list[int]
    dtype: str
    role: Role | None = None


class _Meta(msgspec.Struct, forbid_unknown_fields=True):
    """``meta.json``."""

    format: str
    version: int
    config: dict[str, int]
    base: int
    instructions: int
    dram_bytes: int
    tensors: dict[str, _TensorMeta]


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
    _check_base(program.base, where)
    members = {
        INSTRUCTIONS: encode(program.instructions, program.config),
        DRAM: program.dram.tobytes(),
        META: msgspec.json.format(msgspec.json.encode(_meta(program)), indent=2) + b"\n",
    }
    try:
        if path.suffix == ".zip":
            _write_zip(path, members)
        else:
            path.mkdir(parents=True, exist_ok=True)
            for name, data in members.items():
                (path / name).write_bytes(data)
    except FileExistsError:
        raise ProgramError(
            f"{path} is a file; a program is written to a directory or to a name that ends in .zip"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProgramError(f"{path} cannot be written: {reason}; name another path") from None


def load_program(path: Path) -> VtaProgram:
    """Read a program that :func:`save_program` wrote, or somebody else.

    Raises :class:`ProgramError`: the file, what is wrong in it, what is allowed.
    """
    members = _read_zip(path) if path.is_file() else _read_directory(path)
    meta = _read_meta(members[META], f"{path}: {META}")
    config = _config(meta.config, f"{path}: {META}")
    for name, count, unit, stated in (
        (INSTRUCTIONS, meta.instructions, INSTRUCTION_BYTES, "instructions"),
        (DRAM, meta.dram_bytes, 1, "dram_bytes"),
    ):
        if len(members[name]) != count * unit:
            raise ProgramError(
                f"{path}: {name}: has {len(members[name]):,} bytes; "
                f"{META} says {count:,} {stated}, {count * unit:,} bytes"
            )
    tensors = {
        name: Tensor(t.offset, tuple(t.shape), t.dtype, t.role) for name, t in meta.tensors.items()
    }
    check_tensors(tensors, meta.dram_bytes, lambda _: f"{path}: {META}")
    _check_base(meta.base, f"{path}: {META}")
    try:
        instructions = decode(members[INSTRUCTIONS], config)
    except ProgramError as error:
        raise ProgramError(f"{path}: {INSTRUCTIONS}: {error}") from None
    dram = np.frombuffer(members[DRAM], dtype=np.uint8).copy()
    return VtaProgram(config, instructions, dram, tensors, meta.base)


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
    if any(size < 1 for size in tensor.shape):
        return f"shape {[*tensor.shape]}; allowed: sizes of at least 1"
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
        {
            name: _TensorMeta(t.offset, [*t.shape], t.dtype, t.role)
            for name, t in program.tensors.items()
        },
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


def _read_directory(path: Path) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    for name in (META, INSTRUCTIONS, DRAM):
        try:
            members[name] = (path / name).read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ProgramError(
                f"{path}: {name} cannot be read: {reason}; a program is a directory or a zip "
                f"of {INSTRUCTIONS}, {DRAM} and {META}"
            ) from None
    return members


def _read_zip(path: Path) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in (META, INSTRUCTIONS, DRAM):
                if archive.getinfo(name).file_size > (_LARGEST_META if name == META else _LARGEST):
                    raise ProgramError(f"{path}: {name} is too large to be one of a program")
                members[name] = archive.read(name)
    except KeyError as error:
        raise ProgramError(
            f"{path}: {' '.join(str(error.args[0]).split())}; a program has "
            f"{INSTRUCTIONS}, {DRAM} and {META}"
        ) from None
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        # RuntimeError: an encrypted member.
        raise ProgramError(
            f"{path}: not a saved program: {' '.join(str(error).split())}; allowed: a directory or "
            f"a zip of {INSTRUCTIONS}, {DRAM} and {META}"
        ) from None
    return members


def _write_zip(path: Path, members: dict[str, bytes]) -> None:
    """In one step, and without dates, so that equal programs are equal files."""
    draft = path.with_name(f".{path.name}.part")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
