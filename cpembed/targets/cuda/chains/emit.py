"""Kernel of a chain as TensorIR.

A block keeps its rows of the first product's first factor, and goes over chunks of the columns that
the second product sums over. Of each chunk it computes the first product, the function between, and
adds the second product to its sums. Chunks are copied ahead by ``cp.async``, as stages of
:mod:`cpembed.targets.cuda.multistage.emit` are, with one barrier each; the end of the kernel is
that of a product's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from cpembed.codegen.plan import HEADER, buffer, storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.chains.plan import MAX_UNROLLED, ChainPlan, TileFactor
from cpembed.targets.cuda.chains.pointwise import write_pointwise
from cpembed.targets.cuda.chains.registers import bit_order
from cpembed.targets.cuda.chains.softmax import Softmax
from cpembed.targets.cuda.epilogue import input_declarations, output_declarations
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.multistage.schedule import CHUNK, MAX_UNROLLED_COPIES
from cpembed.targets.cuda.reduction import STATISTICS
from cpembed.targets.cuda.results import write_results
from cpembed.targets.cuda.writer import (
    PARTIAL,
    Writer,
    digits,
    guarded_place,
    index_script,
    inside_conditions,
    register_pointer,
    shared_pointer,
)
from cpembed.workloads.chains import END, RowSoftmax


def chain_kernel(plan: ChainPlan) -> Writer:
    """Return the function ``main`` of a chain."""
    writer, product = Writer(), plan.second
    declared = [
        buffer(factor.role, factor.operand.layout.elements, factor.operand.layout.dtype)
        for factor in plan.factors
    ]
    declared += [*further_declarations(plan), *result_declarations(plan)]
    writer.script.line(HEADER)
    with writer.script.nested(f"def main({', '.join(declared)}):"):
        writer.script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        with thread_nest(writer, plan):
            reads = [f"{f.role}[0 : {f.operand.layout.elements}]" for f in plan.factors]
            writer.script.line(f"T.reads({', '.join(reads)})")
            written = "C" if plan.schedule.splits == 1 else PARTIAL
            elements = plan.schedule.splits * product.output.layout.elements
            writer.script.line(f"T.writes({written}[0 : {elements}])")
            _ChainBody(writer, plan).write()
    return writer


def further_declarations(plan: ChainPlan) -> list[str]:
    """Return declarations of the chain's inputs beside the factors."""
    factors = {x.name for x in (*plan.chain.first.inputs, *plan.chain.second.inputs)}
    return [
        buffer(name, math.prod(shape), dtype)
        for name, (shape, dtype) in plan.chain.inputs.items()
        # What the second product's epilogue reads is declared with the result.
        if name not in factors and not name.startswith(END)
    ]


def result_declarations(plan: ChainPlan) -> list[str]:
    """Return declarations of what the kernel writes, and of what its epilogue reads."""
    product, splits = plan.second, plan.schedule.splits
    if splits == 1:
        return [*input_declarations(product), *output_declarations(product)]
    elements = product.output.layout.elements
    declared = [buffer(PARTIAL, splits * elements, product.sums)]
    if isinstance(plan.chain.function, RowSoftmax):
        rows = elements // product.output.layout.original_shape[-1]
        declared.append(buffer(STATISTICS, 2 * splits * rows, "float32"))
    return declared


@contextmanager
def thread_nest(writer: Writer, plan: ChainPlan) -> Generator[None]:
    """Write the numbers of blocks and threads around the statements of a thread."""
    rows, columns, batch = plan.blocks
    script, splits = writer.script, plan.schedule.splits
    numbers = [
        ("block", "bx", rows * columns, "blockIdx.x"),
        ("batch", "by", batch, "blockIdx.y"),
        *[("part", "bz", splits, "blockIdx.z")] * (splits > 1),
        ("thread", "tx", plan.threads, "threadIdx.x"),
    ]
    loops = [
        f'for {loop} in T.thread_binding({extent}, thread="{tag}"):'
        for _, loop, extent, tag in numbers
    ]
    with script.nested(*loops, 'with T.sblock("chain"):'):
        for name, loop, extent, _ in numbers:
            script.line(f"{name} = T.axis.spatial({extent}, {loop})")
        yield


