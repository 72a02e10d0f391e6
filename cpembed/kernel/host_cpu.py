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
from functools import cache
from pathlib import Path

HIDE_VARIABLE = "CPEMBED_HIDE_CPU_FEATURES"
"""A testing aid: comma-separated features that this processor has and that are not used, as if a
hypervisor had switched them off."""

NAME_VARIABLE = "CPEMBED_LLVM_CPU"
"""A testing aid: the name that LLVM is taken to have recognised."""

LLVM_FEATURES: Mapping[str, str] = {
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "pclmulqdq": "pclmul",
    "sha_ni": "sha",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vp2intersect": "avx512vp2intersect",
    "avx_vnni": "avxvnni",
    "avx_ifma": "avxifma",
    "avx_vnni_int8": "avxvnniint8",
    "avx_vnni_int16": "avxvnniint16",
    "avx_ne_convert": "avxneconvert",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16",
    "amx_complex": "amx-complex",
} | {
    name: name
    for name in (
        "ssse3", "popcnt", "avx", "avx2", "fma", "f16c", "bmi2", "movbe", "aes", "sse4a", "xop",
        "fma4", "tbm", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512ifma",
        "avx512vbmi", "gfni", "vaes", "vpclmulqdq",
    )
}  # fmt: skip
"""LLVM's names of the features whose instructions a compiler emits for arithmetic on registers, by
the name in /proc/cpuinfo (LLVM X86.td; Linux arch/x86/include/asm/cpufeatures.h)."""


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


_RESTS_ON: Mapping[str, tuple[str, ...]] = {
    "ssse3": ("pni",),
    "sse4_1": ("ssse3",),
    "sse4_2": ("sse4_1",),
    "avx": ("sse4_2",),
    "avx2": ("avx",),
    "fma": ("avx",),
    "f16c": ("avx",),
    "vaes": ("avx", "aes"),
    "vpclmulqdq": ("avx", "pclmulqdq"),
    "avx512f": ("avx2", "fma", "f16c"),
    "avx512vbmi": ("avx512bw",),
    "avx512_vbmi2": ("avx512bw",),
    "avx512_bitalg": ("avx512bw",),
    "avx512_bf16": ("avx512bw",),
    "avx512_fp16": ("avx512bw",),
}
"""Without what a feature counts as absent, as in LLVM, which switches it off too (X86.td); beside
these AVX-512's rest on ``avx512f``, other vectors of AVX on ``avx2``, AMX's on ``amx_tile``."""


def cpu_features() -> frozenset[str]:
    """The reported features, less those that are hidden (:data:`HIDE_VARIABLE`) and those that rest
    on absent ones."""
    found = reported_features() - listed(HIDE_VARIABLE)
    while absent := {name for name in found if not found.issuperset(_rests_on(name))}:
        found -= absent
    return found


def _rests_on(name: str) -> tuple[str, ...]:
    if name in _RESTS_ON and not name.startswith("avx512_"):
        return _RESTS_ON[name]
    families = {"avx512": "avx512f", "avx_": "avx2", "amx_": "amx_tile"}
    base = next((of for start, of in families.items() if name.startswith(start)), name)
    return (base, *_RESTS_ON.get(name, ()))


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
    features in the words of :data:`LLVM_FEATURES`; elsewhere the guess is all there is.
    """
    if not is_x86() or not reported_features():
        return HostCpu(recognised, recognised)
    names = LLVM_FEATURES
    reported = frozenset(names[flag] for flag in cpu_features() if flag in names)

    @cache
    def emitted(name: str) -> frozenset[str]:
        """What of a name's features a compiler emits by itself."""
        return frozenset(features_of(name)) & frozenset(names.values())

    chosen, lacking = recognised, reported - emitted(recognised)
    if lacking:
        amd = "sse4a" in reported
        candidates = [
            name
            for name in sorted(known())
            # LLVM has a second spelling of many names, for its own dispatch.
            if "_" not in name and emitted(name) <= reported and ("sse4a" in emitted(name)) == amd
        ]
        chosen = max([recognised, *candidates], key=lambda name: len(reported & emitted(name)))
    added, absent = reported - emitted(chosen), emitted(chosen) - reported
    attributes = [*(f"+{name}" for name in sorted(added)), *(f"-{name}" for name in sorted(absent))]
    return HostCpu(
        chosen, recognised, tuple(sorted(lacking)), tuple(sorted(absent)), tuple(attributes)
    )


def is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")
