"""The main kernel as TensorIR: blocks, stages of shared memory, fragments, products.

The structure is that of CUTLASS's multistage kernels: while a stage is multiplied, later ones are
copied by ``cp.async``; one barrier a stage keeps the copies of a stage behind its last reader.
Memory is accessed by device functions alone (:mod:`cpembed.targets.cuda.device`), which every lane
of a warp calls: what lies outside is an argument.
"""

from __future__ import annotations

from cpembed.codegen.script import HEADER, buffer, storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import Stored, TiledProduct
from cpembed.targets.cuda.results import write_results
from cpembed.targets.cuda.schedule import CHUNK, Plan, SharedTile
from cpembed.targets.cuda.text import digits, written
from cpembed.targets.cuda.writer import (
    PARAMETERS,
    PARTIAL,
    Writer,
    at,
    chosen,
    conditions,
    epilogue_parameters,
    in_shared,
)

UNROLLED = 8
"""Copies of a thread that are written out."""


def parameters(product: TiledProduct, plan: Plan, *, split: bool) -> list[str]:
    """Declarations: the factors, what the epilogue reads, the result."""
    found = [
        buffer(name, stored.layout.elements, stored.layout.dtype)
        for name, stored in zip(PARAMETERS, (plan.first, plan.second), strict=True)
    ]
    if not split:
        found += epilogue_parameters(product)
    elements = product.output.layout.elements
    if split:
        return [*found, buffer(PARTIAL, plan.schedule.splits * elements, product.sums)]
    return [*found, buffer("C", elements, product.stored_dtype)]


def main_kernel(plan: Plan) -> Writer:
    """The function ``main`` of the whole product, or of parts of its sums."""
    writer = Writer()
    split = plan.schedule.splits > 1
    declared = ", ".join(parameters(plan.product, plan, split=split))
    writer.script.line(HEADER)
    with writer.script.nested(f"def main({declared}):"):
        writer.script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        write_product(writer, plan)
    return writer


def write_product(writer: Writer, plan: Plan) -> None:
    """The thread nest of the product, into a function."""
    rows, columns, batch, splits = plan.blocks
    script, schedule = writer.script, plan.schedule
    with script.nested(
        f'for bx in T.thread_binding({rows * columns}, thread="blockIdx.x"):',
        f'for by in T.thread_binding({batch}, thread="blockIdx.y"):',
        f'for bz in T.thread_binding({splits}, thread="blockIdx.z"):',
        f'for tx in T.thread_binding({schedule.threads}, thread="threadIdx.x"):',
        'with T.sblock("product"):',
    ):
        for name, loop, extent in (
            ("block", "bx", rows * columns),
            ("batch", "by", batch),
            ("part", "bz", splits),
            ("thread", "tx", schedule.threads),
        ):
            script.line(f"{name} = T.axis.spatial({extent}, {loop})")
        script.line(f"T.reads({', '.join(_regions(plan))})")
        script.line(f"T.writes({_written(plan)})")
        _Kernel(writer, plan).write()


def _regions(plan: Plan) -> list[str]:
    operands = zip(PARAMETERS, (plan.first, plan.second), strict=True)
    return [f"{name}[0 : {stored.layout.elements}]" for name, stored in operands]


def _written(plan: Plan) -> str:
    elements = plan.product.output.layout.elements
    splits = plan.schedule.splits
    return f"{PARTIAL}[0 : {splits * elements}]" if splits > 1 else f"C[0 : {elements}]"


