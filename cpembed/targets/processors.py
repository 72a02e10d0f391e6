"""Processors that kernels may be built for on another machine, by the names that LLVM has for them.

>>> processor("x86-64-v3").features.issuperset({"avx2", "fma"})
True
>>> processor("apple-m1").name
'apple-a14'
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cpembed.codegen.host_cpu import Architecture, Processor, built_for, feature_table
from cpembed.codegen.runtime import llvm_processors
from cpembed.errors import BackendUnavailable, SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.hw.schema import close_match
from cpembed.targets.cpu.calibration import figures_name

_ARCHITECTURES: tuple[Architecture, ...] = ("x86_64", "aarch64")

ALIASES = {"apple-m1": "apple-a14", "apple-m2": "apple-a15", "apple-m3": "apple-a16"}
"""Names that LLVM takes and does not list, with those that stand for the same core."""

_LONG_MODE = "64bit"
"""LLVM's feature of x86 processors that execute 64-bit code."""

_ANY = "generic"
"""Name that LLVM has in every instruction set, for a processor with none of the extensions."""


@cache
def processors() -> tuple[Processor, ...]:
    """Return all processors that LLVM knows of the two instruction sets, in its order."""
    return tuple(
        _processor(name, architecture, features)
        for architecture in _ARCHITECTURES
        for name, features in llvm_processors(f"{architecture}-linux-gnu").items()
        # LLVM has a second spelling of some names, with underscores, for its own dispatch.
        if name != _ANY and "_" not in name and (architecture != "x86_64" or _LONG_MODE in features)
    )


def _processor(name: str, architecture: Architecture, llvm: Collection[str]) -> Processor:
    table = feature_table()
    names = table.names if architecture == "x86_64" else table.arm
    features = frozenset(feature for feature, spelling in names.items() if spelling in llvm)
    return Processor(name, architecture, features)


def processor(name: str) -> Processor:
    """Return the processor of a name; hyphens, underscores and case do not matter.

    Raises :class:`SpecError` if there is none.
    """
    by_name = {_plain(each.name): each for each in processors()}
    by_name |= {_plain(alias): by_name[_plain(core)] for alias, core in ALIASES.items()}
    selected = by_name.get(_plain(name))
    if selected is None:
        names = [each.name for each in processors()] + list(ALIASES)
        raise SpecError(
            f"unknown processor {name!r}{close_match(name.lower(), names)}: `cpembed processors` "
            "lists them"
        )
    return selected


def _plain(name: str) -> str:
    return re.sub(r"[-_]", "", name.lower())


@cache
def _specifications() -> tuple[HardwareSpec, ...]:
    """Return the targets that are instructions of processors."""
    specs = (load_hardware_spec(name) for name in available_targets())
    return tuple(spec for spec in specs if spec.backend and spec.cpu_features)


def instructions_of(each: Processor) -> tuple[HardwareSpec, ...]:
    """Return the targets whose instructions a processor has."""
    return tuple(s for s in _specifications() if each.features.issuperset(s.cpu_features))


def described(each: Processor) -> dict[str, Any]:
    """Return a processor for documents.

    ``figures`` names the published figures by which kernels for it are chosen; None if those of
    another processor stand in.
    """
    return {
        "name": each.name,
        "architecture": each.architecture,
        "features": sorted(each.features),
        "instructions": [spec.name for spec in instructions_of(each)],
        "figures": figures_name(each),
    }


@contextmanager
def built_for_name(name: str | None, *, executes: bool = False) -> Generator[None]:
    """Build kernels for a processor by its name; None for this machine's.

    Parameters
    ----------
    name : str, optional
        Name of the processor.
    executes : bool, default False
        True if this machine has to execute the kernels.

    Raises
    ------
    SpecError
        If the name is unknown.
    BackendUnavailable
        If this machine cannot execute them.
    """
    named = None if name is None else processor(name)
    if named is not None and executes and not named.runs_here:
        raise BackendUnavailable(
            f"this machine does not execute code for {named.name}: add --plan-only, or write a "
            "library with `cpembed build`"
        )
    with built_for(named):
        yield
