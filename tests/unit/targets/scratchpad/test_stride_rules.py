"""Stride rules and rows of scratchpads: which layouts are transferred, and that numbers are right.

The expected answers are those of docs/scratchpad.md, "Tiles, strides and rows", written again here.
A distance that the instruction fixes is a constant of its C function, so that a box with another
one gives wrong numbers or reads what nobody wrote.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError, SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import reference
from cpembed.targets.scratchpad.boxes import BoxProduct, lower
from cpembed.targets.scratchpad.executor import program
from cpembed.targets.scratchpad.machine import scratchpad_machine
from cpembed.targets.scratchpad.schedule import Plan, Schedule, check, require_proven
from cpembed.targets.scratchpad.space import ScratchpadSpace
from tests.unit.targets.scratchpad.executor.running import needs_compiler
from tests.unit.targets.scratchpad.plans import random_schedule, small_inputs

EXTENTS = {"x": 4, "y": 2, "z": 8}
AXES = {"A": "xz", "B": "zy", "C": "xy"}
FEEDS = {"x": "m", "y": "n", "z": "k"}
ROW = 16


def text(rng: random.Random) -> tuple[str, dict[str, list[str]], dict[str, set[str]], set[str]]:
    """A unit with random tiles, strides and rows; the tiles, the free axes, scopes with rows."""
    tiles = {name: rng.sample(list(axes), len(axes)) for name, axes in AXES.items()}
    with_rows = {name for name in AXES if rng.random() < 0.5}
    free = {name: {a for a in AXES[name] if rng.random() < 0.5} for name in AXES}
    for name in with_rows:
        free[name].discard(tiles[name][-1])
    lines = [
        'name = "unit"', 'description = "a unit"', 'source = "this test"',
        'backend = "scratchpad"', 'constraints = "boxes"', "[instruction]",
        'expression = "C[x,y] += A[x,z] * B[z,y]"', "[instruction.axes]",
        *(f"{axis} = {extent}" for axis, extent in EXTENTS.items()),
    ]  # fmt: skip
    for name in AXES:
        tile = ", ".join(f'"{axis}"' for axis in tiles[name])
        stride = ", ".join(f'{axis} = "any"' for axis in sorted(free[name]))
        dtype = "int32" if name == "C" else "int8"
        lines += [
            f"[operands.{name}]", f'dtype = "{dtype}"', f'scope = "m.{name}"', f"tile = [{tile}]",
            f"stride = {{ {stride} }}", f'[memories."m.{name}"]', "capacity_bytes = 65536",
            *([f"row_elements = {ROW}"] if name in with_rows else []),
        ]  # fmt: skip
    lines += [
        "[machines.m]", 'source = "this test"', 'known = "assumed"', "clock_mhz = 1000",
        "[machines.m.compute]", "cycles = 4",
        *(f'[machines.m.memories."m.{name}"]\nparent = "dram"' for name in AXES),
        "[machines.m.memories.dram]", "read_bytes_per_cycle = 8", "write_bytes_per_cycle = 8",
    ]  # fmt: skip
    return "\n".join(lines), tiles, free, with_rows


def layer(rng: random.Random, *, window: bool) -> Computation:
    """A product whose operands have their dimensions in any order, perhaps with a window."""
    dimensions = {"A": ["m", "k"], "B": ["k", "n"], "C": ["m", "n"]}
    if rng.random() < 0.3:
        for each in dimensions.values():
            each.append("b")
    for each in dimensions.values():
        rng.shuffle(each)
    if window:
        dimensions["A"] = ["m+w" if d == "m" else d for d in dimensions["A"]]
        dimensions["B"].insert(rng.randrange(3), "w")
    c, a, b = (f"{name}[{','.join(dimensions[name])}]" for name in "CAB")
    expression = f"{c} += {a} * {b}"
    sizes = {"m": (4, 6, 8, 11), "n": (2, 4, 5), "k": (8, 16, 19), "b": (1, 3), "w": (1, 2, 3)}
    extents = {n: rng.choice(s) for n, s in sizes.items() if re.search(rf"\b{n}\b", expression)}
    return parse_computation(expression, extents, name="layer")


def products(spec: HardwareSpec, given: Computation) -> list[BoxProduct]:
    """Those with the instruction's axes on the workload's of the same role."""
    return [
        lower(each.candidate.program, scratchpad_machine(spec))
        for each in solve(given, spec, top=40).embeddings
        if {axis: [d.axis for d in digits] for axis, digits in each.embedding.digits.items()}
        == {axis: [name] for axis, name in FEEDS.items()}
        and each.candidate.program.roles == {name: name for name in AXES}
    ]


def fills_rows(name: str, given: Computation, tiles: dict[str, list[str]]) -> bool:
    """Whether neighbours along the last axis of a tile are neighbours in main memory."""
    fed = FEEDS[tiles[name][-1]]
    # Dimensions of one element separate nothing.
    sizes = zip(given.access(name).index, given.operand(name).shape, strict=True)
    last = [index.iterators for index, size in sizes if size > 1][-1:]
    return given.extents[fed] == 1 or (bool(last) and fed in last[0])


def checked(product: BoxProduct, schedule: Schedule) -> tuple[Plan | None, str]:
    try:
        return check(Plan(product, schedule)), ""
    except LoweringError as error:
        return None, str(error)


def check_case(folder: Path, seed: int) -> tuple[int, int]:
    """Check one random unit with a random layer; how many plans ran, and were rejected."""
    rng = random.Random(seed)
    contents, tiles, _, with_rows = text(rng)
    path = folder / f"unit{seed}.toml"
    path.write_text(contents)
    spec = load_hardware_spec(path)
    window = rng.random() < 0.3
    given = layer(rng, window=window)
    ran = rejected = 0
    for product in products(spec, given)[:1]:
        for _ in range(2):
            schedule = random_schedule(rng, product)
            ahead = {o.name for o in product.operands if o.constant and schedule.ahead}
            expected = all(name in ahead or fills_rows(name, given, tiles) for name in with_rows)
            plan, reason = checked(product, schedule)
            if plan is None:
                rejected += 1
                slides = window and dict(schedule.tile)["w"] > 1 and "in a window of" in reason
                assert not expected or slides, f"{seed}: {given}: {reason}\n{contents}"
                continue
            assert expected, f"{seed}: {given}: {schedule}\n{contents}"
            require_proven(plan)
            inputs = small_inputs(given, seed)
            made = program(plan)
            for order in (1, 2):
                result = made.run(inputs, order)
                np.testing.assert_array_equal(result, reference(given, inputs), err_msg=contents)
            assert made.counters is not None
            assert all(p <= u for p, u in zip(made.counters.peaks, plan.used, strict=True))
            ran += 1
    return ran, rejected


@needs_compiler
def test_any_tile_is_dense_in_the_scratchpad_and_rows_are_rows_of_main_memory(
    tmp_path: Path,
) -> None:
    ran, rejected = map(sum, zip(*(check_case(tmp_path, seed) for seed in range(24)), strict=True))
    assert ran > 8
    assert rejected > 8


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_hundreds_of_units_hold_their_tiles_as_they_say(tmp_path: Path, part: int) -> None:
    first = 100 + 60 * part
    for seed in range(first, first + 60):
        check_case(tmp_path, seed)


def unit(folder: Path, change: tuple[str, str] = ("", "")) -> HardwareSpec:
    """The unit of a gemm whose tile is dense: no stride is declared."""
    base = Path(__file__).parents[4] / "hw_specs" / "gemmini_16x16.toml"
    contents = re.sub(r"^(stride|row_elements) = .*$", "", base.read_text(), flags=re.MULTILINE)
    contents = contents.replace("rows = 16_384", "capacity_bytes = 262_144")
    contents = contents.replace("rows = 1_024", "capacity_bytes = 65_536")
    assert change[0] in contents
    path = folder / "dense.toml"
    path.write_text(contents.replace(*change) if change[0] else contents)
    return load_hardware_spec(path)


@needs_compiler
def test_a_dense_tile_of_a_larger_matrix_is_transferred_tile_by_tile(tmp_path: Path) -> None:
    spec = unit(tmp_path)
    given = parse_computation("C[m,n] += A[m,k] * B[k,n]", {"m": 64, "n": 64, "k": 64})
    (product, *_) = products(spec, given)
    plan = Plan(product, ScratchpadSpace(product).best().schedule)
    made = program(plan)
    inputs = small_inputs(given, 0)
    np.testing.assert_array_equal(made.run(inputs, 1), reference(given, inputs))
    assert "execute_gemmini_16x16(const int8_t *a, const int8_t *b, int32_t *c)" in made.text
    assert "a[at_x * 16 + at_z * 1]" in made.text
    # 4 x 4 tiles of C, each a transfer of 16 rows of 16 elements.
    assert made.counters is not None
    assert made.counters.moved[2, "put"].transfers == 16
    assert made.counters.moved[2, "put"].bytes == 64 * 64 * 4


def test_rows_count_in_the_capacity(tmp_path: Path) -> None:
    """Eight of the sixteen elements of a row are wasted by a tile of eight."""
    spec = hardware_spec("gemmini_16x16")
    assert spec.memories == {"gemmini.scratchpad": 262_144, "gemmini.accumulator": 65_536}
    base = Path(spec.path).read_text()
    path = tmp_path / "narrow.toml"
    path.write_text(base.replace("y = 16", "y = 8"))
    machine = scratchpad_machine(load_hardware_spec(path))
    given = parse_computation("C[m,n] += A[m,k] * B[k,n]", {"m": 16, "n": 8, "k": 16})
    (product, *_) = products(load_hardware_spec(path), given)
    plan = Plan(product, ScratchpadSpace(product).best().schedule)
    # A and B have 16 rows of 16 bytes each, C has 16 rows of 16 int32.
    assert plan.used == (2 * 16 * 16, 16 * 16 * 4)
    assert machine.distances == {
        "A": {"x": None, "z": 1}, "B": {"z": 16, "y": 1}, "C": {"x": None, "y": 1},
    }  # fmt: skip


@pytest.mark.parametrize(
    "old, new, problem",
    [
        ("rows = 16_384", "rows = 16_384\ncapacity_bytes = 1024", "capacity_bytes: the number of "),
        ("row_elements = 16   ", "#", "row_elements: is missing: `rows` counts rows"),
        ("row_elements = 16   ", "row_elements = 8 #", "A.tile: z has 16 elements, and a row of "),
        ("row_elements = 16   ", "row_elements = 0 #", "row_elements: 0 is not allowed; allowed"),
        ('dtype = "int8"', 'dtype = ["int8", "int16"]', "rows of int16, int8 have different sizes"),
        (
            "rows = 16_384",
            "rows = 31",
            '".rows: 31 (496 bytes) is too small for the tiles of A, B together',
        ),
        ('tile = ["z", "y"]', 'tile = ["z", "y"]\nstride = { y = "any" }', "has rows, of which"),
        ('tile = ["z", "y"]', 'tile = ["z/2", "y", "z%2"]', "z%2 has 2 elements"),
    ],
)
def test_wrong_rows_are_one_line(tmp_path: Path, old: str, new: str, problem: str) -> None:
    contents = Path(hardware_spec("gemmini_16x16").path).read_text()
    assert old in contents
    path = tmp_path / "wrong.toml"
    path.write_text(contents.replace(old, new, 1))
    if problem.startswith("z%2"):
        problem = "z/2 is a part of z, and boxes hold axes whole; allowed: z"
    with pytest.raises(SpecError) as caught:
        scratchpad_machine(load_hardware_spec(path))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_rejection_names_the_layout_that_would_do() -> None:
    spec = hardware_spec("gemmini_16x16")
    machine = scratchpad_machine(spec)
    words = "conv2d n=1 c=16 h=8 w=8 k=16 r=3 s=3"
    first = solve(workload(words, spec), spec, top=1).embeddings[0].candidate.program
    with pytest.raises(
        LoweringError, match=r"I\[n, p \+ r, q \+ s, c\], which is layout=NHWC, would do"
    ):
        ScratchpadSpace(lower(first, machine)).best()
    last = solve(workload(f"{words} layout=NHWC", spec), spec, top=1).embeddings[0]
    assert ScratchpadSpace(lower(last.candidate.program, machine)).best().cost > 0


def test_a_window_without_a_stride_names_the_declaration(tmp_path: Path) -> None:
    """Neighbours along x have no one distance where two taps are held at a time."""
    spec = unit(tmp_path)
    given = parse_computation("C[m,n] += A[m+w,k] * B[k,n,w]", {"m": 16, "n": 16, "k": 32, "w": 2})
    (product, *_) = products(spec, given)
    schedule = Schedule((("m", 16), ("n", 16), ("k", 32), ("w", 2)), ("m", "n", "k", "w"), 1, False)
    with pytest.raises(LoweringError, match=r'declare stride = \{ x = "any" \} of A'):
        check(Plan(product, schedule))
    one_tap = Schedule(
        (("m", 16), ("n", 16), ("k", 32), ("w", 1)), ("m", "n", "k", "w"), 1, ahead=False
    )
    require_proven(check(Plan(product, one_tap)))
