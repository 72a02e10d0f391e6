"""The family of a person's own machine: a specification whose keys vary.

A point gives values to keys of the specification's tables, which the ordinary loader builds in
memory. A layer costs what ``cpembed solve --estimate --machine NAME --rank-by estimate`` says of it
there: of the best embeddings by their overheads the one of the least time, by the one function that
estimates the best program on a description
(:func:`~cpembed.cost.machine.estimate.estimate_program`). A layer that nothing embeds, or whose
embeddings the machine rejects, is left out with the reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from cpembed.cost.machine.estimate import Estimate, LevelEstimate, machine_of
from cpembed.cost.machine.technology import technology
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.bench_layers import NamedSuite, named_suite
from cpembed.driver.estimate import EstimateResult, estimate
from cpembed.driver.named import default_dtypes, is_typed, typed_by_roles
from cpembed.driver.options import EstimateOptions
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import LoweringError, SpecError
from cpembed.exploration.described.keys import ABSENT, read_key, replaced, require_place, value_at
from cpembed.exploration.described.silicon import (
    DEFAULT_TECHNOLOGY,
    Silicon,
    silicon,
    tile_bytes,
)
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.isa_reader import describes_instruction_set
from cpembed.hw.loader import build_hardware_spec
from cpembed.hw.machine import Hierarchy
from cpembed.hw.schema import Key, joined, key_path
from cpembed.hw.specification import SpecificationFile, Tables
from cpembed.hw.toml_text import toml_text
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.targets.family import Activity, Choice, Costs, Family, Parameter, Point, Value, Work
from cpembed.targets.known import require_known
from cpembed.workloads.suites import Layer

PRESENT, REMOVED = "present", "absent"
"""Words for a key as the file has it, and for a key that is removed."""

# A string, since the planner of accelerators is above the exploration and imported only for them.
ACCELERATORS = "cpembed.accelerator.family:accelerator_family"
"""Function that makes the family of a file with ``[[instructions]]``."""


class TileRow(msgspec.Struct, frozen=True):
    """The tile that the memories of a level hold; see ``LevelTiling``."""

    memories: list[str]
    tile: dict[str, int]
    order: list[str]
    units: int


class LayerSoftware(msgspec.Struct, frozen=True, kw_only=True):
    """The best embedding of a layer on a machine, with its estimate.

    ``cycles`` include packing and unpacking, ``packing_us`` is their part by operand. ``moved`` are
    the bytes that each memory takes from its parent and gives to it.
    """

    embedding: str
    mapping: str
    constraints: str
    executions: int
    utilisation: float
    cycles: float
    us: float
    packing_us: dict[str, float]
    bound: str
    exact: bool
    levels: list[LevelEstimate]
    tiling: list[TileRow]
    moved: dict[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Choices of a space for its target besides keys; None for the defaults.

    ``machine`` is one of the target's, ``technology`` has the tables of area and energy,
    ``constraints`` names the set of embeddings.
    """

    machine: str | None = None
    technology: str | None = None
    constraints: str | None = None


