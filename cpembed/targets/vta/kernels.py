"""GEMM and ALU of the functional simulator, compiled for a batch and a block.

Micro-ops are rows (dst, src, wgt) of int32. Weights lie transposed, ``[input][output]``, so that
the output channels are the lanes of a vector. Sums are kept modulo 2^32 by adding in 64 bits.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.runtime import Function, compile_plan
from cpembed.kernel.script import HEADER, Script, buffer
from cpembed.targets.vta.accesses import PARAMETERS
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.isa import AluOp, Memory

_COLUMN = {name: k for k, name in enumerate(PARAMETERS)}

_ACC = (Memory.ACC, "int32")

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
    """``(parameters [n, PARAMETERS], uops, inp, wgt, acc, row)``: one GEMM instruction."""
    return compile_plan(KernelPlan("vta.gemm", _gemm_source(config)))


@cache
def alu_kernel(config: VtaConfig) -> Function:
    """``(parameters, uops, acc, row)``: one ALU instruction."""
    return compile_plan(KernelPlan("vta.alu", _alu_source(config)))


def _value(name: str) -> str:
    return f"P[row, {_COLUMN[name]}]"


@contextmanager
def _function(config: VtaConfig, buffers: dict[str, tuple[Memory, str]]) -> Generator[Script]:
    """A script inside the body of a function over a table of parameters, micro-ops and buffers."""
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
    """A micro-op's element at the loops' iteration."""
    return (
        f"(U[{_value('uop_begin')} + u, {column}]"
        f" + a * {_value(name + '.outer')} + b * {_value(name + '.inner')})"
    )


def _gemm_source(config: VtaConfig) -> str:
    batch, block = config.batch, config.block
    buffers = {"inp": (Memory.INP, "int8"), "wgt": (Memory.WGT, "int8"), "acc": _ACC}
    accumulator = f"acc[{_index('dst', 0)} * {batch * block} + r * {block} + o]"
    loops = (*_LOOPS, f"for r in T.serial({batch}):", f"for o in T.vectorized({block}):")
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
    with _function(config, {"acc": _ACC}) as script:
        for op, text in _OPERATIONS.items():
            for immediate, operand in ((1, _value("immediate")), (0, second)):
                chosen = f"{_value('op')} == {int(op)} and {_value('use_immediate')} == {immediate}"
                loops = (*_LOOPS, f"for o in T.vectorized({lanes}):")
                with script.nested(f"if {chosen}:", *loops):
                    script.line(f"{first} = {text.format(a=first, b=operand)}")
    return script.text()
