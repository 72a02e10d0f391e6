"""Random small programs: embeddings of random problems with the programs derived from them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.search import search
from cpembed.transform.derive import derive
from cpembed.transform.program import DerivedProgram
from tests.unit.embedding.test_node_maps import make_problem


def random_programs(seeds: range, name: str = "in_place_padded") -> Iterator[DerivedProgram]:
    """One program per seed whose problem embeds, chosen among its embeddings at random."""
    constraints = load_constraint_set(name)
    for seed in seeds:
        problem: EmbeddingProblem = make_problem(seed)[0]
        if any(None in names for names in problem.index_names.values()):
            # A tile holds one element per combination of its axes; a sum of axes has none.
            continue
        found = search(problem, constraints, SearchLimits(solutions=200)).embeddings
        if found:
            embedding = random.Random(seed).choice(found)
            yield derive(problem.workload, problem.instruction, embedding)