class DescribedFamily(Family):
    """Machines of a specification by the values of some of its keys.

    ``labels`` has the values of each key by the words that stand for them in a point, ``file`` the
    tables in which they are replaced.
    """

    name: ClassVar[str] = "described"
    analysis: ClassVar[Any] = LayerSoftware
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
        self._machines: dict[tuple[tuple[str, Value], ...], _Machine] = {}
        self._silicon: dict[str, Silicon | None] = {}

    @property
    def base(self) -> HardwareSpec:
        """The specification as it is in its file."""
        return _spec_of(_Machine.from_tables(self.file, self.file.merged))

    @property
    def default_objectives(self) -> tuple[str, ...]:
        """Objectives where none are named: time, with energy and area where tables have them."""
        return ("time", "energy", "area") if self.silicon_flaw is None else ("time",)

    @property
    def silicon_flaw(self) -> str | None:
        """Reason why the file as it is has no area and energy; None if it has."""
        try:
            silicon(self.base, machine_of(self.base, self.machine), self.technology)
        except SpecError as error:
            return str(error)
        return None

    def suite(self, name: str, shapes: Mapping[str, Any] | None) -> NamedSuite:
        """Return the layers of a suite or a model, which is prepared for the target."""
        return named_suite(name, self.base, shapes)

    # -- points -----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Leave out cached results of points, which another process computes anew."""
        return {**self.__dict__, "_machines": {}, "_silicon": {}}

    def tables(self, point: Point) -> Tables:
        """Return the contents of the file with the values of a point."""
        return self._described(point).tables

    def digest(self, point: Point) -> str:
        """Return a digest of the contents of the file with the values of a point."""
        return self._described(point).digest

    def _described(self, point: Point) -> _Machine:
        key = tuple(sorted(point.items()))
        # A search asks for the same points again and again, once for each layer and objective.
        if key not in self._machines:
            self._machines[key] = self._built(point)
        return self._machines[key]

    def _built(self, point: Point) -> _Machine:
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
        return _Machine.from_tables(self.file, tables)

    def spec(self, point: Point) -> HardwareSpec:
        """Return the target of a point; raise :class:`SpecError` where there is none."""
        return _spec_of(self._described(point))

    def hierarchy(self, point: Point) -> Hierarchy:
        """Return the machine of a point; raise :class:`SpecError` where there is none."""
        return machine_of(self.spec(point), self.machine)

    def silicon(self, point: Point) -> Silicon | None:
        """Return area and energies of a point; None where no table has them."""
        key = self._described(point).digest
        if key not in self._silicon:
            try:
                costs = silicon(self.spec(point), self.hierarchy(point), self.technology)
            except SpecError:
                costs = None
            self._silicon[key] = costs
        return self._silicon[key]

    def flaw(self, point: Point) -> str | None:
        try:
            spec, machine = self.spec(point), self.hierarchy(point)
            if self.needs_silicon:
                silicon(spec, machine, self.technology)
        except SpecError as error:
            return str(error).removeprefix(f"{self.file.path}: ")
        return None

    def clock_mhz(self, point: Point) -> float:
        return self.hierarchy(point).clock_mhz

    def area_um2(self, point: Point) -> float:
        costs = self.silicon(point)
        return float("nan") if costs is None else costs.area_um2

    def leakage_w(self, point: Point) -> float:
        costs = self.silicon(point)
        return float("nan") if costs is None else costs.leakage_w

    def energy_pj(self, point: Point, activity: Activity) -> float:
        costs = self.silicon(point)
        if costs is None:
            return float("nan")
        return costs.energy_pj(activity, self.hierarchy(point).clock_mhz)

    def specification(self, point: Point) -> str:
        """Return the tables of the point as TOML; comments of the file are not in it."""
        values = ", ".join(f"{name} = {point[name]}" for name in self.labels if name in point)
        head = f"# {self.file.path.name} with {values}.\n\n"
        return head + toml_text(self._described(point).tables)

    @cached_property
    def _constraints_text(self) -> str:
        """Name of the set; a file's contents, which may change under its name, by their digest."""
        name = self.constraints or ""
        if not name.endswith(".toml"):
            return name
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()[:32]

    # -- layers -----------------------------------------------------------------------------------

    def typed(self, layer: Layer) -> Work:
        return _typed(layer.workload(default_dtypes(self.base)), self.base, layer.label)

    def group(self, point: Point) -> Hashable:
        return self._described(point).digest, self.machine or "", self._constraints_text

    def estimated(
        self, point: Point, workload: Computation, timeout: float | None = None
    ) -> EstimateResult:
        """Search a layer on the machine of a point; its first candidate takes the least time.

        Parameters
        ----------
        point
            The point.
        workload
            The layer, on the element types of the file's instruction.
        timeout
            Time limit in seconds.
        """
        spec = self.spec(point)
        if spec.instruction.dtypes != self.base.instruction.dtypes:
            # typed() cannot know the point, so the element types are replaced here.
            names = [operand.name for operand in workload.operands]
            types = dict(zip(names, default_dtypes(spec), strict=False))
            workload = _typed(workload.with_dtypes(types), spec, "")
        constraints = None if self.constraints is None else load_constraint_set(self.constraints)
        options = EstimateOptions(
            # Named, so that the description is asked at all points, and no back end at some.
            machine=self.machine or machine_of(spec).name,
            rank_by="estimate",
            top=1,
            constraints=constraints,
            timeout=timeout,
        )
        return estimate(workload, spec, options)

    def analyse(self, point: Point, workload: Computation) -> Any:
        result = self.estimated(point, workload)
        best, ranked = best_candidate(result)
        clock_mhz = result.machine.clock_mhz
        return LayerSoftware(
            embedding=ranked.candidate.identifier,
            mapping="   ".join(ranked.candidate.embedding.axis_texts),
            constraints=result.solved.constraints.name,
            executions=ranked.overheads.calls,
            utilisation=ranked.overheads.utilisation,
            cycles=best.cycles + sum(best.packing_us.values()) * clock_mhz,
            us=best.total_us,
            packing_us=dict(best.packing_us),
            bound=best.bound,
            exact=best.exact,
            levels=list(best.levels),
            tiling=[
                TileRow(list(t.memories), dict(t.tile), list(t.order), t.units) for t in best.tiling
            ],
            moved=dict(best.moved),
        )

    def bound(self, point: Point, analysis: LayerSoftware) -> Costs | None:
        """Return the costs themselves: nothing is left to evaluate."""
        activity = self._activity(point, analysis)
        return Costs(activity.cycles, self.energy_pj(point, activity))

    def choices(self, point: Point, analysis: LayerSoftware) -> tuple[Choice, ...]:
        details = msgspec.to_builtins(analysis)
        costs = self.silicon(point)
        if costs is not None:
            clock_mhz = self.hierarchy(point).clock_mhz
            activity = self._activity(point, analysis)
            details["energy_pj"] = costs.energy_by_level(activity, clock_mhz)
        tiles = "; ".join(
            f"{', '.join(row.memories)} {_sizes(row.tile)}" for row in reversed(analysis.tiling)
        )
        words = f"{analysis.mapping}{f' | {tiles}' if tiles else ''} ({analysis.bound})"
        activity = self._activity(point, analysis)
        return (Choice(analysis.embedding, words, None, activity, details),)

    def evaluate(self, point: Point, workload: Computation, choice: Choice) -> Activity:
        """Return the activity of the choice; no search calls this, as every choice has one."""
        assert choice.activity is not None
        return choice.activity

    def _activity(self, point: Point, software: LayerSoftware) -> Activity:
        """Return accesses by memory: transfers, and those of the unit to its operands' tiles."""
        instruction = self.spec(point).instruction
        counts: dict[str, float] = {"executions": float(software.executions)}

        def add(name: str, amount: float) -> None:
            counts[name] = counts.get(name, 0.0) + amount

        for level in software.levels:
            add(f"{level.memory}.read", level.read_bytes)
            add(f"{level.memory}.written", level.written_bytes)
        for memory, (filled, drained) in software.moved.items():
            add(f"{memory}.written", filled)
            add(f"{memory}.read", drained)
        computation = instruction.computation
        outputs = {operand.name for operand in computation.outputs}
        accumulates = any(s.reduction is not None for s in computation.statements)
        for operand in computation.operands:
            scope = instruction.memory[operand.name].scope
            accesses = tile_bytes(instruction, operand.name) * software.executions
            if accumulates or operand.name not in outputs:
                add(f"{scope}.read", accesses)
            if operand.name in outputs:
                add(f"{scope}.written", accesses)
        return Activity(software.cycles, Provenance.ESTIMATED, counts)


