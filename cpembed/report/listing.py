"""What there is: targets, operators and suites, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType

from cpembed.codegen.host_cpu import cpu_model
from cpembed.codegen.runtime import compiled_for
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.provenance import Provenance
from cpembed.report.blocks import heading, table
from cpembed.targets.registry import missing_for, open_target
from cpembed.workloads.family import Parameter
from cpembed.workloads.operators import available_operators
from cpembed.workloads.suites import SUITES


def targets() -> Iterator[RenderableType]:
    """Name, instruction, extents, element types, and what executing it here lacks."""
    yield table(
        ("target", "instruction", "extents", "dtypes", "here"),
        (_target_row(load_hardware_spec(name)) for name in available_targets()),
    )
    yield ""
    yield f"this machine: {cpu_model()}; {compiled_for().why}"


def targets_json() -> dict[str, Any]:
    """What :func:`targets` lists, and what kernels of this machine are compiled for."""
    host = compiled_for()
    return {
        "targets": [_target_json(load_hardware_spec(name)) for name in available_targets()],
        "host": {"cpu": cpu_model(), **asdict(host), "why": host.why},
    }


def _missing(spec: HardwareSpec) -> tuple[str, ...]:
    """What executing it lacks; one faulty target leaves the others of the list alone."""
    try:
        return missing_for(spec)
    except SpecError as error:
        return (str(error),)


def _target_row(spec: HardwareSpec) -> tuple[str, ...]:
    instruction, missing = spec.instruction, _missing(spec)
    dtypes = "  ".join(f"{name} {'|'.join(types)}" for name, types in instruction.dtypes.items())
    extents = "  ".join(f"{axis.name} {axis.describe_allowed()}" for axis in instruction.axes)
    return spec.name, str(instruction.computation), extents, dtypes, _here(spec, missing)


def _here(spec: HardwareSpec, missing: Sequence[str]) -> str:
    if missing:
        return f"no: {'; '.join(missing)}"
    how = open_target(spec).provenance
    return f"{'yes' if how is Provenance.MEASURED else how} ({spec.backend})"


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


def operators() -> Iterator[RenderableType]:
    """Operators with what they take, then the suites of layers."""
    yield table(
        ("operator", "what it is", "sizes", "options"),
        (
            (
                family.name,
                family.description,
                " ".join(parameter.name for parameter in family.required),
                " ".join(_option(parameter) for parameter in family.optional),
            )
            for family in available_operators().values()
        ),
    )
    yield ""
    yield heading("Suites: write NAME:INDEX for a layer")
    yield table(("suite", "what it is"), SUITES.items())


def operators_json() -> dict[str, Any]:
    return {
        "operators": [
            {
                "name": family.name,
                "description": family.description,
                "parameters": [_parameter_json(parameter) for parameter in family.parameters],
            }
            for family in available_operators().values()
        ],
        "suites": [{"name": name, "description": what} for name, what in SUITES.items()],
    }


def _option(parameter: Parameter) -> str:
    """``pad=0``, or ``layout=NCHW|NHWC`` with the default first."""
    others = [choice for choice in parameter.choices if choice != parameter.default]
    return f"{parameter.name}={'|'.join([str(parameter.default), *others])}"


def _parameter_json(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "meaning": parameter.meaning,
        "kind": parameter.kind.value,
        "default": parameter.default,
        "choices": list(parameter.choices),
    }
