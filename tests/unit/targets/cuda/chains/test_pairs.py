"""Pairs of embeddings: what both products see of the operand between them, element by element."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from cpembed.driver.named import hardware_spec
from cpembed.embedding.coupling import Coupling, Mismatch
from cpembed.errors import WorkloadError
from cpembed.targets.cuda.chains.pairs import Pair, Pairs, Side, find_pairs, prove
from cpembed.targets.cuda.instructions import fragments
from cpembed.workloads.chain_families import parse_chain

CHAINS = {
    "attention": ("attention b=2 h=4 kv=2 q=20 k=24 d=16 dtype=float16", "mma_f16"),
    "BSHD": ("attention b=1 h=6 kv=2 q=9 k=17 d=16 layout=BSHD dtype=bfloat16", "mma_bf16"),
    "mlp": ("mlp m=40 k=16 n=50 p=24 dtype=float16", "mma_f16"),
    "bytes": ("mlp m=40 k=32 n=64 p=24 dtype=int8", "mma_s8"),
    "convolution": ("conv_pointwise n=1 c=16 h=6 w=5 k=24 r=3 s=3 m=8 pad=1", "mma_f16"),
}


def pairs_of(name: str) -> Pairs:
    words, target = CHAINS[name]
    return find_pairs(parse_chain(words.split()), hardware_spec(target))


def points(side: Side, middle: str, registers: int, *, factor: bool) -> dict[Any, Any]:
    """Element of the operand between by (batch, place of tile, lane, register): where it is not in
    the operand, nothing."""
    product, instruction = side.product, side.product.instruction
    program = product.program
    operand = program.operand(middle)
    a, b, c = (fragments()[n] for n in instruction.fragments)
    fragment = (b if side.swapped else a) if factor else c
    loops = [*product.batch, *product.rows, *product.columns, *product.depth]
    found: dict[Any, Any] = {}
    for values in itertools.product(*(range(loop.extent) for loop in loops)):
        iterators: dict[str, int] = dict.fromkeys(program.extents, 0)
        iterators |= {loop.name: value for loop, value in zip(loops, values, strict=True)}
        used = {n for index in operand.access for n in index.iterators}
        key = tuple(v for loop, v in zip(loops, values, strict=True) if loop.name in used)
        for lane, register in itertools.product(range(32), range(registers)):
            row, column = fragment.position(lane, register)
            at = dict(iterators)
            if not factor:
                at[product.axes[0]], at[product.axes[1]] = row, column
            elif side.swapped:
                at[product.axes[2]], at[product.axes[1]] = row, column
            else:
                at[product.axes[0]], at[product.axes[2]] = row, column
            packed = [index.evaluate(at) for index in operand.access]
            names = dict(zip((d.name for d in operand.dimensions), packed, strict=True))
            element = tuple(int(index.evaluate(names)) for index in operand.source)
            inside = all(0 <= x < n for x, n in zip(element, operand.original_shape, strict=True))
            found[key, lane, register] = element if inside else None
    return found


def held(found: dict[Any, Any], lane: int) -> set[Any]:
    return {element for (_, at, _), element in found.items() if at == lane and element is not None}


@pytest.mark.parametrize("name", CHAINS)
def test_lanes_of_coupled_pairs_hold_what_the_second_product_expects(name: str) -> None:
    """Over all tiles, a lane's sums have the rows and, but for their order within a tile, the
    columns of its factor."""
    pairs = pairs_of(name)
    coupled = [pair for pair in pairs.pairs if isinstance(pair.coupling, Coupling)]
    assert coupled
    for pair in coupled[:3]:
        prove(pair)
        sums = points(pair.first, pairs.chain.first.output.name, 4, factor=False)
        count = fragments()[
            pair.second.product.instruction.fragments[1 if pair.second.swapped else 0]
        ].elements
        factor = points(pair.second, pairs.chain.middle, count, factor=True)
        for lane in range(0, 32, 5):
            assert held(sums, lane) == held(factor, lane) or not pair.coupling.is_ordered
            # Within a tile the order of the sum is free: rows are not, nor is the tile.
            k = pair.second.product.instruction.k
            both = [
                {(*element[:-1], element[-1] // k) for element in held(found, lane)}
                for found in (sums, factor)
            ]
            assert both[0] == both[1]


@pytest.mark.parametrize("name", CHAINS)
def test_every_pair_is_accounted_for(name: str) -> None:
    pairs = pairs_of(name)
    assert len(pairs.pairs) + sum(pairs.rejected.values()) == math.prod(pairs.embeddings)


def test_all_four_orders_of_factors_of_a_pair_of_layers_are_told_apart() -> None:
    """Transposed sums are no factor; others are the first factor or, transposed, the second."""
    outcomes = {
        (pair.first.swapped, pair.second.swapped): isinstance(pair.coupling, Coupling)
        for pair in pairs_of("mlp").pairs
    }
    assert outcomes == {
        (False, False): True, (False, True): True, (True, False): False, (True, True): False,
    }  # fmt: skip


def test_heads_that_share_keys_fill_tiles_of_rows_together() -> None:
    """One query of eight heads: a tile of rows is heads, and no template says so."""
    chain = parse_chain(["attention b=1 h=16 kv=2 q=1 k=32 d=16"])
    pairs = find_pairs(chain, hardware_spec("mma_f16"))
    best = next(pair for pair in pairs.pairs if not pair.is_swapped)
    assert "r" in "".join(best.first.ranked.embedding.axis_texts)
    assert best.executed <= 4 * chain.macs


def test_different_rows_are_rejected() -> None:
    pairs = pairs_of("attention")
    assert pairs.rejected["rows of tiles differ"] > 0
    for pair in pairs.pairs:
        assert same_rows(pair)


def same_rows(pair: Pair) -> bool:
    return (pair.first.rows, pair.first.batches, pair.first.summed) == (
        pair.second.rows,
        pair.second.batches,
        pair.second.summed,
    )


def test_registers_of_wmma_are_not_specified() -> None:
    chain = parse_chain(["mlp m=32 k=32 n=32 p=32"])
    pairs = find_pairs(chain, hardware_spec("wmma_f16"))
    assert pairs.pairs
    for pair in pairs.pairs:
        assert isinstance(pair.coupling, Mismatch)
        assert "is not specified" in pair.coupling.reason


def test_a_product_without_an_embedding_is_named() -> None:
    chain = parse_chain(["mlp m=32 k=32 n=32 p=32 dtype=int8"])
    with pytest.raises(WorkloadError, match="int8"):
        find_pairs(chain, hardware_spec("mma_f16"))
