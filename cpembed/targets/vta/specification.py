"""A VTA's configuration read from a hardware specification, and written as one.

The TOML file is the configuration: the instruction's extents are the GEMM core's sizes, its dtypes
the widths, the memories' capacities the sizes of the buffers.
"""

from __future__ import annotations

from pathlib import Path

from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec, InstructionAxis, StrideRule
from cpembed.hw.schema import Key, joined, spec_error
from cpembed.ir.dtypes import DTYPES, DTypeKind
from cpembed.targets.vta.isa import Memory, VtaConfig, formats_of
from cpembed.targets.vta.timing import MemorySystem

BACKEND = "vta"
SCOPES = {Memory.INP: "vta.inp", Memory.WGT: "vta.wgt", Memory.ACC: "vta.acc"}
"""Scopes of the memories that hold operands."""

UOP_SCOPE, OUT_SCOPE = "vta.uop", "vta.out"
"""Scopes of the memories without operands; OUT may be left out, because it mirrors ACC."""


def vta_config(spec: HardwareSpec) -> VtaConfig:
    """Return the configuration that a specification describes.

    Raises :class:`SpecError` if it describes no VTA, naming file, key, problem and remedy.
    """
    return _Reader(spec).config()


class _Reader:
    """Reader of one specification, which checks that its instruction is VTA's GEMM."""

    def __init__(self, spec: HardwareSpec) -> None:
        self.spec = spec
        self.operands: dict[Memory, str] = {}

    def error(self, key: Key, problem: str) -> SpecError:
        return spec_error(self.spec.path or self.spec.name, key, problem)

    def require(self, condition: bool, key: Key, problem: str) -> None:
        if not condition:
            raise self.error(key, problem)

    def config(self) -> VtaConfig:
        problem = f'is not "{BACKEND}": {self.spec.name} is no VTA'
        self.require(self.spec.backend == BACKEND, ("backend",), problem)
        self._find_operands()
        batch, out, inner = self._axes()
        problem = (
            f"is {inner.maximum}, {out.name} is {out.maximum}; VTA multiplies by square blocks"
        )
        self.require(out.maximum == inner.maximum, ("instruction", "axes", inner.name), problem)
        acc = self.spec.instruction.dtypes[self.operands[Memory.ACC]]
        inp_width = self._log_width(Memory.INP, 0)
        config = VtaConfig(
            log_batch=self._log(("instruction", "axes", batch.name), batch.maximum),
            log_block=self._log(("instruction", "axes", out.name), out.maximum),
            log_inp_width=inp_width,
            log_wgt_width=self._log_width(Memory.WGT, 0),
            log_acc_width=self._log_width(Memory.ACC, 0),
            # Results are as wide as the inputs of the next layer unless the file says otherwise.
            log_out_width=self._log_width(Memory.ACC, 1) if len(acc) > 1 else inp_width,
            log_uop_buff=self._log_capacity(UOP_SCOPE),
            log_inp_buff=self._log_capacity(SCOPES[Memory.INP]),
            log_wgt_buff=self._log_capacity(SCOPES[Memory.WGT]),
            log_acc_buff=self._log_capacity(SCOPES[Memory.ACC]),
        )
        self._check_config(config)
        return config

    def _find_operands(self) -> None:
        for memory, scope in SCOPES.items():
            names = [n for n, m in self.spec.instruction.memory.items() if m.scope == scope]
            content = f"holds {joined(names)}" if names else "holds no operand"
            problem = f"{content}; allowed: exactly one operand"
            self.require(len(names) == 1, ("memories", scope), problem)
            self.operands[memory] = names[0]

    def _axes(self) -> tuple[InstructionAxis, InstructionAxis, InstructionAxis]:
        """Return the axes of batch, output block and input block; two operands share each."""
        instruction = self.spec.instruction
        memory = {m: instruction.memory[name] for m, name in self.operands.items()}
        inp, wgt, acc = (memory[m].axes for m in (Memory.INP, Memory.WGT, Memory.ACC))
        # Which axis is which follows from the operands that share it, not from its name.
        pairs = ((inp, acc), (wgt, acc), (inp, wgt))
        shared = [[name for name in first if name in second] for first, second in pairs]
        if any(len(names) != 1 for names in shared) or len(instruction.axes) != 3:
            raise self._no_gemm()
        batch, out, inner = (instruction.axis(names[0]) for names in shared)
        for axis in (batch, out, inner):
            problem = "is configurable; VTA's sizes are fixed: give one extent"
            self.require(axis.is_fixed, ("instruction", "axes", axis.name), problem)
        for m, axes in (
            (Memory.INP, (batch, inner)),
            (Memory.WGT, (out, inner)),
            (Memory.ACC, (batch, out)),
        ):
            self._check_tile(m, [axis.name for axis in axes])
        self._check_product()
        return batch, out, inner

    def _check_product(self) -> None:
        """Require that the instruction sums products of its two inputs, index by index."""
        computation = self.spec.instruction.computation
        inp, wgt, acc = (self.operands[m] for m in (Memory.INP, Memory.WGT, Memory.ACC))
        maps = computation.access_maps
        if len(computation.statements) != 1 or set(maps) != {inp, wgt, acc}:
            raise self._no_gemm()
        if any(len(accesses) != 1 for accesses in maps.values()):
            raise self._no_gemm()
        access = {name: accesses[0] for name, accesses in maps.items()}
        if any(i.single_iterator is None for a in access.values() for i in a.index):
            raise self._no_gemm()
        # A product commutes, so either factor may be written first.
        factors = ((inp, wgt), (wgt, inp))
        products = {f"{access[acc]} += ({access[a]} * {access[b]})" for a, b in factors}
        if str(computation) not in products:
            raise self._no_gemm()

    def _no_gemm(self) -> SpecError:
        problem = f"is {self.spec.instruction.computation}; VTA computes C[x,y] += A[x,z] * B[y,z]"
        return self.error(("instruction", "expression"), problem)

    def _check_tile(self, memory: Memory, axes: list[str]) -> None:
        name = self.operands[memory]
        operand = self.spec.instruction.memory[name]
        tile = [str(dimension) for dimension in operand.tile]
        problem = f"is {joined(tile)}; an element of {operand.scope} is {joined(axes)}"
        self.require(tile == axes, ("operands", name, "tile"), problem)
        for axis, rule in operand.strides.items():
            problem = "VTA's elements are dense in memory; allowed: unit"
            self.require(rule is StrideRule.UNIT, ("operands", name, "stride", axis), problem)

    def _log_width(self, memory: Memory, choice: int) -> int:
        """Return the binary logarithm of the bits of an operand's dtype at position ``choice``."""
        name = self.operands[memory]
        dtypes = self.spec.instruction.dtypes[name]
        count, expected = (
            (2, "the accumulator's and the result's") if memory is Memory.ACC else (1, "one")
        )
        key = ("operands", name, "dtype")
        self.require(len(dtypes) <= count, key, f"lists {joined(dtypes)}; allowed: {expected}")
        dtype = DTYPES[dtypes[choice]]
        signed = [d for d in DTYPES.values() if d.kind is DTypeKind.SIGNED and not d.is_packed]
        allowed = joined(d.name for d in signed)
        problem = f"VTA does not compute in {dtype.name}; allowed: {allowed}"
        self.require(dtype in signed, key, problem)
        return dtype.bits.bit_length() - 1

    def _log_capacity(self, scope: str) -> int:
        problem = f"is missing; VTA needs {scope} with its capacity_bytes"
        self.require(scope in self.spec.memories, ("memories", scope), problem)
        capacity = self.spec.memories[scope]
        if capacity is None:
            problem = "is missing; the size of the buffer sets the width of the fields"
            raise self.error(("memories", scope, "capacity_bytes"), problem)
        return self._log(("memories", scope, "capacity_bytes"), capacity)

    def _log(self, key: Key, value: int) -> int:
        # Fields of instructions have whole bits, so every size of VTA is a power of two.
        log = value.bit_length() - 1
        problem = f"{value} is not a power of two; VTA takes {1 << log} or {2 << log}"
        self.require(not value & (value - 1), key, problem)
        return log

    def _check_config(self, config: VtaConfig) -> None:
        """Require that the instructions can be encoded, and that OUT, if described, mirrors ACC."""
        try:
            formats_of(config)
        except SpecError as error:
            # The sizes of the core and of the buffers fit only together: no single key is wrong.
            raise self.error(("memories",), str(error)) from None
        expected = config.elements(Memory.OUT) * config.element_bytes(Memory.OUT)
        capacity = self.spec.memories.get(OUT_SCOPE)
        problem = f"{capacity} is not allowed; allowed: {expected}, a tile for each of"
        key = ("memories", OUT_SCOPE, "capacity_bytes")
        self.require(capacity in (None, expected), key, f"{problem} {SCOPES[Memory.ACC]}")


