"""A VTA program: instructions, and the DRAM image that they work on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.isa import Instruction


class Role(StrEnum):
    """What a tensor in DRAM is to whoever runs the program."""

    INPUT = "input"
    WEIGHT = "weight"
    """Packed ahead and the same at every run (the second input of a workload); also a bias."""
    OUTPUT = "output"
    UOPS = "uops"


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named region of the DRAM image: ``offset`` in bytes from its start, row-major ``shape``.

    ``role`` is None where nobody said.
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
    """Instructions with the initial contents of DRAM.

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
        """A view of a named tensor in the image, or in another DRAM of the same layout.

        Raises KeyError for an unknown name.
        """
        region = self.tensors[name]
        memory = self.dram if dram is None else dram
        flat = memory[region.offset : region.offset + region.size_bytes]
        return flat.view(region.dtype).reshape(region.shape)
