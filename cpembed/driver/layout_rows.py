"""Result of a comparison of layouts: a row for each, and an explanation of the best one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cpembed.blocks import Displayed
from cpembed.embedding.embedding import Embedding
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import row_major_strides
from cpembed.provenance import Provenance
from cpembed.transform.program import DerivedProgram
from cpembed.wording import duration

SAME, SAME_MEASURED = 1.02, 1.05
"""Ratios below which two estimated, or measured, times count as the same: neither a model nor a
timer is more precise."""


@dataclass(frozen=True)
class Times:
    """Times of a workload in one layout, in microseconds; None where unknown.

    Weights are packed ahead, which is not counted.

    Parameters
    ----------
    contraction : float or None
        Time of the contraction on packed operands.
    moving : float or None
        Sum of packing and unpacking; some models only know the sum.
    packing, unpacking : float, optional
        Time of packing the inputs, and of unpacking the output.
    call : float, optional
        Time of one call that packs, contracts and unpacks, if that was measured or estimated.
    cycles : float, optional
        Cycles of the contraction, if they are counted.
    provenance : Provenance
        Whether the times are measured, simulated or estimated.
    machine : str, optional
        Described machine that estimates are for; None for this machine.
    noisy : bool
        True if other work on the machine disturbed the measurement.
    """

    contraction: float | None
    moving: float | None
    packing: float | None = None
    unpacking: float | None = None
    call: float | None = None
    cycles: float | None = None
    provenance: Provenance = Provenance.ESTIMATED
    machine: str | None = None
    noisy: bool = False

    @property
    def total(self) -> float | None:
        """Time with packing and unpacking: that of one call if it is known, else the sum."""
        if self.call is not None:
            return self.call
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
    """Candidate that runs a workload in one layout.

    Parameters
    ----------
    name : str
        Name of the layout.
    settings : dict of str to str
        Settings of the operator that make the layout.
    on : str, optional
        Target that runs it: an alternative if that is faster.
    embedding : Embedding, optional
        Embedding of the candidate.
    utilisation : float, optional
        Useful share of the instruction.
    moved_bytes : int, optional
        Bytes that packing and unpacking read and write.
    in_place : tuple of str
        Operands that are used without packing.
    run_bytes : float, optional
        Mean length of the contiguous runs that one execution of the instruction reads of the first
        input in its own layout.
    times : Times, optional
        Times of the candidate.
    reason : str, optional
        Reason why nothing runs the layout, or why there is no time.
    """

    name: str = ""
    settings: dict[str, str] = field(default_factory=dict[str, str])
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
        """Microseconds with packing and unpacking; None if unknown."""
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


@dataclass(frozen=True, repr=False)
class LayoutsResult(Displayed):
    """Rows of all layouts of a workload on one target.

    Parameters
    ----------
    workload : str
        Operator and sizes.
    target : str
        Name of the target.
    rows : tuple of LayoutRow
        One row for each layout, in a fixed order.
    refused : dict of str to str
        Reasons by layout for those that the workload's sizes rule out.
    """

    workload: str
    target: str
    rows: tuple[LayoutRow, ...]
    refused: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def best(self) -> LayoutRow | None:
        """Row with the shortest total time; None if no time is known."""
        timed = [row for row in self.rows if row.total is not None]
        return min(timed, key=lambda row: row.total or 0.0, default=None)

    @property
    def as_fast(self) -> tuple[LayoutRow, ...]:
        """Further rows whose time counts as equal to the best (``SAME``, ``SAME_MEASURED``)."""
        best = self.best
        if best is None or best.total is None:
            return ()
        measured = best.times is not None and best.times.provenance is Provenance.MEASURED
        limit = best.total * (SAME_MEASURED if measured else SAME)
        return tuple(r for r in self.rows if r is not best and r.total and r.total <= limit)

    @property
    def why(self) -> str:
        """Sentence that explains why the best layout is the fastest."""
        return why_best(self.rows, self.best, self.as_fast)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``layouts --json``."""
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
"""Ratio of utilisations above which the difference explains a faster contraction."""

_PART = 0.25
"""Share of a time difference from which packing or the contraction is named as its cause."""


