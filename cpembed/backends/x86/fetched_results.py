"""Lines of results that are asked for before they are stored.

A store to a line that is in no near cache waits for the line, and few of them can wait at a time:
where the output does not stay in the second-level cache, a task of an AMX kernel asks for its lines
when it begins, and they come while its products run (PREFETCHW: Intel 64 and IA-32 Architectures
Software Developer's Manual, volume 2).
"""

from __future__ import annotations

import itertools

from cpembed.backends.nest import Nest
from cpembed.backends.traffic import LINE_BYTES, Reuse
from cpembed.backends.x86.calibration import Calibration
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr

_WRITTEN, _KEPT, _DATA = 1, 3, 1
"""Arguments of LLVM's prefetch: for writing, which is PREFETCHW however near lines are to be kept;
data."""


def fetches_results(nest: Nest, reuse: Reuse, machine: Calibration) -> bool:
    """Whether results go farther than the second-level cache, by whole lines of a task."""
    size = machine.cache_bytes[1]
    lines = _lines(nest)
    stored = nest.accumulators * size_bytes(nest.operands[2].dtype)
    return bool(size and reuse.traffic(size)[2] and len(lines) * LINE_BYTES == stored)


def fetch_statements(nest: Nest) -> list[str]:
    """Ask for the lines of a task's results."""
    output, inner = nest.operands[2], {loop.name for loop in nest.spatial_inner}
    outside = [t for t in output.access.terms if not inner & set(t.iterators)]
    first = IndexExpr.of(outside, output.access.constant)
    number = 'T.llvm_lookup_intrinsic_id("llvm.prefetch")'
    return [
        f"T.evaluate(T.call_llvm_intrin({number}, T.address_of({output.parameter}[{first + at}]), "
        f'{_WRITTEN}, {_KEPT}, {_DATA}, dtype="void"))'
        for at in _lines(nest)
    ]


def _lines(nest: Nest) -> list[int]:
    """Elements with which lines begin, from a task's first result, if that begins one; none where
    an access is not affine."""
    output, loops = nest.operands[2], nest.spatial_inner
    names = [loop.name for loop in loops]
    own = [term for term in output.access.terms if set(names) & set(term.iterators)]
    if not all(term.is_affine for term in own):
        return []
    strides = [output.stride(name) for name in names]
    per_line = LINE_BYTES // size_bytes(output.dtype)
    found = {
        sum(step * at for step, at in zip(strides, point, strict=True)) // per_line * per_line
        for point in itertools.product(*(range(loop.extent) for loop in loops))
    }
    return sorted(found)
