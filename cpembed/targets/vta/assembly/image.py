"""DRAM of a program that is being assembled: tensors, their places, their contents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cpembed.hw.schema import close_match, one_of
from cpembed.targets.vta.assembly.words import Word, Words
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.container import LARGEST_IMAGE, TENSOR_NAME, check_tensors
from cpembed.targets.vta.encoding import pack_uops
from cpembed.targets.vta.formats import UOP_BYTES, Opcode, formats_of
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.program import Role, Tensor

_ADDRESS = re.compile(rf"({TENSOR_NAME.pattern})(?:\+(0x[0-9a-fA-F]+|[0-9]+))?")


@dataclass
class Declared:
    """A tensor before it is placed; ``shape`` is None where the micro-ops of a section count."""

    word: Word
    dtype: str
    shape: tuple[int, ...] | None
    role: Role | None
    offset: int | None = None


@dataclass
class Uops:
    """A section of micro-ops: its name, and the indices of each."""

    word: Word
    rows: list[tuple[Word, tuple[int, int, int]]] = field(
        default_factory=list[tuple[Word, tuple[int, int, int]]]
    )


@dataclass
class Image:
    """What the text says about DRAM; :meth:`place` fixes the tensors' offsets."""

    words: Words
    base: int = 0
    size: int | None = None
    declared: dict[str, Declared] = field(default_factory=dict[str, Declared])
    uops: dict[str, Uops] = field(default_factory=dict[str, Uops])
    data: list[tuple[Word, Word | None, int, bytes]] = field(
        default_factory=list[tuple[Word, Word | None, int, bytes]]
    )
    """Place of the line, name of the tensor (None: all DRAM), offset, bytes."""
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def place(self, config: VtaConfig) -> None:
        """Give every tensor its offset: one without follows those before it."""
        align = max(config.element_bytes(memory) for memory in Memory)
        for name, uops in self.uops.items():
            if name not in self.declared:
                self.declared[name] = Declared(uops.word, "uint32", None, Role.UOPS)
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
            if end > LARGEST_IMAGE:
                raise self.words.error(
                    declared.word, f"{name} ends at byte {end}; allowed: {LARGEST_IMAGE} at most"
                )
            self.tensors[name] = tensor
        if self.size is None:
            self.size = end
        check_tensors(
            self.tensors, self.size, lambda name: self.words.place(self.declared[name].word)
        )

    def content(self, config: VtaConfig) -> NDArray[np.uint8]:
        """DRAM before the program runs."""
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
            if offset + len(content) > room:
                what = "DRAM" if name is None else name.text
                raise self.words.error(
                    word,
                    f"these bytes end at {offset + len(content):#x}, {what} has {room:#x} bytes",
                )
            dram[start + offset : start + offset + len(content)] = np.frombuffer(content, np.uint8)
        return dram

    def address(self, address: Word, memory: Memory, config: VtaConfig) -> int:
        """``NAME`` or ``NAME+ELEMENTS`` as a DRAM address in elements of a memory."""
        found = _ADDRESS.fullmatch(address.text)
        if not found:
            raise self.words.error(
                address, f"dram={address.text} cannot be read; write a number, NAME or NAME+NUMBER"
            )
        tensor = self._named(found[1], address)
        size = config.element_bytes(memory)
        start = self.base + tensor.offset
        if start % size:
            raise self.words.error(
                address,
                f"{found[1]} lies at physical address {start:#x}, not at a multiple of "
                f"{memory.name}'s element of {size} bytes: move it with at=",
            )
        value = start // size + self.words.number(address, found[2] or "0")
        self.words.check(address, formats_of(config).field(Opcode.LOAD, "dram"), value)
        return value

    def _named(self, name: str, word: Word) -> Tensor:
        if name not in self.tensors:
            known = f"{one_of(self.tensors) or 'none'}{close_match(name, self.tensors)}"
            raise self.words.error(word, f"no tensor {name!r}; declared: {known}")
        return self.tensors[name]

    def _region(self, name: Word | None) -> tuple[int, int]:
        """First byte and number of bytes of a tensor, or of all DRAM."""
        if name is None:
            return 0, self.size or 0
        tensor = self._named(name.text, name)
        return tensor.offset, tensor.size_bytes
