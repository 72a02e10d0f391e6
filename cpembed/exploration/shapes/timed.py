"""Shapes by time: what layers take on a described machine whose instruction has each shape.

The machine is a person's own specification of a matrix product. A shape replaces the extents of its
axes, and expressions may set further keys, such as the cycles of an execution. The time of a layer
is that of ``solve --estimate --machine NAME --rank-by estimate`` there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.estimate import machine_of
from cpembed.driver.options import DEFAULT_CONSTRAINTS
from cpembed.errors import CpembedError, SpecError
from cpembed.exploration.described.embedded import EmbeddedFamily, best_candidate
from cpembed.exploration.described.family import Choices, described_family
from cpembed.exploration.described.keys import read_key
from cpembed.exploration.relations import Expression, names_in, read_expression
from cpembed.exploration.shapes.shape import AXES, PICOSECONDS, Shape, template
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.isa_reader import describes_instruction_set
from cpembed.hw.loader import specification_file
from cpembed.hw.machine import Hierarchy
from cpembed.hw.schema import key_path
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.family import Point, Value

if TYPE_CHECKING:
    from cpembed.exploration.shapes.cells import Cell, CellResult

_KEYS = {axis: f"instruction.axes.{axis}" for axis in AXES}

_ROUNDING = 1 - 1e-9
"""Factor of lower bounds, which are sums in floating point."""


@dataclass(frozen=True, eq=False)
class TimedMachine:
    """The machine of every shape: a specification whose axes, and ``derived`` keys, vary."""

    family: EmbeddedFamily
    derived: Mapping[str, Expression]

    @property
    def spec(self) -> HardwareSpec:
        """The specification as it is in its file."""
        return self.family.base

    @property
    def constraints(self) -> str:
        """Name of the constraint set of all searches."""
        return self.family.constraints or DEFAULT_CONSTRAINTS

    @property
    def name(self) -> str:
        """Names of the target and its machine."""
        return f"{self.spec.name}, {machine_of(self.spec, self.family.machine).name}"

    def point(self, shape: Shape) -> Point:
        """Return the values of keys for a shape."""
        point: dict[str, Value] = {**self.family.constants, **shape.extents}
        point |= {_KEYS[axis]: extent for axis, extent in shape.extents.items()}
        for name, expression in self.derived.items():
            point[name] = expression.value(point)
        return point

    def text(self, shape: Shape) -> str:
        """Return the target of a shape as TOML."""
        return self.family.specification(self.point(shape))

    def search(self, cell: Cell, seconds: float | None) -> CellResult:
        """Return the embedding of the least time of a shape in a layer.

        The bound is infinite where the shape is no machine, or nothing fits it.
        """
        from cpembed.exploration.shapes.cells import CellResult, ProvenEmbedding, picoseconds

        point = self.point(cell.shape)
        if self.family.flaw(point) is not None:
            return CellResult(math.inf)
        result = self.family.estimated(point, cell.workload, seconds)
        try:
            estimate, ranked = best_candidate(result)
        except CpembedError:
            return CellResult(0.0 if result.solved.is_stopped else math.inf)
        candidate, costs = ranked.candidate, ranked.overheads
        embedded = ProvenEmbedding(
            embedding=candidate.embedding,
            executions=costs.calls,
            utilisation=costs.utilisation,
            packing_bytes=costs.packing_bytes,
            in_place=tuple(costs.in_place),
            commuted=result.solved.commuted,
            first_ranked=result.solved.top_proven,
            estimate=estimate,
        )
        # A search that was stopped may lack the embedding of the least time.
        bound = picoseconds(estimate.total_us) if result.solved.complete else 0.0
        return CellResult(bound, embedded)

    # -- lower bounds -----------------------------------------------------------------------------

    def bounds(
        self,
        shapes: Sequence[Shape],
        workloads: Sequence[Computation],
        executions: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return lower bounds of the time of shapes in layers, in picoseconds.

        Parameters
        ----------
        shapes
            The shapes, a column each.
        workloads
            The layers, a row each.
        executions
            Fewest executions of each shape in each layer.
        """
        machines: dict[tuple[Value, ...], Hierarchy] = {}
        bounds = np.full(executions.shape, np.inf)
        for column, shape in enumerate(shapes):
            point = self.point(shape)
            # Machines of shapes differ in the derived keys alone.
            key = tuple(point[name] for name in self.derived)
            machine = machines.get(key) or self._hierarchy(point)
            # No machine for this shape, whose cost is infinite; another one may have it.
            if machine is not None:
                machines[key] = machine
                calls = [
                    _least_calls(workload, shape, fewest)
                    for workload, fewest in zip(workloads, executions[:, column], strict=True)
                ]
                bounds[:, column] = _least_us(machine, workloads, np.array(calls))
        return np.floor(bounds * PICOSECONDS * _ROUNDING)

    def _hierarchy(self, point: Point) -> Hierarchy | None:
        try:
            return self.family.hierarchy(point)
        except SpecError:
            return None


