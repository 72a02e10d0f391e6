"""Variants beside the candidates of a ranking: which are proposed, and what decides on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.codegen.plan import Knobs
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.digit_search import check_embedding
from cpembed.errors import InvariantError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.index import IndexExpr
from cpembed.targets.cpu.calibration import default_calibration
from cpembed.targets.cpu.target import schedule_space
from cpembed.targets.cpu.variants import (
    OVER_ROWS,
    OVER_WINDOWS,
    in_lanes,
    in_windows,
    require_variant,
    with_variants,
)
from tests.unit.transform.small_tiles import small_amx

AMX = hardware_spec("amx_int8")
FEW_CHANNELS = "conv2d n=1 c=16 h=9 w=9 k=16 r=3 s=3 layout=NHWC"


def ranked(
    layer: str, spec: HardwareSpec = AMX, named: str = "in_place_padded", top: int = 4
) -> tuple[RankedCandidate, ...]:
    return solve(workload(layer.split(), target=spec), spec, constraints=named, top=top).embeddings


def variants(found: tuple[RankedCandidate, ...]) -> set[str]:
    return {item.candidate.variant for item in found}


def test_variants_are_of_no_set() -> None:
    """Where a set or a rank is asked for, only the layouts vary."""
    candidates = ranked(FEW_CHANNELS)
    found = with_variants(candidates, AMX)
    assert variants(found) == {"", OVER_ROWS, OVER_WINDOWS}
    assert {item.constraints for item in found if item.candidate.variant} == {
        "in_place_padded, over rows",
        "in_place_padded, over windows",
    }
    within = with_variants(candidates, AMX, fuses=False)
    assert variants(within) == {""}
    assert {item.candidate.embedding.identifier() for item in within} == {
        item.candidate.embedding.identifier() for item in candidates
    }


def test_each_is_proposed_once() -> None:
    """Tiles of 7, 8 and 9 rows all become the same one over rows."""
    found = with_variants(ranked(FEW_CHANNELS, top=8), AMX)
    identifiers = [item.candidate.identifier for item in found]
    assert len(identifiers) == len(set(identifiers))
    rows = [item for item in found if item.candidate.variant == OVER_ROWS]
    assert len({item.candidate.embedding.identifier() for item in rows}) == 1


def test_what_the_constraints_refuse_is_not_proposed() -> None:
    """Three rows of four, padded: a set of fused axes has no tile that is short and padded too."""
    spec = small_amx()
    layer = "transposed_conv2d n=1 c=2 k=4 h=5 w=5 r=3 s=3 stride=1 pad=0"
    candidates = ranked(layer, spec, top=8)
    short = [item for item in candidates if item.candidate.embedding.extents["x"] == 3]
    made = [item for one in short for item in in_windows(one, spec)]
    assert made
    complete = load_constraint_set("complete")
    for item in made:
        embedding = item.candidate.embedding
        pairing = Pairing(item.candidate.program.unfused, spec.instruction)
        problem = pairing.with_roles(embedding.operands)
        with pytest.raises(InvariantError, match="extents"):
            check_embedding(problem, complete, embedding)
    proposed = with_variants(candidates, spec)
    assert OVER_WINDOWS in variants(proposed)
    refused = {item.candidate.identifier for item in made}
    assert not refused & {item.candidate.identifier for item in proposed}


@pytest.mark.parametrize("variant", [OVER_ROWS, OVER_WINDOWS])
def test_a_wrong_variant_is_never_built(variant: str) -> None:
    found = with_variants(ranked(FEW_CHANNELS), AMX)
    item = next(one for one in found if one.candidate.variant == variant)
    require_variant(item.candidate)
    program = item.candidate.program
    image = program.operand("I")
    moved = replace(image, access=(*image.access[:-1], image.access[-1] + IndexExpr((), 1)))
    others = tuple(moved if operand is image else operand for operand in program.operands)
    broken = replace(item.candidate, program=replace(program, operands=others))
    with pytest.raises(InvariantError, match="not proven"):
        require_variant(broken)


FLOATS = hardware_spec("avx512_f32")


def exchanged(layer: str) -> list[RankedCandidate]:
    return [one for item in ranked(layer, FLOATS, top=1) for one in in_lanes(item, FLOATS)]


@pytest.mark.parametrize(
    "layer, lanes",
    [
        ("conv2d n=1 c=8 h=8 w=8 k=32 r=1 s=1", "p_q"),
        ("conv2d n=1 c=8 h=20 w=20 k=32 r=3 s=3", "q"),
    ],
)
def test_pixels_of_images_with_their_channels_first_are_lanes(layer: str, lanes: str) -> None:
    """Read and stored where they are; the weights, which feed all lanes, are packed ahead."""
    twin = next(
        one
        for one in exchanged(layer)
        if one.candidate.embedding.digits["y"][0].axis == lanes
        and "I" in one.candidate.program.in_place
    )
    assert twin.candidate.program.in_place == ("I", "O")
    assert twin.candidate.embedding.operands == {"A": "W", "B": "I", "C": "O"}
    require_variant(twin.candidate)


@pytest.mark.parametrize(
    "layer",
    [
        "conv2d n=1 c=8 h=8 w=8 k=32 r=1 s=1 layout=NHWC",
        "conv2d n=1 c=8 h=9 w=9 k=32 r=1 s=1 stride=2",
        "gemm m=32 n=32 k=8",
    ],
)
def test_what_is_in_place_already_or_cannot_be_is_not_exchanged(layer: str) -> None:
    assert not any("I" in one.candidate.program.in_place for one in exchanged(layer))


def test_types_that_differ_are_not_exchanged() -> None:
    vnni = hardware_spec("avx512_vnni")
    found = ranked("conv2d n=1 c=8 h=8 w=8 k=32 r=1 s=1", vnni)
    assert not [one for item in found for one in in_lanes(item, vnni)]


def second_lines(layer: str) -> float:
    """What the model takes a line of the image for, that lies in lanes where it is."""
    twin = next(one for one in exchanged(layer) if "I" in one.candidate.program.in_place)
    space = schedule_space(twin.candidate.program, FLOATS)
    return space.model.step(space.nest, space.machine, 4, 1).second_line_factor


def test_lanes_that_lie_in_two_lines_cost_more() -> None:
    assert second_lines("conv2d n=1 c=8 h=8 w=8 k=32 r=1 s=1") == 1
    # Planes of 81 pixels begin anywhere in a line: 15 of 16 loads lie in two.
    assert second_lines("conv2d n=1 c=8 h=9 w=9 k=32 r=1 s=1") > 1.9


def test_rows_a_page_apart_are_no_more_than_the_ways_of_the_nearest_cache() -> None:
    """Of a dot product along them, where they come from the second-level cache; not from memory,
    beside which it does not show."""
    machine = replace(default_calibration(1), cache_bytes=(2**15, 2**20, 2**25))
    spec = hardware_spec("avx512_f32_dot")

    def more(m: int, k: int) -> float:
        """Twelve rows at a time over eight."""
        program = ranked(f"gemm m={m} n=1 k={k}", spec, top=1)[0].candidate.program
        space = schedule_space(program, spec, machine)
        rows = space.model.rows(space.nest)[0].origin
        return space.estimate(Knobs({rows: 12})).us / space.estimate(Knobs({rows: 8})).us

    assert more(96, 1024) > 1.1
    assert more(96, 1040) < 1
    assert more(24_000, 1024) < 1
