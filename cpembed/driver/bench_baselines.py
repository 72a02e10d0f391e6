"""Comparison of a layer's kernel with a baseline, as part of the layer's row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.options import BackendName
from cpembed.driver.run_result import RunResult
from cpembed.errors import BackendUnavailable, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.reference import random_inputs
from cpembed.provenance import Provenance
from cpembed.runtime.baselines import (
    Baseline,
    Comparison,
    NotCovered,
    Subject,
    compare_interleaved,
)
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.stores import Natural, Time
from cpembed.targets.capabilities import Comparable, baselines, throttle_probe
from cpembed.targets.portable import PORTABLE
from cpembed.targets.registry import open_target


def check_output_applies(
    spec: HardwareSpec, execute: bool, backend: BackendName, missing: Sequence[str]
) -> None:
    """Check that an epilogue or output type has an effect: that kernels run on this machine.

    Parameters
    ----------
    spec : HardwareSpec
        Target of the benchmark.
    execute : bool
        False if layers are only solved.
    backend : str
        Requested back end; portable code runs everywhere.
    missing : sequence of str
        Reasons why the target's instruction cannot run on this machine.

    Raises
    ------
    WorkloadError
        If nothing runs, or the target is simulated and has a fixed epilogue.
    BackendUnavailable
        If this machine cannot run the instruction.
    """
    if not execute:
        raise WorkloadError(
            "an epilogue or output type needs kernels that run: leave out --no-run (execute=False)"
        )
    if backend != PORTABLE and not missing and not _is_measured(spec):
        raise WorkloadError(
            f"{spec.name} is {open_target(spec).provenance} and has a fixed epilogue: "
            "leave the epilogue and output type out, or name a target that a CPU executes"
        )
    if missing:
        raise BackendUnavailable(
            f"{spec.name}: {'; '.join(missing)}: leave the epilogue and output type out, or use "
            "the generic back end"
        )


def check_comparable(
    spec: HardwareSpec, execute: bool, backend: BackendName, missing: Sequence[str]
) -> None:
    """Check that kernels have measured times, without which no baseline can be compared.

    Parameters
    ----------
    spec, execute, backend, missing
        As for :func:`check_output_applies`.

    Raises
    ------
    WorkloadError
        If nothing runs, portable code would run, or the target is simulated.
    BackendUnavailable
        If this machine cannot run the instruction.
    """
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
    names: Sequence[str], spec: HardwareSpec, epilogue: Epilogue | None
) -> tuple[Baseline, ...]:
    """Load baselines for a target, each once.

    Parameters
    ----------
    names : sequence of str
        Names of baselines; repetitions are ignored.
    spec : HardwareSpec
        Target of the benchmark.
    epilogue : Epilogue or None
        Epilogue of both sides; None for the library's fastest form.

    Returns
    -------
    tuple of Baseline
        The baselines in the order of their names.

    Raises
    ------
    WorkloadError
        If the target has no baseline of a name.
    BackendUnavailable
        If a library is missing.
    """
    unique = list(dict.fromkeys(names))
    if not unique:
        return ()
    factories = baselines(open_target(spec))
    unknown = [name for name in unique if name not in factories]
    if unknown:
        hint = f"use {' '.join(factories)}" if factories else f"{spec.name} is compared with none"
        raise WorkloadError(f"unknown baseline {unknown[0]!r}: {hint}")
    return tuple(factories[name](spec, epilogue) for name in unique)


class BaselineRow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Interleaved times of a kernel and a baseline (:mod:`cpembed.runtime.baselines`).

    Parameters
    ----------
    missing : str, optional
        Reason why there is no comparison; all other fields then have their defaults.
    form : str, optional
        Call of the library and its result.
    stored : str, optional
        Element type that both sides write.
    implementations : list of str
        Implementations that the library selected.
    max_error : float, optional
        Largest absolute difference between both results; None if it is not finite.
    call_us : Quantiles, optional
        Time of the library's call.
    primitive_us : Quantiles, optional
        Time of the computation in that call, as the library reports it.
    reorder_us, weights_reorder_us : float, optional
        Mean times in which the library reorders activations, and weights that were packed ahead in
        another layout than it uses.
    ours_us, ours_with_packing_us : Quantiles, optional
        Time of our contraction on packed operands, and with packing and unpacking.
    call_ratio, call_ratio_with_packing : Quantiles, optional
        ``call_us`` over our time in the same round: above 1 if ours is faster.
    primitive_ratio, primitive_ratio_with_packing : Quantiles, optional
        The same of ``primitive_us``; with packing, ``reorder_us`` is added to it.
    peak_us : Quantiles, optional
        Time of the layer's multiply-accumulates on operands in registers, in the same rounds.
    primitive_over_peak : Quantiles, optional
        ``primitive_us`` over ``peak_us``.
    elsewhere_cores : float, optional
        Mean number of cores that other processes used meanwhile.
    slow_rounds : int
        Number of rounds in which the CPU ran its product instruction slowly; they are left out of
        the samples if enough rounds remain.
    noisy : bool
        True if other processes used too much, or a ratio varied too much, for the ratios to mean
        anything (:class:`~cpembed.runtime.measurement.interleaved.Interleaved`).
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
    """Time a verified kernel and a baseline in alternation.

    Parameters
    ----------
    result : RunResult
        Run of the kernel, in this process.
    baseline : Baseline
        Library to compare with.
    subject : Subject
        Layer with its layout and epilogue.

    Returns
    -------
    BaselineRow
        The comparison, or the reason why there is none.
    """
    kernel, target = result.artifact, result.target
    if kernel is None or not result.is_native:
        return BaselineRow(missing="portable code ran in place of the instruction")
    if not isinstance(target, Comparable):
        raise BackendUnavailable(f"{target.spec.name} is compared with no library")
    inputs = random_inputs(subject.workload, result.seed)

    def kernel_writing(dtype: str) -> CompiledKernel:
        if subject.stored is not None or dtype == subject.workload.output.dtype:
            return kernel
        # Bytes fill less of a cache line than sums do: another schedule may be faster for them.
        return target.storing_kernel(kernel, result.choice, Epilogue(dtype))

    probe = throttle_probe(target)
    comparison = compare_interleaved(
        kernel_writing, baseline, subject, inputs, seed=result.seed, probe=probe
    )
    if isinstance(comparison, NotCovered):
        return BaselineRow(missing=comparison.reason)
    return _row(comparison)


def _row(comparison: Comparison) -> BaselineRow:
    error = comparison.verification.max_error
    return BaselineRow(
        form=comparison.form,
        stored=comparison.stored,
        implementations=list(comparison.names),
        max_error=error if math.isfinite(error) else None,
        call_us=comparison.call,
        primitive_us=comparison.primitive,
        reorder_us=comparison.reorder_us,
        weights_reorder_us=comparison.weights_us,
        ours_us=comparison.kernel,
        ours_with_packing_us=comparison.kernel_with_packing,
        call_ratio=comparison.call_ratio(packing=False),
        call_ratio_with_packing=comparison.call_ratio(packing=True),
        primitive_ratio=comparison.primitive_ratio(packing=False),
        primitive_ratio_with_packing=comparison.primitive_ratio(packing=True),
        peak_us=comparison.peak,
        primitive_over_peak=comparison.primitive_over_peak,
        elsewhere_cores=comparison.interleaved.elsewhere,
        slow_rounds=comparison.interleaved.slow,
        noisy=comparison.interleaved.is_noisy,
    )
