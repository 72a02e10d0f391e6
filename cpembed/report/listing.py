"""Lists of targets, operators and suites, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from cpembed.blocks import Block, Heading, Table
from cpembed.codegen.host_cpu import cpu_model
from cpembed.codegen.runtime import compiled_for
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import available_instruction_sets, load_instruction_set
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.provenance import Provenance
from cpembed.targets.processors import ALIASES, described
from cpembed.targets.processors import processors as all_processors
from cpembed.targets.registry import missing_for, open_target
from cpembed.workloads.family import Parameter
from cpembed.workloads.operators import available_operators
from cpembed.workloads.suites import SUITES


def targets() -> Iterator[Block]:
    """Yield a row for each target: how it executes here or why it cannot, and its instruction.

    Accelerators of several instructions follow in a table of their own.
    """
    yield Table(
        ("target", "here", "instruction", "extents", "types"),
        (_target_row(load_hardware_spec(name)) for name in available_targets()),
        # Cells are long: they stand below each other where the terminal is narrow.
        stacked=2,
    )
    yield ""
    yield Table(
        ("accelerator", "memories", "units", "instructions"),
        (_accelerator_row(load_instruction_set(name)) for name in available_instruction_sets()),
        stacked=1,
    )
    yield ""
    yield f"this machine: {cpu_model()}; {compiled_for().why}"


def targets_json() -> dict[str, Any]:
    """Return the document of ``targets --json``: the targets, and what kernels are compiled for."""
    host = compiled_for()
    return {
        "targets": [_target_json(load_hardware_spec(name)) for name in available_targets()],
        "accelerators": [
            _accelerator_json(load_instruction_set(name)) for name in available_instruction_sets()
        ],
        "host": {"cpu": cpu_model(), **msgspec.to_builtins(host), "why": host.why},
    }


def _missing(spec: HardwareSpec) -> tuple[str, ...]:
    """Return the reasons why a target cannot execute; a faulty target does not spoil the list."""
    try:
        return missing_for(spec)
    except SpecError as error:
        return (str(error),)


def _target_row(spec: HardwareSpec) -> tuple[str, ...]:
    instruction, missing = spec.instruction, _missing(spec)
    dtypes = "  ".join(f"{name} {'|'.join(types)}" for name, types in instruction.dtypes.items())
    extents = "  ".join(f"{axis.name} {axis.describe_allowed()}" for axis in instruction.axes)
    if missing:
        execution = f"no: {'; '.join(missing)}"
    else:
        provenance = open_target(spec).provenance
        # Simulated or emulated is no full yes: times are missing, or of a model.
        native = "yes" if provenance is Provenance.MEASURED else provenance
        execution = f"{native} ({spec.backend})"
    return spec.name, execution, str(instruction.computation), extents, dtypes


def _target_json(spec: HardwareSpec) -> dict[str, Any]:
    instruction, missing = spec.instruction, _missing(spec)
    provenance = None if missing else open_target(spec).provenance
    return {
        "name": spec.name,
        "description": spec.description,
        "instruction": str(instruction.computation),
        "axes": {
            axis.name: {"min": axis.minimum, "max": axis.maximum, "step": axis.step}
            for axis in instruction.axes
        },
        "dtypes": {name: list(types) for name, types in instruction.dtypes.items()},
        "backend": spec.backend,
        "cpu_features": list(spec.cpu_features),
        "available": not missing,
        "provenance": provenance,
        "simulated": provenance == Provenance.SIMULATED,
        "alternatives": list(spec.alternatives),
        "missing": list(missing),
        "path": spec.path,
    }


def _accelerator_row(machine: InstructionSet) -> tuple[str, ...]:
    memories = [
        f"{memory.name} {memory.rows} x {memory.row_bytes} B" for memory in machine.row_memories()
    ]
    return (
        machine.name,
        "  ".join(memories),
        " ".join(machine.units),
        " ".join(machine.instructions),
    )


def _accelerator_json(machine: InstructionSet) -> dict[str, Any]:
    return {
        "name": machine.name,
        "description": machine.description,
        "source": machine.source,
        "known": machine.evidence,
        "clock_mhz": machine.clock_mhz,
        "synchronization": machine.synchronization,
        "memories": {
            memory.name: {
                "rows": memory.rows,
                "row_bytes": memory.row_bytes,
                "banks": memory.banks,
            }
            for memory in machine.row_memories()
        },
        "units": list(machine.units),
        "instructions": {
            instruction.name: str(instruction.computation)
            for instruction in machine.instructions.values()
        },
        "warnings": list(machine.warnings),
        "path": machine.path,
    }


def processors() -> Iterator[Block]:
    """Yield a row for each processor with instructions that are targets."""
    rows = processors_json()["processors"]
    yield Table(
        ("processor", "instruction set", "targets", "features", "figures of"),
        (
            (
                row["name"],
                row["architecture"],
                " ".join(row["instructions"]),
                " ".join(row["features"]),
                row["figures"] or "another processor",
            )
            for row in rows
        ),
        stacked=3,
    )
    yield ""
    aliases = ", ".join(f"{name} is {stands_for}" for name, stands_for in ALIASES.items())
    yield f"also: {aliases}"


def processors_json() -> dict[str, Any]:
    """Return the document of ``processors --json``."""
    rows = map(described, all_processors())
    return {
        "processors": [row for row in rows if row["instructions"]],
        "aliases": dict(ALIASES),
    }


def operators() -> Iterator[Block]:
    """Yield the operators with their sizes and options, then the suites of layers."""
    yield Table(
        ("operator", "description", "sizes", "options"),
        (
            (
                family.name,
                family.description,
                " ".join(parameter.name for parameter in family.required),
                " ".join(map(_option_text, family.optional)),
            )
            for family in available_operators().values()
        ),
    )
    yield ""
    yield Heading("Suites: write NAME:INDEX for a layer")
    yield Table(("suite", "description"), SUITES.items())


def operators_json() -> dict[str, Any]:
    """Return the document of ``operators --json``."""
    return {
        "operators": [
            {
                "name": family.name,
                "description": family.description,
                "parameters": msgspec.to_builtins(family.parameters),
            }
            for family in available_operators().values()
        ],
        "suites": [{"name": name, "description": text} for name, text in SUITES.items()],
    }


def _option_text(parameter: Parameter) -> str:
    """Return ``pad=0``, or ``layout=NCHW|NHWC`` with the default first."""
    # The default stands first, as it is what an omitted option means.
    alternatives = [choice for choice in parameter.choices if choice != parameter.default]
    return f"{parameter.name}={'|'.join([str(parameter.default), *alternatives])}"
