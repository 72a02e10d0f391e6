"""What this machine's processor can do, and what the compiler is told of it.

The processor reports its features itself (CPUID, as /proc/cpuinfo prints it); its LLVM name is a
guess by model number, which virtual machines mask and LLVM does not know of newer cores. So the
features decide: a name stands only where no other one that LLVM knows has more of them, and what
it has too few or too many of is said to the compiler beside it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import msgspec

HIDE_VARIABLE = "CPEMBED_HIDE_CPU_FEATURES"
"""A testing aid: comma-separated features that this processor has and that are not used, as if a
hypervisor had switched them off."""

NAME_VARIABLE = "CPEMBED_LLVM_CPU"
"""A testing aid: the name that LLVM is taken to have recognised."""


class _Features(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """``cpu_features.toml``, where each field is explained."""

    vendor: str
    alike: tuple[str, ...]
    on_demand: tuple[str, ...]
    not_taken: tuple[str, ...]
    llvm: dict[str, str]
    rests_on: dict[str, tuple[str, ...]]
    families: dict[str, str]

    @cached_property
    def names(self) -> Mapping[str, str]:
        """LLVM's name of each feature."""
        return {**{name: name for name in self.alike}, **self.llvm}

    def basis(self, name: str) -> tuple[str, ...]:
        """Without what a feature counts as absent."""
        family = (of for start, of in self.families.items() if name.startswith(start))
        return self.rests_on.get(name) or tuple(family)


@cache
def x86_features() -> _Features:
    """The features of x86 processors that matter to a compiler."""
    text = (Path(__file__).parent / "cpu_features.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Features)


@cache
def reported_features() -> frozenset[str]:
    """Feature names as /proc/cpuinfo spells them; empty where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def cpu_features() -> frozenset[str]:
    """The reported features, less those that are hidden (:data:`HIDE_VARIABLE`) and those that rest
    on absent ones."""
    found, known = reported_features() - listed(HIDE_VARIABLE), x86_features()
    while absent := {name for name in found if not found.issuperset(known.basis(name))}:
        found -= absent
    return found


def needed_features(asked: Collection[str] = ()) -> tuple[str, ...]:
    """What a processor has to have to execute code of this machine that is taken there
    (:func:`taken_attributes`), by the names of :func:`cpu_features`; ``asked``: features that a
    kernel asks for itself. Empty where processors do not report their features in these words."""
    if not is_x86():
        return ()
    known = x86_features()
    spared = {*known.on_demand, *known.not_taken}
    found = {name for name in cpu_features() if name in known.names and name not in spared}
    return tuple(sorted(found | {name for name in asked if name in known.names}))


def taken_attributes() -> tuple[str, ...]:
    """What the compiler is told beside this machine's features, of code that is taken elsewhere."""
    return tuple(f"-{name}" for name in x86_features().not_taken) if is_x86() else ()


def listed(variable: str) -> frozenset[str]:
    """The comma-separated words of an environment variable."""
    words = os.environ.get(variable, "").split(",")
    return frozenset(word.strip() for word in words if word.strip())


@dataclass(frozen=True)
class HostCpu:
    """What the compiler is told: ``name`` for LLVM's ``mcpu``, ``attributes`` for its ``mattr``.

    ``recognised`` is LLVM's own guess. ``lacking`` are the reported features that the guess does
    not have, ``absent`` those that ``name`` has and the processor does not report, both as LLVM
    names them.
    """

    name: str
    recognised: str
    lacking: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Why the name is this one, in words."""
        reasons = [f"LLVM recognises {self.recognised}"]
        if self.name != self.recognised:
            missed = ", ".join(self.lacking)
            reasons.append(f"the processor also reports {missed}: compiled for {self.name}")
        added = [text[1:] for text in self.attributes if text.startswith("+")]
        if added:
            reasons.append(f"added: {', '.join(added)}")
        if self.absent:
            reasons.append(f"not reported, so not used: {', '.join(self.absent)}")
        return "; ".join(reasons)


def host_cpu(
    recognised: str,
    known: Callable[[], Collection[str]],
    features_of: Callable[[str], Collection[str]],
) -> HostCpu:
    """What to tell the compiler of this processor.

    ``recognised`` is the name that LLVM guesses, ``known`` lists the names that it knows, and
    ``features_of`` is what a name stands for, in LLVM's words. Only x86 processors report their
    features in the words of :func:`x86_features`; elsewhere the guess is all there is.
    """
    if not is_x86() or not reported_features():
        return HostCpu(recognised, recognised)
    names, vendor = x86_features().names, x86_features().vendor
    reported = frozenset(names[flag] for flag in cpu_features() if flag in names)

    @cache
    def emitted(name: str) -> frozenset[str]:
        """What of a name's features a compiler emits by itself."""
        return frozenset(features_of(name)) & frozenset(names.values())

    chosen, lacking = recognised, reported - emitted(recognised)
    if lacking:
        mine = vendor in reported
        candidates = [
            name
            for name in sorted(known())
            # LLVM has a second spelling of many names, for its own dispatch.
            if "_" not in name and emitted(name) <= reported and (vendor in emitted(name)) == mine
        ]
        chosen = max([recognised, *candidates], key=lambda name: len(reported & emitted(name)))
    added, absent = reported - emitted(chosen), emitted(chosen) - reported
    attributes = [*(f"+{name}" for name in sorted(added)), *(f"-{name}" for name in sorted(absent))]
    return HostCpu(
        chosen, recognised, tuple(sorted(lacking)), tuple(sorted(absent)), tuple(attributes)
    )


def is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")
