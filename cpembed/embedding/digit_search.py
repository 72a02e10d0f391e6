"""Search of the digit model, component by component.

Instruction axes that no constraint couples have solutions of their own, which combine freely: the
embeddings are the product. Most problems fall apart like this. Where several digits move one index
together (windows, two axes of one role in a sum), the model is a relaxation: its solutions are
expanded to nodes, and those that a constraint refuses are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cpembed.embedding.checks import flattened_problem
from cpembed.embedding.commute import orders_left_out
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import (
    SearchControl,
    SearchLimits,
    SearchStatistics,
    Status,
    enumerate_solutions,
)
from cpembed.embedding.digit_model import AxisMaps, DigitModel, DigitOption, combine
from cpembed.embedding.domains import JointDigits, allowed_digits
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.model_builder import CompiledModel, Ids
from cpembed.embedding.node_map import expand
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.result import (
    AssetEffort,
    Component,
    EmbeddingSpace,
    Formulation,
    SearchEffort,
    SearchResult,
    Seconds,
)
from cpembed.steps import PhaseProgress as Progress

_OUTPUTS_FIRST = "outputs_first"
"""Name of the digit model's only decision order."""


class _Effort:
    """Accumulates the solver's work over the digit models of one search: one per component."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.solving = 0.0
        self.statuses: list[Status] = []
        self.statistics = SearchStatistics()

    def enumerate(
        self,
        model: CompiledModel,
        receive: Callable[[Ids], bool],
        limits: SearchLimits,
        remaining: int = 0,
    ) -> Status:
        """Enumerate a component's solutions; ``remaining`` components have an equal share of time.

        The models are of Booleans: neither presolve nor a linear relaxation earns its cost.
        """
        started = time.perf_counter()
        left = limits.after(started - self.started).share(remaining + 1)
        control = SearchControl(presolve=False, relaxation=False)
        status, _, statistics = enumerate_solutions(model, receive, left, control)
        self.statuses.append(status)
        self.statistics = self.statistics.plus(statistics)
        self.solving += time.perf_counter() - started
        return status

    def result(self, problem: EmbeddingProblem, embeddings: Sequence[Embedding]) -> SearchResult:
        status = self._status()
        complete = status in (Status.OPTIMAL, Status.INFEASIBLE)
        asset = AssetEffort(_OUTPUTS_FIRST, status, self.statistics)
        return SearchResult(
            status,
            complete,
            embeddings,
            (),
            Seconds(time.perf_counter() - self.started - self.solving, self.solving),
            SearchEffort(Formulation.DIGITS, asset.name if complete else None, (asset,)),
            problem,
        )

    def _status(self) -> Status:
        """Components must all have solutions."""
        if Status.INFEASIBLE in self.statuses:
            return Status.INFEASIBLE
        if all(status is Status.OPTIMAL for status in self.statuses):
            return Status.OPTIMAL
        return Status.UNKNOWN if Status.UNKNOWN in self.statuses else Status.FEASIBLE


class DigitSearch:
    """A problem's options under a constraint set, by component; searched as often as wanted."""

    def __init__(self, problem: EmbeddingProblem, constraints: ConstraintSet) -> None:
        self.problem, self.constraints = problem, constraints
        options = allowed_digits(problem, constraints)
        self._joint = JointDigits(problem, constraints)
        self._flattened: dict[tuple[tuple[str, tuple[str, ...]], ...], EmbeddingProblem] = {}
        axes_of_all = tuple(axis.name for axis in problem.instruction.axes)
        self._components = [
            (axes, [option for option in options if option.instruction_axis in axes])
            for axes in self._posted(axes_of_all, options).components()
        ]

    def models(self) -> list[DigitModel]:
        """A model for each set of instruction axes that no constraint couples to the others."""
        return [self._posted(axes, options) for axes, options in self._components]

    def run(
        self,
        limits: SearchLimits,
        report: Progress,
        bound: Callable[[list[DigitModel]], None] = lambda models: None,
    ) -> SearchResult:
        """Enumerate the solutions; ``bound`` may post more to the components' models.

        Components with the fewest options come first: what they leave of a time limit is for the
        others.
        """
        effort = _Effort()
        roles = orders_left_out(self.problem.original, self.constraints.commutes)
        models = self.models()
        bound(models)
        components: dict[tuple[str, ...], Component] = {}
        count = 0
        for n, model in enumerate(sorted(models, key=lambda model: len(model.options)), 1):
            maps: list[AxisMaps] = []

            def receive(
                values: Ids, model: DigitModel = model, maps: list[AxisMaps] = maps
            ) -> bool:
                solution = model.axis_maps(values)
                if self._joint.met(solution) and not self._holds(solution):
                    return False
                maps.append(solution)
                report("search", count + len(maps))  # noqa: B023 - called before it changes
                return True

            status = effort.enumerate(model.build(), receive, limits, len(models) - n)
            components[model.axes] = Component(model.axes, tuple(maps), status is Status.OPTIMAL)
            count += len(maps)
            if not maps:
                return effort.result(self.problem, ()).without(roles)
        space = EmbeddingSpace(self.problem, tuple(components[model.axes] for model in models))
        within = space if limits.solutions is None else space[: limits.solutions]
        return effort.result(self.problem, within).without(roles)

    def _holds(self, maps: AxisMaps) -> bool:
        """Every constraint's own judgement of a component's digits, the other instruction axes at
        their first element: what several digits do together to one index.
        """
        unmapped = [a.name for a in self.problem.instruction.axes if a.name not in maps.extents]
        rest = AxisMaps(dict.fromkeys(unmapped, 1), dict.fromkeys(unmapped, ()), {})
        embedding = combine(self.problem, [maps, rest])
        groups = tuple(sorted(maps.flattened.items()))
        if groups not in self._flattened:
            self._flattened[groups] = flattened_problem(self.problem, maps.flattened)
        problem = self._flattened[groups]
        node_map = expand(problem, embedding)
        return node_map is not None and all(
            constraint.holds(problem, node_map) for constraint in self.constraints.constraints
        )

    def _posted(self, axes: tuple[str, ...], options: list[DigitOption]) -> DigitModel:
        model = DigitModel(self.problem, options, axes)
        for constraint in self.constraints.constraints:
            constraint.post_digits(model)
        return model
