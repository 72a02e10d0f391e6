"""What a back end refuses, and what happens then."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from cpembed.codegen.plan import Knobs, LoopOrder
from cpembed.codegen.program_nest import kernel_nest
from cpembed.errors import BackendUnavailable, LoweringError, WorkloadError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import random_inputs
from cpembed.targets.cpu import dot_products
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.targets.x86 import amx, features
from cpembed.targets.x86.amx_tiles import TILES, TileGrid, fits
from cpembed.transform.program import DerivedProgram
from tests.running import verify
from tests.unit.codegen.handwritten import expr, gemm_program

VNNI = load_hardware_spec("avx512_vnni")
AMX = load_hardware_spec("amx_int8")


def broken_rows() -> DerivedProgram:
    """An AMX product whose rows of A lie at two distances: pairs of rows, pairs apart."""
    program = gemm_program(AMX, m=8, n=16, k=64, rows=8, depth=64)
    a, b, c = program.operands
    wide = replace(
        a,
        dimensions=(
            replace(a.dimensions[0], extent=5),
            *a.dimensions[1:2],
            replace(a.dimensions[2], extent=2),
            a.dimensions[3],
        ),
        source=(expr(("mo", 2), ("xi", 1)), a.source[1]),
        access=(expr(("x", 1, 2, None)), a.access[1], expr(("x", 1, 1, 2)), a.access[3]),
    )
    far = replace(
        wide,
        dimensions=(
            wide.dimensions[0],
            replace(wide.dimensions[1], extent=3),
            *wide.dimensions[2:],
        ),
    )
    return replace(program, operands=(far, b, c))


def test_amx_refuses_rows_at_no_constant_distance() -> None:
    program = broken_rows()
    space = schedule_space(program, AMX)
    with pytest.raises(LoweringError, match="no constant distance"):
        amx.plan(program, space.scheduled(program, space.best()))


def test_auto_falls_back_to_generic_code_that_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(features.ASSUME_VARIABLE, "amx_tile,amx_int8")
    kernel = build(broken_rows(), AMX, backend="auto")
    assert kernel.backend == "generic"
    assert "no constant distance" in str(kernel.fallback)
    assert verify(kernel, kernel.program.workload).verified


def test_native_without_the_instruction_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "cpu_features", frozenset)
    program = gemm_program(VNNI, m=4, n=16, k=4)
    with pytest.raises(BackendUnavailable, match="avx512_vnni"):
        build(program, VNNI, backend="native")
    assert build(program, VNNI, backend="auto").backend == "generic"


def test_native_for_a_target_without_a_back_end_is_unavailable() -> None:
    vta = load_hardware_spec("vta_1x16x16")
    program = gemm_program(vta, m=4, n=16, k=16, depth=16, dtype="int8")
    with pytest.raises(BackendUnavailable, match="vta_1x16x16"):
        build(program, vta, backend="native")


def test_vnni_refuses_other_types() -> None:
    program = gemm_program(VNNI, m=4, n=16, k=4, dtype="int8,int8")
    with pytest.raises(LoweringError, match="uint8 by int8"):
        schedule_space(program, VNNI)


def test_vnni_refuses_depth_that_is_apart() -> None:
    program = gemm_program(VNNI, m=4, n=16, k=4)
    a, *others = program.operands
    apart = replace(
        a,
        dimensions=(*a.dimensions[:-1], replace(a.dimensions[-1], extent=8)),
        access=(*a.access[:-1], expr(("z", 2))),
    )
    with pytest.raises(LoweringError, match="stride 1, not 2"):
        schedule_space(replace(program, operands=(apart, *others)), VNNI)


def test_only_product_sums_have_kernels() -> None:
    program = gemm_program(VNNI, m=4, n=16, k=4)
    maximum = parse_computation("C[m] max= A[m,k] * B[k]", {"m": 4, "k": 4})
    with pytest.raises(LoweringError, match="not a product-sum"):
        kernel_nest(replace(program, workload=maximum))


def test_operands_beyond_32_bit_indices_are_refused() -> None:
    program = gemm_program(VNNI, m=4, n=16, k=4)
    a, *others = program.operands
    huge = replace(a, dimensions=(replace(a.dimensions[0], extent=2**31), *a.dimensions[1:]))
    with pytest.raises(LoweringError, match="indexes at most 2,147,483,647: run a part"):
        kernel_nest(replace(program, operands=(huge, *others)))


def test_wrong_arrays_are_refused() -> None:
    program = gemm_program(VNNI, m=4, n=16, k=4)
    kernel = build(program, VNNI, backend="generic")
    inputs = random_inputs(program.workload, 0)
    with pytest.raises(WorkloadError, match="operand A is"):
        kernel.run({**inputs, "A": inputs["A"][:2]})


@pytest.mark.parametrize("rows, columns", [(2, 2), (1, 6), (6, 1), (1, 4), (3, 1), (1, 1)])
def test_tiles_of_different_kinds_never_share_a_register(rows: int, columns: int) -> None:
    assert fits(rows, columns)
    grid = TileGrid(
        rows=14,
        columns=16,
        depth=64,
        group=4,
        a_offsets=tuple(range(rows)),
        b_offsets=tuple(range(columns)),
        c_offsets=(),
        a_stride=64,
        b_stride=64,
        c_stride=16,
    )
    accumulators = {grid.accumulator(i, j) for i in range(rows) for j in range(columns)}
    a_tiles = {grid.a_tile(i) for i in range(rows)}
    b_tiles = {grid.b_tile(j) for j in range(columns)}
    assert len(accumulators) == rows * columns
    assert not accumulators & a_tiles
    assert not accumulators & b_tiles
    assert not a_tiles & b_tiles
    assert accumulators | a_tiles | b_tiles <= set(range(TILES))
    resident = a_tiles if grid.rows_resident else b_tiles
    assert len(resident) == min(rows, columns)


def test_the_tile_configuration_gives_each_tile_its_shape() -> None:
    grid = TileGrid(
        rows=14,
        columns=16,
        depth=64,
        group=4,
        a_offsets=(0, 1),
        b_offsets=(0, 1),
        c_offsets=(),
        a_stride=64,
        b_stride=64,
        c_stride=16,
    )
    data = grid.configuration()
    assert len(data) == 64
    assert data[0] == 1
    assert list(data[48:56]) == [14, 14, 14, 14, 14, 14, 16, 16]
    assert [data[16 + 2 * t] | data[17 + 2 * t] << 8 for t in range(TILES)] == [64] * 8


def test_amx_loads_only_into_planned_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM must not rename tile registers: a tile has a configured shape."""
    monkeypatch.setenv(features.ASSUME_VARIABLE, "amx_tile,amx_int8")
    program = gemm_program(AMX, m=16, n=16, k=256, rows=16, depth=64)  # one accumulator: 0, 1, 2
    assembly = build(program, AMX, backend="native").assembly()
    loads = [line for line in assembly.splitlines() if "tileloadd" in line]
    assert {line.split("%tmm")[1][0] for line in loads} == {"1", "2"}


