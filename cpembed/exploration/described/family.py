"""Families of machines that a person's file describes, by the values of some of its keys.

A point gives values to keys of the file's tables, of which the ordinary reader makes a machine in
memory. What a layer costs there is known by the two kinds of families: of one instruction that is
embedded (:mod:`~cpembed.exploration.described.embedded`), and of instruction sets for which whole
programs are planned (:mod:`cpembed.accelerator.family`).
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from cpembed.driver.bench_layers import NamedSuite
from cpembed.errors import SpecError
from cpembed.exploration.described.keys import ABSENT, read_key, replaced, require_place, value_at
from cpembed.exploration.described.silicon import DEFAULT_TECHNOLOGY
from cpembed.hw.isa_reader import describes_instruction_set
from cpembed.hw.schema import Key, joined, key_path
from cpembed.hw.specification import SpecificationFile, Tables
from cpembed.hw.toml_text import toml_text
from cpembed.targets.family import Activity, Choice, Family, Parameter, Point, Value

PRESENT, REMOVED = "present", "absent"
"""Words for a key as the file has it, and for a key that is removed."""

# Strings, since a family's model is imported only for files of its kind, and the planner of
# accelerators is above the exploration.
ONE_INSTRUCTION = "cpembed.exploration.described.embedded:EmbeddedFamily"
INSTRUCTION_SET = "cpembed.accelerator.family:AcceleratorFamily"
"""Families of files with an ``[instruction]``, and with ``[[instructions]]``."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Choices of a space for its target besides keys; None for the defaults.

    ``machine`` is one of the target's, ``technology`` has the tables of area and energy,
    ``constraints`` names the set of embeddings.
    """

    machine: str | None = None
    technology: str | None = None
    constraints: str | None = None


@dataclass(frozen=True)
class Description:
    """Tables of a point, compared by their contents."""

    digest: str
    file: SpecificationFile = field(compare=False)
    tables: Tables = field(compare=False)

    @staticmethod
    def from_tables(file: SpecificationFile, tables: Tables) -> Description:
        text = json.dumps([str(file.path.name), tables], sort_keys=True, default=str)
        return Description(hashlib.sha256(text.encode()).hexdigest()[:32], file, tables)


class DescribedFamily(Family):
    """Machines of a file by the values of some of its keys.

    ``labels`` has the values of each key by the words that stand for them in a point, ``file`` the
    tables in which they are replaced.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = ()
    knows_costs: ClassVar[bool] = True

    def __init__(
        self,
        file: SpecificationFile,
        labels: Mapping[str, Mapping[Value, Any]],
        constants: Mapping[str, Value],
        choices: Choices,
    ) -> None:
        self.file = file
        self.labels = {name: dict(values) for name, values in labels.items()}
        self.constants = dict(constants)
        """Keys of the file that relations mention and that do not vary."""
        self.machine = choices.machine
        self.technology = choices.technology or DEFAULT_TECHNOLOGY
        self.constraints = choices.constraints
        self.needs_silicon = False
        """True if a point without figures of area and energy is no machine."""
        self._keys = {name: read_key(name) for name in self.labels}
        self._descriptions: dict[tuple[tuple[str, Value], ...], Description] = {}

    @classmethod
    @abstractmethod
    def check_file(cls, file: SpecificationFile, choices: Choices) -> None:
        """Check the file as it is, and the choices; raise :class:`SpecError` for a fault."""

    @classmethod
    @abstractmethod
    def check_types(cls, file: SpecificationFile, tables: Tables) -> None:
        """Check that tables have known keys and values of their types.

        Values of a point may be right only together, so that no machine is made.
        """

    @property
    @abstractmethod
    def default_objectives(self) -> tuple[str, ...]:
        """Objectives where none are named."""

    @property
    @abstractmethod
    def silicon_flaw(self) -> str | None:
        """Reason why the file as it is has no area and energy; None if it has."""

    @abstractmethod
    def suite(self, name: str, shapes: Mapping[str, Any] | None) -> NamedSuite:
        """Return the layers of a suite or a model, which is prepared for the target."""

    @abstractmethod
    def require_machine(self, point: Point) -> None:
        """Raise :class:`SpecError` where a point is no machine that the exploration can cost."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out tables of points, which another process makes anew."""
        return {**self.__dict__, "_descriptions": {}}

    def tables(self, point: Point) -> Tables:
        """Return the contents of the file with the values of a point."""
        return self.description(point).tables

    def digest(self, point: Point) -> str:
        """Return a digest of the contents of the file with the values of a point."""
        return self.description(point).digest

    def description(self, point: Point) -> Description:
        """Return the contents of the file with the values of a point, and their digest."""
        key = tuple(sorted(point.items()))
        # A search asks for the same points again and again, once for each layer and objective.
        if key not in self._descriptions:
            self._descriptions[key] = self._built(point)
        return self._descriptions[key]

    def _built(self, point: Point) -> Description:
        tables: Tables = self.file.merged
        for name, key in self._keys.items():
            if name not in point:
                continue
            label = point[name]
            if label == PRESENT:
                continue
            # A derived value has no label.
            value = self.labels[name].get(label, label)
            tables = replaced(tables, key, ABSENT if label == REMOVED else value)
        return Description.from_tables(self.file, tables)

    def flaw(self, point: Point) -> str | None:
        try:
            self.require_machine(point)
        except SpecError as error:
            return str(error).removeprefix(f"{self.file.path}: ")
        return None

    def specification(self, point: Point) -> str:
        """Return the tables of the point as TOML; comments of the file are not in it."""
        values = ", ".join(f"{name} = {point[name]}" for name in self.labels if name in point)
        head = f"# {self.file.path.name} with {values}.\n\n"
        return head + toml_text(self.tables(point))

    def evaluate(self, point: Point, workload: Any, choice: Choice) -> Activity:
        """Return the activity of the choice; no search calls this, as every choice has one."""
        assert choice.activity is not None
        return choice.activity


