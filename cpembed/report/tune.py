"""The reports of ``cpembed tune``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.console import RenderableType

from cpembed.api.tune import TuneResult
from cpembed.backends.vta.schedule import Schedule
from cpembed.embedding.embedding import Embedding
from cpembed.report import words
from cpembed.report.blocks import header, table
from cpembed.report.solve import problem_rows
from cpembed.tune.database import Stored, Trial, is_current


def report(result: TuneResult) -> Iterator[RenderableType]:
    best, untuned = result.best, result.untuned
    tried = f"{len(result.trials)} schedules of {words.plural(result.candidates, 'embedding')}"
    stopped = "; stopped by --timeout" if result.stopped else ""
    yield header(
        [
            *problem_rows(result.workload, result.target, result.constraints),
            ("result", result.form),
            ("tried", f"{tried}, {result.measured} new, {result.seconds:.1f} s{stopped}"),
            ("untuned", f"{_cycles(untuned)}, {_ratios(untuned)}"),
            ("tuned", f"{_cycles(best)}, {_ratios(best)}; {result.speedup:.3f} times as fast"),
            ("", f"{words.duration((best.cycles or 0) / result.clock_mhz)} at the target's clock"),
            ("embedding", f"rank {best.rank} of {best.constraints}, {best.identifier}"),
            ("", words.mapping(Embedding.from_json(best.embedding))),
            ("schedule", _tiles(best.schedule)),
            ("", _rest(best.schedule)),
            ("kept", f"{words.plural(result.kept, 'trial')} in {result.database}"),
        ]
    )


def stored_report(files: Sequence[Stored]) -> Iterator[RenderableType]:
    """A line for each file of the database."""
    columns = ("workload", "target", "constraints", "trials", "cycles", "of bound", "embedding")
    numbers = ("trials", "cycles", "of bound")
    yield table([(c, "right" if c in numbers else "left") for c in columns], map(_row, files))
    if not all(is_current(file.key) for file in files):
        yield "old: measured by another version of the package; not used, and tuned anew"


def stored_json(files: Sequence[Stored]) -> dict[str, Any]:
    """The document of ``tune --show --json``."""
    return {
        "files": [
            {
                "path": str(file.path),
                "key": file.key,
                "current": is_current(file.key),
                "trials": len(file.trials),
                "best": msgspec.to_builtins(file.best),
            }
            for file in files
        ]
    }


def _row(file: Stored) -> list[str]:
    key, best = file.key, file.best
    named = f"{key['workload']['expression']}  {words.sizes(key['workload']['extents'])}"
    cells = [named, key["target"], key["constraints"], f"{len(file.trials):,}"]
    if best is None:
        return [*cells, words.NOTHING, words.NOTHING, words.NOTHING]
    ratio = f"{(best.cycles or 0) / best.lower_bound:.3f}"
    old = "" if is_current(key) else "old: "
    mapping = words.mapping(Embedding.from_json(best.embedding))
    return [*cells, f"{old}{best.cycles or 0:,}", ratio, mapping]


def _cycles(trial: Trial) -> str:
    return f"{trial.cycles or 0:,} cycles"


def _ratios(trial: Trial) -> str:
    cycles = trial.cycles or 0
    return (
        f"{cycles / trial.lower_bound:.3f} of the larger of GEMM and DMA cycles, "
        f"{cycles / trial.busiest_module:.3f} of the busiest module's"
    )


def _tiles(schedule: Schedule) -> str:
    """Tile sizes in the order of the loops."""
    return "  ".join(f"{name}:{schedule.tiles[name]}" for name in schedule.order)


def _rest(schedule: Schedule) -> str:
    threads = words.plural(schedule.threads, "thread")
    along = f" along {schedule.thread_loop}" if schedule.thread_loop else ""
    return f"{threads}{along}, {schedule.slots[0]} regions of INP, {schedule.slots[1]} of WGT"
