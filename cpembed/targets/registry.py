"""Registry: the target of a specification, whose class is imported on first use."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, cast

from cpembed.codegen.host_cpu import named_processor
from cpembed.errors import BackendUnavailable, SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.ir.dtypes import INPUT_DTYPES
from cpembed.plugins import load_plugin, plugin_names
from cpembed.provenance import Provenance
from cpembed.runtime.tuning.database import TrialFile, trial_files, tuning_folder
from cpembed.targets.base import Target
from cpembed.targets.known import BUILT_IN, GROUP
from cpembed.targets.tuner import tuner_class


def target_class(backend: str) -> type[Target[Any, Any, Any]] | None:
    """Return the class of a back end's name; None if there is none.

    Raises :class:`SpecError` if a distribution's class cannot be loaded or is no target.
    """
    if backend in BUILT_IN:
        module, _, name = BUILT_IN[backend].partition(":")
        built_in: type[Target[Any, Any, Any]] = getattr(importlib.import_module(module), name)
        return built_in
    plugin = load_plugin(GROUP, backend)
    if plugin is None:
        return None
    target: Any = plugin.value
    # An entry point can name any object.
    if not (isinstance(target, type) and issubclass(target, Target)):
        raise plugin.error("is no class derived from cpembed.targets.base.Target; have it repaired")
    return cast("type[Target[Any, Any, Any]]", target)


def open_target(spec: HardwareSpec) -> Target[Any, Any, Any]:
    """Return the target of a specification.

    Raises :class:`BackendUnavailable` if nothing executes it, :class:`SpecError` if its class
    cannot be loaded or the specification does not fit the target.
    """
    kind = None if spec.backend is None else target_class(spec.backend)
    if kind is None:
        raise BackendUnavailable(f"no back end executes {spec.name} yet")
    return kind(spec)


def missing_for(spec: HardwareSpec) -> tuple[str, ...]:
    """Return what this machine lacks to execute a target's instruction; empty if nothing."""
    try:
        return open_target(spec).missing()
    except BackendUnavailable as error:
        return (str(error),)


def native_target(dtypes: Sequence[str] = ()) -> HardwareSpec:
    """Return the target of this processor whose instruction has the most operations.

    Only targets are considered that run here as they are: no emulator, no simulator.

    >>> native_target(["float32", "float32"]).instruction.computation.inputs[0].dtype
    'float32'

    Parameters
    ----------
    dtypes : sequence of str, optional
        Element types of the factors, in any order. By default two bytes, whose instructions have
        the most operations, or any types where nothing multiplies bytes.

    Raises
    ------
    BackendUnavailable
        If this processor executes no such target.
    """
    native = list(native_targets(dtypes))
    # An instruction for factors of 7 bits takes one of 8 bits too, but not two.
    widths = _widths(dtypes or ("int8", "int8"))
    native = [spec for spec in native if _widths(_first_dtypes(spec)) == widths] or native
    if not native:
        raise no_native_target(dtypes)
    return native[0]


def no_native_target(dtypes: Sequence[str] = ()) -> BackendUnavailable:
    """Return the error of a processor that executes no target for some types, by default any."""
    of_types = f" that multiplies {' by '.join(dtypes)}" if dtypes else ""
    named = named_processor()
    if named is not None:
        return BackendUnavailable(
            f"{named.name}: none of its instructions is a target{of_types}: name a processor for "
            "which `cpembed processors` shows one"
        )
    return BackendUnavailable(
        f"native: this processor executes no target{of_types}; "
        "`cpembed targets` lists what it can execute"
    )


def native_targets(dtypes: Sequence[str] = ()) -> tuple[HardwareSpec, ...]:
    """Return the targets that this processor executes as they are, most operations first.

    Parameters
    ----------
    dtypes : sequence of str, optional
        Element types of the factors, in any order; by default any.
    """
    specs = [load_hardware_spec(name) for name in available_targets()]
    # Targets that cannot fit are left out first: asking what this machine lacks may run a compiler.
    matching = [spec for spec in specs if spec.backend and spec.cpu_features]
    if dtypes:
        matching = [spec for spec in matching if takes(spec, dtypes)]
    native = filter(executes_here, matching)
    return tuple(sorted(native, key=_operations_then_reuse, reverse=True))


def takes(spec: HardwareSpec, dtypes: Sequence[str]) -> bool:
    """Return True if each factor of an instruction takes one of the types, in some order."""
    instruction = spec.instruction.in_ports
    ports = [instruction.dtypes[operand.name] for operand in instruction.computation.inputs]
    return len(ports) == len(dtypes) and any(
        all(dtype in port for dtype, port in zip(order, ports, strict=True))
        for order in permutations(dtypes)
    )


def _first_dtypes(spec: HardwareSpec) -> list[str]:
    return [operand.dtype for operand in spec.instruction.computation.inputs]


def _widths(dtypes: Sequence[str]) -> list[int]:
    return sorted(INPUT_DTYPES[dtype].bits for dtype in dtypes)


def executes_here(spec: HardwareSpec) -> bool:
    """Return True if this processor executes a target as it is: neither emulated nor simulated."""
    return not missing_for(spec) and open_target(spec).provenance is Provenance.MEASURED


def _operations_then_reuse(spec: HardwareSpec) -> tuple[int, int]:
    """Rank an instruction by its operations, and at equal ones by how few elements it reads."""
    ports = spec.instruction.computation
    return ports.macs, -sum(math.prod(operand.shape) for operand in ports.inputs)


def all_targets() -> dict[str, type[Target[Any, Any, Any]]]:
    """Return all target classes by name, except those of distributions that cannot be loaded."""
    targets: dict[str, type[Target[Any, Any, Any]]] = {}
    for name in (*BUILT_IN, *plugin_names(GROUP)):
        try:
            kind = target_class(name)
        except SpecError:
            # One broken plug-in must not hide all other targets from listings.
            continue
        if kind is not None:
            targets[name] = kind
    return targets


def stored_tunings(folder: Path | None = None) -> list[TrialFile[Any]]:
    """Return the tuning files of all targets, sorted by path.

    Parameters
    ----------
    folder : Path, optional
        Folder of the database; by default the user's. Only files that are
        :attr:`~cpembed.runtime.tuning.database.TrialFile.is_current` are used by ``run``.
    """
    trials = (tuner_class(target).trial for target in all_targets().values())
    # Several targets store trials of one type.
    kinds = {trial.kind: trial for trial in trials}
    files = [
        file for kind in kinds.values() for file in trial_files(folder or tuning_folder(), kind)
    ]
    return sorted(files, key=lambda file: file.path)
