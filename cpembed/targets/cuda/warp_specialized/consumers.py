"""Consumers of a ring of stages as TensorIR: warp groups, or warps of their own.

*Warp groups* multiply by ``wgmma``, which reads both factors by descriptors. Products are
asynchronous: those of a stage are in flight while the next stage is waited for, and a stage is
given back when the products behind it have begun.

*Warps* multiply by ``mma.sync``, on GPUs that have bulk copies and mbarriers but no products of
warp groups. They load fragments by ``ldmatrix`` from the same images, and give a stage back when
its last fragments are loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from cpembed.targets.cuda.fragment_products import MATRIX_BYTES, FragmentProducts
from cpembed.targets.cuda.instructions import LANES, WARP_GROUP, WARP_ROWS
from cpembed.targets.cuda.results import Strip
from cpembed.targets.cuda.warp_specialized.device import product_name
from cpembed.targets.cuda.warp_specialized.layouts import CHUNK, write_descriptor
from cpembed.targets.cuda.warp_specialized.ring import Ring
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.warp_specialized.streaming import write_opaque
from cpembed.targets.cuda.writer import Writer, quotient, register_pointer, shared_pointer


def consumers_of(writer: Writer, plan: SpecializedPlan, ring: Ring) -> Consumers:
    """Return the writer of a plan's consumers.

    Parameters
    ----------
    writer : Writer
    plan : SpecializedPlan
        Product and schedule, which says who multiplies.
    ring : Ring
        Stages that the consumers read.
    """
    kind = WarpGroups if plan.schedule.warps is None else Warps
    return kind(writer, plan, ring)


class Consumers(ABC):
    """Writer of what the threads do that multiply."""

    def __init__(self, writer: Writer, plan: SpecializedPlan, ring: Ring) -> None:
        self.writer, self.plan, self.ring = writer, plan, ring
        self.script, self.schedule = writer.script, plan.schedule
        self.product, self.instruction = plan.product, plan.product.instruction

    @property
    def sums(self) -> int:
        """Number of registers of a thread's sums."""
        rows, columns = self.schedule.tile
        return rows * columns * self.instruction.registers[2]

    @abstractmethod
    def prepare(self) -> None:
        """Write the registers, and what is computed before all work items."""

    @abstractmethod
    def multiply(self, steps: str) -> None:
        """Write the loop over the stages of a work item, of which there is one or more."""

    @abstractmethod
    def strip(self) -> Strip:
        """Return the rows of results that a warp stages at a time, over ``strip``."""

    def _strip(self, row_tile: str, column_tile: str, first_row: str) -> Strip:
        """Return the strip of ``strip``, from the first tiles of the warp or of its group."""
        chunks = self.schedule.tile[1] // self.plan.strip
        return Strip(
            product=self.product,
            staging=self.plan.staging,
            row_tile=f"row_block * {self.schedule.block[0]} + {row_tile} + strip // {chunks}",
            column_tile=f"column_block * {self.schedule.block[1]} + {column_tile}"
            f"strip % {chunks} * {self.plan.strip}",
            first_row=first_row,
            splits=self.schedule.splits,
        )