def best_candidate(result: EstimateResult) -> tuple[Estimate, RankedCandidate]:
    """Return the candidate of the least time; raise :class:`LoweringError` if there is none."""
    if not result.solved.embeddings:
        raise LoweringError(result.solved.why_nothing)
    best = result.estimates[0]
    # The first one by time: where it has no estimate, no candidate has.
    if not isinstance(best, Estimate):
        raise LoweringError(f"rejected by {result.machine.name}: {best}")
    return best, result.solved.embeddings[0]


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
        The specification.
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
    # Another reader makes machines of these, and another search costs their layers.
    if describes_instruction_set(tables):
        module, _, function = ACCELERATORS.partition(":")
        make_family: Callable[..., DescribedFamily] = getattr(import_module(module), function)
        return make_family(file, labels, mentioned, choices, error)
    base = _spec_of(_Machine.from_tables(file, tables))
    machine_of(base, choices.machine)
    technology(choices.technology or DEFAULT_TECHNOLOGY)
    if choices.constraints is not None:
        load_constraint_set(choices.constraints)
    for name, by_label in labels.items():
        key = read_key(name)
        try:
            require_place(tables, key)
            _require_known_key(file, tables, key)
            for label, value in by_label.items():
                _check_value(file, tables, key, label, value)
        except SpecError as problem:
            raise error(name, str(problem)) from None
    constants = constants_of(tables, set(mentioned) - set(labels))
    named = {**labels, **{name: {value: value} for name, value in constants.items()}}
    return DescribedFamily(file, named, constants, choices)


