"""Pieces of TVMScript that contractions are made of: loops, blocks, regions, a store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from cpembed.ir.computation import AxisKind
from cpembed.kernel.epilogue import BIAS, SCALE
from cpembed.kernel.nest import KernelOperand, Nest
from cpembed.kernel.private_packing import PrivatePacking
from cpembed.kernel.script import Script, read, storage_dtype
from cpembed.transform.program import Loop

_ON_STACK = '{"disable_lower_builtin": True}'
"""A local buffer with this stays on the stack, however large, so that the compiler can make
registers of it: memory of 1024 bytes and more is taken from the runtime otherwise, and what a
branch changes of it is stored and loaded again."""

_DATA = 1
"""For LLVM's prefetch: no instructions."""

_SECOND_LEVEL = 2
"""For the same: into that cache; for writing it is PREFETCHW however near lines are to be kept."""

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


def write_regions(
    script: Script, nest: Nest, packing: PrivatePacking | None = None, *, stages: bool = False
) -> None:
    for line in region_lines(nest, packing, stages=stages):
        script.line(line)


def region_lines(nest: Nest, packing: PrivatePacking | None, *, stages: bool) -> tuple[str, str]:
    """What a block around the whole nest reads and writes: every buffer."""
    regions = [f"{o.parameter}[0:{o.elements}]" for o in nest.operands]
    read_regions = regions[:2]
    if nest.epilogue is not None and nest.channels is not None:
        size = nest.channels.elements
        read_regions += [f"{VECTOR_PARAMETERS[name]}[0:{size}]" for name in nest.epilogue.vectors]
    written = [regions[2]]
    if packing is not None:
        written.append(regions[0])
        read_regions.append(f"{packing.original.parameter}[0:{packing.original.elements}]")
    if stages:
        read_regions.append(f"{STAGE}[0:{nest.accumulators}]")
        written.append(f"{STAGE}[0:{nest.accumulators}]")
    return f"T.reads({', '.join(read_regions)})", f"T.writes({', '.join(written)})"


def ahead(loop: str, tasks: int) -> str:
    """Name of a task loop's iterator for the task that comes so many tasks later."""
    return f"{loop}_ahead_{tasks}"


def turn(tasks: int) -> str:
    """Name of a task's place among so many that come in turn."""
    return f"turn_of_{tasks}"


def bind_ahead(script: Script, nest: Nest, tasks: int, end: str) -> None:
    """The iterators of :func:`ahead`, or of the last task before ``end``, and :func:`turn`."""
    bind_task(script, nest, f"T.min(task + {tasks}, {end} - 1)", lambda name: ahead(name, tasks))
    if tasks > 1:
        script.line(f"{turn(tasks)} = T.axis.spatial({tasks}, task % {tasks})")


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
    """Of a block in one of the bodies (:func:`~cpembed.kernel.margins.bodies`)."""
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
    return f"{output} = {nest.epilogue.expression(value, nest.sums, channel)}"


def nth_place(start: str, number: str, loops: Sequence[tuple[int, int]]) -> str:
    """The ``number``-th of places over loops of ``(extent, distance)``, the innermost first; past
    the last one it begins again."""
    place, inside = start, 1
    for extent, distance in loops:
        place += f" + {number} // {inside} % {extent} * {distance}"
        inside *= extent
    return place


def prefetch(place: str, *, write: bool) -> str:
    """A statement that asks for a line, into the second-level cache or to be written."""
    number = 'T.llvm_lookup_intrinsic_id("llvm.prefetch")'
    arguments = f"T.address_of({place}), {int(write)}, {_SECOND_LEVEL}, {_DATA}"
    return f'T.evaluate(T.call_llvm_intrin({number}, {arguments}, dtype="void"))'
