"""What is known of a workload's layouts: a row for each, and which one is the best."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cpembed.driver.layout_reasons import why_best
from cpembed.embedding.embedding import Embedding
from cpembed.provenance import Provenance

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
