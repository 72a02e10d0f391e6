"""Sums of 32 bits stored as bytes, four vectors of them at a time.

Narrowed alone, each vector of 16 sums takes four operations and a store of 16 bytes. Packed in
pairs, which saturates (VPACKSSDW, then VPACKUSWB or VPACKSSWB: Intel 64 and IA-32 Architectures
Software Developer's Manual, volume 2), four take four and, where they are neighbours, one store.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cpembed.backends.contraction import STAGE, VECTOR_PARAMETERS
from cpembed.backends.epilogue import BIAS
from cpembed.backends.nest import Nest
from cpembed.backends.script import Script
from cpembed.ir.index import IndexExpr

_LANES = 16
_VECTORS = 4
BYTES = {"uint8": "packuswb", "int8": "packsswb"}
"""Types of results, and what packs words of two bytes to them."""
_IN_ORDER = [_VECTORS * lane + vector for vector in range(_VECTORS) for lane in range(4)]
"""Packing works within 128-bit lanes: the words of a vector end up four words apart."""


@dataclass(frozen=True)
class _Vector:
    """Sixteen neighbours: where they are among a task's sums, where their results and their
    channels are, from those of the task's first."""

    sums: int
    result: int
    channel: int


def write_bytes(script: Script, nest: Nest) -> bool:
    """Write what a task stores of its sums; False, and nothing is written, where these are not
    bytes in rows of 16 that are computed in integers."""
    epilogue, output = nest.epilogue, nest.operands[2]
    if epilogue is None or epilogue.dtype not in BYTES:
        return False
    vectors = _vectors(nest)
    if not any(count > 1 for _, count in _neighbours(vectors)):
        # Taking single ones apart again would cost what packing saves.
        return False
    if nest.sums != "int32" or not epilogue.in_integers(nest.sums):
        return False
    inner = {loop.name for loop in nest.spatial_inner}
    first = _outside(output.access, inner)
    channel = None if nest.channels is None else _outside(nest.channels.access, inner)
    for start in range(0, len(vectors), _VECTORS):
        group = vectors[start : start + _VECTORS]
        values = [_value(nest, vector, channel) for vector in group]
        words = _words([*values, *values[-1:] * (_VECTORS - len(values))], epilogue.dtype)
        for at, count in _neighbours(group):
            taken = _IN_ORDER[4 * at : 4 * (at + count)]
            place = f"{output.parameter}[T.Ramp({first + group[at].result}, 1, {_LANES * count})]"
            bytes_ = f'T.reinterpret(T.Shuffle([{words}], {taken}), dtype="{epilogue.dtype}x'
            script.line(f'{place} = {bytes_}{_LANES * count}")')
    return True


def _vectors(nest: Nest) -> list[_Vector]:
    """A task's sums in the order of their results; none where the innermost loop is not over 16
    neighbours."""
    *others, lane = nest.spatial_inner
    accesses = [nest.accumulator_access, nest.operands[2].access]
    if nest.channels is not None:
        accesses.append(nest.channels.access)
    inner = [loop.name for loop in nest.spatial_inner]
    parts = [IndexExpr.of([t for t in a.terms if set(t.iterators) & set(inner)]) for a in accesses]
    known = all(set(t.iterators) <= set(inner) for part in parts for t in part.terms)
    if lane.extent != _LANES or not known:
        return []
    if any(
        [(t.coefficient, t.is_affine) for t in part.terms if lane.name in t.iterators]
        != [(1, True)]
        for part in parts
    ):
        return []
    found: list[_Vector] = []
    for point in itertools.product(*(range(loop.extent) for loop in others)):
        values = {**dict(zip((loop.name for loop in others), point, strict=True)), lane.name: 0}
        sums, result, *channel = (int(part.evaluate(values)) for part in parts)
        found.append(_Vector(sums, result, channel[0] if channel else 0))
    return sorted(found, key=lambda vector: vector.result)


def _outside(access: IndexExpr, inner: set[str]) -> IndexExpr:
    return IndexExpr.of([t for t in access.terms if not inner & set(t.iterators)], access.constant)


def _value(nest: Nest, vector: _Vector, channel: IndexExpr | None) -> str:
    """Sums as 32-bit integers that saturation alone narrows."""
    value = f"{STAGE}[T.Ramp({vector.sums}, 1, {_LANES})]"
    epilogue = nest.epilogue
    assert epilogue is not None
    if epilogue.bias and channel is not None:
        biases = VECTOR_PARAMETERS[BIAS]
        value = f"{value} + {biases}[T.Ramp({channel + vector.channel}, 1, {_LANES})]"
    if epilogue.relu and epilogue.dtype == "int8":
        value = f"T.max({value}, T.Broadcast(T.int32(0), {_LANES}))"
    return value


def _words(values: Sequence[str], dtype: str) -> str:
    """Four vectors in one, of 16 words of four bytes."""
    first, second = (
        _intrinsic("packssdw", f"{a}, {b}", "int16x32") for a, b in (values[:2], values[2:])
    )
    packed = _intrinsic(BYTES[dtype], f"{first}, {second}", "int8x64")
    return f'T.reinterpret({packed}, dtype="int32x16")'


def _intrinsic(name: str, arguments: str, dtype: str) -> str:
    number = f'T.llvm_lookup_intrinsic_id("llvm.x86.avx512.{name}.512")'
    return f'T.call_llvm_pure_intrin({number}, {arguments}, dtype="{dtype}")'


def _neighbours(group: Sequence[_Vector]) -> Iterator[tuple[int, int]]:
    """Vectors that are stored together: the position of the first, and how many; 1, 2 or 4."""
    at = 0
    while at < len(group):
        count = 1
        while (
            at + count < len(group)
            and group[at + count].result == group[at].result + count * _LANES
        ):
            count += 1
        count = 1 << (count.bit_length() - 1)
        yield at, count
        at += count
