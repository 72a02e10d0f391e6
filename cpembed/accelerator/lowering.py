"""Programs of tilings: loops, transfers, executions and configuration, with their claims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.accelerator.addressing import (
    Binding,
    InMain,
    InRows,
    Place,
    bind,
    bind_scalar,
)
from cpembed.accelerator.boxes import (
    Box,
    TileLoop,
    box_of,
    guards,
    loop_extents,
    position,
    sizes,
    tile_size,
)
from cpembed.accelerator.channels import with_signals
from cpembed.accelerator.cost import ProgramCost, program_cost
from cpembed.accelerator.layouts import RowLayout, row_layouts
from cpembed.accelerator.matching import Match
from cpembed.accelerator.pipeline import pipelined_cycles
from cpembed.accelerator.problem import OperatorProblem, PlanningError, Step
from cpembed.accelerator.program import (
    Issue,
    Loop,
    MainTensor,
    Meaning,
    Node,
    Program,
    Size,
)
from cpembed.accelerator.registers import with_configuration
from cpembed.accelerator.template import BufferSpec, Template, default_layouts, make_template
from cpembed.accelerator.tiling import Candidate, Key, SearchResult, Tiling, search, smallest_tiling
from cpembed.accelerator.transfers import BoundIssue, Names, Transfer, plan_copy
from cpembed.embedding.embedding import Digit
from cpembed.hw.isa import InstructionSet, IsaInstruction, MemoryKind, Synchronization
from cpembed.ir.dtypes import dtype_info, is_integer
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


def tile_loops(template: Template, tiling: Tiling) -> tuple[TileLoop, ...]:
    """Return the loops of a tiling over the tiles of the main statement."""
    spans = dict(template.extents)
    loops: list[TileLoop] = []
    for number, (axis, step) in enumerate(tiling.loops):
        loops.append(TileLoop(f"{axis}_{number}", axis, step, spans[axis]))
        spans[axis] = step
    return tuple(loops)


def granule_loops(
    template: Template, step: Step, outer: Sequence[TileLoop]
) -> tuple[TileLoop, ...]:
    """Return the loops over the executions of a statement inside of other loops."""
    loops: list[TileLoop] = []
    for axis in step.axes.values():
        span = tile_size(outer, axis, template.extents[axis])
        granule = min(step.granules[axis], span)
        if axis in step.padded:
            granule = step.granules[axis]
        if span > granule:
            loops.append(TileLoop(f"{axis}_g{step.number}", axis, granule, span))
    held = {
        a
        for b in template.buffers
        if b.role == "granule" and any(n == step.number for n, _ in b.uses)
        for a in b.axes
    }
    # What a granule's buffer holds changes as seldom as possible.
    return tuple(
        sorted(loops, key=lambda loop: (loop.axis not in held, loop.axis in step.reductions))
    )


class Lowering:
    """Makes the program of a tiling.

    Parameters
    ----------
    template : Template
    tiling : Tiling
    layouts : mapping of str to MainTensor, optional
        Layouts in main memory; by default those that suit the transfers.
    """

    def __init__(self, template: Template, tiling: Tiling, *, checks_rows: bool = True) -> None:
        self.checks_rows = checks_rows
        self.template = template
        self.tiling = tiling
        self.names = Names()
        self.main: dict[str, MainTensor] = {}
        self.rounding: dict[Key, dict[int, int]] = {}
        self.loops = tile_loops(template, tiling)
        self.inner = granule_loops(template, template.main_step, self.loops)
        self.all_loops = (*self.loops, *self.inner)
        self._prepare()

    def _prepare(self) -> None:
        self.main = dict(self.template.problem.layouts)
        self.buffers = self._make_buffers()
        self._allocate()

    # Buffers

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

    def _make_buffers(self) -> dict[Key, Buffer]:
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
        for layout in candidates:
            place = InRows(layout, box.starts)
            if all(self._reaches(n, o, place, spec.tensor) for n, o in spec.uses):
                return layout
        number, operand = spec.uses[0]
        raise PlanningError(
            f"rejected: {self.template.steps[number].instruction.name} cannot address "
            f"{spec.tensor} in rows of {spec.memory} as operand {operand}, in any order of its "
            "dimensions: describe a stride of its rows that is an argument"
        )

    def _reaches(self, number: int, operand: str, place: Place, tensor: str) -> bool:
        step = self.template.steps[number]
        loops = self._step_loops(step)
        return self._bind(step, operand, place, tensor, loops) is not None

    def _step_loops(self, step: Step) -> tuple[TileLoop, ...]:
        if step.number == self.template.main:
            return self.all_loops
        outer = self.loops[: self.tiling.output_depth]
        return (*outer, *granule_loops(self.template, step, outer))

    def _allocate(self) -> None:
        """Give each buffer its offset among the rows of its memory."""
        used: dict[str, int] = {}
        for key, buffer in self.buffers.items():
            if buffer.spec.is_home:
                continue
            memory = self.template.machine.memories[buffer.spec.memory]
            offset = used.get(memory.name, 0)
            used[memory.name] = offset + buffer.rows
            self.buffers[key] = replace(buffer, offset=offset)
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
            for b in self.buffers.values()
            for n in range(b.copies)
        ]

    # Executions

    def _points(self, step: Step, loops: Sequence[TileLoop]) -> dict[str, IndexExpr]:
        """Return the value of each axis of a statement, over loops and the instruction's axes."""
        walked: dict[str, list[IndexTerm]] = {}
        for axis in step.match.axes:
            digits = step.digits(axis)
            inner = math.prod(d.count for d in digits)
            for place, d in enumerate(digits):
                inner //= d.count
                modulus = d.count if place else None
                walked.setdefault(d.axis, []).append(IndexTerm(axis, d.stride, inner, modulus))
        return {
            a.name: position(loops, step.axes[a.name]) + IndexExpr.sum(walked.get(a.name, []))
            for a in step.statement.computation.axes
        }

    def _axis_sizes(self, step: Step, loops: Sequence[TileLoop]) -> dict[str, int]:
        """Return the largest size of each axis of a statement's instruction."""
        largest: dict[str, int] = {}
        for axis in step.instruction.axes:
            digits = step.digits(axis.name)
            if axis.is_fixed:
                largest[axis.name] = axis.maximum
            elif not digits:
                largest[axis.name] = axis.minimum
            elif len(digits) > 1:
                largest[axis.name] = math.prod(d.count for d in digits)
            else:
                shared = step.axes[digits[0].axis]
                size = tile_size(loops, shared, self.template.extents[shared])
                largest[axis.name] = min(digits[0].count, size)
        return largest

    def _bind(
        self,
        step: Step,
        operand: str,
        place: Place,
        tensor: str,
        loops: Sequence[TileLoop],
    ) -> Binding | None:
        points = self._points(step, loops)
        index = [e.substitute(points) for e in step.access(operand).index]
        largest = self._axis_sizes(step, loops)
        shrinking = frozenset(
            axis.name
            for axis in step.instruction.size_arguments
            for d in step.digits(axis.name)
            if len(sizes(loops, step.axes[d.axis], self.template.extents[step.axes[d.axis]])) > 1
        )
        return bind(
            step.instruction,
            operand,
            index,
            place,
            tensor,
            largest,
            loop_extents(loops),
            shrinking,
        )

    def _execution(
        self,
        step: Step,
        instruction: IsaInstruction,
        loops: Sequence[TileLoop],
        base_rows: Mapping[str, int],
        conditions: tuple[IndexExpr, ...] = (),
    ) -> Issue:
        """Return the instruction that computes a statement in an iteration of loops."""
        bindings: dict[str, Binding] = {}
        for operand, described in step.instruction.places.items():
            tensor = step.tensor(operand)
            if not described.dimensions:
                bindings[operand] = self._scalar(step, operand, tensor)
                continue
            if self.template.machine.memories[described.memory].kind is MemoryKind.MAIN:
                binding = self._bind_main(step, operand, tensor, loops)
            else:
                place = self.place(self.buffers[tensor, described.memory], base_rows)
                binding = self._bind(step, operand, place, tensor, loops)
            if binding is None:
                raise PlanningError(
                    f"rejected: {instruction.name} cannot address {tensor} in "
                    f"{described.memory} as operand {operand}: use another layout"
                )
            bindings[operand] = binding
        extents = loop_extents(loops)
        issue_sizes: dict[str, Size] = {}
        checks: list[IndexExpr] = list(conditions)
        for axis in step.axes.values():
            bounds = sizes(loops, axis, self._limit(step, axis))
            checks += guards(bounds, extents)
        for axis in step.instruction.size_arguments:
            digits = step.digits(axis.name)
            if not digits:
                issue_sizes[axis.name] = (IndexExpr((), axis.minimum),)
            elif len(digits) > 1:
                issue_sizes[axis.name] = (IndexExpr((), math.prod(d.count for d in digits)),)
            else:
                shared = step.axes[digits[0].axis]
                bounds = sizes(loops, shared, self._limit(step, shared))
                count = IndexExpr((), digits[0].count)
                if bounds[0].constant > digits[0].count:
                    bounds = (count, *bounds[1:])
                issue_sizes[axis.name] = bounds
        return BoundIssue(
            instruction.name,
            {name: b.address for name, b in bindings.items()},
            issue_sizes,
            tuple(dict.fromkeys(checks)),
            contents={n: b.content for n, b in bindings.items() if b.content is not None},
            meaning=Meaning(step.number, self._points(step, loops)),
            note=str(step.statement.computation),
            registers=tuple(r for b in bindings.values() for r in b.registers),
        )

    def _limit(self, step: Step, axis: str) -> int:
        return self.template.extents[axis]

    def _scalar(self, step: Step, operand: str, tensor: str) -> Binding:
        place = step.instruction.places[operand]
        if operand in step.match.values:
            return bind_scalar(place, "", step.match.values[operand])
        constant = self.template.problem.specification.constants.get(tensor)
        if constant is None or constant.size != 1:
            raise PlanningError(
                f"rejected: {operand} of {step.instruction.name} is one number, and "
                f"{tensor or 'the statement'} is not a constant of one element: use an instruction "
                "that reads it from rows"
            )
        return bind_scalar(place, tensor, constant.reshape(-1)[0].item())

    def _bind_main(
        self, step: Step, operand: str, tensor: str, loops: Sequence[TileLoop]
    ) -> Binding | None:
        """Bind an operand in main memory; a layout that is not decided becomes the first fit."""
        decided = self.main.get(tensor)
        options = (
            [decided] if decided else default_layouts(self.template, tensor, self._reach(tensor))
        )
        for layout in options:
            binding = self._bind(step, operand, InMain(layout), tensor, loops)
            if binding is not None:
                self.main[tensor] = layout
                return binding
        return None

    def statement_nodes(
        self, step: Step, outer: Sequence[TileLoop], base_rows: Mapping[str, int]
    ) -> tuple[Node, ...]:
        """Return the executions of a statement inside of loops."""
        inner = granule_loops(self.template, step, outer)
        body = self._reduced(step, (*outer, *inner), inner, base_rows)
        for loop in reversed(inner):
            body = (Loop(loop.name, loop.extent, body),)
        return body

    def _reduced(
        self,
        step: Step,
        loops: Sequence[TileLoop],
        inner: Sequence[TileLoop],
        base_rows: Mapping[str, int],
    ) -> tuple[Node, ...]:
        """Return the execution of a statement, with its variant that begins sums if it needs one."""
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
                    f"rejected: {instruction.name} begins sums anew, and {step.statement.computation}"
                    " goes on from a bias: use an instruction that accumulates"
                )
            return (self._execution(step, instruction, loops, base_rows),)
        begins = (
            instruction
            if not instruction.accumulates
            else _variant(self.template, instruction, False)
        )
        goes_on = (
            instruction if instruction.accumulates else _variant(self.template, instruction, True)
        )
        if not around:
            if begins is not None:
                return (self._execution(step, begins, loops, base_rows),)
            return self._after_fill(step, loops, base_rows)
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

    def _after_fill(
        self, step: Step, loops: Sequence[TileLoop], base_rows: Mapping[str, int]
    ) -> tuple[Node, ...]:
        return (self._execution(step, step.instruction, loops, base_rows),)

    def needs_fill(self, step: Step) -> bool:
        """True if a statement's sums have to be set to zero by another instruction."""
        reduction = step.statement.computation.statement.reduction
        if reduction is None or step.statement.accumulates:
            return False
        instruction = step.instruction
        return instruction.accumulates and _variant(self.template, instruction, False) is None

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
            for b in self.buffers.values()
            if b.depth and not b.spec.is_home
        ]
        program = Program("", machine, {}, tuple(body))
        for loops, issue in program.issues():
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
            self.names = Names()
            body = self._body(0, base_rows)
            if self.rounding == before:
                return body
            self._prepare()

    def _reach(self, tensor: str) -> dict[int, int]:
        """Return the end of the last chunk of copies along the dimensions of a tensor."""
        ends: dict[int, int] = {}
        for buffer in self.buffers.values():
            if buffer.spec.tensor != tensor:
                continue
            outer = self._outer(buffer)
            box = self.box(buffer.spec, buffer.depth)
            for dimension, chunk in self.rounding.get(buffer.spec.key, {}).items():
                start = box.starts[dimension].bounds(loop_extents(outer))[1]
                size = -(-box.largest[dimension] // chunk) * chunk
                ends[dimension] = max(ends.get(dimension, 0), start + size)
        return ends

    def _body(self, depth: int, base_rows: Mapping[str, int]) -> tuple[Node, ...]:
        """Return what is inside of a number of the main statement's loops."""
        template = self.template
        nodes: list[Node] = []
        for buffer in self.buffers.values():
            if buffer.depth == depth and buffer.spec.load and not self._is_produced(buffer.spec):
                nodes += self._load(buffer, base_rows)
        at_output = depth == self.tiling.output_depth
        if at_output:
            for step in template.steps[: template.main]:
                nodes += self._chain_step(step, base_rows)
            if self.needs_fill(template.main_step):
                nodes += self._fill(template.main_step, base_rows)
            nodes += self._moves(template.main, base_rows)
        if depth < len(self.all_loops):
            loop = self.all_loops[depth]
            nodes.append(Loop(loop.name, loop.extent, self._body(depth + 1, base_rows)))
        else:
            nodes += self._reduced(template.main_step, self.all_loops, self.all_loops, base_rows)
        if at_output:
            nodes += self._stores(template.main, base_rows)
            for step in template.steps[template.main + 1 :]:
                nodes += self._moves(step.number, base_rows)
                nodes += self._chain_step(step, base_rows)
        return tuple(nodes)

    def _chain_step(self, step: Step, base_rows: Mapping[str, int]) -> Iterator[Node]:
        if step.number < self.template.main:
            yield from self._moves(step.number, base_rows)
        if self.needs_fill(step):
            yield from self._fill(step, base_rows)
        outer = self.loops[: self.tiling.output_depth]
        yield from self.statement_nodes(step, outer, base_rows)
        yield from self._stores(step.number, base_rows)

    def _is_produced(self, spec: BufferSpec) -> bool:
        """True if a statement of this operator writes the tensor before the buffer gets it."""
        written = {s.statement.output.tensor for s in self.template.steps}
        return spec.tensor in written

    def _moves(self, number: int, base_rows: Mapping[str, int]) -> Iterator[Node]:
        """Yield the moves of tensors that earlier statements wrote to where a statement reads."""
        for buffer in self.buffers.values():
            spec = buffer.spec
            first = min((n for n, _ in spec.uses), default=-1)
            if first == number and spec.load and self._is_produced(spec):
                yield from self._load(buffer, base_rows)

    def _outer(self, buffer: Buffer) -> tuple[TileLoop, ...]:
        return self.all_loops[: buffer.depth]

    def _load(self, buffer: Buffer, base_rows: Mapping[str, int]) -> Iterator[Node]:
        spec = buffer.spec
        destination = self.place(buffer, base_rows)
        yield from self._copy(
            spec, spec.load, self._home(spec.tensor, spec.load[0], base_rows), destination, buffer
        )

    def _home(self, tensor: str, memory: str, base_rows: Mapping[str, int]) -> Place | None:
        """Return where a tensor is in a memory; None where its layout is not decided."""
        if (tensor, memory) in self.buffers:
            return self.place(self.buffers[tensor, memory], base_rows)
        home = self.template.problem.homes.get(tensor)
        if home is not None and home.memory == memory:
            rank = len(self.template.problem.specification.operands[tensor].shape)
            return InRows(home, (IndexExpr(),) * rank)
        return InMain(self.main[tensor]) if tensor in self.main else None

    def _copy(
        self,
        spec: BufferSpec,
        path: tuple[str, ...],
        source: Place | None,
        destination: Place | None,
        buffer: Buffer,
    ) -> tuple[Node, ...]:
        """Return a copy; a layout in main memory that is not decided becomes the first that fits."""
        if len(path) != 2:
            raise PlanningError(
                f"rejected: {spec.tensor} moves through {' and '.join(path[1:-1])}, which the "
                "planner has no buffer in: describe a direct copy"
            )
        outer = self._outer(buffer)
        extents = loop_extents(outer)
        box = self.box(spec, buffer.depth)
        verb = "store" if destination is None or isinstance(destination, InMain) else "load"
        missing = source is None or destination is None
        candidates: list[MainTensor | None] = [None]
        if missing:
            candidates = [*default_layouts(self.template, spec.tensor, self._reach(spec.tensor))]
        refusal: PlanningError | None = None
        for layout in candidates:
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
            self.rounding[spec.key] = {**self.rounding.get(spec.key, {}), **plan.rounding}
            if layout is not None:
                self.main[spec.tensor] = layout
            return plan.nodes(self.names)
        raise refusal or PlanningError(f"rejected: {spec.tensor} has no layout in main memory")

    def _stores(self, number: int, base_rows: Mapping[str, int]) -> Iterator[Node]:
        for buffer in self.buffers.values():
            spec = buffer.spec
            if not spec.store or not any(
                n == number and o in self.template.steps[n].instruction.outputs
                for n, o in spec.uses
            ):
                continue
            yield from self._copy(
                spec,
                spec.store,
                self.place(buffer, base_rows),
                self._home(spec.tensor, spec.store[-1], base_rows),
                buffer,
            )

    def _fill(self, step: Step, base_rows: Mapping[str, int]) -> Iterator[Node]:
        operand = step.instruction.outputs[0]
        key = step.tensor(operand), step.instruction.places[operand].memory
        buffer = self.buffers[key]
        transfer = Transfer(
            key[0],
            self.box(buffer.spec, buffer.depth),
            None,
            self.place(buffer, base_rows),
            f"begin {key[0]} with the neutral element",
            _neutral(step.statement.computation.statement.reduction, buffer.spec.dtype),
        )
        plan = plan_copy(
            self.template.machine,
            transfer,
            ("", key[1]),
            buffer.spec.dtype,
            loop_extents(self._outer(buffer)),
        )
        self.rounding[buffer.spec.key] = {
            **self.rounding.get(buffer.spec.key, {}),
            **plan.rounding,
        }
        yield from plan.nodes(self.names)


def _neutral(reduction: str | None, dtype: str) -> int | float:
    """Return the value from which a reduction begins."""
    if reduction not in ("max", "min"):
        return 1 if reduction == "mul" else 0
    if not is_integer(dtype):
        return -math.inf if reduction == "max" else math.inf
    low, high = dtype_info(dtype).integer_range
    return low if reduction == "max" else high


def _variant(
    template: Template, instruction: IsaInstruction, accumulates: bool
) -> IsaInstruction | None:
    """Return the instruction that differs only in whether it goes on from what the output holds."""
    for other in template.machine.instructions.values():
        if (
            other.accumulates == accumulates
            and other.name != instruction.name
            and other.computation.statements == instruction.computation.statements
            and other.places == instruction.places
            and other.axes == instruction.axes
        ):
            return other
    return None


@dataclass(frozen=True)
class OperatorPlan:
    """A plan of one operator: its tiling and what it costs.

    Attributes
    ----------
    rows : mapping of str to int
        Rows that its buffers need of each memory.
    cost : ProgramCost
        Executions, bytes and cycles of its program.
    cycles_bound, bytes_bound : float
        Bounds that hold for every program with these instructions.
    compared : int
        Number of tilings that the search compared: all of its template.
    """

    problem: OperatorProblem
    machine: InstructionSet
    tiling: Tiling
    rows: Mapping[str, int]
    cost: ProgramCost
    cycles_bound: float
    bytes_bound: float
    compared: int

    @property
    def cycles(self) -> float:
        """Estimated cycles."""
        return self.cost.cycles

    @property
    def bound_cycles(self) -> float:
        """Bound of the cycles of every program with these instructions."""
        return self.cycles_bound

    @property
    def is_proven(self) -> bool:
        """True if no program with these instructions has fewer cycles than the estimate."""
        return self.cost.cycles <= self.cycles_bound * (1 + 1e-9)

    @property
    def working_rows(self) -> Mapping[str, int]:
        """Rows that its buffers need of each memory, without those of tensors that stay there."""
        return self.rows

    @property
    def gap(self) -> float:
        """Cycles over their bound, minus 1."""
        return self.cost.cycles / self.cycles_bound - 1 if self.cycles_bound else 0.0

    def program(self, base_rows: Mapping[str, int] | None = None) -> Program:
        """Return the program, with the buffers in each memory from a row on (0 by default)."""
        lowering = Lowering(make_template(self.problem, self.machine), self.tiling)
        return lowering.program(base_rows or {})


_PLANS = 6
"""Maximum number of plans of an operator."""


def operator_plans(problem: OperatorProblem, machine: InstructionSet) -> tuple[OperatorPlan, ...]:
    """Return plans of an operator, the fastest first, each of which needs fewer rows than the last.

    Parameters
    ----------
    problem : OperatorProblem
    machine : InstructionSet

    Raises
    ------
    PlanningError
        If the operator is rejected, with the reason and the remedy.
    """
    refusal: PlanningError | None = None
    for alternative in _alternatives(problem):
        try:
            plans = _plans(make_template(alternative, machine))
        except PlanningError as error:
            refusal = refusal or error
            continue
        return plans
    raise refusal or PlanningError(f"rejected: {problem.specification.name} has no plan")


def _plans(template: Template) -> tuple[OperatorPlan, ...]:
    # Most of what is refused is refused for every tiling, and at once for the smallest.
    smallest = Lowering(template, smallest_tiling(template), checks_rows=False)
    smallest.program({})
    result = search(template)
    plans: list[OperatorPlan] = []
    refusal: PlanningError | None = None
    for candidate in _spread(result.candidates):
        try:
            plans.append(_plan(template, candidate, result))
        except PlanningError as error:
            refusal = refusal or error
    if not plans:
        raise refusal or PlanningError("rejected: no tiling has a program")
    return _plan_front(plans)


def _plan(template: Template, candidate: Candidate, result: SearchResult) -> OperatorPlan:
    lowering = Lowering(template, candidate.tiling)
    program = lowering.program({})
    return OperatorPlan(
        template.problem,
        template.machine,
        candidate.tiling,
        dict(lowering.rows),
        program_cost(program, pipelined_cycles(program, lowering.regions())),
        result.cycles_bound,
        result.bytes_bound,
        result.compared,
    )


def _plan_front(plans: Sequence[OperatorPlan]) -> tuple[OperatorPlan, ...]:
    """Return the plans with fewer cycles than all that need fewer bytes of rows."""

    def capacity(plan: OperatorPlan) -> int:
        memories = plan.machine.memories
        return sum(rows * memories[name].row_bytes for name, rows in plan.rows.items())

    front: list[OperatorPlan] = []
    for plan in sorted(plans, key=lambda p: (p.cost.cycles, p.cost.main_bytes, capacity(p))):
        if not front or capacity(plan) < capacity(front[-1]):
            front.append(plan)
    return tuple(front)


def _alternatives(problem: OperatorProblem) -> Iterator[OperatorProblem]:
    """Yield the problem, and variants whose instructions walk one axis instead of two at once.

    Fewer executions are no gain where no layout has both axes in neighbouring rows.
    """
    choices = [list(_single_axes(match)) for match in problem.matches]
    variants = [replace(problem, matches=m) for m in itertools.product(*choices)]
    yield from sorted(variants, key=_executions)


def _executions(problem: OperatorProblem) -> int:
    """Return the number of executions of all statements, with whole granules."""
    total = 0
    for match in problem.matches:
        extents = match.statement.computation.extents
        total += math.prod(-(-extent // match.tile(axis)) for axis, extent in extents.items())
    return total


def _single_axes(match: Match) -> Iterator[Match]:
    options: list[list[tuple[Digit, ...]]] = []
    extents = match.statement.computation.extents
    axes = {axis.name: axis for axis in match.instruction.axes}
    for name, digits in match.axes.items():
        variants = [digits]
        if len(digits) > 1:
            for d in digits:
                count = min(axes[name].maximum, extents[d.axis])
                variants.append((Digit(d.axis, count),))
        options.append(variants)
    for choice in itertools.product(*options):
        yield replace(match, axes=dict(zip(match.axes, choice, strict=True)))


def _spread(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the fastest candidates, and others spread over the rest of the front."""
    if len(candidates) <= _PLANS:
        return list(candidates)
    half = _PLANS // 2
    rest = candidates[half:]
    step = (len(rest) - 1) / (half - 1)
    return [*candidates[:half], *(rest[round(k * step)] for k in range(half))]
