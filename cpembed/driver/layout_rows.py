"""What is known of a workload's layouts: a row for each, and which one is the best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cpembed.embedding.embedding import Embedding
from cpembed.ir.dtypes import size_bytes
from cpembed.provenance import Provenance
from cpembed.transform.program import DerivedProgram
from cpembed.wording import duration

SAME, SAME_MEASURED = 1.02, 1.05
"""Times that differ by less are the same: a model, and a timer, tell no more."""


@dataclass(frozen=True)
class Times:
    """Microseconds: of the ``contraction`` on packed operands, of ``packing`` the inputs and
    ``unpacking`` the output (``moving`` is both, known also where they are not known apart), and
    of all together, in one call where that is measured. Weights are packed ahead and not counted.
    None: not known. ``cycles`` are those of the contraction, where they are counted; ``machine`` is
    the described one that estimates are of, None for this one. ``noisy``: other work on the machine
    disturbed what was measured."""

    contraction: float | None
    moving: float | None
    packing: float | None = None
    unpacking: float | None = None
    whole: float | None = None
    cycles: float | None = None
    provenance: Provenance = Provenance.ESTIMATED
    machine: str | None = None
    noisy: bool = False

    @property
    def total(self) -> float | None:
        if self.whole is not None:
            return self.whole
        if self.contraction is None:
            return None
        return self.contraction + (self.moving or 0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "total_us": self.total,
            "contraction_us": self.contraction,
            "moving_us": self.moving,
            "packing_us": self.packing,
            "unpacking_us": self.unpacking,
            "cycles": self.cycles,
            "provenance": self.provenance.value,
            "machine": self.machine,
            "noisy": self.noisy,
        }


@dataclass(frozen=True)
class LayoutRow:
    """A layout, in the operator's own ``settings``: what is chosen to run in it.

    ``on`` is the target that runs it, an alternative where that is faster. ``run_bytes``: of the
    first input's data, so many that one execution of the instruction reads lie next to each other
    before any packing. ``reason``: why nothing runs it.
    """

    name: str
    settings: dict[str, str]
    on: str | None = None
    embedding: Embedding | None = None
    utilisation: float | None = None
    moved_bytes: int | None = None
    in_place: tuple[str, ...] = ()
    run_bytes: float | None = None
    times: Times | None = None
    reason: str | None = None

    @property
    def total(self) -> float | None:
        return None if self.times is None else self.times.total

    def to_json(self) -> dict[str, Any]:
        embedding = self.embedding
        return {
            "layout": self.name,
            "settings": dict(self.settings),
            "on": self.on,
            "embedding": None if embedding is None else embedding.identifier(),
            "family": {}
            if embedding is None
            else {k: list(v) for k, v in embedding.family.items()},
            "utilisation": self.utilisation,
            "moved_bytes": self.moved_bytes,
            "in_place": list(self.in_place),
            "run_bytes": self.run_bytes,
            "times": None if self.times is None else self.times.to_json(),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class LayoutsResult:
    """The layouts in a fixed order; ``refused``: those that the sizes do not have, and why."""

    workload: str
    target: str
    rows: tuple[LayoutRow, ...]
    refused: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def best(self) -> LayoutRow | None:
        """The fastest; None where no time is known."""
        timed = [row for row in self.rows if row.total is not None]
        return min(timed, key=lambda row: row.total or 0.0, default=None)

    @property
    def as_fast(self) -> tuple[LayoutRow, ...]:
        """Others that take no more than :data:`SAME`, or :data:`SAME_MEASURED`, times as long."""
        best = self.best
        if best is None or best.total is None:
            return ()
        measured = best.times is not None and best.times.provenance is Provenance.MEASURED
        limit = best.total * (SAME_MEASURED if measured else SAME)
        return tuple(r for r in self.rows if r is not best and r.total and r.total <= limit)

    @property
    def why(self) -> str:
        """Why the best is the best, in a sentence."""
        return why_best(self.rows, self.best, self.as_fast)

    def to_json(self) -> dict[str, Any]:
        """The document of ``layouts --json``."""
        best = self.best
        return {
            "workload": self.workload,
            "target": self.target,
            "best": None if best is None else best.name,
            "as_fast": [row.name for row in self.as_fast],
            "why": self.why,
            "layouts": [row.to_json() for row in self.rows],
            "refused": self.refused,
        }


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


_LARGEST = 1 << 14
"""Elements of a tile that are looked at one by one."""


def run_bytes(program: DerivedProgram, name: str) -> float | None:
    """Bytes of an operand's own layout that one execution reads next to each other, in the mean
    over its runs; None where the program has no such operand, or a tile of it is very large.

    The execution is one in the middle of the operand, away from the padding around it.
    """
    operand = next((o for o in program.operands if o.name == name), None)
    if operand is None:
        return None
    tiles = [d for d in operand.dimensions if d.walked_by is not None]
    if math.prod(d.extent for d in tiles) > _LARGEST:
        return None
    middle = {d.name: d.extent // 2 for d in operand.dimensions if d.walked_by is None}
    shape = operand.original_shape
    steps = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    found: set[int] = set()
    for point in itertools.product(*(range(d.extent) for d in tiles)):
        values = {**middle, **{d.name: at for d, at in zip(tiles, point, strict=True)}}
        index = [source.evaluate(values) for source in operand.source]
        if all(0 <= at < size for at, size in zip(index, shape, strict=True)):
            found.add(sum(at * step for at, step in zip(index, steps, strict=True)))
    if not found:
        return None
    runs = sum(place - 1 not in found for place in found)
    return len(found) * size_bytes(operand.dtype) / runs
