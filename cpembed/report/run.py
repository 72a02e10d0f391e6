"""The report of ``cpembed run``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from cpembed import wording
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.plan import Compared, Substitution
from cpembed.driver.request import AnyTarget
from cpembed.driver.result import SolveResult
from cpembed.driver.run_result import RunResult
from cpembed.provenance import Provenance
from cpembed.report import words
from cpembed.report.blocks import header
from cpembed.report.methods import asked_rows, error_words
from cpembed.report.solve import found, searched
from cpembed.runtime.measurement.runner import NOISE, Quantiles, Timing
from cpembed.runtime.tuning.plain import figure
from cpembed.targets.choice import Choice, ModelChoice

_Row = tuple[str, str]


def report(result: RunResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """What ran and what was found; ``verbose`` with the solver's effort."""
    rows = _problem(result)
    rows += [("found", found(result.solved)), *searched(result.solved)] if verbose else []
    rows += instead(result.instead)
    rows.append(("back end", f"{result.backend}, {result.provenance}"))
    if result.is_native:
        rows += schedule(result.target, result.solved, result.choice, result.method)
    if result.epilogue is not None and not result.details.rows():
        rows.append(("stored", str(result.epilogue)))
    rows.append(("verified", _verified(result)))
    yield header([*rows, *_times(result), *_expected(result)])


def _problem(result: RunResult) -> list[_Row]:
    solved, candidate = result.solved, result.candidate
    embedding = candidate.embedding
    rank = words.place(candidate.rank, candidate.constraints, solved.constraints.name)
    rank += "" if result.choice.tuned is None else ", tuned"
    kept = candidate.program.in_place
    place = f"; {' and '.join(kept)} {wording.verb(len(kept), 'stay')} in place" if kept else ""
    return [
        *asked_rows(result.workload, solved, result.method),
        ("embedding", f"{rank}, {candidate.identifier}{place}"),
        ("", words.mapping(embedding)),
        *([("", words.unusual(embedding))] if words.unusual(embedding) else []),
        ("", f"{candidate.overheads.utilisation:.1%} of the instruction's MACs are useful"),
    ]


def instead(why: Substitution | None) -> list[_Row]:
    """That an alternative target runs the workload."""
    if why is None:
        return []
    search = why.solved
    reason = f"which cannot be embedded: proven under {search.constraints.name}"
    if why.asked is not None:
        used = search.embeddings[0].overheads.utilisation
        slower = f"{figure(why.asked, why.unit)} by estimate"
        reason = f"of which {used:.1%} would be useful: {slower}, packing and unpacking included"
    elif search.embeddings:
        used = search.embeddings[0].overheads.utilisation
        reason = f"of which {used:.1%} would be useful, and which does not execute here"
    return [("instead of", f"{search.target.name}, {reason}")]


def schedule(
    target: AnyTarget, solved: SolveResult, choice: Choice, method: Compared | None = None
) -> list[_Row]:
    """The schedule, and why this embedding: of the workload, or of a method's product."""
    described = target.schedule_text(choice.candidate.embedding, choice.schedule)
    if choice.tuned is not None:
        trials = wording.plural(choice.tuned.trials, "trial")
        return [("schedule", f"the best of {trials}: {described}")]
    rows = [("schedule", f"untuned: {described}")]
    if choice.model is not None and choice.scored is not None:
        first = solved.embeddings[0] if solved.embeddings else None
        rows.append(("chosen", _why(target, choice.model, choice.scored.cost, first, method)))
    return rows


def _why(
    target: AnyTarget,
    model: ModelChoice,
    cost: float,
    first: RankedCandidate | None,
    method: Compared | None,
) -> str:
    """``first`` is the candidate with the least overheads."""
    included = ", packing and unpacking included" if target.unit == "us" else ""
    if method is not None and method.rewritten is not None:
        included = " for a product, without the parts around it"
    times = f"{figure(cost, target.unit)} by estimate{included}"
    if model.considered == 1:
        return times
    among = f"{times}: {_place(target, model, cost)}"
    if first is None:
        return among
    refusal = model.why_refused(first)
    if refusal is not None:
        return f"{among} (rank 1 is refused: {refusal})"
    estimated = model.estimate_of(first)
    if estimated is None or estimated == model.estimates[0]:
        return among
    return f"{among} (rank 1: {figure(estimated.cost, target.unit)})"


def _place(target: AnyTarget, model: ModelChoice, cost: float) -> str:
    """Where an estimate stands among all of them."""
    those = f"the {wording.plural(len(model.estimates), 'candidate')} that were estimated"
    if cost <= model.least:
        return f"the fastest of {those}"
    least = figure(model.least, target.unit)
    if cost <= target.policy.tie_ratio * model.least:
        return f"of {those}, estimates cannot tell it from the fastest, {least}"
    return f"of {those}, the fastest, {least}, could not be taken"


def _verified(result: RunResult) -> str:
    check = result.verification
    if result.error is not None:
        return f"yes, {error_words(result.error)} (data of seed {result.seed})"
    if check.tolerance == 0:
        accuracy = "bit for bit equal to the reference"
    else:
        accuracy = f"largest error {check.max_error:.3g}, within rounding of the reference"
    return f"yes, {accuracy} (data of seed {result.seed}, {check.data})"


def _times(result: RunResult) -> list[_Row]:
    times = result.timing
    rows = result.details.rows()
    if not result.is_native:
        rows.append(("missing", "; ".join(result.missing)))
    if times.latency_us is None:
        rows.append(("latency", f"none: {times.provenance}, the numbers only"))
        return rows
    latency = _quantiles(times.latency_us)
    if not result.is_native:
        rows.append(("portable", f"{latency}, not the instruction's time"))
    elif times.provenance is Provenance.MEASURED:
        rows.append(("latency", f"{latency}, {times.gops:.1f} GOPS"))
    return [*rows, *_packing(times), *_noise(noisy=times.noisy)]


def _expected(result: RunResult) -> list[_Row]:
    """That the model was far off, and why that may be."""
    expected = result.expectation
    if expected is None or not expected.is_off:
        return []
    measured, estimated = (
        figure(value, expected.unit) for value in (expected.measured, expected.estimated)
    )
    ratio = expected.ratio
    off = f"{ratio:.1f} times as long as" if ratio > 1 else f"1/{1 / ratio:.1f} of"
    what = "packing and unpacking included, " if expected.unit == "us" else ""
    said = f"{measured}, {what}{off} the {estimated} by estimate"
    return [("unexpected", f"{said}; perhaps {'; or '.join(expected.reasons)}")]


def _noise(*, noisy: bool) -> list[_Row]:
    disturbed = "other work on the machine disturbed the times"
    return [("noisy", f"{disturbed}: p90 above {NOISE} times p10")] if noisy else []


def _quantiles(times: Quantiles) -> str:
    median, p10, p90 = map(wording.duration, (times.median, times.p10, times.p90))
    return f"{median} (p10 {p10}, p90 {p90})"


def _packing(times: Timing) -> list[_Row]:
    if times.packing_us is None or times.unpacking_us is None:
        return []
    here = "" if times.provenance is Provenance.MEASURED else "; measured on this machine"
    ahead = f"; {', '.join(times.packed_ahead)} packed ahead" if times.packed_ahead else ""
    whole = ""
    if times.whole_us is not None and times.packing_us + times.unpacking_us > 0:
        whole = f"; {wording.duration(times.whole_us.median)} with the contraction, in one call"
    apart = f"unpacking {wording.duration(times.unpacking_us)}"
    return [("packing", f"{wording.duration(times.packing_us)}, {apart}{whole}{ahead}{here}")]
