"""The processor of this machine: model and caches, features, and its name for the compiler."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import msgspec

HIDE_VARIABLE = "CPEMBED_HIDE_CPU_FEATURES"
"""Testing aid: comma-separated features that are not used, as if a hypervisor had masked them."""

NAME_VARIABLE = "CPEMBED_LLVM_CPU"
"""Testing aid: name to use instead of the one that LLVM recognises."""

_CPU = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@cache
def cpu_model(information: Path = _CPU) -> str:
    """Return the processor's model as /proc/cpuinfo names it, else as the platform names it."""
    # With family and model number, which tell generations apart where a virtual machine gives them
    # one name.
    fields: dict[str, str] = {}
    with suppress(OSError):
        for line in information.read_text().splitlines():
            field, _, value = line.partition(":")
            # The fields of the first core; those of the others come later.
            fields.setdefault(field.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine() or "unknown"
    family, number = fields.get("cpu family"), fields.get("model")
    return f"{name}, family {family} model {number}" if family and number else name


def cache_bytes(caches: Path = _CACHES) -> tuple[int, int, int]:
    """Return the bytes of one L1 data cache, one L2 and one L3, however many cores share it.

    Sizes that the system does not report are 0.
    """
    sizes = [0, 0, 0]
    for index in sorted(caches.glob("index*")):
        try:
            level = int((index / "level").read_text())
            kind = (index / "type").read_text().strip()
            text = (index / "size").read_text().strip()
            size = int(text.rstrip("".join(_UNITS))) * _UNITS.get(text[-1:], 1)
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and 1 <= level <= len(sizes):
            sizes[level - 1] = size
    first, second, third = sizes
    return first, second, third


class _Features(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """Contents of ``cpu_features.toml``, where each field is explained."""

    vendor: str
    alike: tuple[str, ...]
    on_demand: tuple[str, ...]
    not_taken: tuple[str, ...]
    llvm: dict[str, str]
    rests_on: dict[str, tuple[str, ...]]
    families: dict[str, str]

    @cached_property
    def names(self) -> Mapping[str, str]:
        """LLVM names by the names of /proc/cpuinfo."""
        return {**{name: name for name in self.alike}, **self.llvm}

    def basis(self, name: str) -> tuple[str, ...]:
        """Return the features without which a feature counts as absent."""
        families = (base for start, base in self.families.items() if name.startswith(start))
        return self.rests_on.get(name) or tuple(families)


@cache
def x86_features() -> _Features:
    """Return the features of x86 processors that matter to a compiler."""
    text = (Path(__file__).parent / "cpu_features.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Features)


@cache
def reported_features() -> frozenset[str]:
    """Return the features' names as /proc/cpuinfo spells them; none if there is no such file."""
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
    """Return the reported features without hidden ones (:data:`HIDE_VARIABLE`).

    Features that depend on absent ones are left out too.
    """
    features, table = reported_features() - listed(HIDE_VARIABLE), x86_features()
    # Repeated, because features without their basis may be the basis of others.
    while absent := {name for name in features if not features.issuperset(table.basis(name))}:
        features -= absent
    return features


def needed_features(required: Collection[str] = ()) -> tuple[str, ...]:
    """Return the features that a processor needs to execute code compiled here for export.

    They have the names of :func:`cpu_features`, and include those that a kernel itself requires.
    Empty for processors that do not report features by these names.
    """
    if not is_x86():
        return ()
    table = x86_features()
    spared = {*table.on_demand, *table.not_taken}
    features = {name for name in cpu_features() if name in table.names and name not in spared}
    return tuple(sorted(features | {name for name in required if name in table.names}))


def exported_attributes() -> tuple[str, ...]:
    """Return attributes that exclude features from code that runs on other machines."""
    return tuple(f"-{name}" for name in x86_features().not_taken) if is_x86() else ()


def listed(variable: str) -> frozenset[str]:
    """Return the comma-separated words of an environment variable."""
    words = os.environ.get(variable, "").split(",")
    return frozenset(word.strip() for word in words if word.strip())


@dataclass(frozen=True)
class HostCpu:
    """Processor for the compiler: ``name`` is LLVM's ``mcpu``, ``attributes`` are its ``mattr``.

    ``recognised`` is LLVM's own guess of the name. The guess does not have the reported features
    ``lacking``; the processor does not report the features ``absent`` of ``name``.
    """

    name: str
    recognised: str
    lacking: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Explanation of the name and the attributes."""
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
    names: Callable[[], Collection[str]],
    features_of: Callable[[str], Collection[str]],
) -> HostCpu:
    """Return this processor for the compiler.

    Parameters
    ----------
    recognised : str
        Name that LLVM guesses.
    names : callable
        Lists the names that LLVM knows.
    features_of : callable
        Returns LLVM's features of a name.
    """
    # Only x86 processors report features by the names that the table knows.
    if not is_x86() or not reported_features():
        return HostCpu(recognised, recognised)
    # LLVM guesses by model number, which virtual machines mask and which LLVM does not have for
    # newer cores. What the processor reports decides: another name is better if it has more of it,
    # and where a name has too few or too many features, the compiler is told which.
    llvm_names, vendor = x86_features().names, x86_features().vendor
    reported = frozenset(llvm_names[flag] for flag in cpu_features() if flag in llvm_names)

    @cache
    def emitted(name: str) -> frozenset[str]:
        """Return the features of a name that a compiler uses unasked."""
        return frozenset(features_of(name)) & frozenset(llvm_names.values())

    best, lacking = recognised, reported - emitted(recognised)
    if lacking:
        is_vendor = vendor in reported
        candidates = [
            name
            for name in sorted(names())
            # LLVM has a second spelling of many names, for its own dispatch. A name with a feature
            # that is not reported would let it emit instructions that trap.
            if "_" not in name
            and emitted(name) <= reported
            and (vendor in emitted(name)) == is_vendor
        ]
        # Among equals the guess stays, since it comes first.
        best = max([recognised, *candidates], key=lambda name: len(reported & emitted(name)))
    added, absent = reported - emitted(best), emitted(best) - reported
    attributes = [*(f"+{name}" for name in sorted(added)), *(f"-{name}" for name in sorted(absent))]
    return HostCpu(
        name=best,
        recognised=recognised,
        lacking=tuple(sorted(lacking)),
        absent=tuple(sorted(absent)),
        attributes=tuple(attributes),
    )


def is_x86() -> bool:
    """Return True on an x86 machine."""
    return platform.machine() in ("x86_64", "AMD64")
