"""Processors that kernels may be built for on another machine, by the names that LLVM has for them.

>>> processor("x86-64-v3").features.issuperset({"avx2", "fma"})
True
>>> processor("apple-m1").name
'apple-a14'
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

from cpembed.codegen.host_cpu import Architecture, Processor, feature_table
from cpembed.codegen.runtime import llvm_processors
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.hw.schema import close_match

_ARCHITECTURES: tuple[Architecture, ...] = ("x86_64", "aarch64")

_ALIASES = {"apple-m1": "apple-a14", "apple-m2": "apple-a15", "apple-m3": "apple-a16"}
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
    by_name |= {_plain(alias): by_name[_plain(of)] for alias, of in _ALIASES.items()}
    selected = by_name.get(_plain(name))
    if selected is None:
        names = [each.name for each in processors()] + list(_ALIASES)
        raise SpecError(
            f"unknown processor {name!r}{close_match(name.lower(), names)}: `cpembed processors` "
            "lists them"
        )
    return selected


def _plain(name: str) -> str:
    return re.sub(r"[-_]", "", name.lower())


def instructions_of(each: Processor) -> tuple[HardwareSpec, ...]:
    """Return the targets whose instructions a processor has."""
    specs = (load_hardware_spec(name) for name in available_targets())
    return tuple(
        spec
        for spec in specs
        if spec.backend and spec.cpu_features and each.features.issuperset(spec.cpu_features)
    )
