"""VTA's configuration and instructions as values; their 128-bit encoding is in :mod:`encoding`.

After the VTA hardware repository (apache/tvm-vta): ``hw_spec.h`` and the hardware guide. Addresses
and sizes count *elements* of a memory, an element being one tile of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum


class Memory(IntEnum):
    """On-chip memory of a LOAD or STORE; the number is its code."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4


class AluOp(IntEnum):
    """Operation of the ALU; SHR by a negative amount shifts left."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


class Module(Enum):
    """Hardware module with its own instruction queue."""

    LOAD = "load"
    COMPUTE = "compute"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Dependence flags; *prev* and *next* are the neighbours in the order load, compute, store."""

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False


NO_TOKENS = Tokens()
TOKEN_FLAGS = tuple(flag.name for flag in fields(Tokens))


@dataclass(frozen=True, slots=True)
class Transfer:
    """Two-dimensional DMA transfer of ``y`` rows of ``x`` elements, ``x_stride`` apart in DRAM.

    A load writes ``(y_before + y + y_after)`` rows of ``(x_before + x + x_after)`` elements densely
    from ``sram`` on, zeros in the pads. A transfer with ``x`` = 0 carries tokens only.
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
    """Transfer from DRAM: of INP and WGT by the load module, of UOP and ACC by the compute
    module.
    """


@dataclass(frozen=True, slots=True)
class Store(Transfer):
    """Transfer to DRAM from OUT, which holds the accumulators' low bits."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Elements that an outer and an inner iteration add to a micro-op's index."""

    outer: int = 0
    inner: int = 0


@dataclass(frozen=True, slots=True)
class Gemm:
    """Matrix product, executed ``outer`` x ``inner`` times for the micro-ops from ``uop_begin`` up
    to ``uop_end``: ``acc[dst] += wgt[w] * inp[src]``, or ``acc[dst] = 0`` with ``reset``.
    """

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
    """Vector operation with the loops of :class:`Gemm`: ``acc[dst] = op(acc[dst], acc[src])``, or
    ``op(acc[dst], immediate)`` with ``use_immediate``.
    """

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
    """End of the program."""

    tokens: Tokens = NO_TOKENS


Instruction = Load | Store | Gemm | Alu | Finish


def module_of(instruction: Instruction) -> Module:
    """Return the module that executes an instruction."""
    if isinstance(instruction, Store):
        return Module.STORE
    if isinstance(instruction, Load) and instruction.memory in (Memory.INP, Memory.WGT):
        return Module.LOAD
    return Module.COMPUTE


RTL_UOPS = 2048
"""Micro-ops that fit the RTL's buffer, whatever the configuration says (``Configs.scala``)."""


@dataclass(frozen=True)
class VtaConfig:
    """Configuration of a VTA as binary logarithms, named as VTA's configuration file names them.

    Widths are in bits, buffers in bytes. The defaults are the machine of VTA's repository, with a
    GEMM core of 1x16x16.
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
        """Return the rows and columns of a memory's element.

        INP, ACC and OUT have ``[batch, block]``, WGT ``[output block, input block]``; a micro-op is
        one word.
        """
        if memory is Memory.UOP:
            return 1, 1
        return (self.block if memory is Memory.WGT else self.batch), self.block

    def element_bytes(self, memory: Memory) -> int:
        """Return the size of a memory's element in DRAM."""
        if memory is Memory.UOP:
            return 4
        rows, columns = self.tile_shape(memory)
        return rows * columns * (1 << self._log_width(memory)) // 8

    def log_elements(self, memory: Memory) -> int:
        """Return the binary logarithm of :meth:`elements`."""
        if memory is Memory.UOP:
            return self.log_uop_buff - 2
        if memory is Memory.INP:
            return self.log_inp_buff - self.log_batch - self.log_block - self.log_inp_width + 3
        if memory is Memory.WGT:
            return self.log_wgt_buff - 2 * self.log_block - self.log_wgt_width + 3
        # OUT mirrors ACC, element by element.
        return self.log_acc_buff - self.log_batch - self.log_block - self.log_acc_width + 3

    def elements(self, memory: Memory) -> int:
        """Return the number of elements that a buffer holds."""
        return 1 << self.log_elements(memory)

    @property
    def usable_uops(self) -> int:
        """Micro-ops that fit the buffer of every implementation."""
        return min(self.elements(Memory.UOP), RTL_UOPS)

    def _log_width(self, memory: Memory) -> int:
        return {
            Memory.INP: self.log_inp_width,
            Memory.WGT: self.log_wgt_width,
            Memory.ACC: self.log_acc_width,
            Memory.OUT: self.log_out_width,
        }[memory]