def locate_block(writer: Writer, plan: ChainPlan) -> None:
    """Write the first instruction tiles of the block, along rows and columns of the result."""
    rows, columns, _ = plan.blocks
    # Blocks with most keys of a causal mask begin first, so that the last ones are short.
    block = f"({rows - 1} - block // {columns})"
    writer.script.lines(
        (
            f"row = {block} * {plan.block_rows}",
            f"column = block % {columns} * {plan.schedule.columns}",
        )
    )


def locate_chunks(writer: Writer, plan: ChainPlan, softmax: Softmax | None) -> tuple[str, str]:
    """Write which chunks a block visits.

    Parameters
    ----------
    writer, plan : Writer, ChainPlan
    softmax : Softmax or None
        Writer of the function between the products, if it is a softmax.

    Returns
    -------
    tuple of str and str
        Expressions of the first chunk, and of the one behind the last.
    """
    first, last = ("0", str(plan.chunks)) if softmax is None else softmax.locate_block()
    script, splits = writer.script, plan.schedule.splits
    if splits == 1 and first == "0" and last.isdecimal():
        return first, last
    if first != "0":
        script.line(f"first_chunk = {first}")
        first = "first_chunk"
    script.line(f"last_chunk = {last}")
    if splits == 1:
        return first, "last_chunk"
    # Parts are as even as whole chunks can be, whatever number a mask leaves.
    script.line(f"chunk_count = T.max(0, last_chunk - {first})")
    script.line(f"part_first = {first} + T.truncdiv(chunk_count * part, {splits})")
    script.line(f"part_last = {first} + T.truncdiv(chunk_count * (part + 1), {splits})")
    return "part_first", "part_last"


def chunk_after(first: str, number: int) -> str:
    """Return the number of a chunk, counted from the first that a block visits."""
    return str(number) if first == "0" else f"({first} + {number})"


def write_function(
    writer: Writer,
    plan: ChainPlan,
    softmax: Softmax | None,
    step: str,
    *,
    finish: Callable[[], None] | None = None,
) -> None:
    """Write the function between the products, from ``scores`` to ``middle``.

    Parameters
    ----------
    writer, plan : Writer, ChainPlan
    softmax : Softmax or None
        Writer of the function if it is a softmax.
    step : str
        Number of the chunk.
    finish : callable, optional
        Writer of the wait for products that read ``middle`` and change the sums.
    """
    if softmax is not None:
        softmax.write_powers(step)
    if finish is not None:
        finish()
    if softmax is None:
        write_pointwise(writer, plan, step)
    else:
        softmax.rescale()
        softmax.write_middle()


