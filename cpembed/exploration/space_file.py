"""Spaces of machines as TOML files, and as targets whose keys a command varies.

The format is described in ``docs/exploration.md``.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from cpembed.errors import SpecError
from cpembed.exploration.described.family import Choices, DescribedFamily, described_family
from cpembed.exploration.described.keys import read_key
from cpembed.exploration.objectives import (
    DEFAULT_OBJECTIVES,
    Limit,
    read_limits,
    read_objectives,
)
from cpembed.exploration.options import ExploreOptions
from cpembed.exploration.relations import (
    Expression,
    Relation,
    names_in,
    read_expression,
    read_relation,
)
from cpembed.exploration.space import Space
from cpembed.exploration.values import labelled, read_values, step_range, times_range
from cpembed.files import read_toml
from cpembed.hw.loader import specification_file
from cpembed.hw.schema import Key, close_match, convert_table, joined, key_path, spec_error
from cpembed.targets.family import Family, Parameter, Value, open_family


class RangeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of values, both ends included.

    ``{ from = 1, to = 8 }``, ``{ from = 16, to = 64, step = 16 }``, ``{ from = 3, to = 48, times =
    2 }``, or ``{ from = 4, to = 64, powers_of_two = true }``.
    """

    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")
    step: int = 1
    times: int | None = None
    powers_of_two: bool = False


class SpaceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a file.

    It names a ``family`` of machines, or the specification of a ``target`` whose keys vary; then
    ``machine`` is one of the target's, ``technology`` has the tables of area and energy, and
    ``constraints`` names the set of embeddings.
    """

    name: str
    description: str
    family: str | None = None
    target: str | None = None
    machine: str | None = None
    technology: str | None = None
    constraints: str | None = None
    # Any values: those of a target's keys may be arrays.
    parameters: dict[str, list[Any] | RangeTable] = {}
    source: str | None = None
    fixed: dict[str, int | float | str] = {}
    derived: dict[str, str] = {}
    where: list[str] = []
    limits: dict[str, str | int | float] = {}
    objectives: list[str] | None = None


def read_space(space: Path | str, additions: ExploreOptions | None = None) -> Space:
    """Read a space from its file, or make one of a target whose keys vary.

    Parameters
    ----------
    space
        File of a space, or a target by its name or file.
    additions
        Options whose parameters, derived values and relations are besides those of the file, and
        whose machine, technology and constraint set replace them.

    Raises
    ------
    SpecError
        In one line: file, key, what is wrong, what is allowed.
    """
    path, table = _space_table(space)
    return _Reader(path, table, additions or ExploreOptions()).space()


def _space_table(space: Path | str) -> tuple[Path, SpaceTable]:
    """Return the table of a file; that of a target has its name and no parameters yet."""
    path = Path(space)
    if path.suffix != ".toml" and not path.exists():
        path = specification_file(str(space)).path
    contents = read_toml(path)
    if "instruction" in contents or "instructions" in contents:
        name, words = (str(contents.get(key, path.stem)) for key in ("name", "description"))
        # The file itself is the target, wherever its name is looked up from.
        return path, SpaceTable(name=name, description=words, target=str(path.resolve()))
    return path, convert_table(contents, SpaceTable, lambda _: str(path))


class _Reader:
    """Checks the contents of a file."""

    def __init__(self, path: Path, table: SpaceTable, additions: ExploreOptions) -> None:
        self._path, self._table, self._additions = path, table, additions
        # Names that the command line gives, whose errors name no file.
        self._origins: dict[str, str] = {}
        self._values_of = self._all_values()
        self._derived = {**table.derived, **self._pairs("--derive", additions.derived)}
        self._relations = [*table.where, *additions.where]
        self._family = self._opened()
        self._family_parameters = {
            parameter.name: parameter for parameter in self._family.parameters
        }
        if isinstance(self._family, DescribedFamily):
            self._family_parameters = {
                name: Parameter(name, "a key of the target")
                for name in {**self._values_of, **self._table.fixed, **self._derived}
            }

    def space(self) -> Space:
        table = self._table
        parameters: dict[str, tuple[Value, ...]] = {}
        for name, values in self._values_of.items():
            self._require_parameter(("parameters", name))
            parameters[name] = tuple(values)
        if not parameters:
            remedy = "name keys by --vary KEY=VALUES"
            if not isinstance(self._family, DescribedFamily):
                remedy = f"allowed: {joined(self._family_parameters)}"
            raise self._error(("parameters",), f"is empty; {remedy}")
        fixed = self._fixed(parameters)
        names = {*parameters, *fixed}
        derived: dict[str, Expression] = {}
        for name, text in self._derived.items():
            with self._at("derived", name):
                self._require_parameter(("derived", name))
                derived[name] = read_expression(text, names)
            names.add(name)
        relations: list[Relation] = []
        for position, text in enumerate(self._relations):
            with self._at("where", position):
                relations.append(read_relation(text, names))
        numeric = [name for name, values in parameters.items() if not isinstance(values[0], str)]
        with self._at("objectives"):
            objectives = read_objectives(self._objectives(), numeric)
        return Space(
            name=table.name,
            description=table.description,
            source=table.source,
            family=self._family,
            fixed=fixed,
            parameters=parameters,
            relations=tuple(relations),
            limits=self._limits(),
            objectives=objectives,
            derived=derived,
        )

    # -- the family -------------------------------------------------------------------------------

    def _opened(self) -> Family:
        table, additions = self._table, self._additions
        if (table.family is None) == (table.target is None):
            if table.family is None:
                problem = (
                    "is missing: name a family of machines, or by `target` a file whose keys vary"
                )
                raise self._error(("family",), problem)
            raise self._error(("target",), "stands beside `family`: leave one of them out")
        if table.target is None:
            for key in ("machine", "technology", "constraints"):
                if (getattr(table, key) or getattr(additions, key)) is not None:
                    problem = f"is for a target; a point of family {table.family} says it itself"
                    raise self._error((key,), problem)
            with self._at("family"):
                return open_family(table.family or "")
        target = table.target
        if target.endswith(".toml"):
            # Relative to the space's own file, wherever the command is called.
            target = str(self._path.parent / target)
        names = frozenset[str]().union(*map(names_in, (*self._relations, *self._derived.values())))
        with self._at("target"):
            file = specification_file(target)
        labels: dict[str, Mapping[Value, Any]] = dict(self._values_of)
        labels |= {name: {value: value} for name, value in table.fixed.items()}
        labels |= {name: dict[Value, Any]() for name in self._derived}
        choices = Choices(
            machine=additions.machine or table.machine,
            technology=additions.technology or table.technology,
            constraints=additions.constraints or table.constraints,
        )
        return described_family(
            file,
            labels,
            names,
            choices,
            lambda name, problem: self._error(self._place(name), problem),
        )

    def _place(self, name: str) -> Key:
        """Return the key of the space at which a parameter stands."""
        if name in self._table.fixed:
            return "fixed", name
        return ("derived" if name in self._derived else "parameters"), name

    def _objectives(self) -> Sequence[str]:
        if self._table.objectives is not None:
            return self._table.objectives
        if isinstance(self._family, DescribedFamily):
            return self._family.default_objectives
        return DEFAULT_OBJECTIVES

    # -- values -----------------------------------------------------------------------------------

    def _all_values(self) -> dict[str, dict[Value, Any]]:
        """Return the values of each parameter by their labels."""
        parameters: dict[str, list[Any] | RangeTable] = {}
        is_target = self._table.target is not None
        for name, values in self._table.parameters.items():
            with self._at("parameters", name):
                # One spelling for each key, so that relations find it.
                parameters[key_path(read_key(name)) if is_target else name] = values
        for name, text in self._pairs("--vary", self._additions.vary).items():
            with self._at("parameters", name):
                parameters[name] = read_values(text)
        return {
            name: self._values(("parameters", name), values) for name, values in parameters.items()
        }

    def _pairs(self, option: str, texts: Sequence[str]) -> dict[str, str]:
        """Return the values of an option, ``KEY=TEXT``, by key."""
        pairs: dict[str, str] = {}
        for text in texts:
            name, equals, value = text.partition("=")
            try:
                if not equals:
                    raise SpecError("it is not KEY=VALUES, such as instruction.axes.x=8,16,32")
                name = key_path(read_key(name)) if self._table.target is not None else name.strip()
                if name in pairs:
                    raise SpecError(f"{name} is given twice: keep one")
            except SpecError as error:
                raise SpecError(f"{option} {text!r}: {error}") from None
            pairs[name] = value.strip()
            self._origins[name] = option
        return pairs

    def _values(self, key: Key, values: list[Any] | RangeTable) -> dict[Value, Any]:
        if isinstance(values, RangeTable):
            return {value: value for value in self._range(key, values)}
        if self._table.target is None:
            texts = [value for value in values if isinstance(value, str)]
            if texts and len(texts) != len(values):
                raise self._error(key, "has text and numbers: values are of one kind")
            for place, value in enumerate(values):
                if isinstance(value, bool) or not isinstance(value, int | float | str):
                    problem = f"{value!r} is no number and no word"
                    raise self._error((*key, place), problem)
        with self._at(*key):
            return labelled(values)

    def _range(self, key: Key, table: RangeTable) -> Sequence[int]:
        # Every fault of a range is found here: range() would return an empty one.
        first, last, factor = table.first, table.last, table.times
        if table.powers_of_two or factor is not None:
            if table.step != 1:
                raise self._error((*key, "step"), "powers of two have no step: leave one out")
            if table.powers_of_two and factor is not None:
                raise self._error((*key, "times"), "powers of two have no factor: leave one out")
            for name, value in (("from", first), ("to", last)) * table.powers_of_two:
                if value < 1 or value & (value - 1) or value > 2**62:
                    raise self._error((*key, name), f"{value} is no power of two")
        if table.step < 1:
            raise self._error((*key, "step"), f"{table.step} is no integer of at least 1")
        # Errors of a range in order name its end, as both others are in the file's own keys.
        with self._at(*key, *(["to"] if first <= last else [])):
            if table.powers_of_two or factor is not None:
                return times_range(first, last, 2 if factor is None else factor)
            return step_range(first, last, table.step)

    def _fixed(self, parameters: Mapping[str, object]) -> dict[str, Value]:
        """Return the fixed values, with the family's defaults."""
        table, family = self._table, self._family
        fixed: dict[str, Value] = {}
        for written, value in table.fixed.items():
            is_target = isinstance(family, DescribedFamily)
            name = key_path(read_key(written)) if is_target else written
            self._require_parameter(("fixed", written))
            if name in parameters or name in self._derived:
                raise self._error(("fixed", name), "is a parameter too: leave it out in one place")
            if isinstance(value, float) and not math.isfinite(value):
                raise self._error(("fixed", name), "is no finite number")
            fixed[name] = value
        if isinstance(family, DescribedFamily):
            return {**family.constants, **fixed}
        for name, parameter in self._family_parameters.items():
            if name in fixed or name in parameters or name in self._derived:
                continue
            if parameter.default is None:
                problem = f"is missing; family {family.name} needs {parameter.words}"
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
        if isinstance(self._family, DescribedFamily):
            return
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
        part, name = key[0], key[1] if len(key) > 1 else None
        if (option := self._origins.get(str(name))) is not None:
            return SpecError(f"{option} {name}: {problem}")
        if part == "where" and isinstance(name, int) and name >= len(self._table.where):
            return SpecError(f"--where {problem}")
        return spec_error(str(self._path), key, problem)
