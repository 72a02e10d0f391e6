"""Kernel of the product as TensorIR.

It has the structure of CUTLASS's multistage kernels: while a stage of shared memory is multiplied,
later ones are copied by ``cp.async`` (:mod:`cpembed.targets.cuda.copies`), and while the fragments
of one instruction's depth are multiplied, those of the next are loaded, from the next stage too.
One barrier per stage keeps the copies of a stage behind its last reader. Memory is accessed by
device functions only (:mod:`cpembed.targets.cuda.device`), which every lane of a warp calls;
whether an address is inside an operand is an argument. The end of the kernel is in
:mod:`cpembed.targets.cuda.results`.
"""

from __future__ import annotations

from cpembed.codegen.plan import HEADER, buffer
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.copies import factor_copies
from cpembed.targets.cuda.epilogue import (
    input_declarations,
    output_declarations,
    output_parameters,
)
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.results import write_results
from cpembed.targets.cuda.schedule import CHUNK, Plan
from cpembed.targets.cuda.writer import (
    PARAMETERS,
    PARTIAL,
    Writer,
    quotient,
    register_pointer,
    shared_pointer,
)


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
        declared += [*input_declarations(product), *output_declarations(product)]
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
        written = [f"{PARTIAL}[0 : {splits * elements}]"]
        if splits == 1:
            outputs = output_parameters(plan.product).values()
            written = [f"{name}[0 : {elements}]" for name, _ in outputs]
        script.line(f"T.writes({', '.join(written)})")
        _ProductBody(writer, plan).write()


