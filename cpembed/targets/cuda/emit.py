"""Kernel of the product as TensorIR.

It has the structure of CUTLASS's multistage kernels: while a stage of shared memory is multiplied,
later ones are copied by ``cp.async``; one barrier per stage keeps the copies of a stage behind its
last reader. Memory is accessed by device functions only (:mod:`cpembed.targets.cuda.device`), which
every lane of a warp calls; whether an address is inside an operand is an argument.

At the end a warp stores the sums of one row of instruction tiles at a time in its part of shared
memory, reads them back in vectors along the dimension in which results are contiguous, applies the
epilogue in registers, and stores the vectors.
"""

from __future__ import annotations

from cpembed.codegen.script import HEADER, buffer, storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES, position
from cpembed.targets.cuda.schedule import CHUNK, Plan, SharedTile
from cpembed.targets.cuda.writer import (
    PARAMETERS,
    PARTIAL,
    WIDTHS,
    Writer,
    digits,
    epilogue_parameters,
    guarded_place,
    index_script,
    inside_conditions,
    register_pointer,
    remainder,
    result_expression,
    shared_pointer,
    store_vector,
)

MAX_UNROLLED_COPIES = 8
"""Maximum number of copies of a thread that are unrolled."""


def product_kernel(plan: Plan) -> Writer:
    """Return the function ``main`` of the product, or of the partial sums of a split reduction."""
    writer, product = Writer(), plan.product
    splits, elements = plan.schedule.splits, product.output.layout.elements
    declared = [
        buffer(name, operand.layout.elements, operand.layout.dtype)
        for name, operand in zip(PARAMETERS, (plan.first, plan.second), strict=True)
    ]
    if splits > 1:
        declared.append(buffer(PARTIAL, splits * elements, product.sums))
    else:
        declared += [*epilogue_parameters(product), buffer("C", elements, product.output_dtype)]
    writer.script.line(HEADER)
    with writer.script.nested(f"def main({', '.join(declared)}):"):
        writer.script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        _write_thread_nest(writer, plan)
    return writer


def _write_thread_nest(writer: Writer, plan: Plan) -> None:
    rows, columns, batch, splits = plan.blocks
    script, threads = writer.script, plan.schedule.threads
    elements = plan.product.output.layout.elements
    with script.nested(
        f'for bx in T.thread_binding({rows * columns}, thread="blockIdx.x"):',
        f'for by in T.thread_binding({batch}, thread="blockIdx.y"):',
        f'for bz in T.thread_binding({splits}, thread="blockIdx.z"):',
        f'for tx in T.thread_binding({threads}, thread="threadIdx.x"):',
        'with T.sblock("product"):',
    ):
        for name, loop, extent in (
            ("block", "bx", rows * columns),
            ("batch", "by", batch),
            ("part", "bz", splits),
            ("thread", "tx", threads),
        ):
            script.line(f"{name} = T.axis.spatial({extent}, {loop})")
        reads = [
            f"{name}[0 : {operand.layout.elements}]"
            for name, operand in zip(PARAMETERS, (plan.first, plan.second), strict=True)
        ]
        script.line(f"T.reads({', '.join(reads)})")
        written = f"{PARTIAL}[0 : {splits * elements}]" if splits > 1 else f"C[0 : {elements}]"
        script.line(f"T.writes({written})")
        _ProductBody(writer, plan).write()


