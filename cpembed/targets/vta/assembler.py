"""Assembly text to programs.

Lines are read one by one; tensors are placed and names in addresses resolved at the end, so that a
name may be used before it is declared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import SpecError
from cpembed.hw.schema import close_match, joined
from cpembed.targets.vta.assembly import VERSION, InstructionReader, PendingInstruction, Word, Words
from cpembed.targets.vta.encoding import pack_uops
from cpembed.targets.vta.isa import UOP_BYTES, Memory, Opcode, VtaConfig, formats_of
from cpembed.targets.vta.program import (
    DTYPES,
    MAX_IMAGE_BYTES,
    TENSOR_NAME,
    Role,
    Tensor,
    VtaProgram,
    check_tensors,
)

_ADDRESS = re.compile(rf"({TENSOR_NAME.pattern})(?:\+(0x[0-9a-fA-F]+|[0-9]+))?")


@dataclass
class DeclaredTensor:
    """Tensor before it is placed; ``shape`` None is the number of micro-ops in its section."""

    word: Word
    dtype: str
    shape: tuple[int, ...] | None
    role: Role | None
    offset: int | None = None


@dataclass
class UopSection:
    """Section of micro-ops: its name, and the indices of each."""

    word: Word
    rows: list[tuple[Word, tuple[int, int, int]]] = field(
        default_factory=list[tuple[Word, tuple[int, int, int]]]
    )


@dataclass
class Image:
    """DRAM as the text declares it; :meth:`place` decides the tensors' offsets."""

    words: Words
    base: int = 0
    size: int | None = None
    declared: dict[str, DeclaredTensor] = field(default_factory=dict[str, DeclaredTensor])
    uops: dict[str, UopSection] = field(default_factory=dict[str, UopSection])
    data: list[tuple[Word, Word | None, int, bytes]] = field(
        default_factory=list[tuple[Word, Word | None, int, bytes]]
    )
    """Sections of bytes: first word of the line, tensor's name (None: all DRAM), offset, bytes."""
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def place(self, config: VtaConfig) -> None:
        """Give every tensor an offset: one without ``at=`` follows those before it."""
        # Any memory may be loaded from a tensor: the largest element's alignment serves all.
        align = max(config.element_bytes(memory) for memory in Memory)
        # A section of micro-ops declares its tensor, unless a directive did.
        for name, uops in self.uops.items():
            if name not in self.declared:
                self.declared[name] = DeclaredTensor(uops.word, "uint32", None, Role.UOPS)
        end = 0
        for name, declared in self.declared.items():
            shape = declared.shape
            if shape is None:
                shape = (max(1, len(self.uops[name].rows)),)
            # Instructions address elements from physical address 0 on.
            after = -(-(self.base + end) // align) * align - self.base
            offset = after if declared.offset is None else declared.offset
            tensor = Tensor(offset, shape, declared.dtype, declared.role)
            end = max(end, offset + tensor.size_bytes)
            problem = f"{name} ends at byte {end}; allowed: {MAX_IMAGE_BYTES} at most"
            self.words.require(end <= MAX_IMAGE_BYTES, declared.word, problem)
            self.tensors[name] = tensor
        if self.size is None:
            self.size = end
        check_tensors(
            self.tensors, self.size, lambda name: self.words.place(self.declared[name].word)
        )

    def content(self, config: VtaConfig) -> NDArray[np.uint8]:
        """Return the DRAM image before the program runs."""
        dram = np.zeros(self.size or 0, dtype=np.uint8)
        for name, uops in self.uops.items():
            tensor = self.tensors[name]
            room = tensor.size_bytes // UOP_BYTES
            if len(uops.rows) > room:
                raise self.words.error(uops.rows[room][0], f"{name} has room for {room} micro-ops")
            if uops.rows:
                dst, src, wgt = zip(*(row for _, row in uops.rows), strict=True)
                words = pack_uops(dst, src, wgt, config=config)
                dram[tensor.offset : tensor.offset + words.nbytes] = words.view(np.uint8)
        for word, name, offset, content in self.data:
            start, room = self._region(name)
            end, place = offset + len(content), "DRAM" if name is None else name.text
            problem = f"these bytes end at {end:#x}, {place} has {room:#x} bytes"
            self.words.require(end <= room, word, problem)
            dram[start + offset : start + end] = np.frombuffer(content, np.uint8)
        return dram

    def address(self, address: Word, memory: Memory, config: VtaConfig) -> int:
        """Return the DRAM address of a word ``NAME`` or ``NAME+ELEMENTS``.

        Parameters
        ----------
        address
            Word to resolve.
        memory
            Memory whose elements the address counts.
        config
            Configuration, which has the size of an element.

        Raises
        ------
        ProgramError
            If no tensor has the name, or it does not begin at a multiple of the element.
        """
        match = _ADDRESS.fullmatch(address.text)
        if not match:
            raise self.words.error(
                address, f"dram={address.text} cannot be read; write a number, NAME or NAME+NUMBER"
            )
        tensor = self._named(match[1], address)
        size = config.element_bytes(memory)
        start = self.base + tensor.offset
        problem = f"{match[1]} lies at physical address {start:#x}, not at a multiple of "
        problem += f"{memory.name}'s element of {size} bytes: move it with at="
        self.words.require(start % size == 0, address, problem)
        value = start // size + self.words.number(address, match[2] or "0")
        self.words.check(address, formats_of(config).field(Opcode.LOAD, "dram"), value)
        return value

    def _named(self, name: str, word: Word) -> Tensor:
        if name not in self.tensors:
            declared = f"{joined(self.tensors) or 'none'}{close_match(name, self.tensors)}"
            raise self.words.error(word, f"no tensor {name!r}; declared: {declared}")
        return self.tensors[name]

    def _region(self, name: Word | None) -> tuple[int, int]:
        """Return the first byte and the size of a tensor, or of all DRAM for no name."""
        if name is None:
            return 0, self.size or 0
        tensor = self._named(name.text, name)
        return tensor.offset, tensor.size_bytes


_DATA = re.compile(r"(0x[0-9a-fA-F]{1,16}|[0-9]{1,16}):")
_SHAPE = re.compile(r"scalar|[0-9]{1,16}(?:x[0-9]{1,16}){0,31}")
_BYTE = re.compile(r"[0-9a-fA-F]{2}")
_ONCE = (".vta", ".config", ".dram")
"""Directives that a text has at most once, before everything else."""


def assemble(text: str, source: str = "assembly") -> VtaProgram:
    """Return the program of a text; ``source`` is its name in errors.

    Raises :class:`~cpembed.errors.ProgramError` with ``source:line:column``, the problem and what
    is allowed.
    """
    return _Assembler(Words(source)).program(text)


class _Assembler:
    """Reader of the lines of one text."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._image = Image(words)
        self._config = VtaConfig()
        self._reader: InstructionReader | None = None
        self._code: list[PendingInstruction] = []
        self._once: set[str] = set()
        # Lines without a directive belong to the section that the last one began.
        self._section: Callable[[list[Word]], None] = self._instruction
        self._directives: dict[str, Callable[[list[Word]], None]] = {
            ".vta": self._version,
            ".config": self._configure,
            ".dram": self._dram,
            ".tensor": self._tensor,
            ".uop": self._begin_uops,
            ".data": self._begin_data,
            ".code": self._begin_code,
        }

    def program(self, text: str) -> VtaProgram:
        # Not splitlines(), which also splits at characters that editors do not count as line ends.
        for number, line in enumerate(text.split("\n"), start=1):
            words = self._words.split(line, number)
            if words and words[0].text.startswith("."):
                self._directive(words)
            elif words:
                self._section(words)
        self._image.place(self._config)
        resolve = partial(self._image.address, config=self._config)
        return VtaProgram(
            self._config,
            tuple(pending(resolve) for pending in self._code),
            self._image.content(self._config),
            self._image.tensors,
            base=self._image.base,
        )

    def _directive(self, line: list[Word]) -> None:
        first = line[0]
        if first.text not in self._directives:
            allowed = f"{joined(self._directives)}{close_match(first.text, self._directives)}"
            raise self._words.error(first, f"unknown directive {first.text}; allowed: {allowed}")
        if first.text in _ONCE:
            problem = f"{first.text} is given more than once: keep one"
            self._words.require(first.text not in self._once, first, problem)
            # All else depends on them: sizes of elements, the place of the image.
            is_late = self._image.declared or self._image.uops or self._code
            problem = f"{first.text} comes before tensors, micro-ops and instructions"
            self._words.require(not is_late, first, problem)
            self._once.add(first.text)
        self._directives[first.text](line)

    def _version(self, line: list[Word]) -> None:
        self._words.at_most(line, 2)
        problem = f"unknown version; this release reads `.vta {VERSION}`"
        self._words.require(line[-1].text == str(VERSION), line[-1], problem)

    def _configure(self, line: list[Word]) -> None:
        values = self._words.numbers(line[1:], [field.name for field in fields(VtaConfig)])
        for name, (word, value) in values.items():
            problem = f"{name} = {value}; allowed: 0..40 (log2 of a size)"
            self._words.require(0 <= value <= 40, word, problem)
        self._config = VtaConfig(**{name: value for name, (_, value) in values.items()})
        try:
            formats_of(self._config)
        except SpecError as error:
            raise self._words.error(line[0], str(error)) from None

    def _dram(self, line: list[Word]) -> None:
        for name, (word, value) in self._words.numbers(line[1:], ("base", "size")).items():
            limit = MAX_IMAGE_BYTES if name == "size" else (1 << 40) - 1
            problem = f"{name} = {value}; allowed: 0..{limit}"
            self._words.require(0 <= value <= limit, word, problem)
            if name == "base":
                self._image.base = value
            else:
                self._image.size = value

    def _tensor(self, line: list[Word]) -> None:
        name = self._words.new_name(line, ".tensor NAME dtype=int8 shape=4x16")
        problem = f"{name.text} is declared already: give another name"
        self._words.require(name.text not in self._image.declared, name, problem)
        settings = self._words.settings(line[2:], ("role", "dtype", "shape", "at"))
        for key in ("dtype", "shape"):
            self._words.require(key in settings, line[0], f".tensor lacks {key}=")
        role = self._words.choice(*settings["role"], [*Role]) if "role" in settings else None
        offset = self._words.number(*settings["at"]) if "at" in settings else None
        if offset is not None:
            problem = f"at = {offset}; allowed: 0..{MAX_IMAGE_BYTES}"
            self._words.require(0 <= offset <= MAX_IMAGE_BYTES, settings["at"][0], problem)
        dtype, shape = (
            self._words.choice(*settings["dtype"], DTYPES),
            self._shape(*settings["shape"]),
        )
        role = None if role is None else Role(role)
        self._image.declared[name.text] = DeclaredTensor(name, dtype, shape, role, offset=offset)

    def _shape(self, word: Word, text: str) -> tuple[int, ...]:
        problem = f"shape {text!r} cannot be read; write 4x16, or scalar"
        self._words.require(_SHAPE.fullmatch(text) is not None, word, problem)
        shape = () if text == "scalar" else tuple(int(size) for size in text.split("x"))
        problem = f"shape {text}; allowed: sizes of at least 1, {MAX_IMAGE_BYTES} elements"
        self._words.require(0 < math.prod(shape) <= MAX_IMAGE_BYTES, word, problem)
        return shape

    def _begin_uops(self, line: list[Word]) -> None:
        self._words.at_most(line, 2)
        name = self._words.new_name(line, ".uop kernel")
        problem = f"{name.text} has micro-ops already: join the sections"
        self._words.require(name.text not in self._image.uops, name, problem)
        uops = self._image.uops[name.text] = UopSection(name)
        self._section = lambda words: self._uop(words, uops)

    def _begin_data(self, line: list[Word]) -> None:
        self._words.at_most(line, 2)
        name = line[1] if len(line) > 1 else None
        self._section = lambda words: self._datum(words, name)

    def _begin_code(self, line: list[Word]) -> None:
        self._words.at_most(line, 1)
        self._section = self._instruction

    def _uop(self, line: list[Word], uops: UopSection) -> None:
        values = self._words.numbers(line, ("dst", "src", "wgt"))
        self._words.require("dst" in values, line[0], "a micro-op lacks dst=")
        for index in formats_of(self._config).uop:
            if index.name in values:
                self._words.check(values[index.name][0], index, values[index.name][1])
        dst, src, wgt = (values[n][1] if n in values else 0 for n in ("dst", "src", "wgt"))
        uops.rows.append((line[0], (dst, src, wgt)))

    def _datum(self, line: list[Word], name: Word | None) -> None:
        match = _DATA.fullmatch(line[0].text)
        if not match:
            problem = "a line of data starts with its offset, as in `0x20: 01 ff`"
            raise self._words.error(line[0], problem)
        for word in line[1:]:
            problem = f"{word.text!r} is not a byte; write two hexadecimal digits"
            self._words.require(_BYTE.fullmatch(word.text) is not None, word, problem)
        content = bytes.fromhex("".join(word.text for word in line[1:]))
        self._image.data.append((line[0], name, self._words.number(line[0], match[1]), content))

    def _instruction(self, line: list[Word]) -> None:
        # Made with the first instruction: only then the configuration is final (_ONCE).
        if self._reader is None:
            self._reader = InstructionReader(self._words, self._config)
        self._code.append(self._reader.read(line))
