"""Lines of results that a task asks for: all of them, once, and only where they come from afar."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cpembed.api.solve import hardware_spec, solve, workload
from cpembed.backends.contract import Knobs
from cpembed.backends.epilogue import Epilogue
from cpembed.backends.kernel import schedule_space
from cpembed.backends.nest import Nest
from cpembed.backends.traffic import LINE_BYTES, Reuse
from cpembed.backends.x86.calibration import calibration
from cpembed.backends.x86.fetched_results import fetch_statements, fetches_results
from cpembed.ir.dtypes import size_bytes

SPEC = hardware_spec("amx_int8")
LAYER = "conv2d n=1 c=64 h=32 w=32 k=64 r=1 s=1 layout=NHWC"


def nest_of(dtype: str, blocks: dict[str, int]) -> Nest:
    (ranked, *_) = solve(workload(LAYER.split(), target=SPEC), SPEC, top=1).embeddings
    space = schedule_space(ranked.candidate.program, SPEC, epilogue=Epilogue(dtype))
    rows = next(loop.origin for loop in space.model.rows(space.nest) if loop.steps > 1)
    columns = next(loop.origin for loop in space.model.columns(space.nest) if loop.steps > 1)
    named = {"rows": rows, "columns": columns}
    return space.applied(Knobs({named[name]: size for name, size in blocks.items()}))


@pytest.mark.parametrize(
    "dtype, blocks, lines",
    [
        ("float32", {"rows": 2, "columns": 2}, 64),
        ("uint8", {"columns": 4}, 16),
        # A quarter of 16 lines, and half.
        ("uint8", {}, None),
        ("uint8", {"columns": 2}, None),
    ],
)
def test_whole_lines_are_asked_for(dtype: str, blocks: dict[str, int], lines: int | None) -> None:
    nest, machine = nest_of(dtype, blocks), calibration()
    small = replace(machine, cache_bytes=(16 << 10, 32 << 10, 64 << 20))
    assert fetches_results(nest, Reuse(nest), small) == (lines is not None)
    # What stays in the cache is there.
    large = replace(machine, cache_bytes=(16 << 10, 64 << 20, 64 << 20))
    assert not fetches_results(nest, Reuse(nest), large)
    if lines is None:
        return
    statements = fetch_statements(nest)
    assert len(statements) == lines
    size = size_bytes(nest.operands[2].dtype)
    names = set(nest.operands[2].access.iterators) - {loop.name for loop in nest.spatial_inner}
    places: set[int] = set()
    for statement in statements:
        found = re.search(r"address_of\(C\[(.*?)\]\)", statement)
        assert found is not None
        at = int(eval(found[1], dict.fromkeys(names, 0)))
        assert at * size % LINE_BYTES == 0
        places.add(at * size // LINE_BYTES)
    assert len(places) == lines
