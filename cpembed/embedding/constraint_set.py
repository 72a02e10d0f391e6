"""Constraint sets: selected constraints with their parameters, as data in a TOML file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from cpembed.embedding.constraints import CONSTRAINTS, constraint_names, find_constraint
from cpembed.embedding.constraints.base import Constraint
from cpembed.embedding.constraints.domain import Padding
from cpembed.embedding.constraints.isomorphism import Dataflow
from cpembed.embedding.node_map import NodeMap
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.errors import InvariantError, SpecError
from cpembed.files import read_toml
from cpembed.hw.schema import close_match
from cpembed.plugins import plugin_file, plugin_files
from cpembed.resources import constraint_files, read_once

T = TypeVar("T")
_LARGEST = 2**31 - 1
"""Largest integer in a set; extents and counts are below it."""

_META_KEYS = ("name", "description", "extends", "weights", "flatten")


@dataclass(frozen=True)
class Weights:
    """Weights of the MAC and data overheads in the score (section 4.4)."""

    mac: float = 1.0
    data: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("mac", self.mac), ("data", self.data)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}: a weight is a number of at least 0")


@dataclass(frozen=True)
class Flatten:
    """Rule for axes that are fused into one before it is split; it enlarges the space.

    Attributes
    ----------
    max_axes : int
        Maximum number of axes in a group; the axes of a group index the same operands. 1 fuses
        nothing.
    min_extent : int
        Minimum extent of an axis in a group.
    plain : bool
        True to keep a digit on a fused axis that several digits on its members express as well.
        Where an instruction axis may have one digit only, nothing else gives those tiles.
    """

    max_axes: int = 1
    min_extent: int = 1
    plain: bool = False

    def __post_init__(self) -> None:
        if self.max_axes < 1:
            raise ValueError(f"max_axes is {self.max_axes}: at least 1 (1 fuses nothing)")
        if self.min_extent < 1:
            raise ValueError(f"min_extent is {self.min_extent}: at least 1")


@dataclass(frozen=True)
class ConstraintSet:
    """Constraints, unique by name, in the order in which they are posted."""

    name: str
    description: str
    constraints: tuple[Constraint, ...]
    weights: Weights = Weights()
    flatten: Flatten = Flatten()

    def __post_init__(self) -> None:
        # The registry's order, whatever the file's: a constraint may rely on what an earlier one
        # posted. Those that other distributions add come last.
        order = {name: place for place, name in enumerate(CONSTRAINTS)}
        posted = sorted(self.constraints, key=lambda c: order.get(c.name, len(order)))
        object.__setattr__(self, "constraints", tuple(posted))

    def get(self, name: str) -> Constraint | None:
        return next((c for c in self.constraints if c.name == name), None)

    @property
    def padding(self) -> Padding:
        """Padding rule of the set; without one, axes keep their extents."""
        padding = self.get("padding")
        return padding if isinstance(padding, Padding) else Padding()

    @property
    def commutes(self) -> bool:
        """True if the factors of a product are tried in either role."""
        dataflow = self.get("dataflow")
        return isinstance(dataflow, Dataflow) and dataflow.commute

    def with_commuted_operands(self) -> ConstraintSet:
        """Return the set that tries the factors of a product in either role."""
        return self.replacing(Dataflow(commute=True))

    def removing(self, *names: str) -> ConstraintSet:
        """Return the set without the named constraints."""
        remaining = tuple(c for c in self.constraints if c.name not in names)
        return dataclasses.replace(self, constraints=remaining)

    def replacing(self, constraint: Constraint) -> ConstraintSet:
        """Return the set with one constraint exchanged for another of the same name."""
        changed = tuple(constraint if c.name == constraint.name else c for c in self.constraints)
        return dataclasses.replace(self, constraints=changed)

    def check(self, problem: EmbeddingProblem, node_map: NodeMap) -> None:
        """Have every constraint judge a node map that a model found.

        Raises :class:`InvariantError` if one rejects it: a defect of the posted model.
        """
        for constraint in self.constraints:
            if not constraint.holds(problem, node_map):
                raise InvariantError(
                    f"a solution of the model violates {constraint.name}: please report this with "
                    f"the workload {problem.workload} and the target {problem.instruction.name}"
                )


def load_constraint_set(name_or_path: str) -> ConstraintSet:
    """Load a shipped set or one that a distribution adds by name, or a user's file by path.

    Raises :class:`SpecError` naming the file, the key and what is allowed.
    """
    files = constraint_files()
    if name_or_path in files:
        path = files[name_or_path]
    else:
        path = Path(name_or_path)
        if path.suffix != ".toml":
            path = plugin_file("cpembed.constraint_sets", name_or_path) or _unknown(name_or_path)
    return _load(path)


@read_once
def _load(path: Path) -> ConstraintSet:
    tables = _read(path, ())
    return ConstraintSet(
        name=str(tables.pop("name", path.stem)),
        description=str(tables.pop("description", "")),
        weights=_convert(tables.pop("weights", {}), Weights, path, "weights"),
        flatten=_convert(tables.pop("flatten", {}), Flatten, path, "flatten"),
        constraints=_constraints(tables, path),
    )


def _unknown(name: str) -> NoReturn:
    shipped = constraint_files()
    files = {**shipped, **plugin_files("cpembed.constraint_sets", shipped)}
    raise SpecError(
        f"no constraint set named {name!r}: there are {', '.join(sorted(files))}, or give the path "
        f"of a .toml file{close_match(name, files)}"
    )


def _read(path: Path, extended: tuple[Path, ...]) -> dict[str, Any]:
    """Return the tables of a file over those of the set that it extends.

    ``extended`` are the files that extend this one, by which a circle is found.
    """
    tables = read_toml(path)
    for key in tables:
        if key not in _META_KEYS and find_constraint(key) is None:
            allowed = [*_META_KEYS, *constraint_names()]
            hint = close_match(key, allowed)
            raise SpecError(f"{path}: unknown key {key!r}{hint}: allowed are {', '.join(allowed)}")
    for key in ("name", "description", "extends"):
        if not isinstance(tables.get(key, ""), str):
            raise SpecError(f"{path}: {key} is {tables[key]!r}: write a text in quotes")
    base = tables.pop("extends", None)
    if base is None:
        return tables
    # A shipped set, else one beside the file, else one of another distribution.
    parent = constraint_files().get(str(base), path.parent / f"{base}.toml")
    if not _exists(parent):
        parent = plugin_file("cpembed.constraint_sets", str(base)) or parent
    if not _exists(parent):
        shipped = ", ".join(sorted(constraint_files()))
        raise SpecError(f"{path}: extends {base!r}, which is no set: shipped are {shipped}")
    if parent in extended or parent == path:
        raise SpecError(f"{path}: extends {base!r}, which extends this set again: remove one")
    return {**_read(parent, (*extended, path)), **tables}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the name is too long for a file
        return False


def _constraints(tables: Mapping[str, Any], path: Path) -> tuple[Constraint, ...]:
    # `key = false` removes an inherited constraint.
    kinds = {name: find_constraint(name) for name in tables if tables[name] is not False}
    constraints = tuple(
        _convert(tables[name], kind, path, name) for name, kind in kinds.items() if kind is not None
    )
    if not any(c.name == "hyper_rectangle" for c in constraints):
        for constraint in constraints:
            if constraint.needs_boxes:
                raise SpecError(
                    f"{path}: {constraint.name} speaks of the boxes that hyper_rectangle defines: "
                    f"add [hyper_rectangle] or remove {constraint.name}"
                )
    return constraints


def _convert(table: object, kind: type[T], path: Path, key: str) -> T:
    allowed = [field.name for field in dataclasses.fields(cast("Any", kind))]
    if not isinstance(table, dict):
        raise SpecError(f"{path}: {key} must be a table with {', '.join(allowed) or 'no keys'}")
    for name in cast("dict[str, object]", table):
        if name not in allowed:
            raise SpecError(
                f"{path}: unknown key {key}.{name}: allowed are {', '.join(allowed) or 'none'}"
            )
    for number in _integers(cast("object", table)):
        if abs(number) > _LARGEST:
            raise SpecError(f"{path}: {key}: {number} is beyond any size: at most {_LARGEST}")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        # msgspec writes the path of a key within the table as `$.key`.
        raise SpecError(f"{path}: {key}: {error}".replace("`$.", "`")) from None


def _integers(value: object) -> Iterator[int]:
    """Yield the integers of a table, at any depth."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict | list):
        items = cast("Iterable[object]", value.values() if isinstance(value, dict) else value)
        for item in items:
            yield from _integers(item)
