"""Families of machines: what a point of a space is, what it costs, and what software runs on it.

A family says how the parameters of a point make a machine. Its work comes in three steps, from the
dear to the cheap: layers are *analysed* for a group of points that share their embeddings and
schedules, a *bound* of any point of the group follows from that at once, and where a bound does not
discard the point, the best *choices* of software are *evaluated*.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from cpembed.errors import SpecError
from cpembed.hw.schema import close_match, one_of
from cpembed.ir.computation import Computation
from cpembed.plugins import load_plugin, plugin_names
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.environment import source_digest
from cpembed.runtime.tuning.database import module_digest
from cpembed.workloads.suites import Layer

Value = int | float | str
Point = Mapping[str, Value]
"""A value for each parameter of a space; those that a space holds fixed are among them."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a family: what it is, with its unit, and what it is where a space leaves it
    out; None: a space has to give it."""

    name: str
    words: str
    default: Value | None = None


@dataclass(frozen=True)
class Costs:
    """Of a layer on a machine, or of several one after the other; also lower bounds of these."""

    cycles: float
    energy_pj: float

    def times(self, count: int) -> Costs:
        return Costs(self.cycles * count, self.energy_pj * count)

    def __add__(self, other: Costs) -> Costs:
        return Costs(self.cycles + other.cycles, self.energy_pj + other.energy_pj)


@dataclass(frozen=True)
class Activity:
    """What a program does on a machine, whatever an access costs there: ``counts`` has executed
    multiply-accumulates as ``macs``, and bytes by memory and direction (``dram.read``)."""

    cycles: float
    provenance: Provenance
    counts: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Choice:
    """Software for a layer: an embedding with a schedule.

    ``key`` names it among those of the layer on the group's machines; ``words`` are for people;
    ``payload`` is the family's own, and can be pickled. ``activity`` is there where no evaluation
    is needed to know it.
    """

    key: str
    words: str
    payload: Any = None
    activity: Activity | None = None


class Family(ABC):
    """Machines that differ in parameters. Its objects can be pickled: tasks take them along to
    processes of this program and of a cluster. Files are never unpickled."""

    name: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]]

    analysis: ClassVar[Any] = Any
    """The type of analyses. They are kept as JSON, which msgspec makes of values of this type and
    reads back as such: structs, dataclasses, enumerations, containers, vectors of numbers
    (``NDArray[np.float64]``). Without a type, lists come back in the place of tuples."""

    inputs: ClassVar[tuple[str, str]] = ("int8", "int8")
    """Element types of the factors that the machines multiply; models are prepared for these."""

    def identity(self) -> str:
        """Digest of what results depend on besides point and layer: the package's code and tables,
        of which embeddings, programs and the models of their cost all take part, and the sources of
        a family that another distribution brings. What is kept under another one is not used."""
        return source_digest() + module_digest(type(self).__module__)

    @abstractmethod
    def flaw(self, point: Point) -> str | None:
        """Why a point is no machine, with the parameter and the remedy; None where it is one."""

    @abstractmethod
    def clock_mhz(self, point: Point) -> float: ...

    @abstractmethod
    def area_um2(self, point: Point) -> float: ...

    @abstractmethod
    def leakage_w(self, point: Point) -> float:
        """Power that is drawn whether or not anything is computed."""

    @abstractmethod
    def energy_pj(self, point: Point, activity: Activity) -> float:
        """Of a program's execution; leakage meanwhile included."""

    @abstractmethod
    def typed(self, layer: Layer) -> Computation:
        """A suite's layer on the element types of the family's machines."""

    @abstractmethod
    def group(self, point: Point) -> Hashable:
        """What of a point an analysis depends on; equal for points that share it. Its ``repr`` says
        all of it, and is the same in every process."""

    @abstractmethod
    def analyse(self, point: Point, workload: Computation) -> Any:
        """Embeddings and schedules of a layer on the machines of the point's group: a value that
        of the type :attr:`analysis` that can be pickled. The dear step, executed as a task.

        Raises :class:`~cpembed.errors.CpembedError` where the layer has no software there.
        """

    @abstractmethod
    def bound(self, point: Point, analysis: Any) -> Costs | None:
        """Costs that no software which is considered comes below at the point; None where none of
        it fits the point."""

    @abstractmethod
    def choices(self, point: Point, analysis: Any) -> tuple[Choice, ...]:
        """The software to evaluate at the point, the most promising first. The layer's costs are
        those of the fewest cycles among them, of the least energy where these are equal."""

    @abstractmethod
    def evaluate(self, point: Point, workload: Computation, choice: Choice) -> Activity:
        """Of a choice that has no activity yet; equal for all points of the group. A task."""

    @abstractmethod
    def specification(self, point: Point) -> str:
        """The machine as a TOML target, with what it was made of."""


BUILT_IN = {
    "core": "cpembed.exploration.cores.family:CoreFamily",
    "vta": "cpembed.targets.vta.family:VtaFamily",
}

GROUP: Literal["cpembed.families"] = "cpembed.families"


def open_family(name: str) -> Family:
    """Raises :class:`SpecError` for a name that nothing has, and where a distribution's class
    cannot be loaded or is none."""
    if name in BUILT_IN:
        module, _, kind = BUILT_IN[name].partition(":")
        built_in: type[Family] = getattr(importlib.import_module(module), kind)
        return built_in()
    plugin = load_plugin(GROUP, name)
    if plugin is None:
        known = (*BUILT_IN, *plugin_names(GROUP))
        raise SpecError(
            f"unknown family {name!r}{close_match(name, known)}; allowed: {one_of(known)}"
        )
    found: Any = plugin.value
    if not (isinstance(found, type) and issubclass(found, Family)):
        raise plugin.error(
            "is no class derived from cpembed.targets.family.Family; have it repaired"
        )
    return found()
