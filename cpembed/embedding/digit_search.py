"""Search of the digit model: the problems that it takes, its components, checks on nodes.

Instruction axes that no constraint couples have solutions of their own, which combine freely: the
embeddings are the product. Most problems fall apart like this. Where several digits move one index
together (windows, two axes of one role in a sum), the model is a relaxation: its solutions are
expanded to nodes, and those that a constraint rejects are left out.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from cpembed.embedding.commute import Pairing, orders_left_out
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.constraints.isomorphism import AllDifferent
from cpembed.embedding.constraints.memory_access import LinearAccess
from cpembed.embedding.cpsat import (
    SearchControl,
    SearchLimits,
    SearchStatistics,
    Status,
    enumerate_solutions,
)
from cpembed.embedding.digit_model import AxisMaps, DigitModel, DigitOption, combine
from cpembed.embedding.domains import allowed_digits
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import candidate_groups, flattened_problem, members_of
from cpembed.embedding.model_writer import CompiledModel, Ids
from cpembed.embedding.node_map import expand
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.result import (
    Component,
    EmbeddingSpace,
    Formulation,
    OrderEffort,
    SearchEffort,
    SearchResult,
    Seconds,
)
from cpembed.embedding.roles import every_axis_has_a_role
from cpembed.errors import InvariantError
from cpembed.steps import PhaseProgress as Progress

_OUTPUTS_FIRST = "outputs_first"
"""Name of the digit model's only decision order."""


def digit_model_obstacle(problem: EmbeddingProblem, constraints: ConstraintSet) -> str | None:
    """Return the reason why embeddings are not exactly choices of digits; None where they are.

    They are for boxes at a fixed origin, of an instruction whose indices are affine.
    """
    for operand in problem.operand_axes:
        access = problem.instruction.computation.access(operand)
        if not all(index.is_affine for index in access.index):
            return f"an index of {operand} is no sum of axes"
    needed = ("hyper_rectangle", "fixed_origin", "dataflow")
    missing = [name for name in needed if constraints.get(name) is None]
    return f"the set lacks {', '.join(missing)}" if missing else None


def unfused_groups(problem: EmbeddingProblem, constraints: ConstraintSet) -> tuple[str, ...]:
    """Describe the embeddings with fused axes, which the scalar model does not search."""
    fused = constraints.flatten
    if _lacks_a_role(problem, constraints):
        return ()
    if not candidate_groups(problem.workload, fused.max_axes, fused.min_extent):
        return ()
    reason = digit_model_obstacle(problem, constraints) or "the scalar model was asked for"
    return (f"fused axes: {reason}",)


def _lacks_a_role(problem: EmbeddingProblem, constraints: ConstraintSet) -> bool:
    """Return True if nothing can feed an instruction axis, fused or not."""
    deciding = ("hyper_rectangle", "dataflow", "all_different")
    if any(constraints.get(name) is None for name in deciding):
        return False
    affine = all(i.is_affine for pair in problem.pairs for i in pair.workload.index)
    # Members of a fused axis index the same operands, so that it has their role.
    return affine and not every_axis_has_a_role(
        problem.workload, problem.instruction, problem.pairs
    )


def check_embedding(
    problem: EmbeddingProblem, constraints: ConstraintSet, embedding: Embedding
) -> None:
    """Expand axis maps to nodes and have every constraint judge them.

    Gaps of fused axes are left to the proof of the derived program.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem in any assignment of roles, without fused axes.
    constraints : ConstraintSet
        Set under which the embedding was found.
    embedding : Embedding
        Axis maps to check.

    Raises
    ------
    InvariantError
        If a constraint rejects the embedding: a defect of the digit model.
    """
    if dict(problem.roles) != dict(embedding.operands):
        pairing = Pairing(problem.original, problem.instruction)
        problem = pairing.with_roles(embedding.operands)
    problem = flattened_problem(problem, embedding.flattened)
    # The constraint `dataflow` makes the same comparisons: they are not made twice.
    node_map = expand(problem, embedding, checks=constraints.get("dataflow") is None)
    if node_map is None:
        raise InvariantError(f"axis maps {embedding.to_json()} violate the dataflow")
    constraints.check(problem, node_map)


# -- digits that are judged together --------------------------------------------------------------


def joint_digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> str | None:
    """Return the reason why digits that exclude each other nowhere may still be no embedding.

    None where digits that are allowed always are one. :class:`JointDigits` decides the same for
    the digits of one solution.
    """
    for operand, groups in problem.window_groups.items():
        if any(len(group) > 1 for group in groups.values()):
            return f"{operand} of the instruction is read by windows"
    if problem.shared_elements():
        return "an element of the instruction's operands is reached in two ways"
    signatures = {
        axis.name: frozenset(
            pair.instruction.operand
            for pair in problem.pairs
            if any(axis.name in index.iterators for index in pair.workload.index)
        )
        for axis in problem.workload.axes
    }
    if any(
        signatures[a] == signatures[b]
        for pair in problem.pairs
        for index in pair.workload.index
        for a, b in itertools.combinations(index.iterators, 2)
    ):
        return "two axes that could feed the same instruction axis meet in one index"
    if constraints.get("hyper_rectangle") == HyperRectangle("operands"):
        return None
    different, linear = constraints.get("all_different"), constraints.get("linear_access")
    if not isinstance(different, AllDifferent):
        return "the set lacks all_different"
    if different.elements == "all":
        return "all elements are to differ, of operands that need not be boxes"
    if constraints.get("dense") or linear == LinearAccess("in_place"):
        return "what dense and linear_access ask of operands that need not be boxes"
    stored = [index for pair in problem.store_pairs for index in pair.workload.index]
    if not all(index.single_iterator is not None or not index.terms for index in stored):
        return "an output of the workload is written at a sum of axes"
    return None


