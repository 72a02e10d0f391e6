"""Intel AMX: tile products with the accumulators kept in tile registers."""

from __future__ import annotations

from typing import Any

from cpembed.backends.blocking import split_lanes
from cpembed.backends.contract import KernelPlan, Knobs
from cpembed.backends.contraction import INIT, STORE, UPDATE, contraction_source
from cpembed.backends.nest import Nest, kernel_nest
from cpembed.backends.x86.amx_intrinsics import (
    configuration_statements,
    init_intrinsic,
    register,
    release_statements,
    store_intrinsic,
    update_intrinsic,
)
from cpembed.backends.x86.register_blocks import RegisterModel, apply_knobs, knob_candidates
from cpembed.backends.x86.roles import LaneRoles, lane_roles
from cpembed.backends.x86.tiles import TILES, fits, tile_grid
from cpembed.errors import LoweringError
from cpembed.transform.program import DerivedProgram

_PRODUCTS = {
    ("uint8", "uint8", "int32"): "tdpbuud",
    ("uint8", "int8", "int32"): "tdpbusd",
    ("int8", "uint8", "int32"): "tdpbsud",
    ("int8", "int8", "int32"): "tdpbssd",
    ("bfloat16", "bfloat16", "float32"): "tdpbf16ps",
}
_GROUPS = {"tdpbf16ps": 2}
"""Depth steps in a 32-bit word of B; four where not listed."""

_LATENCY = 52
"""Cycles from a product to one that adds to its result."""

_ATTRIBUTES = ("+amx-tile", "+amx-int8", "+amx-bf16")

_OPTIONS = ("-disable-post-ra:bool=true",)
"""LLVM's post-allocation scheduler, which some CPU models enable, renames registers to break
dependencies. It does not know that a tile register has a configured shape, so it must not run."""


def plan(program: DerivedProgram, threads: int, knobs: Knobs | None = None) -> KernelPlan:
    """A kernel on AMX tiles; raises :class:`LoweringError` where the layout does not suit them."""
    roles = lane_roles(program)
    product = _product(program)
    nest = apply_knobs(_lanes_only(program, roles), REGISTERS, knobs)
    grid = tile_grid(nest, roles, _GROUPS.get(product, 4))
    source = contraction_source(
        nest, threads, prologue=configuration_statements(grid), epilogue=release_statements()
    )
    intrinsics = {
        INIT: (init_intrinsic(nest, grid), 0),
        UPDATE: (update_intrinsic(nest, grid, product), len(nest.reductions)),
        STORE: (store_intrinsic(nest, grid), 0),
    }

    def schedule(work: Any) -> None:
        for name, (intrinsic, depth) in intrinsics.items():
            loops = work.get_loops(work.get_sblock(name, "main"))
            work.tensorize(loops[depth], register(intrinsic))

    return KernelPlan("x86.amx", source, schedule, _ATTRIBUTES, _OPTIONS)


def candidates(program: DerivedProgram, limit: int) -> list[Knobs]:
    """Settings worth timing, the default first."""
    return knob_candidates(_lanes_only(program, lane_roles(program)), REGISTERS, limit)


def _cost(rows: int, columns: int) -> float:
    """A product occupies the unit for 16 cycles, a load for 8, and they overlap; the next product
    into the same accumulator waits for the last."""
    loads = 8 * (rows + columns)
    return max(16 * rows * columns, _LATENCY, loads) + 0.25 * loads


REGISTERS = RegisterModel(fits, _cost, largest=TILES)


def _product(program: DerivedProgram) -> str:
    """The product instruction for the operands' types."""
    first, second, output = (operand.dtype for operand in kernel_nest(program).operands)
    product = _PRODUCTS.get((first, second, output))
    if product is None:
        raise LoweringError(f"AMX has no product {first} x {second} -> {output}")
    return product


def _lanes_only(program: DerivedProgram, roles: LaneRoles) -> Nest:
    """Lanes in digits, the depth cut where a 32-bit word of B ends."""
    group = _GROUPS.get(_product(program), 4)
    return split_lanes(kernel_nest(program), {roles.depth: (group,)})
