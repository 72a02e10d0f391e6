"""Kernel of the product as TensorIR.

It has the structure of CUTLASS's multistage kernels: while a stage of shared memory is multiplied,
later ones are copied by ``cp.async`` (:mod:`cpembed.targets.cuda.multistage.copies`), and while the
fragments of one instruction's depth are multiplied, those of the next are loaded, from the next
stage too. One barrier per stage keeps the copies of a stage behind its last reader. Memory is
accessed by device functions only (:mod:`cpembed.targets.cuda.device`), which every lane of a warp
calls; whether an address is inside an operand is an argument. The end of the kernel is in
:mod:`cpembed.targets.cuda.results`.
"""

from __future__ import annotations

from collections.abc import Callable

from cpembed.codegen.plan import Script, buffer
from cpembed.targets.cuda.epilogue import (
    input_declarations,
    output_declarations,
    output_elements,
)
from cpembed.targets.cuda.fragment_products import FragmentProducts, WmmaProducts
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.multistage.copies import factor_copies
from cpembed.targets.cuda.multistage.registers import most_registers, resident_blocks
from cpembed.targets.cuda.multistage.schedule import Plan
from cpembed.targets.cuda.results import write_results
from cpembed.targets.cuda.writer import (
    PARAMETERS,
    PARTIAL,
    Writer,
    quotient,
    register_pointer,
    shared_pointer,
    thread_nest,
)


def product_kernel(plan: Plan) -> Writer:
    """Return the function ``main`` of the product, or of the partial sums of a split reduction."""
    writer, product = Writer(), plan.product
    rows, columns, batch, splits = plan.blocks
    factors = dict(zip(PARAMETERS, (plan.first.layout, plan.second.layout), strict=True))
    declared = [buffer(name, layout.elements, layout.dtype) for name, layout in factors.items()]
    if splits > 1:
        written = {PARTIAL: splits * product.output.layout.elements}
        declared.append(buffer(PARTIAL, written[PARTIAL], product.sums))
    else:
        written = output_elements(product)
        declared += [*input_declarations(product), *output_declarations(product)]
    numbers = {
        "block": ("blockIdx.x", rows * columns),
        "batch": ("blockIdx.y", batch),
        "part": ("blockIdx.z", splits),
        "thread": ("threadIdx.x", plan.schedule.threads),
    }
    reads = {name: layout.elements for name, layout in factors.items()}
    with (
        writer.script.function(declared),
        thread_nest(writer.script, "product", numbers, reads, written),
    ):
        # Without a loop ptxas computes the addresses of all stages at once; bounds make it spill.
        blocks = 1
        if plan.copying > 1:
            blocks = resident_blocks(most_registers(plan), plan.schedule.threads)
        writer.script.line(f'T.attr(0, "tirx.launch_bounds_min_blocks_per_sm", {blocks})')
        _ProductBody(writer, plan).write()
    return writer


def locate_stages(script: Script, first: int, stage_bytes: int, stages: int) -> None:
    """Write the bytes at which the stages begin that are read and filled.

    Parameters
    ----------
    script : Script
    first : int
        First byte of the first stage, which is read first; the last one is filled.
    stage_bytes, stages : int
        Bytes of a stage, and number of stages.
    """
    for name, value in (("reading", first), ("filling", first + (stages - 1) * stage_bytes)):
        script.line(f'{name} = T.alloc_buffer((1,), "int32", scope="local")')
        script.line(f"{name}[0] = {value}")


def turn_stages(script: Script, first: int, stage_bytes: int, stages: int) -> None:
    """Write the change to the next stage; the one that was read is filled next.

    Parameters
    ----------
    script, first, stage_bytes, stages : Script, int, int, int
        Those of :func:`locate_stages`.
    """
    size = stages * stage_bytes
    script.line("filling[0] = reading[0]")
    script.line(f"reading[0] = reading[0] + {stage_bytes}")
    script.line(f"reading[0] = reading[0] - T.Select(reading[0] == {first + size}, {size}, 0)")


