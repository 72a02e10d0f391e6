"""The digit model: the same embeddings as the scalar model, over digits instead of nodes.

Where the instruction walks each operand by single axes and the origin is fixed, an embedding is a
choice of digits: instruction axis *a* moves along workload axis *d* with a weight, a count and a
stride. Every constraint says which digits it allows and which it excludes together, so that the
model has a few hundred Booleans whatever the instruction's size. The scalar model stays the ground
truth: both return the same set wherever both can run, which the tests check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field

import numpy as np

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.model_builder import ModelBuilder
from cpembed.embedding.model_writer import CompiledModel, Ids
from cpembed.embedding.problem import EmbeddingProblem


@dataclass(frozen=True)
class DigitOption:
    """A digit that an instruction axis may have.

    Along ``digit.axis``, ``position`` of the instruction axis moves by
    ``stride * ((position // weight) % count)``.

    Attributes
    ----------
    instruction_axis : str
        Axis that the digit is part of.
    weight : int
        Product of the counts of the digits before it.
    digit : Digit
        Workload axis, count and stride.
    members : tuple of str
        Workload axes behind ``digit.axis``: several if that is a fused one.
    extent : int
        Extent of ``digit.axis``.
    """

    instruction_axis: str
    weight: int
    digit: Digit
    members: tuple[str, ...]
    extent: int


@dataclass(frozen=True)
class AxisMaps:
    """Extents and digits of some instruction axes, and the fused axes among their digits."""

    extents: Mapping[str, int]
    digits: Mapping[str, tuple[Digit, ...]]
    flattened: Mapping[str, tuple[str, ...]]


def combine(problem: EmbeddingProblem, parts: Iterable[AxisMaps]) -> Embedding:
    """Return the embedding made of axis maps of all instruction axes, in the instruction's order.

    Parameters
    ----------
    problem : EmbeddingProblem
        Problem without fused axes.
    parts : iterable of AxisMaps
        Axis maps; each instruction axis is in one of them.
    """
    extents: dict[str, int] = {}
    digits: dict[str, tuple[Digit, ...]] = {}
    flattened: dict[str, tuple[str, ...]] = {}
    for part in parts:
        extents.update(part.extents)
        digits.update(part.digits)
        flattened.update(part.flattened)
    axes = [axis.name for axis in problem.instruction.axes]
    return Embedding(
        dict(problem.roles),
        {axis: extents[axis] for axis in axes},
        {axis: digits[axis] for axis in axes},
        {axis.name: 0 for axis in problem.workload.axes},
        flattened,
    )


@dataclass
class DigitModel:
    """Options with their literals, and the extent of each instruction axis.

    ``axes`` are the instruction axes that the model decides, ``allowed`` options of these.
    ``options`` and ``extent_literals`` map options, and extents of each axis, to Booleans.
    """

    problem: EmbeddingProblem
    allowed: InitVar[Iterable[DigitOption]]
    axes: tuple[str, ...]
    options: dict[DigitOption, int] = field(default_factory=dict[DigitOption, int])
    builder: ModelBuilder = field(default_factory=ModelBuilder)
    extent_literals: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    _coupled: list[set[str]] = field(default_factory=list[set[str]])

    def __post_init__(self, allowed: Iterable[DigitOption]) -> None:
        for axis in (self.problem.instruction.axis(name) for name in self.axes):
            literals = {extent: self.builder.boolean() for extent in axis.allowed}
            self.builder.exactly_one(list(literals.values()))
            self.extent_literals[axis.name] = literals
        for option in allowed:
            self.options[option] = self.builder.boolean()
        for axis in self.axes:
            self._number_system(axis)
        # A box uses each dimension once: an axis, alone or fused with others, feeds one digit.
        for axis in self.problem.workload.axes:
            self.at_most_one([o for o in self.options if axis.name in o.members])
        # Every solution is read through these: numpy finds the chosen options of hundreds at once.
        self._ordered = list(self.options)
        self._literals = np.array(list(self.options.values()), np.int64)

    def at_most_one(self, options: list[DigitOption]) -> None:
        """Choose at most one of the options."""
        self._coupled.append({option.instruction_axis for option in options})
        self.builder.at_most_one([self.options[option] for option in options])

    def couple(self, axes: Iterable[str]) -> None:
        """Decide the digits of these instruction axes together."""
        self._coupled.append(set(axes) & set(self.axes))

    def at_most(self, options: list[DigitOption], count: int) -> None:
        """Choose at most ``count`` of the options."""
        self._coupled.append({option.instruction_axis for option in options})
        if len(options) > count:
            self.builder.row([(1, self.options[option]) for option in options], 0, count)

    def requires_extent(
        self, option: DigitOption, extent: int, partner_options: Iterable[DigitOption] = ()
    ) -> None:
        """Choose the option only where its instruction axis is used at ``extent``.

        With ``partner_options``, digits along one workload axis, this is required only if one of
        them is chosen too.
        """
        end = self.extent_literals[option.instruction_axis].get(extent)
        partners = [(1, self.options[partner]) for partner in partner_options]
        if partners:
            self._coupled.append(
                {option.instruction_axis, *(o.instruction_axis for o in partner_options)}
            )
        # option + partners <= end + 1, as at most one partner is chosen; without, option <= end.
        terms = [(1, self.options[option]), *partners]
        limit = 1 if partners else 0
        if end is not None:
            terms.append((-1, end))
        self.builder.row(terms, -1, limit)

    def requires_other(self, option: DigitOption, alternatives: Iterable[DigitOption]) -> None:
        """Choose the option only where one of the alternatives on its instruction axis is."""
        terms = [
            (1, self.options[option]),
            *((-1, self.options[alternative]) for alternative in alternatives),
        ]
        self.builder.row(terms, -len(terms), 0)

    def _number_system(self, axis: str) -> None:
        """Post that the chosen weights form one path from 1 to the extent."""
        extents = self.extent_literals[axis]
        # A digit is an edge from its weight to weight * count. Flow is conserved at each weight: a
        # unit enters at 1 and leaves at the extent that is chosen.
        balance: dict[int, list[tuple[int, int]]] = {1: []}
        for option, literal in self.options.items():
            if option.instruction_axis == axis:
                balance.setdefault(option.weight, []).append((1, literal))
                end = option.weight * option.digit.count
                balance.setdefault(end, []).append((-1, literal))
        for extent, literal in extents.items():
            balance.setdefault(extent, []).append((1, literal))
        for weight, terms in balance.items():
            if terms:
                supply = 1 if weight == 1 else 0
                self.builder.row(terms, supply, supply)
            elif weight == 1:
                # Neither a digit nor an extent of 1: nothing can feed the axis.
                self.builder.exactly_one([])

    def components(self) -> list[tuple[str, ...]]:
        """Return the groups of instruction axes that no constraint couples to any other."""
        component = {axis: {axis} for axis in self.axes}
        for axes in self._coupled:
            merged = set[str]().union(*(component[axis] for axis in axes))
            for axis in merged:
                component[axis] = merged
        components = [tuple(axis for axis in self.axes if axis in c) for c in component.values()]
        return list(dict.fromkeys(components))

    def axis_maps(self, values: Ids) -> AxisMaps:
        """Return the extents and digits of a solution."""
        digits: dict[str, list[tuple[int, Digit]]] = {axis: [] for axis in self.axes}
        flattened: dict[str, tuple[str, ...]] = {}
        for position in np.flatnonzero(values[self._literals]).tolist():
            option = self._ordered[position]
            if len(option.members) > 1:
                flattened[option.digit.axis] = option.members
            digits[option.instruction_axis].append((option.weight, option.digit))
        return AxisMaps(
            {
                axis: next(e for e, literal in literals.items() if values[literal])
                for axis, literals in self.extent_literals.items()
            },
            {
                axis: tuple(digit for _, digit in sorted(weighted, key=lambda item: item[0]))
                for axis, weighted in digits.items()
            },
            flattened,
        )

    def build(self) -> CompiledModel:
        """Compile the model, whose search decides extents first, then options."""
        extents = [lit for literals in self.extent_literals.values() for lit in literals.values()]
        self.builder.decide(np.array(extents, np.int64), largest_first=True)
        # Choosing a digit fixes many others; rejecting one leaves nearly all of them open.
        self.builder.decide(self._literals, largest_first=True)
        return self.builder.build()
