"""The question of ``cpembed shape`` and its answer: shapes, runner-up, each layer's embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.blocks import Displayed
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import WorkloadError
from cpembed.exploration.shapes.cells import ProvenEmbedding, keyed_results
from cpembed.exploration.shapes.choice import (
    Budget,
    Costs,
    NearSets,
    SetChoice,
    best_one,
    best_sets,
    best_two,
    cost_limit,
    sets_within,
)
from cpembed.exploration.shapes.executions import LayerExecutions, layer_executions
from cpembed.exploration.shapes.layout_model import Copy
from cpembed.exploration.shapes.shape import (
    Cost,
    LayerSet,
    Scope,
    Shape,
    ShapedLayer,
    target_text,
    template_of,
    tile_bytes,
)
from cpembed.hw.instruction import HardwareSpec
from cpembed.runtime.cluster import Workers
from cpembed.steps import Progress
from cpembed.time_limit import Clock

DEFAULT_SET = "in_place_padded"
"""Name of the constraint set where none is named."""


@dataclass(frozen=True)
class Question:
    """Parameters of a search for the best shapes."""

    scope: Scope
    """The shapes that are compared."""
    count: int
    """Maximum number of shapes in a set."""
    constraints: ConstraintSet
    """The set under which layers are embedded."""
    cost: Cost = field(default_factory=Cost)
    """The measure of a shape in a layer."""
    buffer_bytes: int | None = None
    """Maximum number of bytes of the tiles of a shape's operands."""
    total_macs: int | None = None
    """Maximum number of multiply-accumulates of all shapes of a set."""
    timeout: float | None = None
    """Time limit in seconds."""
    layouts: bool = False
    """Tensors of a model stay packed between its layers: what counts of packing is copying them
    from one layout to another, and constants are packed ahead of time."""
    within: float | None = None
    """All sets that cost at most so many percent more than the best are listed."""
    dtypes: tuple[str, ...] | None = None
    """Element types of A, B and C; None for int8, int8 and int32, or those of a machine."""

    @property
    def spec(self) -> HardwareSpec:
        """The element types and memories of all shapes."""
        if self.cost.machine is not None:
            return self.cost.machine.spec
        return template_of(self.dtypes)

    def target_text(self, shape: Shape) -> str:
        """Return a shape's target as TOML."""
        if self.cost.machine is not None:
            return self.cost.machine.text(shape)
        return target_text(shape, self.constraints.name, self.spec)

    def admitted(self) -> NDArray[np.int64]:
        """Return the columns of the shapes that the buffer and the total of a set admit."""
        shapes = self.scope.shapes
        admitted = np.ones(len(shapes), np.bool_)
        if self.buffer_bytes is not None:
            admitted &= tile_bytes(shapes, self.spec) <= self.buffer_bytes
        if self.total_macs is not None:
            # A larger shape is in no set of the total.
            admitted &= shapes.prod(axis=1) <= self.total_macs
        return np.flatnonzero(admitted)

    def choose(self, costs: Costs, macs: NDArray[np.int64], clock: Clock) -> SetChoice:
        """Return the best set and the runner-up.

        Parameters
        ----------
        costs
            A row per layer, weighted, and a column per shape.
        macs
            The multiply-accumulates of each shape.
        clock
            The time limit.
        """
        # Pairs can be exhausted; more shapes, or pairs that share a budget, take CP-SAT.
        if self.total_macs is None and self.count <= 2:
            return best_one(costs) if self.count == 1 else best_two(costs)
        return best_sets(costs, self.count, clock.left(), self.budget(macs.tolist()))

    def near(self, costs: Costs, macs: NDArray[np.int64], best: float, clock: Clock) -> NearSets:
        """Return the sets that cost little more than the best.

        Parameters
        ----------
        costs, macs, clock
            As in :meth:`choose`.
        best
            The cost of the best set.
        """
        limit = cost_limit(best, self.within or 0.0)
        return sets_within(costs, self.count, limit, clock, self.budget(macs.tolist()))

    def budget(self, macs: Sequence[int]) -> Budget | None:
        """Return the limit on the multiply-accumulates of a set, by those of each column."""
        return None if self.total_macs is None else Budget(macs, self.total_macs)


