"""Spaces of machines as TOML files: a family, its parameters, their values and relations.

The format is described in ``docs/exploration.md``.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from cpembed.errors import SpecError
from cpembed.exploration.costing import Costing, LayerCosts
from cpembed.exploration.objectives import (
    DEFAULT_OBJECTIVES,
    EvaluatedPoint,
    Limit,
    Machine,
    Objective,
    Place,
    exceeded,
    read_limits,
    read_objectives,
    total,
)
from cpembed.hw.schema import Key, close_match, joined, read_table, spec_error
from cpembed.targets.family import Family, Point, Value, open_family

MAX_VALUES = 4096
"""Maximum number of values of a parameter."""


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda first, second: first // second,
    ast.Mod: operator.mod,
}
_ALLOWED = (
    "a relation compares (== != < <= > >=) sums, differences, products, // and % of parameters"
)

MAX_RELATION_LENGTH = 500
"""Maximum number of characters of a relation, so that parsing it takes no time."""

_MAX_VALUE = 10**30
"""Maximum intermediate value: far beyond any size, and quick to compute with."""


@dataclass(frozen=True)
class Relation:
    """A relation between parameters of a space, as in ``pe_rows == pe_columns``.

    It compares sums, products and floor quotients of parameters and constants. ``text`` is as it
    was written, ``names`` are the parameters in it.
    """

    text: str
    names: frozenset[str]
    tree: ast.expr = field(compare=False, repr=False)

    def holds(self, point: Mapping[str, Any]) -> bool:
        """True if a point satisfies the relation.

        Raises :class:`SpecError` where it has no value: types that do not compare, a quotient by 0.
        """
        try:
            return bool(_value(self.tree, point))
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            values = ", ".join(f"{name} = {point[name]!r}" for name in sorted(self.names))
            raise SpecError(f"{self.text!r} has no value at {values}: {error}") from None


def read_relation(text: str, parameters: Collection[str]) -> Relation:
    """Parse a relation between some parameters.

    Raises :class:`SpecError` for a text that is no relation or has an unknown parameter.
    """
    if len(text) > MAX_RELATION_LENGTH:
        raise SpecError(f"{text!r} is longer than {MAX_RELATION_LENGTH} characters")
    # Spaces come from anybody: the text is parsed as an expression of Python and its tree walked
    # below, but Python evaluates nothing of it.
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(f"{text!r} is no expression; {_ALLOWED}") from None
    if not isinstance(tree, ast.Compare):
        raise SpecError(f"{text!r} compares nothing; {_ALLOWED}")
    if not all(type(op) in _COMPARISONS for op in tree.ops):
        raise SpecError(f"{text!r}: this comparison is not allowed; {_ALLOWED}")
    sides = (tree.left, *tree.comparators)
    names = frozenset[str]().union(*(_names(side, text) for side in sides))
    for name in sorted(names):
        if name not in parameters:
            raise SpecError(f"{text!r}: no parameter {name!r}{close_match(name, parameters)}")
    return Relation(text, names, tree)


def _names(node: ast.AST, text: str) -> set[str]:
    """Return the parameters in a side of a comparison, all of whose parts are allowed."""
    match node:
        case ast.Name(id=name):
            return {name}
        # True and False are integers of Python, but no values of parameters.
        case ast.Constant(value=int() | float() | str() as value) if not isinstance(value, bool):
            return set()
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _names(left, text) | _names(right, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _names(operand, text)
        case _:
            part = ast.unparse(node)
            raise SpecError(f"{text!r}: {part!r} is not allowed; {_ALLOWED}")


def _value(node: ast.AST, point: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            return point[name]
        case ast.Constant(value=value):
            return value
        case ast.Compare(left=left, ops=ops, comparators=rest):
            values = [_value(side, point) for side in (left, *rest)]
            pairs = zip(ops, values, values[1:], strict=False)
            return all(_COMPARISONS[type(op)](first, second) for op, first, second in pairs)
        case ast.BinOp(left=left, op=op, right=right):
            first, second = _value(left, point), _value(right, point)
            if isinstance(first, str) or isinstance(second, str):
                raise TypeError("text is compared, not computed with")
            value = _OPERATIONS[type(op)](first, second)
            # A product of products of a long relation would otherwise take any time and memory.
            if abs(value) > _MAX_VALUE:
                raise OverflowError("a number beyond any size")
            return value
        case ast.UnaryOp(operand=operand):
            return -_value(operand, point)
        case _:
            raise AssertionError("read_relation lets nothing else pass")


class RangeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of values, both ends included.

    ``{ from = 1, to = 8 }``, ``{ from = 16, to = 64, step = 16 }``, or
    ``{ from = 4, to = 64, powers_of_two = true }``.
    """

    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")
    step: int = 1
    powers_of_two: bool = False


class SpaceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a file."""

    name: str
    description: str
    family: str
    parameters: dict[str, list[int | float | str] | RangeTable]
    source: str | None = None
    fixed: dict[str, int | float | str] = {}
    where: list[str] = []
    limits: dict[str, str | int | float] = {}
    objectives: list[str] = msgspec.field(default_factory=lambda: list(DEFAULT_OBJECTIVES))


@dataclass(frozen=True)
class Space:
    """Machines of a family by the values of ``parameters``, ascending where they are numbers.

    ``fixed`` has the values that all points share, with the family's defaults. Points have to
    satisfy the ``relations``.
    """

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
        """Number of combinations of values, with those that relations exclude."""
        return math.prod(len(values) for values in self.parameters.values())

    def places(self) -> Iterator[Place]:
        """Yield all points that satisfy the relations."""
        for place in itertools.product(*(range(len(v)) for v in self.parameters.values())):
            if self.violated(self.point(place)) is None:
                yield place

    def number(self, place: Place) -> int:
        """Return the number of a combination, from 0; the last parameter changes the fastest."""
        # Mixed radix: a parameter is a digit whose base is the number of its values.
        number = 0
        for position, values in zip(place, self.parameters.values(), strict=True):
            number = number * len(values) + position
        return number

    def point(self, place: Place) -> Point:
        """Return the values of all parameters, with those that are fixed."""
        pairs = zip(self.parameters.items(), place, strict=True)
        return {**self.fixed, **{name: values[position] for (name, values), position in pairs}}

    def violated(self, point: Point) -> Relation | None:
        """Return the first relation that a combination does not satisfy."""
        return next((r for r in self.relations if not r.holds(point)), None)

    def flaw(self, point: Point) -> str | None:
        """Return the reason why a combination is no machine of the space, or None."""
        relation = self.violated(point)
        if relation is not None:
            return f"{relation.text} does not hold"
        return self.family.flaw(point)

    def evaluated(
        self, place: Place, costing: Costing, limits: Sequence[Limit]
    ) -> EvaluatedPoint | None:
        """Return a point whose requests are all answered; None where a layer has no software there.

        Parameters
        ----------
        place
            Positions of the point's values.
        costing
            Costs of the layers.
        limits
            Limits, the first of which that the point is above is noted.
        """
        point = self.point(place)
        layers: list[LayerCosts] = []
        for layer in costing.layers:
            layer_costs = costing.costs(point, layer)
            if layer_costs is None:
                return None
            layers.append(layer_costs)
        costs = total([item.costs.times(item.layer.count) for item in layers])
        machine = Machine.at(self.family, point)
        return EvaluatedPoint(
            number=self.number(place),
            place=place,
            point=point,
            machine=machine,
            layers=tuple(layers),
            costs=costs,
            beyond=exceeded(limits, lambda objective: objective.value(machine, costs)),
        )

    def varied(self, point: Point) -> dict[str, Value]:
        """Return the values of the parameters that vary."""
        return {name: point[name] for name in self.parameters}


def read_space(path: Path) -> Space:
    """Read a space from a file.

    Every fault is a one-line :class:`SpecError`: file, key, what is wrong, what is allowed.
    """
    return _Reader(path).space()


class _Reader:
    """Checks the contents of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table = read_table(path, SpaceTable)
        with self._at("family"):
            self._family = open_family(self._table.family)
        self._family_parameters = {
            parameter.name: parameter for parameter in self._family.parameters
        }

    def space(self) -> Space:
        table = self._table
        if not table.parameters:
            raise self._error(
                ("parameters",), f"is empty; allowed: {joined(self._family_parameters)}"
            )
        parameters = {
            name: self._values(("parameters", name), values)
            for name, values in table.parameters.items()
        }
        fixed = self._fixed()
        names = {*parameters, *fixed}
        relations: list[Relation] = []
        for position, text in enumerate(table.where):
            with self._at("where", position):
                relations.append(read_relation(text, names))
        limits = self._limits()
        with self._at("objectives"):
            objectives = read_objectives(table.objectives)
        return Space(
            name=table.name,
            description=table.description,
            source=table.source,
            family=self._family,
            fixed=fixed,
            parameters=parameters,
            relations=tuple(relations),
            limits=limits,
            objectives=objectives,
        )

    def _values(self, key: Key, values: list[int | float | str] | RangeTable) -> tuple[Value, ...]:
        self._require_parameter(key)
        if isinstance(values, RangeTable):
            return self._range(key, values)
        if not values:
            raise self._error(key, "is empty: name at least one value")
        if len(values) > MAX_VALUES:
            raise self._error(key, f"has more than {MAX_VALUES:,} values")
        texts = [value for value in values if isinstance(value, str)]
        if texts and len(texts) != len(values):
            raise self._error(key, "has text and numbers: values are of one kind")
        if any(isinstance(value, float) and not math.isfinite(value) for value in values):
            raise self._error(key, "has a value that is no finite number")
        if len(set(values)) != len(values):
            twice = next(value for value in values if values.count(value) > 1)
            raise self._error(key, f"has {twice!r} twice: keep one")
        # Ascending, so that neighbouring positions are neighbouring sizes.
        return tuple(values) if texts else tuple(sorted(values))

    def _range(self, key: Key, table: RangeTable) -> tuple[Value, ...]:
        # Every fault of a range is found here: range() would return an empty one.
        if table.first > table.last:
            raise self._error(key, f"from {table.first} is above to {table.last}")
        if table.powers_of_two:
            if table.step != 1:
                raise self._error((*key, "step"), "powers of two have no step: leave one out")
            for name, value in (("from", table.first), ("to", table.last)):
                if value < 1 or value & (value - 1) or value > 2**62:
                    raise self._error((*key, name), f"{value} is no power of two")
            exponents = range(table.first.bit_length() - 1, table.last.bit_length())
            return tuple(2**exponent for exponent in exponents)
        if table.step < 1:
            raise self._error((*key, "step"), f"{table.step} is no integer of at least 1")
        if (table.last - table.first) % table.step:
            problem = f"{table.last} is not reached from {table.first} in steps of {table.step}"
            raise self._error((*key, "to"), problem)
        # Before the range is listed, which might take all memory.
        if (table.last - table.first) // table.step >= MAX_VALUES:
            raise self._error(key, f"has more than {MAX_VALUES:,} values")
        return tuple(range(table.first, table.last + 1, table.step))

    def _fixed(self) -> dict[str, Value]:
        """Return the fixed values, with the family's defaults."""
        table = self._table
        fixed: dict[str, Value] = {}
        for name, value in table.fixed.items():
            self._require_parameter(("fixed", name))
            if name in table.parameters:
                raise self._error(("fixed", name), "is a parameter too: leave it out in one place")
            if isinstance(value, float) and not math.isfinite(value):
                raise self._error(("fixed", name), "is no finite number")
            fixed[name] = value
        for name, parameter in self._family_parameters.items():
            if name in fixed or name in table.parameters:
                continue
            if parameter.default is None:
                problem = f"is missing; family {self._family.name} needs {parameter.words}"
                raise self._error(("parameters", name), f"{problem} (here or under [fixed])")
            fixed[name] = parameter.default
        return fixed

    def _limits(self) -> tuple[Limit, ...]:
        limits: list[Limit] = []
        for name, value in self._table.limits.items():
            with self._at("limits", name):
                limits += read_limits([f"{name}={value}"])
        return tuple(limits)

    def _require_parameter(self, key: Key) -> None:
        name = str(key[-1])
        if name not in self._family_parameters:
            allowed = joined(self._family_parameters)
            near = close_match(name, self._family_parameters)
            problem = f"unknown parameter; family {self._family.name} has {allowed}{near}"
            raise self._error(key, problem)

    @contextmanager
    def _at(self, *key: str | int) -> Generator[None]:
        """Name the file and the key in errors."""
        try:
            yield
        except SpecError as error:
            raise self._error(key, str(error)) from None

    def _error(self, key: Key, problem: str) -> SpecError:
        return spec_error(str(self._path), key, problem)
