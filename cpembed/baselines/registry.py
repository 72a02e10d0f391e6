"""The baselines there are, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cpembed.baselines.base import Baseline
from cpembed.baselines.metaschedule import open_metaschedule
from cpembed.baselines.onednn import open_onednn
from cpembed.errors import WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.kernel.epilogue import Epilogue

BASELINES: Mapping[str, Callable[[HardwareSpec, Epilogue | None], Baseline]] = {
    "onednn": open_onednn,
    "tvm": open_metaschedule,
}
"""What loads each baseline for a target, and for what is stored (None: the sums, in the type that
the library likes); raises :class:`~cpembed.errors.BackendUnavailable` where it cannot be compared
here."""


def open_baselines(
    names: Iterable[str], spec: HardwareSpec, stored: Epilogue | None = None
) -> tuple[Baseline, ...]:
    """Load baselines for a target and what is stored, each once, in the order in which they are
    named.

    Raises :class:`WorkloadError` for an unknown name, and as the baselines do.
    """
    wanted = list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in BASELINES]
    if unknown:
        raise WorkloadError(f"unknown baseline {unknown[0]!r}: use {' '.join(BASELINES)}")
    return tuple(BASELINES[name](spec, stored) for name in wanted)