_TEMPLATE = Path(__file__).with_name("specification.toml.txt")
"""Text of a specification, with the names of :func:`specification` in braces."""


def specification(config: VtaConfig, memory: MemorySystem, clock_mhz: float) -> str:
    """Return the TOML text of a VTA with int8 factors and int32 sums, stored as int8.

    Parameters
    ----------
    config
        Sizes of the GEMM core and of the buffers.
    memory
        Bus, bursts and delay of the memory path.
    clock_mhz
        Clock frequency in MHz.
    """
    sizes = {
        f"{m.name.lower()}_buff": f"{config.elements(m) * config.element_bytes(m):_}"
        for m in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC)
    }
    logs = (config.log_inp_buff, config.log_wgt_buff, config.log_acc_buff, config.log_uop_buff)
    return _TEMPLATE.read_text(encoding="utf-8").format(
        config=config,
        memory=memory,
        name=f"vta_{config.batch}x{config.block}x{config.block}_{'_'.join(map(str, logs))}",
        batch=config.batch,
        block=config.block,
        inp=config.element_bytes(Memory.INP),
        wgt=config.element_bytes(Memory.WGT),
        acc=config.element_bytes(Memory.ACC),
        clock_mhz=int(clock_mhz) if clock_mhz == int(clock_mhz) else clock_mhz,
        **sizes,
    )
