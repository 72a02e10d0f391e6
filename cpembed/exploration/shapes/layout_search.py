"""The best shapes of a network whose tensors stay packed between layers.

Shapes, embeddings and the layouts of the tensors are chosen in one model. With layouts a shape that
needs more executions in every layer may be the better one, so nothing is removed by dominance. The
tables bound from below what a shape costs in a layer; shapes that this shows to be in no best
choice are never searched.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpembed.exploration.shapes.cells import MIN_SECONDS, Call, Cell, ProvenEmbedding, keyed_results
from cpembed.exploration.shapes.choice import Columns, NearSets, SetLimits, cost_limit
from cpembed.exploration.shapes.layout_model import (
    LayerMapping,
    LayerMappings,
    LayoutChoice,
    Option,
    choose_layouts,
    mappings_of,
    prove_mapping,
)
from cpembed.exploration.shapes.network import Network, TensorLayout
from cpembed.exploration.shapes.question import LayerRow, Question
from cpembed.exploration.shapes.shape import LayerSet, Shape
from cpembed.runtime.cluster import Workers
from cpembed.steps import Progress
from cpembed.time_limit import Clock

_FINAL_SECONDS = 2.0
"""Time limit in seconds, after that of the search, for the best of the results so far."""

_FEW_SHAPES = 64
"""Number of shapes among which a good choice is searched first."""

_PAIRED_SHAPES = 6_000
"""Maximum number of shapes of which all pairs are bounded."""

_TOLERANCE = 0.5
"""Difference below which costs are equal: they are integers that floating point holds exactly."""


_RowKey = tuple[int, int, tuple[TensorLayout, ...]]
"""A computation, a column and the layouts of a mapping, of which there is one for each layouts."""


@dataclass(frozen=True)
class LayoutAnswer:
    """The best choice and the runner-up, which does not hold all shapes of the best.

    No choice costs less than ``bound``. ``searched`` is the number of shapes in layers that were
    searched, ``near`` the single shapes that cost little more than the best.
    """

    best: LayoutChoice
    runner_up: LayoutChoice | None
    bound: float
    runner_up_proven: bool
    searched: int
    near: NearSets | None = None


class LayoutSearch:
    """The search for the best shapes of a network.

    ``executions`` are lower bounds, a row per use and a column per shape; infinite where there is
    no embedding.
    """

    def __init__(
        self,
        network: Network,
        question: Question,
        shapes: Sequence[Shape],
        executions: NDArray[np.float64],
        clock: Clock,
    ) -> None:
        self._network, self._question, self._shapes = network, question, shapes
        self._clock = clock
        self._unit = question.cost.bytes_per_execution or 1
        self._bounds = executions * self._unit
        self._uses = range(len(network.uses))
        self._weights = np.array([network.weight(use) for use in self._uses], np.float64)
        self._searched: dict[tuple[int, int], LayerMappings] = {}
        self._macs = [shape.macs for shape in shapes]

    def run(self, workers: Workers, report: Progress) -> LayoutAnswer:
        """Return the best choice, proven, or the best that was found in the time."""
        self._workers, self._report = workers, report
        if not self._uses or not self._shapes:
            return LayoutAnswer(LayoutChoice(), None, math.inf, False, searched=0)
        if self._question.count == 1:
            return self._single_shapes()
        # Several shapes: those are searched that the best choice by all that is known rests on,
        # until it rests on known mappings alone.
        first = self._best_excluding(())
        if not first.options:
            return LayoutAnswer(first, None, first.bound, False, searched=len(self._searched))
        second = self._best_excluding(first.columns)
        # A search that was stopped may find the better choice second.
        best, next_best = (second, first) if second.cost < first.cost else (first, second)
        return LayoutAnswer(
            best=best,
            runner_up=next_best if next_best.options else None,
            bound=min(first.bound, best.cost),
            runner_up_proven=best.cost <= first.bound and next_best.cost <= next_best.bound,
            searched=len(self._searched),
        )

    # ------------------------------------------------------------------------------ one shape

    def _single_shapes(self) -> LayoutAnswer:
        """Search shapes in the order of their bounds, until none can be among the two best."""
        totals = self._weights @ self._bounds
        order = [int(n) for n in np.argsort(totals, kind="stable") if math.isfinite(totals[n])]
        if self._question.total_macs is not None:
            order = [n for n in order if self._macs[n] <= self._question.total_macs]
        ranked: list[LayoutChoice] = []
        # No shape that is not ranked, or not settled, costs less than this.
        unsettled, percent = math.inf, self._question.within
        # In the order of the bounds, each shape with all its mappings in all layers, until the next
        # bound is no better than the second best.
        for place, column in enumerate(order):
            limit = -math.inf
            if percent is not None and ranked:
                limit = cost_limit(ranked[0].cost, percent)
            if len(ranked) > 1 and totals[column] >= ranked[1].cost and totals[column] > limit:
                break
            if self._clock.is_over:
                unsettled = min(unsettled, float(totals[column]))
                break
            # Each worker searches a shape, though later ones may turn out to be unnecessary.
            self._search(order[place : place + self._workers.count])
            limits = SetLimits(1, seconds=self._clock.left())
            choice = choose_layouts(self._network, self._options([column]), limits)
            # The time was over, in CP-SAT or in a search: what is known still makes a choice.
            if choice.bound < choice.cost or not choice.is_known:
                unsettled = min(unsettled, choice.bound)
                choice = choose_layouts(self._network, self._known_options([column]), limits)
            if choice.options:
                ranked = sorted([*ranked, choice], key=lambda item: item.cost)
        first = ranked[0] if ranked else LayoutChoice(bound=unsettled)
        second = ranked[1] if len(ranked) > 1 else None
        near = None
        if percent is not None and ranked:
            limit = cost_limit(first.cost, percent)
            sets = [(choice.columns, choice.cost) for choice in ranked if choice.cost <= limit]
            near = NearSets.first_of(sets, complete=unsettled > limit)
        return LayoutAnswer(
            best=first,
            runner_up=second,
            bound=min(unsettled, first.cost),
            runner_up_proven=(math.inf if second is None else second.cost) <= unsettled,
            searched=len(self._searched),
            near=near,
        )

    # ------------------------------------------------------------------------------ several shapes

    def _best_excluding(self, excluded: Columns) -> LayoutChoice:
        """Return the best choice that does not open all of ``excluded``."""
        best, limits = LayoutChoice(bound=0.0), self._limits(excluded)
        for columns in self._starts():
            if not excluded or not set(excluded) <= set(columns):
                best = self._improved(best, columns, limits)
        # First among few shapes: with a good choice most others are shown to be in no better one,
        # so that the model of all stays small.
        best = self._settled(best, excluded, self._few_shapes())
        return self._settled(best, excluded)

    def _settled(
        self, best: LayoutChoice, excluded: Columns, candidates: Container[int] | None = None
    ) -> LayoutChoice:
        """Return the best choice among candidates, or all shapes; ``best`` if that is as good."""
        least = 0.0
        while True:
            columns = self._usable_columns(best.cost)
            if candidates is not None:
                columns = [column for column in columns if column in candidates]
            limits = self._limits(excluded)
            choice = choose_layouts(self._network, self._options(columns, best.cost), limits)
            least = max(least, min(choice.bound, best.cost))
            if choice.is_known and choice.cost < best.cost:
                best = choice
            unsearched = self._rests_on_unsearched(choice)
            if best.cost - least < _TOLERANCE or not (unsearched or choice.options):
                return replace(best, bound=min(least, best.cost))
            if self._clock.is_over or not unsearched:
                return replace(self._best_known(best, excluded), bound=least)
            best = self._improved(best, choice.columns, limits)

    def _limits(self, excluded: Columns) -> SetLimits:
        left = self._clock.left()
        # Half of the remaining time for one model, as others follow.
        seconds = None if left is None else max(left / 2, MIN_SECONDS)
        budget = self._question.budget(self._macs)
        return SetLimits(self._question.count, budget, excluded, seconds)

    def _few_shapes(self) -> frozenset[int]:
        """Return the shapes of the lowest bounds, and those that were searched."""
        if self._bounds_pairs():
            bounds = self._pair_bounds
        else:
            # A cost beyond this is as bad as no embedding: as many shapes serve the layer better.
            reach = self._bounds.min(axis=1, keepdims=True) * self._question.count + 1
            bounds = self._weights @ np.minimum(self._bounds, reach)
        order = np.argsort(bounds, kind="stable")[:_FEW_SHAPES]
        return frozenset(map(int, order)) | {column for _, column in self._searched}

    def _starts(self) -> Sequence[Columns]:
        """Return the best set and the runner-up where layouts do not matter."""
        costs = self._bounds * self._weights[:, None]
        return self._question.choose(costs, np.array(self._macs), Clock(self._clock.left())).sets

    def _improved(
        self, best: LayoutChoice, columns: Sequence[int], limits: SetLimits
    ) -> LayoutChoice:
        """Return the better one of a choice and the best of some shapes, which are searched."""
        self._search(columns)
        choice = choose_layouts(self._network, self._options(columns), limits)
        return choice if choice.is_known and choice.cost < best.cost else best

    def _best_known(self, best: LayoutChoice, excluded: Columns) -> LayoutChoice:
        """Return the best choice of known mappings, or ``best`` if that is as good."""
        columns = sorted({column for _, column in self._searched})
        limits = replace(self._limits(excluded), seconds=_FINAL_SECONDS)
        choice = choose_layouts(self._network, self._known_options(columns), limits)
        return choice if choice.cost < best.cost else best

    def _usable_columns(self, cost: float) -> list[int]:
        """Return the shapes that can be in a choice of less cost."""
        usable = self._usable(cost).any(axis=0)
        if self._bounds_pairs():
            usable &= self._pair_bounds < cost
        return [int(n) for n in np.flatnonzero(usable)]

    def _bounds_pairs(self) -> bool:
        return self._question.count == 2 and len(self._shapes) <= _PAIRED_SHAPES

    def _usable(self, cost: float) -> NDArray[np.bool_]:
        """Return where a layer may take a shape in a choice of less cost."""
        floors = self._bounds.min(axis=1)
        if np.isinf(floors).any():
            # Some layer has no shape.
            return np.zeros(self._bounds.shape, np.bool_)
        # All other layers cost their least at best, so that one layer may exceed its own by no
        # more.
        slack = cost - float(self._weights @ floors)
        usable: NDArray[np.bool_] = np.isfinite(self._bounds)
        usable[usable] = (self._bounds - floors[:, None])[usable] < slack
        return usable

    @cached_property
    def _pair_bounds(self) -> NDArray[np.float64]:
        """The least that each shape costs with a second one."""
        weighted = self._bounds * self._weights[:, None]
        columns = range(len(self._shapes))
        least = [np.minimum(weighted, weighted[:, n : n + 1]).sum(axis=0).min() for n in columns]
        return np.array(least)

    # ------------------------------------------------------------------------------ mappings

    def _options(self, columns: Sequence[int], cost: float = math.inf) -> list[list[Option]]:
        """Return the options of each use in choices of less cost."""
        usable = self._usable(cost)
        return [
            [
                option
                for column in columns
                if usable[use, column]
                for option in self._options_of(use, column)
            ]
            for use in self._uses
        ]

    def _known_options(self, columns: Sequence[int]) -> list[list[Option]]:
        return [[o for o in listed if o.mapping is not None] for listed in self._options(columns)]

    def _options_of(self, use: int, column: int) -> Iterator[Option]:
        result = self._searched.get((use, column))
        if result is None:
            yield Option(column, int(self._bounds[use, column]))
            return
        for mapping in result.mappings:
            yield Option(column, mapping.executions * self._unit, mapping)
        # Mappings that the search did not reach are one more option.
        if math.isfinite(result.bound):
            yield Option(column, int(result.bound * self._unit))

    def _rests_on_unsearched(self, choice: LayoutChoice) -> bool:
        """True if a choice rests on a shape in a layer that was not searched."""
        pairs = zip(self._network.products, choice.options, strict=False)
        return any(
            option.mapping is None and (node.use, option.column) not in self._searched
            for node, option in pairs
        )

    def _search(self, columns: Iterable[int]) -> None:
        """Find all mappings of shapes in all layers."""
        left = self._clock.left()
        seconds = None if left is None else max(left, MIN_SECONDS)
        calls: dict[tuple[int, int], Call] = {}
        for column in columns:
            for use in self._uses:
                if (use, column) in self._searched or math.isinf(self._bounds[use, column]):
                    continue
                shape, layer = self._shapes[column], self._network.uses[use]
                arguments = layer, self._question.constraints, shape, self._unit, seconds
                calls[use, column] = arguments, f"embedding {shape} in {layer.workload.name}"
        for place, mappings in keyed_results(self._workers, mappings_of, calls):
            self._searched[place] = mappings
            if not mappings.mappings and math.isinf(mappings.bound):
                self._bounds[place] = math.inf
            self._report(f"searching: {len(self._searched):,} shapes in layers", 0, 1)

    # ------------------------------------------------------------------------------ rows

    def rows(self, choice: LayoutChoice, layers: LayerSet) -> list[LayerRow]:
        """Return the rows of the layers, one for all with the same mapping, programs proven."""
        network, shapes = self._network, self._shapes
        mappings: dict[_RowKey, LayerMapping] = {}
        counts: Counter[_RowKey] = Counter()
        for node, option in zip(network.products, choice.options, strict=False):
            if option.mapping is not None:
                key = network.computations[node.use], option.column, option.mapping.layouts
                mappings[key] = option.mapping
                counts[key] += 1
        calls: dict[_RowKey, Call] = {}
        for key, mapping in mappings.items():
            cell = Cell(layers.workloads[key[0]], self._question.constraints, shapes[key[1]])
            calls[key] = (cell, mapping), f"proving {cell}"
        embedded: dict[_RowKey, ProvenEmbedding] = dict(
            keyed_results(self._workers, prove_mapping, calls)
        )
        rows: list[LayerRow] = []
        for (computation, column, layouts), count in counts.items():
            layer = next(item for item in layers.layers if item.computation == computation)
            names = tuple(map(network.layout_name, layouts))
            proven = embedded[computation, column, layouts]
            rows.append(LayerRow(replace(layer, count=count), shapes[column], proven, names))
        return sorted(rows, key=lambda row: row.layer.index)
