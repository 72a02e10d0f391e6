"""What the search for shapes came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.exploration.shapes.choice import Found
from cpembed.exploration.shapes.embedded import Embedded
from cpembed.exploration.shapes.joint import Copy
from cpembed.exploration.shapes.layers import ShapedLayer
from cpembed.exploration.shapes.question import Question
from cpembed.exploration.shapes.shape import Shape
from cpembed.exploration.shapes.within import Near


@dataclass(frozen=True)
class LayerRow:
    """A layer with the shape that it takes, and the embedding of that. Where layouts are kept
    between layers a row is of those that take the same way: ``layouts`` of the tensors that they
    read, then of the one that they write."""

    layer: ShapedLayer
    shape: Shape
    embedded: Embedded
    layouts: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        found, layer = self.embedded, self.layer
        return {
            "index": layer.index,
            "label": layer.label,
            "count": layer.count,
            "macs": layer.macs,
            "shape": list(self.shape.extents.values()),
            "executions": found.executions,
            "utilisation": found.utilisation,
            "packing_bytes": found.packing_bytes,
            "in_place": list(found.in_place),
            "exchanged": found.exchanged,
            "first_of_ties": found.first,
            "layouts": None if self.layouts is None else list(self.layouts),
            "embedding": {
                "id": found.embedding.identifier(),
                "family": {axis: list(axes) for axis, axes in found.embedding.family.items()},
                **{k: v for k, v in found.embedding.to_json().items() if k != "origin"},
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
    """The best shapes and the next best ones, those that do not hold all of the best, with what
    they cost; empty and None where there are none. No set of as many shapes costs less than
    ``bound``; ``next_proven``: nor, without all of the best, less than the next."""

    best: tuple[Shape, ...]
    cost: float | None
    bound: float
    next_best: tuple[Shape, ...] = ()
    next_cost: float | None = None
    next_proven: bool = False

    @staticmethod
    def of(found: Found, shapes: Sequence[Shape]) -> Sets:
        """Of numbers among the shapes."""
        if not found.sets:
            return Sets((), None, found.bound)
        best = tuple(shapes[n] for n in found.sets[0])
        if len(found.sets) == 1:
            return Sets(best, found.costs[0], found.bound)
        other = tuple(shapes[n] for n in found.sets[1])
        return Sets(best, found.costs[0], found.bound, other, found.costs[1], found.second_proven)


@dataclass(frozen=True)
class ShapedSets:
    """Sets of shapes that cost little more than the best, with what they cost, ascending;
    ``complete``: proven to be all of them."""

    sets: tuple[tuple[tuple[Shape, ...], float], ...]
    complete: bool

    @staticmethod
    def of(near: Near, shapes: Mapping[int, Shape] | Sequence[Shape]) -> ShapedSets:
        """Of numbers among the shapes."""
        sets = [(tuple(shapes[n] for n in chosen), cost) for chosen, cost in near.sets]
        return ShapedSets(tuple(sets), near.complete)


@dataclass(frozen=True)
class Counts:
    """Shapes that were compared, and those that none dominates; where costs are searched, none is
    removed (None), and so many shapes in layers were searched."""

    compared: int
    not_dominated: int | None
    searched: int | None = None


@dataclass(frozen=True)
class ShapeResult:
    """The best shapes for the layers of a suite, and what each layer makes of them.

    ``equal``: where the best is one shape, the others that need as few executions in all.
    ``copies``: between layouts of the tensors of a model, where they are kept between layers.
    ``near``: the sets that cost little more, where they were asked for."""

    suite: str
    question: Question
    sets: Sets
    layers: tuple[LayerRow, ...]
    left_out: tuple[LeftOut, ...]
    counts: Counts
    equal: tuple[Shape, ...]
    seconds: float
    copies: tuple[Copy, ...] | None = None
    near: ShapedSets | None = None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.sets.best

    @property
    def executions(self) -> int | None:
        """Of all layers, each times its count; None where nothing was found."""
        if not self.layers:
            return None
        return sum(row.embedded.executions * row.layer.count for row in self.layers)

    @property
    def packing_bytes(self) -> int:
        """That packing and unpacking move, of all layers, each times its count; or copies between
        layers do."""
        if self.copies is not None:
            return sum(copy.moved_bytes for copy in self.copies)
        return sum(row.embedded.packing_bytes * row.layer.count for row in self.layers)

    @property
    def proven(self) -> bool:
        return self.sets.cost is not None and self.sets.cost <= self.sets.bound

    @property
    def infeasible(self) -> bool:
        """Whether no shape embeds any layer, or none that is allowed: proven."""
        return self.sets.cost is None and not math.isfinite(self.sets.bound)

    @property
    def why_nothing(self) -> str:
        """One line: why there is no shape."""
        if not self.infeasible:
            return "no shapes were found before the limit: give a longer --timeout"
        if not self.counts.compared:
            return "no shape is within the limits: allow larger tiles or more MACs"
        if self.left_out and not self.counts.not_dominated:
            first = self.left_out[0]
            return f"no shape embeds any layer of {self.suite}: {first.layer.label}: {first.reason}"
        return "no choice of so many shapes embeds all layers: allow more shapes or MACs"

    @property
    def gap(self) -> float | None:
        """By how much of what was found less might be needed."""
        if self.sets.cost is None:
            return None
        return max(0.0, 1 - self.sets.bound / self.sets.cost)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all layers, by count."""
        return sum(row.layer.macs * row.layer.count for row in self.layers)

    @property
    def utilisation(self) -> float | None:
        """Useful share of the multiply-accumulates executed."""
        executed = sum(
            row.embedded.executions * row.shape.macs * row.layer.count for row in self.layers
        )
        return self.macs / executed if executed else None

    @property
    def ideal(self) -> int:
        """Executions of a shape of the whole budget that was never idle."""
        return math.ceil(self.macs / self.question.scope.macs)

    def of_shape(self, shape: Shape) -> tuple[int, int]:
        """Layers (by count) and executions of one of the shapes."""
        rows = [row for row in self.layers if row.shape == shape]
        executions = sum(row.embedded.executions * row.layer.count for row in rows)
        return sum(row.layer.count for row in rows), executions

    def in_executions(self, cost: float | None) -> float | None:
        """A cost in executions: with packing, its bytes as executions that are worth as much."""
        return None if cost is None or math.isinf(cost) else cost / self.question.cost.unit

    def to_json(self) -> dict[str, Any]:
        """The document that ``cpembed shape --json`` prints (``docs/shapes.md``)."""
        question, scope, sets = self.question, self.question.scope, self.sets
        return {
            "suite": self.suite,
            "constraints": question.constraints.name,
            "macs": scope.macs,
            "shapes": question.count,
            "powers_of_two": scope.powers,
            "smallest": scope.smallest,
            "bytes_per_execution": question.cost.bytes_per_execution,
            "buffer_bytes": question.buffer_bytes,
            "total_macs": question.total_macs,
            "layouts": question.layouts,
            "proven": self.proven,
            "gap": self.gap,
            "cost": self.in_executions(sets.cost),
            "bound": self.in_executions(sets.bound),
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
