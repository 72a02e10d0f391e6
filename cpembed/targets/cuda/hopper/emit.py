"""Kernel of warp groups as TensorIR.

A group of producers fills a ring of stages, the groups of consumers multiply them. Each stage has
two mbarriers: *full* completes a phase when the copies of the stage have arrived, *empty* when all
warps of the consumers are done with it. Products are asynchronous: those of a stage are in flight
while the next stage is waited for, and a stage is given back when the products behind it have
begun.

A block computes one work item after the other: a block of results, or a part of their sums. The
ring goes on from item to item, so that stages of the next one are filled while results are stored.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from cpembed.codegen.plan import HEADER, buffer
from cpembed.targets.cuda.epilogue import (
    input_declarations,
    output_declarations,
    output_parameters,
)
from cpembed.targets.cuda.hopper.device import product_name
from cpembed.targets.cuda.hopper.layouts import ALIGNMENT, CHUNK
from cpembed.targets.cuda.hopper.loads import (
    copied_bytes,
    factor_parameter,
    write_asynchronous,
    write_by_threads,
)
from cpembed.targets.cuda.hopper.schedule import (
    BARRIER_BYTES,
    CONSUMER_REGISTERS,
    PRODUCER_REGISTERS,
    WARP_ROWS,
    HopperPlan,
)
from cpembed.targets.cuda.hopper.streaming import (
    COUNTERS,
    workspace_elements,
    write_opaque,
    write_part,
    write_strip,
)
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP
from cpembed.targets.cuda.results import Strip, stage_sums, store_strip
from cpembed.targets.cuda.writer import (
    PARTIAL,
    Writer,
    quotient,
    register_pointer,
    shared_pointer,
)

MAX_LAG = 4
"""Maximum number of stages whose copies by threads are in flight at a time."""

MATRIX_BYTES = 32
"""Number of bytes along the depth of the factors of one instruction."""


def product_kernel(plan: HopperPlan) -> Writer:
    """Return the function ``main`` of the product, or of the partial sums of a split reduction."""
    writer, product = Writer(), plan.product
    splits, elements = plan.schedule.splits, product.output.layout.elements
    declared = [factor_parameter(plan, number) for number in range(2)]
    if splits > 1:
        declared.append(buffer(PARTIAL, splits * elements, product.sums))
    else:
        declared += [*input_declarations(product), *output_declarations(product)]
    if plan.order.streamed:
        declared += [
            buffer(PARTIAL, workspace_elements(plan), product.sums),
            buffer(COUNTERS, plan.order.streamed, "int32"),
        ]
    script = writer.script
    script.line(HEADER)
    with script.nested(f"def main({', '.join(declared)}):"):
        script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        with script.nested(
            f'for bx in T.thread_binding({plan.grid}, thread="blockIdx.x"):',
            f'for tx in T.thread_binding({plan.schedule.threads}, thread="threadIdx.x"):',
            'with T.sblock("product"):',
        ):
            script.line(f"block_number = T.axis.spatial({plan.grid}, bx)")
            script.line(f"thread = T.axis.spatial({plan.schedule.threads}, tx)")
            script.line("T.reads()")
            names = [name for name, _ in output_parameters(product).values()]
            written = [f"{name}[0 : {elements}]" for name in names]
            if splits > 1:
                written = [f"{PARTIAL}[0 : {splits * elements}]"]
            script.line(f"T.writes({', '.join(written)})")
            if plan.schedule.groups > 1:
                # Registers can be passed from group to group only if ptxas knows how many each
                # thread begins with, which the minimum number of resident blocks says.
                script.line('T.attr(0, "tirx.launch_bounds_min_blocks_per_sm", 1)')
            _Body(writer, plan).write()
    return writer


class _Body:
    """Writer of the statements of one thread."""

    def __init__(self, writer: Writer, plan: HopperPlan) -> None:
        self.writer, self.plan = writer, plan
        self.script, self.schedule = writer.script, plan.schedule
        self.product, self.instruction = plan.product, plan.product.instruction

    def write(self) -> None:
        size = self.schedule.cluster_blocks
        self.script.line(f"worker = {quotient('block_number', size)}")
        self.script.line(f"rank = block_number % {size}")
        self._allocate()
        self._initialise_barriers()
        consumers = self.schedule.consumers
        with self.script.nested(f"if thread >= {consumers}:"):
            self._change_registers("dec", PRODUCER_REGISTERS[self.plan.by_threads])
            self.script.line(f"producer = thread - {consumers}")
            if self.plan.by_threads:
                self._produce()
            else:
                # One thread issues all copies; the other warps of the group have ended.
                with self.script.nested("if producer == 0:"):
                    self._produce()
        with self.script.nested("else:"):
            self._change_registers("inc", CONSUMER_REGISTERS[self.plan.by_threads])
            self._consume()
        if size > 1:
            # Others may still copy to this block, or arrive at its mbarriers.
            self.writer.call("cpembed_cluster_sync")

    def _allocate(self) -> None:
        shared_bytes = self.plan.shared_bytes
        self.script.line(
            f'shared = T.alloc_buffer(({shared_bytes},), "uint8", scope="shared.dyn", '
            f"align={ALIGNMENT})"
        )
        # Number of the stage, and parity of the ring's turn.
        self.script.line('ring = T.alloc_buffer((2,), "int32", scope="local")')
        self.script.lines(("ring[0] = 0", "ring[1] = 0"))

    def _barrier(self, stage: str, *, empty: bool) -> str:
        """Return the byte of the mbarrier of a stage."""
        offset = self.plan.barrier_offset + self.schedule.stages * BARRIER_BYTES * empty
        return f"{offset} + {stage} * {BARRIER_BYTES}"

    def _initialise_barriers(self) -> None:
        stages = self.schedule.stages
        # One arrival announces the bytes of the asynchronous copies, the others are the threads'.
        arrivals = bool(copied_bytes(self.plan)) + WARP_GROUP * self.plan.by_threads
        readers = self.schedule.consumers // LANES * sum(self._sharing)
        with self.script.nested("if thread == 0:"):
            with self.script.nested(f"for stage in T.serial({stages}):"):
                for empty, count in ((False, arrivals), (True, readers)):
                    barrier = shared_pointer(self._barrier("stage", empty=empty))
                    self.writer.call("cpembed_mbarrier_init", barrier, str(count))
            self.writer.call("cpembed_mbarrier_init_fence")
        if self.schedule.cluster_blocks > 1:
            self.writer.call("cpembed_cluster_sync")
        else:
            self.writer.barrier()

    @property
    def _sharing(self) -> tuple[int, int]:
        """Number of blocks whose copies go to a block: of its row of a cluster, and others."""
        return self.schedule.sharers(0), self.schedule.sharers(1) - 1

    def _change_registers(self, change: str, count: int) -> None:
        # With one consumer group every thread has as many registers as it can address.
        if self.schedule.groups > 1:
            self.writer.call(f"cpembed_registers_{change}_{count}")

    @contextmanager
    def _items(self) -> Generator[None]:
        """Write the loop over the block's work items around the statements of one."""
        order = self.plan.order
        loop = [f"for turn_of_block in T.serial({order.turns}):"] * (order.turns > 1)
        with self.script.nested(*loop):
            turn = "turn_of_block" if order.turns > 1 else "0"
            lines, active = order.script("worker", turn)
            self.script.lines(lines)
            with self.script.nested(*[f"if {active}:"] * (active != "True")):
                self.script.lines(order.place_script("rank"))
                yield

    @property
    def _is_whole(self) -> bool:
        """True if each work item is the whole reduction of its results."""
        return self.schedule.splits == 1 and not self.plan.order.streamed

    @property
    def _item_steps(self) -> str:
        """Number of stages of a work item."""
        if self._is_whole:
            return str(self.plan.steps)
        return "last_step - first_step"

    def _produce(self) -> None:
        """Write the loop that fills stages."""
        if self.plan.by_threads:
            self.script.line('behind = T.alloc_buffer((2,), "int32", scope="local")')
            self.script.lines(("behind[0] = 0", "behind[1] = 0"))
        with self._items(), self.script.nested(f"for step in T.serial({self._item_steps}):"):
            empty = shared_pointer(self._barrier("ring[0]", empty=True))
            # The first turn finds the parity of a phase that never was: stages are empty.
            scope = "_cluster" * (self.schedule.cluster_blocks > 1)
            self.writer.call(f"cpembed_mbarrier_wait{scope}", empty, "T.bitwise_xor(ring[1], 1)")
            self._fill_stage()
            self._next_stage()
        if self.plan.by_threads:
            self._finish_copies()

    def _places(self, stage: str) -> tuple[str, str]:
        """Return the bytes at which the images of a stage begin."""
        first = f"{stage} * {self.plan.stage_bytes}"
        return first, f"{first} + {self.plan.images[0].bytes}"

    def _fill_stage(self) -> None:
        first = "" if self._is_whole else "first_step + "
        places = self._places("ring[0]")
        self.script.line(f"deep_step = {first}step")
        issued = copied_bytes(self.plan)
        if issued:
            only_one = self.plan.by_threads
            with self.script.nested(*["if producer == 0:"] * only_one):
                self.script.line(f"barrier = {self._barrier('ring[0]', empty=False)}")
                self.writer.call("cpembed_mbarrier_expect", shared_pointer("barrier"), str(issued))
                write_asynchronous(self.writer, self.plan, "deep_step", places)
        if not self.plan.by_threads:
            return
        for number, load in enumerate(self.schedule.loads):
            if load == "threads":
                write_by_threads(self.writer, self.plan, number, "deep_step", places[number])
        self.writer.call("cpembed_cp_async_commit")
        self.script.line("behind[1] = behind[1] + 1")
        with self.script.nested(f"if behind[1] > {self._lag}:"):
            self.writer.call(f"cpembed_cp_async_wait_{self._lag}")
            self._announce_oldest()

    @property
    def _lag(self) -> int:
        """Number of stages that threads copy ahead of the one that they announce."""
        # Consumers give a stage back only behind the products of the next one, so two stages have
        # to be announced before another is waited for.
        return min(MAX_LAG, self.schedule.stages - 2)

    def _announce_oldest(self) -> None:
        """Write the arrival of a thread at the oldest stage whose copies it has not announced."""
        self.writer.call("cpembed_proxy_fence")
        full = self._barrier("behind[0]", empty=False)
        self.writer.call("cpembed_mbarrier_arrive", shared_pointer(full))
        following = f"behind[0] + 1 == {self.schedule.stages}"
        self.script.line(f"behind[0] = T.Select({following}, 0, behind[0] + 1)")
        self.script.line("behind[1] = behind[1] - 1")

    def _finish_copies(self) -> None:
        """Write the arrivals at the last stages."""
        if self._lag == 0:
            return
        self.writer.call("cpembed_cp_async_wait_0")
        with (
            self.script.nested(f"for last in T.serial({self._lag}):"),
            self.script.nested("if behind[1] > 0:"),
        ):
            self._announce_oldest()

    def _next_stage(self) -> None:
        self.script.line("ring[0] = ring[0] + 1")
        with self.script.nested(f"if ring[0] == {self.schedule.stages}:"):
            self.script.lines(("ring[0] = 0", "ring[1] = T.bitwise_xor(ring[1], 1)"))

    def _consume(self) -> None:
        """Write the loop that multiplies stages and stores results."""
        (rows, columns), count = self.schedule.tile, self.instruction.registers[2]
        sums = rows * columns * count
        # Two sums of float16 share a register of 32 bits.
        dtype = "uint32" if self.product.sums == "float16" else self.product.sums
        self.script.line(f'sums = T.alloc_buffer(({sums},), "{dtype}", scope="local")')
        self.script.lines(
            (
                f"lane = thread % {LANES}",
                f"consumer = thread // {WARP_GROUP}",
                f"warp = thread // {LANES}",
            )
        )
        if self.schedule.in_registers:
            registers = rows * self.schedule.depth * self.instruction.registers[0]
            self.script.line(f'fragments = T.alloc_buffer(({registers},), "uint32", scope="local")')
        self._write_descriptors()
        with self._items():
            self._multiply_all()
            if not self._is_whole:
                write_opaque(self.writer, self.plan, sums)
            if not self.plan.order.streamed:
                self._store()
                return
            write_part(self.writer, self.plan, sums)
            with self.script.nested("if finished[0] == 1:"):
                self._store()

    def _write_descriptors(self) -> None:
        """Write the descriptors of both images of the first stage."""
        first = self.plan.images[0].matrix_offset(self.schedule.tile[0] * self.instruction.m, 0)
        for name, number, place in (
            ("first", 0, f"consumer * {first}"),
            ("second", 1, str(self.plan.images[0].bytes)),
        ):
            if self.schedule.in_registers and number == 0:
                continue
            bits = self.plan.images[number].descriptor.bits
            # TVM reads constants of 64 bits with a sign.
            signed = bits - (bits >> 63 << 64)
            self.writer.value(
                name,
                "cpembed_matrix_descriptor",
                "uint64",
                shared_pointer(place),
                f"T.int64({signed})",
            )

    def _multiply_all(self) -> None:
        """Write the loop over the stages of a work item."""
        before = f"T.Select(ring[0] == 0, {self.schedule.stages - 1}, ring[0] - 1)"
        with self.script.nested(f"for step in T.serial({self._item_steps}):"):
            full = shared_pointer(self._barrier("ring[0]", empty=False))
            self.writer.call("cpembed_mbarrier_wait", full, "ring[1]")
            if self.schedule.in_registers:
                # Products in flight read the registers that the next stage is loaded into.
                self.writer.call("cpembed_wgmma_wait_0")
                self._load_first()
                self._multiply_stage()
            else:
                self._multiply_stage()
                # The products of the stage before are done.
                self.writer.call("cpembed_wgmma_wait_1")
            with self.script.nested("if step > 0:"):
                self._release(before)
            self._next_stage()
        self.writer.call("cpembed_wgmma_wait_0")
        self._release(before)

    def _release(self, stage: str) -> None:
        in_row, in_column = self._sharing
        empty = shared_pointer(self._barrier(stage, empty=True))
        if in_row + in_column == 1:
            with self.script.nested("if lane == 0:"):
                self.writer.call("cpembed_mbarrier_arrive", empty)
            return
        # A lane for each block whose copies go here: those of the row of the cluster, then those of
        # its column without this one.
        columns = self.schedule.cluster[1]
        row = f"rank // {columns} * {columns} + lane" if in_row > 1 else "rank"
        number = f"(lane - {in_row})"
        above = f"T.Select({number} < rank // {columns}, {number}, {number} + 1)"
        block = f"T.Select(lane < {in_row}, {row}, {above} * {columns} + rank % {columns})"
        with self.script.nested(f"if lane < {in_row + in_column}:"):
            self.writer.call("cpembed_mbarrier_arrive_at", empty, block)

    def _load_first(self) -> None:
        """Write the loads of the first factor's fragments of a stage into registers."""
        rows, image = self.schedule.tile[0], self.plan.images[0]
        with self.script.nested(
            f"for inner in T.unroll({self.schedule.depth}):", f"for i in T.unroll({rows}):"
        ):
            tile = f"consumer * {rows} + i"
            row = f"({tile}) * {self.instruction.m} + warp % 4 * {WARP_ROWS} + lane % 16"
            place = image.place(row, "inner * 2 + lane // 16")
            self.writer.call(
                "cpembed_ldmatrix_x4",
                register_pointer("fragments", f"(inner * {rows} + i) * 4"),
                shared_pointer(f"ring[0] * {self.plan.stage_bytes} + {place}"),
            )

    def _multiply_stage(self) -> None:
        (rows, columns), n = self.schedule.tile, self.instruction.n
        count = columns * self.instruction.registers[2]
        majors = [image.major for image in self.plan.images]
        name = product_name(
            self.instruction,
            columns * n,
            registers=self.schedule.in_registers,
            transposed="".join(name for name, m in zip("ab", majors, strict=True) if m == "mn"),
        )
        distance = f"ring[0] * {self.plan.stage_bytes // CHUNK}"
        self.script.line(f'distance = T.cast({distance}, "uint64")')
        self.writer.call("cpembed_wgmma_fence")
        for inner in range(self.schedule.depth):
            # The first product of a work item begins the sums.
            accumulate = "1" if inner else 'T.cast(step > 0, "int32")'
            for row in range(rows):
                self.writer.call(
                    name,
                    register_pointer("sums", str(row * count)),
                    self._first_factor(inner, row),
                    self._descriptor(1, 0, inner),
                    accumulate,
                )
        self.writer.call("cpembed_wgmma_commit")

    def _first_factor(self, inner: int, row: int) -> str:
        """Return the first factor of a product: registers, or a descriptor."""
        if self.schedule.in_registers:
            return register_pointer("fragments", str((inner * self.schedule.tile[0] + row) * 4))
        return self._descriptor(0, row * self.instruction.m, inner)

    def _descriptor(self, number: int, row: int, inner: int) -> str:
        offset = self.plan.images[number].matrix_offset(row, inner * MATRIX_BYTES)
        return f"{('first', 'second')[number]} + distance + T.uint64({offset // CHUNK})"

    def _store(self) -> None:
        """Write the end of a work item, strip by strip of a warp's sums."""
        (rows, columns), staging = self.schedule.tile, self.plan.staging
        chunks = columns // self.plan.strip
        block = self.schedule.block
        strip = Strip(
            product=self.product,
            staging=staging,
            row_tile=f"row_block * {block[0]} + consumer * {rows} + strip // {chunks}",
            column_tile=f"column_block * {block[1]} + strip % {chunks} * {self.plan.strip}",
            first_row=f"warp % 4 * {WARP_ROWS}",
            splits=self.schedule.splits,
        )
        self.script.line(f"stage = {self.plan.staging_offset} + warp * {staging.bytes}")
        with self.script.nested(f"for strip in T.unroll({rows * chunks}):"):
            name = "sums"
            if self.plan.order.streamed:
                name = "total"
                registers = self.plan.strip * self.instruction.registers[2]
                write_strip(self.writer, self.plan, registers)
            stage_sums(self.writer, self.instruction, staging, self.plan.strip, name)
            # Lanes read what others staged, and stage the next strip in its place.
            self.writer.warp_barrier()
            store_strip(self.writer, strip)
            self.writer.warp_barrier()