class _ProductBody:
    """Writer of the statements of one thread of the product."""

    def __init__(self, writer: Writer, plan: Plan) -> None:
        self.writer, self.plan = writer, plan
        self.script, self.schedule = writer.script, plan.schedule
        self.product, self.instruction = plan.product, plan.product.instruction
        self.factors = (plan.first, plan.second)
        self.tiles = plan.shared_tiles
        self.copies = tuple(factor_copies(writer, plan, number) for number in range(2))

    def write(self) -> None:
        self._allocate()
        self._locate_thread()
        for copies in self.copies:
            copies.prepare()
        self._locate_fragments()
        stages, steps = self.schedule.stages, self.plan.steps
        # All stages but one are filled before the loop: the last is filled while it computes.
        for number in range(stages - 1):
            if number < steps:
                self._copy_stage(str(number), str(number * self.plan.stage_bytes))
            self.writer.call("cpembed_cp_async_commit")
        self._await_stage()
        self._load_fragments(0, 0)
        self._write_steps()
        # Results are staged in the same memory, so every copy and every reader has to be done.
        self.writer.call("cpembed_cp_async_wait_0")
        self.writer.barrier()
        write_results(self.writer, self.plan)

    def _allocate(self) -> None:
        (rows, columns), count = self.schedule.tile, self.instruction.registers
        shared_bytes = self.plan.shared_bytes
        self.script.line(f'shared = T.alloc_buffer(({shared_bytes},), "uint8", scope="shared.dyn")')
        # TVM shrinks shared memory to the accesses that it sees, so the last byte is touched.
        self.writer.call("cpembed_reserve", shared_pointer(str(shared_bytes - 1)))
        # Two sets of fragments: one is multiplied while the other is loaded.
        for name, registers in (("first", 2 * rows * count[0]), ("second", 2 * columns * count[1])):
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
                f"warp_row = {quotient('thread', LANES * self.schedule.warps[1])}",
                f"warp_column = {quotient('thread', LANES)} % {self.schedule.warps[1]}",
                f"row = ({above} + ({inside}) % {group}) * {self.schedule.block[0]}",
                f"column = ({inside}) // {group} * {self.schedule.block[1]}",
            )
        )

    def _locate_fragments(self) -> None:
        """Write the bytes at which the stages begin that are read and filled, and the lane's rows.

        ``first_place`` and ``second_place`` are bytes in a stage of the lane's rows of the factors.
        """
        last = (self.schedule.stages - 1) * self.plan.stage_bytes
        for name, value in (("reading", 0), *[("filling", last)] * bool(self._copying)):
            self.script.line(f'{name} = T.alloc_buffer((1,), "int32", scope="local")')
            self.script.line(f"{name}[0] = {value}")
        places = self._ldmatrix_places() if self.instruction.kind == "mma" else self._wmma_places()
        for name, place in zip(("first", "second"), places, strict=True):
            self.script.line(f"{name}_place = {place}")

    @property
    def _copying(self) -> int:
        """Number of steps that copy a later stage."""
        return max(0, self.plan.steps - self.schedule.stages + 1)

    def _write_steps(self) -> None:
        """Write the loop over the steps, and the last steps, which copy nothing."""
        copying = self._copying
        last = self.plan.steps - copying
        # Loops stay loops: ptxas would otherwise delay products until results are stored, while it
        # keeps their fragments, for which there are no registers beside 128 sums.
        if self.schedule.depth % 2 == 0:
            if copying:
                with self.script.nested(f"for step in T.serial({copying}, unroll=False):"):
                    self._write_step("step", 0, copies=True)
            # The compiler does not know the number of the last steps, which may be 1.
            self.script.line('last = T.alloc_buffer((1,), "int32", scope="local")')
            self.script.line(f"last[0] = {last}")
            self.writer.call("cpembed_opaque", register_pointer("last", "0"))
            with self.script.nested("for step in T.serial(last[0], unroll=False):"):
                self._write_step(f"{copying} + step", 0, copies=False)
            return
        # An odd number of depths leaves the fragments in the other set of registers, whose numbers
        # have to be constants: steps are written in pairs.
        if copying > 1:
            with self.script.nested(f"for pair in T.serial({copying // 2}, unroll=False):"):
                for half in range(2):
                    self._write_step(f"pair * 2 + {half}", half, copies=True)
        if copying % 2:
            self._write_step(str(copying - 1), 0, copies=True)
        for step in range(copying, self.plan.steps):
            self._write_step(str(step), step % 2, copies=False)

    def _write_step(self, step: str, first_set: int, *, copies: bool) -> None:
        """Write the copies and products of a step, whose first fragments are loaded.

        Parameters
        ----------
        step
            Expression of the number of the step.
        first_set
            Set of fragments, 0 or 1, that holds the first.
        copies
            True if a later stage is copied. A next stage exists then; otherwise it is tested for.
        """
        depth = self.schedule.depth
        for inner in range(depth):
            current, following = (first_set + inner) % 2, (first_set + inner + 1) % 2
            if inner + 1 < depth:
                self._load_fragments(inner + 1, following)
            if inner == 0:
                # After the first loads, which would wait until all copies are issued.
                if copies:
                    self._copy_stage(f"{step} + {self.schedule.stages - 1}", "filling[0]")
                # Committed in the last steps too: the number of groups to wait for is constant.
                self.writer.call("cpembed_cp_async_commit")
            if inner + 1 == depth:
                is_last = [] if copies else [f"if {step} + 1 < {self.plan.steps}:"]
                with self.script.nested(*is_last):
                    self._turn_stages()
                    self._await_stage()
                    self._load_fragments(0, following)
            self._multiply(current)

    def _turn_stages(self) -> None:
        """Write the change to the next stage; the one that was read is filled next."""
        stage_bytes, stages = self.plan.stage_bytes, self.schedule.stages
        if self._copying:
            self.script.line("filling[0] = reading[0]")
        self.script.line(f"reading[0] = reading[0] + {stage_bytes}")
        end = f"T.Select(reading[0] == {stages * stage_bytes}, {stages * stage_bytes}, 0)"
        self.script.line(f"reading[0] = reading[0] - {end}")

    def _await_stage(self) -> None:
        # The stage that is multiplied next has arrived; those after it may be in flight.
        self.writer.call(f"cpembed_cp_async_wait_{self.schedule.stages - 2}")
        self.writer.barrier()

    def _copy_stage(self, step: str, base: str) -> None:
        self.copies[0].copy(step, base)
        self.copies[1].copy(step, f"{base} + {self.tiles[0].bytes}")

    def _multiply(self, fragments: int) -> None:
        """Write the products of a set of fragments."""
        (rows, columns), count = self.schedule.tile, self.instruction.registers
        first, second = fragments * rows * count[0], fragments * columns * count[1]
        with self.script.nested(f"for i in T.unroll({rows}):", f"for j in T.unroll({columns}):"):
            self.writer.call(
                self.instruction.mma_function,
                register_pointer("sums", f"(i * {columns} + j) * {count[2]}"),
                register_pointer("first", f"{first} + i * {count[0]}"),
                register_pointer("second", f"{second} + j * {count[1]}"),
            )

    def _load_fragments(self, inner: int, fragments: int) -> None:
        """Write loads of the depth ``inner`` of the stage that is read into a set of fragments."""
        if self.instruction.kind == "mma":
            self._load_by_ldmatrix(inner, fragments)
        else:
            self._load_by_wmma(inner, fragments)

    def _ldmatrix_places(self) -> tuple[str, str]:
        """Return the bytes of a lane's row and chunk of the first depth in a stage."""
        (rows, columns), (m, n) = self.schedule.tile, (self.instruction.m, self.instruction.n)
        # Four matrices of 8 rows of 16 bytes each are the first factor of one instruction, or the
        # second factor of two. Where they are transposed, their rows are steps of the depth.
        row, chunk = f"warp_row * {rows * m} + lane % 16", "lane // 16"
        if self.tiles[0].transposed:
            row, chunk = "lane // 16 * 8 + lane % 8", f"warp_row * {rows * m // 8} + lane // 8 % 2"
        first = self.tiles[0].place(row, chunk)
        row, chunk = f"warp_column * {columns * n} + lane // 16 * {n} + lane % 8", "lane // 8 % 2"
        if self.tiles[1].transposed:
            row, chunk = "lane % 16", f"warp_column * {columns * n // 8} + lane // 16"
        return first, self.tiles[1].place(row, chunk)

    def _load_by_ldmatrix(self, inner: int, fragments: int) -> None:
        (rows, columns), (m, n) = self.schedule.tile, (self.instruction.m, self.instruction.n)

        def load(count: int, name: str, register: int, number: int, row: int) -> None:
            tile = self.tiles[number]
            # Chunks are permuted by exclusive or, and those of one depth, or of one tile, are
            # neighbours; places of all depths are computed before the loop, to which LDSM adds the
            # stage.
            moved, offset = inner * 2 * CHUNK, row * tile.pitch
            if tile.transposed:
                moved, offset = row // 8 * CHUNK, inner * self.instruction.k * tile.pitch
            place = f"T.bitwise_xor({name}_place, {moved}) + reading[0]"
            pointer = shared_pointer(f"{place} + {offset + number * self.tiles[0].bytes}")
            self.writer.call(
                f"cpembed_ldmatrix_x{count}{'_trans' * tile.transposed}",
                register_pointer(name, str(register)),
                pointer,
            )

        for i in range(rows):
            load(4, "first", (fragments * rows + i) * 4, 0, i * m)
        for j in range(0, columns, 2):
            count = 4 if j + 1 < columns else 2
            load(count, "second", (fragments * columns + j) * 2, 1, j * n)

    def _wmma_places(self) -> tuple[str, str]:
        """Return the bytes of a warp's rows in a stage."""
        (rows, columns), instruction = self.schedule.tile, self.instruction
        first = f"warp_row * {rows * instruction.m * self.tiles[0].pitch}"
        second = f"warp_column * {columns * instruction.n * self.tiles[1].pitch}"
        return first, second

    def _load_by_wmma(self, inner: int, fragments: int) -> None:
        """Write WMMA's loads: rows of the first factor, columns of the second."""
        extents = (self.instruction.m, self.instruction.n)
        for number, name in enumerate(("first", "second")):
            count, tile = self.schedule.tile[number], self.tiles[number]
            size = size_bytes(self.factors[number].layout.dtype)
            base = inner * self.instruction.k * size + number * self.tiles[0].bytes
            for i in range(count):
                offset = base + i * extents[number] * tile.pitch
                register = (fragments * count + i) * self.instruction.registers[number]
                self.writer.call(
                    self.instruction.load_functions[number],
                    register_pointer(name, str(register)),
                    shared_pointer(f"{name}_place + reading[0] + {offset}"),
                    str(tile.pitch // size),
                )
