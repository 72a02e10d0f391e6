"""Kernel of a chain as TensorIR.

A block keeps its rows of the first product's first factor, and goes over chunks of the columns that
the second product sums over. Of each chunk it computes the first product, the function between, and
adds the second product to its sums. Chunks are copied ahead by ``cp.async``, as stages of
:mod:`cpembed.targets.cuda.multistage.emit` are, with one barrier each; the end of the kernel is
that of a product's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager

from cpembed.codegen.plan import Script, buffer, storage_dtype
from cpembed.targets.cuda.chains.copied import copied_tiles
from cpembed.targets.cuda.chains.plan import MAX_UNROLLED, ChainPlan
from cpembed.targets.cuda.chains.pointwise import write_pointwise
from cpembed.targets.cuda.chains.softmax import Softmax
from cpembed.targets.cuda.epilogue import input_declarations, output_declarations
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lane_places import bit_order
from cpembed.targets.cuda.multistage.emit import locate_stages, turn_stages
from cpembed.targets.cuda.multistage.linear_copies import tile_copies
from cpembed.targets.cuda.multistage.schedule import CHUNK, SharedTile
from cpembed.targets.cuda.multistage.tile_copies import SWIZZLE_ROWS
from cpembed.targets.cuda.reduction import STATISTICS
from cpembed.targets.cuda.results import write_results
from cpembed.targets.cuda.writer import (
    PARTIAL,
    Writer,
    register_pointer,
    shared_pointer,
    thread_nest,
)
from cpembed.workloads.chains import END, RowSoftmax


def chain_kernel(plan: ChainPlan) -> Writer:
    """Return the function ``main`` of a chain."""
    writer = Writer()
    factors = {factor.role: factor.operand.layout for factor in plan.factors}
    declared = [buffer(name, layout.elements, layout.dtype) for name, layout in factors.items()]
    reads = {name: layout.elements for name, layout in factors.items()}
    with kernel_frame(writer.script, plan, declared, reads):
        # Without it ptxas aims at numbers of blocks of its own, for which some kernels spill.
        blocks = f'"tirx.launch_bounds_min_blocks_per_sm", {plan.min_blocks}'
        writer.script.line(f"T.attr(0, {blocks})")
        _ChainBody(writer, plan).write()
    return writer


@contextmanager
def kernel_frame(
    script: Script, plan: ChainPlan, factors: Sequence[str], reads: Mapping[str, int]
) -> Generator[None]:
    """Write the function of a chain's kernel around the statements of a thread.

    Parameters
    ----------
    script, plan : Script, ChainPlan
    factors : sequence of str
        Declarations of the factors.
    reads : mapping of str to int
        Number of elements of each factor that is a buffer.
    """
    (rows, columns, batch), splits, product = plan.blocks, plan.schedule.splits, plan.second
    written = "C" if splits == 1 else PARTIAL
    numbers = {
        "block": ("blockIdx.x", rows * columns),
        "batch": ("blockIdx.y", batch),
        **({"part": ("blockIdx.z", splits)} if splits > 1 else {}),
        "thread": ("threadIdx.x", plan.threads),
    }
    writes = {written: splits * product.output.layout.elements}
    declared = [*factors, *_further_declarations(plan), *_result_declarations(plan)]
    with script.function(declared), thread_nest(script, "chain", numbers, reads, writes):
        yield


def _further_declarations(plan: ChainPlan) -> list[str]:
    """Return declarations of the chain's inputs beside the factors."""
    factors = {x.name for x in (*plan.chain.first.inputs, *plan.chain.second.inputs)}
    return [
        buffer(name, math.prod(shape), dtype)
        for name, (shape, dtype) in plan.chain.inputs.items()
        # What the second product's epilogue reads is declared with the result.
        if name not in factors and not name.startswith(END)
    ]


def _result_declarations(plan: ChainPlan) -> list[str]:
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


