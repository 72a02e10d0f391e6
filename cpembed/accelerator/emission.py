"""Programs of tilings: loops, transfers, executions and configuration, with their claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cpembed.accelerator.addressing import Binding, InMain, TableEntry, bind_scalar
from cpembed.accelerator.boxes import TileLoop, box_of, guards, loop_extents, sizes
from cpembed.accelerator.buffer_specs import shared_index
from cpembed.accelerator.buffers import Buffer
from cpembed.accelerator.channels import with_signals
from cpembed.accelerator.copies import Copies
from cpembed.accelerator.executions import Executions, granule_loops
from cpembed.accelerator.main_layouts import default_layouts
from cpembed.accelerator.problem import AddressingError, PlanningError, Step
from cpembed.accelerator.program import Issue, Loop, Meaning, Node, Program, issues_of
from cpembed.accelerator.registers import with_configuration
from cpembed.accelerator.store_order import (
    LateStore,
    behind_loads,
    late_store,
    of_last_tile,
    of_tile_before,
)
from cpembed.accelerator.template import Template
from cpembed.accelerator.tiling import Tiling
from cpembed.accelerator.transfers import BoundIssue, Names
from cpembed.hw.isa import IsaInstruction, MemoryKind, Synchronization
from cpembed.ir.index import IndexExpr, IndexTerm, flat_index, row_major_strides


class Lowering(Copies):
    """Makes the program of a tiling.

    Parameters
    ----------
    template : Template
    tiling : Tiling
    checks_rows : bool
        True to reject buffers that do not fit in their memories.
    """

    def __init__(self, template: Template, tiling: Tiling, *, checks_rows: bool = True) -> None:
        super().__init__(template, tiling, checks_rows=checks_rows)
        self.late: list[LateStore] = []

    # Executions

    def _execution(
        self,
        step: Step,
        instruction: IsaInstruction,
        loops: Sequence[TileLoop],
        base_rows: Mapping[str, int],
        conditions: tuple[IndexExpr, ...] = (),
    ) -> Issue:
        """Return the instruction that computes a statement in an iteration of loops."""
        executions = Executions(self.template, step, loops)
        bindings: dict[str, Binding] = {}
        for operand, described in step.instruction.places.items():
            tensor = step.tensor(operand)
            if not described.dimensions:
                bindings[operand] = self._scalar(executions, operand, tensor)
                continue
            if self.template.machine.memories[described.memory].kind is MemoryKind.MAIN:
                binding = self._bind_main(step, operand, tensor)
            else:
                buffer = self.buffers.table[tensor, described.memory]
                place = self.buffers.place(buffer, base_rows)
                self._check_box(step, operand, buffer, loops)
                binding = self.buffers.bind(step, operand, place)
            if binding is None:
                raise AddressingError(
                    f"rejected: {instruction.name} cannot address {tensor} in "
                    f"{described.memory} as operand {operand}: use another layout",
                    tensor,
                )
            bindings[operand] = binding
        extents = loop_extents(loops)
        checks: list[IndexExpr] = list(conditions)
        for axis in step.axes.values():
            checks += guards(sizes(loops, axis, self.template.extent(step, axis)), extents)
        return BoundIssue(
            instruction.name,
            {name: b.address for name, b in bindings.items()},
            executions.sizes(),
            tuple(dict.fromkeys(checks)),
            contents={n: b.content for n, b in bindings.items() if b.content is not None},
            meaning=Meaning(step.number, executions.points),
            note=str(step.statement.computation),
            registers=tuple(r for b in bindings.values() for r in b.registers),
        )

    def _check_box(
        self, step: Step, operand: str, buffer: Buffer, loops: Sequence[TileLoop]
    ) -> None:
        """Raise an AddressingError if a buffer's box lacks what a statement reads."""
        spec = buffer.spec
        index = shared_index(step, step.access(operand))
        if spec.is_home:
            return
        box = self.buffers.box(spec, buffer.depth)
        extents = loop_extents(loops)
        if not {name for start in box.starts for name in start.iterators} <= set(extents):
            raise AddressingError(
                f"rejected: {step.instruction.name} needs {spec.tensor} in {spec.memory}, which is "
                "filled for executions of another statement: use a larger memory",
                spec.tensor,
            )
        if index == spec.index:
            return
        used = box_of(index, loops, self.template.extents)
        for d, expression in enumerate(index):
            if expression == spec.index[d]:
                continue
            start = used.starts[d] + box.starts[d].times(-1)
            end = min((start + size).bounds(extents)[1] for size in used.sizes[d])
            if start.bounds(extents)[0] < 0 or end > box.largest[d]:
                raise AddressingError(
                    f"rejected: {step.instruction.name} needs other elements of {spec.tensor} in "
                    f"{spec.memory} than the tile of other statements has: use larger tiles",
                    spec.tensor,
                )

    def _scalar(self, executions: Executions, operand: str, tensor: str) -> Binding:
        """Bind a register or an immediate to a number, or to one of a table by the loops."""
        step = executions.step
        place = step.instruction.places[operand]
        if operand in step.match.values:
            return bind_scalar(place, "", step.match.values[operand])
        specification = self.template.problem.specification
        constant = specification.constants.get(tensor)
        if constant is None:
            raise PlanningError(
                f"rejected: {operand} of {step.instruction.name} is one number, and "
                f"{tensor or 'the statement'} is no constant: describe {operand} in a memory of "
                "rows with an axis of size 1"
            )
        shape = specification.operands[tensor].shape
        if constant.size == 1:
            zeros = (IndexExpr(),) * len(shape)
            return bind_scalar(place, tensor, constant.reshape(-1)[0].item(), zeros)
        index = executions.index(operand)
        flat = flat_index(index, row_major_strides(shape))
        extents = loop_extents(executions.loops)
        if not set(flat.iterators) <= set(extents):
            raise PlanningError(
                f"rejected: {operand} of {step.instruction.name} is one number, and {tensor} has "
                "several in one execution"
            )
        # Iterations beyond the last element execute nothing but the setting of registers.
        beyond = max(0, flat.bounds(extents)[1] + 1 - constant.size)
        numbers = (*constant.reshape(-1).tolist(), *([0] * beyond))
        return bind_scalar(place, tensor, TableEntry(numbers, flat), index)

    def _bind_main(self, step: Step, operand: str, tensor: str) -> Binding | None:
        """Bind an operand in main memory; a layout that is not decided becomes the first fit."""
        decided = self.main.get(tensor)
        options = (
            [decided]
            if decided
            else default_layouts(self.template, tensor, self.buffers.reach(tensor))
        )
        for layout in options:
            binding = self.buffers.bind(step, operand, InMain(layout))
            if binding is not None:
                self.main[tensor] = layout
                return binding
        return None

    def statement_nodes(
        self, step: Step, outer: Sequence[TileLoop], base_rows: Mapping[str, int]
    ) -> tuple[Node, ...]:
        """Return the executions of a statement inside of loops."""
        inner = granule_loops(self.template, step, outer)
        return tuple(self._nest(step, outer, inner, 0, base_rows))

    def _nest(
        self,
        step: Step,
        outer: Sequence[TileLoop],
        inner: Sequence[TileLoop],
        depth: int,
        base_rows: Mapping[str, int],
    ) -> Iterator[Node]:
        """Yield what is inside of a number of a statement's inner loops."""
        if depth:
            yield from self._granules(step, len(outer) + depth, base_rows)
        if depth == len(inner):
            yield from self._reduced(step, (*outer, *inner), inner, base_rows)
        else:
            body = tuple(self._nest(step, outer, inner, depth + 1, base_rows))
            yield Loop(inner[depth].name, inner[depth].extent, body)

    def _granules(self, step: Step, depth: int, base_rows: Mapping[str, int]) -> Iterator[Node]:
        """Yield the moves of what single executions of a statement need, inside of its loops."""
        for buffer in self.buffers.table.values():
            is_granule = buffer.spec.role == "granule" and buffer.spec.first_use == step.number
            if is_granule and buffer.depth == depth:
                yield from self.load(buffer, base_rows)

    def _reduced(
        self,
        step: Step,
        loops: Sequence[TileLoop],
        inner: Sequence[TileLoop],
        base_rows: Mapping[str, int],
    ) -> tuple[Node, ...]:
        """Return the execution of a statement, and the one that begins its sums if it needs one."""
        reduction = step.statement.computation.statement.reduction
        instruction = step.instruction
        if reduction is None:
            return (self._execution(step, instruction, loops, base_rows),)
        around = [
            loop
            for loop in loops
            if loop.axis in step.reductions
            and loop.extent > 1
            and (loop in inner or step.number == self.template.main)
        ]
        if step.statement.accumulates:
            if not instruction.accumulates:
                raise PlanningError(
                    f"rejected: {instruction.name} begins sums anew, and "
                    f"{step.statement.computation} goes on from a bias: use an instruction that "
                    "accumulates"
                )
            return (self._execution(step, instruction, loops, base_rows),)
        begins = (
            instruction
            if not instruction.accumulates
            else self.template.variant(instruction, False)
        )
        goes_on = (
            instruction if instruction.accumulates else self.template.variant(instruction, True)
        )
        if not around:
            # Without an instruction that begins sums, something else has set them to zero.
            return (self._execution(step, begins or instruction, loops, base_rows),)
        if goes_on is None:
            raise PlanningError(
                f"rejected: {instruction.name} begins sums anew, and "
                f"{step.statement.computation} needs several executions for a sum: describe an "
                "instruction that accumulates"
            )
        if begins is None:
            return (self._execution(step, goes_on, loops, base_rows),)
        total = IndexExpr.sum([IndexTerm(loop.name) for loop in around])
        return (
            self._execution(step, begins, loops, base_rows, (total.times(-1),)),
            self._execution(step, goes_on, loops, base_rows, (total + -1,)),
        )

    # The program

    def program(self, base_rows: Mapping[str, int]) -> Program:
        """Return the program, with each memory's buffers from a row on."""
        template = self.template
        body = with_configuration(self._settled_body(base_rows), template.machine)
        if template.machine.synchronization is Synchronization.CHANNELS:
            body = with_signals(body, template.machine, self._unit_copies(body))
        tensors = dict(self.main)
        return Program(
            template.problem.specification.name,
            template.machine,
            tensors,
            body,
            template.problem.specification,
        )

    def _unit_copies(self, body: Sequence[Node]) -> dict[str, int]:
        """Return the least number of copies of the buffers that each unit writes repeatedly."""
        machine = self.template.machine
        units: dict[str, int] = {}
        regions = [
            (b.spec.memory, b.offset, b.offset + b.rows, b.copies)
            for b in self.buffers.table.values()
            if b.depth and not b.spec.is_home
        ]
        for loops, issue in issues_of(body):
            if any(guard.terms for guard in issue.guards) and issue.meaning is None:
                raise PlanningError(
                    "rejected: the last tiles have fewer transfers than others, between which "
                    f"{machine.name} waits: use tiles of equal sizes"
                )
            instruction = machine.instructions[issue.instruction]
            zero = {loop.name: IndexExpr() for loop in loops}
            for operand in instruction.outputs:
                row = issue.operands[operand].base.substitute(zero).constant
                for memory, first, end, copies in regions:
                    if instruction.places[operand].memory == memory and first <= row < end:
                        units[instruction.unit] = min(units.get(instruction.unit, 2), copies)
        return units

    def _settled_body(self, base_rows: Mapping[str, int]) -> tuple[Node, ...]:
        """Return the program's nodes, once buffers have room for whole chunks of all copies."""
        while True:
            before = {key: dict(sizes) for key, sizes in self.rounding.items()}
            self.names, self.late = Names(), []
            body = self._body(0, base_rows)
            loops = self.buffers.loops[: self.tiling.output_depth]
            last = (of_last_tile(late.nodes, loops, self.names) for late in self.late)
            body = (*body, *(node for nodes in last for node in nodes))
            if self.rounding == before:
                return body
            self.prepare()

    def _body(self, depth: int, base_rows: Mapping[str, int]) -> tuple[Node, ...]:
        """Return what is inside of a number of the main statement's loops."""
        template = self.template
        loads: list[Node] = []
        chain_loads: list[Node] = []
        for buffer in self.buffers.table.values():
            if buffer.depth == depth and buffer.spec.load and not self._waits(buffer):
                is_for_chain = buffer.spec.first_use > template.main
                (chain_loads if is_for_chain else loads).extend(self.load(buffer, base_rows))
        if depth > self.tiling.output_depth:
            loads += self._granules(template.main_step, depth, base_rows)
        if depth == self.tiling.output_depth:
            return self._tile(loads, chain_loads, base_rows)
        return (*loads, *chain_loads, *self._inner(depth, base_rows))

    def _inner(self, depth: int, base_rows: Mapping[str, int]) -> tuple[Node, ...]:
        """Return the next loop inside of a number of loops, or the executions in all of them."""
        loops = self.buffers.all_loops
        if depth < len(loops):
            loop = loops[depth]
            return (Loop(loop.name, loop.extent, self._body(depth + 1, base_rows)),)
        return self._reduced(self.template.main_step, loops, loops, base_rows)

    def _tile(
        self, loads: list[Node], chain_loads: list[Node], base_rows: Mapping[str, int]
    ) -> tuple[Node, ...]:
        """Return the nodes of a tile of the main statement's output.

        Parameters
        ----------
        loads : list of Node
            Loads for this tile.
        chain_loads : list of Node
            Loads of what only statements after the main one read.
        base_rows : mapping of str to int
        """
        template = self.template
        before: list[Node] = []
        for step in template.steps[: template.main]:
            before += self._chain_step(step, base_rows)
        if template.needs_fill(template.main_step):
            before += self.fill(template.main_step, base_rows)
        before += self._moves(template.main, base_rows)
        inner = self._inner(self.tiling.output_depth, base_rows)
        after = [*self._stores(template.main, base_rows)]
        for step in template.steps[template.main + 1 :]:
            after += self._moves(step.number, base_rows)
            after += self._chain_step(step, base_rows)
        loops = self.buffers.loops[: self.tiling.output_depth]
        runs_ahead = template.machine.synchronization is Synchronization.INTERLOCKED
        loads, delayed = (loads, chain_loads) if runs_ahead else ([*loads, *chain_loads], [])
        for late in self.late:
            nodes = of_tile_before(late.nodes, loops, self.names)
            (loads if late.is_overwritten else delayed).extend(nodes)
        inner = behind_loads(inner, delayed, template.machine)
        return (*loads, *before, *inner, *after)

    def _chain_step(self, step: Step, base_rows: Mapping[str, int]) -> Iterator[Node]:
        if step.number < self.template.main:
            yield from self._moves(step.number, base_rows)
        if self.template.needs_fill(step):
            yield from self.fill(step, base_rows)
        outer = self.buffers.loops[: self.tiling.output_depth]
        yield from self.statement_nodes(step, outer, base_rows)
        yield from self._stores(step.number, base_rows)

    def _waits(self, buffer: Buffer) -> bool:
        """True if a buffer is not filled at the beginning of the loops' body that it is in.

        Either an earlier statement writes its tensor, or other buffers have its rows before, or it
        is filled for single executions.
        """
        reuses = self.template.problem.reuses_rows and buffer.depth == self.tiling.output_depth
        is_written = self.template.is_written(buffer.spec.tensor)
        return reuses or is_written or self._is_inside(buffer)

    def _is_inside(self, buffer: Buffer) -> bool:
        """True if a buffer is filled in the loops over the executions of its statement."""
        return buffer.spec.role == "granule" and buffer.depth > self.tiling.output_depth

    def _moves(self, number: int, base_rows: Mapping[str, int]) -> Iterator[Node]:
        """Yield the moves of tensors to where a statement reads them first.

        They are those that earlier statements wrote, and those that wait for rows.
        """
        for buffer in self.buffers.table.values():
            spec = buffer.spec
            if not spec.load or spec.is_outgoing or spec.first_use != number:
                continue
            if self._waits(buffer) and not self._is_inside(buffer):
                yield from self.load(buffer, base_rows)
                yield from self.store(buffer, base_rows)

    def _stores(self, number: int, base_rows: Mapping[str, int]) -> Iterator[Node]:
        """Yield the stores of what a statement completes, through other memories if need be.

        Those that are late come with the next tile instead.
        """
        for buffer in self.buffers.table.values():
            spec = buffer.spec
            if spec.is_outgoing and spec.stage == number:
                source = self.buffers.table.get((spec.tensor, spec.load[0]))
                nodes = [*self.load(buffer, base_rows), *self.store(buffer, base_rows)]
            elif self.template.last_writer(spec) == number:
                source = buffer
                nodes = [*self.store(buffer, base_rows)]
            else:
                continue
            late = None if source is None else late_store(self.buffers, source, nodes)
            if late is None:
                yield from nodes
            else:
                self.late.append(late)
