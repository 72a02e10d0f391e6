"""Choice of the sizes at which a family of graphs gets instances.

The cost of a graph is roughly its multiplications and bytes, which are polynomials of at most the
second degree in each size, so that a few graphs tell it at every size. Plans of instances correct
it. Sizes are added where a run is slowest compared with an instance of its own size, until nothing
is slower than allowed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.values import storage_type
from cpembed.graph.family import Family, Sizes
from cpembed.graph.graph import Graph
from cpembed.graph.instances import Mode, Openness
from cpembed.graph.kinds import Product, Reshape, Transpose
from cpembed.graph.loop import Loop, nested_operators
from cpembed.ir.dtypes import size_bytes

LOSS = 1.15
"""Default of the largest allowed time of a run, relative to a library for its size."""
MOST_INSTANCES = 24
"""Default of the maximum number of instances."""

# Rough rates of one core: multiplications and bytes in a microsecond, and microseconds of a step.
_MACS_PER_US, _BYTES_PER_US, _STEP_US = 20e3, 10e3, 0.3

# Maximum number of sizes of a symbol at which the loss is looked at; between them it hardly varies.
_POINTS = 40

# Number of allowed losses that are tried, and how much more each one allows.
_ATTEMPTS, _RELAXATION = 20, 1.3

# Share of the allowed loss that an added instance uses up at the size for which it is added.
_SHARE = 0.8


def rough_us(graph: Graph, *, in_loops: bool = False) -> float:
    """Estimate the microseconds of a graph from its multiplications and bytes alone.

    Parameters
    ----------
    graph : Graph
    in_loops : bool, default False
        True for the part of them that operators inside loops take.
    """
    total = 0.0
    for operator, inner, times in nested_operators(graph):
        if isinstance(operator.kind, Reshape | Transpose | Loop) or (in_loops and inner is graph):
            continue
        names = (*operator.inputs, *operator.outputs)
        kinds = [inner.types[name] for name in names]
        moved = sum(kind.elements * size_bytes(storage_type(kind.dtype)) for kind in kinds)
        total += times * (_STEP_US + moved / _BYTES_PER_US)
        if isinstance(operator.kind, Product):
            total += times * operator.kind.computation.macs / _MACS_PER_US
    return total


@dataclass
class CostModel:
    """Predicted microseconds of a family at any sizes.

    Attributes
    ----------
    planned : dict from Sizes to float
        Predictions of plans.
    """

    family: Family
    planned: dict[Sizes, float] = field(default_factory=dict["Sizes", float])
    _rough: Callable[[Sizes], float] | None = None
    _in_loops: Callable[[Sizes], float] | None = None
    _estimates: dict[Sizes, float] = field(default_factory=dict["Sizes", float])

    def rough(self, sizes: Sizes) -> float:
        """Return the rough estimate, interpolated by its polynomial."""
        if self._rough is None:
            self._rough = _interpolated(self.family, rough_us)
        return self._rough(sizes)

    @cached_property
    def stepped(self) -> tuple[int, ...]:
        """Places of the symbols along which loops run, whose steps a run executes in part."""
        family = self.family
        steps = _steps(family.graph(family.largest))
        places: list[int] = []
        for place, low in enumerate(family.least):
            at = tuple(low if k == place else n for k, n in enumerate(family.largest))
            if steps and _steps(family.graph(at)) != steps:
                places.append(place)
        return tuple(places)

    def run_us(self, instance: Sizes, sizes: Sizes) -> float:
        """Return the microseconds of an instance that computes these sizes, perhaps smaller ones.

        Its loops execute fewer steps then; all else takes as long as at the instance's sizes.
        """
        total = self.us(instance)
        rest = math.prod(min(1.0, sizes[k] / instance[k]) for k in self.stepped)
        if rest == 1.0:
            return total
        if self._in_loops is None:
            self._in_loops = _interpolated(self.family, partial(rough_us, in_loops=True))
        share = min(1.0, self._in_loops(instance) / self.rough(instance))
        return total * (1 - share * (1 - rest))

    def us(self, sizes: Sizes) -> float:
        """Return the rough estimate, scaled as that of the plans near by."""
        if sizes in self.planned:
            return self.planned[sizes]
        if sizes not in self._estimates:
            self._estimates[sizes] = self._scaled(sizes)
        return self._estimates[sizes]

    def add(self, sizes: Sizes, planned_us: float) -> None:
        """Add the prediction of a plan, infinite for portable code, which has none."""
        self.planned[sizes] = planned_us if math.isfinite(planned_us) else self.rough(sizes)
        self._estimates.clear()

    def _scaled(self, sizes: Sizes) -> float:
        rough = self.rough(sizes)
        weights: list[tuple[float, float]] = []
        for at, planned in self.planned.items():
            distance = math.dist(*([math.log(n) for n in place] for place in (at, sizes)))
            weights.append((1 / (distance + 0.1) ** 2, math.log(planned / self.rough(at))))
        if not weights:
            return rough
        mean = sum(w * value for w, value in weights) / sum(w for w, _ in weights)
        return rough * math.exp(mean)


def _steps(graph: Graph) -> list[int | None]:
    """Return the numbers of steps of the loops of a graph, inner ones too."""
    return [o.kind.steps for o, _, _ in nested_operators(graph) if isinstance(o.kind, Loop)]


def _interpolated(family: Family, estimated: Callable[[Graph], float]) -> Callable[[Sizes], float]:
    """Return the polynomial through estimates at three sizes of each symbol."""
    nodes = [sorted({r[0], r[len(r) // 2], r[-1]}) for r in family.ranges.values()]
    values = {at: estimated(family.graph(at)) for at in itertools.product(*nodes)}

    def estimate(sizes: Sizes) -> float:
        weights = [
            {node: math.prod((x - m) / (node - m) for m in places if m != node) for node in places}
            for x, places in zip(sizes, nodes, strict=True)
        ]
        total = sum(
            math.prod(w[n] for w, n in zip(weights, at, strict=True)) * value
            for at, value in values.items()
        )
        return max(total, _STEP_US)

    return estimate


@dataclass(frozen=True)
class Loss:
    """Largest and mean time of runs, relative to instances of their own sizes, and where."""

    largest: float
    mean: float
    sizes: Sizes


@dataclass(frozen=True)
class SizeChoice:
    """Search for the sizes of instances.

    Attributes
    ----------
    family, facts : Family, Openness
    allowed : float
        Largest loss that needs no further instance.
    most : int
        Maximum number of instances beyond those without which some size could not be run.
    """

    family: Family
    facts: Openness
    allowed: float = LOSS
    most: int = MOST_INSTANCES

    def modes(self) -> list[Mode]:
        """Return the modes in the order of the symbols."""
        return [self.facts.modes[symbol] for symbol in self.family.symbols]

    def necessary(self) -> list[Sizes]:
        """Return the sizes without which some size could not be run."""
        choices: list[list[int]] = []
        for place, (symbol, mode) in enumerate(zip(self.family.symbols, self.modes(), strict=True)):
            sizes = self.family.ranges[symbol]
            regular = self.facts.regular[place]
            if mode is Mode.EXACT:
                choices.append([*sizes])
            else:
                choices.append([sizes[-1], *(n for n in sizes if n < regular)])
        return list(itertools.product(*choices))

    def covers(self, at: Sizes, sizes: Sizes) -> bool:
        """True if an instance at ``at`` may be a part of runs of some sizes."""
        for k, mode in enumerate(self.modes()):
            regular = self.facts.regular[k]
            if mode is Mode.EXACT or at[k] < regular or sizes[k] < regular:
                if at[k] != sizes[k]:
                    return False
            elif mode is Mode.PADDED and at[k] < sizes[k]:
                return False
        return True

    def points(self) -> list[list[int]]:
        """Return the sizes of each symbol at which losses are looked at."""
        points: list[list[int]] = []
        for sizes in self.family.ranges.values():
            low, high = sizes[0], sizes[-1]
            ratio = (high / low) ** (1 / _POINTS)
            grown = (round(low * ratio**k) for k in range(_POINTS + 1))
            points.append(
                [*sizes] if len(sizes) <= _POINTS else sorted({*grown, *sizes[:4], low, high})
            )
        return points

    @property
    def split(self) -> int | None:
        """Place of the symbol along which runs are divided, if there is one."""
        modes = self.modes()
        return modes.index(Mode.SPLIT) if Mode.SPLIT in modes else None

    def loss(self, instances: Sequence[Sizes], model: CostModel) -> Loss:
        """Return the loss of some instances over all points."""
        points, split = self.points(), self.split
        rows = points[split] if split is not None else [1]
        unsplit = [*itertools.product(*([0] if k == split else v for k, v in enumerate(points)))]

        def at(row: int, sizes: Sizes) -> Sizes:
            return tuple(row if k == split else n for k, n in enumerate(sizes))

        runs = self._runs(instances, unsplit, max(rows), model)
        single = np.array([[model.us(at(row, sizes)) for sizes in unsplit] for row in rows])
        losses = runs[rows] / single
        place = np.unravel_index(int(losses.argmax()), losses.shape)
        worst = at(rows[place[0]], unsplit[place[1]])
        return Loss(float(losses.max()), float(losses.mean()), worst)

    def _runs(
        self, instances: Sequence[Sizes], unsplit: Sequence[Sizes], rows: int, model: CostModel
    ) -> NDArray[np.float64]:
        """Return the cost of the best run of each number of rows, at some sizes of the rest."""
        split = self.split
        places = [k for k, mode in enumerate(self.modes()) if mode is Mode.PADDED]
        if any(k in places for k in model.stepped):
            costs = np.array(
                [
                    [model.run_us(at, _with(at, sizes, places)) for sizes in unsplit]
                    for at in instances
                ]
            )
        else:
            costs = np.array([[model.us(at)] for at in instances])
        counts = np.array([1 if split is None else at[split] for at in instances])

        def fits(at: Sizes, sizes: Sizes) -> bool:
            row = 0 if split is None else at[split]
            return self.covers(at, tuple(row if k == split else n for k, n in enumerate(sizes)))

        covered = np.array([[fits(at, sizes) for sizes in unsplit] for at in instances])
        charged = np.where(covered, costs, math.inf)
        regular = 0 if split is None else self.facts.regular[split]
        parts = np.where((counts >= regular)[:, None], charged, math.inf)
        best = np.full((rows + 1, len(unsplit)), math.inf)
        best[0] = 0.0
        for row in range(1, rows + 1):
            best[row] = (parts + best[np.maximum(row - counts, 0)]).min(axis=0)
        # Fewer rows have graphs of their own.
        for row in range(1, min(regular, rows + 1)):
            best[row] = charged[counts == row].min(axis=0, initial=math.inf)
        return best

    def grown(self, sizes: Sizes, allowed: float, model: CostModel) -> Sizes:
        """Return larger sizes of padded symbols that cost little more than these."""
        added = sizes
        limit = model.us(sizes) * (1 + _SHARE * (allowed - 1))
        for k, mode in enumerate(self.modes()):
            if mode is not Mode.PADDED or sizes[k] < self.facts.regular[k]:
                continue
            for size in self.points()[k]:
                larger = (*sizes[:k], max(size, sizes[k]), *sizes[k + 1 :])
                if model.run_us(larger, added) <= limit:
                    sizes = larger
        return sizes

    def extended(self, instances: Sequence[Sizes], model: CostModel) -> list[Sizes]:
        """Return instances with further ones, as many as it takes for the loss to be allowed.

        Where these were too many, the least loss that fewer allow is aimed at.
        """
        start = list(dict.fromkeys((*instances, *self.necessary())))
        attempts: list[tuple[float, list[Sizes]]] = []
        allowed = self.allowed
        for _ in range(_ATTEMPTS):
            extended = self._within(start, allowed, model)
            loss = self.loss(extended, model).largest
            attempts.append((loss, extended))
            if loss <= allowed:
                break
            allowed = 1 + (allowed - 1) * _RELAXATION
        return min(attempts, key=lambda attempt: attempt[0])[1]

    def _within(self, start: list[Sizes], allowed: float, model: CostModel) -> list[Sizes]:
        """Return instances for an allowed loss, or the most if that takes more."""
        extended = list(start)
        while len(extended) < max(self.most, len(start)):
            loss = self.loss(extended, model)
            if loss.largest <= allowed:
                break
            added = self.grown(loss.sizes, allowed, model)
            if added in extended:
                break
            extended.append(added)
        return extended


def _with(sizes: Sizes, changed: Sizes, places: Sequence[int]) -> Sizes:
    """Return sizes with changed ones at some places."""
    return tuple(changed[k] if k in places else n for k, n in enumerate(sizes))
