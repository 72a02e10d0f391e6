"""Reports of ``cpembed run``, ``build`` and ``layouts``: a kernel, its selection, its times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cpembed import wording
from cpembed.blocks import Block, Bullets, Header, Heading, Table
from cpembed.codegen.packing import packed_before
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.build_result import BuildResult
from cpembed.driver.plan import AnyTarget, Compared, MethodError, Substitution
from cpembed.driver.result import SolveResult
from cpembed.driver.run_result import RunResult
from cpembed.provenance import Provenance
from cpembed.report import messages
from cpembed.report.messages import mapping_text, percent
from cpembed.report.solve import Row, request_rows, search_text, solver_rows
from cpembed.runtime.measurement.runner import NOISE, Quantiles, Timing
from cpembed.targets.choice import Choice, ModelChoice
from cpembed.transform.program import DerivedProgram
from cpembed.wording import amount, data_size, duration

if TYPE_CHECKING:
    from cpembed.driver.layout_rows import LayoutRow, LayoutsResult

_EXACT = "bit for bit equal to the reference"
_REASONS = 3
"""Maximum number of reasons of rejected candidates that are listed."""


def report(result: RunResult, *, verbose: bool = False) -> Iterator[Block]:
    """Yield the kernel, its verification and times; ``verbose`` adds the solver's effort."""
    rows = _request_rows(result)
    rows += [("found", search_text(result.solved)), *solver_rows(result.solved)] if verbose else []
    rows += substitution_rows(result.substitution)
    rows.append(("back end", f"{result.backend}, {result.provenance}"))
    # Portable code has no schedule of the target.
    if result.is_native:
        rows += schedule_rows(result.target, result.solved, result.choice, result.method)
    # A target with rows of its own prints the epilogue among them.
    if result.epilogue is not None and not result.details.rows():
        rows.append(("epilogue", str(result.epilogue)))
    rows.append(("verified", _verification_text(result)))
    yield Header([*rows, *_time_rows(result), *_expectation_rows(result)])


def build_report(result: BuildResult) -> Iterator[Block]:
    """Yield the kernel that was built, its verification, and the files."""
    selection, candidate, method = result.selection, result.choice.ranked, result.method
    compared = None if method is None else Compared(method, {method.method.name: method.estimated})
    rows = request_rows(result.workload, selection.solved, compared)
    rows += substitution_rows(selection.substitution)
    rows.append(("embedding", messages.mapping_text(candidate.embedding)))
    if selection.plan.native:
        rows += schedule_rows(selection.plan.target, selection.solved, result.choice, compared)
    else:
        rows.append(("portable", "; ".join(result.missing) or "as requested"))
    if selection.plan.epilogue is not None:
        rows.append(("epilogue", str(selection.plan.epilogue)))
    rows += _library_rows(result)
    rows.append(("written", f"{result.folder}: {', '.join(result.files)}"))
    yield Header(rows)


def _library_rows(result: BuildResult) -> list[Row]:
    """Return how the library was verified on this machine, and the time of a call."""
    # The files were written all the same, to be built where they run.
    if result.verification is None:
        return [("verified", "not executed here: this machine lacks what the library needs")]
    accuracy = _EXACT
    if result.verification.tolerance:
        within = "rounding of the reference" if result.method is None else "its error bound"
        accuracy = f"largest error {result.verification.max_error:.3g}, within {within}"
    accuracy += f" (random data, {result.verification.data})"
    if not result.linked:
        provenance = result.selection.plan.target.provenance
        link = "; `make` links the library on its machine" if "Makefile" in result.files else ""
        return [("verified", f"yes, {provenance}, {accuracy}{link}")]
    # Only an emulated library has no time.
    emulated = "emulated, " if result.call_us is None else ""
    rows = [("verified", f"yes, {emulated}{accuracy}")]
    if result.call_us is not None:
        median = wording.duration(result.call_us.median)
        rows.append(("a call", f"{median}, from the inputs' layouts to the output's"))
    return rows


