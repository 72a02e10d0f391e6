"""The functional simulator: what a program leaves in DRAM, bit for bit.

Three modules execute their instructions in order and wait for tokens; which of those that can run
is taken next is a policy, and for a legal program makes no difference. Products and the ALU run
compiled (:mod:`kernels`), transfers are copies by numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError, SpecError
from cpembed.kernel.runtime import aligned, shared
from cpembed.targets.vta.accesses import PARAMETERS
from cpembed.targets.vta.assembly.disassembler import instruction_text
from cpembed.targets.vta.checker import check
from cpembed.targets.vta.columns import Columns, columns_of
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.contents import transferred
from cpembed.targets.vta.encoding import unpack_uops
from cpembed.targets.vta.formats import Opcode
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.kernels import alu_kernel, gemm_kernel
from cpembed.targets.vta.legality import dram_bounds, sram_extent
from cpembed.targets.vta.order import Policy, deadlock_text, interleave
from cpembed.targets.vta.program import Role, VtaProgram

_LOG_WIDTHS = (3, 3, 5, 3)
_LARGEST_BLOCK, _MOST_LANES = 128, 4096
"""Beyond, compiling a product takes minutes, or more calls within calls than Python allows."""


def simulate(
    program: VtaProgram,
    *,
    policy: Policy = "round_robin",
    seed: int = 0,
    dram: NDArray[np.uint8] | None = None,
    checked: bool = True,
) -> NDArray[np.uint8]:
    """DRAM after the program, which starts from its own image or from ``dram``, which has other
    data in the same layout (the micro-ops must be the program's).

    ``seed`` is that of the policy ``random``. Raises :class:`ProgramError` for a program that the
    checker refuses (not with ``checked`` false: who asks for that has checked it), and for a
    deadlock; :class:`SpecError` as :func:`require_simulated` does.
    """
    require_simulated(program.config)
    if checked:
        check(program)
    columns = columns_of(program.instructions, program.config)
    schedule = interleave(columns, policy, seed)
    if schedule.waiting is not None:
        text = deadlock_text(schedule, len(columns), lambda n: instruction_text(program, n))
        raise ProgramError(text)
    machine = _Machine(program, columns, program.dram if dram is None else dram)
    for number in schedule.order:
        machine.execute(number)
    return machine.dram


def written(program: VtaProgram) -> tuple[str, ...]:
    """Names of the outputs: tensors of that role, or where none has it those that STOREs touch."""
    named = tuple(n for n, tensor in program.tensors.items() if tensor.role is Role.OUTPUT)
    if named:
        return named
    columns = columns_of(program.instructions, program.config)
    rows = columns.is_a(Opcode.STORE) & (columns["x"] > 0)
    first, last = (bound[rows] for bound in dram_bounds(columns, program))
    return tuple(
        name
        for name, tensor in program.tensors.items()
        if ((first < tensor.offset + tensor.size_bytes) & (last > tensor.offset)).any()
    )


def require_simulated(config: VtaConfig) -> None:
    """Raise :class:`SpecError` for element types and sizes that nothing here computes."""
    widths = config.log_inp_width, config.log_wgt_width, config.log_acc_width, config.log_out_width
    if widths != _LOG_WIDTHS:
        inp, wgt, acc, out = (1 << width for width in widths)
        raise SpecError(
            f"VTA configuration: inputs of {inp} and weights of {wgt} bits are summed in {acc} and "
            f"stored in {out} bits; the simulator computes int8 x int8 in int32, stored as int8"
        )
    if config.block > _LARGEST_BLOCK or config.batch * config.block > _MOST_LANES:
        raise SpecError(
            f"VTA configuration: a GEMM core of {config.batch}x{config.block}x{config.block}; the "
            f"simulator computes blocks up to {_LARGEST_BLOCK}, batch x block up to {_MOST_LANES}"
        )


class _Machine:
    def __init__(self, program: VtaProgram, columns: Columns, dram: NDArray[np.uint8]) -> None:
        config = self._config = program.config
        self._program = program
        self.dram = dram.copy()
        self._opcode: list[int] = columns.opcode.tolist()
        self._memory: list[int] = columns["memory"].tolist()
        self._shape: list[list[int]] = np.stack(
            [columns["sram"], *(sram_extent(columns, name) for name in "yx")], axis=1
        ).tolist()
        self._dram_rows = columns.table("dram", "y", "x", "x_stride")
        self._move: list[list[int]] = self._dram_rows.tolist()
        self._pads: list[list[int]] = columns.table("y_before", "x_before").tolist()
        self._sizes = {int(memory): config.element_bytes(memory) for memory in Memory}
        self._allocate(columns)

    def _allocate(self, columns: Columns) -> None:
        """Buffers, and the same memory as the kernels take it."""
        config = self._config
        block = config.block
        tiles = {memory: config.elements(memory) for memory in Memory}
        lanes = config.batch * block
        self._uops = aligned((tiles[Memory.UOP], 3), "int32")
        self._inp = aligned((tiles[Memory.INP] * lanes,), "int8")
        self._wgt = aligned((tiles[Memory.WGT] * block * block,), "int8")
        self._acc = aligned((tiles[Memory.ACC] * lanes,), "int32")
        self._wgt_tiles = self._wgt.reshape(-1, block, block)
        self._sram = {
            int(memory): buffer.view(np.uint8).reshape(tiles[memory], -1)
            for memory, buffer in ((Memory.INP, self._inp), (Memory.ACC, self._acc))
        }
        self._out = self._sram[Memory.ACC][:, :: self._acc.itemsize]
        table = aligned((len(columns), len(PARAMETERS)), "int32")
        table[:] = columns.table(*PARAMETERS)
        parameters, uops, acc = shared(table), shared(self._uops), shared(self._acc)
        self._gemm = (parameters, uops, shared(self._inp), shared(self._wgt), acc)
        self._alu = (parameters, uops, acc)
        self._run_gemm, self._run_alu = gemm_kernel(config), alu_kernel(config)

    def execute(self, number: int) -> None:
        opcode = self._opcode[number]
        if opcode == Opcode.GEMM:
            self._run_gemm(*self._gemm, number)
        elif opcode == Opcode.ALU:
            self._run_alu(*self._alu, number)
        elif self._move[number][2] and opcode == Opcode.LOAD:
            self._load(number)
        elif self._move[number][2] and opcode == Opcode.STORE:
            self._store(number)

    def _load(self, number: int) -> None:
        memory = self._memory[number]
        sram, rows, width = self._shape[number]
        end = sram + rows * width
        if memory == Memory.UOP:
            words = transferred(self._program, self._dram_rows[number])
            self._uops[sram:end] = np.stack(unpack_uops(words, self._config), axis=1)
            return
        data = self._in_dram(number, self._sizes[memory])
        if memory == Memory.WGT:
            block = self._config.block
            tiles = data.view(np.int8).reshape(rows, width, block, block)
            target = self._wgt_tiles[sram:end].reshape(tiles.shape)
            target[:] = tiles.swapaxes(2, 3)
            return
        above, left = self._pads[number]
        _, y, x, _ = self._move[number]
        target = self._sram[memory][sram:end].reshape(rows, width, -1)
        if (y, x) != (rows, width):
            target[:] = 0
        target[above : above + y, left : left + x] = data

    def _store(self, number: int) -> None:
        sram, rows, width = self._shape[number]
        data = self._out[sram : sram + rows * width]
        self._in_dram(number, self._sizes[Memory.OUT])[:] = data.reshape(rows, width, -1)

    def _in_dram(self, number: int, size: int) -> NDArray[Any]:
        """What a transfer touches in DRAM: ``[y, x, bytes of an element]``."""
        dram, y, x, stride = self._move[number]
        start = dram * size - self._program.base
        return np.ndarray((y, x, size), np.uint8, self.dram, start, (stride * size, size, 1))
