"""Fronts of points by their objectives, all of which are to be small, and their hypervolume."""
# moocore has no complete annotations.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from cpembed.errors import BackendUnavailable

Vector = tuple[float, ...]
Matrix = npt.NDArray[np.float64]


def covers(vector: Vector, others: Matrix) -> npt.NDArray[np.bool_]:
    """Which rows a vector is at least as good as, in every objective."""
    return np.asarray((np.asarray(vector) <= others).all(axis=1))


def front(vectors: Sequence[Vector]) -> list[int]:
    """Positions of the vectors that no other one dominates; of equal ones the first.

    >>> front([(1, 2), (2, 1), (2, 2), (1, 2)])
    [0, 1]
    """
    kept: list[int] = []
    # What dominates a vector comes before it in this order, as does the first of equal ones.
    for position in sorted(range(len(vectors)), key=lambda n: (vectors[n], n)):
        table = np.asarray([vectors[n] for n in kept], dtype=np.float64)
        if not kept or not (table <= np.asarray(vectors[position])).all(axis=1).any():
            kept.append(position)
    return sorted(kept)


def can_measure() -> bool:
    """Whether hypervolumes can be computed here."""
    return find_spec("moocore") is not None


def hypervolume(vectors: Sequence[Vector], reference: Vector) -> float:
    """What is dominated by the vectors and dominates the reference point, as a share of the box
    between the origin and that point: each objective is divided by the reference's.

    Raises :class:`BackendUnavailable` where moocore is not installed.
    """
    if not can_measure():
        raise BackendUnavailable(
            "a hypervolume needs moocore, which is not installed: pip install 'cpembed[explore]'"
        )
    import moocore

    if not vectors:
        return 0.0
    scaled = np.asarray(vectors, dtype=np.float64) / np.asarray(reference, dtype=np.float64)
    inside = scaled[(scaled < 1).all(axis=1)]
    if not len(inside):
        return 0.0
    if inside.shape[1] == 1:
        return float(1 - inside.min())
    return float(moocore.hypervolume(inside, ref=np.ones(inside.shape[1])))


def worst(vectors: Sequence[Vector]) -> Vector:
    """The largest value of each objective."""
    return tuple(max(values) for values in zip(*vectors, strict=True))
