"""Choice of the sizes at which a family of graphs gets instances.

The cost of a graph is roughly its multiplications and bytes, which are polynomials of at most the
second degree in each size, so that a few graphs tell it at every size. Plans of instances correct
it. Sizes are added that reduce the losses of all runs the most, compared with instances of their
own sizes, until no run is slower than allowed.
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

# Power of a size's loss in what an added instance has to reduce. Over an encoder's batches of 1 to
# 16 and sequences of 1 to 512, 6 leaves single sizes slow, and 24 brings the mean no further down.
_POWER = 12

# Maximum number of times that each added instance is exchanged for a better one, and of rows up to
# which that is tried: an exchange takes time for each row.
_EXCHANGES, _MOST_ROWS = 3, 128

# Maximum numbers of sizes at which losses are summed up, and of sizes that may be added.
_SUMMED, _CANDIDATES = 400, 700

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

        charged = self.counts(instances), self.charges(instances, unsplit, model)
        losses = self.runs(charged, max(rows))[0, rows] / self.single_us(rows, unsplit, model)
        place = np.unravel_index(int(losses.argmax()), losses.shape)
        worst = self.with_rows(rows[place[0]], unsplit[place[1]])
        return Loss(float(losses.max()), float(losses.mean()), worst)

    def with_rows(self, row: int, sizes: Sizes) -> Sizes:
        """Return sizes with a number of rows."""
        return tuple(row if k == self.split else n for k, n in enumerate(sizes))

    def single_us(
        self, rows: Sequence[int], unsplit: Sequence[Sizes], model: CostModel
    ) -> NDArray[np.float64]:
        """Return the cost of an instance for each number of rows and sizes of the rest."""
        return np.array(
            [[model.us(self.with_rows(row, sizes)) for sizes in unsplit] for row in rows]
        )

    def charges(
        self, instances: Sequence[Sizes], unsplit: Sequence[Sizes], model: CostModel
    ) -> NDArray[np.float64]:
        """Return the cost of each instance at some sizes of the rest, infinite if it has none."""
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

        def fits(at: Sizes, sizes: Sizes) -> bool:
            row = 0 if split is None else at[split]
            return self.covers(at, tuple(row if k == split else n for k, n in enumerate(sizes)))

        covered = np.array([[fits(at, sizes) for sizes in unsplit] for at in instances])
        return np.where(covered, costs, math.inf)

    def counts(self, instances: Sequence[Sizes]) -> NDArray[np.int64]:
        """Return the number of rows of each instance."""
        return np.array([1 if self.split is None else at[self.split] for at in instances])

    def runs(
        self,
        instances: tuple[NDArray[np.int64], NDArray[np.float64]],
        rows: int,
        added: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None,
    ) -> NDArray[np.float64]:
        """Return the cost of the best run of each number of rows, at some sizes of the rest.

        Instances are their rows and costs. The first dimension has the cost with each of those that
        may be added, or has one element without any.
        """
        counts, charged = instances
        if added is None:
            added = np.zeros(1, np.int64), np.full((1, charged.shape[1]), math.inf)
        new_counts, new = added
        lines = np.arange(len(new))
        regular = 0 if self.split is None else self.facts.regular[self.split]
        new_parts = np.where((new_counts >= regular)[:, None], new, math.inf)
        best = np.full((len(new), rows + 1, charged.shape[1]), math.inf)
        best[:, 0] = 0.0
        for row in range(1, rows + 1):
            least = best[:, row]
            if row < regular:
                # Fewer rows have graphs of their own.
                least[:] = np.where((new_counts == row)[:, None], new, math.inf)
                for costs in charged[counts == row]:
                    np.minimum(least, costs, out=least)
                continue
            least[:] = new_parts + best[lines, np.maximum(row - new_counts, 0)]
            for count, costs in zip(counts, charged, strict=True):
                if count >= regular:
                    np.minimum(least, costs + best[:, max(row - count, 0)], out=least)
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

        Each one reduces the most what all sizes lose, of which large losses count the most, so that
        where there are too few instances no size pays for the others.
        """
        extended = list(dict.fromkeys((*instances, *self.necessary())))
        fixed = len(extended)
        additions: _Additions | None = None
        while len(extended) < self.most:
            loss = self.loss(extended, model)
            if loss.largest <= self.allowed:
                break
            additions = additions or _Additions(self, model)
            added = additions.best(extended, self.grown(loss.sizes, self.allowed, model))
            if added in extended:
                break
            extended.append(added)
        if additions is not None and self.loss(extended, model).largest > self.allowed:
            additions.exchange(extended, fixed)
        return extended

    def candidates(self) -> list[Sizes]:
        """Return sizes that may be added, spread over all."""
        points = self.points()
        most = [len(values) for values in points]
        rows = 1 if self.split is None else points[self.split][-1]
        # Each candidate takes time for each number of rows.
        limit = max(_CANDIDATES // 10, _CANDIDATES * 64 // max(64, rows))
        while math.prod(most) > limit and max(most) > 2:
            most[most.index(max(most))] -= 1
        thinned = [spread(values, count) for values, count in zip(points, most, strict=True)]
        return list(itertools.product(*thinned))


def spread(values: Sequence[int], count: int) -> list[int]:
    """Return some of ascending values, both ends among them, by equal ratios.

    >>> spread([1, 2, 3, 4, 5, 6, 7, 8], 4)
    [1, 2, 4, 8]
    """
    if count >= len(values):
        return [*values]
    low, high = values[0], values[-1]
    aims = [low * (high / low) ** (k / (count - 1)) for k in range(count)]
    return sorted({min(values, key=lambda value: abs(value - aim)) for aim in aims})


class _Additions:
    """Instances that may be added, with their costs at the sizes at which losses are summed up."""

    def __init__(self, choice: SizeChoice, model: CostModel) -> None:
        self.choice, self.model = choice, model
        split, points = choice.split, choice.points()
        self.rows = points[split] if split is not None else [1]
        rest = [[0] if k == split else values for k, values in enumerate(points)]
        unsplit = [*itertools.product(*rest)]
        self.unsplit = unsplit[:: -(-len(unsplit) // _SUMMED)]
        self.single = choice.single_us(self.rows, self.unsplit, model)
        self.candidates = choice.candidates()
        self.charged = self._charged(self.candidates)

    def _charged(self, instances: Sequence[Sizes]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        choice = self.choice
        charges = choice.charges(instances, self.unsplit, self.model)
        return choice.counts(instances), charges

    def best(self, instances: Sequence[Sizes], further: Sizes) -> Sizes:
        """Return which of the candidates, and of one more, leaves the least losses."""
        (counts, charges), (count, charge) = self.charged, self._charged([further])
        added = np.concatenate([counts, count]), np.concatenate([charges, charge])
        runs = self.choice.runs(self._charged(instances), max(self.rows), added)
        losses = np.maximum(runs[:, self.rows] / self.single, self.choice.allowed)
        sums = (losses**_POWER).sum(axis=(1, 2))
        return [*self.candidates, further][int(sums.argmin())]

    def exchange(self, instances: list[Sizes], fixed: int) -> None:
        """Exchange instances, except the first ``fixed``, for others with fewer losses.

        One that was added first may be of little use beside later ones.
        """
        for _ in range(_EXCHANGES if self.rows[-1] <= _MOST_ROWS else 0):
            before = list(instances)
            for place in range(fixed, len(instances)):
                rest = instances[:place] + instances[place + 1 :]
                instances[place] = self.best(rest, instances[place])
            if instances == before:
                break


def _with(sizes: Sizes, changed: Sizes, places: Sequence[int]) -> Sizes:
    """Return sizes with changed ones at some places."""
    return tuple(changed[k] if k in places else n for k, n in enumerate(sizes))
