"""The report of ``cpembed run``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from cpembed.api.beside import Beside
from cpembed.api.run_cpu import CpuChoice
from cpembed.api.run_result import RunResult
from cpembed.api.run_vta import VtaRunResult
from cpembed.api.solve import SolveResult
from cpembed.measure.runner import NOISE, Measurement, Quantiles
from cpembed.report import words
from cpembed.report.blocks import header
from cpembed.report.solve import found, problem_rows, searched
from cpembed.report.vta import simulated_rows
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.cpu.choice import Estimated, ModelChoice
from cpembed.targets.vta.move_times import MoveTimes
from cpembed.tuning.kept import TunedChoice


def report(result: RunResult | VtaRunResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """What ran and what was found; ``verbose`` with the solver's effort."""
    tuned = _tuned(result)
    rows = _problem(result.solved, result.candidate, tuned=tuned is not None)
    rows += [("found", found(result.solved)), *searched(result.solved)] if verbose else []
    if isinstance(result, VtaRunResult):
        rows += [("verified", _verified(result)), *simulated_rows(result)]
        packing = f"{_packing(result.moves)}; measured on this machine"
        rows += [("packing", packing), *_noise(noisy=result.moves.noisy)]
        yield header([*rows, *_expected(result)])
        return
    rows += instead(result.instead_of, result.beside)
    rows += [("back end", result.backend), *schedule(result.solved, result.choice)]
    rows += [*_stored(result), ("verified", _verified(result))]
    yield header([*rows, *_times(result), *_expected(result)])


def _problem(
    solved: SolveResult, candidate: RankedCandidate, *, tuned: bool
) -> list[tuple[str, str]]:
    embedding = candidate.candidate.embedding
    rank = words.place(candidate.rank, candidate.constraints, solved.constraints.name)
    rank += ", tuned" if tuned else ""
    kept = candidate.candidate.program.in_place
    place = f"; {' and '.join(kept)} {words.verb(len(kept), 'stay')} in place" if kept else ""
    return [
        *problem_rows(solved),
        ("embedding", f"{rank}, {candidate.candidate.identifier}{place}"),
        ("", words.mapping(embedding)),
        *([("", words.unusual(embedding))] if words.unusual(embedding) else []),
        ("", f"{candidate.overheads.utilisation:.1%} of the instruction's MACs are useful"),
    ]


def instead(search: SolveResult | None, beside: Beside | None) -> list[tuple[str, str]]:
    """That another target runs the workload than was asked for, of which ``search`` is."""
    if search is None:
        return []
    why = f"which cannot be embedded: proven under {search.constraints.name}"
    if beside is not None:
        used = search.embeddings[0].overheads.utilisation
        slower = f"{words.duration(beside.asked_us)} by estimate"
        why = f"of which {used:.1%} would be useful: {slower}, packing and unpacking included"
    return [("instead of", f"{search.target.name}, {why}")]


def _tuned(result: RunResult | VtaRunResult) -> TunedChoice[Any] | None:
    if isinstance(result, VtaRunResult):
        return result.tuned
    return None if result.choice is None else result.choice.tuned


def schedule(solved: SolveResult, choice: CpuChoice | None) -> list[tuple[str, str]]:
    """The schedule of a native kernel, and why this embedding."""
    if choice is None:
        return []
    described = words.knobs(choice.knobs, choice.candidate.candidate.embedding)
    if choice.tuned is not None:
        trials = words.plural(choice.tuned.trials, "trial")
        return [("schedule", f"the best of {trials}: {described}")]
    rows = [("schedule", f"untuned: {described}")]
    if choice.model is not None and choice.estimate is not None:
        best = choice.model.of(solved.embeddings[0])
        rows.append(("chosen", _why(choice.model, choice.estimate, best)))
    return rows


def _why(model: ModelChoice, chosen: Estimated, first: Estimated | None) -> str:
    """``first`` is the estimate of the candidate with the least overheads."""
    times = f"{words.duration(chosen.total_us)} by estimate, packing and unpacking included"
    if model.considered == 1:
        return times
    among = f"{times}: the fastest of the {model.considered} candidates that were estimated"
    if first is None:
        return f"{among} (rank 1: the instruction cannot execute it)"
    if first is chosen:
        return among
    return f"{among} (rank 1: {words.duration(first.total_us)})"


def _stored(result: RunResult) -> list[tuple[str, str]]:
    """What is stored, where that is not the sums as they are."""
    epilogue = result.epilogue
    if epilogue is None:
        return []
    return [("stored", str(epilogue))]


def _verified(result: RunResult | VtaRunResult) -> str:
    check = result.verification
    if check.tolerance == 0:
        accuracy = "bit for bit equal to the reference"
    else:
        accuracy = f"largest error {check.max_error:.3g}, within rounding of the reference"
    return f"yes, {accuracy} (data of seed {result.seed})"


def _times(result: RunResult) -> list[tuple[str, str]]:
    times = result.measurement
    rows: list[tuple[str, str]] = []
    if result.is_native:
        rows.append(("latency", f"{_quantiles(times.latency_us)}, {times.gops:.1f} GOPS"))
    else:
        rows.append(("missing", "; ".join(result.missing)))
        rows.append(("portable", f"{_quantiles(times.latency_us)}, not the instruction's time"))
    return [*rows, ("packing", _packing(times)), *_noise(noisy=times.noisy)]


def _expected(result: RunResult | VtaRunResult) -> list[tuple[str, str]]:
    """That the model was far off, and why that may be."""
    expected = result.expectation
    if expected is None or not expected.is_off:
        return []
    if expected.unit == "us":
        times = (words.duration(us) for us in (expected.measured, expected.estimated))
    else:
        times = (f"{cycles:,.0f} cycles" for cycles in (expected.measured, expected.estimated))
    measured, estimated = times
    ratio = expected.ratio
    off = f"{ratio:.1f} times as long as" if ratio > 1 else f"1/{1 / ratio:.1f} of"
    what = "packing and unpacking included, " if expected.unit == "us" else ""
    said = f"{measured}, {what}{off} the {estimated} by estimate"
    return [("unexpected", f"{said}; perhaps {'; or '.join(expected.reasons)}")]


def _noise(*, noisy: bool) -> list[tuple[str, str]]:
    disturbed = "other work on the machine disturbed the times"
    return [("noisy", f"{disturbed}: p90 above {NOISE} times p10")] if noisy else []


def _quantiles(times: Quantiles) -> str:
    median, p10, p90 = map(words.duration, (times.median, times.p10, times.p90))
    return f"{median} (p10 {p10}, p90 {p90})"


def _packing(times: Measurement | MoveTimes) -> str:
    ahead = f"; {', '.join(times.packed_ahead)} packed ahead" if times.packed_ahead else ""
    whole = ""
    if isinstance(times, Measurement) and times.packing_us + times.unpacking_us > 0:
        whole = f"; {words.duration(times.whole_us.median)} with the contraction, in one call"
    apart = f"unpacking {words.duration(times.unpacking_us)}"
    return f"{words.duration(times.packing_us)}, {apart}{whole}{ahead}"