class JointDigits:
    """Test for choices of digits that move an index together, and so must be judged on nodes.

    The index may be one of the instruction (a window) or of the workload (a sum of axes).
    """

    def __init__(self, problem: EmbeddingProblem, constraints: ConstraintSet) -> None:
        self._ports = bool(problem.shared_elements())
        self._windows = {
            axis
            for groups in problem.window_groups.values()
            for axis, group in groups.items()
            if len(group) > 1
        }
        self._meeting: dict[str, set[str]] = {}
        for indices in problem.workload_indices.values():
            for index in indices:
                for axis in index.iterators if len(index.iterators) > 1 else ():
                    self._meeting.setdefault(axis, set()).update(index.iterators)
        operands = constraints.get("hyper_rectangle") == HyperRectangle("operands")
        # A tile of a fused axis may move an operand along several dimensions, which these two
        # constraints see on nodes only.
        self._fused = operands or constraints.get("dense") is not None

    def met(self, maps: AxisMaps) -> bool:
        """Return True if the digits are to be judged together."""
        if self._ports or any(maps.digits[axis] for axis in self._windows & maps.digits.keys()):
            return True
        if self._fused and maps.flattened:
            return True
        members = [
            member
            for digits in maps.digits.values()
            for digit in digits
            for member in members_of(maps.flattened, digit.axis)
        ]
        return any(
            len(self._meeting[member].intersection(members)) > 1
            for member in members
            if member in self._meeting
        )


# -- search ---------------------------------------------------------------------------------------


class _Effort:
    """The solver's work over the digit models of one search, one model per component."""

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
        """Enumerate a component's solutions; ``remaining`` components share the time equally."""
        started = time.perf_counter()
        left = limits.after(started - self.started).share(remaining + 1)
        # The models are of Booleans: neither presolve nor a linear relaxation earns its cost.
        control = SearchControl(presolve=False, relaxation=False)
        status, _, statistics = enumerate_solutions(model, receive, left, control)
        self.statuses.append(status)
        self.statistics = self.statistics.plus(statistics)
        self.solving += time.perf_counter() - started
        return status

    def result(self, problem: EmbeddingProblem, embeddings: Sequence[Embedding]) -> SearchResult:
        status = self._status()
        complete = status in (Status.OPTIMAL, Status.INFEASIBLE)
        order = OrderEffort(_OUTPUTS_FIRST, status, self.statistics)
        return SearchResult(
            status=status,
            complete=complete,
            embeddings=embeddings,
            irregular=(),
            seconds=Seconds(time.perf_counter() - self.started - self.solving, self.solving),
            effort=SearchEffort(Formulation.DIGITS, order.name if complete else None, (order,)),
            problem=problem,
        )

    def _status(self) -> Status:
        # An embedding has a solution of every component: one without any settles the search.
        if Status.INFEASIBLE in self.statuses:
            return Status.INFEASIBLE
        if all(status is Status.OPTIMAL for status in self.statuses):
            return Status.OPTIMAL
        return Status.UNKNOWN if Status.UNKNOWN in self.statuses else Status.FEASIBLE


class DigitSearch:
    """A problem's options under a constraint set, by component; it can be searched repeatedly."""

    def __init__(self, problem: EmbeddingProblem, constraints: ConstraintSet) -> None:
        self.problem, self.constraints = problem, constraints
        options = allowed_digits(problem, constraints)
        self._joint = JointDigits(problem, constraints)
        self._flattened: dict[tuple[tuple[str, tuple[str, ...]], ...], EmbeddingProblem] = {}
        # A model of all axes is posted first, only to see which of them the constraints couple.
        all_axes = tuple(axis.name for axis in problem.instruction.axes)
        self._components = [
            (axes, [option for option in options if option.instruction_axis in axes])
            for axes in self._posted(all_axes, options).components()
        ]

    def models(self) -> list[DigitModel]:
        """Return a model for each set of instruction axes that no constraint couples to others."""
        return [self._posted(axes, options) for axes, options in self._components]

    def run(
        self,
        limits: SearchLimits,
        report: Progress,
        bound: Callable[[list[DigitModel]], None] = lambda models: None,
    ) -> SearchResult:
        """Enumerate the solutions; ``bound`` may post more to the components' models."""
        effort = _Effort()
        roles = orders_left_out(self.problem.original, self.constraints.commutes)
        models = self.models()
        bound(models)
        components: dict[tuple[str, ...], Component] = {}
        count = 0
        # Components with the fewest options first: what they leave of the time is for the others.
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
                return effort.result(self.problem, ()).with_unsearched(roles)
        space = EmbeddingSpace(self.problem, tuple(components[model.axes] for model in models))
        # Each component was cut at the limit, so that their product can have more.
        within = space if limits.solutions is None else space[: limits.solutions]
        return effort.result(self.problem, within).with_unsearched(roles)

    def _holds(self, maps: AxisMaps) -> bool:
        """Return True if every constraint accepts a component's digits, expanded to nodes."""
        # The other instruction axes stay at their first element, where they exclude nothing.
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
