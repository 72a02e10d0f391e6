"""Comparison of the layouts of a workload's tensors on a target, with the cost of packing.

>>> result = compare_layouts("gemm m=16 n=32 k=32", "vta_1x16x16")
>>> [row.name for row in result.rows]
['A[m,k] B[k,n]', 'A[m,k] B[n,k]', 'A[k,m] B[k,n]', 'A[k,m] B[n,k]']
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.candidate_time import CandidateTime, selection_time
from cpembed.driver.layout_rows import LayoutRow, LayoutsResult, Times, run_bytes
from cpembed.driver.named import hardware_spec
from cpembed.driver.named import workload as parsed
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.driver.result import SolveResult
from cpembed.driver.run import run
from cpembed.errors import CpembedError, CrashError, InvariantError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.runtime import worker
from cpembed.steps import Progress
from cpembed.workloads.convolutions import block_of
from cpembed.workloads.family import OperatorFamily
from cpembed.workloads.operators import find_operator, operator_names
from cpembed.workloads.suites import layer

SMALLEST_BLOCK, LARGEST_BLOCK = 8, 64
"""Range of channels in a block: fewer leave vectors and cache lines unfilled; with more, one block
holds most of the image."""


def compare_layouts(
    words: str | Sequence[str],
    target: str | HardwareSpec,
    *,
    measures: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> LayoutsResult:
    """Compare a workload in every layout that its operator has.

    Images have their channels first, last, or in blocks of the instruction's sizes; each matrix is
    taken as it is and transposed.

    Parameters
    ----------
    words : str or sequence of str
        Operator with its sizes, or a layer of a suite such as ``resnet18:0``.
    target : str or HardwareSpec
        Target by name, file or value.
    measures : bool
        True to build, verify and time, or simulate, the kernels; False to estimate times.
    timeout : float, optional
        Limit of each search, in seconds.
    progress : callable, optional
        Called before each layout.

    Returns
    -------
    LayoutsResult
        One row for each layout. A layout that fails has the reason in its row.

    Raises
    ------
    WorkloadError
        If the workload is unknown or has no choice of layouts.
    SpecError
        If the target is invalid.
    """
    spec = hardware_spec(target)
    family, sizes = _operator(words.split() if isinstance(words, str) else list(words))
    rows: list[LayoutRow] = []
    refused: dict[str, str] = {}
    choices = list(_choices(family, spec))
    for number, (name, settings) in enumerate(choices):
        if progress is not None:
            progress(name, number, len(choices))
        setting = [f"{key}={value}" for key, value in {**sizes, **settings}.items()]
        try:
            parsed([family.name, *setting], spec)
        except WorkloadError as error:
            # Sizes may rule a blocked layout out; without blocks, the workload itself is wrong.
            if block_of(settings.get("layout", "")) == 1:
                raise
            refused[name] = str(error).partition(";")[0]
            continue
        row = _row([family.name, *setting], spec, measures, timeout)
        rows.append(replace(row, name=name, settings=settings))
    label = " ".join([family.name, *(f"{key}={value}" for key, value in sizes.items())])
    return LayoutsResult(label, spec.name, tuple(rows), refused)


def _operator(words: list[str]) -> tuple[OperatorFamily, dict[str, str]]:
    """Parse an operator and its sizes; settings of layouts are rejected."""
    name, *rest = words or [""]
    if "[" in name or not name:
        raise WorkloadError(
            "an expression fixes the layouts of its operands: name an operator with its sizes, "
            "such as conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3"
        )
    suite, colon, index = name.partition(":")
    if colon:
        if not index.isdecimal():
            raise WorkloadError(f"{name}: a layer is named NAME:INDEX, such as resnet18:0")
        name, *sizes = layer(suite, int(index)).label.split()
        rest = [*sizes, *rest]
    family = find_operator(name)
    if family is None:
        raise WorkloadError(f"unknown operator {name!r}: use {' '.join(operator_names())}")
    settings: dict[str, str] = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals:
            raise WorkloadError(f"{word!r} is not a setting of {name}: write NAME=VALUE")
        if key in ("layout", "trans_a", "trans_b"):
            raise WorkloadError(f"every layout is compared: leave {key}= out")
        settings[key] = value
    return family, settings


def _choices(family: OperatorFamily, spec: HardwareSpec) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of each layout with the operator's settings that make it."""
    parameters = {parameter.name: parameter for parameter in family.parameters}
    if "layout" in parameters:
        for choice in parameters["layout"].choices:
            if block_of(choice) == 1:
                yield choice, {"layout": choice}
                continue
            for block in blocks(spec):
                name = choice.replace(str(block_of(choice)), str(block))
                yield name, {"layout": name}
        return
    transposed = [name for name in ("trans_a", "trans_b") if name in parameters]
    if not transposed:
        raise WorkloadError(
            f"{family.name} has no choice of layouts: name a convolution or a product of matrices"
        )
    letters = {"trans_a": ("A[m,k]", "A[k,m]"), "trans_b": ("B[k,n]", "B[n,k]")}
    for flags in itertools.product((0, 1), repeat=len(transposed)):
        pairs = dict(zip(transposed, flags, strict=True))
        name = " ".join(letters[key][flag] for key, flag in pairs.items())
        yield name, {key: str(flag) for key, flag in pairs.items()}


