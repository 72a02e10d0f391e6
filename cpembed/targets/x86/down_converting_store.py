"""Sums of 32 bits stored as bytes or as bfloat16, several vectors of them at a time; or rounded.

Narrowed alone, each vector of 16 sums takes four operations and a store of 16 bytes. Packed in
pairs, which saturates (VPACKSSDW, then VPACKUSWB or VPACKSSWB: Intel 64 and IA-32 Architectures
Software Developer's Manual, volume 2), four take four and, where they are neighbours, one store.
Floats are rounded to integers before (VCVTPS2DQ, which makes the least integer of what is less),
also where these are stored as they are: LLVM converts some vectors lane by lane. Two vectors of
float32 become one of bfloat16 by VCVTNE2PS2BF16, which takes subnormals for zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cpembed.codegen.epilogue import (
    BIAS,
    SCALE,
    Epilogue,
    Residual,
    float32,
    saturated_range,
)
from cpembed.codegen.instruction import VECTOR_PARAMETERS
from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.codegen.plan import Script
from cpembed.ir.dtypes import is_integer
from cpembed.ir.index import IndexExpr
from cpembed.targets.x86.features import lacking

_LANES = 16
_BYTES = {"uint8": "packuswb", "int8": "packsswb"}
"""Types of results, and what packs words of two bytes to them."""
_IN_ORDER = [4 * lane + vector for vector in range(4) for lane in range(4)]
"""Packing works within 128-bit lanes: the words of a vector end up four words apart."""

ATTRIBUTES = ("+avx512f", "+avx512bw", "+avx512bf16")
"""What these stores take, all of which a CPU with AMX has."""


def stored_together(epilogue: Epilogue | None, sums: str, *, halves: bool = True) -> int:
    """How many vectors of 16 sums are narrowed at a time; 1 where they are not. ``halves``: the
    CPU has VCVTNE2PS2BF16.
    """
    if epilogue is None or epilogue.is_integral or sums not in ("int32", "float32"):
        return 1
    if epilogue.dtype in _BYTES:
        return 4
    return 2 if epilogue.dtype == "bfloat16" and halves else 1


@dataclass(frozen=True)
class _Vector:
    """Sixteen neighbours: where they are among a task's sums, where their results, their channels
    and the residual's elements are, from those of the task's first.
    """

    sums: int
    result: int
    channel: int = 0
    residual: int = 0


def write_narrow(script: Script, nest: Nest, sums: str, *, halves: bool = True) -> bool:
    """Write what a task stores of its sums, which are in the buffer ``sums``; False, and nothing is
    written, where these are neither rounded nor narrowed together. ``halves`` as for
    :func:`stored_together`.
    """
    epilogue, output = nest.epilogue, nest.operands[2]
    if epilogue is None or epilogue.is_integral:
        return False
    together = stored_together(epilogue, nest.sums, halves=halves)
    rounded = is_integer(epilogue.dtype) and not epilogue.in_integers(nest.sums)
    vectors = _vectors(nest) if together > 1 or rounded else []
    if epilogue.dtype in _BYTES and not _any_neighbours(vectors):
        # Single ones would have to be taken apart again, which costs what packing saves.
        together, vectors = 1, vectors if rounded else []
    if not vectors:
        return False
    first = _outside(nest, output)
    for start in range(0, len(vectors), together):
        group = vectors[start : start + together]
        values = [_value(nest, epilogue, sums, vector, together) for vector in group]
        values += values[-1:] * (together - len(values))
        for at, count in _neighbours(group):
            place = f"{output.parameter}[T.Ramp({first + group[at].result}, 1, {_LANES * count})]"
            taken = _TAKEN[epilogue.dtype] if together > 1 else _alone
            script.line(f"{place} = {taken(values, epilogue.dtype, at, count)}")
    return True


def write_narrow_here(script: Script, nest: Nest, sums: str) -> bool:
    """:func:`write_narrow` with what this CPU has."""
    return write_narrow(script, nest, sums, halves=not lacking(("avx512_bf16",)))


def _vectors(nest: Nest) -> list[_Vector]:
    """A task's sums in the order of their results; none where the innermost loop is not over 16
    neighbours.
    """
    *others, lane = nest.spatial_inner
    named = {"sums": nest.accumulator_access, "result": nest.operands[2].access}
    for name, operand in (("channel", nest.channels), ("residual", nest.residual)):
        if operand is not None:
            named[name] = operand.access
    accesses = named.values()
    inner = [loop.name for loop in nest.spatial_inner]
    parts = [IndexExpr.sum([t for t in a.terms if set(t.iterators) & set(inner)]) for a in accesses]
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
        places = (int(part.evaluate(values)) for part in parts)
        found.append(_Vector(**dict(zip(named, places, strict=True))))
    return sorted(found, key=lambda vector: vector.result)


def _outside(nest: Nest, operand: KernelOperand) -> IndexExpr:
    """The place of a task's first element."""
    inner, access = {loop.name for loop in nest.spatial_inner}, operand.access
    return IndexExpr.sum([t for t in access.terms if not inner & set(t.iterators)], access.constant)