def _request_rows(result: RunResult) -> list[Row]:
    solved, candidate = result.solved, result.candidate
    embedding = candidate.embedding
    rank = messages.rank_text(candidate, solved.constraints.name)
    tuned = "" if result.choice.tuned is None else ", tuned"
    names = candidate.program.in_place
    in_place = ""
    if names:
        in_place = f"; {' and '.join(names)} {wording.verb(len(names), 'stay')} in place"
    notation = messages.special_notation(embedding)
    return [
        *request_rows(result.workload, solved, result.method),
        ("embedding", f"{rank}{tuned}, {candidate.identifier}{in_place}"),
        ("", messages.mapping_text(embedding)),
        *([("", notation)] if notation else []),
        ("", f"{candidate.overheads.utilisation:.1%} of the instruction's MACs are useful"),
    ]


def substitution_rows(substitution: Substitution | None) -> list[Row]:
    """Return the row on an alternative target that runs the workload; none if there is none."""
    if substitution is None:
        return []
    search = substitution.solved
    reason = f"which cannot be embedded: proven under {search.constraints.name}"
    if search.embeddings:
        used = f"of which {search.embeddings[0].overheads.utilisation:.1%} would be useful"
        reason = f"{used}, and which does not execute here"
        # Both were estimated: the alternative is faster, not the only one that runs.
        if substitution.requested_cost is not None:
            slower = f"{amount(substitution.requested_cost, substitution.unit)} by estimate"
            program = search.embeddings[0].program if search.embeddings else None
            reason = f"{used}: {slower}{_counted_packing(program)}"
    return [("instead of", f"{search.target.name}, {reason}")]


def schedule_rows(
    target: AnyTarget, solved: SolveResult, choice: Choice, method: Compared | None = None
) -> list[Row]:
    """Return the rows on a kernel's schedule and on why this embedding was selected.

    Parameters
    ----------
    target
        Target of the kernel.
    solved
        Search for the workload, or for the product of a method.
    choice
        Selected candidate with its schedule.
    method
        Methods that were compared, if the workload is a convolution that has several.
    """
    schedule = target.schedule_text(choice.ranked.embedding, choice.schedule)
    if choice.tuned is not None:
        trials = wording.plural(choice.tuned.trials, "trial")
        return [("schedule", f"the best of {trials}: {schedule}")]
    rows = [("schedule", f"untuned: {schedule}")]
    if choice.model is not None and choice.scored is not None:
        first = solved.embeddings[0] if solved.embeddings else None
        is_product = method is not None and method.rewritten is not None
        program = choice.ranked.program
        included = _counted_packing(program) if target.unit == "us" else ""
        if is_product:
            included = " for a product, without the parts around it"
        time = f"{amount(choice.scored.cost, target.unit)} by estimate{included}"
        rows.append(("chosen", time + _comparison(target, choice.model, choice.scored.cost, first)))
        rows += _rejected_rows(choice.model, first)
    return rows


def _counted_packing(program: DerivedProgram | None) -> str:
    """Return which packing an estimate includes: not that of weights, which is done ahead."""
    if program is None:
        return ", packing and unpacking included"
    names = (n for n in packed_before(program.workload) if n not in program.in_place)
    ahead = next(names, None)
    exception = "" if ahead is None else f", but for {ahead}, which is packed ahead"
    return f", packing and unpacking included{exception}"


def _rejected_rows(model: ModelChoice, first: RankedCandidate | None) -> list[Row]:
    """Return why candidates were rejected, each reason once, except that of rank 1."""
    of_first = None if first is None else model.why_refused(first)
    reasons = Counter(reason for _, reason in model.refused if reason != of_first)
    rows = [
        ("rejected", f"{wording.plural(number, 'candidate')}: {reason}")
        for reason, number in reasons.most_common(_REASONS)
    ]
    more = len(reasons) - len(rows)
    return [*rows, *([("", f"and {wording.plural(more, 'other reason')}")] if more > 0 else [])]


