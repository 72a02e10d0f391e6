"""Why one layout is faster than the others, from their figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cpembed.wording import duration

if TYPE_CHECKING:
    from cpembed.driver.layout_rows import LayoutRow

_MORE_USED = 1.02
_PART = 0.25
"""Share of a difference from which a part of it is named."""


def why_best(
    rows: Sequence[LayoutRow], best: LayoutRow | None, as_fast: Sequence[LayoutRow]
) -> str:
    """A sentence: the best beside the fastest layout that is slower."""
    if best is None or best.total is None:
        return "no time is known: nothing can be compared"
    same = [row for row in rows if row is best or row in as_fast]
    slower = [row for row in rows if row.total is not None and row not in same]
    among = f"{_listed([row.name for row in same])} take the same time" if as_fast else ""
    if not slower:
        return among or f"{best.name} is the only layout with a time"
    other = min(slower, key=lambda row: row.total or 0.0)
    saved = (other.total or 0.0) - best.total
    factor = (other.total or 0.0) / best.total
    faster = f"{best.name} is {factor:.3g} times as fast as {other.name}"
    reason = f"{faster}, {duration(saved)} less: {_reason(best, other, saved)}"
    return f"{among}; {reason}" if among else reason


def _reason(best: LayoutRow, other: LayoutRow, saved: float) -> str:
    if best.on != other.on:
        return f"{best.on} runs it, which cannot run the other as fast"
    ours, theirs = best.times, other.times
    if ours is None or theirs is None:
        return "of the other no parts are known"
    moving = (theirs.moving or 0.0) - (ours.moving or 0.0)
    computing = (theirs.contraction or 0.0) - (ours.contraction or 0.0)
    parts = [_moving(best, other)] if moving > _PART * saved else []
    if computing > _PART * saved or not parts:
        parts.append(_computing(best, other))
    return "; ".join(parts)


def _computing(best: LayoutRow, other: LayoutRow) -> str:
    ours, theirs = best.times, other.times
    mine = None if ours is None else ours.contraction
    yours = None if theirs is None else theirs.contraction
    text = f"the contraction takes {_us(mine)} instead of {_us(yours)}"
    used, unused = best.utilisation or 0.0, other.utilisation or 0.0
    if used > unused * _MORE_USED:
        return f"{text}, where {used:.1%} of the instruction is used instead of {unused:.1%}"
    if best.run_bytes and other.run_bytes and best.run_bytes > other.run_bytes:
        return (
            f"{text}, where what one execution reads of the first input lies in runs of "
            f"{best.run_bytes:.3g} bytes instead of {other.run_bytes:.3g}"
        )
    return (
        f"{text}, though no more of the instruction is used and what it reads is no more "
        "contiguous: the loops around it differ"
    )


def _moving(best: LayoutRow, other: LayoutRow) -> str:
    ours, theirs = best.times, other.times
    mine = 0.0 if ours is None else ours.moving or 0.0
    yours = 0.0 if theirs is None else theirs.moving or 0.0
    kept = [name for name in best.in_place if name not in other.in_place]
    taken = duration(mine) if mine else "no time of their own"
    text = f"packing and unpacking take {taken} instead of {duration(yours)}"
    if kept:
        text += f"; {_listed(kept)} {'is' if len(kept) == 1 else 'are'} used in place"
    return text


def _us(time: float | None) -> str:
    return "an unknown time" if time is None else duration(time)


def _listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
