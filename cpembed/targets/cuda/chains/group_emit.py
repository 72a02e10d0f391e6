"""Kernel of a chain for warp groups of Hopper as TensorIR.

One thread loads the rows of a block, then chunk by chunk both other factors, into a ring of stages.
Consumer groups multiply asynchronously: the first product of a chunk is issued before the second
one of the chunk before, and the function between is computed from its sums while the latter is in
flight. What is between the products stays in registers, which are the second product's factor.
"""

from __future__ import annotations

from cpembed.codegen.plan import storage_dtype
from cpembed.targets.cuda.chains.emit import kernel_frame, locate_block, locate_chunks
from cpembed.targets.cuda.chains.group_plan import SHARED_REGISTERS, GroupPlan, PanelFactor
from cpembed.targets.cuda.chains.pointwise import write_pointwise
from cpembed.targets.cuda.chains.softmax import Softmax
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP
from cpembed.targets.cuda.results import Strip, store_strip
from cpembed.targets.cuda.warp_specialized.device import product_name
from cpembed.targets.cuda.warp_specialized.layouts import ALIGNMENT, CHUNK, write_descriptor
from cpembed.targets.cuda.warp_specialized.loads import map_name, write_tensor_copy
from cpembed.targets.cuda.warp_specialized.ring import StageCounter
from cpembed.targets.cuda.warp_specialized.schedule import BARRIER_BYTES, WARP_ROWS
from cpembed.targets.cuda.warp_specialized.streaming import write_opaque
from cpembed.targets.cuda.writer import Writer, register_pointer, shared_pointer
from cpembed.workloads.chains import RowSoftmax


def group_kernel(plan: GroupPlan) -> Writer:
    """Return the function ``main`` of a chain for warp groups."""
    writer = Writer()
    maps = [f"{map_name(factor.role)}: T.TensorMap()" for factor in plan.factors]
    with kernel_frame(writer.script, plan, maps, {}):
        if plan.groups > 1:
            # As for products: ptxas has to know how many registers each thread begins with.
            writer.script.line('T.attr(0, "tirx.launch_bounds_min_blocks_per_sm", 1)')
        _GroupBody(writer, plan).write()
    return writer