def why_best(
    rows: Sequence[LayoutRow], best: LayoutRow | None, as_fast: Sequence[LayoutRow]
) -> str:
    """Explain in a sentence why a layout is faster than the next slower one.

    Parameters
    ----------
    rows : sequence of LayoutRow
        All layouts.
    best : LayoutRow or None
        Fastest of them; None if no time is known.
    as_fast : sequence of LayoutRow
        Layouts whose times count as the same as that of ``best``.
    """
    if best is None or best.total is None:
        return "no time is known: nothing can be compared"
    same = [row for row in rows if row is best or row in as_fast]
    slower = [row for row in rows if row.total is not None and row not in same]
    among = f"{_listed([row.name for row in same])} take the same time" if as_fast else ""
    if not slower:
        return among or f"{best.name} is the only layout with a time"
    second = min(slower, key=lambda row: row.total or 0.0)
    saved = (second.total or 0.0) - best.total
    factor = (second.total or 0.0) / best.total
    faster = f"{best.name} is {factor:.3g} times as fast as {second.name}"
    reason = f"{faster}, {duration(saved)} less: {_reason(best, second, saved)}"
    return f"{among}; {reason}" if among else reason


def _reason(best: LayoutRow, second: LayoutRow, saved: float) -> str:
    """Name the parts that make up the ``saved`` microseconds."""
    if best.on != second.on:
        return f"{best.on} runs it, which cannot run {second.name} as fast"
    if best.times is None or second.times is None:
        return f"the parts of the time of {second.name} are unknown"
    packing = (second.times.moving or 0.0) - (best.times.moving or 0.0)
    contraction = (second.times.contraction or 0.0) - (best.times.contraction or 0.0)
    parts = [_packing_reason(best, second)] if packing > _PART * saved else []
    if contraction > _PART * saved or not parts:
        parts.append(_contraction_reason(best, second))
    return "; ".join(parts)


def _contraction_reason(best: LayoutRow, second: LayoutRow) -> str:
    best_us = None if best.times is None else best.times.contraction
    second_us = None if second.times is None else second.times.contraction
    text = f"the contraction takes {_us(best_us)} instead of {_us(second_us)}"
    used, second_used = best.utilisation or 0.0, second.utilisation or 0.0
    if used > second_used * _MORE_USED:
        return f"{text}, where {used:.1%} of the instruction is used instead of {second_used:.1%}"
    if best.run_bytes and second.run_bytes and best.run_bytes > second.run_bytes:
        return (
            f"{text}, where one execution reads the first input in runs of "
            f"{best.run_bytes:.3g} bytes instead of {second.run_bytes:.3g}"
        )
    return (
        f"{text}, though no more of the instruction is used and its reads are no more "
        "contiguous: the loops around it differ"
    )


def _packing_reason(best: LayoutRow, second: LayoutRow) -> str:
    best_us = 0.0 if best.times is None else best.times.moving or 0.0
    second_us = 0.0 if second.times is None else second.times.moving or 0.0
    in_place = [name for name in best.in_place if name not in second.in_place]
    time = duration(best_us) if best_us else "no time of their own"
    text = f"packing and unpacking take {time} instead of {duration(second_us)}"
    if in_place:
        text += f"; {_listed(in_place)} {'is' if len(in_place) == 1 else 'are'} used in place"
    return text


def _us(time: float | None) -> str:
    return "an unknown time" if time is None else duration(time)


def _listed(names: Sequence[str]) -> str:
    """Join names as ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


_LARGEST = 1 << 14
"""Maximum number of elements of a tile, since :func:`run_bytes` visits each one."""


def run_bytes(program: DerivedProgram, name: str) -> float | None:
    """Return the mean length in bytes of the contiguous runs that one execution reads.

    The operand is in its own layout. None if the program lacks it, or its tile is very large.
    """
    operand = next((o for o in program.operands if o.name == name), None)
    if operand is None:
        return None
    tiles = [d for d in operand.dimensions if d.lane is not None]
    if math.prod(d.extent for d in tiles) > _LARGEST:
        return None
    # An execution in the middle of the operand stands for all: padding cuts runs at the borders.
    middle = {d.name: d.extent // 2 for d in operand.dimensions if d.lane is None}
    shape = operand.original_shape
    steps = row_major_strides(shape)
    offsets: set[int] = set()
    for point in itertools.product(*(range(d.extent) for d in tiles)):
        values = {**middle, **{d.name: at for d, at in zip(tiles, point, strict=True)}}
        index = [source.evaluate(values) for source in operand.source]
        if all(0 <= at < size for at, size in zip(index, shape, strict=True)):
            offsets.add(sum(at * step for at, step in zip(index, steps, strict=True)))
    if not offsets:
        return None
    runs = sum(offset - 1 not in offsets for offset in offsets)
    return len(offsets) * size_bytes(operand.dtype) / runs
