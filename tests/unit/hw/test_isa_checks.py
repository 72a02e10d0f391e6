"""Checks of instruction sets against enumeration."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from cpembed.errors import SpecError
from cpembed.hw.instruction import TileDimension
from cpembed.hw.isa import OperandPlace, StrideSource
from cpembed.hw.isa_places import first_overlap
from cpembed.hw.isa_reader import load_instruction_set, read_instruction_set
from cpembed.ir.arithmetic import evaluate
from cpembed.ir.dtypes import dtype_info
from cpembed.ir.grammar import parse_body
from cpembed.ir.ranges import typed_range
from tests.unit.hw.isa_toy import SMALL_SET, saved


def random_place(rng: random.Random) -> tuple[OperandPlace, dict[str, int]]:
    """A place of random digits, some of them lanes, with random strides; and sizes."""
    sizes = {name: rng.randint(1, 7) for name in "ab"[: rng.randint(1, 2)]}
    digits: list[TileDimension] = []
    for name in sizes:
        divisor = rng.choice((1, 2, 3))
        digits += [TileDimension(name, divisor)] if divisor > 1 else []
        digits.append(TileDimension(name, 1, divisor if divisor > 1 else None))
    rng.shuffle(digits)
    cut = rng.randint(0, len(digits))
    rows, lanes = tuple(digits[:cut]), tuple(digits[cut:])
    strides: dict[str, int | str] = {
        str(digit): rng.choice((StrideSource.DENSE, 0, 1, 2, 3, 4)) for digit in rows
    }
    place = OperandPlace(
        memory="m",
        dtype="int8",
        dimensions=tuple(sizes),
        rows=rows,
        lanes=lanes,
        strides=strides,
    )
    return place, sizes


def location(
    place: OperandPlace, sizes: dict[str, int], element: dict[str, int]
) -> tuple[int, ...]:
    """Row and lane digits of an element, one digit after the other."""
    row, inside = 0, 1
    for digit in reversed(place.rows):
        value = element[digit.axis] // digit.divisor
        value = value % digit.modulus if digit.modulus else value
        stride = place.strides[str(digit)]
        row += value * (inside if stride is StrideSource.DENSE else int(stride))
        inside *= digit.size(sizes[digit.axis])
    lanes = [element[digit.axis] // digit.divisor for digit in place.lanes]
    moduli = [digit.modulus for digit in place.lanes]
    return (row, *(v % m if m else v for v, m in zip(lanes, moduli, strict=True)))


def test_overlaps_are_those_of_an_enumeration() -> None:
    rng = random.Random(1)
    outcomes: set[bool] = set()
    for _ in range(400):
        place, sizes = random_place(rng)
        elements = [
            dict(zip(sizes, values, strict=True))
            for values in itertools.product(*(range(size) for size in sizes.values()))
        ]
        places = [location(place, sizes, element) for element in elements]
        shared = first_overlap(place, sizes)
        assert (shared is None) == (len(set(places)) == len(places)), (place, sizes)
        if shared is not None:
            first, second = (dict(zip(sizes, element, strict=True)) for element in shared)
            assert first != second
            assert location(place, sizes, first) == location(place, sizes, second)
        outcomes.add(shared is None)
    assert outcomes == {True, False}


def test_an_overlap_at_smaller_sizes_alone_is_refused(tmp_path: Path) -> None:
    # Dense blocks of r rows in steps of 3: at r = 8 no two rows meet, at r = 3 they do.
    text = SMALL_SET.replace("e = { max = 8 } }", "e = { max = 4 } }", 1)
    old = 'rows = ["r"], lanes = ["e"], any_lane = true'
    text = text.replace(old, 'rows = ["e", "r"], stride = { r = 3 }')
    with pytest.raises(SpecError, match=r"D\[.*\] and D\[.*\] lie at one place \(sizes r 3"):
        load_instruction_set(saved(tmp_path, text))
    assert load_instruction_set(saved(tmp_path, text.replace("min = 1", "min = 8")))


def copies(edges: list[tuple[str, str]]) -> dict[str, object]:
    """Tables of a machine whose instructions copy from memory to memory."""
    names = sorted({name for edge in edges for name in edge} | {"main"})

    def operand(name: str) -> dict[str, object]:
        place: dict[str, object] = {"memory": name, "dtype": "int8"}
        return place if name == "main" else {**place, "rows": ["r"]}

    return {
        "name": "copies",
        "description": "copies",
        "source": "made up",
        "known": "assumed",
        "clock_mhz": 1.0,
        "units": ["u"],
        "memories": {
            name: {"kind": "main"} if name == "main" else {"rows": 8, "row_bytes": 1}
            for name in names
        },
        "instructions": [
            {
                "name": f"copy{number}",
                "unit": "u",
                "expression": "D[r] = S[r]",
                "axes": {"r": 4},
                "operands": {"S": operand(source), "D": operand(to)},
            }
            for number, (source, to) in enumerate(edges)
        ],
    }


def reached(start: str, edges: list[tuple[str, str]]) -> set[str]:
    """Memories at the end of any path, by following every path."""
    paths, ends = [[start]], {start}
    while paths:
        path = paths.pop()
        for source, to in edges:
            if source == path[-1] and to not in path:
                ends.add(to)
                paths.append([*path, to])
    return ends


def test_memories_are_fed_and_emptied_as_paths_say() -> None:
    rng = random.Random(2)
    outcomes: list[str] = []
    for _ in range(300):
        names = ["main", "a", "b", "c"][: rng.randint(2, 4)]
        edges = list({(rng.choice(names), rng.choice(names)) for _ in range(rng.randint(1, 7))})
        used = {name for edge in edges for name in edge}
        fed = used <= reached("main", edges)
        emptied = used <= reached("main", [(to, source) for source, to in edges])
        try:
            read_instruction_set(copies(edges), "copies.toml")
        except SpecError as error:
            outcomes.append("fed" if "never reaches" in str(error) else "unfed")
        else:
            outcomes.append("whole")
        expected = "unfed" if not fed else "whole" if emptied else "fed"
        # A machine whose main memory is not in use is refused for that first.
        if "main" in used:
            assert outcomes[-1] == expected, (edges, outcomes[-1])
    assert set(outcomes) == {"fed", "unfed", "whole"}


@pytest.mark.parametrize(
    "text",
    [
        "A[] * B[]",
        "A[] + B[] - A[] * B[]",
        "abs(A[]) * neg(B[])",
        "max(A[], B[]) * min(A[], 3)",
        "(A[] - B[]) * B[]",
        "int8(A[] * 100)",
    ],
)
def test_ranges_hold_every_value(text: str) -> None:
    expression = parse_body(f"C[] = {text}").statements[0].value
    for dtypes in ({"A": "int4", "B": "uint4"}, {"A": "int4", "B": "int4"}):
        bounds = typed_range(expression, dtypes)
        assert bounds is not None
        ends = (dtype_info(dtypes[name]).integer_range for name in "AB")
        grids = np.meshgrid(*(np.arange(low, high + 1) for low, high in ends), indexing="ij")
        numbers = dict(zip("AB", grids, strict=True))
        values = evaluate(expression, lambda access, n=numbers: n[access.operand], wide=False)
        least, largest = int(values.min()), int(values.max())
        assert bounds[0] <= least
        assert largest <= bounds[1]
        # Bounds of a product of different operands are met.
        if text == "A[] * B[]":
            assert bounds == (least, largest)


@pytest.mark.parametrize(
    "factors, sums, summands",
    [
        ("int8", "int16", 1),
        ("int4", "int16", 511),
        ("int8", "int32", None),
        ("uint8", "int32", None),
    ],
)
def test_sums_that_few_products_overflow_are_named(
    factors: str, sums: str, summands: int | None, tmp_path: Path
) -> None:
    old = 'operands.A = { memory = "buffer", dtype = "int8"'
    text = SMALL_SET.replace(old, old.replace("int8", factors))
    old = 'operands.B = { memory = "buffer", dtype = "int8"'
    text = text.replace(old, old.replace("int8", factors))
    text = text.replace('"sums", dtype = "int32"', f'"sums", dtype = "{sums}"')
    warnings = load_instruction_set(saved(tmp_path, text)).warnings
    saturating = text.replace("accumulate = false", "accumulate = false\nsaturate = true")
    assert not load_instruction_set(saved(tmp_path, saturating)).warnings
    if summands is None:
        assert not warnings
        return
    (line,) = warnings
    assert line.startswith(f"product: C ({sums} in sums) holds any {summands} summand")
    # The largest product so many times fits, and once more does not.
    low, high = dtype_info(factors).integer_range
    largest = max(low * low, high * high)
    limit = dtype_info(sums).integer_range[1]
    assert summands * largest <= limit < (summands + 1) * largest
