"""Text of an instruction in a kernel, and the pieces of TVMScript that nests are written in.

:class:`InstructionText` is all that emission knows of a target.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cpembed.codegen.epilogue_text import result_text
from cpembed.codegen.halo import index_sets
from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.codegen.plan import Script, read, storage_dtype
from cpembed.codegen.script_reader import read_function
from cpembed.ir.computation import AxisKind
from cpembed.transform.program import Loop

INIT, UPDATE, STORE = "init", "update", "store"
"""Names of the blocks of a task, which intrinsics may replace."""

STAGE = "stage"
"""Name of the local buffer between accumulators and an epilogue."""


def vector_parameter(name: str) -> str:
    """Return the name in the text of a vector of an epilogue.

    >>> vector_parameter("@bias"), vector_parameter("@vector0")
    ('Bias', 'Vector0')
    """
    return name.removeprefix("@").capitalize()


# Without it, TVM allocates buffers of 1024 bytes and more from its runtime, and changes in a branch
# are stored and loaded again.
_ON_STACK = '{"disable_lower_builtin": True}'
"""Annotation of a local buffer that the compiler can make registers of."""

StoreText = Callable[[Script, Nest, str], bool]
"""Writes the stores of a task from the named buffer of sums; returns False if it does not apply."""


@dataclass(frozen=True)
class Intrinsic:
    """Tensor intrinsic: its meaning as scalar loops, and its code, both as TVMScript."""

    description: str
    implementation: str

    @property
    def name(self) -> str:
        """Name, equal for equal intrinsics, so that each is registered once."""
        text = self.description + self.implementation
        return f"cpembed_{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def register(self) -> str:
        """Register the intrinsic with TVM and return its name."""
        from tvm.s_tir import TensorIntrin

        if TensorIntrin.get(self.name, allow_missing=True) is None:
            description, implementation = self.description, self.implementation
            TensorIntrin.register(
                self.name, read_function(description), read_function(implementation)
            )
        return self.name


@dataclass(frozen=True)
class LaneSum:
    """Innermost spatial loop whose accumulators are parts of one sum.

    ``total(vector)`` returns TVMScript of the sum of a vector of them.
    """

    loop: str
    total: Callable[[str], str]


@dataclass(frozen=True)
class InstructionText:
    """Instruction in a kernel.

    Parameters
    ----------
    backend : str
        Name of the back end, for reports.
    unrolled, vectorized : collection of str
        Inner loops and reductions to unroll, and inner loops to vectorise where the accumulators
        are set and stored.
    vectorized_update : bool
        Vectorise them also where products are added.
    intrinsics : mapping of str to (Intrinsic, int)
        Replacements of blocks, each with the position of its outermost loop around the block.
    setup, teardown : sequence of str
        Statements around each chunk, such as a tile configuration.
    in_registers : bool
        Accumulators are registers of the compiler.
    opaque : bool
        Accumulators are the instruction's own, which only its store reads. With an epilogue they
        are stored to a local buffer, from which results are computed during the next task.
    store, lane_sum : StoreText, LaneSum, optional
        Writer of the stores, and loop whose accumulators are summed before they are stored.
    attributes, options, functions
        Fields of the :class:`~cpembed.codegen.plan.KernelPlan`.
    """

    backend: str
    unrolled: Collection[str] = ()
    vectorized: Collection[str] = ()
    vectorized_update: bool = False
    intrinsics: Mapping[str, tuple[Intrinsic, int]] = field(
        default_factory=dict[str, tuple[Intrinsic, int]]
    )
    setup: Sequence[str] = ()
    teardown: Sequence[str] = ()
    in_registers: bool = False
    opaque: bool = False
    store: StoreText | None = None
    lane_sum: LaneSum | None = None
    attributes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    functions: str = ""

    @property
    def vectorized_sums(self) -> Collection[str]:
        """Loops to vectorise around the accumulators themselves: none if they are opaque."""
        return () if self.opaque else self.vectorized

    def tensorizing(self, nest: Nest) -> Callable[[Any], None] | None:
        """Return the rewrite of a schedule that replaces blocks of the nest's kernel, if any."""
        if not self.intrinsics:
            return None
        # Each index set has an update block of its own.
        return Tensorizing(
            tuple(
                (block_name(name, number), intrinsic, place)
                for name, (intrinsic, place) in self.intrinsics.items()
                for number in range(len(index_sets(nest)) if name == UPDATE else 1)
            )
        )


@dataclass(frozen=True)
class Tensorizing:
    """Replacement of a kernel's blocks, by name, by intrinsics, each from a loop on."""

    replaced: tuple[tuple[str, Intrinsic, int], ...]

    def __call__(self, work: Any) -> None:
        for name, intrinsic, place in self.replaced:
            block = work.get_sblock(name, "main")
            work.tensorize(work.get_loops(block)[place], intrinsic.register())


