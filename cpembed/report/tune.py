"""Reports of ``cpembed tune``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cpembed import wording
from cpembed.blocks import Block, Header, Table
from cpembed.driver.tune import TuneResult
from cpembed.driver.tune_results import ImportedResults
from cpembed.embedding.embedding import Embedding
from cpembed.report import messages
from cpembed.report.solve import Row, workload_rows
from cpembed.runtime.tuning.database import Trial, TrialFile
from cpembed.targets.tuner import require_tuner


def report(result: TuneResult) -> Iterator[Block]:
    """Yield the tuned workload, and the best trial against the untuned program."""
    tuner, best = require_tuner(result.target), result.best
    form = result.about.get("form")
    yield Header(
        [
            *workload_rows(result.workload, tuner.spec),
            ("constraints", result.constraints),
            *([] if form is None else [("result", form)]),
            ("tried", _trials_text(result)),
            *tuner.rows(best, result.untuned),
            *_embedding_rows(best),
            ("schedule", tuner.schedule_text(best)),
            ("kept", f"{wording.plural(result.stored, 'trial')} in {result.database}"),
        ]
    )


def progress_text(best: Trial | None) -> str:
    """Return the best result so far, while tuning."""
    return "no program yet" if best is None else best.standing()


def results_report(imported: ImportedResults) -> Iterator[Block]:
    """Yield the layers whose times were stored, and those that have none."""
    rows = [(name, f"{wording.plural(new, 'new trial')}") for name, new in imported.stored.items()]
    rows += [(name, f"none: {reason}") for name, reason in imported.refused.items()]
    yield Table(("layer", "stored"), [list(row) for row in rows])
    yield f"measured on {imported.device}, kept in {imported.database}"


def records_report(files: Sequence[TrialFile[Any]]) -> Iterator[Block]:
    """Yield a row for each file of the database."""
    columns = ("workload", "target", "constraints", "trials>", "best", "embedding")
    yield Table(columns, map(_row, files))
    if not all(file.is_current for file in files):
        yield "old: measured by another version of the package, or on another machine; not used"


def records_json(files: Sequence[TrialFile[Any]]) -> dict[str, Any]:
    """Return the document of ``tune --show --json``."""
    return {
        "files": [
            {
                "path": str(file.path),
                "key": file.key,
                "current": file.is_current,
                "trials": file.count,
                "best": None if file.best is None else file.best.document(),
            }
            for file in files
        ]
    }


def _row(file: TrialFile[Any]) -> list[str]:
    key, best = file.key, file.best
    workload = f"{key['workload']['expression']}  {wording.sizes(key['workload']['extents'])}"
    cells = [workload, key["target"], key["constraints"], f"{file.count:,}"]
    # No trial has a program, or the session ended before the first.
    if best is None:
        return [*cells, messages.EMPTY, messages.EMPTY]
    # Still shown: the same command would measure anew.
    old = "" if file.is_current else "old: "
    standing = best.standing(key.get("objective")).removeprefix("best ")
    mapping = messages.mapping_text(Embedding.from_json(best.embedding))
    return [*cells, f"{old}{standing}", mapping]


def _trials_text(result: TuneResult) -> str:
    embeddings = wording.plural(result.candidates, "embedding")
    schedules = f"{len(result.trials)} schedules of {embeddings}"
    parts = [f"{schedules}, {result.measured} new, {result.seconds:.1f} s"]
    if result.stopped:
        parts.append("stopped by --timeout")
    rejected = result.about.get("not_expressed", 0)
    if rejected:
        number = wording.plural(rejected, "embedding")
        parts.append(f"{number} rejected: the target's kernels cannot express them")
    return "; ".join(parts)


def _embedding_rows(best: Trial) -> list[Row]:
    embedding = Embedding.from_json(best.embedding)
    notation = messages.special_notation(embedding)
    return [
        ("embedding", f"rank {best.rank} of {best.constraints}, {best.identifier}"),
        ("", messages.mapping_text(embedding)),
        *([("", notation)] if notation else []),
    ]
