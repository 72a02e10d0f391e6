"""The reports of ``cpembed tune``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.console import RenderableType

from cpembed.api.tune_cpu import CpuTuneResult
from cpembed.api.tune_vta import VtaTuneResult
from cpembed.embedding.embedding import Embedding
from cpembed.report import words
from cpembed.report.blocks import header, table
from cpembed.report.solve import given_rows
from cpembed.targets.cpu.choice import Objective
from cpembed.targets.cpu.trials import CpuTrial
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tuning_trials import VtaTrial
from cpembed.tuning.database import Stored, Trial

_MINIMISED: dict[Objective, str] = {
    "total": "latency, packing and unpacking; weights are packed ahead",
    "kernel": "latency alone",
}

_Row = tuple[str, str]


def report(result: VtaTuneResult | CpuTuneResult) -> Iterator[RenderableType]:
    rows = _vta_rows(result) if isinstance(result, VtaTuneResult) else _cpu_rows(result)
    kept = f"{words.plural(result.kept, 'trial')} in {result.database}"
    problem = given_rows(result.workload, result.target)
    yield header([*problem, ("constraints", result.constraints), *rows, ("kept", kept)])


def standing(best: Trial | None) -> str:
    """The best so far, while tuning."""
    if isinstance(best, VtaTrial):
        ratio = (best.cycles or 0) / best.lower_bound
        return f"best {best.cycles or 0:,} cycles, {ratio:.3f} times what GEMM or DMA alone takes"
    if isinstance(best, CpuTrial):
        times = f"{words.duration(best.total_us or 0)}, {_faster(1 / (best.ratio or 1))}"
        return f"best {times} as untuned"
    return "no program yet"


def stored_report(files: Sequence[Stored[Any]]) -> Iterator[RenderableType]:
    """A line for each file of the database."""
    columns = ("workload", "target", "constraints", "trials", "best", "compared", "embedding")
    numbers = ("trials", "best", "compared")
    yield table([(c, "right" if c in numbers else "left") for c in columns], map(_row, files))
    if not all(file.is_current for file in files):
        yield "old: measured by another version of the package, or on another machine; not used"


def stored_json(files: Sequence[Stored[Any]]) -> dict[str, Any]:
    """The document of ``tune --show --json``."""
    return {
        "files": [
            {
                "path": str(file.path),
                "key": file.key,
                "current": file.is_current,
                "trials": file.count,
                "best": msgspec.to_builtins(file.best),
            }
            for file in files
        ]
    }


def _row(file: Stored[Any]) -> list[str]:
    key, best = file.key, file.best
    named = f"{key['workload']['expression']}  {words.sizes(key['workload']['extents'])}"
    cells = [named, key["target"], key["constraints"], f"{file.count:,}"]
    if best is None:
        return [*cells, words.NOTHING, words.NOTHING, words.NOTHING]
    old = "" if file.is_current else "old: "
    mapping = words.mapping(Embedding.from_json(best.embedding))
    if isinstance(best, VtaTrial):
        cycles = best.cycles or 0
        ratio = f"{cycles / best.lower_bound:.3f} of bound"
        return [*cells, f"{old}{cycles:,} cycles", ratio, mapping]
    objective: Objective = key["objective"]
    time = f"{words.duration(best.us(objective) or 0)} {objective}"
    return [*cells, f"{old}{time}", f"{1 / best.ratio:.2f} x untuned", mapping]


def _tried(result: VtaTuneResult | CpuTuneResult) -> str:
    tried = f"{len(result.trials)} schedules of {words.plural(result.candidates, 'embedding')}"
    stopped = "; stopped by --timeout" if result.stopped else ""
    return f"{tried}, {result.measured} new, {result.seconds:.1f} s{stopped}"


def _embedding(best: Trial) -> list[_Row]:
    embedding = Embedding.from_json(best.embedding)
    read = words.unusual(embedding)
    return [
        ("embedding", f"rank {best.rank} of {best.constraints}, {best.identifier}"),
        ("", words.mapping(embedding)),
        *([("", read)] if read else []),
    ]


def _faster(speedup: float) -> str:
    return f"{speedup:.3f} times as fast"


def _vta_rows(result: VtaTuneResult) -> list[_Row]:
    best, untuned = result.best, result.untuned
    return [
        ("result", result.form),
        ("tried", _tried(result)),
        ("untuned", f"{_cycles(untuned)}, {_ratios(untuned)}"),
        ("tuned", f"{_cycles(best)}, {_ratios(best)}; {_faster(result.speedup)}"),
        ("", f"{words.duration((best.cycles or 0) / result.clock_mhz)} at the target's clock"),
        *_embedding(best),
        ("schedule", _tiles(best.schedule)),
        ("", _rest(best.schedule)),
    ]


def _cycles(trial: VtaTrial) -> str:
    return f"{trial.cycles or 0:,} cycles"


def _ratios(trial: VtaTrial) -> str:
    cycles = trial.cycles or 0
    least = f"{cycles / trial.lower_bound:.3f} times what GEMM or DMA alone takes"
    if trial.busiest_module == trial.lower_bound:
        return least
    return f"{least}, {cycles / trial.busiest_module:.3f} times with resets and the ALU"


def _tiles(schedule: Schedule) -> str:
    """Tile sizes in the order of the loops."""
    return "  ".join(f"{name}:{schedule.tiles[name]}" for name in schedule.order)


def _rest(schedule: Schedule) -> str:
    threads = words.plural(schedule.threads, "thread")
    along = f" along {schedule.thread_loop}" if schedule.thread_loop else ""
    return f"{threads}{along}, {schedule.slots[0]} regions of INP, {schedule.slots[1]} of WGT"


def _cpu_rows(result: CpuTuneResult) -> list[_Row]:
    best, untuned = result.best, result.untuned
    left_out = ""
    if result.not_expressed:
        embeddings = words.plural(result.not_expressed, "embedding")
        left_out = f"; {embeddings} left out that the instruction cannot execute"
    again = "" if best.key == untuned.key else f", {_where(untuned)}"
    rows = [
        ("minimised", _MINIMISED[result.objective]),
        ("tried", f"{_tried(result)}{left_out}"),
        ("untuned", f"{_times(untuned)}{again}"),
        ("tuned", f"{_times(best)}; {_faster(result.speedup)}"),
        ("model", f"tuned: {_model(best)}; untuned: {_model(untuned)}"),
        *_embedding(best),
        ("schedule", words.knobs(best.knobs, Embedding.from_json(best.embedding))),
    ]
    if best.noisy:
        disturbed = "other work on the machine disturbed the times, or they varied"
        rows.append(("noisy", f"{disturbed}; the same command times the best once more"))
    return rows


def _times(trial: CpuTrial) -> str:
    if trial.latency_us is None:
        return f"no kernel: {trial.error}"
    times = trial.latency_us
    latency = f"{words.duration(times.median)} (p10 {words.duration(times.p10)})"
    apart = f"{latency}, packing and unpacking {words.duration(trial.moves_us)}"
    if trial.whole_us is None:
        return apart
    return f"{apart}; {words.duration(trial.whole_us.median)} in one call"


def _where(trial: CpuTrial) -> str:
    return f"rank {trial.rank} of {trial.constraints}"


def _model(trial: CpuTrial) -> str:
    """What was expected of a trial beside what was measured."""
    expected = trial.estimate_us + trial.estimated_moves_us
    share = expected / (trial.total_us or 1.0)
    return f"{words.duration(expected)} estimated is {share:.2f} times the measured"
