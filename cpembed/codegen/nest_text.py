"""Pieces of TVMScript that contractions are made of: loops, blocks, regions, a store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from cpembed.codegen.epilogue import BIAS, SCALE
from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.codegen.script import Script, read, storage_dtype
from cpembed.ir.computation import AxisKind
from cpembed.transform.program import Loop

_ON_STACK = '{"disable_lower_builtin": True}'
"""A local buffer with this stays on the stack, however large, so that the compiler can make
registers of it: memory of 1024 bytes and more is taken from the runtime otherwise, and what a
branch changes of it is stored and loaded again."""

STAGE = "stage"
"""Name of the local buffer between accumulators and an epilogue."""

VECTOR_PARAMETERS = {BIAS: "Bias", SCALE: "Scale"}


def element(operand: KernelOperand) -> str:
    return f"{operand.parameter}[{operand.access}]"


def update_statement(nest: Nest) -> str:
    """The multiply-accumulate of one point."""
    accumulator = f"acc[{nest.accumulator_access}]"
    product = " * ".join(read(element(o), o.dtype, nest.sums) for o in nest.operands[:2])
    return f"{accumulator} = {accumulator} + {product}"


def write_block(script: Script, name: str, loops: Sequence[Loop], *statements: str) -> None:
    """A block whose iterators are ``loops``, each bound to the loop variable ``at_<name>``."""
    with script.nested(f'with T.sblock("{name}"):'):
        if loops:
            kinds = "".join("R" if loop.kind is AxisKind.REDUCTION else "S" for loop in loops)
            names = ", ".join(loop.name for loop in loops)
            variables = ", ".join(loop_variable(loop) for loop in loops)
            script.line(f'{names} = T.axis.remap("{kinds}", [{variables}])')
        for statement in statements:
            script.line(statement)


def loop_variable(loop: Loop) -> str:
    return f"at_{loop.name}"


def loop_headers(
    loops: Sequence[Loop], unrolled: Collection[str] = (), vectorized: Collection[str] = ()
) -> list[str]:
    headers: list[str] = []
    for loop in loops:
        kind = "unroll" if loop.name in unrolled else "serial"
        kind = "vectorized" if loop.name in vectorized else kind
        headers.append(f"for {loop_variable(loop)} in T.{kind}({loop.extent}):")
    return headers


def region_lines(nest: Nest, *, packs: bool = False, stages: bool = False) -> tuple[str, str]:
    """What a block around the whole nest reads and writes: every buffer, with ``packs`` also those
    of per-thread packing, with ``stages`` the local one of :data:`STAGE`."""
    regions = [f"{o.parameter}[0:{o.elements}]" for o in nest.operands]
    read_regions = regions[:2]
    if nest.epilogue is not None and nest.channels is not None:
        size = nest.channels.elements
        read_regions += [f"{VECTOR_PARAMETERS[name]}[0:{size}]" for name in nest.epilogue.vectors]
    if nest.residual is not None:
        read_regions.append(f"{nest.residual.parameter}[0:{nest.residual.elements}]")
    written = [regions[2]]
    if packs and nest.packing is not None:
        written.append(regions[0])
        original = nest.packing.original
        read_regions.append(f"{original.parameter}[0:{original.elements}]")
    if stages:
        read_regions.append(f"{STAGE}[0:{nest.accumulators}]")
        written.append(f"{STAGE}[0:{nest.accumulators}]")
    return f"T.reads({', '.join(read_regions)})", f"T.writes({', '.join(written)})"


def bind_task(
    script: Script, nest: Nest, task: str = "task", named: Callable[[str], str] = str
) -> None:
    """Task loops as block iterators, so that what is inside sees plain variables."""
    inside = 1
    bindings: list[str] = []
    for loop in reversed(nest.tasks):
        start = loop.start_text(f"({task}) // {inside} % {loop.count}")
        bindings.append(f"{named(loop.name)} = T.axis.spatial({loop.extent}, {start})")
        inside *= loop.count
    for binding in reversed(bindings):
        script.line(binding)


def block_name(block: str, number: int) -> str:
    """Of a block in one of the index sets (:func:`~cpembed.codegen.halo.index_sets`)."""
    return f"{block}_{number}" if number else block


def local_buffer(script: Script, name: str, nest: Nest, *, in_registers: bool = False) -> None:
    what = f'({nest.accumulators},), "{storage_dtype(nest.sums)}", scope="local"'
    if in_registers:
        script.line(f"{name} = T.alloc_buffer({what}, annotations={_ON_STACK})")
    else:
        script.line(f"{name} = T.sblock_alloc_buffer({what})")


def store_statement(nest: Nest, value: str) -> str:
    output = element(nest.operands[2])
    if nest.epilogue is None:
        return f"{output} = {value}"
    channel = "" if nest.channels is None else str(nest.channels.access)
    residual = "" if nest.residual is None else element(nest.residual)
    return f"{output} = {nest.epilogue.expression(value, nest.sums, channel, residual)}"
