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
from cpembed.accelerator.buffers import Buffer, Buffers
from cpembed.accelerator.program import Loop, Node, units_of
from cpembed.accelerator.transfers import Names, copy_instructions
from cpembed.hw.isa import InstructionSet, Synchronization
from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class LateStore:
    """Stores of a tile that are executed with the next tile.

    Attributes
    ----------
    nodes : tuple of Node
        The stores, in an iteration of the tile loops.
    is_overwritten : bool
        True if the computation of the next tile writes over what they store.
    """

    nodes: tuple[Node, ...]
    is_overwritten: bool


def late_store(buffers: Buffers, source: Buffer, nodes: Sequence[Node]) -> LateStore | None:
    """Return the stores of a buffer for the next tile; None if they have to be in their own.

    They are late where their unit loads as well, and the buffer has rows of its own until then.

    Parameters
    ----------
    buffers : Buffers
        All buffers of the program.
    source : Buffer
        The buffer with the results.
    nodes : sequence of Node
        Its stores, in an iteration of the tile loops.
    """
    template, depth = buffers.template, buffers.tiling.output_depth
    machine, is_single = template.machine, source.copies == 1
    if machine.synchronization is not Synchronization.INTERLOCKED or not nodes:
        return None
    if not depth or source.depth != depth or (is_single and template.problem.reuses_rows):
        return None
    loaded = {
        (b.spec.load[0], b.spec.memory)
        for b in buffers.table.values()
        if b.spec.load and b.depth and not b.spec.is_outgoing
    }
    loads = {c.instruction.unit for c in copy_instructions(machine) if c.memories in loaded}
    if loads.isdisjoint(units_of(nodes[-1], machine)):
        return None
    steps = template.steps
    first = min(n for n, o in source.spec.uses if o in steps[n].instruction.outputs)
    return LateStore(tuple(nodes), is_single and first <= template.main)


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
    body: Sequence[Node], delayed: Sequence[Node], machine: InstructionSet
) -> tuple[Node, ...]:
    """Return the computation of a tile with transfers that it does not wait for.

    They are behind the loads in it that the same unit executes. Where those are in loops, that is
    in the middle iteration: by then the tile before is likely to be complete, and further loads
    wait for rows in any case.

    Parameters
    ----------
    body : sequence of Node
        The computation.
    delayed : sequence of Node
        Loads of what is read after the computation, and stores of the tile before.
    machine : InstructionSet
    """
    for node in delayed:
        *_, unit = units_of(node, machine)
        body = _behind(body, node, unit, machine)
    return tuple(body)


def _behind(
    body: Sequence[Node], delayed: Node, unit: str, machine: InstructionSet
) -> tuple[Node, ...]:
    units = [set(units_of(node, machine)) for node in body]
    loads = [n for n, of_node in enumerate(units) if of_node == {unit}]
    if loads:
        place = loads[-1] + 1
        return (*body[:place], delayed, *body[place:])
    for place, node in enumerate(body):
        if isinstance(node, Loop) and unit in units[place]:
            inner = _behind(node.body, _in_the_middle(delayed, node), unit, machine)
            return (*body[:place], replace(node, body=inner), *body[place + 1 :])
    return (delayed, *body)


def _in_the_middle(delayed: Node, loop: Loop) -> Node:
    """Return a node that is executed in the middle iteration of a loop only."""
    index, middle = IndexExpr((IndexTerm(loop.name),)), loop.extent // 2
    guards = [index + -middle] if middle else []
    if middle < loop.extent - 1:
        guards.append(index.times(-1) + middle)
    return _guarded(delayed, tuple(guards))


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
            issue = node.mapped(lambda e: e.substitute(values))
            yield replace(issue, guards=(*open_guards, *guards))
