"""Functional simulator: the DRAM that a program leaves, bit for bit.

The three modules execute their instructions in order and wait for tokens. Products and the ALU run
compiled, transfers are copies by numpy.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.plan import HEADER, KernelPlan, Script, buffer
from cpembed.codegen.runtime import Function, aligned, compile_plan, shared
from cpembed.errors import ProgramError, SpecError
from cpembed.targets.vta.accesses import PARAMETERS, loaded_uops
from cpembed.targets.vta.assembly import instruction_text
from cpembed.targets.vta.checker import check
from cpembed.targets.vta.encoding import Columns, columns_of, sram_extent, unpack_uops
from cpembed.targets.vta.isa import AluOp, Memory, Opcode, VtaConfig
from cpembed.targets.vta.program import Role, VtaProgram, dram_bounds
from cpembed.targets.vta.tokens import Policy, deadlock_text, interleave

_LOG_WIDTHS = (3, 3, 5, 3)
"""Binary logarithms of the bits of inputs, weights, sums and results that are simulated."""

# Beyond, compiling a product takes minutes or exceeds Python's limit of nested calls.
_MAX_BLOCK, _MAX_LANES = 128, 4096
"""Maximum block, and maximum of batch times block."""


def simulate(
    program: VtaProgram,
    *,
    policy: Policy = "round_robin",
    seed: int = 0,
    dram: NDArray[np.uint8] | None = None,
    checked: bool = True,
) -> NDArray[np.uint8]:
    """Execute a program and return the DRAM that it leaves.

    Parameters
    ----------
    program
        Program to execute.
    policy
        Module that goes first when several can execute; results of legal programs do not depend on
        it.
    seed
        Seed of the policy ``random``.
    dram
        Initial DRAM, by default the program's image; other data in the same layout, with the
        program's micro-ops.
    checked
        Whether to check the program first; False for a program that passed the check before.

    Raises
    ------
    ProgramError
        For an illegal program, and for a deadlock.
    SpecError
        For a configuration that :func:`require_simulated` rejects.
    """
    require_simulated(program.config)
    if checked:
        check(program)
    columns = columns_of(program.instructions, program.config)
    execution = interleave(columns, policy, seed)
    if execution.waiting is not None:
        text = deadlock_text(execution, len(columns), lambda n: instruction_text(program, n))
        raise ProgramError(text)
    machine = _Machine(program, columns, program.dram if dram is None else dram)
    for number in execution.order:
        machine.execute(number)
    return machine.dram


def output_names(program: VtaProgram) -> tuple[str, ...]:
    """Return the names of a program's outputs."""
    outputs = tuple(n for n, tensor in program.tensors.items() if tensor.role is Role.OUTPUT)
    if outputs:
        return outputs
    # A program that somebody else saved may state no roles: then what STOREs write is the output.
    columns = columns_of(program.instructions, program.config)
    rows = columns.is_a(Opcode.STORE) & (columns["x"] > 0)
    first, last = (bound[rows] for bound in dram_bounds(columns, program))
    return tuple(
        name
        for name, tensor in program.tensors.items()
        if ((first < tensor.offset + tensor.size_bytes) & (last > tensor.offset)).any()
    )


def require_simulated(config: VtaConfig) -> None:
    """Raise :class:`SpecError` for element types and sizes that the simulator does not compute."""
    widths = config.log_inp_width, config.log_wgt_width, config.log_acc_width, config.log_out_width
    if widths != _LOG_WIDTHS:
        inp, wgt, acc, out = (1 << width for width in widths)
        raise SpecError(
            f"VTA configuration: inputs of {inp} and weights of {wgt} bits are summed in {acc} and "
            f"stored in {out} bits; the simulator computes int8 x int8 in int32, stored as int8"
        )
    if config.block > _MAX_BLOCK or config.batch * config.block > _MAX_LANES:
        raise SpecError(
            f"VTA configuration: a GEMM core of {config.batch}x{config.block}x{config.block}; the "
            f"simulator computes blocks up to {_MAX_BLOCK}, batch x block up to {_MAX_LANES}"
        )


