"""Copies of a program: between main memory and buffers, between buffers, and fills."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from cpembed.accelerator.addressing import InMain, Place
from cpembed.accelerator.boxes import Box, loop_extents
from cpembed.accelerator.buffer_specs import BufferSpec
from cpembed.accelerator.buffers import Buffer, Buffers
from cpembed.accelerator.main_layouts import default_layouts
from cpembed.accelerator.problem import AddressingError, PlanningError, Step
from cpembed.accelerator.program import MainTensor, Node
from cpembed.accelerator.template import Template
from cpembed.accelerator.tiling import Tiling
from cpembed.accelerator.tiling_grid import Key
from cpembed.accelerator.transfers import CopyPlan, Names, Transfer, plan_copy
from cpembed.ir.dtypes import neutral_element


class Copies:
    """Copies between the memories of a tiling's program.

    Parameters
    ----------
    template : Template
    tiling : Tiling
    base_rows : mapping of str to int, optional
        First row of the buffers in each memory; 0 where it is missing.
    checks_rows : bool
        True to reject buffers that do not fit in their memories.

    Attributes
    ----------
    rounding : dict of Key to dict of int to int
        Multiples of elements that copies of fixed sizes fill in a buffer, by dimension.
    main : dict of str to MainTensor
        Layouts of tensors in main memory, as far as they are decided.
    """

    def __init__(
        self,
        template: Template,
        tiling: Tiling,
        base_rows: Mapping[str, int] | None = None,
        *,
        checks_rows: bool = True,
    ) -> None:
        self.base_rows = base_rows or {}
        self.checks_rows = checks_rows
        self.template = template
        self.tiling = tiling
        self.names = Names()
        self.rounding: dict[Key, dict[int, int]] = {}
        self.prepare()

    def prepare(self) -> None:
        """Lay out the buffers, with room for what copies have filled so far."""
        self.main: dict[str, MainTensor] = dict(self.template.problem.layouts)
        self.buffers = Buffers(
            self.template,
            self.tiling,
            self.rounding,
            self.base_rows,
            checks_rows=self.checks_rows,
        )

    def load(self, buffer: Buffer) -> Iterator[Node]:
        """Yield the copies that fill a buffer."""
        spec = buffer.spec
        destination = self.buffers.place(buffer)
        source = self._home(spec.tensor, spec.load[0])
        boxes = [self.buffers.box(spec, buffer.depth)]
        yield from self._copy(spec, spec.load, source, destination, buffer, boxes)

    def store(self, buffer: Buffer) -> Iterator[Node]:
        """Yield the copies of a buffer to where its tensor stays; none where it stays there."""
        spec = buffer.spec
        if spec.store:
            source = self.buffers.place(buffer)
            destination = self._home(spec.tensor, spec.store[-1])
            is_main = spec.store[-1] == self.template.machine.main.name
            boxes = [self.buffers.box(spec, buffer.depth)]
            if is_main:
                boxes = self.buffers.stored_boxes(buffer)
            yield from self._copy(spec, spec.store, source, destination, buffer, boxes)

    def fill(self, step: Step) -> Iterator[Node]:
        """Yield the instructions that begin a reduction with its neutral element."""
        operand = step.instruction.outputs[0]
        key = step.tensor(operand), step.instruction.places[operand].memory
        buffer = self.buffers.table[key]
        transfer = Transfer(
            key[0],
            self.buffers.box(buffer.spec, buffer.depth),
            None,
            self.buffers.place(buffer),
            f"begin {key[0]} with the neutral element",
            neutral_element(
                step.statement.computation.statement.reduction or "add", buffer.spec.dtype
            ),
        )
        plan = plan_copy(
            self.template.machine,
            transfer,
            ("", key[1]),
            buffer.spec.dtype,
            loop_extents(self.buffers.outer(buffer)),
        )
        self._round(buffer.spec, plan)
        yield from plan.nodes(self.names)

    def _home(self, tensor: str, memory: str) -> Place | None:
        """Return where a tensor is in a memory; None where its layout is not decided."""
        if (tensor, memory) in self.buffers.table:
            return self.buffers.place(self.buffers.table[tensor, memory])
        home = self.template.problem.homes.get(tensor)
        if home is not None and home.layout.memory == memory:
            return home
        return InMain(self.main[tensor]) if tensor in self.main else None

    def _copy(
        self,
        spec: BufferSpec,
        path: tuple[str, ...],
        source: Place | None,
        destination: Place | None,
        buffer: Buffer,
        boxes: Sequence[Box],
    ) -> tuple[Node, ...]:
        """Return a copy of the first box that copies can move.

        A layout in main memory that is not decided becomes the first fit.
        """
        outer = self.buffers.outer(buffer)
        extents = loop_extents(outer)
        verb = "store" if destination is None or isinstance(destination, InMain) else "load"
        missing = source is None or destination is None
        candidates: list[MainTensor | None] = [None]
        if missing:
            candidates = [
                *default_layouts(self.template, spec.tensor, self.buffers.reach(spec.tensor))
            ]
        refusal: PlanningError | None = None
        for box, layout in itertools.product(boxes, candidates):
            place = InMain(layout) if layout is not None else None
            transfer = Transfer(
                spec.tensor,
                box,
                source or place,
                destination or place or source,  # pyright: ignore[reportArgumentType]
                f"{verb} {spec.tensor}",
            )
            try:
                plan = plan_copy(
                    self.template.machine, transfer, (path[0], path[1]), spec.dtype, extents
                )
            except PlanningError as error:
                refusal = refusal or error
                continue
            beyond = self._read_beyond(spec.tensor, path[0], plan)
            if beyond is not None:
                refusal = refusal or beyond
                continue
            self._round(spec, plan)
            if path[1] == self.template.machine.main.name:
                self._round_stored(buffer, box)
            if layout is not None:
                self.main[spec.tensor] = layout
            return plan.nodes(self.names)
        raise refusal or PlanningError(f"rejected: {spec.tensor} has no layout in main memory")

    def _read_beyond(self, tensor: str, memory: str, plan: CopyPlan) -> AddressingError | None:
        """Return the refusal of a copy in whole chunks whose source holds no whole chunk."""
        source = self.buffers.table.get((tensor, memory))
        if source is None or source.spec.is_home:
            return None
        source_box = self.buffers.box(source.spec, source.depth)
        filled = self.rounding.get(source.spec.key, {})
        for dimension, chunk in plan.rounding.items():
            size = plan.transfer.box.largest[dimension]
            # A part of what the source holds is followed by the next part.
            is_all = source_box.largest[dimension] == size
            if is_all and -(-size // filled.get(dimension, 1)) * filled.get(dimension, 1) % chunk:
                return AddressingError(
                    f"rejected: {plan.copy.instruction.name} copies {chunk} elements of {tensor} "
                    f"at a time, and {memory} holds {size}: use larger tiles",
                    tensor,
                )
        return None

    def _round_stored(self, buffer: Buffer, box: Box) -> None:
        """Give a tensor in main memory room for a box that is larger than its elements."""
        exact = self.buffers.exact_box(buffer)
        wider = {d: n for d, n in enumerate(box.largest) if box.sizes[d] != exact.sizes[d]}
        if wider:
            self.rounding[buffer.spec.key] = {**wider, **self.rounding.get(buffer.spec.key, {})}

    def _round(self, spec: BufferSpec, plan: CopyPlan) -> None:
        """Give a buffer room for the whole chunks of a copy."""
        if plan.rounding:
            self.rounding[spec.key] = {**self.rounding.get(spec.key, {}), **plan.rounding}
