"""What a search on a CPU chooses from: embeddings with their schedules, and neighbours of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.kernel.nest import TaskLoop
from cpembed.kernel.plan import Knobs
from cpembed.selection.candidate import Candidate
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.cpu.build import schedule_space
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.choice import Objective, moved, whole_call
from cpembed.targets.cpu.estimate import Estimate
from cpembed.targets.cpu.register_blocks import Schedules, apply_knobs
from cpembed.targets.cpu.trials import trial_key

_CHANGES = ("block", "block", "order", "panel", "stream", "embedding")
"""What a neighbour differs in; block sizes, of which there are many, twice as often."""

_ANOTHER = 0.3
"""Probability that a neighbour differs in one more thing."""


@dataclass(frozen=True, eq=False)
class CpuDesign:
    """An embedding that takes part: its place ``rank`` in the ranking of the constraint set
    ``constraints``, and its schedules."""

    candidate: Candidate
    rank: int
    constraints: str
    space: Schedules

    @property
    def identifier(self) -> str:
        return self.candidate.identifier

    @cached_property
    def moves(self) -> bool:
        """Whether anything is packed or unpacked whenever it runs."""
        return bool(moved(self.candidate.program))

    @cached_property
    def ranked(self) -> list[tuple[Estimate, Knobs]]:
        """Schedules worth timing, the fastest by estimate first."""
        return self.space.ranked()

    @cached_property
    def has_panels(self) -> bool:
        """Whether there is more data than the near caches hold, so that panels matter."""
        return any(knobs.panels for _, knobs in self.ranked)

    @cached_property
    def loops(self) -> tuple[tuple[TaskLoop, ...], tuple[TaskLoop, ...]]:
        """What can be blocked: loops over rows, and over columns."""
        nest, model = self.space.nest, self.space.model
        rows, columns = (
            tuple(loop for loop in loops if loop.steps > 1)
            for loops in (model.rows(nest), model.columns(nest))
        )
        return rows, columns


@dataclass(frozen=True)
class CpuProposal:
    """A schedule of a design; ``moves_us`` is the model's time of packing and unpacking,
    ``estimate`` what tuning minimises by the model, both in microseconds."""

    design: CpuDesign
    knobs: Knobs
    kernel: Estimate
    moves_us: float
    estimate: float

    @property
    def key(self) -> str:
        return trial_key(self.design.identifier, self.knobs)

    @property
    def candidate(self) -> Candidate:
        return self.design.candidate


def design_of(
    ranked: RankedCandidate, spec: HardwareSpec, machine: Calibration | None
) -> CpuDesign:
    """Raises :class:`LoweringError` where the instruction cannot execute a program."""
    space = schedule_space(ranked.candidate.program, spec, machine)
    return CpuDesign(ranked.candidate, ranked.rank, ranked.constraints, space)


def proposal(
    design: CpuDesign, knobs: Knobs, objective: Objective, kernel: Estimate | None = None
) -> CpuProposal | None:
    """None where the schedule does not fit; ``kernel`` where the estimate of the contraction alone
    is known."""
    space, moves = design.space, 0.0
    try:
        alone = kernel or space.estimate(knobs)
        whole = alone
        if design.moves:
            whole, moves = whole_call(design.candidate.program, space, knobs)
    except LoweringError:
        return None
    if objective == "kernel":
        return CpuProposal(design, knobs, alone, moves, alone.us)
    return CpuProposal(design, knobs, whole, moves, whole.us + moves)


def distinct(designs: Iterable[CpuDesign]) -> list[CpuDesign]:
    """One of those whose kernels are the same code and whose moves copy as much: fused axes of one
    step, digits named otherwise."""
    found: dict[object, CpuDesign] = {}
    for design in designs:
        found.setdefault(_form(design), design)
    return list(found.values())


def _form(design: CpuDesign) -> object:
    nest = apply_knobs(design.space.nest, design.space.model, Knobs())
    tasks = [task for task in nest.tasks if task.extent > 1]
    names = {loop.name: f"task {n}" for n, loop in enumerate(tasks)}
    names |= {loop.name: f"step {n}" for n, loop in enumerate(nest.reductions)}
    names |= {loop.name: loop.name for loop in nest.inner}
    unit = {task.name for task in nest.tasks} - set(names)
    accesses = [
        frozenset(
            repr(replace(term, iterator=names[term.iterator]) if term.iterator in names else term)
            for term in operand.access.terms
            if not set(term.iterators) & unit
        )
        for operand in nest.operands
    ]
    return (
        tuple((task.extent, task.unit) for task in tasks),
        tuple(loop.extent for loop in nest.reductions),
        nest.inner,
        tuple(accesses),
        tuple((o.name, o.elements) for o in moved(design.candidate.program)),
    )


def neighbour(
    parent: CpuProposal, designs: Sequence[CpuDesign], objective: Objective, random: Random
) -> CpuProposal | None:
    """A schedule that differs in one thing or a few; None where it does not fit."""
    design, knobs = parent.design, parent.knobs
    while True:
        change = random.choice(_CHANGES)
        if change == "embedding":
            other = random.choice(designs)
            knobs, design = transferred(knobs, design, other), other
        else:
            knobs = _changed(design, knobs, change, random)
        if random.random() >= _ANOTHER:
            break
    return proposal(design, canonical(design, knobs), objective)


def transferred(knobs: Knobs, source: CpuDesign, target: CpuDesign) -> Knobs:
    """The same schedule on another embedding: loops correspond by their kind and place."""
    names = {
        mine.origin: yours
        for ours, theirs in zip(source.loops, target.loops, strict=True)
        for mine, yours in zip(ours, theirs, strict=False)
    }

    def of_target(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
        found = ((names[name], size) for name, size in sizes if name in names)
        return {loop.origin: min(size, loop.steps) for loop, size in found}

    return Knobs(
        of_target(knobs.blocks.items()),
        knobs.columns_outermost,
        of_target(knobs.panels.items()),
        knobs.streams,
        knobs.parts,
    )


def canonical(design: CpuDesign, knobs: Knobs) -> Knobs:
    """The same kernel by one name: blocks of one point, and panels of a whole loop, are none; with
    loops of one kind only there is no order."""
    rows, columns = design.loops
    extents = {loop.origin: loop.steps for loop in (*rows, *columns)}
    blocks = {name: knobs.blocks[name] for name in extents if knobs.blocks.get(name, 1) > 1}
    panels = {
        name: size
        for name in extents
        if blocks.get(name, 1) <= (size := knobs.panels.get(name, extents[name])) < extents[name]
    }
    nest, model = design.space.nest, design.space.model
    sides = (model.rows(nest), model.columns(nest))
    walked = [any(loop.blocks_of(1) > 1 for loop in loops) for loops in sides]
    ordered = knobs.columns_outermost or not all(walked)
    streams = knobs.streams and design.space.model.streams
    return Knobs(blocks, ordered, panels, streams, knobs.parts)


def _changed(design: CpuDesign, knobs: Knobs, change: str, random: Random) -> Knobs:
    if change == "order":
        return replace(knobs, columns_outermost=not knobs.columns_outermost)
    if change == "stream":
        return replace(knobs, streams=not knobs.streams)
    loops = [loop for loops in design.loops for loop in loops]
    if not loops or (change == "panel" and not design.has_panels):
        return knobs
    loop = random.choice(loops)
    if change == "block":
        size = knobs.blocks.get(loop.origin, 1) + random.choice((-1, 1))
        size = max(1, min(loop.steps, size))
        return replace(knobs, blocks={**knobs.blocks, loop.origin: size})
    return replace(knobs, panels=_other_panels(knobs, loop, random))


def _other_panels(knobs: Knobs, loop: TaskLoop, random: Random) -> dict[str, int]:
    """A panel of the loop added, or one that is there removed, doubled or halved, in whole
    blocks."""
    block = knobs.blocks.get(loop.origin, 1)
    others = {name: size for name, size in knobs.panels.items() if name != loop.origin}
    size = knobs.panels.get(loop.origin)
    if size is None:
        wanted = loop.steps // random.choice((2, 4, 8))
    else:
        wanted = random.choice((size // 2, size * 2, loop.steps))
    if wanted >= loop.steps:
        return others
    return {**others, loop.origin: max(block, wanted - wanted % block)}
