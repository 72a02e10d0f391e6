"""Blocks of operators on described machines: ``cpembed fuse``.

A block is a TOML file with extents and operators (``docs/fusion.md``). Each operator gets the best
embedding of the first target whose instruction fits it; the targets are instructions of one
machine. The schedule of the block is searched for by :mod:`cpembed.cost.fusion`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cpembed.blocks import Displayed
from cpembed.cost.fusion.block import Block, BlockOperator
from cpembed.cost.fusion.operator_costs import Use
from cpembed.cost.fusion.schedule import FusedLoop
from cpembed.cost.fusion.schedule import Sequence as Schedule
from cpembed.cost.fusion.search import FusedBlock, fuse
from cpembed.cost.machine.estimate import machine_of
from cpembed.cost.machine.objective import Objective
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import CpembedError, SpecError
from cpembed.files import read_toml
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.schema import convert_table, spec_error
from cpembed.provenance import Provenance


class OperatorTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[operators]]``: a name and a statement over the block's axes."""

    name: str
    expression: str


class BlockTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents of a block's file.

    ``outputs`` are the intermediates that have to be in main memory at the end too.
    """

    name: str
    description: str = ""
    axes: dict[str, int]
    operators: list[OperatorTable]
    outputs: list[str] = []


@dataclass(frozen=True, repr=False)
class FusionResult(Displayed):
    """Best schedule of a block on a machine.

    Parameters
    ----------
    block : Block
        Operators with their programs.
    fused : FusedBlock
        Schedule, costs and bound.
    objective : Objective
        Quantity that the schedule has the least of.
    targets : tuple of str
        Targets whose instructions compute the operators, one for each.
    """

    block: Block
    fused: FusedBlock
    objective: Objective
    targets: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``fuse --json``."""
        fused, machine = self.fused, self.block.operators[0].machine
        return {
            "block": self.block.name,
            "machine": machine.name,
            "clock_mhz": machine.clock_mhz,
            "provenance": Provenance.ESTIMATED.value,
            "objective": self.objective.value,
            "memory": self.block.chip_memory.name,
            "fused": {"cost": fused.cost, **self.totals(fused.uses)},
            "unfused": {"cost": fused.unfused_cost, **self.totals(fused.unfused_uses)},
            "least_cost": fused.bound,
            "gap": fused.gap,
            "operators": [
                {
                    "name": operator.name,
                    "target": target,
                    "fused": self.totals({number: fused.uses[number]}),
                    "unfused": self.totals({number: fused.unfused_uses[number]}),
                }
                for number, (operator, target) in enumerate(
                    zip(self.block.operators, self.targets, strict=True)
                )
            ],
            "schedule": self._sequence(fused.schedule),
        }

    def totals(self, uses: Mapping[int, Use]) -> dict[str, float]:
        """Return cycles, bytes to and from main memory, and energy of some operators."""
        return {
            "cycles": sum(self.fused.cycles(number, use) for number, use in uses.items()),
            "bytes": sum(use.moved for use in uses.values()),
            "energy_pj": sum(use.energy for use in uses.values()),
        }

    def _sequence(self, sequence: Schedule) -> list[dict[str, Any]]:
        parts = list[dict[str, Any]]()
        for part, names in zip(sequence.parts, sequence.resident, strict=True):
            entry: dict[str, Any] = {"on_chip": sorted(names)}
            if isinstance(part, FusedLoop):
                entry |= {
                    "axes": {self.block.operators[n].name: axis for n, axis in sorted(part.axes)},
                    "tile": part.tile,
                    "body": self._sequence(part.body),
                }
            else:
                entry["operator"] = self.block.operators[part].name
            parts.append(entry)
        return parts


def read_block(path: Path, extents: Mapping[str, int] | None = None) -> BlockTable:
    """Read the file of a block.

    Parameters
    ----------
    path : Path
        TOML file.
    extents : mapping of str to int, optional
        Extents that replace those of the file, by axis.

    Raises
    ------
    SpecError
        The file cannot be read, a key is unknown, or an axis has no positive extent.
    """
    table = convert_table(read_toml(path), BlockTable, lambda _: str(path))
    axes = {**table.axes, **(extents or {})}
    unknown = [axis for axis in axes if axis not in table.axes]
    if unknown:
        raise spec_error(
            str(path), ("axes", unknown[0]), f"no such axis; there are {', '.join(table.axes)}"
        )
    for axis, extent in axes.items():
        if extent < 1:
            raise spec_error(str(path), ("axes", axis), f"is {extent}; allowed: at least 1")
    if not table.operators:
        raise spec_error(str(path), ("operators",), "is empty; add [[operators]]")
    return msgspec.structs.replace(table, axes=axes)


def fuse_block(
    table: BlockTable,
    targets: Sequence[str | HardwareSpec],
    *,
    objective: str = "cycles",
    machine: str | None = None,
    constraints: str | None = None,
    seconds: float | None = None,
) -> FusionResult:
    """Search for the best schedule of a block: what stays on chip, in which tiles.

    Parameters
    ----------
    table : BlockTable
        Axes and operators.
    targets : sequence of str or HardwareSpec
        Instructions of one machine: each operator is computed by the first one that fits it.
    objective, seconds
        Those of :func:`~cpembed.cost.fusion.search.fuse`; the objective by its name.
    machine : str, optional
        Machine of the targets; by default the first one.
    constraints : str, optional
        Constraint set of the embeddings; by default each target's own.

    Raises
    ------
    SpecError
        An operator fits no target, or the machines cannot keep intermediates on chip.
    """
    specs = [hardware_spec(target) for target in targets]
    operators, used = list[BlockOperator](), list[str]()
    for entry in table.operators:
        spec, operator = _placed(entry, table, specs, machine, constraints)
        operators.append(operator)
        used.append(spec.name)
    unknown = [n for n in table.outputs if n not in {o.output.name for o in operators}]
    if unknown:
        raise SpecError(f"{table.name}: outputs: no operator computes {unknown[0]}")
    block = Block(table.name, tuple(operators), frozenset(table.outputs))
    goal = Objective(objective)
    fused = fuse(block, goal, seconds=seconds)
    return FusionResult(block, fused, goal, tuple(used))


def _placed(
    entry: OperatorTable,
    table: BlockTable,
    specs: Sequence[HardwareSpec],
    machine: str | None,
    constraints: str | None,
) -> tuple[HardwareSpec, BlockOperator]:
    """Return the first target whose instruction computes an operator, and its program."""
    words = [entry.expression, *_extents(entry, table)]
    problems = list[str]()
    for spec in specs:
        try:
            computation = workload(words, target=spec)
            solved = solve(computation, spec, constraints=constraints, top=1)
        except CpembedError as error:
            problems.append(f"{spec.name}: {error}")
            continue
        if solved.embeddings:
            program = solved.embeddings[0].candidate.program
            place = machine_of(spec, machine)
            return spec, BlockOperator.of_program(entry.name, program, place)
        problems.append(f"{spec.name}: nothing embeds (cpembed explain says why)")
    raise SpecError(f"{table.name}: {entry.name}: {'; '.join(problems)}")


def _extents(entry: OperatorTable, table: BlockTable) -> Iterator[str]:
    """Yield the extents of the axes that a statement names."""
    names = set(re.findall(r"[^\W\d]\w*", entry.expression))
    for axis, extent in table.axes.items():
        if axis in names:
            yield f"{axis}={extent}"
