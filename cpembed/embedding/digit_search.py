"""Search of the digit model, component by component.

Instruction axes that no constraint couples have solutions of their own, which combine freely: the
embeddings are the product. Most problems fall apart like this. Where several digits move one index
together (windows, two axes of one role in a sum), the model is a relaxation: its solutions are
expanded to nodes, and those that a constraint refuses are left out.
"""

from __future__ import annotations

from collections.abc import Callable

from cpembed.embedding.checks import flattened_problem
from cpembed.embedding.commute import orders_left_out
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.digit_model import AxisMaps, DigitModel, DigitOption, combine
from cpembed.embedding.node_map import expand
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.proto_writer import Ids
from cpembed.embedding.regular import JointDigits, allowed_digits
from cpembed.embedding.result import Effort, Progress, SearchResult
from cpembed.embedding.space import Component, EmbeddingSpace


class DigitSearch:
    """A problem's options under a constraint set, by component; searched as often as wanted."""

    def __init__(self, problem: EmbeddingProblem, constraints: ConstraintSet) -> None:
        self.problem, self.constraints = problem, constraints
        options = allowed_digits(problem, constraints)
        self._joint = JointDigits(problem, constraints)
        self._flattened: dict[tuple[tuple[str, tuple[str, ...]], ...], EmbeddingProblem] = {}
        whole = tuple(axis.name for axis in problem.instruction.axes)
        self._components = [
            (axes, [option for option in options if option.instruction_axis in axes])
            for axes in self._posted(whole, options).components()
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
        effort = Effort()
        roles = orders_left_out(self.problem.original, self.constraints.exchanges_factors)
        models = self.models()
        bound(models)
        found: dict[tuple[str, ...], Component] = {}
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
            found[model.axes] = Component(model.axes, tuple(maps), status is Status.OPTIMAL)
            count += len(maps)
            if not maps:
                return effort.result(self.problem, ()).without(roles)
        space = EmbeddingSpace(self.problem, tuple(found[model.axes] for model in models))
        within = space if limits.solutions is None else space[: limits.solutions]
        return effort.result(self.problem, within).without(roles)

    def _holds(self, maps: AxisMaps) -> bool:
        """Every constraint's own judgement of a component's digits, the other instruction axes at
        their first element: what several digits do together to one index."""
        others = [a.name for a in self.problem.instruction.axes if a.name not in maps.extents]
        rest = AxisMaps(dict.fromkeys(others, 1), dict.fromkeys(others, ()), {})
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
