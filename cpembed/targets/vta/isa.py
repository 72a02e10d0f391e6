"""VTA's configuration and instructions as values, and the bit fields that encode them.

After the VTA hardware repository (apache/tvm-vta): ``hw_spec.h`` and the hardware guide. Addresses
and sizes count *elements* of a memory, an element being one tile of it.

Fields are packed from bit 0 in the order of VTA's C structures; one that would cross bit 64 starts
there, as in a C bit-field of 64-bit units. The widths of indices follow the buffers' sizes, so not
every configuration has instructions of 128 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from functools import lru_cache

from cpembed.errors import SpecError


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


# One object for the many instructions without tokens.
NO_TOKENS = Tokens()
TOKEN_FLAGS = tuple(flag.name for flag in fields(Tokens))


@dataclass(frozen=True, slots=True)
class Transfer:
    """Two-dimensional DMA transfer: ``y`` rows of ``x`` elements, ``x_stride`` apart in DRAM.

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
    """Transfer from DRAM: INP and WGT by the load module, UOP and ACC by the compute module."""


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
    """Product ``acc[dst] += wgt[w] * inp[src]``, or ``acc[dst] = 0`` with ``reset``.

    It is executed ``outer`` x ``inner`` times for the micro-ops from ``uop_begin`` up to
    ``uop_end``.
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
    """Vector operation ``acc[dst] = op(acc[dst], acc[src])``, with the loops of :class:`Gemm`.

    With ``use_immediate`` the second operand is the immediate.
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
    # Micro-ops and accumulators belong to the compute module, which loads them itself.
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
        # Widths are in bits and buffers in bytes: hence the 3; a micro-op has 2^2 bytes.
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


MODULES = (Module.LOAD, Module.COMPUTE, Module.STORE)
"""Modules in the order in which *prev* and *next* count."""

QUEUES = ((0, 1), (1, 0), (1, 2), (2, 1))
"""Token queues: positions in :data:`MODULES` of the module that pushes and the one that pops."""


def queue_of(module: int, flag: str) -> int | None:
    """Return the queue of a module's dependence flag, or None if the module has no such neighbour.

    >>> queue_of(1, "pop_prev"), queue_of(0, "push_next"), queue_of(2, "pop_next")
    (0, 0, None)
    """
    action, side = flag.split("_")
    neighbour = module + (1 if side == "next" else -1)
    # The outermost modules have one neighbour: the pair is then none of the queues.
    ends = (module, neighbour) if action == "push" else (neighbour, module)
    return QUEUES.index(ends) if ends in QUEUES else None


INSTRUCTION_BYTES = 16
UOP_BYTES = 4
_UNIT_BITS, _INSTRUCTION_BITS, _UOP_BITS = 64, 128, 32
"""Bits of the unit that no field crosses, of an instruction, and of a micro-op."""


class Opcode(IntEnum):
    """Kind of an instruction, in its bits 0 to 2."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


@dataclass(frozen=True, slots=True)
class Field:
    """Bit field of an instruction: ``bits`` bits from bit ``low`` on.

    ``name`` is the attribute of the instruction, with dots. ``choices`` are the codes of a field
    that does not take all of its values.
    """

    name: str
    low: int
    bits: int
    signed: bool = False
    choices: type[IntEnum] | None = None

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value."""
        # Codes are numbered without gaps, so a range describes them.
        if self.choices is not None:
            return min(self.choices), max(self.choices)
        if self.signed:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1

    @property
    def mask(self) -> int:
        """Mask of the field's bits within the instruction."""
        return ((1 << self.bits) - 1) << self.low


@dataclass(frozen=True)
class Formats:
    """Fields of the instructions by opcode (the opcode itself left out), and of a micro-op."""

    instructions: dict[Opcode, tuple[Field, ...]]
    uop: tuple[Field, ...]

    def field(self, opcode: Opcode, name: str) -> Field:
        """Return the field of a name in the instructions of an opcode."""
        return next(field for field in self.instructions[opcode] if field.name == name)


_Width = tuple[str, int] | tuple[str, int, type[IntEnum]]
"""Name of a field, its bits, and its codes where not all values are allowed."""

_TOKEN_WIDTHS: tuple[_Width, ...] = tuple((f"tokens.{name}", 1) for name in TOKEN_FLAGS)
TRANSFER = ("sram", "dram", "y", "x", "x_stride")
PADS = ("y_before", "y_after", "x_before", "x_after")
LOOPS = ("uop_begin", "uop_end", "outer", "inner")
FACTORS = tuple(f"{name}.{loop}" for name in ("dst", "src", "wgt") for loop in ("outer", "inner"))
_TRANSFER_WIDTHS: tuple[_Width, ...] = (
    ("memory", 3, Memory),
    *((name, 32 if name == "dram" else 16) for name in TRANSFER),
    *((name, 4) for name in PADS),
)

