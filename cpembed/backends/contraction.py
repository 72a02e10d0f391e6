"""The contraction kernel's TVMScript, from a nest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from cpembed.backends.epilogue import BIAS, SCALE
from cpembed.backends.margins import Body, bodies, guarded
from cpembed.backends.nest import KernelOperand, Nest
from cpembed.backends.private_packing import PrivatePacking
from cpembed.backends.script import HEADER, Script, buffer, read, storage_dtype, zero
from cpembed.backends.shared_sums import SharedSums
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import Loop

INIT, UPDATE, STORE = "init", "update", "store"
"""Names of the blocks that a back end tensorizes."""

ON_STACK = '{"disable_lower_builtin": True}'
"""A local buffer with this stays on the stack, however large, so that the compiler can make
registers of it: memory of 1024 bytes and more is taken from the runtime otherwise, and what a
branch changes of it is stored and loaded again."""

STAGE = "stage"
"""Name of the local buffer between accumulators and an epilogue."""

Results = Callable[[Script, Nest, str], bool]
"""Writes what a task stores of its sums, from the buffer in which they are; False where it does
not."""


@dataclass(frozen=True)
class AddedUp:
    """The innermost spatial loop, whose accumulators are the parts of one sum that is stored:
    ``total(vector)`` is TVMScript for that of a vector of them."""

    loop: str
    total: Callable[[str], str]


VECTOR_PARAMETERS = {BIAS: "Bias", SCALE: "Scale"}


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
    each_step: Callable[[Script, Nest], None] | None = None,
    shared: SharedSums | None = None,
    added_up: AddedUp | None = None,
    in_registers: bool = False,
) -> str:
    """``C = sum A * B`` over the nest, in ``chunks`` parallel parts of equal numbers of tasks.

    ``prologue`` and ``epilogue`` are statements around each part (a tile configuration);
    ``unrolled`` names inner loops and reductions to unroll, ``vectorized`` those to vectorise where
    the accumulators are set and stored, and with ``vectorized_update`` where they are added to.
    ``stages``: with an epilogue of the nest, accumulators are stored to a local buffer first, where
    nothing but a store can read them; what becomes of them is computed while the next task's
    products are on their way. ``results`` writes down what is stored, where it does.
    ``packing``: each part packs the first factor for itself; the nest is then that of ``packing``,
    its original the first parameter and the parts' copies the last. ``each_step`` writes down what
    comes before the products of a step of the reductions. ``shared``: the nest stores parts of
    sums, which are added up at the end. ``added_up``: what makes one of several accumulators.
    ``in_registers``: these are registers, as :class:`~cpembed.backends.contract.KernelPlan` has to
    say too.
    """
    delayed = None
    if stages and nest.epilogue is not None:
        delayed = _Delayed(nest, tuple(unrolled), tuple(vectorized), results)
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
            _regions(script, nest, packing)
            for statement in prologue:
                script.line(statement)
            first, end = f"part * {total} // {chunks}", f"(part + 1) * {total} // {chunks}"
            if delayed is not None:
                _local(script, STAGE, nest)
            with (
                _packed(script, nest, packing, (first, end), stages=delayed is not None) as found,
                script.nested(
                    f"for task in T.serial({', '.join(found)}):", 'with T.sblock("task"):'
                ),
            ):
                if delayed is not None:
                    script.line(f"now = T.axis.spatial({total}, task)")
                _bind_task(script, nest)
                _regions(script, nest, stages=delayed is not None)
                added = vectorized if vectorized_update else ()
                _local(script, "acc", nest, in_registers=in_registers)
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


def staged(nest: Nest) -> Nest:
    """A nest with an epilogue as its accumulators are stored: to a local buffer."""
    first, second, output = nest.operands
    stage = replace(
        output, dtype=nest.sums, elements=nest.accumulators, access=nest.accumulator_access
    )
    return replace(nest, operands=(first, second, stage))


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


def _regions(
    script: Script, nest: Nest, packing: PrivatePacking | None = None, *, stages: bool = False
) -> None:
    for line in _region_lines(nest, packing, stages=stages):
        script.line(line)


def _region_lines(nest: Nest, packing: PrivatePacking | None, *, stages: bool) -> tuple[str, str]:
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
    regions = _region_lines(nest, packing, stages=stages)
    with packing.packed(script, tasks, regions) as found:
        yield found


def _bind_task(
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
    """Of a block in one of the bodies (:func:`~cpembed.backends.margins.bodies`)."""
    return f"{block}_{number}" if number else block


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
    each_step: Callable[[Script, Nest], None] | None,
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
        if each_step is not None:
            each_step(script, nest)
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
    statement = _store_statement(nest, accumulator)
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
        write_block(script, STORE, spatial, *regions, _store_statement(nest, total))


@dataclass(frozen=True)
class _Delayed:
    """What becomes of a task's sums, which lie in a buffer."""

    nest: Nest
    unrolled: tuple[str, ...]
    vectorized: tuple[str, ...]
    results: Results | None

    def write(self, script: Script, task: str, condition: str | None = None) -> None:
        """The results of a task, where there is such a one."""
        loops = {loop.name for loop in self.nest.tasks}

        def named(loop: str) -> str:
            return f"{loop}_stored" if loop in loops else loop

        first, second, output = self.nest.operands
        output = replace(output, access=output.access.rename(named))
        channels = self.nest.channels
        if channels is not None:
            channels = replace(channels, access=channels.access.rename(named))
        nest = replace(self.nest, operands=(first, second, output), channels=channels)
        spatial = nest.spatial_inner
        statement = _store_statement(nest, f"{STAGE}[{nest.accumulator_access}]")
        with script.nested('with T.sblock("results"):'):
            _bind_task(script, nest, task, named)
            _regions(script, nest, stages=True)
            conditions = [] if condition is None else [f"if {condition}:"]
            with script.nested(*conditions):
                if self.results is not None and self.results(script, nest, STAGE):
                    return
                inward = self._in_order(spatial, output)
                with script.nested(*loop_headers(inward, self.unrolled, self.vectorized)):
                    write_block(script, "result", inward, statement)

    def _in_order(self, loops: Sequence[Loop], output: KernelOperand) -> list[Loop]:
        """The loops in the order in which results lie in memory, as far as vectors let them: lines
        that are stored together come together (of results beyond the second-level cache, 1.2 times
        the time in the order of tiles)."""

        def inward(loop: Loop) -> tuple[bool, int]:
            return loop.name in self.vectorized, -abs(output.stride(loop.name))

        return sorted(loops, key=inward)


def _local(script: Script, name: str, nest: Nest, *, in_registers: bool = False) -> None:
    what = f'({nest.accumulators},), "{storage_dtype(nest.sums)}", scope="local"'
    if in_registers:
        script.line(f"{name} = T.alloc_buffer({what}, annotations={ON_STACK})")
    else:
        script.line(f"{name} = T.sblock_alloc_buffer({what})")


def _store_statement(nest: Nest, value: str) -> str:
    output = element(nest.operands[2])
    if nest.epilogue is None:
        return f"{output} = {value}"
    channel = "" if nest.channels is None else str(nest.channels.access)
    return f"{output} = {nest.epilogue.expression(value, nest.sums, channel)}"
