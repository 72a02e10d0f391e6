"""VTA's configuration and instructions as values; their 128-bit encoding is in :mod:`encoding`.

After the VTA hardware repository (apache/tvm-vta): ``hw_spec.h`` and the hardware guide. Addresses
and sizes count *elements* of a memory, an element being one tile of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum


class Memory(IntEnum):
    """Memory of a LOAD or STORE; the number is its code."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4


class AluOp(IntEnum):
    """Operation of the ALU; a negative SHR amount shifts left."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


class Module(Enum):
    """A module with an instruction queue of its own."""

    LOAD = "load"
    COMPUTE = "compute"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Dependence flags. *prev* and *next* are the neighbours in load, compute, store."""

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False


NO_TOKENS = Tokens()

TOKEN_FLAGS = tuple(flag.name for flag in fields(Tokens))


@dataclass(frozen=True, slots=True)
class Transfer:
    """A two-dimensional DMA transfer of ``y`` rows of ``x`` elements, ``x_stride`` apart in DRAM.

    A load writes ``(y_before + y + y_after)`` rows of ``(x_before + x + x_after)`` elements densely
    from ``sram``, zeros in the pads. ``x`` = 0 moves nothing.
    """

    memory: Memory
    sram: int
    dram: int
    y: int
    x: int
    x_stride: int
    y_before: int = 0
    y_after: int = 0
    x_before: int = 0
    x_after: int = 0
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class Load(Transfer):
    """DRAM to SRAM: INP and WGT in the load module, UOP and ACC in the compute module."""


@dataclass(frozen=True, slots=True)
class Store(Transfer):
    """SRAM to DRAM, from OUT: the accumulators' low bits."""


@dataclass(frozen=True, slots=True)
class Factors:
    """What an outer and an inner iteration add to a micro-op's index."""

    outer: int = 0
    inner: int = 0


@dataclass(frozen=True, slots=True)
class Gemm:
    """For each of ``outer`` x ``inner`` iterations and each micro-op in ``[uop_begin, uop_end)``:
    ``acc[dst] += wgt[w] * inp[src]``, or ``acc[dst] = 0`` with ``reset``."""

    uop_begin: int
    uop_end: int
    outer: int
    inner: int
    dst: Factors = field(default_factory=Factors)
    src: Factors = field(default_factory=Factors)
    wgt: Factors = field(default_factory=Factors)
    reset: bool = False
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class Alu:
    """As :class:`Gemm`: ``acc[dst] = op(acc[dst], acc[src])``, or the immediate in place of src."""

    op: AluOp
    uop_begin: int
    uop_end: int
    outer: int
    inner: int
    dst: Factors = field(default_factory=Factors)
    src: Factors = field(default_factory=Factors)
    use_immediate: bool = False
    immediate: int = 0
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class Finish:
    """Ends the program."""

    tokens: Tokens = NO_TOKENS


Instruction = Load | Store | Gemm | Alu | Finish


def module_of(instruction: Instruction) -> Module:
    """The module that executes an instruction."""
    if isinstance(instruction, Store):
        return Module.STORE
    if isinstance(instruction, Load) and instruction.memory in (Memory.INP, Memory.WGT):
        return Module.LOAD
    return Module.COMPUTE


@dataclass(frozen=True)
class VtaConfig:
    """Log2 sizes, named as VTA's configuration file names them; buffers in bytes.

    The defaults are the machine of VTA's repository: GEMM 1x16x16.
    """

    log_batch: int = 0
    log_block: int = 4
    log_inp_width: int = 3
    log_wgt_width: int = 3
    log_acc_width: int = 5
    log_out_width: int = 3
    log_uop_buff: int = 15
    log_inp_buff: int = 15
    log_wgt_buff: int = 18
    log_acc_buff: int = 17

    @property
    def batch(self) -> int:
        return 1 << self.log_batch

    @property
    def block(self) -> int:
        return 1 << self.log_block

    def tile_shape(self, memory: Memory) -> tuple[int, int]:
        """Rows and columns of a memory's element: INP ``[batch, block]``, WGT ``[block (output),
        block (input)]``, ACC and OUT ``[batch, block]``; a micro-op is one word."""
        if memory is Memory.UOP:
            return 1, 1
        return (self.block if memory is Memory.WGT else self.batch), self.block

    def element_bytes(self, memory: Memory) -> int:
        """Size of an element of a memory in DRAM."""
        if memory is Memory.UOP:
            return 4
        rows, columns = self.tile_shape(memory)
        return rows * columns * (1 << self._log_width(memory)) // 8

    def log_elements(self, memory: Memory) -> int:
        """Log2 of the number of elements a buffer holds; OUT mirrors ACC."""
        if memory is Memory.UOP:
            return self.log_uop_buff - 2
        if memory is Memory.INP:
            return self.log_inp_buff - self.log_batch - self.log_block - self.log_inp_width + 3
        if memory is Memory.WGT:
            return self.log_wgt_buff - 2 * self.log_block - self.log_wgt_width + 3
        return self.log_acc_buff - self.log_batch - self.log_block - self.log_acc_width + 3

    def elements(self, memory: Memory) -> int:
        """Number of elements a buffer holds."""
        return 1 << self.log_elements(memory)

    def _log_width(self, memory: Memory) -> int:
        return {
            Memory.INP: self.log_inp_width,
            Memory.WGT: self.log_wgt_width,
            Memory.ACC: self.log_acc_width,
            Memory.OUT: self.log_out_width,
        }[memory]


RTL_UOPS = 2048
"""Micro-ops that the RTL keeps, whatever the configuration says (``Configs.scala``)."""


def uops_kept(config: VtaConfig) -> int:
    """Micro-ops that every implementation keeps."""
    return min(config.elements(Memory.UOP), RTL_UOPS)