def described_family(
    file: SpecificationFile,
    labels: Mapping[str, Mapping[Value, Any]],
    mentioned: Collection[str],
    choices: Choices,
    error: Callable[[str, str], SpecError],
) -> DescribedFamily:
    """Return the family of a specification, whose keys and values are checked.

    Parameters
    ----------
    file
        The specification, of one instruction or of an instruction set.
    labels
        Values of the keys that vary or are set, by their labels; none for a key that an expression
        sets.
    mentioned
        Names in relations and expressions; those that are scalar keys of the file are constants.
    choices
        The machine, the tables, and the constraint set.
    error
        Makes the error of a key from its name and the problem.

    Raises
    ------
    SpecError
        For the first fault.
    """
    tables = file.merged
    place = INSTRUCTION_SET if describes_instruction_set(tables) else ONE_INSTRUCTION
    module, _, class_name = place.partition(":")
    kind: type[DescribedFamily] = getattr(import_module(module), class_name)
    kind.check_file(file, choices)
    for name, by_label in labels.items():
        key = read_key(name)
        try:
            require_place(tables, key)
            _require_known_key(kind, file, key)
            for label, value in by_label.items():
                _check_value(kind, file, key, label, value)
        except SpecError as problem:
            text = str(problem).removeprefix(f"{file.path}: ").removeprefix(f"{name}: ")
            raise error(name, text) from None
    constants = _constants(tables, set(mentioned) - set(labels))
    named = {**labels, **{name: {value: value} for name, value in constants.items()}}
    return kind(file, named, constants, choices)


def _constants(tables: Tables, names: Collection[str]) -> dict[str, Value]:
    """Return the values of those names that are scalar keys of a file."""
    constants: dict[str, Value] = {}
    for name in sorted(names):
        value = value_at(tables, read_key(name))
        if isinstance(value, int | float | str):
            constants[name] = value
    return constants


def _require_known_key(kind: type[DescribedFamily], file: SpecificationFile, key: Key) -> None:
    """Reject a key that is not in the file where a table has keys of any name, such as axes."""
    tables = file.merged
    if value_at(tables, key) is not ABSENT:
        return
    probe = (*key[:-1], "no such key")
    try:
        kind.check_types(file, replaced(tables, probe, 1))
    except SpecError as error:
        # The keys of this table are a fixed list, so that a value of the key is checked by it.
        if "unknown key" in str(error):
            return
    names = value_at(tables, key[:-1])
    raise SpecError(f"there is no {key_path(key)}; allowed there: {joined(names)}")


def _check_value(
    kind: type[DescribedFamily], file: SpecificationFile, key: Key, label: Value, value: Any
) -> None:
    """Check that a value has the type that its key has, before any point is built."""
    if label == PRESENT:
        if value_at(file.merged, key) is ABSENT:
            raise SpecError(f"present: {file.path} has no such key")
        return
    kind.check_types(file, replaced(file.merged, key, ABSENT if label == REMOVED else value))