class _Machine:
    """Simulated machine: buffers and DRAM of a VTA while a program executes."""

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
        self._transfer: list[list[int]] = self._dram_rows.tolist()
        self._pads: list[list[int]] = columns.table("y_before", "x_before").tolist()
        self._sizes = {int(memory): config.element_bytes(memory) for memory in Memory}
        self._allocate(columns)

    def _allocate(self, columns: Columns) -> None:
        """Allocate the buffers, and views of them as the compiled kernels expect them."""
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
        # OUT mirrors the low byte of every accumulator, which is the first (little-endian). Between
        # a LOAD or reset of ACC and the next operation it does not on the machine, but a checked
        # program stores nothing then.
        self._out = self._sram[Memory.ACC][:, :: self._acc.itemsize]
        table = aligned((len(columns), len(PARAMETERS)), "int32")
        table[:] = columns.table(*PARAMETERS)
        parameters, uops, acc = shared(table), shared(self._uops), shared(self._acc)
        self._gemm = (parameters, uops, shared(self._inp), shared(self._wgt), acc)
        self._alu = (parameters, uops, acc)
        self._run_gemm, self._run_alu = gemm_kernel(config), alu_kernel(config)

    def execute(self, number: int) -> None:
        """Execute the instruction of a number."""
        opcode = self._opcode[number]
        if opcode == Opcode.GEMM:
            self._run_gemm(*self._gemm, number)
        elif opcode == Opcode.ALU:
            self._run_alu(*self._alu, number)
        elif self._transfer[number][2] and opcode == Opcode.LOAD:
            self._load(number)
        elif self._transfer[number][2] and opcode == Opcode.STORE:
            self._store(number)

    def _load(self, number: int) -> None:
        memory = self._memory[number]
        sram, rows, width = self._shape[number]
        end = sram + rows * width
        if memory == Memory.UOP:
            words = loaded_uops(self._program, self._dram_rows[number])
            self._uops[sram:end] = np.stack(unpack_uops(words, self._config), axis=1)
            return
        data = self._in_dram(number, self._sizes[memory])
        if memory == Memory.WGT:
            # Transposed as gemm_kernel expects; a legal LOAD of WGT has no pads.
            block = self._config.block
            tiles = data.view(np.int8).reshape(rows, width, block, block)
            target = self._wgt_tiles[sram:end].reshape(tiles.shape)
            target[:] = tiles.swapaxes(2, 3)
            return
        above, left = self._pads[number]
        _, y, x, _ = self._transfer[number]
        target = self._sram[memory][sram:end].reshape(rows, width, -1)
        if (y, x) != (rows, width):
            target[:] = 0
        target[above : above + y, left : left + x] = data

    def _store(self, number: int) -> None:
        sram, rows, width = self._shape[number]
        data = self._out[sram : sram + rows * width]
        self._in_dram(number, self._sizes[Memory.OUT])[:] = data.reshape(rows, width, -1)

    def _in_dram(self, number: int, size: int) -> NDArray[Any]:
        """Return a view of the DRAM that a transfer accesses, ``[y, x, bytes of an element]``."""
        dram, y, x, stride = self._transfer[number]
        start = dram * size - self._program.base
        return np.ndarray((y, x, size), np.uint8, self.dram, start, (stride * size, size, 1))


_COLUMN = {name: k for k, name in enumerate(PARAMETERS)}
_ACC = (Memory.ACC, "int32")
# Sums and products are taken modulo 2^32, which int64 and a cast do. LLVM's shifts by 32 or more
# have no value, hence the limits of the amount; a negative one shifts to the left.
_OPERATIONS = {
    AluOp.MIN: "T.min({a}, {b})",
    AluOp.MAX: "T.max({a}, {b})",
    AluOp.ADD: 'T.cast(T.cast({a}, "int64") + T.cast({b}, "int64"), "int32")',
    AluOp.SHR: (
        "T.Select({b} >= 0, T.shift_right({a}, T.min(T.max({b}, 0), 31)), "
        'T.cast(T.shift_left(T.cast({a}, "int64"), '
        'T.cast(0 - T.min(T.max({b}, -32), 0), "int64")), "int32"))'
    ),
    AluOp.MUL: 'T.cast(T.cast({a}, "int64") * T.cast({b}, "int64"), "int32")',
}


