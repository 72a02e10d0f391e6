"""Mistakes in programs that the planner made: refused by the proof, or harmless.

A proof may refuse a mutant that computes the same. It may not accept one that computes something
else, changes a margin that it does not name, or reads what was never written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks.act import random_arrays
from cpembed.accelerator.executor import execute
from cpembed.accelerator.program import Program
from cpembed.accelerator.proof import ProgramProof, prove
from cpembed.errors import ExecutionFault, ProgramError
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.dtypes import is_integer
from tests.compilers import needs_executor
from tests.unit.accelerator.mutants import mutants
from tests.unit.accelerator.planned_programs import EXTENTS, layers
from tests.unit.accelerator.proof_mutants import mutant
from tests.unit.accelerator.random_machines import random_machine

pytestmark = needs_executor

TINY = str(Path(__file__).parents[2] / "targets" / "tiny_accelerator.toml")
WITH_CHANNELS = "random2"
"""A random machine whose units channels keep in order."""
SHIPPED = ("gemmini", "tpu_like", "nvdla_like", "ethos_u_like", "qkv_attention", "vta_isa")
SMALL = {**EXTENTS, "p": 3, "q": 3, "i": 20, "j": 24, "k": 24}


@cache
def programs(name: str) -> dict[str, Program]:
    """Return the proven programs of small layers on a machine."""
    machine = (
        random_machine(int(name.removeprefix("random")))
        if name.startswith("random")
        else load_instruction_set(name)
    )
    extents = {**SMALL, "i": 64, "j": 64, "k": 64} if name == "qkv_attention" else SMALL
    planned = {f"{layer} {n}": p for n, (layer, p) in enumerate(layers(machine, extents))}
    return {layer: program for layer, program in planned.items() if prove(program).holds}


def effect(program: Program, proof: ProgramProof, seeds: int = 2) -> str:
    """Return ``right``, or what is wrong with the execution of a program."""
    specification = program.specification
    assert specification is not None
    for seed in range(seeds):
        arrays = {**specification.constants, **random_arrays(specification, seed)}
        buffers = {
            name: tensor.buffer(arrays[name])
            for name, tensor in program.tensors.items()
            if tensor.role in ("input", "constant")
        }
        try:
            run = execute(program, buffers, seed)
        except (ExecutionFault, ProgramError) as error:
            return f"fault: {error}"
        expected = specification.evaluate(arrays)
        for name in specification.outputs:
            tensor = program.tensors[name]
            actual, right = tensor.array(run.buffers[name]), expected[name]
            if not is_integer(tensor.dtype):
                # bfloat16 has eight bits.
                relative = 0.02 if tensor.dtype == "bfloat16" else 1e-4
                difference = np.abs(actual.astype(np.float64) - right.astype(np.float64))
                if not difference.max() <= relative * np.abs(right.astype(np.float64)).max():
                    return f"{name} differs"
            elif not np.array_equal(actual, right):
                return f"{name} differs"
            elif name not in proof.spoiled_margins and not np.array_equal(
                tensor.buffer(actual), run.buffers[name]
            ):
                return f"margins of {name} do not hold their fill"
    return "right"


def changed_programs(program: Program, seed: int, count: int) -> Iterator[tuple[str, Program]]:
    """Yield random mutants of both kinds: mistakes of people, and changes of any part."""
    half = count // 2
    for change in mutants(program, seed, half):
        yield f"{change.kind}: {change.change}", change.program
    random = Random(seed)
    for _ in range(count - half):
        yield mutant(program, random)


def unsound(name: str, layer: str, seed: int, count: int) -> tuple[list[str], Counter[str]]:
    """Return the mutants that are proven and wrong, and a count of what became of all."""
    program = programs(name)[layer]
    wrong: list[str] = []
    counts = Counter[str]()
    for kind, changed in changed_programs(program, seed, count):
        proof = prove(changed, isl_seconds=5)
        result = effect(changed, proof)
        outcome = "right" if result == "right" else "wrong"
        counts[f"{'proven' if proof.holds else 'refused'}, {outcome}"] += 1
        if proof.holds and outcome == "wrong":
            wrong.append(f"{name}, {layer}, {kind}: {result}")
        if not proof.holds:
            # One line that says what is wrong.
            assert proof.refusal
            assert "\n" not in proof.refusal
    return wrong, counts


@pytest.mark.parametrize("name", [TINY, WITH_CHANNELS], ids=("tiny", "channels"))
def test_no_wrong_mutant_of_small_machines_is_proven(name: str) -> None:
    total = Counter[str]()
    for seed, layer in enumerate(programs(name)):
        assert effect(programs(name)[layer], prove(programs(name)[layer])) == "right"
        wrong, counts = unsound(name, layer, seed, 12)
        assert not wrong
        total += counts
    assert total["refused, wrong"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_no_wrong_mutant_of_a_shipped_machine_is_proven(name: str) -> None:
    assert programs(name)
    total = Counter[str]()
    for seed, layer in enumerate(programs(name)):
        wrong, counts = unsound(name, layer, seed, 100)
        assert not wrong
        total += counts
    # A report, shown by pytest -s.
    print(f"{name}: {dict(total)}")
    assert total["refused, wrong"] > 40


def test_a_wrong_program_is_seen() -> None:
    """The comparison itself: a program with another scale is wrong."""
    program = programs(TINY)["gemm 0"]
    changed = next(m for m in mutants(program, 1, 400) if m.kind == "stale register").program
    assert effect(replace(changed), prove(changed)) != "right"