class _ProductBody:
    """Writer of the statements of one thread of the product."""

    def __init__(self, writer: Writer, plan: Plan) -> None:
        self.writer, self.plan = writer, plan
        self.script, self.schedule = writer.script, plan.schedule
        self.tiles = plan.shared_tiles
        kind = FragmentProducts if plan.product.instruction.kind == "mma" else WmmaProducts
        instruction, places = plan.product.instruction, ("", "")
        self.products = kind(writer, instruction, self.schedule.tile, self.tiles, places)
        self._read_stage("reading[0]")
        self.copies = tuple(factor_copies(writer, plan, number) for number in range(2))

    def write(self) -> None:
        self._allocate()
        self._locate_thread()
        for copies in self.copies:
            copies.prepare()
        locate_stages(self.script, 0, self.plan.stage_bytes, self.schedule.stages)
        self.products.locate()
        stages, steps = self.schedule.stages, self.plan.steps
        # All stages but one are filled before the loop: the last is filled while it computes.
        for number in range(stages - 1):
            if number < steps:
                self._copy_stage(str(number), str(number * self.plan.stage_bytes))
            self.writer.call("cpembed_cp_async_commit")
        self._await_stage()
        self.products.load(0, 0)
        self._write_steps()
        # Results are staged in the same memory, so every copy and every reader has to be done.
        self.writer.call("cpembed_cp_async_wait_0")
        self.writer.barrier()
        write_results(self.writer, self.plan)

    def _allocate(self) -> None:
        shared_bytes = self.plan.shared_bytes
        self.script.line(f'shared = T.alloc_buffer(({shared_bytes},), "uint8", scope="shared.dyn")')
        # TVM shrinks shared memory to the accesses that it sees, so the last byte is touched.
        self.writer.call("cpembed_reserve", shared_pointer(str(shared_bytes - 1)))
        self.products.allocate()
        self.products.clear()

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

    def _write_steps(self) -> None:
        """Write the loop over the steps, and the last steps, which copy nothing."""
        copying = self.plan.copying
        last = self.plan.steps - copying
        # Loops stay loops: ptxas would otherwise delay products until results are stored, while it
        # keeps their fragments, for which there are no registers beside 128 sums.
        if self.schedule.depth % 2 == 0:
            turned = self._write_turns()
            if copying > turned:
                with self.script.nested(f"for step in T.serial({copying - turned}, unroll=False):"):
                    self._write_step(f"{turned} + step", 0, copies=True)
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

    def _write_turns(self) -> int:
        """Write the loop over turns of the ring of stages; return the number of steps in it."""
        turns, stages = self.plan.ring_turns, self.schedule.stages
        if not turns:
            return 0
        with self.script.nested(f"for lap in T.serial({turns}, unroll=False):"):
            for stage in range(stages):
                self._write_step(f"lap * {stages} + {stage}", 0, copies=True, stage=stage)
        self._read_stage("reading[0]")
        return turns * stages

    def _read_stage(self, place: str) -> None:
        """Let loads of fragments read the stage that begins at an expression."""
        self.products.places = (place, f"{place} + {self.tiles[0].bytes}")

    def _write_step(
        self, step: str, first_set: int, *, copies: bool, stage: int | None = None
    ) -> None:
        """Write the copies and products of a step, whose first fragments are loaded.

        Parameters
        ----------
        step
            Expression of the number of the step.
        first_set
            Set of fragments, 0 or 1, that holds the first.
        copies
            True if a later stage is copied. A next stage exists then; otherwise it is tested for.
        stage
            Number of the stage that is read; None for the one at ``reading[0]``.
        """
        filling = "filling[0]"
        if stage is not None:
            self._read_stage(str(stage * self.plan.stage_bytes))
            filling = str((stage - 1) % self.schedule.stages * self.plan.stage_bytes)
        is_last = [] if copies else [f"if {step} + 1 < {self.plan.steps}:"]

        def copy_ahead() -> None:
            # After the first loads, which would wait until all copies are issued.
            if copies:
                self._copy_stage(f"{step} + {self.schedule.stages - 1}", filling)
            # Committed in the last steps too: the number of groups to wait for is constant.
            self.writer.call("cpembed_cp_async_commit")

        def next_stage(load_fragments: Callable[[], None]) -> None:
            with self.script.nested(*is_last):
                if stage is None:
                    turn_stages(self.script, 0, self.plan.stage_bytes, self.schedule.stages)
                else:
                    following = (stage + 1) % self.schedule.stages
                    self._read_stage(str(following * self.plan.stage_bytes))
                self._await_stage()
                load_fragments()

        self.products.stage(self.schedule.depth, first_set, copy_ahead, next_stage)

    def _await_stage(self) -> None:
        # The stage that is multiplied next has arrived; those after it may be in flight.
        self.writer.call(f"cpembed_cp_async_wait_{self.schedule.stages - 2}")
        self.writer.barrier()

    def _copy_stage(self, step: str, base: str) -> None:
        self.copies[0].copy(step, base)
        self.copies[1].copy(step, f"{base} + {self.tiles[0].bytes}")
