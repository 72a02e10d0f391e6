"""Rows on chip in which a tensor may stay from the program that writes it to those that read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cpembed.accelerator.addressing import InMain, InRows
from cpembed.accelerator.boxes import Box
from cpembed.accelerator.layouts import row_layouts
from cpembed.accelerator.lowering import check_addresses
from cpembed.accelerator.problem import PlanningError
from cpembed.accelerator.program import MainTensor, Node
from cpembed.accelerator.registers import with_configuration
from cpembed.accelerator.reshaped import fine_dimensions, fine_shape, layout_in
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

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor in the plan's specification."""
        return self.template.problem.specification.operands[self.name].shape

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
        Layout from row 0 on, in the writer's dimensions.
    readers : tuple of int
        Numbers of the readers that can read it there.
    margins : tuple of Box
        Boxes around the tensor that readers need to hold ``fill``.
    reshaped : mapping of int to InRows
        The same rows in the dimensions of readers that have the tensor in another shape.
    """

    place: InRows
    readers: tuple[int, ...]
    margins: tuple[Box, ...]
    fill: int | float
    reshaped: Mapping[int, InRows] = field(default_factory=dict[int, InRows])

    @property
    def memory(self) -> str:
        return self.place.layout.memory

    @property
    def rows(self) -> int:
        return self.place.layout.count

    def moved(self, base: int, reader: int | None = None) -> InRows:
        """Return the place from another first row on, in the dimensions of a reader."""
        place = self.place if reader is None else self.reshaped.get(reader, self.place)
        return replace(place, layout=place.layout.moved(base))


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
    alike = {number: use for number, use in uses.items() if use.shape == writer.shape}
    for memory in dict.fromkeys(filter(None, memories)):
        # Rows that suit readers in other shapes too may suit nobody.
        for suited in (uses, alike) if len(alike) < len(uses) else (uses,):
            home = _home_in(memory, writer, suited, layout)
            if home is not None:
                return home
    return None


def _home_in(
    memory: str, writer: TensorUse, readers: Mapping[int, TensorUse], layout: MainTensor
) -> CandidateHome | None:
    machine = writer.template.machine
    suited = _Needs.of_uses(memory, {_WRITER: writer, **readers})
    if suited is None or len(suited.uses) < 2:
        return None
    shape = suited.shape
    before, after = suited.reach(suited.uses)
    sizes = [b + n + a for b, n, a in zip(before, shape, after, strict=True)]
    starts = tuple(IndexExpr((), -b) for b in before)
    rows = machine.memories[memory].rows
    read_before, read_after = suited.reach({n: u for n, u in suited.uses.items() if n != _WRITER})
    margins = _margins(shape, read_before, read_after)
    for rows_layout in row_layouts(memory, sizes, suited.lanes, suited.steps)[:_LAYOUTS]:
        if rows_layout.count > rows:
            return None
        places = suited.places(InRows(rows_layout, starts))
        accepting = tuple(
            number
            for number, place in places.items()
            # Beyond the rows of the memory, so that no buffer of the program has the same rows.
            if suited.uses[number].accepts(replace(place, layout=place.layout.moved(rows)))
        )
        if accepting[:1] == (_WRITER,) and len(accepting) > 1:
            place = places.pop(_WRITER)
            reshaped = {n: p for n, p in places.items() if p != place}
            home = CandidateHome(place, accepting[1:], margins, layout.fill, reshaped)
            try:
                margin_nodes(home, "", layout.dtype, machine)
            except PlanningError:
                return None
            return home
    return None


_WRITER = -1
"""Number of the writer among the users of a tensor."""


@dataclass(frozen=True)
class _Needs:
    """Lanes and distances of rows in which the users of a tensor need it, in one shape.

    Attributes
    ----------
    uses : mapping of int to TensorUse
        Users that agree on them, the writer first.
    shape : tuple of int
        Shape whose dimensions are those of all users or parts of them.
    """

    uses: Mapping[int, TensorUse]
    shape: tuple[int, ...]
    lanes: tuple[tuple[int, int], ...]
    steps: Mapping[int, int]

    @classmethod
    def of_uses(cls, memory: str, uses: Mapping[int, TensorUse]) -> _Needs | None:
        """Return what the writer and those readers need that agree with it; None if none does."""
        shape: tuple[int, ...] | None = uses[_WRITER].shape
        readers = {number: use for number, use in uses.items() if number != _WRITER}
        if any(use.shape != shape for use in readers.values()):
            shape = fine_shape([use.shape for use in uses.values()])
        if shape is None:
            same = {n: use for n, use in uses.items() if use.shape == uses[_WRITER].shape}
            return cls.of_uses(memory, same)
        lanes: tuple[tuple[int, int], ...] | None = None
        steps: dict[int, int] = {}
        suited: dict[int, TensorUse] = {}
        for number, use in uses.items():
            spec = _user(use, memory)
            if spec is not None:
                needed = _in_shape(spec, use.shape, shape)
                if needed is None:
                    continue
                its_lanes, its_steps = needed
                if lanes is None:
                    lanes = its_lanes
                elif [d for d, _ in lanes] != [d for d, _ in its_lanes]:
                    continue
                if any(steps.get(d, distance) != distance for d, distance in its_steps.items()):
                    continue
                pairs = zip(lanes, its_lanes, strict=True)
                lanes = tuple((d, max(a, b)) for (d, a), (_, b) in pairs)
                steps |= its_steps
            suited[number] = use
        if lanes is None or _WRITER not in suited:
            return None
        return cls(suited, shape, lanes, steps)

    def reach(self, uses: Mapping[int, TensorUse]) -> tuple[list[int], list[int]]:
        """Return by how much executions of users reach beyond the tensor, before and after it."""
        none = [0] * len(self.shape)
        reached = [use.reach(self.shape) for use in uses.values() if use.shape == self.shape]
        # Users that have it in another shape do not reach beyond it.
        before = [max(n) for n in zip(none, *(r[0] for r in reached), strict=True)]
        after = [max(n) for n in zip(none, *(r[1] for r in reached), strict=True)]
        return before, after

    def places(self, place: InRows) -> dict[int, InRows]:
        """Return a place in the dimensions of each user that can have it there."""
        places: dict[int, InRows] = {}
        for number, use in self.uses.items():
            if use.shape == self.shape:
                places[number] = place
                continue
            layout = layout_in(place.layout, use.shape, self.shape)
            is_inside = not any(map(any, use.reach(use.shape)))
            if layout is not None and is_inside and not any(s.constant for s in place.starts):
                places[number] = InRows(layout, (IndexExpr(),) * len(use.shape))
        return places


def _in_shape(
    spec: BufferSpec, shape: tuple[int, ...], fine: tuple[int, ...]
) -> tuple[tuple[tuple[int, int], ...], dict[int, int]] | None:
    """Return the lanes and steps that a buffer needs in the dimensions of the fine shape."""
    if shape == fine:
        return spec.lanes, dict(spec.steps)
    innermost: dict[int, int] = {}
    for number, part in enumerate(fine_dimensions(shape, fine)):
        innermost[part.dimension] = number
    lanes: list[tuple[int, int]] = []
    for dimension, block in spec.lanes:
        number = innermost.get(dimension)
        if number is None or (fine[number] < block and fine[number] != shape[dimension]):
            return None
        lanes.append((number, block))
    if any(innermost.get(d) is None or fine[innermost[d]] != shape[d] for d in spec.steps):
        return None
    return tuple(lanes), {innermost[d]: distance for d, distance in spec.steps.items()}


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