@cache
def gemm_kernel(config: VtaConfig) -> Function:
    """Return the compiled GEMM of one instruction.

    It is a function of ``(parameters [n, PARAMETERS], uops, inp, wgt, acc, row)``. Micro-ops are
    rows (dst, src, wgt) of int32. Weights lie transposed, ``[input][output]``, so that the output
    channels are the lanes of a vector. Sums are kept modulo 2^32 by adding in 64 bits.
    """
    return compile_plan(KernelPlan("vta.gemm", _gemm_source(config)))


@cache
def alu_kernel(config: VtaConfig) -> Function:
    """Return the compiled ALU of an instruction, a function of ``(parameters, uops, acc, row)``."""
    return compile_plan(KernelPlan("vta.alu", _alu_source(config)))


def _value(name: str) -> str:
    return f"P[row, {_COLUMN[name]}]"


@contextmanager
def _function(config: VtaConfig, buffers: dict[str, tuple[Memory, str]]) -> Generator[Script]:
    """Open a script in the body of a function over a table of parameters, micro-ops and buffers."""
    parameters = ["parameters: T.handle"]
    parameters.append(f'U: T.Buffer(({config.elements(Memory.UOP)}, 3), "int32")')
    for name, (memory, dtype) in buffers.items():
        rows, columns = config.tile_shape(memory)
        parameters.append(buffer(name, config.elements(memory) * rows * columns, dtype))
    script = Script()
    script.line(HEADER)
    with script.nested(f"def main({', '.join(parameters)}, row: T.int32):"):
        script.line("n = T.int32()")
        script.line(f'P = T.match_buffer(parameters, (n, {len(PARAMETERS)}), "int32")')
        yield script


_LOOPS = (
    f"for a in T.serial({_value('outer')}):",
    f"for b in T.serial({_value('inner')}):",
    f"for u in T.serial({_value('uop_end')} - {_value('uop_begin')}):",
)


def _index(name: str, column: int) -> str:
    """Return the expression of a micro-op's element at an iteration of the loops."""
    return (
        f"(U[{_value('uop_begin')} + u, {column}]"
        f" + a * {_value(name + '.outer')} + b * {_value(name + '.inner')})"
    )


def _gemm_source(config: VtaConfig) -> str:
    batch, block = config.batch, config.block
    buffers = {"inp": (Memory.INP, "int8"), "wgt": (Memory.WGT, "int8"), "acc": _ACC}
    accumulator = f"acc[{_index('dst', 0)} * {batch * block} + r * {block} + o]"
    loops = (*_LOOPS, f"for r in T.serial({batch}):", f"for o in T.vectorized({block}):")
    # All products of a sum in one expression: its depth is what limits the block (_MAX_BLOCK).
    products = " + ".join(
        f'T.cast(inp[{_index("src", 1)} * {batch * block} + r * {block} + {i}], "int32")'
        f' * T.cast(wgt[{_index("wgt", 2)} * {block * block} + {i * block} + o], "int32")'
        for i in range(block)
    )
    total = f'T.cast({accumulator}, "int64") + T.cast({products}, "int64")'
    with _function(config, buffers) as script:
        with script.nested(f"if {_value('reset')} != 0:", *loops):
            script.line(f"{accumulator} = 0")
        with script.nested("else:", *loops):
            script.line(f'{accumulator} = T.cast({total}, "int32")')
    return script.text()


def _alu_source(config: VtaConfig) -> str:
    lanes = config.batch * config.block
    first, second = (
        f"acc[{_index(name, k)} * {lanes} + o]" for k, name in enumerate(("dst", "src"))
    )
    # The operation is tested outside of the loops, so that each of these is vectorized.
    with _function(config, {"acc": _ACC}) as script:
        for op, text in _OPERATIONS.items():
            for immediate, operand in ((1, _value("immediate")), (0, second)):
                condition = (
                    f"{_value('op')} == {int(op)} and {_value('use_immediate')} == {immediate}"
                )
                loops = (*_LOOPS, f"for o in T.vectorized({lanes}):")
                with script.nested(f"if {condition}:", *loops):
                    script.line(f"{first} = {text.format(a=first, b=operand)}")
    return script.text()
