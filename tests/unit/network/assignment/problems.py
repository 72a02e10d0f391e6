"""Small assignment problems at random, and what they cost by the words of their definition."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from cpembed.network.assignment import ANY, Node, Option, Problem, Tensor


def priced(problem: Problem, options: Sequence[int]) -> float:
    """The cost of options: of all ways to fill in what may be any, the best."""
    best = math.inf
    loose = [
        name
        for node, k in zip(problem.nodes, options, strict=True)
        for port, name in enumerate(node.ports)
        if node.options[k].layouts[port] == ANY and port >= len(node.reads)
    ]
    for filling in itertools.product(*(range(len(problem.tensor_of[n].layouts)) for n in loose)):
        written = {t.name: t.input_layout for t in problem.tensors}
        paid: set[tuple[str, int, int]] = set()
        total = 0.0
        for node, k in zip(problem.nodes, options, strict=True):
            total += node.options[k].cost
            for port, name in enumerate(node.ports):
                layout = node.options[k].layouts[port]
                if port >= len(node.reads):
                    written[name] = layout
        written.update(zip(loose, filling, strict=True))
        for node, k in zip(problem.nodes, options, strict=True):
            for port, name in enumerate(node.reads):
                paid.add((name, written[name], node.options[k].layouts[port]))
        paid |= {(t.name, written[t.name], k) for t in problem.tensors for k in t.output_layouts}
        for name, source, target in paid:
            if target not in (ANY, source):
                total += problem.tensor_of[name].conversion.get((source, target), math.inf)
        best = min(best, total)
    return best


def brute_force(problem: Problem, kept: Sequence[Sequence[int]] | None = None) -> float:
    """The least cost, infinite where nothing is possible."""
    kept = kept or [range(len(node.options)) for node in problem.nodes]
    return min(priced(problem, options) for options in itertools.product(*kept))


@dataclass
class Draft:
    """A problem under construction."""

    rng: random.Random
    nodes: list[Node] = field(default_factory=list[Node])
    tensors: list[Tensor] = field(default_factory=list[Tensor])

    def tensor(self, input_layout: bool = False) -> str:
        rng, name = self.rng, f"t{len(self.tensors)}"
        count = rng.randint(1, 4)
        likely = rng.choice((0.6, 0.9, 1.0))
        conversion = {
            (a, b): rng.choice((0.0, 1.0, 2.0, 5.0, 4 * rng.random()))
            for a, b in itertools.permutations(range(count), 2)
            if rng.random() < likely
        }
        wanted = tuple(rng.sample(range(count), rng.randint(1, min(2, count))))
        self.tensors.append(
            Tensor(
                name,
                tuple("abcd"[:count]),
                conversion,
                rng.randrange(count) if input_layout else None,
                wanted if rng.random() < 0.25 else (),
            )
        )
        return name

    def node(self, reads: Sequence[str], writes: Sequence[str]) -> None:
        rng, known = self.rng, {tensor.name: len(tensor.layouts) for tensor in self.tensors}
        loose = rng.random() < 0.2
        options = tuple(
            Option(
                f"o{k}",
                tuple(rng.randrange(-1 if loose else 0, known[name]) for name in (*reads, *writes)),
                rng.choice((float(rng.randint(0, 6)), 6 * rng.random())),
            )
            for k in range(rng.randint(1, 4))
        )
        name = f"n{len(self.nodes)}"
        self.nodes.append(Node(name, tuple(reads), tuple(writes), options))


def random_problem(seed: int) -> Problem:
    """A few nodes; tensors are read several times, by one node too, or not at all."""
    rng = random.Random(seed)
    draft = Draft(rng)
    there = [draft.tensor(input_layout=True) for _ in range(rng.randint(1, 2))]
    for number in range(rng.randint(1, 6)):
        reads = [rng.choice(there) for _ in range(rng.randint(0 if number else 1, 3))]
        writes = [draft.tensor() for _ in range(rng.choice((1, 1, 1, 2)))]
        draft.node(reads, writes)
        there += writes
    return Problem(tuple(draft.nodes), tuple(draft.tensors))
