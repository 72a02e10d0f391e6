"""What the search for shapes came to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cpembed.exploration.shapes.embedded import Embedded
from cpembed.exploration.shapes.layers import ShapedLayer
from cpembed.exploration.shapes.shape import Shape

if TYPE_CHECKING:
    from cpembed.exploration.shapes.finding import Question


@dataclass(frozen=True)
class LayerRow:
    """A layer with the shape that it takes, and the embedding of that."""

    layer: ShapedLayer
    shape: Shape
    embedded: Embedded

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
class RunnerUp:
    """The next best shapes: those that do not hold all of the best ones."""

    shapes: tuple[Shape, ...]
    executions: int
    proven: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "shapes": [list(shape.extents.values()) for shape in self.shapes],
            "executions": self.executions,
            "proven": self.proven,
        }


@dataclass(frozen=True)
class ShapeResult:
    """The best shapes: ``executions`` in all, each layer times its count; None where nothing was
    found. No set of as many shapes needs fewer than ``bound``."""

    suite: str
    question: Question
    shapes: tuple[Shape, ...]
    executions: int | None
    bound: float
    runner_up: RunnerUp | None
    layers: tuple[LayerRow, ...]
    left_out: tuple[LeftOut, ...]
    compared: int
    not_dominated: int
    seconds: float

    @property
    def proven(self) -> bool:
        return self.executions is not None and self.executions <= self.bound

    @property
    def infeasible(self) -> bool:
        """Whether no shape embeds any layer, or none that is allowed: proven."""
        return self.executions is None and not math.isfinite(self.bound)

    @property
    def why_nothing(self) -> str:
        """One line: why there is no shape."""
        if not self.infeasible:
            return "no shapes were found before the limit: give a longer --timeout"
        if not self.compared:
            return "no shape is within the limits: allow larger tiles or more MACs"
        if self.left_out and not self.not_dominated:
            first = self.left_out[0]
            return f"no shape embeds any layer of {self.suite}: {first.layer.label}: {first.reason}"
        return "no choice of so many shapes embeds all layers: allow more shapes or MACs"

    @property
    def gap(self) -> float | None:
        """By how much of what was found less might be needed."""
        if not self.executions:
            return None
        return max(0.0, 1 - self.bound / self.executions)

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

    def to_json(self) -> dict[str, Any]:
        """The document that ``cpembed shape --json`` prints (``docs/shapes.md``)."""
        question, scope = self.question, self.question.scope
        return {
            "suite": self.suite,
            "constraints": question.constraints.name,
            "macs": scope.macs,
            "shapes": question.count,
            "powers_of_two": scope.powers,
            "smallest": scope.smallest,
            "buffer_bytes": question.buffer_bytes,
            "total_macs": question.total_macs,
            "proven": self.proven,
            "gap": self.gap,
            "executions": self.executions,
            "bound": self.bound if math.isfinite(self.bound) else None,
            "ideal": self.ideal if self.layers else None,
            "utilisation": self.utilisation,
            "best": [self._best_json(shape) for shape in self.shapes],
            "runner_up": None if self.runner_up is None else self.runner_up.to_json(),
            "compared": self.compared,
            "not_dominated": self.not_dominated,
            "layers": [row.to_json() for row in self.layers],
            "left_out": [layer.to_json() for layer in self.left_out],
            "seconds": self.seconds,
        }

    def _best_json(self, shape: Shape) -> dict[str, Any]:
        layers, executions = self.of_shape(shape)
        extents = list(shape.extents.values())
        return {"shape": extents, "macs": shape.macs, "layers": layers, "executions": executions}
