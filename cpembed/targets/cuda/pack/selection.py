"""Select the kernels of a layer: the model's best of all families, and of fixed mappings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.embedding import Embedding
from cpembed.errors import LoweringError
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.base import Target
from cpembed.targets.cuda.lower import TiledProduct

IMAGE, WINDOW = ("n", "p", "q"), ("c", "r", "s")


@dataclass(frozen=True)
class Selected:
    """A kernel to pack: its roles, its embedding and schedule, and the model's time."""

    roles: tuple[str, ...]
    ranked: RankedCandidate
    lowered: Any
    schedule: Any
    estimated_us: float


def _fuses(
    family: Sequence[str], fused_axes: Sequence[str], extents: Mapping[str, int], size: int
) -> bool:
    """Return if an instruction axis of ``size`` walks some axes fused into one.

    Axes of one step are nothing. If some of them alone are whole tiles, to fuse the others around
    them changes nothing.
    """
    family_axes = {axis for axis in family if extents[axis] > 1}
    required = {axis for axis in fused_axes if extents.get(axis, 1) > 1}
    if family_axes == required:
        return True
    steps = 1
    for axis in family_axes:
        steps *= extents[axis]
    return family_axes < required and steps % size == 0


FIXED = {"im2col": (IMAGE, WINDOW), "fuse_hw": (IMAGE[1:], WINDOW[:1])}
"""Axes of the rows and of the depth of mappings that other compilers always take, by name."""


def is_fixed(name: str, embedding: Embedding, workload: Computation) -> bool:
    """Return True if an embedding is one of the mappings :data:`FIXED`.

    Parameters
    ----------
    name : str
        Name of the mapping.
    embedding : Embedding
    workload : Computation
        Workload that is embedded.
    """
    family, extents, used = embedding.family, workload.extents, embedding.extents
    rows, depth = FIXED[name]
    return (
        _fuses(family["x"], rows, extents, used["x"])
        and _fuses(family["z"], depth, extents, used["z"])
        and set(family["y"]) <= {"k"}
    )


def tiled(lowered: Any) -> TiledProduct:
    """Return the product of instruction tiles that a target schedules."""
    # Warp groups add to it which images TMA can load.
    return lowered if isinstance(lowered, TiledProduct) else lowered.tiled


@dataclass(frozen=True)
class _Option:
    """A candidate; ``space`` is shared with equal products."""

    form: object
    ranked: RankedCandidate
    lowered: Any
    space: Space[Any]

    @property
    def products(self) -> int:
        """Number of products of the instruction."""
        return math.prod(tiled(self.lowered).tiles)

    @property
    def schedules(self) -> Sequence[Scored[Any]]:
        """Schedules, the best first; none if no schedule fits the machine."""
        try:
            return self.space.ranked()
        except LoweringError:
            return ()


WASTEFUL = 2
"""Maximum ratio of a family's products to another's.

Families beyond it are looked at only if a fixed mapping asks for them.
"""


def select(
    workload: Computation,
    target: Target[Any, Any, Any],
    candidates: Sequence[RankedCandidate],
    epilogue: Any,
    best: int,
) -> list[Selected]:
    """Return the ``best`` kernels of all families by the model, and the best of fixed mappings.

    No two of the former have the same product and the same blocks; a kernel that is both has both
    roles.

    Parameters
    ----------
    workload : Computation
    target : Target
        Target that estimates and generates the kernels.
    candidates : sequence of RankedCandidate
        Embeddings of the layer.
    epilogue : Epilogue or None
        What is stored of the sums.
    best : int
        Number of kernels.

    Raises
    ------
    LoweringError
        If no embedding has a kernel.
    """
    options = _options(workload, target, candidates, epilogue)
    selection: dict[tuple[int, Any], Selected] = {}
    for place, (option, scored) in enumerate(_different(options, best), start=1):
        _add(selection, f"chosen {place}", option, scored)
    if not selection:
        raise LoweringError(f"{workload.name}: no schedule of {target.spec.name} fits the machine")
    if "p" in workload.extents:
        for name in FIXED:
            fixed = [
                option
                for option in options
                if is_fixed(name, option.ranked.candidate.embedding, workload) and option.schedules
            ]
            if fixed:
                option = min(fixed, key=lambda option: option.schedules[0].cost)
                _add(selection, name, option, option.schedules[0])
    return list(selection.values())


def _options(
    workload: Computation,
    target: Target[Any, Any, Any],
    candidates: Sequence[RankedCandidate],
    epilogue: Any,
) -> list[_Option]:
    options: list[_Option] = []
    spaces: dict[object, Space[Any]] = {}
    reason = "nothing embeds"
    for ranked in candidates:
        try:
            lowered = target.lower(ranked.candidate.program, epilogue)
        except LoweringError as error:
            reason = str(error)
            continue
        space = target.space(lowered)
        form = space.form()
        options.append(_Option(form, ranked, lowered, spaces.setdefault(form, space)))
    if not options:
        raise LoweringError(f"{workload.name}: no kernel of {target.spec.name}: {reason}")
    return options


def _different(options: Sequence[_Option], count: int) -> Iterator[tuple[_Option, Scored[Any]]]:
    """Yield the best by their estimates, and of those that are equal the first.

    Of equal products there is one, with one schedule of each block and split.
    """
    least = min(option.products for option in options)
    frugal = [option for option in options if option.products <= WASTEFUL * least]
    first = {option.form: option for option in reversed(frugal)}
    every = [(option, scored) for option in first.values() for scored in option.schedules]
    distinct: set[tuple[Any, ...]] = set()
    for option, scored in sorted(every, key=lambda pair: (pair[1].cost, pair[0].ranked.rank)):
        key = (option.form, option.space.group(scored.schedule))
        if key not in distinct:
            distinct.add(key)
            yield option, scored
        if len(distinct) == count:
            return


def _add(
    selection: dict[tuple[int, Any], Selected], role: str, option: _Option, scored: Scored[Any]
) -> None:
    key = (option.ranked.rank, scored.schedule)
    before = selection.get(key)
    roles = (role,) if before is None else (*before.roles, role)
    selection[key] = Selected(roles, option.ranked, option.lowered, scored.schedule, scored.cost)