def _comparison(
    target: AnyTarget, model: ModelChoice, cost: float, first: RankedCandidate | None
) -> str:
    """Return how the estimate ``cost`` compares with all others, and with that of rank 1."""
    if model.considered == 1:
        return ""
    estimated = f"the {wording.plural(len(model.estimates), 'candidate')} that were estimated"
    least = amount(model.least, target.unit)
    if cost <= model.least:
        among = f": the fastest of {estimated}"
    # Ratios below the model's error, the tie ratio, rank nothing.
    elif cost <= target.policy.tie_ratio * model.least:
        among = f": of {estimated}, estimates cannot tell it from the fastest, {least}"
    else:
        among = f": of {estimated}, the fastest, {least}, was rejected"
    # Rank 1 has the least overheads, so a reader expects it to be the fastest.
    if first is None:
        return among
    reason = model.why_refused(first)
    if reason is not None:
        return f"{among} (rank 1 is rejected: {reason})"
    estimate = model.estimate_of(first)
    if estimate is None or estimate == model.estimates[0]:
        return among
    return f"{among} (rank 1: {amount(estimate.cost, target.unit)})"


def _verification_text(result: RunResult) -> str:
    check = result.verification
    if result.error is not None:
        return f"yes, {_error_text(result.error)} (data of seed {result.seed})"
    accuracy = _EXACT
    if check.tolerance:
        accuracy = f"largest error {check.max_error:.3g}, within rounding of the reference"
    return f"yes, {accuracy} (data of seed {result.seed}, {check.data})"


def _error_text(error: MethodError) -> str:
    """Return how far the result of a method is from the convolution in float64."""
    share = error.largest / error.output if error.output else 0.0
    return (
        f"largest error {error.largest:.3g} against float64, {share:.1e} of the largest output; "
        f"the bound of its tiles is {error.bound:.3g}"
    )


def _time_rows(result: RunResult) -> list[Row]:
    times = result.timing
    rows = result.details.rows()
    if not result.is_native:
        rows.append(("missing", "; ".join(result.missing)))
    if (described := result.described) is not None:
        total = duration(described.total_us)
        text = f"{total} estimated for {described.machine}, limited by: {described.bound}"
        rows.append(("described", text))
    estimated = result.time
    if result.is_native and estimated is not None and estimated.cycles is not None:
        # Cycles are those of the device; the other commands state them with packing.
        parts = f"{duration(estimated.total_us)} on {estimated.machine or 'this machine'}"
        moving = duration(estimated.moving_us or 0.0)
        rows.append(("estimated", f"{parts}, of which packing and unpacking {moving}"))
    if times.latency_us is None:
        return [*rows, ("latency", f"none: {times.provenance}, the numbers only")]
    latency = _quantiles_text(times.latency_us)
    if not result.is_native:
        rows.append(("portable", f"{latency}, not the instruction's time"))
    elif times.provenance is Provenance.MEASURED:
        rows.append(("latency", f"{latency}, {times.gops:.1f} GOPS"))
    rows += _packing_rows(times)
    if times.noisy:
        disturbed = "other work on the machine disturbed the times"
        rows.append(("noisy", f"{disturbed}: p90 above {NOISE} times p10"))
    return rows


def _packing_rows(times: Timing) -> list[Row]:
    if times.packing_us is None or times.unpacking_us is None:
        return []
    parts = [
        f"{wording.duration(times.packing_us)}, unpacking {wording.duration(times.unpacking_us)}"
    ]
    if times.whole_us is not None and times.packing_us + times.unpacking_us > 0:
        total = wording.duration(times.whole_us.median)
        parts.append(f"{total} with the contraction, in one call")
    if times.packed_ahead:
        parts.append(f"{', '.join(times.packed_ahead)} packed ahead")
    # Packing has a time of this machine even if the kernel is simulated.
    if times.provenance is not Provenance.MEASURED:
        parts.append("measured on this machine")
    return [("packing", "; ".join(parts))]