class _Fragments:
    """Loads of the fragments of a factor in shared memory.

    Where chunks are permuted, the places of a lane at different chunks of a line are no constant
    apart. Those of all chunks of 128 bytes are computed before the loop, which adds constants.

    Parameters
    ----------
    writer : Writer
    name : str
        Name of the factor, with which those of variables begin.
    tile : SharedTile
    line, chunk : str
        Expressions of a lane's first line and chunk.
    """

    def __init__(self, writer: Writer, name: str, tile: SharedTile, line: str, chunk: str) -> None:
        self.writer, self.name, self.tile = writer, name, tile
        self.line, self.chunk = line, chunk

    def locate(self, chunks: Iterable[int]) -> None:
        """Write the places of a lane at some distances of chunks."""
        script, array = self.writer.script, f"{self.name}_places"
        numbers = sorted({chunk % SWIZZLE_ROWS for chunk in chunks})
        script.line(f'{array} = T.alloc_buffer(({numbers[-1] + 1},), "int32", scope="local")')
        for chunk in numbers:
            place = self.tile.place(self.line, f"({self.chunk} + {chunk})")
            script.line(f"{array}[{chunk}] = {place}")
            # The compiler would compute most of them again in each turn of the loop.
            self.writer.call("cpembed_opaque", register_pointer(array, str(chunk)))

    def load(self, count: int, registers: str, base: str, lines: int, chunks: int) -> None:
        """Write a load of matrices.

        Parameters
        ----------
        count : int
            Number of matrices.
        registers : str
            Pointer to the first register.
        base : str
            Byte at which the tile begins.
        lines, chunks : int
            Distance of the matrices from the first ones of the tile; lines are a multiple of 8.
        """
        groups, chunk = divmod(chunks, SWIZZLE_ROWS)
        offset = lines * self.tile.pitch + groups * SWIZZLE_ROWS * CHUNK
        self.writer.call(
            f"cpembed_ldmatrix_x{count}{'_trans' * self.tile.transposed}",
            registers,
            shared_pointer(f"{self.name}_places[{chunk}] + {base} + {offset}"),
        )


