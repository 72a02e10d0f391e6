"""The processor that kernels are built for: features, and its name for the compiler.

It is the processor of this machine, whose model and caches the system reports, or one that
:func:`built_for` names (:mod:`cpembed.targets.processors` lists them).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property, update_wrapper
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
R = TypeVar("R")

HIDE_VARIABLE = "CPEMBED_HIDE_CPU_FEATURES"
"""Testing aid: comma-separated features that are not used, as if a hypervisor had masked them."""

NAME_VARIABLE = "CPEMBED_LLVM_CPU"
"""Testing aid: name to use instead of the one that LLVM recognises."""

PROCESSOR_VARIABLE = "CPEMBED_CPU"
"""Environment variable by which :func:`built_for` reaches the worker processes."""

Architecture = Literal["x86_64", "aarch64"]
"""Instruction set of a processor, as LLVM's triples begin."""

_CPU = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class Processor(msgspec.Struct, frozen=True):
    """Processor that kernels are built for on another machine.

    Attributes
    ----------
    name : str
        LLVM's name.
    architecture : str
    features : frozenset of str
        Features by the names that /proc/cpuinfo has for them, without those that kernels do not
        use.
    """

    name: str
    architecture: Architecture
    features: frozenset[str]

    @property
    def triple(self) -> str:
        """LLVM's name of the system."""
        return f"{self.architecture}-linux-gnu"

    @property
    def runs_here(self) -> bool:
        """True if this machine executes everything that is built for the processor."""
        same = self.architecture == host_architecture()
        # Without a list of features nothing is known of this machine.
        return same and _present(reported_features()).issuperset(self.features)


@contextmanager
def built_for(processor: Processor | None) -> Generator[None]:
    """Build kernels for a processor, in this process and its workers; None for this machine's."""
    # An environment variable, since workers start with the variables of this process, and are
    # replaced where one changes.
    before = os.environ.pop(PROCESSOR_VARIABLE, None)
    if processor is not None:
        os.environ[PROCESSOR_VARIABLE] = msgspec.json.encode(processor).decode()
    try:
        yield
    finally:
        os.environ.pop(PROCESSOR_VARIABLE, None)
        if before is not None:
            os.environ[PROCESSOR_VARIABLE] = before


def named_processor() -> Processor | None:
    """Return the processor that kernels are built for if :func:`built_for` names one."""
    text = os.environ.get(PROCESSOR_VARIABLE)
    return _decoded(text) if text else None


@cache
def _decoded(text: str) -> Processor:
    return msgspec.json.decode(text, type=Processor)


class cache_by_processor(Generic[P, R]):  # noqa: N801
    """Decorator that caches results for each processor that kernels are built for."""

    def __init__(self, function: Callable[P, R]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._results: dict[Any, R] = {}

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        processor = os.environ.get(PROCESSOR_VARIABLE)
        key = (processor, arguments, tuple(sorted(keywords.items())))
        if key not in self._results:
            self._results[key] = self._function(*arguments, **keywords)
        return self._results[key]

    def __reduce__(self) -> str:
        # By its name, as a function is pickled: a worker calls its own.
        return self._function.__qualname__

    def cache_clear(self) -> None:
        """Drop all results."""
        self._results.clear()


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
    arm_unused: tuple[str, ...]
    llvm: dict[str, str]
    rests_on: dict[str, tuple[str, ...]]
    families: dict[str, str]
    arm: dict[str, str]

    @cached_property
    def names(self) -> Mapping[str, str]:
        """LLVM names by the names of /proc/cpuinfo."""
        return {**{name: name for name in self.alike}, **self.llvm}

    def basis(self, name: str) -> tuple[str, ...]:
        """Return the features without which a feature counts as absent."""
        families = (base for start, base in self.families.items() if name.startswith(start))
        return self.rests_on.get(name) or tuple(families)


@cache
def feature_table() -> _Features:
    """Return the features of processors that matter to a compiler."""
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
    """Return the features of the processor that kernels are built for.

    Those of this machine are the reported ones without hidden ones (:data:`HIDE_VARIABLE`) and
    without those that depend on absent ones.
    """
    named = named_processor()
    return _present(reported_features()) if named is None else named.features


def _present(reported: frozenset[str]) -> frozenset[str]:
    features, table = reported - listed(HIDE_VARIABLE), feature_table()
    # Repeated, because features without their basis may be the basis of others.
    while absent := {name for name in features if not features.issuperset(table.basis(name))}:
        features -= absent
    return features


def runs_here(features: Collection[str]) -> bool:
    """Return True if this machine executes kernels that need these features."""
    named = named_processor()
    same = named is None or named.architecture == host_architecture()
    return same and _present(reported_features()).issuperset(features)


def needed_features(required: Collection[str] = ()) -> tuple[str, ...]:
    """Return the features that a processor needs to execute code compiled for export.

    They have the names of :func:`cpu_features`, and include those that a kernel itself requires.
    Empty for processors that do not report features by these names.
    """
    table = feature_table()
    if not is_x86():
        # Of this machine's Arm core nobody checks what LLVM's name for it has.
        named = named_processor()
        return () if named is None else tuple(sorted(named.features | {*required}))
    spared = {*table.on_demand, *table.not_taken}
    features = {name for name in cpu_features() if name in table.names and name not in spared}
    return tuple(sorted(features | {name for name in required if name in table.names}))


def exported_attributes() -> tuple[str, ...]:
    """Return attributes that exclude features from code that runs on other machines."""
    if is_x86():
        return tuple(f"-{name}" for name in feature_table().not_taken)
    unused = () if named_processor() is None else feature_table().arm_unused
    return tuple(f"-{name}" for name in unused)


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
    llvm_names, vendor = feature_table().names, feature_table().vendor
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


def host_architecture() -> str:
    """Return the instruction set of this machine, as :data:`Architecture` if it is one of these."""
    machine = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def architecture() -> str:
    """Return the instruction set of the processor that kernels are built for."""
    named = named_processor()
    return host_architecture() if named is None else named.architecture


def processor_name() -> str:
    """Return the name, for messages, of the processor that kernels are built for."""
    named = named_processor()
    return "this machine" if named is None else named.name


def is_x86() -> bool:
    """Return True if kernels are built for an x86 processor."""
    return architecture() == "x86_64"
