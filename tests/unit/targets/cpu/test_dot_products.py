"""Dot products of any register: described by fields, here with calls that every processor has."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.plan import Knobs
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.cpu.dot_products import (
    DotProduct,
    Registers,
    column_back_end,
    column_registers,
    sum_registers,
)
from cpembed.targets.cpu.lowering import BackEnd, Lowered
from cpembed.transform.program import DerivedProgram
from tests.running import verify
from tests.unit.codegen.handwritten import conv2d_program, gemm_program

SHAPES = [(16, 1, 2), (32, 1, 4), (16, 2, 8), (16, 1, 4)]
"""Bytes of a register, rows, depth."""


def plain(size: int, rows: int, depth: int) -> DotProduct:
    """``int8`` by ``int8`` in multiplications and additions of LLVM's own."""
    sums, columns = size // 4, size // 4 // rows
    whole, name = columns * depth, f"plain_{size}_{rows}_{depth}"

    def part(vector: str, at: list[int]) -> str:
        places = ", ".join(f"i32 {place}" for place in at)
        kind = f"<{whole} x i8>"
        return f"shufflevector {kind} {vector}, {kind} zeroinitializer, <{sums} x i32> <{places}>"

    body, total = list[str](), "%c"
    points = [(row, column) for row in range(rows) for column in range(columns)]
    for k in range(depth):
        a = [(row if rows > 1 else column) * depth + k for row, column in points]
        body += [
            f"%a{k} = {part('%a', a)}",
            f"%b{k} = {part('%b', [column * depth + k for _, column in points])}",
            f"%x{k} = sext <{sums} x i8> %a{k} to <{sums} x i32>",
            f"%y{k} = sext <{sums} x i8> %b{k} to <{sums} x i32>",
            f"%p{k} = mul <{sums} x i32> %x{k}, %y{k}",
            f"%s{k} = add <{sums} x i32> {total}, %p{k}",
        ]
        total = f"%s{k}"
    head = f"define <{sums} x i32> @{name}(<{sums} x i32> %c, <{whole} x i8> %a, <{whole} x i8> %b)"
    lines = "\n  ".join([*body, f"ret <{sums} x i32> {total}"])
    functions = f"{head} alwaysinline {{\n  {lines}\n}}\n"

    def call(sums_now: str, first: str, second: str, _: bool) -> str:
        return f'T.call_extern("int32x{sums}", "{name}", {sums_now}, {first}, {second})'

    def add_up(vector: str) -> str:
        number = f'T.llvm_lookup_intrinsic_id("llvm.vector.reduce.add.v{sums}i32")'
        return f'T.call_llvm_pure_intrin({number}, {vector}, dtype="int32")'

    return DotProduct(
        name=name,
        feature="",
        backend="plain",
        registers=Registers(16, size),
        depth=depth,
        factors=("int8", "int8"),
        sums="int32",
        timed="vpdpbusd",
        call=call,
        total=add_up,
        rows=rows,
        functions=functions,
    )


def spec_of(folder: Path, dot: DotProduct) -> HardwareSpec:
    """A specification with the instruction's shape."""
    x = [("x", dot.rows)] if dot.rows > 1 else []
    axes = dict([*x, ("y", dot.lanes), ("z", dot.depth)])
    rows = [name for name, _ in x]
    tiles = {"A": [*rows, "z"], "B": ["y", "z"], "C": [*rows, "y"]}
    product = " * ".join(f"{name}[{','.join(tiles[name])}]" for name in "AB")
    lines = ['name = "plain"', 'description = "plain"', 'source = "this test"', "[instruction]"]
    lines += [f'expression = "C[{",".join(tiles["C"])}] += {product}"', "[instruction.axes]"]
    lines += [f"{name} = {extent}" for name, extent in axes.items()]
    for name, tile in tiles.items():
        dtype = "int32" if name == "C" else "int8"
        lines += [f"[operands.{name}]", f'dtype = "{dtype}"', 'scope = "v"', f"tile = {tile}"]
    lines += ["[memories.v]", "capacity_bytes = 512"]
    path = folder / "plain.toml"
    path.write_text("\n".join(lines))
    return load_hardware_spec(path)


def verified(back_end: BackEnd, program: DerivedProgram, epilogue: Epilogue | None = None) -> None:
    """The first schedule and the last are right."""
    lowered = Lowered.from_program(program, back_end, epilogue)
    ranked = lowered.schedules.ranked()
    for _, knobs in (ranked[0], ranked[-1]):
        kernel = lowered.compiled(knobs)
        assert verify(kernel, program.workload).verified, knobs


@pytest.mark.slow
@pytest.mark.parametrize("size, rows, depth", SHAPES)
def test_products_and_convolutions_are_exact_in_every_register(
    tmp_path: Path, size: int, rows: int, depth: int
) -> None:
    dot = plain(size, rows, depth)
    spec, back_end = spec_of(tmp_path, dot), column_back_end(dot)
    gemm = gemm_program(spec, m=14, n=19, k=23, rows=rows, depth=depth, dtype="int8,int8")
    verified(back_end, gemm)
    verified(back_end, gemm, Epilogue("int8", bias=True, scale=True, relu=True))
    sizes = {"n": 1, "k": 11, "c": 13, "h": 6, "w": 7, "r": 3, "s": 3}
    convolution = conv2d_program(
        spec, sizes=sizes, pad=1, rows=rows, depth=depth, dtype="int8,int8"
    )
    verified(back_end, convolution)


def test_a_register_that_is_not_filled_is_refused(tmp_path: Path) -> None:
    dot = plain(16, 1, 4)
    program = gemm_program(spec_of(tmp_path, plain(32, 1, 4)), m=4, n=16, k=8, dtype="int8,int8")
    with pytest.raises(LoweringError, match="needs 4 lanes of 4 neighbours"):
        Lowered.from_program(program, column_back_end(dot))
    square = plain(16, 2, 8)
    with pytest.raises(LoweringError, match="needs 2 rows, 2 lanes of 8 neighbours"):
        Lowered.from_program(program, column_back_end(square))


def test_blocks_leave_registers_to_what_is_loaded() -> None:
    few, many = (column_registers(plain(16, 1, depth)) for depth in (2, 4))
    assert few.fits(6, 2)
    assert not few.fits(4, 3)
    assert many.fits(6, 2)
    assert sum_registers(plain(16, 1, 4)).fits(3, 2)
    assert not sum_registers(plain(16, 1, 4)).fits(3, 3)


def test_knobs_beyond_the_registers_are_refused(tmp_path: Path) -> None:
    dot = plain(16, 1, 4)
    program = gemm_program(spec_of(tmp_path, dot), m=16, n=16, k=8, dtype="int8,int8")
    lowered = Lowered.from_program(program, column_back_end(dot))
    with pytest.raises(LoweringError, match="does not fit the registers"):
        lowered.compiled(Knobs({"m.o": 8, "n.o": 4}))
