"""The report of ``cpembed run``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from cpembed.api.run import RunResult
from cpembed.measure.runner import NOISE, Measurement, Quantiles
from cpembed.report import words
from cpembed.report.blocks import header
from cpembed.report.solve import problem_rows


def report(result: RunResult) -> Iterator[RenderableType]:
    solved, candidate = result.solved, result.candidate
    embedding = candidate.candidate.embedding
    rows = problem_rows(solved.workload, solved.target, solved.constraints.name)
    rows += [
        ("embedding", f"rank {candidate.rank}, {embedding.identifier()}"),
        ("", words.mapping(embedding)),
        ("", f"{candidate.overheads.utilisation:.1%} of the instruction's MACs are useful"),
        ("back end", result.backend),
        ("verified", _verified(result)),
    ]
    yield header([*rows, *_times(result)])


def _verified(result: RunResult) -> str:
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
    rows.append(("packing", _packing(times)))
    if times.noisy:
        disturbed = "other work on the machine disturbed the times"
        rows.append(("noisy", f"{disturbed}: p90 above {NOISE} times p10"))
    return rows


def _quantiles(times: Quantiles) -> str:
    return f"{duration(times.median)} (p10 {duration(times.p10)}, p90 {duration(times.p90)})"


def _packing(times: Measurement) -> str:
    ahead = f"; {', '.join(times.packed_ahead)} packed ahead" if times.packed_ahead else ""
    return f"{duration(times.packing_us)}, unpacking {duration(times.unpacking_us)}{ahead}"


def duration(microseconds: float) -> str:
    """Three digits, and a unit that suits them."""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds:.3g} us"
