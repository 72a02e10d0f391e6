"""Mutants of correct derivations: the proof rejects each one that changes the result."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from cpembed.errors import CpembedError
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.interpreter import interpret
from cpembed.ir.reference import random_inputs
from cpembed.transform.program import DerivedProgram, PackedDimension
from cpembed.transform.proof import prove
from tests.executed import execute
from tests.programs import random_programs


def mutate_index(index: IndexExpr, rng: random.Random) -> IndexExpr:
    if not index.terms or rng.random() < 0.3:
        return index + rng.choice([-1, 1])
    position = rng.randrange(len(index.terms))
    term = index.terms[position]
    changed = rng.choice(
        [
            replace(term, coefficient=term.coefficient + 1),
            replace(term, coefficient=-term.coefficient),
            replace(term, divisor=term.divisor + 1),
            replace(term, modulus=2 if term.modulus != 2 else 3),
            None,
        ]
    )
    terms: list[IndexTerm] = list(index.terms)
    terms[position : position + 1] = [] if changed is None else [changed]
    return IndexExpr.sum(terms, index.constant)


def mutate(program: DerivedProgram, rng: random.Random) -> DerivedProgram:
    """One random fault in the loops, the axis map, a layout, its source or its access."""
    kind = rng.choice(["loop", "axis", "source", "access", "shape"])
    if kind == "loop":
        loops = list(program.loops)
        position = rng.randrange(len(loops))
        extent = max(1, loops[position].extent + rng.choice([-1, 1]))
        loops[position] = replace(loops[position], extent=extent)
        return replace(program, loops=tuple(loops))
    if kind == "axis":
        axis = rng.choice(sorted(program.axis_map))
        changed = {**program.axis_map, axis: mutate_index(program.axis_map[axis], rng)}
        return replace(program, axis_map=changed)
    operands = list(program.operands)
    position = rng.randrange(len(operands))
    operand = operands[position]
    if not operand.dimensions:
        return program
    if kind == "shape":
        dimensions = list(operand.dimensions)
        at = rng.randrange(len(dimensions))
        old = dimensions[at]
        dimensions[at] = PackedDimension(old.name, max(1, old.extent - 1), old.lane)
        operands[position] = replace(operand, dimensions=tuple(dimensions))
    else:
        indices = list(getattr(operand, kind))
        at = rng.randrange(len(indices))
        indices[at] = mutate_index(indices[at], rng)
        operands[position] = replace(operand, **{kind: tuple(indices)})
    return replace(program, operands=tuple(operands))


def computes_workload(program: DerivedProgram, seed: int) -> bool:
    inputs = random_inputs(program.workload, seed)
    try:
        found = execute(program, inputs)
    except (CpembedError, IndexError, ValueError):
        return False
    return np.array_equal(found, interpret(program.workload, inputs))


def accepted_mutants(seeds: range, each: int) -> tuple[int, int]:
    """(mutants, accepted ones); every accepted mutant must compute the workload."""
    mutants = accepted = 0
    for number, program in enumerate(random_programs(seeds)):
        rng = random.Random(number)
        for _ in range(each):
            mutant = mutate(program, rng)
            if mutant == program:
                continue
            mutants += 1
            if prove(mutant).holds:
                accepted += 1
                assert computes_workload(mutant, number), mutant
    return mutants, accepted


def test_wrong_programs_are_rejected() -> None:
    mutants, accepted = accepted_mutants(range(60), 6)
    assert mutants > 150
    # What is accepted differs in writing only (a coefficient of an iterator that stays 0).
    assert accepted < mutants / 3


@pytest.mark.slow
def test_a_thousand_wrong_programs_are_rejected() -> None:
    mutants, _ = accepted_mutants(range(60, 300), 10)
    assert mutants > 1000