class _ChainBody:
    """Writer of the statements of one thread of a chain."""

    def __init__(self, writer: Writer, plan: ChainPlan) -> None:
        self.writer, self.plan = writer, plan
        self.script, self.schedule = writer.script, plan.schedule
        self.instruction = plan.second.instruction
        self.softmax = (
            Softmax(writer, plan) if isinstance(plan.chain.function, RowSoftmax) else None
        )
        self.in_registers = self.schedule.via == "registers"
        self.copies = tuple(tile_copies(writer, copied) for copied in copied_tiles(plan))
        self._sums = self.instruction.registers[2]
        self._locate_fragments()

    def write(self) -> None:
        plan, stages = self.plan, self.schedule.stages
        ring = (plan.stage_start, plan.stage_bytes, stages)
        self._allocate()
        self._locate_thread()
        locate_block(self.writer, plan)
        first, last = locate_chunks(self.writer, plan, self.softmax)
        if self.softmax is not None:
            self.softmax.begin()
        for copies in self.copies:
            copies.prepare()
        self._write_places()
        self.copies[0].copy("0", "0")
        for number in range(stages - 1):
            chunk = chunk_after(first, number)
            with self.script.nested(f"if {chunk} < {last}:"):
                self._load_stage(chunk, str(plan.stage_start + number * plan.stage_bytes))
            self.writer.call("cpembed_cp_async_commit")
        if plan.holds_rows:
            self._hold_rows()
        locate_stages(self.script, *ring)
        with self.script.nested(f"for step in T.serial({first}, {last}):"):
            # The chunk that is multiplied next has arrived; those after it may be in flight.
            self.writer.call(f"cpembed_cp_async_wait_{stages - 2}")
            self.writer.barrier()
            later = f"(step + {stages - 1})"
            with self.script.nested(f"if {later} < {last}:"):
                self._load_stage(later, "filling[0]")
            self.writer.call("cpembed_cp_async_commit")
            self._multiply_first()
            if self.softmax is None:
                write_pointwise(self.writer, plan, "step")
            else:
                self.softmax.write_powers("step", rescale=True)
                self.softmax.write_middle()
            self._multiply_second()
            turn_stages(self.script, *ring)
        self.writer.call("cpembed_cp_async_wait_0")
        self.writer.barrier()
        if self.softmax is not None:
            self.softmax.end()
        write_results(self.writer, plan.result)

    def _allocate(self) -> None:
        plan, schedule = self.plan, self.schedule
        first, second, sums = self.instruction.registers
        shared_bytes = plan.shared_bytes
        self.script.line(f'shared = T.alloc_buffer(({shared_bytes},), "uint8", scope="shared.dyn")')
        # TVM shrinks shared memory to the accesses that it sees, so the last byte is touched.
        self.script.line(f"T.evaluate({shared_pointer(str(shared_bytes - 1))})")
        fragments = schedule.rows * (plan.first.tiles[3] if plan.holds_rows else 1) * first
        middle = schedule.rows * self._elements * (schedule.chunk if self.in_registers else 1)
        results = schedule.rows * plan.warp_columns * sums
        scores = schedule.rows * plan.warp_column_tiles * sums
        dtype, factors = plan.second.sums, storage_dtype(plan.chain.factors)
        for name, count, kind in (
            ("held", fragments, "uint32"),
            # Two sets: one is multiplied while the other is loaded.
            ("columns", 2 * 2 * second, "uint32"),
            ("scores", scores, dtype),
            ("middle", middle, factors),
            ("sums", results, dtype),
        ):
            self.script.line(f'{name} = T.alloc_buffer(({count},), "{kind}", scope="local")')
        with self.script.nested(f"for i in T.unroll({results}):"):
            self.script.line(f"sums[i] = T.{dtype}(0)")

    @property
    def _elements(self) -> int:
        """Number of a lane's elements of an instruction tile of the operand between."""
        return self.instruction.m * self.instruction.k // LANES

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

    def _load_stage(self, chunk: str, base: str) -> None:
        self.copies[1].copy(chunk, base)
        self.copies[2].copy(chunk, f"{base} + {self.plan.columns_factor.tile.bytes}")

    # -- fragments --------------------------------------------------------------------------------

    def _locate_fragments(self) -> None:
        """Describe the loads of fragments of the factors and of the operand between."""
        plan, writer, (m, n) = self.plan, self.writer, (self.instruction.m, self.instruction.n)
        row = f"(warp_row * {self.schedule.rows * m} + lane % 16)"
        self.rows = _Fragments(writer, "rows", plan.rows_factor.tile, row, "lane // 16")
        self.middle = _Fragments(writer, "middle", plan.middle, row, "lane // 16")
        # Four matrices are the columns of two instruction tiles.
        column = "(warp_column * {} + lane // 16 * {} + lane % 8)"
        line = column.format(plan.warp_column_tiles * n, n)
        tile = plan.columns_factor.tile
        self.columns = _Fragments(writer, "columns", tile, line, "lane // 8 % 2")
        line, chunk = column.format(plan.warp_columns * n, n), "lane // 8 % 2"
        tile = plan.second_factor.tile
        if tile.transposed:
            # Lines are steps of the depth, whose order is that of the coupling.
            line = bit_order("(lane % 8 + lane // 8 % 2 * 8)", plan.order)
            chunk = f"warp_column * {plan.warp_columns} + lane // 16"
        self.second = _Fragments(writer, "second", tile, line, chunk)

    def _write_places(self) -> None:
        """Write the places of all fragments that a lane loads."""
        depth = 2 * self.plan.first.tiles[3]
        self.rows.locate(range(0, depth, 2))
        self.columns.locate(range(0, depth, 2))
        along = self.plan.warp_columns if self.second.tile.transposed else 2 * self.schedule.chunk
        self.second.locate(range(0, along, 2))
        if not self.in_registers:
            self.middle.locate(range(0, 2 * self.schedule.chunk, 2))

    def _hold_rows(self) -> None:
        """Write the loads of all fragments of the block's rows, which stay in registers."""
        # The rows are in the first group, so the groups after it may be in flight.
        self.writer.call(f"cpembed_cp_async_wait_{max(0, self.schedule.stages - 2)}")
        self.writer.barrier()
        depth = self.plan.first.tiles[3]
        for inner in range(depth):
            self._load_rows(inner, "0", lambda i, inner=inner: i * depth + inner)

    def _load_rows(self, inner: int, base: str, place: Callable[[int], int]) -> None:
        """Write loads of the fragments of the warp's rows at a tile of the depth."""
        for i in range(self.schedule.rows):
            register = register_pointer("held", str(place(i) * self.instruction.registers[0]))
            self.rows.load(4, register, base, i * self.instruction.m, 2 * inner)

    # -- products ---------------------------------------------------------------------------------

    def _multiply_pairs(
        self,
        pairs: Sequence[tuple[int, int]],
        load: Callable[[int, int, str], None],
        multiply: Callable[[int, int, str], None],
    ) -> None:
        """Write products of pairs of columns, each loaded while the one before is multiplied.

        Parameters
        ----------
        pairs : sequence of tuple of int and int
            Tile of the depth, and first tile of the columns.
        load, multiply : callable
            Writers of a pair's loads and products, with the register of its fragments.
        """
        registers = [f"{number % 2 * 2 * self.instruction.registers[1]}" for number in range(2)]
        for number in range(len(pairs) + 1):
            if number < len(pairs):
                load(*pairs[number], registers[number % 2])
            if number:
                multiply(*pairs[number - 1], registers[(number - 1) % 2])

    def _multiply(
        self, sums: tuple[str, int, int], factor: tuple[str, int, int], columns: str, tiles: int
    ) -> None:
        """Write products of all rows with the columns of a pair of tiles.

        Parameters
        ----------
        sums, factor : tuple of str, int and int
            Array of the sums and of the first factor, with the first register, and the number of
            registers from one tile of rows to the next.
        columns : str
            First register of the columns.
        tiles : int
            Number of tiles of columns, 1 or 2.
        """
        count, second = self._sums, self.instruction.registers[1]
        with self.script.nested(
            f"for u in T.unroll({tiles}):", f"for i in T.unroll({self.schedule.rows}):"
        ):
            self.writer.call(
                self.instruction.mma_function,
                register_pointer(sums[0], f"{sums[1]} + i * {sums[2]} + u * {count}"),
                register_pointer(factor[0], f"{factor[1]} + i * {factor[2]}"),
                register_pointer("columns", f"{columns} + u * {second}"),
            )

    def _multiply_first(self) -> None:
        """Write the first product of a chunk."""
        plan, rows = self.plan, self.schedule.rows
        depth, scores = plan.first.tiles[3], rows * plan.warp_column_tiles * self._sums
        with self.script.nested(f"for i in T.unroll({scores}):"):
            self.script.line(f"scores[i] = T.{plan.second.sums}(0)")
        if depth <= MAX_UNROLLED:
            self._multiply_depth(range(depth), "")
            return
        # A turn has the depth of 128 bytes, within which places are not a constant apart.
        turns, rest = divmod(depth, SWIZZLE_ROWS // 2)
        with self.script.nested(f"for turn in T.serial({turns}):"):
            self._multiply_depth(range(SWIZZLE_ROWS // 2), f" + turn * {SWIZZLE_ROWS * CHUNK}")
        if rest:
            self._multiply_depth(range(depth - rest, depth), "")

    def _multiply_depth(self, inners: Sequence[int], further: str) -> None:
        """Write the first product of some tiles of the depth, at so many bytes further."""
        plan, depth = self.plan, self.plan.first.tiles[3]
        first, n, tiles = self.instruction.registers[0], self.instruction.n, plan.warp_column_tiles

        def load(inner: int, column: int, register: str) -> None:
            if not plan.holds_rows and column == 0 and inner == inners[0]:
                self._load_rows(inner, f"0{further}", lambda i: i)
            pointer = register_pointer("columns", register)
            self.columns.load(4, pointer, f"reading[0]{further}", column * n, 2 * inner)

        def multiply(inner: int, column: int, register: str) -> None:
            if not plan.holds_rows and column == 0 and inner != inners[0]:
                self._load_rows(inner, f"0{further}", lambda i: i)
            place, step = (inner * first, depth * first) if plan.holds_rows else (0, first)
            sums = ("scores", column * self._sums, tiles * self._sums)
            self._multiply(sums, ("held", place, step), register, 2)

        pairs = [(inner, column) for inner in inners for column in range(0, tiles, 2)]
        self._multiply_pairs(pairs, load, multiply)

    def _multiply_second(self) -> None:
        """Write the second product of a chunk."""
        plan, chunk, n = self.plan, self.schedule.chunk, self.instruction.n
        base = f"reading[0] + {plan.columns_factor.tile.bytes}"
        if not self.in_registers:
            # The operand between is another warp's too.
            self.writer.barrier()

        def load(inner: int, column: int, register: str) -> None:
            count = min(2, plan.warp_columns - column)
            at = (column * n, 2 * inner)
            if self.second.tile.transposed:
                at = (inner * self.instruction.k, column)
            self.second.load(2 * count, register_pointer("columns", register), base, *at)

        def multiply(inner: int, column: int, register: str) -> None:
            if not self.in_registers and column == 0:
                self._load_middle(inner)
            place, step = 0, self._elements
            if self.in_registers:
                place, step = inner * self._elements, chunk * self._elements
            sums = ("sums", column * self._sums, plan.warp_columns * self._sums)
            count = min(2, plan.warp_columns - column)
            self._multiply(sums, ("middle", place, step), register, count)

        pairs = [(i, column) for i in range(chunk) for column in range(0, plan.warp_columns, 2)]
        self._multiply_pairs(pairs, load, multiply)

    def _load_middle(self, inner: int) -> None:
        """Write loads of the operand between the products from shared memory."""
        base = str(self.plan.rows_factor.tile.bytes)
        for i in range(self.schedule.rows):
            register = register_pointer("middle", str(i * self._elements))
            self.middle.load(4, register, base, i * self.instruction.m, 2 * inner)


def parameters_of(plan: ChainPlan) -> Mapping[str, str]:
    """Return the chain's inputs by parameter of the kernel."""
    first, second = plan.chain.first, plan.chain.second
    names = {"A": first.inputs[0].name, "B": first.inputs[1].name, "B2": second.inputs[1].name}
    factors = {x.name for x in (*first.inputs, *second.inputs)}
    return names | {
        name.removeprefix(END): name for name in plan.chain.inputs if name not in factors
    }
