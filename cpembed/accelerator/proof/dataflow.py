"""The obligations decided by isl's dataflow analysis, for all executions at once.

What cannot be shown is left open (:class:`UndecidedError`), also where a program is wrong: the
enumeration then decides, and names the execution. So each check may be stricter than it has to be,
and none may be weaker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import islpy as isl

from cpembed.accelerator.program import Address
from cpembed.accelerator.proof.last_writes import last_writes, maps_of
from cpembed.accelerator.proof.meanings import Meanings
from cpembed.accelerator.proof.relations import (
    IssueRelations,
    Touch,
    box,
    issue_relations,
    layout,
    reads_in_place,
    union,
    union_map,
)
from cpembed.accelerator.proof.result import UndecidedError
from cpembed.accelerator.proof.selections import check_element, check_immediates
from cpembed.accelerator.proof.steps import Role
from cpembed.accelerator.proof.tensors import Tensors
from cpembed.accelerator.proof.terms import Number
from cpembed.hw.isa import MemoryKind, Synchronization
from cpembed.ir.dtypes import element_info
from cpembed.ir.polyhedral import in_time
from cpembed.time_limit import check_time

_SUMS = (Role.BEGIN, Role.CONTINUE)


def decide(tensors: Tensors) -> list[str]:
    """Decide a program within the surrounding time limit.

    Returns
    -------
    list of str
        Outputs whose margins may hold something else than their fill in the end.

    Raises
    ------
    UndecidedError
        If an obligation is not shown.
    OutOfTime
        When the limit is reached.
    """

    def attempt() -> list[str]:
        dataflow = Dataflow(tensors)
        dataflow.run()
        return dataflow.spoiled_margins

    try:
        return in_time(attempt)
    except isl.Error as error:
        raise UndecidedError(f"isl: {error}") from error


class Dataflow:
    """A program's touches and the dependences between them."""

    def __init__(self, tensors: Tensors) -> None:
        self.program, self.tensors = tensors.program, tensors
        self.machine = tensors.program.machine
        if self.machine.synchronization is Synchronization.CHANNELS:
            raise UndecidedError("channels are decided on the trace")
        self.issues = issue_relations(tensors)
        self._touch_by_space: dict[str, Touch] = {}
        self.spoiled_margins: list[str] = []

    def run(self) -> None:
        """Check every obligation; raise :class:`UndecidedError` at the first that is not shown."""
        for issue in self.issues:
            issue.check_sizes()
            check_immediates(issue)
        self._follow_registers()
        self._touch_memories()
        self._check_places()
        self._meanings = Meanings(self.tensors, self._by_issue)
        for issue in self.issues:
            check_time()
            self._meanings.check(issue)
        for memory, touches in self._by_memory.items():
            check_time()
            if memory.startswith("tensor "):
                self._check_layout(memory.removeprefix("tensor "), touches)
            if not self._is_loaded(memory):
                self._check_flow(memory, touches)
        self._check_statements()
        self._check_outputs()

    # -- registers --------------------------------------------------------------------------------

    def _follow_registers(self) -> None:
        """Find the number that each register holds where an instruction uses it."""
        for memory in self.machine.memories.values():
            if memory.kind is MemoryKind.REGISTER:
                check_time()
                self._follow_register(memory.name)

    def _follow_register(self, name: str) -> None:
        writers: dict[str, tuple[IssueRelations, Number | Address]] = {}
        readers: dict[str, IssueRelations] = {}
        sources, sinks = isl.UnionMap("{}"), isl.UnionMap("{}")
        schedule = isl.UnionMap("{}")
        for issue in self.issues:
            facts = issue.facts
            if facts.is_register(facts.output) and facts.place(facts.output).memory == name:
                step = issue.step
                if step.role not in (Role.CONSTANT, Role.SELECT):
                    raise UndecidedError(f"{facts.text} writes register {name} with no number")
                space = f"W{issue.number}"
                writers[space] = issue, facts.selection() or step.value
                sources = sources.union(_loops_map(issue, space, "M[]"))
                schedule = schedule.union(_loops_map(issue, space, _time(issue, "1")))
            if name in facts.registers_read:
                space = f"R{issue.number}"
                readers[space] = issue
                sinks = sinks.union(_loops_map(issue, space, "M[]"))
                schedule = schedule.union(_loops_map(issue, space, _time(issue, "0")))
        if not readers:
            return
        flow = last_writes(sinks, sources, schedule)
        if not flow.unwritten.is_empty():
            raise UndecidedError(f"register {name} is read before it is written")
        values: dict[str, set[Number]] = {space: set() for space in readers}
        for dependence in maps_of(flow.dependence):
            writer, value = writers[_name(dependence, isl.dim_type.in_)]
            space = _name(dependence, isl.dim_type.out)
            facts = readers[space].facts
            elements = [r for r in facts.element_reads if facts.place(r.operand).memory == name]
            for read in elements:
                check_element(readers[space], read, writer, value, dependence)
            if not elements and isinstance(value, Address):
                raise UndecidedError(f"{facts.text}: register {name} holds several values")
            if not isinstance(value, Address):
                values[space].add(value)
        for space, numbers in values.items():
            # An instruction that is never executed reads nothing.
            if len(numbers) == 1:
                readers[space].registers[name] = numbers.pop()

    # -- places -----------------------------------------------------------------------------------

    def _touch_memories(self) -> None:
        """Collect the operands in memories, with what they read and write."""
        self._by_memory: dict[str, list[Touch]] = {}
        self._by_issue: dict[int, list[Touch]] = {}
        for issue in self.issues:
            if issue.iterations.is_empty():
                continue
            touches = list(self._touches(issue))
            self._by_issue[issue.number] = touches
            for touch in touches:
                self._by_memory.setdefault(touch.memory, []).append(touch)
                self._touch_by_space[touch.space] = touch
        for memory, touches in self._by_memory.items():
            bits = {element_info(touch.dtype).storage_bits for touch in touches}
            if len(bits) > 1 and not memory.startswith("tensor "):
                raise UndecidedError(f"memory {memory} holds elements of several sizes")

    def _touches(self, issue: IssueRelations) -> Iterator[Touch]:
        facts, step = issue.facts, issue.step
        if step.role is Role.OPAQUE:
            raise UndecidedError(f"{facts.text} has no claim")
        for name in facts.instruction.inputs:
            if facts.is_immediate(name) or facts.is_register(name):
                continue
            accesses = facts.instruction.computation.access_maps[name]
            is_previous = step.number is not None and step.previous in accesses
            if is_previous:
                yield Touch(issue, name, is_write=False, is_previous=True)
            if not is_previous or len(accesses) > 1:
                yield Touch(issue, name, is_write=False)
        if not facts.is_register(facts.output):
            if step.role is Role.CONTINUE and step.previous is None:
                yield Touch(issue, facts.output, is_write=False, is_previous=True)
            yield Touch(issue, facts.output, is_write=True)

    def _is_loaded(self, memory: str) -> bool:
        specification = self.tensors.specification
        name = memory.removeprefix("tensor ")
        return name != memory and name in {*specification.inputs, *specification.constants}

    def _check_places(self) -> None:
        """Check that places exist, that outputs overwrite no input, and banks."""
        for memory, touches in self._by_memory.items():
            for touch in touches:
                if memory.startswith("tensor "):
                    continue
                described = self.machine.memories[memory]
                rows = box("M", (described.rows, described.lanes(touch.dtype)))
                if not touch.place.range().is_subset(rows):
                    raise UndecidedError(f"{touch.text} leaves {memory}")
        for issue in self.issues:
            touches = self._by_issue.get(issue.number, [])
            writes = [touch for touch in touches if touch.is_write]
            for write in writes:
                self._check_writes(issue, write, touches)
            for first, second in issue.facts.instruction.banks_differ:
                self._check_banks(issue, first, second)

    def _check_writes(self, issue: IssueRelations, write: Touch, touches: Sequence[Touch]) -> None:
        loops = issue.tuple_text("I")
        to_loops = isl.Map(f"{{ {write.source} -> {loops} }}")
        if not write.place.flat_range_product(to_loops).is_injective():
            raise UndecidedError(f"{write.text} has several elements in one place")
        for read in touches:
            if read.is_write or read.memory != write.memory or read.operand == write.operand:
                continue
            common = read.iterations_to_places.intersect(write.iterations_to_places)
            if common.is_empty():
                continue
            if read.operand not in issue.facts.instruction.in_place or not reads_in_place(
                read, write
            ):
                raise UndecidedError(f"{write.text} is written over {read.operand}")

    def _check_banks(self, issue: IssueRelations, first: str, second: str) -> None:
        touches = self._by_issue.get(issue.number, [])
        banks: list[isl.Map] = []
        memories: set[str] = set()
        for name in (first, second):
            for touch in touches:
                if touch.operand == name:
                    memories.add(touch.memory)
                    rows = self.machine.memories[touch.memory].bank_rows
                    bank = isl.Map(f"{{ M[r, l] -> B[floor(r/{rows})] }}")
                    banks.append(touch.iterations_to_places.apply_range(bank))
                    break
        if len(memories) == 1 and not banks[0].intersect(banks[1]).is_empty():
            raise UndecidedError(f"{issue.facts.text}: {first} and {second} share a bank")

    # -- layouts and dependences ------------------------------------------------------------------

    def _check_layout(self, name: str, touches: Sequence[Touch]) -> None:
        """Check that each element of a buffer holds the tensor's element of the layout."""
        tensor = self.program.tensors[name]
        is_loaded = self._is_loaded(f"tensor {name}")
        places = layout(tensor)
        for touch in touches:
            if touch.dtype != tensor.dtype:
                raise UndecidedError(f"{touch.text} is {touch.dtype}, {name} is {tensor.dtype}")
            if touch.tensor != name:
                raise UndecidedError(f"{touch.text} holds {touch.tensor} in {name}")
            expected = touch.content.apply_range(places)
            if not touch.place.is_subset(expected):
                raise UndecidedError(f"{touch.text} is elsewhere in {name} than the layout says")
            if touch.is_write and is_loaded:
                raise UndecidedError(f"{touch.text} writes what the loader wrote")

    def _check_flow(self, memory: str, touches: Sequence[Touch]) -> None:
        """Check that each read has a last write that claims the same element."""
        is_main = memory.startswith("tensor ")

        def place(touch: Touch) -> isl.Map:
            # In a buffer each element has its place, and margins hold their fill.
            inside = touch.content.intersect_domain(touch.inside) if is_main else touch.place
            return inside.set_tuple_name(isl.dim_type.out, "M")

        flow = last_writes(
            union_map(place(touch) for touch in touches if not touch.is_write),
            union_map(place(touch) for touch in touches if touch.is_write),
            union_map(touch.schedule for touch in touches),
        )
        if not flow.unwritten.is_empty():
            raise UndecidedError(f"{memory} is read where nothing was written")
        for dependence in maps_of(flow.dependence):
            check_time()
            source = self._touch_by_space[_name(dependence, isl.dim_type.in_)]
            sink = self._touch_by_space[_name(dependence, isl.dim_type.out)]
            self._check_dependence(source, sink, dependence)

    def _check_dependence(self, source: Touch, sink: Touch, dependence: isl.Map) -> None:
        """Check one pair of a writer and a reader."""
        step = source.relations.step
        if sink.is_previous and step.role is Role.CONSTANT:
            statement = self.tensors.statement(self._number(sink))
            is_neutral = self.tensors.is_neutral(self._number(sink), step.value)
            if statement.accumulates or not is_neutral:
                raise UndecidedError(f"{sink.text} goes on from the number {step.value}")
            if source.dtype != sink.dtype:
                raise UndecidedError(f"{sink.text} is of another type than {source.text}")
            self._begins.setdefault(sink.space, []).append(dependence.range())
            return
        same_claim = source.content.apply_range(sink.content.reverse())
        if source.tensor != sink.tensor or not dependence.is_subset(same_claim):
            raise UndecidedError(
                f"{sink.text} is claimed to be {sink.tensor} and reads what {source.text} wrote"
            )
        if source.dtype != sink.dtype:
            raise UndecidedError(f"{sink.text} is of another type than {source.text}")
        inside = dependence.intersect_domain(source.inside)
        if step.role is Role.CONSTANT:
            # Outside of the tensor, a number may stand for the fill of its margins.
            main = self.tensors.main(sink.tensor)
            is_fill = main is not None and step.value == main.fill
            if not is_fill or not inside.is_empty():
                raise UndecidedError(f"{sink.text} reads a number")
            return
        if sink.is_previous:
            self._check_link(source, sink, inside)
        elif not inside.is_empty():
            self._check_complete(source, sink)
            self._complete_reads.setdefault(source.space, []).append(inside.domain())

    def _number(self, touch: Touch) -> int:
        number = touch.relations.step.number
        assert number is not None
        return number

    @cached_property
    def _begins(self) -> dict[str, list[isl.Set]]:
        """Instances of partial results that go on from what is no partial result, by space."""
        return {}

    @cached_property
    def _links(self) -> dict[str, list[isl.Map]]:
        """Dependences between partial results, by the space of the source."""
        return {}

    @cached_property
    def _complete_reads(self) -> dict[str, list[isl.Set]]:
        """Instances of writers whose elements are read as complete, by space."""
        return {}

    def _check_link(self, source: Touch, sink: Touch, dependence: isl.Map) -> None:
        """Record that a partial result goes on from another one."""
        if dependence.is_empty():
            return
        role, number = source.relations.step.role, source.relations.step.number
        writers = self.tensors.writers[sink.tensor]
        sink_number = self._number(sink)
        earlier = [n for n in writers if n < sink_number]
        if role in _SUMS and number == sink_number:
            self._links.setdefault(source.space, []).append(dependence)
        elif role is Role.COMPLETE and earlier == [number] and self._goes_on(sink_number):
            # What the earlier statement wrote is whole; the sum begins from it.
            self._begins.setdefault(sink.space, []).append(dependence.range())
        else:
            raise UndecidedError(f"{sink.text} goes on from {source.text}")

    def _goes_on(self, number: int) -> bool:
        return self.tensors.statement(number).accumulates

    def _check_complete(self, source: Touch, sink: Touch) -> None:
        """Check that a reader of a tensor reads what the last of its statements wrote."""
        writers = self.tensors.writers.get(source.tensor, [])
        reader = sink.relations.step.number
        if reader is not None and any(number >= reader for number in writers):
            raise UndecidedError(f"{sink.text} reads {source.tensor} between its statements")
        self._check_last(source)

    def _check_last(self, source: Touch) -> None:
        """Check that a writer is a move, or computes the only value that its tensor has."""
        step, writers = source.relations.step, self.tensors.writers.get(source.tensor, [])
        if step.role is Role.MOVE:
            return
        is_only = len(writers) == 1
        if step.role in _SUMS:
            is_only = is_only or (len(writers) == 2 and self._goes_on(writers[1]))
        if not is_only or step.number != writers[-1]:
            raise UndecidedError(f"{source.text} writes what a later statement changes")

    # -- statements -------------------------------------------------------------------------------

    def _check_statements(self) -> None:
        """Check that each element of a sum has one chain of partial results, over all points."""
        for numbers in self.tensors.writers.values():
            for number in numbers:
                issues = [
                    issue
                    for issue in self.issues
                    if issue.step.number == number
                    and issue.step.role in _SUMS
                    and issue.number in self._by_issue
                ]
                if issues:
                    check_time()
                    self._check_points(number, issues)
                    self._check_chains(issues)

    def _check_points(self, number: int, issues: Sequence[IssueRelations]) -> None:
        """Check that the executions cover each point, and in sums once."""
        computation = self.tensors.statement(number).computation
        domain = box("D", list(computation.extents.values()))
        once = computation.statement.reduction not in ("max", "min")
        covered: isl.Set | None = None
        for issue in issues:
            indices = [issue.facts.points[axis] for axis in computation.extents]
            points = issue.at_points("D", indices).intersect_range(domain)
            if once and not points.is_injective():
                raise UndecidedError(f"{issue.facts.text} executes a point twice")
            reached = points.range()
            if covered is None:
                covered = reached
                continue
            if once and not covered.is_disjoint(reached):
                raise UndecidedError(f"{issue.facts.text} executes points of another instruction")
            covered = covered.union(reached)
        if covered is None or not domain.is_subset(covered):
            raise UndecidedError(f"points of {computation} are not executed")

    def _check_chains(self, issues: Sequence[IssueRelations]) -> None:
        """Check that partial results of each element form one chain, read at its end."""
        touches = [t for issue in issues for t in self._by_issue[issue.number]]
        begins: list[isl.Map] = []
        for touch in touches:
            if touch.is_write and touch.relations.step.role is Role.BEGIN:
                begins.append(touch.content.intersect_domain(touch.inside))
            begins += (
                touch.content.intersect_domain(instances.intersect(touch.inside))
                for instances in self._begins.get(touch.space, [])
            )
        if not union_map(begins).is_injective():
            raise UndecidedError(f"{issues[0].facts.text}: an element of the sum begins twice")
        for touch in touches:
            links = union_map(self._links.get(touch.space, []))
            if not links.is_single_valued():
                raise UndecidedError(f"{touch.text}: two instructions go on from one partial sum")
            read = self._complete_reads.get(touch.space, [])
            ended = isl.UnionSet("{}")
            for instances in read:
                ended = ended.union(isl.UnionSet.from_set(instances))
            if not links.domain().intersect(ended).is_empty():
                raise UndecidedError(f"{touch.text} is read before its sum is complete")

    # -- outputs ----------------------------------------------------------------------------------

    def _check_outputs(self) -> None:
        """Check that each element of each output is stored, complete."""
        for name in self.tensors.specification.outputs:
            writes = [t for t in self._by_memory.get(f"tensor {name}", []) if t.is_write]
            if not writes:
                raise UndecidedError(f"output {name} is never written")
            for touch in writes:
                if (
                    not touch.domain.is_subset(touch.inside)
                    and name in self._meanings.computed_outside
                ):
                    self.spoiled_margins.append(name)
                self._check_last(touch)
                if touch.relations.step.role is Role.CONTINUE or self._continues(touch):
                    raise UndecidedError(f"sums of {name} are formed in main memory")
            if not box("C", self.tensors.shape(name)).is_subset(
                union([touch.content.range() for touch in writes])
            ):
                raise UndecidedError(f"elements of output {name} are never stored")

    def _continues(self, touch: Touch) -> bool:
        """Return True if a sum that is begun by a touch is gone on with by any instruction."""
        step = touch.relations.step
        return step.role is Role.BEGIN and any(
            issue.step.number == step.number and issue.step.role is Role.CONTINUE
            for issue in self.issues
        )


def _loops_map(issue: IssueRelations, space: str, target: str) -> isl.UnionMap:
    text = f"{{ {issue.tuple_text(space)} -> {target} : {issue.loops_text} }}"
    return isl.UnionMap(text)


def _time(issue: IssueRelations, phase: str) -> str:
    return f"T[{', '.join((*issue.schedule_text, phase))}]"


def _name(relation: isl.Map, kind: isl.dim_type) -> str:
    return relation.get_tuple_name(kind)
