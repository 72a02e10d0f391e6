"""Buffers of a tiling: layouts, places among the rows of memories, and residency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cpembed.accelerator.addressing import InRows, Place
from cpembed.accelerator.boxes import Box, TileLoop, box_of, loop_extents
from cpembed.accelerator.executions import bind_operand, granule_loops, tile_loops
from cpembed.accelerator.layouts import RowLayout, row_layouts
from cpembed.accelerator.problem import AddressingError, PlanningError, Step
from cpembed.accelerator.template import BufferSpec, Template
from cpembed.accelerator.tiling import Tiling
from cpembed.accelerator.tiling_grid import Key
from cpembed.accelerator.transfers import Transfer, plan_copy
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
        self.table = self._make()
        self._allocate()

    def node_depth(self, spec: BufferSpec) -> int:
        """Return the number of loops outside of the point where a buffer gets its contents."""
        if spec.role == "granule":
            outer = self.all_loops
        elif spec.role == "main":
            outer = self.loops[: self.tiling.depths.get(spec.key, 0)]
        else:
            outer = self.loops[: self.tiling.output_depth]
        if spec.role == "output":
            return len(outer)
        written = any(o in self.template.steps[n].instruction.outputs for n, o in spec.uses)
        if written or spec.is_home:
            return len(outer)
        depth = len(outer)
        while depth and outer[depth - 1].axis not in spec.axes:
            depth -= 1
        return depth

    def box(self, spec: BufferSpec, depth: int) -> Box:
        """Return the box of a buffer inside of a number of the main statement's loops."""
        return box_of(spec.index, self.all_loops[:depth], self.template.extents)

    def _make(self) -> dict[Key, Buffer]:
        buffers: dict[Key, Buffer] = {}
        for spec in self.template.buffers:
            depth = self.node_depth(spec)
            copies = self.tiling.copies.get(spec.key, 1) if depth else 1
            if spec.is_home:
                home = self.template.problem.homes[spec.tensor]
                buffers[spec.key] = Buffer(spec, home, 1, 0)
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
                loop_extents(self.all_loops[:depth]),
            )
        except PlanningError:
            return math.inf
        return plan.cycles

    def _reaches(self, number: int, operand: str, place: Place) -> bool:
        step = self.template.steps[number]
        loops = self._step_loops(step)
        return bind_operand(self.template, step, operand, place, loops) is not None

    def _step_loops(self, step: Step) -> tuple[TileLoop, ...]:
        if step.number == self.template.main:
            return self.all_loops
        outer = self.loops[: self.tiling.output_depth]
        return (*outer, *granule_loops(self.template, step, outer))

    def _allocate(self) -> None:
        """Give each buffer its offset among the rows of its memory."""
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
            self.table[key] = replace(buffer, offset=offset)
            if self.checks_rows and used[memory.name] > memory.rows:
                raise PlanningError(
                    f"rejected: the buffers need {used[memory.name]} rows of {memory.name}, which "
                    f"has {memory.rows}: use smaller tiles"
                )
        self.rows = used

    def place(self, buffer: Buffer, base_rows: Mapping[str, int]) -> InRows:
        """Return where a buffer's box lies, over the loops around it."""
        if buffer.spec.is_home:
            return InRows(buffer.layout, (IndexExpr(),) * len(buffer.spec.index))
        base = IndexExpr((), base_rows.get(buffer.spec.memory, 0) + buffer.offset)
        if buffer.copies > 1:
            base += self._parity(buffer.depth).times(buffer.layout.count)
        return InRows(buffer.layout, self.box(buffer.spec, buffer.depth).starts, base)

    def _parity(self, depth: int) -> IndexExpr:
        """Return the number of the iteration of the outer loops, modulo 2."""
        terms: list[IndexTerm] = []
        count = 1
        for loop in reversed(self.all_loops[:depth]):
            if count % 2 and loop.extent > 1:
                terms.append(IndexTerm(loop.name, 1))
            count *= loop.extent
        if not terms:
            return IndexExpr()
        return IndexExpr((IndexTerm.digit(IndexExpr.sum(terms), modulus=2),))

    def regions(self) -> list[tuple[str, int]]:
        """Return memory and first row of each copy of each buffer."""
        return [
            (
                b.spec.memory,
                b.offset + (b.layout.base if b.spec.is_home else 0) + n * b.layout.count,
            )
            for b in self.table.values()
            for n in range(b.copies)
        ]

    def outer(self, buffer: Buffer) -> tuple[TileLoop, ...]:
        """Return the loops around the point where a buffer gets its contents."""
        return self.all_loops[: buffer.depth]

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


def _is_part(spec: BufferSpec, source: BufferSpec) -> bool:
    """True if a buffer holds what one execution needs of another one."""
    return spec.role == "granule" and spec.tensor == source.tensor and spec.load[0] == source.memory
