"""Sums of streamed tiles as TensorIR: the block whose part is finished last adds all parts.

Each block stores the sums of its part in a place of the workspace and counts it. The count tells a
block whether it is the last one; no block waits for another. The parts are added in the order of
the reduction, whoever adds them, so results do not depend on the order of blocks. The last block
sets the count back to zero, so that counters are cleared once, before all calls.
"""

from __future__ import annotations

from cpembed.codegen.plan import buffer
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.emulator.executor import Launch
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.writer import (
    PARTIAL,
    Functions,
    Writer,
    guarded_place,
    register_pointer,
    shared_pointer,
    thread_nest,
)

COUNTERS = "Counters"
"""Parameter that holds the number of parts of each streamed tile that are finished."""

CLEARING = "clear_kernel"
"""Kernel that clears counters, once: each call leaves them cleared."""

CLEARING_THREADS = 128
"""Number of threads of a block that clears counters."""

REGISTER_BYTES = 4

BARRIER = 1
"""Number of the barrier of the consumers; barrier 0 is that of whole blocks."""


def clearing(plan: SpecializedPlan) -> Functions:
    """Return the kernel that clears the counters before the first call."""
    writer, count = Writer(), plan.order.streamed
    script, blocks = writer.script, -(-count // CLEARING_THREADS)
    numbers = {"block": ("blockIdx.x", blocks), "thread": ("threadIdx.x", CLEARING_THREADS)}
    with (
        script.function([buffer(COUNTERS, count, "int32")]),
        thread_nest(script, "clear", numbers, {}, {COUNTERS: count}),
    ):
        number = f"block * {CLEARING_THREADS} + thread"
        script.lines(guarded_place([f"{number} < {count}"], number))
        script.line('zero = T.alloc_buffer((1,), "int32", scope="local")')
        script.line("zero[0] = 0")
        target = f"T.address_of({COUNTERS}[place])"
        writer.call("cpembed_store_4", target, register_pointer("zero", "0"), "valid")
    return {"clear": (writer, Launch(CLEARING, (blocks, 1, 1), (CLEARING_THREADS, 1, 1)))}


def workspace_elements(plan: SpecializedPlan) -> int:
    """Return the number of sums in the workspace."""
    return plan.order.slots * plan.block_sums


def write_part(writer: Writer, plan: SpecializedPlan, registers: int) -> None:
    """Write the end of a range of a reduction: its sums are stored, and its part is counted.

    ``finished[0]`` is 1 behind it where the block has to store results.

    Parameters
    ----------
    writer : Writer
    plan : SpecializedPlan
    registers : int
        Number of sums of a thread, in ``sums``.
    """
    script, consumers = writer.script, plan.schedule.consumers
    script.lines(plan.order.part_script("worker"))
    script.line('finished = T.alloc_buffer((1,), "int32", scope="local")')
    script.line("finished[0] = 1")
    flag = shared_pointer(str(plan.flag_offset))
    width, size = _vector(plan)
    with script.nested("if parts > 1:"):
        with script.nested(f"for i in T.unroll({registers // width}):"):
            source = register_pointer("sums", f"i * {width}")
            writer.call(f"cpembed_store_{size}", _place(plan, width, "part_slot", "i"), source, "1")
        # Counting releases, and acquires, for all threads on both sides of a barrier.
        writer.call("cpembed_named_barrier", str(BARRIER), str(consumers))
        with script.nested("if thread == 0:"):
            writer.value("count", "cpembed_count_part", "int32", f"T.address_of({COUNTERS}[tile])")
            script.line("finished[0] = count")
            writer.call("cpembed_shared_store_4", flag, register_pointer("finished", "0"))
            # Nobody counts the tile again in this call; the next one begins with zero.
            script.line("finished[0] = 0")
            pointer, zero = f"T.address_of({COUNTERS}[tile])", register_pointer("finished", "0")
            writer.call("cpembed_store_4", pointer, zero, 'T.cast(count == parts - 1, "int32")')
        writer.call("cpembed_named_barrier", str(BARRIER), str(consumers))
        writer.call("cpembed_shared_load_4", register_pointer("finished", "0"), flag)
        script.line('finished[0] = T.cast(finished[0] == parts - 1, "int32")')


def write_opaque(writer: Writer, dtype: str, registers: int) -> None:
    """Write that the sums behind a loop of any number of steps are other values.

    Otherwise ptxas would serialise the products whose accumulators the stores read.

    Parameters
    ----------
    writer : Writer
    dtype : str
        Element type of the sums.
    registers : int
        Number of registers of sums of a thread, in ``sums``.
    """
    opaque = "cpembed_opaque_float" if dtype == "float32" else "cpembed_opaque"
    with writer.script.nested(f"for i in T.unroll({registers}):"):
        writer.call(opaque, register_pointer("sums", "i"))


def write_strip(writer: Writer, plan: SpecializedPlan, registers: int) -> None:
    """Write the sums of a strip, of all parts of their tile, into ``total``.

    Accumulators of products in flight are never written here: ptxas would serialise the products.

    Parameters
    ----------
    writer : Writer
        Text of the kernel, in a loop over ``strip``.
    plan : SpecializedPlan
    registers : int
        Number of sums of a thread in a strip.
    """
    script, sums = writer.script, plan.product.sums
    halves = sums == "float16"
    dtype = "uint32" if halves else sums
    script.line(f'total = T.alloc_buffer(({registers},), "{dtype}", scope="local")')
    with script.nested(f"for i in T.unroll({registers}):"):
        script.line(f"total[i] = T.Select(parts > 1, T.{dtype}(0), sums[strip * {registers} + i])")
    with script.nested("if parts > 1:"):
        # Parts of float16 are added in float32, and rounded once.
        name = "wide" if halves else "total"
        if halves:
            script.line(f'wide = T.alloc_buffer(({2 * registers},), "float32", scope="local")')
            with script.nested(f"for i in T.unroll({2 * registers}):"):
                script.line("wide[i] = T.float32(0)")
        _add_parts(writer, plan, registers, name)
        if halves:
            with script.nested(f"for i in T.unroll({registers}):"):
                pair, source = register_pointer("total", "i"), register_pointer("wide", "i * 2")
                writer.call("cpembed_round_halves", pair, source)


def _add_parts(writer: Writer, plan: SpecializedPlan, registers: int, name: str) -> None:
    """Write the sum of a strip of all parts of a tile, in their order, into an array."""
    script, sums = writer.script, plan.product.sums
    width, size = _vector(plan)
    halves = sums == "float16"
    dtype = "uint32" if halves else sums
    script.line(f'addend = T.alloc_buffer(({width},), "{dtype}", scope="local")')
    with (
        script.nested("for other in T.serial(parts):"),
        script.nested(f"for i in T.unroll({registers // width}):"),
    ):
        vector = f"strip * {registers // width} + i"
        source = _place(plan, width, "part_slot - part + other", vector)
        writer.call(f"cpembed_load_{size}", register_pointer("addend", "0"), source, "1")
        for number in range(width):
            target = f"i * {width} + {number}"
            if halves:
                pair = register_pointer("addend", str(number))
                writer.call("cpembed_add_halves", register_pointer(name, f"({target}) * 2"), pair)
            else:
                script.line(f"{name}[{target}] = {name}[{target}] + addend[{number}]")


def _vector(plan: SpecializedPlan) -> tuple[int, int]:
    """Return the number of registers of an access of the workspace, and their bytes."""
    width = min(4, plan.product.instruction.registers[2])
    return width, width * REGISTER_BYTES


def _place(plan: SpecializedPlan, width: int, slot: str, vector: str) -> str:
    """Return a pointer to a vector of a thread; those of neighbouring threads are neighbours."""
    length = width * REGISTER_BYTES // size_bytes(plan.product.sums)
    inside = f"(({vector}) * {plan.schedule.consumers} + thread) * {length}"
    return f"T.address_of({PARTIAL}[({slot}) * {plan.block_sums} + {inside}])"
