"""What reports say of schedules and trials on a CPU."""

from __future__ import annotations

from cpembed.codegen.plan import Knobs
from cpembed.embedding.embedding import Embedding
from cpembed.targets.cpu.choice import Objective
from cpembed.targets.cpu.trials import CpuTrial
from cpembed.wording import duration

_MINIMISED: dict[Objective, str] = {
    "total": "latency, packing and unpacking; weights are packed ahead",
    "kernel": "latency alone",
}


def knobs(chosen: Knobs, embedding: Embedding) -> str:
    """``k.o:2  q.o:2 in registers, W outermost, cache tiles of p.o:8``: what a task computes, the
    factor whose loops are outside the other's, what comes before anything else.

    >>> chosen = Knobs({"k.o": 2, "q.o": 2}, "rows", {"p.o": 8})
    >>> knobs(chosen, Embedding({"A": "I", "B": "W", "C": "O"}, {}, {}))
    'k.o:2  q.o:2 in registers, I outermost, cache tiles of p.o:8'
    """
    first, second, *_ = embedding.operands.values()
    blocks = "  ".join(f"{loop}:{size}" for loop, size in chosen.register_tiles.items())
    panels = "  ".join(f"{loop}:{size}" for loop, size in chosen.cache_tiles.items())
    return ", ".join(
        (
            f"{blocks or 'one tile'} in registers",
            f"{second if chosen.columns_outermost else first} outermost",
            *((f"cache tiles of {panels}",) if panels else ()),
            *(("non-temporal loads",) if chosen.non_temporal else ()),
            *((f"split-K in {chosen.split_k}",) if chosen.split_k > 1 else ()),
        )
    )


def tuning_rows(best: CpuTrial, untuned: CpuTrial, objective: Objective) -> list[tuple[str, str]]:
    """The best trial beside what runs untuned."""
    again = "" if best.key == untuned.key else f", rank {untuned.rank} of {untuned.constraints}"
    speedup = (untuned.cost or 0) / (best.cost or 1)
    rows = [
        ("minimised", _MINIMISED[objective]),
        ("untuned", f"{_times(untuned)}{again}"),
        ("tuned", f"{_times(best)}; {speedup:.3f} times as fast"),
        ("model", f"tuned: {_model(best)}; untuned: {_model(untuned)}"),
    ]
    if best.noisy:
        disturbed = "other work on the machine disturbed the times, or they varied"
        rows.append(("noisy", f"{disturbed}; the same command times the best once more"))
    return rows


def _times(trial: CpuTrial) -> str:
    if trial.latency_us is None:
        return f"no kernel: {trial.error}"
    times = trial.latency_us
    latency = f"{duration(times.median)} (p10 {duration(times.p10)})"
    apart = f"{latency}, packing and unpacking {duration(trial.moves_us)}"
    if trial.whole_us is None:
        return apart
    return f"{apart}; {duration(trial.whole_us.median)} in one call"


def _model(trial: CpuTrial) -> str:
    """What was expected of a trial beside what was measured."""
    share = trial.estimated / (trial.total_us or 1.0)
    return f"{duration(trial.estimated)} estimated is {share:.2f} times the measured"
