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
from tests.unit.hw.isa_toy import SMALL_SET, BrokenSet, assert_refused_set, refusal, saved

IN_LOAD, IN_PRODUCT = "instructions.load", "instructions.product"

BROKEN: dict[str, BrokenSet] = {
    # Tables and keys.
    "unknown key": (
        "clock_mhz",
        "clock_mz",
        "clock_mz",
        ["unknown key", "did you mean clock_mhz?"],
    ),
    "unknown key of an operand": (
        "any_lane = true",
        "any_lanes = true",
        "instructions.load.operands.D.any_lanes",
        ["unknown key", "did you mean any_lane?"],
    ),
    "missing key": ('source = "made up"\n', "", "source", ["is missing"]),
    "unknown synchronization": (
        '"channels"\nunits',
        '"barriers"\nunits',
        "synchronization",
        ["in_order, interlocked, channels"],
    ),
    "clock of zero": ("clock_mhz = 100", "clock_mhz = 0", "clock_mhz", ["above 0"]),
    "empty source": ('"made up"', '" "', "source", ["is empty"]),
    "bad name": ('name = "small"', 'name = "a b"', "name", ["is not a name"]),
    # Memories.
    "no main memory": ('kind = "main"', "rows = 4\nrow_bytes = 4", "memories", ["exactly one"]),
    "no rows": ("rows = 64\n", "", "memories.buffer.rows", ["is missing", "kind"]),
    "banks that do not divide": ("banks = 4", "banks = 5", "memories.buffer.banks", ["divide 64"]),
    "too many rows": ("rows = 64", "rows = 64_000_000", "memories.buffer.rows", ["67,108,864"]),
    "rows of a register": (
        'kind = "register"',
        'kind = "register"\nrows = 4',
        "memories.step.rows",
        ["leave it out"],
    ),
    "register without a type": (
        'kind = "register"\ndtype = "int32"',
        'kind = "register"',
        "memories.step.dtype",
        ["is missing"],
    ),
    "type of a memory of rows": (
        "row_bytes = 32",
        'row_bytes = 32\ndtype = "int8"',
        "memories.sums.dtype",
        ["is for registers"],
    ),
    "memory called immediate": (
        "[memories.sums]",
        "[memories.immediate]\nrows = 1\nrow_bytes = 1\n[memories.sums]",
        "memories.immediate",
        ["rename"],
    ),
    "memory without operands": (
        "[memories.step]",
        "[memories.spare]\nrows = 1\nrow_bytes = 1\n[memories.step]",
        "memories.spare",
        ["holds no operand"],
    ),
    "memory with a bad name": (
        "[memories.sums]",
        '[memories."my sums"]\nrows = 1\nrow_bytes = 1\n[memories.sums]',
        "memories",
        ["'my sums' is not a name"],
    ),
    "unknown type of a register": (
        'kind = "register"\ndtype = "int32"',
        'kind = "register"\ndtype = "int31"',
        "memories.step.dtype",
        ["did you mean int32?"],
    ),
    "no rows at all": ("rows = 64", "rows = 0", "memories.buffer.rows", ["at least 1"]),
    "bandwidth of zero": (
        "bytes_per_cycle = 8",
        "bytes_per_cycle = 0",
        "memories.main.bytes_per_cycle",
        ["above 0"],
    ),
    "banks of main memory": (
        'kind = "main"',
        'kind = "main"\nbanks = 2',
        "memories.main.banks",
        ["leave it out"],
    ),
    "negative latency": (
        "bytes_per_cycle = 8",
        "latency_cycles = -1",
        "memories.main.latency_cycles",
        ["from 0"],
    ),
    "figure of the host": (
        "[[channels]]",
        "[host]\ncycles_per_element = 0\n[[channels]]",
        "host.cycles_per_element",
        ["above 0"],
    ),
    "unknown figure of the host": (
        "[[channels]]",
        "[host]\ncycles_per_elements = 4\n[[channels]]",
        "host.cycles_per_elements",
        ["unknown key", "did you mean cycles_per_element?"],
    ),
    # Units and channels.
    "unit twice": ('["dma", "array"]', '["dma", "array", "dma"]', "units", ["dma is there twice"]),
    "instruction twice": (
        'name = "store"',
        'name = "load"',
        "instructions",
        ["load is there twice"],
    ),
    "channel twice": (
        "depth = 4\n",
        'depth = 4\n[[channels]]\nname = "loaded"\nfrom = "array"\nto = "dma"\n',
        "channels",
        ["loaded is there twice"],
    ),
    "unit without instructions": ('["dma", "array"]', '["dma", "array", "x"]', "units[2]", ["x"]),
    "unknown unit": ('unit = "array"', 'unit = "arrow"', f"{IN_PRODUCT}.unit", ["did you mean"]),
    "channel to nowhere": ('to = "array"', 'to = "arrays"', "channels[0].to", ["did you mean"]),
    "channel to itself": ('to = "array"', 'to = "dma"', "channels[0].to", ["another unit"]),
    "channel of depth 0": ("depth = 4", "depth = 0", "channels[0].depth", ["1.."]),
    "channels without need": ('"channels"\nunits', '"in_order"\nunits', "channels", ["in_order"]),
    "no channels": (
        '[[channels]]\nname = "loaded"\nfrom = "dma"\nto = "array"\ndepth = 4\n',
        "",
        "channels",
        ["is missing"],
    ),
    # Axes and expressions.
    "axis that is not used": ("z = 8 }", "z = 8, w = 2 }", f"{IN_PRODUCT}.axes.w", ["x, y, z"]),
    "axis that is missing": (", z = 8 }", " }", f"{IN_PRODUCT}.axes.z", ["needs an extent"]),
    "axis of size 0": ("y = 8, z", "y = 0, z", f"{IN_PRODUCT}.axes.y", ["1..65536"]),
    "step that leads nowhere": ("step = 2", "step = 4", "instructions.store.axes.e.step", ["6"]),
    "multiples": (
        "axes = { r = 8",
        "axes = { r = { multiple = 8, max = 8 }",
        "instructions.store.axes.r.multiple",
        ["min, max and step"],
    ),
    "too many points": ("y = 8, z = 8", "y = 2048, z = 512", f"{IN_PRODUCT}.axes", ["4,194,304"]),
    "operand without a memory": (
        'operands.B = { memory = "buffer", dtype = "int8", rows = ["z"], lanes = ["y"] }\n',
        "",
        f"{IN_PRODUCT}.operands.B",
        ["is missing", "its memory"],
    ),
    "operand that is not used": (
        "accumulate = false",
        'operands.E = { memory = "main", dtype = "int8" }',
        f"{IN_PRODUCT}.operands.E",
        ["is not in the expression"],
    ),
    "unknown memory": (
        'operands.S = { memory = "main"',
        'operands.S = { memory = "mine"',
        f"{IN_LOAD}.operands.S.memory",
        ["did you mean main?"],
    ),
    "operand without a type": (
        'operands.B = { memory = "buffer", dtype = "int8",',
        'operands.B = { memory = "buffer",',
        f"{IN_PRODUCT}.operands.B.dtype",
        ["is missing"],
    ),
    "unknown type": (
        'operands.B = { memory = "buffer", dtype = "int8"',
        'operands.B = { memory = "buffer", dtype = "int9"',
        f"{IN_PRODUCT}.operands.B.dtype",
        ["int8"],
    ),
    "type of a register's operand": (
        '{ memory = "step" }',
        '{ memory = "step", dtype = "int8" }',
        "instructions.set_step.operands.r.dtype",
        ["holds int32"],
    ),
    "bad expression": ("A[x,z] * B", "A[x,z] ^ B", f"{IN_PRODUCT}.expression", ["'^'"]),
    "written immediate": (
        '"r[] = v[]"\noperands.r = { memory = "step" }',
        '"r[] = v[]"\noperands.r = { memory = "immediate", dtype = "int32" }',
        "instructions.set_step.operands.r.memory",
        ["read only"],
    ),
    # Places.
    "digit of no dimension": (
        'rows = ["z"]',
        'rows = ["q"]',
        f"{IN_PRODUCT}.operands.B.rows[0]",
        ["z, y"],
    ),
    "malformed digit": ('rows = ["z"]', 'rows = ["z*2"]', f"{IN_PRODUCT}.operands.B.rows[0]", []),
    "division by zero": (
        'rows = ["z"]',
        'rows = ["z/0"]',
        f"{IN_PRODUCT}.operands.B.rows[0]",
        ["divides by zero"],
    ),
    "dimension without digits": (
        'rows = ["z"]',
        "rows = []",
        f"{IN_PRODUCT}.operands.B.rows",
        ["lacks dimension z"],
    ),
    "dimension twice": (
        'rows = ["z"]',
        'rows = ["z", "y"]',
        f"{IN_PRODUCT}.operands.B.rows",
        ["more than once"],
    ),
    "gap between digits": (
        'rows = ["z"]',
        'rows = ["z/4", "z%2"]',
        f"{IN_PRODUCT}.operands.B.rows",
        ["leaves a gap", "z/2"],
    ),
    "digits that end early": (
        'rows = ["z"]',
        'rows = ["z%4"]',
        f"{IN_PRODUCT}.operands.B.rows",
        ["cover 4 of its 8"],
    ),
    "lanes that do not fit": (
        'operands.B = { memory = "buffer", dtype = "int8", rows = ["z"], lanes = ["y"] }',
        'operands.B = { memory = "buffer", dtype = "int16", rows = ["z"], lanes = ["y"] }',
        f"{IN_PRODUCT}.operands.B.lanes",
        ["16 bytes", "has 8"],
    ),
    "rows that do not fit": (
        "r = { min = 1, max = 8 }",
        "r = { min = 1, max = 65 }",
        f"{IN_LOAD}.operands.D.rows",
        ["takes 65 rows", "has 64"],
    ),
    "stride of no digit": (
        'stride.x = "any"',
        'stride.z = "any"',
        f"{IN_PRODUCT}.operands.A.stride.z",
        ["allowed: x"],
    ),
    "stride of no register": (
        'r = "step"',
        'r = "stepp"',
        f"{IN_LOAD}.operands.S.stride.r",
        ["did you mean step?"],
    ),
    "negative stride": (
        'r = "step"',
        "r = -1",
        f"{IN_LOAD}.operands.S.stride.r",
        ["0..4294967296"],
    ),
    "stride in a register of floats": (
        'dtype = "int32"\n\n[[channels]]',
        'dtype = "float32"\n\n[[channels]]',
        f"{IN_LOAD}.operands.S.stride.r",
        ["float32", "integer register"],
    ),
    "rows of main memory": (
        'operands.S = { memory = "main", dtype = "int8",',
        'operands.S = { memory = "main", dtype = "int8", rows = ["r"],',
        f"{IN_LOAD}.operands.S.rows",
        ["stride"],
    ),
    "elements at one place": (
        'rows = ["z"], lanes = ["y"] }',
        'rows = ["z/4", "z%4"], lanes = ["y"], stride = { "z/4" = 3 } }',
        f"{IN_PRODUCT}.operands.B.stride",
        ["B[3, 0] and B[4, 0] lie at one place"],
    ),
    "elements at one place of main memory": (
        'operands.D = { memory = "main", dtype = "int8" }',
        'operands.D = { memory = "main", dtype = "int8", stride = { r = 4 } }',
        "instructions.store.operands.D.stride",
        ["D[0, 4] and D[1, 0] lie at one place"],
    ),
    "dimensions of a scalar": (
        '{ memory = "step" }',
        '{ memory = "step", rows = ["r"] }',
        "instructions.set_step.operands.r.rows",
        ["leave it out"],
    ),
    "register with dimensions": (
        'operands.S = { memory = "main", dtype = "int8", stride = { r = "step" } }',
        'operands.S = { memory = "step" }',
        f"{IN_LOAD}.operands.S",
        ["one scalar"],
    ),
    "names of too few dimensions": (
        'rows = ["z"]',
        'dimensions = ["z"], rows = ["z"]',
        f"{IN_PRODUCT}.operands.B.dimensions",
        ["allowed: 2"],
    ),
    "name of another axis": (
        'rows = ["z"], lanes = ["y"] }',
        'dimensions = ["y", "z"], rows = ["y"], lanes = ["z"] }',
        f"{IN_PRODUCT}.operands.B.dimensions[0]",
        ["does not index this dimension alone"],
    ),
    "window without names": (
        'expression = "D[r,e] = S[r,e]"\naxes = { r = { min',
        'expression = "D[r,e] = S[2*r,e]"\naxes = { r = { min',
        f"{IN_LOAD}.operands.S.dimensions",
        ["2*r", "name each dimension"],
    ),
    # Sums, pairs, times and texts.
    "accumulate without a sum": (
        "latency_cycles = 3",
        "accumulate = false",
        "instructions.store.accumulate",
        ["+= max= min="],
    ),
    "saturating floats": (
        '"sums", dtype = "int32", rows = ["x"], lanes = ["y"] }\naccumulate = false',
        '"sums", dtype = "float32", rows = ["x"], lanes = ["y"] }\nsaturate = true',
        f"{IN_PRODUCT}.saturate",
        ["floats do not saturate"],
    ),
    "banks of one operand": (
        '[["A", "B"]]',
        '[["A", "A"]]',
        f"{IN_PRODUCT}.banks_differ[0]",
        ["two of A, B, C"],
    ),
    "banks of two memories": (
        '[["A", "B"]]',
        '[["A", "C"]]',
        f"{IN_PRODUCT}.banks_differ[0]",
        ["one memory"],
    ),
    "in place of nothing": (
        "latency_cycles = 3",
        'in_place = ["S"]',
        "instructions.store.in_place[0]",
        ["buffer, which holds no output"],
    ),
    "cycles of no axis": (
        '"r*e" = 0.125',
        '"r*q" = 0.125',
        f'{IN_LOAD}.cycles."r*q"',
        ["allowed: 1, r, e"],
    ),
    "negative cycles": ('"1" = 2', '"1" = -2', f"{IN_LOAD}.cycles.1", ["from 0"]),
    "unknown field of a text": (
        "{D.row} {S.address}",
        "{D.rows} {S.address}",
        f"{IN_LOAD}.emit",
        ["did you mean D.row?"],
    ),
    "stride of a text that is no argument": (
        "{r} {e}",
        "{S.stride.r} {e}",
        f"{IN_LOAD}.emit",
        ["unknown field {S.stride.r}"],
    ),
    "single brace": ("{r} {e}", "{r} { e", f"{IN_LOAD}.emit", ["twice"]),
    "negative latency of an instruction": (
        "latency_cycles = 3",
        "latency_cycles = -3",
        "instructions.store.latency_cycles",
        ["from 0"],
    ),
    "cycles as a negative number": (
        "latency_cycles = 3",
        "cycles = -3",
        "instructions.store.cycles",
        ["from 0"],
    ),
    "smallest size of 0": ("min = 1, max", "min = 0, max", f"{IN_LOAD}.axes.r.min", ["1..65536"]),
    "smallest size above the largest": (
        "min = 1, max = 8",
        "min = 9, max = 8",
        f"{IN_LOAD}.axes.r.min",
        ["above max, 8"],
    ),
    "banks of a memory without banks": (
        "banks = 4\n",
        "",
        f"{IN_PRODUCT}.banks_differ[0]",
        ["buffer has one bank"],
    ),
    "in place of an unknown operand": (
        "latency_cycles = 3",
        'in_place = ["Q"]',
        "instructions.store.in_place[0]",
        ["allowed: S"],
    ),
    "lane of main memory": (
        'operands.D = { memory = "main", dtype = "int8" }',
        'operands.D = { memory = "main", dtype = "int8", any_lane = true }',
        "instructions.store.operands.D.any_lane",
        ["memories of rows"],
    ),
    "name that is no name": (
        'rows = ["z"]',
        'dimensions = ["z", "y 2"], rows = ["z"]',
        f"{IN_PRODUCT}.operands.B.dimensions[1]",
        ["is not a name"],
    ),
    "name of two dimensions": (
        'rows = ["z"]',
        'dimensions = ["q", "q"], rows = ["q"]',
        f"{IN_PRODUCT}.operands.B.dimensions[1]",
        ["q is there twice"],
    ),
    "axis of two dimensions": (
        'expression = "C[x,y] += A[x,z] * B[z,y]"',
        'expression = "C[x,y] += A[x,z] * B[y,y]"',
        f"{IN_PRODUCT}.operands.B.dimensions",
        ["y, y repeat an axis"],
    ),
    # The whole machine.
    "register that nothing sets": (
        'operands.r = { memory = "step" }',
        'operands.r = { memory = "sums", dtype = "int32" }',
        "memories.step",
        ["read by load", "no instruction sets it", "add one"],
    ),
    "register that nothing reads": (
        ', stride = { r = "step" } }',
        " }",
        "memories.step",
        ["set by set_step", "leave it out"],
    ),
    "memory that nothing fills": (
        'name = "load"\nunit = "dma"\nexpression = "D[r,e] = S[r,e]"',
        'name = "load"\nunit = "dma"\nexpression = "S[r,e] = D[r,e]"',
        IN_LOAD,
        ["reads buffer", "written only by narrow"],
    ),
    "memory that nothing empties": (
        'operands.S = { memory = "buffer", dtype = "int8", rows = ["r"], lanes = ["e"] }\nlat',
        'operands.S = { memory = "main", dtype = "int8" }\nlat',
        "memories.buffer",
        ["never reaches main"],
    ),
    "sums that never begin": (
        "accumulate = false",
        "accumulate = true",
        IN_PRODUCT,
        ["adds to sums", "never begin", "accumulate = false"],
    ),
}


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
