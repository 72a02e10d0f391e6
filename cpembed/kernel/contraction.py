"""The contraction kernel's TVMScript, from a nest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from cpembed.ir.index import IndexExpr
from cpembed.kernel.delayed_results import Delayed, Results
from cpembed.kernel.margins import Body, bodies, guarded
from cpembed.kernel.nest import KernelOperand, Nest
from cpembed.kernel.nest_text import (
    STAGE,
    VECTOR_PARAMETERS,
    bind_ahead,
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
    write_regions,
)
from cpembed.kernel.private_packing import PrivatePacking
from cpembed.kernel.script import HEADER, Script, buffer, zero
from cpembed.kernel.shared_sums import SharedSums
from cpembed.transform.program import Loop

INIT, UPDATE, STORE = "init", "update", "store"
"""Names of the blocks that a back end tensorizes."""


@dataclass(frozen=True)
class AddedUp:
    """The innermost spatial loop, whose accumulators are the parts of one sum that is stored:
    ``total(vector)`` is TVMScript for that of a vector of them."""

    loop: str
    total: Callable[[str], str]


def contraction_source(
    nest: Nest,
    chunks: int,
    *,
    prologue: Sequence[str] = (),
    epilogue: Sequence[str] = (),
    unrolled: Collection[str] = (),
    vectorized: Collection[str] = (),
    vectorized_update: bool = False,
    stages: bool = False,
    results: Results | None = None,
    packing: PrivatePacking | None = None,
    each_step: Sequence[Callable[[Script, Nest], None]] = (),
    shared: SharedSums | None = None,
    added_up: AddedUp | None = None,
    in_registers: bool = False,
    ahead: Collection[int] = (),
) -> str:
    """``C = sum A * B`` over the nest, in ``chunks`` parallel parts of equal numbers of tasks.

    ``prologue`` and ``epilogue`` are statements around each part (a tile configuration);
    ``unrolled`` names inner loops and reductions to unroll, ``vectorized`` those to vectorise where
    the accumulators are set and stored, and with ``vectorized_update`` where they are added to.
    ``stages``: with an epilogue of the nest, accumulators are stored to a local buffer first, where
    nothing but a store can read them; what becomes of them is computed while the next task's
    products are on their way. ``results`` writes down what is stored, where it does.
    ``packing``: each part packs the first factor for itself; the nest is then that of ``packing``,
    its original the first parameter and the parts' copies the last. ``each_step`` write down what
    comes before the products of a step of the reductions. ``shared``: the nest stores parts of
    sums, which are added up at the end. ``added_up``: what makes one of several accumulators.
    ``in_registers``: these are registers, as :class:`~cpembed.kernel.plan.KernelPlan` has to
    say too. ``ahead``: each step sees the iterators of the tasks that come so many tasks later as
    well (:func:`~cpembed.kernel.nest_text.ahead`).
    """
    delayed = None
    if stages and nest.epilogue is not None:
        delayed = Delayed(nest, tuple(unrolled), tuple(vectorized), results)
    # Where a store may go through a buffer, the other blocks are an instruction's.
    plain = () if stages else vectorized
    script = Script()
    script.line(HEADER)
    output = nest.operands[2] if shared is None else shared.output
    parameters = ", ".join(_parameters(nest, packing, output))
    total = nest.task_count
    chunks = min(chunks, total)
    with script.nested(f"def main({parameters}):"):
        script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        if shared is not None:
            shared.allocate(script)
        with script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("chunk"):'):
            script.line(f"part = T.axis.spatial({chunks}, chunk)")
            write_regions(script, nest, packing)
            for statement in prologue:
                script.line(statement)
            first, end = f"part * {total} // {chunks}", f"(part + 1) * {total} // {chunks}"
            if delayed is not None:
                local_buffer(script, STAGE, nest)
            with (
                _packed(script, nest, packing, (first, end), stages=delayed is not None) as found,
                script.nested(
                    f"for task in T.serial({', '.join(found)}):", 'with T.sblock("task"):'
                ),
            ):
                if delayed is not None:
                    script.line(f"now = T.axis.spatial({total}, task)")
                bind_task(script, nest)
                for tasks in ahead:
                    bind_ahead(script, nest, tasks, end)
                write_regions(script, nest, stages=delayed is not None)
                added = vectorized if vectorized_update else ()
                local_buffer(script, "acc", nest, in_registers=in_registers)
                for number, body in enumerate(_each_body(script, nest)):
                    name = block_name(UPDATE, number)
                    _sums(script, name, body, unrolled, plain, added, each_step)
                    if delayed is not None:
                        delayed.write(script, "now - 1", f"now > {first}")
                    if added_up is not None:
                        _store_added_up(script, body.nest, unrolled, added_up)
                    elif stages or results is None or not results(script, body.nest, "acc"):
                        _store(script, body.nest, unrolled, plain, stages=delayed is not None)
            if delayed is not None:
                delayed.write(script, f"{end} - 1")
            for statement in epilogue:
                script.line(statement)
        if shared is not None:
            shared.add_up(script, chunks)
    return script.text()


def _parameters(nest: Nest, packing: PrivatePacking | None, result: KernelOperand) -> list[str]:
    first, second, output = (
        buffer(o.parameter, o.elements, o.dtype) for o in (*nest.operands[:2], result)
    )
    vectors: list[str] = []
    if nest.epilogue is not None and nest.channels is not None:
        for name in nest.epilogue.vectors:
            dtype = nest.epilogue.vector_dtype(name, nest.sums)
            vectors.append(buffer(VECTOR_PARAMETERS[name], nest.channels.elements, dtype))
    if packing is None:
        return [first, second, *vectors, output]
    given = packing.original
    original = buffer(given.parameter, given.elements, given.dtype)
    return [original, second, *vectors, output, first]


@contextmanager
def _packed(
    script: Script,
    nest: Nest,
    packing: PrivatePacking | None,
    tasks: tuple[str, str],
    *,
    stages: bool,
) -> Generator[tuple[str, str]]:
    """Tasks, a first one and an end, after what they read has been packed."""
    if packing is None:
        yield tasks
        return
    regions = region_lines(nest, packing, stages=stages)
    with packing.packed(script, tasks, regions) as found:
        yield found


def _each_body(script: Script, nest: Nest) -> Generator[Body]:
    """What a task computes, at the border and inside; what is written meanwhile is for such."""
    with ExitStack() as branches:
        for body in bodies(nest):
            if not body.condition:
                yield body
                continue
            with script.nested(f"if {body.condition}:"):
                yield body
            branches.enter_context(script.nested("else:"))


def _sums(
    script: Script,
    name: str,
    body: Body,
    unrolled: Collection[str],
    vectorized: Collection[str],
    added: Collection[str],
    each_step: Sequence[Callable[[Script, Nest], None]],
) -> None:
    nest = body.nest
    spatial = nest.spatial_inner
    with script.nested(*loop_headers(spatial, unrolled, vectorized)):
        accumulator = f"acc[{nest.accumulator_access}]"
        write_block(script, INIT, spatial, f"{accumulator} = {zero(nest.sums)}")
    unrolled = {*unrolled, *body.unrolled}
    update = (*nest.reductions, *nest.inner)
    headers = _guarded_headers(nest, update, unrolled, added)
    with script.nested(*itertools.chain(*headers[: len(nest.reductions) + 1])):
        for write in each_step:
            write(script, nest)
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


def _store(
    script: Script,
    nest: Nest,
    unrolled: Collection[str],
    vectorized: Collection[str],
    *,
    stages: bool,
) -> None:
    spatial, accumulator = nest.spatial_inner, f"acc[{nest.accumulator_access}]"
    statement = store_statement(nest, accumulator)
    if stages:
        statement = f"{STAGE}[{nest.accumulator_access}] = {accumulator}"
    with script.nested(*loop_headers(spatial, unrolled, vectorized)):
        write_block(script, STORE, spatial, statement)


def _store_added_up(
    script: Script, nest: Nest, unrolled: Collection[str], added_up: AddedUp
) -> None:
    spatial = [loop for loop in nest.spatial_inner if loop.name != added_up.loop]
    lanes = nest.inner_loop(added_up.loop).extent
    first = nest.accumulator_access.substitute({added_up.loop: IndexExpr()})
    total = added_up.total(f'acc.vload([{first}], dtype="{nest.sums}x{lanes}")')
    regions = (
        f"T.reads(acc[{first} : {first} + {lanes}])",
        f"T.writes({element(nest.operands[2])})",
    )
    with script.nested(*loop_headers(spatial, unrolled)):
        write_block(script, STORE, spatial, *regions, store_statement(nest, total))