def _quantiles_text(times: Quantiles) -> str:
    median, p10, p90 = map(wording.duration, (times.median, times.p10, times.p90))
    return f"{median} (p10 {p10}, p90 {p90})"


def _expectation_rows(result: RunResult) -> list[Row]:
    """Return the row on an estimate that was far off, with possible reasons."""
    expected = result.expectation
    if expected is None or not expected.is_off:
        return []
    measured, estimated = (
        amount(value, expected.unit) for value in (expected.measured, expected.estimated)
    )
    ratio = expected.ratio
    # A ratio below 1 reads better as a fraction: 1/3.2 of the estimate.
    off = f"{ratio:.1f} times as long as" if ratio > 1 else f"1/{1 / ratio:.1f} of"
    included = _counted_packing(result.candidate.program) if expected.unit == "us" else ""
    text = f"{measured}{included}, {off} the {estimated} by estimate"
    return [("unexpected", f"{text}; perhaps {'; or '.join(expected.reasons)}")]


# -- layouts --------------------------------------------------------------------------------------

_LAYOUT_COLUMNS = (
    *("", "layout", "total>", "contraction>", "packing>", "unpacking>"),
    *("used>", "moved>", "contiguous>", "mapping"),
)


def layouts_report(result: LayoutsResult) -> Iterator[Block]:
    """Yield a row for each layout, the best one marked, and why it is the best."""
    yield Table(_LAYOUT_COLUMNS, (_layout_row(row, result) for row in result.rows), keys=2)
    yield ""
    rows = [("workload", f"{result.workload} on {result.target}"), ("why", result.why)]
    origin = _times_origin(result)
    yield Header([*rows, ("times", origin)] if origin else rows)
    noisy = [row.name for row in result.rows if row.times is not None and row.times.noisy]
    if noisy:
        yield f"noisy: other work on the machine disturbed {', '.join(noisy)}; measure again"
    failed = [f"{row.name}: {row.reason}" for row in result.rows if row.reason]
    failed += [f"{name}: {why}" for name, why in result.refused.items()]
    if failed:
        yield ""
        yield Heading("Not compared")
        yield Bullets(failed)
    yield ""
    yield (
        "moved: bytes that packing and unpacking read and write, weights included; contiguous: "
        "bytes next to each other of\nthe first input that one execution reads"
    )


def _layout_row(row: LayoutRow, result: LayoutsResult) -> tuple[str, ...]:
    mark = "best" if row is result.best else "same" if row in result.as_fast else ""
    name = row.name if row.on in (None, result.target) else f"{row.name} ({row.on})"
    cells = (
        percent(row.utilisation),
        "" if row.moved_bytes is None else data_size(row.moved_bytes),
        "" if row.run_bytes is None else f"{row.run_bytes:.3g} B",
        "" if row.embedding is None else mapping_text(row.embedding),
    )
    times = row.times
    if times is None:
        return mark, name, "", "", "", "", *cells
    packing, unpacking = _time_text(times.packing), _time_text(times.unpacking)
    if times.packing is None and times.moving is not None:
        # The machine model estimates packing and unpacking as one sum.
        packing, unpacking = f"{_time_text(times.moving)} both", ""
    total, contraction = _time_text(times.total), _time_text(times.contraction)
    return mark, name, total, contraction, packing, unpacking, *cells


def _time_text(us: float | None) -> str:
    return "" if us is None else duration(us)


def _times_origin(result: LayoutsResult) -> str:
    """Return how the times were determined, and what they leave out."""
    origins = dict.fromkeys(
        row.times.provenance.value if row.times.machine is None
        # Packing of a simulated machine is estimated too, for the described one.
        else f"{row.times.provenance.value} for the described {row.times.machine}"
        for row in result.rows
        if row.times is not None
    )  # fmt: skip
    return f"{', '.join(origins)}; weights are packed ahead and not counted" if origins else ""
