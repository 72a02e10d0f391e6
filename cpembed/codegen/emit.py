"""Emission: a kernel's TVMScript, from a scheduled nest and the text of an instruction."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager

from cpembed.codegen.halo import IndexSet, guarded, index_sets
from cpembed.codegen.instruction import INIT, STORE, UPDATE, InstructionText, LaneSum
from cpembed.codegen.nest import Nest
from cpembed.codegen.nest_text import (
    STAGE,
    VECTOR_PARAMETERS,
    bind_task,
    block_name,
    element,
    local_buffer,
    loop_headers,
    loop_variable,
    region_lines,
    store_statement,
    update_statement,
    write_block,
)
from cpembed.codegen.pipelined_epilogue import PipelinedEpilogue
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.prefetch import bind_prefetched, write_prefetches
from cpembed.codegen.script import HEADER, Script, buffer, zero
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import Loop


def kernel_plan(nest: Nest, text: InstructionText) -> KernelPlan:
    """A scheduled nest on an instruction, to be compiled."""
    return KernelPlan(
        text.backend,
        emit(nest, text),
        text.tensorizing(nest),
        text.attributes,
        text.options,
        copies=0 if nest.packing is None else nest.operands[0].elements,
        functions=text.functions,
        original=nest.unpadded,
        in_registers=text.in_registers,
    )


def emit(nest: Nest, text: InstructionText) -> str:
    """``C = sum A * B`` over the nest, in its parallel chunks of tasks.

    A nest with per-thread packing has the original of its first factor as the first parameter and
    the chunks' copies as the last.
    """
    pipelined = None
    if text.opaque and nest.epilogue is not None:
        pipelined = PipelinedEpilogue(nest, text)
    script = Script()
    script.line(HEADER)
    total, chunks = nest.task_count, nest.chunks
    with script.nested(f"def main({', '.join(_parameters(nest))}):"):
        script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        if nest.split is not None:
            nest.split.allocate(script)
        with script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("chunk"):'):
            script.line(f"part = T.axis.spatial({chunks}, chunk)")
            script.lines(region_lines(nest, packs=True))
            script.lines(text.setup)
            first, end = f"part * {total} // {chunks}", f"(part + 1) * {total} // {chunks}"
            if pipelined is not None:
                local_buffer(script, STAGE, nest)
            with (
                _packed(script, nest, (first, end), stages=pipelined is not None) as found,
                script.nested(
                    f"for task in T.serial({', '.join(found)}):", 'with T.sblock("task"):'
                ),
            ):
                if pipelined is not None:
                    script.line(f"now = T.axis.spatial({total}, task)")
                bind_task(script, nest)
                bind_prefetched(script, nest, end)
                script.lines(region_lines(nest, stages=pipelined is not None))
                local_buffer(script, "acc", nest, in_registers=text.in_registers)
                for number, part in enumerate(_each_index_set(script, nest)):
                    _write_sums(script, block_name(UPDATE, number), part, text)
                    if pipelined is not None:
                        pipelined.write(script, "now - 1", f"now > {first}")
                    _write_stores(script, part.nest, text)
            if pipelined is not None:
                pipelined.write(script, f"{end} - 1")
            script.lines(text.teardown)
        if nest.split is not None:
            nest.split.add_up(script, chunks)
    return script.text()


def _parameters(nest: Nest) -> list[str]:
    output = nest.operands[2] if nest.split is None else nest.split.output
    first, second, result = (
        buffer(o.parameter, o.elements, o.dtype) for o in (*nest.operands[:2], output)
    )
    vectors: list[str] = []
    if nest.epilogue is not None and nest.channels is not None:
        for name in nest.epilogue.vectors:
            dtype = nest.epilogue.vector_dtype(name, nest.sums)
            vectors.append(buffer(VECTOR_PARAMETERS[name], nest.channels.elements, dtype))
    if nest.residual is not None:
        added = nest.residual
        vectors.append(buffer(added.parameter, added.elements, added.dtype))
    if nest.packing is None:
        return [first, second, *vectors, result]
    given = nest.packing.original
    original = buffer(given.parameter, given.elements, given.dtype)
    return [original, second, *vectors, result, first]


@contextmanager
def _packed(
    script: Script, nest: Nest, tasks: tuple[str, str], *, stages: bool
) -> Generator[tuple[str, str]]:
    """Tasks, a first one and an end, after what they read has been packed."""
    if nest.packing is None:
        yield tasks
        return
    regions = region_lines(nest, packs=True, stages=stages)
    with nest.packing.packed(script, tasks, regions) as found:
        yield found


def _each_index_set(script: Script, nest: Nest) -> Generator[IndexSet]:
    """Index sets, at the border and inside; what is written meanwhile is for such."""
    with ExitStack() as branches:
        for part in index_sets(nest):
            if not part.condition:
                yield part
                continue
            with script.nested(f"if {part.condition}:"):
                yield part
            branches.enter_context(script.nested("else:"))


def _write_sums(script: Script, name: str, part: IndexSet, text: InstructionText) -> None:
    nest, spatial = part.nest, part.nest.spatial_inner
    with script.nested(*loop_headers(spatial, text.unrolled, text.vectorized_sums)):
        accumulator = f"acc[{nest.accumulator_access}]"
        write_block(script, INIT, spatial, f"{accumulator} = {zero(nest.sums)}")
    update = (*nest.reductions, *nest.inner)
    added = text.vectorized if text.vectorized_update else ()
    headers = _guarded_headers(nest, update, {*text.unrolled, *part.unrolled}, added)
    with script.nested(*itertools.chain(*headers[: len(nest.reductions) + 1])):
        write_prefetches(script, nest)
        with script.nested(*itertools.chain(*headers[len(nest.reductions) + 1 :])):
            write_block(script, name, update, update_statement(nest))


def _guarded_headers(
    nest: Nest, loops: Sequence[Loop], unrolled: Collection[str], vectorized: Collection[str]
) -> list[list[str]]:
    """Before all loops, and of each, with the conditions of what sees more than padding."""
    variables = {loop.name: loop_variable(loop) for loop in loops}
    headers = [guarded(nest, (), variables)]
    for number, header in enumerate(loop_headers(loops, unrolled, vectorized), 1):
        headers.append([header, *guarded(nest, loops[:number], variables)])
    return headers


def _write_stores(script: Script, nest: Nest, text: InstructionText) -> None:
    if text.lane_sum is not None:
        _store_lane_sums(script, nest, text, text.lane_sum)
        return
    if not text.opaque and text.store is not None and text.store(script, nest, "acc"):
        return
    spatial, accumulator = nest.spatial_inner, f"acc[{nest.accumulator_access}]"
    statement = store_statement(nest, accumulator)
    if text.opaque and nest.epilogue is not None:
        statement = f"{STAGE}[{nest.accumulator_access}] = {accumulator}"
    with script.nested(*loop_headers(spatial, text.unrolled, text.vectorized_sums)):
        write_block(script, STORE, spatial, statement)


def _store_lane_sums(script: Script, nest: Nest, text: InstructionText, lanes: LaneSum) -> None:
    spatial = [loop for loop in nest.spatial_inner if loop.name != lanes.loop]
    extent = nest.inner_loop(lanes.loop).extent
    first = nest.accumulator_access.substitute({lanes.loop: IndexExpr()})
    total = lanes.total(f'acc.vload([{first}], dtype="{nest.sums}x{extent}")')
    regions = (
        f"T.reads(acc[{first} : {first} + {extent}])",
        f"T.writes({element(nest.operands[2])})",
    )
    with script.nested(*loop_headers(spatial, text.unrolled)):
        write_block(script, STORE, spatial, *regions, store_statement(nest, total))
