"""Waits and signals between units of machines that are synchronized by channels.

Two units of which one works on what the other provides, such as loads and products, take turns in
rounds: the iterations of the innermost loop around work of both. The second unit waits in each
round for the last instruction of the first one, and the first unit, before it overwrites what the
second one reads, for the end of the round before, or of the one before that if buffers have two
copies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from cpembed.accelerator.problem import PlanningError
from cpembed.accelerator.program import Issue, Loop, Node, issues_of, units_of
from cpembed.hw.isa import InstructionSet
from cpembed.ir.index import IndexExpr, IndexTerm

Guards = tuple[IndexExpr, ...]
_Extreme = Callable[[Sequence[Loop]], IndexExpr | None]


def with_signals(
    body: Sequence[Node], machine: InstructionSet, copies: Mapping[str, int]
) -> tuple[Node, ...]:
    """Add waits and signals to a program of which no loop has iterations without instructions.

    Parameters
    ----------
    body : sequence of Node
    machine : InstructionSet
    copies : mapping of str to int
        For each unit, the least number of copies of the buffers that it writes again and again.

    Raises
    ------
    PlanningError
        If two units that take turns have no channels in both directions.
    """
    names = {(c.sender, c.receiver): c.name for c in machine.channels}
    nodes = tuple(body)
    _check_units(nodes, machine)
    for first, second in _pairs(nodes, machine):
        forward, back = names.get((first, second)), names.get((second, first))
        if forward is None or back is None:
            if (first, second) in names or (second, first) in names:
                raise PlanningError(
                    f"rejected: {machine.name} has no channels in both directions between {first} "
                    f"and {second}, which take turns: describe them"
                )
            continue
        turn = _Turns(machine, first, second, forward, back, copies.get(first, 1))
        nodes, _ = turn.placed(nodes, ())
    return nodes


def _check_units(nodes: Sequence[Node], machine: InstructionSet) -> None:
    """Check that units that share a memory have channels between them."""
    joined = {(c.sender, c.receiver) for c in machine.channels}
    touched = {unit: _touched_by(nodes, machine, unit) for unit in machine.units}
    for first, second in itertools.combinations(machine.units, 2):
        shared = sorted(_shared(touched[first], touched[second]))
        if shared and not {(first, second), (second, first)} <= joined:
            raise PlanningError(
                f"rejected: {first} and {second} share {', '.join(shared)}, and {machine.name} has "
                "no channels in both directions between them: use instructions of other units"
            )


def _touched_by(
    nodes: Sequence[Node], machine: InstructionSet, unit: str
) -> tuple[set[str], set[str]]:
    """Return the memories of rows that a unit writes, and those that it reads."""
    return (
        _touched(nodes, machine, unit, "written"),
        _touched(nodes, machine, unit, "read"),
    )


def _shared(first: tuple[set[str], set[str]], second: tuple[set[str], set[str]]) -> set[str]:
    """Return the memories that two units touch and one of them writes."""
    (a_writes, a_reads), (b_writes, b_reads) = first, second
    return (a_writes & (b_writes | b_reads)) | (b_writes & a_reads)


def _touched(nodes: Sequence[Node], machine: InstructionSet, unit: str, direction: str) -> set[str]:
    """Return the memories of rows that a unit reads or writes."""
    names = {memory.name for memory in machine.row_memories()}
    touched = set[str]()
    for _, issue in issues_of(nodes):
        instruction = machine.instructions[issue.instruction]
        if instruction.unit == unit:
            operands = instruction.inputs if direction == "read" else instruction.outputs
            touched.update(instruction.places[o].memory for o in operands)
    return touched & names


def _pairs(nodes: Sequence[Node], machine: InstructionSet) -> list[tuple[str, str]]:
    """Return pairs of units with channels between them, the one that begins each round first."""
    pairs: list[tuple[str, str]] = []
    touched = {unit: _touched_by(nodes, machine, unit) for unit in machine.units}
    for joined in dict.fromkeys(frozenset((c.sender, c.receiver)) for c in machine.channels):
        order = _round_order(nodes, joined, machine)
        # Units that work on different memories need not wait for each other.
        if len(order) == 2 and _shared(touched[order[0]], touched[order[1]]):
            pairs.append((order[0], order[1]))
    return pairs


def _round_order(
    nodes: Sequence[Node], pair: frozenset[str], machine: InstructionSet
) -> tuple[str, ...]:
    """Return two units in the order in which they work in the innermost body that has both."""
    for node in nodes:
        if isinstance(node, Loop) and pair <= set(units_of(node, machine)):
            return _round_order(node.body, pair, machine)
    return tuple(dict.fromkeys(u for node in nodes for u in units_of(node, machine) if u in pair))


class _Turns:
    """Waits and signals of one pair of units."""

    def __init__(
        self,
        machine: InstructionSet,
        first: str,
        second: str,
        forward: str,
        back: str,
        copies: int,
    ) -> None:
        self.machine = machine
        self.first, self.second = first, second
        self.forward, self.back, self.copies = forward, back, copies
        # Units of the runs of a round, in their order.
        self.round_units: list[str] = []

    def placed(
        self, nodes: tuple[Node, ...], outer: tuple[Loop, ...]
    ) -> tuple[tuple[Node, ...], tuple[Loop, ...]]:
        """Return a body with the waits and signals of its rounds, and the loops over them in it."""
        is_mixed = self._has(self.first, self.second)
        mixed = [n for n, node in enumerate(nodes) if is_mixed(node)]
        if not mixed:
            both = {u for node in nodes for u in units_of(node, self.machine)}
            is_round = {self.first, self.second} <= both
            return (self._round(nodes, outer) if is_round else nodes), ()
        if len(mixed) > 1:
            raise PlanningError(
                f"rejected: {self.first} and {self.second} take turns in two loops one after the "
                "other, for which the planner has no waits: split the operator"
            )
        (at,) = mixed
        loop = nodes[at]
        assert isinstance(loop, Loop)
        before, after = nodes[:at], nodes[at + 1 :]
        self._check_outside(nodes, (*before, *after), after)
        inner, below = self.placed(loop.body, (*outer, loop))
        is_before = any(self.first in units_of(node, self.machine) for node in before)
        # A unit that ends a round has waited for the other one by then.
        if is_before and self.round_units[-1:] != [self.first]:
            if len(self.round_units) > 2:
                raise PlanningError(
                    f"rejected: {self.first} and {self.second} take turns several times in a "
                    f"round, and {self.first} works ahead of the rounds, for which the planner has "
                    "no waits: use instructions of one unit"
                )
            # What comes ahead of the rounds belongs to the first of them, and waits in its place.
            before = self._waiting(before, outer, (loop, *below))
            inner = self._not_first(inner, (loop, *below))
        return (*before, replace(loop, body=inner), *after), (loop, *below)

    def _check_outside(
        self, nodes: Sequence[Node], outside: Sequence[Node], after: Sequence[Node]
    ) -> None:
        """Check that what is outside of the rounds needs no waits of its own."""
        written = _touched(nodes, self.machine, self.first, "written")
        used = _touched(outside, self.machine, self.second, "read")
        shared = sorted(written & used)
        if shared or any(self.first in units_of(node, self.machine) for node in after):
            raise PlanningError(
                f"rejected: {self.first} and {self.second} share {', '.join(shared) or 'rows'} "
                "outside of the rounds in which they take turns, for which the planner has no "
                "waits: keep those tensors resident, or use an instruction of the other unit"
            )

    def _has(self, *units: str) -> Callable[[Node], bool]:
        """Return the test for nodes that have work of all of these units."""
        return lambda node: set(units) <= set(units_of(node, self.machine))

    def _round(self, nodes: tuple[Node, ...], outer: tuple[Loop, ...]) -> tuple[Node, ...]:
        runs = self._runs(nodes)
        self.round_units = [unit for unit, _ in runs]
        if len(runs) > 2:
            return self._long_round(nodes, runs, outer)
        nodes = self._waiting(nodes, outer, ())
        nodes = _changed(nodes, self._has(self.first), _last, signals=self.forward)
        nodes = _changed(nodes, self._has(self.second), _first, waits=self.forward)
        return _changed(nodes, self._has(self.second), _last, signals=self.back)

    def _runs(self, nodes: Sequence[Node]) -> list[tuple[str, list[int]]]:
        """Return each unit's nodes between those of the other one, in the order of a round."""
        runs: list[tuple[str, list[int]]] = []
        for n, node in enumerate(nodes):
            for unit in (self.first, self.second):
                if unit not in units_of(node, self.machine):
                    continue
                if not runs or runs[-1][0] != unit:
                    runs.append((unit, []))
                runs[-1][1].append(n)
        return runs

    def _long_round(
        self,
        nodes: tuple[Node, ...],
        runs: Sequence[tuple[str, list[int]]],
        outer: tuple[Loop, ...],
    ) -> tuple[Node, ...]:
        """Return a round in which units take turns more than once: each run waits for the last.

        Where one unit begins and ends a round, its own order keeps rounds apart.
        """
        body: list[tuple[Node, ...]] = [(node,) for node in nodes]
        channel = {self.first: self.forward, self.second: self.back}
        for (sender, sent), (receiver, received) in itertools.pairwise(runs):
            name = channel[sender]
            last, first = sent[-1], received[0]
            body[last] = _changed(body[last], self._has(sender), _last, signals=name)
            body[first] = _changed(body[first], self._has(receiver), _first, waits=name)
        result = tuple(n for part in body for n in part)
        if runs[0][0] == runs[-1][0]:
            return result
        result = _changed(result, self._has(self.second), _last, signals=self.back)
        return self._waiting(result, outer, (), copies=1)

    def _waiting(
        self,
        nodes: tuple[Node, ...],
        outer: tuple[Loop, ...],
        inner: tuple[Loop, ...],
        copies: int | None = None,
    ) -> tuple[Node, ...]:
        """Make the first unit wait, in all rounds but the first ones, for room in its buffers."""
        terms: list[IndexTerm] = []
        stride = math.prod(loop.extent for loop in inner)
        for loop in reversed(outer):
            terms.append(IndexTerm(loop.name, stride))
            stride *= loop.extent
        copies = copies or self.copies
        if not outer or stride <= copies:
            return nodes
        room = IndexExpr.sum(terms, -copies)
        return _changed(nodes, self._has(self.first), _first, waits=self.back, only=room)

    def _not_first(self, nodes: tuple[Node, ...], loops: tuple[Loop, ...]) -> tuple[Node, ...]:
        """Take the wait for room out of the first iteration of loops."""
        names = {loop.name for loop in loops}

        def change(node: Node, around: tuple[str, ...]) -> Iterator[Node]:
            if isinstance(node, Loop):
                inside = (*around, node.name) if node.name in names else around
                yield replace(node, body=tuple(n for b in node.body for n in change(b, inside)))
                return
            is_waiting = self.back in node.waits
            if not is_waiting or self.machine.instructions[node.instruction].unit != self.first:
                yield node
                return
            # What comes ahead of inner rounds waits outside of their loops.
            index = IndexExpr.sum([IndexTerm(name) for name in around])
            waits = tuple(w for w in node.waits if w != self.back)
            yield replace(node, guards=(*node.guards, index + -1))
            yield replace(node, guards=(*node.guards, index.times(-1)), waits=waits)

        return tuple(n for node in nodes for n in change(node, (loops[0].name,)))


