"""Lines of results that are asked for before they are stored.

A store to a line that is in no near cache waits for the line, and few of them can wait at a time:
where the output does not stay in the second-level cache, a task asks for its lines while its
products run (PREFETCHW: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2).
Each step of the reductions asks for a share: loads wait behind what is asked for at once.

Measured on Zen 4: bfloat16 products of 1024 x 1024 x 64, stored as bfloat16, are 1.26 times as
fast, 1x1 filters from 64 to 256 and 128 to 512 channels, stored as int32, 1.06 times, a depthwise
layer of 64 channels on 112 x 112 pixels 1.2 times; the first of these filters on Sapphire Rapids
with AMX, stored as float32, 1.25 to 1.8 times.
"""

from __future__ import annotations

import math

from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.kernel.nest import Nest
from cpembed.kernel.nest_text import loop_variable, nth_place, prefetch
from cpembed.kernel.script import Script
from cpembed.kernel.traffic import LINE_BYTES, Reuse
from cpembed.targets.cpu.calibration import Calibration

_FEW = 48
"""Steps, of which the compiler writes some one after the other: a branch in each makes it keep what
they loaded on the stack, so that the last line is rather asked for again (measured on Ice Lake: 7x7
filters of 3 channels with a stride of two, 42 steps and 24 lines, take 0.86 of the time, 5x20
filters of one channel, 25 and 22, 0.8 to 0.9; 1x1 filters of 256 channels, 64 and 24, 1.07, 3x3
filters of 288 channels, 648 and 24, 1.02)."""


def fetches_results(nest: Nest, reuse: Reuse, machine: Calibration) -> bool:
    """Whether results go farther than the second-level cache, by whole lines of a task."""
    size = machine.cache_bytes[1]
    return bool(size and reuse.traffic(size)[2] and _lines(nest))


def fetch_results(script: Script, nest: Nest) -> None:
    """Ask, in a step of the reductions, for its share of the lines of a task's results."""
    output, inner = nest.operands[2], {loop.name for loop in nest.spatial_inner}
    outside = [t for t in output.access.terms if not inner & set(t.iterators)]
    first = IndexExpr.of(outside, output.access.constant)
    lines = _lines(nest)
    count = math.prod(extent for extent, _ in lines)
    steps = math.prod(loop.extent for loop in nest.reductions)
    share = -(-count // steps)
    step = "0"
    for loop in nest.reductions:
        step = f"({step}) * {loop.extent} + {loop_variable(loop)}"
    for at in range(share):
        number, conditions = f"(({step}) * {share} + {at})", list[str]()
        if count < steps <= _FEW:
            number = f"T.min({number}, {count - 1})"
        elif steps * share > count:
            conditions = [f"if {number} < {count}:"]
        place = nth_place(str(first), number, lines)
        with script.nested(*conditions):
            script.line(prefetch(f"{output.parameter}[{place}]", write=True))


def _lines(nest: Nest) -> list[tuple[int, int]]:
    """How many lines of a task's results lie at which distances, in elements, the nearest first;
    empty where they are no whole lines, or an access is not affine."""
    output, loops = nest.operands[2], nest.spatial_inner
    names = {loop.name for loop in loops}
    own = [term for term in output.access.terms if names & set(term.iterators)]
    if not all(term.is_affine for term in own):
        return []
    together, apart = 1, list[tuple[int, int]]()
    for distance, extent in sorted((abs(output.stride(o.name)), o.extent) for o in loops):
        if distance == together and not apart:
            together *= extent
        else:
            apart.append((extent, distance))
    per_line = LINE_BYTES // size_bytes(output.dtype)
    return [] if together % per_line else [(together // per_line, per_line), *apart]