def block_name(block: str, index_set: int) -> str:
    """Return the name of a block in one of the index sets."""
    return f"{block}_{index_set}" if index_set else block


def element(operand: KernelOperand) -> str:
    """Return the accessed element of an operand."""
    return f"{operand.parameter}[{operand.access}]"


def update_statement(nest: Nest) -> str:
    """Return the multiply-accumulate of one point."""
    accumulator = f"acc[{nest.accumulator_access}]"
    product = " * ".join(read(element(o), o.dtype, nest.sums) for o in nest.operands[:2])
    return f"{accumulator} = {accumulator} + {product}"


def store_statement(nest: Nest, value: str) -> str:
    """Return the store of a sum, through the nest's epilogue."""
    output = element(nest.operands[2])
    if nest.epilogue is None:
        return f"{output} = {value}"
    channel = "" if nest.channels is None else str(nest.channels.access)
    residual = "" if nest.residual is None else element(nest.residual)
    return f"{output} = {result_text(nest.epilogue, value, nest.sums, channel, residual)}"


def loop_variable(loop: Loop) -> str:
    """Return the variable of a loop around a block, whose iterator has the loop's name."""
    return f"at_{loop.name}"


def write_block(script: Script, name: str, loops: Sequence[Loop], *statements: str) -> None:
    """Write a block.

    Parameters
    ----------
    script, name : Script, str
        Text to write to, and name of the block.
    loops : sequence of Loop
        Loops around the block, each bound to an iterator of the same name.
    *statements : str
        Contents.
    """
    with script.nested(f'with T.sblock("{name}"):'):
        if loops:
            kinds = "".join("R" if loop.kind is AxisKind.REDUCTION else "S" for loop in loops)
            names = ", ".join(loop.name for loop in loops)
            variables = ", ".join(loop_variable(loop) for loop in loops)
            script.line(f'{names} = T.axis.remap("{kinds}", [{variables}])')
        script.lines(statements)


def loop_headers(
    loops: Sequence[Loop], unrolled: Collection[str] = (), vectorized: Collection[str] = ()
) -> list[str]:
    """Return headers of loops.

    Parameters
    ----------
    loops : sequence of Loop
        Loops, outermost first.
    unrolled, vectorized : collection of str
        Names of those to unroll and to vectorise; the rest is serial.
    """
    headers: list[str] = []
    for loop in loops:
        kind = "unroll" if loop.name in unrolled else "serial"
        kind = "vectorized" if loop.name in vectorized else kind
        headers.append(f"for {loop_variable(loop)} in T.{kind}({loop.extent}):")
    return headers


def region_lines(nest: Nest, *, packs: bool = False, stages: bool = False) -> tuple[str, str]:
    """Return the regions that a block around the whole nest reads and writes: all buffers.

    Parameters
    ----------
    nest : Nest
        Nest with its annotations.
    packs, stages : bool
        Include those of per-thread packing, and the local buffer :data:`STAGE`.
    """
    regions = [f"{o.parameter}[0:{o.elements}]" for o in nest.operands]
    read_regions = regions[:2]
    if nest.epilogue is not None and nest.channels is not None:
        size = nest.channels.elements
        read_regions += [f"{vector_parameter(name)}[0:{size}]" for name in nest.epilogue.vectors]
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
    """Bind the task loops as block iterators, so that everything inside sees plain variables.

    Parameters
    ----------
    script, nest : Script, Nest
        Text to write to, and nest of the tasks.
    task : str
        Number of the task in the text.
    named : callable
        Name of a task loop's iterator; by default that of the loop.
    """
    # A task's number is mixed-radix over the task loops, the innermost fastest: consecutive tasks
    # of a chunk share what the outer loops move.
    inside = 1
    bindings: list[str] = []
    for loop in reversed(nest.tasks):
        start = loop.start_text(f"({task}) // {inside} % {loop.count}")
        bindings.append(f"{named(loop.name)} = T.axis.spatial({loop.extent}, {start})")
        inside *= loop.count
    script.lines(reversed(bindings))


def local_buffer(script: Script, name: str, nest: Nest, *, in_registers: bool = False) -> None:
    """Write the allocation of a buffer with an element for each accumulator.

    Parameters
    ----------
    script, name : Script, str
        Text to write to, and name of the buffer.
    nest : Nest
        Nest with the accumulators.
    in_registers : bool
        Let the compiler make registers of it.
    """
    layout = f'({nest.accumulators},), "{storage_dtype(nest.sums)}", scope="local"'
    if in_registers:
        script.line(f"{name} = T.alloc_buffer({layout}, annotations={_ON_STACK})")
    else:
        script.line(f"{name} = T.sblock_alloc_buffer({layout})")