class _Kernel:
    """The body of a thread."""

    def __init__(self, writer: Writer, plan: Plan) -> None:
        self.writer, self.plan = writer, plan
        self.script, self.schedule = writer.script, plan.schedule
        self.product, self.instruction = plan.product, plan.product.instruction
        self.tiles = (plan.shared(plan.first), plan.shared(plan.second))

    def write(self) -> None:
        self._allocate()
        self._place()
        stages, steps = self.schedule.stages, self.plan.steps
        for number in range(stages - 1):
            with self.script.nested(f"if {number} < {steps}:"):
                self._load(str(number), str(number))
            self.writer.call("cpembed_cp_async_commit")
        with self.script.nested(f"for step in T.serial({steps}):"):
            self.writer.call(f"cpembed_cp_async_wait_{stages - 2}")
            self.writer.barrier()
            later = f"step + {stages - 1}"
            with self.script.nested(f"if {later} < {steps}:"):
                self._load(later, f"(({later}) % {stages})")
            self.writer.call("cpembed_cp_async_commit")
            self._multiply(f"(step % {stages})")
        self.writer.call("cpembed_cp_async_wait_0")
        self.writer.barrier()
        write_results(self.writer, self.plan)

    def _allocate(self) -> None:
        (rows, columns), count = self.schedule.tile, self.instruction.registers
        local = {"first": rows * count[0], "second": columns * count[1]}
        self.script.line(
            f'shared = T.alloc_buffer(({self.plan.shared_bytes},), "uint8", scope="shared.dyn")'
        )
        # All of it is used, which the compiler sees of no other line.
        self.script.line(f"T.evaluate({in_shared(str(self.plan.shared_bytes - 1))})")
        for name, registers in local.items():
            self.script.line(f'{name} = T.alloc_buffer(({registers},), "uint32", scope="local")')
        sums = rows * columns * count[2]
        held = "uint32" if self.product.sums == "float16" else self.product.sums
        self.script.line(f'sums = T.alloc_buffer(({sums},), "{held}", scope="local")')
        with self.script.nested(f"for i in T.unroll({sums}):"):
            self.script.line(f"sums[i] = T.{held}(0)")

    def _place(self) -> None:
        """Where the block, the warp and the lane are: ``row`` and ``column`` are the first tiles
        of the block."""
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

    def _load(self, step: str, stage: str) -> None:
        """Copies of both factors into a stage."""
        base = f"{stage} * {self.plan.stage_bytes}"
        for name, stored, tile in zip(
            PARAMETERS, (self.plan.first, self.plan.second), self.tiles, strict=True
        ):
            self._load_factor(name, stored, tile, step, base)
            base = f"{stage} * {self.plan.stage_bytes} + {self.tiles[0].bytes}"

    def _load_factor(
        self, name: str, stored: Stored, tile: SharedTile, step: str, base: str
    ) -> None:
        threads = self.schedule.threads
        whole, rest = divmod(tile.copies, threads)
        turns = whole + bool(rest)
        # Many short accesses side by side would take more registers than there are.
        loop = "unroll" if tile.width >= 4 and turns <= UNROLLED else "serial"
        with self.script.nested(f"for turn in T.{loop}({turns}):"):
            self.script.line(f"slot = turn * {threads} + thread")
            with self.script.nested(*[f"if slot < {tile.copies}:"] * bool(rest)):
                self._locate(name == PARAMETERS[0], stored, tile, step)
                self._copy(name, stored, tile, base)

    def _locate(self, is_first: bool, stored: Stored, tile: SharedTile, step: str) -> None:
        """Where the vector of a slot is in a factor: ``place``, and whether it is inside."""
        extent = self.instruction.m if is_first else self.instruction.n
        stage = f"(part * {self.plan.steps} + {step})"
        self.script.lines(
            (
                f"shared_row = slot // {tile.across}",
                f"element = slot % {tile.across} * {stored.length}",
                f"tile = {'row' if is_first else 'column'} + shared_row // {extent}",
                f"deep = {stage} * {self.schedule.depth} + element // {self.instruction.k}",
            )
        )
        values = self._values(is_first, f"shared_row % {extent}", f"element % {self.instruction.k}")
        _, rows, columns, depth = self.product.tiles
        inside = [f"tile < {rows if is_first else columns}", f"deep < {depth}"]
        if tile.copies > tile.rows * tile.across:
            inside.append(f"shared_row < {tile.rows}")
        inside += conditions(stored, values, self.product.program.extents)
        address = written(stored.address, values, self.product.program.extents)
        self.script.lines(chosen(inside, address))

    def _copy(self, name: str, stored: Stored, tile: SharedTile, base: str) -> None:
        """The vector into shared memory, asynchronously where it has the bytes for that."""
        size = size_bytes(stored.layout.dtype)
        chunk, offset = f"element * {size} // {CHUNK}", f"element * {size} % {CHUNK}"
        target = f"{base} + {tile.place('shared_row', chunk)} + {offset}"
        pointer = f"T.address_of({name}[place])"
        if tile.width >= 4:
            self.writer.call(f"cpembed_cp_async_{tile.width}", in_shared(target), pointer, "valid")
            return
        dtype = storage_dtype(stored.layout.dtype)
        shape = f"({stored.length},)"
        self.script.line(f'{name}_one = T.alloc_buffer({shape}, "{dtype}", scope="local")')
        register = at(f"{name}_one", "0")
        self.writer.call(f"cpembed_load_{tile.width}", register, pointer, "valid")
        self.writer.call(f"cpembed_shared_store_{tile.width}", in_shared(target), register)

    def _values(self, is_first: bool, across: str, deep: str) -> dict[str, str]:
        """Loops and axes of a factor's element, over ``tile`` and ``deep``."""
        return {
            **dict.fromkeys((loop.name for loop in self.product.program.loops), "0"),
            **digits("batch", self.product.batch),
            **digits("tile", self.product.rows if is_first else self.product.columns),
            **digits("deep", self.product.depth),
            self.product.axes[0 if is_first else 1]: across,
            self.product.axes[2]: deep,
        }

    def _multiply(self, stage: str) -> None:
        """All products of a stage."""
        (rows, columns), count = self.schedule.tile, self.instruction.registers
        first = f"{stage} * {self.plan.stage_bytes}"
        bases = (first, f"{first} + {self.tiles[0].bytes}")
        with self.script.nested(f"for inner in T.unroll({self.schedule.depth}):"):
            if self.instruction.kind == "mma":
                self._ldmatrix(bases)
            else:
                self._load_fragments(bases)
            with self.script.nested(
                f"for i in T.unroll({rows}):", f"for j in T.unroll({columns}):"
            ):
                self.writer.call(
                    self.instruction.mma_function,
                    at("sums", f"(i * {columns} + j) * {count[2]}"),
                    at("first", f"i * {count[0]}"),
                    at("second", f"j * {count[1]}"),
                )

    def _ldmatrix(self, bases: tuple[str, str]) -> None:
        """Four matrices of 8 rows of 16 bytes at a time: an instruction's first factor, two of its
        second."""
        (rows, columns), (m, n) = self.schedule.tile, (self.instruction.m, self.instruction.n)
        with self.script.nested(f"for i in T.unroll({rows}):"):
            row = f"(warp_row * {rows} + i) * {m} + lane % 16"
            place = self.tiles[0].place(row, "inner * 2 + lane // 16")
            self.writer.call(
                "cpembed_ldmatrix_x4", at("first", "i * 4"), in_shared(f"{bases[0]} + {place}")
            )
        if columns > 1:
            with self.script.nested(f"for j in T.unroll({columns // 2}):"):
                row = f"(warp_column * {columns} + j * 2 + lane // 16) * {n} + lane % 8"
                place = self.tiles[1].place(row, "inner * 2 + lane // 8 % 2")
                pointer = in_shared(f"{bases[1]} + {place}")
                self.writer.call("cpembed_ldmatrix_x4", at("second", "j * 4"), pointer)
        if columns % 2:
            row = f"(warp_column * {columns} + {columns - 1}) * {n} + lane % 8"
            place = self.tiles[1].place(row, "inner * 2 + lane // 8 % 2")
            pointer = in_shared(f"{bases[1]} + {place}")
            self.writer.call("cpembed_ldmatrix_x2", at("second", f"{columns - 1} * 2"), pointer)

    def _load_fragments(self, bases: tuple[str, str]) -> None:
        """By WMMA's own loads: rows of the first factor, columns of the second."""
        sizes = [size_bytes(s.layout.dtype) for s in (self.plan.first, self.plan.second)]
        names = ("first", "second")
        warps = ("warp_row", "warp_column")
        extents = (self.instruction.m, self.instruction.n)
        for number in (0, 1):
            count, tile = self.schedule.tile[number], self.tiles[number]
            deep = self.instruction.k * sizes[number]
            with self.script.nested(f"for i in T.unroll({count}):"):
                row = f"(({warps[number]} * {count} + i) * {extents[number]}) * {tile.pitch}"
                self.writer.call(
                    self.instruction.load_functions[number],
                    at(names[number], f"i * {self.instruction.registers[number]}"),
                    in_shared(f"{bases[number]} + {row} + inner * {deep}"),
                    str(tile.pitch // sizes[number]),
                )
