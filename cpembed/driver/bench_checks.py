"""What a benchmark is asked for and cannot be: found before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.baselines.base import Baseline
from cpembed.driver.options import BackendName
from cpembed.errors import BackendUnavailable, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.kernel.epilogue import Epilogue
from cpembed.provenance import Provenance
from cpembed.targets.portable import PORTABLE
from cpembed.targets.registry import open_target


def check_stored(
    spec: HardwareSpec, execute: bool, backend: BackendName, missing: Sequence[str]
) -> None:
    """What is stored matters to kernels of the target's instruction that run here."""
    if not execute:
        raise WorkloadError(
            "what is stored matters to kernels that run: leave out --no-run (execute=False)"
        )
    if backend != PORTABLE and not missing and not _is_measured(spec):
        raise WorkloadError(
            f"{spec.name} is {open_target(spec).provenance} and stores what its instructions do: "
            "leave out what is to be stored, or name a target that a CPU executes"
        )
    if missing:
        raise BackendUnavailable(
            f"{spec.name}: {'; '.join(missing)}: leave out what is to be stored, or use the "
            "generic back end"
        )


def check_comparable(
    spec: HardwareSpec, execute: bool, backend: BackendName, missing: Sequence[str]
) -> None:
    """A baseline needs times of the target's instruction on this machine."""
    if not execute:
        raise WorkloadError(
            "a baseline is compared with kernels that run: leave out --no-run (execute=False)"
        )
    if backend == PORTABLE:
        raise WorkloadError(
            "a baseline is compared with the target's instruction, not with portable code: "
            "leave the generic back end out"
        )
    if missing:
        raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}: leave the baseline out")
    if not _is_measured(spec):
        raise WorkloadError(
            f"{spec.name} is {open_target(spec).provenance} and has no time on this machine: "
            "leave the baseline out"
        )


def _is_measured(spec: HardwareSpec) -> bool:
    return open_target(spec).provenance is Provenance.MEASURED


def open_baselines(
    names: Sequence[str], spec: HardwareSpec, stored: Epilogue | None
) -> tuple[Baseline, ...]:
    """Load baselines for a target and what is stored, each once, in the order in which they are
    named; raises :class:`WorkloadError` for an unknown name, and as the baselines do."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return ()
    known = open_target(spec).baselines
    unknown = [name for name in wanted if name not in known]
    if unknown:
        has = f"use {' '.join(known)}" if known else f"{spec.name} is compared with none"
        raise WorkloadError(f"unknown baseline {unknown[0]!r}: {has}")
    return tuple(known[name](spec, stored) for name in wanted)