class _ProductBody:
    """Writer of the statements of one thread of the product."""

    def __init__(self, writer: Writer, plan: Plan) -> None:
        self.writer, self.plan = writer, plan
        self.script, self.schedule = writer.script, plan.schedule
        self.product, self.instruction = plan.product, plan.product.instruction
        self.factors = (plan.first, plan.second)
        self.tiles = (plan.shared(plan.first), plan.shared(plan.second))

    def write(self) -> None:
        self._allocate()
        self._locate_thread()
        stages, steps = self.schedule.stages, self.plan.steps
        # All stages but one are filled before the loop: the last is refilled while it computes.
        for number in range(stages - 1):
            with self.script.nested(f"if {number} < {steps}:"):
                self._load_stage(str(number), str(number))
            self.writer.call("cpembed_cp_async_commit")
        with self.script.nested(f"for step in T.serial({steps}):"):
            # The stage that is multiplied next has arrived; those after it may be in flight.
            self.writer.call(f"cpembed_cp_async_wait_{stages - 2}")
            self.writer.barrier()
            later = f"step + {stages - 1}"
            with self.script.nested(f"if {later} < {steps}:"):
                self._load_stage(later, f"(({later}) % {stages})")
            # Committed in the last steps too, so that the number of groups to wait for is constant.
            self.writer.call("cpembed_cp_async_commit")
            self._multiply(f"(step % {stages})")
        # Results are staged in the same memory, so every copy and every reader has to be done.
        self.writer.call("cpembed_cp_async_wait_0")
        self.writer.barrier()
        write_results(self.writer, self.plan)

    def _allocate(self) -> None:
        (rows, columns), count = self.schedule.tile, self.instruction.registers
        shared_bytes = self.plan.shared_bytes
        self.script.line(f'shared = T.alloc_buffer(({shared_bytes},), "uint8", scope="shared.dyn")')
        # TVM shrinks shared memory to the accesses that it sees, so the last byte is touched.
        self.script.line(f"T.evaluate({shared_pointer(str(shared_bytes - 1))})")
        for name, registers in (("first", rows * count[0]), ("second", columns * count[1])):
            self.script.line(f'{name} = T.alloc_buffer(({registers},), "uint32", scope="local")')
        sums = rows * columns * count[2]
        # Two sums of float16 share a register of 32 bits.
        dtype = "uint32" if self.product.sums == "float16" else self.product.sums
        self.script.line(f'sums = T.alloc_buffer(({sums},), "{dtype}", scope="local")')
        with self.script.nested(f"for i in T.unroll({sums}):"):
            self.script.line(f"sums[i] = T.{dtype}(0)")

    def _locate_thread(self) -> None:
        """Write the lane, the warp's place in the block, and the block's first row and column."""
        # Blocks that run at the same time are numbered one after the other: numbering goes down a
        # group of rows before it goes on to the next column, so they share columns in L2.
        columns, group = self.plan.blocks[1], self.plan.group
        inside, above = f"block % {group * columns}", f"block // {group * columns} * {group}"
        self.script.lines(
            (
                f"lane = thread % {LANES}",
                f"warp_row = thread // {LANES * self.schedule.warps[1]}",
                f"warp_column = thread // {LANES} % {self.schedule.warps[1]}",
                f"row = ({above} + ({inside}) % {group}) * {self.schedule.block[0]}",
                f"column = ({inside}) // {group} * {self.schedule.block[1]}",
            )
        )

    def _load_stage(self, step: str, stage: str) -> None:
        base = f"{stage} * {self.plan.stage_bytes}"
        self._load_factor(0, step, base)
        self._load_factor(1, step, f"{base} + {self.tiles[0].bytes}")

    def _load_factor(self, number: int, step: str, base: str) -> None:
        """Write the copies of a factor's tile at ``step`` to the byte ``base``."""
        threads, tile = self.schedule.threads, self.tiles[number]
        full_turns, rest = divmod(tile.copies, threads)
        turns = full_turns + bool(rest)
        # Many short accesses in parallel would need more registers than there are.
        loop = "unroll" if tile.width >= 4 and turns <= MAX_UNROLLED_COPIES else "serial"
        with self.script.nested(f"for turn in T.{loop}({turns}):"):
            self.script.line(f"slot = turn * {threads} + thread")
            with self.script.nested(*[f"if slot < {tile.copies}:"] * bool(rest)):
                self._locate_vector(number, tile, step)
                self._copy_vector(number, tile, base)

    def _locate_vector(self, number: int, tile: SharedTile, step: str) -> None:
        """Write ``place``, the number of a slot's vector in its factor, and ``valid``."""
        is_first, operand = number == 0, self.factors[number]
        extent = self.instruction.m if is_first else self.instruction.n
        stage = f"(part * {self.plan.steps} + {step})"
        self.script.lines(
            (
                f"shared_row = slot // {tile.row_vectors}",
                f"element = slot % {tile.row_vectors} * {operand.length}",
                f"tile = {'row' if is_first else 'column'} + shared_row // {extent}",
                f"deep = {stage} * {self.schedule.depth} + element // {self.instruction.k}",
            )
        )
        program = self.product.program
        values = {
            **dict.fromkeys((loop.name for loop in program.loops), "0"),
            **digits("batch", self.product.batch),
            **digits("tile", self.product.rows if is_first else self.product.columns),
            **digits("deep", self.product.depth),
            self.product.axes[number]: f"shared_row % {extent}",
            self.product.axes[2]: f"element % {self.instruction.k}",
        }
        _, rows, columns, depth = self.product.tiles
        conditions = [f"tile < {rows if is_first else columns}", f"deep < {depth}"]
        if tile.copies > tile.rows * tile.row_vectors:
            conditions.append(f"shared_row < {tile.rows}")
        conditions += inside_conditions(operand, values, program.extents)
        address = index_script(operand.address, values, program.extents)
        self.script.lines(guarded_place(conditions, address))

    def _copy_vector(self, number: int, tile: SharedTile, base: str) -> None:
        """Write the copy of a vector into shared memory, asynchronous if it has 4 bytes or more."""
        name, operand = PARAMETERS[number], self.factors[number]
        size = size_bytes(operand.layout.dtype)
        chunk, offset = f"element * {size} // {CHUNK}", f"element * {size} % {CHUNK}"
        target = f"{base} + {tile.place('shared_row', chunk)} + {offset}"
        pointer = f"T.address_of({name}[place])"
        if tile.width >= 4:
            self.writer.call(
                f"cpembed_cp_async_{tile.width}", shared_pointer(target), pointer, "valid"
            )
            return
        # Shorter than cp.async takes: through registers, without overlap.
        dtype = storage_dtype(operand.layout.dtype)
        shape = f"({operand.length},)"
        self.script.line(f'{name}_one = T.alloc_buffer({shape}, "{dtype}", scope="local")')
        register = register_pointer(f"{name}_one", "0")
        self.writer.call(f"cpembed_load_{tile.width}", register, pointer, "valid")
        self.writer.call(f"cpembed_shared_store_{tile.width}", shared_pointer(target), register)

    def _multiply(self, stage: str) -> None:
        """Write the products of a stage."""
        (rows, columns), count = self.schedule.tile, self.instruction.registers
        first = f"{stage} * {self.plan.stage_bytes}"
        bases = (first, f"{first} + {self.tiles[0].bytes}")
        with self.script.nested(f"for inner in T.unroll({self.schedule.depth}):"):
            if self.instruction.kind == "mma":
                self._load_by_ldmatrix(bases)
            else:
                self._load_by_wmma(bases)
            with self.script.nested(
                f"for i in T.unroll({rows}):", f"for j in T.unroll({columns}):"
            ):
                self.writer.call(
                    self.instruction.mma_function,
                    register_pointer("sums", f"(i * {columns} + j) * {count[2]}"),
                    register_pointer("first", f"i * {count[0]}"),
                    register_pointer("second", f"j * {count[1]}"),
                )

    def _load_by_ldmatrix(self, bases: tuple[str, str]) -> None:
        """Write loads of four matrices of 8 rows of 16 bytes each."""
        (rows, columns), (m, n) = self.schedule.tile, (self.instruction.m, self.instruction.n)

        def load(count: int, name: str, register: str, number: int, place: tuple[str, str]) -> None:
            pointer = shared_pointer(f"{bases[number]} + {self.tiles[number].place(*place)}")
            self.writer.call(
                f"cpembed_ldmatrix_x{count}", register_pointer(name, register), pointer
            )

        # Four matrices are the first factor of one instruction, or the second factor of two.
        with self.script.nested(f"for i in T.unroll({rows}):"):
            row = f"(warp_row * {rows} + i) * {m} + lane % 16"
            load(4, "first", "i * 4", 0, (row, "inner * 2 + lane // 16"))
        chunk = "inner * 2 + lane // 8 % 2"
        if columns > 1:
            with self.script.nested(f"for j in T.unroll({columns // 2}):"):
                row = f"(warp_column * {columns} + j * 2 + lane // 16) * {n} + lane % 8"
                load(4, "second", "j * 4", 1, (row, chunk))
        if columns % 2:
            row = f"(warp_column * {columns} + {columns - 1}) * {n} + lane % 8"
            load(2, "second", f"{columns - 1} * 2", 1, (row, chunk))

    def _load_by_wmma(self, bases: tuple[str, str]) -> None:
        """Write WMMA's loads: rows of the first factor, columns of the second."""
        extents = (self.instruction.m, self.instruction.n)
        for number, (name, warp) in enumerate((("first", "warp_row"), ("second", "warp_column"))):
            count, tile = self.schedule.tile[number], self.tiles[number]
            size = size_bytes(self.factors[number].layout.dtype)
            with self.script.nested(f"for i in T.unroll({count}):"):
                row = f"(({warp} * {count} + i) * {extents[number]}) * {tile.pitch}"
                deep = f"inner * {self.instruction.k * size}"
                self.writer.call(
                    self.instruction.load_functions[number],
                    register_pointer(name, f"i * {self.instruction.registers[number]}"),
                    shared_pointer(f"{bases[number]} + {row} + {deep}"),
                    str(tile.pitch // size),
                )


def write_results(writer: Writer, plan: Plan) -> None:
    """Write the end of the product kernel, when every stage of shared memory is free."""
    script, staging = writer.script, plan.staging
    rows, _ = plan.schedule.tile
    script.line(f"stage = thread // {LANES} * {staging.bytes}")
    with script.nested(f"for strip in T.unroll({rows}):"):
        _stage_sums(writer, plan)
        # Lanes read what others staged, and stage the next strip in its place: a warp is enough, as
        # no part of the staging is shared with other warps.
        writer.warp_barrier()
        _store_strip(writer, plan)
        writer.warp_barrier()


def _stage_sums(writer: Writer, plan: Plan) -> None:
    """Write the stores of a row of tiles into the warp's part of shared memory."""
    instruction, staging = plan.product.instruction, plan.staging
    columns, registers = plan.schedule.tile[1], instruction.registers[2]
    size = size_bytes(staging.dtype)
    with writer.script.nested(f"for j in T.unroll({columns}):"):
        first = f"(strip * {columns} + j) * {registers}"
        if instruction.kind == "wmma":
            writer.call(
                instruction.store_function,
                shared_pointer(f"stage + j * {instruction.n * size}"),
                register_pointer("sums", first),
                str(staging.pitch),
            )
            return
        # A lane's sums are pairs of neighbours in a row.
        for pair in range(instruction.m * instruction.n // LANES // 2):
            row, column = _pair_position(plan, pair)
            place = f"stage + (({row}) * {staging.pitch} + j * {instruction.n} + {column}) * {size}"
            register = f"{first} + {pair * 2 if size == 4 else pair}"
            writer.call(
                f"cpembed_shared_store_{2 * size}",
                shared_pointer(place),
                register_pointer("sums", register),
            )


def _pair_position(plan: Plan, pair: int) -> tuple[str, str]:
    """Return row and column of a pair of a lane's sums, over the lane."""
    name = plan.product.instruction.fragments[2]
    # The fragment's map is affine in the group of four lanes and in the lane of a group.
    (row, column), next_lane, next_group = (position(name, lane, 2 * pair) for lane in (0, 1, 4))
    rows = f"lane // 4 * {next_group[0] - row} + lane % 4 * {next_lane[0] - row} + {row}"
    columns = (
        f"lane // 4 * {next_group[1] - column} + lane % 4 * {next_lane[1] - column} + {column}"
    )
    return rows, columns


def _store_strip(writer: Writer, plan: Plan) -> None:
    """Write the vectors of a strip: read back from shared memory, epilogue, store."""
    product, staging, script = plan.product, plan.staging, writer.script
    output = product.output
    along_columns = output.along == product.axes[1]
    length, m = output.length, product.instruction.m
    vectors = (staging.columns if along_columns else m) // length
    slots = staging.columns * m // length
    with script.nested(f"for turn in T.unroll({-(-slots // LANES)}):"):
        script.line(f"slot = turn * {LANES} + lane")
        across, along = f"slot // {vectors}", f"slot % {vectors} * {length}"
        row, column = (across, along) if along_columns else (along, across)
        script.lines((f"result_row = {row}", f"result_column = {column}"))
        values = _iterator_values(writer, plan)
        _, row_tiles, column_tiles, _ = product.tiles
        conditions = [f"slot < {slots}"] * bool(slots % LANES)
        conditions += [f"row_tile < {row_tiles}", f"column_tile < {column_tiles}"]
        extents = product.program.extents
        conditions += inside_conditions(output, values, extents)
        script.lines(guarded_place(conditions, index_script(output.address, values, extents)))
        _read_back(writer, plan, along_columns=along_columns)
        _finish_vector(writer, plan, values)


def _iterator_values(writer: Writer, plan: Plan) -> dict[str, str]:
    """Write the tile of ``result_row`` and ``result_column``; return all iterators there."""
    product, (rows, columns) = plan.product, plan.schedule.tile
    n = product.instruction.n
    writer.script.lines(
        (
            f"row_tile = row + warp_row * {rows} + strip",
            f"column_tile = column + warp_column * {columns} + result_column // {n}",
        )
    )
    return {
        **dict.fromkeys((loop.name for loop in product.program.loops), "0"),
        **digits("batch", product.batch),
        **digits("row_tile", product.rows),
        **digits("column_tile", product.columns),
        product.axes[0]: "result_row",
        product.axes[1]: remainder("result_column", n),
    }


def _read_back(writer: Writer, plan: Plan, *, along_columns: bool) -> None:
    """Write the load of a vector of staged sums into ``held``."""
    staging, length, script = plan.staging, plan.product.output.length, writer.script
    size = size_bytes(staging.dtype)
    script.line(f'held = T.alloc_buffer(({length},), "{staging.dtype}", scope="local")')
    # Slots beyond the last one read any staged sum.
    exceeds = staging.columns * staging.rows // length % LANES != 0
    row = f"result_row % {staging.rows}" if exceeds else "result_row"
    column = f"result_column % {staging.columns}" if exceeds else "result_column"
    start = f"({row}) * {staging.pitch} + {column}"
    if along_columns:
        width = next(w for w in WIDTHS if w <= length * size)
        offsets = [(first, first) for first in range(0, length, width // size)]
    else:
        width = size
        offsets = [(number, number * staging.pitch) for number in range(length)]
    for register, offset in offsets:
        writer.call(
            f"cpembed_shared_load_{width}",
            register_pointer("held", str(register)),
            shared_pointer(f"stage + ({start} + {offset}) * {size}"),
        )


def _finish_vector(writer: Writer, plan: Plan, values: dict[str, str]) -> None:
    """Write the epilogue of a vector, and its store."""
    product, script = plan.product, writer.script
    length, extents = product.output.length, product.program.extents
    if plan.schedule.splits > 1:
        place = f"part * {product.output.layout.elements} + place"
        store_vector(writer, (PARTIAL, place), "held", product.sums, length)
        return
    if product.epilogue is None:
        store_vector(writer, ("C", "place"), "held", product.sums, length)
        return
    dtype = storage_dtype(product.output_dtype)
    script.line(f'result = T.alloc_buffer(({length},), "{dtype}", scope="local")')
    axis = product.output.along

    def channel(number: int) -> str:
        assert product.channels is not None
        moved = values | {axis: f"{values[axis]} + {number}"}
        return f"T.Select(valid == 1, {index_script(product.channels, moved, extents)}, 0)"

    def residual(number: int) -> str:
        return f"Residual[T.Select(valid == 1, place + {number}, 0)]"

    for number in range(length):
        expression = result_expression(product, f"held[{number}]", number, channel, residual)
        script.line(f"result[{number}] = {expression}")
    store_vector(writer, ("C", "place"), "result", dtype, length)