_MAX_ELEMENT_BYTES = 1 << 20
"""Maximum size of an element: int8 weights of a block of 1024. Byte addresses then fit 64 bits."""

_RESERVED = ""
"""Name of a bit that is always 0."""


@lru_cache
def formats_of(config: VtaConfig) -> Formats:
    """Return the formats of a configuration's instructions and micro-ops.

    Raises :class:`SpecError` where fields do not fit, a buffer holds less than two elements, or an
    element is smaller than a byte or larger than a mebibyte.
    """
    for memory in Memory:
        if not 1 <= config.element_bytes(memory) <= _MAX_ELEMENT_BYTES:
            raise SpecError(
                f"VTA configuration: an element of {memory.name} has "
                f"{config.element_bytes(memory)} bytes; allowed: 1..{_MAX_ELEMENT_BYTES}, "
                "change the batch, the block or the width"
            )
    log = {memory: config.log_elements(memory) for memory in Memory}
    for memory, bits in log.items():
        if not 1 <= bits <= 16:
            raise SpecError(
                f"VTA configuration: {memory.name} holds 2^{bits} elements of "
                f"{config.element_bytes(memory)} bytes; allowed: 2^1..2^16, change the buffer"
            )
    uop, inp, wgt, acc = (log[m] for m in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC))
    # uop_end is the number after the last micro-op, so it has one bit more than uop_begin.
    loops = tuple(zip(LOOPS, (uop, uop + 1, 14, 14), strict=True))
    gemm = (("reset", 1), *loops, *_factors("dst", acc), *_factors("src", inp))
    # The ALU's source is an accumulator too; the place of GEMM's reset bit stays empty.
    alu = ((_RESERVED, 1), *loops, *_factors("dst", acc), *_factors("src", acc))
    operation = (("op", 3, AluOp), ("use_immediate", 1), ("immediate", 16))
    # GEMM and ALU share the format of micro-ops: src has the bits of the larger of both sources.
    uop_widths = (("dst", acc), ("src", max(acc, inp)), ("wgt", wgt))
    return Formats(
        {
            Opcode.LOAD: _placed("LOAD", _TRANSFER_WIDTHS),
            Opcode.STORE: _placed("STORE", _TRANSFER_WIDTHS),
            Opcode.GEMM: _placed("GEMM", (*gemm, *_factors("wgt", wgt))),
            Opcode.FINISH: _placed("FINISH", ()),
            Opcode.ALU: _placed("ALU", (*alu, *operation)),
        },
        _layout("micro-ops", uop_widths, _UOP_BITS, _UOP_BITS),
    )


def _factors(name: str, bits: int) -> tuple[tuple[str, int], tuple[str, int]]:
    return (f"{name}.outer", bits), (f"{name}.inner", bits)


def _placed(name: str, widths: tuple[_Width, ...]) -> tuple[Field, ...]:
    """Return the fields of an instruction, without its opcode."""
    all_widths = (("opcode", 3), *_TOKEN_WIDTHS, *widths)
    return _layout(name, all_widths, _UNIT_BITS, _INSTRUCTION_BITS)[1:]


def _layout(
    format_name: str, widths: tuple[_Width, ...], unit: int, size: int
) -> tuple[Field, ...]:
    """Lay fields out one after the other in ``size`` bits, none across a multiple of ``unit``."""
    placed: list[Field] = []
    end = 0
    for name, bits, *choices in widths:
        # A C compiler moves a bit-field that would straddle two units to the next unit.
        low = end if end // unit == (end + bits - 1) // unit else -(-end // unit) * unit
        end = low + bits
        if end > size:
            needed = ", ".join(f"{width[0] or 'reserved'} {width[1]}" for width in widths)
            raise SpecError(
                f"VTA configuration: the fields of {format_name} do not fit {size} bits"
                + (f" in units of {unit}" if unit < size else "")
                + f": {name} would end at bit {end} ({needed}); "
                "use smaller buffers or larger blocks"
            )
        if name != _RESERVED:
            # The immediate of the ALU is the only signed field of all instructions.
            signed = name == "immediate"
            placed.append(
                Field(name, low, bits, signed=signed, choices=choices[0] if choices else None)
            )
    return tuple(placed)


KINDS: tuple[type[Instruction], ...] = (Load, Store, Gemm, Finish, Alu)
"""Classes of the instructions, by their opcodes."""

OPCODES = {kind: Opcode[kind.__name__.upper()] for kind in KINDS}