def blocks(spec: HardwareSpec) -> tuple[int, ...]:
    """Return the numbers of channels in a block: extents of instruction axes and of pairs of them.

    >>> blocks(hardware_spec("avx512_vnni")), blocks(hardware_spec("vta_1x16x16"))
    ((16, 64), (16,))
    """
    sizes = [axis.maximum for axis in spec.instruction.axes]
    pairs = (a * b for a, b in itertools.combinations(sizes, 2))
    channels = {size for size in (*sizes, *pairs) if SMALLEST_BLOCK <= size <= LARGEST_BLOCK}
    return tuple(sorted(channels))


def _row(words: list[str], spec: HardwareSpec, measures: bool, timeout: float | None) -> LayoutRow:
    """Estimate or measure one layout; its failure becomes the reason in its row."""
    try:
        if measures:
            # `run` calls the worker itself, for each kernel that it builds.
            return _measured(words, spec, timeout)
        return worker.call(_estimated, words, spec, timeout)
    except InvariantError:
        raise
    except (CpembedError, CrashError) as error:
        return LayoutRow(reason=str(error))


def _measured(words: list[str], spec: HardwareSpec, timeout: float | None) -> LayoutRow:
    result = run(parsed(words, spec), spec, timeout=timeout, method="implicit")
    if isinstance(result, SolveResult):
        return LayoutRow(reason=result.why_nothing)
    times = None
    timing = result.timing
    if result.is_native:
        latency, call = timing.latency_us, timing.whole_us
        parts = [us for us in (timing.packing_us, timing.unpacking_us) if us is not None]
        times = Times(
            contraction=None if latency is None else latency.median,
            moving=sum(parts) if parts else None,
            packing=timing.packing_us,
            unpacking=timing.unpacking_us,
            call=None if call is None else call.median,
            cycles=timing.cycles,
            provenance=timing.provenance,
            noisy=timing.noisy,
        )
    reason = None if times is not None else "; ".join(result.missing)
    return _candidate_row(result.solved.target.name, result.candidate, times, reason)


def _estimated(words: list[str], spec: HardwareSpec, timeout: float | None) -> LayoutRow:
    options = KernelOptions(timeout=timeout, untuned=True)
    outcome = choose(Request(parsed(words, spec), spec, options))
    if isinstance(outcome, SolveResult):
        return LayoutRow(reason=outcome.why_nothing)
    on, time = outcome.solved.target.name, selection_time(outcome)
    reason = None
    if time is None:
        # A target that executes here rejects the candidate, which the plan says.
        rejected = outcome.plan.missing if outcome.solved.target.machines else ()
        reason = "; ".join(rejected) or f"no machine of {on} is described: cannot estimate"
    times = None if time is None else _times(time, outcome)
    return _candidate_row(on, outcome.ranked, times, reason)


def _candidate_row(
    on: str, ranked: RankedCandidate, times: Times | None, reason: str | None
) -> LayoutRow:
    program, cost = ranked.candidate.program, ranked.overheads
    return LayoutRow(
        on=on,
        embedding=ranked.candidate.embedding,
        utilisation=cost.utilisation,
        moved_bytes=cost.packing_bytes,
        in_place=cost.in_place,
        run_bytes=run_bytes(program, program.workload.inputs[0].name),
        times=times,
        reason=reason,
    )


def _times(time: CandidateTime, selection: Selection) -> Times:
    """Return a candidate's time in the parts that a row shows."""
    packing = unpacking = None
    # Models in microseconds know the sum alone.
    if time.cycles is not None:
        outputs = {operand.name for operand in selection.ranked.program.workload.outputs}
        unpacking = sum(us for name, us in time.packing_us.items() if name in outputs)
        packing = sum(us for name, us in time.packing_us.items() if name not in outputs)
    return Times(
        time.us,
        time.moving_us,
        packing,
        unpacking,
        call=time.total_us,
        cycles=time.cycles,
        machine=time.machine,
    )
