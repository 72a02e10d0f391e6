"""Emission: a kernel's TVMScript, from a scheduled nest and the text of an instruction."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from cpembed.codegen.epilogue import Chain, Epilogue
from cpembed.codegen.epilogue_text import float_text, result_text
from cpembed.codegen.halo import IndexSet, guarded, index_sets
from cpembed.codegen.instruction import (
    INIT,
    STAGE,
    STORE,
    UPDATE,
    InstructionText,
    LaneSum,
    bind_task,
    block_name,
    element,
    local_buffer,
    loop_headers,
    loop_variable,
    region_lines,
    store_statement,
    update_statement,
    vector_parameter,
    write_block,
)
from cpembed.codegen.nest import KernelOperand, Nest, SplitK
from cpembed.codegen.passes import PARTIAL_SUMS
from cpembed.codegen.plan import KernelPlan, Script, buffer, storage_dtype, zero
from cpembed.codegen.prefetch import bind_prefetched, write_prefetches
from cpembed.codegen.program_nest import kernel_nest
from cpembed.codegen.scalar_text import ScalarWriter, Statements
from cpembed.codegen.values import Value, converted, load_as, one_function, one_name
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import DerivedProgram, Loop

# A vector of 64 bytes of float32 or int32; the compiler cuts it in two where vectors have 32.
_LANES = 16
"""Number of elements whose partial sums are added up at a time."""


def portable_plan(
    program: DerivedProgram, threads: int, epilogue: Epilogue | None = None
) -> KernelPlan:
    """Plan a kernel in plain loops, for any machine and element type.

    It verifies a derived program where its instruction is missing, and is not meant to be fast.

    Parameters
    ----------
    program : DerivedProgram
        Program to execute.
    threads : int
        Number of threads.
    epilogue : Epilogue, optional
        Steps after the sums.

    Raises
    ------
    LoweringError
        The workload is not a product-sum.
    """
    nest = replace(kernel_nest(program, epilogue), threads=threads)
    return kernel_plan(nest, InstructionText("generic"))


def kernel_plan(nest: Nest, text: InstructionText) -> KernelPlan:
    """Return a scheduled nest on an instruction, ready to be compiled."""
    statements = Statements(Script())
    emit(statements, nest, text)
    return KernelPlan(
        backend=text.backend,
        source=statements.script.text(),
        schedule=text.tensorizing(nest),
        attributes=text.attributes,
        options=text.options,
        copies=0 if nest.packing is None else nest.operands[0].elements,
        functions=text.functions + "".join(statements.functions.values()),
        original=nest.unpadded,
        in_registers=text.in_registers,
    )


def emit(statements: Statements, nest: Nest, text: InstructionText) -> None:
    """Write ``C = sum A * B`` over the nest, in its parallel chunks of tasks.

    Parameters
    ----------
    statements : Statements
        Text to write to.
    nest, text : Nest, InstructionText
        Scheduled nest, and its instruction.
    """
    # Accumulators that only the instruction's store reads pass through memory on their way to an
    # epilogue, which therefore runs a task late.
    pipelined = text.opaque and nest.epilogue is not None
    script = statements.script
    total, chunks = nest.task_count, nest.chunks
    with script.function(_parameters(nest)):
        if nest.split is not None:
            count = nest.split.parts * nest.split.output.elements
            dtype = storage_dtype(nest.sums)
            script.line(f'{PARTIAL_SUMS} = T.sblock_alloc_buffer(({count},), "{dtype}")')
        with script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("chunk"):'):
            script.line(f"part = T.axis.spatial({chunks}, chunk)")
            script.lines(region_lines(nest, packs=True))
            # In every chunk, because a tile configuration belongs to the thread that runs it.
            script.lines(text.setup)
            first, end = f"part * {total} // {chunks}", f"(part + 1) * {total} // {chunks}"
            if pipelined:
                local_buffer(script, STAGE, nest)
            with (
                _packed(script, nest, (first, end), stages=pipelined) as tasks,
                script.nested(
                    f"for task in T.serial({', '.join(tasks)}):", 'with T.sblock("task"):'
                ),
            ):
                if pipelined:
                    script.line(f"now = T.axis.spatial({total}, task)")
                bind_task(script, nest)
                bind_prefetched(script, nest, end)
                script.lines(region_lines(nest, stages=pipelined))
                local_buffer(script, "acc", nest, in_registers=text.in_registers)
                if _has_chain(nest) and not pipelined:
                    local_buffer(script, STAGE, nest, in_registers=text.in_registers)
                for number, part in enumerate(_each_index_set(script, nest)):
                    _write_sums(script, block_name(UPDATE, number), part, text)
                    if pipelined:
                        # The previous task's results are computed while these products run.
                        _write_results(statements, nest, text, "now - 1", f"now > {first}")
                    _write_stores(statements, part.nest, text)
            if pipelined:
                # No task follows the last one.
                _write_results(statements, nest, text, f"{end} - 1")
            script.lines(text.teardown)
        if nest.split is not None:
            _add_partial_sums(script, nest.split, nest.sums, chunks)


def _has_chain(nest: Nest) -> bool:
    return nest.epilogue is not None and nest.epilogue.chain is not None


def _parameters(nest: Nest) -> list[str]:
    def parameter(operand: KernelOperand) -> str:
        return buffer(operand.parameter, operand.elements, operand.dtype)

    output = nest.operands[2] if nest.split is None else nest.split.output
    first, second, result = map(parameter, (*nest.operands[:2], output))
    extra: list[str] = []
    if nest.epilogue is not None and nest.channels is not None:
        for name in nest.epilogue.vectors:
            dtype = nest.epilogue.vector_dtype(name, nest.sums)
            extra.append(buffer(vector_parameter(name), nest.channels.elements, dtype))
    if nest.residual is not None:
        extra.append(parameter(nest.residual))
    if nest.packing is None:
        return [first, second, *extra, result]
    # The original takes the factor's place; the chunks' copies, which `first` indexes, come last.
    return [parameter(nest.packing.original), second, *extra, result, first]


@contextmanager
def _packed(
    script: Script, nest: Nest, tasks: tuple[str, str], *, stages: bool
) -> Generator[tuple[str, str]]:
    """Write the packing of operands that tasks read; yield the first and the end of the tasks."""
    if nest.packing is None:
        yield tasks
        return
    regions = region_lines(nest, packs=True, stages=stages)
    with nest.packing.packed(script, tasks, regions) as inner_tasks:
        yield inner_tasks


def _each_index_set(script: Script, nest: Nest) -> Generator[IndexSet]:
    """Yield the index sets, each while the branch that is open in the text belongs to it."""
    with ExitStack() as branches:
        for part in index_sets(nest):
            if not part.condition:
                yield part
                continue
            with script.nested(f"if {part.condition}:"):
                yield part
            # Later sets go into the else branch, so they need not exclude this one.
            branches.enter_context(script.nested("else:"))


def _write_sums(script: Script, name: str, part: IndexSet, text: InstructionText) -> None:
    nest, spatial = part.nest, part.nest.spatial_inner
    with script.nested(*loop_headers(spatial, text.unrolled, text.vectorized_sums)):
        accumulator = f"acc[{nest.accumulator_access}]"
        write_block(script, INIT, spatial, f"{accumulator} = {zero(nest.sums)}")
    # Reductions outside the inner loops: each step adds to all accumulators of the task, which are
    # independent of each other, so that the instruction's latency is hidden.
    update = (*nest.reductions, *nest.inner)
    vectorized = text.vectorized if text.vectorized_update else ()
    headers = _guarded_headers(nest, update, {*text.unrolled, *part.unrolled}, vectorized)
    with script.nested(*itertools.chain(*headers[: len(nest.reductions) + 1])):
        # Between the reductions and the inner loops, so that requests are spread over the steps.
        write_prefetches(script, nest)
        with script.nested(*itertools.chain(*headers[len(nest.reductions) + 1 :])):
            write_block(script, name, update, update_statement(nest))


def _guarded_headers(
    nest: Nest, loops: Sequence[Loop], unrolled: Collection[str], vectorized: Collection[str]
) -> list[list[str]]:
    """Return the headers before all loops and of each, with the conditions that skip padding."""
    variables = {loop.name: loop_variable(loop) for loop in loops}
    headers = [guarded(nest, (), variables)]
    for number, header in enumerate(loop_headers(loops, unrolled, vectorized), 1):
        headers.append([header, *guarded(nest, loops[:number], variables)])
    return headers


def _write_stores(statements: Statements, nest: Nest, text: InstructionText) -> None:
    script, has_chain = statements.script, _has_chain(nest)
    if text.lane_sum is not None:
        _store_lane_sums(statements, nest, text, text.lane_sum)
        return
    stores = not (text.opaque or has_chain) and text.store is not None
    if stores and text.store is not None and text.store(script, nest, "acc"):
        return
    spatial, accumulator = nest.spatial_inner, f"acc[{nest.accumulator_access}]"
    stage = f"{STAGE}[{nest.accumulator_access}]"
    staged = has_chain or (text.opaque and nest.epilogue is not None)
    statement = f"{stage} = {accumulator}" if staged else store_statement(nest, accumulator)
    with script.nested(*loop_headers(spatial, text.unrolled, text.vectorized_sums)):
        write_block(script, STORE, spatial, statement)
    if has_chain and not text.opaque:
        write_chain(statements, nest, stage, spatial)


def _store_lane_sums(
    statements: Statements, nest: Nest, text: InstructionText, lanes: LaneSum
) -> None:
    script = statements.script
    spatial = [loop for loop in nest.spatial_inner if loop.name != lanes.loop]
    extent = nest.inner_loop(lanes.loop).extent
    first = nest.accumulator_access.substitute({lanes.loop: IndexExpr()})
    total = lanes.total(f'acc.vload([{first}], dtype="{nest.sums}x{extent}")')
    stage, reads = f"{STAGE}[{first}]", f"T.reads(acc[{first} : {first} + {extent}])"
    has_chain = _has_chain(nest)
    written = stage if has_chain else element(nest.operands[2])
    statement = f"{stage} = {total}" if has_chain else store_statement(nest, total)
    with script.nested(*loop_headers(spatial, text.unrolled)):
        write_block(script, STORE, spatial, reads, f"T.writes({written})", statement)
    if has_chain:
        write_chain(statements, nest, stage, spatial)


# ----------------------------------------------------------------- epilogues of opaque accumulators


def staged(nest: Nest) -> Nest:
    """Return the nest as opaque accumulators are stored: with an epilogue, to a local buffer."""
    if nest.epilogue is None:
        return nest
    first, second, output = nest.operands
    stage = replace(
        output, dtype=nest.sums, elements=nest.accumulators, access=nest.accumulator_access
    )
    return replace(nest, operands=(first, second, stage))


def _write_results(
    statements: Statements,
    nest: Nest,
    text: InstructionText,
    task: str,
    condition: str | None = None,
) -> None:
    """Write the results of a task from the local buffer, under a condition if it may not exist."""
    script = statements.script
    loops = {loop.name for loop in nest.tasks}

    # The running task has bound the plain names already.
    def named(loop: str) -> str:
        return f"{loop}_stored" if loop in loops else loop

    def renamed(operand: KernelOperand) -> KernelOperand:
        return replace(operand, access=operand.access.rename(named))

    first, second, output = nest.operands
    nest = replace(
        nest,
        operands=(first, second, renamed(output)),
        channels=None if nest.channels is None else renamed(nest.channels),
        residual=None if nest.residual is None else renamed(nest.residual),
    )
    stage = f"{STAGE}[{nest.accumulator_access}]"

    def inward(loop: Loop) -> tuple[bool, int]:
        # As results lie in memory, as far as vectors allow: lines that are stored together come
        # together (for results beyond the second-level cache, tile order takes 1.2 times as long).
        return loop.name in text.vectorized, -abs(output.stride(loop.name))

    with script.nested('with T.sblock("results"):'):
        bind_task(script, nest, task, named)
        script.lines(region_lines(nest, stages=True))
        with script.nested(*([] if condition is None else [f"if {condition}:"])):
            if _has_chain(nest):
                write_chain(statements, nest, stage, nest.spatial_inner)
                return
            if text.store is not None and text.store(script, nest, STAGE):
                return
            statement = store_statement(nest, stage)
            ordered = sorted(nest.spatial_inner, key=inward)
            with script.nested(*loop_headers(ordered, text.unrolled, text.vectorized)):
                write_block(script, "result", ordered, statement)


# ------------------------------------------------------------------------------------------ split-K


def _add_partial_sums(script: Script, split: SplitK, sums: str, chunks: int) -> None:
    """Write the addition of partial sums, in parallel shares of full vectors."""
    count, parameter = split.output.elements, split.output.parameter

    def result(place: str) -> str:
        # Each part has a whole output of partial sums, one behind the other.
        terms = (f"{PARTIAL_SUMS}[{place} + {part * count}]" for part in range(split.parts))
        value = " + ".join(terms)
        if split.epilogue is not None:
            value = result_text(split.epilogue, f"({value})", sums, "")
        return f"{parameter}[{place}] = {value}"

    vectors, rest = divmod(count, _LANES)
    with script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("total"):'):
        script.line(f"share = T.axis.spatial({chunks}, chunk)")
        script.line(f"T.reads({PARTIAL_SUMS}[0:{split.parts * count}])")
        script.line(f"T.writes({parameter}[0:{count}])")
        bounds = f"share * {vectors} // {chunks}, (share + 1) * {vectors} // {chunks}"
        lanes = f"for lane in T.vectorized({_LANES}):"
        if vectors:
            with script.nested(f"for vector in T.serial({bounds}):", lanes):
                script.line(result(f"vector * {_LANES} + lane"))
        if rest:
            # Less than a vector, so the last share does it alone.
            last = f"for element in T.serial({count - rest}, {count}):"
            with script.nested(f"if share == {chunks - 1}:", last):
                script.line(result("element"))


def write_chain(statements: Statements, nest: Nest, sums: str, loops: Sequence[Loop]) -> None:
    """Write the results of a task.

    Parameters
    ----------
    statements : Statements
        Text to write to.
    nest : Nest
        Nest whose epilogue has a chain.
    sums : str
        Element of the buffer of sums, over the variables of the loops.
    loops : sequence of Loop
        Loops over the results.
    """
    script, epilogue, output = statements.script, nest.epilogue, nest.operands[2]
    assert epilogue is not None
    assert epilogue.chain is not None
    name, text = one_function("float32")
    statements.include(name, text)
    script.line(f'{one_name("float32")}: T.let = T.call_extern("float32", "{name}")')
    # Contiguous results innermost, which become vectors.
    ordered = sorted(loops, key=lambda loop: -abs(output.stride(loop.name)))
    with script.nested(*(f"for {x.name} in T.serial({x.extent}):" for x in ordered)):
        values = _inputs(statements, nest, epilogue, epilogue.chain, sums)
        result = ScalarWriter(statements, "float32").value(epilogue.chain.expression, values)
        stored = converted(statements.bind, result, epilogue.dtype)
        script.line(f"{element(output)} = {stored}")


def _inputs(
    statements: Statements, nest: Nest, epilogue: Epilogue, chain: Chain, sums: str
) -> dict[int, Value]:
    """Write the inputs of a chain's expression and return them by number."""
    channel = "" if nest.channels is None else str(nest.channels.access)
    text = statements.bind(float_text(epilogue, sums, nest.sums, channel))
    is_product = epilogue.scale and not epilogue.relu
    values = [Value(text, "float32", is_product=is_product)]
    if nest.residual is not None:
        addend = load_as(element(nest.residual), nest.residual.dtype, "float32")
        values.append(Value(statements.bind(addend), "float32"))
    vectors = (f"{vector_parameter(name)}[{channel}]" for name in chain.names)
    values += [Value(vector, "float32") for vector in vectors]
    return dict(enumerate(values))
