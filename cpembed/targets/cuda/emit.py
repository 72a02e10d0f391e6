"""Kernels of packing and of the product as TensorIR.

The product has the structure of CUTLASS's multistage kernels: while a stage of shared memory is
multiplied, later ones are copied by ``cp.async``; one barrier per stage keeps the copies of a stage
behind its last reader. Memory is accessed by device functions only
(:mod:`cpembed.targets.cuda.device`), which every lane of a warp calls; whether an address is inside
an operand is an argument.
"""

from __future__ import annotations

import math

from cpembed.codegen.plan import HEADER, buffer, storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import GlobalOperand
from cpembed.targets.cuda.results import write_results
from cpembed.targets.cuda.schedule import CHUNK, Plan, SharedTile
from cpembed.targets.cuda.writer import (
    PARAMETERS,
    PARTIAL,
    Writer,
    digits,
    epilogue_parameters,
    guarded_place,
    index_script,
    inside_conditions,
    quotient,
    register_pointer,
    remainder,
    shared_pointer,
)

MAX_UNROLLED_COPIES = 8
"""Maximum number of copies of a thread that are unrolled."""

PACKING_THREADS = 256
"""Number of threads of a block that packs."""


def packing_blocks(operand: GlobalOperand) -> int:
    return -(-operand.layout.elements // PACKING_THREADS)


def packing_kernel(operand: GlobalOperand, name: str) -> Writer:
    """Return the function ``(original, packed)`` that packs the factor ``name``.

    Each thread moves an element; a packed element without an original is zero.
    """
    layout, writer = operand.layout, Writer()
    script, blocks = writer.script, packing_blocks(operand)
    original = math.prod(layout.original_shape)
    declared = [
        buffer(f"{name}_original", original, layout.dtype),
        buffer(name, layout.elements, layout.dtype),
    ]
    script.line(HEADER)
    with (
        script.nested(f"def main({', '.join(declared)}):"),
        script.nested(
            f'for bx in T.thread_binding({blocks}, thread="blockIdx.x"):',
            f'for tx in T.thread_binding({PACKING_THREADS}, thread="threadIdx.x"):',
            'with T.sblock("packing"):',
        ),
    ):
        script.line(f"group = T.axis.spatial({blocks}, bx)")
        script.line(f"thread = T.axis.spatial({PACKING_THREADS}, tx)")
        script.line(f"T.reads({name}_original[0 : {original}])")
        script.line(f"T.writes({name}[0 : {layout.elements}])")
        script.line(f"number = group * {PACKING_THREADS} + thread")
        _write_packed_element(writer, operand, name)
    return writer


def _write_packed_element(writer: Writer, operand: GlobalOperand, name: str) -> None:
    layout, script = operand.layout, writer.script
    size = size_bytes(layout.dtype)
    values: dict[str, str] = {
        dimension.name: remainder(quotient("number", stride), dimension.extent)
        for dimension, stride in zip(layout.dimensions, layout.strides, strict=True)
    }
    extents = {d.name: d.extent for d in layout.dimensions}
    conditions, address, stride = [f"number < {layout.elements}"], "0", 1
    for index, extent in reversed(list(zip(layout.source, layout.original_shape, strict=True))):
        coordinate = index_script(index, values, extents)
        conditions += [f"0 <= {coordinate}", f"{coordinate} < {extent}"]
        address = f"{address} + ({coordinate}) * {stride}"
        stride *= extent
    script.lines(guarded_place(conditions, address))
    script.line(f'one = T.alloc_buffer((1,), "{storage_dtype(layout.dtype)}", scope="local")')
    register = register_pointer("one", "0")
    source = f"T.address_of({name}_original[place])"
    writer.call(f"cpembed_load_{size}", register, source, "valid")
    script.line(f"exists = T.Select(number < {layout.elements}, 1, 0)")
    script.line("target = T.Select(exists == 1, number, 0)")
    writer.call(f"cpembed_store_{size}", f"T.address_of({name}[target])", register, "exists")


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
        for number in range(stages - 1):
            with self.script.nested(f"if {number} < {steps}:"):
                self._load_stage(str(number), str(number))
            self.writer.call("cpembed_cp_async_commit")
        with self.script.nested(f"for step in T.serial({steps}):"):
            self.writer.call(f"cpembed_cp_async_wait_{stages - 2}")
            self.writer.barrier()
            later = f"step + {stages - 1}"
            with self.script.nested(f"if {later} < {steps}:"):
                self._load_stage(later, f"(({later}) % {stages})")
            # Committed in the last steps too, so that the number of groups to wait for is constant.
            self.writer.call("cpembed_cp_async_commit")
            self._multiply(f"(step % {stages})")
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
        dtype = "uint32" if self.product.sums == "float16" else self.product.sums
        self.script.line(f'sums = T.alloc_buffer(({sums},), "{dtype}", scope="local")')
        with self.script.nested(f"for i in T.unroll({sums}):"):
            self.script.line(f"sums[i] = T.{dtype}(0)")

    def _locate_thread(self) -> None:
        """Write the lane, the warp's place in the block, and the first row and column of tiles of
        the block.
        """
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
        """Write loads of four matrices of 8 rows of 16 bytes each: the first factor of one
        instruction, or the second factor of two.
        """
        (rows, columns), (m, n) = self.schedule.tile, (self.instruction.m, self.instruction.n)

        def load(count: int, name: str, register: str, number: int, place: tuple[str, str]) -> None:
            pointer = shared_pointer(f"{bases[number]} + {self.tiles[number].place(*place)}")
            self.writer.call(
                f"cpembed_ldmatrix_x{count}", register_pointer(name, register), pointer
            )

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