def _changed(
    nodes: tuple[Node, ...],
    has_unit: Callable[[Node], bool],
    extreme: _Extreme,
    *,
    waits: str = "",
    signals: str = "",
    only: IndexExpr | None = None,
) -> tuple[Node, ...]:
    """Add a wait to the first, or a signal to the last execution of a unit in a body."""
    body: list[Node] = []
    places = [n for n, node in enumerate(nodes) if has_unit(node)]
    alternatives = _alternatives(nodes, places[0 if waits else -1])
    for n, node in enumerate(nodes):
        if n in alternatives:
            body += _marked(node, (), extreme, (waits, signals), only, has_unit)
        else:
            body.append(node)
    return tuple(body)


def _marked(
    node: Node,
    loops: tuple[Loop, ...],
    extreme: _Extreme,
    channel: tuple[str, str],
    only: IndexExpr | None,
    has_unit: Callable[[Node], bool],
) -> Iterator[Node]:
    if isinstance(node, Loop):
        places = [n for n, child in enumerate(node.body) if has_unit(child)]
        alternatives = _alternatives(node.body, places[0 if channel[0] else -1])
        body: list[Node] = []
        for n, child in enumerate(node.body):
            if n in alternatives:
                body += _marked(child, (*loops, node), extreme, channel, only, has_unit)
            else:
                body.append(child)
        yield replace(node, body=tuple(body))
        return
    waits, signals = channel
    marked = replace(
        node,
        waits=(*node.waits, waits) if waits else node.waits,
        signals=(*node.signals, signals) if signals else node.signals,
    )
    # The condition holds where both expressions are 0, which none of them exceeds.
    distance = extreme(loops)
    conditions = [] if distance is None else [distance]
    inside: Guards = tuple(conditions)
    if only is not None:
        yield replace(marked, guards=(*node.guards, *inside, only))
        yield replace(node, guards=(*node.guards, *inside, only.times(-1) + -1))
    else:
        yield replace(marked, guards=(*node.guards, *inside))
    if distance is not None:
        yield replace(node, guards=(*node.guards, distance.times(-1) + -1))


def _alternatives(nodes: Sequence[Node], place: int) -> set[int]:
    """Return the nodes of a body of which each iteration executes one, with that at a place."""
    node = nodes[place]
    if isinstance(node, Loop) or not node.guards:
        return {place}
    return {
        n
        for n, sibling in enumerate(nodes)
        if isinstance(sibling, Issue)
        and sibling.guards
        and sibling.meaning == node.meaning
        and sibling.operands == node.operands
    }


def _first(loops: Sequence[Loop]) -> IndexExpr | None:
    """Return an expression that is 0 in the first iteration of loops, and negative in others."""
    terms = [IndexTerm(loop.name, -1) for loop in loops if loop.extent > 1]
    return IndexExpr.sum(terms) if terms else None


def _last(loops: Sequence[Loop]) -> IndexExpr | None:
    """Return an expression that is 0 in the last iteration of loops, and negative in others."""
    repeated = [loop for loop in loops if loop.extent > 1]
    terms = [IndexTerm(loop.name) for loop in repeated]
    return IndexExpr.sum(terms, sum(1 - loop.extent for loop in repeated)) if terms else None
