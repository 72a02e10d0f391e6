"""Families of machines, which the exploration of a design space costs.

A family tells how the parameters of a point make a machine. Its work has three steps, from
expensive to cheap: layers are *analysed* for a group of points that share their embeddings and
schedules; a *bound* of any point of the group follows at once; if the bound does not discard the
point, the best *choices* of software are *evaluated*.

Families are imported on first use. Another distribution adds one by an entry point of the group
:data:`GROUP`: its name is what spaces say, its object a class derived from :class:`Family`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from cpembed.errors import SpecError
from cpembed.hw.schema import close_match, joined
from cpembed.ir.computation import Computation
from cpembed.plugins import load_plugin, plugin_names
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.environment import source_digest
from cpembed.runtime.tuning.database import module_digest
from cpembed.workloads.suites import Layer

Value = int | float | str
Point = Mapping[str, Value]
"""Value of each parameter of a space, fixed ones included."""


@dataclass(frozen=True)
class Parameter:
    """Parameter of a family: ``words`` describe it with its unit.

    Without a default, a space has to give it.
    """

    name: str
    words: str
    default: Value | None = None


@dataclass(frozen=True)
class OperatorWork:
    """Operator of a network that is planned as a whole.

    Attributes
    ----------
    name, kind : str
        Name in the network, and what it computes.
    macs : int
        Multiply-accumulates.
    """

    name: str
    kind: str
    macs: int


Work = Computation | OperatorWork
"""Computation of a layer."""


@dataclass(frozen=True)
class Costs:
    """Costs, or lower bounds of the costs, of a layer or of several in sequence on a machine."""

    cycles: float
    energy_pj: float

    def times(self, count: int) -> Costs:
        return Costs(self.cycles * count, self.energy_pj * count)

    def __add__(self, costs: Costs) -> Costs:
        return Costs(self.cycles + costs.cycles, self.energy_pj + costs.energy_pj)


@dataclass(frozen=True)
class Activity:
    """Activity of a program, independent of the cost of an access.

    ``counts`` has executed multiply-accumulates as ``macs``, and bytes by memory and direction
    (``dram.read``).
    """

    cycles: float
    provenance: Provenance
    counts: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Choice:
    """Software for a layer: an embedding with a schedule.

    ``key`` is unique among the choices of the layer on the group's machines, ``words`` describe it.
    ``payload`` is the family's own data, which can be pickled. Without ``activity``, the choice has
    to be evaluated. ``details`` are figures for documents and pages.
    """

    key: str
    words: str
    payload: Any = None
    activity: Activity | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Family(ABC):
    """Machines that differ in parameters.

    Families can be pickled: tasks carry them to other processes and to a cluster. Files are never
    unpickled.
    """

    name: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]]

    analysis: ClassVar[Any] = Any
    """Type of an analysis, which msgspec stores as JSON: structs, dataclasses, enumerations,
    containers, vectors of numbers (``NDArray[np.float64]``). Without a type, tuples are read back
    as lists."""

    inputs: ClassVar[tuple[str, str]] = ("int8", "int8")
    """Element types of the factors that the machines multiply; models are prepared for these."""

    knows_costs: ClassVar[bool] = False
    """True if analyses hold the costs themselves, so that nothing is saved by discarding a point
    that another one beats."""

    def identity(self) -> str:
        """Return a digest of everything besides point and layer that results depend on.

        Stored results of another digest are not used.
        """
        # Code and tables of this package, and the sources of a family from another distribution.
        return source_digest() + module_digest(type(self).__module__)

    @abstractmethod
    def flaw(self, point: Point) -> str | None:
        """Return the reason why a point is no machine, and the remedy; None if it is one."""

    @abstractmethod
    def clock_mhz(self, point: Point) -> float: ...

    @abstractmethod
    def area_um2(self, point: Point) -> float: ...

    @abstractmethod
    def leakage_w(self, point: Point) -> float:
        """Return the power in watts that is drawn even when nothing is computed."""

    @abstractmethod
    def energy_pj(self, point: Point, activity: Activity) -> float:
        """Return the energy of a program's execution, leakage included."""

    @abstractmethod
    def typed(self, layer: Layer) -> Work:
        """Return a suite's layer with the element types of the family's machines."""

    @abstractmethod
    def group(self, point: Point) -> Hashable:
        """Return the key of an analysis, equal for points that share it.

        Its ``repr`` is complete and the same in every process.
        """

    @abstractmethod
    def analyse(self, point: Point, workload: Any) -> Any:
        """Analyse a layer's embeddings and schedules on the group's machines: the expensive step.

        Called as a task. Returns a value of the type :attr:`analysis`; raises
        :class:`~cpembed.errors.CpembedError` if the layer has no software there.
        """

    @abstractmethod
    def bound(self, point: Point, analysis: Any) -> Costs | None:
        """Return a lower bound of the costs of all software at the point; None if none fits."""

    @abstractmethod
    def choices(self, point: Point, analysis: Any) -> tuple[Choice, ...]:
        """Return the software to evaluate at the point, most promising first.

        The layer's costs are those of the fewest cycles among them, and of the least energy among
        equals.
        """

    @abstractmethod
    def evaluate(self, point: Point, workload: Any, choice: Choice) -> Activity:
        """Evaluate a choice that has no activity yet.

        Called as a task; the result is equal for all points of the group.
        """

    @abstractmethod
    def specification(self, point: Point) -> str:
        """Return the machine as a target in TOML, with its origin."""


# Strings, since a family's model is imported only for a space that names it.
BUILT_IN = {
    "core": "cpembed.exploration.cores.family:CoreFamily",
    "vta": "cpembed.targets.vta.family:VtaFamily",
}

GROUP: Literal["cpembed.families"] = "cpembed.families"


def open_family(name: str) -> Family:
    """Return the family of a name.

    Raises :class:`SpecError` if the name is unknown, or a distribution's class cannot be loaded or
    is no family.
    """
    if name in BUILT_IN:
        module, _, kind = BUILT_IN[name].partition(":")
        built_in: type[Family] = getattr(importlib.import_module(module), kind)
        return built_in()
    plugin = load_plugin(GROUP, name)
    if plugin is None:
        names = (*BUILT_IN, *plugin_names(GROUP))
        raise SpecError(
            f"unknown family {name!r}{close_match(name, names)}; allowed: {joined(names)}"
        )
    family: Any = plugin.value
    # An entry point can name any object.
    if not (isinstance(family, type) and issubclass(family, Family)):
        raise plugin.error(
            "is no class derived from cpembed.targets.family.Family; have it repaired"
        )
    return family()
