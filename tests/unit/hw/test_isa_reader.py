"""Files of instruction sets: what is read, and what is refused with which words."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cpembed.errors import SpecError
from cpembed.hw.instruction import TileDimension
from cpembed.hw.isa import InstructionSet, MemoryKind, StrideSource, Synchronization
from cpembed.hw.isa_reader import load_instruction_set, read_instruction_set
from cpembed.hw.loader import load_hardware_spec
from tests.unit.hw.isa_faults import BROKEN
from tests.unit.hw.isa_toy import SMALL_SET, assert_refused_set, refusal, saved


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    assert_refused_set(tmp_path, BROKEN[name])


def test_a_set_has_instructions_and_not_too_many(tmp_path: Path) -> None:
    head = SMALL_SET[: SMALL_SET.index("[[channels]]")].replace('"channels"', '"in_order"')
    without = head.replace('units = ["dma", "array"]', "units = []\ninstructions = []")
    assert refusal(tmp_path, without) == "instructions: lists none; add [[instructions]]"
    memories = "".join(f"[memories.m{n}]\nrows = 1\nrow_bytes = 1\n" for n in range(300))
    many = SMALL_SET.replace("[[channels]]", f"{memories}[[channels]]", 1)
    assert refusal(tmp_path, many).startswith("memories: 304 entries; allowed: up to 256")


def test_operands_whose_places_would_take_long_to_check_are_refused(tmp_path: Path) -> None:
    text = SMALL_SET.replace('expression = "D[r,e] = S[r,e]"\naxes = { r = 8', "EDIT")
    text = text.replace("EDIT", 'expression = "D[200000*r,e] = S[r,e]"\naxes = { r = 8')
    text = text.replace(
        '{ memory = "main", dtype = "int8" }',
        '{ memory = "main", dtype = "int8", dimensions = ["d", "e"] }',
    )
    assert refusal(tmp_path, text) == (
        "instructions.store.operands.D: 11,200,008 elements; allowed: up to 1,048,576"
    )


@pytest.fixture(name="small")
def _small(tmp_path: Path) -> InstructionSet:
    return load_instruction_set(saved(tmp_path, SMALL_SET))


def test_the_small_set_is_read_as_it_is_written(small: InstructionSet) -> None:
    assert small.main.name == "main"
    assert [m.name for m in small.row_memories()] == ["buffer", "sums"]
    assert small.memories["step"].kind is MemoryKind.REGISTER
    assert small.synchronization is Synchronization.CHANNELS
    assert [(c.name, c.sender, c.receiver, c.depth) for c in small.channels] == [
        ("loaded", "dma", "array", 4)
    ]
    load, product = small.instructions["load"], small.instructions["product"]
    assert load.places["S"].strides == {"r": "step", "e": 1}
    assert load.places["D"].strides == {"r": 1}
    assert load.places["D"].any_lane
    assert load.occupied_cycles({"r": 4, "e": 2}) == 3
    assert [axis.name for axis in load.size_arguments] == ["r", "e"]
    assert product.places["A"].stride_arguments == ("x",)
    assert not product.reads_outputs
    assert product.banks_differ == (("A", "B"),)
    store = small.instructions["store"]
    assert store.places["D"].strides == {"r": StrideSource.ANY, "e": 1}
    assert store.latency_cycles == 3
    assert small.instructions["set_step"].is_configuration
    assert small.memories["main"].bytes_per_cycle == 8
    assert math.isinf(small.memories["buffer"].bytes_per_cycle)


def test_equal_digits_are_equal_values(tmp_path: Path) -> None:
    text = SMALL_SET.replace('rows = ["z"], lanes', 'rows = ["z/4%2", "z%4"], lanes', 1)
    place = load_instruction_set(saved(tmp_path, text)).instructions["product"].places["B"]
    assert place.rows == (TileDimension("z", 4), TileDimension("z", 1, 4))
    assert place.strides == {"z/4": StrideSource.DENSE, "z%4": 1}


def test_memories_that_only_feed_each_other_are_named(tmp_path: Path) -> None:
    copies = "".join(
        f'\n[[instructions]]\nname = "{name}"\nunit = "array"\nexpression = "D[r] = S[r]"\n'
        f"axes = {{ r = 4 }}\n"
        f'operands.D = {{ memory = "{to}", dtype = "int8", rows = ["r"] }}\n'
        f'operands.S = {{ memory = "{source}", dtype = "int8", rows = ["r"] }}\n'
        for name, source, to in (("there", "left", "right"), ("back", "right", "left"))
    )
    memories = (
        "[memories.left]\nrows = 8\nrow_bytes = 1\n[memories.right]\nrows = 8\nrow_bytes = 1\n"
    )
    text = SMALL_SET.replace("[[channels]]", f"{memories}\n[[channels]]", 1) + copies
    message = refusal(tmp_path, text)
    assert message.startswith(
        "instructions.there: reads left, written only by back, which waits too"
    )
    assert "loads from main memory" in message


def test_a_constant_is_an_instruction(tmp_path: Path) -> None:
    text = SMALL_SET.replace(
        '"D[r,e] = S[r,e]"\naxes = { r = { min', '"D[r,e] = 7"\naxes = { r = { min'
    )
    text = text.replace(
        'operands.S = { memory = "main", dtype = "int8", stride = { r = "step" } }\n', ""
    )
    text = text.replace(" {S.address}", "").replace('stride.x = "any"', 'stride.x = "step"')
    text = text.replace(" {A.stride.x}", "")
    load = load_instruction_set(saved(tmp_path, text)).instructions["load"]
    assert load.inputs == ()
    assert str(load.computation) == "D[r, e] = 7"


@pytest.mark.parametrize(
    "dtype, lanes", [("int4", 16), ("float8_e4m3fn", 8), ("bfloat16", 4), ("float32", 2)]
)
def test_a_row_holds_lanes_of_every_type(dtype: str, lanes: int, tmp_path: Path) -> None:
    # Two instructions of one axis move rows of the type to the buffer and back.
    moves = "".join(
        f'\n[[instructions]]\nname = "{name}_{dtype}"\nunit = "dma"\nexpression = "D[e] = S[e]"\n'
        f"axes = {{ e = {{ max = {{lanes}} }} }}\n"
        f'operands.{main} = {{ memory = "main", dtype = "{dtype}" }}\n'
        f'operands.{rows} = {{ memory = "buffer", dtype = "{dtype}", lanes = ["e"] }}\n'
        for name, main, rows in (("load", "S", "D"), ("store", "D", "S"))
    )
    machine = load_instruction_set(
        saved(tmp_path, SMALL_SET + moves.replace("{lanes}", str(lanes)))
    )
    assert machine.memories["buffer"].lanes(dtype) == lanes
    message = refusal(tmp_path, SMALL_SET + moves.replace("{lanes}", str(lanes + 1)))
    assert message.startswith(f"instructions.load_{dtype}.operands.D.lanes: {lanes + 1} lanes")


def test_files_of_the_other_kind_are_told_apart(tmp_path: Path) -> None:
    path = saved(tmp_path, SMALL_SET)
    with pytest.raises(SpecError, match=r"instructions: describes an accelerator .* `network"):
        load_hardware_spec(path)
    with pytest.raises(SpecError, match=r"instructions: describes an accelerator"):
        load_hardware_spec("gemmini")
    with pytest.raises(SpecError, match=r"instruction: describes a single instruction"):
        read_instruction_set({"name": "x", "instruction": {}}, "x.toml")
    with pytest.raises(SpecError, match=r"unknown accelerator 'gemini' \(did you mean gemmini\?\)"):
        load_instruction_set("gemini")