def tabulate(
    layers: LayerSet, question: Question, workers: Workers, report: Progress
) -> list[LayerExecutions]:
    """Return the executions of all shapes in each distinct computation.

    Parameters
    ----------
    layers
        The layers.
    question
        The shapes and the constraint set.
    workers
        The workers that compute the tables.
    report
        Called after each table.
    """
    calls = {
        n: (
            (workload, question.constraints, question.scope, question.spec, question.cost.is_time),
            f"executions of {workload.name}",
        )
        for n, workload in enumerate(layers.workloads)
    }
    tables: dict[int, LayerExecutions] = {}
    # Workers end in any order.
    for number, table in keyed_results(workers, layer_executions, calls):
        tables[number] = table
        report("tables", len(tables), len(calls))
    return [tables[number] for number in calls]


def weighted(
    layers: LayerSet, tables: Sequence[LayerExecutions], computations: Sequence[int]
) -> Costs:
    """Return executions times counts, as costs to choose shapes by.

    Parameters
    ----------
    layers, tables
        The layers, and the table of each distinct computation.
    computations
        The computations that get a row.
    """
    if not computations:
        raise WorkloadError("no layer to choose a shape for")
    return np.stack([tables[n].executions * layers.weight(n) for n in computations])


# ------------------------------------------------------------------------------ the answer


@dataclass(frozen=True)
class LayerRow:
    """A layer with its best shape and the embedding.

    Where layouts are kept between layers, a row stands for all layers with the same embedding and
    ``layouts``, which are those of the tensors that they read, then of the one that they write.
    """

    layer: ShapedLayer
    shape: Shape
    embedded: ProvenEmbedding
    layouts: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        embedded, layer = self.embedded, self.layer
        return {
            "index": layer.index,
            "label": layer.label,
            "count": layer.count,
            "macs": layer.macs,
            "shape": list(self.shape.extents.values()),
            "executions": embedded.executions,
            "utilisation": embedded.utilisation,
            "packing_bytes": embedded.packing_bytes,
            "in_place": list(embedded.in_place),
            # The document keeps its first words for what the package now calls commuted factors,
            # and for the first rank among equal executions.
            "exchanged": embedded.commuted,
            "first_of_ties": embedded.first_ranked,
            "layouts": None if self.layouts is None else list(self.layouts),
            "us": None if embedded.estimate is None else embedded.estimate.total_us,
            "estimate": None if embedded.estimate is None else embedded.estimate.to_json(),
            "embedding": {
                "id": embedded.embedding.identifier(),
                "family": {axis: list(axes) for axis, axes in embedded.embedding.family.items()},
                **{k: v for k, v in embedded.embedding.to_json().items() if k != "origin"},
            },
        }


@dataclass(frozen=True)
class LeftOut:
    """A layer that no shape embeds."""

    layer: ShapedLayer
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"index": self.layer.index, "label": self.layer.label, "reason": self.reason}


@dataclass(frozen=True)
class Sets:
    """The best shapes and the runner-up, which does not hold all of the best, with their costs.

    They are empty and None where there are none. No set of as many shapes costs less than
    ``bound``; ``next_proven``: nor, without all of the best, less than the runner-up.
    """

    best: tuple[Shape, ...]
    cost: float | None
    bound: float
    next_best: tuple[Shape, ...] = ()
    next_cost: float | None = None
    next_proven: bool = False

    @staticmethod
    def from_choice(choice: SetChoice, shapes: Sequence[Shape]) -> Sets:
        """Return the sets of a choice among the columns of shapes."""
        sets = [tuple(shapes[n] for n in columns) for columns in choice.sets]
        costs = choice.costs
        if not sets:
            return Sets((), None, choice.bound)
        if len(sets) == 1:
            return Sets(sets[0], costs[0], choice.bound)
        proven = choice.runner_up_proven
        return Sets(
            sets[0], costs[0], choice.bound, sets[1], next_cost=costs[1], next_proven=proven
        )


