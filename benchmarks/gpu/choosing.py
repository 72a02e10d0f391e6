"""Which kernels of a layer are packed: the model's best of all families, and of a fixed mapping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.codegen.epilogue import Epilogue
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec
from cpembed.driver.solve import solve
from cpembed.embedding.embedding import Embedding
from cpembed.errors import LoweringError
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.registry import open_target

CONSTRAINTS = "fused"
"""The set whose embeddings are families: each instruction axis an axis, or several fused."""

MOST_EMBEDDINGS = 400
"""More than the set has for any convolution."""

IMAGE, WINDOW = ("n", "p", "q"), ("c", "r", "s")


@dataclass(frozen=True)
class Selected:
    """A kernel to pack: what it is there for, its embedding and schedule, and the model's time."""

    roles: tuple[str, ...]
    ranked: RankedCandidate
    lowered: Any
    schedule: Any
    estimated_us: float


def _fuses(
    family: Sequence[str], wanted: Sequence[str], extents: Mapping[str, int], size: int
) -> bool:
    """Whether an instruction axis of ``size`` walks the wanted axes fused into one.

    Axes of one step are nothing. Where some of them alone are whole tiles, to fuse the others
    around them changes nothing.
    """
    walked = {axis for axis in family if extents[axis] > 1}
    asked = {axis for axis in wanted if extents.get(axis, 1) > 1}
    if walked == asked:
        return True
    steps = 1
    for axis in walked:
        steps *= extents[axis]
    return walked < asked and steps % size == 0


def is_im2col(embedding: Embedding, workload: Computation) -> bool:
    """Rows are all pixels of all images, the depth whole windows."""
    return _is(embedding, workload, IMAGE, WINDOW)


def is_fuse_hw(embedding: Embedding, workload: Computation) -> bool:
    """Rows are the pixels of an image, the depth channels."""
    return _is(embedding, workload, IMAGE[1:], WINDOW[:1])


def _is(
    embedding: Embedding, workload: Computation, rows: Sequence[str], depth: Sequence[str]
) -> bool:
    family, extents, used = embedding.family, workload.extents, embedding.extents
    return (
        _fuses(family["x"], rows, extents, used["x"])
        and _fuses(family["z"], depth, extents, used["z"])
        and set(family["y"]) <= {"k"}
    )


FIXED: Mapping[str, Callable[[Embedding, Computation], bool]] = {
    "im2col": is_im2col,
    "fuse_hw": is_fuse_hw,
}
"""Mappings that other compilers always take, by name."""


def form(lowered: Any) -> tuple[Any, ...]:
    """Equal for products that differ in the names of their loops alone, to the model."""
    ways = tuple(
        tuple((way.length, way.needs_packing, way.layout.elements) for way in operand)
        for operand in (lowered.first, lowered.second)
    )
    output = lowered.output
    return lowered.tiles, ways, output.length, output.along == lowered.axes[1]


@dataclass(frozen=True)
class _Option:
    """A candidate; ``space`` is shared with equal products."""

    form: tuple[Any, ...]
    ranked: RankedCandidate
    lowered: Any
    space: Space[Any]

    @property
    def products(self) -> int:
        """Of the instruction."""
        return math.prod(self.lowered.tiles)

    @property
    def schedules(self) -> Sequence[Scored[Any]]:
        """The best first; none where no schedule fits the machine."""
        try:
            return self.space.ranked()
        except LoweringError:
            return ()


WASTEFUL = 2
"""A family that executes more than so many times as many products as another is looked at only
where a fixed mapping asks for it."""


def select(workload: Computation, target_name: str, stored: str, best: int) -> list[Selected]:
    """The ``best`` kernels of all families by the model, no two of which have the same product and
    the same blocks, and the best of each fixed mapping that the workload has; a kernel that is both
    has both roles.

    Raises :class:`LoweringError` where no embedding has a kernel.
    """
    options = _options(workload, target_name, stored)
    kept: dict[tuple[int, Any], Selected] = {}
    for place, (option, scored) in enumerate(_different(options, best), start=1):
        _keep(kept, f"chosen {place}", option, scored)
    if not kept:
        raise LoweringError(f"{workload.name}: no schedule of {target_name} fits the machine")
    if "p" in workload.extents:
        for name, belongs in FIXED.items():
            fixed = [o for o in options if belongs(o.ranked.candidate.embedding, workload)]
            fixed = [option for option in fixed if option.schedules]
            if fixed:
                option = min(fixed, key=lambda option: option.schedules[0].cost)
                _keep(kept, name, option, option.schedules[0])
    return list(kept.values())


def _options(workload: Computation, target_name: str, stored: str) -> list[_Option]:
    spec = hardware_spec(target_name)
    target = open_target(spec)
    epilogue = None if stored == workload.output.dtype else Epilogue(stored)
    found: list[_Option] = []
    spaces: dict[tuple[Any, ...], Space[Any]] = {}
    refused = "nothing embeds"
    for ranked in solve(workload, spec, constraints=CONSTRAINTS, top=MOST_EMBEDDINGS).embeddings:
        try:
            lowered = target.lower(ranked.candidate.program, epilogue)
        except LoweringError as error:
            refused = str(error)
            continue
        key = form(lowered)
        if key not in spaces:
            spaces[key] = target.space(lowered)
        found.append(_Option(key, ranked, lowered, spaces[key]))
    if not found:
        raise LoweringError(f"{workload.name}: no kernel of {target_name}: {refused}")
    return found


def _different(options: Sequence[_Option], count: int) -> Iterator[tuple[_Option, Scored[Any]]]:
    """The best by their estimates, and of those that are equal the first: of equal products one,
    with one schedule of each block and split.
    """
    least = min(option.products for option in options)
    frugal = [option for option in options if option.products <= WASTEFUL * least]
    first = {option.form: option for option in reversed(frugal)}
    every = [(option, scored) for option in first.values() for scored in option.schedules]
    seen: set[tuple[Any, ...]] = set()
    for option, scored in sorted(every, key=lambda pair: (pair[1].cost, pair[0].ranked.rank)):
        schedule = scored.schedule
        key = (option.form, schedule.block, schedule.splits)
        if key not in seen:
            seen.add(key)
            yield option, scored
        if len(seen) == count:
            return


def _keep(
    kept: dict[tuple[int, Any], Selected], role: str, option: _Option, scored: Scored[Any]
) -> None:
    key = (option.ranked.rank, scored.schedule)
    before = kept.get(key)
    roles = (role,) if before is None else (*before.roles, role)
    kept[key] = Selected(roles, option.ranked, option.lowered, scored.schedule, scored.cost)
