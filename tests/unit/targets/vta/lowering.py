"""What the tests of lowering share: programs of embeddings, random schedules, and the check."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.search import find_embeddings
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.reference import random_inputs, reference
from cpembed.resources import hardware_spec_files
from cpembed.targets.vta.checker import violations
from cpembed.targets.vta.estimate import Tilings, combinations, forms, tile_sizes
from cpembed.targets.vta.lower import LoweredVta
from cpembed.targets.vta.schedule import Schedule, occupancy
from cpembed.targets.vta.simulator import simulate
from cpembed.targets.vta.tail import Exact, Requantized, Truncated
from cpembed.targets.vta.tiles import TileNest
from cpembed.targets.vta.tokens import POLICIES
from cpembed.transform.derive import derive
from cpembed.transform.program import DerivedProgram

TAILS = (Requantized(9), Exact(), Truncated(), Requantized(7, low=0, bias=(1,)))
KEPT = 2000
"""Embeddings that a search finds at most."""


def check(lowered: LoweredVta, layer: Computation, seed: int = 0) -> None:
    """A lowered program is legal, and on random inputs it leaves what numpy computes, whichever
    module goes first where tokens allow several."""
    inputs = random_inputs(layer, seed)
    expected = lowered.tail.reference(reference(layer, inputs))
    if lowered.nest.bias is not None:
        bias = lowered.nest.bias.packed
        values = np.random.default_rng(seed).integers(-(2**16), 2**16, bias.original_shape)
        inputs[bias.name] = values.astype(np.int32)
        expected = with_bias(lowered, reference(layer, inputs), inputs[bias.name])
    image = lowered.build(inputs)
    assert not violations(image)
    for policy in POLICIES:
        dram = simulate(image, policy=policy, seed=seed, checked=False)
        result = lowered.unpack(lowered.combine(image, dram))
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


def with_bias(lowered: LoweredVta, exact: np.ndarray, bias: np.ndarray) -> np.ndarray:
    tail = lowered.tail
    assert isinstance(tail, Requantized)
    shape = [n if k in tail.bias else 1 for k, n in enumerate(exact.shape)]
    total = exact + bias.reshape(shape)
    return np.clip(total >> tail.shift, tail.low, tail.high).astype(np.int8)


@cache
def best_program(words: str, target: str, constraints: str) -> DerivedProgram:
    layer = workload(words, target=target)
    return solve(layer, target, constraints=constraints, top=1).embeddings[0].candidate.program


def random_programs(
    words: str, spec: HardwareSpec, constraints: str, count: int, seed: int
) -> list[DerivedProgram]:
    """Programs of some of the embeddings in a constraint set."""
    layer = workload(words, target=spec)
    found = find_embeddings(
        layer,
        spec.instruction,
        load_constraint_set(constraints),
        SearchLimits(solutions=KEPT),
    ).embeddings
    chosen = random.Random(seed).sample(list(found), min(count, len(found)))
    return [derive(layer, spec.instruction, embedding) for embedding in chosen]


def make_spec(batch: int, block: int, folder: Path) -> HardwareSpec:
    """VTA with another GEMM core, and buffers of no more elements than the shipped one's."""
    text = hardware_spec_files()["vta_1x16x16"].read_text(encoding="utf-8")
    inp, wgt, acc = batch * block, block * block, 4 * batch * block
    sizes = {"inp": 32_768, "wgt": 262_144, "acc": 131_072}
    edits = {
        "x = 1\n": f"x = {batch}\n",
        "y = 16\n": f"y = {block}\n",
        "z = 16\n": f"z = {block}\n",
        "alignment_bytes = 16\n": f"alignment_bytes = {inp}\n",
        "alignment_bytes = 256\n": f"alignment_bytes = {wgt}\n",
        "alignment_bytes = 64\n": f"alignment_bytes = {acc}\n",
        '32_768   # 2048 tiles\n\n[memories."vta.wgt"]': (
            f'{min(sizes["inp"], 2048 * inp)}\n\n[memories."vta.wgt"]'
        ),
        "262_144": str(min(sizes["wgt"], 1024 * wgt)),
        "131_072": str(min(sizes["acc"], 2048 * acc)),
        "32_768   # 2048 tiles, as many": f"{min(sizes['acc'], 2048 * acc) // 4}  # as many",
    }
    for old, new in edits.items():
        assert old in text, old
        text = text.replace(old, new)
    path = folder / f"vta_{batch}x{block}x{block}.toml"
    path.write_text(text, encoding="utf-8")
    return load_hardware_spec(path)


def random_schedule(nest: TileNest, rng: random.Random) -> Schedule:
    """Any legal schedule; tiles shrink until they fit."""
    spatial = [loop.name for loop in nest.loops if loop.kind is AxisKind.SPATIAL]
    reduction = [loop.name for loop in nest.loops if loop.kind is AxisKind.REDUCTION]
    rng.shuffle(spatial)
    rng.shuffle(reduction)
    threads = rng.choice([1, 2])
    over = rng.choice([None, *spatial]) if threads == 2 else None
    tiles = {name: rng.randint(1, extent) for name, extent in nest.extents.items()}
    slots = (rng.randint(1, 3), rng.randint(1, 3))
    while True:
        schedule = Schedule(tiles, (*spatial, *reduction), threads, over, slots)
        if all(need <= have for need, have in occupancy(nest, schedule).values()):
            return schedule
        name = max(tiles, key=lambda name: tiles[name])
        tiles = tiles | {name: -(-tiles[name] // 2)}


def schedules(nest: TileNest) -> Iterator[Schedule]:
    """Every legal schedule of the tuner's space, in no particular order."""
    tilings = Tilings(nest, combinations(tile_sizes(nest)))
    for form in forms(nest):
        for at in np.flatnonzero(tilings.fits(form)):
            yield tilings.schedule(form, int(at))


def in_digits(program: DerivedProgram, rng: random.Random) -> DerivedProgram:
    """The same program with accesses written in digits of the loops, which no GEMM instruction
    iterates over."""
    loops = {loop.name: loop.extent for loop in program.loops}

    def rewritten(term: IndexTerm) -> list[IndexTerm]:
        extent = loops.get(term.iterator, 1)
        if extent <= 2 or rng.random() < 0.3:
            return [term]
        factor = rng.randint(2, extent - 1)
        return [
            IndexTerm(term.iterator, term.coefficient * factor, factor),
            IndexTerm(term.iterator, term.coefficient, 1, factor),
        ]

    operands = tuple(
        replace(
            operand,
            access=tuple(
                IndexExpr.sum((new for t in index.terms for new in rewritten(t)), index.constant)
                for index in operand.access
            ),
        )
        for operand in program.operands
    )
    return replace(program, operands=operands)
