"""An object file of AArch64 with the addresses of what they refer to filled in.

Source: ELF for the Arm 64-bit Architecture (Arm IHI 0056), section "Relocation"; the tables of an
object file are those of the System V ABI.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import InvariantError, LoweringError

_SECTION = np.dtype(
    {
        "names": ["kind", "flags", "offset", "size", "link", "info", "alignment"],
        "formats": ["<u4", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8"],
        "offsets": [4, 8, 24, 32, 40, 44, 48],
        "itemsize": 64,
    }
)
_SYMBOL = np.dtype(
    {
        "names": ["name", "section", "value"],
        "formats": ["<u4", "<u2", "<u8"],
        "offsets": [0, 6, 8],
        "itemsize": 24,
    }
)
_RELOCATION = np.dtype([("offset", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
"""Entries of an object's tables, without what is not read here."""

_SYMBOLS, _RELOCATIONS, _ZEROS = 2, 4, 8
"""Kinds of section."""
_WORD = 8
"""Bytes of an address."""
_KEPT = 2
"""The flag of a section that takes memory."""

_ABSOLUTE, _DISTANCE, _CALLS, _PAGE, _LOW = 257, 261, (282, 283), 275, 277
_ADDRESS_PAGE, _ADDRESS_LOW = 311, 312
_ACCESSES = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4, _ADDRESS_LOW: 3}
"""Kinds of relocation: an address; how far it is, in 32 bits; a branch; the page of an address and
its low 12 bits, in an addition, or in a load or store of so many bytes, by their logarithm; the
same of a word that holds an address."""


class _Object:
    """The tables of one file, and where in the image its sections lie."""

    def __init__(self, contents: bytes) -> None:
        self._bytes = contents
        (start,) = struct.unpack_from("<Q", contents, 40)
        (count,) = struct.unpack_from("<H", contents, 60)
        self.sections = np.frombuffer(contents, _SECTION, count, start)
        self.kept = [n for n, section in enumerate(self.sections) if section["flags"] & _KEPT]
        table = next(section for section in self.sections if section["kind"] == _SYMBOLS)
        self.symbols = self._table(table, _SYMBOL)
        self._names = int(self.sections[table["link"]]["offset"])
        self.places: dict[int, int] = {}

    def _table(self, section: Any, entry: np.dtype[Any]) -> NDArray[Any]:
        size = int(section["size"]) // entry.itemsize
        return np.frombuffer(self._bytes, entry, size, int(section["offset"]))

    def contents(self, number: int) -> bytes:
        section = self.sections[number]
        size = int(section["size"])
        if section["kind"] == _ZEROS:
            return bytes(size)
        return self._bytes[int(section["offset"]) :][:size]

    def relocations(self) -> list[tuple[int, NDArray[Any]]]:
        """Of each section that takes memory, by its number."""
        found = [section for section in self.sections if section["kind"] == _RELOCATIONS]
        numbered = [(int(section["info"]), section) for section in found]
        return [(n, self._table(s, _RELOCATION)) for n, s in numbered if n in self.kept]

    def name(self, symbol: Any) -> str:
        start = self._names + int(symbol["name"])
        return self._bytes[start : self._bytes.index(b"\0", start)].decode()

    def address(self, symbol: Any) -> int | None:
        """None where it is defined elsewhere, or takes no memory."""
        place = self.places.get(int(symbol["section"]))
        return None if place is None else place + int(symbol["value"])

    def defined(self) -> dict[str, int]:
        """Addresses by name, of what has one."""
        found = ((self.name(symbol), self.address(symbol)) for symbol in self.symbols)
        return {name: address for name, address in found if name and address is not None}


def relocated(
    contents: bytes, base: int, others: Mapping[str, int]
) -> tuple[bytes, dict[str, int]]:
    """An object's sections, from an address on, and the addresses of its symbols; ``others`` are
    symbols that lie elsewhere.

    A variable ``__NAME`` holds the address of the function ``NAME``, where both are defined: so TVM
    finds its runtime. Raises :class:`LoweringError` for a symbol that nothing here defines.
    """
    file = _Object(contents)
    code = _placed(file, base)
    symbols = file.defined()
    for name, place in symbols.items():
        if f"__{name}" in symbols:
            struct.pack_into("<Q", code, symbols[f"__{name}"] - base, place)
    words: dict[int, int] = {}
    for number, entries in file.relocations():
        for entry in entries:
            symbol, kind = file.symbols[entry["symbol"]], int(entry["kind"])
            value = file.address(symbol)
            if value is None:
                value = others.get(file.name(symbol))
            if value is None:
                raise LoweringError(
                    f"the kernel needs {file.name(symbol)}, which an image does not provide"
                )
            value += int(entry["addend"])
            if kind in (_ADDRESS_PAGE, _ADDRESS_LOW):
                if value not in words:
                    words[value] = base + len(code)
                    code += struct.pack("<Q", value)
                value = words[value]
            place = file.places[number] + int(entry["offset"])
            _patch(code, place - base, kind, value, place)
    return bytes(code), symbols


def _placed(file: _Object, base: int) -> bytearray:
    """The sections that take memory, one after the other, and nothing filled in."""
    code = bytearray()
    for number in file.kept:
        code += bytes(-len(code) % max(_WORD, int(file.sections[number]["alignment"])))
        file.places[number] = base + len(code)
        code += file.contents(number)
    return code + bytes(-len(code) % _WORD)


def _patch(code: bytearray, at: int, kind: int, value: int, place: int) -> None:
    """Fill an address into the instruction or the word ``at``, which lies at ``place``."""
    if kind == _ABSOLUTE:
        struct.pack_into("<Q", code, at, value)
        return
    (word,) = struct.unpack_from("<I", code, at)
    if kind == _DISTANCE:
        word = value - place & 0xFFFFFFFF
    elif kind in _CALLS:
        word |= (value - place) >> 2 & 0x3FFFFFF
    elif kind in (_PAGE, _ADDRESS_PAGE):
        pages = (value >> 12) - (place >> 12)
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind == _LOW:
        word |= (value & 0xFFF) << 10
    elif kind in _ACCESSES:
        word |= (value & 0xFFF) >> _ACCESSES[kind] << 10
    else:
        raise InvariantError(f"the compiler left a relocation of kind {kind}: please report it")
    struct.pack_into("<I", code, at, word)
