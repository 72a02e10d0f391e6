"""Registry: the target of a specification, whose class is imported on first use."""

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
