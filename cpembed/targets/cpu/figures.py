"""Constants of the performance model of CPU kernels, as data.

``targets/x86/machines/*.toml`` holds them, with what they mean, where and when they were measured.
A constant is in one file: the model uses it for every CPU, until another machine's differs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from cpembed.errors import InvariantError
from cpembed.files import read_toml

MACHINES = Path(__file__).parents[1] / "x86" / "machines"


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``[model]`` tables together; what each field means is written beside its value."""

    line_bytes: int
    page_bytes: int
    not_hidden: float
    pieces: tuple[tuple[int, float, float], ...]
    hardware_streams: int
    unforeseen: float
    coherence_miss: float
    transposed: float
    scattered: float
    computed: float
    segment_lines: float
    segment_ns: float
    launches_worth: float
    packing_shares: tuple[float, float]
    packed_in: tuple[float, float, float]
    cache_tile_shares: tuple[float, ...]
    prefetch_a_share: float
    prefetch_b_share: float
    spare_registers: int
    largest_side: int
    waits: float
    lane_sum_registers: int
    halving_products: int
    lane_products: float
    tile_rows_saved: int
    rows_apart: float
    rows_near_bytes: int
    stream_bytes: int
    converted_store: dict[int, float]


@cache
def figures() -> Figures:
    """What the machines' files say; raises :class:`InvariantError` where two say the same."""
    found: dict[str, Any] = {}
    for path in sorted(MACHINES.glob("*.toml")):
        model = read_toml(path).get("model", {})
        if twice := found.keys() & model.keys():
            raise InvariantError(f"{path}: {', '.join(sorted(twice))}: in another file too")
        found |= model
    # The keys of a TOML table are strings.
    return msgspec.convert(found, Figures, strict=False)


@cache
def published() -> dict[str, Any]:
    """The calibration that stands in where nothing was measured, without its threads."""
    return read_toml(MACHINES / "sapphire_rapids.toml")["published"]
