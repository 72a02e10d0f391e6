"""Instructions as values: configuring axes, dtype combinations, tile shapes."""

from __future__ import annotations

import pytest

from cpembed.errors import SpecError
from cpembed.hw.instruction import Instruction, InstructionAxis, OperandMemory, TileDimension
from cpembed.ir.parser import parse_computation


def stencil() -> Instruction:
    """O[x,k] += I[x,r] * W[k,2*r], x 2..6 in steps of 2; W has a gap and r is fixed."""
    computation = parse_computation(
        "O[x,k] += I[x,r] * W[k,2*r]", {"x": 6, "k": 4, "r": 3}, name="stencil"
    )
    return Instruction(
        name="stencil",
        axes=(
            InstructionAxis("x", 2, 6, 2),
            InstructionAxis("k", 4, 4),
            InstructionAxis("r", 3, 3),
        ),
        computation=computation,
        dtypes={"I": ("int8", "uint8"), "W": ("int8",), "O": ("int32", "int64")},
        memory={
            "I": OperandMemory("in", (TileDimension("x"), TileDimension("r"))),
            "W": OperandMemory("in", (TileDimension("k"), TileDimension("r"))),
            "O": OperandMemory("out", (TileDimension("x"), TileDimension("k"))),
        },
    )


def test_configuring_an_axis_resizes_the_operands_it_indexes() -> None:
    shorter = stencil().with_extents({"x": 2})
    assert shorter.extents == {"x": 2, "k": 4, "r": 3}
    assert {o.name: o.shape for o in shorter.operands} == {"I": (2, 3), "W": (4, 5), "O": (2, 4)}
    assert [a.kind for a in shorter.axes] == [a.kind for a in stencil().computation.axes]


def test_the_largest_extents_are_the_computation_itself() -> None:
    instruction = stencil()
    assert instruction.with_extents({}) is instruction.computation
    assert instruction.with_extents({"x": 6, "k": 4}) is instruction.computation


@pytest.mark.parametrize(
    "extents, message",
    [
        ({"x": 3}, "stencil cannot set axis x to 3: it takes 2..6 in steps of 2"),
        ({"x": 8}, "stencil cannot set axis x to 8: it takes 2..6 in steps of 2"),
        ({"k": 3}, "stencil cannot set axis k to 3: it takes 4"),
        ({"q": 1}, "stencil has no axis q; it has x, k, r"),
    ],
)
def test_an_extent_that_cannot_be_set_is_refused(extents: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        stencil().with_extents(extents)
    assert str(caught.value) == message


def test_dtype_choices_are_all_combinations_and_start_with_the_default() -> None:
    choices = stencil().dtype_choices
    assert [tuple(choice.values()) for choice in choices] == [
        ("int8", "int8", "int32"),
        ("int8", "int8", "int64"),
        ("uint8", "int8", "int32"),
        ("uint8", "int8", "int64"),
    ]


def test_tile_shape_follows_the_configuration() -> None:
    assert stencil().tile_shape("I") == (6, 3)
    assert stencil().tile_shape("I", {"x": 2}) == (2, 3)


@pytest.mark.parametrize(
    "dimension, size, text",
    [
        (TileDimension("z"), 64, "z"),
        (TileDimension("z", 4), 16, "z/4"),
        (TileDimension("z", 1, 4), 4, "z%4"),
        (TileDimension("z", 4, 2), 2, "z/4%2"),
        (TileDimension("z", 1, 100), 64, "z%100"),
    ],
)
def test_size_and_notation_of_a_tile_dimension(
    dimension: TileDimension, size: int, text: str
) -> None:
    assert dimension.size(64) == size
    assert str(dimension) == text


def test_only_axes_with_a_range_are_configurable() -> None:
    assert [axis.name for axis in stencil().configurable_axes] == ["x"]
    assert stencil().axis("x").allowed == (2, 4, 6)