class _ChainBody:
    """Writer of the statements of one thread of a chain."""

    def __init__(self, writer: Writer, plan: ChainPlan) -> None:
        self.writer, self.plan = writer, plan
        self.script, self.schedule = writer.script, plan.schedule
        self.instruction = plan.second.instruction
        self.softmax = (
            Softmax(writer, plan) if isinstance(plan.chain.function, RowSoftmax) else None
        )

    def write(self) -> None:
        self._allocate()
        self._locate_thread()
        locate_block(self.writer, self.plan)
        first, last = locate_chunks(self.writer, self.plan, self.softmax)
        if self.softmax is not None:
            self.softmax.begin()
        stages = self.schedule.stages
        self._copy(self.plan.rows_factor, "0", "0")
        for number in range(stages - 1):
            chunk = chunk_after(first, number)
            with self.script.nested(f"if {chunk} < {last}:"):
                self._load_stage(chunk, f"({chunk} % {stages})")
            self.writer.call("cpembed_cp_async_commit")
        if self.plan.holds_rows:
            self._hold_rows()
        with self.script.nested(f"for step in T.serial({first}, {last}):"):
            # The chunk that is multiplied next has arrived; those after it may be in flight.
            self.writer.call(f"cpembed_cp_async_wait_{stages - 2}")
            self.writer.barrier()
            later = f"(step + {stages - 1})"
            with self.script.nested(f"if {later} < {last}:"):
                self._load_stage(later, f"({later} % {stages})")
            self.writer.call("cpembed_cp_async_commit")
            base = f"{self.plan.stage_start} + step % {stages} * {self.plan.stage_bytes}"
            self._multiply_first(base)
            write_function(self.writer, self.plan, self.softmax, "step")
            self._multiply_second(base)
        self.writer.call("cpembed_cp_async_wait_0")
        self.writer.barrier()
        if self.softmax is not None:
            self.softmax.end()
        write_results(self.writer, self.plan.result)

    def _allocate(self) -> None:
        plan, schedule = self.plan, self.schedule
        first, second, sums = self.instruction.registers
        shared_bytes = plan.shared_bytes
        self.script.line(f'shared = T.alloc_buffer(({shared_bytes},), "uint8", scope="shared.dyn")')
        # TVM shrinks shared memory to the accesses that it sees, so the last byte is touched.
        self.script.line(f"T.evaluate({shared_pointer(str(shared_bytes - 1))})")
        fragments = schedule.rows * (plan.first.tiles[3] if plan.holds_rows else 1) * first
        middle = schedule.rows * self.instruction.m * self.instruction.k // LANES
        if schedule.via == "registers":
            middle *= schedule.chunk
        results = schedule.rows * plan.warp_columns * sums
        scores = schedule.rows * plan.warp_column_tiles * sums
        dtype, factors = self._sums_dtype(), storage_dtype(plan.chain.factors)
        for name, count, kind in (
            ("held", fragments, "uint32"),
            ("columns", 2 * second, "uint32"),
            ("scores", scores, dtype),
            ("middle", middle, factors),
            ("sums", results, dtype),
        ):
            self.script.line(f'{name} = T.alloc_buffer(({count},), "{kind}", scope="local")')
        with self.script.nested(f"for i in T.unroll({results}):"):
            self.script.line(f"sums[i] = T.{dtype}(0)")

    def _sums_dtype(self) -> str:
        return self.plan.second.sums

    def _locate_thread(self) -> None:
        """Write the lane, and the warp's place in the block."""
        along = self.schedule.warps[1]
        self.script.lines(
            (
                f"lane = thread % {LANES}",
                f"warp_row = thread // {LANES * along}",
                f"warp_column = thread // {LANES} % {along}",
            )
        )

    # -- copies -----------------------------------------------------------------------------------

    def _load_stage(self, chunk: str, stage: str) -> None:
        base = f"{self.plan.stage_start} + {stage} * {self.plan.stage_bytes}"
        columns = self.plan.columns_factor
        self._copy(columns, chunk, base)
        self._copy(self.plan.second_factor, chunk, f"{base} + {columns.tile.bytes}")

    def _copy(self, factor: TileFactor, chunk: str, base: str) -> None:
        """Write the copies of a factor's tile to the byte ``base``."""
        threads = self.plan.threads
        full_turns, rest = divmod(factor.vectors, threads)
        turns = full_turns + bool(rest)
        loop = "unroll" if factor.tile.width >= 4 and turns <= MAX_UNROLLED_COPIES else "serial"
        with self.script.nested(f"for turn in T.{loop}({turns}):"):
            self.script.line(f"slot = turn * {threads} + thread")
            # All lanes of a warp, or none: a tile has a multiple of 32 vectors.
            with self.script.nested(*[f"if slot < {factor.vectors}:"] * bool(rest)):
                self._locate_vector(factor, chunk)
                self._copy_vector(factor, base)

    def _locate_vector(self, factor: TileFactor, chunk: str) -> None:
        """Write ``place``, the number of a slot's vector in its factor, and ``valid``."""
        product, operand = factor.product, factor.operand
        per_line = factor.length // operand.length
        self.script.lines(
            (
                f"shared_row = slot // {per_line}",
                f"element = slot % {per_line} * {operand.length}",
            )
        )
        instruction = product.instruction
        # Positions along rows or columns of tiles, and along the depth.
        across, deep = "shared_row", "element"
        if not factor.along_depth:
            across, deep = deep, across
        number = 0 if factor.role == "A" else 1
        extent = instruction.m if number == 0 else instruction.n
        tiles, depths = {
            "A": ("row", ""),
            "B": (f"{chunk} * {self.plan.column_tiles}", ""),
            "B2": ("column", f"{chunk} * {self.schedule.chunk} + "),
        }[factor.role]
        self.script.lines(
            (
                f"tile = {tiles} + {across} // {extent}",
                f"deep = {depths}{deep} // {instruction.k}",
            )
        )
        loops = product.rows if number == 0 else product.columns
        values = {
            **dict.fromkeys((loop.name for loop in product.program.loops), "0"),
            **digits("batch", product.batch),
            **digits("tile", loops),
            **digits("deep", product.depth),
            product.axes[number]: f"{across} % {extent}",
            product.axes[2]: f"{deep} % {instruction.k}",
        }
        extents = product.program.extents
        conditions = [f"tile < {product.tiles[1 + number]}", f"deep < {product.tiles[3]}"]
        conditions += inside_conditions(operand, values, extents)
        address = index_script(operand.address, values, extents)
        self.script.lines(guarded_place(conditions, address))

    def _copy_vector(self, factor: TileFactor, base: str) -> None:
        """Write the copy of a vector into shared memory, asynchronous if it has 4 bytes or more."""
        operand, tile = factor.operand, factor.tile
        size = size_bytes(operand.layout.dtype)
        chunk, offset = f"element * {size} // {CHUNK}", f"element * {size} % {CHUNK}"
        target = shared_pointer(f"{base} + {tile.place('shared_row', chunk)} + {offset}")
        pointer = f"T.address_of({factor.role}[place])"
        if tile.width >= 4:
            self.writer.call(f"cpembed_cp_async_{tile.width}", target, pointer, "valid")
            return
        # Shorter than cp.async takes: through registers, without overlap.
        name, dtype = f"{factor.role}_one", storage_dtype(operand.layout.dtype)
        self.script.line(f'{name} = T.alloc_buffer(({operand.length},), "{dtype}", scope="local")')
        self.writer.call(
            f"cpembed_load_{tile.width}", register_pointer(name, "0"), pointer, "valid"
        )
        self.writer.call(f"cpembed_shared_store_{tile.width}", target, register_pointer(name, "0"))

    # -- products ---------------------------------------------------------------------------------

    def _hold_rows(self) -> None:
        """Write the loads of all fragments of the block's rows, which stay in registers."""
        # The rows are in the first group, so the groups after it may be in flight.
        self.writer.call(f"cpembed_cp_async_wait_{max(0, self.schedule.stages - 2)}")
        self.writer.barrier()
        depth = self.plan.first.tiles[3]
        with self.script.nested(f"for inner in T.unroll({depth}):"):
            self._load_rows(lambda i: f"({i} * {depth} + inner)")

    def _load_rows(self, place: Callable[[str], str]) -> None:
        """Write loads of the fragments of the warp's rows at ``inner``."""
        rows, factor = self.schedule.rows, self.plan.rows_factor
        with self.script.nested(f"for i in T.unroll({rows}):"):
            row = f"(warp_row * {rows} + i) * {self.instruction.m} + lane % 16"
            byte = factor.tile.place(row, "inner * 2 + lane // 16")
            register = f"{place('i')} * {self.instruction.registers[0]}"
            self.writer.call(
                "cpembed_ldmatrix_x4", register_pointer("held", register), shared_pointer(byte)
            )

    def _multiply_first(self, base: str) -> None:
        """Write the first product of a chunk."""
        plan, rows = self.plan, self.schedule.rows
        depth, tiles, count = plan.first.tiles[3], plan.warp_column_tiles, self._sums
        dtype = self._sums_dtype()
        with self.script.nested(f"for i in T.unroll({rows * tiles * count}):"):
            self.script.line(f"scores[i] = T.{dtype}(0)")
        kind = "unroll" if depth <= MAX_UNROLLED else "serial"
        with self.script.nested(f"for inner in T.{kind}({depth}):"):
            if not plan.holds_rows:
                self._load_rows(lambda i: i)
            register = f"(i * {depth} + inner)" if plan.holds_rows else "i"
            with self.script.nested(f"for j in T.unroll({tiles // 2}):"):
                line = f"(warp_column * {tiles} + j * 2 + lane // 16) * {self.instruction.n} + "
                self._load_columns(plan.columns_factor, base, f"{line}lane % 8", "inner", 4)
                with self.script.nested("for u in T.unroll(2):", f"for i in T.unroll({rows}):"):
                    self.writer.call(
                        self.instruction.mma_function,
                        register_pointer("scores", f"(i * {tiles} + j * 2 + u) * {count}"),
                        register_pointer("held", f"{register} * {self.instruction.registers[0]}"),
                        register_pointer("columns", f"u * {self.instruction.registers[1]}"),
                    )

    @property
    def _sums(self) -> int:
        return self.instruction.registers[2]

    def _load_columns(
        self, factor: TileFactor, base: str, line: str, inner: str, count: int
    ) -> None:
        """Write the load of columns of a factor whose lines run along the depth."""
        byte = factor.tile.place(line, f"{inner} * 2 + lane // 8 % 2")
        self.writer.call(
            f"cpembed_ldmatrix_x{count}",
            register_pointer("columns", "0"),
            shared_pointer(f"{base} + {byte}"),
        )

    def _multiply_second(self, base: str) -> None:
        """Write the second product of a chunk."""
        plan = self.plan
        base = f"{base} + {plan.columns_factor.tile.bytes}"
        elements = self.instruction.m * self.instruction.k // LANES
        in_registers = self.schedule.via == "registers"
        if not in_registers:
            # The operand between is another warp's too.
            self.writer.barrier()
        with self.script.nested(f"for inner in T.unroll({self.schedule.chunk}):"):
            if not in_registers:
                self._load_middle()
            place = f"(i * {self.schedule.chunk} + inner)" if in_registers else "i"
            pairs, rest = divmod(plan.warp_columns, 2)
            if pairs:
                with self.script.nested(f"for j in T.unroll({pairs}):"):
                    self._load_second(base, "j * 2", 4)
                    with self.script.nested("for u in T.unroll(2):"):
                        self._multiply_tile("j * 2 + u", f"{place} * {elements}", "u")
            if rest:
                self._load_second(base, str(plan.warp_columns - 1), 2)
                self._multiply_tile(str(plan.warp_columns - 1), f"{place} * {elements}", "0")

    def _multiply_tile(self, column: str, middle: str, number: str) -> None:
        rows, columns = self.schedule.rows, self.plan.warp_columns
        with self.script.nested(f"for i in T.unroll({rows}):"):
            self.writer.call(
                self.instruction.mma_function,
                register_pointer("sums", f"(i * {columns} + {column}) * {self._sums}"),
                register_pointer("middle", middle),
                register_pointer("columns", f"{number} * {self.instruction.registers[1]}"),
            )

    def _load_middle(self) -> None:
        """Write loads of the operand between the products from shared memory."""
        rows, tile = self.schedule.rows, self.plan.middle
        elements = self.instruction.m * self.instruction.k // LANES
        with self.script.nested(f"for i in T.unroll({rows}):"):
            row = f"(warp_row * {rows} + i) * {self.instruction.m} + lane % 16"
            byte = f"{self.plan.rows_factor.tile.bytes} + "
            byte += tile.place(row, "inner * 2 + lane // 16")
            self.writer.call(
                "cpembed_ldmatrix_x4",
                register_pointer("middle", f"i * {elements}"),
                shared_pointer(byte),
            )

    def _load_second(self, base: str, column: str, count: int) -> None:
        """Write the load of one tile's columns of the second factor, or of two tiles'."""
        factor, n = self.plan.second_factor, self.instruction.n
        tile = f"(warp_column * {self.plan.warp_columns} + {column}"
        tile += " + lane // 16)" if count == 4 else ")"
        if factor.along_depth:
            self._load_columns(factor, base, f"{tile} * {n} + lane % 8", "inner", count)
            return
        # Lines are steps of the depth, whose order is that of the coupling.
        line = bit_order("(lane % 8 + lane // 8 % 2 * 8)", self.plan.order)
        byte = factor.tile.place(f"inner * {self.instruction.k} + {line}", tile)
        self.writer.call(
            f"cpembed_ldmatrix_x{count}_trans",
            register_pointer("columns", "0"),
            shared_pointer(f"{base} + {byte}"),
        )


def parameters_of(plan: ChainPlan) -> Mapping[str, str]:
    """Return the chain's inputs by parameter of the kernel."""
    first, second = plan.chain.first, plan.chain.second
    names = {"A": first.inputs[0].name, "B": first.inputs[1].name, "B2": second.inputs[1].name}
    factors = {x.name for x in (*first.inputs, *second.inputs)}
    return names | {
        name.removeprefix(END): name for name in plan.chain.inputs if name not in factors
    }