def _value(nest: Nest, epilogue: Epilogue, sums: str, vector: _Vector, together: int) -> str:
    """What narrowing alone makes results of, and saturates: nothing is left to do for the least of
    a type, nor in integers for its largest. Of the range without a sign that VPMOVUSDB, which takes
    one vector at a time, saturates to, it is the other way round.
    """
    value, kind = f"{sums}[T.Ramp({vector.sums}, 1, {_LANES})]", nest.sums
    channel = None if nest.channels is None else _outside(nest, nest.channels)
    for name, symbol in ((BIAS, "+"), (SCALE, "*")):
        if name not in epilogue.vectors or channel is None:
            continue
        if name == SCALE and kind != "float32":
            value, kind = f'T.cast({value}, "float32x{_LANES}")', "float32"
        place = f"T.Ramp({channel + vector.channel}, 1, {_LANES})"
        value = f"({value} {symbol} {VECTOR_PARAMETERS[name]}[{place}])"
    saturates = epilogue.dtype == "uint8" and not (epilogue.is_requantized or epilogue.residual)
    if epilogue.relu and not saturates:
        # The second one is taken of a NaN and a number.
        value = f"T.max({_broadcast(f'T.{kind}(0)')}, {value})"
    if epilogue.dtype == "bfloat16" and kind != "float32":
        return f'T.cast({value}, "float32x{_LANES}")'
    if kind == "float32" and epilogue.residual is not None:
        return _with_residual(nest, epilogue, epilogue.residual, value, vector)
    if kind == "float32" and epilogue.is_requantized:
        return _moved(_rounded(_limited(value, epilogue.stored_range)), epilogue.zero_point)
    if kind == "float32" and epilogue.dtype == "uint8" and together == 1:
        # What is too large, or a NaN, becomes the least integer: without a sign the largest.
        return _rounded(f"T.max({_broadcast('T.float32(0)')}, {value})")
    if kind == "float32" and epilogue.dtype != "bfloat16":
        largest = _broadcast(f"T.float32({saturated_range(epilogue.dtype)[1]})")
        return _rounded(f"T.min({value}, {largest})")
    return value


def _with_residual(
    nest: Nest, epilogue: Epilogue, residual: Residual, value: str, vector: _Vector
) -> str:
    assert nest.residual is not None
    place = f"T.Ramp({_outside(nest, nest.residual) + vector.residual}, 1, {_LANES})"
    other = f"{nest.residual.parameter}[{place}]"
    floats = f"float32x{_LANES}"
    own = value
    if residual.rounds:
        own = f'T.cast({_rounded(_limited(value, epilogue.stored_range))}, "{floats}")'
    other = _moved(f'T.cast({other}, "int32x{_LANES}")', -residual.zero_point)
    other = f'T.cast({other}, "{floats}") * {_broadcast(float32(residual.scale))}'
    added = f"T.fma({own}, {_broadcast(float32(residual.own_scale))}, {other})"
    limited = _limited(added, epilogue.residual_range)
    return _moved(_rounded(limited), residual.stored_zero_point)


def _limited(value: str, limits: tuple[int, int]) -> str:
    """Floats within integers that a byte holds: what is then rounded saturates no more."""
    low, high = (_broadcast(f"T.float32({limit})") for limit in limits)
    return f"T.max(T.min({value}, {high}), {low})"


def _moved(value: str, by: int) -> str:
    return f"({value} + {_broadcast(f'T.int32({by})')})" if by else value


def _rounded(value: str) -> str:
    """Floats to integers, in the current direction: to the nearest even."""
    arguments = f"{value}, {_broadcast('T.int32(0)')}, T.int16(-1), T.int32(4)"
    return _intrinsic("avx512.mask.cvtps2dq.512", arguments, f"int32x{_LANES}")


def _broadcast(scalar: str) -> str:
    return f"T.Broadcast({scalar}, {_LANES})"


def _bytes(values: Sequence[str], dtype: str, at: int, count: int) -> str:
    """Of four vectors, ``count`` from number ``at`` on."""
    first, second = (
        _intrinsic("avx512.packssdw.512", f"{a}, {b}", "int16x32")
        for a, b in (values[:2], values[2:])
    )
    packed = _intrinsic(f"avx512.{_BYTES[dtype]}.512", f"{first}, {second}", "int8x64")
    words = f'T.reinterpret({packed}, dtype="int32x16")'
    taken = _IN_ORDER[4 * at : 4 * (at + count)]
    return f'T.reinterpret(T.Shuffle([{words}], {taken}), dtype="{dtype}x{_LANES * count}")'


def _halves(values: Sequence[str], dtype: str, at: int, count: int) -> str:
    """Of two vectors, ``count`` from number ``at`` on, as the bits of ``dtype``."""
    packed = _intrinsic("avx512bf16.cvtne2ps2bf16.512", f"{values[1]}, {values[0]}", "uint16x32")
    taken = list(range(_LANES * at, _LANES * (at + count)))
    return packed if count > 1 else f"T.Shuffle([{packed}], {taken})"


def _alone(values: Sequence[str], dtype: str, at: int, count: int) -> str:
    """A vector that is packed with no other."""
    if dtype not in _BYTES:
        return values[0]
    saturated = "pmovus" if dtype == "uint8" else "pmovs"
    arguments = f"{values[0]}, T.Broadcast(T.int8(0), {_LANES}), T.int16(-1)"
    packed = _intrinsic(f"avx512.mask.{saturated}.db.512", arguments, f"int8x{_LANES}")
    return packed if dtype == "int8" else f'T.reinterpret({packed}, dtype="{dtype}x{_LANES}")'


_TAKEN = {"uint8": _bytes, "int8": _bytes, "bfloat16": _halves}


def _intrinsic(name: str, arguments: str, dtype: str) -> str:
    number = f'T.llvm_lookup_intrinsic_id("llvm.x86.{name}")'
    return f'T.call_llvm_pure_intrin({number}, {arguments}, dtype="{dtype}")'


def _any_neighbours(vectors: Sequence[_Vector]) -> bool:
    return any(count > 1 for _, count in _neighbours(vectors))


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
