"""Kernel of producers and consumers as TensorIR.

Producers fill a ring of stages (:mod:`cpembed.targets.cuda.warp_specialized.ring`) by bulk copies
or by their threads, consumers multiply them
(:mod:`cpembed.targets.cuda.warp_specialized.consumers`).

A block computes one work item after the other: a block of results, or a part of their sums. The
ring goes on from item to item, so that stages of the next one are filled while results are stored.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from cpembed.codegen.plan import buffer
from cpembed.targets.cuda.epilogue import (
    input_declarations,
    output_declarations,
    output_elements,
)
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.results import store_strip
from cpembed.targets.cuda.warp_specialized.consumers import consumers_of
from cpembed.targets.cuda.warp_specialized.layouts import ALIGNMENT
from cpembed.targets.cuda.warp_specialized.loads import (
    copied_bytes,
    factor_parameter,
    map_name,
    write_asynchronous,
    write_by_threads,
)
from cpembed.targets.cuda.warp_specialized.ring import Ring
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.warp_specialized.stores import BoxStores
from cpembed.targets.cuda.warp_specialized.streaming import (
    COUNTERS,
    workspace_elements,
    write_part,
    write_strip,
)
from cpembed.targets.cuda.writer import (
    PARAMETERS,
    PARTIAL,
    Writer,
    quotient,
    shared_pointer,
    thread_nest,
)

MAX_LAG = 4
"""Maximum number of stages whose copies by threads are in flight at a time."""


def product_kernel(plan: SpecializedPlan) -> Writer:
    """Return the function ``main`` of the product, or of the partial sums of a split reduction."""
    writer, product = Writer(), plan.product
    splits, written = plan.schedule.splits, output_elements(product)
    declared = [factor_parameter(plan, number) for number in range(2)]
    if splits > 1:
        written = {PARTIAL: splits * product.output.layout.elements}
        declared.append(buffer(PARTIAL, written[PARTIAL], product.sums))
    elif plan.store is None:
        declared += [*input_declarations(product), *output_declarations(product)]
    else:
        # A tensor map is no buffer.
        written = {}
        declared += [*input_declarations(product), f"{map_name('C')}: T.TensorMap()"]
    if plan.order.streamed:
        declared += [
            buffer(PARTIAL, workspace_elements(plan), product.sums),
            buffer(COUNTERS, plan.order.streamed, "int32"),
        ]
    script = writer.script
    numbers = {
        "block_number": ("blockIdx.x", plan.grid),
        "thread": ("threadIdx.x", plan.schedule.threads),
    }
    with script.function(declared), thread_nest(script, "product", numbers, {}, written):
        if plan.min_blocks:
            script.line(f'T.attr(0, "tirx.launch_bounds_min_blocks_per_sm", {plan.min_blocks})')
        _Body(writer, plan).write()
    return writer


class _Body:
    """Writer of the statements of one thread."""

    def __init__(self, writer: Writer, plan: SpecializedPlan) -> None:
        self.writer, self.plan = writer, plan
        self.script, self.schedule = writer.script, plan.schedule
        self.product, self.ring = plan.product, Ring(writer, plan)
        self.consumers = consumers_of(writer, plan, self.ring)
        self.stores: BoxStores | None = None
        if plan.store is not None:
            self.stores = BoxStores(writer, plan, self.consumers.strip())

    def write(self) -> None:
        size = self.schedule.cluster_blocks
        self.script.line(f"worker = {quotient('block_number', size)}")
        self.script.line(f"rank = block_number % {size}")
        self._allocate()
        self.ring.initialise()
        consumers = self.schedule.consumers
        # ptxas takes a shuffled number for one of the warp, and what follows from it too, which it
        # then keeps in registers of the warp.
        self.writer.value("warp", "cpembed_uniform", "int32", quotient("thread", LANES))
        with self.script.nested(f"if warp >= {consumers // LANES}:"):
            self._change_registers("dec", 1)
            self.script.line(f"producer = thread - {consumers}")
            if self.plan.by_threads:
                self._produce()
            else:
                # One thread issues all copies; the other warps of the group have ended.
                with self.script.nested("if producer == 0:"):
                    self._prefetch_maps()
                    self._produce()
        with self.script.nested("else:"):
            self._change_registers("inc", 2)
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
        self.ring.allocate()

    def _change_registers(self, change: str, share: int) -> None:
        # With one consumer group every thread has as many registers as it can address.
        if self.schedule.groups > 1:
            count = self.plan.register_shares[share]
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
    def _item_steps(self) -> str:
        """Number of stages of a work item."""
        if self.plan.is_whole:
            return str(self.plan.steps)
        return "last_step - first_step"

    def _produce(self) -> None:
        """Write the loop that fills stages."""
        if self.plan.by_threads:
            self.script.line('behind = T.alloc_buffer((2,), "int32", scope="local")')
            self.script.lines(("behind[0] = 0", "behind[1] = 0"))
        with self._items(), self.script.nested(f"for step in T.serial({self._item_steps}):"):
            self.ring.await_empty()
            self._fill_stage()
            self.ring.advance()
        if self.plan.by_threads:
            self._finish_copies()

    def _prefetch_maps(self) -> None:
        for number, load in enumerate(self.schedule.loads):
            if load == "tensor":
                address = f"T.address_of({map_name(PARAMETERS[number])})"
                self.writer.call("cpembed_prefetch_map", address)

    def _fill_stage(self) -> None:
        first = "" if self.plan.is_whole else "first_step + "
        places = self.ring.places("ring[0]")
        self.script.line(f"deep_step = {first}step")
        issued = copied_bytes(self.plan)
        if issued:
            only_one = self.plan.by_threads
            with self.script.nested(*["if producer == 0:"] * only_one):
                self.script.line(f"barrier = {self.ring.barrier('ring[0]', empty=False)}")
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
        full = self.ring.barrier("behind[0]", empty=False)
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

    def _consume(self) -> None:
        """Write the multiplication of stages, and the stores of results."""
        self.consumers.prepare()
        with self._items():
            if self.schedule.alternating:
                self._take_turns()
            else:
                self._compute_item()
        if self.stores is not None:
            self.stores.finish()

    def _compute_item(self) -> None:
        """Write a work item: products of all of its stages, and what becomes of their sums."""
        self.consumers.multiply(self._item_steps)
        if not self.plan.order.streamed:
            self._store()
            return
        write_part(self.writer, self.plan, self.consumers.sums)
        with self.script.nested("if finished[0] == 1:"):
            self._store()

    def _take_turns(self) -> None:
        """Write a work item of one of the groups, beside which the others skip its stages."""
        with self.script.nested(f"if turn_of_block % {self.schedule.groups} == consumer:"):
            self.ring.await_turn()
            self._compute_item()
        with self.script.nested("else:"):
            self.ring.skip(self._item_steps)

    def _store(self) -> None:
        """Write the end of a work item, strip by strip of a warp's sums."""
        plan, name = self.plan, "sums"
        self.script.line(f"stage = {plan.staging_offset} + warp * {plan.staging_bytes}")
        if self.stores is not None:
            self.stores.locate()
        with self.script.nested(f"for strip in T.unroll({plan.strips}):"):
            if plan.order.streamed:
                name = "total"
                registers = plan.strip * self.product.instruction.registers[2]
                write_strip(self.writer, plan, registers)
            if self.stores is not None:
                self.stores.store(name)
                return
            store_strip(self.writer, self.consumers.strip(), name)
