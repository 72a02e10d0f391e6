"""The report of ``cpembed build``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from cpembed import wording
from cpembed.driver.build_result import BuildResult
from cpembed.driver.plan import Compared
from cpembed.report import words
from cpembed.report.blocks import header
from cpembed.report.methods import asked_rows
from cpembed.report.run import instead, schedule


def report(result: BuildResult) -> Iterator[RenderableType]:
    """What was built, of what, and where it is."""
    chosen, candidate = result.selection, result.choice.candidate
    solved = chosen.solved
    method = result.method
    compared = None if method is None else Compared(method, {method.method.name: method.estimated})
    rows = asked_rows(result.workload, solved, compared)
    rows += instead(chosen.substitution)
    rows.append(("embedding", words.mapping(candidate.embedding)))
    if chosen.plan.native:
        rows += schedule(chosen.plan.target, solved, result.choice, compared)
    else:
        rows.append(("portable", "; ".join(result.missing) or "as asked for"))
    if chosen.plan.epilogue is not None:
        rows.append(("stored", str(chosen.plan.epilogue)))
    rows += _checked(result)
    rows.append(("written", f"{result.folder}: {', '.join(result.files)}"))
    yield header(rows)


def _checked(result: BuildResult) -> list[tuple[str, str]]:
    """What was found out of it here."""
    if result.verification is None:
        return [("verified", "no: this processor lacks what the library needs")]
    error = result.verification.max_error
    accuracy = "bit for bit equal to the reference"
    if result.verification.tolerance:
        within = "rounding of the reference" if result.method is None else "its error bound"
        accuracy = f"largest error {error:.3g}, within {within}"
    accuracy += f" (random data, {result.verification.data})"
    if not result.linked:
        how = result.selection.plan.target.provenance
        made = "; `make` links the library on its machine" if "Makefile" in result.files else ""
        return [("verified", f"yes, {how}, {accuracy}{made}")]
    rows = [("verified", f"yes, {accuracy}")]
    if result.call_us is not None:
        median = wording.duration(result.call_us.median)
        rows.append(("a call", f"{median}, from the inputs' layouts to the output's"))
    return rows
