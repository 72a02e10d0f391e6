"""The solver's embeddings equal those of an enumerator that is written from the definitions.

2,000 random problems of every kind that decides something, under the shipped sets and others.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.result import Formulation
from cpembed.embedding.search import find_embeddings
from cpembed.errors import SpecError, WorkloadError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.resources import constraint_files
from tests.brute_force import Key, TooLarge, embeddings, shipped_tables
from tests.enumeration.problems import KINDS, random_problem, random_tables
from tests.enumeration.rules import Tables

SETS = sorted(constraint_files())
BLOCK = 20
"""Problems of a test."""
MOST = 400
"""Embeddings of a problem: a set without an origin can have thousands."""


def key_of(embedding: Embedding) -> Key:
    """The embedding as the enumerator writes it."""
    axes = tuple(
        (
            embedding.extents[name],
            tuple((embedding.flattened.get(d.axis, (d.axis,)), d.count, d.stride) for d in digits),
        )
        for name, digits in embedding.digits.items()
    )
    origin = tuple(sorted((axis, at) for axis, at in embedding.origin.items() if at))
    return tuple(sorted(embedding.operands.items())), axes, origin


def written(tables: Mapping[str, Any], path: Path) -> ConstraintSet:
    """The set of a file with these tables."""
    lines: list[str] = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return load_constraint_set(str(path))


def solved(
    formulation: Formulation,
    workload: Computation,
    instruction: Instruction,
    constraints: ConstraintSet,
) -> set[Key] | None:
    """The embeddings that a search finds, None where its model cannot take the problem."""
    try:
        result = find_embeddings(workload, instruction, constraints, formulation=formulation)
    except SpecError:
        assert formulation is not Formulation.AUTO
        return None
    except WorkloadError:  # No order of the operands has the instruction's element types.
        return set()
    keys = [key_of(embedding) for embedding in result.embeddings]
    assert result.complete
    assert not result.irregular
    assert len(set(keys)) == len(keys), "an embedding is listed twice"
    return set(keys)


def compare(seed: int, folder: Path) -> Counter[str]:
    """What was compared of the problem of a seed."""
    rng = random.Random(seed)
    kind = KINDS[list(KINDS)[seed % len(KINDS)]]
    while True:
        workload, instruction = random_problem(rng, kind)
        name = rng.choice(kind.sets or SETS) if rng.random() < 0.75 else "random"
        tables: Tables = shipped_tables(name) if name in SETS else random_tables(rng)
        try:
            expected = embeddings(workload, instruction, tables)
        except TooLarge:
            continue
        if 0 < len(expected) <= MOST or (not expected and rng.random() < 0.4):
            break
    shipped = name in SETS
    constraints = load_constraint_set(name) if shipped else written(tables, folder / "set.toml")
    counts = Counter({"embeds": bool(expected), "fused": any(map(_is_fused, expected))})
    for formulation in (Formulation.AUTO, Formulation.DIGITS, Formulation.SCALAR):
        solutions = solved(formulation, workload, instruction, constraints)
        if solutions is None and formulation is Formulation.SCALAR and "flatten" in tables:
            # The scalar model does not fuse: what it finds is the rest.
            plain = {table: keys for table, keys in tables.items() if table != "flatten"}
            expected = embeddings(workload, instruction, plain, budget=100_000)
            solutions = solved(
                formulation, workload, instruction, written(plain, folder / "plain.toml")
            )
        if solutions is None:
            continue
        counts[formulation.value] += 1
        assert solutions == expected, (
            f"{formulation.value}, seed {seed}, {name}: {workload} {dict(workload.extents)} on "
            f"{instruction.computation} {[axis.allowed for axis in instruction.axes]} "
            f"under {json.dumps(tables)}; missing {sorted(expected - solutions)[:3]}, "
            f"too many {sorted(solutions - expected)[:3]}"
        )
    return counts


def _is_fused(key: Key) -> bool:
    _, axes, _ = key
    return any(len(members) > 1 for _, digits in axes for members, _, _ in digits)  # type: ignore[attr-defined]


@pytest.mark.quick(2)
@pytest.mark.parametrize("block", range(100))
def test_the_solver_finds_what_the_enumerator_finds(block: int, tmp_path: Path) -> None:
    counts = sum(
        (compare(seed, tmp_path) for seed in range(block * BLOCK, block * BLOCK + BLOCK)),
        Counter[str](),
    )
    print(dict(counts))
    assert counts["auto"] == BLOCK
    assert counts["scalar"] == BLOCK
    assert counts["digits"] >= BLOCK // 2
    assert counts["embeds"] >= BLOCK // 5, "problems without an embedding test little"
