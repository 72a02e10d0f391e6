"""Which layout of a workload's tensors is the fastest on a target, packing counted.

>>> found = compare_layouts("gemm m=16 n=32 k=32", "vta_1x16x16")
>>> [row.name for row in found.rows]
['A[m,k] B[k,n]', 'A[m,k] B[n,k]', 'A[k,m] B[k,n]', 'A[k,m] B[n,k]']
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from cpembed import worker
from cpembed.driver.estimate import described_estimate
from cpembed.driver.layout_rows import LayoutRow, LayoutsResult, Times, run_bytes
from cpembed.driver.named import hardware_spec
from cpembed.driver.named import workload as parsed
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Selection
from cpembed.driver.request import Request
from cpembed.driver.result import SolveResult
from cpembed.driver.run import run
from cpembed.errors import CpembedError, CrashError, InvariantError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.selection.ranking import RankedCandidate
from cpembed.workloads.convolutions import block_of
from cpembed.workloads.family import OperatorFamily
from cpembed.workloads.operators import find_operator, operator_names
from cpembed.workloads.suites import layer

SMALLEST_BLOCK, LARGEST_BLOCK = 8, 64
"""Channels of a block that are tried: fewer leave vectors and cache lines unfilled, of more the
image is mostly one block."""

Progress = Callable[[str, int, int], None]
"""Called with the layout that is looked at, how many are done, and of how many."""


def compare_layouts(
    words: str | Sequence[str],
    target: str | HardwareSpec,
    *,
    measures: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> LayoutsResult:
    """A workload in each layout that its operator has: of images channels first, channels last, and
    in blocks of the sizes that the instruction has; of matrices each as it is and transposed.

    ``measures``: kernels are built, verified and timed, or simulated; else times are estimates.
    ``timeout`` bounds each search in seconds.

    Raises :class:`WorkloadError` for a workload that has no layouts, :class:`SpecError` for a wrong
    target.
    """
    spec = hardware_spec(target)
    family, given = _operator(words.split() if isinstance(words, str) else list(words))
    rows: list[LayoutRow] = []
    refused: dict[str, str] = {}
    choices = list(_choices(family, spec))
    for number, (name, settings) in enumerate(choices):
        if progress is not None:
            progress(name, number, len(choices))
        setting = [f"{key}={value}" for key, value in {**given, **settings}.items()]
        try:
            parsed([family.name, *setting], spec)
        except WorkloadError as error:
            if block_of(settings.get("layout", "")) == 1:
                raise
            refused[name] = str(error).partition(";")[0]
            continue
        rows.append(_row(name, settings, [family.name, *setting], spec, measures, timeout))
    label = " ".join([family.name, *(f"{key}={value}" for key, value in given.items())])
    return LayoutsResult(label, spec.name, tuple(rows), refused)


def _operator(words: list[str]) -> tuple[OperatorFamily, dict[str, str]]:
    """The operator that words name, with its settings, but for those of layouts."""
    name, *rest = words or [""]
    if "[" in name or not name:
        raise WorkloadError(
            "an expression says where its operands lie: name an operator with its sizes, such as "
            "conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3"
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
    given: dict[str, str] = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals:
            raise WorkloadError(f"{word!r} is no setting of {name}: write NAME=VALUE")
        if key in ("layout", "trans_a", "trans_b"):
            raise WorkloadError(f"every layout is compared: leave {key}= out")
        given[key] = value
    return family, given


def _choices(family: OperatorFamily, spec: HardwareSpec) -> Iterator[tuple[str, dict[str, str]]]:
    """Names of layouts, each with the operator's settings."""
    known = {parameter.name: parameter for parameter in family.parameters}
    if "layout" in known:
        for choice in known["layout"].choices:
            if block_of(choice) == 1:
                yield choice, {"layout": choice}
                continue
            for block in blocks(spec):
                name = choice.replace(str(block_of(choice)), str(block))
                yield name, {"layout": name}
        return
    transposed = [name for name in ("trans_a", "trans_b") if name in known]
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
    """Channels in a block: what an axis of the instruction has, or two of them.

    >>> blocks(hardware_spec("avx512_vnni")), blocks(hardware_spec("vta_1x16x16"))
    ((16, 64), (16,))
    """
    sizes = [axis.maximum for axis in spec.instruction.axes]
    pairs = (a * b for a, b in itertools.combinations(sizes, 2))
    found = {size for size in (*sizes, *pairs) if SMALLEST_BLOCK <= size <= LARGEST_BLOCK}
    return tuple(sorted(found))