class _GroupBody:
    """Writer of the statements of one thread."""

    def __init__(self, writer: Writer, plan: GroupPlan) -> None:
        self.writer, self.plan = writer, plan
        self.script, self.schedule = writer.script, plan.schedule
        # The second factor is a chunk behind the first.
        self.ring, self.behind = (
            StageCounter(writer.script, name, plan.schedule.stages) for name in ("ring", "behind")
        )
        self.softmax = (
            Softmax(writer, plan) if isinstance(plan.chain.function, RowSoftmax) else None
        )

    def write(self) -> None:
        plan = self.plan
        self.script.line(
            f'shared = T.alloc_buffer(({plan.shared_bytes},), "uint8", scope="shared.dyn", '
            f"align={ALIGNMENT})"
        )
        locate_block(self.writer, plan)
        first, last = locate_chunks(self.writer, plan, self.softmax)
        self.ring.allocate()
        self._initialise_barriers()
        of_producers, of_consumers = SHARED_REGISTERS[plan.groups]
        # ptxas takes a shuffled number for one of the warp, and what follows from it too.
        self.writer.value("warp", "cpembed_uniform", "int32", f"thread // {LANES}")
        with self.script.nested(f"if warp >= {plan.consumers // LANES}:"):
            if of_producers:
                self.writer.call(f"cpembed_registers_dec_{of_producers}")
            with self.script.nested(f"if thread == {plan.consumers}:"):
                self._produce(first, last)
        with self.script.nested("else:"):
            if of_producers:
                self.writer.call(f"cpembed_registers_inc_{of_consumers}")
            self._consume(first, last)

    # -- mbarriers --------------------------------------------------------------------------------

    def _barrier(self, factor: PanelFactor, stage: str, *, empty: bool = False) -> str:
        """Return a pointer to an mbarrier of a factor in a stage."""
        if factor.role == "A":
            return shared_pointer(str(self.plan.barrier_offset))
        number = 2 * (factor.role == "B2") + empty
        offset = self.plan.barrier_offset + (1 + number * self.schedule.stages) * BARRIER_BYTES
        return shared_pointer(f"{offset} + {stage} * {BARRIER_BYTES}")

    def _initialise_barriers(self) -> None:
        plan, readers = self.plan, str(self.plan.consumers // LANES)
        with self.script.nested("if thread == 0:"):
            barrier = self._barrier(plan.rows_panels, "")
            self.writer.call("cpembed_mbarrier_init", barrier, "1")
            with self.script.nested(f"for stage in T.serial({self.schedule.stages}):"):
                for factor in (plan.columns_panels, plan.second_panels):
                    for empty, count in ((False, "1"), (True, readers)):
                        barrier = self._barrier(factor, "stage", empty=empty)
                        self.writer.call("cpembed_mbarrier_init", barrier, count)
            self.writer.call("cpembed_mbarrier_init_fence")
        self.writer.barrier()

    # -- loads ------------------------------------------------------------------------------------

    def _produce(self, first: str, last: str) -> None:
        """Write the loop of the thread that loads."""
        plan = self.plan
        with self.script.nested(f"if {first} < {last}:"):
            self._load(plan.rows_panels, "0", "0")
            with self.script.nested(f"for chunk in T.serial({first}, {last}):"):
                for factor in (plan.columns_panels, plan.second_panels):
                    empty = self._barrier(factor, "ring[0]", empty=True)
                    # The first turn finds the parity of a phase that never was.
                    self.writer.call("cpembed_mbarrier_wait", empty, "T.bitwise_xor(ring[1], 1)")
                    self._load(factor, "chunk", "ring[0]")
                self.ring.advance()

    def _load(self, factor: PanelFactor, chunk: str, stage: str) -> None:
        """Write the copies of all panels of a factor."""
        plan = self.plan
        pointer = self._barrier(factor, stage)
        place = pointer.removeprefix("T.address_of(shared[").removesuffix("])")
        with self.script.nested("if True:"):
            self.script.line(f"barrier = {place}")
            self.writer.call(
                "cpembed_mbarrier_expect", shared_pointer("barrier"), str(factor.transaction_bytes)
            )
            tiles, deep = {
                "A": ("row", "0"),
                "B": (f"{chunk} * {plan.column_tiles}", "0"),
                "B2": ("column", f"{chunk} * {self.schedule.chunk}"),
            }[factor.role]
            for panel in range(factor.panels):
                start = self._place(factor, stage, panel * factor.image.bytes)
                for copy in factor.view.copies:
                    write_tensor_copy(
                        self.writer,
                        copy,
                        factor.product,
                        factor.number,
                        (tiles, f"{deep} + {panel * factor.panel}"),
                        start,
                        map_name(factor.role),
                    )

    def _place(self, factor: PanelFactor, stage: str, offset: int) -> str:
        """Return the byte of shared memory at an offset of a factor in a stage."""
        if factor.role == "A":
            return str(offset)
        start = self.plan.stage_start + offset
        start += self.plan.columns_panels.bytes * (factor.role == "B2")
        return f"{stage} * {self.plan.stage_bytes} + {start}"

    # -- products ---------------------------------------------------------------------------------

    def _consume(self, first: str, last: str) -> None:
        plan, second = self.plan, self.plan.second
        sums = second.instruction.registers[2]
        for name, count, dtype in (
            ("scores", plan.column_tiles * sums, plan.first.sums),
            ("middle", self._middle * self.schedule.chunk, storage_dtype(plan.chain.factors)),
            ("sums", self.schedule.columns * sums, second.sums),
        ):
            self.script.line(f'{name} = T.alloc_buffer(({count},), "{dtype}", scope="local")')
        self.script.lines((f"lane = thread % {LANES}", f"warp_row = warp // {WARP_GROUP // LANES}"))
        self.behind.allocate()
        with self.script.nested(f"for i in T.unroll({self.schedule.columns * sums}):"):
            self.script.line(f"sums[i] = T.{second.sums}(0)")
        if self.softmax is not None:
            self.softmax.begin()
        self._write_descriptors()
        with self.script.nested(f"if {first} < {last}:"):
            self._multiply_all(first, last)
        if self.schedule.splits > 1:
            # Sums of a part are stored as they are.
            write_opaque(self.writer, second.sums, self.schedule.columns * sums)
        if self.softmax is not None:
            self.softmax.end()
        self._store()

    @property
    def _middle(self) -> int:
        """Number of a thread's elements of an instruction tile of the operand between."""
        instruction = self.plan.second.instruction
        return instruction.m * instruction.k // instruction.threads

    def _multiply_all(self, first: str, last: str) -> None:
        """Write the chunks of a block; the first product is a chunk ahead of the second."""
        plan, groups = self.plan, self.plan.groups
        self.writer.call("cpembed_mbarrier_wait", self._barrier(plan.rows_panels, ""), "0")
        self._await_columns()
        self._multiply_first()
        self.writer.call("cpembed_wgmma_wait_0")
        self._release(plan.columns_panels, "ring[0]")
        self.ring.advance()
        self._write_function(first)
        with self.script.nested(f"if {first} + 1 < {last}:"):
            self._await_columns()
        if groups > 1:
            # As if the last group had issued before: the first one begins.
            self._arrive_at_turn(f"warp_row == {groups - 1}", "0")
        with self.script.nested(f"for previous in T.serial({first}, {last} - 1):"):
            if groups > 1:
                self._await_turn("warp_row")
            self._multiply_first()
            self._multiply_second()
            if groups > 1:
                self._arrive_at_turn("", f"T.Select(warp_row == {groups - 1}, 0, warp_row + 1)")
            self.writer.call("cpembed_wgmma_wait_1")
            self._release(plan.columns_panels, "ring[0]")
            self.ring.advance()
            self._write_function("(previous + 1)", last)
        self._multiply_second()
        self.writer.call("cpembed_wgmma_wait_0")
        if groups > 1:
            # The last group's last arrival: no barrier is left half full.
            with self.script.nested("if warp_row == 0:"):
                self._await_turn("warp_row")

    def _write_function(self, step: str, last: str | None = None) -> None:
        """Write the function between the products.

        Parameters
        ----------
        step : str
            Number of the chunk.
        last : str, optional
            Number of the chunk behind the last, if products of the chunk before are in flight,
            which read ``middle`` and change the sums.
        """
        softmax = self.softmax
        if softmax is not None:
            softmax.write_powers(step, rescale=last is None)
        if last is not None:
            # Behind the powers: ptxas moves them beyond a wait for products, where they would
            # overlap with none, but not beyond this one, which is a loop.
            with self.script.nested(f"if {step} + 1 < {last}:"):
                self._await_columns()
            self.writer.call("cpembed_wgmma_wait_0")
            self._release(self.plan.second_panels, "behind[0]")
            self.behind.advance()
        if softmax is None:
            write_pointwise(self.writer, self.plan, step)
            return
        if last is not None:
            softmax.rescale()
        softmax.write_middle()

    def _await_columns(self) -> None:
        """Write the wait for the first product's columns of the next chunk."""
        full = self._barrier(self.plan.columns_panels, "ring[0]")
        self.writer.call("cpembed_mbarrier_wait", full, "ring[1]")

    def _await_turn(self, group: str) -> None:
        """Write the wait until the group before has issued its products."""
        self.writer.call("cpembed_named_barrier", f"{group} + 1", str(2 * WARP_GROUP))

    def _arrive_at_turn(self, condition: str, group: str) -> None:
        """Write that it is a group's turn to issue products, by the group before it."""
        with self.script.nested(*[f"if {condition}:"] * bool(condition)):
            self.writer.call("cpembed_named_arrive", f"{group} + 1", str(2 * WARP_GROUP))

    def _release(self, factor: PanelFactor, stage: str) -> None:
        with self.script.nested("if lane == 0:"):
            self.writer.call("cpembed_mbarrier_arrive", self._barrier(factor, stage, empty=True))

    def _write_descriptors(self) -> None:
        """Write the descriptors of all factors, of the first stage."""
        plan = self.plan
        rows = plan.rows_panels.image.matrix_offset(plan.first.instruction.m, 0)
        for name, factor, place in (
            ("rows_matrix", plan.rows_panels, f"warp_row * {rows}"),
            ("columns_matrix", plan.columns_panels, self._place(plan.columns_panels, "0", 0)),
            ("second_matrix", plan.second_panels, self._place(plan.second_panels, "0", 0)),
        ):
            write_descriptor(self.writer, name, factor.image, place)

    def _matrix(self, name: str, factor: PanelFactor, stage: str, inner: int) -> str:
        """Return the descriptor of a factor's instruction tiles at a place of the depth."""
        text = f"{name} + T.uint64({factor.offset(0, inner) // CHUNK})"
        if not stage:
            return text
        return f'{text} + T.cast({stage} * {self.plan.stage_bytes // CHUNK}, "uint64")'

    def _multiply_first(self) -> None:
        """Write the products of the rows with a chunk's columns, which begin the scores."""
        plan, columns = self.plan, self.plan.columns_panels
        name = product_name(
            plan.first.instruction,
            plan.column_tiles * plan.first.instruction.n,
            transposed="a" * (plan.rows_panels.image.major == "mn")
            + "b" * (columns.image.major == "mn"),
        )
        self.writer.call("cpembed_wgmma_fence")
        for inner in range(columns.depth):
            self.writer.call(
                name,
                register_pointer("scores", "0"),
                self._matrix("rows_matrix", plan.rows_panels, "", inner),
                self._matrix("columns_matrix", columns, "ring[0]", inner),
                str(int(inner > 0)),
            )
        self.writer.call("cpembed_wgmma_commit")

    def _multiply_second(self) -> None:
        """Write the products of the operand between with the second factor."""
        plan, second = self.plan, self.plan.second_panels
        full = self._barrier(second, "behind[0]")
        self.writer.call("cpembed_mbarrier_wait", full, "behind[1]")
        instruction = plan.second.instruction
        name = product_name(
            instruction,
            self.schedule.columns * instruction.n,
            registers=True,
            transposed="b" * (second.image.major == "mn"),
        )
        self.writer.call("cpembed_wgmma_fence")
        for inner in range(second.depth):
            self.writer.call(
                name,
                register_pointer("sums", "0"),
                register_pointer("middle", str(inner * self._middle)),
                self._matrix("second_matrix", second, "behind[0]", inner),
                "1",
            )
        self.writer.call("cpembed_wgmma_commit")

    def _store(self) -> None:
        """Write the end of the block, strip by strip of a warp's sums."""
        plan = self.plan
        strips = self.schedule.columns // plan.strip
        strip = Strip(
            product=plan.second,
            staging=plan.staging,
            row_tile="row + warp_row",
            column_tile=f"column + strip * {plan.strip}",
            first_row=f"warp % 4 * {WARP_ROWS}",
            splits=self.schedule.splits,
        )
        self.script.line(f"stage = {plan.staging_offset} + warp * {plan.staging.bytes}")
        with self.script.nested(f"for strip in T.unroll({strips}):"):
            store_strip(self.writer, strip)
