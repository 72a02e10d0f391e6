"""Other libraries that x86 kernels are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cpembed.codegen.epilogue import Epilogue
from cpembed.hw.instruction import HardwareSpec
from cpembed.runtime.baselines import Baseline

Opener = Callable[[HardwareSpec, Epilogue | None], Baseline]
"""Loads a baseline for a target, and for what is stored (None: the sums, in the type that the
library likes); raises :class:`~cpembed.errors.BackendUnavailable` where it cannot be compared
here."""


def openers() -> Mapping[str, Opener]:
    """By name."""
    from cpembed.targets.x86.baselines.metaschedule import open_metaschedule
    from cpembed.targets.x86.baselines.onednn import open_onednn
    from cpembed.targets.x86.baselines.sgemm import open_mkl, open_openblas

    return {
        "onednn": open_onednn,
        "mkl": open_mkl,
        "openblas": open_openblas,
        "tvm": open_metaschedule,
    }
