"""Rows on chip in which a tensor may stay from the program that writes it to those that read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.accelerator.addressing import InMain, InRows
from cpembed.accelerator.boxes import Box
from cpembed.accelerator.layouts import row_layouts
from cpembed.accelerator.lowering import check_addresses
from cpembed.accelerator.problem import PlanningError
from cpembed.accelerator.program import MainTensor, Node
from cpembed.accelerator.registers import with_configuration
from cpembed.accelerator.template import BufferSpec, Template, exact_template
from cpembed.accelerator.transfers import Names, Transfer, plan_copy
from cpembed.hw.isa import InstructionSet
from cpembed.ir.index import IndexExpr

_LAYOUTS = 3
"""Maximum number of layouts of a tensor that are tried in one memory."""


@dataclass(frozen=True)
class TensorUse:
    """Plan that reads or writes a tensor: its template, and the tensor's name in it."""

    template: Template
    name: str

    @property
    def spec(self) -> BufferSpec | None:
        """Buffer that is filled from main memory or stored there; None if there is none."""
        main = self.template.machine.main.name
        if any(self.template.steps[n].tensor(o) == self.name for n, o in self.template.direct):
            return None
        for spec in self.template.buffers:
            is_end = (*spec.load[:1], *spec.store[-1:]) == (main,)
            if spec.tensor == self.name and is_end:
                return spec
        return None

    @property
    def memory(self) -> str:
        """Memory in which instructions find the tensor."""
        specs = [b for b in self.template.buffers if b.tensor == self.name and b.uses]
        return specs[0].memory if len(specs) == 1 else ""

    def accepts(self, home: InRows) -> bool:
        """Return True if the plan's instructions can address the tensor in its home."""
        problem = self.template.problem
        try:
            problem = replace(problem, homes={self.name: home})
            check_addresses(exact_template(problem, self.template.machine))
        except PlanningError:
            return False
        return True

    def reach(self, size: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return by how much executions reach beyond a tensor along each dimension."""
        spec = self.spec
        assert spec is not None
        bounds = [e.bounds(self.template.extents) for e in spec.index]
        before = [max(0, -low) for low, _ in bounds]
        return before, [max(0, high - n + 1) for (_, high), n in zip(bounds, size, strict=True)]


@dataclass(frozen=True)
class CandidateHome:
    """Rows in which a tensor may stay.

    Attributes
    ----------
    place : InRows
        Layout from row 0 on.
    readers : tuple of int
        Numbers of the readers that can read it there.
    margins : tuple of Box
        Boxes around the tensor that readers need to hold ``fill``.
    """

    place: InRows
    readers: tuple[int, ...]
    margins: tuple[Box, ...]
    fill: int | float

    @property
    def memory(self) -> str:
        return self.place.layout.memory

    @property
    def rows(self) -> int:
        return self.place.layout.count

    def moved(self, base: int) -> InRows:
        """Return the place from another first row on."""
        return replace(self.place, layout=self.place.layout.moved(base))


def candidate_home(
    writer: TensorUse, readers: Mapping[int, TensorUse], layout: MainTensor
) -> CandidateHome | None:
    """Return rows that suit the program that writes a tensor and some that read it.

    Parameters
    ----------
    writer : TensorUse
    readers : mapping of int to TensorUse
        Programs that read it, by number.
    layout : MainTensor
        Its layout in main memory, with what margins hold.

    Returns
    -------
    CandidateHome or None
        None if there are none, or no reader can use them.
    """
    if writer.spec is None:
        return None
    uses = {number: use for number, use in readers.items() if use.spec is not None}
    memories = [writer.memory, *(use.memory for use in uses.values())]
    for memory in dict.fromkeys(filter(None, memories)):
        home = _home_in(memory, writer, uses, layout)
        if home is not None:
            return home
    return None


def _home_in(
    memory: str, writer: TensorUse, readers: Mapping[int, TensorUse], layout: MainTensor
) -> CandidateHome | None:
    machine = writer.template.machine
    lanes: tuple[tuple[int, int], ...] | None = None
    steps: dict[int, int] = {}
    suited: dict[int, TensorUse] = {}
    for number, use in {-1: writer, **readers}.items():
        spec = _user(use, memory)
        if spec is not None:
            if lanes is None:
                lanes = spec.lanes
            elif [d for d, _ in lanes] != [d for d, _ in spec.lanes]:
                continue
            if any(steps.get(d, distance) != distance for d, distance in spec.steps.items()):
                continue
            lanes = tuple((d, max(a, b)) for (d, a), (_, b) in zip(lanes, spec.lanes, strict=True))
            steps |= spec.steps
        suited[number] = use
    del suited[-1]
    if lanes is None or not suited:
        return None
    shape = layout.shape
    needed = [use.reach(shape) for use in suited.values()]
    reached = [*needed, writer.reach(shape)]
    before, after = ([max(n) for n in zip(*(r[k] for r in reached), strict=True)] for k in (0, 1))
    sizes = [b + n + a for b, n, a in zip(before, shape, after, strict=True)]
    starts = tuple(IndexExpr((), -b) for b in before)
    rows = machine.memories[memory].rows
    margins = _margins(
        shape,
        [max(n) for n in zip(*(r[0] for r in needed), strict=True)],
        [max(n) for n in zip(*(r[1] for r in needed), strict=True)],
    )
    for rows_layout in row_layouts(memory, sizes, lanes, steps)[:_LAYOUTS]:
        if rows_layout.count > rows:
            return None
        place = InRows(rows_layout, starts)
        # Beyond the rows of the memory, so that no buffer of the program has the same rows.
        beyond = replace(place, layout=rows_layout.moved(rows))
        if not writer.accepts(beyond):
            continue
        accepting = tuple(n for n, use in suited.items() if use.accepts(beyond))
        if accepting:
            home = CandidateHome(place, accepting, margins, layout.fill)
            try:
                margin_nodes(home, "", layout.dtype, machine)
            except PlanningError:
                return None
            return home
    return None


def _user(use: TensorUse, memory: str) -> BufferSpec | None:
    """Return the buffer of instructions that would use a home in a memory directly."""
    specs = [b for b in use.template.buffers if b.key == (use.name, memory) and b.uses]
    return specs[0] if specs else None


def _margins(shape: Sequence[int], before: Sequence[int], after: Sequence[int]) -> tuple[Box, ...]:
    """Return disjoint boxes that cover everything around a tensor."""
    boxes: list[Box] = []
    for dimension, size in enumerate(shape):
        for start, length in ((-before[dimension], before[dimension]), (size, after[dimension])):
            if not length:
                continue
            starts = [0] * dimension + [start]
            starts += [-b for b in before[dimension + 1 :]]
            sizes = [*shape[:dimension], length]
            sizes += [
                b + n + a
                for b, n, a in zip(
                    before[dimension + 1 :], shape[dimension + 1 :], after[dimension + 1 :],
                    strict=True,
                )
            ]  # fmt: skip
            boxes.append(_box(starts, sizes))
    return tuple(boxes)


def _box(starts: Sequence[int], sizes: Sequence[int]) -> Box:
    return Box(
        tuple(IndexExpr((), s) for s in starts),
        tuple((IndexExpr((), s),) for s in sizes),
        tuple(sizes),
    )


def margin_nodes(
    home: CandidateHome, tensor: str, dtype: str, machine: InstructionSet
) -> tuple[Node, ...]:
    """Return the instructions that fill the margins of a tensor in its home.

    Parameters
    ----------
    home : CandidateHome
    tensor, dtype : str
        Name and element type of the tensor.
    machine : InstructionSet

    Raises
    ------
    PlanningError
        If no instruction fills them.
    """
    names = Names()
    nodes: list[Node] = []
    for box in home.margins:
        transfer = Transfer(tensor, box, None, home.place, f"margins of {tensor}", home.fill)
        nodes += plan_copy(machine, transfer, ("", home.memory), dtype, {}).nodes(names)
    return with_configuration(nodes, machine)


def store_nodes(place: InRows, layout: MainTensor, machine: InstructionSet) -> tuple[Node, ...]:
    """Return the instructions that copy a tensor from its home to main memory.

    Parameters
    ----------
    place : InRows
        Where it is.
    layout : MainTensor
        Where it goes.
    machine : InstructionSet

    Raises
    ------
    PlanningError
        If no instruction copies it.
    """
    box = _box([0] * len(layout.shape), layout.shape)
    transfer = Transfer(layout.name, box, place, InMain(layout), f"store {layout.name}")
    memories = place.layout.memory, machine.main.name
    nodes = plan_copy(machine, transfer, memories, layout.dtype, {}).nodes(Names())
    return with_configuration(nodes, machine)


def subsets(names: Sequence[str], largest: int) -> Iterator[tuple[str, ...]]:
    """Yield the nonempty subsets of some names; of many, all of them and each by itself."""
    if len(names) > largest:
        yield tuple(names)
        yield from ((name,) for name in names)
        return
    for mask in range(1, 1 << len(names)):
        yield tuple(name for k, name in enumerate(names) if mask >> k & 1)
