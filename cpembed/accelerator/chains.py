"""Chains of operators whose tensors stay on chip, selected over all of them at once by CP-SAT.

Programs that follow each other without work of the host in between are planned again with each
tensor between them in main memory, or in rows where its writer leaves it and its readers find it.
One selection decides for all of them together (:mod:`~cpembed.accelerator.selection`). Operators
between which a tensor stays on chip become one program.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.accelerator.addressing import InRows
from cpembed.accelerator.chain_programs import Part, in_shape, joined
from cpembed.accelerator.chain_runs import Run, view_origins
from cpembed.accelerator.cost import program_cost
from cpembed.accelerator.graph_layouts import GraphLayout
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
)
from cpembed.accelerator.operators.forms import GraphTensor
from cpembed.accelerator.problem import OperatorProblem, PlanningError, problem_variants
from cpembed.accelerator.program import MainTensor, Node, Program
from cpembed.accelerator.reshaped import coarse_shape
from cpembed.accelerator.selection import (
    Execution,
    Home,
    SelectableTensor,
    Selection,
    SelectionProblem,
    select,
    with_rows_ahead,
)
from cpembed.accelerator.template import Template, exact_template, is_possible
from cpembed.hw.isa import InstructionSet, Synchronization
from cpembed.ir.dtypes import bits

_WORK = 4.0
"""Deterministic time of the selection of one chain, which states its gap if that is too little."""
_TENSORS = 3
"""Number of tensors of an operator up to which all combinations of their homes are planned."""
_PLANS = 2
"""Number of plans for each combination: the fastest, and one with few rows."""
_LARGE = 0.25
"""Part of a memory from which on smaller plans of an operator in main memory are planned too."""

_MAIN, _CHIP = "main", "chip"


class ChainPlanner:
    """Search for chains in the steps of a network.

    Parameters
    ----------
    outputs : sequence of str
        Results of the network.
    machine : InstructionSet
    """

    def __init__(self, outputs: Sequence[str], machine: InstructionSet) -> None:
        self.outputs = outputs
        self.machine = machine
        self.variants: dict[Hashable, tuple[int, tuple[OperatorPlan, ...]]] = {}
        self.homes: dict[Hashable, CandidateHome | None] = {}

    def steps(self, steps: Sequence[Step]) -> list[Step]:
        """Return the steps with chains in place of the programs that they are made of."""
        in_banks = any(i.banks_differ for i in self.machine.instructions.values())
        if in_banks or self.machine.synchronization is Synchronization.CHANNELS:
            # Signals count the rounds of one program; buffers in banks begin at their first row.
            return list(steps)
        chained: list[Step] = []
        run = Run()
        for step in steps:
            if run.takes(step):
                continue
            chained += self._planned(run, steps)
            run = Run()
            if not run.takes(step):
                chained.append(step)
        return [*chained, *self._planned(run, steps)]

    def _planned(self, run: Run, steps: Sequence[Step]) -> Iterator[Step]:
        yield from run.before
        if len(run.programs) > 1:
            yield from run.with_views(RunPlanner(self, run, steps).steps())
        else:
            yield from run.with_views(run.programs)


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
class Variant:
    """Execution of an operator, with the tensors that it finds or leaves on chip."""

    plan: OperatorPlan
    on_chip: frozenset[str]


class RunPlanner:
    """Selection of homes for one run, and its programs."""

    def __init__(self, planner: ChainPlanner, run: Run, steps: Sequence[Step]) -> None:
        self.planner = planner
        self.machine = planner.machine
        self.run = run
        self.programs = run.programs
        self.all_steps = steps
        self.origins = view_origins(steps)
        self.graph_tensors: dict[str, GraphTensor] = {}
        self.operators = list(self._operators())
        self.tensors = {t.key: t for t in self._tensors()}

    def steps(self) -> list[ProgramStep]:
        """Return the steps of the run, those of chains joined."""
        if not self.tensors:
            return list(self.programs)
        variants = [self.variants_of(n) for n in range(len(self.operators))]
        problem = self.problem(variants)
        selection = select(problem, _WORK)
        if selection is None:
            return list(self.programs)
        return self.selected_steps(variants, problem, selection)

    def problem(self, variants: Sequence[Sequence[Variant]]) -> SelectionProblem:
        """Return the problem of selecting a variant of each operator."""
        return SelectionProblem(
            [self._executions(n, vs) for n, vs in enumerate(variants)],
            {t.key: self._selectable(t) for t in self.tensors.values()},
            {m.name: m.rows for m in self.machine.row_memories()},
        )

    def selected_steps(
        self,
        variants: Sequence[Sequence[Variant]],
        problem: SelectionProblem,
        selection: Selection,
    ) -> list[ProgramStep]:
        """Return the steps of a selection, those of chains joined where that is faster."""
        if self.machine.synchronization is not Synchronization.IN_ORDER:
            selection = with_rows_ahead(problem, selection)
        selected = [
            next(
                v for v, e in zip(variants[n], problem.operators[n], strict=True) if e is execution
            )
            for n, execution in enumerate(selection.executions)
        ]
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
        views: dict[str, GraphLayout] = {}
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
                    view = GraphLayout(tensor, layout.anonymous)
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
        kind: Hashable = parts, repr(layout.anonymous)
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
        return form.signature, operator.number, repr(operator.plan.problem.layouts)

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

    def variants_of(self, number: int) -> list[Variant]:
        """Return the plans of an operator with some of its tensors on chip."""
        operator = self.operators[number]
        keys = [
            t.key for t in self.tensors.values() if number == t.writer or number in t.home.readers
        ]
        variants = [Variant(operator.plan, frozenset())]
        memories = self.machine.memories
        if any(rows > _LARGE * memories[m].rows for m, rows in operator.plan.rows.items()):
            variants += (Variant(p, frozenset()) for p in self._plans(number, ()))
        for subset in subsets(keys, _TENSORS):
            variants += (Variant(p, frozenset(subset)) for p in self._plans(number, subset))
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
            self.planner.variants[kind] = self._variant_plans(replace(problem, homes=homes_beyond))
        number, plans = self.planner.variants[kind]
        variant = next(itertools.islice(problem_variants(problem, is_possible), number, None))
        return tuple(replace(plan, problem=variant) for plan in plans)

    def _variant_plans(self, problem: OperatorProblem) -> tuple[int, tuple[OperatorPlan, ...]]:
        """Return plans of the first variant whose instructions can address the homes."""
        for number, variant in enumerate(problem_variants(problem, is_possible)):
            with contextlib.suppress(PlanningError):
                return number, template_plans(exact_template(variant, self.machine), _PLANS)
        return 0, ()

    def _memories(self, homes: Mapping[str, CandidateHome]) -> set[str]:
        return {home.memory for home in homes.values()}

    def _executions(self, number: int, variants: Sequence[Variant]) -> list[Execution]:
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

    def _groups(self, selected: Sequence[Variant]) -> Iterator[tuple[int, int]]:
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
        self, first: int, last: int, selected: Sequence[Variant], selection: Selection
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
