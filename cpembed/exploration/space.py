"""Spaces of machines as TOML files: a family, its parameters and their values.

The format is described in ``docs/exploration.md``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cpembed.errors import SpecError
from cpembed.exploration.objectives import (
    DEFAULT,
    Limit,
    Objective,
    read_limits,
    read_objectives,
)
from cpembed.exploration.relations import Relation, read_relation
from cpembed.hw.schema import Key, close_match, one_of, read_table, spec_error
from cpembed.targets.families import open_family
from cpembed.targets.family import Family, Point, Value

MOST_VALUES = 4096
"""Of a parameter."""

Place = tuple[int, ...]
"""A point as the position of each parameter's value."""


class RangeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``{ from = 1, to = 8 }``, ``{ from = 16, to = 64, step = 16 }``, or
    ``{ from = 4, to = 64, powers_of_two = true }``; both ends are values."""

    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")
    step: int = 1
    powers_of_two: bool = False


class SpaceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    name: str
    description: str
    family: str
    parameters: dict[str, list[int | float | str] | RangeTable]
    source: str | None = None
    fixed: dict[str, int | float | str] = {}
    where: list[str] = []
    limits: dict[str, str | int | float] = {}
    objectives: list[str] = msgspec.field(default_factory=lambda: list(DEFAULT))


@dataclass(frozen=True)
class Space:
    """Points by the values of ``parameters``, in ascending order where they are numbers;
    ``fixed`` has what all points share, the family's defaults included."""

    name: str
    description: str
    source: str | None
    family: Family
    fixed: Mapping[str, Value]
    parameters: Mapping[str, tuple[Value, ...]]
    relations: tuple[Relation, ...]
    limits: tuple[Limit, ...]
    objectives: tuple[Objective, ...]

    @property
    def combinations(self) -> int:
        """Of values, those that relations exclude included."""
        return math.prod(len(values) for values in self.parameters.values())

    def places(self) -> Iterator[Place]:
        """Of all points that hold the relations."""
        for place in itertools.product(*(range(len(v)) for v in self.parameters.values())):
            if self.unrelated(self.point(place)) is None:
                yield place

    def number(self, place: Place) -> int:
        """Of a combination among all of them, from 0; the last parameter changes the fastest."""
        number = 0
        for position, values in zip(place, self.parameters.values(), strict=True):
            number = number * len(values) + position
        return number

    def point(self, place: Place) -> Point:
        pairs = zip(self.parameters.items(), place, strict=True)
        return {**self.fixed, **{name: values[position] for (name, values), position in pairs}}

    def unrelated(self, point: Point) -> Relation | None:
        """The first relation that a combination does not hold."""
        return next((one for one in self.relations if not one.holds(point)), None)

    def flaw(self, point: Point) -> str | None:
        """Why a combination is no machine of the space."""
        relation = self.unrelated(point)
        if relation is not None:
            return f"{relation.text} does not hold"
        return self.family.flaw(point)

    def varied(self, point: Point) -> dict[str, Value]:
        """What tells a point from others."""
        return {name: point[name] for name in self.parameters}

    def digest(self) -> str:
        """Of the points that there are."""
        said = {
            "family": self.family.name,
            "fixed": dict(self.fixed),
            "parameters": {name: list(values) for name, values in self.parameters.items()},
            "where": [relation.text for relation in self.relations],
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def read_space(path: Path) -> Space:
    """Every fault is a one-line :class:`SpecError`: file, key, what is wrong, what is allowed."""
    return _Reading(path).space()


class _Reading:
    """A file on its way to a space."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table = read_table(path, SpaceTable)
        try:
            self._family = open_family(self._table.family)
        except SpecError as error:
            raise self._error(("family",), str(error)) from None
        self._known = {parameter.name: parameter for parameter in self._family.parameters}

    def space(self) -> Space:
        table = self._table
        if not table.parameters:
            raise self._error(("parameters",), f"is empty; allowed: {one_of(self._known)}")
        parameters = {
            name: self._values(("parameters", name), given)
            for name, given in table.parameters.items()
        }
        fixed = self._fixed()
        names = {*parameters, *fixed}
        relations = [self._relation(n, text, names) for n, text in enumerate(table.where)]
        return Space(
            table.name,
            table.description,
            table.source,
            self._family,
            fixed,
            parameters,
            tuple(relations),
            self._limits(),
            self._objectives(),
        )

    def _values(self, key: Key, given: list[int | float | str] | RangeTable) -> tuple[Value, ...]:
        self._require_known(key)
        if isinstance(given, RangeTable):
            return self._range(key, given)
        if not given:
            raise self._error(key, "is empty: name at least one value")
        if len(given) > MOST_VALUES:
            raise self._error(key, f"has more than {MOST_VALUES:,} values")
        texts = [value for value in given if isinstance(value, str)]
        if texts and len(texts) != len(given):
            raise self._error(key, "has text and numbers: values are of one kind")
        if any(isinstance(value, float) and not math.isfinite(value) for value in given):
            raise self._error(key, "has a value that is no finite number")
        if len(set(given)) != len(given):
            twice = next(value for value in given if given.count(value) > 1)
            raise self._error(key, f"has {twice!r} twice: keep one")
        return tuple(given) if texts else tuple(sorted(given))

    def _range(self, key: Key, given: RangeTable) -> tuple[Value, ...]:
        if given.first > given.last:
            raise self._error(key, f"from {given.first} is above to {given.last}")
        if given.powers_of_two:
            if given.step != 1:
                raise self._error((*key, "step"), "powers of two have no step: leave one out")
            for name, value in (("from", given.first), ("to", given.last)):
                if value < 1 or value & (value - 1) or value > 2**62:
                    raise self._error((*key, name), f"{value} is no power of two")
            exponents = range(given.first.bit_length() - 1, given.last.bit_length())
            return tuple(2**exponent for exponent in exponents)
        if given.step < 1:
            raise self._error((*key, "step"), f"{given.step} is no integer of at least 1")
        if (given.last - given.first) % given.step:
            problem = f"{given.last} is not reached from {given.first} in steps of {given.step}"
            raise self._error((*key, "to"), problem)
        if (given.last - given.first) // given.step >= MOST_VALUES:
            raise self._error(key, f"has more than {MOST_VALUES:,} values")
        return tuple(range(given.first, given.last + 1, given.step))

    def _fixed(self) -> dict[str, Value]:
        """With the family's defaults."""
        table = self._table
        found: dict[str, Value] = {}
        for name, value in table.fixed.items():
            self._require_known(("fixed", name))
            if name in table.parameters:
                raise self._error(("fixed", name), "is a parameter too: leave it out in one place")
            if isinstance(value, float) and not math.isfinite(value):
                raise self._error(("fixed", name), "is no finite number")
            found[name] = value
        for name, parameter in self._known.items():
            if name in found or name in table.parameters:
                continue
            if parameter.default is None:
                problem = f"is missing; family {self._family.name} needs {parameter.words}"
                raise self._error(("parameters", name), f"{problem} (here or under [fixed])")
            found[name] = parameter.default
        return found

    def _relation(self, position: int, text: str, names: set[str]) -> Relation:
        try:
            return read_relation(text, names)
        except SpecError as error:
            raise self._error(("where", position), str(error)) from None

    def _limits(self) -> tuple[Limit, ...]:
        found: list[Limit] = []
        for name, value in self._table.limits.items():
            try:
                found += read_limits([f"{name}={value}"])
            except SpecError as error:
                raise self._error(("limits", name), str(error)) from None
        return tuple(found)

    def _objectives(self) -> tuple[Objective, ...]:
        try:
            return read_objectives(self._table.objectives)
        except SpecError as error:
            raise self._error(("objectives",), str(error)) from None

    def _require_known(self, key: Key) -> None:
        name = str(key[-1])
        if name not in self._known:
            allowed = f"unknown parameter; family {self._family.name} has {one_of(self._known)}"
            raise self._error(key, allowed + close_match(name, self._known))

    def _error(self, key: Key, problem: str) -> SpecError:
        return spec_error(str(self._path), key, problem)
