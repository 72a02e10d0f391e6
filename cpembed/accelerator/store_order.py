"""Order of stores: behind the loads of the next tile, on units that do both.

A unit executes its instructions in the order of the text. Were the stores of a tile ahead of the
loads of the next one, these would wait until the tile is computed. So a store is executed one
iteration of the tile loops later, between the loads and the computation, and the last one after the
loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.accelerator.boxes import TileLoop
from cpembed.accelerator.program import Address, Content, Issue, Loop, Meaning, Node
from cpembed.accelerator.transfers import Names
from cpembed.hw.isa import InstructionSet
from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class LateStore:
    """Stores of a tile that are executed with the next tile.

    Attributes
    ----------
    nodes : tuple of Node
        The stores, in an iteration of the tile loops.
    unit : str
        Name of their unit.
    is_overwritten : bool
        True if the computation of the next tile writes over what they store.
    """

    nodes: tuple[Node, ...]
    unit: str
    is_overwritten: bool


def units_of(nodes: Sequence[Node], machine: InstructionSet) -> set[str]:
    """Return the units of all instructions of some nodes."""
    units = set[str]()
    for node in nodes:
        if isinstance(node, Loop):
            units |= units_of(node.body, machine)
        else:
            units.add(machine.instructions[node.instruction].unit)
    return units


def of_tile_before(
    nodes: Sequence[Node], loops: Sequence[TileLoop], names: Names
) -> tuple[Node, ...]:
    """Return the nodes of the iteration before the present one, none in the first iteration.

    One alternative for each loop, which is the innermost one that has gone on since that iteration.

    Parameters
    ----------
    nodes : sequence of Node
        Nodes of an iteration of the loops.
    loops : sequence of TileLoop
        The loops around them, outermost first.
    names : Names
        Names of the loops of the program, of which each alternative needs new ones.
    """
    moving = [loop for loop in loops if loop.extent > 1]
    alternatives: list[Node] = []
    for place, loop in enumerate(moving):
        inner = moving[place + 1 :]
        before = {loop.name: IndexExpr((IndexTerm(loop.name),), -1)}
        before |= {x.name: IndexExpr((), x.extent - 1) for x in inner}
        guards = [IndexExpr((IndexTerm(loop.name),), -1)]
        if inner:
            guards.append(IndexExpr.sum([IndexTerm(x.name, -1) for x in inner]))
        alternatives += _substituted(nodes, before, tuple(guards), names)
    return tuple(alternatives)


def of_last_tile(
    nodes: Sequence[Node], loops: Sequence[TileLoop], names: Names
) -> tuple[Node, ...]:
    """Return the nodes of the last iteration of loops, as they are after them.

    Parameters
    ----------
    nodes : sequence of Node
        Nodes of an iteration of the loops.
    loops : sequence of TileLoop
        The loops around them.
    names : Names
        Names of the loops of the program.
    """
    last = {loop.name: IndexExpr((), loop.extent - 1) for loop in loops}
    return tuple(_substituted(nodes, last, (), names))


def behind_loads(
    body: Sequence[Node], stores: Sequence[Node], unit: str, machine: InstructionSet
) -> tuple[Node, ...]:
    """Return a body with stores behind the loads in it that the unit of the stores executes.

    Where the loads are in loops, the stores are executed in the middle one of their iterations: by
    then the tile before is likely to be complete, and later loads have to wait for buffers anyway.

    Parameters
    ----------
    body : sequence of Node
        The computation of a tile, with the loads inside of its loops.
    stores : sequence of Node
        Stores of the tile before.
    unit : str
        Name of their unit.
    machine : InstructionSet
    """
    loads = [n for n, node in enumerate(body) if units_of([node], machine) == {unit}]
    if loads:
        place = loads[-1] + 1
        return (*body[:place], *stores, *body[place:])
    for place, node in enumerate(body):
        if isinstance(node, Loop) and unit in units_of([node], machine):
            inner = behind_loads(node.body, _in_the_middle(stores, node), unit, machine)
            return (*body[:place], replace(node, body=inner), *body[place + 1 :])
    return (*stores, *body)


def _in_the_middle(stores: Sequence[Node], loop: Loop) -> list[Node]:
    """Return nodes that are executed in the middle iteration of a loop only."""
    if loop.extent == 1:
        return list(stores)
    index, middle = IndexExpr((IndexTerm(loop.name),)), loop.extent // 2
    return [_guarded(node, (index + -middle, index.times(-1) + middle)) for node in stores]


def _guarded(node: Node, guards: tuple[IndexExpr, ...]) -> Node:
    """Return a node whose instructions are executed where no guard is negative."""
    if isinstance(node, Loop):
        return replace(node, body=tuple(_guarded(inner, guards) for inner in node.body))
    return replace(node, guards=(*node.guards, *guards))


def _substituted(
    nodes: Sequence[Node],
    values: Mapping[str, IndexExpr],
    guards: tuple[IndexExpr, ...],
    names: Names,
) -> Iterator[Node]:
    """Yield nodes with values for the loops around them, guards, and new names of their loops."""
    for node in nodes:
        if isinstance(node, Loop):
            name = names.new("t")
            inner = {**values, node.name: IndexExpr((IndexTerm(name),))}
            body = tuple(_substituted(node.body, inner, guards, names))
            if body:
                yield Loop(name, node.extent, body)
            continue
        decided = [e.substitute(values) for e in node.guards]
        if all(e.terms or e.constant >= 0 for e in decided):
            open_guards = (e for e in decided if e.terms)
            yield replace(_issue(node, values), guards=(*open_guards, *guards))


def _issue(issue: Issue, values: Mapping[str, IndexExpr]) -> Issue:
    """Return an instruction with values for loops, except for its guards."""

    def at(e: IndexExpr) -> IndexExpr:
        return e.substitute(values)

    def address(a: Address) -> Address:
        return replace(a, base=at(a.base), lane=at(a.lane))

    meaning = issue.meaning
    if meaning is not None:
        meaning = Meaning(meaning.statement, {n: at(e) for n, e in meaning.points.items()})
    return replace(
        issue,
        operands={name: address(a) for name, a in issue.operands.items()},
        sizes={name: tuple(at(e) for e in size) for name, size in issue.sizes.items()},
        contents={
            name: Content(c.tensor, tuple(at(e) for e in c.index))
            for name, c in issue.contents.items()
        },
        meaning=meaning,
    )
