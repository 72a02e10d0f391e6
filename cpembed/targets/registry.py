"""The target of a specification: its class is imported on first use."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, cast

from cpembed.errors import BackendUnavailable, SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.plugins import load_plugin, plugin_names
from cpembed.runtime.tuning.database import TrialFile, trial_files, tuning_folder
from cpembed.targets.base import Target
from cpembed.targets.known import BUILT_IN, GROUP
from cpembed.targets.tuner import tuner_class


def target_class(backend: str) -> type[Target[Any, Any, Any]] | None:
    """None where nothing has this name.

    Raises :class:`SpecError` where a distribution's class cannot be loaded or is none.
    """
    if backend in BUILT_IN:
        module, _, name = BUILT_IN[backend].partition(":")
        built_in: type[Target[Any, Any, Any]] = getattr(importlib.import_module(module), name)
        return built_in
    plugin = load_plugin(GROUP, backend)
    if plugin is None:
        return None
    found: Any = plugin.value
    if not (isinstance(found, type) and issubclass(found, Target)):
        raise plugin.error("is no class derived from cpembed.targets.base.Target; have it repaired")
    return cast("type[Target[Any, Any, Any]]", found)


def open_target(spec: HardwareSpec) -> Target[Any, Any, Any]:
    """The target of a specification.

    Raises :class:`BackendUnavailable` where nothing executes it, :class:`SpecError` as
    :func:`target_class` does and where the specification is none of such a target.
    """
    found = None if spec.backend is None else target_class(spec.backend)
    if found is None:
        raise BackendUnavailable(f"no back end executes {spec.name} yet")
    return found(spec)


def missing_for(spec: HardwareSpec) -> tuple[str, ...]:
    """What executing a target's instruction on this machine lacks; empty where nothing does."""
    try:
        return open_target(spec).missing()
    except BackendUnavailable as error:
        return (str(error),)


def all_targets() -> dict[str, type[Target[Any, Any, Any]]]:
    """Every class there is, by name; a distribution's that cannot be loaded is left out."""
    found: dict[str, type[Target[Any, Any, Any]]] = {}
    for name in (*BUILT_IN, *plugin_names(GROUP)):
        try:
            kind = target_class(name)
        except SpecError:
            continue
        if kind is not None:
            found[name] = kind
    return found


def stored_tunings(folder: Path | None = None) -> list[TrialFile[Any]]:
    """Return what a tuning database holds of every target, sorted by the name of the file.

    Parameters
    ----------
    folder : Path, optional
        Folder of the database; by default the user's. What ``run`` uses of a file is
        :attr:`~cpembed.runtime.tuning.database.TrialFile.is_current`.
    """
    trials = (tuner_class(target).trial for target in all_targets().values())
    kinds = {trial.kind: trial for trial in trials}
    files = [
        file for kind in kinds.values() for file in trial_files(folder or tuning_folder(), kind)
    ]
    return sorted(files, key=lambda file: file.path)
