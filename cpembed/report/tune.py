"""The reports of ``cpembed tune``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType

from cpembed import wording
from cpembed.driver.tune import TuneResult
from cpembed.embedding.embedding import Embedding
from cpembed.report import words
from cpembed.report.blocks import header, table
from cpembed.report.solve import given_rows
from cpembed.runtime.tuning.database import Trial, TrialFile

_Row = tuple[str, str]


def report(result: TuneResult) -> Iterator[RenderableType]:
    target, best = result.target, result.best
    kept = f"{wording.plural(result.kept, 'trial')} in {result.database}"
    candidate = Embedding.from_json(best.embedding)
    yield header(
        [
            *given_rows(result.workload, target.spec),
            ("constraints", result.constraints),
            *(("result", result.about[name]) for name in ("form",) if name in result.about),
            ("tried", _tried(result)),
            *target.tuning_rows(best, result.untuned),
            *_embedding(best, candidate),
            ("schedule", target.trial_text(best)),
            ("kept", kept),
        ]
    )


def standing(best: Trial | None) -> str:
    """The best so far, while tuning."""
    return "no program yet" if best is None else best.standing()


def stored_report(files: Sequence[TrialFile[Any]]) -> Iterator[RenderableType]:
    """A line for each file of the database."""
    columns = ("workload", "target", "constraints", "trials>", "best", "embedding")
    yield table(columns, map(_row, files))
    if not all(file.is_current for file in files):
        yield "old: measured by another version of the package, or on another machine; not used"


def stored_json(files: Sequence[TrialFile[Any]]) -> dict[str, Any]:
    """The document of ``tune --show --json``."""
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
    named = f"{key['workload']['expression']}  {wording.sizes(key['workload']['extents'])}"
    cells = [named, key["target"], key["constraints"], f"{file.count:,}"]
    if best is None:
        return [*cells, words.NOTHING, words.NOTHING]
    old = "" if file.is_current else "old: "
    mapping = words.mapping(Embedding.from_json(best.embedding))
    standing = best.standing(key.get("objective")).removeprefix("best ")
    return [*cells, f"{old}{standing}", mapping]


def _tried(result: TuneResult) -> str:
    tried = f"{len(result.trials)} schedules of {wording.plural(result.candidates, 'embedding')}"
    stopped = "; stopped by --timeout" if result.stopped else ""
    refused = result.about.get("not_expressed", 0)
    embeddings = wording.plural(refused, "embedding")
    left_out = f"; {embeddings} left out that the instruction cannot execute" if refused else ""
    return f"{tried}, {result.measured} new, {result.seconds:.1f} s{stopped}{left_out}"


def _embedding(best: Trial, embedding: Embedding) -> list[_Row]:
    read = words.unusual(embedding)
    return [
        ("embedding", f"rank {best.rank} of {best.constraints}, {best.identifier}"),
        ("", words.mapping(embedding)),
        *([("", read)] if read else []),
    ]
