"""The family of a person's own machine: a specification of one instruction whose keys vary.

A layer costs what ``cpembed solve --estimate --machine NAME --rank-by estimate`` says of it at a
point: of the best embeddings by their overheads the one of the least time, by the one function that
estimates the best program on a description
(:func:`~cpembed.cost.machine.estimate.estimate_program`). A layer that nothing embeds, or whose
embeddings the machine rejects, is left out with the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from functools import cached_property, lru_cache
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
from cpembed.exploration.described.family import Choices, DescribedFamily, Description
from cpembed.exploration.described.silicon import (
    DEFAULT_TECHNOLOGY,
    Silicon,
    silicon,
    tile_bytes,
)
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import build_hardware_spec
from cpembed.hw.machine import Hierarchy
from cpembed.hw.specification import SpecificationFile, Tables
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.targets.family import Activity, Choice, Costs, Point, Work
from cpembed.targets.known import require_known
from cpembed.workloads.suites import Layer


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


class EmbeddedFamily(DescribedFamily):
    """Machines of one instruction by the values of some keys of their specification."""

    name: ClassVar[str] = "described"
    analysis: ClassVar[Any] = LayerSoftware

    @classmethod
    def check_file(cls, file: SpecificationFile, choices: Choices) -> None:
        machine_of(_spec_of(Description.from_tables(file, file.merged)), choices.machine)
        technology(choices.technology or DEFAULT_TECHNOLOGY)
        if choices.constraints is not None:
            load_constraint_set(choices.constraints)

    @classmethod
    def check_types(cls, file: SpecificationFile, tables: Tables) -> None:
        file.with_tables(tables).table()

    @property
    def base(self) -> HardwareSpec:
        """The specification as it is in its file."""
        return _spec_of(Description.from_tables(self.file, self.file.merged))

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

    def spec(self, point: Point) -> HardwareSpec:
        """Return the target of a point; raise :class:`SpecError` where there is none."""
        return _spec_of(self.description(point))

    def hierarchy(self, point: Point) -> Hierarchy:
        """Return the machine of a point; raise :class:`SpecError` where there is none."""
        return machine_of(self.spec(point), self.machine)

    def silicon(self, point: Point) -> Silicon | None:
        """Return area and energies of a point; None where no table has them."""
        return _silicon_of(self.description(point), self.machine, self.technology)

    def require_machine(self, point: Point) -> None:
        spec, machine = self.spec(point), self.hierarchy(point)
        if self.needs_silicon:
            silicon(spec, machine, self.technology)

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

    @cached_property
    def _constraints_text(self) -> str:
        """Name of the set; a file's contents, which may change under its name, by their digest."""
        name = self.constraints or ""
        if not name.endswith(".toml"):
            return name
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()[:32]

    # -- layers -----------------------------------------------------------------------------------

    def typed(self, layer: Layer) -> Work:
        workload = layer.workload(default_dtypes(self.base))
        if is_typed([layer.label]):
            return workload
        return typed_by_roles(workload, self.base.instruction)

    def group(self, point: Point) -> Hashable:
        return self.digest(point), self.machine or "", self._constraints_text

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
            workload = typed_by_roles(workload.with_dtypes(types), spec.instruction)
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


@lru_cache(maxsize=1 << 12)
def _spec_of(description: Description) -> HardwareSpec:
    return require_known(build_hardware_spec(description.file.with_tables(description.tables)))


@lru_cache(maxsize=1 << 12)
def _silicon_of(
    description: Description, machine: str | None, technology_name: str
) -> Silicon | None:
    spec = _spec_of(description)
    try:
        return silicon(spec, machine_of(spec, machine), technology_name)
    except SpecError:
        return None


def _sizes(tile: Mapping[str, int]) -> str:
    return " ".join(f"{name}:{size}" for name, size in tile.items()) or "one execution"