def _least_calls(workload: Computation, shape: Shape, executions: float) -> float:
    """Return a lower bound of the executions that a machine is charged for."""
    if math.isinf(executions):
        return executions
    # Executions on zeros alone are left out, which tables count: of a layer with padding only
    # those are certain that its products within the operands need.
    if workload.macs_inside < workload.macs:
        return math.ceil(workload.macs_inside / shape.macs)
    return executions


def _least_us(
    machine: Hierarchy, workloads: Sequence[Computation], executions: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return lower bounds of times: all units are busy, and main memory moves each operand once."""
    units = machine.levels[0][0].units
    computing = executions * machine.compute.cycles / units
    moving = np.array([_least_cycles(machine, workload) for workload in workloads])
    return np.maximum(computing, moving) / machine.clock_mhz


def _least_cycles(machine: Hierarchy, workload: Computation) -> float:
    """Return the cycles in which main memory moves each operand once."""
    written = sum(o.elements * size_bytes(o.dtype) for o in workload.outputs)
    read = sum(
        o.elements * size_bytes(o.dtype) for o in workload.inputs if _is_read(workload, o.name)
    )
    root = machine.root
    reading, writing = read / root.read_bytes, written / root.write_bytes
    return reading + writing if root.half_duplex else max(reading, writing)


def _is_read(workload: Computation, operand: str) -> bool:
    """True if every element of an input is read: each of its indices is an axis of its own."""
    access = workload.access_maps[operand]
    if len(access) != 1:
        return False
    names = [index.single_iterator for index in access[0].index]
    shape = workload.operand(operand).shape
    extents = [0 if name is None else workload.extents[name] for name in names]
    return len(set(names)) == len(names) and list(shape) == extents


def open_timed(
    target: str,
    *,
    machine: str | None = None,
    derived: Sequence[str] = (),
    constraints: str | None = None,
) -> TimedMachine:
    """Return the machine of every shape.

    Parameters
    ----------
    target
        Name or file of a target whose instruction is ``C[x,y] += A[x,z] * B[z,y]``.
    machine
        One of its machines; None for the first.
    derived
        Keys with expressions over x, y and z, such as ``machines.soc.compute.cycles=x``.
    constraints
        Name of the constraint set; None for the target's own.

    Raises
    ------
    SpecError
        For a target of another instruction, an unknown machine, or a wrong key.
    """
    file = specification_file(target)
    if describes_instruction_set(file.merged):
        raise SpecError(
            f"{file.path}: instructions: an instruction set has no shape to compare; vary its axes "
            "by `cpembed explore --vary instructions.NAME.axes.x.max=8,16`"
        )
    texts: dict[str, str] = {}
    for text in derived:
        name, equals, expression = text.partition("=")
        if not equals:
            raise SpecError(f"--derive {text!r}: it is not KEY=EXPRESSION")
        texts[key_path(read_key(name))] = expression.strip()
    mentioned = frozenset[str]().union(*map(names_in, texts.values())) - {*AXES, *_KEYS.values()}
    family = described_family(
        file,
        {**{key: {} for key in _KEYS.values()}, **{name: {} for name in texts}},
        mentioned,
        Choices(machine=machine, constraints=constraints),
        lambda name, problem: SpecError(f"{file.path}: {name}: {problem}"),
    )
    assert isinstance(family, EmbeddedFamily), "instruction sets are refused above"
    _require_product(family.base)
    # Tables of executions are those of one set, so that the searches of cells have the same.
    family.constraints = constraints or family.base.constraints or DEFAULT_CONSTRAINTS
    names = {*AXES, *_KEYS.values(), *family.constants}
    expressions: dict[str, Expression] = {}
    for name, text in texts.items():
        try:
            expressions[name] = read_expression(text, names)
        except SpecError as error:
            raise SpecError(f"--derive {name}: {error}") from None
        names.add(name)
    timed = TimedMachine(family, expressions)
    _require_keys(timed)
    return timed


def _require_keys(timed: TimedMachine) -> None:
    """Reject derived keys that no shape makes a machine of.

    Raises :class:`SpecError` if the shape of the file itself is none with them because of a key.
    """
    extents = timed.spec.instruction.extents
    flaw = timed.family.flaw(timed.point(Shape(*(extents[axis] for axis in AXES))))
    # Another flaw may be one of this shape alone, such as a tile that fits no memory.
    if flaw is not None and any(flaw.startswith(f"{name}: unknown key") for name in timed.derived):
        raise SpecError(f"--derive {flaw}")


def _require_product(spec: HardwareSpec) -> None:
    expected = template().instruction.computation
    statement = spec.instruction.computation.statements
    names = [operand.name for operand in spec.instruction.computation.operands]
    if str(statement) != str(expected.statements) or names != ["A", "B", "C"]:
        raise SpecError(
            f"{spec.path or spec.name}: instruction.expression: shapes are those of "
            f"{expected.statement}: write the matrix product with these names"
        )
    for axis in spec.instruction.axes:
        if not axis.is_fixed:
            raise SpecError(
                f"{spec.path or spec.name}: instruction.axes.{axis.name}: is configurable; write "
                "any number, which the shapes replace"
            )