def _row(
    name: str,
    settings: dict[str, str],
    words: list[str],
    spec: HardwareSpec,
    measures: bool,
    timeout: float | None,
) -> LayoutRow:
    """A failure of one layout is its reason."""
    try:
        if measures:
            # It has a worker of its own for what it builds.
            return _measured(name, settings, words, spec, timeout)
        return worker.call(_estimated, name, settings, words, spec, timeout)
    except InvariantError:
        raise
    except (CpembedError, CrashError) as error:
        return LayoutRow(name, settings, reason=str(error))


def _measured(
    name: str, settings: dict[str, str], words: list[str], spec: HardwareSpec, timeout: float | None
) -> LayoutRow:
    result = run(parsed(words, spec), spec, timeout=timeout, method="implicit")
    if isinstance(result, SolveResult):
        return LayoutRow(name, settings, reason=result.why_nothing)
    times = None
    timing = result.timing
    if result.is_native:
        latency, whole = timing.latency_us, timing.whole_us
        parts = (timing.packing_us, timing.unpacking_us)
        known = [part for part in parts if part is not None]
        times = Times(
            None if latency is None else latency.median,
            sum(known) if known else None,
            *parts,
            None if whole is None else whole.median,
            timing.cycles,
            timing.provenance,
            noisy=timing.noisy,
        )
    reason = None if times is not None else "; ".join(result.missing)
    return _described(name, settings, result.solved.target.name, result.candidate, times, reason)


def _estimated(
    name: str, settings: dict[str, str], words: list[str], spec: HardwareSpec, timeout: float | None
) -> LayoutRow:
    found = choose(
        Request(
            parsed(words, spec),
            spec,
            KernelOptions(timeout=timeout, untuned=True),
        )
    )
    if isinstance(found, SolveResult):
        return LayoutRow(name, settings, reason=found.why_nothing)
    times = _estimated_times(found)
    reason = None if times is not None else "no machine of it is described: nothing to estimate"
    return _described(name, settings, found.solved.target.name, found.candidate, times, reason)


def _described(
    name: str,
    settings: dict[str, str],
    on: str,
    ranked: RankedCandidate,
    times: Times | None,
    reason: str | None,
) -> LayoutRow:
    program, cost = ranked.candidate.program, ranked.overheads
    return LayoutRow(
        name,
        settings,
        on,
        ranked.candidate.embedding,
        cost.utilisation,
        cost.packing_bytes,
        cost.in_place,
        run_bytes(program, program.workload.inputs[0].name),
        times,
        reason,
    )


def _estimated_times(found: Selection) -> Times | None:
    """By the target's own model where it executes here, what that does not know, and all else, by
    the first machine that the specification describes; None where there is neither."""
    spec, program = found.solved.target, found.candidate.program
    scored = found.choice.scored if found.plan.native else None
    if scored is not None and "moves_us" in scored.parts:
        return Times(scored.parts["us"], scored.parts["moves_us"], whole=scored.cost)
    described = described_estimate(program, spec)
    if described is None:
        return None
    outputs = {operand.name for operand in program.workload.outputs}
    unpacking = sum(us for name, us in described.packing_us.items() if name in outputs)
    packing = sum(us for name, us in described.packing_us.items() if name not in outputs)
    contraction, cycles = described.us, described.cycles
    if scored is not None and found.plan.target.unit == "cycles" and spec.machine is not None:
        cycles = scored.cost
        contraction = cycles / spec.machine.clock_mhz
    return Times(
        contraction,
        packing + unpacking,
        packing,
        unpacking,
        cycles=cycles,
        machine=described.machine,
    )
