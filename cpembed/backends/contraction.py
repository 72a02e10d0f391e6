"""The contraction kernel's TVMScript, from a nest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cpembed.backends.nest import KernelOperand, Nest
from cpembed.backends.script import HEADER, Script, buffer, read, storage_dtype, zero
from cpembed.ir.computation import AxisKind
from cpembed.transform.program import Loop

INIT, UPDATE, STORE = "init", "update", "store"
"""Names of the blocks that a back end tensorizes."""


def contraction_source(
    nest: Nest,
    chunks: int,
    *,
    prologue: Sequence[str] = (),
    epilogue: Sequence[str] = (),
    unrolled: Collection[str] = (),
    vectorized: Collection[str] = (),
) -> str:
    """``C = sum A * B`` over the nest, in ``chunks`` parallel parts of equal numbers of tasks.

    ``prologue`` and ``epilogue`` are statements around each part (a tile configuration);
    ``unrolled`` names inner loops to unroll, ``vectorized`` those to vectorise where the
    accumulators are set and stored.
    """
    script = Script()
    script.line(HEADER)
    parameters = ", ".join(buffer(o.parameter, o.elements, o.dtype) for o in nest.operands)
    total = nest.task_count
    chunks = min(chunks, total)
    with script.nested(f"def main({parameters}):"):
        script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        with script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("chunk"):'):
            script.line(f"part = T.axis.spatial({chunks}, chunk)")
            _regions(script, nest)
            for statement in prologue:
                script.line(statement)
            bounds = f"part * {total} // {chunks}, (part + 1) * {total} // {chunks}"
            with script.nested(f"for task in T.serial({bounds}):", 'with T.sblock("task"):'):
                _bind_task(script, nest)
                _regions(script, nest)
                _task_body(script, nest, unrolled, vectorized)
            for statement in epilogue:
                script.line(statement)
    return script.text()


def element(operand: KernelOperand) -> str:
    return f"{operand.parameter}[{operand.access}]"


def update_statement(nest: Nest) -> str:
    """The multiply-accumulate of one point."""
    first, second, output = nest.operands
    accumulator = f"acc[{nest.accumulator_access}]"
    factors = " * ".join(read(element(o), o.dtype, output.dtype) for o in (first, second))
    return f"{accumulator} = {accumulator} + {factors}"


def write_block(script: Script, name: str, loops: Sequence[Loop], statement: str) -> None:
    """A block whose iterators are ``loops``, each bound to the loop variable ``at_<name>``."""
    with script.nested(f'with T.sblock("{name}"):'):
        if loops:
            kinds = "".join("R" if loop.kind is AxisKind.REDUCTION else "S" for loop in loops)
            names = ", ".join(loop.name for loop in loops)
            variables = ", ".join(loop_variable(loop) for loop in loops)
            script.line(f'{names} = T.axis.remap("{kinds}", [{variables}])')
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


def _regions(script: Script, nest: Nest) -> None:
    """What a block around the whole nest reads and writes: every buffer."""
    regions = [f"{o.parameter}[0:{o.elements}]" for o in nest.operands]
    script.line(f"T.reads({regions[0]}, {regions[1]})")
    script.line(f"T.writes({regions[2]})")


def _bind_task(script: Script, nest: Nest) -> None:
    """Task loops as block iterators, so that what is inside sees plain variables."""
    inside = 1
    bindings: list[str] = []
    for loop in reversed(nest.tasks):
        digit = f"task // {inside} % {loop.count}"
        start = f"{digit} * {loop.block}"
        if loop.count * loop.block > loop.extent:
            start = f"T.min({start}, {loop.extent - loop.block})"
        bindings.append(f"{loop.name} = T.axis.spatial({loop.extent}, {start})")
        inside *= loop.count
    for binding in reversed(bindings):
        script.line(binding)


def _task_body(
    script: Script, nest: Nest, unrolled: Collection[str], vectorized: Collection[str]
) -> None:
    output = nest.operands[2]
    spatial = nest.spatial_inner
    accumulator = f"acc[{nest.accumulator_access}]"
    accumulator_type = storage_dtype(output.dtype)
    script.line(
        f'acc = T.sblock_alloc_buffer(({nest.accumulators},), "{accumulator_type}", scope="local")'
    )
    with script.nested(*loop_headers(spatial, unrolled, vectorized)):
        write_block(script, INIT, spatial, f"{accumulator} = {zero(output.dtype)}")
    update = (*nest.reductions, *nest.inner)
    with script.nested(*loop_headers(update, unrolled)):
        write_block(script, UPDATE, update, update_statement(nest))
    with script.nested(*loop_headers(spatial, unrolled, vectorized)):
        write_block(script, STORE, spatial, f"{element(output)} = {accumulator}")