@dataclass(frozen=True)
class NearShapes:
    """Sets of shapes that cost little more than the best, with their costs, ascending.

    ``complete``: they are proven to be all of them.
    """

    sets: tuple[tuple[tuple[Shape, ...], float], ...]
    complete: bool

    @staticmethod
    def from_columns(near: NearSets, shapes: Mapping[int, Shape] | Sequence[Shape]) -> NearShapes:
        """Return the shapes of sets of columns."""
        sets = [(tuple(shapes[n] for n in columns), cost) for columns, cost in near.sets]
        return NearShapes(tuple(sets), near.complete)


@dataclass(frozen=True)
class Counts:
    """Numbers of the shapes that were compared, of the undominated ones, and of searched cells.

    ``not_dominated`` is None where costs are searched, as no shape is removed then.
    """

    compared: int
    not_dominated: int | None
    searched: int | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class ShapeResult(Displayed):
    """The best shapes for the layers of a suite, and each layer's embedding.

    Where the best set is one shape, ``equal`` are the others that need as few executions. Where
    layouts are kept between layers, ``copies`` are those between layouts of a model's tensors.
    ``near`` are the sets that cost little more than the best, if the question lists them.
    """

    suite: str
    question: Question
    sets: Sets
    layers: tuple[LayerRow, ...]
    left_out: tuple[LeftOut, ...]
    counts: Counts
    seconds: float
    equal: tuple[Shape, ...] = ()
    copies: tuple[Copy, ...] | None = None
    near: NearShapes | None = None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The best shapes; empty where none were found."""
        return self.sets.best

    @property
    def executions(self) -> int | None:
        """Executions of all layers, each times its count; None where no shapes were found."""
        if not self.layers:
            return None
        return sum(row.embedded.executions * row.layer.count for row in self.layers)

    @property
    def packing_bytes(self) -> int:
        """Bytes that packing and unpacking move in all layers, each times its count.

        Where layouts are kept between layers, they are the bytes of the copies between layouts.
        """
        # With layouts, packing of single layers is none: tensors stay packed between them.
        if self.copies is not None:
            return sum(copy.moved_bytes for copy in self.copies)
        return sum(row.embedded.packing_bytes * row.layer.count for row in self.layers)

    @property
    def proven(self) -> bool:
        """True if the shapes are proven to be the best."""
        return self.sets.cost is not None and self.sets.cost <= self.sets.bound

    @property
    def infeasible(self) -> bool:
        """True if it is proven that no set of shapes serves the layers."""
        return self.sets.cost is None and not math.isfinite(self.sets.bound)

    @property
    def why_nothing(self) -> str:
        """One line that says why there is no shape."""
        if not self.infeasible:
            return "no shapes were found before the limit: give a longer --timeout"
        if not self.counts.compared:
            return "no shape is within the limits: allow larger tiles or more MACs"
        # None undominated: no layer is left whose table a shape could be chosen from.
        if self.left_out and not self.counts.not_dominated:
            first = self.left_out[0]
            return f"no shape embeds any layer of {self.suite}: {first.layer.label}: {first.reason}"
        return "no choice of so many shapes embeds all layers: allow more shapes or MACs"

    @property
    def gap(self) -> float | None:
        """Fraction of the cost by which a better set may still be cheaper."""
        if self.sets.cost is None:
            return None
        return max(0.0, 1 - self.sets.bound / self.sets.cost)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all layers, each times its count."""
        return sum(row.layer.macs * row.layer.count for row in self.layers)

    @property
    def utilisation(self) -> float | None:
        """Fraction of the executed multiply-accumulates that are useful."""
        executed = sum(
            row.embedded.executions * row.shape.macs * row.layer.count for row in self.layers
        )
        return self.macs / executed if executed else None

    @property
    def ideal(self) -> int:
        """Executions of a shape of the whole budget, if it were never idle."""
        return math.ceil(self.macs / self.question.scope.macs)

    def of_shape(self, shape: Shape) -> tuple[int, int]:
        """Return the number of layers (each times its count) and the executions of a shape."""
        rows = [row for row in self.layers if row.shape == shape]
        executions = sum(row.embedded.executions * row.layer.count for row in rows)
        return sum(row.layer.count for row in rows), executions

    @property
    def us(self) -> float | None:
        """Estimated time of all layers, each times its count; None where times do not count."""
        if not self.layers or not self.question.cost.is_time:
            return None
        return sum(
            row.embedded.estimate.total_us * row.layer.count
            for row in self.layers
            if row.embedded.estimate is not None
        )

    def in_executions(self, cost: float | None) -> float | None:
        """Return a cost in executions, or in microseconds where times are compared.

        Bytes of packing count as the executions they are worth.
        """
        return None if cost is None or math.isinf(cost) else cost / self.question.cost.unit

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``cpembed shape --json`` (``docs/shapes.md``)."""
        question, scope, sets = self.question, self.question.scope, self.sets
        return {
            "suite": self.suite,
            "constraints": question.constraints.name,
            "macs": scope.macs,
            "shapes": question.count,
            "powers_of_two": scope.powers,
            "smallest": scope.smallest,
            "multiples": list(scope.multiples),
            "dtypes": [
                self.question.spec.instruction.dtypes[operand.name][0]
                for operand in self.question.spec.instruction.computation.operands
            ],
            "machine": None if question.cost.machine is None else question.cost.machine.name,
            "unit": "us" if question.cost.is_time else "executions",
            "bytes_per_execution": question.cost.bytes_per_execution,
            "buffer_bytes": question.buffer_bytes,
            "total_macs": question.total_macs,
            "layouts": question.layouts,
            "proven": self.proven,
            "gap": self.gap,
            "cost": self.in_executions(sets.cost),
            "bound": self.in_executions(sets.bound),
            "us": self.us,
            "executions": self.executions,
            "packing_bytes": self.packing_bytes if self.layers else None,
            "ideal": self.ideal if self.layers else None,
            "utilisation": self.utilisation,
            "best": [self._best_json(shape) for shape in self.shapes],
            "equal": [list(shape.extents.values()) for shape in self.equal],
            "runner_up": self._next_json(),
            "within": self._near_json(),
            "compared": self.counts.compared,
            "not_dominated": self.counts.not_dominated,
            "searched": self.counts.searched,
            "layers": [row.to_json() for row in self.layers],
            "left_out": [layer.to_json() for layer in self.left_out],
            "copies": None if self.copies is None else [copy.to_json() for copy in self.copies],
            "seconds": self.seconds,
        }

    def _next_json(self) -> dict[str, Any] | None:
        if not self.sets.next_best:
            return None
        return {
            "shapes": [list(shape.extents.values()) for shape in self.sets.next_best],
            "cost": self.in_executions(self.sets.next_cost),
            "proven": self.sets.next_proven,
        }

    def _near_json(self) -> dict[str, Any] | None:
        if self.near is None or not self.sets.cost:
            return None
        return {
            "percent": self.question.within,
            "complete": self.near.complete,
            "sets": [
                {
                    "shapes": [list(shape.extents.values()) for shape in shapes],
                    "cost": self.in_executions(cost),
                    "more": cost / self.sets.cost - 1,
                }
                for shapes, cost in self.near.sets
            ],
        }

    def _best_json(self, shape: Shape) -> dict[str, Any]:
        layers, executions = self.of_shape(shape)
        extents = list(shape.extents.values())
        return {"shape": extents, "macs": shape.macs, "layers": layers, "executions": executions}