def constants_of(tables: Tables, names: Collection[str]) -> dict[str, Value]:
    """Return the values of names that are scalar keys of a file.

    Parameters
    ----------
    tables
        Contents of the file.
    names
        Names in relations and expressions.
    """
    constants: dict[str, Value] = {}
    for name in sorted(names):
        value = value_at(tables, read_key(name))
        if isinstance(value, int | float | str):
            constants[name] = value
    return constants


def _require_known_key(file: SpecificationFile, tables: Tables, key: Key) -> None:
    """Reject a key that is not in the file where a table has keys of any name, such as axes."""
    if value_at(tables, key) is not ABSENT:
        return
    probe = (*key[:-1], "no such key")
    try:
        file.with_tables(replaced(tables, probe, 1)).table()
    except SpecError as error:
        # The keys of this table are a fixed list, so that a value of the key is checked by it.
        if "unknown key" in str(error):
            return
    names = value_at(tables, key[:-1])
    raise SpecError(f"there is no {key_path(key)}; allowed there: {joined(names)}")


def _check_value(
    file: SpecificationFile, tables: Tables, key: Key, label: Value, value: Any
) -> None:
    """Check that a value has the type that its key has, before any point is built."""
    if label == PRESENT:
        if value_at(tables, key) is ABSENT:
            raise SpecError(f"present: {file.path} has no such key")
        return
    changed = replaced(tables, key, ABSENT if label == REMOVED else value)
    try:
        file.with_tables(changed).table()
    except SpecError as error:
        raise SpecError(str(error).removeprefix(f"{file.path}: ")) from None


@dataclass(frozen=True)
class _Machine:
    """Tables of a point, compared by their contents."""

    digest: str
    file: SpecificationFile = field(compare=False)
    tables: Tables = field(compare=False)

    @staticmethod
    def from_tables(file: SpecificationFile, tables: Tables) -> _Machine:
        text = json.dumps([str(file.path.name), tables], sort_keys=True, default=str)
        return _Machine(hashlib.sha256(text.encode()).hexdigest()[:32], file, tables)


@lru_cache(maxsize=1 << 12)
def _spec_of(machine: _Machine) -> HardwareSpec:
    return require_known(build_hardware_spec(machine.file.with_tables(machine.tables)))


def _typed(workload: Computation, spec: HardwareSpec, label: str) -> Computation:
    return workload if is_typed([label]) else typed_by_roles(workload, spec.instruction)


def _sizes(tile: Mapping[str, int]) -> str:
    return " ".join(f"{name}:{size}" for name, size in tile.items()) or "one execution"
