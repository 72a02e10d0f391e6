"""A layer's comparison with a baseline as part of its row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from cpembed.baselines.base import Baseline, NotCovered, Subject
from cpembed.baselines.comparison import Comparison, compare_interleaved
from cpembed.driver.options import BackendName
from cpembed.driver.run_result import RunResult
from cpembed.errors import BackendUnavailable, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.reference import random_inputs
from cpembed.kernel.compiled import CompiledKernel
from cpembed.kernel.epilogue import Epilogue
from cpembed.measure.runner import Quantiles
from cpembed.provenance import Provenance
from cpembed.stores import Natural, Time
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


class BaselineRow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Both sides, timed interleaved (:mod:`cpembed.baselines`), or why not (``missing``).

    ``form`` is the baseline's call and result, ``stored`` the type of the results that both sides
    store, ``implementations`` what the library chose to run in it. ``call_us``: that call;
    ``primitive_us``: the computation by the library's own account; ``reorder_us`` and
    ``weights_reorder_us`` its moving of activations and of weights that were packed ahead, but not
    as it wants them, both means. ``ours_us``: our contraction on packed operands;
    ``ours_with_packing_us``: with packing and unpacking. The ratios are the baseline's time over
    ours in the same round, above 1 where ours is faster; ``primitive_ratio_with_packing`` adds
    ``reorder_us``. ``peak_us``: the layer's products alone, on registers, in the same rounds, and
    ``primitive_over_peak`` the library's time over that. ``elsewhere_cores``: what other processes
    had of the machine meanwhile. ``noisy``: too much, or a ratio varied too much
    (:class:`~cpembed.measure.interleaved.Interleaved`): then the ratios mean little.
    """

    missing: str | None = None
    form: str | None = None
    stored: str | None = None
    implementations: list[str] = []
    max_error: Time | None = None
    call_us: Quantiles | None = None
    primitive_us: Quantiles | None = None
    reorder_us: Time | None = None
    weights_reorder_us: Time | None = None
    ours_us: Quantiles | None = None
    ours_with_packing_us: Quantiles | None = None
    call_ratio: Quantiles | None = None
    call_ratio_with_packing: Quantiles | None = None
    primitive_ratio: Quantiles | None = None
    primitive_ratio_with_packing: Quantiles | None = None
    peak_us: Quantiles | None = None
    primitive_over_peak: Quantiles | None = None
    elsewhere_cores: Time | None = None
    slow_rounds: Natural = 0
    noisy: bool = False


def baseline_row(result: RunResult, baseline: Baseline, subject: Subject) -> BaselineRow:
    """Time a verified kernel beside the baseline."""
    kernel, target = result.artifact, result.target
    if kernel is None or not result.is_native:
        return BaselineRow(missing="portable code ran in place of the instruction")
    inputs = random_inputs(subject.workload, result.seed)

    def storing(dtype: str) -> CompiledKernel:
        if subject.stored is not None or dtype == subject.workload.output.dtype:
            return kernel
        # Bytes take less of a line than sums: another kernel may suit them, as `run --output` says.
        return target.storing_kernel(kernel, result.choice, Epilogue(dtype))

    probe = target.throttle_probe()
    found = compare_interleaved(storing, baseline, subject, inputs, seed=result.seed, probe=probe)
    if isinstance(found, NotCovered):
        return BaselineRow(missing=found.reason)
    return _compared(found)


def _compared(found: Comparison) -> BaselineRow:
    error = found.verification.max_error
    return BaselineRow(
        form=found.form,
        stored=found.stored,
        implementations=list(found.names),
        max_error=error if math.isfinite(error) else None,
        call_us=found.call,
        primitive_us=found.primitive,
        reorder_us=found.reorder_us,
        weights_reorder_us=found.weights_us,
        ours_us=found.ours,
        ours_with_packing_us=found.ours_with_packing,
        call_ratio=found.call_ratio(packing=False),
        call_ratio_with_packing=found.call_ratio(packing=True),
        primitive_ratio=found.primitive_ratio(packing=False),
        primitive_ratio_with_packing=found.primitive_ratio(packing=True),
        peak_us=found.peak,
        primitive_over_peak=found.primitive_over_peak,
        elsewhere_cores=found.interleaved.elsewhere,
        slow_rounds=found.interleaved.slow,
        noisy=found.interleaved.is_noisy,
    )