@pytest.mark.quick(1)
@pytest.mark.parametrize("order", get_args(LoopOrder))
def test_the_factor_that_inner_tasks_move_can_go_past_the_near_cache(
    monkeypatch: pytest.MonkeyPatch, order: LoopOrder
) -> None:
    monkeypatch.setenv(features.ASSUME_VARIABLE, "amx_tile,amx_int8")
    program = gemm_program(AMX, m=64, n=64, k=128, rows=16, depth=64)
    blocks = dict.fromkeys(schedule_space(program, AMX).best().register_tiles, 2)
    assert len(blocks) == 2
    usual, streamed = (
        build(program, AMX, backend="native", knobs=Knobs(blocks, order, {}, streams))
        .assembly()
        .splitlines()
        for streams in (False, True)
    )

    def tiles(assembly: list[str], name: str) -> list[str]:
        return [line.split("%tmm")[1] for line in assembly if line.split()[:1] == [name]]

    assert not tiles(usual, "tileloaddt1")
    past = tiles(streamed, "tileloaddt1")
    assert sorted(past + tiles(streamed, "tileloadd")) == sorted(tiles(usual, "tileloadd"))
    # Tiles 4 and 5 hold rows, 6 and 7 columns.
    assert set(past) == ({"4", "5"} if order == "columns" else {"6", "7"})


def test_only_tiles_go_past_the_near_cache() -> None:
    program = gemm_program(VNNI, m=4, n=16, k=4)
    with pytest.raises(LoweringError, match="only loads of tiles"):
        schedule_space(program, VNNI).applied(Knobs(non_temporal=True))


def test_an_intrinsic_that_does_not_match_is_a_lowering_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(features.ASSUME_VARIABLE, "avx512f,avx512_vnni")
    right = dot_products.dot_sources

    def wrong(
        dot: dot_products.DotProduct, first: str, second: str, apart: int, *, broadcast: bool
    ) -> tuple[str, str]:
        return right(dot, second, first, apart, broadcast=broadcast)

    monkeypatch.setattr(dot_products, "dot_sources", wrong)
    with pytest.raises(LoweringError, match="does not match the program") as caught:
        build(gemm_program(VNNI, m=4, n=16, k=4), VNNI, backend="native")
    assert "\n" not in str(caught.value)
