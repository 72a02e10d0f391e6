"""Build a candidate, verify its numbers, time it.

>>> from cpembed.driver.named import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> result = run(layer, "vta_1x16x16", backend="generic")
>>> result.verification.verified, result.backend
(True, 'generic')
>>> result = run(layer, "vta_1x16x16")
>>> str(result.provenance), result.details.timing.gemm_cycles
('simulated', 8)
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from cpembed.driver.methods import chosen_method
from cpembed.driver.options import RunOptions, merged
from cpembed.driver.pipeline import Files, execute
from cpembed.driver.plan import Compared
from cpembed.driver.request import Request
from cpembed.driver.result import SolveResult
from cpembed.driver.run_method import executed_method
from cpembed.driver.run_result import RunResult
from cpembed.driver.solve import Progress
from cpembed.embedding.result import silent
from cpembed.errors import WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime import worker
from cpembed.targets.capabilities import written_files


def run(
    workload: Computation,
    target: str | HardwareSpec,
    options: RunOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Any,
) -> RunResult | SolveResult:
    """Search, choose a candidate, build it, verify it on random data, and time it.

    Without a candidate in the options, what :func:`~cpembed.driver.tune.tune` kept is run; where
    nothing is kept, or with ``untuned``, the one among the best of the ranking that the target's
    model says is the fastest (:mod:`cpembed.targets.choice`). Of a place in the ranking, tuning
    gives the schedule only. Where neither set, candidate nor back end is asked for and the
    instruction cannot be embedded, or would be mostly idle, one of the ``alternatives`` that the
    specification names may run instead.

    Parameters
    ----------
    workload : Computation
        Operator, from :func:`~cpembed.driver.named.workload`.
    target : str or HardwareSpec
        Target by name, file or value.
    options : RunOptions, optional
        What to run and how; its fields may also be given as keywords.
    progress : callable, optional
        Called at each step with the stage and a count.

    Returns
    -------
    RunResult or SolveResult
        The search's result if it found nothing that runs.

    Raises
    ------
    BackendUnavailable, LoweringError
        If ``backend="native"`` is impossible, or the target writes no such file.
    WorkloadError
        If the rank, the id or the output does not exist.
    InvariantError
        If the numbers are wrong.
    """
    options = merged(RunOptions, options, keywords)
    request = Request(workload, target, options, progress=progress)
    report: Progress = progress or silent
    seed = secrets.randbits(31) if options.seed is None else options.seed
    _require_files(request, options)
    worker.prepare()
    files = Files(options.save, options.trace)
    # A method has no one program to write: files are of the implicit one.
    method = "implicit" if options.method == "auto" and files != Files() else options.method
    result = chosen_method(request, method)
    if isinstance(result, SolveResult):
        return result
    selection, compared = result
    if compared is not None and compared.rewritten is not None:
        return _by_method(compared, seed, files, report)
    executed = worker.call(execute, selection.solved, selection.plan, seed, files, progress=report)
    return replace(executed, instead=selection.instead or executed.instead, method=compared)


def _by_method(compared: Compared, seed: int, files: Files, report: Progress) -> RunResult:
    if files != Files():
        raise WorkloadError(
            f"{compared.name} is several programs, and --save and --trace write one: take --method "
            "implicit, or leave the file out"
        )
    report("build", 0)
    return worker.call(executed_method, compared, seed)


def _require_files(request: Request, options: RunOptions) -> None:
    """Reject files that the target does not write, before anything is searched for."""
    requested = {"--trace": options.trace, "--save": options.save}
    if not any(requested.values()):
        return
    writes = written_files(request.execution.target)
    rejected = [name for name, path in requested.items() if path is not None and name not in writes]
    if rejected:
        raise WorkloadError(
            f"{' and '.join(rejected)}: {request.execution.target.spec.name} with the "
            f"{options.backend} back end has nothing of the kind to write: leave it out, or name a "
            "target that has"
        )
