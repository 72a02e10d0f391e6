"""Buffers of a tiling: layouts, places among the rows of memories, and residency."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.accelerator.addressing import Binding, InMain, InRows, Place
from cpembed.accelerator.allocation import Need, lifetimes, overwritten, placed
from cpembed.accelerator.boxes import Box, TileLoop, box_of, loop_extents
from cpembed.accelerator.buffer_specs import BufferSpec
from cpembed.accelerator.executions import Executions, granule_loops, tile_loops
from cpembed.accelerator.layouts import RowLayout, row_layouts
from cpembed.accelerator.problem import AddressingError, CapacityError, PlanningError, Step
from cpembed.accelerator.template import Template
from cpembed.accelerator.tiling import Tiling
from cpembed.accelerator.tiling_grid import Key
from cpembed.accelerator.transfers import Transfer, plan_copy
from cpembed.hw.isa import Synchronization
from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class Buffer:
    """A buffer of a plan: its layout, its place among the plan's rows and its residency."""

    spec: BufferSpec
    layout: RowLayout
    copies: int
    depth: int
    offset: int = 0

    @property
    def rows(self) -> int:
        return self.copies * self.layout.count


class Buffers:
    """The buffers of a tiling, one after the other in each memory.

    Parameters
    ----------
    template : Template
    tiling : Tiling
    rounding : mapping of Key to mapping of int to int
        Sizes of which dimensions of a buffer are multiples, because transfers copy whole chunks.
    checks_rows : bool
        True to reject buffers that do not fit.

    Raises
    ------
    PlanningError
        If no layout suits the instructions that use a buffer, or the rows do not suffice.
    """

    def __init__(
        self,
        template: Template,
        tiling: Tiling,
        rounding: Mapping[Key, Mapping[int, int]],
        *,
        checks_rows: bool = True,
    ) -> None:
        self.template = template
        self.tiling = tiling
        self.rounding = rounding
        self.checks_rows = checks_rows
        self.loops = tile_loops(template, tiling)
        inner = granule_loops(template, template.main_step, self.loops)
        self.all_loops = (*self.loops, *inner)
        self.boxes: dict[tuple[Key, int], Box] = {}
        self.bindings: dict[tuple[int, str, InRows], Binding | None] = {}
        self.table = self._make()
        self._allocate()

    def node_depth(self, spec: BufferSpec) -> int:
        """Return the number of loops outside of the point where a buffer gets its contents."""
        if spec.role == "granule":
            outer = self.loops_of(spec)
        elif spec.role == "main":
            outer = self.loops[: self.tiling.depths.get(spec.key, 0)]
        else:
            outer = self.loops[: self.tiling.output_depth]
        if spec.role == "output":
            return len(outer)
        is_written = spec.is_outgoing or self.template.last_writer(spec) is not None
        if is_written or spec.is_home:
            return len(outer)
        depth = len(outer)
        # What a statement writes in each tile is moved in each tile.
        least = self.tiling.output_depth if self.template.is_written(spec.tensor) else 0
        while depth > least and outer[depth - 1].axis not in spec.axes:
            depth -= 1
        return depth

    def loops_of(self, spec: BufferSpec) -> tuple[TileLoop, ...]:
        """Return the loops around the executions of a buffer's statement, or of the main one."""
        if spec.role == "granule":
            return self._step_loops(self.template.steps[spec.first_use])
        return self.all_loops

    def box(self, spec: BufferSpec, depth: int) -> Box:
        """Return the box of a buffer inside of a number of loops."""
        key = spec.key, depth
        if key not in self.boxes:
            loops = self.loops_of(spec)[:depth]
            self.boxes[key] = box_of(spec.index, loops, self.template.extents)
        return self.boxes[key]

    def bind(self, step: Step, operand: str, place: Place) -> Binding | None:
        """Bind an operand in the executions of a statement; None if it cannot reach the place."""
        executions = Executions(self.template, step, self._step_loops(step))
        if isinstance(place, InMain):
            return executions.bind(operand, place)
        # The first row of a buffer moves the address alone.
        fixed = replace(place, base=IndexExpr())
        key = step.number, operand, fixed
        if key not in self.bindings:
            self.bindings[key] = executions.bind(operand, fixed)
        binding = self.bindings[key]
        return None if binding is None else binding.moved(place.base)

    def exact_box(self, buffer: Buffer) -> Box:
        """Return the box of a buffer inside of its loops, without what pads granules."""
        return box_of(buffer.spec.index, self.outer(buffer), self.template.true_extents)

    def stored_boxes(self, buffer: Buffer) -> list[Box]:
        """List the boxes of a buffer that stores to main memory may copy, the best first.

        That of the elements alone leaves the margins as they are. Stores of fixed sizes need
        granules of what lies in the lanes, or of everything.
        """
        padded = self.box(buffer.spec, buffer.depth)
        exact = self.exact_box(buffer)
        lanes = {dimension for dimension, _ in buffer.spec.lanes}
        in_lanes = _of_dimensions(padded, exact, lanes)
        boxes = list(dict.fromkeys((exact, in_lanes, padded)))
        if self.template.machine.synchronization is Synchronization.CHANNELS:
            # Signals do not count tiles that are empty.
            boxes = [b for b in boxes if b == padded or all(len(s) == 1 for s in b.sizes)]
        return boxes

    def _make(self) -> dict[Key, Buffer]:
        buffers: dict[Key, Buffer] = {}
        for spec in self.template.buffers:
            depth = self.node_depth(spec)
            copies = self.tiling.copies.get(spec.key, 1) if depth else 1
            if spec.is_home:
                home = self.template.problem.homes[spec.tensor]
                buffers[spec.key] = Buffer(spec, home.layout, 1, depth)
                continue
            layout = self._layout(spec, depth)
            buffers[spec.key] = Buffer(spec, layout, copies, depth)
        return buffers

    def _layout(self, spec: BufferSpec, depth: int) -> RowLayout:
        """Return the first layout in which all instructions can use a buffer."""
        box = self.box(spec, depth)
        rounding = self.rounding.get(spec.key, {})
        largest = [
            -(-size // rounding.get(d, 1)) * rounding.get(d, 1)
            for d, size in enumerate(box.largest)
        ]
        candidates = row_layouts(spec.memory, largest, spec.lanes, spec.steps)
        reached = (
            layout
            for layout in candidates
            if all(self._reaches(n, o, InRows(layout, box.starts)) for n, o in spec.uses)
        )
        part = next((b for b in self.template.buffers if _is_part(b, spec)), None)
        if part is not None and len(candidates) > 1:
            # Which dimension lies in neighbouring rows decides how many rows one copy takes.
            innermost: dict[int, RowLayout] = {}
            for layout in reached:
                innermost.setdefault(layout.rows[0].dimension if layout.rows else -1, layout)
            layouts = list(innermost.values())
            if layouts:
                return min(layouts, key=lambda x: self._part_cycles(part, x, box.starts))
        for layout in reached:
            return layout
        number, operand = spec.uses[0]
        raise AddressingError(
            f"rejected: {self.template.steps[number].instruction.name} cannot address "
            f"{spec.tensor} in rows of {spec.memory} as operand {operand}, in any order of its "
            "dimensions: describe a stride of its rows that is an argument",
            spec.tensor,
        )

    def _part_cycles(
        self, part: BufferSpec, layout: RowLayout, starts: tuple[IndexExpr, ...]
    ) -> float:
        """Return the cycles of filling a buffer of parts from a layout; infinite if none can."""
        depth = self.node_depth(part)
        box = self.box(part, depth)
        (destination, *_) = row_layouts(part.memory, box.largest, part.lanes, part.steps)
        transfer = Transfer(
            part.tensor, box, InRows(layout, starts), InRows(destination, box.starts)
        )
        try:
            plan = plan_copy(
                self.template.machine,
                transfer,
                (part.load[0], part.load[1]),
                part.dtype,
                loop_extents(self.loops_of(part)[:depth]),
            )
        except PlanningError:
            return math.inf
        return plan.cycles

    def _reaches(self, number: int, operand: str, place: Place) -> bool:
        return self.bind(self.template.steps[number], operand, place) is not None

    def _step_loops(self, step: Step) -> tuple[TileLoop, ...]:
        if step.number == self.template.main:
            return self.all_loops
        outer = self.loops[: self.tiling.output_depth]
        return (*outer, *granule_loops(self.template, step, outer))

    def _allocate(self) -> None:
        """Give each buffer its offset among the rows of its memory."""
        offsets = self._shared() if self.template.problem.reuses_rows else self._consecutive()
        self.rows: dict[str, int] = {}
        for key, offset in offsets.items():
            buffer = self.table[key] = replace(self.table[key], offset=offset)
            end = offset + buffer.rows
            self.rows[buffer.spec.memory] = max(self.rows.get(buffer.spec.memory, 0), end)
        for name, rows in self.rows.items():
            memory = self.template.machine.memories[name]
            if self.checks_rows and rows > memory.rows:
                raise CapacityError(
                    f"rejected: the buffers need {rows} rows of {name}, which has {memory.rows}: "
                    "use smaller tiles"
                )

    def _consecutive(self) -> dict[Key, int]:
        """Return offsets at which all buffers lie one after the other."""
        offsets: dict[Key, int] = {}
        used: dict[str, int] = {}
        groups = self.template.bank_groups
        latest: dict[str, int] = {}
        for key in sorted(self.table, key=lambda key: groups[key]):
            buffer = self.table[key]
            if buffer.spec.is_home:
                continue
            memory = self.template.machine.memories[buffer.spec.memory]
            offset = used.get(memory.name, 0)
            if latest.get(memory.name, 0) != groups[key]:
                latest[memory.name] = groups[key]
                offset = -(-offset // memory.bank_rows) * memory.bank_rows
            used[memory.name] = offset + buffer.rows
            offsets[key] = offset
        return offsets

    def _shared(self) -> dict[Key, int]:
        """Return offsets at which buffers lie where others are not needed any more."""
        lived = lifetimes(self.template)
        heirs = overwritten(self.template, lived)
        places: dict[tuple[str, int], list[Key]] = {}
        groups = self.template.bank_groups
        first: dict[Key, Key] = {}
        needs: dict[Key, Need] = {}
        for key, buffer in self.table.items():
            if buffer.spec.is_home:
                continue
            is_kept = buffer.copies > 1 or buffer.depth < self.tiling.output_depth
            need = Need(buffer.rows, None if is_kept else lived[key])
            origin = first.get(heirs[key]) if key in heirs else None
            before = None if origin is None else needs[origin]
            if (
                origin is not None
                and before is not None
                and before.lifetime is not None
                and need.lifetime is not None
                and self.table[heirs[key]].layout == buffer.layout
                and groups[origin] == groups[key]
            ):
                first[key] = origin
                needs[origin] = replace(before, lifetime=before.lifetime.joined(need.lifetime))
                continue
            first[key], needs[key] = key, need
            places.setdefault((buffer.spec.memory, groups[key]), []).append(key)
        offsets: dict[Key, int] = {}
        used: dict[str, int] = {}
        for (name, group), keys in sorted(places.items()):
            bank = self.template.machine.memories[name].bank_rows
            start = -(-used.get(name, 0) // bank) * bank if group else 0
            for key, row in zip(keys, placed([needs[k] for k in keys]), strict=True):
                offsets[key] = start + row
                used[name] = max(used.get(name, 0), start + row + needs[key].rows)
        return {key: offsets[origin] for key, origin in first.items()}

    def place(self, buffer: Buffer, base_rows: Mapping[str, int]) -> InRows:
        """Return where a buffer's box lies, over the loops around it."""
        if buffer.spec.is_home:
            return self.template.problem.homes[buffer.spec.tensor]
        base = IndexExpr((), base_rows.get(buffer.spec.memory, 0) + buffer.offset)
        if buffer.copies > 1:
            base += self._parity(self.outer(buffer)).times(buffer.layout.count)
        return InRows(buffer.layout, self.box(buffer.spec, buffer.depth).starts, base)

    def _parity(self, loops: Sequence[TileLoop]) -> IndexExpr:
        """Return the number of the iteration of loops, modulo 2."""
        terms: list[IndexTerm] = []
        count = 1
        for loop in reversed(loops):
            if count % 2 and loop.extent > 1:
                terms.append(IndexTerm(loop.name, 1))
            count *= loop.extent
        if not terms:
            return IndexExpr()
        return IndexExpr((IndexTerm.digit(IndexExpr.sum(terms), modulus=2),))

    def regions(self, base_rows: Mapping[str, int]) -> list[tuple[str, int]]:
        """Return memory and first row of each copy of each buffer."""
        regions: list[tuple[str, int]] = []
        for b in self.table.values():
            memory = b.spec.memory
            first = b.layout.base if b.spec.is_home else base_rows.get(memory, 0) + b.offset
            regions += [(memory, first + n * b.layout.count) for n in range(b.copies)]
        return regions

    def outer(self, buffer: Buffer) -> tuple[TileLoop, ...]:
        """Return the loops around the point where a buffer gets its contents."""
        return self.loops_of(buffer.spec)[: buffer.depth]

    def reach(self, tensor: str) -> dict[int, int]:
        """Return the end of the last chunk of copies along the dimensions of a tensor."""
        ends: dict[int, int] = {}
        for buffer in self.table.values():
            if buffer.spec.tensor != tensor:
                continue
            box = self.box(buffer.spec, buffer.depth)
            for dimension, chunk in self.rounding.get(buffer.spec.key, {}).items():
                start = box.starts[dimension].bounds(loop_extents(self.outer(buffer)))[1]
                size = -(-box.largest[dimension] // chunk) * chunk
                ends[dimension] = max(ends.get(dimension, 0), start + size)
        return ends


def _of_dimensions(first: Box, second: Box, dimensions: Collection[int]) -> Box:
    """Return the sizes of the first box along some dimensions, and of the second along others."""
    boxes = [first if d in dimensions else second for d in range(len(first.starts))]
    return Box(
        first.starts,
        tuple(box.sizes[d] for d, box in enumerate(boxes)),
        tuple(box.largest[d] for d, box in enumerate(boxes)),
    )


def _is_part(spec: BufferSpec, source: BufferSpec) -> bool:
    """True if a buffer holds what one execution needs of another one."""
    return spec.role == "granule" and spec.tensor == source.tensor and spec.load[0] == source.memory
