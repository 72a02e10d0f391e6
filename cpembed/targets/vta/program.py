"""VTA programs: instructions with the DRAM image that they work on, also as columns of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError
from cpembed.targets.vta.encoding import OPCODES, Numbers, Opcode, encode, formats_of
from cpembed.targets.vta.isa import TOKEN_FLAGS, Instruction, Memory, Module, VtaConfig

MODULES = (Module.LOAD, Module.COMPUTE, Module.STORE)
"""Modules in the order in which *prev* and *next* count."""

QUEUES = ((0, 1), (1, 0), (1, 2), (2, 1))
"""Token queues: positions in :data:`MODULES` of the module that pushes and the one that pops."""


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


def queue_of(module: int, flag: str) -> int | None:
    """Return the queue of a module's dependence flag, or None if the module has no such neighbour.

    >>> queue_of(1, "pop_prev"), queue_of(0, "push_next"), queue_of(2, "pop_next")
    (0, 0, None)
    """
    action, side = flag.split("_")
    neighbour = module + (1 if side == "next" else -1)
    ends = (module, neighbour) if action == "push" else (neighbour, module)
    return QUEUES.index(ends) if ends in QUEUES else None


@dataclass(frozen=True, eq=False)
class Columns:
    """A program's instructions as columns of numbers, for the passes that read all of them at once.

    Each instruction has its ``opcode``, its ``module`` (position in :data:`MODULES`), and its
    fields under the names of :class:`~cpembed.targets.vta.encoding.Field`; a field that an
    instruction lacks is 0.
    """

    opcode: Numbers
    module: Numbers
    fields: dict[str, Numbers]

    def __len__(self) -> int:
        return len(self.opcode)

    def __getitem__(self, name: str) -> Numbers:
        return self.fields[name]

    def table(self, *names: str) -> Numbers:
        """Return fields side by side, as a contiguous row for each instruction."""
        return np.ascontiguousarray(np.stack([self.fields[name] for name in names], axis=1))

    def is_a(self, *opcodes: Opcode) -> NDArray[np.bool_]:
        """Return a mask of the instructions with one of some opcodes."""
        return np.isin(self.opcode, opcodes)

    def transfers(self, *memories: Memory) -> NDArray[np.bool_]:
        """Return a mask of the LOADs and STOREs of some memories."""
        return self.is_a(Opcode.LOAD, Opcode.STORE) & np.isin(self.fields["memory"], memories)

    def queues(self, action: str) -> list[tuple[int, ...]]:
        """Return, for every instruction, the queues that it pops or pushes (the ``action``)."""
        flags = [flag for flag in TOKEN_FLAGS if flag.startswith(action)]
        tables = [
            [
                tuple(
                    queue
                    for k, flag in enumerate(flags)
                    if bits >> k & 1 and (queue := queue_of(module, flag)) is not None
                )
                for bits in range(4)
            ]
            for module in range(len(MODULES))
        ]
        bits = sum(self.fields[f"tokens.{flag}"] << k for k, flag in enumerate(flags))
        pairs = zip(self.module.tolist(), np.asarray(bits).tolist(), strict=True)
        return [tables[module][flags_set] for module, flags_set in pairs]


def columns_of(instructions: tuple[Instruction, ...], config: VtaConfig) -> Columns:
    """Return the columns of a configuration's instructions.

    Raises :class:`ProgramError` for a field that is not an integer.
    """
    formats = formats_of(config)
    names = {field.name for fields in formats.instructions.values() for field in fields}
    columns: dict[str, Numbers] = {
        name: np.zeros(len(instructions), np.int64)
        for name in (*(f"tokens.{flag}" for flag in TOKEN_FLAGS), *sorted(names))
    }
    opcodes = np.array([OPCODES[type(i)] for i in instructions], np.int64)
    for opcode, fields in formats.instructions.items():
        rows = np.flatnonzero(opcodes == opcode)
        if not len(rows):
            continue
        attributes = [field.name for field in fields]
        if opcode is Opcode.FINISH:
            attributes = [f"tokens.{flag}" for flag in TOKEN_FLAGS]
        get = attrgetter(*attributes)
        table = _integers([get(instructions[row]) for row in rows.tolist()], instructions, config)
        for k, name in enumerate(attributes):
            columns[name][rows] = table[:, k]
    return Columns(opcodes, _modules(opcodes, columns["memory"]), columns)


def _integers(
    values: list[Any], instructions: tuple[Instruction, ...], config: VtaConfig
) -> Numbers:
    table = np.array(values)
    if table.dtype.kind not in "biu":
        # Encoding raises the error that names the instruction and the field.
        encode(instructions, config)
        raise ProgramError("an instruction's field is no integer of 64 bits")
    return table.astype(np.int64)


def _modules(opcodes: Numbers, memory: Numbers) -> Numbers:
    into_load = (opcodes == Opcode.LOAD) & np.isin(memory, (Memory.INP, Memory.WGT))
    return np.where(opcodes == Opcode.STORE, 2, np.where(into_load, 0, 1)).astype(np.int64)


def sram_extent(columns: Columns, name: str) -> Numbers:
    """Return the extent in SRAM of each transfer: its rows (``y``), or elements of a row
    (``x``).
    """
    pads = columns[f"{name}_before"] + columns[f"{name}_after"]
    return columns[name] + np.where(columns.is_a(Opcode.LOAD), pads, 0)


def dram_bounds(columns: Columns, program: VtaProgram) -> tuple[Numbers, Numbers]:
    """Return the first byte of the image that each transfer touches, and the one after its last."""
    sizes = np.array([program.config.element_bytes(memory) for memory in Memory])
    size = sizes[columns["memory"]]
    first = columns["dram"] * size - program.base
    reach = (columns["y"] - 1) * columns["x_stride"] + columns["x"]
    return first, first + reach * size