class WarpGroups(Consumers):
    """Groups of four warps that execute one product together."""

    def prepare(self) -> None:
        # Two sums of float16 share a register of 32 bits.
        dtype = "uint32" if self.product.sums == "float16" else self.product.sums
        self.script.line(f'sums = T.alloc_buffer(({self.sums},), "{dtype}", scope="local")')
        self.script.lines(
            (f"lane = thread % {LANES}", f"consumer = {quotient('warp', WARP_GROUP // LANES)}")
        )
        if self.schedule.in_registers:
            registers = self.plan.fragment_registers
            self.script.line(f'fragments = T.alloc_buffer(({registers},), "uint32", scope="local")')
        self._write_descriptors()

    def _write_descriptors(self) -> None:
        """Write the descriptors of both images of the first stage."""
        first = self.plan.images[0].matrix_offset(self.schedule.tile[0] * self.instruction.m, 0)
        for name, number, place in (
            ("first", 0, "0" if self.schedule.alternating else f"consumer * {first}"),
            ("second", 1, str(self.plan.images[0].bytes)),
        ):
            if self.schedule.in_registers and number == 0:
                continue
            write_descriptor(self.writer, name, self.plan.images[number], place)

    def multiply(self, steps: str) -> None:
        before = f"T.Select(ring[0] == 0, {self.schedule.stages - 1}, ring[0] - 1)"
        with self.script.nested(f"for step in T.serial({steps}):"):
            self.ring.await_full()
            distance = f"ring[0] * {self.plan.stage_bytes // CHUNK}"
            self.script.line(f'distance = T.cast({distance}, "uint64")')
            # Products from registers are committed one by one, since the next ones' registers are
            # loaded while they are in flight.
            if self.schedule.in_registers:
                parts = [(inner,) for inner in range(self.schedule.depth)]
            else:
                parts = [tuple(range(self.schedule.depth))]
            for part in parts:
                self._multiply_part(part)
                if part[0] == 0:
                    # The products of the stage before are done.
                    with self.script.nested("if step > 0:"):
                        self.ring.release(before)
            self.ring.advance()
        if self.schedule.alternating:
            self.ring.end_turn()
        self.writer.call("cpembed_wgmma_wait_0")
        self.ring.release(before)
        if not self.plan.is_whole:
            write_opaque(self.writer, self.plan.product.sums, self.sums)

    def _load_first(self, inner: int) -> None:
        """Write the loads of the first factor's fragments of a product into registers."""
        rows, image = self.schedule.tile[0], self.plan.images[0]
        with self.script.nested(f"for i in T.unroll({rows}):"):
            tile = f"{self._group_tile} + i"
            row = f"({tile}) * {self.instruction.m} + warp % 4 * {WARP_ROWS} + lane % 16"
            place = image.place(row, f"{inner * 2} + lane // 16")
            self.writer.call(
                "cpembed_ldmatrix_x4",
                register_pointer("fragments", f"{self._fragments(inner)} + i * 4"),
                shared_pointer(f"ring[0] * {self.plan.stage_bytes} + {place}"),
            )

    def _fragments(self, inner: int) -> int:
        """Return the first register of the fragments of a product."""
        rows = self.schedule.tile[0]
        return inner % self.plan.fragment_sets * rows * self.instruction.registers[0]

    @property
    def _group_tile(self) -> str:
        """Expression of the first row of tiles of the group in its block."""
        if self.schedule.alternating:
            return "0"
        return f"consumer * {self.schedule.tile[0]}"

    def _multiply_part(self, part: tuple[int, ...]) -> None:
        """Write products of a stage, and the wait for those before them."""
        (rows, columns), n = self.schedule.tile, self.instruction.n
        if self.schedule.in_registers:
            if self.plan.fragment_sets == 1:
                self.writer.call("cpembed_wgmma_wait_0")
            self._load_first(part[0])
        count = columns * self.instruction.registers[2]
        majors = [image.major for image in self.plan.images]
        name = product_name(
            self.instruction,
            columns * n,
            registers=self.schedule.in_registers,
            transposed="".join(name for name, m in zip("ab", majors, strict=True) if m == "mn"),
        )
        self.writer.call("cpembed_wgmma_fence")
        for inner in part:
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
        if not self.schedule.in_registers or self.plan.fragment_sets > 1:
            self.writer.call("cpembed_wgmma_wait_1")

    def _first_factor(self, inner: int, row: int) -> str:
        """Return the first factor of a product: registers, or a descriptor."""
        if self.schedule.in_registers:
            first = self._fragments(inner) + row * self.instruction.registers[0]
            return register_pointer("fragments", str(first))
        return self._descriptor(0, row * self.instruction.m, inner)

    def _descriptor(self, number: int, row: int, inner: int) -> str:
        offset = self.plan.images[number].matrix_offset(row, inner * MATRIX_BYTES)
        return f"{('first', 'second')[number]} + distance + T.uint64({offset // CHUNK})"

    def strip(self) -> Strip:
        return self._strip(self._group_tile, "", f"warp % 4 * {WARP_ROWS}")


class Warps(Consumers):
    """Warps each of which multiplies its own tiles."""

    def __init__(self, writer: Writer, plan: SpecializedPlan, ring: Ring) -> None:
        super().__init__(writer, plan, ring)
        self.products = FragmentProducts(
            writer, self.instruction, self.schedule.tile, plan.images, ring.places("ring[0]")
        )

    def prepare(self) -> None:
        assert self.schedule.warps is not None
        across = self.schedule.warps[1]
        self.products.allocate()
        self.script.lines(
            (
                f"lane = thread % {LANES}",
                f"warp_row = {quotient('warp', across)}",
                f"warp_column = warp % {across}",
            )
        )
        self.products.locate()

    def multiply(self, steps: str) -> None:
        self.products.clear()
        self.ring.await_full()
        self.products.load(0, 0)
        # Stages of an odd depth begin with either set of fragments in turn.
        period = 1 + self.schedule.depth % 2
        following = f"({steps} - 1)"
        turns = following if period == 1 else f"T.truncdiv({following}, {period})"
        with self.script.nested(f"for step in T.serial({turns}, unroll=False):"):
            for number in range(period):
                self._stage(number, self._next_stage)
        if period == 1 or steps.isdecimal():
            self._finish((int(steps) - 1) % period if period > 1 else 0)
            return
        with self.script.nested(f"if T.truncmod({following}, {period}) == 1:"):
            self._finish(1)
        with self.script.nested("else:"):
            self._finish(0)

    def _stage(self, first_set: int, end: Callable[[Callable[[], None]], None]) -> None:
        self.products.stage(self.schedule.depth, first_set, lambda: None, end)

    def _finish(self, rest: int) -> None:
        """Write the last stages: those that no turn of the loop is left for, 0 or 1, and the last.

        The last stage is apart: a condition would part the products of every stage.
        """
        for number in range(rest):
            self._stage(number, self._next_stage)
        # ptxas would delay the products until results are stored, but for a loop of a number of
        # turns that it does not know.
        self.script.line('last = T.alloc_buffer((1,), "int32", scope="local")')
        self.script.line("last[0] = 1")
        self.writer.call("cpembed_opaque", register_pointer("last", "0"))
        with self.script.nested("for step in T.serial(last[0], unroll=False):"):
            self._stage(rest, lambda _: self._give_back())

    def _next_stage(self, load_fragments: Callable[[], None]) -> None:
        self._give_back()
        self.ring.await_full()
        load_fragments()

    def _give_back(self) -> None:
        # Behind the loads of all lanes.
        self.writer.warp_barrier()
        self.ring.release("ring[0]")
        self.ring.advance()

    def strip(self) -> Strip:
        rows, columns = self.schedule.tile
        return self._strip(f"warp_row * {rows}", f"warp_column * {columns} + ", "0")
