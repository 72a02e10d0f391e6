"""Combinations of matches, one for each statement of a program, the cheapest first."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cpembed.accelerator.matching import Match, Matching
from cpembed.accelerator.moves import MoveKind, move_chains
from cpembed.accelerator.operand_rows import OperandRows
from cpembed.accelerator.problem import OperatorProblem, PlanningError, Step
from cpembed.accelerator.specification import Specification
from cpembed.hw.isa import InstructionSet, MemoryKind

_MOST_STATES = 2000
"""Maximum number of partial combinations that are extended."""

_Place = tuple[str, str]
"""Tensor, and memory in which an instruction finds it."""


@dataclass(frozen=True)
class _Choice:
    """A match, with the dimensions in lanes of each of its tensors, outermost first.

    ``sums`` has the memory in which it writes a tensor that several statements write: one buffer
    is stored in the end.
    """

    match: Match
    cost: float
    lanes: Mapping[_Place, tuple[int, ...]]
    sums: Mapping[str, str]

    def agrees(self, earlier: Sequence[_Choice]) -> bool:
        """True if tensors are where earlier choices have them."""
        return all(
            choice.lanes.get(place, dimensions) == dimensions
            for choice in earlier
            for place, dimensions in self.lanes.items()
        ) and all(
            choice.sums.get(tensor, memory) == memory
            for choice in earlier
            for tensor, memory in self.sums.items()
        )


class Combinations:
    """Combinations of matches of consecutive statements.

    Matches that need a tensor with different dimensions in the lanes of a memory's rows are not
    combined. A combination costs the cycles of its matches, and those of inputs and outputs whose
    neighbours in main memory are not those of a row: without a move that transposes, they are
    copied one by one.

    Parameters
    ----------
    specification : Specification
    matchings : sequence of Matching
        Matches of its statements.
    machine : InstructionSet
    keeps_order : bool
        True if tensors but constants have their dimensions in their own order in main memory.
    """

    def __init__(
        self,
        specification: Specification,
        matchings: Sequence[Matching],
        machine: InstructionSet,
        keeps_order: bool,
    ) -> None:
        self.machine = machine
        self.problem = OperatorProblem(specification, (), keeps_order=keeps_order)
        written = Counter(s.output.tensor for s in specification.statements)
        self.combined = {tensor for tensor, count in written.items() if count > 1}
        self.choices = [self._choices(matching) for matching in matchings]
        self.largest = max(
            range(len(matchings)), key=lambda n: matchings[n].statement.computation.macs
        )

    def __iter__(self) -> Iterator[Iterator[tuple[Match, ...]]]:
        """Yield, for each match of the largest statement, its combinations, the cheapest first."""
        for choice in self.choices[self.largest]:
            choices = [*self.choices]
            choices[self.largest] = [choice]
            yield _cheapest(choices)

    def _choices(self, matching: Matching) -> list[_Choice]:
        choices = [choice for match in matching.matches for choice in self._choice(match)]
        by_lanes: dict[tuple[tuple[_Place, tuple[int, ...]], ...], list[_Choice]] = {}
        for choice in choices:
            by_lanes.setdefault(tuple(sorted(choice.lanes.items())), []).append(choice)
        alike = map(self._worth_planning, by_lanes.values())
        return sorted(itertools.chain.from_iterable(alike), key=lambda choice: choice.cost)

    def _worth_planning(self, choices: Sequence[_Choice]) -> list[_Choice]:
        """Leave out matches without rows for their windows that cost more than one with rows.

        A cheaper one is planned with fewer digits, which may still be the best.
        """
        with_rows = [choice for choice in choices if self._has_rows(choice.match)]
        least = min((choice.cost for choice in with_rows), default=math.inf)
        return [choice for choice in choices if choice.cost < least or choice in with_rows]

    def _has_rows(self, match: Match) -> bool:
        """True if the rows of an instruction's operands have the windows of a match."""
        step = Step.of_match(match.statement, match)
        try:
            for operand in self._in_rows(match):
                list(OperandRows(step, operand).row_distances())
        except PlanningError:
            return False
        return True

    def _in_rows(self, match: Match) -> Iterator[str]:
        """Yield the operands with dimensions that lie in rows."""
        for operand, place in match.instruction.places.items():
            memory = self.machine.memories.get(place.memory)
            if place.dimensions and memory is not None and memory.kind is MemoryKind.ROWS:
                yield operand

    def _choice(self, match: Match) -> Iterator[_Choice]:
        """Yield a match as a choice, unless it contradicts itself."""
        step = Step.of_match(match.statement, match)
        lanes: dict[_Place, tuple[int, ...]] = {}
        cost = match.cycles
        for operand in self._in_rows(match):
            memory = match.instruction.places[operand].memory
            try:
                dimensions = tuple(d for d, _ in OperandRows(step, operand).lane_blocks())
            except PlanningError:
                if all(len(digits) < 2 for digits in match.axes.values()):
                    return
                # A variant with other digits may have them.
                continue
            if lanes.setdefault((step.tensor(operand), memory), dimensions) != dimensions:
                return
            cost += self._transposition(step, operand, dimensions)
        output = match.statement.output.tensor
        memory = match.instruction.places[match.instruction.outputs[0]].memory
        yield _Choice(match, cost, lanes, {output: memory} if output in self.combined else {})

    def _transposition(self, step: Step, operand: str, lanes: tuple[int, ...]) -> float:
        """Return the cycles of moving an operand whose neighbours lie elsewhere in main memory."""
        specification, tensor = self.problem.specification, step.tensor(operand)
        is_input, is_output = (
            tensor in names for names in (specification.inputs, specification.outputs)
        )
        shape = specification.operands[tensor].shape
        if not self.problem.keeps_order or not (is_input or is_output) or not lanes:
            return 0.0
        if lanes[-1] == len(shape) - 1 or shape[lanes[-1]] == 1 or shape[-1] == 1:
            return 0.0
        place, main = step.instruction.places[operand], self.machine.main.name
        ends = (main, place.memory) if is_input else (place.memory, main)
        chains = move_chains(self.machine, *ends, place.dtype, MoveKind.TRANSPOSE)
        return math.prod(shape) * (chains[0].cycles_per_element if chains else 1.0)


def _cheapest(choices: Sequence[Sequence[_Choice]]) -> Iterator[tuple[Match, ...]]:
    """Yield one match of each choice such that all agree on lanes, the cheapest first."""
    least = [min((c.cost for c in options), default=math.inf) for options in choices]
    rest = [*itertools.accumulate(reversed([*least, 0.0]))][::-1]
    # A partial combination costs at least what it has and the least of what is missing. Of equal
    # costs, the positions among the choices decide.
    queue: list[tuple[float, tuple[int, ...]]] = [(rest[0], ())]
    states = 0
    while queue and states < _MOST_STATES:
        bound, positions = heapq.heappop(queue)
        combination = [options[n] for n, options in zip(positions, choices, strict=False)]
        if len(combination) == len(choices):
            yield tuple(choice.match for choice in combination)
            continue
        states += 1
        depth = len(combination)
        for number, choice in enumerate(choices[depth]):
            if choice.agrees(combination):
                total = bound - least[depth] + choice.cost
                heapq.heappush(queue, (total, (*positions, number)))
