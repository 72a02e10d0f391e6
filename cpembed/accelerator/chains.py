"""Chains of operators whose tensors stay on chip, selected over all of them at once by CP-SAT.

Programs that follow each other without work of the host in between are planned again with each
tensor between them in main memory, or in rows where its writer leaves it and its readers find it.
One selection decides for all of them together (:mod:`~cpembed.accelerator.selection`). Operators
between which a tensor stays on chip become one program.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cpembed.accelerator.addressing import InRows
from cpembed.accelerator.chain_programs import Part, in_shape, joined
from cpembed.accelerator.cost import program_cost
from cpembed.accelerator.homes import (
    CandidateHome,
    TensorUse,
    candidate_home,
    margin_nodes,
    store_nodes,
    subsets,
)
from cpembed.accelerator.lowering import OperatorPlan, template_plans
from cpembed.accelerator.network_steps import (
    Chain,
    HostStep,
    LayoutStep,
    ProgramStep,
    Resident,
    Step,
    ViewStep,
)
from cpembed.accelerator.operators.forms import GraphTensor, OperatorForm
from cpembed.accelerator.problem import PlanningError
from cpembed.accelerator.program import MainTensor, Node, Program
from cpembed.accelerator.reshaped import coarse_shape
from cpembed.accelerator.row_placement import with_rows_ahead
from cpembed.accelerator.selection import (
    Execution,
    Home,
    SelectableTensor,
    Selection,
    SelectionProblem,
    select,
)
from cpembed.accelerator.template import Template, exact_template
from cpembed.hw.isa import InstructionSet, Synchronization
from cpembed.ir.dtypes import bits

_WORK = 4.0
"""Deterministic time of the selection of one chain; where it does not suffice, its gap is stated."""
_TENSORS = 2
"""Number of tensors of an operator up to which all combinations of their homes are planned."""
_PLANS = 2
"""Number of plans for each combination: the fastest, and one with few rows."""
_LARGE = 0.25
"""Part of a memory from which on smaller plans of an operator in main memory are planned too."""

_MAIN, _CHIP = "main", "chip"


_View = tuple[GraphTensor, MainTensor]
"""Tensor of the graph as a specification has it, in its layout in main memory."""


@dataclass
class _Run:
    """Programs without work of the host between them, and the steps around them.

    Attributes
    ----------
    written : dict of str to _View
        Tensors that programs write, by their names in the graph.
    origins : dict of str to str
        Tensor that programs write of which each view has the elements.
    """

    has_bytes_of: Callable[[_View, _View], bool]
    programs: list[ProgramStep] = field(default_factory=list[ProgramStep])
    before: list[Step] = field(default_factory=list[Step])
    after: list[Step] = field(default_factory=list[Step])
    written: dict[str, _View] = field(default_factory=dict[str, _View])
    origins: dict[str, str] = field(default_factory=dict[str, str])

    def takes(self, step: Step) -> bool:
        """Add a step, or return False if it has to follow what is there."""
        if isinstance(step, HostStep):
            return False
        if isinstance(step, LayoutStep):
            if step.tensor in self.written or step.tensor in self.origins:
                return False
            self.before.append(step)
        elif isinstance(step, ViewStep):
            (source, *_) = step.operator.inputs
            is_later = source in self.written or source in self.origins
            if is_later:
                self.origins[step.operator.output] = self.origin(source)
            (self.after if is_later else self.before).append(step)
        else:
            return self._takes_program(step)
        return True

    def origin(self, tensor: str) -> str:
        """Return the tensor that a program writes of which a tensor has the elements."""
        return self.origins.get(tensor, tensor)

    def _takes_program(self, step: ProgramStep) -> bool:
        if step.host:
            return False
        specification, tensors = step.form.specification, step.form.tensors
        read: dict[str, _View] = {}
        for name in specification.inputs:
            tensor = tensors[name]
            origin = self.origin(tensor.name)
            if origin not in self.written:
                continue
            view = tensor, _nameless(step.layout(name, is_read=True))
            # Rows hold a tensor in one shape for each operator.
            if read.setdefault(origin, view) != view:
                return False
            if not self._continues(self.written[origin], view):
                return False
        for name in specification.outputs:
            layout = _nameless(step.layout(name, is_read=False))
            self.written[tensors[name].name] = tensors[name], layout
        self.programs.append(step)
        return True

    def _continues(self, written: _View, read: _View) -> bool:
        """Return True if a program may read a tensor as another one wrote it."""
        if written == read:
            return True
        # Beyond the end of a dimension, other shapes have other elements.
        are_plain = all(_is_plain(layout) for _, layout in (written, read))
        return are_plain and self.has_bytes_of(written, read)


def _is_plain(layout: MainTensor) -> bool:
    """Return True if a tensor lies in main memory row-major, without margins."""
    return layout == MainTensor.dense(layout.name, layout.shape, layout.dtype, layout.role)


def _has_order_of(first: _View, second: _View) -> bool:
    """Return True if two views of one tensor have its elements in the same order."""
    return first[0].name == second[0].name and first[0].permutation == second[0].permutation


def _nameless(layout: MainTensor) -> MainTensor:
    return replace(layout, name="", role="")


class ChainPlanner:
    """Search for chains in the steps of a network.

    Parameters
    ----------
    outputs : sequence of str
        Results of the network.
    machine : InstructionSet
    signature : callable
        What the plans of a form depend on: plans of forms with equal ones are equal.
    has_bytes_of : callable, optional
        Tells whether two views of the same elements, without margins, have them in the same order;
        by default, if they are views of one tensor with the same permutation.
    """

    def __init__(
        self,
        outputs: Sequence[str],
        machine: InstructionSet,
        signature: Callable[[OperatorForm], Hashable],
        has_bytes_of: Callable[[_View, _View], bool] = _has_order_of,
    ) -> None:
        self.has_bytes_of = has_bytes_of
        self.outputs = outputs
        self.machine = machine
        self.signature = signature
        self.variants: dict[Hashable, tuple[OperatorPlan, ...]] = {}
        self.homes: dict[Hashable, CandidateHome | None] = {}

    def steps(self, steps: Sequence[Step]) -> list[Step]:
        """Return the steps with chains in place of the programs that they are made of."""
        in_banks = any(i.banks_differ for i in self.machine.instructions.values())
        if in_banks or self.machine.synchronization is Synchronization.CHANNELS:
            # Signals count the rounds of one program; buffers in banks begin at their first row.
            return list(steps)
        chained: list[Step] = []
        run = _Run(self.has_bytes_of)
        for step in steps:
            if run.takes(step):
                continue
            chained += self._planned(run, steps)
            run = _Run(self.has_bytes_of)
            if not run.takes(step):
                chained.append(step)
        return [*chained, *self._planned(run, steps)]

    def _planned(self, run: _Run, steps: Sequence[Step]) -> Iterator[Step]:
        yield from run.before
        if len(run.programs) > 1:
            yield from _RunPlanner(self, run, steps).steps()
        else:
            yield from run.programs
        yield from run.after


def _origins(steps: Sequence[Step]) -> dict[str, str]:
    """Return the tensor of which each view has the elements."""
    origins: dict[str, str] = {}
    for step in steps:
        if isinstance(step, ViewStep):
            source = step.operator.inputs[0]
            origins[step.operator.output] = origins.get(source, source)
    return origins


@dataclass(frozen=True)
class _Operator:
    """Plan of a run, with the names that its tensors have in the run."""

    step: int
    number: int
    plan: OperatorPlan
    program: Program
    template: Template
    names: Mapping[str, str]

    def local(self, key: str) -> str:
        """Return the name that the plan has for a tensor of the run."""
        return next(name for name, in_run in self.names.items() if in_run == key)


@dataclass(frozen=True)
class _Tensor:
    """Tensor of a run that may stay on chip."""

    key: str
    writer: int
    home: CandidateHome
    layout: MainTensor
    is_needed: bool


@dataclass(frozen=True)
class _Variant:
    """Execution of an operator, with the tensors that it finds or leaves on chip."""

    plan: OperatorPlan
    on_chip: frozenset[str]


class _RunPlanner:
    """Selection of homes for one run, and its programs."""

    def __init__(self, planner: ChainPlanner, run: _Run, steps: Sequence[Step]) -> None:
        self.planner = planner
        self.machine = planner.machine
        self.run = run
        self.programs = run.programs
        self.all_steps = steps
        self.origins = _origins(steps)
        self.graph_tensors: dict[str, GraphTensor] = {}
        self.operators = list(self._operators())
        self.tensors = {t.key: t for t in self._tensors()}

    def steps(self) -> list[ProgramStep]:
        """Return the steps of the run, those of chains joined."""
        if not self.tensors:
            return list(self.programs)
        variants = [self._variants(n) for n in range(len(self.operators))]
        problem = SelectionProblem(
            [self._executions(n, vs) for n, vs in enumerate(variants)],
            {t.key: self._selectable(t) for t in self.tensors.values()},
            {m.name: m.rows for m in self.machine.row_memories()},
        )
        selection = select(problem, _WORK)
        if selection is None:
            return list(self.programs)
        if self.machine.synchronization is not Synchronization.IN_ORDER:
            selection = with_rows_ahead(problem, selection)
        numbers = [
            next(k for k, e in enumerate(problem.operators[n]) if e is execution)
            for n, execution in enumerate(selection.executions)
        ]
        selected = [variants[n][k] for n, k in enumerate(numbers)]
        steps: list[ProgramStep] = []
        for first, last in self._groups(selected):
            single = self.programs[first : last + 1]
            step = self._step(first, last, selected, selection)
            # Costs of a selection are those of its parts; the program's own estimate decides.
            is_faster = step.cycles <= math.fsum(s.cycles for s in single)
            steps += [step] if is_faster else single
        return steps

    # The run

    def _operators(self) -> Iterator[_Operator]:
        views: dict[str, _View] = {}
        for number, step in enumerate(self.programs):
            for place, (plan, program) in enumerate(zip(step.plans, step.programs, strict=True)):
                names: dict[str, str] = {}
                specification = plan.problem.specification
                for name in specification.operands:
                    if name not in step.form.tensors or name in specification.constants:
                        names[name] = f"{step.name}.{name}"
                        continue
                    tensor = step.form.tensors[name]
                    layout = program.tensors.get(name) or step.layout(name, is_read=True)
                    view = tensor, _nameless(layout)
                    key = self.run.origin(tensor.name)
                    if key not in self.run.written:
                        # The same tensor in two shapes or layouts has two names.
                        while views.setdefault(key, view) != view:
                            key += "'"
                    names[name] = key
                    self.graph_tensors.setdefault(key, tensor)
                template = exact_template(plan.problem, self.machine)
                yield _Operator(number, place, plan, program, template, names)

    def _tensors(self) -> Iterator[_Tensor]:
        writers: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        for number, operator in enumerate(self.operators):
            specification = operator.plan.problem.specification
            for name in specification.inputs:
                readers.setdefault(operator.names[name], []).append(number)
            for name in specification.outputs:
                writers[operator.names[name]] = number
        needed = self._needed(self.programs)
        for key, writer in writers.items():
            after = [n for n in readers.get(key, []) if n > writer]
            if not after:
                continue
            layout = self.operators[writer].program.tensors.get(self.operators[writer].local(key))
            home = None if layout is None else self._home(key, writer, after, layout)
            if layout is not None and home is not None:
                tensor = self.graph_tensors.get(key)
                is_needed = tensor is not None and tensor.name in needed
                yield _Tensor(key, writer, home, replace(layout, name=key), is_needed)

    def _home(
        self, key: str, writer: int, readers: Sequence[int], layout: MainTensor
    ) -> CandidateHome | None:
        uses = {
            n: TensorUse(self.operators[n].template, self.operators[n].local(key))
            for n in (writer, *readers)
        }
        parts = tuple((n - writer, self._kind(n), use.name) for n, use in uses.items())
        kind: Hashable = parts, repr(_nameless(layout))
        if kind not in self.planner.homes:
            self.planner.homes[kind] = candidate_home(
                uses.pop(writer), {n - writer: use for n, use in uses.items()}, layout
            )
        home = self.planner.homes[kind]
        if home is None:
            return None
        return replace(
            home,
            readers=tuple(writer + n for n in home.readers),
            reshaped={writer + n: place for n, place in home.reshaped.items()},
        )

    def _kind(self, number: int) -> Hashable:
        """Return what the plans of an operator of the run depend on."""
        operator = self.operators[number]
        form = self.programs[operator.step].form
        return self.planner.signature(form), operator.number, repr(operator.plan.problem.layouts)

    def _needed(self, group: Sequence[ProgramStep]) -> set[str]:
        """Return the graph's tensors that steps outside of a group read, themselves or as views."""
        inside = {id(step) for step in group}
        needed = set(self.planner.outputs)
        for step in self.all_steps:
            if isinstance(step, LayoutStep):
                needed.add(step.tensor)
            elif isinstance(step, HostStep):
                needed.update(step.operator.inputs)
            elif isinstance(step, ProgramStep) and id(step) not in inside:
                needed.update(t.name for t in step.form.tensors.values())
        return needed | {self.origins[name] for name in needed if name in self.origins}

    # Plans

    def _variants(self, number: int) -> list[_Variant]:
        """Return the plans of an operator with some of its tensors on chip."""
        operator = self.operators[number]
        keys = [
            t.key for t in self.tensors.values() if number == t.writer or number in t.home.readers
        ]
        variants = [_Variant(operator.plan, frozenset())]
        memories = self.machine.memories
        if any(rows > _LARGE * memories[m].rows for m, rows in operator.plan.rows.items()):
            variants += (_Variant(p, frozenset()) for p in self._plans(number, ()))
        for subset in subsets(keys, _TENSORS):
            variants += (_Variant(p, frozenset(subset)) for p in self._plans(number, subset))
        return variants

    def _plans(self, number: int, keys: Sequence[str]) -> tuple[OperatorPlan, ...]:
        """Return plans of an operator with tensors in their homes, the fastest first."""
        operator = self.operators[number]
        homes = {operator.local(key): self.tensors[key].home for key in keys}
        problem = operator.plan.problem
        places = tuple((name, repr(home.moved(0, number))) for name, home in homes.items())
        kind: Hashable = self._kind(number), places
        if kind not in self.planner.variants:
            # Each beyond the rows of its memory, so that no two of them overlap.
            first = {memory: self.machine.memories[memory].rows for memory in self._memories(homes)}
            homes_beyond: dict[str, InRows] = {}
            for name, home in homes.items():
                homes_beyond[name] = home.moved(first[home.memory], number)
                first[home.memory] += home.rows
            try:
                template = exact_template(replace(problem, homes=homes_beyond), self.machine)
                self.planner.variants[kind] = template_plans(template, _PLANS)
            except PlanningError:
                self.planner.variants[kind] = ()
        return tuple(replace(plan, problem=problem) for plan in self.planner.variants[kind])

    def _memories(self, homes: Mapping[str, CandidateHome]) -> set[str]:
        return {home.memory for home in homes.values()}

    def _executions(self, number: int, variants: Sequence[_Variant]) -> list[Execution]:
        executions: list[Execution] = []
        for k, variant in enumerate(variants):
            cost = variant.plan.cost.cycles
            reads: dict[str, str] = {}
            writes: dict[str, str] = {}
            for tensor in self.tensors.values():
                place = _CHIP if tensor.key in variant.on_chip else _MAIN
                if tensor.writer == number:
                    writes[tensor.key] = place
                    if place == _CHIP:
                        cost += self._cycles(self._margins(tensor, 0))
                elif tensor.key in self._inputs(number):
                    reads[tensor.key] = place
            executions.append(Execution(f"{number}.{k}", cost, reads, writes, variant.plan.rows))
        return executions

    def _inputs(self, number: int) -> set[str]:
        operator = self.operators[number]
        return {operator.names[name] for name in operator.plan.problem.specification.inputs}

    def _selectable(self, tensor: _Tensor) -> SelectableTensor:
        home = tensor.home
        copies: dict[tuple[str, str], float] = {}
        with contextlib.suppress(PlanningError):
            copies[_CHIP, _MAIN] = self._cycles(self._store(tensor, 0))
        return SelectableTensor(
            tensor.key,
            {_MAIN: Home(_MAIN), _CHIP: Home(_CHIP, home.memory, home.rows)},
            copies,
            final=_MAIN if tensor.is_needed else "",
        )

    def _margins(self, tensor: _Tensor, base: int) -> tuple[Node, ...]:
        home = replace(tensor.home, place=tensor.home.moved(base))
        return margin_nodes(home, tensor.key, tensor.layout.dtype, self.machine)

    def _store(self, tensor: _Tensor, base: int) -> tuple[Node, ...]:
        return store_nodes(tensor.home.moved(base), tensor.layout, self.machine)

    def _cycles(self, nodes: tuple[Node, ...]) -> float:
        return program_cost(Program("", self.machine, {}, nodes)).cycles if nodes else 0.0

    # Programs

    def _groups(self, selected: Sequence[_Variant]) -> Iterator[tuple[int, int]]:
        """Yield the first and the last step of each group between which nothing is on chip."""
        joins = set[int]()
        for tensor in self.tensors.values():
            users = [n for n, v in enumerate(selected) if tensor.key in v.on_chip]
            if users:
                steps = self.operators[users[0]].step, self.operators[users[-1]].step
                joins.update(range(*steps))
        first = 0
        for step in range(len(self.programs)):
            if step not in joins:
                yield first, step
                first = step + 1

    def _step(
        self, first: int, last: int, selected: Sequence[_Variant], selection: Selection
    ) -> ProgramStep:
        """Return the program of some steps of the run."""
        if first == last:
            numbers = [n for n, o in enumerate(self.operators) if o.step == first]
            if not any(selected[n].on_chip for n in numbers):
                return self.programs[first]
        group = self.programs[first : last + 1]
        needed = self._needed(group)
        parts: list[Part] = []
        layouts: dict[str, MainTensor] = {}
        shapes = self._shapes(first, last)
        residents: list[Resident] = []
        copied = {copy.tensor for copy in selection.copies}
        for number, operator in enumerate(self.operators):
            if not first <= operator.step <= last:
                continue
            variant = selected[number]
            homes = {
                operator.local(key): self.tensors[key].home.moved(
                    selection.rows[key, _CHIP], number
                )
                for key in variant.on_chip
            }
            after: list[Node] = []
            for key in sorted(variant.on_chip):
                tensor = self.tensors[key]
                if tensor.writer != number:
                    continue
                base = selection.rows[key, _CHIP]
                after += self._margins(tensor, base)
                if key in copied or tensor.home.margins:
                    # The program's tensor says what margins hold, though it may be on chip only.
                    layouts[key] = in_shape(tensor.layout, shapes[key])
                residents.append(self._resident(tensor, base))
                if key in copied:
                    after += self._store(tensor, base)
            plan = replace(variant.plan, problem=replace(variant.plan.problem, homes=homes))
            base_rows = selection.working[number]
            shapes_in = {name: shapes[key] for name, key in operator.names.items()}
            parts.append(Part(plan, operator.names, shapes_in, base_rows, tuple(after)))
        results = {k for k, t in self.graph_tensors.items() if t.name in needed}
        name = f"{group[0].name} to {group[-1].name}" if first < last else group[0].name
        tensors = {
            key: replace(tensor, shape=shapes.get(key, tensor.shape))
            for key, tensor in self.graph_tensors.items()
        }
        form, program, cost = joined(parts, name, results, layouts, tensors)
        return ProgramStep(
            tuple(operator for step in group for operator in step.operators),
            form,
            tuple(part.plan for part in parts),
            (program,),
            (cost,),
            chain=Chain(
                tuple(residents),
                tuple(step.operators[0].name for step in group for _ in step.plans),
                math.fsum(step.cycles for step in group),
                sum(step.main_bytes for step in group),
                selection.cost,
                selection.bound,
                selection.is_proven,
            ),
        )

    def _shapes(self, first: int, last: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor in the program of some steps."""
        shapes: dict[str, list[tuple[int, ...]]] = {}
        for operator in self.operators:
            if first <= operator.step <= last:
                operands = operator.plan.problem.specification.operands
                for name, key in operator.names.items():
                    shapes.setdefault(key, []).append(operands[name].shape)
        return {key: coarse_shape(each) for key, each in shapes.items()}

    def _resident(self, tensor: _Tensor, base: int) -> Resident:
        size = math.prod(tensor.layout.shape) * bits(tensor.layout.dtype) // 8
        return Resident(tensor.key, tensor.home.memory, base, tensor.home.rows, size)
